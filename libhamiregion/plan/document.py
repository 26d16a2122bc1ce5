"""A YAML or JSON text as plain values, with the line and column of each.

A plan comes from a file or a ConfigMap that others write, so a text is bounded in size, depth and
number of values. A scalar is its text: what YAML 1.1 would make of ``no``, ``010`` or ``1:30``
surprises people, and each field of a plan knows how to read its own text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs

from libhamiregion.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable

# An undo plan of 4,096 containers with 16 devices each has 70,000 rules.
MAX_BYTES: Final = 32 << 20
MAX_VALUES: Final = 1_000_000
MAX_DEPTH: Final = 16
_MAX_PROBLEMS: Final = 20
_SHOWN: Final = 60

_TAG: Final = "tag:yaml.org,2002:"
_SCALAR_TAGS: Final = frozenset(
    _TAG + name for name in ("str", "int", "float", "bool", "null", "timestamp", "merge", "value")
)

Path = tuple["str | int", ...]


@attrs.frozen
class PlanProblem:
    """One thing that is wrong with a plan.

    Attributes:
        line: From 1; None where the problem has no place, as in an empty plan.
        column: In characters, from 1; None as for the line.
        path: The value, such as ``rules[2].set.sm_limit``; empty for the whole plan.
        message: What is wrong and what to write instead; one line, escaped.
    """

    line: int | None
    column: int | None
    path: str
    message: str

    def __str__(self) -> str:
        place = "" if self.line is None else f"{self.line}:{self.column}:"
        return " ".join(filter(None, (place, self.path and f"{self.path}:", self.message)))


class PlanError(ValueError):
    """A plan that cannot be used. Its text has one line per problem, as compilers write them.

    Attributes:
        source: The file's name, or where else the plan is from.
        problems: What is wrong, in the order of the text; at most 20.
    """

    def __init__(self, source: str, problems: Iterable[PlanProblem]) -> None:
        # The same value may stand in several places by an alias.
        found = sorted(dict.fromkeys(problems), key=lambda each: (each.line or 0, each.column or 0))
        if len(found) > _MAX_PROBLEMS:
            more = f"and {len(found) - _MAX_PROBLEMS + 1} more problems"
            found = [*found[: _MAX_PROBLEMS - 1], PlanProblem(None, None, "", more)]
        super().__init__(source, tuple(found))
        self.source = source
        self.problems = tuple(found)

    def __str__(self) -> str:
        source = printable(self.source)
        return "\n".join(
            f"{source}:{each}" if each.line is not None else f"{source}: {each}"
            for each in self.problems
        )


@attrs.frozen
class Document:
    """The content of a text.

    Attributes:
        source: Where the text is from.
        value: Dictionaries, lists, text, and None for an explicit null.
        places: Line and column of each value, by path.
        key_places: Line and column of each key, by the path of its value.
    """

    source: str
    value: Any
    places: dict[Path, tuple[int, int]]
    key_places: dict[Path, tuple[int, int]]

    def problem(self, path: Path, message: str, *, of_key: bool = False) -> PlanProblem:
        """A problem of the value (or its key) at a path, or of what is around it."""
        places = self.key_places if of_key else self.places
        known = path
        while known and known not in places:
            known, places = known[:-1], self.places
        line, column = places.get(known, (None, None))
        return PlanProblem(line, column, spell_path(path), printable(message, 400))


def spell_path(path: Path) -> str:
    """A path as people write it.

    >>> spell_path(("rules", 2, "set", "sm_limit"))
    'rules[2].set.sm_limit'
    """
    parts = (f"[{part}]" if isinstance(part, int) else f".{printable(part, 60)}" for part in path)
    return "".join(parts).removeprefix(".")


def read_document(raw: bytes, source: str) -> Document:
    """Parse a text.

    Args:
        raw: UTF-8, with or without a byte order mark.
        source: Where it is from, for the error.

    Raises:
        PlanError: The text is neither YAML nor JSON, or exceeds a bound.
        ModuleNotFoundError: The extra ``plan`` is not installed.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    walk = _Walk()
    try:
        text = _decoded(raw)
        # The composer recurses on the C stack, so depth is checked on the stream of events first.
        _check_depth(yaml.parse(text, Loader=loader))
        node = yaml.compose(text, Loader=loader)
        if node is None:
            raise _Refused("the plan is empty")
        value = walk.value(node, ())
    except _Refused as error:
        raise PlanError(source, [error.problem]) from None
    except yaml.YAMLError as error:
        raise PlanError(source, [_not_yaml(error).problem]) from None
    if walk.second:
        raise PlanError(source, walk.second)
    return Document(source, value, walk.places, walk.key_places)


class _Refused(Exception):
    def __init__(self, message: str, mark: Any = None, path: Path = ()) -> None:
        self.problem = _problem(message, mark, path)


def _problem(message: str, mark: Any, path: Path) -> PlanProblem:
    line, column = (None, None) if mark is None else (mark.line + 1, mark.column + 1)
    return PlanProblem(line, column, spell_path(path), message)


def _not_yaml(error: Any) -> _Refused:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    said = getattr(error, "problem", None) or str(error)
    if "another document" in said:
        return _Refused("a second document; a file holds one plan", mark)
    return _Refused(f"neither YAML nor JSON: {printable(said, 200)}", mark)


def _decoded(raw: bytes) -> str:
    if len(raw) > MAX_BYTES:
        raise _Refused(f"more than {MAX_BYTES >> 20} MiB; a plan is a small text")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise _Refused(f"not UTF-8 in line {line}; save the plan as UTF-8") from None
    # JSON may be indented with tabs, which YAML forbids; no text in JSON can hold one.
    return text.replace("\t", " ") if text.lstrip().startswith("{") else text


def _check_depth(events: Iterable[Any]) -> None:
    depth = 0
    for event in events:
        kind = type(event).__name__
        if kind in {"MappingStartEvent", "SequenceStartEvent"}:
            depth += 1
            if depth > MAX_DEPTH:
                raise _Refused(f"nested deeper than {MAX_DEPTH} levels", event.start_mark)
        elif kind in {"MappingEndEvent", "SequenceEndEvent"}:
            depth -= 1


class _Walk:
    """Turns YAML nodes into plain values; an alias counts as often as it is used."""

    def __init__(self) -> None:
        self.places: dict[Path, tuple[int, int]] = {}
        self.key_places: dict[Path, tuple[int, int]] = {}
        self.second: list[PlanProblem] = []
        self._values = 0

    def value(self, node: Any, path: Path) -> Any:
        self._values += 1
        if self._values > MAX_VALUES or len(path) > MAX_DEPTH:
            bound = f"{MAX_VALUES} values or {MAX_DEPTH} levels, aliases counted"
            raise _Refused(f"more than {bound}", node.start_mark, path)
        self.places[path] = _place(node)
        if node.id == "scalar":
            return self._scalar(node, path)
        if node.tag not in {_TAG + "map", _TAG + "seq"}:
            raise _unknown_tag(node, path)
        if node.id == "sequence":
            return [self.value(each, (*path, number)) for number, each in enumerate(node.value)]
        return self._mapping(node, path)

    def _mapping(self, node: Any, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in node.value:
            if key.id != "scalar":
                raise _Refused("a key is a plain word", key.start_mark, path)
            inner = (*path, key.value)
            if key.value in found:
                self.second.append(_problem("given a second time", key.start_mark, inner))
            self.key_places[inner] = _place(key)
            found[key.value] = self.value(value, inner)
        return found

    def _scalar(self, node: Any, path: Path) -> str | None:
        if node.tag not in _SCALAR_TAGS:
            raise _unknown_tag(node, path)
        if node.tag == _TAG + "null":
            if not node.value:
                raise _Refused("nothing stands here", node.start_mark, path)
            return None
        text: str = node.value
        return text


def _place(node: Any) -> tuple[int, int]:
    return node.start_mark.line + 1, node.start_mark.column + 1


def _unknown_tag(node: Any, path: Path) -> _Refused:
    return _Refused(f"the tag {printable(node.tag, _SHOWN)} is unknown", node.start_mark, path)

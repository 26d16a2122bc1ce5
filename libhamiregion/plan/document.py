"""A YAML or JSON text as plain values, with the line and column of each.

A plan comes from a file or a ConfigMap that others write, so a text is bounded in size and depth,
and has no aliases, of which few make many. A scalar is its text: what YAML 1.1 would make of
``no``, ``010`` or ``1:30`` surprises people, and each field of a plan knows how to read its text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs

from libhamiregion.errors import needs_extra
from libhamiregion.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# An undo plan of 4,096 containers with 16 devices each has 70,000 rules.
MAX_BYTES: Final = 32 << 20
MAX_DEPTH: Final = 16
_MAX_PROBLEMS: Final = 20
_NULLS: Final = frozenset(("null", "Null", "NULL", "~"))

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
        found = sorted(problems, key=lambda each: (each.line or 0, each.column or 0))
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


def _spelled(path: Path) -> str:
    """A path as people write it: ``rules[2].set.sm_limit``."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{printable(part, 60)}" for part in path)
    return "".join(parts).removeprefix(".")


@attrs.define
class Document:
    """The content of a text.

    Attributes:
        value: Dictionaries, lists, text, and None for an explicit null.
        marks: Where each value stands, by path.
        key_marks: Where each key stands, by the path of its value.
        second: Keys that stand in one mapping twice.
    """

    value: Any = None
    marks: dict[Path, Any] = attrs.field(factory=dict)
    key_marks: dict[Path, Any] = attrs.field(factory=dict)
    second: list[PlanProblem] = attrs.field(factory=list)

    def problem(self, path: Path, message: str, *, of_key: bool = False) -> PlanProblem:
        """A problem of the value (or its key) at a path, or of what is around it."""
        marks = self.key_marks if of_key else self.marks
        known = path
        while known and known not in marks:
            known, marks = known[:-1], self.marks
        return _problem(message, marks.get(known), path)


def read_document(raw: bytes, source: str) -> Document:
    """Parse the text of a plan.

    Args:
        raw: UTF-8, with or without a byte order mark.
        source: Where it is from, for the error.

    Raises:
        PlanError: The text is neither YAML nor JSON, or exceeds a bound.
        ModuleNotFoundError: The extra ``plan`` is not installed.
    """
    with needs_extra("a plan", "plan"):
        import yaml

    document = Document()
    text = ""
    try:
        text = _decoded(raw)
        events = yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        _read(events, document)
    except _InvalidDocument as error:
        raise PlanError(source, [error.problem]) from None
    except yaml.YAMLError as error:
        raise PlanError(source, [_syntax_problem(error, text)]) from None
    if document.second:
        raise PlanError(source, document.second)
    return document


class _InvalidDocument(Exception):
    def __init__(self, message: str, mark: Any = None, path: Path = ()) -> None:
        self.problem = _problem(message, mark, path)


def _syntax_problem(error: Any, text: str) -> PlanProblem:
    """What PyYAML refuses, at the same place whether its loader in C or in Python found it."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    said = printable(getattr(error, "problem", None) or str(error), 200)
    line = column = None
    if mark is not None:
        line, column = mark.line + 1, mark.column + 1
        at, lines = text[mark.index : mark.index + 1], text.split("\n")
        if at == "\t":
            said = "a tab; YAML is indented with spaces"
        elif "unknown escape" in said and at != "\\":
            column -= 1
        elif line > len(lines):
            line, column = len(lines), len(lines[-1]) + 1
    return PlanProblem(line, column, "", printable(f"neither YAML nor JSON: {said}", 400))


def _problem(message: str, mark: Any, path: Path = ()) -> PlanProblem:
    line, column = (None, None) if mark is None else (mark.line + 1, mark.column + 1)
    return PlanProblem(line, column, _spelled(path), printable(message, 400))


def _decoded(raw: bytes) -> str:
    if len(raw) > MAX_BYTES:
        raise _InvalidDocument(f"more than {MAX_BYTES >> 20} MiB; a plan is a small text")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise _InvalidDocument(f"not UTF-8 in line {line}; save the plan as UTF-8") from None
    # JSON may be indented with tabs, which YAML forbids; no text in JSON can hold one.
    return text.replace("\t", " ") if text.lstrip().startswith("{") else text


def _read(events: Iterator[Any], document: Document) -> None:
    """Read the one document of a stream of YAML's events."""
    kind = _kind(next(events))
    while kind != "DocumentStart":
        if kind == "StreamEnd":
            raise _InvalidDocument("the plan is empty")
        kind = _kind(next(events))
    document.value = _value(next(events), events, document, ())
    next(events)
    after = next(events)
    if _kind(after) != "StreamEnd":
        raise _InvalidDocument("a second document; a file holds one plan", after.start_mark)


def _kind(event: Any) -> str:
    return type(event).__name__.removesuffix("Event")


def _value(event: Any, events: Iterator[Any], document: Document, path: Path) -> Any:
    mark = document.marks[path] = event.start_mark
    if len(path) > MAX_DEPTH:
        raise _InvalidDocument(f"nested deeper than {MAX_DEPTH} levels", mark, path[:MAX_DEPTH])
    kind = _kind(event)
    if kind == "Alias":
        raise _InvalidDocument("a plan has no aliases; write it out", mark, path)
    if event.tag not in {None, "!"}:
        raise _InvalidDocument(
            f"the tag {printable(event.tag, 60)} is unknown; leave it out", mark, path
        )
    if kind == "Scalar":
        is_plain = event.style in {None, ""}
        if is_plain and not event.value:
            # At its key: PyYAML's two loaders place what is not there differently.
            mark = document.key_marks.get(path, mark)
            raise _InvalidDocument("nothing stands here; give a value or no key", mark, path)
        return None if is_plain and event.value in _NULLS else event.value
    if kind == "SequenceStart":
        found: list[Any] = []
        while _kind(event := next(events)) != "SequenceEnd":
            found.append(_value(event, events, document, (*path, len(found))))
        return found
    return _mapping(events, document, path)


def _mapping(events: Iterator[Any], document: Document, path: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    while _kind(key := next(events)) != "MappingEnd":
        if _kind(key) != "Scalar":
            raise _InvalidDocument("a key is a plain word", key.start_mark, path)
        inner = (*path, key.value)
        if key.value in found:
            message = "given a second time"
            document.second.append(_problem(message, key.start_mark, inner))
        document.key_marks[inner] = key.start_mark
        found[key.value] = _value(next(events), events, document, inner)
    return found

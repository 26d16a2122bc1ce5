"""A YAML or JSON text as plain values, with the place of each; nothing in it is executed.

Plans come from files that others write and from ConfigMaps, so a text is bounded in size, depth and
number of values before anything is made of it, and what YAML reads in a surprising way (octal
numbers, keys given twice, more than one document) is an error with its place.
"""

from __future__ import annotations

import re
from typing import Any, Final

import attrs

from libhamiregion.text import printable

MAX_BYTES: Final = 4 << 20
MAX_VALUES: Final = 200_000
MAX_DEPTH: Final = 16
_MAX_PROBLEMS: Final = 20
_SHOWN: Final = 60

_TAG: Final = "tag:yaml.org,2002:"
# 20 digits hold every number that a plan can need, and int() of a megabyte of digits takes long.
_DECIMAL: Final = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,19})\Z")
# A backslash that is itself escaped begins no escape.
_PAIR: Final = re.compile(
    r"(?<!\\)((?:\\\\)*)\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})", re.IGNORECASE
)
_BOOLEANS: Final = {"yes": True, "on": True, "true": True, "no": False, "off": False}

Path = tuple[str | int, ...]


@attrs.frozen
class Place:
    """Where something stands in a text.

    Attributes:
        line: From 1.
        column: In characters, from 1.
    """

    line: int
    column: int


@attrs.frozen
class PlanProblem:
    """One thing that is wrong with a plan.

    Attributes:
        place: Where; None where it has no place, as in a plan that is empty.
        path: What is concerned, such as ``rules[2].set.sm_limit``; empty for the whole.
        message: What is wrong with it and what to write instead; one line, escaped.
    """

    place: Place | None
    path: str
    message: str

    def __str__(self) -> str:
        place = "" if self.place is None else f"{self.place.line}:{self.place.column}: "
        path = f"{self.path}: " if self.path else ""
        return f"{place}{path}{self.message}"


class PlanError(ValueError):
    """A plan that cannot be used. As a text: one line per problem, as compilers write them.

    Attributes:
        source: The file's name, or what else the plan is from.
        problems: What is wrong, in the order of the text; at most 20.
    """

    def __init__(self, source: str, problems: tuple[PlanProblem, ...]) -> None:
        super().__init__(source, problems)
        self.source = source
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(f"{printable(self.source)}:{_spaced(each)}" for each in self.problems)


def _spaced(problem: PlanProblem) -> str:
    return str(problem) if problem.place is not None else f" {problem}"


class Problems:
    """Collects what is wrong with one text."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._found: list[PlanProblem] = []
        self._paths: set[Path] = set()

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, place: Place | None, path: Path, message: str) -> None:
        """Note one."""
        self._paths.add(path)
        self._found.append(PlanProblem(place, spell_path(path), message))

    def concern(self, path: Path) -> bool:
        """Whether something is wrong with this very value."""
        return path in self._paths

    def error(self) -> PlanError:
        """The error for all of them."""

        def key(problem: PlanProblem) -> tuple[int, int]:
            place = problem.place
            return (0, 0) if place is None else (place.line, place.column)

        # An alias stands in one place and has its problem wherever it is used.
        found = sorted(dict.fromkeys(self._found), key=key)
        if len(found) > _MAX_PROBLEMS:
            more = len(found) - _MAX_PROBLEMS + 1
            found = [
                *found[: _MAX_PROBLEMS - 1],
                PlanProblem(None, "", f"and {more} more problems"),
            ]
        return PlanError(self._source, tuple(found))


@attrs.frozen
class Document:
    """A text's content.

    Attributes:
        value: Dictionaries with text as keys, lists, text, numbers, booleans, None.
        places: Where each value begins, by its path.
        key_places: Where the key of each value of a dictionary begins, by the same path.
        raw: Scalars as they stand in the text, by their path.
    """

    value: Any
    places: dict[Path, Place]
    key_places: dict[Path, Place]
    raw: dict[Path, str]


def spell_path(path: Path) -> str:
    """A path as people write it.

    >>> spell_path(("rules", 2, "set", "sm_limit"))
    'rules[2].set.sm_limit'
    """
    spelled = ""
    for part in path:
        if isinstance(part, int):
            spelled += f"[{part}]"
        else:
            spelled += ("." if spelled else "") + printable(part, _SHOWN)
    return spelled


def read_document(raw: bytes, source: str) -> Document:
    """Take a text apart.

    Args:
        raw: UTF-8, with or without a byte order mark.
        source: Where it is from, for the error.

    Raises:
        PlanError: It is no YAML and no JSON, or more than is allowed.
        ModuleNotFoundError: The extra ``plan`` is not installed.
    """
    import yaml

    problems = Problems(source)
    text = _decoded(raw, problems)
    if text is None:
        raise problems.error()
    if text.lstrip().startswith("{"):
        # JSON may be indented with tabs, which YAML forbids; no text in JSON can hold one. And it
        # spells what is beyond 16 bits as two escapes, where YAML has one.
        text = _PAIR.sub(_one_escape, text.replace("\t", " "))
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
    try:
        document = _Builder(loader, yaml, problems).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        said = " ".join(filter(None, (error.context, error.problem)))
        problems.add(_place(mark) if mark else None, (), f"no YAML and no JSON: {_shown(said)}")
        document = None
    except (yaml.YAMLError, ValueError) as error:
        problems.add(None, (), f"no YAML and no JSON: {_shown(str(error))}")
        document = None
    finally:
        loader.dispose()
    if problems or document is None:
        raise problems.error()
    return document


def _one_escape(pair: re.Match[str]) -> str:
    high, low = int(pair[2], 16), int(pair[3], 16)
    return f"{pair[1]}\\U{0x10000 + ((high - 0xD800) << 10) + low - 0xDC00:08X}"


def _decoded(raw: bytes, problems: Problems) -> str | None:
    if len(raw) > MAX_BYTES:
        problems.add(None, (), f"more than {MAX_BYTES >> 20} MiB; a plan is a small text")
        return None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start].split(b"\n")
        column = len(before[-1].decode("utf-8", "replace")) + 1
        problems.add(Place(len(before), column), (), "not UTF-8; save the plan as UTF-8")
        return None


def _place(mark: Any) -> Place:
    return Place(mark.line + 1, mark.column + 1)


def _shown(text: str) -> str:
    return printable(text, 200)


class _Refused(Exception):
    """The text goes on in a way that is not followed."""


class _Builder:
    """Makes values from a parser's events; recursion ends at `MAX_DEPTH`."""

    def __init__(self, loader: Any, yaml: Any, problems: Problems) -> None:
        self._loader = loader
        self._yaml = yaml
        self._problems = problems
        self._places: dict[Path, Place] = {}
        self._key_places: dict[Path, Place] = {}
        self._raw: dict[Path, str] = {}
        # An anchor's events, to be played again; None while it is still open.
        self._anchors: dict[str, list[Any] | None] = {}
        self._recording: list[list[Any]] = []
        self._replayed: list[Any] = []
        self._values = 0

    def document(self) -> Document | None:
        """The one document of the text; None, with a problem noted, if there is none."""
        events = self._yaml.events
        self._next()  # the stream begins
        if isinstance(self._peek(), events.StreamEndEvent):
            self._problems.add(None, (), "the plan is empty")
            return None
        self._next()  # the document begins
        try:
            value = self._value((), 0)
        except _Refused:
            return None
        self._next()  # the document ends
        following = self._peek()
        if not isinstance(following, events.StreamEndEvent):
            place = _place(following.start_mark)
            self._problems.add(place, (), "a second document; a file holds one plan")
            return None
        return Document(value, self._places, self._key_places, self._raw)

    def _peek(self) -> Any:
        return self._replayed[-1] if self._replayed else self._loader.peek_event()

    def _next(self) -> Any:
        event = self._replayed.pop() if self._replayed else self._loader.get_event()
        for recording in self._recording:
            recording.append(event)
        return event

    def _refuse(self, event: Any, path: Path, message: str) -> _Refused:
        self._problems.add(_place(event.start_mark), path, message)
        return _Refused()

    def _value(self, path: Path, depth: int) -> Any:
        events = self._yaml.events
        event = self._peek()
        self._values += 1
        if self._values > MAX_VALUES:
            raise self._refuse(event, path, f"more than {MAX_VALUES} values, aliases counted")
        if depth > MAX_DEPTH:
            raise self._refuse(event, path, f"nested deeper than {MAX_DEPTH} levels")
        if isinstance(event, events.AliasEvent):
            return self._alias(path, depth)
        self._places[path] = _place(event.start_mark)
        anchor = event.anchor
        if anchor is None:
            return self._content(path, depth)
        self._anchors[anchor] = None
        recorded: list[Any] = []
        self._recording.append(recorded)
        try:
            return self._content(path, depth)
        finally:
            # By identity: two recordings may be equal.
            self._recording = [each for each in self._recording if each is not recorded]
            self._anchors[anchor] = recorded

    def _alias(self, path: Path, depth: int) -> Any:
        event = self._replayed.pop() if self._replayed else self._loader.get_event()
        events = self._anchors.get(event.anchor)
        name = printable(event.anchor, _SHOWN)
        if event.anchor not in self._anchors:
            raise self._refuse(event, path, f"there is no anchor &{name} before this alias")
        if events is None:
            raise self._refuse(event, path, f"&{name} contains itself")
        # Counted before they are played, or a few lines could fill the memory with events.
        if self._values + len(events) > MAX_VALUES:
            raise self._refuse(event, path, f"more than {MAX_VALUES} values, aliases counted")
        self._replayed.extend(reversed(events))
        return self._value(path, depth)

    def _content(self, path: Path, depth: int) -> Any:
        events = self._yaml.events
        event = self._next()
        if isinstance(event, events.ScalarEvent):
            return self._scalar(event, path)
        if event.tag is not None and event.tag not in {_TAG + "map", _TAG + "seq"}:
            raise self._refuse(event, path, f"the tag {_shown(event.tag)} is not known here")
        if isinstance(event, events.SequenceStartEvent):
            items: list[Any] = []
            while not isinstance(self._peek(), events.SequenceEndEvent):
                items.append(self._value((*path, len(items)), depth + 1))
            self._next()
            return items
        return self._mapping(path, depth)

    def _mapping(self, path: Path, depth: int) -> dict[str, Any]:
        events = self._yaml.events
        found: dict[str, Any] = {}
        while not isinstance(self._peek(), events.MappingEndEvent):
            key_event = self._next()
            if not isinstance(key_event, events.ScalarEvent):
                raise self._refuse(key_event, path, "a key is a plain word")
            key = key_event.value
            inner = (*path, key)
            if key in found:
                first = self._key_places[inner]
                self._problems.add(
                    _place(key_event.start_mark),
                    inner,
                    f"given a second time; the first is in line {first.line}",
                )
                inner = (*path, f"{key} (second)")
            else:
                self._key_places[inner] = _place(key_event.start_mark)
            found[key] = self._value(inner, depth + 1)
        self._next()
        return found

    def _scalar(self, event: Any, path: Path) -> Any:
        text: str = event.value
        self._raw[path] = text
        tag = event.tag
        if tag is None:
            tag = self._loader.resolve(self._yaml.ScalarNode, text, event.implicit)
        elif tag == "!":
            tag = _TAG + "str"
        elif not (tag.startswith(_TAG) and tag.removeprefix(_TAG) in {"str", "int"}):
            raise self._refuse(event, path, f"the tag {_shown(tag)} is not known here")
        kind = tag.removeprefix(_TAG)
        if kind == "int":
            if not _DECIMAL.match(text):
                message = "is not how a number is written here: write it in plain decimal"
                raise self._refuse(event, path, f"{_shown(text[:_SHOWN])} {message}")
            return int(text)
        if kind == "bool":
            return _BOOLEANS.get(text.lower(), False)
        if kind == "null":
            return None
        if kind == "float":
            try:
                return float(text.replace("_", ""))
            except ValueError:
                return text
        # Dates, merge keys and the like are the text that they are.
        return text

"""Read and write the text of a plan, YAML or JSON.

apiVersion: hamiregion.io/v1
kind: LimitPlan
rules:
- select: {namespace: research, pod: "bert-*"}
set: {memory_limit: 6GiB, sm_limit: 50}

Others write a plan's file or ConfigMap. So a text is bounded in size and depth and has no aliases.
A scalar is its text: what YAML 1.1 makes of ``no``, ``010`` or ``1:30`` surprises people, and each
field knows how to read its text.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs

from libhamiregion.bounded_file import read_bounded
from libhamiregion.errors import needs_extra
from libhamiregion.layouts import DEVICE_CAPACITY
from libhamiregion.observation.selector import Selector
from libhamiregion.text import printable
from libhamiregion.units import (
    MAX_SIZE_BYTES,
    MIN_MEMORY_LIMIT_BYTES,
    UNLIMITED,
    format_limit,
    typed_memory_limit,
)

from .plan import LIMIT_FIELDS, LimitPlan, Limits, Rule

if TYPE_CHECKING:
    from collections.abc import Callable

    from libhamiregion.errors import PathLike

    from .plan import LimitField, LimitValue

T = TypeVar("T")

API_VERSION: Final = "hamiregion.io/v1"
KIND: Final = "LimitPlan"
#: The name of plans that put values back.
UNDO_NAME: Final = "undo"
_FORCE: Final = ": `force: true` in the rule sets it all the same"
MAX_BYTES: Final = 32 << 20
MAX_RULES: Final = 100_000
# A name in Kubernetes has at most 253 characters; a pattern can spell each as [x].
_MAX_TEXT: Final = 1024
_NULLS: Final = frozenset(("null", "Null", "NULL", "~"))
# How long to wait for more from a pipe, whose writer may ask others first.
_SILENCE_S: Final = 300.0
_FIELD_NAMES: Final = ", ".join(LIMIT_FIELDS)
# The tags that YAML itself gives to what has none.
_PLAIN_TAG: Final = re.compile(r"tag:yaml\.org,2002:[a-z]+\Z")
_FILE_ID: Final = re.compile(r"([0-9]{1,20}):([0-9]{1,20})\Z")
_KINDS: Final = {"scalar": "one text", "sequence": "a list", "mapping": "a mapping"}


class PlanError(ValueError):
    """A plan that cannot be used. Its text is one line, as compilers write it.

    Attributes:
        source: The file's name, or another origin.
        message: The mistake and its correction, escaped.
        path: The value, such as ``rules[2].set.sm_limit``; empty for the whole plan.
        line: Line, from 1; None if the mistake has no place, as in an empty plan.
        column: Column in characters, from 1; None if the line is.
    """

    def __init__(
        self,
        source: str,
        message: str,
        path: str = "",
        line: int | None = None,
        column: int | None = None,
    ) -> None:
        self.source = source
        self.message = printable(message, 400)
        self.path = path
        self.line = line
        self.column = column
        super().__init__(source, self.message, path, line, column)

    def __str__(self) -> str:
        place = "" if self.line is None else f"{self.line}:{self.column}:"
        about = self.path and f"{self.path}:"
        words = " ".join(filter(None, (about, self.message)))
        return f"{printable(self.source)}:{place} {words}"


# ---- reading ------------------------------------------------------------------------------------


def load_plan(path: PathLike) -> LimitPlan:
    """Read a plan from a file.

    Args:
        path: A YAML or JSON file; links are followed, as a ConfigMap's files are links.

    Raises:
        PlanError: The plan cannot be used; the message has the place.
        OSError: The file cannot be read.
        ModuleNotFoundError: The extra ``plan`` is not installed.

    Shell: ``hamiregion limits diff FILE``.
    """
    return parse_plan(read_plan_file(path), os.fspath(path))


def read_plan_file(path: PathLike, *, wait: bool = True) -> bytes:
    """Read a plan's bytes, at most one more than a plan may have.

    Args:
        path: The file.
        wait: Whether to wait for a pipe, such as the shell's <(...).

    Raises:
        OSError: The file cannot be read, or is of another kind.
    """
    return read_bounded(path, MAX_BYTES + 1, silence_s=_SILENCE_S if wait else None, cut=True)


def parse_plan(text: str | bytes, source: str = "plan") -> LimitPlan:
    """Read a plan from a text.

    Args:
        text: YAML or JSON.
        source: The origin of the text, for the errors.

    Raises:
        PlanError: The plan cannot be used; the message has the place.
        ModuleNotFoundError: The extra ``plan`` is not installed.

    >>> plan = parse_plan('''
    ... apiVersion: hamiregion.io/v1
    ... kind: LimitPlan
    ... rules:
    ...   - select: {namespace: research, pod: "bert-*"}
    ...     set: {memory_limit: 6GiB, sm_limit: 50}
    ... ''')
    >>> dict(plan.rules[0].set)
    {'memory_limit': 6442450944, 'sm_limit': 50}
    """
    raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return _Reader(source).plan(_Part(_compose(raw, source), ""))


def _compose(raw: bytes, source: str) -> Any:
    """Parse a text to YAML's nodes, which know their lines."""
    with needs_extra("a plan", "plan"):
        import yaml

    if len(raw) > MAX_BYTES:
        raise PlanError(source, f"more than {MAX_BYTES >> 20} MiB; a plan is a small text")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        message = f"not UTF-8 in line {line}; save the plan as UTF-8"
        raise PlanError(source, message) from None
    # JSON may be indented with tabs, which YAML forbids; no text in JSON can hold one.
    text = text.replace("\t", " ") if text.lstrip().startswith("{") else text
    try:
        root = yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        said = printable(getattr(error, "problem", None) or str(error), 200)
        mark = getattr(error, "problem_mark", None)
        place = (None, None) if mark is None else (mark.line + 1, mark.column + 1)
        raise PlanError(source, f"neither YAML nor JSON: {said}", "", *place) from None
    except RecursionError:
        raise PlanError(source, "nested too deeply") from None
    if root is None:
        raise PlanError(source, "the plan is empty")
    return root


@attrs.frozen(eq=False)
class _Part:
    """A node of YAML and its path, such as ``rules[2].set.sm_limit``."""

    node: Any
    path: str


class _Reader:
    """Reads a plan from YAML's nodes; the first mistake is a `PlanError` with its place."""

    def __init__(self, source: str) -> None:
        self._source = source
        # An alias is a node that is met twice.
        self._seen: set[int] = set()
        # Our own plans, whose older ones have plain bytes.
        self._is_undo = False

    def plan(self, root: _Part) -> LimitPlan:
        parts = self._mapping(root, ("apiVersion", "kind", "rules"), ("metadata",))
        for name, wanted in (("apiVersion", API_VERSION), ("kind", KIND)):
            if (found := self._value(parts[name], _text)) != wanted:
                raise self._error(parts[name], f"this version reads `{wanted}`, not `{found}`")
        about = self._mapping(parts.get("metadata"), (), ("name", "description"))
        texts = {name: self._value(part, _text) for name, part in about.items()}
        self._is_undo = texts.get("name") == UNDO_NAME
        return LimitPlan(tuple(map(self._rule, self._items(parts["rules"]))), **texts)

    def _rule(self, part: _Part) -> Rule:
        parts = self._mapping(part, ("select", "set"), ("name", "only_if", "file", "force"))
        known = tuple(field.name for field in attrs.fields(Selector))
        chosen = self._mapping(parts["select"], (), known)
        readers = {"pod_uid": _text, "device": _device}
        select = {
            name: self._value(each, readers.get(name, _pattern)) for name, each in chosen.items()
        }
        forced = "force" in parts and self._value(parts["force"], _true)
        limits = self._limits(parts["set"], None if forced else _FORCE)
        expected = self._limits(parts.get("only_if"))
        name = self._value(parts["name"], _text) if "name" in parts else None
        file_id = self._value(parts["file"], _file_id) if "file" in parts else None
        try:
            return Rule(Selector(**select), Limits(**limits), name, Limits(**expected), file_id)
        except ValueError as error:
            raise self._error(part, str(error)) from None

    def _limits(self, part: _Part | None, force: str | None = None) -> dict[str, Any]:
        given = self._mapping(part, (), LIMIT_FIELDS)
        if part is not None and not given:
            raise self._error(part, f"nothing is set; give {_FIELD_NAMES}")
        converters: Any = {field.name: field.converter for field in attrs.fields(Limits)}
        if "memory_limit" in given and not self._is_undo:
            self._value(
                given["memory_limit"], lambda text: text and typed_memory_limit(text, force)
            )
            self._seen.discard(id(given["memory_limit"].node))
        return {name: self._value(each, converters[name]) for name, each in given.items()}

    # ---- nodes ----------------------------------------------------------------------------------

    def _mapping(
        self, part: _Part | None, required: tuple[str, ...], optional: tuple[str, ...]
    ) -> dict[str, _Part]:
        """Read a mapping's values by key."""
        found: dict[str, _Part] = {}
        if part is None:
            return found
        self._check(part, "mapping")
        known = (*required, *optional)
        for key, value in part.node.value:
            if key.id != "scalar":
                raise self._error(_Part(key, part.path), "a key is a plain word")
            inner = f"{part.path}.{printable(key.value, 60)}".removeprefix(".")
            problem = ""
            if key.value in found:
                problem = "given a second time"
            elif key.value not in known:
                problem = f"unknown; known are {', '.join(known)}"
            elif value.id == "scalar" and not value.style and not value.value:
                problem = "empty; give a value or no key"
            if problem:
                raise self._error(_Part(key, inner), problem)
            found[key.value] = _Part(value, inner)
        for name in required:
            if name not in found:
                path = f"{part.path}.{name}".removeprefix(".")
                raise self._error(_Part(part.node, path), "missing")
        return found

    def _items(self, part: _Part) -> list[_Part]:
        self._check(part, "sequence")
        if len(part.node.value) > MAX_RULES:
            raise self._error(part, f"more than {MAX_RULES} rules")
        return [_Part(node, f"{part.path}[{at}]") for at, node in enumerate(part.node.value)]

    def _value(self, part: _Part, read: Callable[[Any], T]) -> T:
        """Read a scalar with a converter."""
        self._check(part, "scalar")
        text = part.node.value
        is_null = not part.node.style and text in _NULLS
        try:
            return read(None if is_null else text)
        except (ValueError, TypeError) as error:
            raise self._error(part, str(error)) from None

    def _check(self, part: _Part, kind: str) -> None:
        node = part.node
        if id(node) in self._seen:
            raise self._error(part, "a plan has no aliases; write it out")
        self._seen.add(id(node))
        if not _PLAIN_TAG.match(node.tag):
            raise self._error(part, f"the tag {node.tag[:60]} is unknown; leave it out")
        if node.id != kind:
            raise self._error(part, f"{_KINDS[kind]} belongs here, not {_KINDS[node.id]}")

    def _error(self, part: _Part, message: str) -> PlanError:
        mark = part.node.start_mark
        return PlanError(self._source, message, part.path, mark.line + 1, mark.column + 1)


def _text(value: Any) -> str:
    if value is None:
        raise ValueError("one text belongs here, not null")
    if len(value) > _MAX_TEXT:
        raise ValueError(f"text of at most {_MAX_TEXT} characters belongs here")
    return str(value)


def _pattern(value: Any) -> str:
    if value == "":
        raise ValueError('an empty pattern matches nothing; leave it out, or write "*"')
    return _text(value)


def _device(value: Any) -> str:
    device = _pattern(value)
    if device.isdigit() and not (device.isascii() and int(device) < DEVICE_CAPACITY):
        raise ValueError("a device is an index from 0 to 15, or a pattern of its uuid")
    return device


def _true(value: Any) -> bool:
    if value != "true":
        raise ValueError("`force` is true, or left out")
    return True


def _file_id(value: Any) -> tuple[int, int]:
    found = _FILE_ID.match(_text(value))
    if found is None:
        raise ValueError("a file is its device and its inode, as in 64769:1234")
    return int(found[1]), int(found[2])


# ---- writing ------------------------------------------------------------------------------------


def plan_text(plan: LimitPlan) -> str:
    """Write a plan as YAML, which `parse_plan` reads back.

    Raises:
        ModuleNotFoundError: The extra ``plan`` is not installed.
    """
    metadata = _without_none({"name": plan.name, "description": plan.description})
    document = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        **({"metadata": metadata} if metadata else {}),
        "rules": [_rule_document(rule) for rule in plan.rules],
    }
    with needs_extra("a plan", "plan"):
        import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return str(yaml.dump(document, Dumper=dumper, sort_keys=False, width=100))


def _rule_document(rule: Rule) -> dict[str, Any]:
    document = _without_none({"name": rule.name})
    document["select"] = _without_none(attrs.asdict(rule.select))
    document["set"] = {field: _written(field, value) for field, value in rule.set}
    limit = rule.set.memory_limit
    if isinstance(limit, int) and limit < MIN_MEMORY_LIMIT_BYTES:
        document["force"] = True
    expected = {field: _written(field, value) for field, value in rule.only_if}
    if expected:
        document["only_if"] = expected
    if rule.file_id is not None:
        document["file"] = "{}:{}".format(*rule.file_id)
    return document


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _written(field: LimitField, value: LimitValue) -> int | str:
    if value is None:
        return UNLIMITED
    # A larger one, as only a damaged region holds, is no size with a unit, but a number.
    if field == "memory_limit" and isinstance(value, int) and value <= MAX_SIZE_BYTES:
        text = format_limit(value).replace(" ", "")
        # No fraction: older versions take those of whole bytes only.
        return f"{value}B" if "." in text else text
    return value

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

import json
import os
import re
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs

from libhamiregion.bounded_file import read_bounded
from libhamiregion.errors import needs_extra
from libhamiregion.layouts import DEVICE_CAPACITY
from libhamiregion.node.selector import Selector
from libhamiregion.text import printable
from libhamiregion.units import MAX_SIZE_BYTES, UNLIMITED, format_size

from .plan import LIMIT_FIELDS, LimitPlan, Limits, Rule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from libhamiregion.errors import PathLike

    from .plan import LimitField, LimitValue

T = TypeVar("T")

API_VERSION: Final = "hamiregion.io/v1"
KIND: Final = "LimitPlan"
MAX_BYTES: Final = 32 << 20
MAX_RULES: Final = 100_000
_MAX_PROBLEMS: Final = 20
# A name in Kubernetes has at most 253 characters; a pattern can spell each as [x].
_MAX_TEXT: Final = 1024
_NULLS: Final = frozenset(("null", "Null", "NULL", "~"))
# How long to wait for more from a pipe, whose writer may ask others first.
_SILENCE_S: Final = 300.0
_UNSAFE: Final = re.compile("[^\n -~\U00010000-\U0010ffff]")
_FIELD_NAMES: Final = ", ".join(LIMIT_FIELDS)
# The tags that YAML itself gives to what has none.
_PLAIN_TAG: Final = re.compile(r"tag:yaml\.org,2002:[a-z]+\Z")
_KINDS: Final = {"scalar": "one text", "sequence": "a list", "mapping": "a mapping"}


@attrs.frozen
class PlanProblem:
    """One mistake in a plan.

    Attributes:
        line: Line, from 1; None if the problem has no place, as in an empty plan.
        column: Column in characters, from 1; None if the line is.
        path: The value, such as ``rules[2].set.sm_limit``; empty for the whole plan.
        message: The mistake and its correction; one line, escaped.
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
        source: The file's name, or another origin.
        problems: The problems in the order of the text; at most 20.
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


# ---- reading ------------------------------------------------------------------------------------


def load_plan(path: PathLike) -> LimitPlan:
    """Read a plan from a file.

    Args:
        path: A YAML or JSON file; links are followed, as a ConfigMap's files are links.

    Raises:
        PlanError: The plan cannot be used; the message has a line for each problem.
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
        PlanError: The plan cannot be used; the message has a line for each problem.
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
    try:
        root = _compose(raw)
    except ValueError as error:
        problem = error.args[0]
        if not isinstance(problem, PlanProblem):
            problem = PlanProblem(None, None, "", printable(str(error), 400))
        raise PlanError(source, [problem]) from None
    reader = _Reader()
    plan = reader.plan(_Part(root, ""))
    if reader.problems:
        raise PlanError(source, reader.problems)
    return plan


def _compose(raw: bytes) -> Any:
    """Parse a text to YAML's nodes, which know their lines.

    Raises:
        ValueError: Neither YAML nor JSON, or too large; holds a `PlanProblem` if it has a place.
    """
    with needs_extra("a plan", "plan"):
        import yaml

    if len(raw) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES >> 20} MiB; a plan is a small text")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise ValueError(f"not UTF-8 in line {line}; save the plan as UTF-8") from None
    # JSON may be indented with tabs, which YAML forbids; no text in JSON can hold one.
    text = text.replace("\t", " ") if text.lstrip().startswith("{") else text
    try:
        root = yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        said = printable(getattr(error, "problem", None) or str(error), 200)
        message = f"neither YAML nor JSON: {said}"
        if mark is None:
            raise ValueError(message) from None
        raise ValueError(PlanProblem(mark.line + 1, mark.column + 1, "", message)) from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if root is None:
        raise ValueError("the plan is empty")
    return root


@attrs.frozen(eq=False)
class _Part:
    """A node of YAML and its path, such as ``rules[2].set.sm_limit``."""

    node: Any
    path: str


class _Reader:
    """Reads a plan from YAML's nodes and collects all problems.

    After a problem its methods return None or nothing; then the plan is not used.
    """

    def __init__(self) -> None:
        self.problems: list[PlanProblem] = []
        # An alias is a node that is met twice.
        self._seen: set[int] = set()

    def plan(self, root: _Part) -> LimitPlan:
        parts = self._mapping(root, ("apiVersion", "kind", "rules"), ("metadata",))
        self._value(parts, "apiVersion", _exactly(API_VERSION))
        self._value(parts, "kind", _exactly(KIND))
        about = self._mapping(parts.get("metadata"), (), ("name", "description"))
        rules = [self._rule(part) for part in self._items(parts.get("rules"))]
        return LimitPlan(
            tuple(rule for rule in rules if rule is not None),
            self._value(about, "name", _text),
            self._value(about, "description", _text),
        )

    def _rule(self, part: _Part) -> Rule | None:
        parts = self._mapping(part, ("select", "set"), ("name", "only_if"))
        known = tuple(field.name for field in attrs.fields(Selector))
        chosen = self._mapping(parts.get("select"), (), known)
        readers = {"pod_uid": _text, "device": _device}
        select = {name: self._value(chosen, name, readers.get(name, _pattern)) for name in chosen}
        limits, expected = self._limits(parts.get("set")), self._limits(parts.get("only_if"))
        name = self._value(parts, "name", _text)
        if self.problems:
            return None
        try:
            return Rule(Selector(**select), Limits(**limits), name, Limits(**expected))
        except ValueError as error:
            self._problem(part, str(error))
            return None

    def _limits(self, part: _Part | None) -> dict[str, Any]:
        given = self._mapping(part, (), LIMIT_FIELDS)
        if part is not None and not given:
            self._problem(part, f"nothing is set; give {_FIELD_NAMES}")
        converters: Any = {field.name: field.converter for field in attrs.fields(Limits)}
        return {name: self._value(given, name, converters[name]) for name in given}

    # ---- nodes ----------------------------------------------------------------------------------

    def _mapping(
        self, part: _Part | None, required: tuple[str, ...], optional: tuple[str, ...]
    ) -> dict[str, _Part]:
        """Read a mapping's values by key."""
        found: dict[str, _Part] = {}
        if part is None or not self._is_kind(part, "mapping"):
            return found
        known = (*required, *optional)
        for key, value in part.node.value:
            if key.id != "scalar":
                self._problem(_Part(key, part.path), "a key is a plain word")
                continue
            inner = f"{part.path}.{printable(key.value, 60)}".removeprefix(".")
            if key.value in found:
                self._problem(_Part(key, inner), "given a second time")
            elif key.value not in known:
                self._problem(_Part(key, inner), f"unknown; known are {', '.join(known)}")
            elif value.id == "scalar" and not value.style and not value.value:
                self._problem(_Part(key, inner), "empty; give a value or no key")
            found[key.value] = _Part(value, inner)
        for name in required:
            if name not in found:
                self._problem(_Part(part.node, f"{part.path}.{name}".removeprefix(".")), "missing")
        return {name: part for name, part in found.items() if name in known}

    def _items(self, part: _Part | None) -> list[_Part]:
        if part is None or not self._is_kind(part, "sequence"):
            return []
        if len(part.node.value) > MAX_RULES:
            self._problem(part, f"more than {MAX_RULES} rules")
            return []
        return [_Part(node, f"{part.path}[{at}]") for at, node in enumerate(part.node.value)]

    def _value(self, parts: dict[str, _Part], name: str, read: Callable[[Any], T]) -> T | None:
        """Read a scalar with a converter; its ValueError or TypeError becomes a problem."""
        part = parts.get(name)
        if part is None or not self._is_kind(part, "scalar"):
            return None
        text = part.node.value
        is_null = not part.node.style and text in _NULLS
        try:
            return read(None if is_null else text)
        except (ValueError, TypeError) as error:
            self._problem(part, str(error))
            return None

    def _is_kind(self, part: _Part, kind: str) -> bool:
        node, problem = part.node, ""
        if id(node) in self._seen:
            problem = "a plan has no aliases; write it out"
        elif not _PLAIN_TAG.match(node.tag):
            problem = f"the tag {node.tag[:60]} is unknown; leave it out"
        elif node.id != kind:
            problem = f"{_KINDS[kind]} belongs here, not {_KINDS[node.id]}"
        self._seen.add(id(node))
        if problem:
            self._problem(part, problem)
        return not problem

    def _problem(self, part: _Part, message: str) -> None:
        mark = part.node.start_mark
        problem = PlanProblem(mark.line + 1, mark.column + 1, part.path, printable(message, 400))
        self.problems.append(problem)


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


def _exactly(wanted: str) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if value != wanted:
            raise ValueError(f"this version reads `{wanted}`, not `{value}`")
        return wanted

    return check


# ---- writing ------------------------------------------------------------------------------------


def plan_text(plan: LimitPlan, *, as_json: bool = False) -> str:
    """Write a plan as a text that `parse_plan` reads back.

    Args:
        plan: The plan.
        as_json: JSON instead of YAML, which needs the extra ``plan``.

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
    if as_json:
        text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
        # YAML takes no control characters as they are, and no pair of escapes for one character.
        return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
    with needs_extra("a plan", "plan"):
        import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return str(yaml.dump(document, Dumper=dumper, sort_keys=False, width=100))


def _rule_document(rule: Rule) -> dict[str, Any]:
    document = _without_none({"name": rule.name})
    document["select"] = _without_none(attrs.asdict(rule.select))
    document["set"] = {field: _written(field, value) for field, value in rule.set}
    expected = {field: _written(field, value) for field, value in rule.only_if}
    if expected:
        document["only_if"] = expected
    return document


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _written(field: LimitField, value: LimitValue) -> int | str:
    if value is None:
        return UNLIMITED
    # A larger one, as only a damaged region holds, is no size with a unit, but a number.
    if field == "memory_limit" and isinstance(value, int) and value <= MAX_SIZE_BYTES:
        text = format_size(value)
        # A fraction is not exact, and bytes are no shorter with their unit.
        if "." not in text and not text.endswith(" B"):
            return text.replace(" ", "")
    return value

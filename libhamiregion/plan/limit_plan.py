"""Limits of many containers as rules that choose containers and devices, and what they set.

    apiVersion: hamiregion.io/v1
    kind: LimitPlan
    rules:
      - select: {namespace: research, pod: "bert-*"}
        set: {memory_limit: 6GiB, sm_limit: 50}

The last rule that sets a value counts: general rules first, exceptions after them.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import re
import stat
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import attrs

from libhamiregion.effects import ANYTHING, Anything
from libhamiregion.layouts import DEVICE_CAPACITY
from libhamiregion.node.selector import Selector
from libhamiregion.units import (
    UNLIMITED,
    format_size,
    integer,
    memory_limit_percent,
    memory_limit_value,
    sm_limit_or_none,
    sm_limit_value,
)

from .document import MAX_BYTES, PlanError, read_document

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from libhamiregion.errors import PathLike

    from .document import Document, Path, PlanProblem

API_VERSION: Final = "hamiregion.io/v1"
KIND: Final = "LimitPlan"
MAX_RULES: Final = 20_000
# A name in Kubernetes has 253 characters at most; a pattern can spell each as [x].
_MAX_TEXT: Final = 1024
_UNSAFE: Final = re.compile("[^\n -~\U00010000-\U0010ffff]")

#: What a plan can set: the limits of a device in bytes and percent, the priority of a container.
LimitField: TypeAlias = Literal["memory_limit", "sm_limit", "priority"]
LIMIT_FIELDS: Final[tuple[LimitField, ...]] = ("memory_limit", "sm_limit", "priority")
#: Bytes, percent or a priority; None is unlimited; "80%" of a memory limit.
LimitValue: TypeAlias = "int | str | None"


def _number(value: Any) -> Any:
    """A number that is written as text, as in YAML and in annotations."""
    digits = isinstance(value, str) and value.isascii() and value.strip().isdigit()
    return int(value) if digits and len(value) <= _MAX_TEXT else value


def _memory(value: Any) -> int | str | Anything | None:
    if isinstance(value, Anything):
        return value
    percent = memory_limit_percent(value)
    return f"{percent}%" if percent else memory_limit_value(_number(value)) or None


def _sm(value: Any) -> int | Anything | None:
    return value if isinstance(value, Anything) else sm_limit_or_none(sm_limit_value(value))


def _priority(value: Any) -> int | Anything:
    if isinstance(value, Anything):
        return value
    number = _number(value)
    if number is None or isinstance(number, str):
        raise ValueError("a priority is a number: 0 is high, 1 is low")
    return integer("a priority", number, 0, 2**31 - 1)


@attrs.frozen
class Limits:
    """What a rule sets. A value that is left out stays as it is.

    Attributes:
        memory_limit: Bytes, "6GiB", "80%", "unlimited" or None. A percentage is of what stands
            there when the plan is applied; where a node is kept on a plan, of what stood there
            before.
        sm_limit: 1 to 100, "50%", "unlimited" or None.
        priority: Of the whole container: 0 is high, 1 is low.

    Raises:
        ValueError, TypeError: A value that `Region.edit_limits` would not take.
    """

    memory_limit: int | str | Anything | None = attrs.field(default=ANYTHING, converter=_memory)
    sm_limit: int | Anything | None = attrs.field(default=ANYTHING, converter=_sm)
    priority: int | Anything = attrs.field(default=ANYTHING, converter=_priority)

    def __iter__(self) -> Iterator[tuple[LimitField, LimitValue]]:
        """Each field that is set, with its value; None is unlimited."""
        for field in LIMIT_FIELDS:
            value = getattr(self, field)
            if value is not ANYTHING:
                yield field, value


@attrs.frozen
class Rule:
    """What some containers and devices shall have.

    Attributes:
        select: Which ones. A priority belongs to a whole container, so a rule that sets one names
            no device.
        set: What they shall have.
        name: For people; None if the rule has none.
    """

    select: Selector
    set: Limits
    name: str | None = None

    def __attrs_post_init__(self) -> None:
        if self.select.device is not None and self.set.priority is not ANYTHING:
            raise ValueError("a priority is of the whole container; set it without `device`")


@attrs.frozen
class LimitPlan:
    """Rules in the order in which they are read; the last that sets a value counts.

    Attributes:
        rules: The rules.
        name: For people; None if the plan has none.
        description: For people; None if the plan has none.
    """

    rules: tuple[Rule, ...] = ()
    name: str | None = None
    description: str | None = None


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


def read_plan_file(path: PathLike) -> bytes:
    """Read a plan's bytes, at most one more than a plan may have.

    Raises:
        OSError: The file cannot be read, or is neither a regular file nor a pipe.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        mode = os.fstat(descriptor).st_mode
        # The shell's <(…) is a pipe. A FIFO that nobody has open for writing reads as empty.
        if stat.S_ISFIFO(mode):
            os.set_blocking(descriptor, True)
        elif not (stat.S_ISREG(mode) or stat.S_ISCHR(mode)):
            raise OSError(errno.EINVAL, "a plan is a regular file", os.fspath(path))
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(MAX_BYTES + 1)
    finally:
        os.close(descriptor)


def parse_plan(text: str | bytes, source: str = "plan") -> LimitPlan:
    """Read a plan from a text.

    Args:
        text: YAML or JSON.
        source: Where it is from, for the errors.

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
    document = read_document(raw, source)
    import cattrs

    try:
        found: _PlanText = _converter().structure(document.value, _PlanText)
    except cattrs.BaseValidationError as error:
        raise PlanError(source, list(_problems(error, (), document))) from None
    except ValueError as error:
        raise PlanError(source, [document.problem((), str(error))]) from None
    return LimitPlan(found.rules, found.metadata.name, found.metadata.description)


@attrs.frozen
class _Metadata:
    name: str | None = None
    description: str | None = None


@attrs.frozen
class _PlanText:
    """A plan as its text has it."""

    apiVersion: str  # noqa: N815 (the key of the format)
    kind: str
    rules: tuple[Rule, ...]
    metadata: _Metadata = attrs.field(factory=_Metadata)


@functools.cache
def _converter() -> Any:
    import cattrs
    from cattrs.gen import make_dict_structure_fn, override

    converter: Any = cattrs.Converter(forbid_extra_keys=True)

    def mapping(cls: type, **readers: Callable[[Any], Any]) -> None:
        """Have a class structured from a mapping, and some of its fields by these functions."""
        hooks: Any = {name: override(struct_hook=_hook(reader)) for name, reader in readers.items()}
        build: Any = make_dict_structure_fn(cls, converter, **hooks)

        def structure(value: Any, wanted: Any) -> Any:
            if not isinstance(value, dict):
                raise ValueError(f"a mapping belongs here, not {_kind(value)}")
            return build(value, wanted)

        converter.register_structure_hook(cls, structure)

    def rules(value: Any) -> Any:
        if not isinstance(value, list) or len(value) > MAX_RULES:
            raise ValueError(f"a list of at most {MAX_RULES} rules belongs here")
        return converter.structure(value, tuple[Rule, ...])

    def limits(value: Any) -> Any:
        if value == {}:
            raise ValueError(f"nothing is set; give {', '.join(LIMIT_FIELDS)}")
        return converter.structure(value, Limits)

    patterns = {field.name: _pattern for field in attrs.fields(Selector)}
    mapping(Selector, **{**patterns, "device": _device})
    mapping(Limits, memory_limit=_memory, sm_limit=_sm, priority=_priority)
    mapping(_Metadata, name=_text, description=_text)
    mapping(Rule, set=limits, name=_text)
    mapping(_PlanText, apiVersion=_exactly(API_VERSION), kind=_exactly(KIND), rules=rules)
    return converter


def _hook(reader: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda value, _: reader(value)


def _kind(value: Any) -> str:
    if isinstance(value, dict):
        return "a mapping"
    return "a list" if isinstance(value, list) else "null" if value is None else f"`{value}`"


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > _MAX_TEXT:
        raise ValueError(f"text of at most {_MAX_TEXT} characters belongs here")
    return value


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
            raise ValueError(f"this version reads `{wanted}`, not {_kind(value)}")
        return wanted

    return check


def _problems(error: BaseException, path: Path, document: Document) -> Iterator[PlanProblem]:
    """What cattrs has found, each with its place."""
    import cattrs

    if isinstance(error, (cattrs.ClassValidationError, cattrs.IterableValidationError)):
        groups: Any = error.group_exceptions()
        within, alone = groups
        for each, note in within:
            in_list = isinstance(note, cattrs.IterableValidationNote)
            inner = note.index if in_list else note.name
            yield from _problems(each, (*path, inner), document)
        for each in alone:
            yield from _problems(each, path, document)
    elif isinstance(error, cattrs.ForbiddenExtraKeysError):
        known = ", ".join(field.name for field in attrs.fields(error.cl))
        for key in sorted(error.extra_fields):
            yield document.problem((*path, key), f"unknown; known are {known}", of_key=True)
    elif isinstance(error, KeyError):
        yield document.problem(path, "missing")
    else:
        yield document.problem(path, str(error))


# ---- writing ------------------------------------------------------------------------------------


def plan_document(plan: LimitPlan) -> dict[str, Any]:
    """A plan as the dictionaries and lists that its text stands for."""
    metadata = _without_none({"name": plan.name, "description": plan.description})
    rules = [
        {
            **_without_none({"name": rule.name}),
            "select": _without_none(attrs.asdict(rule.select)),
            "set": {field: _written(field, value) for field, value in rule.set},
        }
        for rule in plan.rules
    ]
    about = {"metadata": metadata} if metadata else {}
    return {"apiVersion": API_VERSION, "kind": KIND, **about, "rules": rules}


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _written(field: LimitField, value: LimitValue) -> int | str:
    if value is None:
        return UNLIMITED
    if field == "memory_limit" and isinstance(value, int):
        text = format_size(value)
        # With a fraction it is near the number only; without a unit it is no shorter.
        if "." not in text and not text.endswith(" B"):
            return text.replace(" ", "")
    return value


def plan_text(plan: LimitPlan, *, as_json: bool = False) -> str:
    """A plan as a text that `parse_plan` reads back.

    Args:
        plan: The plan.
        as_json: JSON instead of YAML, which needs the extra ``plan``.

    Raises:
        ModuleNotFoundError: The extra ``plan`` is not installed.
    """
    document = plan_document(plan)
    if as_json:
        text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
        # YAML takes no control characters as they are, and no pair of escapes for one character.
        return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text = yaml.dump(document, Dumper=dumper, sort_keys=False, width=100)
    return str(text)

"""Limits as a plan says them: rules that choose containers and devices, and what they set.

A plan is a YAML or JSON text:

    apiVersion: hamiregion.io/v1
    kind: LimitPlan
    rules:
      - select: {namespace: research, pod: "bert-*"}
        set: {memory_limit: 6GiB, sm_limit: 50}

Rules are read from top to bottom, and the last one that sets a value counts: general rules first,
exceptions after them.
"""

from __future__ import annotations

import enum
import errno
import json
import os
import re
import stat
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from libhamiregion.layouts import DEVICE_CAPACITY
from libhamiregion.node.selector import Selector
from libhamiregion.units import UNLIMITED_SM_PERCENT, format_size, parse_size

from .document import MAX_BYTES, PlanError, PlanProblem, Problems, read_document
from .schema import API_VERSION, KIND, check

if TYPE_CHECKING:
    from libhamiregion.errors import PathLike

    from .document import Document, Path

_Kind = TypeVar("_Kind", dict[str, Any], list[Any])

UNLIMITED = "unlimited"
_PERCENT = re.compile(r"([0-9]{1,3})\s*%?\Z", re.ASCII)


class LimitField(str, enum.Enum):
    """What a plan can set. Equal to its value, a plain string."""

    #: Of a device, in bytes.
    MEMORY_LIMIT = "memory_limit"
    #: Of a device, in percent.
    SM_LIMIT = "sm_limit"
    #: Of a container; 0 is high, 1 is low.
    PRIORITY = "priority"

    def __str__(self) -> str:
        return self.value


@attrs.frozen
class Setting:
    """One value that a rule sets.

    Attributes:
        field: What is set.
        value: Bytes, percent (1 to 99) or a priority; None is unlimited.
    """

    field: LimitField
    value: int | None


@attrs.frozen
class Rule:
    """What some containers and devices shall have.

    Attributes:
        select: Which ones. A priority belongs to the whole container, so a rule that sets one
            names no device.
        settings: What they shall have, each field once.
        name: For people; None if it has none.
        line: Where it stands in its file; None if it is from no file.
    """

    select: Selector
    settings: tuple[Setting, ...]
    name: str | None = None
    line: int | None = attrs.field(default=None, eq=False)


@attrs.frozen
class LimitPlan:
    """Rules, in the order in which they are read; the last that sets a value counts.

    Attributes:
        rules: The rules.
        name: For people; None if it has none.
        description: For people; None if it has none.
    """

    rules: tuple[Rule, ...] = ()
    name: str | None = None
    description: str | None = None


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
    """A plan's bytes, at most one more than a plan may have; never waits at a FIFO.

    Raises:
        OSError: The file cannot be read, or is no file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        mode = os.fstat(descriptor).st_mode
        # The shell's <(…) is a pipe as well. One that nobody has open for writing is empty.
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
    >>> [(setting.field.value, setting.value) for setting in plan.rules[0].settings]
    [('memory_limit', 6442450944), ('sm_limit', 50)]
    """
    raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    document = read_document(raw, source)
    problems = Problems(source)
    check(document, problems)
    settings = [
        _settings(number, entry, document, problems)
        for number, entry in enumerate(_inner(document.value, "rules", list))
    ]
    if problems:
        raise problems.error()
    rules = tuple(
        _rule(number, entry, chosen, document)
        for number, (entry, chosen) in enumerate(
            zip(document.value["rules"], settings, strict=True)
        )
    )
    metadata = document.value.get("metadata", {})
    return LimitPlan(rules, metadata.get("name"), metadata.get("description"))


def _settings(
    number: int, entry: Any, document: Document, problems: Problems
) -> tuple[Setting, ...]:
    """What a rule sets; notes what is wrong with values to which the schema had nothing to say."""
    path: Path = ("rules", number)
    device = _inner(entry, "select", dict).get("device")
    where: Path = (*path, "select", "device")
    named = device is not None and not problems.concern(where)
    if named and (isinstance(device, float) or _is_no_index(str(device))):
        problems.add(
            document.places[where],
            where,
            "a device is an index from 0 to 15, or a pattern of its uuid",
        )
    settings = []
    for key, value in _inner(entry, "set", dict).items():
        where = (*path, "set", key)
        if problems.concern(where):
            continue
        field = LimitField(key)
        try:
            settings.append(Setting(field, parse_value(field, value)))
        except ValueError as error:
            problems.add(document.places[where], where, str(error))
        if field is LimitField.PRIORITY and device is not None:
            problems.add(
                document.key_places[where],
                where,
                "a priority is of the whole container; set it in a rule without `device`",
            )
    return tuple(settings)


def _inner(value: Any, key: str, kind: type[_Kind]) -> _Kind:
    """What stands in a mapping; an empty one where the schema has found no such thing."""
    inner = value.get(key) if isinstance(value, dict) else None
    return inner if isinstance(inner, kind) else kind()


def _rule(
    number: int, entry: dict[str, Any], settings: tuple[Setting, ...], document: Document
) -> Rule:
    select = dict(entry["select"])
    if "device" in select:
        select["device"] = str(select["device"])
    place = document.places.get(("rules", number))
    return Rule(
        Selector(**select),
        settings,
        entry.get("name"),
        None if place is None else place.line,
    )


def _is_no_index(device: str) -> bool:
    """Whether a text has only digits, and yet no device has it as its index."""
    return device.isdigit() and not (device.isascii() and int(device[:4]) < DEVICE_CAPACITY)


def parse_value(field: LimitField, value: Any) -> int | None:
    """A value as people write it: a number, or text.

    Args:
        field: What it is for.
        value: ``6GiB``, ``50``, ``50%``, ``unlimited``.

    Returns:
        Bytes, percent (1 to 99) or a priority; None is unlimited.

    Raises:
        ValueError: It is none of these; the message says what is wrong.

    >>> parse_value(LimitField.SM_LIMIT, "50%"), parse_value(LimitField.SM_LIMIT, 100)
    (50, None)
    """
    if isinstance(value, (float, bool)):
        raise ValueError("a whole number is wanted")
    text = value.strip() if isinstance(value, str) else ""
    if field is LimitField.PRIORITY:
        if text.isascii() and text.isdigit():
            value = int(text[:11])
        if not isinstance(value, int) or not 0 <= value < 1 << 31:
            raise ValueError("a priority is a number from 0 (high) to 2147483647")
        return value
    if text.lower() == UNLIMITED:
        return None
    if field is LimitField.MEMORY_LIMIT:
        nbytes = parse_size(value)
        if nbytes == 0:
            raise ValueError("0 is how a region spells no limit; write `unlimited`")
        return nbytes
    if isinstance(value, str):
        match = _PERCENT.match(text)
        value = int(match[1]) if match else 0
    if not 1 <= value <= UNLIMITED_SM_PERCENT:
        raise ValueError("an SM limit is 1 to 100 (percent), or `unlimited`")
    percent: int = value
    return None if percent == UNLIMITED_SM_PERCENT else percent


def plan_value(field: LimitField, value: int | None) -> int | str:
    """A value as a plan writes it; `parse_value` reads it back.

    >>> plan_value(LimitField.MEMORY_LIMIT, 6 * 2**30), plan_value(LimitField.MEMORY_LIMIT, 12345)
    ('6GiB', 12345)
    """
    if value is None:
        return UNLIMITED
    if field is LimitField.MEMORY_LIMIT:
        text = format_size(value)
        # With a fraction it is near the number only; without a unit above it is no shorter.
        if "." not in text and not text.endswith(" B"):
            return text.replace(" ", "")
    return value


def plan_document(plan: LimitPlan) -> dict[str, Any]:
    """A plan as the dictionaries and lists that its text stands for."""
    document: dict[str, Any] = {"apiVersion": API_VERSION, "kind": KIND}
    metadata = {"name": plan.name, "description": plan.description}
    given = {key: text for key, text in metadata.items() if text is not None}
    if given:
        document["metadata"] = given
    document["rules"] = [_rule_document(rule) for rule in plan.rules]
    return document


def _rule_document(rule: Rule) -> dict[str, Any]:
    select = {key: text for key, text in attrs.asdict(rule.select).items() if text is not None}
    settings = {
        setting.field.value: plan_value(setting.field, setting.value) for setting in rule.settings
    }
    named = {} if rule.name is None else {"name": rule.name}
    return {**named, "select": select, "set": settings}


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
        return json.dumps(document, indent=2) + "\n"
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.dump(document, Dumper=dumper, sort_keys=False, width=100)
    return text


__all__ = [
    "LimitField",
    "LimitPlan",
    "PlanError",
    "PlanProblem",
    "Rule",
    "Setting",
    "load_plan",
    "parse_plan",
    "parse_value",
    "plan_document",
    "plan_text",
    "plan_value",
    "read_plan_file",
]

"""Limits of many containers as rules: what they choose, and what they set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import attrs

from libhamiregion.changes import ANYTHING, Anything
from libhamiregion.units import (
    integer,
    memory_limit_percent,
    memory_limit_value,
    sm_limit_or_none,
    sm_limit_value,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from libhamiregion.observation.selector import Selector

#: What a plan can set: the limits of a device in bytes and percent, the priority of a container.
LimitField: TypeAlias = Literal["memory_limit", "sm_limit", "priority"]
LIMIT_FIELDS: Final[tuple[LimitField, ...]] = ("memory_limit", "sm_limit", "priority")
#: Those of a device; the others are of the whole container.
DEVICE_FIELDS: Final[tuple[LimitField, ...]] = ("memory_limit", "sm_limit")
#: Bytes, percent or a priority; None is unlimited; "80%" of a memory limit.
LimitValue: TypeAlias = "int | str | None"

# More than any value that a region holds has; a number of a megabyte takes long to read.
_MAX_DIGITS: Final = 40


def _number(value: Any) -> Any:
    """A number that is written as text, as in YAML and in annotations."""
    digits = isinstance(value, str) and value.isascii() and value.strip().isdigit()
    return int(value) if digits and len(value) <= _MAX_DIGITS else value


def read_memory(value: Any) -> int | str | Anything | None:
    """Normalize a memory limit: bytes, "80%", or None for unlimited."""
    if isinstance(value, Anything):
        return value
    percent = memory_limit_percent(value)
    return f"{percent}%" if percent else memory_limit_value(_number(value)) or None


def read_sm(value: Any) -> int | Anything | None:
    """Normalize an SM limit: 1 to 99 percent, or None for unlimited."""
    return value if isinstance(value, Anything) else sm_limit_or_none(sm_limit_value(value))


def read_priority(value: Any) -> int | Anything:
    """Check a priority."""
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
        memory_limit: Bytes, "6GiB", "80%", "unlimited" or None. A percentage is of the limit
            when the plan is applied, or of the limit before it if a node is kept on the plan.
        sm_limit: 1 to 100, "50%", "unlimited" or None.
        priority: Of the whole container: 0 is high, 1 is low.

    Raises:
        ValueError, TypeError: A value that `Region.edit_limits` would not take.
    """

    memory_limit: int | str | Anything | None = attrs.field(default=ANYTHING, converter=read_memory)
    sm_limit: int | Anything | None = attrs.field(default=ANYTHING, converter=read_sm)
    priority: int | Anything = attrs.field(default=ANYTHING, converter=read_priority)

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
        only_if: What has to stand there for `set` to count, value by value. What is left out may be
            anything.
        file_id: Device and inode of the only region's file that is meant; None for any. Undo plans
            of a `PlanReconciler` have it.
        maximum_percent: The rule's value does not count above this percentage of what the rules
            before it set, else of what kubelet has noted that the container was given, else of the
            value first seen; nor does a more urgent priority. None allows any.
    """

    select: Selector
    set: Limits
    name: str | None = None
    only_if: Limits = attrs.field(factory=Limits)
    file_id: tuple[int, int] | None = None
    maximum_percent: int | None = None

    def __attrs_post_init__(self) -> None:
        if self.select.device is not None and self.set.priority is not ANYTHING:
            raise ValueError("a priority is of the whole container; set it without `device`")
        if isinstance(self.only_if.memory_limit, str):
            raise ValueError("`only_if` has limits as they stand there, and no percentage")


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

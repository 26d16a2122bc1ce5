"""What an edit changes, and whether processes that already run notice."""

from __future__ import annotations

import enum
from typing import Literal, TypeAlias

import attrs

from .frozen import twin
from .layouts import Layout

LimitKind: TypeAlias = Literal["memory", "sm", "priority"]


class Effect(str, enum.Enum):
    """From when on an edit holds. Equal to its value, a plain string.

    Source: docs, What a region is (What an edit changes, and when).
    """

    #: In running processes too, within a second.
    IMMEDIATE = "immediate"
    #: In processes that start from now on; running ones keep what they read at their start.
    NEW_PROCESSES = "new_processes"

    def __str__(self) -> str:
        return self.value


@attrs.frozen(weakref_slot=False)
class LimitChange:
    """One device's limit, as it was and as it is now.

    Attributes:
        device: Index of the device (CUDA ordinal).
        before: Bytes or percent, None if it was unlimited.
        after: Bytes or percent, None if it is unlimited.
        effect: Whether running processes see it.
    """

    device: int
    before: int | None
    after: int | None
    effect: Effect


@attrs.frozen
class LimitEdit:
    """One value that `Region.edit_limits` shall change together with others.

    Attributes:
        kind: ``"memory"``, ``"sm"`` or ``"priority"``.
        value: Memory as `parse_size` takes it, SM in percent (None is unlimited for both), or the
            priority.
        device: Index of the device (CUDA ordinal); None for the priority.
        expected: Change only where this is the value now; 0 is unlimited for memory, 0 and 100 for
            SM; None for whatever it is.
    """

    kind: LimitKind
    value: int | str | None
    device: int | None = None
    expected: int | None = None


_LimitChange = twin(LimitChange)


def limit_change(device: int, before: int | None, after: int | None, effect: Effect) -> LimitChange:
    """The same as `LimitChange(…)`, in a third of the time."""
    change = _LimitChange()
    change.device = device
    change.before = before
    change.after = after
    change.effect = effect
    change.__class__ = LimitChange
    return change  # type: ignore[no-any-return]


@attrs.frozen
class ValueChange:
    """A field of the whole region, as it was and as it is now.

    Attributes:
        field: ``priority``, ``utilization_switch`` or ``recent_kernel``.
        before: The raw value before; utilization_switch is 0 or 1.
        after: The raw value now.
        effect: Whether running processes see it.
    """

    field: str
    before: int
    after: int
    effect: Effect


def sm_limit_effects(
    layout: Layout, edits: list[tuple[int, int | None, int | None]]
) -> tuple[LimitChange, ...]:
    """Judge SM limit edits of one call, given as (device, before, after) with None = unlimited.

    Up to HAMi 2.8.0 a running process looks at device 0's limit at each launch, for all of its
    devices, but only to see whether there is one; how high it is, it remembers from its start.
    """
    looks_at_launch = layout in {Layout.UNVERSIONED_NO_UTIL, Layout.UNVERSIONED, Layout.V1_1}
    first = next((edit for edit in edits if edit[0] == 0), None)
    first_crosses = first is not None and (first[1] is None) != (first[2] is None)

    def effect_of(before: int | None, after: int | None) -> Effect:
        crosses = (before is None) != (after is None)
        if looks_at_launch and first_crosses and crosses:
            return Effect.IMMEDIATE
        return Effect.NEW_PROCESSES

    return tuple(
        limit_change(device, before, after, effect_of(before, after))
        for device, before, after in edits
    )


def switch_effect(layout: Layout) -> Effect:
    """2.8.1 reads the switch at its start only; 2.8.2, of the newest layout, does too."""
    return Effect.NEW_PROCESSES if layout is Layout.V1_1_POSTINIT else Effect.IMMEDIATE

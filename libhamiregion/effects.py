"""What an edit changes, and whether processes that already run notice."""

from __future__ import annotations

import enum
from typing import Final, Literal, TypeAlias

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
    #: Running processes that started without an SM limit launch once more and then never again,
    #: also when the limit is taken back; the others notice at their next launch.
    STOPS_LAUNCHES = "stops_launches"

    def __str__(self) -> str:
        return self.value


class Anything(enum.Enum):
    """What ``expected`` is where it is left out. None there means that unlimited is expected."""

    ANYTHING = "anything"

    def __repr__(self) -> str:
        return self.name


#: Whatever stands there may be replaced.
ANYTHING: Final = Anything.ANYTHING


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
        value: A memory limit as `Region.set_memory_limit` takes it, an SM limit as
            `Region.set_sm_limit` does, or the priority.
        device: Index (CUDA ordinal) or uuid of the device; None for the priority.
        expected: Change only where this is the value now, in the same language; None is unlimited.
            Left out: whatever it is.
    """

    kind: LimitKind
    value: int | str | None
    device: int | str | None = None
    expected: int | str | Anything | None = ANYTHING


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


# Where a running process looks at device 0's SM limit at each launch.
_LOOKS_AT_LAUNCH = {Layout.UNVERSIONED_NO_UTIL, Layout.UNVERSIONED, Layout.V1_1}
# Of those, where a process that started without an SM limit has nothing that lets launches through.
_STARTS_NO_WATCHER = {Layout.UNVERSIONED_NO_UTIL, Layout.UNVERSIONED}


def sm_limit_stops_launches(
    layout: Layout, device: int, before: int | None, after: int | None
) -> bool:
    """Whether an SM limit would stop processes that run already, if any do.

    The core decides where an edit is made; this is for plans of edits.
    """
    return layout in _STARTS_NO_WATCHER and device == 0 and before is None and after is not None


def sm_limit_effects(
    layout: Layout, edits: list[tuple[int, int | None, int | None]], *, stops_launches: bool
) -> tuple[LimitChange, ...]:
    """Judge SM limit edits of one call, given as (device, before, after) with None = unlimited.

    Up to HAMi 2.8.0 a running process looks at device 0's limit at each launch, for all of its
    devices, but only to see whether there is one; how high it is, it remembers from its start.

    Args:
        layout: The region's.
        edits: What is changed.
        stops_launches: Whether processes run there that the edit of device 0 stops.
    """
    first = next((edit for edit in edits if edit[0] == 0), None)
    first_crosses = first is not None and (first[1] is None) != (first[2] is None)

    def effect_of(before: int | None, after: int | None) -> Effect:
        crosses = (before is None) != (after is None)
        if not (layout in _LOOKS_AT_LAUNCH and first_crosses and crosses):
            return Effect.NEW_PROCESSES
        return Effect.STOPS_LAUNCHES if stops_launches else Effect.IMMEDIATE

    return tuple(
        limit_change(device, before, after, effect_of(before, after))
        for device, before, after in edits
    )


def switch_effect(layout: Layout) -> Effect:
    """2.8.1 reads the switch at its start only; 2.8.2, of the newest layout, does too."""
    return Effect.NEW_PROCESSES if layout is Layout.V1_1_POSTINIT else Effect.IMMEDIATE

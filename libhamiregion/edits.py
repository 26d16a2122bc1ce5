"""What an edit asks for, as people write it and as the core takes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, SupportsIndex, TypeAlias

import attrs

from ._core import ffi, lib
from .effects import ANYTHING, Anything
from .layouts import DEVICE_CAPACITY
from .units import integer, memory_limit_percent, memory_limit_value, sm_limit_value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .effects import LimitKind

#: A device as it is named, by index or uuid; None is every device, or none for a whole region.
Device: TypeAlias = "SupportsIndex | str | None"
#: The beginning of a ``struct hr_edit``: kind, device, flags, 0, value and expected value. A device
#: that is named by its uuid stands there as that.
CoreEdit: TypeAlias = "tuple[int, int | str, int, int, int, int]"
#: A field of the whole region that an edit changes.
RegionField: TypeAlias = Literal["priority", "utilization_switch", "recent_kernel"]

FIELD_KINDS: Final[dict[RegionField, int]] = {
    "priority": lib.HR_PRIORITY,
    "utilization_switch": lib.HR_SWITCH,
    "recent_kernel": lib.HR_RECENT_KERNEL,
}
_MEMORY, _SM = lib.HR_MEMORY, lib.HR_SM
_EXPECT, _PERCENT = lib.HR_EXPECT, lib.HR_PERCENT
_ALL_DEVICES: Final[int] = lib.HR_ALL_DEVICES
_EDITS = ffi.typeof("struct hr_edit[]")
_new = ffi.new
_INT32_MIN, _INT32_MAX = -(1 << 31), (1 << 31) - 1
_UINT64_MAX = (1 << 64) - 1


@attrs.frozen
class LimitEdit:
    """One value that `Region.edit_limits` shall change, together with others.

    Attributes:
        kind: ``"memory"``, ``"sm"`` or ``"priority"``.
        value: A memory limit as `Region.set_memory_limit` takes it, an SM limit as
            `Region.set_sm_limit` does, or the priority.
        device: Index (CUDA ordinal) or uuid of the device; None is every device of the region. The
            priority has none.
        expected: Change only where this is the value now, in the same language; None is unlimited.
            Left out: whatever it is.

    Raises:
        ValueError, TypeError: As `Region.set_memory_limit`, `Region.set_sm_limit` and
            `Region.set_priority`.
    """

    kind: LimitKind
    value: int | str | None
    device: int | str | None = None
    expected: int | str | Anything | None = ANYTHING
    _parsed: CoreEdit = attrs.field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "_parsed", self._parse())

    def _parse(self) -> CoreEdit:
        if self.kind == "memory":
            return memory_edit(self.value, self.device, self.expected)
        if self.kind == "sm":
            return sm_edit(self.value, self.device, self.expected)
        if self.kind != "priority":
            raise ValueError(f"an edit is of memory, sm or priority, not {self.kind!r}")
        if self.device is not None:
            raise ValueError("a priority is the whole region's; name no device")
        value: Any = self.value
        expected: Any = self.expected
        return field_edit("priority", integer("a priority", value, 0, _INT32_MAX), expected)


def core_edit(edit: LimitEdit) -> CoreEdit:
    """A `LimitEdit` in the core's form.

    Raises:
        TypeError: It is none.
    """
    if not isinstance(edit, LimitEdit):
        raise TypeError(f"an edit is a LimitEdit(kind, value, device=…), not {type(edit).__name__}")
    return edit._parsed


def memory_edit(
    limit: SupportsIndex | str | None,
    device: Device,
    expected: SupportsIndex | str | Anything | None,
) -> CoreEdit:
    """A memory limit, or a percentage of the one that stands there, in the core's form."""
    flags, compare = 0, 0
    if expected is not ANYTHING:
        flags, compare = _EXPECT, memory_limit_value(expected)
    percent = memory_limit_percent(limit) if isinstance(limit, str) else None
    if percent is not None:
        return _MEMORY, _device(device), flags | _PERCENT, 0, percent, compare
    return _MEMORY, _device(device), flags, 0, memory_limit_value(limit), compare


def sm_edit(
    percent: SupportsIndex | str | None,
    device: Device,
    expected: SupportsIndex | str | Anything | None,
) -> CoreEdit:
    """An SM limit in the core's form."""
    value = sm_limit_value(percent)
    if expected is ANYTHING:
        return _SM, _device(device), 0, 0, value, 0
    return _SM, _device(device), _EXPECT, 0, value, sm_limit_value(expected)


def field_edit(field: RegionField, value: int, expected: SupportsIndex | Anything) -> CoreEdit:
    """A value of the whole region, of 32 bits, in the core's form."""
    if expected is ANYTHING:
        return FIELD_KINDS[field], 0, 0, 0, value & _UINT64_MAX, 0
    compare = integer("an expected value", expected, _INT32_MIN, _INT32_MAX)
    return FIELD_KINDS[field], 0, _EXPECT, 0, value & _UINT64_MAX, compare & _UINT64_MAX


def stored_edit(kind: LimitKind, value: int, device: int, expected: int) -> CoreEdit:
    """A limit as it is stored, with no check of its value: for what stood there before.

    An `expected` SM limit that is unlimited stands for every one that is.
    """
    return _MEMORY if kind == "memory" else _SM, _device(device), _EXPECT, 0, value, expected


def _device(device: Device) -> int | str:
    if device is None:
        return _ALL_DEVICES
    if type(device) is int and 0 <= device < DEVICE_CAPACITY:
        return device
    if isinstance(device, str):
        if "\0" in device:
            raise ValueError("a uuid has no NUL character")
        return device
    return integer("a device", device, 0, DEVICE_CAPACITY - 1)


def edit_array(edits: Sequence[CoreEdit]) -> tuple[Any, int, list[Any]]:
    """The array that ``hr_edit`` takes, its room, and what has to live until that returns."""
    given: list[tuple[Any, ...]] = []
    kept: list[Any] = []
    added = 0
    for edit in edits:
        device = edit[1]
        if isinstance(device, str):
            uuid = _new("char[]", device.encode("utf-8", "surrogateescape"))
            kept.append(uuid)
            given.append((edit[0], 0, *edit[2:], uuid))
        else:
            given.append(edit)
            if device == _ALL_DEVICES:
                added += DEVICE_CAPACITY - 1
    raw = _new(_EDITS, given + [()] * added)
    return raw, len(given) + added, kept

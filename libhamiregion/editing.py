"""Edits of a region: limits, priority, and the two fields that HAMi's monitor writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from ._core import ffi, lib
from .effects import (
    Effect,
    ValueChange,
    limit_change,
    sm_limit_effects,
    switch_effect,
)
from .errors import last_detail
from .handle import RegionHandle
from .layouts import DEVICE_CAPACITY
from .limits import (
    UNLIMITED_SM_PERCENT,
    limit_below_usage,
    limit_bytes,
    limit_conflict,
    memory_value,
    sm_or_none,
    sm_value,
    value_conflict,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .effects import LimitChange, LimitEdit

_INT32_MIN, _INT32_MAX = -(1 << 31), (1 << 31) - 1
_UINT64_MAX = (1 << 64) - 1

_store_limits = lib.hr_set_limits
_MEMORY, _SM = lib.HR_MEMORY, lib.HR_SM
_KINDS = {"memory": lib.HR_MEMORY, "sm": lib.HR_SM, "priority": lib.HR_PRIORITY}
_ALL_DEVICES = lib.HR_ALL_DEVICES
_EXPECT, _FORCE, _DRY_RUN = lib.HR_EXPECT, lib.HR_FORCE, lib.HR_DRY_RUN
_PRIORITY = lib.HR_VALUE_PRIORITY
_UTILIZATION_SWITCH = lib.HR_VALUE_UTILIZATION_SWITCH
_RECENT_KERNEL = lib.HR_VALUE_RECENT_KERNEL
# An Enum looks its members up through Python code.
_IMMEDIATE = Effect.IMMEDIATE


class Editable(RegionHandle):
    """The part of `Region` that changes limits and fields of the whole region."""

    __slots__ = ()

    def set_memory_limit(
        self,
        limit: int | str | None,
        *,
        device: int | None = None,
        expected: int | str | None = None,
        force: bool = False,
        dry_run: bool = False,
    ) -> tuple[LimitChange, ...]:
        """Change a memory limit, in running processes too: libvgpu reads it at each allocation.

        All or nothing: where one device refuses, none is changed.

        Args:
            limit: Bytes, or text as `parse_size` takes it; None is unlimited.
            device: Index; None means every device of the region. While the container has told of
                no devices and all 16 limits are equal, those are all 16.
            expected: Change only where this is the limit now (compare-and-set); 0 stands for
                unlimited, None for whatever it is.
            force: Allow a limit under what is in use.
            dry_run: Check everything, change nothing.

        Returns:
            One `LimitChange` per device, in bytes.

        Raises:
            LimitConflict: `expected` did not hold.
            LimitBelowUsage: The limit is under what is in use, and `force` was not given.
            RegionReadOnly: Opened without ``writable=True``.
            ValueError: A limit of 0 (use None), a text that is no size, no such device.
            RegionStale, RegionCorrupt, RegionClosed: As `snapshot`.

        Source: docs, What a region is (What an edit changes, and when).

        Shell: ``hamiregion limits set FILE --memory 6GiB``.
        """
        compare = None if expected is None else limit_bytes(expected)
        flags = (_FORCE if force else 0) | (_DRY_RUN if dry_run else 0)
        _whole, edits = self._set_limits(_MEMORY, memory_value(limit), device, compare, flags)
        return tuple(
            [
                limit_change(edit.device, edit.before or None, edit.after or None, _IMMEDIATE)
                for edit in edits
            ]
        )

    def set_sm_limit(
        self,
        percent: int | None,
        *,
        device: int | None = None,
        expected: int | None = None,
        dry_run: bool = False,
    ) -> tuple[LimitChange, ...]:
        """Change an SM limit. `LimitChange.effect` tells whether running processes see it.

        Args:
            percent: 1 to 100; None and 100 are unlimited.
            device: Index; None means every device of the region, as in `set_memory_limit`.
            expected: Change only where this is the limit now; 0 and 100 stand for unlimited, None
                for whatever it is.
            dry_run: Check everything, change nothing.

        Returns:
            One `LimitChange` per device, in percent.

        Raises:
            LimitConflict, RegionReadOnly, ValueError, RegionStale, RegionCorrupt, RegionClosed: As
                `set_memory_limit`.

        Source: docs, What a region is (What an edit changes, and when).

        Shell: ``hamiregion limits set FILE --sm 50``.
        """
        if expected is not None and not 0 <= expected <= UNLIMITED_SM_PERCENT:
            raise ValueError(f"an expected SM limit is 0 to 100 percent, not {expected}")
        flags = _DRY_RUN if dry_run else 0
        _whole, edits = self._set_limits(_SM, sm_value(percent), device, expected, flags)
        return sm_limit_effects(
            self.layout,
            [(edit.device, sm_or_none(edit.before), sm_or_none(edit.after)) for edit in edits],
        )

    def _set_limits(
        self, kind: int, value: int, device: int | None, expected: int | None, flags: int
    ) -> tuple[Any, Any]:
        """The ``struct hr_limit_edit`` of each device concerned, and what they stand in.

        That comes first and is to be kept meanwhile: they do not keep it alive.
        """
        if device is None:
            edits = ffi.new("struct hr_limit_edit[]", DEVICE_CAPACITY)
            device = _ALL_DEVICES
        elif 0 <= device < DEVICE_CAPACITY:
            edits = ffi.new("struct hr_limit_edit[1]")
        else:
            raise ValueError(f"a device is 0 to {DEVICE_CAPACITY - 1}, not {device}")
        if expected is None:
            expected = 0
        else:
            flags |= _EXPECT
        code = _store_limits(self._handle, kind, device, value, expected, flags, edits)
        if code < 0:
            self._fail_limit(code, kind)
        return edits, edits if code == len(edits) else edits[0:code]

    def _fail_limit(self, code: int, kind: int) -> NoReturn:
        detail = last_detail()
        if code == lib.HR_ECONFLICT:
            memory = kind == lib.HR_MEMORY
            raise limit_conflict(self.path, detail, device=detail.device, in_bytes=memory)
        if code == lib.HR_EBELOWUSE:
            raise limit_below_usage(self.path, detail, device=detail.device)
        self._fail(code)

    def edit_limits(
        self, edits: Iterable[LimitEdit], *, force: bool = False, dry_run: bool = False
    ) -> tuple[LimitChange | ValueChange, ...]:
        """Change several limits and the priority together: all or nothing.

        One call into the core checks all of them, then stores them in order, each by
        compare-and-swap; where one fails, those before it are put back. A reader may see the first
        without the last for some 100 ns, and so it stays where this process is killed then.

        Args:
            edits: What to change, each device and kind once.
            force: Allow memory limits under what is in use.
            dry_run: Check everything, change nothing.

        Returns:
            One change per edit, in the same order.

        Raises:
            ValueError: A value out of range, no such device, or the same one twice.
            LimitConflict, LimitBelowUsage, RegionReadOnly, RegionStale, RegionCorrupt,
            RegionClosed: As `set_memory_limit`.

        Source: docs, What a region is (What an edit changes, and when).
        """
        wanted = tuple(edits)
        if len({(edit.kind, edit.device) for edit in wanted}) < len(wanted):
            raise ValueError("the same limit of the same device stands twice among the edits")
        raw = ffi.new("struct hr_edit[]", [_raw_edit(edit) for edit in wanted])
        flags = (_FORCE if force else 0) | (_DRY_RUN if dry_run else 0)
        code = lib.hr_edit_all(self._handle, raw, len(wanted), flags)
        if code < 0:
            self._fail_edits(code, wanted)
        sm_changes = iter(
            sm_limit_effects(
                self.layout,
                [
                    (each.device, sm_or_none(each.before), sm_or_none(each.value))
                    for each in raw
                    if each.kind == _SM
                ],
            )
        )
        changes: list[LimitChange | ValueChange] = []
        for each in raw:
            if each.kind == _SM:
                changes.append(next(sm_changes))
            elif each.kind == _MEMORY:
                before, after = each.before or None, each.value or None
                changes.append(limit_change(each.device, before, after, _IMMEDIATE))
            else:
                changes.append(ValueChange("priority", signed(each.before), each.value, _IMMEDIATE))
        return tuple(changes)

    def _fail_edits(self, code: int, edits: tuple[LimitEdit, ...]) -> NoReturn:
        if code not in {lib.HR_ECONFLICT, lib.HR_EBELOWUSE}:
            self._fail(code)
        detail = last_detail()
        edit = edits[detail.device]
        if edit.device is None:
            raise value_conflict(self.path, edit.kind, signed(detail.found), signed(detail.wanted))
        if code == lib.HR_EBELOWUSE:
            raise limit_below_usage(self.path, detail, device=edit.device)
        raise limit_conflict(self.path, detail, device=edit.device, in_bytes=edit.kind == "memory")

    def set_utilization_switch(
        self, on: bool, *, expected: bool | None = None, dry_run: bool = False
    ) -> ValueChange:
        """Switch SM limiting on or off.

        The environment's ``GPU_CORE_UTILIZATION_POLICY`` (force, disable) overrides it in its
        processes. Where HAMi's monitor runs, it sets this field every 5 s.

        Args:
            on: Whether SM limits hold.
            expected: Change only where this is what stands there now (compare-and-set); None for
                whatever it is.
            dry_run: Check everything, change nothing.

        Raises:
            LimitConflict: `expected` did not hold; a damaged value is neither.
            RegionReadOnly, RegionStale, RegionClosed: As `set_memory_limit`.
        """
        return self._set_value(
            "utilization_switch",
            _UTILIZATION_SWITCH,
            int(bool(on)),
            None if expected is None else int(bool(expected)),
            dry_run,
        )

    def set_priority(
        self, n: int, *, expected: int | None = None, dry_run: bool = False
    ) -> ValueChange:
        """Set the region's priority: 0 is high, 1 is low. Read by HAMi's monitor.

        `expected` and `dry_run` as in `set_utilization_switch`.

        Raises:
            ValueError: Not a 32-bit number, or negative.
            LimitConflict, RegionReadOnly, RegionStale, RegionClosed: As `set_utilization_switch`.
        """
        if n < 0:
            raise ValueError(f"a priority is 0 (high) or above, not {n}")
        return self._set_value("priority", _PRIORITY, n, expected, dry_run)

    def set_recent_kernel(
        self, n: int, *, expected: int | None = None, dry_run: bool = False
    ) -> ValueChange:
        """Set the launch mark: 2 as after a launch, -1 blocks launches of SM-limited processes.

        Where HAMi's monitor runs, it sets this field every 5 s. Who counts it down says what is
        `expected`: a launch in between is not lost then.

        Raises:
            ValueError: Not a 32-bit number, or below -1.
            LimitConflict, RegionReadOnly, RegionStale, RegionClosed: As `set_utilization_switch`.
        """
        if n < -1:
            raise ValueError(f"the launch mark is -1 (blocked) or above, not {n}")
        return self._set_value("recent_kernel", _RECENT_KERNEL, n, expected, dry_run)

    def _set_value(
        self, field: str, value: int, to: int, expected: int | None, dry_run: bool
    ) -> ValueChange:
        found = ffi.new("int32_t *")
        flags = (_DRY_RUN if dry_run else 0) | (0 if expected is None else _EXPECT)
        wanted = 0 if expected is None else int32(expected, f"an expected {field}")
        code = lib.hr_set_value(self._handle, value, int32(to, field), wanted, flags, found)
        if code == lib.HR_ECONFLICT:
            raise value_conflict(self.path, field, found[0], wanted)
        if code < 0:
            self._fail(code)
        effect = _IMMEDIATE if value != _UTILIZATION_SWITCH else switch_effect(self.layout)
        return ValueChange(field, found[0], to, effect)


def _raw_edit(edit: LimitEdit) -> dict[str, int]:
    raw = {"kind": _KINDS.get(edit.kind, -1)}
    if raw["kind"] < 0:
        raise ValueError(f"an edit is of memory, sm or priority, not {edit.kind!r}")
    if edit.kind == "priority":
        if edit.device is not None:
            raise ValueError("a priority is the whole region's; name no device")
        if not isinstance(edit.value, int) or edit.value < 0:
            raise ValueError(f"a priority is 0 (high) or above, not {edit.value!r}")
        raw["value"] = int32(edit.value, "a priority")
    else:
        if edit.device is None or not 0 <= edit.device < DEVICE_CAPACITY:
            raise ValueError(f"a device is 0 to {DEVICE_CAPACITY - 1}, not {edit.device}")
        raw["device"] = edit.device
        if edit.kind == "memory":
            raw["value"] = memory_value(edit.value)
        else:
            raw["value"] = sm_value(edit.value)  # type: ignore[arg-type]
    if edit.expected is not None:
        raw["expect"] = 1
        raw["expected"] = _expected(edit.kind, edit.expected) & _UINT64_MAX
    return raw


def _expected(kind: str, value: int) -> int:
    if kind == "priority":
        return int32(value, "an expected priority")
    if kind == "memory":
        return limit_bytes(value)
    # Whatever stands in a region can be expected; above 100 is unlimited too.
    if not 0 <= value <= _UINT64_MAX:
        raise ValueError(f"an expected SM limit is a percentage, not {value!r}")
    return value


def signed(value: int) -> int:
    """What the core has widened without its sign."""
    return value - (1 << 64) if value >= 1 << 63 else value


def int32(value: int, what: str) -> int:
    """The value, if it is a 32-bit number."""
    if not isinstance(value, int):
        raise TypeError(f"{what} must be an int, not {type(value).__name__}")
    if not _INT32_MIN <= value <= _INT32_MAX:
        raise ValueError(f"{what} {value} does not fit 32 bits")
    return value

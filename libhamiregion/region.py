"""One shared region: open, read and edit it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NoReturn

from ._core import ffi, lib
from .effects import Effect, ValueChange, limit_change, sm_limit_effects, switch_effect
from .errors import RegionNotFound, last_detail, region_error
from .handle import absolute_path
from .layouts import DEVICE_CAPACITY, LAYOUTS, Layout
from .limits import (
    UNLIMITED_SM_PERCENT,
    limit_below_usage,
    limit_conflict,
    memory_value,
    sm_or_none,
    sm_value,
)
from .lock import Lockable
from .models import RegionSnapshot, lazy_snapshot
from .slot import SlotTable
from .units import parse_size

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .effects import LimitChange
    from .errors import PathLike

_INT32_MIN, _INT32_MAX = -(1 << 31), (1 << 31) - 1

# Bound once: a live value is one call and little else.
_get = lib.hr_get
_take_snapshot = lib.hr_snapshot
_NO_VALUE = lib.HR_NO_VALUE
_MEMORY_LIMIT = lib.HR_VALUE_MEMORY_LIMIT
_SM_LIMIT = lib.HR_VALUE_SM_LIMIT
_MEMORY_USED = lib.HR_VALUE_MEMORY_USED
_PRIORITY = lib.HR_VALUE_PRIORITY
_UTILIZATION_SWITCH = lib.HR_VALUE_UTILIZATION_SWITCH
_RECENT_KERNEL = lib.HR_VALUE_RECENT_KERNEL
_LAST_KERNEL_TIME = lib.HR_VALUE_LAST_KERNEL_TIME
_DEVICE_NUM = lib.HR_VALUE_DEVICE_NUM
_store_limits = lib.hr_set_limits
_MEMORY, _SM = lib.HR_MEMORY, lib.HR_SM
_ALL_DEVICES = lib.HR_ALL_DEVICES
_EXPECT, _FORCE, _DRY_RUN = lib.HR_EXPECT, lib.HR_FORCE, lib.HR_DRY_RUN
# An Enum looks its members up through Python code.
_IMMEDIATE = Effect.IMMEDIATE

# Not cleared: the core overwrites what is read, and a snapshot lives as long as its buffer.
_new_buffer = ffi.new_allocator(should_clear_after_alloc=False)


def _layout_number(layout: Layout | None) -> int:
    if layout is None:
        number: int = lib.HR_LAYOUTS
        return number
    if not isinstance(layout, Layout):
        raise TypeError(f"layout must be a Layout, not {type(layout).__name__}")
    return layout.number


def identify(path: PathLike) -> Layout:
    """Find out which layout a region file has, by magic, version, size and plausibility.

    Read-only; never follows a symbolic link in the last component and never blocks.

    Raises:
        RegionNotFound, RegionPermissionDenied, NotARegion, RegionNotReady, AmbiguousLayout,
        RegionCorrupt: As `open_region`.

    Source: docs, The format (How a file is recognised).
    """
    absolute = absolute_path(path)
    code = lib.hr_identify(os.fsencode(absolute), lib.HR_LAYOUTS)
    if code < 0:
        raise region_error(code, absolute)
    layout: Layout = LAYOUTS[code]
    return layout


def open_region(path: PathLike, *, writable: bool = False, layout: Layout | None = None) -> Region:
    """Open and map a region.

    Args:
        path: The region's file, for example
            ``/usr/local/vgpu/containers/<pod UID>_<container>/<uuid>.cache``.
        writable: Without it the mapping is read-only and nothing can be changed through it.
        layout: Name the layout where it cannot be told; it is still checked for plausibility.

    Returns:
        The region; use it as a context manager or close it.

    Raises:
        RegionNotFound: No such file.
        RegionPermissionDenied: The system refuses.
        NotARegion: A link, directory, FIFO, socket, device, or another magic.
        RegionNotReady: Empty, short, or without its magic yet; try again later.
        AmbiguousLayout: Several layouts are plausible; name one.
        RegionCorrupt: No layout is plausible.
        OSError: Any other failure of the system.
    """
    absolute = absolute_path(path)
    out = ffi.new("hr_region **")
    flags = lib.HR_WRITE if writable else lib.HR_READ
    code = lib.hr_open(os.fsencode(absolute), flags, _layout_number(layout), out)
    if code < 0:
        raise region_error(code, absolute)
    return Region(ffi.gc(out[0], lib.hr_free), absolute, LAYOUTS[code], writable=bool(writable))


def create_region(
    path: PathLike,
    *,
    memory_limits: Iterable[int | str | None] = (),
    sm_limits: Iterable[int | None] = (),
    priority: int = 1,
    uuids: Iterable[str] = (),
    layout: Layout = Layout.V1_2,
) -> None:
    """Create a region that libvgpu accepts as its own.

    It is made complete under another name in the same directory and published in one step, mode
    0666. An existing file is never overwritten.

    Args:
        path: Where.
        memory_limits: One per device from device 0 on, each as `parse_size` takes it; None, and
            what is left out, is unlimited.
        sm_limits: Percent, 1 to 100, one per device; None, and what is left out, is unlimited.
        priority: 0 is high, 1 is low.
        uuids: ``GPU-…`` or ``MIG-…``, one per device; they also set the number of devices.
        layout: The generation of libvgpu that shall use it.

    Raises:
        FileExistsError: Something is there already.
        RegionNotFound: The directory does not exist.
        RegionPermissionDenied: The directory is not writable.
        ValueError: A limit, uuid or count is out of range.
    """
    absolute = absolute_path(path)
    spec = ffi.new("struct hr_create_spec *")
    spec.layout = _layout_number(layout)
    spec.priority = _int32(priority, "priority")
    spec.sm_limit = [UNLIMITED_SM_PERCENT] * DEVICE_CAPACITY
    for device, percent in enumerate(_at_most_all("sm_limits", sm_limits)):
        spec.sm_limit[device] = sm_value(percent)
    for device, limit in enumerate(_at_most_all("memory_limits", memory_limits)):
        spec.limit[device] = memory_value(limit)
    texts = _at_most_all("uuids", uuids)
    spec.device_num = len(texts)
    for device, uuid in enumerate(texts):
        spec.uuids[device] = _uuid_bytes(uuid)
    code = lib.hr_create(os.fsencode(absolute), spec)
    if code == lib.HR_ENOTFOUND:
        raise RegionNotFound(f"the directory of {absolute!r} does not exist", path=absolute)
    if code < 0:
        raise region_error(code, absolute)


class Region(Lockable, SlotTable):
    """A mapped region. Made by `open_region`.

    Threads: a region may be shared; `close` waits for calls in progress in other threads, and later
    ones raise `RegionClosed`. Fork: in the child every call raises `RegionClosed`; open the file
    again there. Pickling raises TypeError.

    Attributes:
        path: The file, absolute.
        layout: Its layout.
        writable: Whether it can be changed.
    """

    __slots__ = ()

    # ---- reading --------------------------------------------------------------------------------

    def snapshot(self) -> RegionSnapshot:
        """Take one consistent picture of the region.

        Never takes the region's lock and never waits longer than 0.1 ms for a writer: what did not
        settle by then is returned and marked. One call into the core; details are made when they
        are looked at.

        Raises:
            RegionStale: The file was truncated, emptied or remade.
            RegionCorrupt: A count or a uuid is out of range.
            RegionClosed: After `close`, or in a forked child.

        Source: docs, Consistency and lifetimes (How a snapshot is made).
        """
        size = self._buffer_bytes
        raw = _new_buffer("char[]", size)
        code = _take_snapshot(self._handle, raw, size)
        if code:
            raw = self._snapshot_again(code)
        path, layout = self._identity
        return lazy_snapshot(raw, path, layout)

    def _snapshot_again(self, code: int) -> Any:
        # More processes may attach between two tries; the largest snapshot always fits.
        while code == lib.HR_ENOSPACE:
            wanted = last_detail().wanted
            self._buffer_bytes = min(wanted + wanted // 2, lib.HR_SNAPSHOT_MAX_BYTES)
            raw = _new_buffer("char[]", self._buffer_bytes)
            code = _take_snapshot(self._handle, raw, self._buffer_bytes)
        if code:
            self._fail(code)
        return raw

    def is_stale(self) -> bool:
        """Whether the path no longer names the mapped file, or the file is too short now.

        A container that restarts may replace its file; the mapping then shows old data for ever.

        Raises:
            RegionClosed: After `close`, or in a forked child.
        """
        code = lib.hr_is_stale(self._handle)
        if code < 0:
            self._fail(code)
        return bool(code)

    def _live_failure(self) -> None:
        # The largest number can also stand in the file: then the core has recorded no failure.
        code = last_detail().code
        if code == lib.HR_EINVAL:
            raise ValueError(f"a device is 0 to {DEVICE_CAPACITY - 1}")
        if code != lib.HR_OK:
            self._fail(code)

    def _live(self, value: int, device: int = 0) -> int:
        try:
            result: int = _get(self._handle, value, device)
        except OverflowError:
            raise ValueError(f"a device is 0 to {DEVICE_CAPACITY - 1}") from None
        if result == _NO_VALUE:
            self._live_failure()
        return result

    def memory_limit(self, device: int) -> int | None:
        """The device's memory limit in bytes, live; None if unlimited.

        Raises:
            ValueError: No such device.
            RegionStale, RegionClosed: As `snapshot`.
        """
        return self._live(_MEMORY_LIMIT, device) or None

    def sm_limit(self, device: int) -> int | None:
        """The device's SM limit in percent, live; None if unlimited (0, or 100 and more).

        Raises:
            ValueError: No such device.
            RegionStale, RegionClosed: As `snapshot`.
        """
        percent = self._live(_SM_LIMIT, device)
        return percent if 0 < percent < UNLIMITED_SM_PERCENT else None

    def memory_used(self, device: int) -> int:
        """What all processes use of the device in bytes, live: the sum that libvgpu enforces.

        Raises:
            ValueError: No such device.
            RegionStale, RegionCorrupt, RegionClosed: As `snapshot`.
        """
        return self._live(_MEMORY_USED, device)

    @property
    def priority(self) -> int:
        """0 is high, 1 is low; live."""
        return _signed(self._live(_PRIORITY))

    @property
    def utilization_switch(self) -> bool:
        """Whether SM limiting is on; live."""
        return self._live(_UTILIZATION_SWITCH) != 0

    @property
    def recent_kernel(self) -> int:
        """2 after a launch, counted down by HAMi's monitor; -1 blocks launches. Live."""
        return _signed(self._live(_RECENT_KERNEL))

    @property
    def last_kernel_time_s(self) -> int | None:
        """Unix seconds of the last launch, live; None where the layout has none."""
        if self.layout.offsets["last_kernel_time"] is None:
            return None
        return self._live(_LAST_KERNEL_TIME)

    @property
    def device_count(self) -> int:
        """Devices that the container has told of, live; 0 until it has initialised NVML."""
        return self._live(_DEVICE_NUM)

    @property
    def uuids(self) -> tuple[str | None, ...]:
        """The uuids of the first `device_count` devices, in NVML order; live."""
        snapshot = self.snapshot()
        return tuple(device.uuid for device in snapshot.devices[: snapshot.device_count])

    # ---- editing --------------------------------------------------------------------------------

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
        compare = None if expected is None else parse_size(expected)
        flags = (_FORCE if force else 0) | (_DRY_RUN if dry_run else 0)
        edits = self._set_limits(_MEMORY, memory_value(limit), device, compare, flags)
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
        edits = self._set_limits(_SM, sm_value(percent), device, expected, flags)
        return sm_limit_effects(
            self.layout,
            [(edit.device, sm_or_none(edit.before), sm_or_none(edit.after)) for edit in edits],
        )

    def _set_limits(
        self, kind: int, value: int, device: int | None, expected: int | None, flags: int
    ) -> Any:
        """Returns the ``struct hr_limit_edit`` of each device concerned."""
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
        return edits if code == len(edits) else edits[0:code]

    def _fail_limit(self, code: int, kind: int) -> NoReturn:
        detail = last_detail()
        if code == lib.HR_ECONFLICT:
            memory = kind == lib.HR_MEMORY
            raise limit_conflict(self.path, detail, in_bytes=memory)
        if code == lib.HR_EBELOWUSE:
            raise limit_below_usage(self.path, detail)
        self._fail(code)

    def set_utilization_switch(self, on: bool) -> ValueChange:
        """Switch SM limiting on or off.

        The environment's ``GPU_CORE_UTILIZATION_POLICY`` (force, disable) overrides it in its
        processes. Where HAMi's monitor runs, it sets this field every 5 s.

        Raises:
            RegionReadOnly, RegionStale, RegionClosed: As `set_memory_limit`.
        """
        return self._set_value(
            "utilization_switch", _UTILIZATION_SWITCH, int(bool(on)), switch_effect(self.layout)
        )

    def set_priority(self, n: int) -> ValueChange:
        """Set the region's priority: 0 is high, 1 is low. Read by HAMi's monitor.

        Raises:
            ValueError: Not a 32-bit number, or negative.
            RegionReadOnly, RegionStale, RegionClosed: As `set_memory_limit`.
        """
        if n < 0:
            raise ValueError(f"a priority is 0 (high) or above, not {n}")
        return self._set_value("priority", _PRIORITY, n, Effect.IMMEDIATE)

    def set_recent_kernel(self, n: int) -> ValueChange:
        """Set the launch mark: 2 as after a launch, -1 blocks launches of SM-limited processes.

        Where HAMi's monitor runs, it sets this field every 5 s.

        Raises:
            ValueError: Not a 32-bit number, or below -1.
            RegionReadOnly, RegionStale, RegionClosed: As `set_memory_limit`.
        """
        if n < -1:
            raise ValueError(f"the launch mark is -1 (blocked) or above, not {n}")
        return self._set_value("recent_kernel", _RECENT_KERNEL, n, Effect.IMMEDIATE)

    def _set_value(self, field: str, value: int, to: int, effect: Effect) -> ValueChange:
        before = ffi.new("int32_t *")
        code = lib.hr_set_value(self._handle, value, _int32(to, field), before)
        if code < 0:
            self._fail(code)
        return ValueChange(field, before[0], to, effect)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _int32(value: int, what: str) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{what} must be an int, not {type(value).__name__}")
    if not _INT32_MIN <= value <= _INT32_MAX:
        raise ValueError(f"{what} {value} does not fit 32 bits")
    return value


def _at_most_all(what: str, values: Iterable[Any]) -> tuple[Any, ...]:
    if isinstance(values, str):
        raise TypeError(f"{what} must be a sequence with one entry per device, not a str")
    entries = tuple(values)
    if len(entries) > DEVICE_CAPACITY:
        raise ValueError(
            f"{what} has {len(entries)} entries, a region has {DEVICE_CAPACITY} devices"
        )
    return entries


def _uuid_bytes(uuid: str) -> bytes:
    text: bytes = uuid.encode("ascii", "replace")
    printable = uuid.isascii() and uuid.isprintable()
    if not printable or not uuid.startswith(("GPU-", "MIG-")) or len(text) >= lib.HR_UUID_BYTES:
        raise ValueError(
            f"{uuid!r} is no device uuid: GPU-… or MIG-…, up to {lib.HR_UUID_BYTES - 1} "
            "printable ASCII characters"
        )
    return text

"""One shared region: open, read and edit it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ._core import ffi, lib
from .editing import Editable, int32, signed
from .errors import RegionNotFound, last_detail, region_error
from .handle import absolute_path
from .layouts import DEVICE_CAPACITY, LAYOUTS, Layout
from .limits import (
    UNLIMITED_SM_PERCENT,
    memory_value,
    sm_value,
)
from .lock import Lockable
from .models import RegionSnapshot, lazy_snapshot
from .slot import SlotTable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .errors import PathLike

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
    spec.priority = int32(priority, "priority")
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


class Region(Editable, Lockable, SlotTable):
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
        return signed(self._live(_PRIORITY))

    @property
    def utilization_switch(self) -> bool:
        """Whether SM limiting is on; live."""
        return self._live(_UTILIZATION_SWITCH) != 0

    @property
    def recent_kernel(self) -> int:
        """2 after a launch, counted down by HAMi's monitor; -1 blocks launches. Live."""
        return signed(self._live(_RECENT_KERNEL))

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

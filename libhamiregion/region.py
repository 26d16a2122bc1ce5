"""One shared region: open it, read it, edit it, take its lock, be one of its processes."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import attrs

from ._core import ffi, lib
from .edits import core_edit, edit_array, field_edit, memory_edit, sm_edit
from .effects import (
    ANYTHING,
    REGION_FIELDS,
    Anything,
    Effect,
    ValueChange,
    edit_error,
    limit_change,
    no_such_device,
    signed,
    sm_limit_effects,
    switch_effect,
    value_change,
)
from .errors import (
    LockTimeout,
    RegionClosed,
    RegionNotFound,
    new_error,
    region_error,
    search_cut_short,
)
from .layouts import DEVICE_CAPACITY, LAYOUTS, SLOT_CAPACITY, Layout
from .lock import OWNER_LIVES, LockRecovery, LockState, RegionLock, in_slices, nanoseconds
from .models import ProcessStatus, RegionSnapshot, lazy_snapshot
from .slot import (
    HOLDS_LOCK,
    MAX_BYTES,
    ReapedSlot,
    Slot,
    SlotChange,
    SlotRepair,
)
from .suspension import LOOK_EVERY_S, WATCH_S, SuspensionWatch, is_suspended, may_go_on
from .units import (
    UNLIMITED_SM_PERCENT,
    format_size,
    integer,
    memory_limit_value,
    sm_limit_or_none,
    sm_limit_value,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from types import TracebackType
    from typing import SupportsIndex

    from typing_extensions import Self

    from .edits import CoreEdit, LimitEdit, RegionField
    from .effects import LimitChange
    from .errors import PathLike
# Enough for a dozen processes on two devices; grows to what a region needs.
_BUFFER_BYTES = 1024
_DEFAULT_ATTACH_TIMEOUT_S = 10.0
_MAX_PID = (1 << 31) - 1
_SIGNED_SLOT_FIELDS = {"host_pid", "status"}

_INT32_MIN, _INT32_MAX = -(1 << 31), (1 << 31) - 1

_edit = lib.hr_edit
_MEMORY, _SM, _SWITCH = lib.HR_MEMORY, lib.HR_SM, lib.HR_SWITCH
_FORCE, _DRY_RUN = lib.HR_FORCE, lib.HR_DRY_RUN
# An Enum looks its members up through Python code.
_IMMEDIATE = Effect.IMMEDIATE

# Bound once: a live value is one call and little else.
_get = lib.hr_get
_take_snapshot = lib.hr_snapshot
_VALUE = ffi.typeof("uint64_t *")
_MEMORY_LIMIT = lib.HR_VALUE_MEMORY_LIMIT
_SM_LIMIT = lib.HR_VALUE_SM_LIMIT
_MEMORY_USED = lib.HR_VALUE_MEMORY_USED
_PRIORITY_NOW = lib.HR_VALUE_PRIORITY
_SWITCH_NOW = lib.HR_VALUE_UTILIZATION_SWITCH
_RECENT_KERNEL_NOW = lib.HR_VALUE_RECENT_KERNEL
_LAST_KERNEL_TIME = lib.HR_VALUE_LAST_KERNEL_TIME
_DEVICE_NUM = lib.HR_VALUE_DEVICE_NUM
_DEVICES = lib.HR_VALUE_DEVICES

# Not cleared: the core overwrites what is read, and a snapshot lives as long as its buffer.
_new_buffer = ffi.new_allocator(should_clear_after_alloc=False)


_NOT_THERE_YET = (lib.HR_ENOTFOUND, lib.HR_ENOTREADY)


def _layout_number(layout: Layout | None) -> int:
    if layout is None:
        number: int = lib.HR_LAYOUTS
        return number
    if not isinstance(layout, Layout):
        raise TypeError(f"a layout is a Layout, as Layout.V1_2, not {type(layout).__name__}")
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
    error = new_error()
    code = lib.hr_identify(os.fsencode(absolute), lib.HR_LAYOUTS, error)
    if code < 0:
        raise region_error(code, absolute, error)
    layout: Layout = LAYOUTS[code]
    return layout


def open_region(
    path: PathLike,
    *,
    writable: bool = False,
    layout: Layout | None = None,
    timeout_s: float = 0.0,
) -> Region:
    """Open and map a region.

    Args:
        path: The region's file, for example
            ``/usr/local/vgpu/containers/<pod UID>_<container>/<uuid>.cache``.
        writable: Without it the mapping is read-only and nothing can be changed through it.
        layout: Name the layout where it cannot be told; only `AmbiguousLayout` asks for it.
        timeout_s: How long to wait for a file that is not there yet, or is being created; 0 tries
            once.

    Returns:
        The region; use it as a context manager or close it.

    Raises:
        RegionNotFound: No such file.
        RegionPermissionDenied: The system refuses.
        NotARegion: A link, directory, FIFO, socket, device, another magic, or of another layout
            than the one named.
        RegionNotReady: Empty, short, or without its magic yet; try again later.
        AmbiguousLayout: Several layouts are plausible; name one.
        RegionCorrupt: No layout is plausible.
        RegionReadOnly: To be writable, but its version is newer than any that is known here.
        OSError: Any other failure of the system.
    """
    flags = lib.HR_WRITE if writable else lib.HR_READ
    return _open(absolute_path(path), flags, _layout_number(layout), nanoseconds(timeout_s))


def open_in_container(path: str, *, writable: bool = False, layout: Layout | None = None) -> Region:
    """`open_region` of an absolute path whose directory a container may replace by a link.

    Where containers can write the root they can: the link could lead to another one's region, or
    to a file system that never answers. It is not followed, `Region.is_stale` included.
    """
    flags = lib.HR_NO_LINK | (lib.HR_WRITE if writable else lib.HR_READ)
    return _open(path, flags, _layout_number(layout))


def _open(absolute: str, flags: int, layout: int = lib.HR_LAYOUTS, timeout_ns: int = 0) -> Region:
    # Owned before it is made: no signal's handler can come between.
    owner = ffi.gc(ffi.new("hr_region **"), lib.hr_free)
    name, error = os.fsencode(absolute), new_error()

    def wait(slice_ns: int) -> int:
        code: int = lib.hr_open(name, flags, layout, slice_ns, owner, error)
        return code

    code = in_slices(wait, timeout_ns, until=_NOT_THERE_YET) if timeout_ns else wait(0)
    if code < 0:
        raise region_error(code, absolute, error)
    return Region(owner, absolute, LAYOUTS[code], writable=bool(flags & lib.HR_WRITE))


_REGION_VARIABLE = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
_DEFAULT_REGION = "/tmp/cudevshr.cache"  # noqa: S108 - where libvgpu keeps it


def own_region(environ: Mapping[str, str] | None = None, *, timeout_s: float = 0.0) -> Region:
    """Open the region of the container that this program runs in, to learn its own budget.

    The file is found by libvgpu's rule: ``CUDA_DEVICE_MEMORY_SHARED_CACHE`` names it; else, with
    KAI's resource isolator, ``CONTAINER_VGPU_MOUNT``, ``POD_UID`` and ``CONTAINER_NAME`` tell its
    directory, if that is there; else it is ``/tmp/cudevshr.cache``. It is opened for reading, and
    its descriptor stays open until the process ends, one however often this is called: closing it
    would drop the locks that a libvgpu in the same process holds on it. For the same reason do not
    ask this region for its `Region.lock_state`, and do not use `open_region` on the file beside it.

    Args:
        environ: The environment to look in; None means `os.environ`.
        timeout_s: How long to wait for a file that is not there yet, or is being created.

    Returns:
        The region. A look at it costs a microsecond, so keep it, and take a snapshot when needed.
        ``own_region().snapshot().device(0).memory_free_bytes`` is what may still be allocated.

    Raises:
        RegionNotFound: There is no such file: nothing in the container has used CUDA yet, or it
            has no share of a GPU by HAMi. The message names the variable and the file.
        RegionNotReady: It is being created; try again later.
        RegionError: As for `open_region`.

    Shell: `hamiregion mine`.
    """
    if isinstance(environ, str | os.PathLike):
        raise TypeError("own_region() takes an environment; open_region() takes a path")
    environ = os.environ if environ is None else environ
    named = environ.get(_REGION_VARIABLE)
    path = absolute_path(named or _region_of_kai(environ) or _DEFAULT_REGION)
    try:
        return _open(path, lib.HR_KEEP, timeout_ns=nanoseconds(timeout_s))
    except RegionNotFound as error:
        told = f"{_REGION_VARIABLE} names it" if named else f"{_REGION_VARIABLE} is not set"
        raise RegionNotFound(
            f"{path!r}: no such file, and {told}: nothing here has used CUDA under HAMi yet, "
            "or this is no container with a share of a GPU",
            path=path,
        ) from error


def _region_of_kai(environ: Mapping[str, str]) -> str | None:
    """Where libvgpu makes it by what KAI's resource isolator sets; None if it did not."""
    mount, pod_uid, name = map(environ.get, ("CONTAINER_VGPU_MOUNT", "POD_UID", "CONTAINER_NAME"))
    directory = f"{mount}/containers/{pod_uid}_{name}"
    # Where libvgpu could not make the directory, it uses the default.
    return f"{directory}/usage.cache" if mount and os.path.isdir(directory) else None  # noqa: PTH112


def create_region(
    path: PathLike,
    *,
    memory_limits: Iterable[int | str | None] = (),
    sm_limits: Iterable[int | str | None] = (),
    priority: int = 1,
    uuids: Iterable[str] = (),
    layout: Layout = Layout.V1_2,
) -> None:
    """Create a region that libvgpu accepts as its own.

    It is made complete under another name in the same directory and published in one step, mode
    0666. An existing file is never overwritten.

    Args:
        path: Where.
        memory_limits: One per device from device 0 on: bytes, or text such as "6GiB"; None,
            "unlimited", and what is left out, is unlimited.
        sm_limits: Percent, 1 to 100 or "50%", one per device; None, "unlimited", and what is left
            out, is unlimited.
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
    spec.priority = integer("a priority", priority, _INT32_MIN, _INT32_MAX)
    spec.sm_limit = [UNLIMITED_SM_PERCENT] * DEVICE_CAPACITY
    for device, percent in enumerate(_at_most_all("sm_limits", sm_limits)):
        spec.sm_limit[device] = sm_limit_value(percent)
    for device, limit in enumerate(_at_most_all("memory_limits", memory_limits)):
        spec.limit[device] = memory_limit_value(limit)
    texts = _at_most_all("uuids", uuids)
    spec.device_num = len(texts)
    for device, uuid in enumerate(texts):
        spec.uuids[device] = _uuid_bytes(uuid)
    error = new_error()
    code = lib.hr_create(os.fsencode(absolute), spec, error)
    if code == lib.HR_ENOTFOUND:
        raise RegionNotFound(f"the directory of {absolute!r} does not exist", path=absolute)
    if code < 0:
        raise region_error(code, absolute, error)


def absolute_path(path: PathLike) -> str:
    """The path as every error and snapshot shows it.

    Raises:
        TypeError: Not str or os.PathLike[str].
        ValueError: A NUL character.
    """
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str):
        raise TypeError(
            f"a region's path is text or an os.PathLike of text, not {type(text).__name__}"
        )
    if "\0" in text:
        raise ValueError("a path has no NUL character")
    # Not resolved: that would follow a symbolic link, which the core refuses.
    return text if text.startswith("/") else str(Path.cwd() / text)


def _proc_root(proc: PathLike) -> bytes:
    """The root of /proc as the core takes it.

    Raises:
        FileNotFoundError: There is no such directory.
    """
    root = Path(proc)
    if not root.is_dir():
        raise FileNotFoundError(
            errno.ENOENT, "no such directory to look for processes in", str(root)
        )
    return os.fsencode(root)


class Region:
    """A mapped region. Made by `open_region`.

    Threads: a region may be shared; `close` waits for calls in progress in other threads, and later
    ones raise `RegionClosed`. Fork: in the child every call raises `RegionClosed`; open the file
    again there. Pickling raises TypeError.

    Attributes:
        path: The file, absolute.
        layout: Its layout.
        layout_newer: The version in the file where it is newer than that layout.
        writable: Whether it can be changed.
    """

    __slots__ = (
        "__weakref__",
        "_buffer_bytes",
        "_closed",
        "_file",
        "_handle",
        "_identity",
        "_lock_seen",
        "_owner",
        "writable",
    )

    def __init__(self, owner: Any, path: str, layout: Layout, *, writable: bool) -> None:
        self._owner = owner
        self._handle = owner[0]
        info = ffi.new("struct hr_info *")
        lib.hr_get_info(self._handle, info)
        version = info.version >> 32, info.version & 0xFFFF_FFFF
        newer = version if layout.version not in (None, version) else None
        self._identity = (path, layout, newer)
        self._file = (path, (info.device_id, info.inode))
        self._buffer_bytes = _BUFFER_BYTES
        self._closed = False
        # The owner_pid that the lock was first seen held with, and when.
        self._lock_seen: tuple[int, float] | None = None
        #: Whether the region can be changed.
        self.writable = writable

    @property
    def path(self) -> str:
        """The region's file, absolute."""
        return self._identity[0]

    @property
    def layout(self) -> Layout:
        """The layout that the file was found to have."""
        return self._identity[1]

    @property
    def layout_newer(self) -> tuple[int, int] | None:
        """The file's version where it is newer than the layout's, such as ``(1, 3)``; else None.

        Such a region is read in the newest layout that is known, as each field of that layout
        passes for what it should be. Opening it writable raises `RegionReadOnly`.

        Source: docs, The format (A version to come).
        """
        return self._identity[2]

    @property
    def closed(self) -> bool:
        """Whether `close` has been called."""
        return self._closed

    @property
    def file_id(self) -> tuple[int, int]:
        """The mapped file's device and inode as `os.stat` gives them: its identity while it lives.

        Raises:
            RegionClosed: After `close`, or in a forked child.
        """
        info = self._mapping()
        return info.device_id, info.inode

    def _mapping(self) -> Any:
        info = ffi.new("struct hr_info *")
        lib.hr_get_info(self._handle, info)
        if not info.address:
            raise RegionClosed(f"{self.path!r} has been closed; open it again", path=self.path)
        return info

    def close(self) -> None:
        """Unmap the region. Waits for calls in progress in other threads; may be called again.

        A slot of this process is detached first, and a lock that is held is given back.

        Raises:
            LockTimeout: The lock was not free within a second, so that the slot could not be
                removed and goes on counting until it is reaped. The region is closed all the same.
        """
        self._closed = True
        detail = new_error()
        code = lib.hr_close(self._handle, detail)
        if code:
            raise LockTimeout(
                f"{self.path!r} is closed, but this process's slot stays in it and counts "
                f"{format_size(detail.wanted)}: the lock was not free in time "
                f"(owner_pid {detail.found}). reap() frees the slot once recover_lock() or the "
                "lock's holder has freed the lock",
                path=self.path,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except LockTimeout:
            # An exception that is on its way says more.
            if exc is None:
                raise

    def __repr__(self) -> str:
        state = "closed" if self._closed else "writable" if self.writable else "read-only"
        return f"<{type(self).__name__} {self.path!r} layout {self.layout.value}, {state}>"

    if TYPE_CHECKING:
        # Given by `frames`.
        def _repr_html_(self) -> str | None: ...

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Region cannot be pickled; send its path, or a snapshot")

    def _fail(self, code: int, error: Any) -> NoReturn:
        raise region_error(code, self.path, error)

    def _fail_busy(self, code: int, error: Any, busy: str) -> NoReturn:
        if code == lib.HR_EBUSY:
            raise RuntimeError(busy)
        self._fail(code, error)

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
        if _take_snapshot(self._handle, raw, size, ffi.NULL):
            raw = self._snapshot_again()
        return lazy_snapshot(raw, *self._identity)

    def _snapshot_again(self) -> Any:
        """Read again, with what the first failed call left out: why it failed, or more room."""
        error = new_error()
        while True:
            raw = _new_buffer("char[]", self._buffer_bytes)
            code = _take_snapshot(self._handle, raw, self._buffer_bytes, error)
            if code == lib.HR_OK:
                return raw
            if code != lib.HR_ENOSPACE:
                self._fail(code, error)
            # More processes may attach between two tries; the largest snapshot always fits.
            wanted = error.wanted
            self._buffer_bytes = min(wanted + wanted // 2, lib.HR_SNAPSHOT_MAX_BYTES)

    def is_stale(self) -> bool:
        """Whether the path no longer names the mapped file, or the file is too short now.

        A container that restarts may replace its file; the mapping then shows old data for ever.

        Raises:
            RegionClosed: After `close`, or in a forked child.
        """
        error = new_error()
        code = lib.hr_is_stale(self._handle, error)
        if code < 0:
            self._fail(code, error)
        return bool(code)

    def _live(self, value: int, device: SupportsIndex = 0) -> int:
        if type(device) is not int or not 0 <= device < DEVICE_CAPACITY:
            device = integer("a device", device, 0, DEVICE_CAPACITY - 1)
        found, error = ffi.new(_VALUE), new_error()
        code = _get(self._handle, value, device, found, error)
        if code:
            self._fail(code, error)
        number: int = found[0]
        return number

    def memory_limit(self, device: SupportsIndex) -> int | None:
        """The device's memory limit in bytes, live; None if unlimited.

        Any index that a layout has room for can be asked, also of a device that the region does not
        have: it is what stands in the file.

        Raises:
            ValueError: Not an index from 0 to 15.
            RegionStale, RegionClosed: As `snapshot`.
        """
        return self._live(_MEMORY_LIMIT, device) or None

    def sm_limit(self, device: SupportsIndex) -> int | None:
        """The device's SM limit in percent, live; None if unlimited (0, or 100 and more).

        Raises:
            ValueError: Not an index from 0 to 15.
            RegionStale, RegionClosed: As `snapshot`.
        """
        return sm_limit_or_none(self._live(_SM_LIMIT, device))

    def memory_used(self, device: SupportsIndex) -> int:
        """What all processes use of the device in bytes, live: the sum that libvgpu enforces.

        Raises:
            ValueError: Not an index from 0 to 15.
            RegionStale, RegionCorrupt, RegionClosed: As `snapshot`.
        """
        return self._live(_MEMORY_USED, device)

    @property
    def priority(self) -> int:
        """0 is high, 1 is low; live."""
        return signed(self._live(_PRIORITY_NOW))

    @property
    def utilization_switch(self) -> bool:
        """Whether SM limiting is on; live."""
        return self._live(_SWITCH_NOW) != 0

    @property
    def burst(self) -> bool:
        """Whether programs of `hamiregion run` may use what nobody else on the GPU does; live.

        False in layouts before 1.1, which have no room for it.

        Raises:
            RegionStale, RegionClosed: As `snapshot`.
        """
        error = new_error()
        on: int = lib.hr_read_burst(self._handle, error)
        if on < 0:
            self._fail(on, error)
        return on != 0

    @property
    def recent_kernel(self) -> int:
        """2 after a launch, counted down by HAMi's monitor; -1 blocks launches. Live."""
        return signed(self._live(_RECENT_KERNEL_NOW))

    @property
    def last_kernel_time_s(self) -> int | None:
        """Unix seconds of the last launch, live; None where the layout has none."""
        if self.layout.offsets["last_kernel_time"] is None:
            return None
        return self._live(_LAST_KERNEL_TIME)

    @property
    def device_count(self) -> int:
        """Devices that the container has reported, live; 0 until it has initialised NVML."""
        return self._live(_DEVICE_NUM)

    @property
    def device_indices(self) -> tuple[int, ...]:
        """Live indices of the devices that the region has, which are those that an edit can name.

        The first `device_count`. While that is 0, every index up to the last device that has a
        memory limit, use, or an SM limit of its own (not one for all 16); where there is no such
        device, all 16. So the first limit in such a region leaves only the indices up to it; edit
        several in one call (`edit_limits`).

        Raises:
            RegionStale, RegionCorrupt, RegionClosed: As `snapshot`.
        """
        return _indices(self._live(_DEVICES))

    @property
    def uuids(self) -> tuple[str | None, ...]:
        """The uuids of the first `device_count` devices, in NVML order; live."""
        snapshot = self.snapshot()
        return tuple(device.uuid for device in snapshot.devices[: snapshot.device_count])

    # ---- editing --------------------------------------------------------------------------------

    def set_memory_limit(
        self,
        limit: SupportsIndex | str | None,
        *,
        device: SupportsIndex | str | None = None,
        expected: SupportsIndex | str | Anything | None = ANYTHING,
        force: bool = False,
        dry_run: bool = False,
    ) -> tuple[LimitChange, ...]:
        """Change a memory limit, in running processes too: libvgpu reads it at each allocation.

        All or nothing: where one device refuses, none is changed.

        Args:
            limit: Bytes; text as `parse_size` takes it; "80%" of what stands there now; None or
                "unlimited".
            device: Index or uuid; None means every device of the region (`device_indices`).
            expected: Change only where this is the limit now (compare-and-set); None is unlimited.
                Left out: whatever it is.
            force: Allow a limit under what is in use, and any index from 0 to 15.
            dry_run: Check everything, change nothing.

        Returns:
            One `LimitChange` per device, in bytes.

        Raises:
            LimitConflict: `expected` did not hold.
            LimitBelowUsage: The limit is under what is in use, and `force` was not given.
            RegionReadOnly: Opened without ``writable=True``.
            ValueError: A limit of 0 (use None), a text that is no size, a percentage of unlimited,
                or no device of the region; the message lists those there are.
            RegionStale, RegionCorrupt, RegionClosed: As `snapshot`.

        Source: docs, What a region is (What an edit changes, and when).

        Shell: ``hamiregion limits set FILE --memory 6GiB``.
        """
        edits = (memory_edit(limit, device, expected),)
        return self._make_edits(edits, force=force, dry_run=dry_run)

    def set_sm_limit(
        self,
        percent: SupportsIndex | str | None,
        *,
        device: SupportsIndex | str | None = None,
        expected: SupportsIndex | str | Anything | None = ANYTHING,
        force: bool = False,
        dry_run: bool = False,
    ) -> tuple[LimitChange, ...]:
        """Change an SM limit. `LimitChange.effect` tells whether running processes see it.

        Where HAMi up to 2.4.0 runs processes, a limit on device 0 that had none is refused: a
        process that started without one would launch once more and then never again, for good.

        Args:
            percent: 1 to 100, or text such as "50%"; None, "unlimited" and 100 are unlimited.
            device: Index or uuid; None means every device of the region (`device_indices`).
            expected: Change only where this is the limit now; None is unlimited. Left out: whatever
                it is.
            force: Allow a limit that stops running processes, and any index from 0 to 15.
            dry_run: Check everything, change nothing.

        Returns:
            One `LimitChange` per device, in percent.

        Raises:
            LimitBelowUsage: The limit would stop running processes, and `force` was not given.
            LimitConflict, RegionReadOnly, ValueError, RegionStale, RegionCorrupt, RegionClosed: As
                `set_memory_limit`.

        Source: docs, What a region is (What an edit changes, and when).

        Shell: ``hamiregion limits set FILE --sm 50``.
        """
        edits = (sm_edit(percent, device, expected),)
        return self._make_edits(edits, force=force, dry_run=dry_run)

    def _fail_edit(
        self, code: int, detail: Any, devices: Sequence[SupportsIndex | str | None]
    ) -> NoReturn:
        """Raise for a failed edit; `devices` are those named, one per edit."""
        if code != lib.HR_ENODEVICE:
            raise edit_error(code, self.path, detail)
        snapshot = self.snapshot()
        uuids = {device.index: device.uuid for device in snapshot.devices}
        there = {each: uuids.get(each) for each in _indices(detail.candidates)}
        named = devices[detail.found]
        raise no_such_device(
            self.path,
            named if isinstance(named, str) else detail.device,
            there,
            reported=snapshot.device_count != 0,
        )

    def edit_limits(
        self, edits: Iterable[LimitEdit], *, force: bool = False, dry_run: bool = False
    ) -> tuple[LimitChange | ValueChange, ...]:
        """Change several limits and the priority together: all or nothing.

        One call into the core checks all of them, then stores them in order, each by
        compare-and-swap; where one fails, those before it are put back. A reader may see the first
        without the last for some 100 ns, and so it stays where this process is killed then.

        Args:
            edits: What to change, each device and kind once; one without a device is of every
                device of the region.
            force: Allow what `set_memory_limit` and `set_sm_limit` allow with it.
            dry_run: Check everything, change nothing.

        Returns:
            The changes in the order of the edits; one for each device of an edit of every device.

        Raises:
            ValueError: No device of the region, or the same one twice.
            LimitConflict, LimitBelowUsage, RegionReadOnly, RegionStale, RegionCorrupt,
            RegionClosed: As `set_memory_limit`.

        Source: docs, What a region is (What an edit changes, and when).
        """
        wanted = tuple(core_edit(edit) for edit in edits)
        return self._make_edits(wanted, force=force, dry_run=dry_run)

    def _make_edits(
        self, edits: Sequence[CoreEdit], *, force: bool = False, dry_run: bool = False
    ) -> tuple[Any, ...]:
        """Make edits in one call of the core, all or none: every edit of a region is made here.

        Returns:
            One `LimitChange` or `ValueChange` for each value, in the order of the edits.
        """
        flags = (_FORCE if force else 0) | (_DRY_RUN if dry_run else 0)
        raw, room, kept = edit_array(edits)
        error = new_error()
        count = _edit(self._handle, raw, len(edits), room, flags, error)
        if count < 0:
            self._fail_edit(count, error, [each[1] for each in edits])
        del kept
        changes: list[LimitChange | ValueChange] = []
        # Judged together, where the first of them stands.
        sm_changes: Iterator[LimitChange] | None = None
        for at in range(count):
            made = raw[at]
            kind = made.kind
            if kind == _MEMORY:
                changes.append(self._memory_change(made))
            elif kind == _SM:
                sm_changes = sm_changes or self._sm_changes(raw[0:count])
                changes.append(next(sm_changes))
            else:
                changes.append(self._value_change(kind, made))
        return tuple(changes)

    def _value_change(self, kind: int, made: Any) -> ValueChange:
        effect = switch_effect(self.layout) if kind == _SWITCH else _IMMEDIATE
        values = signed(made.before), signed(made.after)
        return value_change(REGION_FIELDS[kind], *values, effect, self._file)

    def _memory_change(self, made: Any) -> LimitChange:
        before, after = made.before, made.after
        values = before or None, after or None
        return limit_change(made.device, *values, _IMMEDIATE, "memory", before, self._file)

    def _sm_changes(self, made: Sequence[Any]) -> Iterator[LimitChange]:
        sm = [each for each in made if each.kind == _SM]
        edits = [
            (each.device, sm_limit_or_none(each.before), sm_limit_or_none(each.after))
            for each in sm
        ]
        stops_launches = any(each.stops_launches for each in sm)
        effects = sm_limit_effects(self.layout, edits, stops_launches=stops_launches)
        for each, edit, effect in zip(sm, edits, effects, strict=True):
            yield limit_change(*edit, effect, "sm", each.before, self._file)

    def set_utilization_switch(
        self, on: bool, *, expected: bool | Anything = ANYTHING, dry_run: bool = False
    ) -> ValueChange:
        """Switch SM limiting on or off.

        The environment's ``GPU_CORE_UTILIZATION_POLICY`` (force, disable) overrides it in its
        processes. Where HAMi's monitor runs, it sets this field every 5 s.

        Args:
            on: Whether SM limits hold.
            expected: Change only where this is what stands there now (compare-and-set). Left out:
                whatever it is.
            dry_run: Check everything, change nothing.

        Raises:
            LimitConflict: `expected` did not hold; a damaged value is neither.
            TypeError: Neither True nor False.
            RegionReadOnly, RegionStale, RegionClosed: As `set_memory_limit`.
        """
        compare = expected if isinstance(expected, Anything) else _switch_value(expected)
        return self._set_field("utilization_switch", _switch_value(on), compare, dry_run)

    def set_burst(self, on: bool, *, dry_run: bool = False) -> ValueChange:
        """Make the SM limits soft, or hard again, for programs of `hamiregion run`.

        Under a soft limit a program uses what nobody else on its GPU does, and goes back to the
        limit when somebody does. Running programs see it within half a second. libvgpu knows no
        such thing: its processes are held to the limits. The mark is kept behind the structure that
        libvgpu maps; setting it makes the file some bytes longer.

        Args:
            on: Whether they are soft.
            dry_run: Check everything, change nothing.

        Raises:
            TypeError: Neither True nor False.
            ValueError: The layout is older than 1.1.
            RegionReadOnly, RegionStale, RegionClosed: As `set_memory_limit`.

        Shell: ``hamiregion limits set FILE --burst``.
        """
        to = _switch_value(on, "burst")
        error = new_error()
        before: int = lib.hr_set_burst(self._handle, to, _DRY_RUN if dry_run else 0, error)
        if before == lib.HR_EINVAL:
            raise ValueError(f"a region of layout {self.layout} has no room for burst")
        if before < 0:
            self._fail(before, error)
        return value_change("burst", before, to, _IMMEDIATE, self._file)

    def set_priority(
        self,
        n: SupportsIndex,
        *,
        expected: SupportsIndex | Anything = ANYTHING,
        dry_run: bool = False,
    ) -> ValueChange:
        """Set the region's priority: 0 is high, 1 is low. Read by HAMi's monitor.

        `expected` and `dry_run` as in `set_utilization_switch`.

        Raises:
            ValueError: Not a 32-bit number, or negative.
            TypeError: Not an integer.
            LimitConflict, RegionReadOnly, RegionStale, RegionClosed: As `set_utilization_switch`.
        """
        to = integer("a priority", n, 0, _INT32_MAX)
        return self._set_field("priority", to, expected, dry_run)

    def set_recent_kernel(
        self,
        n: SupportsIndex,
        *,
        expected: SupportsIndex | Anything = ANYTHING,
        dry_run: bool = False,
    ) -> ValueChange:
        """Set the launch mark: 2 as after a launch, -1 blocks launches of SM-limited processes.

        Where HAMi's monitor runs, it sets this field every 5 s. To count it down, say what is
        `expected`: a launch in between is not lost then.

        Raises:
            ValueError: Not a 32-bit number, or below -1.
            TypeError: Not an integer.
            LimitConflict, RegionReadOnly, RegionStale, RegionClosed: As `set_utilization_switch`.
        """
        to = integer("the launch mark", n, -1, _INT32_MAX)
        return self._set_field("recent_kernel", to, expected, dry_run)

    def _set_field(
        self, field: RegionField, to: int, expected: SupportsIndex | Anything, dry_run: bool
    ) -> ValueChange:
        change: ValueChange
        (change,) = self._make_edits((field_edit(field, to, expected),), dry_run=dry_run)
        return change

    # ---- the lock -------------------------------------------------------------------------------

    def lock(self, timeout_s: float = 1.0) -> RegionLock:
        """The region's semaphore as a context manager, taken by libvgpu's own protocol.

        Hold it for microseconds only: libvgpu's processes wait for it, and one that has waited for
        its 10 s takes it away from a holder that is no process of the container, however short the
        time that this one has had it. Attached, it is never taken away. Not re-entrant. Reading
        never needs it.

        A dead holder that was a writer of this library and not attached is replaced at once; any
        other one that does not leave needs `recover_lock`.

        Args:
            timeout_s: How long to wait; 0 tries once.

        Raises:
            LockTimeout: Not free in time; on leaving: it was taken away meanwhile.
            RuntimeError: This thread holds it already.
            RegionReadOnly, RegionStale, RegionClosed: As `set_memory_limit`.

        Source: docs, The protocol (The lock).
        """
        return RegionLock(self, nanoseconds(timeout_s))

    def lock_state(self, *, proc: PathLike = "/proc") -> LockState:
        """Tell whether the lock is held, by which process, and whether that lives. Changes nothing.

        Works read-only. Of what a process of this library has signed the kernel tells; else alive
        means: some process that maps this very file has the owner's number as its pid in one of its
        namespaces. Where /proc does not show enough to tell, the answer is ``"unknown"``.

        Args:
            proc: The root of /proc, where it is mounted elsewhere.

        Raises:
            RegionStale, RegionClosed: As `snapshot`.

        Shell: ``hamiregion lock status FILE``.
        """
        out, error = ffi.new("struct hr_lock_state *"), new_error()
        code = lib.hr_get_lock_state(self._handle, _proc_root(proc), out, error)
        if code:
            self._fail(code, error)
        return LockState(
            held=out.value == 0,
            owner_pid=out.owner_pid or None,
            owner_host_pid=out.owner_pid_here or None,
            owner_life=OWNER_LIVES[out.owner_liveness] if out.owner_pid else None,
            by_library=bool(out.is_ours),
            semaphore_value=out.value,
            damaged=bool(out.is_damaged),
            waiters=out.waiters,
            postinit_value=None if self.layout.offsets["sem_postinit"] is None else out.postinit,
            held_for_s=self._held_for_s(out.value, out.owner_pid),
        )

    def _held_for_s(self, value: int, owner_pid: int) -> float:
        now, seen = time.monotonic(), self._lock_seen
        if value != 0 or seen is None or seen[0] != owner_pid:
            seen = owner_pid, now
        self._lock_seen = None if value else seen
        return now - seen[1]

    def recover_lock(self, *, proc: PathLike = "/proc", watch_s: float = 10.5) -> LockRecovery:
        """Free a lock that nobody can hold any more. Never breaks one that a live process holds.

        Proof is: the owner is dead; or the lock is unsigned, or its signature cannot be judged, and
        no other process has the file open; or it is unsigned and stood unchanged for 10 s, longer
        than any holder can need; or the semaphore's value contradicts its owner. For the second
        semaphore, which nobody signs, 60 s.

        Args:
            proc: The root of /proc, where it is mounted elsewhere.
            watch_s: How long to watch an unsigned lock while others map the file. 0 does not wait;
                60 and more also judge the second semaphore. A signal whose handler takes longer
                than 0.1 s begins the watch anew.

        Returns:
            What was done; false if nothing was wrong.

        Raises:
            LockNotRecoverable: There is no proof; the message says what is missing.
            RegionReadOnly, RegionStale, RegionClosed: As `set_memory_limit`.
            RuntimeError: This thread holds the lock.

        Source: docs, The protocol (Recovery). Shell: ``hamiregion lock recover FILE``.
        """
        root, watch_ns = _proc_root(proc), nanoseconds(watch_s)
        progress, error = ffi.new("struct hr_recovery *"), new_error()
        # A signal ends the call, so that its handler runs; the next one goes on from there.
        code = lib.HR_EINTERRUPTED
        while code == lib.HR_EINTERRUPTED:
            code = lib.hr_recover_lock(self._handle, root, watch_ns, progress, error)
        if code < 0:
            self._fail_busy(code, error, "this thread holds the lock; there is nothing to recover")
        code = progress.done
        return LockRecovery(
            dead_owner=bool(code & lib.HR_RECOVERED_OWNER),
            ownerless=bool(code & lib.HR_RECOVERED_OWNERLESS),
            impossible_value=bool(code & lib.HR_RECOVERED_VALUE),
            postinit=bool(code & lib.HR_RECOVERED_POSTINIT),
        )

    # ---- processes ------------------------------------------------------------------------------

    def attach(self, *, timeout_s: float = _DEFAULT_ATTACH_TIMEOUT_S) -> Slot:
        """Become a process of the region, as libvgpu does when a program starts to use CUDA.

        Meant for processes inside the container: libvgpu takes a slot whose pid does not exist in
        the container's namespace for a dead one, and removes it. And a slot that has this process's
        pid already is taken for a predecessor's; in another namespace it may be a live one's.

        Args:
            timeout_s: How long this and each call on the slot may wait for the region's lock.

        Returns:
            The slot; keep it, and leave it by `Slot.detach` or as a context manager. A killed
            process's slot keeps counting until it is reaped.

        Raises:
            SlotTableFull: All slots are taken.
            RuntimeError: This process is attached to the region already, or has libvgpu loaded,
                which has a slot of its own for it.
            LockTimeout: The lock was not free in time.
            RegionReadOnly, RegionStale, RegionCorrupt, RegionClosed: As `set_memory_limit`.

        Source: docs, The protocol (Attach).
        """
        return Slot(self, nanoseconds(timeout_s))._attach()

    # ---- one process, by its pid in the container's namespace -----------------------------------

    def set_host_pid(
        self,
        pid: SupportsIndex,
        host_pid: SupportsIndex,
        *,
        dry_run: bool = False,
        timeout_s: float = 1.0,
    ) -> SlotChange:
        """Tell libvgpu the host's pid of a process.

        Where libvgpu found none, this makes its utilisation count, and switches SM limiting on,
        within 120 ms.

        Args:
            pid: The process, in the container's namespace.
            host_pid: Its pid in the host's namespace; 0 = unknown.
            dry_run: Only look.
            timeout_s: How long to wait for the lock.

        Raises:
            ProcessNotInRegion: No slot has that pid.
            LockTimeout, RegionReadOnly, RegionStale, RegionClosed: As `lock`.
        """
        edits = [("host_pid", lib.HR_SLOT_HOST_PID, None, host_pid)]
        return self._edit(pid, edits, dry_run=dry_run, timeout_s=timeout_s)[0]

    def set_utilization(
        self,
        pid: SupportsIndex,
        device: SupportsIndex,
        *,
        sm: SupportsIndex | None = None,
        enc: SupportsIndex | None = None,
        dec: SupportsIndex | None = None,
        dry_run: bool = False,
        timeout_s: float = 1.0,
    ) -> tuple[SlotChange, ...]:
        """Store a process's utilisation of a device, in percent; what is None stays as it is.

        Raises:
            ValueError: Not 0 to 100, or the layout has no such figures.
            ProcessNotInRegion, LockTimeout, RegionReadOnly, RegionStale, RegionClosed: As
                `set_host_pid`.
        """
        edits = [
            (f"{name}_util_percent", number, device, percent)
            for name, number, percent in (
                ("sm", lib.HR_SLOT_SM, sm),
                ("enc", lib.HR_SLOT_ENC, enc),
                ("dec", lib.HR_SLOT_DEC, dec),
            )
            if percent is not None
        ]
        for _, _, _, percent in edits:
            integer("a utilisation in percent", percent, 0, 100)
        return self._edit(pid, edits, dry_run=dry_run, timeout_s=timeout_s)

    def set_monitor_used(
        self,
        pid: SupportsIndex,
        device: SupportsIndex,
        nbytes: SupportsIndex,
        *,
        dry_run: bool = False,
        timeout_s: float = 1.0,
    ) -> SlotChange:
        """Store the driver's figure of a process's memory on a device.

        Raises:
            ValueError: No such device, or a negative number.
            ProcessNotInRegion, LockTimeout, RegionReadOnly, RegionStale, RegionClosed: As
                `set_host_pid`.
        """
        edits = [("monitor_used_bytes", lib.HR_SLOT_MONITOR_USED, device, nbytes)]
        return self._edit(pid, edits, dry_run=dry_run, timeout_s=timeout_s)[0]

    def suspend(
        self, pid: SupportsIndex, *, dry_run: bool = False, timeout_s: float = 1.0
    ) -> SlotChange:
        """Block a process's CUDA calls, within a second, until `resume`.

        From HAMi 2.10 on a process obeys only where a device that its container has reported has an
        SM limit of 1 to 99. Layout 1.2 does not tell whether 2.9 or 2.10 uses it: the change's
        `effect` is `Effect.IF_SM_LIMITED` then, and `suspended_activity` looks whether the process
        has stopped.

        Raises:
            ProcessNotInRegion, LockTimeout, RegionReadOnly, RegionStale, RegionClosed: As
                `set_host_pid`.

        Shell: ``hamiregion suspend FILE PID``.
        """
        change = self._set_status(pid, ProcessStatus.SUSPENDED, dry_run, timeout_s)
        effect = Effect.IF_SM_LIMITED if may_go_on(self.snapshot()) else Effect.IMMEDIATE
        return attrs.evolve(change, effect=effect)

    def suspended_activity(
        self, pid: SupportsIndex, *, watch_s: float = WATCH_S
    ) -> Literal["allocating", "launching"] | None:
        """Watch a process that was suspended: whether it goes on all the same.

        It has one second to notice; then its figures are looked at until `watch_s` have passed
        since the call. A process that does nothing meanwhile cannot be told from one that has
        stopped.

        Args:
            pid: The process, in the container's namespace.
            watch_s: How long, in seconds.

        Returns:
            ``"allocating"`` if its memory has grown, ``"launching"`` if kernels were launched in
            the region while no other process of it runs; else None, also where it is not suspended
            any more.

        Raises:
            RegionStale, RegionCorrupt, RegionClosed: As `snapshot`.
        """
        pid = integer("a pid", pid, 1, _MAX_PID)
        until = time.monotonic() + nanoseconds(watch_s) / 1e9
        watch = SuspensionWatch(pid)
        while True:
            now = self.snapshot()
            if not is_suspended(now, pid):
                return None
            seen = watch.look(now)
            rest_s = until - time.monotonic()
            if seen is not None or rest_s <= 0:
                return seen
            time.sleep(min(LOOK_EVERY_S, rest_s))

    def resume(
        self, pid: SupportsIndex, *, dry_run: bool = False, timeout_s: float = 1.0
    ) -> SlotChange:
        """Let a suspended process go on, within a second.

        Raises:
            ProcessNotInRegion, LockTimeout, RegionReadOnly, RegionStale, RegionClosed: As
                `set_host_pid`.

        Shell: ``hamiregion resume FILE PID``.
        """
        change = self._set_status(pid, ProcessStatus.RUNNING, dry_run, timeout_s)
        return attrs.evolve(change, effect=Effect.IMMEDIATE)

    def _set_status(
        self, pid: SupportsIndex, status: ProcessStatus, dry_run: bool, timeout_s: float
    ) -> SlotChange:
        edits = [("status", lib.HR_SLOT_STATUS, None, int(status))]
        return self._edit(pid, edits, dry_run=dry_run, timeout_s=timeout_s)[0]

    def _edit(
        self,
        pid: SupportsIndex,
        edits: Sequence[tuple[str, int, SupportsIndex | None, SupportsIndex]],
        *,
        dry_run: bool,
        timeout_s: float,
    ) -> tuple[SlotChange, ...]:
        raw, error = ffi.new("struct hr_slot_edit[]", max(1, len(edits))), new_error()
        pid = integer("a pid", pid, 1, _MAX_PID)
        for at, (field, number, device, to) in enumerate(edits):
            raw[at].value, raw[at].to = number, integer(field, to, 0, MAX_BYTES)
            if device is not None:
                raw[at].device = integer("a device", device, 0, DEVICE_CAPACITY - 1)
        code = in_slices(
            lambda slice_ns: lib.hr_edit_slot(
                self._handle, pid, raw, len(edits), int(dry_run), slice_ns, error
            ),
            nanoseconds(timeout_s),
        )
        if code == lib.HR_EINVAL:
            names = ", ".join(field for field, *_ in edits)
            raise ValueError(f"{self.path!r}: its layout has no {names}, or the value is too large")
        if code:
            self._fail_busy(code, error, HOLDS_LOCK)
        return tuple(
            SlotChange(
                pid,
                field,
                None if device is None else raw[at].device,
                _before(field, raw[at].before),
                raw[at].to,
            )
            for at, (field, _, device, _) in enumerate(edits)
        )

    # ---- dead processes and torn slots ---------------------------------------------------------

    def reap(
        self,
        pids: Iterable[SupportsIndex] | None = None,
        *,
        proc: PathLike = "/proc",
        dry_run: bool = False,
        timeout_s: float = 1.0,
    ) -> tuple[ReapedSlot, ...]:
        """Free the slots of dead processes, whose memory still counts against the limit.

        Dead is proved through /proc: no process that maps this very file has that pid in any of
        its namespaces. No slot is ever moved: a dead one is emptied where it stands. Where no other
        process of the region lives, those at the end of the table are removed. Seqlocks that the
        dead left odd are mended.

        Args:
            pids: Pids of the container's namespace; None means all that are proved dead.
            proc: The root of /proc, where it is mounted elsewhere.
            dry_run: Only tell what would be done.
            timeout_s: How long to wait for the lock.

        Returns:
            What was freed.

        Raises:
            ValueError: One of `pids` is no pid, is alive, or cannot be judged from here; the
                others have been freed.
            ProcessNotInRegion: One of `pids` has no slot; nothing was done.
            SearchCutShort: Slots could not be judged, because /proc was not searched to its end;
                the others have been freed, and are its `done`. A later call of this process goes
                on where this one stopped, so that it is worth trying again.
            LockTimeout, RegionReadOnly, RegionStale, RegionClosed: As `lock`.

        Shell: ``hamiregion reap FILE``.
        """
        return self._reap(pids, proc, dry_run=dry_run, timeout_s=timeout_s)

    def _reap(
        self,
        pids: Iterable[SupportsIndex] | None,
        proc: PathLike,
        *,
        dry_run: bool = False,
        timeout_s: float,
        strangers: Collection[tuple[int, int]] = (),
    ) -> tuple[ReapedSlot, ...]:
        """Do as `reap`; of `strangers`, pid and start time, by pid, nobody asks what they map."""
        wanted = [integer("a pid", pid, 1, _MAX_PID) for pid in pids or ()]
        if pids is not None and not wanted:
            return ()
        left_out = ffi.new("struct hr_stranger[]", [(start, pid) for pid, start in strangers])
        out, error = ffi.new("struct hr_reap[]", SLOT_CAPACITY), new_error()
        root = _proc_root(proc)
        found = in_slices(
            lambda slice_ns: lib.hr_reap_without(
                self._handle,
                root,
                left_out,
                len(strangers),
                wanted,
                len(wanted),
                int(dry_run),
                slice_ns,
                out,
                error,
            ),
            nanoseconds(timeout_s),
        )
        if found < 0:
            self._fail_busy(found, error, HOLDS_LOCK)
        entries = [out[at] for at in range(found)]
        left = {
            entry.pid: entry.what
            for entry in entries
            if entry.what in {lib.HR_REAP_ALIVE, lib.HR_REAP_UNKNOWN}
        }
        if left:
            raise ValueError(f"{self.path!r}: " + ", ".join(map(_why_left, left.items())))
        freed = tuple(
            ReapedSlot(entry.pid, entry.bytes, entry.what == lib.HR_REAP_REMOVED)
            for entry in entries
            if entry.what in {lib.HR_REAP_REMOVED, lib.HR_REAP_EMPTIED}
        )
        missed = tuple(entry.pid for entry in entries if entry.what == lib.HR_REAP_CUT_SHORT)
        if missed:
            raise search_cut_short(self.path, missed, freed)
        return freed

    def repair_slots(
        self, *, proc: PathLike = "/proc", dry_run: bool = False, timeout_s: float = 1.0
    ) -> SlotRepair:
        """Put right live processes whose slots were moved without their knowledge.

        libvgpu 2.8.1 and later moves slots when it removes dead ones. The process goes on writing
        to its old slot, which counts no more. The table is extended to take that slot in, and its
        frozen copy is emptied: afterwards the process counts once. A slot has to be seen moving,
        within 20 ms, because earlier processes with the same pids leave slots behind as well; what
        an idle process needs is left, and named in the answer.

        Args:
            proc: The root of /proc, where it is mounted elsewhere.
            dry_run: Only tell which processes are concerned; a read-only region will do then, and
                through such a one no lock is taken.
            timeout_s: How long to wait for the lock.

        Returns:
            Which processes were put right, and which may be counted wrongly and were left alone.

        Raises:
            SearchCutShort: Processes were not looked for to the end of /proc; its `done` is what
                would have been returned. A later call of this process goes on where this one
                stopped, so that it is worth trying again.
            LockTimeout, RegionReadOnly, RegionStale, RegionClosed: As `lock`.

        Source: docs, The protocol (Orphaned slots).
        """
        out, error = ffi.new("struct hr_slot_repair[]", SLOT_CAPACITY), new_error()
        root = _proc_root(proc)
        found = in_slices(
            lambda slice_ns: lib.hr_repair_slots(
                self._handle, root, int(dry_run), slice_ns, out, error
            ),
            nanoseconds(timeout_s),
        )
        if found < 0:
            self._fail_busy(found, error, HOLDS_LOCK)
        entries = [out[at] for at in range(found)]
        repair = SlotRepair(
            repaired=tuple(each.pid for each in entries if each.what == lib.HR_REPAIR_DONE),
            left=tuple(each.pid for each in entries if each.what == lib.HR_REPAIR_LEFT),
        )
        missed = tuple(each.pid for each in entries if each.what == lib.HR_REPAIR_CUT_SHORT)
        if missed:
            raise search_cut_short(self.path, missed, repair)
        return repair


def _at_most_all(what: str, values: Iterable[Any]) -> tuple[Any, ...]:
    if isinstance(values, str) or not hasattr(values, "__iter__"):
        raise TypeError(
            f"{what} is a sequence with one entry per device, not {type(values).__name__}"
        )
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


def _switch_value(on: bool, what: str = "the utilisation switch") -> int:
    if not isinstance(on, bool):
        raise TypeError(f"{what} is True or False, not {type(on).__name__}")
    return int(on)


def _indices(bits: int) -> tuple[int, ...]:
    return tuple(device for device in range(DEVICE_CAPACITY) if bits & 1 << device)


def _before(field: str, raw: int) -> int:
    return signed(raw) if field in _SIGNED_SLOT_FIELDS else raw


def _why_left(entry: tuple[int, int]) -> str:
    pid, what = entry
    if what == lib.HR_REAP_ALIVE:
        return f"process {pid} is alive and keeps its slot"
    return f"whether process {pid} lives cannot be told from here, so it keeps its slot"

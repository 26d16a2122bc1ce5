"""One shared region: find it, open it, read it, create one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ._core import ffi, lib
from ._handle import in_slices, nanoseconds
from .edits import INT32_MAX, INT32_MIN, Device, Edits, find_device
from .errors import LockTimeout, RegionNotFound, new_error, region_error, signed, signed_pid
from .evidence import Evidence
from .layouts import DEVICE_CAPACITY, LAYOUTS, Layout
from .lock import Locks
from .models import RegionSnapshot, device_indices, take_snapshot
from .slots import Slots
from .units import (
    UNLIMITED_SM_PERCENT,
    integer,
    memory_limit_value,
    sm_limit_or_none,
    sm_limit_value,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from typing_extensions import Self

    from .errors import PathLike

_NOT_THERE_YET = (lib.HR_ENOTFOUND, lib.HR_ENOTREADY)


class Region(Edits, Locks, Slots):
    """A mapped region. Made by `open_region`; a context manager.

    Threads: a region may be shared; `close` waits for calls in progress in other threads, and later
    ones raise `RegionClosed`. Fork: in the child every call raises `RegionClosed`; open the file
    again there. Pickling raises TypeError.

    Attributes:
        path: The region's file, absolute.
        layout: The layout that the file was found to have.
        layout_newer: The file's version if it is newer than the layout's, such as ``(1, 3)``; else
            None. Such a region is read in the newest layout that is known, and cannot be opened
            writable.
        writable: Whether the region can be changed.
        closed: Whether `close` has been called.
        file_id: The mapped file's device and inode as `os.stat` gives them.
    """

    __slots__ = ()

    def close(self) -> None:
        """Unmap the region. Waits for calls in progress in other threads; may be called again.

        A slot of this process is detached first, and a lock that is held is given back.

        Raises:
            LockTimeout: The lock was not free within a second, so that the slot could not be
                removed and goes on counting until it is reaped. The region is closed all the same.
        """
        self.closed = True
        detail = new_error()
        if lib.hr_close(self._handle, detail):
            owner = signed_pid(detail.found)
            message = (
                f"{self.path!r} is closed, but this process's slot counts {detail.wanted} B: the "
                f"lock was not free in time{'' if owner is None else f' (pid {owner} holds it)'}."
                " reap() frees the slot later"
            )
            raise LockTimeout(message, path=self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        try:
            self.close()
        except LockTimeout:
            # An exception that is on its way says more.
            if exc_info[1] is None:
                raise

    def __repr__(self) -> str:
        state = "closed" if self.closed else "writable" if self.writable else "read-only"
        return f"<{type(self).__name__} {self.path!r} layout {self.layout.value}, {state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Region cannot be pickled; send its path, or a snapshot")

    def snapshot(self) -> RegionSnapshot:
        """Take one consistent picture of the region.

        Never takes the region's lock and never waits longer than 0.1 ms for a writer: figures that
        were not consistent by then are returned and marked. One call into the core; details are
        decoded when they are first used.

        Raises:
            RegionStale: The file was truncated, emptied or remade.
            RegionCorrupt: A count or a uuid is out of range.
            RegionClosed: After `close`, or in a forked child.

        Source: docs, Consistency and lifetimes (How a snapshot is made).
        """
        return take_snapshot(self)

    def evidence(self) -> Evidence:
        """Begin to gather evidence about this region's processes, as the lock and slots are now.

        For services that must not read /proc in the thread which repairs: see `ask_process`.
        Without it `lock_state`, `recover_lock`, `reap` and `repair_slots` search /proc in the
        caller's thread.

        Raises:
            RegionStale, RegionCorrupt, RegionClosed: As `snapshot`.
        """
        return Evidence(self)

    def is_stale(self) -> bool:
        """Return whether the path no longer names the mapped file, or the file is too short now.

        A container that restarts may replace its file; the mapping then shows old data for ever.

        Raises:
            RegionClosed: After `close`, or in a forked child.
        """
        error = new_error()
        return bool(self._check(lib.hr_is_stale(self._handle, error), error))

    def memory_limit(self, device: Device) -> int | None:
        """Return the device's memory limit in bytes, live; None if unlimited.

        Args:
            device: Index or uuid.

        Raises:
            NoSuchDevice: The region has no such device.
            RegionStale, RegionClosed: As `snapshot`.
        """
        return self._live(lib.HR_MEMORY, find_device(self, device)) or None

    def sm_limit(self, device: Device) -> int | None:
        """Return the device's SM limit in percent, live; None if unlimited (0, or 100 and more).

        Args:
            device: Index or uuid.

        Raises:
            NoSuchDevice, RegionStale, RegionClosed: As `memory_limit`.
        """
        return sm_limit_or_none(self._live(lib.HR_SM, find_device(self, device)))

    def memory_used(self, device: Device) -> int:
        """Return the memory in use on the device in bytes, live: the sum that libvgpu enforces.

        Args:
            device: Index or uuid.

        Raises:
            RegionCorrupt: As `snapshot`.
            NoSuchDevice, RegionStale, RegionClosed: As `memory_limit`.
        """
        return self._live(lib.HR_VALUE_MEMORY_USED, find_device(self, device))

    @property
    def priority(self) -> int:
        """0 is high, 1 is low; live."""
        return signed(self._live(lib.HR_PRIORITY))

    @property
    def utilization_switch(self) -> bool:
        """Whether SM limiting is on; live."""
        return self._live(lib.HR_SWITCH) != 0

    @property
    def burst(self) -> bool:
        """Whether programs of `hamiregion run` may use idle time of the GPU; live.

        False in layouts before 1.1, which have no room for it.

        Raises:
            RegionStale, RegionClosed: As `snapshot`.
        """
        return self._live(lib.HR_VALUE_BURST) != 0

    @property
    def recent_kernel(self) -> int:
        """2 after a launch, counted down by HAMi's monitor; -1 blocks launches. Live."""
        return signed(self._live(lib.HR_RECENT_KERNEL))

    @property
    def last_kernel_time_s(self) -> int | None:
        """Unix seconds of the last launch, live; None if the layout has none."""
        if self.layout.offsets["last_kernel_time"] is None:
            return None
        return self._live(lib.HR_VALUE_LAST_KERNEL_TIME)

    @property
    def device_count(self) -> int:
        """Devices that the container has reported, live; 0 until it has initialised NVML."""
        return self._live(lib.HR_VALUE_DEVICE_NUM)

    @property
    def device_indices(self) -> tuple[int, ...]:
        """Live indices of the region's devices, which reads and edits can name.

        The first `device_count`. While that is 0, every index up to the last device that has a
        memory limit, use, a uuid, or an SM limit of its own (not one for all 16); if there is no
        such device, all 16. So the first limit in such a region leaves only the indices up to it;
        edit several in one call (`edit_limits`).

        Raises:
            RegionStale, RegionCorrupt, RegionClosed: As `snapshot`.
        """
        return device_indices(self._live(lib.HR_VALUE_DEVICES))

    @property
    def uuids(self) -> tuple[str | None, ...]:
        """The uuids of the first `device_count` devices, in NVML order; live."""
        snapshot = self.snapshot()
        return tuple(device.uuid for device in snapshot.devices[: snapshot.device_count])


def _layout_number(layout: Layout | None) -> int:
    if layout is None:
        number: int = lib.HR_LAYOUTS
        return number
    if not isinstance(layout, Layout):
        raise TypeError(f"a layout is a Layout, as Layout.V1_2, not {type(layout).__name__}")
    return layout.number


def identify(path: PathLike) -> Layout:
    """Identify the layout of a region file by magic, version, size and plausibility.

    Read-only; never follows a symbolic link in the last component and never blocks.

    Raises:
        RegionNotFound, RegionPermissionDenied, NotARegion, RegionNotReady, AmbiguousLayout,
        RegionCorrupt: As `open_region`.

    Source: docs, The format (How a file is recognised).
    """
    with _open(absolute_path(path), lib.HR_READ) as region:
        return region.layout


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
        layout: Name of the layout if the file fits several; only `AmbiguousLayout` asks for it.
        timeout_s: How long to wait for a file that is not there yet, or is being created; 0 tries
            once.

    Returns:
        The region; use it as a context manager or close it.

    Raises:
        RegionNotFound: No such file.
        RegionPermissionDenied: The system refuses.
        NotARegion: A link, directory, FIFO, socket, device, another magic, or of another layout
            than the one named.
        RegionNotReady: Empty, or without its magic yet; try again later.
        AmbiguousLayout: Several layouts are plausible; name one.
        RegionCorrupt: No layout is plausible, or the file was cut short.
        RegionReadOnly: To be writable, but its version is newer than any that is known here.
        OSError: Any other failure of the system.
    """
    flags = lib.HR_WRITE if writable else lib.HR_READ
    return _open(absolute_path(path), flags, _layout_number(layout), nanoseconds(timeout_s))


def open_in_container(path: str, *, writable: bool = False, layout: Layout | None = None) -> Region:
    """Open an absolute path whose directory a container may replace by a link.

    Such a link could lead to another container's region, or to a file system that never answers.
    It is not followed, by `Region.is_stale` neither. Otherwise as `open_region`.
    """
    flags = lib.HR_NO_LINK | (lib.HR_WRITE if writable else lib.HR_READ)
    return _open(path, flags, _layout_number(layout))


def _open(absolute: str, flags: int, layout: int = lib.HR_LAYOUTS, timeout_ns: int = 0) -> Region:
    # Owned before it is made: no signal's handler can come between.
    owner = ffi.gc(ffi.new("hr_region **"), lib.hr_free)
    name, error = os.fsencode(absolute), new_error()
    code = in_slices(
        lambda slice_ns: lib.hr_open(name, flags, layout, slice_ns, owner, error),
        timeout_ns,
        until=_NOT_THERE_YET,
    )
    if code < 0:
        raise region_error(code, absolute, error)
    return Region(owner, absolute, LAYOUTS[code], writable=bool(flags & lib.HR_WRITE))


_REGION_VARIABLE = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
_DEFAULT_REGION = "/tmp/cudevshr.cache"  # noqa: S108 - where libvgpu keeps it


def own_region(environ: Mapping[str, str] | None = None, *, timeout_s: float = 0.0) -> Region:
    """Open the region of the container that this program runs in.

    The file is found by libvgpu's rule: ``CUDA_DEVICE_MEMORY_SHARED_CACHE`` names it; else, with
    KAI's resource isolator, ``CONTAINER_VGPU_MOUNT``, ``POD_UID`` and ``CONTAINER_NAME`` name its
    directory, if that exists; else it is ``/tmp/cudevshr.cache``. It is opened for reading, and
    its descriptor stays open until the process ends, one however often this is called: closing it
    would drop the locks that a libvgpu in the same process holds on it. For the same reason
    `Region.lock_state` is refused. No other call on it opens the file again, a dry
    `Region.repair_slots` included. Do not use `open_region` on the file as well.

    Args:
        environ: The environment to look in; None means `os.environ`.
        timeout_s: How long to wait for a file that is not there yet, or is being created.

    Returns:
        The region. Keep it open, and take a snapshot when needed.
        ``own_region().snapshot().device(0).memory_free_bytes`` can still be allocated.

    Raises:
        RegionNotFound: There is no such file: nothing in the container has used CUDA yet, it has
            no share of a GPU by HAMi, or the file was removed. The message names the variable and
            the file.
        RegionNotReady: It is being created; try again later.
        RegionError: As for `open_region`.

    Shell: `hamiregion mine`.
    """
    environ = os.environ if environ is None else environ
    named = environ.get(_REGION_VARIABLE)
    path = absolute_path(named or _region_of_kai(environ) or _DEFAULT_REGION)
    try:
        return _open(path, lib.HR_KEEP, timeout_ns=nanoseconds(timeout_s))
    except RegionNotFound as error:
        message = (
            f"{path!r}: no such file ({_REGION_VARIABLE} {'names it' if named else 'is not set'}): "
            "nothing here has used CUDA under HAMi yet, this is no container with a GPU share, or"
            " the file was removed"
        )
        raise RegionNotFound(message, path=path) from error


def _region_of_kai(environ: Mapping[str, str]) -> str | None:
    """The path by the variables of KAI's resource isolator; None without them."""
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

    The region has as many devices as `uuids`, or if that is empty as `memory_limits`.

    Args:
        path: Where.
        memory_limits: One per device: bytes, or text such as "6GiB"; None or "unlimited".
        sm_limits: One per device: percent, 1 to 100 or "50%"; None or "unlimited".
        priority: 0 is high, 1 is low.
        uuids: One per device: ``GPU-…`` or ``MIG-…``.
        layout: The generation of libvgpu that shall use it.

    Raises:
        FileExistsError: Something is there already.
        RegionNotFound: The directory does not exist.
        RegionPermissionDenied: The directory is not writable.
        ValueError: A limit, uuid or count is out of range.
    """
    absolute = absolute_path(path)
    memory = _at_most_all("memory_limits", memory_limits)
    sm = _at_most_all("sm_limits", sm_limits)
    texts = _at_most_all("uuids", uuids)
    spec = ffi.new("struct hr_create_spec *")
    spec.layout = _layout_number(layout)
    spec.priority = integer("a priority", priority, INT32_MIN, INT32_MAX)
    spec.device_num = len(texts) or len(memory)
    spec.limit = [memory_limit_value(limit) for limit in memory]
    unlimited = [UNLIMITED_SM_PERCENT] * (DEVICE_CAPACITY - len(sm))
    spec.sm_limit = [sm_limit_value(percent) for percent in sm] + unlimited
    spec.uuids = [_uuid_bytes(uuid) for uuid in texts]
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


def _at_most_all(what: str, values: Iterable[Any]) -> tuple[Any, ...]:
    if isinstance(values, str):
        raise TypeError(f"{what} is a sequence with one entry per device, not text")
    entries = tuple(values)
    if len(entries) > DEVICE_CAPACITY:
        raise ValueError(f"{what} has {len(entries)} entries, a region {DEVICE_CAPACITY} devices")
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

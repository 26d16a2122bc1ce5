"""The errors of the library, and the one table that makes them from the core's codes."""

from __future__ import annotations

import contextlib
import errno as errno_codes
import functools
import os
import stat
from typing import TYPE_CHECKING, Any, TypeAlias

from ._core import ffi, lib
from ._version import __version__
from .layouts import DEVICE_CAPACITY, LAYOUTS, SLOT_CAPACITY, Layout
from .units import UNLIMITED, format_size, sm_limit_or_none

if TYPE_CHECKING:
    from collections.abc import Iterator

#: A path as text, or as `os.PathLike`.
PathLike: TypeAlias = "str | os.PathLike[str]"


class RegionError(Exception):
    """Root of this library's errors; never raised itself.

    Attributes:
        path: The region's file; None if no file is concerned.
    """

    def __init__(self, message: str, *, path: str | None = None, **details: Any) -> None:
        super().__init__(message)
        self.path = path
        # The attributes that the class declares.
        self.__dict__.update(details)

    def __str__(self) -> str:
        # Those that are OSErrors as well would print their errno and file name instead.
        return str(self.args[0])


class RegionNotFound(RegionError, FileNotFoundError):
    """There is no such file."""

    errno = errno_codes.ENOENT


class RegionPermissionDenied(RegionError, PermissionError):
    """The system refuses access to the file."""

    errno = errno_codes.EACCES


class NotARegion(RegionError, ValueError):
    """Not a regular file, a file with another magic, or of another layout than the one named."""


class RegionNotReady(RegionError):
    """Empty, or without its magic: being created. A later try may succeed."""


class AmbiguousLayout(RegionError):
    """More than one layout is plausible.

    Attributes:
        candidates: The plausible layouts; name one of them to `open_region`.
    """

    candidates: tuple[Layout, ...] = ()


class RegionCorrupt(RegionError):
    """A count or a text in the region is out of range, or no layout fits it.

    Attributes:
        reason: ``"truncated"`` if the file has its magic and is too short; ``"version"``,
            ``"device_num"``, ``"proc_num"`` or ``"uuid"`` if that is wrong; else None.
    """

    reason: str | None = None


class RegionStale(RegionError):
    """The file was truncated, emptied or remade under the mapping. Open it again."""


class RegionClosed(RegionError, ValueError):
    """The region was used after `close()`, or in a child process after `fork()`."""


class RegionReadOnly(RegionError):
    """A write through a region that was opened without ``writable=True``.

    Or it was to be opened so, and its version is newer than any that is known here. Or the lock or
    a process slot was to be changed in a layout of HAMi 2.4.0 or older.
    """


class NoSuchDevice(RegionError, LookupError):
    """The region has no such device; the message lists those that it has.

    Attributes:
        device: The index or uuid asked for.
    """

    device: int | str


class LimitConflict(RegionError):
    """A limit or another value differs from `expected`; nothing was changed.

    Attributes:
        device: Index of the device; None for a value of the whole region.
        found: The limit found (bytes or percent), None if unlimited; or the value found.
        expected: The limit expected, None if unlimited; or the value expected.
    """

    device: int | None
    found: int | None
    expected: int | None


class LimitBelowUsage(RegionError):
    """A memory limit below the usage; nothing was changed. ``force=True`` sets it.

    libvgpu up to HAMi 2.9 computes the free memory as limit minus usage without a sign, and
    programs would see an enormous amount.

    Attributes:
        device: Index of the device.
        used_bytes: Memory in use there.
        requested_bytes: The memory limit asked for.
    """

    device: int
    used_bytes: int
    requested_bytes: int


class LaunchesWouldStop(RegionError):
    """An SM limit that would stop running processes for good; nothing was changed.

    Up to HAMi 2.8.0 a process that starts without a limit never gets tokens for its launches
    later. ``force=True`` sets the limit.

    Attributes:
        device: Index of the device.
        processes: Processes in the region.
        requested_percent: The SM limit asked for.
    """

    device: int
    processes: int
    requested_percent: int


class LockTimeout(RegionError, TimeoutError):
    """The region's semaphore was not free within the time given."""


class LockLost(RegionError):
    """The lock was taken away while it was held: its work may have been disturbed."""


class LockNotRecoverable(RegionError):
    """No proof that the lock may be broken; it was left alone."""


class MemoryLimitExceeded(RegionError, MemoryError):
    """A charge would pass the device's memory limit; nothing was charged.

    Attributes:
        device: Index of the device.
        used_bytes: Memory that all processes of the region use there.
        limit_bytes: The limit.
        requested_bytes: The charge asked for.
    """

    device: int
    used_bytes: int
    limit_bytes: int
    requested_bytes: int


class SlotTableFull(RegionError):
    """All process slots of the region are taken."""


class ProcessNotInRegion(RegionError, LookupError):
    """No slot of the region belongs to that process."""


class ReapRefused(RegionError, ValueError):
    """A process named to `Region.reap` is alive, or cannot be judged from here; its slot stays.

    Attributes:
        pids: These processes, as pids of the container's namespace.
        done: The slots that were freed all the same.
    """

    pids: tuple[int, ...] = ()
    done: Any = ()


class SearchCutShort(RegionError, TimeoutError):
    """/proc was not searched to its end, so slots of possibly dead processes were left alone.

    Nothing is wrong with the region. A search has two seconds, and containers decide how long a
    scan of their processes takes: a later try may succeed. No more than 8 MiB of one process's
    memory maps are read: with more, trying again does not help while it runs.

    Attributes:
        pids: The processes that were not judged, as pids of the container's namespace; 0 for a slot
            whose process has removed its pid.
        processes: Processes with too many memory maps, as pids in the /proc that was searched;
            empty if a later try may succeed.
        done: The result of the call so far.
    """

    pids: tuple[int, ...] = ()
    processes: tuple[int, ...] = ()
    done: Any = None


_CLASSES: dict[int, type[RegionError]] = {
    lib.HR_ENOTFOUND: RegionNotFound,
    lib.HR_EACCESS: RegionPermissionDenied,
    lib.HR_ENOTREGION: NotARegion,
    lib.HR_ENOTREADY: RegionNotReady,
    lib.HR_EAMBIGUOUS: AmbiguousLayout,
    lib.HR_ECORRUPT: RegionCorrupt,
    lib.HR_ESTALE: RegionStale,
    lib.HR_ECLOSED: RegionClosed,
    lib.HR_EFORKED: RegionClosed,
    lib.HR_EREADONLY: RegionReadOnly,
    lib.HR_ECONFLICT: LimitConflict,
    lib.HR_EBELOWUSE: LimitBelowUsage,
    lib.HR_EUNWATCHED: LaunchesWouldStop,
    lib.HR_ETIMEOUT: LockTimeout,
    lib.HR_ELOST: LockLost,
    lib.HR_ENOTRECOVERABLE: LockNotRecoverable,
    lib.HR_EMEMORYLIMIT: MemoryLimitExceeded,
    lib.HR_EFULL: SlotTableFull,
    lib.HR_ENOPROCESS: ProcessNotInRegion,
}

# One message per code and reason, or per code. `_words` has the values.
_MESSAGES: dict[int | tuple[int, int], str] = {
    lib.HR_ENOTFOUND: "{path} does not exist; a container has its region once something in it "
    "uses CUDA, and until the file is removed",
    lib.HR_EACCESS: "access to {path} was refused ({system}); run as root or as the file's owner",
    lib.HR_ENOTREGION: "{path} is {foreign}: it starts with {found} instead of the magic "
    "number; give the path of a .cache file that libvgpu made",
    (lib.HR_ENOTREGION, lib.HR_REASON_LAYOUT): "{path} has layout {found_layout}, not {layout}; "
    "name a layout only if a file can be read as several",
    (lib.HR_ENOTREGION, lib.HR_REASON_SYMLINK): "{path} is a symbolic link, which a container "
    "could point anywhere; give the path of the region file itself",
    (lib.HR_ENOTREGION, lib.HR_REASON_FILE_TYPE): "{path} is {file_type}, not a region file",
    lib.HR_ENOTREADY: "{path} is not ready: it has {size} bytes and no magic number yet; try again "
    "in a moment, or remove the file if no process creates it",
    lib.HR_EAMBIGUOUS: "{path} can be read as layout {candidates}; name the right one with layout=",
    lib.HR_ECORRUPT: "{corrupt}: a count or a text was out of range for a moment",
    (lib.HR_ECORRUPT, lib.HR_REASON_TRUNCATED): "{corrupt}: the file has {size} bytes, too few "
    "for its layout; it was cut short. Remove it and restart the container",
    (lib.HR_ECORRUPT, lib.HR_REASON_VERSION): "{corrupt}: version {version} in a file of {size} "
    "bytes fits no known layout: perhaps of another program, as SoftMig 2.0, or of a newer HAMi",
    (lib.HR_ECORRUPT, lib.HR_REASON_DEVICE_NUM): "{corrupt}: the number of devices is {found}, at "
    "most {devices} are possible",
    (lib.HR_ECORRUPT, lib.HR_REASON_PROC_NUM): "{corrupt}: the number of processes is {signed}, 0 "
    "to {slots} are possible",
    (lib.HR_ECORRUPT, lib.HR_REASON_UUID): "{corrupt}: the uuid of device {device} is no GPU- or "
    "MIG- text",
    lib.HR_ESTALE: "{path} was truncated while it was mapped, or its file system is full; open "
    "it again",
    (lib.HR_ESTALE, lib.HR_REASON_REPLACED): "{path} was remade while it was mapped; open it again",
    lib.HR_ECLOSED: "{path} has been closed; open it again",
    lib.HR_EFORKED: "{path} was opened before fork(); open it again in the child process",
    lib.HR_EREADONLY: "{path} was opened for reading; open it with writable=True to change it",
    (lib.HR_EREADONLY, lib.HR_REASON_KEPT): "{path} was opened by own_region(): to ask for its "
    "lock would open the file again, which drops the locks of a libvgpu in this process; ask from "
    "another process",
    (lib.HR_EREADONLY, lib.HR_REASON_VERSION): "{path} has version {version}, newer than "
    "libhamiregion {release} knows: it can be read, but not changed",
    (lib.HR_EREADONLY, lib.HR_REASON_LAYOUT): "{path} has layout {layout}, of HAMi 2.4.0 or "
    "older: its lock and its process slots are read-only; limits can be edited",
    lib.HR_ECONFLICT: "{path}: {what} is {found_text}, not {wanted_text} as expected; nothing was "
    "changed",
    lib.HR_EBELOWUSE: "{path}: device {device} uses {found_text}, more than the limit asked for, "
    "{wanted_text}; its programs would see an enormous amount of free memory (up to HAMi 2.9). "
    "Nothing was changed; force=True sets it all the same",
    lib.HR_EUNWATCHED: "{path}: running processes ({found}) may have started without an SM limit; "
    "with a limit of {wanted}% each would launch once more and then never again, also after the "
    "limit is taken back. Set it while nothing runs there. Nothing was changed; force=True sets "
    "it all the same",
    lib.HR_ETIMEOUT: "the lock of {path} was not free in time ({owner}); lock_state() tells more, "
    "and recover_lock() frees it if its holder is proved dead",
    lib.HR_ELOST: "the lock of {path} was taken away while it was held: others take it from a "
    "holder that they cannot see after 10 s. Work done under it may have been disturbed",
    lib.HR_ENOTRECOVERABLE: "the lock of {path} was left alone: it was taken or given back during "
    "the check (now {owner}), so processes are using it and nothing has to be recovered",
    (lib.HR_ENOTRECOVERABLE, lib.HR_REASON_ALIVE): "the lock of {path} is held by a live "
    "process{here} ({owner})",
    (lib.HR_ENOTRECOVERABLE, lib.HR_REASON_UNKNOWN): "whether the holder of the lock of {path} "
    "lives is not known here ({owner}): not all processes are visible; run as root on the "
    "host or in the container",
    (lib.HR_ENOTRECOVERABLE, lib.HR_REASON_CUT_SHORT): "whether the holder of the lock of {path} "
    "lives is not known ({owner}): the search through /proc was cut short; try again",
    (lib.HR_ENOTRECOVERABLE, lib.HR_REASON_TOO_LONG): "whether the holder of the lock of {path} "
    "lives is not known ({owner}): process {wanted} has more than 8 MiB of memory maps, too many "
    "to read; trying again does not help while it runs",
    (lib.HR_ENOTRECOVERABLE, lib.HR_REASON_UNWATCHED): "the lock of {path} was left alone: it is "
    "not signed, so any process that maps the file may hold it; watch it for 10 s, the second "
    "semaphore for 60 s, or end these processes",
    (lib.HR_ENOTRECOVERABLE, lib.HR_REASON_RECOVERING): "the lock of {path} was left alone "
    "({owner}): another recovery is at work on it; try again when that one has ended",
    lib.HR_EMEMORYLIMIT: "{path}: device {device} uses {found_text} of {limit_text}; "
    "{wanted_text} more would pass the limit",
    lib.HR_EATTACHED: "{path}: this process is attached to the region already",
    (lib.HR_EATTACHED, lib.HR_REASON_FOREIGN_MAPPING): "{path}: another library in this process, "
    "such as libvgpu, has the region mapped and accounts for the process",
    (lib.HR_EATTACHED, lib.HR_REASON_SAME_PID): "{path}: a live process of another pid namespace "
    "has the pid {found} in the region: start this one with another pid, or give the two "
    "containers a region each",
    lib.HR_EFULL: "all {slots} process slots of {path} are taken; reap() empties those of dead "
    "processes, which are then taken again",
    lib.HR_ENOPROCESS: "{path} has no slot of a process {found}; snapshot().processes lists them",
}

#: Makes a ``struct hr_error`` for a call of the core, which fills it if it fails.
new_error = functools.partial(ffi.new, "struct hr_error *")

_FILE_TYPES = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}

_NO_PERCENTAGE = (
    "{path}: the memory limit of device {device} is {found_text}, and {wanted}% of that is no"
    " limit; nothing was changed"
)
_TWICE = "{path}: the same limit of device {device} is edited twice in one call"

#: The fields of the whole region that an edit can change, by the core's kind.
REGION_FIELDS: dict[int, str] = {
    lib.HR_PRIORITY: "priority",
    lib.HR_SWITCH: "utilization_switch",
    lib.HR_RECENT_KERNEL: "recent_kernel",
}


def signed(value: int) -> int:
    """Return the number that the core has widened to 64 bits without its sign."""
    return value - (1 << 64) if value >= 1 << 63 else value


def region_error(code: int, path: str, detail: Any) -> Exception:
    """Make the exception for a negative code of a core function.

    Args:
        code: The code.
        path: The region's file, for the message.
        detail: The ``struct hr_error`` that the call has filled.

    Returns:
        One of this module's classes; OSError, FileExistsError, RuntimeError or ValueError for an
        error that is not about a region.
    """
    words = _words(path, detail)
    if code == lib.HR_EEXISTS:
        message = "a region is never created over an existing file; open or remove it"
        return FileExistsError(errno_codes.EEXIST, message, path)
    if code == lib.HR_ESYSTEM:
        return OSError(detail.sys_errno, _system_text(detail.sys_errno), path)
    if code == lib.HR_EINVAL and detail.device >= 0:
        return ValueError((_NO_PERCENTAGE if detail.wanted else _TWICE).format_map(words))
    template = _MESSAGES.get((code, detail.reason)) or _MESSAGES.get(code)
    if template is None:
        return ValueError(f"{path!r}: an argument is out of range")
    text = template.format_map(words)
    if code not in _CLASSES:
        return RuntimeError(text)
    error = _CLASSES[code](text, path=path, **_details(code, detail))
    if isinstance(error, OSError):
        error.filename = path
    return error


def _words(path: str, detail: Any) -> dict[str, Any]:
    """Return the values that messages contain."""
    layouts = dict(enumerate(each.value for each in LAYOUTS))
    layout = layouts.get(detail.layout)
    field = REGION_FIELDS.get(detail.kind)
    kind = "memory" if detail.kind == lib.HR_MEMORY else "SM"
    found, wanted = detail.found, detail.wanted
    return {
        "path": repr(path),
        "corrupt": repr(path)
        + (f", read as layout {layout}," if layout else "")
        + " is not a usable region",
        "devices": DEVICE_CAPACITY,
        "slots": SLOT_CAPACITY,
        "release": __version__,
        "system": os.strerror(detail.sys_errno),
        "size": detail.file_size,
        "device": detail.device,
        "found": found,
        "wanted": wanted,
        "signed": signed(found),
        "file_type": _FILE_TYPES.get(found, "a device node"),
        "version": f"{found >> 32}.{found & 0xFFFFFFFF}",
        "layout": layout,
        "found_layout": layouts.get(found),
        "candidates": " and ".join(each.value for each in _candidates(detail)),
        "what": field or f"the {kind} limit of device {detail.device}",
        "found_text": limit_text(detail.kind, found),
        "wanted_text": limit_text(detail.kind, wanted),
        "here": f", pid {wanted} here" if wanted else "",
        # Its magic numbers are HMI1 and HMI2.
        "foreign": "amd-hami-core's region" if found >> 8 == 0x484D49 else "not a HAMi region",
        "limit_text": limit_text(lib.HR_MEMORY, detail.limit),
        "owner": _owner_words(found),
    }


def signed_pid(signature: int) -> int | None:
    """Return the pid that has signed a lock; None if it is not signed, or by a number of ours."""
    # The kernel has no pid above that.
    return signature if 0 < signature <= 1 << 22 else None


def _owner_words(signature: int) -> str:
    if not signature:
        return "not signed"
    pid = signed_pid(signature)
    return "signed by no pid" if pid is None else f"signed by pid {pid}"


def limit_or_value(kind: int, stored: int) -> int | None:
    """Return a stored value as Python shows it: None for no limit."""
    if kind == lib.HR_MEMORY:
        return stored or None
    return sm_limit_or_none(stored) if kind == lib.HR_SM else signed(stored)


def limit_text(kind: int, stored: int) -> str:
    """Return a stored value for people."""
    value = limit_or_value(kind, stored)
    if value is None:
        return UNLIMITED
    if kind == lib.HR_MEMORY:
        return f"{format_size(value)} ({value} bytes)"
    return f"{value}%" if kind == lib.HR_SM else str(value)


_CORRUPT_REASONS = {
    lib.HR_REASON_TRUNCATED: "truncated",
    lib.HR_REASON_VERSION: "version",
    lib.HR_REASON_DEVICE_NUM: "device_num",
    lib.HR_REASON_PROC_NUM: "proc_num",
    lib.HR_REASON_UUID: "uuid",
}


def _details(code: int, detail: Any) -> dict[str, Any]:
    """Return the attributes of an error's class."""
    kind, device, found, wanted = detail.kind, detail.device, detail.found, detail.wanted
    if code == lib.HR_ECORRUPT:
        return {"reason": _CORRUPT_REASONS.get(detail.reason)}
    if code == lib.HR_EAMBIGUOUS:
        return {"candidates": _candidates(detail)}
    if code == lib.HR_ECONFLICT:
        values = {"found": limit_or_value(kind, found), "expected": limit_or_value(kind, wanted)}
        return {"device": None if kind in REGION_FIELDS else device, **values}
    if code == lib.HR_EUNWATCHED:
        return {"device": device, "processes": found, "requested_percent": wanted}
    if code in (lib.HR_EBELOWUSE, lib.HR_EMEMORYLIMIT):
        used = {"device": device, "used_bytes": found, "requested_bytes": wanted}
        return used if code == lib.HR_EBELOWUSE else {**used, "limit_bytes": detail.limit}
    return {}


def _candidates(detail: Any) -> tuple[Layout, ...]:
    return tuple(layout for layout in LAYOUTS if detail.candidates & 1 << layout.number)


def _system_text(number: int) -> str:
    if number == errno_codes.EWOULDBLOCK:
        return "another process holds a lease on the file (see /proc/locks); try again in a minute"
    return os.strerror(number)


@contextlib.contextmanager
def needs_extra(what: str, extra: str) -> Iterator[None]:
    """Let a failing import name the extra that installs the missing package."""
    try:
        yield
    except ModuleNotFoundError as error:
        message = f"{what} needs the extra {extra!r}: pip install '.[{extra}]' in a clone"
        raise ModuleNotFoundError(message, name=error.name) from error

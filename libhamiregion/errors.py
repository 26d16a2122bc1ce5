"""The errors of the library, and the one table that makes them from the core's codes."""

from __future__ import annotations

import contextlib
import errno as errno_codes
import os
from typing import TYPE_CHECKING, Any, TypeAlias

from ._core import ffi, lib
from ._version import __version__
from .layouts import DEVICE_CAPACITY, LAYOUTS, SLOT_CAPACITY, Layout

if TYPE_CHECKING:
    from collections.abc import Iterator

PathLike: TypeAlias = "str | os.PathLike[str]"


class RegionError(Exception):
    """Root of this library's errors; never raised itself.

    Attributes:
        path: The region's file, or None where no file is concerned.
    """

    def __init__(self, message: str, *, path: str | None = None) -> None:
        super().__init__(message)
        self.path = path

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
    """Empty, short, or without its magic: being created. A later try may succeed."""


class AmbiguousLayout(RegionError):
    """More than one layout is plausible.

    Attributes:
        candidates: The plausible layouts; name one of them to `open_region`.
    """

    candidates: tuple[Layout, ...] = ()


class RegionCorrupt(RegionError):
    """A count or a text in the region is out of range, or no layout fits it."""


class RegionStale(RegionError):
    """The file was truncated, emptied or remade under the mapping. Open it again."""


class RegionClosed(RegionError, ValueError):
    """The region was used after `close()`, or in a child process after `fork()`."""


class RegionReadOnly(RegionError):
    """A write through a region that was opened without ``writable=True``.

    Or it was to be opened so, and its version is newer than any that is known here. Or the lock or
    a process slot was to be changed in a layout of HAMi 2.4.0 or older.
    """


class LimitConflict(RegionError):
    """A limit, or another value, was not what the caller expected; nothing was changed.

    Attributes:
        device: Index of the device; None for a value of the whole region.
        found: The limit found (bytes or percent), None if unlimited; or the value found.
        expected: The limit expected, None if unlimited; or the value expected.
    """

    device: int | None
    found: int | None
    expected: int | None


class LimitBelowUsage(RegionError):
    """A limit that what runs there cannot bear; nothing was changed. ``force=True`` sets it.

    A memory limit under what is in use: libvgpu would compute the free memory as limit minus usage
    without a sign up to HAMi 2.9, and programs would see an enormous amount. Or an SM limit where
    HAMi up to 2.4.0 runs processes that may have started without one: they would stop for good.

    Attributes:
        device: Index of the device.
        used_bytes: What is in use there; None where it is an SM limit that is refused.
        requested_bytes: The memory limit asked for; None where it is an SM limit.
    """

    device: int
    used_bytes: int | None = None
    requested_bytes: int | None = None


class LockTimeout(RegionError, TimeoutError):
    """The region's semaphore was not free within the time given."""


class LockNotRecoverable(RegionError):
    """Nothing proves that the lock may be broken; it was left alone."""


class MemoryLimitExceeded(RegionError, MemoryError):
    """A charge would pass the device's memory limit; nothing was charged.

    Attributes:
        device: Index of the device.
        used_bytes: What all processes of the region use there.
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


class SearchCutShort(RegionError, TimeoutError):
    """/proc was not searched to its end, so slots that may be dead processes' were left alone.

    A later try may succeed: nothing is wrong with the region. Each search has a budget of the
    processor's time, and containers decide how long looking at their processes takes. `Region.reap`
    goes on where it stopped, in the same process, within ten minutes.

    Attributes:
        pids: The processes that were not judged, as pids of the container's namespace; 0 for a slot
            whose process has taken its pid out.
        done: What the call has done all the same, and would have returned.
    """

    pids: tuple[int, ...] = ()
    done: Any = None


def search_cut_short(path: str, pids: tuple[int, ...], done: Any) -> SearchCutShort:
    """Make the exception for slots of these pids."""
    named = [str(pid) for pid in pids if pid > 0][:_PIDS_SHOWN]
    more = f" and {len(pids) - len(named)} more" if named and len(pids) > len(named) else ""
    who = f" (pids {', '.join(named)}{more})" if named else ""
    error = SearchCutShort(
        f"{len(pids)} slot{'' if len(pids) == 1 else 's'} of {path!r}{who} could not be judged:"
        " the search through /proc was cut short; try again",
        path=path,
    )
    error.pids, error.done = pids, done
    return error


_PIDS_SHOWN = 8

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
    lib.HR_EUNWATCHED: LimitBelowUsage,
    lib.HR_ETIMEOUT: LockTimeout,
    lib.HR_ELOST: LockTimeout,
    lib.HR_ENOTRECOVERABLE: LockNotRecoverable,
    lib.HR_EMEMORYLIMIT: MemoryLimitExceeded,
    lib.HR_EFULL: SlotTableFull,
    lib.HR_ENOPROCESS: ProcessNotInRegion,
}

_LOCK_CODES = {lib.HR_ELOST, lib.HR_ETIMEOUT, lib.HR_ENOTRECOVERABLE}

_KINDS = {
    lib.HR_REASON_SYMLINK: "a symbolic link, which a container could point anywhere",
    lib.HR_REASON_DIRECTORY: "a directory",
    lib.HR_REASON_FIFO: "a FIFO",
    lib.HR_REASON_SOCKET: "a socket",
    lib.HR_REASON_DEVICE: "a device node",
}


_ERROR = ffi.typeof("struct hr_error *")


def new_error() -> Any:
    """A ``struct hr_error`` for a call of the core, which fills it if it fails."""
    return ffi.new(_ERROR)


def region_error(code: int, path: str, detail: Any) -> Exception:
    """Make the exception for a negative code of a core function.

    Args:
        code: The code.
        path: The region's file, for the message.
        detail: The ``struct hr_error`` that the call has filled.

    Returns:
        One of this module's classes; OSError, FileExistsError or ValueError for what is not about
        a region.
    """
    if code == lib.HR_EEXISTS:
        return FileExistsError(
            errno_codes.EEXIST,
            "a region is never created over an existing file; open or remove it",
            path,
        )
    if code == lib.HR_ESYSTEM:
        return OSError(detail.sys_errno, _system_text(detail.sys_errno), path)
    if code == lib.HR_EATTACHED:
        return RuntimeError(f"{path!r}: {attached_reason(detail)}")
    if code not in _CLASSES:
        return ValueError(f"{path!r}: an argument is out of range")
    error = _CLASSES[code](_message(code, repr(path), detail), path=path)
    if isinstance(error, OSError):
        error.filename = path
    if isinstance(error, AmbiguousLayout):
        error.candidates = _candidates(detail)
    return error


def _system_text(number: int) -> str:
    # Of what is done to regions only the opening of a leased file gives this.
    if number == errno_codes.EWOULDBLOCK:
        return (
            "a process, of its container most likely, holds a lease on the file (F_SETLEASE), so it"
            " cannot be opened now; the kernel ends the lease after /proc/sys/fs/lease-break-time"
            " seconds, so try again; /proc/locks names the process"
        )
    return os.strerror(number)


def attached_reason(detail: Any) -> str:
    """Say why a process cannot be attached, or cannot have its slot back."""
    if detail.reason == lib.HR_REASON_FOREIGN_MAPPING:
        return (
            "another library in this process, such as libvgpu, has the region mapped and accounts "
            "for the process; its slot is not taken away from it"
        )
    if detail.reason == lib.HR_REASON_SAME_PID:
        return (
            f"a live process of another pid namespace has the pid {detail.found} in the region: "
            "start this one with another pid, or give the two containers a region each"
        )
    return "this process is attached to the region already"


def _candidates(detail: Any) -> tuple[Layout, ...]:
    return tuple(layout for layout in LAYOUTS if detail.candidates & 1 << layout.number)


def _message(code: int, path: str, detail: Any) -> str:
    if code == lib.HR_ENOTFOUND:
        return f"{path} does not exist; a container has its region once something in it uses CUDA"
    if code == lib.HR_EACCESS:
        reason = os.strerror(detail.sys_errno)
        return f"access to {path} was refused ({reason}); run as root or as the file's owner"
    if code == lib.HR_ENOTREGION:
        return _not_a_region(path, detail)
    if code == lib.HR_ENOTREADY:
        return _not_ready(path, detail)
    if code == lib.HR_EAMBIGUOUS:
        names = " and ".join(layout.value for layout in _candidates(detail))
        return f"{path} can be read as layout {names}; name the right one with layout="
    if code == lib.HR_ECORRUPT:
        return f"{path} is not a usable region: {_corruption(detail)}"
    if code == lib.HR_ESTALE:
        done = "remade" if detail.reason == lib.HR_REASON_REPLACED else "truncated"
        return f"{path} was {done} while it was mapped; open it again"
    if code in _LOCK_CODES:
        return _lock_message(code, path, detail)
    return _state_message(code, path, detail)


def _lock_message(code: int, path: str, detail: Any) -> str:
    if code == lib.HR_ELOST:
        return (
            f"the lock of {path} was taken away while it was held: others take it from a holder "
            "that they cannot see after 10 s. What was done under it may have been disturbed"
        )
    owner = f"owner_pid {detail.found}" if detail.found else "nobody has signed for it"
    if code == lib.HR_ETIMEOUT:
        return (
            f"the lock of {path} was not free in time ({owner}); lock_state() tells more, and "
            "recover_lock() frees it where its holder is proved dead"
        )
    if detail.reason == lib.HR_REASON_ALIVE:
        who = f"process, pid {detail.wanted} here" if detail.wanted else "writer of this library"
        return f"the lock of {path} is held by a live {who} ({owner})"
    if detail.reason == lib.HR_REASON_UNKNOWN:
        return (
            f"whether the holder of the lock of {path} lives cannot be told from here ({owner}): "
            "its processes are not all visible; run as root on the host or in the container"
        )
    if detail.reason == lib.HR_REASON_UNWATCHED:
        return (
            f"the lock of {path} was left alone: nobody has signed for it, so that any process "
            "that maps the file may hold it; watch it for 10 s, the second semaphore for 60 s, or "
            "end these processes"
        )
    if detail.reason == lib.HR_REASON_RECOVERING:
        return (
            f"the lock of {path} was left alone ({owner}): another recovery has been at work on it "
            "all the time; try again when that one has ended"
        )
    return (
        f"the lock of {path} was left alone: it was taken or given back while it was looked at "
        f"(now {owner}), so processes are using it and nothing has to be recovered"
    )


def _state_message(code: int, path: str, detail: Any) -> str:
    if code == lib.HR_ENOPROCESS:
        return f"{path} has no slot of a process {detail.found}; snapshot().processes lists them"
    if code == lib.HR_EFORKED:
        return f"{path} was opened before fork(); open it again in the child process"
    if code == lib.HR_ECLOSED:
        return f"{path} has been closed; open it again"
    if code == lib.HR_EREADONLY and detail.reason == lib.HR_REASON_VERSION:
        return (
            f"{path} has version {_version(detail.found)}, newer than libhamiregion {__version__} "
            "knows: it can be read, but not changed; a newer libhamiregion may know it"
        )
    if code == lib.HR_EREADONLY and detail.reason == lib.HR_REASON_LAYOUT:
        return (
            f"{path} has layout {LAYOUTS[detail.layout].value}, of HAMi 2.4.0 or older: its lock "
            "and its process slots are read-only; limits can be edited"
        )
    if code == lib.HR_EREADONLY:
        return f"{path} was opened for reading; open it with writable=True to change it"
    if code == lib.HR_EFULL:
        return (
            f"all {SLOT_CAPACITY} process slots of {path} are taken; reap() empties those of dead "
            "processes, which are then taken again"
        )
    return f"{path}: the region refuses this ({code})"


def _not_a_region(path: str, detail: Any) -> str:
    if detail.reason == lib.HR_REASON_LAYOUT:
        return (
            f"{path} has layout {LAYOUTS[detail.found].value}, not {LAYOUTS[detail.layout].value}; "
            "name a layout only where a file can be read as several"
        )
    kind = _KINDS.get(detail.reason)
    if kind is not None:
        return f"{path} is {kind}; give the path of the region file itself"
    return (
        f"{path} is not a HAMi region: it starts with {detail.found} instead of the magic number; "
        "give the path of a .cache file that libvgpu made"
    )


def _not_ready(path: str, detail: Any) -> str:
    if detail.reason == lib.HR_REASON_EMPTY:
        what = "it is empty"
    elif detail.reason == lib.HR_REASON_SHORT:
        what = f"it has {detail.file_size} bytes, and the smallest layout has {detail.wanted}"
    else:
        what = "its magic number is not set yet"
    return f"{path} is not ready: {what}; it may be in the making, try again in a moment"


def _version(found: int) -> str:
    return f"{found >> 32}.{found & 0xFFFFFFFF}"


def _corruption(detail: Any) -> str:
    signed = detail.found - (1 << 64) if detail.found >= 1 << 63 else detail.found
    if detail.reason == lib.HR_REASON_TRUNCATED:
        what = f"the file has {detail.file_size} bytes, too few for its layout; it was cut short"
    elif detail.reason == lib.HR_REASON_VERSION:
        what = (
            f"version {_version(detail.found)} in a file of {detail.file_size} bytes fits no known "
            "layout; a newer libhamiregion may know it"
        )
    elif detail.reason == lib.HR_REASON_DEVICE_NUM:
        what = f"the number of devices is {detail.found}, at most {DEVICE_CAPACITY} are possible"
    elif detail.reason == lib.HR_REASON_PROC_NUM:
        what = f"the number of processes is {signed}, 0 to {SLOT_CAPACITY} are possible"
    elif detail.reason == lib.HR_REASON_UUID:
        what = f"the uuid of device {detail.device} is no GPU- or MIG- text"
    else:
        what = "a count or a text was out of range for a moment"
    if detail.layout < len(LAYOUTS):
        what += f" (read as layout {LAYOUTS[detail.layout].value})"
    return what


@contextlib.contextmanager
def needs_extra(what: str, extra: str) -> Iterator[None]:
    """Have an import within say which extra installs what is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        message = f"{what} needs the extra {extra!r}: pip install 'libhamiregion[{extra}]'"
        raise ModuleNotFoundError(message, name=error.name) from error

"""An open region as the core knows it: its memory, its file, its layout, and how calls fail."""

from __future__ import annotations

import atexit
import errno
import os
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ._core import ffi, lib
from .errors import RegionClosed, new_error, region_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from .errors import PathLike
    from .layouts import Layout

#: How long one call waits in C, where Python cannot see Ctrl-C.
SLICE_NS: Final = 100_000_000
_MAX_NS: Final = (1 << 62) - 1
_TIMED_OUT: Final = (lib.HR_ETIMEOUT,)


def nanoseconds(timeout_s: float) -> int:
    """Turn a timeout into nanoseconds.

    Raises:
        TypeError: Not a number.
        ValueError: Negative, or NaN.
    """
    if not isinstance(timeout_s, int | float):
        raise TypeError(f"a timeout is a number of seconds, not {type(timeout_s).__name__}")
    if not timeout_s >= 0:
        raise ValueError(f"a timeout is 0 or more seconds, not {timeout_s!r}")
    return int(timeout_s * 1e9) if timeout_s < _MAX_NS / 1e9 else _MAX_NS


def in_slices(
    call: Callable[[int], int], timeout_ns: int, until: tuple[int, ...] = _TIMED_OUT
) -> int:
    """Make a call of the core that waits, a tenth of a second at a time.

    Python handles a signal, such as Ctrl-C, only between two calls. `until` are the codes of a
    call that waited in vain.
    """
    code = call(min(timeout_ns, SLICE_NS))
    if code not in until or timeout_ns <= SLICE_NS:
        return code
    deadline_ns = time.monotonic_ns() + timeout_ns - SLICE_NS
    while code in until and (left_ns := deadline_ns - time.monotonic_ns()) > 0:
        code = call(min(left_ns, SLICE_NS))
    return code


def proc_root(proc: PathLike) -> bytes:
    """Return the root of /proc as the core takes it.

    Raises:
        FileNotFoundError: There is no such directory.
    """
    if not Path(proc).is_dir():
        raise FileNotFoundError(
            errno.ENOENT, "no such directory to look for processes in", str(proc)
        )
    return os.fsencode(proc)


class Handle:
    """An open region: the base of `Region`, and all that edits, lock and slots know of it."""

    # No dictionary: an assignment to a method, as ``region.memory_limit = 5``, is an error.
    __slots__ = (
        "__weakref__",
        "_buffer_bytes",
        "_handle",
        "_owner",
        "closed",
        "file_id",
        "layout",
        "layout_newer",
        "path",
        "writable",
    )

    def __init__(self, owner: Any, path: str, layout: Layout, *, writable: bool) -> None:
        self._owner = owner
        self._handle = owner[0]
        self.closed = False
        # Enough for a dozen processes on two devices; grows to what a region needs.
        self._buffer_bytes = 1024
        self.path = path
        self.layout = layout
        self.writable = writable
        info = self._mapping()
        version = info.version >> 32, info.version & 0xFFFF_FFFF
        self.layout_newer = version if layout.version not in (None, version) else None
        self.file_id = (info.device_id, info.inode)
        if writable:
            _writable.add(self)

    def _mapping(self) -> Any:
        info = ffi.new("struct hr_info *")
        lib.hr_get_info(self._handle, info)
        if not info.address:
            raise RegionClosed(f"{self.path!r} has been closed; open it again", path=self.path)
        return info

    def _check(self, code: int, error: Any, busy: str = "") -> int:
        """Return what a call of the core returned, or raise if it is an error's code."""
        if code >= 0:
            return code
        if code == lib.HR_EBUSY and busy:
            raise RuntimeError(busy)
        raise region_error(code, self.path, error)

    def _live(self, value: int, device: int = 0) -> int:
        """Read one value of the region as it is now."""
        found, error = ffi.new("uint64_t *"), new_error()
        self._check(lib.hr_get(self._handle, value, device, found, error), error)
        number: int = found[0]
        return number


_writable: Final[weakref.WeakSet[Handle]] = weakref.WeakSet()


def attached_regions() -> list[Handle]:
    """Return the open regions in which this process has a slot."""
    return [region for region in list(_writable) if lib.hr_attachment(region._handle)]


@atexit.register
def _leave_regions() -> None:
    """Give back this thread's locks and detach all slots, at the end of the program."""
    for region in list(_writable):
        lib.hr_unlock_own(region._handle, ffi.NULL)
        lib.hr_detach(region._handle, 0, 10 * SLICE_NS, ffi.NULL)

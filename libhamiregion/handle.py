"""An open region as the core knows it: its path, its lifetime, its failures."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ._core import ffi, lib
from .errors import RegionClosed, region_error

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from .errors import PathLike
    from .layouts import Layout

# Enough for a dozen processes on two devices; grows to what a region needs.
_BUFFER_BYTES = 1024


def absolute_path(path: PathLike) -> str:
    """The path as every error and snapshot shows it.

    Raises:
        TypeError: Not str or os.PathLike[str].
        ValueError: A NUL character.
    """
    text = os.fspath(path)
    if not isinstance(text, str):
        raise TypeError("a region's path must be str or os.PathLike[str]")
    if "\0" in text:
        raise ValueError("a path has no NUL character")
    # Not resolved: that would follow a symbolic link, which the core refuses.
    return text if text.startswith("/") else str(Path.cwd() / text)


def proc_root(proc: PathLike) -> bytes:
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


class RegionHandle:
    """What every part of `Region` stands on."""

    __slots__ = (
        "__weakref__",
        "_buffer_bytes",
        "_closed",
        "_handle",
        "_identity",
        "_lock_seen",
        "writable",
    )

    def __init__(self, handle: Any, path: str, layout: Layout, *, writable: bool) -> None:
        self._handle = handle
        self._identity = (path, layout)
        self._buffer_bytes = _BUFFER_BYTES
        self._closed = False
        self._lock_seen: tuple[tuple[int, int], float] | None = None
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
        """
        self._closed = True
        lib.hr_close(self._handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "writable" if self.writable else "read-only"
        return f"<{type(self).__name__} {self.path!r} layout {self.layout.value}, {state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Region cannot be pickled; send its path, or a snapshot")

    def _fail(self, code: int) -> NoReturn:
        raise region_error(code, self.path)

    def _fail_busy(self, code: int, busy: str) -> NoReturn:
        if code == lib.HR_EBUSY:
            raise RuntimeError(busy)
        self._fail(code)

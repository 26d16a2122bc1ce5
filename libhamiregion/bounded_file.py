"""Small files, read whole in bounded size and bounded time, or refused."""

from __future__ import annotations

import errno
import os
import select
import stat
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .errors import PathLike

_CHUNK_BYTES: Final = 1 << 16


def read_bounded(
    path: PathLike,
    limit_bytes: int,
    *,
    silence_s: float | None = None,
    follow: bool = True,
    cut: bool = False,
) -> bytes:
    """Read a whole file that is small, such as a configuration.

    The open never waits, and no more than the limit is read of an endless file.

    Args:
        path: The file.
        limit_bytes: Its length at most.
        silence_s: How long to wait for the next bytes of a pipe or a terminal. None takes regular
            files only.
        follow: Whether the last part of the path may be a symbolic link.
        cut: Whether to return the beginning of a longer file in place of an error.

    Raises:
        OSError: The file cannot be read, is of another kind (EINVAL), is longer (EFBIG), or
            nothing came from it (ETIMEDOUT); the text says which.
    """
    links = 0 if follow else os.O_NOFOLLOW
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | links)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISREG(mode):
            silence_s = None
        elif silence_s is None or not (stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)):
            raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
        raw = _read(descriptor, limit_bytes + 1, silence_s or 0.0, path)
    finally:
        os.close(descriptor)
    if len(raw) > limit_bytes and not cut:
        raise OSError(errno.EFBIG, f"longer than {limit_bytes} bytes", os.fspath(path))
    return raw[:limit_bytes]


def _read(descriptor: int, size: int, silence_s: float, path: PathLike) -> bytes:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    # Bytes would be copied for every piece that is added.
    raw = bytearray()
    while len(raw) < size:
        # A pipe that no process has opened for writing yet is not at its end, but not ready.
        if not poll.poll(silence_s * 1000):
            message = f"nothing was written into it for {silence_s:g} s"
            raise TimeoutError(errno.ETIMEDOUT, message, os.fspath(path))
        chunk = os.read(descriptor, min(size - len(raw), _CHUNK_BYTES))
        if not chunk:
            break
        raw += chunk
    return bytes(raw)

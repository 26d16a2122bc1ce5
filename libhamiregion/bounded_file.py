"""A small file that somebody names: read whole, in bounded size and bounded time, or refused."""

from __future__ import annotations

import errno
import os
import select
import stat
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .errors import PathLike

# For somebody to open a pipe for writing: the shell starts both sides at the same time.
_WRITER_S: Final = 5.0
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

    The open never waits, and of what has no end no more than the limit is read.

    Args:
        path: The file.
        limit_bytes: Its length at most.
        silence_s: How long a pipe or a terminal may say nothing; one that nobody has open for
            writing, 5 seconds at most. None takes regular files only.
        follow: Whether the last part of the path may be a symbolic link.
        cut: Whether the beginning is read of a file that is longer, in place of an error.

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
        raw = _read(descriptor, limit_bytes + 1, silence_s)
    except TimeoutError as error:
        raise TimeoutError(error.errno, error.strerror, os.fspath(path)) from None
    finally:
        os.close(descriptor)
    if len(raw) <= limit_bytes:
        return raw
    if cut:
        return raw[:limit_bytes]
    raise OSError(errno.EFBIG, f"longer than {limit_bytes} bytes", os.fspath(path))


def _read(descriptor: int, most: int, silence_s: float | None) -> bytes:
    raw = bytearray()
    while len(raw) < most:
        try:
            chunk = os.read(descriptor, min(most - len(raw), _CHUNK_BYTES))
        except BlockingIOError:
            _wait(descriptor, silence_s or 0.0)
            continue
        if not chunk:
            if silence_s is None or _has_ended(descriptor):
                break
            _wait(descriptor, min(silence_s, _WRITER_S))
        raw += chunk
    return bytes(raw)


def _has_ended(descriptor: int) -> bool:
    """Whether nothing more can come: the others have closed a pipe, or it is a device.

    A pipe that nobody has had open for writing, since it was opened here, is not at its end: it has
    no POLLHUP, though a read from it returns nothing.
    """
    if stat.S_ISCHR(os.fstat(descriptor).st_mode):
        return True
    return any(events & select.POLLHUP for _, events in _events(descriptor, 0.0))


def _wait(descriptor: int, silence_s: float) -> None:
    """Return once there is something to read, or the end.

    Raises:
        TimeoutError: Nothing came.
    """
    if not _events(descriptor, silence_s):
        raise TimeoutError(errno.ETIMEDOUT, f"nothing was written into it for {silence_s:g} s")


def _events(descriptor: int, timeout_s: float) -> list[tuple[int, int]]:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return poll.poll(timeout_s * 1000)

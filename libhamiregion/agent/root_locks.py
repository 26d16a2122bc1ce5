"""The lock by which agents of this library exclude each other on a node."""

from __future__ import annotations

import errno
import fcntl
import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_HELD = re.compile(
    r"^\d+: FLOCK\s+ADVISORY\s+\w+\s+(-?\d+)\s+([0-9a-f]+):([0-9a-f]+):(\d+)\s", re.MULTILINE
)


class RootLocks:
    """A lock of this process on directories, whichever path leads to them and from which mount.

    It is the kernel's (flock), on the directory itself: nothing is written, nothing is left behind,
    and it ends with the process, also one that was killed.

    Threads: one at a time.
    """

    def __init__(self) -> None:
        self._held: dict[tuple[int, int], int] = {}

    def take(self, directories: Iterable[str]) -> dict[str, int | None]:
        """Lock these directories, as far as they are not locked yet, and no others any more.

        Returns:
            The directories that others have locked, with the pid of the holder in this process's
            pid namespace, None if it is not known. Empty if all are locked now.

        Raises:
            OSError: A directory cannot be opened or locked at all.
        """
        wanted: set[tuple[int, int]] = set()
        refused = {}
        for directory in directories:
            try:
                descriptor = os.open(directory, _OPEN)
            except FileNotFoundError:
                continue
            status = os.fstat(descriptor)
            identity = (status.st_dev, status.st_ino)
            wanted.add(identity)
            if identity in self._held:
                os.close(descriptor)
            elif _lock(descriptor, directory):
                self._held[identity] = descriptor
            else:
                refused[directory] = _holder(status)
        # A descriptor of a directory that was removed would be kept for ever.
        for identity in self._held.keys() - wanted:
            os.close(self._held.pop(identity))
        return refused

    def close(self) -> None:
        """Unlock all of them; may be called again."""
        while self._held:
            os.close(self._held.popitem()[1])


def _lock(descriptor: int, directory: str) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno == errno.EWOULDBLOCK:
            return False
        raise OSError(error.errno, error.strerror, directory) from None
    return True


def _holder(status: os.stat_result) -> int | None:
    device = (os.major(status.st_dev), os.minor(status.st_dev))
    try:
        with open("/proc/locks", encoding="ascii") as file:  # noqa: PTH123
            listed = file.read()
    except OSError:
        return None
    for pid, major, minor, inode in _HELD.findall(listed):
        if int(inode) == status.st_ino and (int(major, 16), int(minor, 16)) == device:
            # Of another pid namespace the kernel shows 0 or -1.
            return int(pid) if int(pid) > 0 else None
    return None

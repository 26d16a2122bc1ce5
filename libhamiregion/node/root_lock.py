"""One process at a time steers the containers of a root, or keeps them on a plan."""

from __future__ import annotations

import enum
import fcntl
import os
import random
import struct
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_OPEN: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# struct flock: type, whence, start, length, pid.
_FLOCK: Final = struct.Struct("hhqqi4x")
_TRIES: Final = 4
_NAP_S: Final = 0.05


class RootUse(enum.IntEnum):
    """What a lock is for; the number of its byte."""

    PLAN = 0
    FEEDBACK = 1


class RootLocked(RuntimeError):
    """Another process has a root locked for the same use.

    Attributes:
        root: The root.
    """

    def __init__(self, root: str) -> None:
        super().__init__(f"{root}: another process has it locked")
        self.root = root


class RootLock:
    """The lock by which processes of this library exclude each other on a node.

    It is the kernel's, on the root directories themselves, from whichever path, mount or pod they
    are reached: nothing is written, and it ends with the process, also one that was killed. The
    roots belong to the node, not to a container.

    A directory can only be opened for reading, so it is a shared lock of an open file (OFD), on one
    byte per use: whoever has one and sees another gives way.

    Threads: one at a time.

    Args:
        use: What the lock is for.
    """

    def __init__(self, use: RootUse) -> None:
        self._use = use
        self._held: dict[tuple[int, int], int] = {}

    def hold(self, roots: Iterable[str]) -> None:
        """Lock the roots that there are and are not locked yet, and no others any more.

        Raises:
            RootLocked: Another process has one of them.
            OSError: One cannot be opened or locked.
        """
        wanted: set[tuple[int, int]] = set()
        for root in roots:
            try:
                descriptor = os.open(root, _OPEN)
            except FileNotFoundError:
                continue
            status = os.fstat(descriptor)
            identity = (status.st_dev, status.st_ino)
            wanted.add(identity)
            if identity in self._held:
                os.close(descriptor)
                continue
            try:
                self._lock(descriptor, root)
            except BaseException:
                os.close(descriptor)
                raise
            self._held[identity] = descriptor
        # A descriptor of a directory that was removed would be kept for ever.
        for identity in self._held.keys() - wanted:
            os.close(self._held.pop(identity))

    def close(self) -> None:
        """Unlock all of them; may be called again."""
        while self._held:
            os.close(self._held.popitem()[1])

    def _lock(self, descriptor: int, root: str) -> None:
        for tries_left in reversed(range(_TRIES)):
            _set_lock(descriptor, self._use, fcntl.F_RDLCK)
            if not _others_lock(descriptor, self._use):
                return
            _set_lock(descriptor, self._use, fcntl.F_UNLCK)
            if tries_left:
                # Two that start at once see each other, and come back at different moments.
                time.sleep(_NAP_S * random.random())  # noqa: S311
        raise RootLocked(root)


def is_root_locked(roots: Iterable[str], use: RootUse) -> bool:
    """Whether a process has one of these roots locked for this use."""
    for root in roots:
        try:
            descriptor = os.open(root, _OPEN)
        except OSError:
            continue
        try:
            if _others_lock(descriptor, use):
                return True
        finally:
            os.close(descriptor)
    return False


def _others_lock(descriptor: int, use: RootUse) -> bool:
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, use, 1, 0)
    answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, asked)
    return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)


def _set_lock(descriptor: int, use: RootUse, kind: int) -> None:
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, use, 1, 0))

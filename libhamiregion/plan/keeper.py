"""One process at a time keeps a node's containers on a plan."""

from __future__ import annotations

import fcntl
import os
import random
import struct
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from libhamiregion.errors import PathLike

_OPEN: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# struct flock: type, whence, start, length, pid. The first byte stands for plans.
_FLOCK: Final = struct.Struct("hhqqi4x")
_TRIES: Final = 4
_NAP_S: Final = 0.05


class OtherKeeperRuns(RuntimeError):
    """Another process keeps these containers on a plan, or uses the same state directory."""


class KeeperLock:
    """The lock by which processes that keep a node on a plan exclude each other.

    It is the kernel's, on the root directories themselves, from whichever path, mount or pod they
    are reached: nothing is written, and it ends with the process. The roots belong to the node, not
    to a container. flock on them is what agents with feedback use, so this is a shared lock of an
    open file (OFD) on the first byte, which a directory can have; whoever has one and sees another
    gives way. The state directory has an ordinary flock.

    Threads: one at a time.
    """

    def __init__(self) -> None:
        self._roots: dict[tuple[int, int], int] = {}
        self._state: int | None = None

    def hold(self, roots: Iterable[str], state: PathLike) -> None:
        """Lock the roots that there are and are not locked yet, and the state directory.

        Raises:
            OtherKeeperRuns: Another process has one of them; a first call has locked nothing then.
            OSError: One cannot be opened or locked.
        """
        is_new = self._state is None
        try:
            if self._state is None:
                self._state = _locked_directory(os.fspath(state))
            for root in roots:
                self._hold_root(root)
        except BaseException:
            if is_new:
                self.close()
            raise

    def _hold_root(self, root: str) -> None:
        try:
            descriptor = os.open(root, _OPEN)
        except FileNotFoundError:
            return
        status = os.fstat(descriptor)
        identity = (status.st_dev, status.st_ino)
        if identity in self._roots:
            os.close(descriptor)
            return
        try:
            _lock_root(descriptor, root)
        except BaseException:
            os.close(descriptor)
            raise
        self._roots[identity] = descriptor

    def close(self) -> None:
        """Unlock all of them; may be called again."""
        while self._roots:
            os.close(self._roots.popitem()[1])
        if self._state is not None:
            os.close(self._state)
            self._state = None


def is_kept(roots: Iterable[str]) -> bool:
    """Whether a process keeps one of these roots on a plan."""
    for root in roots:
        try:
            descriptor = os.open(root, _OPEN)
        except OSError:
            continue
        try:
            if _others_lock(descriptor):
                return True
        finally:
            os.close(descriptor)
    return False


def _others_lock(descriptor: int) -> bool:
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, asked)
    return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)


def _set_lock(descriptor: int, kind: int) -> None:
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, 0, 1, 0))


def _lock_root(descriptor: int, root: str) -> None:
    for tries_left in reversed(range(_TRIES)):
        _set_lock(descriptor, fcntl.F_RDLCK)
        if not _others_lock(descriptor):
            return
        _set_lock(descriptor, fcntl.F_UNLCK)
        if tries_left:
            # Two that start at once see each other, and come back at different moments.
            time.sleep(_NAP_S * random.random())  # noqa: S311
    raise OtherKeeperRuns(f"{root}: another process keeps its containers on a plan")


def _locked_directory(path: str) -> int:
    descriptor = os.open(path, _OPEN)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise OtherKeeperRuns(
            f"{path}: another process keeps containers on a plan with this state directory"
        ) from None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor

"""One process at a time steers the containers of a root, or keeps them on a plan."""

from __future__ import annotations

import contextlib
import enum
import errno
import fcntl
import logging
import os
import random
import stat
import struct
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_log = logging.getLogger(__name__)

_OPEN: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_OPEN_FILE: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DIRECTORY: Final = "/run/hamiregion-locks"
# struct flock: type, whence, start, length, pid.
_FLOCK: Final = struct.Struct("hhqqi4x")
_TRIES: Final = 4
_NAP_S: Final = 0.05
# A program's own sequence, which it may have seeded, is left alone.
_CHANCE: Final = random.Random()  # noqa: S311


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


def lock_directory() -> str | None:
    """Where this user's lock files lie: ``$HAMIREGION_LOCKS``, for root ``/run/hamiregion-locks``.

    None for other users: they lock the roots themselves. Not ``/run/hamiregion``, where root's runs
    are, which nobody else may enter.
    """
    chosen = os.environ.get("HAMIREGION_LOCKS")
    return chosen or (_DIRECTORY if os.geteuid() == 0 else None)


class RootLock:
    """The lock by which processes of this library exclude each other on a node.

    It is the kernel's, on one byte per use of a file below `lock_directory` that is named after the
    root's device and inode: the same from whichever path, mount or pod the root is reached, where
    all of them have the node's ``/run/hamiregion-locks``. It ends with the process, also one that
    was killed. Only root can open that file: what has the root directory, such as each container of
    KAI's, locks nobody out. The root itself may be read-only.

    Where there is no such directory, as for ordinary users, the lock is on the root directory. That
    can be opened for reading only, so it is a shared lock of an open file, and whoever has one and
    sees another gives way: anybody who can open the root can keep others out there. Who has a lock
    file locks the directory too, so that it is seen from there.

    Threads: one at a time.

    Args:
        use: What the lock is for.
    """

    def __init__(self, use: RootUse) -> None:
        self._use = use
        #: The descriptors that hold the lock of each root.
        self._held: dict[tuple[int, int], list[int]] = {}
        self._has_warned = False

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
            descriptors = [descriptor]
            try:
                self._lock(descriptors, root, identity)
            except BaseException:
                _close(descriptors)
                raise
            self._held[identity] = descriptors
        # A descriptor of a directory that was removed would be kept for ever.
        for identity in self._held.keys() - wanted:
            _close(self._held.pop(identity))

    def close(self) -> None:
        """Unlock all of them; may be called again."""
        while self._held:
            _close(self._held.popitem()[1])

    def _lock(self, descriptors: list[int], root: str, identity: tuple[int, int]) -> None:
        """Lock a root whose descriptor is the first; what is opened for it is put after that."""
        file = self._lock_file(identity)
        if file is None:
            self._lock_directory(descriptors[0], root)
            return
        descriptors.append(file)
        try:
            _set_lock(file, self._use, fcntl.F_WRLCK)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            raise RootLocked(root) from None
        # For those who cannot see the file; not all file systems have such locks.
        with contextlib.suppress(OSError):
            _set_lock(descriptors[0], self._use, fcntl.F_RDLCK)

    def _lock_file(self, identity: tuple[int, int]) -> int | None:
        """Open the lock file of a root; None where there can be none."""
        directory = lock_directory()
        if directory is None:
            return None
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(directory, 0o755)  # noqa: PTH102
            return _open_file(directory, identity, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            if not self._has_warned:
                _log.warning(
                    "%s: %s: the roots themselves are locked, where whoever can open one can keep"
                    " this process out",
                    directory,
                    error.strerror,
                )
            self._has_warned = True
            return None

    def _lock_directory(self, descriptor: int, root: str) -> None:
        for tries_left in reversed(range(_TRIES)):
            _set_lock(descriptor, self._use, fcntl.F_RDLCK)
            if not _others_lock(descriptor, self._use):
                return
            _set_lock(descriptor, self._use, fcntl.F_UNLCK)
            if tries_left:
                # Two that start at once see each other, and come back at different moments.
                time.sleep(_NAP_S * _CHANCE.random())
        raise RootLocked(root)


def is_root_locked(roots: Iterable[str], use: RootUse) -> bool:
    """Whether a process has one of these roots locked for this use."""
    return any(_is_locked(root, use) for root in roots)


def _is_locked(root: str, use: RootUse) -> bool:
    try:
        descriptor = os.open(root, _OPEN)
    except OSError:
        return False
    try:
        directory = lock_directory()
        if directory is None or not os.path.isdir(directory):  # noqa: PTH112
            return _others_lock(descriptor, use)
        status = os.fstat(descriptor)
        file = _open_file(directory, (status.st_dev, status.st_ino), os.O_RDONLY)
    except OSError:
        # Nobody has had a lock file of this root.
        return False
    finally:
        os.close(descriptor)
    try:
        return _others_lock(file, use)
    finally:
        os.close(file)


def _open_file(directory: str, identity: tuple[int, int], how: int) -> int:
    name = "{:x}-{:x}.lock".format(*identity)
    descriptor = os.open(f"{directory}/{name}", how | _OPEN_FILE, 0o600)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "the lock is no regular file")
    return descriptor


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _others_lock(descriptor: int, use: RootUse) -> bool:
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, use, 1, 0)
    answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, asked)
    return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)


def _set_lock(descriptor: int, use: RootUse, kind: int) -> None:
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, use, 1, 0))

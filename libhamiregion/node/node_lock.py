"""One process at a time steers the containers of a root, or keeps them on a plan."""

from __future__ import annotations

import contextlib
import enum
import errno
import fcntl
import os
import stat
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_OPEN: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class LockUse(enum.Enum):
    """What a lock is for."""

    PLAN = "plan"
    FEEDBACK = "feedback"


class NodeLocked(RuntimeError):
    """Another process has a root locked for the same use.

    Attributes:
        root: The root.
    """

    def __init__(self, root: str) -> None:
        super().__init__(f"{root}: another process has it locked")
        self.root = root

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.root,)


def lock_directory() -> str:
    """The directory of this user's lock files: ``$HAMIREGION_LOCKS``, for root ``/run``'s own.

    Not ``/run/hamiregion``: root's runs are there, and only root may enter it.
    """
    user = os.geteuid()
    own = f"/tmp/hamiregion-locks-{user}" if user else "/run/hamiregion-locks"  # noqa: S108
    return os.environ.get("HAMIREGION_LOCKS") or own


class NodeLock:
    """Excludes other processes of this library from a node's roots, by flock(2).

    The file is named after the use and the root's device and inode, so it is the same from every
    mount and pod that has the node's `lock_directory`. No container has that directory. The lock
    ends with the process, also with one that is killed.

    Threads: one at a time.

    Args:
        use: What the lock is for.
    """

    def __init__(self, use: LockUse) -> None:
        self._use = use
        self._held: dict[str, int] = {}

    def hold(self, roots: Iterable[str]) -> None:
        """Lock the roots that exist, and unlock all others; after an exception none is locked.

        Raises:
            NodeLocked: Another process has one of them locked.
            OSError: A lock file cannot be opened, or others can write its directory.
        """
        try:
            files = {file: root for root in roots if (file := _lock_file(root, self._use))}
            for file, root in files.items():
                if file not in self._held:
                    self._held[file] = _locked(file, root)
        except BaseException:
            self.close()
            raise
        for file in self._held.keys() - files.keys():
            _unlock(self._held.pop(file))

    def close(self) -> None:
        """Unlock all roots; may be called again."""
        self.hold(())


def is_node_locked(roots: Iterable[str], use: LockUse) -> bool:
    """Whether another process has one of these roots locked for this use."""
    with contextlib.suppress(OSError), contextlib.closing(NodeLock(use)) as lock:
        try:
            lock.hold(root for root in roots if os.path.exists(_lock_file(root, use)))  # noqa: PTH110
        except NodeLocked:
            return True
    return False


def _lock_file(root: str, use: LockUse) -> str:
    """The path of a root's lock file; empty without the root."""
    try:
        status = os.stat(root)  # noqa: PTH116
    except FileNotFoundError:
        return ""
    return f"{lock_directory()}/{use.value}-{status.st_dev:x}-{status.st_ino:x}.lock"


def _locked(file: str, root: str) -> int:
    directory = os.path.dirname(file)  # noqa: PTH120
    os.makedirs(directory, 0o700, exist_ok=True)  # noqa: PTH103
    status = os.lstat(directory)
    is_safe = stat.S_ISDIR(status.st_mode) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    # In /tmp anyone can have made it, to keep this user's agents out or to let two of them run.
    if not is_safe or status.st_uid not in {0, os.geteuid()}:
        message = "others can write this directory of locks; set HAMIREGION_LOCKS to another one"
        raise OSError(errno.EPERM, message, directory)
    descriptor = os.open(file, _OPEN, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise NodeLocked(root) from None
    return descriptor


def _unlock(descriptor: int) -> None:
    # Closing alone would leave the lock to a child that was forked meanwhile.
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)

"""One process at a time keeps a node's containers on a plan."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING, Final

from libhamiregion.node.root_lock import RootLock, RootLocked, RootUse, is_root_locked

if TYPE_CHECKING:
    from collections.abc import Iterable

    from libhamiregion.errors import PathLike

_OPEN: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class OtherKeeperRuns(RuntimeError):
    """Another process keeps these containers on a plan, or uses the same state directory."""


class KeeperLock:
    """The lock by which processes that keep a node on a plan exclude each other.

    It is on the roots (`RootLock`), and an ordinary flock on the state directory.

    Threads: one at a time.
    """

    def __init__(self) -> None:
        self._roots = RootLock(RootUse.PLAN)
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
            self._roots.hold(roots)
        except BaseException as error:
            if is_new:
                self.close()
            if isinstance(error, RootLocked):
                raise OtherKeeperRuns(
                    f"{error.root}: another process keeps its containers on a plan"
                ) from None
            raise

    def close(self) -> None:
        """Unlock all of them; may be called again."""
        self._roots.close()
        if self._state is not None:
            os.close(self._state)
            self._state = None


def is_kept(roots: Iterable[str]) -> bool:
    """Whether a process keeps one of these roots on a plan."""
    return is_root_locked(roots, RootUse.PLAN)


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

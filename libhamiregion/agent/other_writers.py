"""Whether somebody else on the node writes launch marks and SM switches.

Only one may: two writers would block and unblock each other's containers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from libhamiregion.node.node_lock import LockUse, NodeLock, NodeLocked
from libhamiregion.node.writers import CompetingController, find_monitors

if TYPE_CHECKING:
    from libhamiregion.node.node import Node

# Where there are no containers' directories, as with plain Docker, agents meet here.
_WITHOUT_ROOTS = "/run"


class OtherWriterRuns(RuntimeError):
    """Somebody else writes launch marks and SM switches on this node.

    Attributes:
        others: Who, and how that is known.
    """

    def __init__(self, others: tuple[CompetingController, ...]) -> None:
        super().__init__("; ".join(other.message for other in others))
        self.others = others

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.others,)


class WriterWatch:
    """Looks for HAMi's monitor, and for agents of this library, by their lock.

    Threads: one at a time.

    Args:
        node: Whose regions and processes; the watch works on its last refresh.
        assume_alone: Take it for granted that nobody is hidden where not all processes of the node
            can be seen.
    """

    def __init__(self, node: Node, *, assume_alone: bool = False) -> None:
        self._node = node
        self._assume_alone = assume_alone
        self._lock = NodeLock(LockUse.FEEDBACK)

    def look(self, *, lock: bool = True) -> tuple[CompetingController, ...]:
        """Look once, and take the lock if it is free.

        Args:
            lock: Without it, neither take the lock nor look who has it.

        Returns:
            Who else writes; empty if nobody does.

        Raises:
            OSError: The directories of containers cannot be locked.
        """
        found = list(find_monitors(self._node))
        if not (self._assume_alone or self._node.processes.visibility.sees_all_pids):
            message = (
                f"{self._node.proc!r} does not show all processes of the node, so HAMi's monitor"
                " may run unseen; run in the host's pid namespace (hostPID: true)"
            )
            found.append(CompetingController("hidden", None, message))
        if lock:
            try:
                self._lock.hold(self._node.directories or (_WITHOUT_ROOTS,))
            except NodeLocked as locked:
                message = f"another agent runs: a process has locked {locked.root!r}"
                found.append(CompetingController("lock", None, message))
        return tuple(found)

    def close(self) -> None:
        """Give the lock back."""
        self._lock.close()

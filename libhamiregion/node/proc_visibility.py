"""How much of the node a /proc shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from . import procfs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .process_entry import Entry

#: The inode number that the kernel gives to the first pid namespace, always.
INITIAL_PID_NAMESPACE: Final = "pid:[4026531836]"


@attrs.frozen
class ProcVisibility:
    """How much of the node a /proc shows.

    Attributes:
        sees_host: It is that of the first pid namespace: its pids are those that the driver and a
            slot's ``hostpid`` mean.
        sees_all_pids: Every process of the node is in it, with its pids and command line. The maps
            of some may still be refused.
        unreadable: Pids whose maps may not be read, or are too long; sorted, without the host's
            own init.
        own_pid: This process's pid in it; 0 where it is not shown.
        is_own_namespace: Whether its pids are those of this process's own pid namespace.
    """

    sees_host: bool = False
    sees_all_pids: bool = False
    unreadable: tuple[int, ...] = ()
    own_pid: int = 0
    is_own_namespace: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether every process of the node is shown and can be read."""
        return self.sees_all_pids and not self.unreadable


def visibility_of(
    directory: int, entries: Mapping[int, Entry], refused: Iterable[int]
) -> ProcVisibility:
    """What a /proc shows.

    Args:
        directory: /proc.
        entries: The processes that were listed.
        refused: Those that not even ``stat`` may be read of.
    """
    sees_host = INITIAL_PID_NAMESPACE in (
        procfs.read_link(directory, "self/ns/pid"),
        procfs.read_link(directory, "1/ns/pid"),
    )
    own = procfs.read_link(directory, "self") or ""
    own_pid = int(own) if own.isdigit() else 0
    unreadable = list(refused)
    for pid, entry in entries.items():
        if not entry.readable:
            # The init of the host itself is no process of a container.
            is_host_init = sees_host and entry.process is not None and entry.process.ns_pids == (1,)
            if not is_host_init:
                unreadable.append(pid)
    itself = entries[own_pid].process if own_pid in entries else None
    return ProcVisibility(
        sees_host=sees_host,
        # hidepid leaves out other users' processes, and the first of all is one of them.
        sees_all_pids=sees_host and not refused and 1 in entries,
        unreadable=tuple(sorted(unreadable)),
        own_pid=own_pid,
        is_own_namespace=itself is not None and len(itself.ns_pids) == 1,
    )

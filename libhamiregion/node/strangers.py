"""Processes that are known to be of other pods than a region, without reading what they map."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from .process_entry import Entry

# A static pod's cgroup has a hash, and the API another UID for it, which its directory may have.
_HASH_DIGITS = 32


class Strangers:
    """Which processes cannot have a slot in a region, because they are of another pod.

    A container decides how long its maps take to read, and its processes often have the pids of
    another container's: 1, or 7. To read them for that one's slots would use up its share of time.
    Nobody has to: a directory of regions is mounted into the containers of its pod alone, and only
    the host's root moves a process from one pod's cgroup to another's.

    Threads: may be shared.

    Args:
        entries: The processes, by pid.
        own_pid: This process's pid there; 0 where it is not shown, and nobody is a stranger.
    """

    def __init__(self, entries: Mapping[int, Entry], own_pid: int) -> None:
        self._entries = entries
        self._own_pid = own_pid
        # By their innermost pids, made when first asked for.
        self._named: Mapping[int, list[tuple[int, int, str]]] | None = None

    def of(
        self, pod_uid: str | None, pids: Iterable[int], users: Collection[int]
    ) -> list[tuple[int, int]]:
        """Find the processes of other pods that have these pids in their containers.

        Args:
            pod_uid: The region's pod; where it is None nobody is a stranger.
            pids: Pids in slots.
            users: Pids of processes that are known to map the region: these are no strangers.

        Returns:
            Pid and start time of each, by pid.
        """
        if pod_uid is None:
            return []
        named = self._named
        if named is None:
            named = self._named = self._by_innermost_pid()
        return sorted(
            (pid, start_time_ticks)
            for each in pids
            for pid, start_time_ticks, pod in named.get(each, ())
            if pod != pod_uid and pid not in users
        )

    def _by_innermost_pid(self) -> Mapping[int, list[tuple[int, int, str]]]:
        named: defaultdict[int, list[tuple[int, int, str]]] = defaultdict(list)
        own = self._entries.get(self._own_pid)
        if own is None or own.process is None:
            return named
        # On a node that is itself in a pod, that is the outermost pod of all its processes.
        own_pod = None if own.process.container is None else own.process.container.pod_uid
        for pid, entry in self._entries.items():
            process = entry.process
            if process is None or process.container is None:
                continue
            pod = process.container.pod_uid
            if pod is not None and pod != own_pod and len(pod) != _HASH_DIGITS:
                named[process.ns_pids[-1]].append((pid, process.start_time_ticks, pod))
        return named

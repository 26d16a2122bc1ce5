"""Which host process each slot of a region belongs to, and which slots are of live processes."""

from __future__ import annotations

import contextlib
import time
from array import array
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

import attrs

from libhamiregion._handle import attached_regions
from libhamiregion.errors import RegionClosed, RegionStale
from libhamiregion.observation.names import is_pod_uid
from libhamiregion.observation.processes import SLOT_STATES, RegionProcesses, SlotStates

from .procfs import file_identity

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from libhamiregion.observation.containers import Container
    from libhamiregion.observation.processes import FileIdentity, FileUser, HostProcess, ProcessView
    from libhamiregion.region import Region
    from libhamiregion.tables import RegionTable

    from .processes import ProcessTable

_ALIVE = bytes([SLOT_STATES.index("alive")])
# Static pods have a hash as UID in their cgroup, and their directory may have another UID.
_HASH_DIGITS: Final = 32
#: /proc is listed so often.
LISTING_S = 20.0


def match_slots(
    view: ProcessView, container: Container, pids: Sequence[int], read_s: float
) -> RegionProcesses:
    """Which process each slot of a region belongs to, and which map it without a slot.

    Read the slots first and refresh the table afterwards: otherwise slots without a process are
    ``"unknown"``, because their process may have started in between. `hostpid` in the region is not
    used.

    That a slot's process is dead is for showing; `Region.reap` searches /proc again.

    Args:
        view: The processes.
        container: Whose region it is. Processes that are known to be of another pod are onlookers.
        pids: The pids in its slots.
        read_s: When they had been read, on the monotonic clock.

    Source: docs, The protocol (Processes in /proc).
    """
    identity, pod_uid = container.identity, _pod_of(container)
    assert identity is not None  # noqa: S101 (only such have slots)
    own = 0 if _is_attached(identity) else view.visibility.own_pid
    users: list[FileUser] = []
    onlookers: list[FileUser] = []
    for user in view.by_inode.get(identity[1], ()):
        if user.mapping.identity == identity:
            is_other_pod = pod_uid is not None and user.process.pod_uid not in {None, pod_uid}
            is_user = user.mapping.writable and user.process.pid != own and not is_other_pod
            (users if is_user else onlookers).append(user)
    found = _choose(
        pids,
        users,
        onlookers,
        sees_host=view.visibility.sees_host,
        shared=container.claim_uid is not None,
    )
    lost = set(pids).difference(found.alive)
    if not lost or view.started_s < read_s:
        return found
    none = {pid for pid, _ in other_pod_processes(view, container, lost)}
    # The init of the host itself is no process of a container, also if it may not be read.
    none.add(1 if view.visibility.sees_host else 0)
    # Nor is this process, unless it has libvgpu, which maps the region by itself.
    if own not in view.entries or not view.entries[own].has_libvgpu:
        none.add(own)
    return attrs.evolve(found, dead=_dead(view, lost, pids, identity, none, read_s))


def other_pod_processes(
    view: ProcessView, container: Container, pids: Iterable[int]
) -> list[tuple[int, int]]:
    """Find the processes that are proved to be of other pods than a region.

    A container decides how long its maps take to read, and its processes often have the pids of
    another container's: 1, or 7. A directory of regions is mounted into the containers of its pod
    alone, and only the host's root moves a process from one pod's cgroup to another's: so these
    need not be read.

    Args:
        view: The processes.
        container: Whose region it is.
        pids: Pids in its slots.

    Returns:
        Pid and start time of each, by pid.
    """
    identity, pod_uid = container.identity, _pod_of(container)
    own = view.entries.get(view.visibility.own_pid)
    # If this process is not shown, nothing is proved.
    if identity is None or container.directory is None or pod_uid is None or own is None:
        return []
    own_pod = None if own.process is None else own.process.pod_uid
    # On a node that is itself in a pod, that is the outermost pod of all its processes.
    same = {None, own_pod, pod_uid}
    users = {user.process.pid for user in view.users_of(identity)}
    return sorted(
        entry.identity
        for pid in pids
        for entry in view.by_ns_pid.get(pid, ())
        if entry.process is not None
        and entry.process.pod_uid not in same
        and len(entry.process.pod_uid or "") != _HASH_DIGITS
        and entry.process.pid not in users
    )


def unread_since(
    view: ProcessView, container: Container, pids: Iterable[int], read_s: float
) -> set[int]:
    """Find processes that may have mapped a region since they were read.

    Args:
        view: The processes.
        container: Whose region it is.
        pids: The pids in the region's slots whose processes are not known.
        read_s: When the slots had been read, on the monotonic clock.
    """
    pod_uid = _pod_of(container)
    return {
        entry.process.pid
        for pid in pids
        for entry in view.by_ns_pid.get(pid, ())
        if entry.process is not None
        and entry.unread is None
        and entry.read_s < read_s
        and (pod_uid is None or entry.process.pod_uid in {None, pod_uid})
    }


def _dead(
    view: ProcessView,
    lost: Collection[int],
    pids: Collection[int],
    identity: FileIdentity,
    none: Collection[int],
    read_s: float,
) -> frozenset[int]:
    """The pids in slots that no process has that maps the file, or may map it."""
    users = [user for user in view.by_inode.get(identity[1], ()) if user.mapping.writable]
    # Another namespace than the first proves nothing unless the slots' processes live in it.
    is_theirs = not view.visibility.unreadable and any(
        user.pid in pids
        and len(user.process.ns_pids) == 1
        and user.mapping.identity == identity
        and view.entries[user.process.pid].has_libvgpu
        for user in users
    )
    sees_all = view.visibility.sees_all_pids if view.visibility.sees_host else is_theirs
    if not sees_all:
        return frozenset()
    possible = {user.pid for user in users if user.process.pid not in none}
    for pid in lost:
        for entry in view.by_ns_pid.get(pid, ()):
            is_known = entry.unread is None and entry.is_readable and entry.read_s >= read_s
            if not is_known and entry.identity[0] not in none:
                possible.add(pid)
    return frozenset(lost) - possible


def _is_attached(identity: FileIdentity) -> bool:
    """Whether this process has a slot in that region."""
    for region in attached_regions():
        with contextlib.suppress(RegionClosed, RegionStale):
            if file_identity(region) == identity:
                return True
    return False


def _pod_of(container: Container) -> str | None:
    """A container's pod if it can be compared with a cgroup's; directories have any name."""
    pod_uid = container.pod_uid
    return pod_uid if pod_uid is not None and is_pod_uid(pod_uid) else None


def _choose(
    pids: Sequence[int],
    users: Sequence[FileUser],
    onlookers: Sequence[FileUser],
    *,
    sees_host: bool,
    shared: bool = False,
) -> RegionProcesses:
    """Find the process of each slot among those that map the region; none is called dead.

    A slot's process has the slot's pid in its own namespace. It is in the container, and of several
    in the pid namespace, in which most processes with pids in slots are.

    Args:
        pids: The pids in the slots.
        users: The processes that map the region's file and may use it.
        onlookers: The processes that map it and are no users.
        sees_host: Whether pids of processes begin with those of the first pid namespace.
        shared: Whether the region has several containers. Then a pid of processes of two of them
            is of neither.
    """
    named = set(pids)
    in_slots = [each for each in users if each.pid in named]
    # A container that has a namespace of its own has no processes in the host's.
    inner = [each for each in in_slots if len(each.process.ns_pids) > 1]
    is_inner = sees_host and bool(inner)
    containers = [] if shared else [each.container_id for each in (inner if is_inner else in_slots)]
    home = _majority(containers)
    is_contested = home is None and any(containers)

    def is_inside(user: FileUser) -> bool:
        if is_inner and len(user.process.ns_pids) == 1:
            return False
        return user.container_id is None or not (
            is_contested or (home is not None and user.container_id != home)
        )

    inside = [each for each in users if is_inside(each)]
    candidates: defaultdict[int, list[FileUser]] = defaultdict(list)
    for each in inside:
        if each.pid in named:
            candidates[each.pid].append(each)
    namespace = _majority(each.namespace for same in candidates.values() for each in same)
    alive: dict[int, HostProcess] = {}
    for pid, same in candidates.items():
        if len(same) > 1:
            same = [each for each in same if each.namespace == namespace and not shared]  # noqa: PLW2901
        if len(same) == 1:
            alive[pid] = same[0].process
    matched = {process.pid for process in alive.values()}
    # Of several that could be one slot's process it is not known which has none.
    ambiguous = candidates.keys() - alive.keys()
    outside = [each for each in users if not is_inside(each)]
    return RegionProcesses(
        pids=pids,
        alive=alive,
        dead=frozenset(),
        unlisted=_processes(
            each for each in inside if each.process.pid not in matched and each.pid not in ambiguous
        ),
        onlookers=_processes([*onlookers, *outside]),
    )


def _majority(names: Iterable[str | None]) -> str | None:
    """The name that occurs more often than any other; None if there is none."""
    ranking = Counter(name for name in names if name is not None).most_common(2)
    if not ranking or (len(ranking) == 2 and ranking[0][1] == ranking[1][1]):
        return None
    return ranking[0][0]


def _processes(users: Iterable[FileUser]) -> tuple[HostProcess, ...]:
    return tuple(sorted((each.process for each in users), key=lambda process: process.pid))


# ---- all regions of a node ----------------------------------------------------------------------


class _Row(NamedTuple):
    """A region that was read: its row in ``table.regions``, and the rows of its slots."""

    row: int
    region: Region
    slots: slice


@attrs.frozen(eq=False)
class _Proof:
    """The result of a region's last proof, and what it rests on.

    Attributes:
        key: Of the region's slots (`_key_of`).
        identity: The region's file.
        users: The processes that map it.
        found: Whose the slots are.
    """

    key: bytes
    identity: FileIdentity
    users: tuple[FileUser, ...]
    found: RegionProcesses


class SlotTracker:
    """Finds out for each read of a node's regions which slots are of live processes.

    /proc is listed every 20 s, once for all regions. It is listed at once if the pids or host pids
    in a region's slots have changed, or the usage in a slot of no live process. A listing has
    regions proved again if other processes map them than before, or not all of their slots are of
    live processes. So a process that has ended is noticed within 20 s.

    Threads: one at a time.

    Args:
        processes: The node's processes.
    """

    def __init__(self, processes: ProcessTable) -> None:
        self._processes = processes
        self._proofs: dict[Region, _Proof] = {}
        self._listed_s = float("-inf")
        # Of the answer; empty if a proof has changed since.
        self._key: tuple[object, ...] = ()
        self._answer = SlotStates(b"", {}, {})

    def update(
        self, containers: Sequence[Container], table: RegionTable, read_s: float
    ) -> SlotStates:
        """Judge the slots of a table.

        Args:
            containers: The containers of its rows.
            table: As `RegionSet.read` gives it.
            read_s: When it had been read, on the monotonic clock.

        Returns:
            The same object as last time if nothing has changed.

        Raises:
            OSError: /proc cannot be listed.
        """
        view = self._processes.view
        # Processes for which there was no time may be those of unknown slots.
        has_more = any(gap.reason == "no_time" for gap in view.gaps)
        is_new = has_more or view.started_s != self._listed_s
        is_old = time.monotonic() - view.started_s >= LISTING_S
        regions, slots = table.regions, table.processes
        columns = regions.code, regions.first_process, regions.process_count
        key = (containers, *map(bytes, (*columns, slots.pid, slots.host_pid)))
        if key == self._key and not (is_new or is_old or self._answer.states.strip(_ALIVE)):
            return self._answer
        rows = _rows(containers, table)
        stale = [each for each in rows if self._is_stale(each, table, is_new)]
        # A process that is not there after the regions were read is dead.
        if is_old or (stale and view.started_s < read_s):
            self._processes.refresh()
            stale = [each for each in rows if self._is_stale(each, table, True)]
        lost = self._prove(stale, containers, table, read_s)
        late = [
            (each, unread)
            for each, pids in lost
            if (unread := unread_since(self._processes.view, containers[each.row], pids, read_s))
        ]
        if late:
            self._processes.refresh({pid for _, unread in late for pid in unread})
            self._prove([each for each, _ in late], containers, table, read_s)
        self._listed_s = self._processes.view.started_s
        if key != self._key:
            self._key = key
            for region in self._proofs.keys() - {each.region for each in rows}:
                del self._proofs[region]
            self._answer = self._states(len(table.processes), table.processes.pid, rows)
        return self._answer

    def _is_stale(self, row: _Row, table: RegionTable, is_new: bool) -> bool:
        """Whether a region is to be proved, also for a listing that is new to its proof."""
        proof = self._proofs.get(row.region)
        if proof is None or proof.key != _key_of(row, table, proof.found.alive):
            return True
        return is_new and (
            proof.users != self._processes.view.users_of(proof.identity)
            # Another process may get a dead one's pid, and change nothing in the region at first.
            or not proof.found.alive.keys() >= set(proof.found.pids)
        )

    def _prove(
        self,
        stale: Iterable[_Row],
        containers: Sequence[Container],
        table: RegionTable,
        read_s: float,
    ) -> list[tuple[_Row, set[int]]]:
        """Prove regions; return those with pids in slots whose processes are unknown."""
        lost = []
        for row in stale:
            known = self._proofs.pop(row.region, None)
            self._key = ()
            # Of 4 bytes each: a container can fill its table.
            pids = array("i", table.processes.pid[row.slots])
            container = containers[row.row]
            identity = container.identity
            if identity is None or row.region.closed:
                continue  # the next refresh opens it again
            found = match_slots(self._processes.view, container, pids, read_s)
            if found.unknown:
                lost.append((row, found.unknown))
            if known is not None and known.found == found:
                found = known.found
            key, users = _key_of(row, table, found.alive), self._processes.view.users_of(identity)
            self._proofs[row.region] = _Proof(key, identity, users, found)
        return lost

    def _states(self, count: int, pids: memoryview, rows: Iterable[_Row]) -> SlotStates:
        states = bytearray(count)
        processes: dict[int, HostProcess] = {}
        proved: dict[int, RegionProcesses] = {}
        for row in rows:
            proof = self._proofs.get(row.region)
            if proof is None:
                continue
            found = proved[row.row] = proof.found
            last: dict[int, int] = {}
            for at, pid in enumerate(pids[row.slots], row.slots.start):
                states[at] = SLOT_STATES.index(found.state(pid))
                last[pid] = at
            processes.update((last[pid], process) for pid, process in found.alive.items())
        return SlotStates(bytes(states), processes, proved)


def _rows(containers: Sequence[Container], table: RegionTable) -> list[_Row]:
    regions = table.regions
    columns = zip(regions.code, regions.first_process, regions.process_count, strict=True)
    return [
        _Row(row, region, slice(first, first + count))
        for row, (code, first, count) in enumerate(columns)
        if code == 0 and (region := containers[row].region) is not None
    ]


def _key_of(row: _Row, table: RegionTable, alive: Collection[int]) -> bytes:
    """The pids and host pids in a region's slots, and the usage in those of no live process.

    A live process may have got the pid of a dead one: then that usage changes.
    """
    processes, devices = table.processes, table.regions.device_rows[row.row]
    pids, first_usages = processes.pid[row.slots], processes.first_usage[row.slots]
    key = pids.tobytes() + processes.host_pid[row.slots].tobytes()
    for pid, first in zip(pids, first_usages, strict=True):
        if pid not in alive:
            key += table.usages.memory_used_bytes[first : first + devices].tobytes()
    return key

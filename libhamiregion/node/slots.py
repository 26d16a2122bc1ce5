"""Which host process each slot of a region belongs to, and which slots are of live processes."""

from __future__ import annotations

import time
from array import array
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Literal, TypeAlias

import attrs

from libhamiregion.errors import RegionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from libhamiregion.region import Region
    from libhamiregion.region_set import RegionTable

    from .containers import Container
    from .process_reader import HostProcess
    from .processes import FileIdentity, ProcessTable
    from .procfs import Mapping as FileMapping

    Match: TypeAlias = Callable[[Container, Sequence[int], int], "RegionProcesses"]

SlotState: TypeAlias = Literal["alive", "dead", "unknown"]

#: What the numbers in `SlotStates.states` mean.
SLOT_STATES = ("unknown", "alive", "dead")
_UNKNOWN, _ALIVE, _DEAD = range(3)
# /proc is listed so often, and dead processes are proved dead again.
_PROOF_S = 20.0
# A proof that lacked time or permission is tried again sooner.
_RETRY_S = 10.0
_NEVER_S = float("inf")


@attrs.frozen
class SlotMatch:
    """One slot of a region and the process that it belongs to.

    Attributes:
        pid: The pid in the slot, of the container's namespace.
        state: ``"alive"``: `process` maps the region and has that pid in its own namespace;
            ``"dead"``: no process does, by the proof by which `Region.reap` frees slots;
            ``"unknown"``: /proc does not show enough, or several processes could be meant.
        process: The process if alive, else None.
    """

    pid: int
    state: SlotState
    process: HostProcess | None


@attrs.frozen
class RegionProcesses:
    """The processes of a region.

    Attributes:
        pids: The pids of the slots that were asked about, in their order.
        alive: Pid in a slot to the process that it is.
        dead: Pids in slots whose process is proved dead.
        unlisted: Processes that map the region for writing as its users do, and have no slot: their
            allocations are not counted. A child of fork() is one until it uses CUDA itself.
        onlookers: Processes that map it and are none of its users: they only read, belong to
            another pod or are outside the container's pid namespace (monitors, this library).
    """

    pids: Sequence[int]
    alive: Mapping[int, HostProcess]
    dead: frozenset[int]
    unlisted: tuple[HostProcess, ...]
    onlookers: tuple[HostProcess, ...]

    def state(self, pid: int) -> SlotState:
        """Whether the process of a slot with this pid is alive, dead or unknown."""
        if pid in self.alive:
            return "alive"
        return "dead" if pid in self.dead else "unknown"

    @property
    def slots(self) -> tuple[SlotMatch, ...]:
        """One entry per pid of `pids`, in their order."""
        return tuple(SlotMatch(pid, self.state(pid), self.alive.get(pid)) for pid in self.pids)

    @property
    def host_pids(self) -> dict[int, int]:
        """Pid in the slot -> pid in /proc, of those that are alive."""
        return {pid: process.pid for pid, process in self.alive.items()}


@attrs.frozen
class FileUser:
    """A process that maps a file.

    Attributes:
        process: The process.
        namespace: The name of its pid namespace; None if it may not be read.
        mapping: The file.
    """

    process: HostProcess
    namespace: str | None
    mapping: FileMapping

    @property
    def pid(self) -> int:
        """The pid that it would have in its slot."""
        return self.process.ns_pids[-1]

    @property
    def container_id(self) -> str | None:
        """The container that its cgroup names."""
        return None if self.process.container is None else self.process.container.id

    def maps(self, identity: FileIdentity) -> bool:
        """Whether it maps that very file, and not one of its inode number on another device."""
        return (self.mapping.device, self.mapping.inode) == identity


def match_slots(
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


@attrs.frozen
class SlotStates:
    """Whether the processes of all slots of a table live, and which processes they are.

    Attributes:
        states: One byte per row of ``table.processes``: an index into `SLOT_STATES`.
        processes: Row of ``table.processes`` to the process, of live ones. A process whose pid is
            in several slots of a region is under the last of them, to which it writes.
        proved: Row of ``table.regions`` to the result of the region's last proof.
    """

    states: bytes
    processes: Mapping[int, HostProcess]
    proved: Mapping[int, RegionProcesses]

    @property
    def unlisted(self) -> dict[int, tuple[HostProcess, ...]]:
        """Row of ``table.regions`` to the processes that use the region without a slot."""
        return {row: each.unlisted for row, each in self.proved.items() if each.unlisted}


@attrs.frozen
class _Row:
    """A region that was read.

    Attributes:
        row: Its row in ``table.regions``.
        region: The region.
        slots: The rows of its slots.
    """

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
        due_s: Until when it holds.
    """

    key: bytes
    identity: FileIdentity
    users: tuple[FileUser, ...]
    found: RegionProcesses
    due_s: float


class SlotTracker:
    """Finds out for each read of a node's regions which slots are of live processes.

    A region's proof holds while the pids and host pids in its slots are the same, the same
    processes map it, none of them has ended, and the figures of dead ones have not changed; that a
    process is dead is proved again every 20 s. Host pid or figures distinguish the process of a
    container that was started again from the dead one with the same pid. /proc is read if a region
    has changed or was not proved yet, and every 20 s, once for all regions. A process that has
    ended is noticed by its ``stat``, at each update.

    Threads: one at a time.

    Args:
        processes: The node's processes.
    """

    def __init__(self, processes: ProcessTable) -> None:
        self._processes = processes
        self._proofs: dict[Region, _Proof] = {}
        self._refreshed_s = float("-inf")
        self._compared_ns = 0
        self._asked: tuple[object, ...] | None = None
        self._answer = SlotStates(b"", {}, {})

    def update(
        self,
        containers: Sequence[Container],
        table: RegionTable,
        match: Match,
        *,
        anew: bool = False,
    ) -> SlotStates:
        """Judge the slots of a table.

        Args:
            containers: The containers of its rows.
            table: As `RegionSet.read` gives it.
            match: Proves one region: its container, the pids in its slots, when they were read.
            anew: Prove every region, even if nothing has changed.

        Returns:
            The same object as last time if nothing has changed.

        Raises:
            OSError: /proc cannot be listed.
        """
        rows = _rows(containers, table)
        now_s = time.monotonic()
        alive = {each for proof in self._proofs.values() for each in proof.found.alive.values()}
        ended = self._processes.ended(alive) if alive else set()
        stale = [
            each
            for each in rows
            if anew
            or self._is_stale(self._proofs.get(each.region), each, table, now_s)
            or not ended.isdisjoint(self._proofs[each.region].found.alive.values())
        ]
        if stale or now_s - self._refreshed_s >= _PROOF_S:
            # A process that is not there after the regions were read is dead.
            # Also if the clock was set back since /proc was read.
            taken_ns = max(table.regions.taken_at_ns, default=0)
            if not taken_ns < self._processes.read_at_ns <= time.time_ns():
                self._processes.refresh()
            self._refreshed_s = now_s
        if self._compared_ns != self._processes.read_at_ns:
            known = {each.row for each in stale}
            stale += [
                each for each in rows if each.row not in known and self._has_other_users(each)
            ]
            self._compared_ns = self._processes.read_at_ns
        lost = self._prove(stale, containers, table, match)
        wanted: set[int] = set()
        late = []
        for each, pids in lost:
            unread = self._processes.unread_since(pids, containers[each.row].pod_uid, now_s)
            wanted |= unread
            late += [each] if unread else []
        if wanted:
            self._processes.refresh(wanted)
            self._prove(late, containers, table, match)
        for region in self._proofs.keys() - {each.region for each in rows}:
            del self._proofs[region]
        asked = (containers, table.processes.pid.tobytes(), tuple(each.slots for each in rows))
        if stale or self._asked != asked:
            answer = self._states(len(table.processes), table.processes.pid, rows)
            if answer != self._answer:
                self._answer = answer
        self._asked = asked
        return self._answer

    def _is_stale(self, proof: _Proof | None, row: _Row, table: RegionTable, now_s: float) -> bool:
        return (
            proof is None
            or now_s >= proof.due_s
            or proof.key != _key_of(row, table, proof.found.dead)
        )

    def _has_other_users(self, row: _Row) -> bool:
        proof = self._proofs[row.region]
        return proof.users != self._processes.users_of(proof.identity)

    def _prove(
        self,
        stale: Iterable[_Row],
        containers: Sequence[Container],
        table: RegionTable,
        match: Match,
    ) -> list[tuple[_Row, set[int]]]:
        """Prove regions; return those with pids in slots whose processes are unknown."""
        now_s = time.monotonic()
        lost = []
        for row in stale:
            known = self._proofs.pop(row.region, None)
            # Of 4 bytes each: a container can fill its table.
            pids = array("i", table.processes.pid[row.slots])
            try:
                identity = self._processes.identity(row.region)
                found = match(containers[row.row], pids, table.regions.taken_at_ns[row.row])
            except RegionError:
                continue  # closed meanwhile: the next refresh opens it again
            due_s = _NEVER_S
            unknown = set(found.pids).difference(found.alive, found.dead)
            if unknown:
                lost.append((row, unknown))
                due_s = now_s + _RETRY_S
            elif found.dead:
                due_s = now_s + _PROOF_S
            if known is not None and known.found == found:
                found = known.found
            self._proofs[row.region] = _Proof(
                _key_of(row, table, found.dead),
                identity,
                self._processes.users_of(identity),
                found,
                due_s,
            )
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
            for at in range(row.slots.start, row.slots.stop):
                pid = pids[at]
                if pid in found.alive:
                    states[at] = _ALIVE
                    last[pid] = at
                elif pid in found.dead:
                    states[at] = _DEAD
            processes.update((at, found.alive[pid]) for pid, at in last.items())
        return SlotStates(bytes(states), processes, proved)


def _rows(containers: Sequence[Container], table: RegionTable) -> list[_Row]:
    regions = table.regions
    columns = zip(regions.code, regions.first_process, regions.process_count, strict=True)
    return [
        _Row(row, region, slice(first, first + count))
        for row, (code, first, count) in enumerate(columns)
        if code == 0 and (region := containers[row].region) is not None
    ]


def _key_of(row: _Row, table: RegionTable, dead: frozenset[int]) -> bytes:
    """The slots' pids and host pids, and the memory that dead processes count by device."""
    processes, used = table.processes, table.usages.memory_used_bytes
    key = processes.pid[row.slots].tobytes() + processes.host_pid[row.slots].tobytes()
    if not dead:
        return key
    firsts, devices = processes.first_usage, table.regions.device_rows[row.row]
    return key + b"".join(
        used[firsts[at] : firsts[at] + devices].tobytes()
        for at in range(row.slots.start, row.slots.stop)
        if processes.pid[at] in dead
    )

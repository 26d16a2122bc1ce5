"""Which slots are of live processes, kept up to date between full looks at /proc at little cost."""

from __future__ import annotations

import time
from array import array
from typing import TYPE_CHECKING, TypeAlias

import attrs

from libhamiregion.errors import RegionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from libhamiregion.region import Region
    from libhamiregion.region_set import RegionTable

    from .containers import Container
    from .matching import HostProcess, RegionProcesses
    from .processes import ProcessTable

    Match: TypeAlias = Callable[[Container, Sequence[int], int], RegionProcesses]

#: What the numbers in `SlotStates.states` mean.
SLOT_STATES = ("unknown", "alive", "dead")
_UNKNOWN, _ALIVE, _DEAD = range(3)
# A proof that the core could not finish, because it lacked time or permission, is tried again
# sooner.
_RETRY_S = 10.0
_NEVER_S = float("inf")
# Their columns are made when they are looked at, 88 bytes each.
_USAGES_LIMIT = 65_536


@attrs.frozen
class SlotStates:
    """Whether the processes of all slots of a table live, and which processes they are.

    Attributes:
        states: One byte per row of ``table.processes``: an index into `SLOT_STATES`.
        processes: Row of ``table.processes`` to the process, of live ones. Where a pid stands in
            several slots of a region it is under the last of them, which its process writes to.
        unlisted: Row of ``table.regions`` to the processes that use the region without a slot, as
            of the last full proof of that region.
        proved: Row of ``table.regions`` to what the last full proof of that region found.
    """

    states: bytes
    processes: Mapping[int, HostProcess]
    proved: Mapping[int, RegionProcesses]

    @property
    def unlisted(self) -> dict[int, tuple[HostProcess, ...]]:
        """By row of the regions, those with any."""
        return {row: each.unlisted for row, each in self.proved.items() if each.unlisted}


@attrs.define(eq=False)
class _Proof:
    """What is known of one region.

    Attributes:
        slots: What it rests on, out of the slots.
        dead: What the slots of dead processes counted.
        users: What it rests on, out of the table of processes.
        found: Whose the slots are.
        due_s: Until when it holds.
    """

    slots: bytes
    dead: bytes
    users: tuple[object, ...]
    found: RegionProcesses
    due_s: float


class SlotTracker:
    """Tells for each read of a node's regions which slots are of live processes.

    While a region's columns of pids and host pids stand as they were, the same processes map it,
    none of them has ended and what dead ones count has not changed, its last proof holds; that a
    process is dead is proved anew after `proof_s`. The host pid, or what it counts, tells the
    process of a container that was started again from the dead one that had the same pid in it.
    /proc is read when a region was not proved yet or has changed, and every `proof_s`, once for all
    regions. A process that has ended is noticed by its ``stat``, at each update.

    Threads: one at a time.

    Args:
        table: The processes.
        proof_s: How old what is known of the processes is at most.
    """

    def __init__(self, table: ProcessTable, proof_s: float = 20.0) -> None:
        self._table = table
        self._proof_s = proof_s
        self._proofs: dict[Region, _Proof] = {}
        # What the last answer was given to, and until when it holds.
        self._asked: tuple[Sequence[Container], bytes] | None = None
        self._until_s = 0.0
        self._refreshed_s = float("-inf")
        # What is known of the processes when all proofs were last held against it.
        self._compared: tuple[object, ...] | None = None
        self._dead_rows = array("I")
        self._dead = b""
        self._answer = SlotStates(b"", {}, {})

    def proof(self, region: Region) -> RegionProcesses | None:
        """What the last proof of a region found; None if there was none."""
        proof = self._proofs.get(region)
        return None if proof is None else proof.found

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
            anew: Prove every region, whatever holds still.

        Raises:
            OSError: /proc cannot be listed.
        """
        alive = {each for proof in self._proofs.values() for each in proof.found.alive.values()}
        ended = self._table.ended(alive) if alive else set()
        now_s = time.monotonic()
        column, host_column = table.processes.pid, table.processes.host_pid
        firsts = table.regions.first_process
        columns = b"".join((column.tobytes(), host_column.tobytes(), firsts.tobytes()))
        if (
            not anew
            and self._asked == (containers, columns)
            and self._has_compared(self._table._users_state())
            and not ended
            and now_s < self._until_s
            and _counted(table, self._dead_rows) == self._dead
        ):
            return self._answer
        rows = self._rows(containers, table)

        def is_stale(region: Region, start: int, end: int) -> bool:
            proof = self._proofs.get(region)
            return bool(
                proof is None
                or anew
                or now_s >= proof.due_s
                or proof.slots != _slot_bytes(table, start, end)
                or proof.dead != _counted(table, _dead_rows(column, start, end, proof.found))
                or (ended and not ended.isdisjoint(proof.found.alive.values()))
            )

        stale = {region for _, region, start, end in rows if is_stale(region, start, end)}
        if stale or now_s - self._refreshed_s >= self._proof_s:
            self._refresh(max(table.regions.taken_at_ns, default=0))
        users = self._table._users_state()
        if not self._has_compared(users):
            stale.update(region for _, region, _, _ in rows if self._has_other_users(region))
            self._compared = users
        asked = (containers, columns)
        self._prove(containers, table, [each for each in rows if each[1] in stale], match, now_s)
        self._forget({region for _, region, _, _ in rows})
        # The same object means that nothing has changed.
        if stale or self._asked != asked:
            answer = self._states(column, rows)
            if answer != self._answer:
                self._answer = answer
        self._asked = asked
        self._dead_rows = array(
            "I", (at for at, each in enumerate(self._answer.states) if each == _DEAD)
        )
        self._dead = _counted(table, self._dead_rows)
        until_s = min((each.due_s for each in self._proofs.values()), default=_NEVER_S)
        self._until_s = min(until_s, self._refreshed_s + self._proof_s)
        return self._answer

    def _refresh(self, taken_at_ns: int) -> None:
        """Read /proc; what is not there after the regions were read is dead."""
        if self._table.read_at_ns <= taken_at_ns:
            self._table.refresh()
        self._refreshed_s = time.monotonic()

    def _has_compared(self, users: tuple[object, ...]) -> bool:
        """Whether all proofs have been held against what is known of the processes."""
        before = self._compared
        return before is not None and before[0] is users[0] and before[1:] == users[1:]

    def _has_other_users(self, region: Region) -> bool:
        """Whether the table says other than it did when a region was proved."""
        proof = self._proofs.get(region)
        try:
            return proof is not None and proof.users != self._table._users_of(region)
        except RegionError:  # closed meanwhile: the next refresh sees to it
            return False

    @staticmethod
    def _rows(
        containers: Sequence[Container], table: RegionTable
    ) -> list[tuple[int, Region, int, int]]:
        found = []
        regions = table.regions
        for row, (code, first, count) in enumerate(
            zip(regions.code, regions.first_process, regions.process_count, strict=True)
        ):
            region = containers[row].region
            if code == 0 and region is not None:
                found.append((row, region, first, first + count))
        return found

    def _prove(
        self,
        containers: Sequence[Container],
        table: RegionTable,
        stale: Sequence[tuple[int, Region, int, int]],
        match: Match,
        since_s: float,
    ) -> None:
        lost = self._prove_each(containers, table, stale, match)
        pods = {row: (pids, containers[row].pod_uid) for row, pids in lost.items()}
        late = self._table._find_late(pods, since_s) if lost else set()
        if late:
            self._table.refresh()
            again = [each for each in stale if each[0] in late]
            self._prove_each(containers, table, again, match)

    def _prove_each(
        self,
        containers: Sequence[Container],
        table: RegionTable,
        stale: Iterable[tuple[int, Region, int, int]],
        match: Match,
    ) -> dict[int, set[int]]:
        """Prove regions; by row, the pids of which nothing could be told."""
        now_s = time.monotonic()
        taken_at_ns = table.regions.taken_at_ns
        lost: dict[int, set[int]] = {}
        for row, region, start, end in stale:
            column = table.processes.pid[start:end]
            try:
                # Before: where the table is read anew meanwhile, it is matched again.
                users = self._table._users_of(region)
                # Of 4 bytes each: a container can fill its table.
                found = match(containers[row], array("i", column), taken_at_ns[row])
            except RegionError:  # closed meanwhile: the next refresh sees to it
                self._proofs.pop(region, None)
                continue
            unknown = set(found.pids).difference(found.alive, found.dead)
            due_s = _NEVER_S
            if unknown:
                lost[row] = unknown
                due_s = now_s + min(_RETRY_S, self._proof_s)
            elif found.dead:
                due_s = now_s + self._proof_s
            known = self._proofs.get(region)
            if known is not None and known.found == found:
                found = known.found
            dead = _counted(table, _dead_rows(table.processes.pid, start, end, found))
            slots = _slot_bytes(table, start, end)
            self._proofs[region] = _Proof(slots, dead, users, found, due_s)
        return lost

    def _forget(self, present: set[Region]) -> None:
        if len(self._proofs) > len(present):
            for region in self._proofs.keys() - present:
                del self._proofs[region]

    def _states(
        self, column: memoryview, rows: Iterable[tuple[int, Region, int, int]]
    ) -> SlotStates:
        states = bytearray(len(column))
        processes: dict[int, HostProcess] = {}
        proved: dict[int, RegionProcesses] = {}
        for row, region, start, end in rows:
            proof = self._proofs.get(region)
            if proof is None:
                continue
            found = proof.found
            proved[row] = found
            last: dict[int, int] = {}
            for at in range(start, end):
                pid = column[at]
                if pid in found.alive:
                    states[at] = _ALIVE
                    last[pid] = at
                elif pid in found.dead:
                    states[at] = _DEAD
            processes.update((at, found.alive[pid]) for pid, at in last.items())
        return SlotStates(bytes(states), processes, proved)


def _slot_bytes(table: RegionTable, start: int, end: int) -> bytes:
    """What a proof of a region rests on, out of its slots."""
    processes = table.processes
    return processes.pid[start:end].tobytes() + processes.host_pid[start:end].tobytes()


def _dead_rows(pids: memoryview, start: int, end: int, found: RegionProcesses) -> list[int]:
    return [at for at in range(start, end) if pids[at] in found.dead]


def _counted(table: RegionTable, slots: Sequence[int]) -> bytes:
    """What some slots count, device by device; nothing where that takes much memory."""
    if not slots or len(table.usages) > _USAGES_LIMIT:
        return b""
    firsts, used = table.processes.first_usage, table.usages.memory_used_bytes
    ends = len(firsts)
    return b"".join(
        used[firsts[at] : firsts[at + 1] if at + 1 < ends else None].tobytes() for at in slots
    )

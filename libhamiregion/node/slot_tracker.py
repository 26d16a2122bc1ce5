"""Which slots are of live processes, kept up to date between full looks at /proc at little cost."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import time
import weakref
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
# Each watched process takes a descriptor.
_WATCHED_LIMIT = 16_384
# Their columns are made when they are looked at, 88 bytes each.
_USAGES_LIMIT = 65_536


@attrs.frozen(eq=False)
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
        found: Whose the slots are.
        due_s: Until when it holds.
    """

    slots: bytes
    dead: bytes
    found: RegionProcesses
    due_s: float


class SlotTracker:
    """Tells for each read of a node's regions which slots are of live processes.

    While a region's columns of pids and host pids stand as they were, none of its processes has
    ended and what dead ones count has not changed, its last proof holds; after `proof_s` it is
    proved anew. The host pid, or what it counts, tells the process of a container that was started
    again from the dead one that had the same pid in it. /proc is
    read when a region was not proved yet, has changed or is due, and once for all of them. A
    process that has ended is noticed through its pidfd: one poll for all.

    Costs 0.3 ms for 256 regions in which nothing has changed, whatever their processes do.

    Threads: one at a time.

    Args:
        table: The processes.
        proof_s: How long a proof holds at most.
    """

    def __init__(self, table: ProcessTable, proof_s: float = 60.0) -> None:
        self._table = table
        self._proof_s = proof_s
        self._proofs: dict[Region, _Proof] = {}
        self._exits = _ExitWatch(table)
        # What the last answer was given to, and until when it holds.
        self._asked: tuple[Sequence[Container], bytes] | None = None
        self._until_s = 0.0
        self._dead_rows: list[int] = []
        self._dead = b""
        self._answer = SlotStates(b"", {}, {})

    def close(self) -> None:
        """Give the descriptors back."""
        self._proofs.clear()
        self._asked = None
        self._exits.close()

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
        ended = self._exits.ended()
        now_s = time.monotonic()
        column, host_column = table.processes.pid, table.processes.host_pid
        firsts = table.regions.first_process
        asked = (containers, b"".join((column.tobytes(), host_column.tobytes(), firsts.tobytes())))
        if (
            not anew
            and asked == self._asked
            and not ended
            and now_s < self._until_s
            and _counted(table, self._dead_rows) == self._dead
        ):
            return self._answer
        rows = self._rows(containers, table)
        stale = []
        for row, region, start, end in rows:
            proof = self._proofs.get(region)
            if (
                proof is None
                or anew
                or now_s >= proof.due_s
                or proof.slots != _slot_bytes(table, start, end)
                or proof.dead != _counted(table, _dead_rows(column, start, end, proof.found))
                or not ended.isdisjoint(proof.found.alive.values())
            ):
                stale.append((row, region, start, end))
        if stale:
            self._prove(containers, table, stale, match)
        self._forget({region for _, region, _, _ in rows})
        self._asked, self._answer = asked, self._states(column, rows)
        self._dead_rows = [at for at, each in enumerate(self._answer.states) if each == _DEAD]
        self._dead = _counted(table, self._dead_rows)
        self._until_s = min((each.due_s for each in self._proofs.values()), default=0.0)
        return self._answer

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
        stale: Iterable[tuple[int, Region, int, int]],
        match: Match,
    ) -> None:
        now_s = time.monotonic()
        taken_at_ns = table.regions.taken_at_ns
        # What is not there after the regions were read is dead.
        if self._table.read_at_ns <= max(taken_at_ns):
            self._table.refresh()
        for row, region, start, end in stale:
            column = table.processes.pid[start:end]
            try:
                found = match(containers[row], list(column), taken_at_ns[row])
            except RegionError:  # closed meanwhile: the next refresh sees to it
                self._proofs.pop(region, None)
                continue
            complete = len(found.alive) + len(found.dead) >= len(set(found.pids))
            due_s = now_s + (self._proof_s if complete else min(_RETRY_S, self._proof_s))
            dead = _counted(table, _dead_rows(table.processes.pid, start, end, found))
            self._proofs[region] = _Proof(_slot_bytes(table, start, end), dead, found, due_s)
            self._exits.watch(found.alive.values())

    def _forget(self, present: set[Region]) -> None:
        if len(self._proofs) > len(present):
            for region in self._proofs.keys() - present:
                del self._proofs[region]
        if self._exits.is_crowded(sum(len(each.found.alive) for each in self._proofs.values())):
            self._exits.keep_only(
                process for each in self._proofs.values() for process in each.found.alive.values()
            )

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


def _close_all(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


class _ExitWatch:
    """Tells which of many processes have ended, by their pidfds in one epoll.

    Where /proc is that of another pid namespace, or descriptors are short, `stat` is read instead.
    """

    def __init__(self, table: ProcessTable) -> None:
        self._table = table
        self._poll: select.epoll | None = None
        self._watched: dict[int, HostProcess] = {}
        self._by_process: dict[HostProcess, int] = {}
        # Without a pidfd.
        self._asked: set[HostProcess] = set()
        # Of a node that nobody has closed.
        weakref.finalize(self, _close_all, self._watched)

    def is_crowded(self, wanted: int) -> bool:
        """Whether many more are watched than are wanted."""
        return len(self._watched) + len(self._asked) > 2 * wanted + 64

    def watch(self, processes: Iterable[HostProcess]) -> None:
        """Watch these too."""
        for process in processes:
            if process not in self._by_process and process not in self._asked:
                descriptor = self._open(process)
                if descriptor is None:
                    self._asked.add(process)
                else:
                    self._watched[descriptor] = process
                    self._by_process[process] = descriptor

    def _open(self, process: HostProcess) -> int | None:
        limit = min(_WATCHED_LIMIT, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        if not self._table.visibility.is_own_namespace or len(self._watched) >= limit:
            return None
        descriptor = None
        try:
            if self._poll is None:
                self._poll = select.epoll()
            descriptor = os.pidfd_open(process.pid)
            # The pid may have been another's by then.
            if self._table.is_running(process):
                self._poll.register(descriptor, select.EPOLLIN)
                return descriptor
        except OSError:
            pass
        if descriptor is not None:
            os.close(descriptor)
        return None

    def ended(self) -> set[HostProcess]:
        """Those that have ended since the last call."""
        found = {each for each in self._asked if not self._table.is_running(each)}
        self._asked -= found
        if self._poll is not None and self._watched:
            for descriptor, _ in self._poll.poll(0, len(self._watched)):
                found.add(self._watched[descriptor])
                self._drop(descriptor)
        return found

    def keep_only(self, processes: Iterable[HostProcess]) -> None:
        """Watch no others."""
        kept = set(processes)
        self._asked &= kept
        for process in self._by_process.keys() - kept:
            self._drop(self._by_process[process])

    def _drop(self, descriptor: int) -> None:
        del self._by_process[self._watched.pop(descriptor)]
        # Closing alone does not take it out of the epoll of a forked child's parent.
        with contextlib.suppress(OSError):
            if self._poll is not None:
                self._poll.unregister(descriptor)
        os.close(descriptor)

    def close(self) -> None:
        """Give all descriptors back."""
        # The epoll first, so that nothing is taken out of it: a forked child shares its parent's.
        if self._poll is not None:
            self._poll.close()
            self._poll = None
        for descriptor in list(self._watched):
            self._drop(descriptor)
        self._asked.clear()

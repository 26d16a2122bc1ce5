"""Reads what the columns do not have about regions and files under suspicion."""

from __future__ import annotations

import contextlib
import os
import time
from array import array
from collections import Counter, defaultdict
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

from libhamiregion._core import lib
from libhamiregion.errors import RegionError, SearchCutShort
from libhamiregion.layouts import LAYOUTS, Layout
from libhamiregion.observation.evidence import LargeRegion, LostFile, NodeEvidence, RegionEvidence
from libhamiregion.observation.suspicions import foreign_host_pids, rows_for_feedback, taken_locks
from libhamiregion.raw_slots import slots_beyond
from libhamiregion.region_set import read_whole

from .evidence import EVIDENCE_S, gather
from .node_lock import LockUse, is_node_locked
from .outside import MappedRegion, mapped_regions, resolve
from .slots import match_slots, unread_since

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from libhamiregion.evidence import Evidence
    from libhamiregion.observation.containers import Container
    from libhamiregion.observation.model import Observation
    from libhamiregion.observation.processes import RegionProcesses
    from libhamiregion.region import Region
    from libhamiregion.slots import SlotRepair
    from libhamiregion.tables import RegionTable

    from .node import Node

# A lock or a seqlock is held for microseconds, or milliseconds while the driver is asked under it.
_WATCH_S = 0.1
_POLL_S = 0.005
# A process can map any number of files that look like regions.
_LOST_PER_CONTAINER = 16
# Regions that are too large for the columns: so many at each observation, with 2 MiB each.
_LARGE_REGIONS = 2
_WITH_STARTUP = {each for each in LAYOUTS if each.offsets["sem_postinit"] is not None}


class _Slots(NamedTuple):
    """A region with the slots that count, and of each its number and whether it is settled."""

    container: Container
    region: Region
    processes: RegionProcesses
    end: int
    slots: tuple[tuple[int, int], ...]


def match_anew(
    node: Node, pids: Mapping[Container, Sequence[int]]
) -> dict[Container, RegionProcesses]:
    """Read /proc, and find the processes of slots that were read right before.

    That order proves a process dead.

    Args:
        node: The node.
        pids: Containers with a region to the pids in its slots.

    Raises:
        OSError: /proc cannot be listed.
    """
    read_s, table = time.monotonic(), node.processes
    # What these map is kept for minutes, and so is what others with a slot's pid map.
    identities = [each.identity for each in pids if each.identity is not None]
    table.refresh({user.pid for each in identities for user in table.view.mappers(each)})
    unread: set[int] | None = None
    while True:
        view = table.view
        found = {each: match_slots(view, each, own, read_s) for each, own in pids.items()}
        if unread is not None:
            return found
        unread = {
            pid
            for each, processes in found.items()
            for pid in unread_since(view, each, processes.unknown, read_s)
        }
        if unread:
            table.refresh(unread)


class SuspectReader:
    """Gathers evidence about the suspects of an observation.

    Locks and seqlocks are watched for 0.1 s, all together, or until none is left that has not
    moved. Processes are asked by the workers, for 2 s in all.

    Threads: one at a time.

    Args:
        node: The node.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        # Region to its slots' pids and the slots behind them, read again when the former change.
        self._behind: dict[Region, tuple[object, dict[int, int]]] = {}
        self._mapped: tuple[object, list[MappedRegion]] = (None, [])
        self._turn = 0

    def read(self, seen: Observation) -> NodeEvidence:
        """Gather evidence.

        Args:
            seen: An observation of the node, with its slots.

        Raises:
            OSError: /proc cannot be listed.
        """
        large = self._large(seen)
        rows = dict(_rows(seen, large))
        self._forget({each.region for each in rows.values()})
        facts: defaultdict[int, dict[str, Any]] = defaultdict(dict)
        odd: dict[int, dict[int, int]] = {}
        suspects: dict[int, dict[int, int]] = {}
        for row, slots in rows.items():
            with contextlib.suppress(RegionError, OSError):
                facts[row].update(_unusual_values(slots.region))
                odd[row] = _odd_seqlocks(slots)
                behind = self._slots_behind(slots)
                counting = [pid for pid in slots.processes.pids if pid in slots.processes.alive]
                if behind or len(counting) > len(set(counting)):
                    suspects[row] = facts[row]["slots_behind"] = behind
        locks = {row: each for row, each in taken_locks(seen.table).items() if row in rows}
        self._watch(rows, locks, odd)
        for row, values in odd.items():
            facts[row].update({"seqlocks": values} if values else {})
        self._judge(rows, locks.keys(), suspects.keys(), facts)
        return NodeEvidence(
            {row: RegionEvidence(**each) for row, each in facts.items() if each},
            large,
            tuple(self._lost_files(seen)),
            frozenset(self._existing(seen)),
            bool(rows_for_feedback(seen.table))
            and is_node_locked(self._node.directories, LockUse.FEEDBACK),
        )

    # ---- slots -----------------------------------------------------------------------------------

    def _large(self, seen: Observation) -> dict[int, LargeRegion]:
        """Read regions that are too large for the columns, a few in turn."""
        truncated = seen.table.regions.processes_truncated
        rows = [row for row, is_truncated in enumerate(truncated) if is_truncated]
        if not rows:
            return {}
        first = self._turn % len(rows)
        self._turn = first + _LARGE_REGIONS
        turn = {
            seen.containers[row]: row for row in [*rows[first:], *rows[:first]][:_LARGE_REGIONS]
        }
        tables: dict[Container, RegionTable] = {}
        for each in turn:
            with contextlib.suppress(RegionError):
                if each.region is not None:
                    tables[each] = read_whole(each.region)
        pids = {each: table.processes.pid for each, table in tables.items()}
        found = match_anew(self._node, pids)
        return {turn[each]: LargeRegion(tables[each], found[each]) for each in tables}

    def _forget(self, regions: AbstractSet[Region]) -> None:
        for gone in self._behind.keys() - regions:
            del self._behind[gone]

    def _slots_behind(self, of: _Slots) -> dict[int, int]:
        """Find live processes with a slot behind those that count.

        Raises:
            RegionError, OSError: As `slots_beyond`.
        """
        processes = of.processes
        living = {each.ns_pids[-1] for each in (*processes.alive.values(), *processes.unlisted)}
        if not living:
            return {}
        # Slots are moved, and others come behind, only as those change that count.
        key = of.end, bytes(array("i", processes.pids))
        known = self._behind.get(of.region)
        if known is None or known[0] != key:
            known = self._behind[of.region] = key, slots_beyond(of.region, of.end)
        return {pid: slot for pid, slot in known[1].items() if pid in living}

    # ---- locks and seqlocks ----------------------------------------------------------------------

    def _watch(
        self,
        rows: Mapping[int, _Slots],
        locks: dict[int, tuple[int, int]],
        odd: dict[int, dict[int, int]],
    ) -> None:
        """Watch all suspects together, and drop those that move."""
        until_s = time.monotonic() + _WATCH_S
        while (locks or any(odd.values())) and time.monotonic() < until_s:
            time.sleep(_POLL_S)
            for row, before in list(locks.items()):
                if _lock_of(rows[row].region) != before:
                    del locks[row]
            for row, values in odd.items():
                now = _seqlocks_of(rows[row].region, values)
                odd[row] = {slot: value for slot, value in values.items() if now.get(slot) == value}

    def _judge(
        self,
        rows: Mapping[int, _Slots],
        locks: AbstractSet[int],
        suspects: AbstractSet[int],
        facts: defaultdict[int, dict[str, Any]],
    ) -> None:
        """Ask processes about locks that stay taken, and about slots that may have been moved."""
        asked = {rows[row].region: rows[row].container for row in (*locks, *suspects)}
        evidence = gather(self._node.processes, asked) if asked else {}
        for row in {*locks, *suspects}:
            region = rows[row].region
            with contextlib.suppress(RegionError, OSError, KeyError):
                if row in locks:
                    facts[row]["lock"] = region.lock_state(evidence=evidence[region])
                if row in suspects:
                    facts[row].update(_repair_of(region, evidence[region]))

    # ---- files and processes ---------------------------------------------------------------------

    def _lost_files(self, seen: Observation) -> Iterator[LostFile]:
        """Find files that processes map as a region, and that are gone or unreadable."""
        unreadable = dict(_unreadable_files(seen))
        tried: Counter[str] = Counter()
        until_s = time.monotonic() + EVIDENCE_S
        for mapped in self._mapped_regions(seen):
            tried[mapped.payer] += 1
            if tried[mapped.payer] > _LOST_PER_CONTAINER:
                continue
            # If there is no time, it has the name of when its maps were read.
            has_time = time.monotonic() < until_s
            now = resolve(self._node.processes, mapped) if has_time else mapped
            container, size_bytes = unreadable.get(now.inode_and_name, (None, 0))
            if container is not None or now.deleted:
                path = now.path_in_namespace
                identity, pid = now.identity, now.pids[0]
                yield LostFile(identity, path, now.deleted, pid, container, size_bytes)

    def _mapped_regions(self, seen: Observation) -> list[MappedRegion]:
        """The files like a region that are none of the open ones, kept while nothing changes."""
        key = seen.processes, seen.containers, bytes(seen.table.regions.code)
        if key != self._mapped[0]:
            rows = zip(seen.table.regions.code, seen.containers, strict=True)
            known = {each.identity for code, each in rows if code == 0 and each.identity}
            self._mapped = key, list(mapped_regions(seen.processes, without=known))
        return self._mapped[1]

    def _existing(self, seen: Observation) -> Iterator[int]:
        """Which of the other processes that slots name as their own exist."""
        for pid in {*foreign_host_pids(seen).values()}:
            # The table leaves threads of processes out.
            path = f"{self._node.proc}/{pid}/stat"
            if pid > 0 and (pid in seen.processes.entries or os.path.exists(path)):  # noqa: PTH110
                yield pid


def _rows(seen: Observation, large: Mapping[int, LargeRegion]) -> Iterator[tuple[int, _Slots]]:
    """The regions that were read, with the columns of their slots."""
    for row, processes in seen.proved().proved.items():
        table, at, found = seen.table, row, processes
        container = seen.containers[row]
        region = container.region
        if (content := large.get(row)) is not None:
            table, at, found = content.table, 0, content.processes
        regions, columns = table.regions, table.processes
        if regions.code[at] == 0 and region is not None:
            first, end = regions.first_process[at], regions.slot_count[at]
            part = slice(first, first + regions.process_count[at])
            slots = tuple(zip(columns.slot[part], columns.settled[part], strict=True))
            yield row, _Slots(container, region, found, end, slots)


def _unusual_values(region: Region) -> Iterator[tuple[str, int]]:
    """Values that have no column, if they are not as in a region that is in order.

    Raises:
        RegionError: The region cannot be read.
    """
    layout = region.layout
    if layout in _WITH_STARTUP and (value := region._live(lib.HR_VALUE_POSTINIT)) != 1:
        yield "startup_value", value
    if not layout.has_seqlock and (count := region._live(lib.HR_VALUE_PIDLESS)):
        yield "pidless_slots", count
    if region.burst:
        yield "burst", True
    if layout is Layout.V1_1:
        # Of a region outside the roots this is the length of a link.
        size_bytes = os.lstat(region.path).st_size
        if size_bytes >= Layout.V1_1_POSTINIT.size_bytes:
            yield "size_bytes", size_bytes


def _odd_seqlocks(of: _Slots) -> dict[int, int]:
    """Read the seqlocks of slots that may be odd; those that are.

    Raises:
        RegionError: The region cannot be read.
    """
    # In layout 1.1 only processes of 2.8.1 and later have them, and snapshots do not wait for them.
    layout = of.region.layout
    has_seqlock = layout.has_seqlock
    if not (has_seqlock or layout is Layout.V1_1):
        return {}
    read = [slot for slot, is_settled in of.slots if not (has_seqlock and is_settled)]
    seqlocks = {slot: of.region._live(lib.HR_VALUE_SEQLOCK, slot) for slot in read}
    return {slot: value for slot, value in seqlocks.items() if value % 2}


def _seqlocks_of(region: Region, slots: Collection[int]) -> dict[int, int]:
    """The seqlocks of some slots; none if they cannot be read."""
    try:
        return {slot: region._live(lib.HR_VALUE_SEQLOCK, slot) for slot in slots}
    except RegionError:
        return {}


def _lock_of(region: Region) -> tuple[int, int] | None:
    """Semaphore and owner; None if they cannot be read."""
    try:
        return region._live(lib.HR_VALUE_SEM), region.snapshot().owner_pid
    except RegionError:
        return None


def _repair_of(region: Region, evidence: Evidence) -> dict[str, tuple[int, ...]]:
    """What a repair of moved slots would do.

    Raises:
        RegionError, OSError: The region cannot be read.
    """
    try:
        found = region.repair_slots(evidence=evidence, dry_run=True)
    except SearchCutShort as error:
        done: SlotRepair = error.done
        return {"moved": done.repaired, "idle": done.left, "unproved": tuple(error.pids)}
    return {"moved": found.repaired, "idle": found.left}


def _unreadable_files(
    seen: Observation,
) -> Iterator[tuple[tuple[int, str], tuple[Container, int]]]:
    """Files of containers without a readable region: inode and name to the container and size.

    Not by the device: on overlay and btrfs maps and stat have different numbers for it.
    """
    rows = zip(seen.table.regions.code, seen.containers, strict=True)
    unread = [each for code, each in rows if code != 0]
    for each in (*seen.missing, *unread):
        if each.directory is not None and each.region_path is not None:
            with contextlib.suppress(OSError):
                status = os.lstat(each.region_path)
                key = status.st_ino, PurePath(each.region_path).name
                yield key, (each, status.st_size)

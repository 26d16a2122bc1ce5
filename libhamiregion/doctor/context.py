"""What the checks examine: one observation of a node, region by region."""

from __future__ import annotations

import contextlib
import time
from functools import cached_property, partial
from typing import TYPE_CHECKING, TypeAlias

import attrs

from libhamiregion._core import lib
from libhamiregion.errors import RegionClosed, RegionError
from libhamiregion.node.evidence import EVIDENCE_S, gather
from libhamiregion.node.slots import match_slots, unread_since
from libhamiregion.observation.pairing import NO_ROW, devices_of
from libhamiregion.observation.rows import Join
from libhamiregion.raw_slots import slots_beyond
from libhamiregion.services.controllers import find_monitors, region_files
from libhamiregion.services.node_lock import LockUse, is_node_locked

from .findings import finding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from libhamiregion.evidence import Evidence
    from libhamiregion.models import ProcessUsage, RegionSnapshot
    from libhamiregion.node.node import Node
    from libhamiregion.observation.containers import Container
    from libhamiregion.observation.model import Observation
    from libhamiregion.observation.processes import (
        FileIdentity,
        HostProcess,
        ProcessView,
        RegionProcesses,
        SlotMatch,
    )
    from libhamiregion.observation.rows import NodeProcess
    from libhamiregion.region import Region

    from .findings import Finding, FindingKind

    # Each check with the kinds that it can find.
    Checks: TypeAlias = dict[Callable[..., Iterator[Finding]], set[FindingKind]]


# A lock that is held for longer than this is looked at.
_TAKEN_S = 0.02
_SEMAPHORE_VALUE = 0xFFFFFFFF
#: Usual per process besides the accounted memory: modules and the driver's own.
UNCOUNTED_BYTES = 256 << 20


def memory_bytes(usage: ProcessUsage) -> int:
    """Return what a slot counts over all devices."""
    return sum(device.memory_used_bytes for device in usage.devices)


@attrs.frozen(slots=False, eq=False)
class ObservedRegion:
    """A region that was read, and the processes of its slots.

    Attributes:
        container: The container.
        region: The region, open for reading.
        snapshot: Its content.
        processes: The processes of its slots, and others that map it.
        row: Its row in the observation's table; -1 if it was read later.
    """

    container: Container
    region: Region
    snapshot: RegionSnapshot
    processes: RegionProcesses
    row: int = -1

    @property
    def identity(self) -> FileIdentity:
        """The region's file."""
        assert self.container.identity is not None  # noqa: S101 (it was read)
        return self.container.identity

    @property
    def finding(self) -> Callable[..., Finding]:
        """Makes findings of its container, as `findings.finding` does."""
        return partial(finding, container=self.container)

    @cached_property
    def slots(self) -> tuple[tuple[ProcessUsage, SlotMatch], ...]:
        """Each slot with its process."""
        return tuple(zip(self.snapshot.processes, self.processes.slots, strict=True))

    @cached_property
    def alive(self) -> tuple[tuple[ProcessUsage, HostProcess], ...]:
        """Live processes with the slot that they write to."""
        # Of two slots with one pid the last is the original, the other one a copy of it.
        last = {usage.pid: (usage, match.process) for usage, match in self.slots}
        return tuple((usage, process) for usage, process in last.values() if process is not None)

    @property
    def users(self) -> tuple[HostProcess, ...]:
        """The live processes that use the region, with a slot or without."""
        return (*self.processes.alive.values(), *self.processes.unlisted)


def _slots_behind(region: Region, count: int, processes: RegionProcesses) -> dict[int, int] | None:
    """Find live processes with a slot behind those that count, or with two that count.

    Returns:
        Pid to the slot behind the others; None if no process may write to a slot of these.

    Raises:
        RegionError, OSError: As `slots_beyond`.
    """
    living = {each.ns_pids[-1] for each in (*processes.alive.values(), *processes.unlisted)}
    behind = slots_beyond(region, count) if living else {}
    found = {pid: slot for pid, slot in behind.items() if pid in living}
    counting = list(filter(living.__contains__, processes.pids))
    return found if found or len(counting) > len(set(counting)) else None


def look(node: Node, container: Container) -> ObservedRegion:
    """Read a region now and /proc after it, the order that proves a process dead.

    Raises:
        RegionError: The region cannot be read.
        OSError: /proc cannot be listed.
    """
    region = container.region
    if region is None:
        raise RegionClosed("the container has no region any more")
    snapshot = region.snapshot()
    read_s = time.monotonic()
    # What these map is kept for minutes, and so is what others with a slot's pid map.
    users = () if container.identity is None else node.processes.view.mappers(container.identity)
    node.processes.refresh({each.pid for each in users})
    pids = [process.pid for process in snapshot.processes]
    processes = match_slots(node.processes.view, container, pids, read_s)
    if unread := unread_since(node.processes.view, container, processes.unknown, read_s):
        node.processes.refresh(unread)
        processes = match_slots(node.processes.view, container, pids, read_s)
    return ObservedRegion(container, region, snapshot, processes)


@attrs.define(slots=False)
class DoctorContext:
    """One observation of a node, and what it proves about several regions together.

    Attributes:
        node: The node.
        observation: The observation, with its slots.
        suspects: Findings that count only if a value stays the same, with a function that returns
            whether it has changed.
    """

    node: Node
    observation: Observation
    suspects: dict[Finding, Callable[[], bool]] = attrs.field(factory=dict)

    @property
    def processes(self) -> ProcessView:
        """The processes of the node."""
        return self.observation.processes

    def regions(self) -> Iterator[ObservedRegion]:
        """Yield all regions, one at a time: a container can fill all slots of its own.

        Regions whose slots the observation has left out are read now.
        """
        states, table = self.observation.proved(), self.observation.table
        unread = {gap.container for gap in self.observation.gaps if gap.kind == "slots"}
        for row, container in enumerate(self.observation.containers):
            processes, region = states.proved.get(row), container.region
            # What is closed meanwhile is the next observation's.
            with contextlib.suppress(RegionError):
                if container in unread:
                    yield look(self.node, container)
                elif table.regions.code[row] == 0 and region and processes:
                    snapshot = table.snapshot(row)
                    yield ObservedRegion(container, region, snapshot, processes, row)

    # ---- evidence --------------------------------------------------------------------------------

    def evidence(self, used: ObservedRegion) -> Evidence:
        """Gather evidence about a region, with what is left of the time for all of them.

        Raises:
            RegionError: The region cannot be read.
            OSError: /proc cannot be listed.
        """
        known = self._gathered.get(used.region)
        if known is not None:
            return known
        found = gather(
            self.node.processes, {used.region: used.container}, until_s=self._evidence_until_s
        )
        return found.get(used.region) or used.region.evidence()

    @cached_property
    def _gathered(self) -> dict[Region, Evidence]:
        """Evidence about all suspects: in one pass, no region is always the last."""
        rows = {*self._taken, *self._moved}
        containers = map(self.observation.containers.__getitem__, rows)
        regions = {each.region: each for each in containers if each.region is not None}
        return gather(self.node.processes, regions)

    @cached_property
    def _evidence_until_s(self) -> float:
        return time.monotonic() + EVIDENCE_S

    def has_suspect_lock(self, used: ObservedRegion) -> bool:
        """Return whether a region's lock was taken at two moments, by the same owner."""
        return used.row in self._taken or used.row < 0

    def slots_behind(self, used: ObservedRegion) -> dict[int, int] | None:
        """Return the slots behind those that count, by pid; None if none can have been moved.

        Raises:
            RegionError, OSError: The region cannot be read.
        """
        if used.row >= 0:
            return self._moved.get(used.row)
        return _slots_behind(used.region, used.snapshot.slot_count, used.processes)

    @cached_property
    def _moved(self) -> dict[int, dict[int, int]]:
        """Rows of regions in which slots may have been moved, to those behind the others."""
        counts, found = self.observation.table.regions.slot_count, {}
        for row, processes in self.observation.proved().proved.items():
            region = self.observation.containers[row].region
            with contextlib.suppress(RegionError, OSError):
                behind = None if region is None else _slots_behind(region, counts[row], processes)
                if behind is not None:
                    found[row] = behind
        return found

    @cached_property
    def _taken(self) -> set[int]:
        """Rows of regions whose lock stays taken.

        A lock that is merely taken is an everyday sight: from HAMi-core's September on every
        allocation of a container waits for it. A second look costs less than to ask processes.
        """
        regions = self.observation.table.regions
        owners: dict[int, tuple[Region, int]] = {}
        rows = zip(
            self.observation.containers,
            regions.code,
            regions.semaphore,
            regions.owner_pid,
            strict=True,
        )
        for row, (container, code, semaphore, owner) in enumerate(rows):
            region = container.region
            value = semaphore & _SEMAPHORE_VALUE
            is_free = value == 1 and not owner
            # Locks of layouts without a version are only checked for impossible values.
            is_judged = region is not None and (region.layout.has_lock or value > 1)
            if code == 0 and region is not None and is_judged and not is_free:
                owners[row] = region, owner
        if owners:
            time.sleep(_TAKEN_S)
        still = set()
        for row, (region, owner) in owners.items():
            with contextlib.suppress(RegionError):
                is_free = region._live(lib.HR_VALUE_SEM) == 1 and not owner
                if region.snapshot().owner_pid == owner and not is_free:
                    still.add(row)
        return still

    @cached_property
    def identities(self) -> dict[FileIdentity, Container]:
        """The readable regions, by the identity of their file."""
        rows = zip(self.observation.table.regions.code, self.observation.containers, strict=True)
        return region_files([each for code, each in rows if code == 0])

    @cached_property
    def with_slot(self) -> dict[int, tuple[Container, int]]:
        """Live processes with a slot: host pid to container and pid."""
        containers, table = self.observation.containers, self.observation.table
        regions, pids = table.processes.region, table.processes.pid
        alive = self.observation.proved().processes
        return {each.pid: (containers[regions[at]], pids[at]) for at, each in alive.items()}

    @cached_property
    def onlookers(self) -> frozenset[HostProcess]:
        """Processes that map a region of another container, as monitors do."""
        proved = self.observation.proved().proved.values()
        return frozenset(process for each in proved for process in each.onlookers)

    @cached_property
    def join(self) -> Join | None:
        """The driver's figures of the node's processes; None without the driver."""
        return None if self.observation.sample is None else Join(self.observation)

    @cached_property
    def differing(self) -> set[int]:
        """Rows of regions that count much more or less than the driver, or nothing of its load."""
        join, table, found = self.join, self.observation.table, set[int]()
        if join is None:
            return found
        counted, load = table.usages.memory_used_bytes, table.usages.sm_util_percent
        memory, busy = join.figures("memory_used_bytes"), join.figures("sm_util_percent")
        pairs = zip(join.index.slots, join.index.usages, join.rows_of_pairs, strict=True)
        for slot, usage, row in pairs:
            if row != NO_ROW and (
                abs(counted[usage] - memory[row]) > UNCOUNTED_BYTES
                or (busy[row] and not load[usage])
            ):
                found.add(table.processes.region[slot])
        return found

    def driver_rows(self, used: ObservedRegion) -> list[NodeProcess]:
        """The live processes with the driver's figures; empty if these do not differ."""
        join = self.join if used.row in self.differing else None
        rows = () if join is None else join.slot_rows(used.row)
        return [row for row in rows if row.state == "alive"]

    def is_unused(self, used: ObservedRegion) -> bool:
        """Return whether it is certain that no process uses a region."""
        processes = self.processes
        return (
            processes.is_complete
            and not processes.hides_users_of(used.container.pod_uid)
            and not processes.mappers(used.identity, writable=True)
        )

    def competes(self, used: ObservedRegion) -> bool:
        """Return whether live processes of another region use one of a region's GPUs."""
        uuids = {device.uuid for device in used.snapshot.devices} - {None}
        containers, table = self.observation.containers, self.observation.table
        return any(
            found.alive
            and containers[row] is not used.container
            and any(table.devices.uuid(each) in uuids for each in devices_of(table, row))
            for row, found in self.observation.proved().proved.items()
        )

    @cached_property
    def writer_may_run(self) -> bool:
        """Whether a program that writes launch marks and SM switches runs, or may run unseen."""
        # A process of a pod that has a region of its own is no monitor.
        tenants = {each.pod_uid for each in self.identities.values()} - {None}
        hidden = any(
            gap.container is None or gap.container.pod_uid not in tenants
            for gap in self.processes.gaps
        )
        return (
            hidden
            or not self.processes.is_complete
            or bool(find_monitors(self.node))
            or is_node_locked(self.node.directories, LockUse.FEEDBACK)
        )

"""What the checks examine: one observation of a node, region by region."""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING

import attrs

from libhamiregion.observation.cards import cards
from libhamiregion.observation.evidence import NodeEvidence, RegionEvidence, RegionSlots
from libhamiregion.observation.pairing import NO_ROW, devices_of
from libhamiregion.observation.suspicions import rows_for_feedback, suspicious_rows
from libhamiregion.services.controllers import find_monitors

from .findings import finding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from libhamiregion.models import ProcessUsage
    from libhamiregion.observation.cards import Card
    from libhamiregion.observation.containers import Container
    from libhamiregion.observation.model import Observation
    from libhamiregion.observation.processes import FileIdentity, HostProcess, ProcessView
    from libhamiregion.observation.rows import Join, NodeProcess

    from .findings import Finding

#: Usual per process besides the accounted memory: modules and the driver's own.
UNCOUNTED_BYTES = 256 << 20
_IN_ORDER = RegionEvidence()


def memory_bytes(usage: ProcessUsage) -> int:
    """Return what a slot counts over all devices."""
    return sum(device.memory_used_bytes for device in usage.devices)


@attrs.frozen(slots=False, eq=False)
class ObservedRegion(RegionSlots):
    """A region, the processes of its slots, and the evidence about it.

    Attributes:
        container: The container.
        row: Its row in the observation's table.
        evidence: The evidence about it.
    """

    container: Container
    row: int
    evidence: RegionEvidence

    @property
    def identity(self) -> FileIdentity:
        """The region's file."""
        assert self.container.identity is not None  # noqa: S101 (it was read)
        return self.container.identity

    @property
    def finding(self) -> Callable[..., Finding]:
        """Makes findings of its container, as `findings.finding` does."""
        return partial(finding, container=self.container)

    @property
    def users(self) -> tuple[HostProcess, ...]:
        """The live processes that use the region, with a slot or without."""
        return (*self.processes.alive.values(), *self.processes.unlisted)


@attrs.define(slots=False)
class DoctorContext:
    """One observation of a node, and what it proves about several regions together.

    Attributes:
        observation: The observation, with its slots.
        join: Its slots and processes, with the driver's figures if there are any.
    """

    observation: Observation
    join: Join

    @property
    def processes(self) -> ProcessView:
        """The processes of the node."""
        return self.observation.processes

    @property
    def evidence(self) -> NodeEvidence:
        """The evidence about suspects; none without the slots."""
        return self.observation.evidence or NodeEvidence()

    def regions(self) -> Iterator[ObservedRegion]:
        """Yield the regions with something to examine, one at a time.

        A container can fill all slots of its own.
        """
        seen, evidence = self.observation, self.evidence
        rows = suspicious_rows(seen) | self.differing
        if not self.writer_may_run:
            rows |= rows_for_feedback(seen.table)
        for row in sorted(rows):
            table, at, processes = seen.table, row, seen.proved().proved.get(row)
            if (large := evidence.large.get(row)) is not None:
                table, at, processes = large.table, 0, large.processes
            if processes is not None and table.regions.code[at] == 0:
                own = evidence.regions.get(row, _IN_ORDER)
                snapshot = table.snapshot(at)
                yield ObservedRegion(snapshot, processes, seen.containers[row], row, own)

    # ---- evidence --------------------------------------------------------------------------------

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
    def cards(self) -> dict[str | None, Card]:
        """The limits on each card, by uuid."""
        return cards(self.observation)

    @cached_property
    def differing(self) -> set[int]:
        """Rows of regions that count much more or less than the driver, or nothing of its load."""
        join, table, found = self.join, self.observation.table, set[int]()
        counted, load = table.usages.memory_used_bytes, table.usages.sm_util_percent
        memory, busy = join.figures("memory_used_bytes"), join.figures("sm_util_percent")
        pairs = zip(join.index.slots, join.index.usages, join.rows_of_pairs, strict=True)
        for slot, usage, row in pairs if join.has_driver else ():
            if row != NO_ROW and (
                abs(counted[usage] - memory[row]) > UNCOUNTED_BYTES
                or (busy[row] and not load[usage])
            ):
                found.add(table.processes.region[slot])
        return found

    def driver_rows(self, used: ObservedRegion) -> list[NodeProcess]:
        """The live processes with the driver's figures; empty if these do not differ."""
        rows = self.join.slot_rows(used.row) if used.row in self.differing else ()
        return [row for row in rows if row.state == "alive"]

    def competes(self, used: ObservedRegion) -> bool:
        """Return whether live processes of another region use one of a region's GPUs."""
        uuids = {device.uuid for device in used.snapshot.devices} - {None}
        table = self.observation.table
        return any(
            found.alive
            and row != used.row
            and any(table.devices.uuid(each) in uuids for each in devices_of(table, row))
            for row, found in self.observation.proved().proved.items()
        )

    @cached_property
    def writer_may_run(self) -> bool:
        """Whether a program that writes launch marks and SM switches runs, or may run unseen."""
        # A process of a pod that has a region of its own is no monitor.
        rows = zip(self.observation.table.regions.code, self.observation.containers, strict=True)
        tenants = {each.pod_uid for code, each in rows if code == 0} - {None}
        hidden = any(
            gap.container is None or gap.container.pod_uid not in tenants
            for gap in self.processes.gaps
        )
        return (
            hidden
            or not self.processes.is_complete
            or self.evidence.has_feedback
            or bool(find_monitors(self.processes, self.observation.all_containers))
        )

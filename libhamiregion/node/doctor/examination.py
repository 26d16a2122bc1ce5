"""What the checks of the doctor look at: one look at the node, and what earlier looks saw."""

from __future__ import annotations

import time
from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import attrs

from libhamiregion.node.node_lock import LockUse, is_node_locked
from libhamiregion.node.writers import find_monitors

from .memory import memory_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from libhamiregion.models import ProcessUsage, RegionSnapshot
    from libhamiregion.node.containers import Container
    from libhamiregion.node.matching import HostProcess, RegionProcesses, SlotMatch, SlotState
    from libhamiregion.node.node import Node
    from libhamiregion.node.node_process import NodeProcess
    from libhamiregion.node.node_snapshot import NodeSnapshot
    from libhamiregion.node.observation import Gap
    from libhamiregion.node.views import ContainerView, OmittedSlots
    from libhamiregion.region import Region

#: What a container goes by while it is looked at again: its own object may be another one by then.
ContainerKey: TypeAlias = "tuple[str | None, str | None, tuple[int, ...]]"

_LOW_HALF = 0xFFFFFFFF


def key_of(container: Container | None) -> ContainerKey:
    """What a container goes by."""
    if container is None:
        return None, None, ()
    return container.directory, container.region_path, container.pids


def is_writer_known(node: Node) -> bool:
    """Whether somebody writes launch marks and SM switches, or may do so unseen."""
    return (
        not node.processes.is_complete
        or bool(find_monitors(node))
        or is_node_locked(node.directories, LockUse.FEEDBACK)
    )


def memory_bytes(usage: ProcessUsage) -> int:
    """What a slot counts, over all devices."""
    return sum(device.memory_used_bytes for device in usage.devices)


@attrs.frozen(slots=False, eq=False)
class UsedRegion:
    """A container whose region could be read, with the processes behind it."""

    container: Container
    region: Region
    snapshot: RegionSnapshot
    processes: RegionProcesses
    omitted: tuple[OmittedSlots, ...] = ()

    @property
    def has_seqlock(self) -> bool:
        """Whether processes of the region remember where their slots are (HAMi 2.8.1 and later)."""
        return self.snapshot.layout.has_seqlock

    @cached_property
    def slots(self) -> tuple[tuple[ProcessUsage, SlotMatch], ...]:
        """What stands in a slot, and whose it is; a view leaves most of a crowded table out."""
        return tuple(zip(self.snapshot.processes, self.processes.slots, strict=True))

    @property
    def slot_count(self) -> int:
        """All slots in use."""
        return len(self.slots) + sum(each.slots for each in self.omitted)

    def left_out(self, state: SlotState) -> tuple[int, Counter[int]]:
        """How many slots of a state a view has left out, and what they count by device."""
        slots, sums = 0, Counter[int]()
        for each in self.omitted:
            if each.state == state:
                slots += each.slots
                sums.update(each.memory_used_bytes)
        return slots, sums

    @cached_property
    def alive(self) -> tuple[tuple[ProcessUsage, HostProcess], ...]:
        """Live processes with the slot that they write to."""
        # Of two slots with one pid the last is the original, the other one a copy of it.
        last = {usage.pid: (usage, match.process) for usage, match in self.slots}
        return tuple((usage, process) for usage, process in last.values() if process is not None)

    @cached_property
    def users(self) -> tuple[HostProcess, ...]:
        """The live processes that use the region, with a slot or without."""
        return (*self.processes.alive.values(), *self.processes.unlisted)


@attrs.define(slots=False)
class Examination:
    """One look at a node.

    Attributes:
        node: The node.
        views: Its containers.
        rows: `node_processes` of these views; empty where the driver was not asked.
        stuck_s: How long something must have stood still to be called stuck.
        snapshot: All regions; None reads them when that is needed.
        gaps: What the observation could not look at.
        suspects: What may be stuck and has not been seen for long enough, with a function that
            tells whether it has moved since.
    """

    node: Node
    views: tuple[ContainerView, ...]
    rows: tuple[NodeProcess, ...]
    stuck_s: float
    snapshot: NodeSnapshot | None = None
    gaps: tuple[Gap, ...] = ()
    suspects: dict[Hashable, Callable[[], bool]] = attrs.field(factory=dict)
    _asked: set[Hashable] = attrs.field(factory=set)

    @cached_property
    def used(self) -> tuple[UsedRegion, ...]:
        """The containers whose region could be read."""
        return tuple(
            UsedRegion(
                view.container, view.container.region, view.snapshot, view.processes, view.omitted
            )
            for view in self.views
            if view.container.region is not None
            and view.snapshot is not None
            and view.processes is not None
        )

    @cached_property
    def semaphores(self) -> dict[int, int]:
        """The semaphore's value by the container's `id`."""
        whole = self.snapshot or self.node.snapshot()
        regions = whole.table.regions
        return {
            id(container): word & _LOW_HALF
            for container, word, code in zip(
                whole.containers, regions.semaphore, regions.code, strict=True
            )
            if code == 0
        }

    @cached_property
    def proved(self) -> dict[int, tuple[Container, int]]:
        """Host pid -> container and pid, of all live processes with a slot.

        Of containers that are not looked at, as of the last `Node.slots`.
        """
        return self.node.proved_processes() | {
            process.pid: (used.container, pid)
            for used in self.used
            for pid, process in used.processes.alive.items()
        }

    def rows_of(self, used: UsedRegion) -> list[NodeProcess]:
        """The rows of a container's processes that are alive and have a slot."""
        return self._alive_rows.get(id(used.container), [])

    @cached_property
    def _alive_rows(self) -> dict[int, list[NodeProcess]]:
        found: dict[int, list[NodeProcess]] = {}
        for row in self.rows:
            if row.state == "alive":
                found.setdefault(id(row.container), []).append(row)
        return found

    def is_unused(self, used: UsedRegion) -> bool:
        """Whether it is certain that nobody uses a region."""
        processes = self.node.processes
        return (
            processes.is_complete
            and not processes.hides_users_of(used.container.pod_uid)
            and not processes.mappers(*processes.identity(used.region), writable=True)
        )

    @cached_property
    def writer_may_run(self) -> bool:
        """Whether somebody may run who writes launch marks and SM switches."""
        if is_writer_known(self.node):
            return True
        processes = self.node.processes
        # What runs in a pod with a region of its own is no monitor; whatever else hides may be one.
        tenants = {used.container.pod_uid for used in self.used} - {None}
        if any(
            gap.container is None or gap.container.pod_uid not in tenants for gap in processes.gaps
        ):
            return True
        own = processes.visibility.own_pid
        # A process that can be neither matched nor ruled out counts as the writer.
        return any(
            process.pid != own
            for used in self.used
            for process in processes.mappers(*processes.identity(used.region), writable=True)
            if process not in used.users
        )

    # ---- what stands still -----------------------------------------------------------------------

    def unchanged_for_s(
        self, what: Hashable, value: Hashable, has_moved: Callable[[], bool]
    ) -> float | None:
        """For how long something has had this value at every look; None if not for long enough.

        It is a suspect then. What is not asked about any more is forgotten.

        Args:
            what: What it is.
            value: What it looks like now.
            has_moved: Tells whether it has looked otherwise since.
        """
        self._asked.add(what)
        standing = memory_of(self.node).standing
        now_s = time.monotonic()
        seen = standing.get(what)
        if seen is None or seen[0] != value:
            seen = standing[what] = (value, now_s)
        if seen[1] == now_s or now_s - seen[1] < self.stuck_s:
            self.suspects[what] = has_moved
            return None
        return now_s - seen[1]

    def forget(self, what: Hashable) -> None:
        """Forget the value of what has changed since."""
        memory_of(self.node).standing.pop(what, None)
        self.suspects.pop(what, None)

    def remember(self) -> None:
        """Keep what this look has asked about for the next one, and forget all the rest."""
        standing = memory_of(self.node).standing
        for what in standing.keys() - self._asked:
            del standing[what]

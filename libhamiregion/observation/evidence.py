"""Evidence: what a reader found out about regions and files under suspicion, as plain values."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from libhamiregion.lock import LockState
    from libhamiregion.models import ProcessUsage, RegionSnapshot
    from libhamiregion.tables import RegionTable

    from .containers import Container
    from .processes import FileIdentity, HostProcess, RegionProcesses, SlotMatch


@attrs.frozen
class RegionEvidence:
    """Evidence about one region; the defaults are those of a region that is in order.

    Attributes:
        lock: The lock, if it was taken or damaged at every read, and by the same owner.
        startup_value: Of the start-up semaphore; 1 is free.
        pidless_slots: Slots below the count with pid 0, emptied ones included, in layouts without
            seqlocks.
        seqlocks: Slot to its seqlock, of those that had the same odd value at every read.
        slots_behind: Pid of a live process to the slot with its pid behind those that count.
        moved: Pids of live processes that a repair would count in the slot that they write to.
        idle: Pids of live processes of which it is not known which slot they write to.
        unproved: Pids in slots for which there was no time.
        burst: Whether `Region.burst` is on.
        size_bytes: The file's, if it is too long for its layout.
    """

    lock: LockState | None = None
    startup_value: int = 1
    pidless_slots: int = 0
    seqlocks: Mapping[int, int] = attrs.field(factory=dict)
    slots_behind: Mapping[int, int] = attrs.field(factory=dict)
    moved: tuple[int, ...] = ()
    idle: tuple[int, ...] = ()
    unproved: tuple[int, ...] = ()
    burst: bool = False
    size_bytes: int = 0


@attrs.frozen
class LostFile:
    """A file that processes map as a region, and that is none of the node's open regions.

    Attributes:
        identity: Device and inode as maps prints them.
        path: The file as its first process sees it now, raw and hostile.
        deleted: Whether that name is gone.
        pid: The first process, which maps the fewest regions.
        container: The container in whose directory it lies, unreadable; None if in none.
        size_bytes: Its size there.
    """

    identity: FileIdentity
    path: str
    deleted: bool
    pid: int
    container: Container | None = None
    size_bytes: int = 0


@attrs.frozen(slots=False, eq=False)
class RegionSlots:
    """A region with the processes of its slots.

    Attributes:
        snapshot: Its content.
        processes: The processes of its slots, and others that map it.
    """

    snapshot: RegionSnapshot
    processes: RegionProcesses

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


@attrs.frozen(eq=False)
class LargeRegion:
    """A region whose slots do not fit in the columns of all regions.

    Attributes:
        table: Its own columns, of one region.
        processes: The processes of its slots.
    """

    table: RegionTable
    processes: RegionProcesses


@attrs.frozen
class NodeEvidence:
    """Evidence about a node.

    Attributes:
        regions: Row of ``table.regions`` to the evidence about it, if there is any.
        large: Row to the content of regions that are too large for the columns: some at each
            observation, in turn.
        lost_files: Files that processes map and that were deleted, or cannot be read.
        existing_pids: Host pids in slots of other processes that exist.
        has_feedback: Whether an agent has a root locked to write launch marks and SM switches;
            looked up if a region has such a mark or switch.
    """

    regions: Mapping[int, RegionEvidence] = attrs.field(factory=dict)
    large: Mapping[int, LargeRegion] = attrs.field(factory=dict)
    lost_files: tuple[LostFile, ...] = ()
    existing_pids: frozenset[int] = frozenset()
    has_feedback: bool = False

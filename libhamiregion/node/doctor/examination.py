"""What the checks of the doctor look at: one look at the node, and what earlier looks saw."""

from __future__ import annotations

import os
import threading
import time
import weakref
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import attrs

from libhamiregion.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from libhamiregion.models import ProcessUsage, RegionSnapshot
    from libhamiregion.node.containers import Container
    from libhamiregion.node.matching import HostProcess, RegionProcesses, SlotMatch
    from libhamiregion.node.node import Node
    from libhamiregion.node.nvml import NvmlSample
    from libhamiregion.node.usage import NodeProcess
    from libhamiregion.node.views import ContainerView, OmittedSlots
    from libhamiregion.region import Region

#: What a container goes by while it is looked at again: its own object may be another one by then.
ContainerKey: TypeAlias = "tuple[str | None, str | None, tuple[int, ...]]"

_NAME_LIMIT = 120
_COMMAND_LIMIT = 100
_LISTED_PIDS = 8
_LOW_HALF = 0xFFFFFFFF


def key_of(container: Container | None) -> ContainerKey:
    """What a container goes by."""
    if container is None:
        return None, None, ()
    return container.directory, container.region_path, container.pids


@attrs.frozen(slots=False, eq=False)
class UsedRegion:
    """A container whose region could be read, with the processes behind it."""

    container: Container
    region: Region
    snapshot: RegionSnapshot
    processes: RegionProcesses
    omitted: tuple[OmittedSlots, ...] = ()

    @cached_property
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

    @cached_property
    def alive(self) -> tuple[tuple[ProcessUsage, HostProcess], ...]:
        """Live processes with the slot that they write to."""
        found: dict[int, tuple[ProcessUsage, HostProcess]] = {}
        for usage, match in self.slots:
            # Of two slots with one pid the last is the original, the other one a copy of it.
            if match.process is not None:
                found[usage.pid] = (usage, match.process)
        return tuple(found.values())

    @cached_property
    def users(self) -> tuple[HostProcess, ...]:
        """The live processes that use the region, with a slot or without."""
        return (*self.processes.alive.values(), *self.processes.unlisted)


@attrs.define
class Observations:
    """What earlier looks at a node have seen; it makes the difference between busy and stuck.

    Attributes:
        turn: Held while the node is diagnosed or repaired.
    """

    turn: threading.RLock = attrs.field(factory=threading.RLock)
    _standing: dict[Hashable, tuple[Hashable, float]] = attrs.field(factory=dict)

    def stands_for_s(self, what: Hashable, value: Hashable) -> float:
        """For how long, at least, something has had this value at every look."""
        now = time.monotonic()
        seen = self._standing.get(what)
        if seen is None or seen[0] != value:
            self._standing[what] = (value, now)
            return 0.0
        return now - seen[1]

    def forget(self, what: Hashable) -> None:
        """It has moved."""
        self._standing.pop(what, None)

    def keep_only(self, standing: Iterable[Hashable]) -> None:
        """Forget all the rest."""
        for what in self._standing.keys() - set(standing):
            del self._standing[what]


_remembering = threading.Lock()
_observations: weakref.WeakKeyDictionary[Node, Observations] = weakref.WeakKeyDictionary()


def _forget_in_child() -> None:
    # Another thread of the parent may have been inside, and does not exist in the child.
    global _remembering, _observations  # noqa: PLW0603
    _remembering = threading.Lock()
    _observations = weakref.WeakKeyDictionary()


os.register_at_fork(after_in_child=_forget_in_child)


def observations_of(node: Node) -> Observations:
    """What is remembered of a node between two diagnoses; goes with it."""
    with _remembering:
        return _observations.setdefault(node, Observations())


@attrs.define(slots=False)
class Examination:
    """One look at a node.

    Attributes:
        node: The node.
        views: Its containers.
        observations: What earlier looks saw.
        sample: What the driver said, None if it was not asked.
        rows: `node_processes` of all this; empty without a sample.
        lock_s: How long a lock must have stood still to be called stuck.
        seqlock_s: The same for a seqlock.
        suspects: What may be stuck and has not been seen for long enough, with a function that
            tells whether it has moved since.
        standing: What was looked at for standing still.
        writer_may_run: Whether somebody may write launch marks; None until that is asked.
    """

    node: Node
    views: tuple[ContainerView, ...]
    observations: Observations
    sample: NvmlSample | None
    rows: tuple[NodeProcess, ...]
    lock_s: float
    seqlock_s: float
    suspects: dict[Hashable, Callable[[], bool]] = attrs.field(factory=dict)
    standing: set[Hashable] = attrs.field(factory=set)
    writer_may_run: bool | None = None

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
        whole = self.node.snapshot()
        words = whole.table.regions.semaphore
        codes = whole.table.regions.code
        return {
            id(container): words[row] & _LOW_HALF
            for row, container in enumerate(whole.containers)
            if codes[row] == 0
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

    @cached_property
    def rows_of(self) -> dict[int, list[NodeProcess]]:
        """The rows of a container by its `id`."""
        found: dict[int, list[NodeProcess]] = {}
        for row in self.rows:
            if row.container is not None:
                found.setdefault(id(row.container), []).append(row)
        return found

    def stands_for_s(self, what: Hashable, value: Hashable) -> float:
        """As `Observations.stands_for_s`; what is not asked about any more is forgotten."""
        self.standing.add(what)
        return self.observations.stands_for_s(what, value)


def shown(text: str | None, limit: int = _NAME_LIMIT) -> str:
    """Text from outside, in quotes and escaped."""
    return "'" + printable(text or "", limit=limit) + "'"


def command_of(process: HostProcess | None) -> str:
    """A process's command line in brackets, escaped; empty if it is not known."""
    return "" if process is None else f" ({printable(process.command, limit=_COMMAND_LIMIT)})"


def container_text(container: Container) -> str:
    """Name a container in a sentence."""
    if container.directory is None:
        id_ = "" if container.container_id is None else f" {container.container_id.id[:12]}"
        return f"container{id_} outside the roots"
    return f"container {shown(container.directory_name)} of pod {shown(container.pod_uid)}"


def pids_text(pids: Sequence[int]) -> str:
    """Some pids in a sentence.

    >>> pids_text([7]), pids_text([7, 9]), pids_text(range(10))
    ('pid 7', 'pids 7 and 9', 'pids 0, 1, 2, 3, 4, 5, 6, 7 and 2 more')
    """
    if len(pids) == 1:
        return f"pid {pids[0]}"
    named = [str(pid) for pid in pids[:_LISTED_PIDS]]
    rest = len(pids) - len(named)
    last = f"{rest} more" if rest else named.pop()
    return f"pids {', '.join(named)} and {last}"


def count_text(count: int, noun: str) -> str:
    """A number of things.

    >>> count_text(1, "slot"), count_text(3, "process")
    ('1 slot', '3 processes')
    """
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun}{'es' if noun.endswith('s') else 's'}"

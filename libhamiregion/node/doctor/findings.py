"""Findings, and the context that the checks of the doctor examine."""

from __future__ import annotations

import shlex
import threading
import time
import weakref
from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import attrs

from libhamiregion.node.node_lock import LockUse, is_node_locked
from libhamiregion.node.writers import find_monitors
from libhamiregion.text import printable

from .catalogue import FindingKind, Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from libhamiregion.models import ProcessUsage, RegionSnapshot
    from libhamiregion.node.containers import Container
    from libhamiregion.node.matching import HostProcess, RegionProcesses, SlotMatch, SlotState
    from libhamiregion.node.node import Node
    from libhamiregion.node.node_process import NodeProcess
    from libhamiregion.node.observation import Observation
    from libhamiregion.node.views import ContainerView, OmittedSlots
    from libhamiregion.region import Region

__all__ = ["Finding", "FindingKind", "Severity", "finding"]

_TEXT_LIMIT = 500
_NAME_LIMIT = 120
_COMMAND_LIMIT = 100
_LISTED_PIDS = 8


@attrs.frozen
class Finding:
    """One thing that is wrong.

    All texts are printable, what came from outside is escaped; each has at most 500 characters.

    Attributes:
        kind: What it is.
        severity: How bad.
        container: The container that has it; None for the node as a whole.
        device: Index of the device in the container's region; None if it is not about one.
        pid: The process in the container's pid namespace; None if it is not about one.
        summary: One line with the numbers that matter.
        evidence: What it is told by.
        consequence: What comes of it.
        advice: What to do.
        repairable: Whether `repair` mends it.
        cause: Where a kind has several causes, a word for this one.
    """

    kind: FindingKind
    severity: Severity
    container: Container | None
    device: int | None
    pid: int | None
    summary: str
    evidence: str
    consequence: str
    advice: str
    repairable: bool
    cause: str | None = None

    @property
    def paragraph(self) -> str:
        """What, evidence, consequence and what to do, as one paragraph."""
        what = self.summary[:1].upper() + self.summary[1:]
        return (
            f"{_ended(what)} Evidence: {_ended(self.evidence)}"
            f" Consequence: {_ended(self.consequence)} What to do: {_ended(self.advice)}"
        )


def finding(
    kind: FindingKind,
    container: Container | None,
    summary: str,
    evidence: str,
    *,
    device: int | None = None,
    pid: int | None = None,
    cause: str | None = None,
    severity: Severity | None = None,
    consequence: str | None = None,
    advice: str | None = None,
    repairable: bool | None = None,
) -> Finding:
    """Make a finding; what is not given comes from the catalogue."""
    general = kind.explanation
    wanted = general.advice if advice is None else advice
    return Finding(
        kind=kind,
        severity=general.severity if severity is None else severity,
        container=container,
        device=device,
        pid=pid,
        summary=_cut(summary),
        evidence=_cut(evidence),
        consequence=_cut(general.consequence if consequence is None else consequence),
        # A command that is copied must not repair the whole machine.
        advice=_cut(wanted.replace("--root DIR", _where(container))),
        repairable=general.repair is not None if repairable is None else repairable,
        cause=cause,
    )


def _where(container: Container | None) -> str:
    """The options that choose a container's root."""
    if container is None:
        return "--root DIR"
    if container.directory is None:
        return "--outside"
    root = container.directory.rpartition("/")[0]
    return f"--root {shlex.quote(printable(root, limit=_TEXT_LIMIT // 2))}"


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT_LIMIT else f"{text[: _TEXT_LIMIT - 1]}…"


def _ended(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


# ---- Words --------------------------------------------------------------------------------------


def shown(text: str | None, limit: int = _NAME_LIMIT) -> str:
    """Text from outside, in quotes and escaped."""
    return "'" + printable(text or "", limit=limit) + "'"


def command_of(process: HostProcess | None) -> str:
    """A process's command line in brackets, escaped; empty if it is not known."""
    return "" if process is None else f" ({printable(process.command, limit=_COMMAND_LIMIT)})"


def pids_text(pids: Sequence[int], more: int = 0) -> str:
    """Some pids in a sentence, and how many more there are that are not known.

    >>> pids_text([7]), pids_text([7, 9]), pids_text(range(10), 5), pids_text([], 12)
    ('pid 7', 'pids 7 and 9', 'pids 0, 1, 2, 3, 4, 5, 6, 7 and 7 more', '12 pids')
    """
    named = [str(pid) for pid in pids[:_LISTED_PIDS]]
    rest = len(pids) - len(named) + more
    if not named:
        return count_text(rest, "pid")
    if len(named) == 1 and not rest:
        return f"pid {named[0]}"
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


def only_or_none(items: Sequence[int]) -> int | None:
    """The one there is; None where there are several."""
    return items[0] if len(items) == 1 else None


# ---- context ---------------------------------------------------------------------------------


#: What identifies a container across observations: its object may be another one by then.
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
class DoctorContext:
    """What the checks examine: one observation of a node, and what earlier ones have shown.

    Attributes:
        node: The node.
        observation: The observation.
        views: Its containers.
        rows: Its processes; empty without the driver.
        stuck_s: How long something must have stood still to be called stuck.
        suspects: What may be stuck and has not been seen for long enough, with a function that
            tells whether it has moved since.
    """

    node: Node
    observation: Observation
    views: tuple[ContainerView, ...]
    rows: tuple[NodeProcess, ...]
    stuck_s: float
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
        whole = self.observation.snapshot
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
        """Host pid -> container and pid, of all live processes with a slot."""
        return {
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
        last_values = memory_of(self.node).last_values
        now_s = time.monotonic()
        seen = last_values.get(what)
        if seen is None or seen[0] != value:
            seen = last_values[what] = (value, now_s)
        if seen[1] == now_s or now_s - seen[1] < self.stuck_s:
            self.suspects[what] = has_moved
            return None
        return now_s - seen[1]

    def forget(self, what: Hashable) -> None:
        """Forget the value of what has changed since."""
        memory_of(self.node).last_values.pop(what, None)
        self.suspects.pop(what, None)

    def remember(self) -> None:
        """Keep what this look has asked about for the next one, and forget all the rest."""
        last_values = memory_of(self.node).last_values
        for what in last_values.keys() - self._asked:
            del last_values[what]


@attrs.frozen(eq=False)
class DoctorMemory:
    """What is kept of one node.

    Attributes:
        lock: Held while the node is diagnosed or repaired.
        last_values: What has stood still, with its value and since when (monotonic clock).
    """

    lock: threading.RLock = attrs.Factory(threading.RLock)
    last_values: dict[Hashable, tuple[Hashable, float]] = attrs.Factory(dict)


_adding = threading.Lock()
_memories: weakref.WeakKeyDictionary[Node, DoctorMemory] = weakref.WeakKeyDictionary()


def memory_of(node: Node) -> DoctorMemory:
    """What is kept of a node, for as long as that lives."""
    with _adding:
        return _memories.setdefault(node, DoctorMemory())

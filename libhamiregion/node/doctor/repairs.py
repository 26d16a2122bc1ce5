"""Mending what the doctor found, where there is proof."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from typing import TYPE_CHECKING

import attrs

from libhamiregion.errors import LockTimeout, RegionError
from libhamiregion.text import printable
from libhamiregion.units import format_size

from .examination import UsedRegion, key_of, observations_of, pids_text
from .findings import FindingKind
from .slots import memory_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from collections.abc import Container as Collection

    from libhamiregion.lock import LockRecovery
    from libhamiregion.models import ProcessUsage
    from libhamiregion.node.containers import Container
    from libhamiregion.node.matching import HostProcess
    from libhamiregion.node.node import Node
    from libhamiregion.region import Region
    from libhamiregion.slot import SlotChange, SlotRepair

    from .examination import ContainerKey
    from .findings import Finding

_LOCK = {
    FindingKind.LOCK_HELD_BY_DEAD,
    FindingKind.LOCK_OWNERLESS,
    FindingKind.SEMAPHORE_IMPOSSIBLE,
    FindingKind.STARTUP_LOCK_HELD,
}
_SLOTS = {FindingKind.ORPHANED_SLOT, FindingKind.DOUBLED_SLOT}
_HOST_PIDS = {
    FindingKind.HOST_PID_MISSING,
    FindingKind.HOST_PID_IS_CONTAINER_PID,
    FindingKind.HOST_PID_SWAPPED,
    FindingKind.HOST_PID_DEAD,
    FindingKind.HOST_PID_FOREIGN,
}
_DEAD = {
    FindingKind.DEAD_PROCESS_COUNTED,
    FindingKind.SEQLOCK_STUCK,
    FindingKind.SLOT_WITHOUT_PID,
}
# The lock comes first, all others need it. Orphans come before host pids, which then go into the
# slots that their processes write to.
_STAGES = (_LOCK, _SLOTS, _HOST_PIDS, _DEAD)
# Nothing was wrong any more: mended, and nothing was done.
_ALREADY: tuple[str, ...] = ()
_TRIES = 3
# Together they fit in a line of a log.
_ACTIONS_LIMIT = 4
# Each costs a descriptor.
_OPEN_LIMIT = 64
# A container can have a thousand wrong host pids, and give its lock just before each timeout.
_TIMEOUTS_PER_REGION = 10


@attrs.frozen
class Repair:
    """What was done about one finding. All texts are printable.

    Attributes:
        finding: The finding.
        done: Whether it is mended; with a dry run, whether it would be.
        actions: What was changed, or would be, one sentence each, the first four of many; empty
            where nothing was wrong any more when it was looked at again.
        error: Why it is not mended; None if it is.
    """

    finding: Finding
    done: bool
    actions: tuple[str, ...] = ()
    error: str | None = None


class _Left(Exception):
    """There is no proof, or no chance; the text says why."""


def repair(
    node: Node,
    findings: Iterable[Finding],
    *,
    dry_run: bool = False,
    timeout_s: float = 1.0,
    lock_watch_s: float = 10.5,
    kinds: Collection[FindingKind] | None = None,
) -> tuple[Repair, ...]:
    """Mend what can be mended with proof: first locks, then slots, host pids and the dead.

    A finding is a reason to look, not to write: everything is proved once more right before it is
    changed, because processes end and pids are used again. Nothing is signalled, no limit, no
    switch and no file's mode is changed. A repair that is killed leaves what the next one mends.

    What dead processes hold is freed for a whole region: all that are proved dead, also those that
    count nothing.

    A region that does not give its lock in time costs one timeout: its other repairs that need it
    fail at once.

    Args:
        node: The node that was diagnosed.
        findings: What `diagnose` returned; those that are not repairable are left out.
        dry_run: Only tell what would be done; no lock is taken and nothing opened for writing.
        timeout_s: How long to wait for a region's lock, each time; ten times that for all its host
            pids together.
        lock_watch_s: How long to watch a lock that nobody has signed for while processes use the
            region; less than 10 s proves nothing then.
        kinds: Only findings of these kinds; None means all.

    Returns:
        One entry per finding, in the order in which they were tried.

    Raises:
        OSError: /proc cannot be listed.

    Threads: may be called from several; diagnoses and repairs of one node take turns.

    Shell: ``hamiregion doctor --repair --root DIR``.
    """
    wanted = [
        finding
        for finding in findings
        if finding.repairable and (kinds is None or finding.kind in kinds)
    ]
    done: list[Repair] = []
    with observations_of(node).turn:
        work = _Work(node, dry_run=dry_run, timeout_s=timeout_s, lock_watch_s=lock_watch_s)
        try:
            for stage in _STAGES:
                now = [finding for finding in wanted if finding.kind in stage]
                work.begin(now)
                done.extend(_attempt(work, finding) for finding in now)
        finally:
            work.close()
    return tuple(done)


def _attempt(work: _Work, finding: Finding) -> Repair:
    steps: dict[FindingKind, Callable[[Finding], tuple[str, ...]]] = {
        **dict.fromkeys(_LOCK, work.give_lock_back),
        **dict.fromkeys(_SLOTS, work.put_slots_right),
        **dict.fromkeys(_HOST_PIDS, work.store_host_pids),
        **dict.fromkeys(_DEAD, work.free_dead),
    }
    try:
        return Repair(finding, done=True, actions=steps[finding.kind](finding))
    except (_Left, RegionError, OSError, ValueError, RuntimeError) as error:
        return Repair(finding, done=False, error=printable(str(error), limit=450))


class _Work:
    """One repair of a node: what is open, and what has been done for a whole region already."""

    def __init__(self, node: Node, *, dry_run: bool, timeout_s: float, lock_watch_s: float) -> None:
        self._node = node
        self._dry_run = dry_run
        self._timeout_s = timeout_s
        self._lock_watch_s = lock_watch_s
        self._open: dict[Container, Region] = {}
        self._freed: dict[Container, dict[int, str]] = {}
        self._put_right: dict[Container, SlotRepair] = {}
        self._busy: dict[Container, str] = {}
        self._stored_for_s: defaultdict[Container, float] = defaultdict(float)
        self._seen: dict[Container, UsedRegion] = {}
        self._known: tuple[Container, ...] = ()
        self._by_key: dict[ContainerKey, Container] = {}

    def begin(self, findings: Iterable[Finding]) -> None:
        """Look at what these findings are about; /proc is read once for all of them."""
        self._seen.clear()
        if any(finding.kind in _HOST_PIDS for finding in findings):
            containers: dict[Container, None] = {}
            for finding in findings:
                with contextlib.suppress(_Left):
                    containers[self._container(finding)] = None
            self._look(containers)

    def close(self) -> None:
        for region in self._open.values():
            region.close()

    # ---- one repair each -------------------------------------------------------------------------

    def give_lock_back(self, finding: Finding) -> tuple[str, ...]:
        container = self._container(finding)
        if self._dry_run:
            return ("would give the region's lock back, or set its semaphore right",)
        unsigned = finding.kind is FindingKind.LOCK_OWNERLESS
        done = self._region(container).recover_lock(
            proc=self._node.proc, watch_s=self._lock_watch_s if unsigned else 0.0
        )
        return _recovery_text(done)

    def put_slots_right(self, finding: Finding) -> tuple[str, ...]:
        container = self._container(finding)
        found = self._moved(container)
        if finding.pid in found.left:
            raise _Left(
                f"process {finding.pid} is idle, or behind an idle one: which of its slots it"
                " writes to cannot be told now"
            )
        if not found.repaired:
            return _ALREADY
        if finding.pid is not None and finding.pid not in found.repaired:
            raise _Left(f"that the slot of process {finding.pid} was moved cannot be proved")
        verb = "would put" if self._dry_run else "put"
        return (f"{verb} the slots of {pids_text(found.repaired)} right",)

    def store_host_pids(self, finding: Finding) -> tuple[str, ...]:
        container = self._container(finding)
        if not self._node.processes.visibility.sees_host:
            raise _Left(f"{self._node.proc} is not the host's, so its pids are not host pids")
        pids = [finding.pid] if finding.pid is not None else self._wrong_host_pids(container)
        actions: list[str] = []
        left: list[str] = []
        for pid in pids:
            try:
                actions += self._store_host_pid(container, pid)
            except (_Left, RegionError) as error:
                left.append(str(error))
                if container in self._busy:
                    break
        if left:
            done = f"{len(actions)} of {len(pids)} host pids were stored; " if actions else ""
            raise _Left(f"{done}{left[0]}")
        return _some(actions)

    def _wrong_host_pids(self, container: Container) -> list[int]:
        known = self._seen.get(container)
        looked = self._look([container]) if known is None else [known]
        return [
            usage.pid
            for used in looked
            for usage, process in used.alive
            if usage.host_pid != process.pid
        ]

    def _store_host_pid(self, container: Container, pid: int) -> tuple[str, ...]:
        for _ in range(_TRIES):
            usage, process = self._proved(container, pid)
            if usage.host_pid == process.pid:
                return _ALREADY
            self._check_lock(container)
            if self._dry_run:
                return (f"would store host pid {process.pid} for process {pid}",)
            change = self._store(container, pid, process.pid)
            # If it ended meanwhile, its slot may be its successor's, which has another host pid.
            if self._node.processes.is_running(process):
                if change.before == change.after:
                    return _ALREADY
                before = change.before or "none"
                return (f"host pid of process {pid}: {before} -> {change.after}",)
            del self._seen[container]
        raise _Left(f"process {pid} comes and goes too fast")

    def free_dead(self, finding: Finding) -> tuple[str, ...]:
        container = self._container(finding)
        if self._dry_run:
            return self._would_free(container)
        if container not in self._freed:
            with self._under_lock(container):
                self._freed[container] = self._free(container)
        freed = self._freed[container]
        if finding.pid is not None and finding.pid in freed:
            return (freed[finding.pid],)
        if finding.pid is not None or not freed:
            self._check_freed(container, finding.pid)
            return _ALREADY
        return _some(list(freed.values()))

    # ---- with proof ------------------------------------------------------------------------------

    def _proved(self, container: Container, pid: int) -> tuple[ProcessUsage, HostProcess]:
        """What stands in a live process's slot, and the process, which runs at this moment."""
        for _ in range(_TRIES):
            known = self._seen.pop(container, None)
            looked = self._look([container]) if known is None else [known]
            if not looked:
                raise _Left("the region cannot be read any more; diagnose again")
            (used,) = looked
            for usage, process in used.alive:
                if usage.pid == pid and self._node.processes.is_running(process):
                    self._seen[container] = used
                    return usage, process
        raise _Left(f"process {pid} cannot be proved alive any more")

    def _look(self, containers: Iterable[Container]) -> list[UsedRegion]:
        looked = []
        for container in containers:
            if container.region is not None:
                with contextlib.suppress(RegionError):
                    looked.append((container, container.region, container.region.snapshot()))
        # After the snapshots: a process that came between must not be taken for dead.
        self._node.processes.refresh()
        used = [
            UsedRegion(container, region, snapshot, self._node.match(container, snapshot))
            for container, region, snapshot in looked
        ]
        self._seen.update((each.container, each) for each in used)
        return used

    def _moved(self, container: Container) -> SlotRepair:
        """The processes of a region whose slots have been put right, or would be."""
        if container not in self._put_right:
            region = self._read_only(container) if self._dry_run else self._region(container)
            with self._under_lock(container):
                self._put_right[container] = region.repair_slots(
                    proc=self._node.proc, dry_run=self._dry_run, timeout_s=self._timeout_s
                )
        return self._put_right[container]

    def _store(self, container: Container, pid: int, host_pid: int) -> SlotChange:
        most_s = self._timeout_s * _TIMEOUTS_PER_REGION
        if 0 < most_s <= self._stored_for_s[container]:
            raise _Left(f"the region's other host pids have taken more than {most_s:g} s")
        began_s = time.monotonic()
        with self._under_lock(container):
            change = self._region(container).set_host_pid(pid, host_pid, timeout_s=self._timeout_s)
        self._stored_for_s[container] += time.monotonic() - began_s
        return change

    def _free(self, container: Container) -> dict[int, str]:
        freed = self._region(container).reap(proc=self._node.proc, timeout_s=self._timeout_s)
        return {
            slot.pid: f"slot of dead process {slot.pid} {'removed' if slot.removed else 'emptied'},"
            f" {format_size(slot.memory_bytes)} no longer counted"
            for slot in freed
        }

    def _would_free(self, container: Container) -> tuple[str, ...]:
        return _some(
            f"would free the slot of dead process {usage.pid}, {format_size(memory_bytes(usage))}"
            for used in self._look([container])
            for usage, match in used.slots
            if match.state == "dead" and (memory_bytes(usage) or not usage.settled)
        )

    def _check_freed(self, container: Container, pid: int | None) -> None:
        for used in self._look([container]):
            for usage, match in used.slots:
                asked = pid is None or usage.pid == pid
                if asked and match.state != "alive" and memory_bytes(usage):
                    raise _Left(f"process {usage.pid} cannot be proved dead; its slot was left")

    # ---- regions ---------------------------------------------------------------------------------

    def _check_lock(self, container: Container) -> None:
        if container in self._busy:
            raise _Left(self._busy[container])

    @contextlib.contextmanager
    def _under_lock(self, container: Container) -> Iterator[None]:
        """Around what takes a region's lock; where it was not given once, nothing waits again."""
        self._check_lock(container)
        try:
            yield
        except LockTimeout as error:
            self._busy[container] = str(error)
            raise

    def _container(self, finding: Finding) -> Container:
        """The container as the node has it now."""
        containers = self._node.containers
        if containers is not self._known:
            self._known = containers
            self._by_key = {key_of(each): each for each in containers}
        container = self._by_key.get(key_of(finding.container))
        if container is not None and container.region is not None and not container.region.closed:
            return container
        raise _Left("the container, or its region, is not there any more; diagnose again")

    def _read_only(self, container: Container) -> Region:
        assert container.region is not None  # noqa: S101 (`_container` has seen it)
        return container.region

    def _region(self, container: Container) -> Region:
        if container not in self._open:
            if len(self._open) >= _OPEN_LIMIT:
                self._open.pop(next(iter(self._open))).close()
            self._open[container] = self._node.open(container)
        return self._open[container]


def _some(actions: Iterable[str]) -> tuple[str, ...]:
    """The first few: a region can need a thousand."""
    every = list(actions)
    more = len(every) - _ACTIONS_LIMIT
    return (*every[:_ACTIONS_LIMIT], f"and {more} more") if more > 0 else tuple(every)


def _recovery_text(done: LockRecovery) -> tuple[str, ...]:
    told = (
        ("the dead owner's lock was given back", done.dead_owner),
        ("the lock that nobody had signed for was given back", done.ownerless),
        ("the semaphore was set right", done.impossible_value),
        ("the start-up semaphore was set right", done.postinit),
    )
    return tuple(words for words, was_done in told if was_done)

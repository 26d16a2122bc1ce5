"""Repair what the doctor found, if there is proof."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import attrs

from libhamiregion.errors import LockTimeout, RegionError
from libhamiregion.node.evidence import gather
from libhamiregion.node.suspects import match_anew
from libhamiregion.observation.evidence import RegionSlots
from libhamiregion.text import printable
from libhamiregion.units import format_size

from .context import memory_bytes
from .findings import FindingKind, key_of, pids_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from libhamiregion.evidence import Evidence
    from libhamiregion.node.node import Node
    from libhamiregion.observation.containers import Container
    from libhamiregion.region import Region

    from .findings import ContainerKey, Finding

_TRIES = 3
# Any process may hold these: all have to be asked.
_UNSIGNED = frozenset({"startup", "ownerless"})
# Together they fit in a line of a log.
_ACTIONS_LIMIT = 4
# Locks without a signature that one call watches; the others are left for the next one.
_WATCHED_LIMIT = 6


@attrs.frozen
class Repair:
    """What was done about one finding. All texts are printable.

    Attributes:
        finding: The finding.
        done: Whether it is repaired; with a dry run, whether it would be.
        actions: What was changed, or would be, one sentence each, the first four of many; empty if
            nothing was wrong any more.
        error: Why it is not repaired; None if it is.
    """

    finding: Finding
    done: bool
    actions: tuple[str, ...] = ()
    error: str | None = None


class _NotRepaired(Exception):
    """There is no proof, or no time; the text says why."""


def repair(
    node: Node,
    findings: Iterable[Finding],
    *,
    dry_run: bool = False,
    timeout_s: float = 1.0,
    lock_watch_s: float = 10.5,
    budget_s: float = 10.0,
) -> tuple[Repair, ...]:
    """Repair what can be repaired with proof, region by region: the lock, then slots and host pids.

    Proof is taken again right before each write, because processes end and pids are used again. No
    process is signalled, and no limit, switch or file mode is changed. A repair that is killed
    leaves a region that the next one repairs.

    Slots are freed for a whole region: those of all processes that are proved dead.

    A region that does not give its lock in time costs one timeout. The regions share `budget_s`.
    Locks without a signature come last, six at most. Repairs that ran out of time say so.

    Args:
        node: The node that was diagnosed.
        findings: What `diagnose` returned; those that are not repairable are left out.
        dry_run: Only list the repairs; no lock is taken and nothing opened for writing.
        timeout_s: How long to wait for a region's lock, each time.
        lock_watch_s: How long to watch a lock without a signature while processes use the region;
            less than 10 s proves nothing then.
        budget_s: How long all regions together may take, without the watching of locks.

    Returns:
        One entry per finding, region by region, in the order in which they were tried.

    Raises:
        OSError: /proc cannot be listed.

    Threads: may be called from several.

    Shell: ``hamiregion doctor --repair --root DIR``.
    """
    by_key = {key_of(each): each for each in node.containers}
    regions: dict[ContainerKey, list[Finding]] = {}
    repairable = [each for each in findings if each.repairable]
    for each in sorted(repairable, key=lambda each: ORDER.index(each.kind)):
        regions.setdefault(key_of(each.container), []).append(each)
    slow = [key for key in regions if not dry_run and any(map(_is_unsigned, regions[key]))]
    done: list[Repair] = []

    def attempt(key: ContainerKey, share_s: float) -> None:
        container = by_key.get(key)
        if container is None or container.region is None or container.region.closed:
            error = "the container, or its region, is gone; diagnose again"
            done.extend(Repair(each, done=False, error=error) for each in regions[key])
            return
        work = _RegionRepair(node, container, share_s, dry_run, timeout_s, lock_watch_s)
        with contextlib.closing(work):
            done.extend(map(work.attempt, regions[key]))

    deadline_s = time.monotonic() + budget_s
    quick = [key for key in regions if key not in slow]
    for number, key in enumerate(quick):
        attempt(key, (deadline_s - time.monotonic()) / (len(quick) - number))
    for number, key in enumerate(slow):
        attempt(key, lock_watch_s + budget_s if number < _WATCHED_LIMIT else 0.0)
    return tuple(done)


@attrs.define(eq=False)
class _RegionRepair:
    """The repair of one region. Its file is opened for writing by the first write."""

    _node: Node
    _container: Container
    _share_s: float
    _dry_run: bool
    _timeout_s: float
    _watch_s: float
    _began_s: float = attrs.field(factory=time.monotonic)
    _writable: Region | None = None
    # The lock was not given in time.
    _busy: LockTimeout | None = None
    _freed: dict[int, str] | None = None

    def close(self) -> None:
        """Close the file."""
        if self._writable is not None:
            self._writable.close()

    @property
    def _lock_timeout_s(self) -> float:
        """How long to wait for the lock this time.

        Raises:
            _NotRepaired: The region has had its share.
        """
        left_s = self._began_s + self._share_s - time.monotonic()
        if left_s <= 0:
            share = f"{max(0.0, self._share_s):.2g} s"
            raise _NotRepaired(f"the container has had its share of time, {share}; repair again")
        return min(self._timeout_s, left_s)

    @property
    def _region(self) -> Region:
        if self._writable is None:
            self._writable = self._node.open(self._container)
        return self._writable

    def _evidence(self, region: Region, *, everyone: bool = False) -> Evidence:
        """Gather evidence now.

        Raises:
            RegionError: The region cannot be read.
            OSError: /proc cannot be listed.
        """
        found = gather(self._node.processes, {region: self._container}, everyone=everyone)
        return found.get(region) or region.evidence()

    def _read_slots(self) -> RegionSlots:
        """Read the region and its processes now.

        Raises:
            RegionError: The region cannot be read.
            OSError: /proc cannot be listed.
        """
        region = self._container.region
        assert region is not None  # noqa: S101 (`repair` has checked it)
        snapshot = region.snapshot()
        pids = [each.pid for each in snapshot.processes]
        processes = match_anew(self._node, {self._container: pids})[self._container]
        return RegionSlots(snapshot, processes)

    def attempt(self, finding: Finding) -> Repair:
        """Repair one finding, or say why not."""
        step = _STEPS[finding.kind]
        try:
            if self._busy is not None and step is not _RegionRepair.free_lock:
                raise self._busy
            actions = step(self, finding)
        except (_NotRepaired, RegionError, OSError, ValueError, RuntimeError) as error:
            if isinstance(error, LockTimeout):
                self._busy = error
            return Repair(finding, done=False, error=printable(str(error), limit=450))
        more = len(actions) - _ACTIONS_LIMIT
        if more > 0:
            actions = [*actions[:_ACTIONS_LIMIT], f"and {more} more"]
        return Repair(finding, done=True, actions=tuple(actions))

    def free_lock(self, finding: Finding) -> list[str]:
        """Free a lock, or set a semaphore right."""
        if self._dry_run:
            return ["would free the region's lock, or set its semaphore right"]
        watches = self._lock_timeout_s and _is_unsigned(finding)
        done = self._region.recover_lock(
            evidence=self._evidence(self._region, everyone=finding.cause in _UNSIGNED),
            watch_s=self._watch_s if watches else 0.0,
        )
        steps = {
            "the dead owner's lock was freed": done.dead_owner,
            "the lock without a signature was freed": done.ownerless,
            "the semaphore was set right": done.impossible_value,
            "the start-up semaphore was set right": done.postinit,
        }
        return [words for words, was_done in steps.items() if was_done]

    def repair_slots(self, finding: Finding) -> list[str]:
        """Have a live process count once, in the slot that it writes to."""
        region = self._container.region if self._dry_run else self._region
        assert region is not None  # noqa: S101 (`repair` has checked it)
        found = region.repair_slots(
            evidence=self._evidence(region),
            dry_run=self._dry_run,
            timeout_s=self._lock_timeout_s,
        )
        if finding.pid in found.left:
            raise _NotRepaired(
                f"process {finding.pid} is idle, or behind an idle one: which of its slots it"
                " writes to is not known"
            )
        if finding.pid not in found.repaired:
            return []
        verb = "would put" if self._dry_run else "put"
        return [f"{verb} the slots of {pids_text(found.repaired)} right"]

    def store_host_pids(self, finding: Finding) -> list[str]:
        """Store the proved host pids of a process, or of all that have a wrong one."""
        processes = self._node.processes
        if not processes.view.visibility.sees_host:
            raise _NotRepaired(f"{self._node.proc} is not the host's: its pids are not host pids")
        actions: list[str] = []
        # A process can end at any moment; its slot may be its successor's then.
        for _ in range(_TRIES):
            alive = [
                (usage, process)
                for usage, process in self._read_slots().alive
                if finding.pid in {None, usage.pid} and not processes.ended([process])
            ]
            wrong = [(usage, process) for usage, process in alive if usage.host_pid != process.pid]
            if finding.pid is not None and not alive:
                raise _NotRepaired(f"process {finding.pid} cannot be proved alive any more")
            if self._dry_run:
                return [f"would store host pid {to.pid} for process {at.pid}" for at, to in wrong]
            for usage, process in wrong:
                timeout_s = self._lock_timeout_s
                change = self._region.set_host_pid(usage.pid, process.pid, timeout_s=timeout_s)
                before = change.before or "none"
                actions.append(f"host pid of process {usage.pid}: {before} -> {change.after}")
            if not processes.ended([process for _, process in wrong]):
                return actions
        raise _NotRepaired("processes come and go too fast")

    def free_dead(self, finding: Finding) -> list[str]:
        """Free the slots of processes that are proved dead, once for the region."""
        if self._dry_run:
            return [
                f"would free the slot of dead process {usage.pid},"
                f" {format_size(memory_bytes(usage))}"
                for usage, match in self._read_slots().slots
                if match.state == "dead" and (memory_bytes(usage) or not usage.settled)
            ]
        if self._freed is None:
            freed = self._region.reap(
                evidence=self._evidence(self._region), timeout_s=self._lock_timeout_s
            )
            words = "slot of dead process {} emptied, {} no longer counted"
            self._freed = {
                each.pid: words.format(each.pid, format_size(each.memory_bytes)) for each in freed
            }
        pid = finding.pid
        actions = [text for each, text in self._freed.items() if pid in {None, each}]
        if not actions:
            for usage, match in self._read_slots().slots:
                if pid in {None, usage.pid} and match.state != "alive" and memory_bytes(usage):
                    raise _NotRepaired(
                        f"process {usage.pid} cannot be proved dead; its slot was left"
                    )
        return actions


def _is_unsigned(finding: Finding) -> bool:
    return finding.kind is FindingKind.LOCK_STUCK and finding.cause == "ownerless"


_STEPS: dict[FindingKind, Callable[[_RegionRepair, Finding], list[str]]] = {
    # The lock comes first, all others need it: a dead owner's is given back once the seqlocks that
    # the dead left odd are even. Then such seqlocks, for which a live owner may wait. Moved slots
    # come before host pids, which then go into the slots that their processes write to.
    FindingKind.LOCK_STUCK: _RegionRepair.free_lock,
    FindingKind.SEMAPHORE_IMPOSSIBLE: _RegionRepair.free_lock,
    FindingKind.SEQLOCK_STUCK: _RegionRepair.free_dead,
    FindingKind.SLOT_MOVED: _RegionRepair.repair_slots,
    FindingKind.HOST_PID_WRONG: _RegionRepair.store_host_pids,
    FindingKind.DEAD_PROCESS_COUNTED: _RegionRepair.free_dead,
    FindingKind.SLOT_WITHOUT_PID: _RegionRepair.free_dead,
}
#: The kinds that `repair` repairs, in the order in which it does.
ORDER = tuple(_STEPS)

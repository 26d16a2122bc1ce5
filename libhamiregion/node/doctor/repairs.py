"""Mending what the doctor found, where there is proof."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import attrs

from libhamiregion.errors import LockTimeout, RegionError
from libhamiregion.text import printable
from libhamiregion.units import format_size

from .findings import FindingKind, UsedRegion, key_of, memory_bytes, memory_of, pids_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from libhamiregion.models import ProcessUsage
    from libhamiregion.node.containers import Container
    from libhamiregion.node.matching import HostProcess
    from libhamiregion.node.node import Node
    from libhamiregion.region import Region

    from .findings import ContainerKey, Finding

# Nothing was wrong any more: mended, and nothing was done.
_ALREADY: tuple[str, ...] = ()
_TRIES = 3
# Together they fit in a line of a log.
_ACTIONS_LIMIT = 4
# A container can have a thousand wrong host pids, and give its lock just before each timeout.
_TIMEOUTS_PER_REGION = 10
# So many locks without a signature are watched in one repair; the others are for the next one.
_WATCHED_LIMIT = 6


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


class _NotRepaired(Exception):
    """There is no proof, or no chance; the text says why."""


def repair(
    node: Node,
    findings: Iterable[Finding],
    *,
    dry_run: bool = False,
    timeout_s: float = 1.0,
    lock_watch_s: float = 10.5,
    budget_s: float = 10.0,
) -> tuple[Repair, ...]:
    """Mend what can be mended with proof: in each region first the lock, then slots and host pids.

    A finding is a reason to look, not to write: everything is proved once more right before it is
    changed, because processes end and pids are used again. Nothing is signalled, no limit, no
    switch and no file's mode is changed. A repair that is killed leaves what the next one mends.

    What dead processes hold is freed for a whole region: all that are proved dead, also those that
    count nothing.

    A region that does not give its lock in time costs one timeout: its other repairs that need the
    lock fail at once. The regions share `budget_s`, each what the earlier ones have left. Locks
    without a signature come last, six at most; repairs that ran out of time say so.

    Args:
        node: The node that was diagnosed.
        findings: What `diagnose` returned; those that are not repairable are left out.
        dry_run: Only tell what would be done; no lock is taken and nothing opened for writing.
        timeout_s: How long to wait for a region's lock, each time; ten times that for all its host
            pids together.
        lock_watch_s: How long to watch a lock that nobody has signed for while processes use the
            region; less than 10 s proves nothing then.
        budget_s: How long all regions together may take, but for the watching of locks; what comes
            too late for it is left, with an error that says so.

    Returns:
        One entry per finding, region by region, in the order in which they were tried.

    Raises:
        OSError: /proc cannot be listed.

    Threads: may be called from several; diagnoses and repairs of one node take turns.

    Shell: ``hamiregion doctor --repair --root DIR``.
    """
    wanted: dict[ContainerKey, list[Finding]] = {}
    for each in findings:
        if each.repairable:
            wanted.setdefault(key_of(each.container), []).append(each)
    done: list[Repair] = []
    with memory_of(node).lock:
        by_key = {key_of(each): each for each in node.containers}
        seen = _look(node, [by_key[key] for key in wanted if key in by_key])
        works: list[_RegionRepair] = []
        for key, of_region in wanted.items():
            container = by_key.get(key)
            if container is None or container.region is None or container.region.closed:
                error = "the container, or its region, is not there any more; diagnose again"
                done += [Repair(each, done=False, error=error) for each in of_region]
                continue
            work = _RegionRepair(
                node,
                container,
                seen.get(container),
                of_region,
                dry_run=dry_run,
                timeout_s=timeout_s,
                lock_watch_s=lock_watch_s,
            )
            works.append(work)
        deadline_s = time.monotonic() + budget_s
        for number, work in enumerate(works):
            if not work.watches:
                share_s = (deadline_s - time.monotonic()) / (len(works) - number)
                with work:
                    done += work.attempt_all(max(0.0, share_s))
        for number, work in enumerate(work for work in works if work.watches):
            with work:
                done += work.attempt_all(
                    lock_watch_s + budget_s if number < _WATCHED_LIMIT else 0.0
                )
    return tuple(done)


def _look(node: Node, containers: Iterable[Container]) -> dict[Container, UsedRegion]:
    """The regions with the processes behind them; /proc is read once, and after all of them."""
    looked = []
    for container in containers:
        if container.region is not None:
            with contextlib.suppress(RegionError):
                looked.append((container, container.region, container.region.snapshot()))
    if looked:
        node.processes.refresh()
    found = {}
    for container, region, snapshot in looked:
        with contextlib.suppress(RegionError):
            pids = [process.pid for process in snapshot.processes]
            processes = node.match(container, pids, snapshot.taken_at_ns)
            found[container] = UsedRegion(container, region, snapshot, processes)
    return found


class _RegionRepair(contextlib.ExitStack):
    """The repair of one region. Its file is opened for writing when that is needed first."""

    def __init__(
        self,
        node: Node,
        container: Container,
        used: UsedRegion | None,
        findings: list[Finding],
        *,
        dry_run: bool,
        timeout_s: float,
        lock_watch_s: float,
    ) -> None:
        super().__init__()
        self._node = node
        self._container = container
        self._used = used
        self._findings = sorted(findings, key=lambda each: ORDER.index(each.kind))
        self._dry_run = dry_run
        self._timeout_s = timeout_s
        self._lock_watch_s = lock_watch_s
        self._writable: Region | None = None
        # The lock was not given in time.
        self._busy: LockTimeout | None = None
        self._freed: dict[int, str] | None = None
        self._share_s = 0.0
        self._deadline = 0.0

    @property
    def watches(self) -> bool:
        """Whether its lock has to be watched for long."""
        return not self._dry_run and any(map(_is_unsigned, self._findings))

    def attempt_all(self, share_s: float) -> list[Repair]:
        """Mend the region's findings within its share of the time, or say why not."""
        self._share_s, self._deadline = share_s, time.monotonic() + share_s
        return [self._attempt(each) for each in self._findings]

    @property
    def _lock_timeout_s(self) -> float:
        """How long to wait for the lock this time.

        Raises:
            _NotRepaired: The region has had its share.
        """
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise _NotRepaired(
                f"its container has had its share of this repair's time, {self._share_s:.2g} s;"
                " repair again"
            )
        return min(self._timeout_s, left_s)

    def _attempt(self, finding: Finding) -> Repair:
        """Mend one finding, or say why not."""
        try:
            if self._busy is not None and finding.kind not in _ABOUT_THE_LOCK:
                raise self._busy
            return Repair(finding, done=True, actions=_STEPS[finding.kind](self, finding))
        except (_NotRepaired, RegionError, OSError, ValueError, RuntimeError) as error:
            if isinstance(error, LockTimeout):
                self._busy = error
            return Repair(finding, done=False, error=printable(str(error), limit=450))

    def give_lock_back(self, finding: Finding) -> tuple[str, ...]:
        """Give a lock back, or set a semaphore right."""
        if self._dry_run:
            return ("would give the region's lock back, or set its semaphore right",)
        if self._lock_timeout_s and _is_unsigned(finding):
            done = self._region.recover_lock(proc=self._node.proc, watch_s=self._lock_watch_s)
        else:
            done = self._region.recover_lock(proc=self._node.proc, watch_s=0.0)
        steps = {
            "the dead owner's lock was given back": done.dead_owner,
            "the lock that nobody had signed for was given back": done.ownerless,
            "the semaphore was set right": done.impossible_value,
            "the start-up semaphore was set right": done.postinit,
        }
        return tuple(words for words, was_done in steps.items() if was_done)

    def put_slots_right(self, finding: Finding) -> tuple[str, ...]:
        """Have a live process count once, in the slot that it writes to."""
        region = self._container.region if self._dry_run else self._region
        assert region is not None  # noqa: S101 (`repair` has seen it)
        found = region.repair_slots(
            proc=self._node.proc, dry_run=self._dry_run, timeout_s=self._lock_timeout_s
        )
        if finding.pid in found.left:
            raise _NotRepaired(
                f"process {finding.pid} is idle, or behind an idle one: which of its slots it"
                " writes to cannot be told now"
            )
        if finding.pid not in found.repaired:
            return _ALREADY
        # Its slot may be another one now, with another host pid in it.
        self._used = None
        verb = "would put" if self._dry_run else "put"
        return (f"{verb} the slots of {pids_text(found.repaired)} right",)

    def store_host_pids(self, finding: Finding) -> tuple[str, ...]:
        """Store the proved host pids of a process, or of all that have a wrong one."""
        if not self._node.processes.visibility.sees_host:
            raise _NotRepaired(
                f"{self._node.proc} is not the host's, so its pids are not host pids"
            )
        pids = [finding.pid] if finding.pid is not None else self._wrong_host_pids()
        # Ten timeouts at most.
        deadline = time.monotonic() + self._timeout_s * _TIMEOUTS_PER_REGION
        actions: list[str] = []
        left: Exception | None = None
        for number, pid in enumerate(pids):
            try:
                if number and time.monotonic() > deadline:
                    most_s = self._timeout_s * _TIMEOUTS_PER_REGION
                    raise _NotRepaired(
                        f"the region's other host pids have taken more than {most_s:g} s"
                    )
                actions += self._store_host_pid(pid)
            except (_NotRepaired, RegionError) as error:
                left = left or error
                if isinstance(error, LockTimeout):
                    self._busy = error
                    break
        if left is None:
            return _some(actions)
        done = f"{len(actions)} of {len(pids)} host pids were stored; " if actions else ""
        raise _NotRepaired(f"{done}{left}")

    def _wrong_host_pids(self) -> list[int]:
        used = self._used or self._looked()
        return [usage.pid for usage, process in used.alive if usage.host_pid != process.pid]

    def _store_host_pid(self, pid: int) -> tuple[str, ...]:
        for _ in range(_TRIES):
            usage, process = self._proved(pid)
            if usage.host_pid == process.pid:
                return _ALREADY
            if self._dry_run:
                return (f"would store host pid {process.pid} for process {pid}",)
            change = self._region.set_host_pid(pid, process.pid, timeout_s=self._lock_timeout_s)
            # If it ended meanwhile, its slot may be its successor's, which has another host pid.
            if self._node.processes.is_running(process):
                if change.before == change.after:
                    return _ALREADY
                return (f"host pid of process {pid}: {change.before or 'none'} -> {change.after}",)
            self._used = None
        raise _NotRepaired(f"process {pid} comes and goes too fast")

    def _proved(self, pid: int) -> tuple[ProcessUsage, HostProcess]:
        """What stands in a live process's slot, and the process, which runs at this moment."""
        for _ in range(_TRIES):
            used = self._used or self._looked()
            for usage, process in used.alive:
                if usage.pid == pid and self._node.processes.is_running(process):
                    return usage, process
            self._used = None
        raise _NotRepaired(f"process {pid} cannot be proved alive any more")

    def free_dead(self, finding: Finding) -> tuple[str, ...]:
        """Free what is proved dead, once for the region."""
        if self._dry_run:
            return _some(
                f"would free the slot of dead process {usage.pid},"
                f" {format_size(memory_bytes(usage))}"
                for usage, match in (self._used or self._looked()).slots
                if match.state == "dead" and (memory_bytes(usage) or not usage.settled)
            )
        if self._freed is None:
            used = self._used or self._looked()
            pids = {usage.pid for usage in used.snapshot.processes}
            freed = self._region._reap(
                None,
                self._node.proc,
                timeout_s=self._lock_timeout_s,
                strangers=self._node._strangers_to(self._container, pids),
            )
            self._freed = {
                slot.pid: f"slot of dead process {slot.pid}"
                f" {'removed' if slot.removed else 'emptied'},"
                f" {format_size(slot.memory_bytes)} no longer counted"
                for slot in freed
            }
        pid = finding.pid
        actions = [text for each, text in self._freed.items() if pid in {None, each}]
        if not actions:
            for usage, match in self._looked().slots:
                if pid in {None, usage.pid} and match.state != "alive" and memory_bytes(usage):
                    raise _NotRepaired(
                        f"process {usage.pid} cannot be proved dead; its slot was left"
                    )
        return _some(actions)

    @property
    def _region(self) -> Region:
        if self._writable is None:
            self._writable = self.enter_context(self._node.open(self._container))
        return self._writable

    def _looked(self) -> UsedRegion:
        """The region as it is now."""
        self._used = _look(self._node, [self._container]).get(self._container)
        if self._used is None:
            raise _NotRepaired("the region cannot be read any more; diagnose again")
        return self._used


def _is_unsigned(finding: Finding) -> bool:
    return finding.kind is FindingKind.LOCK_STUCK and finding.cause == "ownerless"


_STEPS: dict[FindingKind, Callable[[_RegionRepair, Finding], tuple[str, ...]]] = {
    # The lock comes first, all others need it. Moved slots come before host pids, which then go
    # into the slots that their processes write to.
    FindingKind.LOCK_STUCK: _RegionRepair.give_lock_back,
    FindingKind.SEMAPHORE_IMPOSSIBLE: _RegionRepair.give_lock_back,
    FindingKind.SLOT_MOVED: _RegionRepair.put_slots_right,
    FindingKind.HOST_PID_WRONG: _RegionRepair.store_host_pids,
    FindingKind.DEAD_PROCESS_COUNTED: _RegionRepair.free_dead,
    FindingKind.SEQLOCK_STUCK: _RegionRepair.free_dead,
    FindingKind.SLOT_WITHOUT_PID: _RegionRepair.free_dead,
}
_ABOUT_THE_LOCK = {FindingKind.LOCK_STUCK, FindingKind.SEMAPHORE_IMPOSSIBLE}
#: The kinds that `repair` mends, in the order in which it does.
ORDER = tuple(_STEPS)


def _some(actions: Iterable[str]) -> tuple[str, ...]:
    """The first few: a region can need a thousand."""
    every = list(actions)
    more = len(every) - _ACTIONS_LIMIT
    return (*every[:_ACTIONS_LIMIT], f"and {more} more") if more > 0 else tuple(every)

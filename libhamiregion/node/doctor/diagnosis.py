"""The doctor: everything that can be proved to be wrong on a node, with evidence and advice."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from libhamiregion.errors import RegionError
from libhamiregion.node.join import Join
from libhamiregion.node.observation import Observer
from libhamiregion.node.process_rows import process_rows
from libhamiregion.node.views import observed_views

from .files import (
    borrowed_directories,
    missing_regions,
    mixed_layouts,
    newer_layouts,
    unreadable_roots,
)
from .findings import DoctorContext, Finding, FindingKind, Severity, key_of, memory_of
from .limits import (
    blocked_launches,
    device_count_zero,
    driver_memory,
    escaping_processes,
    impossible_usage,
    sm_limits_off,
    unrecorded_utilization,
    usage_above_limit,
)
from .locks import locks
from .slots import (
    dead_processes,
    moved_slots,
    slot_table_fill,
    slots_without_pid,
    stuck_seqlocks,
    unknown_processes,
    unobserved_processes,
    wrong_host_pids,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Iterator

    from libhamiregion.node.node import Node
    from libhamiregion.node.nvml import NvmlSampler
    from libhamiregion.node.observation import Observation

    from .findings import UsedRegion

# A lock or a seqlock is held for microseconds, or milliseconds where the driver is asked under it.
_STUCK_S = 1.0
# Without a second look: two diagnoses, as far apart as a scraper asks, see the same holder.
_STUCK_BETWEEN_DIAGNOSES_S = 10.0
_LOOK_EVERY_S = 0.005

# Each with the kinds that it can find.
_CHECKS_OF_NODE: dict[Callable[[DoctorContext], Iterator[Finding]], set[FindingKind]] = {
    unreadable_roots: {FindingKind.ROOT_UNREADABLE},
    unknown_processes: {FindingKind.PROCESSES_UNKNOWN},
    unobserved_processes: {FindingKind.NOT_OBSERVED},
    missing_regions: {FindingKind.REGION_LOST, FindingKind.REGION_MISSING},
    escaping_processes: {FindingKind.PROCESS_ESCAPES},
}
_CHECKS_OF_REGION: dict[Callable[[DoctorContext, UsedRegion], Iterator[Finding]], set[FindingKind]]
_CHECKS_OF_REGION = {
    locks: {FindingKind.LOCK_STUCK, FindingKind.SEMAPHORE_IMPOSSIBLE},
    stuck_seqlocks: {FindingKind.SEQLOCK_STUCK},
    slots_without_pid: {FindingKind.SLOT_WITHOUT_PID},
    moved_slots: {FindingKind.SLOT_MOVED, FindingKind.PROCESSES_UNKNOWN},
    dead_processes: {FindingKind.DEAD_PROCESS_COUNTED},
    slot_table_fill: {FindingKind.SLOT_TABLE_FULL},
    wrong_host_pids: {FindingKind.HOST_PID_WRONG},
    usage_above_limit: {FindingKind.USAGE_ABOVE_LIMIT},
    impossible_usage: {FindingKind.USAGE_IMPOSSIBLE},
    device_count_zero: {FindingKind.DEVICE_COUNT_ZERO},
    driver_memory: {FindingKind.DRIVER_MEMORY_DIFFERS},
    unrecorded_utilization: {FindingKind.UTILIZATION_NOT_RECORDED},
    sm_limits_off: {FindingKind.SM_LIMIT_OFF},
    blocked_launches: {FindingKind.LAUNCHES_BLOCKED},
    mixed_layouts: {FindingKind.LAYOUT_MIXED},
    newer_layouts: {FindingKind.LAYOUT_NEWER},
    borrowed_directories: {FindingKind.DIRECTORY_BORROWED},
}
_ALL_KINDS = frozenset(FindingKind)


def diagnose(
    node: Node,
    *,
    observation: Observation | None = None,
    observer: Observer | None = None,
    sampler: NvmlSampler | None = None,
    kinds: Collection[FindingKind] | None = None,
    settle_s: float = 1.5,
) -> tuple[Finding, ...]:
    """Find everything that is wrong on a node, in one observation. Changes nothing, takes no lock.

    A healthy node gives no finding. Findings that a healthy node can show for a moment, such as a
    held lock or a host pid that is not yet known, are checked in a second observation after
    `settle_s`, and count only if they are in both and nothing has moved in between. Without such a
    finding no time is spent.

    With ``settle_s=0`` there is one observation and no waiting, for an exporter that counts
    findings once a minute: transient findings may then be reported once, and what must stand still
    is compared with earlier calls for the same node.

    Args:
        node: The node.
        observation: An observation of that node, with its slots; None takes one.
        observer: Takes observations; None makes an observer that proves all slots anew.
        sampler: Asks the driver if no `observer` is given; None leaves out what needs it.
        kinds: Only these kinds; None means all. Others that come up on the way are reported too.
        settle_s: How long to wait before the second observation, seconds.

    Returns:
        By severity, then in the order of the node's containers.

    Raises:
        ValueError: A negative time.
        RegionClosed: The node has been closed, or belongs to a parent process.
        OSError: /proc cannot be listed.

    Threads: may be called from several; diagnoses and repairs of one node exclude each other.

    Shell: ``hamiregion doctor``.
    """
    if not settle_s >= 0:
        raise ValueError(f"a time is 0 or more seconds, not {settle_s!r}")
    wanted = _ALL_KINDS if kinds is None else frozenset(kinds)
    node.check_open()
    observer = observer or Observer(node, sampler=sampler, anew=True)
    with memory_of(node).lock:
        context = _context(node, observation or observer.observe(), settle_s)
        found = list(_check(context, wanted))
        if settle_s and _stay(context, found, settle_s):
            before = set(map(_key, found))
            context = _context(node, observer.observe(), settle_s)
            second = _check(context, wanted)
            found = [each for each in second if not _is_transient(each) or _key(each) in before]
        context.remember()
    order = list(Severity)
    return tuple(sorted(found, key=lambda each: order.index(each.severity)))


def _context(node: Node, observation: Observation, settle_s: float) -> DoctorContext:
    views = observed_views(node, observation)
    rows = () if observation.sample is None else process_rows(Join(observation), views)
    stuck_s = min(_STUCK_S, settle_s) if settle_s else _STUCK_BETWEEN_DIAGNOSES_S
    return DoctorContext(node, observation, views, tuple(rows), stuck_s)


def _check(context: DoctorContext, wanted: frozenset[FindingKind]) -> Iterator[Finding]:
    for check_node, kinds in _CHECKS_OF_NODE.items():
        if not wanted.isdisjoint(kinds):
            yield from check_node(context)
    checks = [each for each, kinds in _CHECKS_OF_REGION.items() if not wanted.isdisjoint(kinds)]
    for used in context.used:
        for check_region in checks:
            # A region that goes away while it is looked at is the next look's business.
            with contextlib.suppress(RegionError, OSError):
                yield from check_region(context, used)


def _stay(context: DoctorContext, found: Iterable[Finding], settle_s: float) -> bool:
    """Watch what is suspected for a while; whether a second look can tell more than the first."""
    deadline = time.monotonic() + settle_s
    waits = any(map(_is_transient, found))
    while time.monotonic() < deadline and (waits or context.suspects):
        time.sleep(min(_LOOK_EVERY_S, settle_s))
        for what, has_moved in list(context.suspects.items()):
            if _moved(has_moved):
                context.forget(what)
    return waits or bool(context.suspects)


def _moved(has_moved: Callable[[], bool]) -> bool:
    try:
        return has_moved()
    except (RegionError, OSError):
        return True


def _is_transient(found: Finding) -> bool:
    return found.kind.explanation.is_transient


def _key(found: Finding) -> Hashable:
    return found.kind, key_of(found.container), found.device, found.pid, found.cause

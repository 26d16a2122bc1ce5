"""The doctor: everything that can be told to be wrong on a node, each with proof and advice."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from libhamiregion.errors import RegionError
from libhamiregion.node.join import Join
from libhamiregion.node.observation import Observer
from libhamiregion.node.process_rows import process_rows, slot_rows
from libhamiregion.node.roots import RootsUnreadable
from libhamiregion.node.views import observed_views

from .driver import driver_memory, escaping_processes, unrecorded_utilization
from .examination import Examination, key_of
from .files import (
    borrowed_directories,
    missing_regions,
    mixed_layouts,
    newer_layouts,
    unreadable_roots,
)
from .findings import Finding, FindingKind, Severity
from .host_pids import wrong_host_pids
from .limits import (
    blocked_launches,
    device_count_zero,
    impossible_usage,
    sm_limits_off,
    usage_above_limit,
)
from .locks import locks
from .memory import memory_of
from .slots import (
    dead_processes,
    moved_slots,
    slot_table_fill,
    slots_without_pid,
    stuck_seqlocks,
    unknown_processes,
    unobserved_processes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Iterator

    from libhamiregion.node.node import Node
    from libhamiregion.node.node_process import NodeProcess
    from libhamiregion.node.nvml import NvmlSampler
    from libhamiregion.node.observation import Observation
    from libhamiregion.node.views import ContainerView

    from .examination import UsedRegion

# A lock or a seqlock is held for microseconds, or milliseconds where the driver is asked under it.
_STUCK_S = 1.0
# Without a second look: two diagnoses, as far apart as a scraper asks, see the same holder.
_STUCK_BETWEEN_DIAGNOSES_S = 10.0
_LOOK_EVERY_S = 0.005

# Each with the kinds that it can find.
_CHECKS_OF_NODE: dict[Callable[[Examination], Iterator[Finding]], set[FindingKind]] = {
    unreadable_roots: {FindingKind.ROOT_UNREADABLE},
    unknown_processes: {FindingKind.PROCESSES_UNKNOWN},
    unobserved_processes: {FindingKind.NOT_OBSERVED},
    missing_regions: {FindingKind.REGION_LOST, FindingKind.REGION_MISSING},
    escaping_processes: {FindingKind.PROCESS_ESCAPES},
}
_CHECKS_OF_REGION: dict[Callable[[Examination, UsedRegion], Iterator[Finding]], set[FindingKind]]
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
    views: Iterable[ContainerView] | None = None,
    rows: Iterable[NodeProcess] | None = None,
    kinds: Collection[FindingKind] | None = None,
    settle_s: float = 1.5,
) -> tuple[Finding, ...]:
    """Look for everything that can be wrong on a node. Changes nothing and takes no lock.

    A healthy node gives no finding. What a healthy node can show for a moment, such as a lock that
    is held or a host pid that is not yet found, is looked at again after `settle_s`, and is a
    finding only if it is there both times and has not moved in between. If there is nothing of
    that kind, no time is spent.

    With ``settle_s=0`` there is one look and no waiting, for an exporter that counts findings by
    kind once per interval: what passes by itself may then be reported for one interval, and what
    must stand still is compared with earlier calls for the same node.

    Args:
        node: The node.
        observation: One of that node, with its slots, for the first look; None takes one.
        observer: Takes the others, and waits no longer for a driver that does not answer than its
            time; None makes one that proves all slots anew.
        sampler: Asks the driver where no `observer` is given; None leaves out what needs it.
        views: Only these containers of that observation, as `observed_views` or ``Node.view`` gave
            them, for the first look.
        rows: `node_processes` of that observation, if they are there already.
        kinds: Look only for these; None means all. Others that come to light on the way are told
            as well.
        settle_s: How long to wait before the second look, seconds.

    Returns:
        By severity, then in the order of the node's containers.

    Raises:
        ValueError: A negative time.
        RegionClosed: The node has been closed.
        OSError: /proc cannot be listed.

    Threads: may be called from several; diagnoses and repairs of one node take turns.

    Shell: ``hamiregion doctor``.
    """
    if not settle_s >= 0:
        raise ValueError(f"a time is 0 or more seconds, not {settle_s!r}")
    wanted = _ALL_KINDS if kinds is None else frozenset(kinds)
    observer = observer or Observer(node, sampler=sampler, anew=True)
    with memory_of(node).lock:
        if observation is None and views is None:
            observation = observer.observe()
        exam = _examine(node, observation, views, rows, settle_s)
        found = list(_check(exam, wanted))
        if settle_s and _stay(exam, found, settle_s):
            before = set(map(_key, found))
            if views is None:
                exam = _examine(node, observer.observe(), None, None, settle_s)
            else:
                exam = _examine(node, None, _view_again(node, exam.views), None, settle_s)
            second = _check(exam, wanted)
            found = [each for each in second if not _is_transient(each) or _key(each) in before]
        exam.remember()
    order = list(Severity)
    return tuple(sorted(found, key=lambda each: order.index(each.severity)))


def _examine(
    node: Node,
    observation: Observation | None,
    views: Iterable[ContainerView] | None,
    rows: Iterable[NodeProcess] | None,
    settle_s: float,
) -> Examination:
    seen = tuple(views or ())
    if observation is not None and views is None:
        seen = observed_views(node, observation)
    if rows is None and observation is not None and observation.sample is not None:
        join = Join(observation)
        if views is None:
            rows = process_rows(join, seen)
        else:
            rows = (*slot_rows(join, seen), *join.uncounted)
    stuck_s = min(_STUCK_S, settle_s) if settle_s else _STUCK_BETWEEN_DIAGNOSES_S
    if observation is None:
        return Examination(node, seen, tuple(rows or ()), stuck_s)
    return Examination(
        node, seen, tuple(rows or ()), stuck_s, observation.snapshot, observation.gaps
    )


def _view_again(node: Node, views: Iterable[ContainerView]) -> tuple[ContainerView, ...]:
    """The containers of some views as they are now."""
    with contextlib.suppress(RootsUnreadable):
        node.refresh(processes=node.looks_outside)
    keys = {key_of(each.container) for each in views}
    return node.view([each for each in node.containers if key_of(each) in keys])


def _check(exam: Examination, wanted: frozenset[FindingKind]) -> Iterator[Finding]:
    for check_node, kinds in _CHECKS_OF_NODE.items():
        if not wanted.isdisjoint(kinds):
            yield from check_node(exam)
    checks = [each for each, kinds in _CHECKS_OF_REGION.items() if not wanted.isdisjoint(kinds)]
    for used in exam.used:
        for check_region in checks:
            # A region that goes away while it is looked at is the next look's business.
            with contextlib.suppress(RegionError, OSError):
                yield from check_region(exam, used)


def _stay(exam: Examination, found: Iterable[Finding], settle_s: float) -> bool:
    """Watch what is suspected for a while; whether a second look can tell more than the first."""
    deadline = time.monotonic() + settle_s
    waits = any(map(_is_transient, found))
    while time.monotonic() < deadline and (waits or exam.suspects):
        time.sleep(min(_LOOK_EVERY_S, settle_s))
        for what, has_moved in list(exam.suspects.items()):
            if _moved(has_moved):
                exam.forget(what)
    return waits or bool(exam.suspects)


def _moved(has_moved: Callable[[], bool]) -> bool:
    try:
        return has_moved()
    except (RegionError, OSError):
        return True


def _is_transient(found: Finding) -> bool:
    return found.kind.explanation.is_transient


def _key(found: Finding) -> Hashable:
    return found.kind, key_of(found.container), found.device, found.pid, found.cause

"""The doctor: find everything that can be proved to be wrong on a node."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from libhamiregion.errors import RegionError
from libhamiregion.node.reader import Observer

from . import files, limits, shares, slots
from .context import DoctorContext
from .findings import Finding, FindingKind, Severity, confirmed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from libhamiregion.node.node import Node
    from libhamiregion.node.nvml import NvmlSampler
    from libhamiregion.observation.model import Observation

# A lock or a seqlock is held for microseconds, or milliseconds while the driver is asked under it.
_WATCH_S = 0.1
_POLL_S = 0.005

_CHECKS_OF_NODE = {
    **files.CHECKS_OF_NODE,
    **slots.CHECKS_OF_NODE,
    **limits.CHECKS_OF_NODE,
    **shares.CHECKS_OF_NODE,
}
_CHECKS_OF_REGION = {**slots.CHECKS, **limits.CHECKS, **files.CHECKS}
_SEVERITIES = list(Severity)


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

    A healthy node gives no finding. A transient finding, such as a held lock or a host pid that is
    not yet known, counts only if a second observation after `settle_s` has it too and nothing has
    moved in between. Without one there is no second observation.

    With ``settle_s=0`` there is one observation, and at most 0.1 s of watching locks: for an
    exporter that diagnoses again and again and compares `Finding.key` of transient findings itself.

    Args:
        node: The node.
        observation: An observation of that node, with its slots; None takes one.
        observer: Takes observations; None makes an observer that proves all slots anew.
        sampler: Asks the driver if no `observer` is given; None leaves out what needs it.
        kinds: Only these kinds; None means all. Others found on the way are returned too.
        settle_s: How long to wait before the second observation, seconds.

    Returns:
        By severity, then in the order of the node's containers.

    Raises:
        ValueError: A negative time.
        RegionClosed: The node has been closed, or belongs to a parent process.
        OSError: /proc cannot be listed.

    Threads: may be called from several.

    Shell: ``hamiregion doctor``.
    """
    if not settle_s >= 0:
        raise ValueError(f"a time is 0 or more seconds, not {settle_s!r}")
    wanted = frozenset(FindingKind if kinds is None else kinds)
    node.check_open()
    observer = observer or Observer(node, sampler=sampler, anew=True)
    context = DoctorContext(node, observation or observer.observe())
    found = list(_check(context, wanted))
    until_s = time.monotonic() + (settle_s or _WATCH_S)
    found = _unmoved(found, context.suspects, until_s)
    if settle_s and any(each.is_transient for each in found):
        time.sleep(max(0.0, until_s - time.monotonic()))
        context = DoctorContext(node, observer.observe())
        found = confirmed(_check(context, wanted), {each.key for each in found})
    return tuple(sorted(found, key=lambda each: _SEVERITIES.index(each.severity)))


def _check(context: DoctorContext, wanted: frozenset[FindingKind]) -> Iterator[Finding]:
    for check_node, kinds in _CHECKS_OF_NODE.items():
        if not wanted.isdisjoint(kinds):
            yield from check_node(context)
    checks = [each for each, kinds in _CHECKS_OF_REGION.items() if not wanted.isdisjoint(kinds)]
    for used in context.regions():
        for check_region in checks:
            try:
                yield from check_region(context, used)
            except (RegionError, OSError):
                continue  # one that goes away meanwhile is the next observation's


def _unmoved(
    found: list[Finding], suspects: dict[Finding, Callable[[], bool]], until_s: float
) -> list[Finding]:
    """Watch all suspects together, and drop those that move."""
    still = dict(suspects)
    while still and time.monotonic() < until_s:
        time.sleep(_POLL_S)
        still = {each: moved for each, moved in still.items() if not _has_moved(moved)}
    return [each for each in found if each in still or each not in suspects]


def _has_moved(moved: Callable[[], bool]) -> bool:
    try:
        return moved()
    except (RegionError, OSError):
        return True

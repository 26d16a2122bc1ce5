"""The doctor: find everything that an observation proves to be wrong on a node."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import attrs

from libhamiregion.observation.rows import Join

from . import files, limits, shares, slots
from .context import DoctorContext
from .findings import Finding, FindingKind, Severity, confirmed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from libhamiregion.node.reader import Observer
    from libhamiregion.observation.model import Observation

_CHECKS_OF_NODE = (
    *files.CHECKS_OF_NODE,
    *slots.CHECKS_OF_NODE,
    *limits.CHECKS_OF_NODE,
    *shares.CHECKS_OF_NODE,
)
_CHECKS_OF_REGION = (*slots.CHECKS, *limits.CHECKS, *files.CHECKS)
_SEVERITIES = list(Severity)


def diagnose(observation: Observation, *, join: Join | None = None) -> tuple[Finding, ...]:
    """Find everything that is wrong on a node. Reads nothing but the observation.

    A healthy node gives no finding, but for transient ones: a held lock, or a host pid that is not
    yet known. These count only if two observations have them: compare `Finding.key`, as `confirmed`
    does.

    Args:
        observation: Taken with the slots, or read from a document.
        join: Of this observation, if the caller has it already.

    Returns:
        By severity, then in the order of the node's containers.

    Raises:
        OSError: /proc could not be listed.

    Shell: ``hamiregion doctor``.
    """
    found = _check(DoctorContext(observation, join or Join(observation)))
    return tuple(sorted(found, key=lambda each: _SEVERITIES.index(each.severity)))


def examine(
    observer: Observer,
    *,
    observation: Observation | None = None,
    kinds: Collection[FindingKind] = tuple(FindingKind),
    settle_s: float = 1.5,
) -> tuple[Finding, ...]:
    """Observe a node, and once more if there are findings that may pass, and diagnose it.

    Args:
        observer: Observes the node.
        observation: The first observation; None takes one.
        kinds: Only these kinds.
        settle_s: How long to wait before the second one, seconds; 0 takes none, and leaves no
            transient finding out.

    Raises:
        ValueError: A negative time.
        RegionClosed: The node has been closed, or belongs to a parent process.
        OSError: /proc cannot be listed.

    Threads: may be called from several.
    """
    if not settle_s >= 0:
        raise ValueError(f"a time is 0 or more seconds, not {settle_s!r}")

    def find(seen: Observation) -> tuple[Finding, ...]:
        # Two observations are compared here: the reader's history is not needed.
        seen = attrs.evolve(seen, not_limited_s=None)
        return tuple(each for each in diagnose(seen) if each.kind in kinds)

    found = find(observation or observer.observe())
    if settle_s and any(each.is_transient for each in found):
        time.sleep(settle_s)
        found = tuple(confirmed(find(observer.observe()), {each.key for each in found}))
    return found


def _check(context: DoctorContext) -> Iterator[Finding]:
    for check_node in _CHECKS_OF_NODE:
        yield from check_node(context)
    for used in context.regions():
        for check_region in _CHECKS_OF_REGION:
            yield from check_region(context, used)

"""The rule by which containers of several priorities share a GPU.

It is the one that HAMi's monitor follows. Nothing is read or written here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Sequence

#: The launch mark of a region whose launches wait.
BLOCKED = -1


@attrs.frozen
class LaunchState:
    """The rule's input from one region.

    Attributes:
        recent_kernel: The launch mark: 2 after a launch, below 0 while launches wait.
        utilization_switch: Not 0 while SM limiting is on.
        priority: 0 is the most urgent that HAMi gives; the higher, the less urgent.
        uuids: The region's devices, GPUs or MIG devices.
    """

    recent_kernel: int
    utilization_switch: int
    priority: int
    uuids: frozenset[str] | set[str]


@attrs.frozen
class Verdict:
    """The rule's output for one region.

    Attributes:
        recent_kernel: The launch mark.
        utilization_switch: 1 if the region is blocked, or if another one as urgent has launched
            lately on one of its devices; else 0.
        blocked: A more urgent region has launched lately on one of its devices.
    """

    recent_kernel: int
    utilization_switch: int
    blocked: bool


def decide(states: Sequence[LaunchState]) -> tuple[Verdict, ...]:
    """Judge all regions of a node together.

    Each launch mark above 0 is counted down by one. Where it is above 0 still, the region counts
    under its priority on each of its devices. Then a region is *blocked* if one that is more
    urgent counts on one of its devices, and *contended* if it is blocked or if more than one of its
    own priority count on one of them. A blocked region's launch mark becomes -1 unless it is below
    0 already; one that is not blocked and below 0 becomes 0.

    Args:
        states: One per region.

    Returns:
        One verdict per state, in the same order.

    Source: docs, The agent (The priority rule).

    >>> busy = LaunchState(2, 1, priority=0, uuids={"GPU-a"})
    >>> waiting = LaunchState(2, 1, priority=1, uuids={"GPU-a"})
    >>> [verdict.recent_kernel for verdict in decide([busy, waiting])]
    [1, -1]
    """
    marks = [state.recent_kernel - (state.recent_kernel > 0) for state in states]
    counted: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for state, mark in zip(states, marks, strict=True):
        if mark > 0:
            for uuid in state.uuids:
                counted[uuid][state.priority] += 1
    # Who is blocked depends on the most urgent one of each device only.
    most_urgent = {uuid: min(priorities) for uuid, priorities in counted.items()}
    verdicts = []
    for state, mark in zip(states, marks, strict=True):
        shared = state.uuids & most_urgent.keys()
        blocked = any(most_urgent[uuid] < state.priority for uuid in shared)
        contended = blocked or any(counted[uuid][state.priority] > 1 for uuid in shared)
        new_mark = min(mark, BLOCKED) if blocked else max(mark, 0)
        verdicts.append(Verdict(new_mark, int(contended), blocked))
    return tuple(verdicts)

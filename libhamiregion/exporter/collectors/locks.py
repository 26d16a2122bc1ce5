"""Locks that had the same owner at several checks in a row."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from libhamiregion.exporter import families
from libhamiregion.exporter.region_metrics import is_held
from libhamiregion.exporter.text import Series

if TYPE_CHECKING:
    from libhamiregion.exporter.state import CollectedState
    from libhamiregion.node import Container, NodeSnapshot, Observer

# A lock is reported as held if it was in the same hands at every one of these looks.
_LOOKS = 10
_BETWEEN_LOOKS_S = 0.002


class LocksCollector:
    """Reports locks with the same owner at every check, and since when.

    Releases between two checks are not seen. Each run checks ten times within 20 ms, which leaves
    out most locks that are busy but move.

    Args:
        observer: Observes the node. Only where it finds a lock taken, the regions are read again.
        max_age_s: How old an observation may be.
    """

    name = "locks"

    def __init__(self, observer: Observer, max_age_s: float = 0.0) -> None:
        self._observer = observer
        self._max_age_s = max_age_s
        # Container and owner, as signed in the region, to the monotonic time of the first look.
        self._since_s: dict[tuple[Container, int], float] = {}

    def collect(self, state: CollectedState) -> CollectedState:
        """Look several times, as long as any lock is held."""
        first_s = time.monotonic()
        observation = self._observer.observe(max_age_s=self._max_age_s, slots=False)
        found = _held(observation.snapshot)
        for _ in range(_LOOKS - 1):
            if not found:
                break
            time.sleep(_BETWEEN_LOOKS_S)
            found &= _held(self._observer.node.snapshot())
        self._since_s = {held: self._since_s.get(held, first_s) for held in found}
        now_s = time.monotonic()
        rows = {
            state.identities[container].text(families.LOCK_SAME_OWNER.labels): (now_s - since_s)
            for (container, _), since_s in self._since_s.items()
            if container in state.identities
        }
        return state.with_series(self.name, [Series.of(families.LOCK_SAME_OWNER, rows)])


def _held(snapshot: NodeSnapshot) -> set[tuple[Container, int]]:
    regions = snapshot.table.regions
    rows = zip(snapshot.containers, regions.code, regions.semaphore, regions.owner_pid, strict=True)
    return {
        (container, owner)
        for container, code, semaphore, owner in rows
        if code == 0 and is_held(semaphore)
    }

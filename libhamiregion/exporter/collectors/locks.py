"""Locks that had the same owner at several checks in a row."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from libhamiregion.exporter.text import Series

if TYPE_CHECKING:
    from collections.abc import Iterator

    from libhamiregion.exporter.scrape import Scrape
    from libhamiregion.node import Container, NodeSnapshot

_CHECKS = 10
_BETWEEN_CHECKS_S = 0.002


class LocksCollector:
    """Reports locks with the same owner at every check, and since when.

    Releases between two checks are not seen. If the observation has a lock that is taken, the
    regions are read again, ten times within 20 ms: that leaves out most locks that are busy but
    move.
    """

    name = "locks"
    needs_slots = False

    def __init__(self) -> None:
        # Container and owner, as signed in the region, to the monotonic time of the first check.
        self._since_s: dict[tuple[Container, int], float] = {}

    def collect(self, scrape: Scrape) -> Iterator[Series]:
        """Make the series."""
        first_s = time.monotonic()
        held = _held(scrape.observation.snapshot)
        for _ in range(_CHECKS - 1):
            if not held:
                break
            time.sleep(_BETWEEN_CHECKS_S)
            held &= _held(scrape.node.snapshot())
        self._since_s = {each: self._since_s.get(each, first_s) for each in held}
        now_s = time.monotonic()
        ages = {
            scrape.texts.labels[container].own: now_s - since_s
            for (container, _), since_s in self._since_s.items()
            if container not in scrape.texts.hidden
        }
        yield Series.of("hamiregion_lock_same_owner_seconds", ages)


def _held(snapshot: NodeSnapshot) -> set[tuple[Container, int]]:
    regions = snapshot.table.regions
    rows = zip(snapshot.containers, regions.code, regions.semaphore, regions.owner_pid, strict=True)
    # The upper half of a semaphore counts who waits.
    return {
        (container, owner)
        for container, code, semaphore, owner in rows
        if code == 0 and semaphore & 0xFFFF_FFFF == 0
    }

"""Locks that had the same owner at several checks in a row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from libhamiregion.exporter.text import Series

if TYPE_CHECKING:
    from collections.abc import Iterator

    from libhamiregion.exporter.scrape import Scrape
    from libhamiregion.node import Container


class LocksCollector:
    """Reports locks with the same owner at every check of observations, and since when.

    Releases between two checks are not seen. Evidence has 20 checks within 0.1 s: that leaves out
    most locks that are busy but move.
    """

    name = "locks"
    needs_slots = True

    def __init__(self) -> None:
        # Container and owner, as signed in the region, to when the first observation began.
        self._since_s: dict[tuple[Container, int], float] = {}

    def collect(self, scrape: Scrape) -> Iterator[Series]:
        """Make the series."""
        observation, evidence = scrape.observation, scrape.observation.evidence
        owners = observation.table.regions.owner_pid
        held = {
            (observation.containers[row], owners[row])
            for row, each in ({} if evidence is None else evidence.regions).items()
            if each.lock is not None and each.lock.held
        }
        now_s = observation.began_s
        self._since_s = {each: self._since_s.get(each, now_s) for each in held}
        ages = {
            scrape.texts.labels[container].own: now_s - since_s
            for (container, _), since_s in self._since_s.items()
            if container not in scrape.texts.hidden
        }
        yield Series.of("hamiregion_lock_same_owner_seconds", ages)

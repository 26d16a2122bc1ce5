"""Findings of `hamiregion doctor`, counted."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from libhamiregion.doctor import FindingKind, confirmed, diagnose
from libhamiregion.exporter.families import BY_NAME
from libhamiregion.exporter.labels import label_text
from libhamiregion.exporter.scrape import slot_sums
from libhamiregion.exporter.text import Series
from libhamiregion.observation.figures import size_or_none

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from libhamiregion.doctor import Finding
    from libhamiregion.exporter.scrape import Scrape


class DoctorCollector:
    """Diagnoses each observation once.

    A finding that a healthy node can show for a moment counts only if it is in two observations.

    Attributes:
        findings: What counts, as of the last diagnosis.
        diagnosed_s: Monotonic time at which that observation began; None before the first.
    """

    name = "doctor"
    needs_slots = True

    def __init__(self) -> None:
        self._before: set[Hashable] = set()
        self._series: tuple[Series, ...] = ()
        self.findings: tuple[Finding, ...] = ()
        self.diagnosed_s: float | None = None

    def collect(self, scrape: Scrape) -> tuple[Series, ...]:
        """Return the series of the scrape's observation."""
        began_s = scrape.observation.began_s
        if began_s != self.diagnosed_s:
            found = diagnose(scrape.observation, join=scrape.join)
            # What a healthy node can show for a moment counts if the last diagnosis had it too.
            self.findings = tuple(confirmed(found, self._before))
            self._before = {each.key for each in found}
            self._series = tuple(_series(scrape, self.findings))
            self.diagnosed_s = began_s
        return self._series


def _series(scrape: Scrape, findings: tuple[Finding, ...]) -> Iterator[Series]:
    # A kind that was not found is 0 under its usual severity.
    totals = Counter({(kind, kind.explanation.severity): 0 for kind in FindingKind})
    totals.update((each.kind, each.severity) for each in findings)
    labels_of_node = BY_NAME["hamiregion_findings"].labels
    kinds = {
        label_text(labels_of_node, kind.value, severity.value): number
        for (kind, severity), number in totals.items()
    }
    yield Series.of("hamiregion_findings", kinds)
    diagnosed_at_s = scrape.observation.regions_read_at_s
    yield Series("hamiregion_findings_timestamp_seconds", [""], [diagnosed_at_s])
    name = "hamiregion_container_findings"
    of_container: Counter[str] = Counter()
    orphans = set()
    for each in findings:
        labels = None if each.container is None else scrape.texts.labels.get(each.container)
        if labels is not None and each.container not in scrape.texts.hidden:
            of_container[labels.text(name, each.kind.value, each.severity.value)] += 1
        # While its process is idle it may as well be an earlier one's.
        if each.kind is FindingKind.SLOT_MOVED and each.cause == "orphaned":
            orphans.add((each.container, each.pid))
    yield Series.of(name, of_container)
    table, containers = scrape.observation.table, scrape.observation.containers
    slots = zip(table.processes.region, table.processes.pid, strict=True) if orphans else ()
    orphaned = [at for at, (row, pid) in enumerate(slots) if (containers[row], pid) in orphans]
    sums = [size_or_none(each) for each in slot_sums(table, orphaned, "memory_used_bytes")]
    yield scrape.texts.devices.series("hamiregion_device_memory_orphaned_bytes", sums)

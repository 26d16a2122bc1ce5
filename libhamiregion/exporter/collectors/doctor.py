"""What `hamiregion doctor` would find, counted."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import attrs

from libhamiregion.exporter import families
from libhamiregion.exporter.labels import label_text
from libhamiregion.exporter.slot_sums import sum_slots
from libhamiregion.exporter.text import Series
from libhamiregion.node import FindingKind, diagnose

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from libhamiregion.exporter.state import CollectedState, ProcessLabels
    from libhamiregion.node import (
        Container,
        Finding,
        NodeSnapshot,
        Observer,
    )


class DoctorCollector:
    """Counts what the doctor finds, in one pass over an observation.

    A finding that a healthy node can show for a moment counts only if it is in two passes.

    Args:
        observer: Observes the node.
        max_age_s: How old an observation may be.
    """

    name = "doctor"

    def __init__(self, observer: Observer, max_age_s: float) -> None:
        self._observer = observer
        self._max_age_s = max_age_s
        self._passing: set[Hashable] = set()

    def collect(self, state: CollectedState) -> CollectedState:
        """Diagnose once."""
        observation = self._observer.observe(max_age_s=self._max_age_s)
        snapshot = observation.snapshot
        if state.labels is None:
            # The next collection of processes makes the labels.
            return state
        found = diagnose(
            self._observer.node, observation=observation, observer=self._observer, settle_s=0
        )
        believed = self._believed(found)
        series = self._series(believed, state, snapshot, state.labels)
        return attrs.evolve(state, findings=tuple(believed)).with_series(self.name, series)

    def _believed(self, found: Iterable[Finding]) -> list[Finding]:
        """Without what can be there for a moment on a healthy node and was not there last time."""
        before, self._passing = self._passing, set()
        believed = []
        for finding in found:
            if finding.kind.explanation.is_transient:
                key = (finding.kind, finding.container, finding.device, finding.pid)
                self._passing.add(key)
                if key not in before:
                    continue
            believed.append(finding)
        return believed

    def _series(
        self,
        findings: Iterable[Finding],
        state: CollectedState,
        snapshot: NodeSnapshot,
        labels: ProcessLabels,
    ) -> list[Series]:
        totals = dict.fromkeys(FindingKind, 0)
        of_container: defaultdict[bytes, float] = defaultdict(int)
        orphans: defaultdict[Container, set[int]] = defaultdict(set)
        for finding in findings:
            totals[finding.kind] += 1
            container = finding.container
            identity = None if container is None else state.identities.get(container)
            if container is None or identity is None:
                continue
            values = (finding.kind.value, finding.severity.value)
            of_container[identity.text(families.CONTAINER_FINDINGS.labels, *values)] += 1
            # While its process is idle it may as well be an earlier one's.
            proved = finding.kind is FindingKind.SLOT_MOVED and finding.cause == "orphaned"
            if proved and finding.pid is not None:
                orphans[container].add(finding.pid)
        kinds = {label_text(("kind",), kind.value): count for kind, count in totals.items()}
        return [
            Series.of(families.FINDINGS, kinds),
            Series.of(families.CONTAINER_FINDINGS, of_container),
            self._orphaned(orphans, snapshot, labels),
        ]

    @staticmethod
    def _orphaned(
        orphans: defaultdict[Container, set[int]], snapshot: NodeSnapshot, labels: ProcessLabels
    ) -> Series:
        """What orphaned slots hold, by device."""
        table = snapshot.table
        regions, pids = table.regions, table.processes.pid
        chosen = bytearray(len(pids))
        for row, container in enumerate(snapshot.containers) if orphans else ():
            first = regions.first_process[row]
            for at in range(first, first + regions.process_count[row]):
                chosen[at] = pids[at] in orphans.get(container, ())
        sums = sum_slots(table, bytes(chosen), table.usages.memory_used_bytes)
        return labels.series_of_devices(families.MEMORY_ORPHANED, sums)

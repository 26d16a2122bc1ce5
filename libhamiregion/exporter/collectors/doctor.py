"""What `hamiregion doctor` would find, counted."""

from __future__ import annotations

from array import array
from collections import defaultdict
from typing import TYPE_CHECKING

import attrs

from libhamiregion.exporter import families
from libhamiregion.exporter.labels import label_text
from libhamiregion.exporter.slot_sums import sum_slots
from libhamiregion.exporter.text import Series
from libhamiregion.node import FindingKind, diagnose, node_processes
from libhamiregion.node.doctor.due import DueContainers
from libhamiregion.node.views import observed_views

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from libhamiregion.exporter.state import CollectedState, ProcessRows
    from libhamiregion.node import (
        Container,
        Finding,
        NodeProcess,
        NodeSnapshot,
        Observation,
        Observer,
    )
    from libhamiregion.node.nvml.models import ProcessColumns

# A container that has not changed and is in order is looked at every so many turns.
_TURNS = 20
# More at once take more memory. Only a first turn has so many: the doctor compares locks with what
# it saw at the call before.
_BATCH = 64


class DoctorCollector:
    """Looks for what is wrong with the regions, at those first that have changed.

    Each turn looks at the containers whose columns have changed, at those with findings or a held
    lock, and at a share of the others. What can be there for a moment on a healthy node counts only
    if it is there at two turns in a row.

    Args:
        observer: Observes the node.
        max_age_s: How old an observation may be.
    """

    name = "doctor"

    def __init__(self, observer: Observer, max_age_s: float) -> None:
        self._observer = observer
        self._max_age_s = max_age_s
        self._due = DueContainers(_TURNS)
        self._findings: dict[Container | None, list[Finding]] = {}
        self._passing: set[Hashable] = set()

    def collect(self, state: CollectedState) -> CollectedState:
        """Look at the containers whose turn it is."""
        observation = self._observer.observe(max_age_s=self._max_age_s)
        snapshot = observation.snapshot
        if state.rows is None or not state.rows.fits(snapshot):
            # The next look at processes brings them together.
            return state
        chosen = list(self._due.choose(observation, self._findings))
        for container in (None, *chosen):
            self._findings.pop(container, None)
        for start in range(0, len(chosen), _BATCH):
            for finding in self._diagnose(state, observation, chosen[start : start + _BATCH]):
                self._findings.setdefault(finding.container, []).append(finding)
        present = {*snapshot.containers, *snapshot.missing}
        for gone in self._findings.keys() - present - {None}:
            del self._findings[gone]
        believed = self._believed()
        series = self._series(believed, state, snapshot, state.rows)
        return attrs.evolve(state, findings=tuple(believed)).with_series(self.name, series)

    def _diagnose(
        self,
        state: CollectedState,
        observation: Observation,
        containers: Sequence[Container],
    ) -> tuple[Finding, ...]:
        node, sample = self._observer.node, observation.sample
        views = observed_views(node, observation, frozenset(containers))
        rows: list[NodeProcess] = []
        if sample is not None:
            pids = {
                process.pid
                for view in views
                if view.processes is not None
                for process in view.processes.alive.values()
            }
            columns = tuple(_only(each, pids) for each in sample.columns)
            joined = node_processes(views, node.processes, attrs.evolve(sample, columns=columns))
            rows = [*(row for row in joined if row.pid is not None), *state.uncounted]
        return diagnose(node, observation=observation, views=views, rows=rows, settle_s=0)

    def _believed(self) -> list[Finding]:
        """Without what can be there for a moment on a healthy node and was not there last time."""
        before, self._passing = self._passing, set()
        believed = []
        for findings in self._findings.values():
            for finding in findings:
                if finding.kind.explanation.passes:
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
        rows: ProcessRows,
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
            self._orphaned(orphans, snapshot, rows),
        ]

    @staticmethod
    def _orphaned(
        orphans: defaultdict[Container, set[int]], snapshot: NodeSnapshot, rows: ProcessRows
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
        return rows.series_of_devices(families.MEMORY_ORPHANED, sums)


def _only(columns: ProcessColumns, pids: set[int]) -> ProcessColumns:
    """The rows of these processes."""
    rows = [row for row, pid in enumerate(columns.pids) if pid in pids]

    def picked(column: array[int]) -> array[int]:
        return array(column.typecode, [column[row] for row in rows])

    return attrs.evolve(
        columns,
        pids=picked(columns.pids),
        kinds=bytes(columns.kinds[row] for row in rows),
        memory_used_bytes=picked(columns.memory_used_bytes),
        sm_util_percent=picked(columns.sm_util_percent),
        memory_util_percent=picked(columns.memory_util_percent),
        enc_util_percent=picked(columns.enc_util_percent),
        dec_util_percent=picked(columns.dec_util_percent),
        sampled_at_us=picked(columns.sampled_at_us),
        samples=tuple(sample for sample in columns.samples if sample[0] in pids),
    )

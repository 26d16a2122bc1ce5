"""What `hamiregion doctor` would find, counted."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import attrs

from libhamiregion.exporter import families
from libhamiregion.exporter.labels import label_text
from libhamiregion.exporter.slot_sums import sum_slots
from libhamiregion.exporter.text import Series
from libhamiregion.node import FindingKind, Severity, diagnose
from libhamiregion.node.doctor.due import DueContainers
from libhamiregion.node.doctor.examination import is_writer_known
from libhamiregion.node.join import Join
from libhamiregion.node.process_rows import slot_rows
from libhamiregion.node.views import observed_views

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable, Sequence

    from libhamiregion.exporter.state import CollectedState, ProcessLabels
    from libhamiregion.node import (
        Container,
        Finding,
        NodeProcess,
        NodeSnapshot,
        Observation,
        Observer,
    )

# A container that has not changed and is in order is looked at every so many turns.
_TURNS = 20
# More at once take more memory. Only a first turn has so many: the doctor compares locks with what
# it saw at the call before.
_BATCH = 64


class DoctorCollector:
    """Looks for what is wrong with the regions, at those first that have changed.

    Each turn looks at the containers whose columns have changed, at those with findings or a held
    lock, and at a share of the others. An SM limit that is switched off is no reason to look again
    while the switch stays off and somebody is there who will switch it on: with an agent on the
    node all containers have that finding most of the time. What can be there for a moment on a
    healthy node counts only if it is there at two turns in a row.

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
        if state.known is None or state.labels is None or not state.known.pairs.fits(snapshot):
            # The next look at processes brings them together.
            return state
        join = Join(observation, state.known)
        chosen = list(self._due.choose(observation, self._unsettled(observation)))
        for container in (None, *chosen):
            self._findings.pop(container, None)
        for start in range(0, len(chosen), _BATCH):
            for finding in self._diagnose(join, chosen[start : start + _BATCH]):
                self._findings.setdefault(finding.container, []).append(finding)
        present = {*snapshot.containers, *snapshot.missing}
        for gone in self._findings.keys() - present - {None}:
            del self._findings[gone]
        believed = self._believed()
        series = self._series(believed, state, snapshot, state.labels)
        return attrs.evolve(state, findings=tuple(believed)).with_series(self.name, series)

    def _unsettled(self, observation: Observation) -> Collection[Container | None]:
        """The containers whose findings can be others by now though nothing else has changed."""
        switches = observation.table.regions.utilization_switch
        rows = zip(observation.containers, switches, strict=True)
        settled = {
            container
            for container, switch in rows
            if not switch and container in self._findings
            if all(map(_says_who_will_switch_on, self._findings[container]))
        }
        if not settled or not is_writer_known(self._observer.node):
            return self._findings.keys()
        return self._findings.keys() - settled

    def _diagnose(self, join: Join, containers: Sequence[Container]) -> tuple[Finding, ...]:
        node, observation = self._observer.node, join.observation
        views = observed_views(node, observation, frozenset(containers))
        rows: list[NodeProcess] = []
        if observation.sample is not None:
            slots = slot_rows(join, views)
            rows = [*(row for row in slots if row.pid is not None), *join.uncounted]
        return diagnose(node, observation=observation, views=views, rows=rows, settle_s=0)

    def _believed(self) -> list[Finding]:
        """Without what can be there for a moment on a healthy node and was not there last time."""
        before, self._passing = self._passing, set()
        believed = []
        for findings in self._findings.values():
            for finding in findings:
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


def _says_who_will_switch_on(finding: Finding) -> bool:
    """Whether a finding is that the SM limit is switched off, and that somebody writes switches."""
    is_off = finding.kind is FindingKind.SM_LIMIT_OFF and finding.cause == "switch"
    return is_off and finding.severity is Severity.INFO

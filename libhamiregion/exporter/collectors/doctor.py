"""What `hamiregion doctor` would find, counted."""

from __future__ import annotations

from array import array
from collections import defaultdict
from typing import TYPE_CHECKING

from libhamiregion.errors import RegionError
from libhamiregion.exporter import families
from libhamiregion.exporter.identity import shadowed
from libhamiregion.exporter.labels import LabelRows, label_text
from libhamiregion.exporter.process_metrics import sum_slots
from libhamiregion.exporter.region_metrics import is_held
from libhamiregion.exporter.text import Series
from libhamiregion.node import ContainerView, FindingKind, diagnose, node_processes
from libhamiregion.node.views import bounded_view

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from libhamiregion.exporter.labels import CardinalityLimiter
    from libhamiregion.exporter.state import CollectedState
    from libhamiregion.node import Container, Finding, Node, NodeSnapshot
    from libhamiregion.node.slot_tracker import SlotStates

# A container that has not changed and is in order is looked at every so many turns.
_TURNS = 10


class DoctorCollector:
    """Looks for what is wrong with the regions, at those first that have changed.

    Each turn looks at the containers whose columns have changed, at those with findings or a held
    lock, and at a tenth of the others. What can be there for a moment on a healthy node counts only
    if it is there at two turns in a row.

    Args:
        node: The node.
        limiter: Bounds what containers may write into labels.
    """

    name = "doctor"

    def __init__(self, node: Node, limiter: CardinalityLimiter) -> None:
        self._node = node
        self._limiter = limiter
        self._turn = 0
        self._seen: dict[Container, bytes] = {}
        self._findings: dict[Container | None, list[Finding]] = {}
        self._passing: set[Hashable] = set()

    def collect(self, state: CollectedState) -> CollectedState:
        """Look at the containers whose turn it is."""
        if state.slots is None:
            return state
        snapshot, states = state.slots
        chosen = self._chosen(snapshot, states)
        views = self._views(snapshot, states, chosen)
        rows = []
        if state.sample is not None:
            looked_at = {view.container for view in views}
            joined = node_processes(views, self._node.processes, state.sample)
            rows = [row for row in joined if row.container in looked_at and row.pid is not None]
            rows += state.uncounted
        findings = diagnose(self._node, sample=state.sample, views=views, rows=rows, settle_s=0)
        for container in (None, *chosen):
            self._findings.pop(container, None)
        for finding in findings:
            self._findings.setdefault(finding.container, []).append(finding)
        present = {*snapshot.containers, *snapshot.missing}
        for gone in self._findings.keys() - present - {None}:
            del self._findings[gone]
        believed = self._believed()
        return state.with_series(self.name, self._series(believed, state, snapshot))

    def _chosen(self, snapshot: NodeSnapshot, states: SlotStates) -> set[Container]:
        self._turn += 1
        table = snapshot.table
        regions, processes, devices = table.regions, table.processes, table.devices
        before, self._seen = self._seen, {}
        # Containers without a region cost nothing but a look at their directory.
        chosen = set(snapshot.missing)
        for row, container in enumerate(snapshot.containers):
            first = regions.first_process[row]
            slots = slice(first, first + regions.process_count[row])
            start = regions.first_device[row]
            rows = slice(start, start + regions.device_rows[row])
            used, limits = devices.memory_used_bytes[rows], devices.memory_limit_bytes[rows]
            over = bytes(0 < limit < use for use, limit in zip(used, limits, strict=True))
            figures = (regions.code[row], regions.priority[row], regions.recent_kernel[row] < 0)
            seen = self._seen[container] = b"".join(
                (
                    processes.pid[slots].tobytes(),
                    processes.status[slots].tobytes(),
                    states.states[slots],
                    limits.tobytes(),
                    devices.sm_limit_percent[rows].tobytes(),
                    over,
                    repr(figures).encode(),
                )
            )
            if (
                before.get(container) != seen
                or container in self._findings
                or is_held(regions.semaphore[row])
                or row % _TURNS == self._turn % _TURNS
            ):
                chosen.add(container)
        return chosen

    def _views(
        self, snapshot: NodeSnapshot, states: SlotStates, chosen: Iterable[Container]
    ) -> list[ContainerView]:
        places = {container: row for row, container in enumerate(snapshot.containers)}
        views = []
        for container in chosen:
            proved = states.proved.get(places.get(container, -1))
            if container.region is None or proved is None:
                views.append(ContainerView(container))
                continue
            try:
                picture = container.region.snapshot()
            except RegionError as error:
                views.append(ContainerView(container, error=error))
                continue
            # A slot that has changed since is looked at in the next turn.
            if [process.pid for process in picture.processes] == list(proved.pids):
                views.append(bounded_view(container, picture, proved))
        return views

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
        self, findings: Iterable[Finding], state: CollectedState, snapshot: NodeSnapshot
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
            values = (*identity.labels, finding.kind.value, finding.severity.value)
            of_container[label_text(families.CONTAINER_FINDINGS.labels, *values)] += 1
            # While its process is idle it may as well be an earlier one's.
            proved = finding.kind is FindingKind.ORPHANED_SLOT and finding.repairable
            if proved and finding.pid is not None:
                orphans[container].add(finding.pid)
        kinds = {label_text(("kind",), kind.value): count for kind, count in totals.items()}
        return [
            Series.of(families.FINDINGS, kinds),
            Series.of(families.CONTAINER_FINDINGS, of_container),
            self._orphaned(orphans, state, snapshot),
        ]

    def _orphaned(
        self,
        orphans: defaultdict[Container, set[int]],
        state: CollectedState,
        snapshot: NodeSnapshot,
    ) -> Series:
        """What orphaned slots hold, by device."""
        table = snapshot.table
        regions, devices, pids = table.regions, table.devices, table.processes.pid
        hidden = state.gone | shadowed(state.identities)
        chosen = bytearray(len(pids))
        texts, rows = [], array("I")
        for row, container in enumerate(snapshot.containers):
            identity = state.identities.get(container)
            if identity is None or container in hidden:
                continue
            first = regions.first_process[row]
            for at in range(first, first + regions.process_count[row]) if orphans else ():
                chosen[at] = pids[at] in orphans.get(container, ())
            start = regions.first_device[row]
            for at in range(start, start + regions.device_rows[row]):
                uuid = devices.uuid(at)
                if uuid is not None:
                    index = devices.index[at]
                    safe = self._limiter.uuid(identity, index, uuid)
                    texts.append(label_text(families.DEVICE, *identity.shown, str(index), safe))
                    rows.append(at)
        sums = sum_slots(table, bytes(chosen), table.usages.memory_used_bytes)
        return Series(families.MEMORY_ORPHANED, LabelRows(texts), sums, rows)

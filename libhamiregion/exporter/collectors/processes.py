"""Which processes stand behind the slots, and what the driver says of them."""

from __future__ import annotations

from array import array
from collections import Counter
from operator import is_not
from typing import TYPE_CHECKING

import attrs

from libhamiregion.exporter import families
from libhamiregion.exporter.identity import duplicates_hidden
from libhamiregion.exporter.labels import OTHER, LabelRows
from libhamiregion.exporter.slot_sums import sum_slots
from libhamiregion.exporter.state import ProcessLabels, ShownProcesses
from libhamiregion.exporter.text import NO_ROW, Series
from libhamiregion.node.driver_lists import driver_gap
from libhamiregion.node.join import Join

from .driver_series import DriverRows, series_of_processes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from libhamiregion.exporter.identity import Identity
    from libhamiregion.exporter.labels import CardinalityLimiter
    from libhamiregion.exporter.state import CollectedState
    from libhamiregion.node import (
        Container,
        HostProcess,
        Observer,
    )
    from libhamiregion.region_set import RegionTable

# Of `SlotStates.states`, with the label for each.
_STATES = ((1, "alive"), (2, "dead"), (0, "unknown"))
# Translates states to whether they are "dead".
_IS_DEAD = bytes(number == 2 for number in range(256))


# A container's processes with series of their own, and those times devices, of it and of the node;
# the rest is summed up.
_PROCESSES_PER_CONTAINER = 64
_ROWS_PER_CONTAINER = 512
_ROWS_PER_NODE = 16_384


class ProcessesCollector:
    """Proves which processes use which region, and adds the driver's figures of them.

    Args:
        observer: Observes the node.
        limiter: Bounds what containers may write into labels.
        max_age_s: How old an observation may be.
    """

    name = "processes"

    def __init__(
        self,
        observer: Observer,
        limiter: CardinalityLimiter,
        max_age_s: float,
    ) -> None:
        self._observer = observer
        self._max_age_s = max_age_s
        self._limiter = limiter
        self._labels: ProcessLabels | None = None
        self._driver_rows: DriverRows | None = None
        self._counted: tuple[ProcessLabels, set[int | None], list[Series]] | None = None

    def collect(self, state: CollectedState) -> CollectedState:
        """Look once at all slots, and at what the driver lists beside them."""
        observation = self._observer.observe(max_age_s=self._max_age_s)
        join = Join(observation, state.known)
        states, snapshot = join.pairs.states, observation.snapshot
        labels = self._current_labels(join, state)
        figures: list[Series] = []
        if driver_gap(observation.processes, observation.sample) is None:
            used = join.device_sums("memory_used_bytes")
            figures = [
                *series_of_processes(join, self._current_driver_rows(join, labels)),
                labels.series_of_devices(families.MEMORY_DRIVER, used.sums, used.rows),
            ]
        dead = states.states.translate(_IS_DEAD)
        sums = sum_slots(snapshot.table, dead, snapshot.table.usages.memory_used_bytes)
        series = [
            *self._counts(join, state, labels),
            labels.series_of_devices(families.MEMORY_DEAD, sums),
            *_series_of_slots(labels, snapshot.table),
            *figures,
        ]
        return attrs.evolve(
            state,
            container_ids=labels.container_ids,
            known=join.known,
            labels=labels,
            uncounted=(*join.uncounted, *join.on_other_devices),
        ).with_series(self.name, series)

    # ---- what is kept ----------------------------------------------------------------------------

    def _current_labels(self, join: Join, state: CollectedState) -> ProcessLabels:
        sources = (join.pairs, state.identities, state.gone)
        labels = self._labels
        if labels is None or any(map(is_not, labels.sources, sources)):
            labels = self._labels = self._new_labels(join, state, sources)
        return labels

    def _current_driver_rows(self, join: Join, labels: ProcessLabels) -> DriverRows:
        rows = self._driver_rows
        if rows is None or rows.labels is not labels or rows.known is not join.known:
            rows = self._driver_rows = DriverRows.of(labels, join.known)
        return rows

    def _new_labels(
        self, join: Join, state: CollectedState, sources: tuple[object, ...]
    ) -> ProcessLabels:
        before, pairs = self._labels, join.pairs
        table, states = join.observation.table, pairs.states
        hidden = state.gone | duplicates_hidden(state.identities)
        regions, devices, pids = table.regions, table.devices, table.processes.pid
        shown: dict[Container, tuple[int, ShownProcesses]] = {}
        usages, sums = array("I"), array("I")
        folded = bytearray(len(pids))
        unmeasured: list[range] = []
        ids: dict[Container, str] = {}
        device_rows = array("I")
        device_texts: list[bytes] = []
        first_labels: dict[int, tuple[int, ShownProcesses]] = {}
        left = _ROWS_PER_NODE
        for row, container in enumerate(join.observation.containers):
            identity = state.identities.get(container)
            if regions.code[row] != 0 or identity is None:
                continue
            first, count = regions.first_process[row], regions.process_count[row]
            found = [
                (pids[at], states.processes[at])
                for at in range(first, first + count)
                if at in states.processes
            ]
            proved = states.proved.get(row)
            container_id = _container_id(container, found, proved.unlisted if proved else ())
            if container_id:
                ids[container] = container_id
            if container in hidden:
                continue
            places: list[tuple[int, str]] = []
            start = regions.first_device[row]
            at_device = range(start, start + regions.device_rows[row])
            for at in at_device:
                # Empty where the container has not said yet which devices it has.
                index, uuid = devices.index[at], devices.uuid(at) or ""
                safe = self._limiter.uuid(identity.labels, index, uuid)
                places.append((index, safe))
                device_rows.append(at)
                device_texts.append(identity.text(families.DEVICE, str(index), safe))
            if found:
                known = None if before is None else before.shown.get(container)
                made = self._show(identity, container_id, found, places, left, known)
                left -= len(made.alone) * len(places)
                before_it = len(usages)
                shown[container] = first_labels[row] = before_it, made
                usages.extend([NO_ROW] * len(made.labels))
                sums.extend([NO_ROW] * len(made.labels))
                if container.region is None or not container.region.layout.has_utilization:
                    unmeasured.append(range(before_it, len(usages)))
                taken: set[int] = set()
                for at in range(first, first + count):
                    own = made.alone.get(pids[at])
                    # A pid that stands in several slots is one process: the rest is summed.
                    if own is not None and pids[at] not in taken:
                        taken.add(pids[at])
                        for number, device in enumerate(at_device):
                            usage = table.processes.first_usage[at] + device - start
                            usages[before_it + own + number] = usage
                    elif own is not None or pids[at] in made.folded:
                        folded[at] = 1
                        for number, device in enumerate(at_device):
                            sums[before_it + made.others + number] = device
        of_pairs = array("I")
        for slot, device in zip(pairs.slots, pairs.devices, strict=True):
            region = table.processes.region[slot]
            of_region = first_labels.get(region)
            if of_region is None:
                of_pairs.append(NO_ROW)
            else:
                before_it, made = of_region
                own = made.alone.get(pids[slot], made.others)
                of_pairs.append(before_it + own + device - regions.first_device[region])
        return ProcessLabels(
            sources=sources,
            shown=shown,
            labels=LabelRows.joined(each.labels for _, each in shown.values()),
            usages=usages,
            sums=sums,
            folded=bytes(folded),
            unmeasured=unmeasured,
            of_pairs=of_pairs,
            container_ids=ids,
            device_rows=device_rows,
            device_labels=LabelRows(device_texts),
        )

    def _show(
        self,
        identity: Identity,
        container_id: str,
        found: Sequence[tuple[int, HostProcess]],
        devices: Sequence[tuple[int, str]],
        left: int,
        known: tuple[int, ShownProcesses] | None,
    ) -> ShownProcesses:
        """Which proved processes of a container get series of their own; the rest is summed up."""
        most = min(_ROWS_PER_CONTAINER, left) // max(1, len(devices))
        most = min(_PROCESSES_PER_CONTAINER, most)
        alone, folded = found[:most], found[most:]
        key = (identity, container_id, tuple(found), most, tuple(devices))
        if known is not None and known[1].key == key:
            return known[1]
        texts = [
            identity.text(families.PROCESS, own_id, str(index), uuid, *pids)
            for own_id, *pids in (
                *(
                    (
                        container_id if process.container is None else process.container.id,
                        str(pid),
                        str(process.pid),
                    )
                    for pid, process in alone
                ),
                (container_id, OTHER, OTHER),
            )
            for index, uuid in devices
        ]
        return ShownProcesses(
            key,
            LabelRows(texts),
            len(devices),
            {pid: number * len(devices) for number, (pid, _) in enumerate(alone)},
            frozenset(pid for pid, _ in folded),
        )

    def _counts(self, join: Join, state: CollectedState, labels: ProcessLabels) -> list[Series]:
        """Processes by state; made anew when one comes or goes."""
        observation, states = join.observation, join.pairs.states
        snapshot = observation.snapshot
        uncounted = join.uncounted
        escaped_pids = {row.host_pid for row in uncounted if row.state == "escaped"}
        if self._counted is not None and self._counted[:2] == (labels, escaped_pids):
            return self._counted[2]
        regions, unlisted = snapshot.table.regions, states.unlisted
        escaped = Counter(row.container for row in uncounted if row.state == "escaped")
        counts: dict[bytes, float] = {}
        folded: dict[bytes, float] = {}
        hidden = state.gone | duplicates_hidden(state.identities)
        unread = {gap.container: gap.count for gap in observation.gaps if gap.kind == "slots"}
        for row, container in enumerate(snapshot.containers):
            identity = state.identities.get(container)
            if regions.code[row] != 0 or identity is None or container in hidden:
                continue
            first = regions.first_process[row]
            slots = states.states[first : first + regions.process_count[row]]
            by_state = {name: slots.count(number) for number, name in _STATES}
            of_row = unlisted.get(row, ())
            by_state["unlisted"] = sum(each.pid not in escaped_pids for each in of_row)
            by_state["escaped"] = escaped[container]
            if container in unread:
                by_state["unread"] = unread[container]
            for name, count in by_state.items():
                text = identity.text(families.CONTAINER_PROCESSES.labels, name)
                counts[text] = count
            shown = labels.shown.get(container)
            if shown is not None and shown[1].folded:
                folded[identity.text(families.CONTAINER)] = len(shown[1].folded)
        series = [
            Series.of(families.CONTAINER_PROCESSES, counts),
            Series.of(families.PROCESSES_FOLDED, folded),
        ]
        self._counted = labels, escaped_pids, series
        return series


def _series_of_slots(labels: ProcessLabels, table: RegionTable) -> list[Series]:
    """What stands in the slots of the proved processes."""
    found = []
    for family in (families.PROCESS_MEMORY, families.PROCESS_SM):
        cells = getattr(table.usages, str(family.column))
        # A copy: the snapshot is much larger.
        columns = [(memoryview(bytes(cells)).cast("Q"), labels.usages)]
        if any(labels.folded):
            columns.append((memoryview(sum_slots(table, labels.folded, cells)), labels.sums))
        for column, at in columns:
            measured = array("I", at)
            for unmeasured in labels.unmeasured if family is families.PROCESS_SM else ():
                # 0 would say that they are idle.
                none = array("I", [NO_ROW]) * len(unmeasured)
                measured[unmeasured.start : unmeasured.stop] = none
            found.append(Series(family, labels.labels, column, measured))
    return found


def _container_id(
    container: Container, found: Sequence[tuple[int, HostProcess]], unlisted: Sequence[HostProcess]
) -> str:
    """The id of a container, as its processes tell, or its region outside the roots."""
    users = (*(process for _, process in found), *unlisted)
    ids = dict.fromkeys(each.container.id for each in users if each.container is not None)
    if container.claim_uid is not None and len(ids) > 1:
        return ""  # each process has its own
    if ids:
        return next(iter(ids))
    return "" if container.container_id is None else container.container_id.id

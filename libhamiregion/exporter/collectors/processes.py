"""Which processes stand behind the slots, and what the driver says of them."""

from __future__ import annotations

import os
import time
from array import array
from collections import Counter, defaultdict
from operator import is_not
from typing import TYPE_CHECKING

import attrs

from libhamiregion.exporter import families
from libhamiregion.exporter.identity import shadowed
from libhamiregion.exporter.labels import OTHER, LabelRows, label_text
from libhamiregion.exporter.process_metrics import sum_slots
from libhamiregion.exporter.state import ShownProcesses
from libhamiregion.exporter.text import NO_ROW, Series
from libhamiregion.node import NodeProcess, ProcessDeviceRow
from libhamiregion.node.usage import driver_gap, uncounted_processes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from libhamiregion.exporter.identity import Identity
    from libhamiregion.exporter.labels import CardinalityLimiter
    from libhamiregion.exporter.state import CollectedState
    from libhamiregion.node import (
        Container,
        HostProcess,
        Node,
        NodeSnapshot,
        NvmlSample,
    )
    from libhamiregion.node.slot_tracker import SlotStates

# Of `SlotStates.states`, with the label for each.
_STATES = ((1, "alive"), (2, "dead"), (0, "unknown"))
_UNKNOWN, _DEAD = 0, 2
_DRIVER_FAMILIES = (
    (families.PROCESS_DRIVER_MEMORY, "memory_used_bytes"),
    (families.PROCESS_DRIVER_SM, "sm_util_percent"),
    (families.PROCESS_DRIVER_ENC, "enc_util_percent"),
    (families.PROCESS_DRIVER_DEC, "dec_util_percent"),
)


@attrs.frozen
class SeriesLimits:
    """How many series there may be, whatever containers write and do.

    Attributes:
        processes_per_container: With series of their own; the rest is summed up.
        rows_per_container: Processes times devices with series of their own.
        rows_per_node: Processes times devices of the node.
        unaccounted: Processes and devices that no region accounts for.
        unaccounted_per_container: Of one container.
    """

    processes_per_container: int = 64
    rows_per_container: int = 512
    rows_per_node: int = 16_384
    unaccounted: int = 512
    unaccounted_per_container: int = 64


@attrs.frozen(eq=False)
class _Rows:
    """What is made of slots, names and devices, and kept until one of these changes.

    Attributes:
        sources: What it was made of, compared by identity.
        key: What it was made of, compared by content.
        shown: The processes with series, by container.
        container_ids: The ids of containers, where known.
        devices: The row of each device that is told of, its container, index and uuid.
        device_labels: One per entry of `devices`.
        alive: Proved processes: container, process, index and uuid of each device.
        alive_labels: Of those with series of their own, one per process and device, and last the
            sums of others.
        label_rows: Container, pid in the slot and index to the row in `alive_labels`.
    """

    sources: tuple[object, ...]
    key: tuple[bytes, ...]
    shown: Mapping[Container, ShownProcesses]
    container_ids: Mapping[Container, str]
    devices: Sequence[tuple[int, Container, int, str]]
    device_labels: LabelRows
    alive: Sequence[tuple[Container, int, HostProcess, Sequence[tuple[int, str]]]]
    alive_labels: LabelRows
    label_rows: Mapping[tuple[Container, int | None, int], int]


class ProcessesCollector:
    """Proves which processes use which region, and adds the driver's figures of them.

    Args:
        node: The node.
        limiter: Bounds what containers may write into labels.
        limits: How many series there may be.
    """

    name = "processes"

    def __init__(self, node: Node, limiter: CardinalityLimiter, limits: SeriesLimits) -> None:
        self._node = node
        self._limiter = limiter
        self._limits = limits
        self._rows: _Rows | None = None
        self._boot_ns = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    def collect(self, state: CollectedState) -> CollectedState:
        """Look once at all slots, and at what the driver lists beside them."""
        processes = self._node.processes
        if not processes.visibility.own_pid:
            # Without a slot nobody has read /proc yet.
            processes.refresh()
        snapshot = self._node.snapshot()
        states = self._node.slots(snapshot)
        sample = state.sample
        if sample is not None and driver_gap(processes, sample) is not None:
            sample = None
        uncounted: tuple[NodeProcess, ...] = ()
        if sample is not None:
            uncounted = uncounted_processes(self._node, snapshot, states, sample)
        rows = self._current_rows(snapshot, states, state)
        series = self._of_containers(snapshot, states, state, rows, uncounted)
        if sample is not None:
            uncounted += _other_devices(rows, sample)
            series += self._of_driver(rows, sample, uncounted, states, snapshot)
        return attrs.evolve(
            state,
            processes=rows.shown,
            container_ids=rows.container_ids,
            uncounted=uncounted,
            slots=(snapshot, states),
        ).with_series(self.name, series)

    # ---- what is kept ----------------------------------------------------------------------------

    def _current_rows(
        self, snapshot: NodeSnapshot, states: SlotStates, state: CollectedState
    ) -> _Rows:
        table = snapshot.table
        sources = (snapshot.containers, states, state.identities, state.gone)
        key = (
            table.regions.code.tobytes(),
            table.processes.pid.tobytes(),
            table.devices.index.tobytes(),
            table.devices.uuid_bytes.tobytes(),
        )
        rows = self._rows
        if rows is None or rows.key != key or any(map(is_not, rows.sources, sources)):
            rows = self._rows = self._new_rows(snapshot, states, state, sources, key)
        return rows

    def _new_rows(
        self,
        snapshot: NodeSnapshot,
        states: SlotStates,
        state: CollectedState,
        sources: tuple[object, ...],
        key: tuple[bytes, ...],
    ) -> _Rows:
        table, before = snapshot.table, self._rows
        hidden = state.gone | shadowed(state.identities)
        regions, devices, pids = table.regions, table.devices, table.processes.pid
        shown: dict[Container, ShownProcesses] = {}
        ids: dict[Container, str] = {}
        told: list[tuple[int, Container, int, str]] = []
        device_texts: list[bytes] = []
        alive: list[tuple[Container, int, HostProcess, Sequence[tuple[int, str]]]] = []
        taken: set[int] = set()
        left = self._limits.rows_per_node
        for row, container in enumerate(snapshot.containers):
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
            for at in range(start, start + regions.device_rows[row]):
                uuid = devices.uuid(at)
                if uuid is not None:
                    index = devices.index[at]
                    places.append((index, uuid))
                    told.append((at, container, index, uuid))
                    safe = self._limiter.uuid(identity, index, uuid)
                    device_texts.append(
                        label_text(families.DEVICE, *identity.shown, str(index), safe)
                    )
            for pid, process in found:
                # Of several regions that a process has a slot in, the first has its figures.
                if process.pid not in taken:
                    taken.add(process.pid)
                    alive.append((container, pid, process, places))
            if found:
                known = None if before is None else before.shown.get(container)
                made = self._show(identity, container_id, found, places, left, known)
                left -= sum(map(len, made.alone.values()))
                shown[container] = made
        texts, label_rows = _texts_of(shown)
        return _Rows(
            sources=sources,
            key=key,
            shown=shown,
            container_ids=ids,
            devices=told,
            device_labels=LabelRows(device_texts),
            alive=alive,
            alive_labels=LabelRows(texts),
            label_rows=label_rows,
        )

    def _show(
        self,
        identity: Identity,
        container_id: str,
        found: Sequence[tuple[int, HostProcess]],
        places: Sequence[tuple[int, str]],
        left: int,
        known: ShownProcesses | None,
    ) -> ShownProcesses:
        """Which proved processes of a container get series of their own; the rest is summed up."""
        limits = self._limits
        most = min(limits.rows_per_container, left) // max(1, len(places))
        most = min(limits.processes_per_container, most)
        alone, folded = found[:most], found[most:]
        safe = [(index, self._limiter.uuid(identity, index, uuid)) for index, uuid in places]
        key = (identity, container_id, tuple(found), most, tuple(safe))
        if known is not None and known.key == key:
            return known

        def text(own_id: str, index: int, uuid: str, pid: object, host_pid: object) -> bytes:
            values = (own_id, str(index), uuid, str(pid), str(host_pid))
            return label_text(families.PROCESS, *identity.shown, *values)

        return ShownProcesses(
            key,
            {
                pid: {
                    index: text(
                        container_id if process.container is None else process.container.id,
                        index,
                        uuid,
                        pid,
                        process.pid,
                    )
                    for index, uuid in safe
                }
                for pid, process in alone
            },
            frozenset(pid for pid, _ in folded),
            {index: text(container_id, index, uuid, OTHER, OTHER) for index, uuid in safe},
        )

    # ---- series ----------------------------------------------------------------------------------

    def _of_containers(
        self,
        snapshot: NodeSnapshot,
        states: SlotStates,
        state: CollectedState,
        rows: _Rows,
        uncounted: Sequence[NodeProcess],
    ) -> list[Series]:
        """Processes by state, and the memory of the dead."""
        regions = snapshot.table.regions
        escaped = Counter(row.container for row in uncounted if row.state == "escaped")
        escaped_pids = {row.host_pid for row in uncounted if row.state == "escaped"}
        counts: dict[bytes, float] = {}
        folded: dict[bytes, float] = {}
        hidden = state.gone | shadowed(state.identities)
        for row, container in enumerate(snapshot.containers):
            identity = state.identities.get(container)
            if regions.code[row] != 0 or identity is None or container in hidden:
                continue
            first = regions.first_process[row]
            slots = states.states[first : first + regions.process_count[row]]
            by_state = {name: slots.count(number) for number, name in _STATES}
            unlisted = states.unlisted.get(row, ())
            by_state["unlisted"] = sum(each.pid not in escaped_pids for each in unlisted)
            by_state["escaped"] = escaped[container]
            for name, count in by_state.items():
                text = label_text(families.CONTAINER_PROCESSES.labels, *identity.labels, name)
                counts[text] = count
            shown = rows.shown.get(container)
            if shown is not None and shown.folded:
                folded[label_text(families.CONTAINER, *identity.labels)] = len(shown.folded)
        dead = bytes(each == _DEAD for each in states.states)
        sums = sum_slots(snapshot.table, dead, snapshot.table.usages.memory_used_bytes)
        at = array("I", [row for row, _, _, _ in rows.devices])
        return [
            Series.of(families.CONTAINER_PROCESSES, counts),
            Series.of(families.PROCESSES_FOLDED, folded),
            Series(families.MEMORY_DEAD, rows.device_labels, sums, at),
        ]

    def _of_driver(
        self,
        rows: _Rows,
        sample: NvmlSample,
        uncounted: Sequence[NodeProcess],
        states: SlotStates,
        snapshot: NodeSnapshot,
    ) -> list[Series]:
        """What the driver says of the proved processes, and of containers' devices."""
        tick_ns = 10**9 // os.sysconf("SC_CLK_TCK")
        columns = {
            family: array("Q", bytes(8 * len(rows.alive_labels))) for family, _ in _DRIVER_FAMILIES
        }
        known = {
            family: array("I", [NO_ROW]) * len(rows.alive_labels) for family, _ in _DRIVER_FAMILIES
        }
        used: defaultdict[tuple[Container, int], int] = defaultdict(int)
        unsure: set[tuple[Container, int]] = set()
        for container, pid, process, places in rows.alive:
            # Whoever began after the sample has the pid of one that has ended.
            is_newer = self._boot_ns + process.start_time_ticks * tick_ns > sample.taken_at_ns
            for index, uuid in places:
                entry = None if is_newer else sample.process(uuid, process.pid)
                memory = None if entry is None else entry.memory_used_bytes
                if memory is None:
                    unsure.add((container, index))
                else:
                    used[container, index] += memory
                at = rows.label_rows.get((container, pid, index))
                if at is None:
                    at = rows.label_rows.get((container, None, index))
                if entry is None or at is None:
                    continue
                for family, figure in _DRIVER_FAMILIES:
                    value = getattr(entry, figure)
                    if value is not None:
                        columns[family][at] += value
                        known[family][at] = at
        found = [
            Series(family, rows.alive_labels, columns[family], known[family])
            for family, _ in _DRIVER_FAMILIES
        ]
        for row in uncounted:
            for device in row.devices:
                if row.container is not None and device.index is not None:
                    if device.memory_driver_bytes is None:
                        unsure.add((row.container, device.index))
                    else:
                        used[row.container, device.index] += device.memory_driver_bytes
        return [*found, self._memory_of_driver(rows, uncounted, states, snapshot, used, unsure)]

    def _memory_of_driver(
        self,
        rows: _Rows,
        uncounted: Sequence[NodeProcess],
        states: SlotStates,
        snapshot: NodeSnapshot,
        used: Mapping[tuple[Container, int], int],
        unsure: set[tuple[Container, int]],
    ) -> Series:
        """By device; absent where the figures of a process may be missing in the sum."""
        sees_all = self._node.processes.is_complete
        # Pod UID and uuid of processes that may be of one container or of another; None as the pod
        # means that any container may be it.
        unplaced = {
            (None if row.container_id is None else row.container_id.pod_uid, device.uuid)
            for row in uncounted
            if row.container is None
            and row.state != "unmanaged"
            # A process that a complete /proc does not show has ended since the driver was asked.
            and not (row.process is None and sees_all)
            for device in row.devices
        }
        regions = snapshot.table.regions
        doubtful = set()
        for row, container in enumerate(snapshot.containers):
            first = regions.first_process[row]
            if _UNKNOWN in states.states[first : first + regions.process_count[row]]:
                doubtful.add(container)
        values = array("Q")
        at = array("I")
        for number, (_, container, index, uuid) in enumerate(rows.devices):
            is_known = (
                container not in doubtful
                and (container, index) not in unsure
                and unplaced.isdisjoint({(None, uuid), (container.pod_uid, uuid)})
            )
            values.append(used.get((container, index), 0))
            at.append(number if is_known else NO_ROW)
        return Series(families.MEMORY_DRIVER, rows.device_labels, values, at)


def _other_devices(rows: _Rows, sample: NvmlSample) -> tuple[NodeProcess, ...]:
    """Processes with a slot that use a GPU which their region does not have."""
    found = []
    for container, pid, process, places in rows.alive:
        entries = sample.of_pid(process.pid)
        if len(entries) <= len(places):
            uuids = {uuid for _, uuid in places}
            if all(entry.device_uuid in uuids for entry in entries):
                continue
        devices = tuple(
            ProcessDeviceRow(
                None,
                entry.device_uuid,
                None,
                entry.memory_used_bytes,
                None,
                entry.sm_util_percent,
                entry.memory_util_percent,
                entry.enc_util_percent,
                entry.dec_util_percent,
                entry.device_index,
            )
            for entry in entries
            if all(entry.device_uuid != uuid for _, uuid in places)
        )
        found.append(
            NodeProcess(
                container, process.container, pid, process.pid, "alive", process, None, devices
            )
        )
    return tuple(found)


def _container_id(
    container: Container, found: Sequence[tuple[int, HostProcess]], unlisted: Sequence[HostProcess]
) -> str:
    """The id of a container, as its processes tell, or its region outside the roots."""
    for process in (*(process for _, process in found), *unlisted):
        if process.container is not None:
            return process.container.id
    return "" if container.container_id is None else container.container_id.id


def _texts_of(
    shown: Mapping[Container, ShownProcesses],
) -> tuple[list[bytes], dict[tuple[Container, int | None, int], int]]:
    """The label texts of all processes; a pid of None stands for those that are summed up."""
    texts: list[bytes] = []
    rows: dict[tuple[Container, int | None, int], int] = {}
    for container, processes in shown.items():
        everything = [*processes.alone.items(), (None, processes.other)]
        for pid, by_index in everything if processes.folded else everything[:-1]:
            for index, text in by_index.items():
                rows[container, pid, index] = len(texts)
                texts.append(text)
    return texts, rows

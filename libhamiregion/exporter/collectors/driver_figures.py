"""The driver's figures of proved processes, joined by columns: no object is made per process."""

from __future__ import annotations

import os
import time
from array import array
from collections import defaultdict
from typing import TYPE_CHECKING

import attrs

from libhamiregion.exporter import families
from libhamiregion.exporter.text import NO_ROW, Series
from libhamiregion.node import NodeProcess, ProcessDeviceRow

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from libhamiregion.exporter.families import MetricFamily
    from libhamiregion.exporter.state import ProcessRows
    from libhamiregion.node import Container, HostProcess, NvmlSample
    from libhamiregion.node.nvml.models import NvmlProcess, ProcessColumns


_FAMILIES = (
    (families.PROCESS_DRIVER_MEMORY, "memory_used_bytes"),
    (families.PROCESS_DRIVER_SM, "sm_util_percent"),
    (families.PROCESS_DRIVER_ENC, "enc_util_percent"),
    (families.PROCESS_DRIVER_DEC, "dec_util_percent"),
)


@attrs.frozen(eq=False)
class _Joined:
    """The processes that have one GPU in their region, and where the driver lists them.

    Attributes:
        pids: As the driver listed them, to see whether they still are.
        rows: Of each process: its label text, its device's number, and its row in the driver's
            columns; -1 where it is not listed and uses nothing, None where nothing is known.
        unlisted: What the driver says of processes that it does not list; None where nothing.
        strangers: Processes that use this GPU and do not have it in their region: container, pid in
            the slot, process, row in the columns.
    """

    pids: bytes
    rows: Sequence[tuple[int, int, int | None]]
    unlisted: NvmlProcess | None
    strangers: Sequence[tuple[Container, int, HostProcess, int]]


class DriverFigures:
    """Joins proved processes with what the driver lists, and keeps who is who between samples.

    Threads: one at a time.
    """

    def __init__(self) -> None:
        self._boot_ns = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        self._tick_ns = 10**9 // os.sysconf("SC_CLK_TCK")
        self._rows: ProcessRows | None = None
        self._columns: Mapping[str, ProcessColumns] = {}
        self._joined: dict[str, _Joined] = {}
        self._by_uuid: dict[str, list[tuple[Container, int, HostProcess, int, int]]] = {}
        self._by_pid: dict[int, tuple[Container, int, HostProcess]] = {}
        self._with_uuids: set[Container] = set()

    def join(self, rows: ProcessRows, sample: NvmlSample) -> None:
        """Take over one sample.

        Args:
            rows: The proved processes.
            sample: What the driver said before they were proved.
        """
        if rows is not self._rows:
            self._rows = rows
            self._with_uuids = {container for _, container, _, uuid in rows.devices if uuid}
            self._joined.clear()
            self._by_uuid.clear()
            for container, pid, process, places in rows.alive:
                for number, index, uuid in places:
                    # What the driver calls a device that has no uuid yet, nobody knows.
                    if uuid:
                        entry = (container, pid, process, number, index)
                        self._by_uuid.setdefault(uuid, []).append(entry)
            self._by_pid = {
                process.pid: (where, pid, process) for where, pid, process, _ in rows.alive
            }
        self._columns = {each.device_uuid: each for each in sample.columns if each.device_uuid}
        for uuid in {*self._by_uuid, *self._columns}:
            columns = self._columns.get(uuid)
            pids = b"" if columns is None else columns.pids.tobytes()
            known = self._joined.get(uuid)
            if known is None or known.pids != pids:
                self._joined[uuid] = self._join_device(uuid, columns, pids, rows, sample)

    def _join_device(
        self,
        uuid: str,
        columns: ProcessColumns | None,
        pids: bytes,
        rows: ProcessRows,
        sample: NvmlSample,
    ) -> _Joined:
        listed = {} if columns is None else columns.rows
        found: list[tuple[int, int, int | None]] = []
        own: set[int] = set()
        unlisted = None
        for container, pid, process, number, index in self._by_uuid.get(uuid, ()):
            own.add(process.pid)
            start, shown = rows.shown[container]
            label = start + shown.alone.get(pid, shown.others) + shown.indexes.index(index)
            at: int | None = None
            # A process that began after the sample has the pid of one that has ended.
            if self._boot_ns + process.start_time_ticks * self._tick_ns <= sample.taken_at_ns:
                at = listed.get(process.pid)
                if at is None:
                    absent = sample.process(uuid, process.pid)
                    unlisted = unlisted or absent
                    at = None if absent is None else -1
            found.append((label, number, at))
        strangers = [
            (*self._by_pid[pid], row)
            for pid, row in listed.items()
            # A region that names no device yet has none to be compared.
            if pid not in own and pid in self._by_pid and self._by_pid[pid][0] in self._with_uuids
        ]
        return _Joined(pids, found, unlisted, strangers)

    def other_devices(self) -> tuple[NodeProcess, ...]:
        """Processes with a slot that use a GPU which their region does not have."""
        found: dict[int, tuple[Container, int, HostProcess, list[ProcessDeviceRow]]] = {}
        for uuid, joined in self._joined.items():
            for container, pid, process, row in joined.strangers:
                entry = self._columns[uuid].process(row)
                device = ProcessDeviceRow(
                    index=None,
                    uuid=uuid,
                    memory_driver_bytes=entry.memory_used_bytes,
                    driver_sm_percent=entry.sm_util_percent,
                    driver_memory_percent=entry.memory_util_percent,
                    driver_enc_percent=entry.enc_util_percent,
                    driver_dec_percent=entry.dec_util_percent,
                    driver_index=entry.device_index,
                )
                found.setdefault(process.pid, (container, pid, process, []))[3].append(device)
        return tuple(
            NodeProcess(
                container,
                process.container,
                pid,
                process.pid,
                "alive",
                process,
                None,
                tuple(devices),
            )
            for container, pid, process, devices in found.values()
        )

    def series(self, uncounted: Sequence[NodeProcess], *, sees_all: bool) -> list[Series]:
        """The figures of processes, and of containers' devices.

        Args:
            uncounted: Processes that use a GPU and have no slot.
            sees_all: Whether /proc shows every process of the node.
        """
        found = [self._of_family(family, name) for family, name in _FAMILIES]
        return [*found, self._memory_of_devices(uncounted, sees_all=sees_all)]

    def _of_family(self, family: MetricFamily, name: str) -> Series:
        assert self._rows is not None  # noqa: S101 (joined before)
        labels = self._rows.labels
        cells = array("Q", bytes(8 * len(labels)))
        rows = array("I", [NO_ROW]) * len(labels)
        for uuid, joined in self._joined.items():
            columns = self._columns.get(uuid)
            figures: Sequence[int] = () if columns is None else getattr(columns, name)
            absent = None if joined.unlisted is None else getattr(joined.unlisted, name)
            for label, _, at in joined.rows:
                if at is not None:
                    figure = figures[at] if at >= 0 else -1 if absent is None else absent
                    if figure >= 0:
                        cells[label] += figure
                        rows[label] = label
        return Series(family, labels, cells, rows)

    def _memory_of_devices(self, uncounted: Sequence[NodeProcess], *, sees_all: bool) -> Series:
        """By device; absent where the figure of a process may be missing in the sum."""
        rows = self._rows
        assert rows is not None  # noqa: S101 (joined before)
        used = array("Q", bytes(8 * len(rows.devices)))
        known = array(
            "I", [at if uuid else NO_ROW for at, (_, _, _, uuid) in enumerate(rows.devices)]
        )
        for uuid, joined in self._joined.items():
            columns = self._columns.get(uuid)
            figures: Sequence[int] = () if columns is None else columns.memory_used_bytes
            for _, number, at in joined.rows:
                figure = -1 if at is None else 0 if at < 0 else figures[at]
                if figure < 0:
                    known[number] = NO_ROW
                else:
                    used[number] += figure
        beside: defaultdict[tuple[Container, int], list[int | None]] = defaultdict(list)
        for row in uncounted:
            for device in row.devices:
                if row.container is not None and device.index is not None:
                    beside[row.container, device.index].append(device.memory_driver_bytes)
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
        if not (beside or unplaced or rows.doubtful):
            return rows.series_of_devices(families.MEMORY_DRIVER, used, known)
        for number, (_, container, index, uuid) in enumerate(rows.devices):
            more = beside.get((container, index), ())
            if (
                container in rows.doubtful
                or None in more
                or not unplaced.isdisjoint({(None, uuid), (container.pod_uid, uuid)})
            ):
                known[number] = NO_ROW
            used[number] += sum(figure or 0 for figure in more)
        return rows.series_of_devices(families.MEMORY_DRIVER, used, known)

"""The part of a scrape that is about processes: what stands in the slots of proved ones."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import attrs

from libhamiregion._core import ffi, lib

from . import families
from .labels import LabelRows
from .text import NO_ROW, Series

if TYPE_CHECKING:
    from collections.abc import Sequence

    from libhamiregion.node import Container
    from libhamiregion.region_set import RegionTable

    from .families import MetricFamily
    from .identity import Identity
    from .state import CollectedState

_PROCESS_FAMILIES = tuple(
    family
    for family in families.FAMILIES
    if family.labels == families.PROCESS and family.column is not None
)


@attrs.frozen(eq=False)
class _ProcessRows:
    """Which usages become series of processes."""

    shown: Sequence[tuple[int, Container, Identity]]
    processes: object
    key: bytes
    labels: LabelRows
    usages: array[int]
    utilization: array[int]
    owners: Sequence[Container]
    #: Processes that are summed up into one series for each device, those of `other`.
    folded: bytes
    other: LabelRows
    other_devices: array[int]
    other_utilization: array[int]
    other_owners: Sequence[Container]


class ProcessMetrics:
    """Makes the series of processes of one scrape.

    Threads: one at a time.
    """

    def __init__(self) -> None:
        self._rows: _ProcessRows | None = None
        # Containers in whose regions somebody has ever written such a figure.
        self._coders: dict[str, set[Container]] = {
            family.name: set() for family in (families.PROCESS_ENC, families.PROCESS_DEC)
        }

    def series(
        self,
        shown: Sequence[tuple[int, Container, Identity]],
        table: RegionTable,
        state: CollectedState,
        wanted: frozenset[MetricFamily],
    ) -> list[Series]:
        """What the slots of the proved processes hold now.

        Args:
            shown: The regions that are shown: row, container, names.
            table: All regions, just read.
            state: Which processes are proved.
            wanted: The families that are wanted; more may come.
        """
        if not state.processes or wanted.isdisjoint(_PROCESS_FAMILIES):
            return []
        return self._of_processes(self._rows_of_processes(shown, table, state), table)

    def _rows_of_processes(
        self,
        shown: Sequence[tuple[int, Container, Identity]],
        table: RegionTable,
        state: CollectedState,
    ) -> _ProcessRows:
        """The rows of the last scrape, if what decides on them is still the same."""
        key = table.processes.pid.tobytes() + table.regions.process_count.tobytes()
        rows = self._rows
        if (
            rows is None
            or rows.shown is not shown
            or rows.processes is not state.processes
            or rows.key != key
        ):
            rows = self._rows = _new_process_rows(shown, table, state, key)
            for coders in self._coders.values():
                coders.intersection_update({*rows.owners, *rows.other_owners})
        return rows

    def _of_processes(self, rows: _ProcessRows, table: RegionTable) -> list[Series]:
        found = []
        for family in _PROCESS_FAMILIES:
            cells = getattr(table.usages, str(family.column))
            at, other_at = rows.usages, rows.other_devices
            if family is not families.PROCESS_MEMORY:
                at, other_at = rows.utilization, rows.other_utilization
            sums = sum_slots(table, rows.folded, cells) if len(rows.other) else None
            coders = self._coders.get(family.name)
            if coders is not None:
                _add_coders(coders, cells, at, rows.owners)
                _add_coders(coders, sums, other_at, rows.other_owners)
                if not coders:
                    continue
                at = _only(coders, at, rows.owners)
                other_at = _only(coders, other_at, rows.other_owners)
            found.append(Series(family, rows.labels, cells, at))
            if sums is not None:
                found.append(Series(family, rows.other, sums, other_at))
        return found


def sum_slots(table: RegionTable, chosen: bytes, usages: memoryview) -> array[int]:
    """What the chosen processes use, by device row.

    Args:
        table: One read.
        chosen: A byte per process of the table, not 0 for those that count.
        usages: A column of ``table.usages``.
    """
    regions, processes = table.regions, table.processes
    if len(chosen) != len(processes):
        raise ValueError(f"{len(chosen)} bytes for {len(processes)} processes")
    columns = ffi.new("struct hr_slot_columns *")
    columns.region = region = ffi.from_buffer("uint64_t[]", processes.region)
    columns.first_usage = usage = ffi.from_buffer("uint64_t[]", processes.first_usage)
    columns.first_device = device = ffi.from_buffer("uint64_t[]", regions.first_device)
    columns.device_rows = rows = ffi.from_buffer("uint64_t[]", regions.device_rows)
    columns.processes, columns.regions = len(processes), len(regions)
    columns.usages, columns.devices = len(table.usages), len(table.devices)
    sums = array("Q", bytes(8 * len(table.devices)))
    lib.hr_sum_slots(
        columns,
        ffi.from_buffer("unsigned char[]", chosen),
        ffi.from_buffer("uint64_t[]", usages),
        ffi.from_buffer("uint64_t[]", sums),
    )
    del region, usage, device, rows
    return sums


def _new_process_rows(
    shown: Sequence[tuple[int, Container, Identity]],
    table: RegionTable,
    state: CollectedState,
    key: bytes,
) -> _ProcessRows:
    first_process, process_count = table.regions.first_process, table.regions.process_count
    first_device, device_rows = table.regions.first_device, table.regions.device_rows
    pids, first_usage = table.processes.pid, table.processes.first_usage
    indexes = table.devices.index
    texts, owners = [], []
    usages, utilization = array("I"), array("I")
    others, other_owners = [], []
    other_devices, other_utilization = array("I"), array("I")
    folded = bytearray(len(pids))
    for row, container, _ in shown:
        processes = state.processes.get(container)
        if processes is None:
            continue
        has_utilization = container.region is not None and container.region.layout.has_utilization
        at = [indexes[first_device[row] + device] for device in range(device_rows[row])]
        taken = set()
        is_folded = False
        for process in range(first_process[row], first_process[row] + process_count[row]):
            pid = pids[process]
            own = processes.alone.get(pid)
            if own is None and pid not in processes.folded:
                continue
            # A pid that stands in several slots is one process: one series, the rest is summed.
            if own is None or pid in taken:
                folded[process] = 1
                is_folded = True
                continue
            taken.add(pid)
            for usage, index in enumerate(at, first_usage[process]):
                if index in own:
                    texts.append(own[index])
                    owners.append(container)
                    usages.append(usage)
                    utilization.append(usage if has_utilization else NO_ROW)
        for device, index in enumerate(at, first_device[row]) if is_folded else ():
            if index in processes.other:
                others.append(processes.other[index])
                other_owners.append(container)
                other_devices.append(device)
                other_utilization.append(device if has_utilization else NO_ROW)
    return _ProcessRows(
        shown=shown,
        processes=state.processes,
        key=key,
        labels=LabelRows(texts),
        usages=usages,
        utilization=utilization,
        owners=owners,
        folded=bytes(folded),
        other=LabelRows(others),
        other_devices=other_devices,
        other_utilization=other_utilization,
        other_owners=other_owners,
    )


def _add_coders(
    coders: set[Container],
    cells: memoryview | array[int] | None,
    rows: array[int],
    owners: Sequence[Container],
) -> None:
    """Add the containers of which a cell is not 0: nearly always none."""
    if cells is None:
        return
    content = cells.tobytes()
    if content.count(0) != len(content):
        coders.update(
            owner for row, owner in zip(rows, owners, strict=True) if row != NO_ROW and cells[row]
        )


def _only(coders: set[Container], rows: array[int], owners: Sequence[Container]) -> array[int]:
    """The rows of these containers alone."""
    kept = [row if owner in coders else NO_ROW for row, owner in zip(rows, owners, strict=True)]
    return array("I", kept)

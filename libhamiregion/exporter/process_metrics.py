"""The part of a scrape that is about processes: what stands in the slots of proved ones."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import attrs

from libhamiregion._core import ffi, lib

from . import families
from .text import NO_ROW, Series

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from libhamiregion.node import Container
    from libhamiregion.region_set import RegionTable

    from .families import MetricFamily
    from .identity import Identity
    from .state import CollectedState, ProcessRows

_PROCESS_FAMILIES = tuple(
    family
    for family in families.FAMILIES
    if family.labels == families.PROCESS and family.column is not None
)


@attrs.frozen(eq=False)
class _Cells:
    """Which usages the label texts of processes belong to.

    Attributes:
        sources: What it was made of, compared by identity.
        key: What it was made of, compared by content.
        usages: Of each label text the row of its usage.
        sums: Of each label text of others the row of its device.
        folded: A byte per process: whether it is summed up.
        ranges: Container, the first of its label texts, and the one after the last.
    """

    sources: tuple[object, ...]
    key: bytes
    usages: array[int]
    sums: array[int]
    folded: bytes
    ranges: Sequence[tuple[Container, int, int]]

    def only(self, rows: array[int], containers: Collection[Container]) -> array[int]:
        """The rows of these containers alone."""
        kept = array("I", [NO_ROW]) * len(rows)
        for container, start, end in self.ranges:
            if container in containers:
                kept[start:end] = rows[start:end]
        return kept


class ProcessMetrics:
    """Makes the series of processes of one scrape.

    Threads: one at a time.
    """

    def __init__(self) -> None:
        self._cells: _Cells | None = None
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
        rows = state.rows
        if rows is None or wanted.isdisjoint(_PROCESS_FAMILIES):
            return []
        where = self._cells_of(shown, table, rows)
        measured = {container for container, _, _ in where.ranges if _has_utilization(container)}
        found = []
        for family in _PROCESS_FAMILIES:
            cells = getattr(table.usages, str(family.column))
            sums = sum_slots(table, where.folded, cells) if any(where.folded) else None
            coders = self._coders.get(family.name)
            if coders is not None:
                for used, at in ((cells, where.usages), (sums, where.sums)):
                    coders.update(_writers(where, used, at))
                if not coders:
                    continue
            # Of the others the layout has none, and 0 would say that they are idle.
            chosen = measured if coders is None else coders & measured
            for used, at in ((cells, where.usages), (sums, where.sums)):
                if used is not None:
                    is_all = family is families.PROCESS_MEMORY or len(chosen) == len(where.ranges)
                    own = at if is_all else where.only(at, chosen)
                    found.append(Series(family, rows.labels, used, own))
        return found

    def _cells_of(
        self,
        shown: Sequence[tuple[int, Container, Identity]],
        table: RegionTable,
        rows: ProcessRows,
    ) -> _Cells:
        """The cells of the last scrape, if what decides on them is still the same."""
        key = table.processes.pid.tobytes() + table.regions.process_count.tobytes()
        where = self._cells
        if (
            where is None
            or where.sources[0] is not shown
            or where.sources[1] is not rows
            or where.key != key
        ):
            where = self._cells = _new_cells(shown, table, rows, key)
            for coders in self._coders.values():
                coders.intersection_update(container for container, _, _ in where.ranges)
        return where


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


def _new_cells(
    shown: Sequence[tuple[int, Container, Identity]],
    table: RegionTable,
    rows: ProcessRows,
    key: bytes,
) -> _Cells:
    regions, pids, indexes = table.regions, table.processes.pid, table.devices.index
    first_usage = table.processes.first_usage
    usages = array("I", [NO_ROW]) * len(rows.labels)
    sums = array("I", [NO_ROW]) * len(rows.labels)
    folded = bytearray(len(pids))
    ranges = []
    for row, container, _ in shown:
        start, processes = rows.shown.get(container, (0, None))
        if processes is None:
            continue
        ranges.append((container, start, start + len(processes.labels)))
        order = {index: number for number, index in enumerate(processes.indexes)}
        first_device, first = regions.first_device[row], regions.first_process[row]
        devices = [
            (device, order[indexes[first_device + device]])
            for device in range(regions.device_rows[row])
            if indexes[first_device + device] in order
        ]
        taken = set()
        for process in range(first, first + regions.process_count[row]):
            pid = pids[process]
            own = processes.alone.get(pid)
            # A pid that stands in several slots is one process: one series, the rest is summed.
            if own is not None and pid not in taken:
                taken.add(pid)
                for device, number in devices:
                    usages[start + own + number] = first_usage[process] + device
            elif own is not None or pid in processes.folded:
                folded[process] = 1
                for device, number in devices:
                    sums[start + processes.others + number] = first_device + device
    return _Cells((shown, rows), key, usages, sums, bytes(folded), ranges)


def _has_utilization(container: Container) -> bool:
    return container.region is not None and container.region.layout.has_utilization


def _writers(
    where: _Cells, cells: memoryview | array[int] | None, rows: array[int]
) -> Iterator[Container]:
    """The containers of which a cell is not 0: nearly always none."""
    content = b"" if cells is None else cells.tobytes()
    if cells is None or content.count(0) == len(content):
        return
    for container, start, end in where.ranges:
        if any(cells[row] for row in rows[start:end] if row != NO_ROW):
            yield container

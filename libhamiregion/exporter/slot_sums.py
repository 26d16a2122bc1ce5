"""Sums over chosen slots, by device: one native call."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from libhamiregion._core import ffi, lib

if TYPE_CHECKING:
    from libhamiregion.region_set import RegionTable


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

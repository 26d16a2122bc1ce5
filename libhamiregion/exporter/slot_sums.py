"""Sums over chosen slots, by device."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from libhamiregion.region_set import RegionTable

# libvgpu's sums are modulo 2^64.
_MASK = 2**64 - 1


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
    first_device, device_rows = regions.first_device, regions.device_rows
    sums = array("Q", bytes(8 * len(table.devices)))
    for counts, region, usage in zip(chosen, processes.region, processes.first_usage, strict=True):
        if counts:
            first = first_device[region]
            for device in range(device_rows[region]):
                sums[first + device] = (sums[first + device] + usages[usage + device]) & _MASK
    return sums

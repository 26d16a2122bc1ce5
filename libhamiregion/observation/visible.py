"""Which GPU a process means by a number: CUDA_VISIBLE_DEVICES reorders and hides devices.

libvgpu counts memory by NVML's index, and has limits, utilisation and the driver's memory by CUDA's
ordinal. They differ where the variable has CUDA count otherwise.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeAlias

from libhamiregion.layouts import DEVICE_CAPACITY

from .pairing import devices_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from libhamiregion.tables import RegionTable

    from .pairing import Pairing
    from .processes import Entry

#: CUDA ordinal to the index in the region; empty if it cannot be known.
Order: TypeAlias = "dict[int, int]"


def cuda_order(visible: str | None, uuids: Sequence[str | None]) -> Order | None:
    """Return the order that a value of CUDA_VISIBLE_DEVICES makes.

    Args:
        visible: The value; None if it is not set, or not known.
        uuids: Of the region's devices; all None if the region has none yet.

    Returns:
        None if it changes nothing, or no device is left.

    >>> cuda_order("1,0", ["GPU-a", "GPU-b"]), cuda_order("GPU-b", ["GPU-a", "GPU-b"])
    ({0: 1, 1: 0}, {0: 1})
    >>> cuda_order("0", ["GPU-a", "GPU-b"]), cuda_order("-1", ["GPU-a", "GPU-b"])
    (None, None)
    """
    order: Order = {}
    uuids = uuids if any(uuids) else ()
    for word in () if visible is None else map(str.strip, visible.split(",")):
        found = [at for at, uuid in enumerate(uuids) if uuid and word and uuid.startswith(word)]
        if re.fullmatch("[0-9]{1,4}", word):
            found = [each for each in [int(word)] if each < (len(uuids) or DEVICE_CAPACITY)]
        elif word.startswith(("GPU-", "MIG-")) and not uuids:
            return {}
        # CUDA shows the devices before one that is not there, and none if one is named twice.
        if len(found) != 1:
            break
        if found[0] in order.values():
            return None
        order[len(order)] = found[0]
    return order if any(ordinal != index for ordinal, index in order.items()) else None


def limits_in_force(visible: str, uuids: Sequence[str | None], devices: Sequence[int]) -> list[str]:
    """Say with which use libvgpu compares the limits of devices; empty if with their own.

    Args:
        visible: CUDA_VISIBLE_DEVICES of a process.
        uuids: Of the region's devices.
        devices: Their indices in the region.

    >>> limits_in_force("0", ["GPU-a", "GPU-b"], [0])
    []
    """
    order = cuda_order(visible, uuids)
    return [] if order is None else [_compared(order, device) for device in devices]


def _compared(order: Order, device: int) -> str:
    if not order:
        return "its devices are not known, and the limit in force may be another one"
    words = ""
    if device not in order:
        words = f"the limit of device {device} holds for none of its GPUs; "
        device = min(order)
    return (
        f"{words}libvgpu compares the limit of device {device} with the use of device {device} up"
        f" to HAMi-core of 2026-09-25, and with that of device {order[device]} from then on"
    )


def order_by_environment(table: RegionTable, region: int, entry: Entry) -> Order | None:
    """Return the order that a process's environment makes of a region's devices."""
    if entry.visible_devices is None:
        return None  # nearly always, and asked of each process at each scrape
    uuids = [table.devices.uuid(row) for row in devices_of(table, region)]
    return cuda_order(entry.visible_devices, uuids)


def reordered(pairing: Pairing) -> dict[int, Order]:
    """Find live processes that count devices otherwise: row of the slot to their order.

    By their environment; if that changes nothing, by the only device on which the driver lists them
    and the only one that has libvgpu's figures.
    """
    observation, table = pairing.observation, pairing.observation.table
    entries, counts = observation.processes.entries, table.regions.device_rows.tolist()
    regions, host_pids = table.processes.region.tolist(), table.processes.host_pid.tolist()
    figures = zip(table.usages.memory_monitor_bytes, table.usages.sm_util_percent, strict=True)
    has_figures = [bool(memory or percent) for memory, percent in figures]
    first_usages, found = table.processes.first_usage, dict[int, Order]()
    for slot, process in pairing.index.states.processes.items():
        count = counts[regions[slot]]
        entry = entries.get(process.pid)
        is_same = entry is not None and entry.start_time_ticks == process.start_time_ticks
        if count == 1 or entry is None or not is_same:
            continue
        order = order_by_environment(table, regions[slot], entry)
        # A program can change the variable before it loads CUDA.
        if order is None and pairing.has_driver and host_pids[slot] == process.pid:
            first = first_usages[slot]
            order = _by_driver(pairing, slot, process.pid, has_figures[first : first + count])
        if order is not None:
            found[slot] = order
    return found


def _by_driver(pairing: Pairing, slot: int, pid: int, has_figures: Sequence[bool]) -> Order | None:
    if has_figures.count(True) != 1:
        return None
    table, stored = pairing.observation.table, has_figures.index(True)
    rows = devices_of(table, table.processes.region[slot])
    listed = [at for at, row in enumerate(rows) if pairing.is_listed(pairing.index.uuids[row], pid)]
    return {stored: listed[0]} if len(listed) == 1 and listed != [stored] else None

"""Which figures can be: a container can write its own, and drivers are known to give wrong ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from libhamiregion.models import ProcessDeviceUsage, RegionSnapshot
    from libhamiregion.tables import RegionTable

    from .visible import Order

#: No GPU has as much memory: above, a counter has gone below zero.
IMPOSSIBLE_BYTES: Final = 1 << 46
_PERCENT = 100
_SIZES = (
    *("memory_used_bytes", "memory_context_bytes", "memory_module_bytes", "memory_data_bytes"),
    "memory_monitor_bytes",
)
_PERCENTS = ("sm_util_percent", "enc_util_percent", "dec_util_percent")
#: The figures of a region, to the largest that can be of one process.
LARGEST: Final = {**dict.fromkeys(_SIZES, IMPOSSIBLE_BYTES - 1), **dict.fromkeys(_PERCENTS, 100)}


def size_or_none(nbytes: int) -> int | None:
    """Return a size; None if no GPU has it."""
    return nbytes if 0 <= nbytes < IMPOSSIBLE_BYTES else None


def memory_limit_or_none(nbytes: int) -> int | None:
    """Return a memory limit; None if it limits nothing: 0, or more than any GPU has."""
    return nbytes if 0 < nbytes < IMPOSSIBLE_BYTES else None


def percent_or_none(percent: int) -> int | None:
    """Return the percentage of one process; None if it cannot be."""
    return percent if 0 <= percent <= _PERCENT else None


def impossible(usage: ProcessDeviceUsage) -> dict[str, int]:
    """Return the figures of a process on a device that cannot be, by name."""
    values = {name: getattr(usage, name) for name in LARGEST}
    return {name: value for name, value in values.items() if not 0 <= value <= LARGEST[name]}


def without_impossible(snapshot: RegionSnapshot) -> RegionSnapshot:
    """Return a snapshot whose figures are None where they cannot be, also in the sums."""
    wrong: set[tuple[int, str]] = set()
    processes = []
    for process in snapshot.processes:
        devices = []
        for usage in process.devices:
            found = impossible(usage)
            wrong.update((usage.index, name) for name in found if name in _PERCENTS)
            devices.append(_evolved(usage, found) if found else usage)
        processes.append(attrs.evolve(process, devices=tuple(devices)))
    # Sums of sizes are modulo 2^64, as libvgpu compares them; those of percentages can pass 100.
    most = dict.fromkeys(_SIZES, IMPOSSIBLE_BYTES - 1)
    most |= dict.fromkeys(_PERCENTS, _PERCENT * snapshot.slot_count)
    sums = []
    for device in snapshot.devices:
        names = [n for n in most if (device.index, n) in wrong or getattr(device, n) > most[n]]
        if memory_limit_or_none(device.memory_limit_bytes or 0) is None:
            names.append("memory_limit_bytes")
        sums.append(_evolved(device, names) if names else device)
    return attrs.evolve(snapshot, devices=tuple(sums), processes=tuple(processes))


def _evolved(usage: Any, names: Any) -> Any:
    return attrs.evolve(usage, **dict.fromkeys(names))


def usage_percents(table: RegionTable, orders: Mapping[int, Order]) -> list[int | None]:
    """Return the SM utilisation of all processes by their rows of ``table.usages``.

    It is that of the device at work, also of processes that count devices otherwise; None where it
    cannot be.

    Args:
        table: One read.
        orders: As `visible.reordered` finds them.
    """
    raw = table.usages.sm_util_percent
    found = [percent_or_none(percent) for percent in raw]
    for slot, order in orders.items():
        first = table.processes.first_usage[slot]
        end = first + table.regions.device_rows[table.processes.region[slot]]
        found[first:end] = percents_in_order(raw[first:end], order)
    return found


def percents_in_order(raw: Sequence[int], order: Order) -> list[int | None]:
    """Return the SM utilisation of one process by device, if it counts devices otherwise."""
    # Of a GPU that it does not see, it uses nothing; without its order, nothing is known.
    found: list[int | None] = [0 if order else None] * len(raw)
    for ordinal, index in order.items():
        if max(ordinal, index) < len(raw):
            found[index] = percent_or_none(raw[ordinal])
    return found


def with_percents(
    snapshot: RegionSnapshot, percents: Sequence[Sequence[int | None] | None]
) -> RegionSnapshot:
    """Return a snapshot with other SM utilisation, also in the sums.

    Args:
        snapshot: One without figures that cannot be.
        percents: By process, that of its devices; None as it is.
    """
    processes = [
        process if own is None else attrs.evolve(process, devices=with_sm(process.devices, own))
        for process, own in zip(snapshot.processes, percents, strict=True)
    ]
    sums = [
        None if None in column else sum(column)
        for column in zip(
            *([each.sm_util_percent for each in process.devices] for process in processes),
            strict=True,
        )
    ]
    devices = with_sm(snapshot.devices, sums) if sums else snapshot.devices
    return attrs.evolve(snapshot, devices=devices, processes=tuple(processes))


def with_sm(devices: Sequence[Any], percents: Sequence[int | None]) -> tuple[Any, ...]:
    """Return devices of a snapshot, or of one of its processes, with other SM utilisation."""
    pairs = zip(devices, percents, strict=True)
    return tuple(attrs.evolve(each, sm_util_percent=percent) for each, percent in pairs)


def device_percents(table: RegionTable, percents: Sequence[int | None]) -> list[int | None]:
    """Return the SM utilisation of all devices; None where that of a process is not known.

    Args:
        table: One read.
        percents: That of its processes, as `usage_percents` returns it.
    """
    most = [_PERCENT * count for count in table.regions.slot_count]
    sums = zip(table.devices.region, table.devices.sm_util_percent, strict=True)
    found: list[int | None] = [total if total <= most[region] else None for region, total in sums]
    raw, processes = table.usages.sm_util_percent, table.processes
    for usage, (before, percent) in enumerate(zip(raw, percents, strict=True)):
        if before != percent:
            slot = table.usages.process[usage]
            first = table.regions.first_device[processes.region[slot]]
            row = first + usage - processes.first_usage[slot]
            total = found[row]
            found[row] = None if total is None or percent is None else total - before + percent
    return found

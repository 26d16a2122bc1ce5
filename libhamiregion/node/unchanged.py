"""Utilisation that libvgpu has left in a region: unchanged, while the driver says 0."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from libhamiregion.observation.model import Observation
    from libhamiregion.observation.processes import FileIdentity

# In so many observations, and for so long: the driver's figure is of the last second.
_OBSERVATIONS = 3
_UNCHANGED_S = 2.0

# The region's file, the process with its start time, the device.
_Figure: TypeAlias = "tuple[FileIdentity | None, int, int, int]"


class UnchangedFigures:
    """Remembers the figures of devices behind the first, of processes that are idle there."""

    def __init__(self) -> None:
        # Value, how often it was seen, and since when.
        self._seen: dict[_Figure, tuple[int, int, float]] = {}

    def stale(self, observation: Observation) -> frozenset[int]:
        """Compare with the observations before; returns rows of ``table.usages``."""
        before, self._seen = self._seen, {}
        sample, states, table = observation.sample, observation.states, observation.table
        found: set[int] = set()
        if sample is None or states is None:
            return frozenset(found)
        usages, processes = table.usages, table.processes
        columns = zip(usages.device, usages.sm_util_percent, usages.process, strict=True)
        for row, (device, percent, slot) in enumerate(columns):
            process = states.processes.get(slot) if device and percent else None
            if process is None:
                continue
            region = processes.region[slot]
            first = table.regions.first_device[region] - processes.first_usage[slot]
            entry = sample.process(table.devices.uuid(first + row) or "", process.pid)
            if entry is None or entry.sm_util_percent != 0:
                continue
            identity = observation.containers[region].identity
            key = identity, process.pid, process.start_time_ticks, device
            value, times, since_s = before.get(key, (percent, 0, sample.taken_s))
            if value != percent:
                times, since_s = 0, sample.taken_s
            self._seen[key] = percent, times + 1, since_s
            if times + 1 >= _OBSERVATIONS and sample.taken_s - since_s >= _UNCHANGED_S:
                found.add(row)
        return frozenset(found)

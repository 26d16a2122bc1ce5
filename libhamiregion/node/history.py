"""What a reader remembers of its observations before, and says in the next one."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from libhamiregion.observation.containers import NOT_LIMITED

if TYPE_CHECKING:
    from libhamiregion.observation.model import Observation
    from libhamiregion.observation.processes import FileIdentity

# In so many observations, and for so long: the driver's figure is of the last second.
_OBSERVATIONS = 3
_UNCHANGED_S = 2.0

# The region's file, the process with its start time, the device.
_Figure: TypeAlias = "tuple[FileIdentity | None, int, int, int]"


class History:
    """Remembers figures that stay, and containers that are not limited.

    Observations without slots, or without the driver's sample, change nothing.
    """

    def __init__(self) -> None:
        # Value, how often it was seen, and since when.
        self._seen: dict[_Figure, tuple[int, int, float]] = {}
        self._not_limited: dict[str, float] = {}

    def stale(self, observation: Observation) -> frozenset[int]:
        """Find utilisation that libvgpu has left in a region while the driver says 0.

        Returns:
            Rows of ``table.usages``, of devices behind the first.
        """
        sample, states, table = observation.sample, observation.states, observation.table
        found: set[int] = set()
        if sample is None or states is None:
            return frozenset(found)
        before, self._seen = self._seen, {}
        usages, processes = table.usages, table.processes
        uuids = table.devices.uuids()
        columns = zip(usages.device, usages.sm_util_percent, usages.process, strict=True)
        for row, (device, percent, slot) in enumerate(columns):
            process = states.processes.get(slot) if device and percent else None
            if process is None:
                continue
            region = processes.region[slot]
            first = table.regions.first_device[region] - processes.first_usage[slot]
            if not sample.is_idle(uuids[first + row] or "", process.pid):
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

    def not_limited_s(self, observation: Observation) -> dict[str, float]:
        """How long containers have used GPUs in spite of their share, by container id, seconds."""
        sample = observation.sample
        if sample is None or observation.states is None:
            return {}
        ids = [each.container_id for each in observation.missing if each.missing == NOT_LIMITED]
        self._not_limited = {
            each.id: self._not_limited.get(each.id, sample.taken_s)
            for each in ids
            if each is not None
        }
        return {id_: sample.taken_s - since_s for id_, since_s in self._not_limited.items()}

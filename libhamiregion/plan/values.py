"""The values of a region that a plan can set, and the devices that it has."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import attrs

from .limit_plan import LimitField

if TYPE_CHECKING:
    from libhamiregion.models import DeviceUsage, RegionSnapshot
    from libhamiregion.region import Region

    from .limit_plan import Rule

#: A value of a container: its field, and the device's index, None for one of the whole container.
ValueKey = tuple[LimitField, "int | None"]
#: A value that plans have changed: as it was before the first change, and what may stand there
#: without anybody else having set it.
KeptValue = tuple["int | None", "tuple[int | None, ...]"]

# A writer of the container needs microseconds; 0.1 ms is what a snapshot itself waits.
_UNSETTLED_TRIES = 5
_UNSETTLED_PAUSE_S = 0.002


class RegionValues:
    """A container's values as they are, and the devices that it has."""

    def __init__(self, region: Region, snapshot: RegionSnapshot) -> None:
        self.region = region
        self.snapshot = snapshot
        self.devices = {device.index: device for device in covered_devices(region, snapshot)}

    def __getitem__(self, key: ValueKey) -> int | None:
        field, device = key
        if device is None:
            return self.snapshot.priority
        if device in self.devices:
            usage = self.devices[device]
            if field is LimitField.MEMORY_LIMIT:
                return usage.memory_limit_bytes
            return usage.sm_limit_percent
        if field is LimitField.MEMORY_LIMIT:
            return self.region.memory_limit(device)
        return self.region.sm_limit(device)

    def used_bytes(self, device: int) -> int:
        """What all processes use of a device."""
        if device in self.devices:
            return self.devices[device].memory_used_bytes
        return self.region.memory_used(device)

    def chosen(self, rule: Rule) -> tuple[int, ...]:
        """Indices of the devices that a rule means."""
        return tuple(
            index for index, usage in self.devices.items() if rule.select.matches_device(usage)
        )


def covered_devices(region: Region, snapshot: RegionSnapshot) -> tuple[DeviceUsage, ...]:
    """The devices that an edit of all devices changes (`Region.device_indices`).

    Raises:
        RegionStale, RegionCorrupt, RegionClosed: As `Region.snapshot`.
    """
    shown = {device.index: device for device in snapshot.devices}
    first = snapshot.devices[0]
    return tuple(
        shown.get(index)
        or attrs.evolve(
            first,
            index=index,
            uuid=None,
            memory_limit_bytes=region.memory_limit(index),
            memory_used_bytes=region.memory_used(index),
            sm_limit_percent=region.sm_limit(index),
        )
        for index in region.device_indices
    )


def settled_snapshot(region: Region) -> RegionSnapshot:
    """A snapshot, and another if a writer was at work; some 10 ms at most.

    Raises:
        RegionStale, RegionCorrupt, RegionClosed: As `Region.snapshot`.
    """
    snapshot = region.snapshot()
    for _ in range(_UNSETTLED_TRIES - 1):
        if snapshot.settled:
            break
        time.sleep(_UNSETTLED_PAUSE_S)
        snapshot = region.snapshot()
    return snapshot

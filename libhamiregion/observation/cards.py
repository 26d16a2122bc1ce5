"""What the containers of a node may use of each GPU together."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import attrs

from libhamiregion.units import sm_limit_or_none

if TYPE_CHECKING:
    from .model import Observation


@attrs.frozen
class Card:
    """A GPU, or a MIG device, and the limits of the containers that have it.

    An unlimited container counts as one that may use all of it.

    Attributes:
        index: NVML index of the GPU; None for devices whose GPU is not known.
        uuid: ``GPU-…`` or ``MIG-…``; None likewise.
        name: The driver's name of it; None if not known.
        memory_total_bytes: Its memory; None if not known.
        memory_used_bytes: Memory in use, by the driver; None if not known.
        devices: How many devices of containers it is.
        memory_limits_bytes: Sum of their memory limits; None if one has none and the card's memory
            is not known.
        sm_limits_percent: Sum of their SM limits.
    """

    index: int | None
    uuid: str | None
    name: str | None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    devices: int = 0
    memory_limits_bytes: int | None = 0
    sm_limits_percent: int = 0

    @property
    def is_overcommitted(self) -> bool:
        """Whether the memory limits exceed the card."""
        limits, total = self.memory_limits_bytes, self.memory_total_bytes
        return limits is not None and total is not None and limits > total


def cards(observation: Observation) -> dict[str | None, Card]:
    """Sum up limits by card: MIG devices in place of their GPU.

    Returns:
        By uuid, in the driver's order; last, under None, the devices whose card is not known.
    """
    found: dict[str | None, Card] = {}
    for gpu in () if observation.sample is None else observation.sample.devices:
        for each in gpu.mig_devices or (gpu,):
            if each.uuid is not None:
                memory = each.memory_total_bytes, each.memory_used_bytes
                found[each.uuid] = Card(gpu.index, each.uuid, each.name, *memory)
    devices = observation.table.devices
    limits: defaultdict[str | None, list[tuple[int, int]]] = defaultdict(list)
    for uuid, limit, sm_limit in zip(
        devices.uuids(), devices.memory_limit_bytes, devices.sm_limit_percent, strict=True
    ):
        limits[uuid if uuid in found else None].append((limit, sm_limit_or_none(sm_limit) or 100))
    for known, pairs in sorted(limits.items(), key=lambda item: item[0] is None):
        card = found.get(known, Card(None, None, None))
        sizes = [limit or card.memory_total_bytes for limit, _ in pairs]
        sizes_known = [size for size in sizes if size is not None]
        found[known] = attrs.evolve(
            card,
            devices=len(pairs),
            memory_limits_bytes=sum(sizes_known) if len(sizes_known) == len(sizes) else None,
            sm_limits_percent=sum(sm for _, sm in pairs),
        )
    return found

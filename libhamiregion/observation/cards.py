"""What the containers of a node may use of each GPU together."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import attrs

from libhamiregion.units import format_size, sm_limit_or_none

from .figures import memory_limit_or_none
from .without_region import allocation_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .model import Observation
    from .share import Allocation


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
    for gpu in observation.gpus:
        for each in gpu.mig_devices or (gpu,):
            if each.uuid is not None:
                memory = each.memory_total_bytes, each.memory_used_bytes
                found[each.uuid] = Card(gpu.index, each.uuid, each.name, *memory)
    limits: defaultdict[str | None, list[tuple[int | None, int]]] = defaultdict(list)
    for uuid, limit, sm_limit in _limits(observation):
        limits[uuid if uuid in found else None].append((limit, sm_limit or 100))
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


def _limits(observation: Observation) -> Iterator[tuple[str | None, int | None, int | None]]:
    """The uuid and the limits of each device of a container, with a region or without.

    What the region does not have, and containers without one, kubelet's checkpoint has.
    """
    given: defaultdict[str, list[Allocation]] = defaultdict(list)
    for each in observation.allocations or ():
        given[each.key].append(each)
    devices = observation.table.devices
    for row, uuid in enumerate(devices.uuids()):
        known, index = uuid or None, devices.device[row]
        if known is None:
            of_it = given[allocation_key(observation.containers[devices.region[row]])]
            known = next((each.uuids[index] for each in of_it if index < len(each.uuids)), None)
        limit = memory_limit_or_none(devices.memory_limit_bytes[row])
        yield known, limit, sm_limit_or_none(devices.sm_limit_percent[row])
    # Entries of ended pods stay in the checkpoint for a while.
    ended = {each.container for each in observation.left}
    for container in observation.missing:
        for each in () if container in ended else given[allocation_key(container)]:
            for index, uuid in enumerate(each.uuids):
                yield uuid, *each.limits_of(index)


# ---- changes -------------------------------------------------------------------------------------


@attrs.frozen
class MemoryChange:
    """A change of one device's memory limit.

    Attributes:
        file_id: Device and inode of the region's file.
        device: Index of the device.
        uuid: Its uuid; None if it is not known.
        before_bytes: The limit before; None if unlimited.
        after_bytes: The limit after.
    """

    file_id: tuple[int, int]
    device: int
    uuid: str | None
    before_bytes: int | None
    after_bytes: int | None

    @property
    def is_raise(self) -> bool:
        """Whether the limit is higher afterwards."""
        before, after = self.before_bytes, self.after_bytes
        return before is not None and (after is None or after > before)


@attrs.frozen
class BeyondCard:
    """A raise with which the containers of a GPU may use more memory than it has.

    Attributes:
        change: The raise.
        card: The GPU, with the sum of the limits after all changes.
    """

    change: MemoryChange
    card: Card

    @property
    def words(self) -> str:
        """The reason as a sentence."""
        limits, total = self.card.memory_limits_bytes or 0, self.card.memory_total_bytes or 0
        return (
            f"the memory limits on the GPU of device {self.change.device} would add up to"
            f" {format_size(limits)}, and it has {format_size(total)}"
        )


def beyond_cards(observation: Observation, changes: Iterable[MemoryChange]) -> list[BeyondCard]:
    """Find the raises after which the limits of a GPU's containers are more than its memory.

    All changes together are judged. A lower limit is never refused, and no limit is if the GPU's
    memory is not known, or HAMi oversubscribes it.

    Args:
        observation: The node with the driver's sample, before the changes.
        changes: All changes, the lower limits too.
    """
    listed = tuple(changes)
    after = {}
    for uuid, card in cards(observation).items():
        mine = [each for each in listed if each.uuid == uuid]
        total, limits = card.memory_total_bytes, card.memory_limits_bytes
        if total is None or limits is None or not mine or _is_oversubscribed(observation, uuid):
            continue
        for each in mine:
            limits += total if each.after_bytes is None else each.after_bytes
            limits -= total if each.before_bytes is None else each.before_bytes
        after[uuid] = attrs.evolve(card, memory_limits_bytes=limits)
    return [
        BeyondCard(each, after[each.uuid])
        for each in listed
        if each.is_raise and each.uuid in after and after[each.uuid].is_overcommitted
    ]


def _is_oversubscribed(observation: Observation, uuid: str | None) -> bool:
    """Whether HAMi scales a GPU's memory: it sets CUDA_OVERSUBSCRIBE in its containers.

    All processes whose environment is known must have it: a container could set it for itself.
    """
    columns = () if observation.sample is None else observation.sample.columns
    pids = [pid for each in columns if each.device_uuid == uuid for pid in each.pids]
    entries = map(observation.processes.entries.get, pids)
    shares = [each.share for each in entries if each is not None and each.share is not None]
    known = [each.is_oversubscribed for each in shares if each.is_known]
    return bool(known) and all(known)

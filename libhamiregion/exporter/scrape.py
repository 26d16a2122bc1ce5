"""One scrape: an observation of the node, and the label texts of its rows."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import attrs

from libhamiregion.node import driver_gap
from libhamiregion.node.rows import NO_ROW, Join, devices_of

from .labels import ContainerLabels, hidden_by_others, label_text, safe_value
from .text import Series

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from libhamiregion.node import Container, Observation
    from libhamiregion.region_set import RegionTable

#: Reasons why a container is not shown, besides those of `MissingReason`.
SAME_NAMES = "same_names"
POD_GONE = "pod_gone"
#: Pairs of process and device with series of their own, of one container; the rest is summed up.
MAX_PAIRS = 256
# Sums of libvgpu are modulo 2^64.
_WRAP = (1 << 64) - 1


class ShownRegion(NamedTuple):
    """A region with figures: its row, its container, the rows of its devices."""

    row: int
    container: Container
    labels: ContainerLabels
    devices: range

    @property
    def has_utilization(self) -> bool:
        """Whether its layout has utilisation: elsewhere 0 would say that it is idle."""
        region = self.container.region
        return region is not None and region.layout.has_utilization


@attrs.frozen(eq=False, slots=False)
class Scrape:
    """An observation with the names of its containers; every collector gets it.

    Attributes:
        observation: The node.
        labels: The names of each container.
        hidden: Containers without figures, with the reason.
    """

    observation: Observation
    labels: Mapping[Container, ContainerLabels]
    hidden: Mapping[Container, str]

    @classmethod
    def of(
        cls,
        observation: Observation,
        gone: Collection[Container] = (),
        known: Mapping[Container, ContainerLabels] | None = None,
    ) -> Scrape:
        """Name the containers of an observation.

        Args:
            observation: The node.
            gone: Containers of pods that have been deleted.
            known: `labels` of the last scrape: kubelet forgets a pod before its directory goes.
        """
        labels = {}
        for each in (*observation.containers, *observation.missing):
            before = known.get(each) if known and each.claim_uid is None else None
            labels[each] = before if before and before.namespace else ContainerLabels.of(each)
        hidden = dict.fromkeys(hidden_by_others(labels), SAME_NAMES)
        return cls(observation, labels, {**hidden, **dict.fromkeys(gone, POD_GONE)})

    @cached_property
    def regions(self) -> list[ShownRegion]:
        """The regions that are shown."""
        table = self.observation.table
        return [
            ShownRegion(row, container, self.labels[container], devices_of(table, row))
            for row, container in enumerate(self.observation.containers)
            if table.regions.code[row] == 0 and container not in self.hidden
        ]

    @cached_property
    def device_labels(self) -> dict[int, str]:
        """Row of a device to the labels of its series that follow the container's."""
        devices = self.observation.table.devices
        names = ("vdevice_index", "device_uuid")
        # The uuid is empty until the container's first process begins with CUDA.
        return {
            row: label_text(names, str(devices.device[row]), safe_value(devices.uuid(row) or ""))
            for shown in self.regions
            for row in shown.devices
        }

    @cached_property
    def _device_texts(self) -> list[str]:
        texts = self.device_labels
        return [
            f"{each.labels.monitor},{texts[row]}" for each in self.regions for row in each.devices
        ]

    @cached_property
    def join(self) -> Join:
        """Slots, processes and the driver's lists.

        Raises:
            OSError: /proc could not be listed.
        """
        return Join(self.observation)

    @cached_property
    def driver_memory(self) -> dict[int, int]:
        """Row of a device to the memory of the container's processes there, by the driver."""
        observation = self.observation
        if observation.states is None or driver_gap(observation.processes, observation.sample):
            return {}
        found = self.join.device_sums("memory_used_bytes")
        return {row: found.sums[row] for row in self.device_labels if found.rows[row] != NO_ROW}

    def by_device(self, name: str, value_of: Callable[[int], float | None]) -> Series:
        """Series of containers' devices, from the row of a device to its number."""
        return Series(name, self._device_texts, list(map(value_of, self.device_labels)))


def slot_sums(table: RegionTable, slots: Iterable[int], column: str) -> dict[int, int]:
    """Sum up a column of some slots, by row of the device.

    Args:
        table: One read.
        slots: Rows of ``table.processes``.
        column: Of ``table.usages``.
    """
    processes, cells = table.processes, getattr(table.usages, column)
    sums: dict[int, int] = {}
    for slot in slots:
        devices = devices_of(table, processes.region[slot])
        for usage, device in enumerate(devices, processes.first_usage[slot]):
            sums[device] = (sums.get(device, 0) + cells[usage]) & _WRAP
    return sums

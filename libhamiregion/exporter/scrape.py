"""One scrape: an observation of the node, and the label texts of its rows."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Protocol

import attrs

from libhamiregion.layouts import LAYOUTS
from libhamiregion.node import driver_gap
from libhamiregion.observation.figures import device_percents, usage_percents
from libhamiregion.observation.pairing import NO_ROW, ProcessDeviceIndex, devices_of
from libhamiregion.observation.rows import Join

from .labels import ContainerLabels, hidden_by_others, label_text, safe_value
from .text import Series

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from libhamiregion.layouts import Layout
    from libhamiregion.node import Container, Observation
    from libhamiregion.tables import RegionTable

#: Reasons why a container is not shown, besides those of `MissingReason`.
SAME_NAMES = "same_names"
POD_GONE = "pod_gone"
#: Pairs of process and device with series of their own, of one container; the rest is summed up.
MAX_PAIRS = 256
# Sums of libvgpu are modulo 2^64.
_WRAP = (1 << 64) - 1


class Observes(Protocol):
    """Gives observations of a node: an `Observer`, or a document."""

    @property
    def asks_driver(self) -> bool:
        """Whether they have the driver's sample."""

    @property
    def taking_s(self) -> float:
        """How long the one takes that is being taken."""

    def observe(self, *, max_age_s: float = ..., slots: bool = ...) -> Observation:
        """Return an observation that is young enough."""


class ShownRegion(NamedTuple):
    """A region with figures: its row, its container, the rows of its devices and slots."""

    row: int
    container: Container
    labels: ContainerLabels
    layout: Layout
    devices: range
    slots: range

    @property
    def has_utilization(self) -> bool:
        """Whether its layout has utilisation: elsewhere 0 would say that it is idle."""
        return self.layout.has_utilization


@attrs.frozen(eq=False)
class TextRows:
    """Label texts, each with the row of its value in a column.

    Attributes:
        places: Label text to its place in `rows`.
        rows: The row of each text.
        more: Place to further rows of its text, which are summed up with the first.
    """

    places: dict[str, int] = attrs.field(factory=dict)
    rows: list[int] = attrs.field(factory=list)
    more: dict[int, list[int]] = attrs.field(factory=dict)

    def add(self, text: str, row: int) -> None:
        """Add a row under a text."""
        place = self.places.setdefault(text, len(self.rows))
        if place == len(self.rows):
            self.rows.append(row)
        else:
            self.more.setdefault(place, []).append(row)

    def series(self, name: str, cells: Sequence[float | None]) -> Series:
        """Series of a column; a cell that is None has no sample."""
        values = [cells[row] for row in self.rows]
        for place, rows in self.more.items():
            known = [cell for row in (self.rows[place], *rows) if (cell := cells[row]) is not None]
            values[place] = sum(known) if known else None
        return Series(name, list(self.places), values)


class RowTexts:
    """Names and label texts of an observation, kept for later ones with the same rows.

    Attributes:
        labels: The names of each container.
        hidden: Containers without figures, with the reason.
        regions: The regions that are shown.
        device_labels: Row of a device to the labels of its series that follow the container's.
        devices: The devices of these regions.
        named: Those with a uuid: there is none until the container's first process begins with
            CUDA.
        unnamed: The others.
        measured: Those with a uuid whose layout has utilisation.
        pairs: Processes with their devices; None without the slots.
    """

    def __init__(
        self,
        observation: Observation,
        labels: Mapping[Container, ContainerLabels],
        hidden: Mapping[Container, str],
    ) -> None:
        self.labels, self.hidden = labels, hidden
        self._key = self._key_of(observation, labels, hidden)
        self.pairs = None if observation.states is None else ProcessDeviceIndex(observation)
        self.regions: list[ShownRegion] = []
        self.device_labels: dict[int, str] = {}
        self.devices, self.named = TextRows(), TextRows()
        self.unnamed, self.measured = TextRows(), TextRows()
        table = observation.table
        for row, container in enumerate(observation.containers):
            if table.regions.code[row] == 0 and container not in hidden:
                first, devices = table.regions.first_process[row], devices_of(table, row)
                slots = range(first, first + table.regions.process_count[row])
                layout = LAYOUTS[table.regions.layout[row]]
                shown = ShownRegion(row, container, labels[container], layout, devices, slots)
                self.regions.append(shown)
                self._add_devices(shown, table)

    def _add_devices(self, shown: ShownRegion, table: RegionTable) -> None:
        for row in shown.devices:
            uuid = table.devices.uuid(row) or ""
            values = (str(table.devices.device[row]), safe_value(uuid))
            labels = label_text(("vdevice_index", "device_uuid"), *values)
            self.device_labels[row] = labels
            text = f"{shown.labels.monitor},{labels}"
            self.devices.add(text, row)
            (self.named if uuid else self.unnamed).add(text, row)
            if uuid and shown.has_utilization:
                self.measured.add(text, row)

    @classmethod
    def of(
        cls,
        observation: Observation,
        gone: Collection[Container] = (),
        before: RowTexts | None = None,
    ) -> RowTexts:
        """Name the rows of an observation.

        Args:
            observation: The node.
            gone: Containers of pods that have been deleted.
            before: Of the last scrape; returned if nothing in it has changed.
        """
        labels = {}
        known = {} if before is None else before.labels
        for each in observation.all_containers:
            # A pod keeps its names.
            name = known.get(each) if each.claim_uid is None else None
            labels[each] = name if name and name.namespace else ContainerLabels.of(each)
        hidden = dict.fromkeys(hidden_by_others(labels), SAME_NAMES)
        hidden.update(dict.fromkeys(gone, POD_GONE))
        if before is not None and before._key == cls._key_of(observation, labels, hidden):
            return before
        return cls(observation, labels, hidden)

    @staticmethod
    def _key_of(observation: Observation, *names: object) -> tuple[object, ...]:
        regions, devices = observation.table.regions, observation.table.devices
        columns = (regions.code, regions.layout, regions.first_device, regions.first_process)
        rows = (observation.containers, *map(bytes, (*columns, devices.uuid_bytes)))
        # The states are the same object as long as the same processes have the same slots.
        return (observation.states, *rows, *names)


@attrs.frozen(eq=False, slots=False)
class Scrape:
    """An observation with the texts of its rows; every collector gets it.

    Attributes:
        observation: The node.
        texts: The names and label texts.
        node_name: The value of the label ``node``.
        hami_version: Whose families and labels GPUs have: ``2.10`` or ``2.11``.
    """

    observation: Observation
    texts: RowTexts
    node_name: str
    hami_version: str

    @cached_property
    def join(self) -> Join:
        """Slots, processes and the driver's lists.

        Raises:
            OSError: /proc could not be listed.
        """
        return Join(self.observation, self.texts.pairs)

    @cached_property
    def device_percents(self) -> Sequence[int | None]:
        """By row of a device the SM utilisation in the region; None if it cannot be."""
        if self.observation.states is None:
            table = self.observation.table
            return device_percents(table, usage_percents(table, {}))
        return self.join.device_percents

    @cached_property
    def driver_memory(self) -> Sequence[int | None]:
        """By row of a device the memory of the container's processes there, by the driver."""
        observation = self.observation
        if observation.states is None or driver_gap(observation.processes, observation.sample):
            return [None] * len(observation.table.devices)
        found = self.join.device_sums("memory_used_bytes")
        return [
            None if row == NO_ROW else size_bytes
            for size_bytes, row in zip(found.sums, found.rows, strict=True)
        ]


def slot_sums(table: RegionTable, slots: Iterable[int], column: str) -> list[int]:
    """Sum up a column of some slots, by row of the device.

    Args:
        table: One read.
        slots: Rows of ``table.processes``.
        column: Of ``table.usages``.
    """
    processes, cells = table.processes, getattr(table.usages, column)
    sums = [0] * len(table.devices)
    for slot in slots:
        devices = devices_of(table, processes.region[slot])
        for usage, device in enumerate(devices, processes.first_usage[slot]):
            sums[device] = (sums[device] + cells[usage]) & _WRAP
    return sums

"""What the collectors behind the scrapes have found out: names, proofs, the driver's figures.

It costs too much for every scrape, and changes slowly. It is a value, replaced as a whole; parts
that have not changed are the same objects as before, by which a scrape knows that.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Protocol

import attrs

from .text import Series

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from libhamiregion.node import Container, Finding, HostProcess, NodeProcess, NodeSnapshot

    from .families import MetricFamily
    from .identity import Identity
    from .labels import LabelRows


@attrs.frozen(eq=False)
class ShownProcesses:
    """The processes of one container that are proved, as label texts.

    Attributes:
        key: What they were made from; equal keys mean equal texts.
        labels: The label texts: for each process of its own those of its devices, last the sums of
            the others.
        indexes: Of the devices that have a uuid, in the order of their texts.
        alone: Pid in the slot -> its first row in `labels`, for those with series of their own.
        folded: Pids of those that are summed up.
    """

    key: tuple[object, ...]
    labels: LabelRows
    indexes: Sequence[int]
    alone: Mapping[int, int]
    folded: frozenset[int]

    @property
    def others(self) -> int:
        """The first row of the sums."""
        return len(self.labels) - len(self.indexes)


@attrs.frozen(eq=False)
class ProcessRows:
    """What is made of slots, names and devices, and kept until one of these changes.

    Attributes:
        sources: What it was made of, compared by identity.
        key: What it was made of, compared by content.
        shown: The processes with series, by container, with their first row in `labels`.
        labels: The label texts of all processes.
        usages: Of each label text the row of its usage, or `NO_ROW`.
        sums: Of each label text of sums the row of its device, or `NO_ROW`.
        folded: A byte per slot: whether it counts in a sum.
        unmeasured: The label texts of regions whose layout has no utilisation.
        container_ids: The ids of containers, where known.
        devices: The row of each device that is told of, its container, index and uuid.
        device_labels: One per entry of `devices`.
        alive: Proved processes: container, pid in the slot, process, and for each device of the
            container its number in `devices`, index and uuid.
        doubtful: Containers with slots of which it is not known whose they are.
    """

    sources: tuple[object, ...]
    key: tuple[bytes, ...]
    shown: Mapping[Container, tuple[int, ShownProcesses]]
    labels: LabelRows
    usages: array[int]
    sums: array[int]
    folded: bytes
    unmeasured: Sequence[range]
    container_ids: Mapping[Container, str]
    devices: Sequence[tuple[int, Container, int, str]]
    device_labels: LabelRows
    alive: Sequence[tuple[Container, int, HostProcess, Sequence[tuple[int, int, str]]]]
    doubtful: frozenset[Container]

    def fits(self, snapshot: NodeSnapshot) -> bool:
        """Whether a read has the same devices in the same rows."""
        devices = snapshot.table.devices
        shape = devices.index.tobytes(), devices.uuid_bytes.tobytes()
        return self.sources[0] is snapshot.containers and self.key[-2:] == shape

    def series_of_devices(
        self, family: MetricFamily, cells: array[int], chosen: array[int] | None = None
    ) -> Series:
        """Series of a family of containers' devices.

        Args:
            family: The family.
            cells: A number per device of the read, or of `devices` where `chosen` is given.
            chosen: The cell of each device, or `NO_ROW`.
        """
        at = array("I", [row for row, _, _, _ in self.devices]) if chosen is None else chosen
        return Series(family, self.device_labels, cells, at)


@attrs.frozen(eq=False)
class CollectedState:
    """What the collectors have found.

    Attributes:
        identities: What containers are called.
        container_ids: Their ids, where a process or Docker's files tell.
        gone: Containers whose pod is gone.
        rows: The proved processes; None before the first look at them.
        uncounted: Processes that use a GPU and have no slot for it.
        findings: What the doctor has found at its last turn.
        series: Series that stay as they are until the collector's next turn, by collector.
    """

    identities: Mapping[Container, Identity] = attrs.Factory(dict)
    container_ids: Mapping[Container, str] = attrs.Factory(dict)
    gone: frozenset[Container] = frozenset()
    rows: ProcessRows | None = None
    uncounted: Sequence[NodeProcess] = ()
    findings: Sequence[Finding] = ()
    series: Mapping[str, Sequence[Series]] = attrs.Factory(dict)

    def with_series(self, collector: str, series: Sequence[Series]) -> CollectedState:
        """A copy with other series of one collector."""
        return attrs.evolve(self, series={**self.series, collector: tuple(series)})


class Collector(Protocol):
    """One part of the work behind the scrapes."""

    @property
    def name(self) -> str:
        """As in ``--collector.NAME``."""

    def collect(self, state: CollectedState) -> CollectedState:
        """Look once, and return the state with what was found."""

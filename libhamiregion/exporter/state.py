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

    from libhamiregion.node import Container, Finding, NodeProcess
    from libhamiregion.node.join import KnownJoin

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
        devices: How many devices each of them has texts for.
        alone: Pid in the slot -> its first row in `labels`, for those with series of their own.
        folded: Pids of those that are summed up.
    """

    key: tuple[object, ...]
    labels: LabelRows
    devices: int
    alone: Mapping[int, int]
    folded: frozenset[int]

    @property
    def others(self) -> int:
        """The first row of the sums."""
        return len(self.labels) - self.devices


@attrs.frozen(eq=False)
class ProcessLabels:
    """The label texts of processes and devices, kept until what they are made of changes.

    Attributes:
        sources: What they were made of, compared by identity; the pairs first.
        shown: The processes with series, by container, with their first row in `labels`.
        labels: The label texts of all processes.
        usages: Of each label text the row of its usage, or `NO_ROW`.
        sums: Of each label text of sums the row of its device, or `NO_ROW`.
        folded: A byte per slot: whether it counts in a sum.
        unmeasured: The label texts of regions whose layout has no utilisation.
        of_pairs: Of each pair of `Join.pairs` its label text, or `NO_ROW`.
        container_ids: The ids of containers, where known.
        device_rows: The rows of the devices that are told of.
        device_labels: One per entry of `device_rows`.
    """

    sources: tuple[object, ...]
    shown: Mapping[Container, tuple[int, ShownProcesses]]
    labels: LabelRows
    usages: array[int]
    sums: array[int]
    folded: bytes
    unmeasured: Sequence[range]
    of_pairs: array[int]
    container_ids: Mapping[Container, str]
    device_rows: array[int]
    device_labels: LabelRows

    def series_of_devices(
        self, family: MetricFamily, cells: array[int], chosen: array[int] | None = None
    ) -> Series:
        """Series of a family of containers' devices.

        Args:
            family: The family.
            cells: A number per device of the read.
            chosen: Of each device of the read its own row, or `NO_ROW` where it has no sample.
        """
        at = self.device_rows
        if chosen is not None:
            at = array("I", [chosen[row] for row in at])
        return Series(family, self.device_labels, cells, at)


@attrs.frozen(eq=False)
class CollectedState:
    """What the collectors have found.

    Attributes:
        identities: What containers are called.
        container_ids: Their ids, where a process or Docker's files tell.
        gone: Containers whose pod is gone.
        known: What the last join has found; None before the first.
        labels: The label texts of processes and devices that belong to it.
        uncounted: Processes that use a GPU and have no slot for it.
        findings: What the doctor has found in its last run.
        series: Series that stay as they are until the collector's next run, by collector.
    """

    identities: Mapping[Container, Identity] = attrs.Factory(dict)
    container_ids: Mapping[Container, str] = attrs.Factory(dict)
    gone: frozenset[Container] = frozenset()
    known: KnownJoin | None = None
    labels: ProcessLabels | None = None
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
        """The NAME of ``--collector.NAME``."""

    def collect(self, state: CollectedState) -> CollectedState:
        """Look once, and return the state with what was found."""

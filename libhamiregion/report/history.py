"""Input of a report: observations of one node, or of many, in the order of time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@attrs.frozen(cache_hash=True)
class Allocation:
    """One device of one container.

    Attributes:
        namespace: Of the pod; None if it is not known.
        pod: The pod's name; None if it is not known.
        container: The container's name, or the beginning of its id.
        pod_uid: UID of the pod, or of the claim; None if the source does not know it.
        device_index: The device's index in its container.
        device_uuid: ``GPU-…`` or ``MIG-…``; None until the container has reported it.
        node: The node's name; None if it is not known. A recording has one node for all.
    """

    namespace: str | None
    pod: str | None
    container: str | None
    pod_uid: str | None
    device_index: int
    device_uuid: str | None
    node: str | None = None

    @property
    def index(self) -> int:
        """`device_index`, as a `Selector` asks for it."""
        return self.device_index

    @property
    def uuid(self) -> str | None:
        """`device_uuid`, as a `Selector` asks for it."""
        return self.device_uuid


@attrs.frozen
class Gpu:
    """What a share of a GPU, or of a MIG device, is a share of.

    Attributes:
        model: The driver's name, of a MIG device with ``MIG`` and its profile; None if not
            known.
        memory_bytes: All of its memory; None if not known.
    """

    model: str | None = None
    memory_bytes: int | None = None


@attrs.frozen
class Sample:
    """Usage and limits of an allocation at one time.

    Attributes:
        memory_used_bytes: Memory that counts against the limit, without a region the driver's
            figure; the average if the sample covers several scrapes.
        memory_limit_bytes: None if unlimited.
        sm_limit_percent: 100 if unlimited; None if the source does not know it.
        sm_percent: SM utilisation as accounted in the region, without one by the driver, the sum
            over the container's processes, so it can pass 100; None if not known.
        processes: Processes of the container with a slot that are not proved dead; None if not
            known.
        driver_memory_bytes: The driver's figure for the container's processes; None if not known.
        driver_sm_percent: The driver's SM utilisation of those processes; None if not known.
        memory_peak_bytes: The highest of several scrapes; None if there is one value only.
    """

    memory_used_bytes: int
    memory_limit_bytes: int | None = None
    sm_limit_percent: int | None = None
    sm_percent: float | None = None
    processes: int | None = None
    driver_memory_bytes: int | None = None
    driver_sm_percent: float | None = None
    memory_peak_bytes: int | None = None


@attrs.frozen
class ReportInterval:
    """Samples that have changed, and for how long they hold.

    An interval that begins when the one before ended continues it. One that begins later follows a
    gap and is `whole`.

    Attributes:
        start_ms: From when it holds, Unix milliseconds.
        end_ms: Until when, exclusive.
        whole: Whether `changes` has all allocations, so that a missing one is gone.
        changes: The allocations that have changed; None for one that is gone.
    """

    start_ms: int
    end_ms: int
    whole: bool
    changes: Mapping[Allocation, Sample | None]


@attrs.frozen
class HistoryFacts:
    """A report's description of its source.

    Attributes:
        kind: ``"recording"`` or ``"prometheus"``.
        source: The file's path, or the address without credentials.
        node: The node's name; None if it is not about one node.
        resolution_s: Sampling interval; of a Prometheus the step, which covers all samples
            scraped in it.
        gpus: GPUs of the node by the driver, MIG devices one by one; None if not known.
        warnings: One sentence each for the reader of the report.
    """

    kind: str
    source: str
    node: str | None
    resolution_s: float
    gpus: int | None = None
    warnings: tuple[str, ...] = ()


class History(Protocol):
    """Anything that a report can be made from."""

    def intervals(self, since_ms: int, until_ms: int) -> Iterator[ReportInterval]:
        """Yield the intervals between two moments, cut to them, in order, never overlapping."""

    def devices(self, since_ms: int, until_ms: int) -> Mapping[str, Gpu]:
        """Describe the GPUs by uuid, as far as they are known."""

    def facts(self) -> HistoryFacts:
        """Describe the source, once its intervals have been read."""

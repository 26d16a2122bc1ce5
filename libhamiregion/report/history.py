"""What a report is made from: looks at a node, or at many, in the order of time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@attrs.frozen
class Allocation:
    """One device of one container.

    Attributes:
        namespace: Of the pod; None if it is not known.
        pod: The pod's name.
        container: The container's name, or what else tells it from others.
        pod_uid: UID of the pod; None where the source has none.
        device_index: The device's index in its container.
        device_uuid: ``GPU-…`` or ``MIG-…``; None if it was never told.
        place: Path of its region in the container, for one outside the node's directories, which
            the container has made itself; else None.
    """

    namespace: str | None
    pod: str | None
    container: str | None
    pod_uid: str | None
    device_index: int
    device_uuid: str | None
    place: str | None = None


@attrs.frozen
class AllocationState:
    """What changes now and then.

    Attributes:
        memory_used_bytes: Over what the look stands for: the value, or the average.
        memory_peak_bytes: The highest within it.
        memory_limit_bytes: None if unlimited.
        sm_limit_percent: None if unlimited, or if the source does not know it.
        processes: That live; None if not known.
        driver_memory_bytes: The driver's figure; None if not known.
        sm_limit_known: Whether None for the SM limit means that there is none.
    """

    memory_used_bytes: int
    memory_peak_bytes: int
    memory_limit_bytes: int | None
    sm_limit_percent: int | None = None
    processes: int | None = None
    driver_memory_bytes: int | None = None
    sm_limit_known: bool = True


#: SM utilisation in percent, as accounted and as the driver says; None where not known.
Activity: TypeAlias = "tuple[float | None, float | None]"


@attrs.frozen
class Look:
    """What has changed, and for how long it holds.

    A look that begins where the one before ended goes on from it. One that begins later follows a
    gap, and is `full`.

    Attributes:
        start_ms: From when it holds, Unix milliseconds.
        end_ms: Until when, exclusive.
        full: Whether it has everything, so that what is missing is gone.
        states: Number of the allocation, and its state; None if there is nothing to be read any
            more.
        activity: Number of the allocation, and its activity.
    """

    start_ms: int
    end_ms: int
    full: bool
    states: Mapping[int, AllocationState | None]
    activity: Mapping[int, Activity]


@attrs.frozen
class HistoryFacts:
    """What there is to say about a source.

    Attributes:
        kind: ``recording`` or ``prometheus``.
        source: The file's path, or the address without credentials.
        node: The node's name; None where it is not about one.
        resolution_s: How far apart looks are; the latest, if that changed.
        averaged: Whether a look stands for several samples, with an average and a peak.
        knows_sm_limits: Whether the source has SM limits, of some of the looks at least.
        warnings: What a reader of the report should know.
    """

    kind: str
    source: str
    node: str | None
    resolution_s: float
    averaged: bool
    knows_sm_limits: bool
    warnings: tuple[str, ...] = ()


class History(Protocol):
    """Anything that a report can be made from."""

    def looks(self, since_ms: int, until_ms: int) -> Iterator[Look]:
        """The looks that hold between two moments, cut to them, in order and never overlapping."""

    def allocation(self, number: int) -> Allocation:
        """Which allocation a number in a look means."""

    def facts(self) -> HistoryFacts:
        """What is known about the source, once its looks have been read."""

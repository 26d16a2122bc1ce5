"""The contents of a report: frozen attrs classes, units in their names."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, get_args

import attrs

Level: TypeAlias = Literal["node", "namespace", "pod", "container", "device"]
LEVELS: Final[tuple[Level, ...]] = get_args(Level)

#: The share of a GPU that a container has without an SM limit: its memory limit's, or all of it.
UnlimitedSm: TypeAlias = Literal["memory", "whole"]

Advice: TypeAlias = Literal["lower", "raise", "keep", "limit", "unused", "too_little_seen"]


@attrs.frozen
class Timeline:
    """Memory and GPUs over time in equal steps; a step with nothing recorded has None.

    Attributes:
        start_ms: Where the first step begins, Unix milliseconds.
        step_ms: Length of a step.
        memory_peak_bytes: The highest in each step.
        memory_used_bytes: The average over what was recorded of each step.
        memory_limit_bytes: The highest limit; 0 where there is none at all.
        busy_gpus: Average SM utilisation, summed, in GPUs.
        allocated_gpus: Average SM limits, summed, in GPUs, as far as they are known.
    """

    start_ms: int
    step_ms: int
    memory_peak_bytes: tuple[int | None, ...]
    memory_used_bytes: tuple[int | None, ...]
    memory_limit_bytes: tuple[int | None, ...]
    busy_gpus: tuple[float | None, ...]
    allocated_gpus: tuple[float | None, ...]


@attrs.frozen
class Usage:
    """Usage of one allocation, or of a group of them.

    Hours are summed over the allocations of a group. Memory figures of a group are those of its sum
    at each moment, so its peak is not the sum of peaks.

    Attributes:
        node: None if it is not known, or the group spans several.
        namespace: None if it is not known, or the group spans several.
        pod: None if it is not known, or the group spans several.
        container: None if it is not known, or the group spans several.
        pod_uid: None if it is not known, or the group spans several.
        device_index: The device's index in its container; None for a group.
        device_uuid: None if it is not known, or the group spans several.
        allocations: How many there are: devices of containers.
        first_seen_ms: Unix milliseconds, within the report.
        last_seen_ms: Unix milliseconds, within the report.
        observed_s: How long there are figures; of a group, of at least one of its allocations.
        device_hours: How long devices were held, whatever the share.
        allocated_gpu_hours: Device hours weighted with the share of the GPU, while it is known:
            the SM limit, or `Report.unlimited_sm_as`; None if it never is.
        busy_gpu_hours: SM utilisation over time, 100 % at most for each allocation; None without
            any figure.
        driver_busy_gpu_hours: SM utilisation over time by the driver's figures.
        memory_limit_bytes: The limit when last seen, None if unlimited; of a group, the highest sum
            of limits at one moment.
        sm_limit_percent: When last seen; None if unlimited, unknown, or a group.
        memory_average_bytes: Over the time observed.
        memory_p95_bytes: 95th percentile over time, rounded up by 0.4 % at most.
        memory_p99_bytes: 99th percentile over time, rounded up by 0.4 % at most.
        memory_peak_bytes: The highest of the samples.
        peak_at_ms: When it was reached first.
        limit_gib_hours: Memory limits over time.
        used_gib_hours: Memory used over time.
        limited_used_gib_hours: Memory used over the time with a limit.
        unused_gib_hours: Limits over the time in which no memory was used.
        unused_hours: Time in which no memory was used.
        unused_longest_hours: The longest time, without a break or a gap, in which no memory was
            used.
        unused_since_ms: Since when no memory has been used, if that was so at the end.
        last_used_ms: When memory was last in use; None if never.
        loaded_idle_hours: Time in which memory was in use, and SM utilisation 0.
        leftover_hours: Time in which memory was counted and no process alive; None if processes are
            not known.
        driver_memory_peak_bytes: The highest of the driver's figures; None if not known, or for a
            group.
        advice: ``"lower"``, ``"raise"`` or ``"keep"`` the memory limit; ``"limit"``: set
            one; ``"unused"``: nothing was used at all, so the allocation itself is in question;
            ``"too_little_seen"``: for less than an hour. None for a group.
        suggested_limit_bytes: A sufficient memory limit; None with the last two.
        allocated_ratio: Its part of all GPU hours allocated in this report, 0 to 1; None if not
            known.
        cost_allocated: Of the GPU hours allocated, as far as prices fit; None without a price.
        cost_used: Of the GPU hours busy.
        timeline: Over time, if it was asked for.
    """

    node: str | None
    namespace: str | None
    pod: str | None
    container: str | None
    pod_uid: str | None
    device_index: int | None
    device_uuid: str | None
    allocations: int
    first_seen_ms: int
    last_seen_ms: int
    observed_s: float
    device_hours: float
    allocated_gpu_hours: float | None
    busy_gpu_hours: float | None
    driver_busy_gpu_hours: float | None
    memory_limit_bytes: int | None
    sm_limit_percent: int | None
    memory_average_bytes: int
    memory_p95_bytes: int
    memory_p99_bytes: int
    memory_peak_bytes: int
    peak_at_ms: int
    limit_gib_hours: float
    used_gib_hours: float
    limited_used_gib_hours: float
    unused_gib_hours: float
    unused_hours: float
    unused_longest_hours: float
    unused_since_ms: int | None
    last_used_ms: int | None
    loaded_idle_hours: float
    leftover_hours: float | None
    driver_memory_peak_bytes: int | None = None
    advice: Advice | None = None
    suggested_limit_bytes: int | None = None
    allocated_ratio: float | None = None
    cost_allocated: float | None = None
    cost_used: float | None = None
    timeline: Timeline | None = None


@attrs.frozen
class Report:
    """Usage over a stretch of time. A value.

    Attributes:
        kind: ``"recording"`` or ``"prometheus"``.
        source: The file's path, or the address without credentials; of several recordings all
            paths, separated by commas.
        node: The node's name; None if it is not about one node.
        resolution_s: Sampling interval, or the length of a step.
        since_ms: Its first moment, Unix milliseconds.
        until_ms: Its end.
        made_at_ms: When it was made.
        by: The kind of `rows`: nodes, namespaces, pods, devices, or containers: then one row per
            container and device.
        recorded_ratio: How much of the time was recorded, 0 to 1; the average of several
            nodes.
        gaps: When nothing was recorded by any recording, at the beginning and the end too: pairs of
            start and end, Unix milliseconds; the longest 1,000.
        gap_count: How many there are.
        headroom: Added by suggested limits to the 99th percentile, 0.1 for a tenth.
        round_to_bytes: Suggested limits are multiples of this.
        gpus: GPUs of the nodes by their drivers, or those held by containers if these are more;
            each MIG device counts as one.
        total: Everything together; None if nothing was recorded.
        rows: In the order of their names.
        allocations: One row per container and device, whatever `by` is.
        devices: One row per device.
        warnings: One sentence each.
        bill_by: The kind of `bill`: pods if `by` is, else namespaces.
        bill: Hours, shares and costs by namespace or pod, in the order of their names.
        unlimited_sm_as: The share of a GPU that a container without an SM limit has.
        prices: Of an hour of a GPU, with the part of the model's name; empty without prices.
    """

    kind: str
    source: str
    node: str | None
    resolution_s: float
    since_ms: int
    until_ms: int
    made_at_ms: int
    by: Level
    recorded_ratio: float
    gaps: tuple[tuple[int, int], ...]
    gap_count: int
    headroom: float
    round_to_bytes: int
    gpus: int
    total: Usage | None
    rows: tuple[Usage, ...]
    allocations: tuple[Usage, ...]
    devices: tuple[Usage, ...]
    warnings: tuple[str, ...]
    bill_by: Level = "namespace"
    bill: tuple[Usage, ...] = ()
    unlimited_sm_as: UnlimitedSm = "memory"
    prices: tuple[tuple[str, float], ...] = ()

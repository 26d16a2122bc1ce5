"""What the exporter's page shows: one observation of the node, chosen and bounded for people."""

from __future__ import annotations

import hashlib
import os
import time
from collections import Counter
from typing import TYPE_CHECKING

import attrs

from libhamiregion.node import SLOT_STATES, Severity, driver_gap
from libhamiregion.node.join import NO_ROW, Join
from libhamiregion.text import printable
from libhamiregion.units import sm_limit_or_none

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from libhamiregion.node import Container, Finding, HostProcess, Observation
    from libhamiregion.node.nvml import NvmlDevice

    from .state import CollectedState

#: How often a page asks for a new one.
PAGE_INTERVAL_S = 5.0
#: A page is for looking at: what is more stands on the next one, or in the metrics.
CONTAINERS_PER_PAGE = 250
_PROCESSES = 64
_FINDINGS = 25
_MISSING = 25
_GAPS = 10
_GPUS = 32


@attrs.frozen
class DeviceFigures:
    """One device of a container. None is unlimited, or not known of what the driver says."""

    index: int
    uuid: str | None
    memory_used_bytes: int
    memory_limit_bytes: int | None
    sm_percent: int | None
    sm_limit_percent: int | None
    memory_driver_bytes: int | None = None

    @property
    def memory_ratio(self) -> float | None:
        """Used memory as a share of the limit; None without a limit."""
        limit = self.memory_limit_bytes
        return None if limit is None else self.memory_used_bytes / limit


@attrs.frozen
class ProcessFigures:
    """One slot of a container; `process` is None where it is not alive or not known."""

    pid: int
    state: str
    process: HostProcess | None
    memory_used_bytes: int


@attrs.frozen
class ContainerFigures:
    """A container with its devices; its processes only where they were asked for.

    Attributes:
        key: Names it in the page's address.
        namespace: Of the pod, raw text; None if it is not known.
        pod: Its name, else its UID.
        name: Its own name.
        devices: One entry per device.
        states: How many slots of each state.
        processes: The first of them; None where they were not asked for.
    """

    key: str
    namespace: str | None
    pod: str | None
    name: str | None
    devices: tuple[DeviceFigures, ...]
    states: Mapping[str, int]
    processes: tuple[ProcessFigures, ...] | None = None

    @property
    def fullness(self) -> float:
        """The highest share of a limit that it uses; without limits below all others."""
        ratios = (each.memory_ratio for each in self.devices)
        return max((ratio for ratio in ratios if ratio is not None), default=-1.0)


@attrs.frozen
class Overview:
    """What one page of the overview shows.

    Attributes:
        node: The node's name.
        containers: The chosen ones, the fullest first.
        count: How many there are in all.
        first: The place of the first of these among all.
        gpus: What the driver says of the GPUs.
        missing: Containers without a region, with the reason.
        missing_count: How many of them there are.
        findings: What the doctor found, the gravest first.
        finding_count: How many findings there are.
        gaps: What could not be looked at, as sentences.
        driver_gap: Why there are no figures of the driver; None if there are.
        ages_s: What was looked at, and how long ago; None if never.
    """

    node: str
    containers: tuple[ContainerFigures, ...]
    count: int
    first: int
    gpus: tuple[NvmlDevice, ...]
    missing: tuple[tuple[str, str], ...]
    missing_count: int
    findings: tuple[Finding, ...]
    finding_count: int
    gaps: tuple[str, ...]
    driver_gap: str | None
    ages_s: Mapping[str, float | None]


def key_of(container: Container) -> str:
    """What names a container in an address: nothing that it has chosen stands there."""
    name = container.directory or f"{container.container_id} {container.path_in_namespace}"
    return hashlib.sha256(os.fsencode(name)).hexdigest()[:16]


def make_overview(
    node_name: str,
    observation: Observation,
    state: CollectedState,
    looked_at_s: Mapping[str, float | None],
    *,
    first: int = 0,
    opened: str | None = None,
) -> Overview:
    """Choose what a page shows.

    Args:
        node_name: The node's name.
        observation: What stands on the node.
        state: What the collectors have found: findings, and whose pod is gone.
        looked_at_s: When collectors have last looked, Unix seconds.
        first: How many containers to leave out, which stand on the pages before.
        opened: The key of the container whose processes are shown.
    """
    there = [
        (row, container)
        for row, container in enumerate(observation.containers)
        if observation.table.regions.code[row] == 0 and container not in state.gone
    ]
    driver = _driver_memory(observation, state)
    made = [_container(row, each, observation, driver, opened) for row, each in there]
    made.sort(key=lambda each: (-each.fullness, each.namespace or "", each.pod or "", each.key))
    first = max(0, min(first, len(made) - 1)) if made else 0
    missing = [each for each in observation.missing if each not in state.gone]
    now_s = time.time()
    gravest_first = list(Severity)
    findings = sorted(state.findings, key=lambda each: gravest_first.index(each.severity))
    doctor_s = looked_at_s.get("doctor")
    return Overview(
        node=node_name,
        containers=tuple(made[first : first + CONTAINERS_PER_PAGE]),
        count=len(made),
        first=first,
        gpus=() if observation.sample is None else observation.sample.devices[:_GPUS],
        missing=tuple(
            (" / ".join(filter(None, _names(each))), each.missing.message if each.missing else "")
            for each in missing[:_MISSING]
        ),
        missing_count=len(missing),
        findings=tuple(findings[:_FINDINGS]),
        finding_count=len(findings),
        gaps=tuple(printable(each.reason, 300) for each in observation.gaps[:_GAPS]),
        driver_gap=_driver_gap(observation),
        ages_s={
            "regions": now_s - observation.regions_read_at_ns / 1e9,
            "processes": None
            if observation.states is None
            else time.monotonic() - observation.processes_read_s,
            "driver": None
            if observation.sample is None
            else now_s - observation.sample.taken_at_ns / 1e9,
            "doctor": None if doctor_s is None else now_s - doctor_s,
        },
    )


def _driver_gap(observation: Observation) -> str | None:
    """Why there are no figures of the driver, as one sentence."""
    for gap in observation.gaps:
        if gap.kind == "driver":
            return printable(gap.reason, 300)
    reason = driver_gap(observation.processes, observation.sample)
    return None if reason is None else printable(reason, 300)


def _names(container: Container) -> tuple[str | None, str | None, str | None]:
    name = container.pod_name
    if name is None:
        return None, container.pod_uid, container.name
    return name.namespace, name.pod or container.pod_uid, container.name


def _driver_memory(observation: Observation, state: CollectedState) -> Sequence[int | None]:
    """What the driver says of each device of the read; None where it is not known."""
    nothing = [None] * len(observation.table.devices)
    if observation.states is None:
        return nothing
    if driver_gap(observation.processes, observation.sample) is not None:
        return nothing
    found = Join(observation, state.known).device_sums("memory_used_bytes")
    return [
        None if row == NO_ROW else used for used, row in zip(found.sums, found.rows, strict=True)
    ]


def _container(
    row: int,
    container: Container,
    observation: Observation,
    driver: Sequence[int | None],
    opened: str | None,
) -> ContainerFigures:
    table, slots = observation.table, observation.states
    regions, devices = table.regions, table.devices
    first, count = regions.first_process[row], regions.process_count[row]
    rows = range(first, first + count)
    states: Counter[str] = Counter()
    if slots is not None:
        states.update(SLOT_STATES[slots.states[at]] for at in rows)
    has_utilization = container.region is not None and container.region.layout.has_utilization
    start = regions.first_device[row]
    key = key_of(container)
    namespace, pod, name = _names(container)
    return ContainerFigures(
        key,
        namespace,
        pod,
        name,
        tuple(
            DeviceFigures(
                devices.index[at],
                devices.uuid(at),
                devices.memory_used_bytes[at],
                devices.memory_limit_bytes[at] or None,
                devices.sm_util_percent[at] if has_utilization else None,
                sm_limit_or_none(devices.sm_limit_percent[at]),
                driver[at],
            )
            for at in range(start, start + regions.device_rows[row])
        ),
        dict(states),
        _processes(observation, rows, regions.device_rows[row]) if key == opened else None,
    )


def _processes(
    observation: Observation, rows: range, device_count: int
) -> tuple[ProcessFigures, ...]:
    table, slots = observation.table, observation.states
    used, first = table.usages.memory_used_bytes, table.processes.first_usage
    found = [
        ProcessFigures(
            table.processes.pid[at],
            "unknown" if slots is None else SLOT_STATES[slots.states[at]],
            None if slots is None else slots.processes.get(at),
            sum(used[first[at] : first[at] + device_count]),
        )
        for at in rows
    ]
    found.sort(key=lambda each: -each.memory_used_bytes)
    return tuple(found[:_PROCESSES])

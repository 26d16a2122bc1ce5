"""What the driver (NVML) says: the GPUs of `top`, and the two lists of `hamiregion ps --nvml`."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any

import attrs

from libhamiregion.node import NvmlState, driver_gap

from .output import Page
from .tables import (
    COMMAND,
    METER,
    NAME,
    NUMBER,
    PERCENT,
    QUIET,
    SIZE,
    Column,
    Fill,
    Kind,
    Table,
    ratio_style,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from libhamiregion.node import NvmlSample, NvmlSampler, Observation, Observer, Selector
    from libhamiregion.node.bounded_call import BoundedCall
    from libhamiregion.node.nvml import NvmlDevice


@attrs.frozen
class Device:
    """A device as `Selector` compares it."""

    index: int
    uuid: str | None


#: What is said of a driver that has not answered in time.
NO_ANSWER = "the driver does not answer"
_TIMEOUT_S = 5.0


def driver_object(sample: NvmlSample | None, message: str | None) -> dict[str, Any]:
    """Whether the driver answered, for --json.

    Args:
        sample: What it said; None if it does not answer.
        message: Why there are no figures of it; None if there are.
    """
    if sample is None:
        return {"state": NvmlState.TIMEOUT, "message": message, "version": None}
    return {"state": sample.state, "message": message, "version": sample.driver_version}


def driver_answer(
    observer: Observer, observation: Observation
) -> tuple[dict[str, Any] | None, str | None]:
    """Whether the driver answered, for --json, and why there are no figures of it.

    None and None where it was not asked.
    """
    if not observer.asks_driver:
        return None, None
    gaps = (gap.reason for gap in observation.gaps if gap.kind == "driver")
    gap = next(gaps, None) or driver_gap(observation.processes, observation.sample)
    return driver_object(observation.sample, gap), gap


# Columns of a terminal from which there is room for a second bar.
_SM_BARS = 100


def _gpu_bar(device: NvmlDevice) -> Fill:
    used, total = device.memory_used_bytes, device.memory_total_bytes
    ratio = None if used is None or not total else used / total
    return Fill(ratio or 0.0, ratio_style(ratio))


def _sm_bar(device: NvmlDevice) -> Fill:
    return Fill((device.gpu_util_percent or 0) / 100, "cyan", width=10)


GPU_COLUMNS = (
    Column("GPU", "index", NUMBER, title="GPU", style="bold"),
    Column("NAME", lambda device: device.name or device.state.value, NAME, style=QUIET),
    Column("", _gpu_bar, METER, title="memory"),
    Column("USED", "memory_used_bytes", SIZE),
    Column("TOTAL", "memory_total_bytes", SIZE),
    Column("", _sm_bar, METER, title="SM", from_width=_SM_BARS),
    Column("SM", "gpu_util_percent", PERCENT, title="SM"),
)
_FIGURES = (
    Column("SM", "sm_util_percent", PERCENT, title="SM"),
    Column("MEM", "memory_util_percent", PERCENT, title="MEM"),
    Column("ENC", "enc_util_percent", PERCENT, title="ENC"),
    Column("DEC", "dec_util_percent", PERCENT, title="DEC"),
)
_DRIVER_COLUMNS = (
    Column("GPU", "device_index", NUMBER, title="GPU"),
    Column("PID", "pid", NUMBER, title="PID", style="bold"),
)
_PROCESS_COLUMNS = (
    *_DRIVER_COLUMNS,
    Column("KIND", lambda row: ",".join(row.kinds)),
    Column("MEM-USED", "memory_used_bytes", SIZE, title="used"),
    *_FIGURES,
    Column("UUID", "device_uuid", NAME, on="pipe"),
    Column("NAME", "name", COMMAND),
)
_ELSEWHERE = (
    "this is not the host's pid namespace: the driver may hide processes, and the pids of one list"
    " may be others than those of the other"
)


def driver_page(ask: BoundedCall[NvmlSample], sampler: NvmlSampler, selector: Selector) -> Page:
    """Show the driver's two lists.

    Args:
        ask: Has the driver asked for a sample.
        sampler: Names the programs of its processes.
        selector: Which devices are shown.
    """
    answered = ask(_TIMEOUT_S)
    if not answered:
        taken_at_ns = time.time_ns()
        lists: dict[str, Any] = {"devices": [], "processes": [], "samples": []}
        data = {"taken_at_ns": taken_at_ns, "driver": driver_object(None, NO_ANSWER), **lists}
        return Page("driver/1", data, [], failure=NO_ANSWER)
    (sample,) = answered

    def chosen(rows: Iterable[Any]) -> list[Any]:
        return [
            row
            for row in rows
            if selector.matches_device(Device(row.device_index, row.device_uuid))
        ]

    processes = chosen(sampler.process_view(sample=sample))
    samples = chosen(sample.utilization)
    failure = None
    if sample.state is not NvmlState.OK:
        failure = sample.state.explanation if sample.fault is None else sample.fault.message
    data = {
        "taken_at_ns": sample.taken_at_ns,
        "driver": driver_object(sample, failure),
        "devices": sample.devices,
        "processes": processes,
        "samples": samples,
    }
    age = Column(
        "AGE",
        lambda row: max(0.0, sample.taken_at_ns / 1e9 - row.sampled_at_us / 1e6),
        Kind("{:.2f} s".format),
    )
    blocks = [
        Table(_PROCESS_COLUMNS, processes, empty="No process uses a GPU."),
        Table((*_DRIVER_COLUMNS, age, *_FIGURES), samples, empty="No samples of the last second."),
    ]
    return Page("driver/1", data, blocks, notes=_driver_notes(sample), failure=failure)


def _driver_notes(sample: NvmlSample) -> tuple[str, ...]:
    """Tell which questions the driver did not answer, and which processes it may not list."""
    if sample.state is not NvmlState.OK:
        return ()
    notes = {
        f"GPU {device.index}: {fault.message}": None
        for device in sample.devices
        for fault in itertools.chain(device.faults, *(mig.faults for mig in device.mig_devices))
    }
    return (*notes, *(() if sample.sees_all_processes else (_ELSEWHERE,)))

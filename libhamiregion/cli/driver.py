"""What the driver (NVML) says: whether it answered, and the GPUs of `top`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from libhamiregion.node import NvmlState, driver_gap

from .tables import (
    METER,
    NAME,
    NUMBER,
    PERCENT,
    QUIET,
    SIZE,
    Column,
    Fill,
    ratio_style,
)

if TYPE_CHECKING:
    from libhamiregion.node import NvmlSample, Observation, Observer
    from libhamiregion.node.nvml import NvmlDevice


@attrs.frozen
class Device:
    """A device as `Selector` compares it."""

    index: int
    uuid: str | None


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

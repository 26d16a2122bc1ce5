"""Figures of GPUs and MIG devices, from the driver."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from libhamiregion.exporter.families import BY_NAME, HOST
from libhamiregion.exporter.labels import label_text, safe_value
from libhamiregion.exporter.text import Series
from libhamiregion.node import NvmlState
from libhamiregion.observation.cards import cards

if TYPE_CHECKING:
    from collections.abc import Iterator

    from libhamiregion.exporter.scrape import Scrape
    from libhamiregion.node import NvmlSample

_FIGURES = {
    "memory_used_bytes": "memory_used_bytes",
    "utilization_ratio": "gpu_util_percent",
    "memory_controller_utilization_ratio": "memory_util_percent",
}
# HAMi 2.10 does not have them, nor the counters of ECC errors.
_NEWER_FIGURES = {
    "temperature_celsius": "temperature_celsius",
    "power_usage_watts": "power_usage_watts",
}


class NvmlCollector:
    """Shows the driver's sample; a figure that the driver does not give has no series."""

    name = "nvml"
    needs_slots = False

    def __init__(self) -> None:
        self._driver_version = ""

    def collect(self, scrape: Scrape) -> Iterator[Series]:
        """Make the series; none of GPUs if no answer came in time."""
        observation = scrape.observation
        if observation.driver_error is not None:
            raise observation.driver_error
        sample = observation.sample
        state, up = "no_answer", 0
        if sample is not None:
            state, up = sample.state.value, int(sample.state is NvmlState.OK)
            self._driver_version = safe_value(sample.driver_version or "")
        info = label_text(("state", "driver"), state, self._driver_version)
        yield Series("hamiregion_nvml_up", [""], [up])
        yield Series("hamiregion_nvml_info", [info], [1])
        if sample is not None:
            yield from _gpus(sample, scrape.node_name, scrape.hami_version == "2.10")
            yield _mig_devices(scrape, sample)
            yield _totals(sample, scrape.node_name)
            yield _states(sample)
            yield from _limits(scrape)


def _gpus(sample: NvmlSample, node_name: str, is_hami_210: bool) -> Iterator[Series]:
    found: defaultdict[str, dict[str, float | None]] = defaultdict(dict)
    for device in sample.devices:
        if device.uuid is None or device.name is None:
            continue
        device_type = safe_value(device.name)
        # HAMi 2.10 doubles the prefix of most models.
        if is_hami_210 or not device_type.startswith("NVIDIA"):
            device_type = f"NVIDIA-{device_type}"
        values = (str(device.index), safe_value(device.uuid), device_type)
        text = label_text(HOST, safe_value(node_name), *values)
        for name, figure in (_FIGURES if is_hami_210 else _FIGURES | _NEWER_FIGURES).items():
            # As HAMi's monitor has it, also if it cannot be.
            wrong = dict(device.out_of_range).get(figure)
            found[f"hami_host_gpu_{name}"][text] = (
                getattr(device, figure) if wrong is None else wrong
            )
        for kind in () if is_hami_210 else ("corrected", "uncorrected"):
            errors = getattr(device, f"ecc_{kind}_errors")
            found["hami_host_gpu_ecc_errors_total"][f'{text},error_type="{kind}"'] = errors
        if is_hami_210:
            of_controller = found["hami_host_gpu_memory_controller_utilization_ratio"]
            of_controller[label_text(HOST[1:], *values)] = of_controller.pop(text)
    yield from (Series.of(name, values) for name, values in found.items())


def _totals(sample: NvmlSample, node_name: str) -> Series:
    """The memory of GPUs and MIG devices, with their models: reports take shares of it."""
    found: dict[str, float | None] = {}
    for uuid, each in sample.by_uuid.items():
        if uuid is not None and each.name is not None:
            values = (node_name, str(each.index), uuid, each.name)
            text = label_text(HOST, *map(safe_value, values))
            found[text] = each.memory_total_bytes
    return Series.of("hamiregion_gpu_memory_total_bytes", found)


def _limits(scrape: Scrape) -> Iterator[Series]:
    """The limits on each GPU and MIG device together."""
    found: defaultdict[str, dict[str, float | None]] = defaultdict(dict)
    for card in cards(scrape.observation).values():
        index = "" if card.index is None else str(card.index)
        values = scrape.node_name, index, card.uuid or "", card.name or ""
        text = label_text(HOST, *map(safe_value, values))
        found["container_devices"][text] = card.devices
        found["memory_limits_bytes"][text] = card.memory_limits_bytes
        found["sm_limits_ratio"][text] = card.sm_limits_percent / 100
    yield from (Series.of(f"hamiregion_gpu_{name}", values) for name, values in found.items())


def _states(sample: NvmlSample) -> Series:
    name = "hamiregion_gpu_state"
    rows = ((each.uuid or "", str(each.index), each.state.value) for each in sample.devices)
    texts = [label_text(BY_NAME[name].labels, *map(safe_value, row)) for row in rows]
    return Series(name, texts, [1] * len(texts))


def _mig_devices(scrape: Scrape, sample: NvmlSample) -> Series:
    """The MIG devices of containers whose region names one by its uuid."""
    name = "hami_mig_device_info"
    places = {mig.uuid: (gpu, mig) for gpu in sample.devices for mig in gpu.mig_devices}
    devices = scrape.observation.table.devices
    found: dict[str, float | None] = {}
    for shown in scrape.texts.regions if places else ():
        for row in shown.devices:
            gpu, mig = places.get(devices.uuid(row), (None, None))
            if gpu is None or mig is None or gpu.uuid is None or mig.uuid is None:
                continue
            ids = mig.gpu_instance_id, mig.compute_instance_id
            if None not in ids:
                values = (str(devices.device[row]), gpu.uuid, mig.uuid, mig.profile or "")
                text = shown.labels.text(name, *map(safe_value, values), *map(str, ids))
                found[text] = 1
    return Series.of(name, found)

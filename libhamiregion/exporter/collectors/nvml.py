"""What the driver says of GPUs and MIG devices."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import attrs

from libhamiregion.exporter import families
from libhamiregion.exporter.labels import label_text, safe_value
from libhamiregion.exporter.state import SNAPSHOT_BYTES
from libhamiregion.exporter.text import Series
from libhamiregion.node import NvmlState
from libhamiregion.node.nvml.timeout_sampler import TimeoutSampler

if TYPE_CHECKING:
    from libhamiregion.exporter.families import MetricFamily
    from libhamiregion.exporter.state import CollectedState
    from libhamiregion.node import Node, NvmlSample, NvmlSampler

#: The state of a driver that hangs, beside the values of `NvmlState`.
NO_ANSWER = "no_answer"
_TIMEOUT_S = 5.0


class NvmlCollector:
    """Asks the driver.

    Args:
        node: Whose regions name MIG devices.
        sampler: What asks the driver.
        node_name: The value of the label ``node``.
    """

    name = "nvml"

    def __init__(self, node: Node, sampler: NvmlSampler, node_name: str) -> None:
        self._node = node
        self._sampler = TimeoutSampler(sampler, _TIMEOUT_S)
        self._node_name = safe_value(node_name)
        self._version = ""

    def collect(self, state: CollectedState) -> CollectedState:
        """Ask once; where no answer comes in time, the GPUs have no series."""
        sample = self._sampler.sample()
        name, up = NO_ANSWER, 0
        if sample is not None:
            name, up = sample.state.value, int(sample.state is NvmlState.OK)
            self._version = safe_value(sample.driver_version or "")
        info = label_text(families.NVML_INFO.labels, name, self._version)
        series = [
            Series.of(families.NVML_UP, {b"": up}),
            Series.of(families.NVML_INFO, {info: 1}),
        ]
        if sample is not None:
            series += self._gpus(sample)
            series += self._mig_devices(sample, state)
        return attrs.evolve(state, sample=sample).with_series(self.name, series)

    def _gpus(self, sample: NvmlSample) -> list[Series]:
        """A figure that the driver does not give has no series."""
        rows: defaultdict[MetricFamily, dict[bytes, float]] = defaultdict(dict)

        def add(family: MetricFamily, figure: float | None, *values: str) -> None:
            if figure is not None:
                rows[family][label_text(family.labels, *values)] = figure

        for device in sample.devices:
            if device.uuid is None or device.name is None:
                continue
            rest = (str(device.index), safe_value(device.uuid), "NVIDIA-" + safe_value(device.name))
            host = (self._node_name, *rest)
            add(families.HOST_MEMORY_USED, device.memory_used_bytes, *host)
            add(families.HOST_UTILIZATION, device.gpu_util_percent, *host)
            add(families.HOST_MEMORY_UTILIZATION, device.memory_util_percent, *rest)
            add(families.HOST_TEMPERATURE, device.temperature_celsius, *host)
            add(families.HOST_POWER, device.power_usage_watts, *host)
            add(families.HOST_ECC, device.ecc_corrected_errors, *host, "corrected")
            add(families.HOST_ECC, device.ecc_uncorrected_errors, *host, "uncorrected")
        return [Series.of(family, found) for family, found in rows.items()]

    def _mig_devices(self, sample: NvmlSample, state: CollectedState) -> list[Series]:
        """The MIG devices of containers whose region names one by its uuid."""
        places = {
            mig.uuid: (device, mig)
            for device in sample.devices
            for mig in device.mig_devices
            if mig.uuid is not None
        }
        if not places:
            return []
        rows: dict[bytes, float] = {}
        snapshot = self._node.snapshot(most_bytes=SNAPSHOT_BYTES)
        devices = snapshot.table.devices
        for row, region in enumerate(devices.region):
            place = places.get(devices.uuid(row) or "")
            identity = state.identities.get(snapshot.containers[region])
            if place is None or identity is None:
                continue
            device, mig = place
            if device.uuid is None or mig.uuid is None:
                continue
            if mig.gpu_instance_id is None or mig.compute_instance_id is None:
                continue
            shown = (str(devices.index[row]), safe_value(device.uuid))
            profile, uuid = safe_value(mig.profile or ""), safe_value(mig.uuid)
            instances = str(mig.gpu_instance_id), str(mig.compute_instance_id)
            values = (*shown, uuid, profile, *instances)
            rows[identity.text(families.MIG_INFO.labels, *values)] = 1
        return [Series.of(families.MIG_INFO, rows)]

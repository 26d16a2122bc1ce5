"""What the driver says of GPUs and MIG devices."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from libhamiregion.exporter import families
from libhamiregion.exporter.labels import label_text, safe_value
from libhamiregion.exporter.text import Series
from libhamiregion.node import NvmlState

if TYPE_CHECKING:
    from libhamiregion.exporter.families import MetricFamily
    from libhamiregion.exporter.state import CollectedState
    from libhamiregion.node import NodeSnapshot, NvmlSample, Observer

#: The state of a driver that hangs, beside the values of `NvmlState`.
NO_ANSWER = "no_answer"


class NvmlCollector:
    """Shows what the driver said in the last observation.

    Args:
        observer: Observes the node; it asks the driver.
        node_name: The value of the label ``node``.
        max_age_s: How old an observation may be.
        hami_version: Whose labels GPUs have: ``2.10`` or ``2.11``.
    """

    name = "nvml"

    def __init__(
        self, observer: Observer, node_name: str, max_age_s: float, hami_version: str
    ) -> None:
        self._observer = observer
        self._max_age_s = max_age_s
        self._node_name = safe_value(node_name)
        self._version = ""
        self._is_hami_210 = hami_version == "2.10"

    def collect(self, state: CollectedState) -> CollectedState:
        """Look once; where no answer came in time, the GPUs have no series."""
        observation = self._observer.observe(max_age_s=self._max_age_s, slots=False)
        if observation.driver_error is not None:
            raise observation.driver_error
        sample = observation.sample
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
            series += self._mig_devices(sample, observation.snapshot, state)
        return state.with_series(self.name, series)

    def _gpus(self, sample: NvmlSample) -> list[Series]:
        """A figure that the driver does not give has no series."""
        rows: defaultdict[MetricFamily, dict[bytes, float]] = defaultdict(dict)

        def add(family: MetricFamily, figure: float | None, *values: str) -> None:
            if figure is not None:
                rows[family][label_text(family.labels, *values)] = figure

        for device in sample.devices:
            if device.uuid is None or device.name is None:
                continue
            kind = self._device_type(device.name)
            rest = (str(device.index), safe_value(device.uuid), kind)
            host = (self._node_name, *rest)
            add(families.HOST_MEMORY_USED, device.memory_used_bytes, *host)
            add(families.HOST_UTILIZATION, device.gpu_util_percent, *host)
            if device.memory_util_percent is not None:
                skipped = 1 if self._is_hami_210 else 0
                text = label_text(families.HOST[skipped:], *host[skipped:])
                rows[families.HOST_MEMORY_UTILIZATION][text] = device.memory_util_percent
            add(families.HOST_TEMPERATURE, device.temperature_celsius, *host)
            add(families.HOST_POWER, device.power_usage_watts, *host)
            add(families.HOST_ECC, device.ecc_corrected_errors, *host, "corrected")
            add(families.HOST_ECC, device.ecc_uncorrected_errors, *host, "uncorrected")
        return [Series.of(family, found) for family, found in rows.items()]

    def _device_type(self, name: str) -> str:
        """Return HAMi's name of a GPU model; 2.10 doubles the prefix of most."""
        if name.startswith("NVIDIA") and not self._is_hami_210:
            return safe_value(name)
        return "NVIDIA-" + safe_value(name)

    @staticmethod
    def _mig_devices(
        sample: NvmlSample, snapshot: NodeSnapshot, state: CollectedState
    ) -> list[Series]:
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

"""Series of what the driver says: GPUs, MIG devices, and processes that no region accounts for."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from libhamiregion.node import NvmlState

from . import metrics
from .label_ledger import OTHER
from .labels import LabelMaker, safe_value
from .naming import outsider_names
from .rendering import steady

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from libhamiregion.node import Container, ContainerView, Node, NvmlSample
    from libhamiregion.node.usage import NodeProcess

    from .background import Bounds
    from .label_ledger import LabelLedger
    from .labels import Labels
    from .naming import Identity
    from .rendering import Series

#: The state of a driver that hangs, beside the values of `NvmlState`.
NO_ANSWER = "no_answer"

_host = LabelMaker(metrics.HOST_MEMORY_USED)
_host_nodeless = LabelMaker(metrics.HOST_MEMORY_UTILIZATION)
_host_errors = LabelMaker(metrics.HOST_ECC)
_legacy_host = LabelMaker(metrics.LEGACY_HOST_MEMORY)
_mig = LabelMaker(metrics.MIG_INFO)
_legacy_mig = LabelMaker(metrics.LEGACY_MIG)
_unaccounted = LabelMaker(metrics.UNACCOUNTED_MEMORY)
_nothing = LabelMaker(metrics.NVML_UP)
_nvml_info = LabelMaker(metrics.NVML_INFO)


def host_series(sample: NvmlSample, node_name: str, *, legacy: bool) -> list[Series]:
    """The GPUs. A figure that the driver does not give has no series."""
    rows: defaultdict[metrics.MetricFamily, list[tuple[Labels, float]]] = defaultdict(list)
    node = safe_value(node_name)

    def add(family: metrics.MetricFamily, labels: Labels, figure: float | None) -> None:
        if figure is not None:
            rows[family].append((labels, figure))

    for device in sample.devices:
        if device.uuid is None or device.name is None:
            continue
        rest = (str(device.index), safe_value(device.uuid), "NVIDIA-" + safe_value(device.name))
        labels, legacy_labels = _host(node, *rest), _legacy_host(node, *rest)
        add(metrics.HOST_MEMORY_USED, labels, device.memory_used_bytes)
        add(metrics.HOST_UTILIZATION, labels, device.gpu_util_percent)
        add(metrics.HOST_MEMORY_UTILIZATION, _host_nodeless(*rest), device.memory_util_percent)
        add(metrics.HOST_TEMPERATURE, labels, device.temperature_celsius)
        add(metrics.HOST_POWER, labels, device.power_usage_watts)
        for kind, errors in (
            ("corrected", device.ecc_corrected_errors),
            ("uncorrected", device.ecc_uncorrected_errors),
        ):
            add(metrics.HOST_ECC, _host_errors(node, *rest, kind), errors)
        if legacy:
            add(metrics.LEGACY_HOST_MEMORY, legacy_labels, device.memory_used_bytes)
            add(metrics.LEGACY_HOST_UTILIZATION, legacy_labels, device.gpu_util_percent)
    return [steady(family, found) for family, found in rows.items()]


def nvml_series(sample: NvmlSample | None, version_before: str | None) -> list[Series]:
    """Whether the driver answers.

    Args:
        sample: What it said; None if it was asked and did not answer.
        version_before: Its version, as it said before.
    """
    state = NO_ANSWER if sample is None else sample.state.value
    version = version_before if sample is None else sample.driver_version
    up = int(sample is not None and sample.state is NvmlState.OK)
    return [
        steady(metrics.NVML_UP, [(_nothing(), up)]),
        steady(metrics.NVML_INFO, [(_nvml_info(state, safe_value(version or "")), 1)]),
    ]


def mig_series(
    sample: NvmlSample,
    views: Iterable[ContainerView],
    identities: Mapping[Container, Identity],
    *,
    legacy: bool,
) -> list[Series]:
    """The MIG devices of containers whose region names one by its uuid."""
    places = {
        mig.uuid: (device, mig)
        for device in sample.devices
        for mig in device.mig_devices
        if mig.uuid is not None
    }
    rows, legacy_rows = [], []
    for view in views if places else ():
        if view.snapshot is None:
            continue
        for usage in view.snapshot.devices:
            device, mig = places.get(usage.uuid or "", (None, None))
            if device is None or mig is None or device.uuid is None:
                continue
            if mig.gpu_instance_id is None or mig.compute_instance_id is None:
                continue
            shown = (*identities[view.container].shown, str(usage.index), safe_value(device.uuid))
            instance = str(mig.gpu_instance_id)
            profile = safe_value(mig.profile or "")
            labels = _mig(
                *shown, safe_value(mig.uuid or ""), profile, instance, str(mig.compute_instance_id)
            )
            rows.append((labels, 1))
            legacy_rows.append((_legacy_mig(*shown, instance), 1))
    series = [steady(metrics.MIG_INFO, rows)]
    return [*series, steady(metrics.LEGACY_MIG, legacy_rows)] if legacy else series


def unaccounted_series(
    node: Node,
    rows: Iterable[NodeProcess],
    identities: Mapping[Container, Identity],
    bounds: Bounds,
    ledger: LabelLedger,
) -> list[Series]:
    """Processes that use a GPU and stand in no region: what nvidia-smi shows, with their container.

    The rest of too many is summed up per GPU, without a name.
    """
    found: dict[metrics.MetricFamily, list[tuple[Labels, int]]] = {
        family: [] for family, _ in _FIGURES
    }
    sums: defaultdict[tuple[metrics.MetricFamily, str, str], int] = defaultdict(int)
    names: dict[str, tuple[str, str, str]] = {}
    per_container: Counter[str] = Counter()
    total = 0
    for row in rows:
        in_slot = row.pid is not None
        for device in row.devices:
            if in_slot and (device.index is not None or row.state != "alive"):
                continue
            container_id = "" if row.container_id is None else row.container_id.id
            index = "" if device.driver_index is None else str(device.driver_index)
            uuid = safe_value(device.uuid or "")
            full = total >= bounds.unaccounted or (
                # The host's own processes have no container.
                container_id != ""
                and per_container[container_id] >= bounds.unaccounted_per_container
            )
            labels = None
            if not full:
                total += 1
                per_container[container_id] += 1
                shown = (
                    identities[row.container].shown
                    if row.container is not None and row.container in identities
                    else outsider_names(node, row.container_id, names)
                )
                labels = _unaccounted(
                    *shown,
                    container_id,
                    index,
                    uuid,
                    str(row.host_pid),
                    ledger.program(row.process),
                    # A slot of another device does not account for this one.
                    "other_device" if in_slot else row.state,
                )
            for family, figure in _FIGURES:
                value: int | None = getattr(device, figure)
                if value is None:
                    continue
                if labels is None:
                    sums[family, index, uuid] += value
                else:
                    found[family].append((labels, value))
    for (family, index, uuid), value in sums.items():
        labels = _unaccounted("", "", "", "", index, uuid, OTHER, "", "")
        found[family].append((labels, value))
    return [steady(family, each) for family, each in found.items()]


_FIGURES = (
    (metrics.UNACCOUNTED_MEMORY, "memory_driver_bytes"),
    (metrics.UNACCOUNTED_SM, "driver_sm_percent"),
    (metrics.UNACCOUNTED_ENC, "driver_enc_percent"),
    (metrics.UNACCOUNTED_DEC, "driver_dec_percent"),
)

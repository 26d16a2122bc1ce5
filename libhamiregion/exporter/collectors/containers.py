"""Figures of the regions: HAMi's metrics of containers, and ours about limits and launches."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from libhamiregion.exporter.labels import OTHER, ContainerLabels, label_text, safe_value
from libhamiregion.exporter.scrape import slot_sums
from libhamiregion.exporter.text import Series
from libhamiregion.observation.containers import MissingReason, missing_for
from libhamiregion.observation.figures import size_or_none

if TYPE_CHECKING:
    from collections.abc import Iterator

    from libhamiregion.exporter.scrape import RowTexts, Scrape, ShownRegion
    from libhamiregion.node import Container

# Columns of devices; HAMi's monitor leaves out slots of status 0, and devices without a uuid.
_MONITOR = {
    "hami_vgpu_memory_used_bytes": "memory_used_bytes",
    "hami_container_device_memory_bytes": "memory_used_bytes",
    "hami_vgpu_memory_context_bytes": "memory_context_bytes",
    "hami_vgpu_memory_module_bytes": "memory_module_bytes",
    "hami_vgpu_memory_buffer_bytes": "memory_data_bytes",
    "hami_container_device_utilization_ratio": "sm_util_percent",
}
# Gaps with a series of their own; the rest is summed up by kind.
_GAPS = 256
_WRAP = (1 << 64) - 1


class ContainersCollector:
    """Shows the regions' own figures, containers without a region, and gaps."""

    name = "containers"
    needs_slots = False

    def __init__(self) -> None:
        self._texts: RowTexts | None = None
        self._infos: list[str] = []

    def collect(self, scrape: Scrape) -> Iterator[Series]:
        """Make the series."""
        if scrape.texts is not self._texts:
            self._texts = scrape.texts
            self._infos = [_info(scrape, each) for each in scrape.texts.regions]
        yield from _of_devices(scrape)
        regions = scrape.observation.table.regions
        priority, marks = regions.priority, regions.recent_kernel
        rows = [each.row for each in scrape.texts.regions]
        own = [each.labels.own for each in scrape.texts.regions]
        yield Series("hamiregion_container_priority", own, [priority[row] for row in rows])
        yield Series("hamiregion_container_blocked", own, [int(marks[row] < 0) for row in rows])
        counted = [regions.refusals[row] for row in rows]
        refusals = [None if count < 0 else count for count in counted]
        yield Series("hamiregion_container_memory_refusals_total", own, refusals)
        yield Series("hamiregion_container_info", self._infos, [1] * len(rows))
        yield _claims(scrape)
        reasons = dict(_reasons(scrape))
        name = "hamiregion_container_missing_info"
        missing = {scrape.texts.labels[each].text(name, why): 1 for each, why in reasons.items()}
        yield Series.of(name, missing)
        counts = {"present": len(rows), "missing": len(reasons)}
        yield Series.by_label("hamiregion_containers", counts)
        yield _gaps(scrape)


def _of_devices(scrape: Scrape) -> Iterator[Series]:
    table, texts = scrape.observation.table, scrape.texts
    devices, regions = table.devices, table.regions
    inactive = [slot for slot, status in enumerate(table.processes.status) if status == 0]
    for name, column in _MONITOR.items():
        cells = getattr(devices, column)
        if inactive:
            left_out = slot_sums(table, inactive, column)
            pairs = zip(cells, left_out, strict=True)
            cells = [(cell - inactive_cell) & _WRAP for cell, inactive_cell in pairs]
        yield (texts.measured if column == "sm_util_percent" else texts.named).series(name, cells)
    now_s = int(scrape.observation.regions_read_at_s)
    elapsed_s = [max(0, now_s - at_s) if at_s else None for at_s in regions.last_kernel_time_s]
    by_device = [elapsed_s[region] for region in devices.region]
    yield texts.named.series("hami_container_last_kernel_elapsed_seconds", by_device)
    limits, sm_limits = devices.memory_limit_bytes, devices.sm_limit_percent
    yield texts.named.series("hami_vgpu_memory_limit_bytes", limits)
    yield texts.unnamed.series("hamiregion_unnamed_device_memory_limit_bytes", limits)
    used = [size_or_none(each) for each in devices.memory_used_bytes]
    yield texts.devices.series("hamiregion_device_memory_counted_bytes", used)
    ratios = [percent / 100 if 0 < percent < 100 else None for percent in sm_limits]
    yield texts.devices.series("hamiregion_device_sm_limit_ratio", ratios)


def _info(scrape: Scrape, shown: ShownRegion) -> str:
    container_id = container_id_of(scrape, shown.row)
    return shown.labels.text("hamiregion_container_info", container_id, shown.layout.value)


def container_id_of(scrape: Scrape, row: int) -> str:
    """The id of a region's container: by its processes, else by a region outside the roots."""
    container, states = scrape.observation.containers[row], scrape.observation.states
    proof = None if states is None else states.proved.get(row)
    users = () if proof is None else (*proof.alive.values(), *proof.unlisted)
    ids = dict.fromkeys(each.container.id for each in users if each.container is not None)
    if container.claim_uid is not None and len(ids) > 1:
        return ""  # each process has its own
    if ids:
        return next(iter(ids))
    return "" if container.container_id is None else container.container_id.id


def _claims(scrape: Scrape) -> Series:
    """Resource claims, with each pod of the node that holds one."""
    rows: set[tuple[str, ...]] = set()
    for container in scrape.texts.labels:
        claim = container.claim
        if claim is not None:
            about = claim.claim, claim.namespace
            rows.update((*about, pod or "", "") for pod in claim.pods or (None,))
        elif container.claim_uid is not None:
            rows.add((container.claim_uid, "", "", ""))
    names = ("claim", "namespace", "pod", "container")
    texts = sorted(label_text(names, *map(safe_value, row)) for row in rows)
    return Series("hamiregion_claim_info", texts, [1] * len(texts))


def _reasons(scrape: Scrape) -> Iterator[tuple[Container, str]]:
    """Why the other containers are not shown."""
    observation = scrape.observation
    for row, container in enumerate(observation.containers):
        if observation.table.regions.code[row] != 0:
            error = observation.table.error(row)
            reason = MissingReason.FAILED if error is None else missing_for(error).reason
            yield container, reason.value
        elif container in scrape.texts.hidden:
            yield container, scrape.texts.hidden[container]
    for container in observation.missing:
        missing = container.missing
        reason = MissingReason.FAILED if missing is None else missing.reason
        yield container, scrape.texts.hidden.get(container, reason.value)


def _gaps(scrape: Scrape) -> Series:
    """How much could not be read, by container where it is known."""
    name = "hamiregion_observation_gaps"
    counts: Counter[str] = Counter()
    for number, gap in enumerate(scrape.observation.gaps):
        labels: Any = None if gap.container is None else scrape.texts.labels.get(gap.container)
        container_id = "" if gap.container_id is None else safe_value(gap.container_id.id)
        if number >= _GAPS:
            labels, container_id = ContainerLabels("", "", OTHER, ""), ""
        labels = labels or ContainerLabels("", "", "", "")
        counts[labels.text(name, container_id, gap.kind)] += gap.count
    return Series.of(name, counts)

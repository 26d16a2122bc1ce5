"""Processes that use a GPU and that no region accounts for."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from libhamiregion.exporter.families import UNACCOUNTED
from libhamiregion.exporter.labels import (
    OTHER,
    ContainerLabels,
    label_text,
    program_of,
    safe_value,
)
from libhamiregion.exporter.scrape import MAX_PAIRS
from libhamiregion.exporter.text import Series
from libhamiregion.node import driver_gap
from libhamiregion.observation.containers import MPS_CLIENT
from libhamiregion.observation.without_region import allocation_key

if TYPE_CHECKING:
    from collections.abc import Iterator

    from libhamiregion.exporter.scrape import Scrape
    from libhamiregion.observation.containers import Container

    #: Memory in bytes and SM in percent; None is not known.
    _Figures = tuple[int | None, int | None]

_PREFIX = "hamiregion_unaccounted_process_"
_MEMORY = "hamiregion_driver_container_memory_used_bytes"
_SM = "hamiregion_driver_container_sm_utilization_ratio"
# The driver's answer for it is that for any process that it does not list.
_NO_PID = -1
_FIGURES = {
    "memory_driver_bytes": "memory_driver_bytes",
    "driver_sm_utilization_ratio": "driver_sm_percent",
}


class UnaccountedCollector:
    """Shows processes that nvidia-smi lists and no region has, with their container.

    The rest of too many is summed up per GPU, without a name.
    """

    name = "unaccounted"
    needs_slots = True

    def collect(self, scrape: Scrape) -> Iterator[Series]:
        """Make the series.

        Raises:
            OSError: /proc could not be listed.
        """
        names = scrape.observation.names
        found: defaultdict[str, dict[str, float | None]] = defaultdict(dict)
        pairs: Counter[str] = Counter()
        for row in (*scrape.join.uncounted, *scrape.join.on_other_devices):
            container_id = "" if row.container_id is None else row.container_id.id
            for device in row.devices:
                index = "" if device.driver_index is None else str(device.driver_index)
                gpu = (index, safe_value(device.uuid or ""))
                # Processes of the host count as one container's.
                if pairs[container_id] >= MAX_PAIRS:
                    values = ("", "", "", "", *gpu, OTHER, "", "")
                else:
                    pairs[container_id] += 1
                    of = None if row.container is None else scrape.texts.labels.get(row.container)
                    labels = of or ContainerLabels.of_cgroup(names, row.container_id)
                    program = program_of(row.process.command) if row.process is not None else ""
                    # A slot on another device does not account for this one.
                    state = row.state if row.pid is None else "other_device"
                    of_container = (labels.namespace, labels.pod, labels.container, container_id)
                    values = (*of_container, *gpu, str(row.host_pid), program, state)
                text = label_text(UNACCOUNTED, *values)
                for name, attribute in _FIGURES.items():
                    figure = getattr(device, attribute)
                    if figure is not None:
                        number = figure / 100 if name.endswith("_ratio") else figure
                        found[name][text] = (found[name].get(text) or 0) + number
        yield from (Series.of(_PREFIX + name, values) for name, values in found.items())
        yield from _of_containers(scrape)


def _of_containers(scrape: Scrape) -> Iterator[Series]:
    """Sums of containers without a region; 0 on GPUs that were given to them and lie idle."""
    observation = scrape.observation
    if observation.sample is None or driver_gap(observation.processes, observation.sample):
        return
    gpus, shown = observation.sample.gpu_indexes, set(observation.missing)
    rows: defaultdict[tuple[Container, str], list[_Figures]] = defaultdict(list)
    for row in scrape.join.uncounted:
        if row.container in shown and row.container not in scrape.texts.hidden:
            for device in row.devices:
                figures = device.memory_driver_bytes, device.driver_sm_percent
                rows[row.container, device.uuid or ""].append(figures)
    given = {each.key: each.uuids for each in observation.allocations or ()}
    for container in shown.difference(scrape.texts.hidden):
        for uuid in given.get(allocation_key(container), ()):
            absent = observation.sample.process(uuid, _NO_PID)
            if absent is not None:
                rows[container, uuid].append((absent.memory_used_bytes, absent.sm_util_percent))
    memory: dict[str, float | None] = {}
    busy: dict[str, float | None] = {}
    for (container, uuid), figures_of in rows.items():
        index = str(gpus.get(uuid, ""))
        text = scrape.texts.labels[container].text(_MEMORY, index, safe_value(uuid))
        bytes_of, percents = zip(*figures_of, strict=True)
        memory[text] = None if None in bytes_of else sum(bytes_of)
        # The driver counts the kernels of all clients as the MPS server's.
        is_known = None not in percents and container.missing != MPS_CLIENT
        busy[text] = sum(percents) / 100 if is_known else None
    yield Series.of(_MEMORY, memory)
    yield Series.of(_SM, busy)

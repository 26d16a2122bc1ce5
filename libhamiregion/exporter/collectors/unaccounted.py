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
from libhamiregion.observation.without_region import figures_without_region

if TYPE_CHECKING:
    from collections.abc import Iterator

    from libhamiregion.exporter.scrape import Scrape

_PREFIX = "hamiregion_unaccounted_process_"
_MEMORY = "hamiregion_driver_container_memory_used_bytes"
_SM = "hamiregion_driver_container_sm_utilization_ratio"
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
    """Sums of containers without a region."""
    memory: dict[str, float | None] = {}
    busy: dict[str, float | None] = {}
    for container, devices in figures_without_region(scrape.join).items():
        for each in () if container in scrape.texts.hidden else devices:
            index = "" if each.driver_index is None else str(each.driver_index)
            labels = scrape.texts.labels[container]
            text = labels.text(_MEMORY, index, safe_value(each.uuid or ""))
            memory[text], percent = each.memory_driver_bytes, each.driver_sm_percent
            busy[text] = None if percent is None else percent / 100
    yield Series.of(_MEMORY, memory)
    yield Series.of(_SM, busy)

"""Processes with a slot: use by their region and by the driver, and how many are dead."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import attrs

from libhamiregion.exporter.labels import OTHER
from libhamiregion.exporter.scrape import MAX_PAIRS, TextRows, slot_sums
from libhamiregion.exporter.text import Series
from libhamiregion.node import SLOT_STATES, driver_gap
from libhamiregion.observation.figures import size_or_none
from libhamiregion.observation.pairing import NO_ROW

from .containers import container_id_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from libhamiregion.exporter.scrape import RowTexts, Scrape, ShownRegion

_ALIVE, _DEAD = SLOT_STATES.index("alive"), SLOT_STATES.index("dead")
_DRIVER = {
    "hamiregion_process_memory_driver_bytes": "memory_used_bytes",
    "hamiregion_process_driver_sm_utilization_ratio": "sm_util_percent",
}


class ProcessesCollector:
    """Shows the processes that are proved, and how many slots are of dead ones."""

    name = "processes"
    needs_slots = True

    def __init__(self) -> None:
        self._texts: RowTexts | None = None
        self._rows = _ProcessRows()

    def collect(self, scrape: Scrape) -> Iterator[Series]:
        """Make the series.

        Raises:
            OSError: /proc could not be listed.
        """
        observation, devices = scrape.observation, scrape.texts.devices
        table, states = observation.table, observation.proved().states
        if scrape.texts is not self._texts:
            self._texts, self._rows = scrape.texts, _ProcessRows.of(scrape)
        rows = self._rows
        dead = [slot for slot, state in enumerate(states) if state == _DEAD]
        sums = [size_or_none(each) for each in slot_sums(table, dead, "memory_used_bytes")]
        yield devices.series("hamiregion_device_memory_dead_bytes", sums)
        yield from _counts(scrape)
        yield Series.of("hamiregion_container_processes_folded", rows.folded)
        used = [size_or_none(each) for each in table.usages.memory_used_bytes]
        yield rows.used.series("hamiregion_process_memory_used_bytes", used)
        percents = scrape.join.usage_percents
        ratios = [None if percent is None else percent / 100 for percent in percents]
        yield rows.measured.series("hamiregion_process_sm_utilization_ratio", ratios)
        if driver_gap(observation.processes, observation.sample) is None:
            for name, column in _DRIVER.items():
                unit = 100 if name.endswith("_ratio") else 1
                yield rows.driven.series(name, _driver_cells(scrape, column, unit))
            yield devices.series("hamiregion_device_memory_driver_bytes", scrape.driver_memory)


def _driver_cells(scrape: Scrape, column: str, unit: int) -> list[float | None]:
    """A figure of the driver by pair of process and device."""
    figures = [
        None if figure < 0 else figure if unit == 1 else figure / unit
        for figure in scrape.join.figures(column)
    ]
    return [None if row == NO_ROW else figures[row] for row in scrape.join.rows_of_pairs]


@attrs.frozen(eq=False)
class _ProcessRows:
    """The label texts of all processes with their devices.

    Attributes:
        used: By row of ``table.usages``.
        measured: Those whose layout has utilisation.
        driven: By place in the columns of `ProcessDeviceIndex`.
        folded: Label text of a container to the number of its processes that are summed up.
    """

    used: TextRows = attrs.field(factory=TextRows)
    measured: TextRows = attrs.field(factory=TextRows)
    driven: TextRows = attrs.field(factory=TextRows)
    folded: dict[str, float | None] = attrs.field(factory=dict)

    @classmethod
    def of(cls, scrape: Scrape) -> _ProcessRows:
        rows = cls()
        texts: dict[tuple[int, int], str] = {}
        for shown in scrape.texts.regions:
            texts.update(rows._add(scrape, shown))
        pairs = scrape.join.index
        for place, pair in enumerate(zip(pairs.slots, pairs.devices, strict=True)):
            if pair in texts:
                rows.driven.add(texts[pair], place)
        return rows

    def _add(self, scrape: Scrape, shown: ShownRegion) -> Iterator[tuple[tuple[int, int], str]]:
        """Add a region's processes; yields row of the slot and of the device, with the text."""
        table, proved = scrape.observation.table, scrape.observation.proved()
        known = [slot for slot in shown.slots if slot in proved.processes]
        alone = set(known[: MAX_PAIRS // max(1, len(shown.devices))])
        if len(alone) < len(known):
            self.folded[shown.labels.own] = len(known) - len(alone)
        container_id = container_id_of(scrape, shown.row)
        for slot in shown.slots:
            if proved.states[slot] != _ALIVE:
                continue
            id_, pid, host_pid = container_id, OTHER, OTHER
            # A process in several slots is in `processes` once; its other slots are summed up.
            if slot in alone:
                process = proved.processes[slot]
                pid, host_pid = str(table.processes.pid[slot]), str(process.pid)
                id_ = container_id if process.container is None else process.container.id
            # Nothing here needs to be escaped: ids are hexadecimal.
            before = f'{shown.labels.monitor},container_id="{id_}"'
            after = f'pid="{pid}",host_pid="{host_pid}"'
            for usage, device in enumerate(shown.devices, table.processes.first_usage[slot]):
                text = f"{before},{scrape.texts.device_labels[device]},{after}"
                self.used.add(text, usage)
                if shown.has_utilization:
                    self.measured.add(text, usage)
                yield (slot, device), text


def _counts(scrape: Scrape) -> Iterator[Series]:
    """Processes by state."""
    observation, regions = scrape.observation, scrape.texts.regions
    states, unlisted = observation.proved().states, observation.proved().unlisted
    for number, state in enumerate(SLOT_STATES):
        of_regions = (states[each.slots.start : each.slots.stop] for each in regions)
        yield _by_state(regions, state, [each.count(number) for each in of_regions])
    uncounted = scrape.join.uncounted
    escaped = {each.host_pid: each.container for each in uncounted if each.state == "escaped"}
    rest = [sum(each.pid not in escaped for each in unlisted.get(at.row, ())) for at in regions]
    yield _by_state(regions, "unlisted", rest)
    escapes = Counter(escaped.values())
    yield _by_state(regions, "escaped", [escapes[each.container] for each in regions])
    unread = {gap.container: gap.count for gap in observation.gaps if gap.kind == "slots"}
    yield _by_state(regions, "unread", [unread.get(each.container) for each in regions])


def _by_state(regions: list[ShownRegion], state: str, counts: Sequence[int | None]) -> Series:
    texts = [f'{each.labels.own},state="{state}"' for each in regions]
    return Series("hamiregion_container_processes", texts, counts)

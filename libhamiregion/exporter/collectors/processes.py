"""Processes with a slot: use by their region and by the driver, and how many are dead."""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING

from libhamiregion.exporter.labels import OTHER
from libhamiregion.exporter.scrape import MAX_PAIRS, slot_sums
from libhamiregion.exporter.text import Series
from libhamiregion.node import SLOT_STATES, driver_gap
from libhamiregion.node.rows import NO_ROW

from .containers import container_id_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from libhamiregion.exporter.scrape import Scrape, ShownRegion
    from libhamiregion.node import HostProcess

_ALIVE, _DEAD = SLOT_STATES.index("alive"), SLOT_STATES.index("dead")
_DRIVER = {
    "hamiregion_process_memory_driver_bytes": "memory_used_bytes",
    "hamiregion_process_driver_sm_utilization_ratio": "sm_util_percent",
    "hamiregion_process_driver_enc_utilization_ratio": "enc_util_percent",
    "hamiregion_process_driver_dec_utilization_ratio": "dec_util_percent",
}


class ProcessesCollector:
    """Shows the processes that are proved, and how many slots are of dead ones."""

    name = "processes"

    def collect(self, scrape: Scrape) -> Iterator[Series]:
        """Make the series.

        Raises:
            OSError: /proc could not be listed.
        """
        observation = scrape.observation
        table, states = observation.table, observation.proved().states
        dead = [at for at, state in enumerate(states) if state == _DEAD] if _DEAD in states else []
        sums = slot_sums(table, dead, "memory_used_bytes")
        yield scrape.by_device("hamiregion_device_memory_dead_bytes", lambda row: sums.get(row, 0))
        rows = _ProcessRows(scrape)
        yield from _counts(scrape, rows)
        yield rows.counted("hamiregion_process_memory_used_bytes", "memory_used_bytes")
        yield rows.counted("hamiregion_process_sm_utilization_ratio", "sm_util_percent")
        if driver_gap(observation.processes, observation.sample) is None:
            yield from (rows.driven(name, column) for name, column in _DRIVER.items())
            name = "hamiregion_device_memory_driver_bytes"
            yield scrape.by_device(name, scrape.driver_memory.get)


class _ProcessRows:
    """The label texts of all processes with their devices; those of one slot follow each other.

    Attributes:
        folded: Label text of a container to the number of its processes that are summed up.
    """

    def __init__(self, scrape: Scrape) -> None:
        self._scrape = scrape
        self._texts: list[str] = []
        # Row of a slot to its first label text.
        self._first: dict[int, int] = {}
        # Label texts with their rows of usages; those whose layout has utilisation.
        self._used: list[tuple[int, int]] = []
        self._measured: list[tuple[int, int]] = []
        self.folded: dict[str, float | None] = {}
        found: dict[int, list[tuple[int, HostProcess]]] = {}
        table = scrape.observation.table
        for slot, process in scrape.observation.proved().processes.items():
            found.setdefault(table.processes.region[slot], []).append((slot, process))
        for shown in scrape.regions:
            if shown.row in found and shown.devices:
                self._add(shown, found[shown.row])

    def _add(self, shown: ShownRegion, found: list[tuple[int, HostProcess]]) -> None:
        table, states = self._scrape.observation.table, self._scrape.observation.proved().states
        container_id = container_id_of(self._scrape, shown.row)
        pids, first_usage = table.processes.pid, table.processes.first_usage
        alone = found[: MAX_PAIRS // len(shown.devices)]
        slots = {}
        for slot, process in alone:
            id_ = container_id if process.container is None else process.container.id
            slots[slot] = self._add_texts(shown, id_, pids[slot], process.pid)
        if len(alone) < len(found):
            self.folded[shown.labels.own] = len(found) - len(alone)
        start = table.regions.first_process[shown.row]
        end = start + table.regions.process_count[shown.row]
        if states.count(_ALIVE, start, end) > len(alone):
            # A pid that is in several slots is one process: the others are summed up as well.
            others = self._add_texts(shown, container_id, OTHER, OTHER)
            rest = (at for at in range(start, end) if states[at] == _ALIVE)
            slots.update((at, others) for at in rest if at not in slots)
        used = [
            (text + device, first_usage[slot] + device)
            for slot, text in slots.items()
            for device in range(len(shown.devices))
        ]
        self._first.update(slots)
        self._used += used
        if shown.has_utilization:
            self._measured += used

    def _add_texts(
        self, shown: ShownRegion, container_id: str, pid: object, host_pid: object
    ) -> int:
        first = len(self._texts)
        # Nothing here needs to be escaped: ids are hexadecimal.
        before = f'{shown.labels.monitor},container_id="{container_id}"'
        after = f'pid="{pid}",host_pid="{host_pid}"'
        devices = self._scrape.device_labels
        self._texts += [f"{before},{devices[row]},{after}" for row in shown.devices]
        return first

    def counted(self, name: str, column: str) -> Series:
        """Series of a column of the regions."""
        cells = getattr(self._scrape.observation.table.usages, column)
        pairs = self._measured if column == "sm_util_percent" else self._used
        return self._series(name, [(at, cells[usage]) for at, usage in pairs])

    @cached_property
    def _driven(self) -> list[tuple[int, int]]:
        """Label texts with their rows of the driver's figures."""
        join, table = self._scrape.join, self._scrape.observation.table
        first_device, regions = table.regions.first_device, table.processes.region
        rows = zip(join.pairs.slots, join.pairs.devices, join.rows_of_pairs, strict=True)
        return [
            (self._first[slot] + device - first_device[regions[slot]], row)
            for slot, device, row in rows
            if row != NO_ROW and slot in self._first
        ]

    def driven(self, name: str, column: str) -> Series:
        """Series of a figure of the driver."""
        figures = self._scrape.join.figures(column)
        return self._series(
            name, [(at, figures[row]) for at, row in self._driven if figures[row] >= 0]
        )

    def _series(self, name: str, pairs: Iterable[tuple[int, int]]) -> Series:
        values: list[float | None] = [None] * len(self._texts)
        for at, figure in pairs:
            values[at] = (values[at] or 0) + figure
        if name.endswith("_ratio"):
            values = [None if value is None else value / 100 for value in values]
        return Series(name, self._texts, values)


def _counts(scrape: Scrape, rows: _ProcessRows) -> Iterator[Series]:
    """Processes by state."""
    name = "hamiregion_container_processes"
    observation, states = scrape.observation, scrape.observation.proved()
    regions, unlisted = observation.table.regions, states.unlisted
    escaped = [each for each in scrape.join.uncounted if each.state == "escaped"]
    escaped_pids = {each.host_pid for each in escaped}
    escapes = Counter(each.container for each in escaped)
    unread = {gap.container: gap.count for gap in observation.gaps if gap.kind == "slots"}
    counts: dict[str, float | None] = {}
    for shown in scrape.regions:
        first = regions.first_process[shown.row]
        end = first + regions.process_count[shown.row]
        by_state = {
            state: states.states.count(number, first, end)
            for number, state in enumerate(SLOT_STATES)
        }
        users = unlisted.get(shown.row, ())
        by_state["unlisted"] = sum(each.pid not in escaped_pids for each in users)
        by_state["escaped"] = escapes[shown.container]
        if shown.container in unread:
            by_state["unread"] = unread[shown.container]
        for state, count in by_state.items():
            counts[f'{shown.labels.own},state="{state}"'] = count
    yield Series.of(name, counts)
    yield Series.of("hamiregion_container_processes_folded", rows.folded)

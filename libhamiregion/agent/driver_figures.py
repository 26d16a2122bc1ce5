"""Writes the driver's figures to regions where libvgpu's own watcher does not."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs

from libhamiregion.errors import (
    LockTimeout,
    ProcessNotInRegion,
    RegionError,
    RegionNotFound,
    RegionStale,
)
from libhamiregion.node.backoff import owner_of
from libhamiregion.node.events import container_words, silent
from libhamiregion.node.rows import NO_ROW, Join, driver_gap
from libhamiregion.region import open_in_container

from .loop import Task, region_key, run_each

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from libhamiregion.changes import SlotChange
    from libhamiregion.node.containers import Container
    from libhamiregion.node.events import Emit
    from libhamiregion.node.node import Node
    from libhamiregion.node.observation import Observation
    from libhamiregion.node.process_reader import HostProcess
    from libhamiregion.region import Region

    from .loop import RegionKey

# A process with its slot: the region, pid and start time.
_Process: TypeAlias = "tuple[RegionKey, int, int]"
# One figure of a slot: the slot's pid, the device's index, the place in _FIELDS.
_Figure: TypeAlias = "tuple[int, int, int]"
# The figures of a slot on one device, in the order of _FIELDS.
_Row: TypeAlias = "tuple[int, ...]"

_FIELDS: Final = ("monitor_used_bytes", "sm_util_percent", "enc_util_percent", "dec_util_percent")
_COLUMNS: Final = ("memory_monitor_bytes", *_FIELDS[1:])
_NVML_COLUMNS: Final = ("memory_used_bytes", *_FIELDS[1:])
_UNKNOWN: Final[_Row] = (-1, -1, -1, -1)
# The agent gives its tasks 5 s to give back.
_GIVE_BACK_S: Final = 4.0
# For the figures of one region: its lock may be held most of the time.
_BUDGET_S: Final = 1.0


@attrs.define(eq=False)
class _WrittenFigures:
    """The figures in a region that this process has written.

    Attributes:
        container: The container, as of the last pass.
        figures: The values.
    """

    container: Container
    figures: dict[_Figure, int] = attrs.field(factory=dict)


@attrs.frozen(eq=False)
class _Slot:
    """The slot of a living process.

    Attributes:
        pid: The pid in the slot.
        process: The process.
        stored: Its figures in the region, by the device's index.
        driver: The driver's figures of the process; -1 is unknown.
    """

    pid: int
    process: HostProcess
    stored: dict[int, _Row] = attrs.field(factory=dict)
    driver: dict[int, _Row] = attrs.field(factory=dict)

    def without_watcher(self, before: Mapping[int, _Row]) -> dict[_Figure, int]:
        """Return the driver's figures, if one that differs is the same as before."""
        found: dict[_Figure, int] = {}
        unchanged = False
        for index, driver in self.driver.items():
            stored, last = self.stored[index], before.get(index, _UNKNOWN)
            if driver == stored:
                continue
            for place, value in enumerate(driver):
                if value >= 0 and value != stored[place]:
                    found[self.pid, index, place] = value
                    unchanged = unchanged or stored[place] == last[place]
        return found if unchanged else {}

    def note(self, figure: _Figure, value: int) -> None:
        """Take over a figure that was written."""
        _, index, place = figure
        row = self.stored[index]
        self.stored[index] = (*row[:place], value, *row[place + 1 :])


class UsageSync(Task):
    """Writes NVML's memory and utilisation into slots whose figures do not change.

    libvgpu's watcher writes them every 120 ms, in processes whose container has an SM limit and
    whose host pid it knows. A figure that is the same in two observations, and not the driver's,
    has no watcher: it is written, and kept up until it changes by itself.

    Figures that cannot be kept up any more, because the task is stopped, the driver does not answer
    or /proc cannot be read, become 0: an old figure would look like a new one.

    Only processes that are proved to be the slot's get figures. A container whose lock is not free
    is skipped for more and more passes.

    Args:
        node: The node.
        dry_run: Write nothing, and report what would be written.
        emit: Gets the events.
    """

    name = "figures"
    counted = ("runs", "writes", "processes", "errors")
    needs = "slots"
    interval_s = 10.0
    #: How long to wait for a region's lock.
    timeout_s = 0.2

    def __init__(self, node: Node, *, dry_run: bool = False, emit: Emit = silent) -> None:
        super().__init__(emit)
        self._node = node
        self._dry_run = dry_run
        self._last: Observation | None = None
        # The figures of the last pass, in all slots.
        self._seen: dict[_Process, Mapping[int, _Row]] = {}
        self._written: dict[RegionKey, _WrittenFigures] = {}
        self._gap: str | None = None
        # Held while something is written: nothing is written once giving back has begun.
        self._writing = threading.Lock()
        self._ended = False

    def run(self, observation: Observation) -> None:
        """Compare all slots with the driver once, and write the figures that do not change.

        Raises:
            OSError: /proc cannot be listed.
        """
        try:
            if observation.driver_error is not None:
                raise observation.driver_error
            observation.proved()
        except Exception:
            self._withdraw()
            raise
        if observation is self._last:
            return  # the same observation does not show what has changed
        self._last = observation
        gap = "the driver does not answer"
        if observation.sample is not None:
            gap = driver_gap(self._node.processes, observation.sample) or ""
        if gap and gap != self._gap:
            self.events.emit("no_driver", f"no figures of the driver: {gap}")
        self._gap = gap
        if gap:
            self._withdraw()
            return
        self.count("runs")
        containers = [*observation.containers, *observation.missing]
        self.events.retain(containers)
        self.backoff.retain(list(map(owner_of, containers)))
        before, self._seen = self._seen, {}
        slots = self._slots(observation)
        here = {each.region_path for each in containers}
        for key in self._written.keys() - slots.keys():
            if key[0] not in here:
                del self._written[key]
        # Outside the roots one owner can have many regions.
        failed: set[str] = set()
        for key, (container, found) in slots.items():
            owner = owner_of(container)
            try:
                if self._sync(key, container, found, before, skip=owner in failed):
                    self.backoff.recovered(owner)
                    self.events.recovered(container)
            except (RegionError, OSError) as error:
                failed.add(owner)
                self.count("errors")
                self.backoff.failed(owner)
                what = "the driver's figures could not be written"
                self.events.failed(what, error, container)

    def _sync(
        self,
        key: RegionKey,
        container: Container,
        slots: Mapping[int, _Slot],
        before: Mapping[_Process, Mapping[int, _Row]],
        *,
        skip: bool,
    ) -> bool:
        """Write the figures of one region; return whether there were any."""
        wanted: dict[_Figure, int] = {}
        for slot in slots.values():
            process = (key, slot.process.pid, slot.process.start_time_ticks)
            self._seen[process] = slot.stored
            wanted |= slot.without_watcher(before.get(process, {}))
        lost: list[_Figure] = []
        written = self._written.get(key)
        if written is not None:
            written.container = container
            # A container can also take back a device that it has named.
            known = {(pid, index) for pid, slot in slots.items() for index in slot.stored}
            lost = [figure for figure in written.figures if figure[:2] not in known]
            for pid, index, place in written.figures.keys() - lost:
                # A figure that has changed by itself is libvgpu's again.
                if slots[pid].stored[index][place] != written.figures[pid, index, place]:
                    del written.figures[pid, index, place]
        if not (wanted or lost) or skip or self.backoff.should_skip(owner_of(container)):
            return False
        if wanted:
            self._write(key, container, slots, wanted)
        if written is not None and lost:
            self._set_to_0(key, written, lost)
        return True

    def _write(
        self,
        key: RegionKey,
        container: Container,
        slots: Mapping[int, _Slot],
        wanted: Mapping[_Figure, int],
    ) -> None:
        """Write figures, unless they have changed since the observation."""
        with self._node.open(container) as region, self._writing:
            if self._ended:
                return
            now = _stored(region)
            # Their pids may be other processes' since /proc was listed.
            ended = self._node.processes.ended([each.process for each in slots.values()])
            still = {
                (pid, index, place): value
                for (pid, index, place), value in wanted.items()
                if now.get((pid, index, place)) == slots[pid].stored[index][place]
                and slots[pid].process not in ended
            }
            if self._dry_run:
                for each in self._store(region, still):
                    where = {"pid": each.pid, "device": each.device}
                    self._would_write(container, each.field, each.before, each.after, **where)
                return
            # Before the stores: some may have been made when one fails.
            self._written.setdefault(key, _WrittenFigures(container)).figures.update(still)
            changes = self._store(region, still)
            self.count("writes", len(changes))
            self.count("processes", len({change.pid for change in changes}))
            for figure, value in still.items():
                # If the next observation shows the same, there is still no watcher.
                slots[figure[0]].note(figure, value)

    def _slots(
        self, observation: Observation
    ) -> dict[RegionKey, tuple[Container, dict[int, _Slot]]]:
        """Collect the slots of living processes, by region and pid; of layouts with a lock."""
        join = Join(observation)
        table = observation.table
        regions, processes = table.regions, table.processes
        by_row: dict[int, tuple[Container, dict[int, _Slot]]] = {}
        found: dict[RegionKey, tuple[Container, dict[int, _Slot]]] = {}
        for row, container in enumerate(observation.containers):
            region = container.region
            if region is not None and region.layout.has_lock and regions.code[row] == 0:
                by_row[row] = found[region_key(region)] = container, {}
        columns = [getattr(table.usages, name).tolist() for name in _COLUMNS]
        stored = list(zip(*columns, strict=True))
        driver = list(zip(*map(join.figures, _NVML_COLUMNS), strict=True))
        rows = zip(join.pairs.slots, join.pairs.devices, join.rows_of_pairs, strict=True)
        for slot, device, row in rows:
            region_row, pid = processes.region[slot], processes.pid[slot]
            if region_row not in by_row:
                continue
            container, slots = by_row[region_row]
            if pid not in slots:
                slots[pid] = _Slot(pid, join.pairs.states.processes[slot])
            index = table.devices.device[device]
            usage = processes.first_usage[slot] + device - regions.first_device[region_row]
            slots[pid].stored[index] = stored[usage]
            if row != NO_ROW:
                has_utilization = container.region and container.region.layout.has_utilization
                figures = driver[row] if has_utilization else (driver[row][0], *_UNKNOWN[1:])
                slots[pid].driver[index] = figures
        return found

    # ---- the end ---------------------------------------------------------------------------------

    def stop(self) -> None:
        """Set the figures to 0 that still have the written value."""
        self._ended = True
        # A pass that waits for a region's lock writes no more after it.
        if self._writing.acquire(timeout=_BUDGET_S):
            self._writing.release()
        self._withdraw()

    def pending_cleanup(self) -> tuple[str, ...]:
        """List the containers with figures that are not kept up."""
        return tuple(
            f"old figures of the driver are in {container_words(each.container)}"
            for each in self._written.copy().values()
            if any(each.figures.values())
        )

    def _withdraw(self) -> None:
        self._seen.clear()
        run_each(self._give_back, list(self._written.items()), _GIVE_BACK_S)

    def _give_back(self, entry: tuple[RegionKey, _WrittenFigures]) -> None:
        key, written = entry
        try:
            self._set_to_0(key, written, list(written.figures))
        except (RegionStale, RegionNotFound):
            pass  # the region is gone, and with it the figures
        except (RegionError, OSError) as error:
            self.count("errors")
            self.events.failed("old figures of the driver stay", error, written.container)
            return
        self._written.pop(key, None)

    def _set_to_0(
        self, key: RegionKey, written: _WrittenFigures, figures: Iterable[_Figure]
    ) -> None:
        """Set those of these figures to 0 that still have the written value."""
        old = {figure for figure in figures if written.figures[figure]}
        if old:
            with open_in_container(key[0], writable=True) as region:
                if region.file_id == key[1]:
                    now = _stored(region)
                    same = {each for each in old if now.get(each) == written.figures[each]}
                    self._store(region, dict.fromkeys(same, 0))
        for figure in figures:
            written.figures.pop(figure, None)

    def _store(self, region: Region, figures: Mapping[_Figure, int]) -> list[SlotChange]:
        """Store figures; return the changes, also with a dry run."""
        how: dict[str, Any] = {"dry_run": self._dry_run, "timeout_s": self.timeout_s}
        rows: dict[tuple[int, int], list[int | None]] = {}
        for (pid, index, place), value in figures.items():
            rows.setdefault((pid, index), [None] * len(_FIELDS))[place] = value
        changes: list[SlotChange] = []
        deadline_s = time.monotonic() + _BUDGET_S
        for (pid, index), (memory, sm, enc, dec) in rows.items():
            if time.monotonic() > deadline_s:
                message = f"the lock of {region.path!r} is held too often to write the figures"
                raise LockTimeout(message, path=region.path)
            with contextlib.suppress(ProcessNotInRegion):  # it has left
                if memory is not None:
                    changes.append(region.set_monitor_used(pid, index, memory, **how))
                if (sm, enc, dec) != (None, None, None):
                    changes += region.set_utilization(pid, index, sm=sm, enc=enc, dec=dec, **how)
        return [change for change in changes if change.before != change.after]


def _stored(region: Region) -> dict[_Figure, int]:
    return {
        (process.pid, device.index, place): getattr(device, column)
        for process in region.snapshot().processes
        for device in process.devices
        for place, column in enumerate(_COLUMNS)
    }

"""Writes the driver's figures to regions where libvgpu's own watcher does not."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import attrs

from libhamiregion.errors import (
    LockTimeout,
    ProcessNotInRegion,
    RegionError,
    RegionNotFound,
    RegionStale,
)
from libhamiregion.observation.pairing import NO_ROW, ProcessDeviceIndex, driver_gap
from libhamiregion.observation.rows import Join
from libhamiregion.region import open_in_container
from libhamiregion.services.backoff import owner_of
from libhamiregion.services.events import container_words, silent

from .loop import Task, region_key, run_each

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from libhamiregion.changes import SlotChange
    from libhamiregion.node.node import Node
    from libhamiregion.observation.containers import Container
    from libhamiregion.observation.model import Observation
    from libhamiregion.observation.processes import HostProcess
    from libhamiregion.region import Region
    from libhamiregion.services.events import Emit

from .loop import RegionKey

# One figure of a slot: the slot's pid, the device's index, the place in _FIELDS.
_Figure: TypeAlias = "tuple[int, int, int]"
# The figures of a slot on one device, in the order of _FIELDS.
_Row: TypeAlias = "tuple[int, ...]"
# The figure of a process: the region, its pid in /proc and start time.
_Known: TypeAlias = "tuple[RegionKey, int, int, _Figure]"

_FIELDS: Final = ("monitor_used_bytes", "sm_util_percent", "enc_util_percent", "dec_util_percent")
_COLUMNS: Final = ("memory_monitor_bytes", *_FIELDS[1:])
_NVML_COLUMNS: Final = ("memory_used_bytes", *_FIELDS[1:])
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


class _Change(NamedTuple):
    """A figure that is not the driver's.

    Attributes:
        process: The process of its slot.
        before: The figure.
        after: The driver's.
    """

    process: HostProcess
    before: int
    after: int


class _Slots(NamedTuple):
    """The slots of living processes in a region with a lock.

    Attributes:
        key: The region's file.
        container: The container.
        usages: The rows in ``table.usages``, by the slot's pid and the device's index.
    """

    key: RegionKey
    container: Container
    usages: dict[tuple[int, int], int]


class UsageSync(Task):
    """Writes NVML's memory and utilisation into slots whose figures do not change.

    libvgpu's watcher writes them every 120 ms, in processes whose host pid it knows, also without
    an SM limit. A figure that is the same in two observations, and not the driver's, has no
    watcher: it is written, and kept up until it changes by itself.

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
    #: How long to wait for a region's lock.
    timeout_s = 0.2

    def __init__(self, node: Node, *, dry_run: bool = False, emit: Emit = silent) -> None:
        super().__init__(emit)
        self._node = node
        self._dry_run = dry_run
        self._last: Observation | None = None
        # Kept as long as the rows are the same; the slots are by row in ``table.regions``.
        self._rows: tuple[object, ...] = ()
        self._pairs: ProcessDeviceIndex | None = None
        self._slots: dict[int, _Slots] = {}
        # The figures of the last pass that were not the driver's.
        self._seen: dict[_Known, int] = {}
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
            gap = driver_gap(observation.processes, observation.sample) or ""
        if gap and gap != self._gap:
            self.events.emit("no_driver", f"no figures of the driver: {gap}")
        self._gap = gap
        if gap:
            self._withdraw()
            return
        self.count("runs")
        containers = observation.all_containers
        self.events.retain(containers)
        self.backoff.retain(list(map(owner_of, containers)))
        regions, devices = observation.table.regions, observation.table.devices
        # The states are the same object as long as the same processes have the same slots.
        columns = bytes(regions.first_device), bytes(devices.uuid_bytes)
        rows = (observation.containers, observation.states, *columns)
        if self._pairs is None or rows != self._rows:
            self._rows, self._pairs = rows, ProcessDeviceIndex(observation)
            self._slots = _slots_of(observation, self._pairs)
        figures = [getattr(observation.table.usages, name).tolist() for name in _COLUMNS]
        stored = list(zip(*figures, strict=True))
        changes = self._changes(Join(observation, self._pairs), stored)
        before, self._seen = self._seen, {}
        here = {each.region_path for each in containers}
        for key in self._written.keys() - {each.key for each in self._slots.values()}:
            if key[0] not in here:
                del self._written[key]
        # Outside the roots one owner can have many regions.
        failed: set[str] = set()
        for row, slots in self._slots.items():
            owner = owner_of(slots.container)
            try:
                lost = self._lost_figures(slots, stored)
                wanted = self._wanted(slots.key, changes.get(row, {}), before)
                if not (wanted or lost) or owner in failed or self.backoff.should_skip(owner):
                    continue
                self._write(slots, wanted)
                self._set_to_0(slots.key, lost)
                self.backoff.recovered(owner)
                self.events.recovered(slots.container)
            except (RegionError, OSError) as error:
                failed.add(owner)
                self.count("errors")
                self.backoff.failed(owner)
                what = "the driver's figures could not be written"
                self.events.failed(what, error, slots.container)

    def _changes(
        self, join: Join, stored: Sequence[_Row]
    ) -> defaultdict[int, dict[_Figure, _Change]]:
        """Find the figures that are not the driver's, by row in ``table.regions``."""
        pairs, table = join.index, join.observation.table
        driver = list(zip(*map(join.figures, _NVML_COLUMNS), strict=True))
        found: defaultdict[int, dict[_Figure, _Change]] = defaultdict(dict)
        rows = zip(pairs.slots, pairs.devices, pairs.usages, join.rows_of_pairs, strict=True)
        for slot, device, usage, row in rows:
            if row == NO_ROW or stored[usage] == driver[row]:
                continue
            changes = found[table.processes.region[slot]]
            pid, index = table.processes.pid[slot], table.devices.device[device]
            for place, (before, after) in enumerate(zip(stored[usage], driver[row], strict=True)):
                if before != after >= 0:
                    process = pairs.states.processes[slot]
                    changes[pid, index, place] = _Change(process, before, after)
        return found

    def _lost_figures(self, slots: _Slots, stored: Sequence[_Row]) -> list[_Figure]:
        """Find the written figures whose slot or device is gone; forget those that have changed."""
        written = self._written.get(slots.key)
        if written is None:
            return []
        written.container = slots.container
        lost = []
        for (pid, index, place), value in list(written.figures.items()):
            usage = slots.usages.get((pid, index))
            # A container can also take back a device that it has named.
            if usage is None:
                lost.append((pid, index, place))
            elif stored[usage][place] != value:
                # A figure that has changed by itself is libvgpu's again.
                del written.figures[pid, index, place]
        return lost

    def _wanted(
        self, key: RegionKey, changes: Mapping[_Figure, _Change], before: Mapping[_Known, int]
    ) -> dict[_Figure, _Change]:
        """Return the changes of slots without a watcher: of which a figure is as it was before."""
        written = self._written.get(key)
        unwatched = set()
        for figure, change in changes.items():
            known = (key, change.process.pid, change.process.start_time_ticks, figure)
            self._seen[known] = change.before
            is_written = written is not None and figure in written.figures
            if is_written or before.get(known) == change.before:
                unwatched.add(figure[0])
        return {figure: each for figure, each in changes.items() if figure[0] in unwatched}

    def _write(self, slots: _Slots, wanted: Mapping[_Figure, _Change]) -> None:
        """Write figures, unless they have changed since the observation."""
        if not wanted:
            return
        container = slots.container
        with self._node.open(container) as region, self._writing:
            if self._ended:
                return
            now = _stored(region)
            # Their pids may be other processes' since /proc was listed.
            processes = {each.process.pid: each.process for each in wanted.values()}
            ended = self._node.processes.ended(processes.values())
            still = {
                figure: change.after
                for figure, change in wanted.items()
                if now.get(figure) == change.before and change.process not in ended
            }
            if self._dry_run:
                for each in self._store(region, still):
                    where = {"pid": each.pid, "device": each.device}
                    self._would_write(container, each.field, each.before, each.after, **where)
                return
            # Before the stores: some may have been made when one fails.
            self._written.setdefault(slots.key, _WrittenFigures(container)).figures.update(still)
            changes = self._store(region, still)
            self.count("writes", len(changes))
            self.count("processes", len({change.pid for change in changes}))

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
        run_each(self._give_back, list(self._written.items()))

    def _give_back(self, entry: tuple[RegionKey, _WrittenFigures]) -> None:
        key, written = entry
        try:
            self._set_to_0(key, list(written.figures))
        except (RegionStale, RegionNotFound):
            pass  # the region is gone, and with it the figures
        except (RegionError, OSError) as error:
            self.count("errors")
            self.events.failed("old figures of the driver stay", error, written.container)
            return
        self._written.pop(key, None)

    def _set_to_0(self, key: RegionKey, figures: Collection[_Figure]) -> None:
        """Set those of these written figures to 0 that still have their value, and forget them."""
        entry = self._written.get(key)
        written = {} if entry is None else entry.figures
        old = {figure for figure in figures if written.get(figure)}
        if old:
            with open_in_container(key[0], writable=True) as region:
                if region.file_id == key[1]:
                    now = _stored(region)
                    same = {each for each in old if now.get(each) == written[each]}
                    self._store(region, dict.fromkeys(same, 0))
        for figure in figures:
            written.pop(figure, None)

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


def _slots_of(observation: Observation, pairs: ProcessDeviceIndex) -> dict[int, _Slots]:
    table, found = observation.table, dict[int, _Slots]()
    for row, container in enumerate(observation.containers):
        region = container.region
        if region is not None and table.regions.code[row] == 0 and region.layout.has_lock:
            found[row] = _Slots(region_key(region), container, {})
    for slot, device, usage in zip(pairs.slots, pairs.devices, pairs.usages, strict=True):
        slots = found.get(table.processes.region[slot])
        if slots is not None:
            slots.usages[table.processes.pid[slot], table.devices.device[device]] = usage
    return found


def _stored(region: Region) -> dict[_Figure, int]:
    return {
        (process.pid, device.index, place): getattr(device, column)
        for process in region.snapshot().processes
        for device in process.devices
        for place, column in enumerate(_COLUMNS)
    }

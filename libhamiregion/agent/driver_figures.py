"""Writes the driver's figures to regions where libvgpu's own watcher does not."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from libhamiregion.errors import RegionError
from libhamiregion.observation.pairing import NO_ROW, ProcessDeviceIndex, driver_gap
from libhamiregion.observation.rows import Join
from libhamiregion.services.backoff import owner_of
from libhamiregion.services.events import silent

from .acts import SLOT_FIELDS, Act, ActingTask, region_key

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from libhamiregion.node.node import Node
    from libhamiregion.observation.containers import Container
    from libhamiregion.observation.model import Observation
    from libhamiregion.services.events import Emit

    from .acts import Place, RegionKey

# The figures of a slot on one device, in the order of SLOT_FIELDS.
_Row: TypeAlias = "tuple[int, ...]"
# The figure of a process: the region, its pid in /proc and start time.
_Known: TypeAlias = "tuple[RegionKey, int, int, Place]"

_ORDER: Final = {field: number for number, field in enumerate(SLOT_FIELDS)}
_NVML_COLUMNS: Final = {**SLOT_FIELDS, "monitor_used_bytes": "memory_used_bytes"}


class _Slots(NamedTuple):
    """The slots of living processes in a region with a lock.

    Attributes:
        key: The region's file.
        container: The container.
        usages: The rows in ``table.usages``, by the slot's pid and the device's index.
    """

    key: RegionKey
    container: Container
    usages: dict[tuple[int | None, int | None], int]


class UsageSync(ActingTask):
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
    not_taken_back = "old figures of the driver stay"

    def __init__(self, node: Node, *, dry_run: bool = False, emit: Emit = silent) -> None:
        super().__init__(node, dry_run=dry_run, emit=emit)
        self._last: Observation | None = None
        # Kept as long as the rows are the same; the slots are by row in ``table.regions``.
        self._rows: tuple[object, ...] = ()
        self._pairs: ProcessDeviceIndex | None = None
        self._slots: dict[int, _Slots] = {}
        # The figures of the last pass that were not the driver's.
        self._seen: dict[_Known, int] = {}
        self._gap: str | None = None

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
            self.give_back()
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
            self.give_back()
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
        usages = observation.table.usages
        figures = [getattr(usages, column).tolist() for column in SLOT_FIELDS.values()]
        stored = list(zip(*figures, strict=True))
        changes = self._changes(Join(observation, self._pairs), stored)
        before, self._seen = self._seen, {}
        here = {each.region_path for each in containers}
        for key in self.executor.kept.keys() - {each.key for each in self._slots.values()}:
            if key[0] not in here:
                del self.executor.kept[key]
        # Outside the roots one owner can have many regions.
        failed: set[str] = set()
        for row, slots in self._slots.items():
            owner = owner_of(slots.container)
            try:
                lost = self._lost_figures(slots, stored)
                wanted = self._wanted(slots.key, changes.get(row, []), before)
                if not (wanted or lost) or owner in failed or self.backoff.should_skip(owner):
                    continue
                if self._dry_run:
                    self._would_write(wanted)
                    continue
                done = self.executor.carry_out(wanted)
                self.count("writes", len(done))
                self.count("processes", len({act.pid for act in done}))
                self.executor.take_back(slots.key, lost)
                self.backoff.recovered(owner)
                self.events.recovered(slots.container)
            except (RegionError, OSError) as error:
                failed.add(owner)
                self.count("errors")
                self.backoff.failed(owner)
                what = "the driver's figures could not be written"
                self.events.failed(what, error, slots.container)

    def _changes(self, join: Join, stored: Sequence[_Row]) -> defaultdict[int, list[Act]]:
        """Find the figures that are not the driver's, by row in ``table.regions``."""
        pairs, observation = join.index, join.observation
        table = observation.table
        driver = list(zip(*map(join.figures, _NVML_COLUMNS.values()), strict=True))
        found: defaultdict[int, list[Act]] = defaultdict(list)
        rows = zip(pairs.slots, pairs.devices, pairs.usages, join.rows_of_pairs, strict=True)
        for slot, device, usage, row in rows:
            if row == NO_ROW or stored[usage] == driver[row]:
                continue
            region = table.processes.region[slot]
            container = observation.containers[region]
            process = pairs.states.processes[slot]
            pid, index = table.processes.pid[slot], table.devices.device[device]
            for field, before, after in zip(SLOT_FIELDS, stored[usage], driver[row], strict=True):
                if before != after >= 0:
                    act = Act(container, field, before, after, 0, True, process, pid, index)
                    found[region].append(act)
        return found

    def _lost_figures(self, slots: _Slots, stored: Sequence[_Row]) -> list[Place]:
        """Find the written figures whose slot or device is gone; forget those that have changed."""
        kept = self.executor.kept.get(slots.key)
        if kept is None:
            return []
        kept.container = slots.container
        lost = []
        for place, act in list(kept.acts.items()):
            field, pid, index = place
            usage = slots.usages.get((pid, index))
            # A container can also take back a device that it has named.
            if usage is None:
                lost.append(place)
            elif stored[usage][_ORDER[field]] != act.wanted:
                # A figure that has changed by itself is libvgpu's again.
                del kept.acts[place]
        return lost

    def _wanted(
        self, key: RegionKey, changes: Sequence[Act], before: Mapping[_Known, int]
    ) -> list[Act]:
        """Return the changes of slots without a watcher: of which a figure is as it was before."""
        kept = self.executor.kept.get(key)
        unwatched = set()
        for act in changes:
            process = act.process
            assert process is not None  # noqa: S101 (`_changes` names it)
            known = (key, process.pid, process.start_time_ticks, act.place)
            self._seen[known] = act.expected
            is_written = kept is not None and act.place in kept.acts
            if is_written or before.get(known) == act.expected:
                unwatched.add(act.pid)
        return [act for act in changes if act.pid in unwatched]

    # ---- the end ---------------------------------------------------------------------------------

    def give_back(self) -> None:
        """Set the figures to 0 that still have the written value."""
        self._seen.clear()
        super().give_back()


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

"""The one join: a slot, its process and container, what the region counts, what the driver says."""

from __future__ import annotations

from array import array
from collections import defaultdict
from functools import cached_property
from typing import TYPE_CHECKING, Final

import attrs

from .driver_lists import DriverLists
from .node_process import NodeProcess, ProcessDeviceRow
from .pairs import Pairs, shape_of
from .process_locator import ProcessLocator, container_facts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .containers import Container
    from .observation import Observation

#: In a column of rows: there is none.
NO_ROW: Final = 0xFFFFFFFF


@attrs.frozen(eq=False)
class KnownJoin:
    """What a join has found that the next one may use again; it keeps no table.

    Attributes:
        pairs: Processes and their devices.
        lists: What the driver's lists were.
        at: Of each pair the row in `Join.figures`, or `NO_ROW` where nothing is known.
        others: Processes that use a GPU which their region does not have: the row of the slot, the
            uuid, the row in its list.
        pids: The processes that the driver lists and that have no slot.
        is_final: Whether it holds for a later sample with the same lists.
    """

    pairs: Pairs
    lists: object
    at: array[int]
    others: Sequence[tuple[int, str, int]]
    pids: Sequence[int]
    is_final: bool


@attrs.frozen(eq=False)
class DeviceSums:
    """What the driver says of containers' devices, by row of ``table.devices``.

    Attributes:
        sums: Over the processes of a container.
        rows: The device's own row; `NO_ROW` where the figure of a process may be missing.
        users: How many processes went into a sum.
    """

    sums: array[int]
    rows: array[int]
    users: array[int]


class Join:
    """Slots, processes, containers and the driver's lists of one observation, joined by columns.

    No object is made for a process that has a slot. Who is who is kept from one join to the next
    while processes, devices and the driver's lists are the same.

    Threads: may be shared.

    Args:
        observation: Taken with the slots.
        before: What the last join of that node has found.

    Attributes:
        observation: As given.
        driver: What the driver lists.
        pairs: Processes and their devices.
        known: For the next join.

    Raises:
        OSError: /proc could not be listed.
    """

    def __init__(self, observation: Observation, before: KnownJoin | None = None) -> None:
        self.observation = observation
        self.driver = DriverLists(observation.processes, observation.sample)
        snapshot, states = observation.snapshot, observation.proved()
        regions = snapshot.table.regions
        key = (
            *shape_of(snapshot.table),
            regions.code.tobytes(),
            snapshot.table.processes.pid.tobytes(),
        )
        pairs = None if before is None else before.pairs
        if (
            pairs is None
            or pairs.states is not states
            or pairs.containers is not snapshot.containers
            or pairs.key != key
        ):
            pairs = Pairs.of(snapshot, states, key)
        self.pairs = pairs
        self._columns = self.driver.columns
        self._idle = {
            uuid: self.driver.unlisted(uuid) for uuid in {**self._columns, **pairs.by_uuid}
        }
        self.known = self._find(before)

    # ---- who is where ----------------------------------------------------------------------------

    def _find(self, before: KnownJoin | None) -> KnownJoin:
        pairs = self.pairs
        columns, idle = self._columns, self._idle
        # What came or went while the driver was asked is known to use something, but not what.
        sampled = {
            uuid: frozenset(row[0] for row in each.samples).difference(each.rows)
            for uuid, each in columns.items()
        }
        lists = (
            {uuid: each.pids for uuid, each in columns.items()},
            {uuid: each is not None for uuid, each in idle.items()},
            sampled,
        )
        is_known = before is not None and before.pairs is pairs and before.is_final
        if before is not None and is_known and before.lists == lists:
            return before
        regions = self.observation.table.processes.region
        is_final = True
        at = array("I", [NO_ROW]) * len(pairs.slots)
        newer = {
            slot
            for slot in pairs.slot_of.values()
            if self.driver.is_newer(pairs.states.processes[slot])
        }
        base = 0
        others: list[tuple[int, str, int]] = []
        pids: set[int] = set()
        for uuid, absent in idle.items():
            each = columns.get(uuid)
            rows = {} if each is None else each.rows
            for pair in pairs.by_uuid.get(uuid, ()):
                slot = pairs.slots[pair]
                pid = pairs.states.processes[slot].pid
                row = rows.get(pid)
                if slot in newer:
                    is_final = False
                elif row is not None:
                    at[pair] = base + row
                elif absent is not None and pid not in sampled.get(uuid, ()):
                    at[pair] = base + len(rows)
            base += len(rows) + 1
            for pid, row in rows.items():
                slot_or_none = pairs.slot_of.get(pid)
                if slot_or_none is None:
                    pids.add(pid)
                elif slot_or_none not in newer:
                    uuids = pairs.of_region[regions[slot_or_none]]
                    # A region that names no device yet has none to be compared.
                    if uuids and uuid not in uuids:
                        others.append((slot_or_none, uuid, row))
        return KnownJoin(pairs, lists, at, others, sorted(pids), is_final)

    @property
    def rows_of_pairs(self) -> array[int]:
        """Of each pair its row in `figures`, or `NO_ROW` where the driver tells nothing."""
        return self.known.at

    def figures(self, name: str) -> array[int]:
        """A column of the driver's figures, of all devices one after the other; -1 is not known.

        Args:
            name: Of a column of `ProcessColumns`.
        """
        found = array("q")
        for uuid, absent in self._idle.items():
            columns = self._columns.get(uuid)
            if columns is not None:
                column = getattr(columns, name)
                if column.typecode == found.typecode:
                    found += column
                else:
                    # From array to array of another type takes three times as long.
                    found.fromlist(column.tolist())
            figure = None if absent is None else getattr(absent, name)
            found.append(-1 if figure is None else figure)
        return found

    def device_sums(self, name: str, *, unnamed: bool = False) -> DeviceSums:
        """Sums of a figure of the driver by containers' devices.

        Args:
            name: ``memory_used_bytes`` or ``sm_util_percent``.
            unnamed: Whether a device that its region does not name yet counts as the only one that
                a process uses by the driver, where it is the only one that it uses by the region.
        """
        pairs, observation = self.pairs, self.observation
        devices = observation.table.devices
        figures, at = self.figures(name), self.known.at
        rows = array("I", [row if uuid else NO_ROW for row, uuid in enumerate(pairs.uuids)])
        proved = self._on_unnamed(name) if unnamed else {}
        if proved:
            at = at[:]
        for pair, figure in proved.items():
            rows[pairs.devices[pair]] = pairs.devices[pair]
            if at[pair] == NO_ROW:
                at[pair] = len(figures)
                figures.append(figure)
        sums, users = array("Q", bytes(8 * len(devices))), array("I", bytes(4 * len(devices)))
        for device, figure in zip(pairs.devices, at, strict=True):
            users[device] += 1
            if figure >= len(figures) or figures[figure] < 0:
                rows[device] = NO_ROW
            else:
                sums[device] += figures[figure]
        field = "memory_driver_bytes" if name == "memory_used_bytes" else "driver_sm_percent"
        without_slot: defaultdict[tuple[Container, int], list[int | None]] = defaultdict(list)
        for process in self.uncounted:
            for used in process.devices:
                if process.container is not None and used.index is not None:
                    without_slot[process.container, used.index].append(getattr(used, field))
        unplaced = self._unplaced()
        if not (without_slot or unplaced or pairs.doubtful):
            return DeviceSums(sums, rows, users)
        for device, (region, index, uuid) in enumerate(
            zip(devices.region, devices.index, pairs.uuids, strict=True)
        ):
            container = observation.containers[region]
            more = without_slot.get((container, index), ())
            if (
                region in pairs.doubtful
                or None in more
                or not unplaced.isdisjoint({(None, uuid), (container.pod_uid, uuid)})
            ):
                rows[device] = NO_ROW
            users[device] += len(more)
            sums[device] += sum(figure or 0 for figure in more)
        return DeviceSums(sums, rows, users)

    def _on_unnamed(self, name: str) -> dict[int, int]:
        """Pair to figure, of processes on the only device that they use, which has no uuid yet."""
        pairs, table = self.pairs, self.observation.table
        if not self.driver.lists_all:
            return {}
        in_use: defaultdict[int, list[int]] = defaultdict(list)
        used, firsts = table.usages.memory_used_bytes, table.processes.first_usage
        for pair, (slot, device) in enumerate(zip(pairs.slots, pairs.devices, strict=True)):
            if device in pairs.unnamed:
                first = table.regions.first_device[table.processes.region[slot]]
                if used[firsts[slot] + device - first]:
                    in_use[slot].append(pair)
        found = {}
        for slot, on in in_use.items():
            uuids = pairs.of_region[table.processes.region[slot]]
            others = self.driver.entries(pairs.states.processes[slot], without=uuids)
            figure = getattr(others[0], name) if len(others) == len(on) == 1 else None
            if figure is not None:
                found[on[0]] = figure
        return found

    def _unplaced(self) -> set[tuple[str | None, str | None]]:
        """Pod UID and uuid of processes that may be of one container or of another.

        None as the pod means that any container may be it.
        """
        sees_all = self.observation.processes.is_complete
        return {
            (None if row.container_id is None else row.container_id.pod_uid, device.uuid)
            for row in self.uncounted
            if row.container is None
            and row.state != "unmanaged"
            # A process that a complete /proc does not show has ended since the driver was asked.
            and not (row.process is None and sees_all)
            for device in row.devices
        }

    # ---- processes that no column has ------------------------------------------------------------

    @cached_property
    def locator(self) -> ProcessLocator:
        """Finds whose a process without a slot is."""
        observation = self.observation
        return ProcessLocator(container_facts(observation), observation.processes, self.driver)

    @cached_property
    def uncounted(self) -> tuple[NodeProcess, ...]:
        """The processes that the driver lists and that have no slot, by pid."""
        if not self.known.pids:
            return ()
        return tuple(self.locator.rows(self.known.pids))

    @cached_property
    def on_other_devices(self) -> tuple[NodeProcess, ...]:
        """Processes with a slot that use a GPU which their region does not have."""
        found: dict[int, list[ProcessDeviceRow]] = {}
        for slot, uuid, row in self.known.others:
            said = self._columns[uuid].process(row)
            found.setdefault(slot, []).append(ProcessDeviceRow.of(None, uuid, None, None, said))
        table, containers = self.observation.table, self.observation.containers
        return tuple(
            NodeProcess(
                containers[table.processes.region[slot]],
                process.container,
                table.processes.pid[slot],
                process.pid,
                "alive",
                process,
                None,
                tuple(devices),
            )
            for slot, devices in found.items()
            for process in (self.pairs.states.processes[slot],)
        )

"""The one join: a slot, its process and container, what the region counts, what the driver says."""

from __future__ import annotations

from array import array
from collections import defaultdict
from functools import cached_property
from typing import TYPE_CHECKING, Final

import attrs

from .driver_lists import DriverLists
from .node_process import NodeProcess, ProcessDeviceRow
from .process_locator import ContainerFacts, ProcessLocator
from .views import observed_views

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from libhamiregion.models import ProcessUsage
    from libhamiregion.region_set import RegionTable

    from .containers import Container
    from .matching import HostProcess, RegionProcesses
    from .node import Node
    from .node_process import ProcessState
    from .node_snapshot import NodeSnapshot
    from .observation import Observation
    from .slot_tracker import SlotStates
    from .views import ContainerView, OmittedSlots

#: In a column of rows: there is none.
NO_ROW: Final = 0xFFFFFFFF
_UNKNOWN = 0


def node_processes(node: Node, observation: Observation) -> tuple[NodeProcess, ...]:
    """Everything that uses the GPUs of a node: slots, /proc and the driver's figures in one list.

    The driver's figures are matched by uuid and proved host pid, or, where the region has no uuids
    yet, if region and driver both know exactly one device that the process uses. They are unknown,
    and nothing is called escaped or unmanaged, where pids of the driver and of /proc may be of
    different namespaces: both must be the host's. One process on one device is counted once, also
    if it stands in several slots.

    A process without a slot belongs to the container that its cgroup names, as the cgroups of
    processes with slots show; failing that, to the only one of its pod that it can be.

    Args:
        node: The node.
        observation: What stands on it, taken with the slots.

    Returns:
        By container, in each the slots in their order, one row per state for those that
        `ContainerView` would sum, then the processes without a slot; last what belongs to no
        container, by host pid.

    Raises:
        OSError: /proc could not be listed.

    Cost: linear in slots and processes, some 10 us per slot with two devices.

    Shell: ``hamiregion ps``.
    """
    return Join(observation).rows(observed_views(node, observation))


@attrs.frozen(eq=False)
class Pairs:
    """Each proved process with each device of its region, as columns: one row per pair.

    A process that has slots in several regions stands under the first of them.

    Attributes:
        key: What it was made of, compared by content.
        containers: Those of the read that it was made of.
        states: The states that it was made of.
        slots: Of each pair the row of the process's slot in ``table.processes``.
        devices: Of each pair the row of the device in ``table.devices``.
        slot_of: Pid in /proc to the row of its slot, of every proved process.
        uuids: Of each device; empty where the region names none, or has named it before.
        unnamed: Rows of devices whose region names none yet.
        by_uuid: Uuid to the pairs of that device.
        of_region: Row of a region to the uuids of its devices.
        doubtful: Rows of regions with slots of which it is not known whose they are.
    """

    key: tuple[bytes, ...]
    containers: Sequence[Container]
    states: SlotStates
    slots: array[int]
    devices: array[int]
    slot_of: Mapping[int, int]
    uuids: Sequence[str]
    unnamed: frozenset[int]
    by_uuid: Mapping[str, Sequence[int]]
    of_region: Mapping[int, frozenset[str]]
    doubtful: frozenset[int]

    @classmethod
    def of(cls, snapshot: NodeSnapshot, states: SlotStates, key: tuple[bytes, ...]) -> Pairs:
        """Pair the processes and devices of one read."""
        table = snapshot.table
        regions, devices = table.regions, table.devices
        uuids: list[str] = []
        unnamed: list[int] = []
        of_region: dict[int, frozenset[str]] = {}
        for region, (first, rows) in enumerate(
            zip(regions.first_device, regions.device_rows, strict=True)
        ):
            named: dict[str, None] = {}
            for row in range(first, first + rows):
                uuid = devices.uuid(row) or ""
                if not uuid:
                    unnamed.append(row)
                # A region can say that several of its devices are the same one.
                uuids.append("" if uuid in named else uuid)
                named[uuid] = None
            of_region[region] = frozenset(named) - {""}
        slots, places = array("I"), array("I")
        slot_of: dict[int, int] = {}
        by_uuid: defaultdict[str, list[int]] = defaultdict(list)
        for slot, process in states.processes.items():
            if process.pid in slot_of:
                continue
            slot_of[process.pid] = slot
            region = table.processes.region[slot]
            first = regions.first_device[region]
            for row in range(first, first + regions.device_rows[region]):
                if uuids[row]:
                    by_uuid[uuids[row]].append(len(slots))
                slots.append(slot)
                places.append(row)
        doubtful = frozenset(
            region
            for region, (first, count) in enumerate(
                zip(regions.first_process, regions.process_count, strict=True)
            )
            if _UNKNOWN in states.states[first : first + count]
        )
        return cls(
            key,
            snapshot.containers,
            states,
            slots,
            places,
            slot_of,
            uuids,
            frozenset(unnamed),
            dict(by_uuid),
            of_region,
            doubtful,
        )

    def fits(self, snapshot: NodeSnapshot) -> bool:
        """Whether a read has the same devices in the same rows."""
        is_same = self.containers is snapshot.containers
        return is_same and self.key[:3] == _shape(snapshot.table)


def _shape(table: RegionTable) -> tuple[bytes, bytes, bytes]:
    devices = table.devices
    return devices.region.tobytes(), devices.index.tobytes(), devices.uuid_bytes.tobytes()


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
            *_shape(snapshot.table),
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
                found.extend(array("q", getattr(columns, name)))
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
        figures = self.figures(name)
        sums, users = array("Q", bytes(8 * len(devices))), array("I", bytes(4 * len(devices)))
        rows = array("I", [at if uuid else NO_ROW for at, uuid in enumerate(pairs.uuids)])
        proved = self._on_unnamed(name) if unnamed else {}
        for pair in proved:
            rows[pairs.devices[pair]] = pairs.devices[pair]
        for pair, (device, row) in enumerate(zip(pairs.devices, self.known.at, strict=True)):
            figure = proved.get(pair, -1) if row == NO_ROW else figures[row]
            users[device] += 1
            if figure < 0:
                rows[device] = NO_ROW
            else:
                sums[device] += figure
        field = "memory_driver_bytes" if name == "memory_used_bytes" else "driver_sm_percent"
        beside: defaultdict[tuple[Container, int], list[int | None]] = defaultdict(list)
        for process in self.uncounted:
            for used in process.devices:
                if process.container is not None and used.index is not None:
                    beside[process.container, used.index].append(getattr(used, field))
        unplaced = self._unplaced()
        if not (beside or unplaced or pairs.doubtful):
            return DeviceSums(sums, rows, users)
        for device, (region, index, uuid) in enumerate(
            zip(devices.region, devices.index, pairs.uuids, strict=True)
        ):
            container = observation.containers[region]
            more = beside.get((container, index), ())
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
            entries = self.driver.entries(pairs.states.processes[slot])
            others = [each for each in entries if each.device_uuid not in uuids]
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

    # ---- processes as objects --------------------------------------------------------------------

    @cached_property
    def uncounted(self) -> tuple[NodeProcess, ...]:
        """The processes that the driver lists and that have no slot, by pid."""
        if not self.known.pids:
            return ()
        return tuple(self._uncounted(self._containers, self._locator, frozenset()))

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

    def rows(self, views: Iterable[ContainerView]) -> tuple[NodeProcess, ...]:
        """What `node_processes` returns.

        Args:
            views: All containers of the observation, as `observed_views` has them.
        """
        seen = tuple(views)
        proved = {each.container: each.processes for each in seen if each.processes is not None}
        containers = self._facts(proved)
        locator = ProcessLocator(containers, self.observation.processes, self.driver)
        told: set[int] = set()
        found = {id(each.container): self._slot_rows(each, locator, told) for each in seen}
        uncounted = {row.host_pid: row for row in self._uncounted(containers, locator, told)}
        for facts in containers:
            for process in facts.unlisted:
                if process.pid not in told:
                    told.add(process.pid)
                    row = uncounted.pop(process.pid, None)
                    found[id(facts.container)].append(
                        row or locator.uncounted(facts, process, "unlisted")
                    )
        rest: list[NodeProcess] = []
        for row in uncounted.values():
            (rest if row.container is None else found[id(row.container)]).append(row)
        return (*(row for rows in found.values() for row in rows), *rest)

    def slot_rows(self, views: Iterable[ContainerView]) -> list[NodeProcess]:
        """The rows of the slots of some containers.

        Args:
            views: Containers of the observation.
        """
        told: set[int] = set()
        return [row for view in views for row in self._slot_rows(view, None, told)]

    @cached_property
    def _containers(self) -> list[ContainerFacts]:
        return self._facts({})

    @cached_property
    def _locator(self) -> ProcessLocator:
        return ProcessLocator(self._containers, self.observation.processes, self.driver)

    def _facts(self, proved: Mapping[Container, RegionProcesses]) -> list[ContainerFacts]:
        """What is known of each container; `proved` stands in place of the observation's proofs."""
        observation = self.observation
        regions, devices = observation.table.regions, observation.table.devices
        found = []
        for row, container in enumerate(observation.containers):
            uuids = None
            if regions.code[row] == 0:
                first = regions.first_device[row]
                rows = range(first, first + regions.device_rows[row])
                uuids = [(devices.index[each], devices.uuid(each)) for each in rows]
            known = proved.get(container) or self.pairs.states.proved.get(row)
            found.append(ContainerFacts.of(container, known, uuids))
        return [*found, *(ContainerFacts.of(each, None, None) for each in observation.missing)]

    def _uncounted(
        self,
        containers: Sequence[ContainerFacts],
        locator: ProcessLocator,
        told: Collection[int],
    ) -> Iterator[NodeProcess]:
        processes = self.observation.processes
        # Of several containers whose region it maps, the first.
        mapped = {each.pid: facts for facts in reversed(containers) for each in facts.unlisted}
        for pid in self.known.pids:
            if pid in told:
                continue
            process = processes.look_up(pid)
            if process is not None and pid in mapped and not self.driver.is_newer(process):
                yield locator.uncounted(mapped[pid], process, "escaped")
            else:
                row = locator.row(pid, process)
                if row is not None:
                    yield row

    def _slot_rows(
        self, view: ContainerView, locator: ProcessLocator | None, told: set[int]
    ) -> list[NodeProcess]:
        """The slots of a container; `told` are the processes that have their row, and gets more."""
        if view.snapshot is None or view.processes is None:
            return []
        container, snapshot = view.container, view.snapshot
        uuids = [device.uuid for device in snapshot.devices]
        facts = ContainerFacts.of(
            container, view.processes, [(each.index, each.uuid) for each in snapshot.devices]
        )
        # Only those outside the roots can be, and there are few of them.
        is_extra = container.directory is None and (locator or self._locator).is_extra_region(facts)
        rows = []
        for usage, slot in zip(snapshot.processes, view.processes.slots, strict=True):
            process = slot.process
            state: ProcessState = slot.state
            driven = None
            if process is not None and process.pid not in told and self._is_here(view, process):
                told.add(process.pid)
                driven = process
                if is_extra and self.driver.entries(process):
                    state = "escaped"
            rows.append(
                NodeProcess(
                    container,
                    (None if process is None else process.container) or facts.container_id,
                    slot.pid,
                    None if process is None else process.pid,
                    state,
                    process,
                    usage.status,
                    self._counted(
                        usage, uuids, driven, has_utilization=snapshot.layout.has_utilization
                    ),
                )
            )
        # Those beyond what a view holds have no row of their own, but they have been told of.
        told.update(process.pid for process in view.processes.alive.values())
        rows += [_omitted(facts, uuids, each) for each in view.omitted]
        return rows

    def _is_here(self, view: ContainerView, process: HostProcess) -> bool:
        """Whether a container is the one of several in whose region a process counts."""
        slot = self.pairs.slot_of.get(process.pid)
        if slot is None:
            return True
        region = self.observation.table.processes.region[slot]
        return self.observation.containers[region] is view.container

    def _counted(
        self,
        usage: ProcessUsage,
        uuids: Sequence[str | None],
        process: HostProcess | None,
        *,
        has_utilization: bool,
    ) -> tuple[ProcessDeviceRow, ...]:
        """The devices of a slot; with a process, the driver's figures of it too."""
        driver = self.driver
        rows = []
        shown = set()
        for device, uuid in zip(usage.devices, uuids, strict=True):
            used = device.memory_used_bytes
            sm = device.sm_util_percent if has_utilization else None
            entry = None
            # A region can say that several of its devices are the same one.
            if process is not None and uuid is not None and uuid not in shown:
                shown.add(uuid)
                entry = driver.figures(uuid, process)
            if entry is None:
                gpu = driver.index(uuid)
                rows.append(ProcessDeviceRow(device.index, uuid, used, None, sm, driver_index=gpu))
            else:
                rows.append(ProcessDeviceRow.of(device.index, uuid, used, sm, entry))
        if process is None:
            return tuple(rows)
        others = [entry for entry in driver.entries(process) if entry.device_uuid not in uuids]
        nameless = [at for at, row in enumerate(rows) if row.uuid is None and row.memory_used_bytes]
        if len(others) == len(nameless) == 1 and driver.lists_all:
            # The only device that the process uses, for the region as for the driver.
            row, (entry,) = rows[nameless[0]], others
            rows[nameless[0]] = ProcessDeviceRow.of(
                row.index, entry.device_uuid, row.memory_used_bytes, row.sm_util_percent, entry
            )
            others = []
        rows += [ProcessDeviceRow.of(None, each.device_uuid, None, None, each) for each in others]
        return tuple(rows)


def _omitted(
    facts: ContainerFacts, uuids: Sequence[str | None], omitted: OmittedSlots
) -> NodeProcess:
    devices = tuple(
        ProcessDeviceRow(index, uuid, used)
        for (index, used), uuid in zip(omitted.memory_used_bytes.items(), uuids, strict=False)
    )
    return NodeProcess(
        facts.container,
        facts.container_id,
        None,
        None,
        omitted.state,
        None,
        None,
        devices,
        omitted.slots,
    )

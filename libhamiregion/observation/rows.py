"""Which process, which container, what its region counts, and what the driver says."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeAlias

import attrs

from libhamiregion.layouts import LAYOUTS

from .containers import NOT_LIMITED, WITHOUT_FILE, Container
from .figures import device_percents, size_or_none, usage_percents
from .pairing import NO_ROW, Pairing, devices_of
from .processes import is_monitor
from .visible import reordered

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from .driver import NvmlProcess
    from .model import Observation
    from .names import ContainerId
    from .processes import HostProcess, RegionProcesses
    from .visible import Order

ProcessState: TypeAlias = Literal[
    "alive", "dead", "unknown", "unlisted", "escaped", "unmanaged", "gone"
]


@attrs.frozen
class ProcessDeviceRow:
    """Usage of one device by one process, by the region and by the driver.

    Attributes:
        index: Index of the device in the container's region; None if it is not in the region.
        uuid: ``GPU-…`` or ``MIG-…``; None if neither the region nor the driver has it.
        memory_used_bytes: Memory that the region counts against the limit; None without a slot,
            and as every figure here if it cannot be.
        memory_driver_bytes: Memory by the driver.
        sm_util_percent: As the region has it; None without a slot, and if the layout has none.
        driver_sm_percent: By the driver, of the last second.
        driver_memory_percent: Share of the last second in which it read or wrote device memory.
        driver_enc_percent: Of the video encoder.
        driver_dec_percent: Of the video decoder.
        driver_index: NVML index of the GPU, also of a MIG device's; None if not known.
    """

    index: int | None
    uuid: str | None
    memory_used_bytes: int | None = None
    memory_driver_bytes: int | None = None
    sm_util_percent: int | None = None
    driver_sm_percent: int | None = None
    driver_memory_percent: int | None = None
    driver_enc_percent: int | None = None
    driver_dec_percent: int | None = None
    driver_index: int | None = None


def _driver_row(
    entry: NvmlProcess, index: int | None, used: int | None = None, sm: int | None = None
) -> ProcessDeviceRow:
    """A device with the driver's entry of the process there; the rest as the attributes."""
    return ProcessDeviceRow(
        index,
        entry.device_uuid,
        used,
        entry.memory_used_bytes,
        sm,
        entry.sm_util_percent,
        entry.memory_util_percent,
        entry.enc_util_percent,
        entry.dec_util_percent,
        entry.device_index,
    )


@attrs.frozen
class NodeProcess:
    """One process of the node that has a slot, maps a region, or uses a GPU.

    Attributes:
        container: The container that it belongs to; None if to none, or if that is not known.
        container_id: By its cgroup, or those of the container's other processes.
        pid: The pid in its slot, of the container's namespace; None without a slot.
        host_pid: Its pid in /proc, proved; the driver's pid for a process that only the driver
            knows. None if it is dead or unknown.
        state: ``"alive"``, ``"dead"`` and ``"unknown"`` as in `SlotMatch`, of a process with a
            slot. Without one: ``"unlisted"`` maps the region as its users do, and does not use a
            GPU; ``"escaped"`` uses a GPU in a container that has a region, uncounted and
            unlimited, or with a slot only in a region that the container has made itself outside
            the roots, or in a container whose share libvgpu does not limit; ``"unmanaged"`` uses a
            GPU outside all of these; ``"gone"`` is no process any more, and the driver still has
            its memory; ``"unknown"`` uses a GPU, and nothing proves which of these it is.
        process: The process in /proc; None if it is dead, unknown or not shown there.
        status: Of the slot; a `ProcessStatus`, or any other number in the file.
        devices: One entry per device of the region, in its order, then further devices on which
            the driver lists the process.
    """

    container: Container | None
    container_id: ContainerId | None
    pid: int | None
    host_pid: int | None
    state: ProcessState
    process: HostProcess | None
    status: int | None
    devices: tuple[ProcessDeviceRow, ...]

    @property
    def owner(self) -> Container:
        """`container`; without it one made of `container_id`, for a `Selector`.

        Of several that share a claim's region, the one that its cgroup names. Outside all
        containers it has neither name nor pod.
        """
        own = None if self.process is None else self.process.container
        shares = self.container is not None and self.container.claim_uid is not None
        if self.container is not None and not (shares and own is not None):
            return self.container
        known = own if shares else self.container_id
        return Container(None if known is None else known.pod_uid, container_id=known)


def node_processes(observation: Observation, join: Join | None = None) -> tuple[NodeProcess, ...]:
    """List all processes that use the GPUs of a node: slots, /proc and the driver's figures.

    The driver's figures are matched by uuid and proved host pid. They are unknown, and nothing is
    called escaped or unmanaged, if pids of the driver and of /proc may be of different namespaces:
    both must be the host's. A process in several slots has figures in the one that it writes to.

    A process without a slot belongs to the container that its cgroup names, as the cgroups of
    processes with slots show; failing that, to the only one of its pod that it can be.

    Args:
        observation: Taken with the slots.
        join: Of that observation; None makes one.

    Returns:
        By container, in each the slots in their order, then the processes without a slot; last
        the processes that belong to no container, by host pid.

    Raises:
        OSError: /proc could not be listed.

    Cost: linear in slots and processes, some 10 us per slot with two devices.

    Shell: ``hamiregion ps``.
    """
    join = join or Join(observation)
    found = {
        each: list(join.slot_rows(region)) for region, each in enumerate(observation.containers)
    }
    found.update((each, []) for each in observation.missing)
    uncounted = {row.host_pid: row for row in join.uncounted}
    shown = set(join.index.slot_of)
    for facts in join.facts:
        for process in facts.unlisted:
            if process.pid not in shown:
                shown.add(process.pid)
                row = uncounted.pop(process.pid, None)
                found[facts.container].append(row or join.without_slot(facts, process, "unlisted"))
    rest: list[NodeProcess] = []
    for row in uncounted.values():
        (rest if row.container is None else found[row.container]).append(row)
    return (*(row for rows in found.values() for row in rows), *rest)


@attrs.frozen(eq=False)
class DeviceSums:
    """The driver's figures of containers' devices, by row of ``table.devices``.

    Attributes:
        sums: Over the processes of a container.
        rows: The device's own row; `NO_ROW` if the figure of a process may be missing.
        users: The number of processes in a sum.
    """

    sums: array[int]
    rows: array[int]
    users: array[int]


class Join(Pairing):
    """Slots, processes, containers and the driver's lists of one observation.

    Threads: may be shared.

    Args:
        observation: Taken with the slots.
        index: Of an observation with the same rows; None makes it.

    Raises:
        OSError: /proc could not be listed.
    """

    def device_sums(self, name: str) -> DeviceSums:
        """Sums of a figure of the driver by containers' devices.

        Args:
            name: ``memory_used_bytes`` or ``sm_util_percent``.
        """
        pairs, observation = self.index, self.observation
        devices, figures = observation.table.devices, self.figures(name)
        rows = array("I", [row if uuid else NO_ROW for row, uuid in enumerate(pairs.uuids)])
        sums, users = array("Q", bytes(8 * len(devices))), array("I", bytes(4 * len(devices)))
        for device, figure in zip(pairs.devices, self.rows_of_pairs, strict=True):
            users[device] += 1
            if figure == NO_ROW or figures[figure] < 0:
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
        if not (without_slot or unplaced or pairs.ambiguous):
            return DeviceSums(sums, rows, users)
        for device, (region, index, uuid) in enumerate(
            zip(devices.region, devices.device, pairs.uuids, strict=True)
        ):
            container = observation.containers[region]
            more = without_slot.get((container, index), ())
            may_be_missing = {(None, uuid), (container.pod_uid, uuid)}
            if region in pairs.ambiguous or None in more or unplaced & may_be_missing:
                rows[device] = NO_ROW
            users[device] += len(more)
            sums[device] += sum(figure or 0 for figure in more)
        return DeviceSums(sums, rows, users)

    def _unplaced(self) -> set[tuple[str | None, str | None]]:
        """Pod UID and uuid of processes that may be of one container or of another.

        None as the pod means that any container may be it.
        """
        table, sample = self.observation.processes, self._sample
        # A process that a complete and later list does not show has ended.
        sees_all = table.is_complete and sample and table.started_s > sample.taken_s
        return {
            (None if row.container_id is None else row.container_id.pod_uid, device.uuid)
            for row in self.uncounted
            if row.container is None
            and row.state not in {"unmanaged", "gone"}
            and not (row.process is None and sees_all)
            for device in row.devices
        }

    @cached_property
    def orders(self) -> dict[int, Order]:
        """Row of a slot to the order in which its process counts devices, if it is another."""
        return reordered(self)

    @cached_property
    def usage_percents(self) -> list[int | None]:
        """SM utilisation by row of ``table.usages``, under the device at work.

        It is unknown where the region says 0 and the driver does not: libvgpu's watcher writes 0
        for all processes before it asks the driver.
        """
        found = usage_percents(self.observation.table, self.orders)
        busy = self.figures("sm_util_percent")
        for usage, row in zip(self.index.usages, self.rows_of_pairs, strict=True):
            if row != NO_ROW and busy[row] > 0 and found[usage] == 0:
                found[usage] = None
        for usage in self.observation.stale:
            found[usage] = None
        return found

    @cached_property
    def device_percents(self) -> list[int | None]:
        """SM utilisation by row of ``table.devices``, likewise."""
        return device_percents(self.observation.table, self.usage_percents)

    # ---- rows ------------------------------------------------------------------------------------

    def slot_rows(self, region: int) -> Iterator[NodeProcess]:
        """The rows of the slots of a region, by its row in ``table.regions``."""
        table, proof = self.observation.table, self.index.states.proved.get(region)
        if proof is None:
            return
        container, facts = self.observation.containers[region], self.facts[region]
        # Only those outside the roots can be, and there are few of them.
        is_extra = container.directory is None and self._is_extra_region(facts)
        first = table.regions.first_process[region]
        for slot in range(first, first + table.regions.process_count[region]):
            pid = table.processes.pid[slot]
            process = proof.alive.get(pid)
            state: ProcessState = proof.state(pid)
            writes_here = process is not None and self.index.slot_of.get(process.pid) == slot
            if process is not None and writes_here and is_extra and self._entries(process):
                state = "escaped"
            yield NodeProcess(
                container,
                (None if process is None else process.container) or facts.container_id,
                pid,
                None if process is None else process.pid,
                state,
                process,
                table.processes.status[slot],
                tuple(self._devices_of(slot, process if writes_here else None)),
            )

    def _devices_of(self, slot: int, process: HostProcess | None) -> Iterator[ProcessDeviceRow]:
        """The devices of a slot; with a process, the driver's figures of it too."""
        table, sample = self.observation.table, self._sample
        region = table.processes.region[slot]
        has_utilization = LAYOUTS[table.regions.layout[region]].has_utilization
        usage = table.processes.first_usage[slot]
        for row in devices_of(table, region):
            used = size_or_none(table.usages.memory_used_bytes[usage])
            sm = self.usage_percents[usage] if has_utilization else None
            uuid, named = table.devices.uuid(row), self.index.uuids[row]
            entry = None
            is_sampled = process is not None and process.start_time_ticks <= self._sampled_ticks
            if sample is not None and process is not None and is_sampled and named:
                entry = sample.process(named, process.pid)
            index = table.devices.device[row]
            gpu = None if sample is None else sample.gpu_indexes.get(uuid)
            yield (
                ProcessDeviceRow(index, uuid, used, None, sm, driver_index=gpu)
                if entry is None
                else _driver_row(entry, index, used, sm)
            )
            usage += 1
        if process is not None:
            for entry in self._entries(process, self.index.of_region[region]):
                yield _driver_row(entry, None)

    @cached_property
    def in_other_files(self) -> dict[int, tuple[Container, str]]:
        """Pids of processes that use a further region of their container's directory, with it."""
        return {
            user.process.pid: (container, name)
            for container in self.observation.all_containers
            for name, inode in zip(container.other_files, container.other_inodes, strict=False)
            for user in self.observation.processes.by_inode.get(inode, ())
            if user.mapping.writable
            and user.process.pod_uid in {None, container.pod_uid}
            and not is_monitor(user.process)
        }

    @cached_property
    def uncounted(self) -> tuple[NodeProcess, ...]:
        """The processes that the driver lists and that have no slot, by pid."""
        listed = {pid for columns in self._columns.values() for pid in columns.rows}
        pids = sorted(listed - self.index.slot_of.keys())
        if not pids:
            return ()
        table, ended = self.observation.processes, self.observation.ended
        known = {pid: process for pid in pids if (process := table.get(pid)) is not None}
        # The first of the containers whose region a process without a slot maps.
        mapped = {each.pid: facts for facts in reversed(self.facts) for each in facts.unlisted}
        found = []
        for pid in pids:
            process = known.get(pid)
            if process is None:
                entries = () if self._sample is None else self._sample.of_pid(pid)
                devices = tuple(_driver_row(each, None) for each in entries)
                gone: ProcessState = "gone" if pid in self.observation.gone else "unknown"
                found.append(NodeProcess(None, None, None, pid, gone, None, None, devices))
            # Of a newer process, the driver's figures are those of an earlier one.
            elif pid not in ended and process.start_time_ticks <= self._sampled_ticks:
                facts = mapped.get(pid)
                state: ProcessState = "escaped"
                if facts is None:
                    facts, state = self._judge(process)
                other = self.in_other_files.get(pid)
                if other is not None and pid not in mapped:
                    # That region, which is not read, may count it.
                    state = "unknown"
                    facts = next(each for each in self.facts if each.container == other[0])
                found.append(self.without_slot(facts, process, state))
        return tuple(found)

    @cached_property
    def on_other_devices(self) -> tuple[NodeProcess, ...]:
        """Processes with a slot that use a GPU which their region does not have."""
        table, pairs, found = self.observation.table, self.index, []
        pids = {
            pid
            for uuid, each in self._columns.items()
            for pid in pairs.slot_of.keys() & each.rows.keys() - pairs.by_uuid.get(uuid, ())
        }
        for pid in sorted(pids):
            slot = pairs.slot_of[pid]
            process, region = pairs.states.processes[slot], table.processes.region[slot]
            uuids = pairs.of_region[region]
            # A region that names no device yet has none to be compared.
            entries = self._entries(process, uuids) if uuids else ()
            if entries:
                container = self.observation.containers[region]
                devices = tuple(_driver_row(each, None) for each in entries)
                names = container, process.container, table.processes.pid[slot], pid
                found.append(NodeProcess(*names, "alive", process, None, devices))
        return tuple(found)

    def without_slot(
        self, facts: ContainerFacts | None, process: HostProcess, state: ProcessState
    ) -> NodeProcess:
        """The row of a process without a slot."""
        indexes = {} if facts is None else facts.indexes
        entries = self._entries(process)
        devices = tuple(_driver_row(each, indexes.get(each.device_uuid)) for each in entries)
        container, known = (None, None) if facts is None else (facts.container, facts.container_id)
        names = container, process.container or known, None, process.pid
        return NodeProcess(*names, state, process, None, devices)

    # ---- whose a process without a slot is -------------------------------------------------------

    @cached_property
    def facts(self) -> tuple[ContainerFacts, ...]:
        """Facts of all containers, first of those with a region."""
        observation = self.observation
        table, proved = observation.table, self.index.states.proved
        found = []
        for row, container in enumerate(observation.containers):
            # Of two devices with one uuid the first counts.
            rows, devices = reversed(devices_of(table, row)), table.devices
            indexes = {devices.uuid(each): devices.device[each] for each in rows}
            is_read = table.regions.code[row] == 0
            found.append(ContainerFacts(container, proved.get(row), indexes if is_read else None))
        return (*found, *map(ContainerFacts, observation.missing))

    @cached_property
    def _by_id(self) -> dict[str, ContainerFacts]:
        # Regions outside the roots come last: a container can map any number of those.
        return {id_.id: facts for facts in reversed(self.facts) for id_ in facts.ids}

    def _judge(self, process: HostProcess) -> tuple[ContainerFacts | None, ProcessState]:
        candidates = self._candidates(process)
        inside = process.ns_pids[-1]
        have_region = {facts.has_region for facts in candidates}
        state: ProcessState = "unknown"
        if not any(inside in facts.unknown_pids or facts.is_unreadable for facts in candidates):
            if any(facts.is_unlimited for facts in candidates):
                state = "escaped"
            elif True not in have_region:
                state = "unmanaged"
            elif False not in have_region:
                state = "escaped"
        return candidates[0] if len(candidates) == 1 else None, state

    def _candidates(self, process: HostProcess) -> Sequence[ContainerFacts]:
        container_id = process.container
        if container_id is None:
            # It may be one of several that a slot can mean.
            table, inside = self.observation.processes, process.ns_pids[-1]
            return [
                facts
                for facts in self.facts
                if inside in facts.unknown_pids
                and (identity := facts.container.identity) is not None
                and process in table.mappers(identity)
            ]
        facts = self._by_id.get(container_id.id)
        return [facts] if facts is not None else self._unnamed(container_id)

    def _unnamed(self, container_id: ContainerId) -> Sequence[ContainerFacts]:
        """The containers of a pod that a container id may mean: those whose id is not known."""
        pod_uid = container_id.pod_uid
        return [
            each
            for each in self.facts
            if pod_uid is not None
            and each.container.pod_uid == pod_uid
            and each.container.directory is not None
            and not each.ids
        ]

    def _is_extra_region(self, facts: ContainerFacts) -> bool:
        """Whether a region outside the roots is of a container that has one inside.

        A container can make any number of these; being counted there limits nothing.
        """
        if facts.container_id is None:
            return False
        known = self._by_id[facts.container_id.id]
        is_inside = known.container.directory is not None
        inside = [known] if is_inside else self._unnamed(facts.container_id)
        return any(each.has_region for each in inside)


class ContainerFacts:
    """One container, and what helps to find its processes without a slot.

    Args:
        container: The container.
        proof: The processes of its region; None if they are not known.
        indexes: Uuid of a device to its index in the region; None if the region was not read.

    Attributes:
        container: The container.
        ids: Its id, by its processes' cgroups; several if they share a claim's region.
        has_region: Whether its region was read.
        is_unreadable: Whether it has one that could not be read.
        is_unlimited: Whether it was given a share that libvgpu does not limit.
        unlisted: The processes that use its region without a slot.
        unknown_pids: Pids in slots whose processes are not known.
        indexes: Uuid of a device to its index in the region.
    """

    def __init__(
        self,
        container: Container,
        proof: RegionProcesses | None = None,
        indexes: Mapping[str | None, int] | None = None,
    ) -> None:
        self.container = container
        self.ids: list[ContainerId] = []
        if container.container_id is not None:
            self.ids = [container.container_id]
        elif proof is not None:
            seen = Counter(each.container for each in proof.alive.values() if each.container)
            more = Counter(each.container for each in proof.unlisted if each.container)
            shares = container.claim_uid is not None
            ranking = (seen | more if shares else seen or more).most_common(None if shares else 1)
            self.ids = [each for each, _ in ranking]
        missing = container.missing
        has_file = missing is None or missing.reason not in WITHOUT_FILE
        self.has_region = indexes is not None
        self.is_unreadable = indexes is None and has_file
        self.is_unlimited = missing == NOT_LIMITED
        self.indexes = indexes or {}
        self.unlisted = () if proof is None else proof.unlisted
        self.unknown_pids = set() if proof is None else proof.unknown

    @property
    def container_id(self) -> ContainerId | None:
        """Its id; None if it is not known, or several share it."""
        return self.ids[0] if len(self.ids) == 1 else None

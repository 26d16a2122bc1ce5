"""Processes that use a GPU and have no slot: which container they are in, and what they use."""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Literal, TypeAlias

import attrs

from .containers import Container, MissingReason
from .nvml.states import NvmlState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from typing_extensions import Self

    from .cgroups import ContainerId
    from .matching import HostProcess, RegionProcesses
    from .node import NodeSnapshot
    from .nvml.models import NvmlProcess, NvmlSample
    from .processes import ProcessTable
    from .slot_tracker import SlotStates

ProcessState: TypeAlias = Literal["alive", "dead", "unknown", "unlisted", "escaped", "unmanaged"]


@attrs.frozen
class ProcessDeviceRow:
    """What one process uses of one device: as the region counts it, and as the driver does.

    Attributes:
        index: Index of the device in the container's region; None if it is none of the region's.
        uuid: ``GPU-…`` or ``MIG-…``; None if neither the region nor the driver tells.
        memory_used_bytes: What the region counts against the limit; None without a slot.
        memory_driver_bytes: What the driver says.
        sm_util_percent: As the region has it; None without a slot, and where the layout has none.
        driver_sm_percent: The driver's, of the last second.
        driver_memory_percent: Share of the last second in which it read or wrote device memory.
        driver_enc_percent: Of the video encoder.
        driver_dec_percent: Of the video decoder.
        driver_index: NVML index of the GPU that it is, or is part of; None if the driver does not
            tell.
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


@attrs.frozen
class NodeProcess:
    """One process of the node that has a slot, maps a region, or uses a GPU.

    Attributes:
        container: The container that it belongs to, as the node knows it; None if to none of them,
            or if it is not known to which.
        container_id: What its cgroup, or those of the container's other processes, say.
        pid: The pid in its slot, of the container's namespace; None without a slot.
        host_pid: Its pid in /proc, proved; for a process that only the driver knows, the driver's.
            None if it is dead or unknown.
        state: ``"alive"``, ``"dead"`` and ``"unknown"`` as `SlotMatch` has them, of a process with
            a slot. Without one: ``"unlisted"`` maps the region as its users do, and does not use a
            GPU; ``"escaped"`` uses a GPU in a container that has a region, uncounted and
            unlimited, or with a slot in another region only, which the container has made itself
            outside the roots; ``"unmanaged"`` uses a GPU outside all containers that have one;
            ``"unknown"`` uses a GPU, and nothing proves which of these it is.
        process: The process in /proc; None if it is dead, unknown or not shown there.
        status: Of the slot; a `ProcessStatus`, or whatever number stands there.
        devices: One entry per device of the region, in its order, then those that only the driver
            tells of.
        slots: How many slots it stands for: 1, or as many as `ContainerView` has summed, in a row
            without a pid.
    """

    container: Container | None
    container_id: ContainerId | None
    pid: int | None
    host_pid: int | None
    state: ProcessState
    process: HostProcess | None
    status: int | None
    devices: tuple[ProcessDeviceRow, ...]
    slots: int = 1

    @property
    def owner(self) -> Container:
        """`container`; without it one made of `container_id`, for `Node.pod_name` and `Selector`.

        Of several that share a claim's region, too, the one that its cgroup names. Outside all
        containers it has neither name nor pod.
        """
        own = None if self.process is None else self.process.container
        shares = self.container is not None and self.container.claim_uid is not None
        if self.container is not None and not (shares and own is not None):
            return self.container
        known = own if shares else self.container_id
        return Container(None if known is None else known.pod_uid, container_id=known)


def driver_gap(processes: ProcessTable, sample: NvmlSample | None) -> str | None:
    """Why `node_processes` has no figures of the driver: one sentence; None if it has.

    Args:
        processes: The node's processes, refreshed.
        sample: What the driver said, None if it was not asked.
    """
    if sample is None:
        return "the driver was not asked"
    if sample.state is not NvmlState.OK:
        return sample.state.explanation if sample.fault is None else sample.fault.message
    if not sample.sees_all_processes:
        return (
            "the driver does not tell this program the host's pids, because it runs in another pid"
            " namespace; in Kubernetes, set hostPID: true"
        )
    if not processes.visibility.is_own_namespace:
        return f"the pids in {processes.proc!r} are not the host's, which the driver tells"
    return None


def uncounted_processes(
    processes: ProcessTable, snapshot: NodeSnapshot, states: SlotStates, sample: NvmlSample
) -> tuple[NodeProcess, ...]:
    """The processes that the driver lists and that have no slot, from columns.

    What `node_processes` says of them, for programs that look every few seconds: no object is made
    for a process with a slot, and nothing is read but the cgroups of those without.

    Args:
        processes: The node's processes.
        snapshot: Its regions.
        states: `Node.slots` of that snapshot.
        sample: What the driver said, taken before the snapshot.
    """
    driver = DriverFigures(processes, sample)
    known = {process.pid for process in states.processes.values()}
    pids = [pid for pid in driver.pids if pid not in known]
    if not pids:
        return ()
    places = list(_facts_of(snapshot, states))
    placing = Placement(places, processes, driver)
    by_region = {id(place.container): place for place in places}
    unlisted = {
        process.pid: by_region[id(snapshot.containers[row])]
        for row, found in states.unlisted.items()
        for process in found
    }
    rows = []
    for pid in pids:
        process = processes.look_up(pid)
        if process is not None and pid in unlisted and not driver.is_newer(process):
            rows.append(placing.uncounted(unlisted[pid], process, "escaped"))
            continue
        row = placing.row(pid, process)
        if row is not None:
            rows.append(row[1])
    return tuple(rows)


def _facts_of(snapshot: NodeSnapshot, states: SlotStates) -> Iterator[ContainerFacts]:
    regions, devices = snapshot.table.regions, snapshot.table.devices
    for row, container in enumerate(snapshot.containers):
        uuids = None
        if regions.code[row] == 0:
            at = regions.first_device[row]
            rows = range(at, at + regions.device_rows[row])
            uuids = [(devices.index[each], devices.uuid(each)) for each in rows]
        yield ContainerFacts.of(container, states.proved.get(row), uuids)
    for container in snapshot.missing:
        yield ContainerFacts.of(container, None, None)


class DriverFigures:
    """The driver's figures of processes whose pids are certain."""

    def __init__(self, processes: ProcessTable, sample: NvmlSample | None) -> None:
        usable = sample is not None and driver_gap(processes, sample) is None
        self._sample = sample if usable else None
        self._boot_ns = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        self._tick_ns = 10**9 // os.sysconf("SC_CLK_TCK")
        self._indexes: dict[str | None, int] = {}
        self.lists_all = self._sample is not None
        for device in () if self._sample is None else self._sample.devices:
            for place in (device, *device.mig_devices):
                self.lists_all = self.lists_all and place.processes_state is NvmlState.OK
                if place.uuid:
                    self._indexes[place.uuid] = device.index

    @property
    def pids(self) -> list[int]:
        """The processes that the driver lists, sorted."""
        return [] if self._sample is None else sorted(self._sample.pids)

    def is_newer(self, process: HostProcess) -> bool:
        """Whether a process began after the sample: then the sample is of another one."""
        started_ns = self._boot_ns + process.start_time_ticks * self._tick_ns
        return self._sample is None or started_ns > self._sample.taken_at_ns

    def entries(self, process: HostProcess) -> Sequence[NvmlProcess]:
        """The devices on which the driver lists a process."""
        return () if self.is_newer(process) else self.of_pid(process.pid)

    def of_pid(self, pid: int) -> Sequence[NvmlProcess]:
        """The devices on which the driver lists a pid, whatever process has it now."""
        return () if self._sample is None else self._sample.of_pid(pid)

    def index(self, uuid: str | None) -> int | None:
        """NVML index of a GPU, or of the one that a MIG device is part of."""
        return self._indexes.get(uuid)

    def figures(self, uuid: str, process: HostProcess) -> NvmlProcess | None:
        """What a process uses of one device; None where that is not known."""
        if self._sample is None or self.is_newer(process):
            return None
        return self._sample.process(uuid, process.pid)


@attrs.frozen(eq=False)
class ContainerFacts:
    """One container, and what is known of it when its other processes are to be found.

    Attributes:
        container: The container.
        container_id: Its id, as the cgroups of its processes show; None where several share it.
        sharers: Of a claim, the containers that use its region.
        has_region: Whether its region was read.
        unreadable: Whether it has one that could not be read.
        in_doubt: Pids in slots of which it is not known whose they are.
        indexes: Uuid of a device to its index in the region.
    """

    container: Container
    container_id: ContainerId | None
    has_region: bool
    unreadable: bool
    in_doubt: frozenset[int]
    indexes: Mapping[str, int]
    sharers: tuple[ContainerId, ...] = ()

    @classmethod
    def of(
        cls,
        container: Container,
        processes: RegionProcesses | None,
        uuids: Iterable[tuple[int, str | None]] | None,
    ) -> Self:
        """The facts of a container.

        Args:
            container: The container.
            processes: Those of its region, where they are known.
            uuids: The devices of its region, index and uuid; None where it could not be read.
        """
        seen = None
        sharers: tuple[ContainerId, ...] = ()
        doubtful: frozenset[int] = frozenset()
        if processes is not None and container.claim_uid is not None:
            users = (*processes.alive.values(), *processes.unlisted)
            sharers = tuple({each.container for each in users if each.container is not None})
            seen = sharers[0] if len(sharers) == 1 else None
        elif processes is not None:
            seen = _seen_id(processes.alive.values()) or _seen_id(processes.unlisted)
        if processes is not None:
            doubtful = frozenset(p for p in processes.pids if processes.state(p) == "unknown")
        missing = container.missing
        absent = missing is not None and missing.reason is MissingReason.NO_FILE
        return cls(
            container,
            container.container_id or seen,
            uuids is not None,
            uuids is None and not absent,
            doubtful,
            # Of two devices with one uuid the first counts.
            {uuid: index for index, uuid in reversed([*(uuids or ())]) if uuid is not None},
            sharers,
        )


def _seen_id(processes: Iterable[HostProcess]) -> ContainerId | None:
    """The container id that most of these processes have in their cgroup."""
    seen = Counter(process.container for process in processes if process.container is not None)
    return seen.most_common(1)[0][0] if seen else None


class Placement:
    """Finds the container of a process that uses a GPU and has no slot."""

    def __init__(
        self, places: Sequence[ContainerFacts], processes: ProcessTable, driver: DriverFigures
    ) -> None:
        self.places = places
        self._processes = processes
        self._driver = driver
        self._by_id: dict[str, ContainerFacts] = {}
        self._by_pod: defaultdict[str, list[ContainerFacts]] = defaultdict(list)
        for place in places:
            for each in place.sharers or (place.container_id,):
                # Regions outside the roots come last: a container can map any number of those.
                if each is not None:
                    self._by_id.setdefault(each.id, place)
            if place.container.pod_uid is not None and place.container.directory is not None:
                self._by_pod[place.container.pod_uid].append(place)

    def row(
        self, pid: int, process: HostProcess | None
    ) -> tuple[ContainerFacts | None, NodeProcess] | None:
        """Where a process belongs that the driver lists; None if the pid is another's by now."""
        if process is None:
            devices = tuple(
                device_row(None, entry.device_uuid, None, None, entry)
                for entry in self._driver.of_pid(pid)
            )
            return None, NodeProcess(None, None, None, pid, "unknown", None, None, devices)
        if self._driver.is_newer(process):
            return None
        place, state = self._judge(process)
        return place, self.uncounted(place, process, state)

    def uncounted(
        self, place: ContainerFacts | None, process: HostProcess, state: ProcessState
    ) -> NodeProcess:
        """The row of a process without a slot."""
        indexes = {} if place is None else place.indexes
        return NodeProcess(
            None if place is None else place.container,
            process.container or (None if place is None else place.container_id),
            None,
            process.pid,
            state,
            process,
            None,
            tuple(
                device_row(
                    indexes.get(entry.device_uuid or ""), entry.device_uuid, None, None, entry
                )
                for entry in self._driver.entries(process)
            ),
        )

    def stands_beside(self, place: ContainerFacts) -> bool:
        """Whether a region outside the roots is of a container that has one inside.

        A container can make any number of these; being counted there limits nothing.
        """
        container_id = place.container_id
        if place.container.directory is not None or container_id is None:
            return False
        known = self._by_id[container_id.id]
        inside = [known] if known.container.directory is not None else self._unnamed(container_id)
        return any(each.has_region for each in inside)

    def _judge(self, process: HostProcess) -> tuple[ContainerFacts | None, ProcessState]:
        candidates = self._candidates(process)
        inside = process.ns_pids[-1]
        if any(inside in place.in_doubt or place.unreadable for place in candidates):
            state: ProcessState = "unknown"
        elif not any(place.has_region for place in candidates):
            state = "unmanaged"
        elif all(place.has_region for place in candidates):
            state = "escaped"
        else:
            state = "unknown"
        return candidates[0] if len(candidates) == 1 else None, state

    def _candidates(self, process: HostProcess) -> list[ContainerFacts]:
        container_id = process.container
        if container_id is None:
            # It may be one of several that a slot can mean.
            inside = process.ns_pids[-1]
            doubtful = [place for place in self.places if inside in place.in_doubt]
            return [place for place in doubtful if self._maps(process, place)]
        place = self._by_id.get(container_id.id)
        return [place] if place is not None else self._unnamed(container_id)

    def _unnamed(self, container_id: ContainerId) -> list[ContainerFacts]:
        """The containers of a pod that a container id may mean."""
        if container_id.pod_uid is None:
            return []
        # One whose id is known is another container of the pod.
        return [each for each in self._by_pod[container_id.pod_uid] if each.container_id is None]

    def _maps(self, process: HostProcess, place: ContainerFacts) -> bool:
        region = place.container.region
        if region is None or region.closed:
            return False
        return process in self._processes.mappers(*self._processes.identity(region))


def device_row(
    index: int | None,
    uuid: str | None,
    used: int | None,
    sm: int | None,
    entry: NvmlProcess,
) -> ProcessDeviceRow:
    """The row of a device with what the driver says of it."""
    return ProcessDeviceRow(
        index,
        uuid,
        used,
        entry.memory_used_bytes,
        sm,
        entry.sm_util_percent,
        entry.memory_util_percent,
        entry.enc_util_percent,
        entry.dec_util_percent,
        entry.device_index,
    )

"""Who uses the GPUs of a node: slots, processes and the driver's figures in one list."""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Literal, TypeAlias

import attrs

from .containers import Container, MissingReason
from .nvml.states import NvmlState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from libhamiregion.models import ProcessUsage, RegionSnapshot

    from .cgroups import ContainerId
    from .host_process import HostProcess
    from .matching import RegionProcesses, SlotMatch
    from .node import ContainerView
    from .nvml.models import NvmlDevice, NvmlMigDevice, NvmlProcess, NvmlSample
    from .processes import ProcessTable

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
        """`container`; without it one made of `container_id`, for `Node.pod_name` and `Selector`.

        Outside all containers it has neither name nor pod.
        """
        if self.container is not None:
            return self.container
        pod_uid = None if self.container_id is None else self.container_id.pod_uid
        return Container(pod_uid, None, None, container_id=self.container_id)


def node_processes(
    views: Iterable[ContainerView], processes: ProcessTable, sample: NvmlSample | None
) -> tuple[NodeProcess, ...]:
    """Join the slots of all regions with /proc and the driver's figures.

    Take the sample first and the views after it: what uses a GPU has its slot by then, and a pid
    that was used again since the sample is noticed.

    The driver's figures are matched by uuid and proved host pid, or, where the region has no uuids
    yet, if region and driver both know exactly one device that the process uses. They are unknown,
    and nothing is called escaped or unmanaged, where pids of the driver and of /proc may be of
    different namespaces: both must be the host's. One process on one device is counted once, also
    if it stands in several slots.

    A process without a slot belongs to the container that its cgroup names, as the cgroups of
    processes with slots show; failing that, to the only one of its pod that it can be.

    Args:
        views: What `Node.view` gives.
        processes: The node's processes, as the views were matched with.
        sample: What the driver said; None leaves its figures out.

    Returns:
        By container in the order of the views, in each the slots in their order, then the
        processes without a slot; last what belongs to no container, by host pid.

    Cost: linear in slots and processes, some 10 us per slot with two devices.

    Shell: ``hamiregion ps``.
    """
    return _Join(tuple(views), processes, _Driver(processes, sample)).rows()


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
    if not _is_own_namespace(processes):
        return f"the pids in {processes.proc!r} are not the host's, which the driver tells"
    return None


class _Driver:
    """The driver's figures of processes whose pids are certain."""

    def __init__(self, processes: ProcessTable, sample: NvmlSample | None) -> None:
        self._sample = sample
        self._by_pid: dict[int, list[NvmlProcess]] = {}
        self._taken_at_ns = 0
        self._boot_ns = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        self._tick_ns = 10**9 // os.sysconf("SC_CLK_TCK")
        self._indexes: dict[str | None, int] = {}
        self.lists_all = False
        if sample is None or driver_gap(processes, sample) is not None:
            self._sample = None
            return
        self._taken_at_ns = sample.taken_at_ns
        for entry in sample.processes:
            self._by_pid.setdefault(entry.pid, []).append(entry)
        places: list[NvmlDevice | NvmlMigDevice] = []
        for device in sample.devices:
            own: tuple[NvmlDevice | NvmlMigDevice, ...] = (device, *device.mig_devices)
            places += own
            self._indexes.update((place.uuid, device.index) for place in own if place.uuid)
        self.lists_all = all(place.processes_state is NvmlState.OK for place in places)

    @property
    def pids(self) -> list[int]:
        return sorted(self._by_pid)

    def is_newer(self, process: HostProcess) -> bool:
        """Whether a process began after the sample: then the sample is of another one."""
        started_ns = self._boot_ns + process.start_time_ticks * self._tick_ns
        return started_ns > self._taken_at_ns

    def entries(self, process: HostProcess) -> Sequence[NvmlProcess]:
        """The devices on which the driver lists a process."""
        return () if self.is_newer(process) else self._by_pid.get(process.pid, ())

    def of_pid(self, pid: int) -> Sequence[NvmlProcess]:
        return self._by_pid[pid]

    def index(self, uuid: str | None) -> int | None:
        """NVML index of a GPU, or of the one that a MIG device is part of."""
        return self._indexes.get(uuid)

    def figures(self, uuid: str, process: HostProcess) -> NvmlProcess | None:
        if self._sample is None or self.is_newer(process):
            return None
        return self._sample.process(uuid, process.pid)


class _Place:
    """One container, and what is known of it when its other processes are to be found."""

    def __init__(self, view: ContainerView) -> None:
        self.container = view.container
        self.snapshot: RegionSnapshot | None = view.snapshot
        self.matched: RegionProcesses | None = view.processes
        self.unreadable = view.snapshot is None and not (
            view.container.missing is not None
            and view.container.missing.reason is MissingReason.NO_FILE
        )
        self.container_id = view.container.container_id or self._seen_id()
        self.rows: list[NodeProcess] = []
        self.in_doubt: frozenset[int] = frozenset(
            slot.pid for slot in self._slots() if slot.state == "unknown"
        )

    def _slots(self) -> tuple[SlotMatch, ...]:
        return () if self.matched is None else self.matched.slots

    def _seen_id(self) -> ContainerId | None:
        if self.matched is None:
            return None
        for group in ([slot.process for slot in self.matched.slots], self.matched.unlisted):
            seen = Counter(
                process.container
                for process in group
                if process is not None and process.container is not None
            )
            if seen:
                return seen.most_common(1)[0][0]
        return None

    @property
    def indexes(self) -> Mapping[str, int]:
        """Index of each device of the region, by uuid."""
        found: dict[str, int] = {}
        for device in () if self.snapshot is None else self.snapshot.devices:
            if device.uuid is not None:
                found.setdefault(device.uuid, device.index)
        return found


class _Join:
    def __init__(
        self, views: Sequence[ContainerView], processes: ProcessTable, driver: _Driver
    ) -> None:
        self._processes = processes
        self._driver = driver
        self._places = [_Place(view) for view in views]
        self._by_id: dict[str, _Place] = {}
        self._by_pod: defaultdict[str, list[_Place]] = defaultdict(list)
        for place in self._places:
            if place.container_id is not None:
                # Regions outside the roots come last: a container can map any number of those.
                self._by_id.setdefault(place.container_id.id, place)
            if place.container.pod_uid is not None and place.container.directory is not None:
                self._by_pod[place.container.pod_uid].append(place)
        # Host pids that have their row, with the driver's figures in it.
        self._told: set[int] = set()

    def rows(self) -> tuple[NodeProcess, ...]:
        for place in self._places:
            self._add_slots(place)
        for place in self._places:
            self._add_unlisted(place)
        rest = self._add_others()
        return (*(row for place in self._places for row in place.rows), *rest)

    # ---- processes with a slot -------------------------------------------------------------------

    def _add_slots(self, place: _Place) -> None:
        if place.snapshot is None or place.matched is None:
            return
        beside = self._stands_beside(place)
        uuids = [device.uuid for device in place.snapshot.devices]
        has_utilization = place.snapshot.layout.has_utilization
        container, fallback = place.container, place.container_id
        for usage, slot in zip(place.snapshot.processes, place.matched.slots, strict=True):
            process = slot.process
            state: ProcessState = slot.state
            driven = None
            host_pid = None
            container_id = fallback
            if process is not None:
                host_pid = process.pid
                container_id = process.container or fallback
                if host_pid not in self._told:
                    self._told.add(host_pid)
                    driven = process
                    if beside and self._driver.entries(process):
                        state = "escaped"
            place.rows.append(
                NodeProcess(
                    container,
                    container_id,
                    slot.pid,
                    host_pid,
                    state,
                    process,
                    usage.status,
                    self._counted(usage, uuids, driven, has_utilization=has_utilization),
                )
            )

    def _stands_beside(self, place: _Place) -> bool:
        """Whether a region outside the roots is of a container that has one inside.

        A container can make any number of these; being counted there limits nothing.
        """
        container_id = place.container_id
        if place.container.directory is not None or container_id is None:
            return False
        known = self._by_id[container_id.id]
        inside = [known] if known.container.directory is not None else self._unnamed(container_id)
        return any(each.snapshot is not None for each in inside)

    def _counted(
        self,
        usage: ProcessUsage,
        uuids: Sequence[str | None],
        process: HostProcess | None,
        *,
        has_utilization: bool,
    ) -> tuple[ProcessDeviceRow, ...]:
        """The devices of a slot; with a process, the driver's figures of it too."""
        driver = self._driver
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
                rows.append(_row(device.index, uuid, used, sm, entry))
        if process is None:
            return tuple(rows)
        beside = [entry for entry in driver.entries(process) if entry.device_uuid not in uuids]
        nameless = [at for at, row in enumerate(rows) if row.uuid is None and row.memory_used_bytes]
        if len(beside) == len(nameless) == 1 and driver.lists_all:
            # The only device that the process uses, for the region as for the driver.
            row, (entry,) = rows[nameless[0]], beside
            rows[nameless[0]] = _row(
                row.index, entry.device_uuid, row.memory_used_bytes, row.sm_util_percent, entry
            )
            beside = []
        rows += [_row(None, entry.device_uuid, None, None, entry) for entry in beside]
        return tuple(rows)

    # ---- processes without -----------------------------------------------------------------------

    def _add_unlisted(self, place: _Place) -> None:
        if place.matched is None:
            return
        for process in place.matched.unlisted:
            if process.pid not in self._told:
                self._told.add(process.pid)
                state: ProcessState = "escaped" if self._driver.entries(process) else "unlisted"
                place.rows.append(self._uncounted(place, process, state))

    def _add_others(self) -> list[NodeProcess]:
        """What only the driver knows."""
        rest = []
        for pid in self._driver.pids:
            if pid in self._told:
                continue
            process = self._processes.get(pid)
            if process is None:
                rest.append(self._unseen(pid))
                continue
            if self._driver.is_newer(process):
                continue  # who was sampled has gone, and its pid is another's
            place, state = self._judge(process)
            row = self._uncounted(place, process, state)
            (rest if place is None else place.rows).append(row)
        return rest

    def _judge(self, process: HostProcess) -> tuple[_Place | None, ProcessState]:
        """Where a process belongs that uses a GPU and has no slot."""
        candidates = self._candidates(process)
        inside = process.ns_pids[-1]
        if any(inside in place.in_doubt for place in candidates):
            state: ProcessState = "unknown"
        elif any(place.unreadable for place in candidates):
            state = "unknown"
        elif not any(place.snapshot is not None for place in candidates):
            state = "unmanaged"
        elif all(place.snapshot is not None for place in candidates):
            state = "escaped"
        else:
            state = "unknown"
        return candidates[0] if len(candidates) == 1 else None, state

    def _candidates(self, process: HostProcess) -> list[_Place]:
        container_id = process.container
        if container_id is None:
            # It may be one of several that a slot can mean.
            inside = process.ns_pids[-1]
            doubtful = [place for place in self._places if inside in place.in_doubt]
            return [place for place in doubtful if self._maps(process, place)]
        place = self._by_id.get(container_id.id)
        if place is not None:
            return [place]
        return self._unnamed(container_id)

    def _unnamed(self, container_id: ContainerId) -> list[_Place]:
        """The containers of a pod that a container id may mean."""
        if container_id.pod_uid is None:
            return []
        # Whose id is known is another container of the pod.
        return [each for each in self._by_pod[container_id.pod_uid] if each.container_id is None]

    def _maps(self, process: HostProcess, place: _Place) -> bool:
        region = place.container.region
        if region is None or region.closed:
            return False
        return process in self._processes.mappers(*self._processes.identity(region))

    def _uncounted(
        self, place: _Place | None, process: HostProcess, state: ProcessState
    ) -> NodeProcess:
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
                _row(indexes.get(entry.device_uuid or ""), entry.device_uuid, None, None, entry)
                for entry in self._driver.entries(process)
            ),
        )

    def _unseen(self, pid: int) -> NodeProcess:
        """A process that the driver lists and /proc does not show."""
        devices = tuple(
            _row(None, entry.device_uuid, None, None, entry) for entry in self._driver.of_pid(pid)
        )
        return NodeProcess(None, None, None, pid, "unknown", None, None, devices)


def _row(
    index: int | None,
    uuid: str | None,
    used: int | None,
    sm: int | None,
    entry: NvmlProcess,
) -> ProcessDeviceRow:
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


def _is_own_namespace(processes: ProcessTable) -> bool:
    """Whether the pids of this /proc are those of the pid namespace that this program is in."""
    try:
        own = os.readlink(f"{processes.proc}/self")  # noqa: PTH115
    except OSError:
        return False
    process = processes.get(int(own)) if own.isdigit() else None
    return process is not None and len(process.ns_pids) == 1

"""What uses the GPUs of a node: slots, processes and the driver's figures in one list."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .uncounted import (
    ContainerFacts,
    DriverFigures,
    NodeProcess,
    Placement,
    ProcessDeviceRow,
    ProcessState,
    device_row,
    driver_gap,
    uncounted_processes,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from libhamiregion.models import ProcessUsage

    from .matching import HostProcess
    from .nvml.models import NvmlSample
    from .processes import ProcessTable
    from .views import ContainerView, OmittedSlots

__all__ = [
    "NodeProcess",
    "ProcessDeviceRow",
    "ProcessState",
    "driver_gap",
    "node_processes",
    "uncounted_processes",
]


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
        By container in the order of the views, in each the slots in their order, one row per state
        for those that the view has summed, then the processes without a slot; last what belongs to
        no container, by host pid.

    Cost: linear in slots and processes, some 10 us per slot with two devices.

    Shell: ``hamiregion ps``.
    """
    return _Join(tuple(views), processes, DriverFigures(processes, sample)).rows()


class _Join:
    def __init__(
        self, views: Sequence[ContainerView], processes: ProcessTable, driver: DriverFigures
    ) -> None:
        self._processes = processes
        self._driver = driver
        self._views = views
        self._placing = Placement([_place_of(view) for view in views], processes, driver)
        self._rows: dict[int, list[NodeProcess]] = {}
        # Host pids that have their row, with the driver's figures in it.
        self._told: set[int] = set()

    def rows(self) -> tuple[NodeProcess, ...]:
        places = self._placing.places
        rows: dict[int, list[NodeProcess]] = {id(place): [] for place in places}
        for place, view in zip(places, self._views, strict=True):
            rows[id(place)] += self._slots(place, view)
        for place, view in zip(places, self._views, strict=True):
            rows[id(place)] += self._unlisted(place, view)
        rest: list[NodeProcess] = []
        for pid in self._driver.pids:
            found = None
            if pid not in self._told:
                found = self._placing.row(pid, self._processes.get(pid))
            if found is not None:
                (rest if found[0] is None else rows[id(found[0])]).append(found[1])
        return (*(row for place in places for row in rows[id(place)]), *rest)

    def _slots(self, place: ContainerFacts, view: ContainerView) -> list[NodeProcess]:
        if view.snapshot is None or view.processes is None:
            return []
        beside = self._placing.stands_beside(place)
        uuids = [device.uuid for device in view.snapshot.devices]
        has_utilization = view.snapshot.layout.has_utilization
        rows = []
        for usage, slot in zip(view.snapshot.processes, view.processes.slots, strict=True):
            process = slot.process
            state: ProcessState = slot.state
            driven = None
            if process is not None and process.pid not in self._told:
                self._told.add(process.pid)
                driven = process
                if beside and self._driver.entries(process):
                    state = "escaped"
            rows.append(
                NodeProcess(
                    place.container,
                    (None if process is None else process.container) or place.container_id,
                    slot.pid,
                    None if process is None else process.pid,
                    state,
                    process,
                    usage.status,
                    self._counted(usage, uuids, driven, has_utilization=has_utilization),
                )
            )
        # Those beyond what a view holds have no row of their own, but they have been told of.
        self._told.update(process.pid for process in view.processes.alive.values())
        rows += [_omitted(place, uuids, each) for each in view.omitted]
        return rows

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
                rows.append(device_row(device.index, uuid, used, sm, entry))
        if process is None:
            return tuple(rows)
        beside = [entry for entry in driver.entries(process) if entry.device_uuid not in uuids]
        nameless = [at for at, row in enumerate(rows) if row.uuid is None and row.memory_used_bytes]
        if len(beside) == len(nameless) == 1 and driver.lists_all:
            # The only device that the process uses, for the region as for the driver.
            row, (entry,) = rows[nameless[0]], beside
            rows[nameless[0]] = device_row(
                row.index, entry.device_uuid, row.memory_used_bytes, row.sm_util_percent, entry
            )
            beside = []
        rows += [device_row(None, entry.device_uuid, None, None, entry) for entry in beside]
        return tuple(rows)

    def _unlisted(self, place: ContainerFacts, view: ContainerView) -> list[NodeProcess]:
        rows = []
        for process in () if view.processes is None else view.processes.unlisted:
            if process.pid not in self._told:
                self._told.add(process.pid)
                state: ProcessState = "escaped" if self._driver.entries(process) else "unlisted"
                rows.append(self._placing.uncounted(place, process, state))
        return rows


def _place_of(view: ContainerView) -> ContainerFacts:
    snapshot = view.snapshot
    uuids = None if snapshot is None else [(each.index, each.uuid) for each in snapshot.devices]
    return ContainerFacts.of(view.container, view.processes, uuids)


def _omitted(
    place: ContainerFacts, uuids: Sequence[str | None], omitted: OmittedSlots
) -> NodeProcess:
    devices = tuple(
        ProcessDeviceRow(index, uuid, used)
        for (index, used), uuid in zip(omitted.memory_used_bytes.items(), uuids, strict=False)
    )
    return NodeProcess(
        place.container,
        place.container_id,
        None,
        None,
        omitted.state,
        None,
        None,
        devices,
        omitted.slots,
    )

"""The processes of a node as rows: those in slots, and those without one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .join import Join
from .node_process import NodeProcess, ProcessDeviceRow
from .process_locator import ContainerFacts, ProcessLocator, container_facts
from .views import observed_views

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from libhamiregion.models import ProcessUsage

    from .matching import HostProcess
    from .node import Node
    from .node_process import ProcessState
    from .observation import Observation
    from .views import ContainerView, OmittedSlots


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
    return process_rows(Join(observation), observed_views(node, observation))


def process_rows(join: Join, views: Iterable[ContainerView]) -> tuple[NodeProcess, ...]:
    """What `node_processes` returns, of a join.

    Args:
        join: Slots, processes and the driver's lists.
        views: All containers of its observation, as `observed_views` has them.
    """
    seen = tuple(views)
    observation = join.observation
    proved = {each.container: each.processes for each in seen if each.processes is not None}
    containers = container_facts(observation, proved)
    locator = ProcessLocator(containers, observation.processes, join.driver)
    slots = _SlotRows(join, lambda: locator)
    found = {id(each.container): slots.of(each) for each in seen}
    uncounted = {
        row.host_pid: row
        for row in locator.rows(pid for pid in join.known.pids if pid not in slots.shown)
    }
    for facts in containers:
        for process in facts.unlisted:
            if process.pid not in slots.shown:
                slots.shown.add(process.pid)
                row = uncounted.pop(process.pid, None)
                found[id(facts.container)].append(
                    row or locator.uncounted(facts, process, "unlisted")
                )
    rest: list[NodeProcess] = []
    for row in uncounted.values():
        (rest if row.container is None else found[id(row.container)]).append(row)
    return (*(row for rows in found.values() for row in rows), *rest)


def slot_rows(join: Join, views: Iterable[ContainerView]) -> list[NodeProcess]:
    """The rows of the slots of some containers.

    Args:
        join: Slots, processes and the driver's lists.
        views: Containers of its observation.
    """
    slots = _SlotRows(join, lambda: join.locator)
    return [row for view in views for row in slots.of(view)]


class _SlotRows:
    """Makes the rows of slots, one container after the other.

    Args:
        join: Slots, processes and the driver's lists.
        find_locator: Finds whose a process is; asked for where it is needed.

    Attributes:
        shown: Pids of the processes that have their row.
    """

    def __init__(self, join: Join, find_locator: Callable[[], ProcessLocator]) -> None:
        self._join = join
        self._driver = join.driver
        self._find_locator = find_locator
        self.shown: set[int] = set()

    def of(self, view: ContainerView) -> list[NodeProcess]:
        """The rows of a container's slots; a process's first one has the driver's figures."""
        if view.snapshot is None or view.processes is None:
            return []
        container, snapshot = view.container, view.snapshot
        uuids = [device.uuid for device in snapshot.devices]
        facts = ContainerFacts.of(
            container, view.processes, [(each.index, each.uuid) for each in snapshot.devices]
        )
        # Only those outside the roots can be, and there are few of them.
        is_extra = container.directory is None and self._find_locator().is_extra_region(facts)
        rows = []
        for usage, slot in zip(snapshot.processes, view.processes.slots, strict=True):
            process = slot.process
            state: ProcessState = slot.state
            driven = None
            if (
                process is not None
                and process.pid not in self.shown
                and self._is_here(view, process)
            ):
                self.shown.add(process.pid)
                driven = process
                if is_extra and self._driver.entries(process):
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
        # Those beyond what a view holds have no row of their own, but a sum has them.
        self.shown.update(process.pid for process in view.processes.alive.values())
        rows += [_omitted(facts, uuids, each) for each in view.omitted]
        return rows

    def _is_here(self, view: ContainerView, process: HostProcess) -> bool:
        """Whether a container is the one of several in whose region a process counts."""
        slot = self._join.pairs.slot_of.get(process.pid)
        if slot is None:
            return True
        observation = self._join.observation
        region = observation.table.processes.region[slot]
        return observation.containers[region] is view.container

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
                rows.append(ProcessDeviceRow.of(device.index, uuid, used, sm, entry))
        if process is None:
            return tuple(rows)
        others = driver.entries(process, without=uuids)
        nameless = [at for at, row in enumerate(rows) if row.uuid is None and row.memory_used_bytes]
        if len(others) == len(nameless) == 1 and driver.lists_all:
            # The only device that the process uses, for the region as for the driver.
            row, (entry,) = rows[nameless[0]], others
            rows[nameless[0]] = ProcessDeviceRow.of(
                row.index, entry.device_uuid, row.memory_used_bytes, row.sm_util_percent, entry
            )
            others = ()
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

"""Which processes become series: those that the last refresh has proved, while they have slots."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from .device_plan import picker

if TYPE_CHECKING:
    from collections.abc import Mapping

    from libhamiregion.node import Container
    from libhamiregion.region_set import RegionTable

    from .background import Background, ShownProcesses
    from .device_plan import DevicePlan, Picker
    from .labels import Labels


@attrs.define(eq=False)
class ProcessPlan:
    """Which usage rows become series of processes."""

    devices: DevicePlan
    processes: Mapping[Container, ShownProcesses]
    key: bytes
    pick: Picker
    labels: list[Labels]
    #: Summed into one series each, which come after the others.
    folds: list[Picker]
    #: The same for those regions whose layout has utilisation.
    util_pick: Picker
    util_labels: list[Labels]
    util_folds: list[Picker]
    #: Of each of those, whose it is.
    util_owners: list[Container]


class ProcessPlanner:
    """Makes plans, and keeps the last one for as long as it holds."""

    def __init__(self) -> None:
        self._plan: ProcessPlan | None = None

    def plan_for(
        self, devices: DevicePlan, table: RegionTable, background: Background
    ) -> ProcessPlan:
        """The plan for what was just read."""
        key = table.processes.pid.tobytes() + table.regions.process_count.tobytes()
        plan = self._plan
        if (
            plan is None
            or plan.devices is not devices
            or plan.processes is not background.processes
            or plan.key != key
        ):
            plan = _new_plan(devices, table, background, key)
            self._plan = plan
        return plan


def _new_plan(
    devices: DevicePlan, table: RegionTable, background: Background, key: bytes
) -> ProcessPlan:
    first_process, process_count = table.regions.first_process, table.regions.process_count
    first_device, device_rows = table.regions.first_device, table.regions.device_rows
    pids, first_usage, indexes = (
        table.processes.pid,
        table.processes.first_usage,
        table.devices.index,
    )
    own: list[tuple[Labels, int, Container]] = []
    other: list[tuple[Labels, list[int], Container]] = []
    for row, container, _ in devices.shown:
        processes = background.processes.get(container)
        if processes is None:
            continue
        at = [indexes[first_device[row] + device] for device in range(device_rows[row])]
        folded: list[list[int]] = [[] for _ in at]
        taken = set()
        for process in range(first_process[row], first_process[row] + process_count[row]):
            pid = pids[process]
            shown = processes.alone.get(pid)
            # A pid that stands in several slots is one process: one series, the rest is summed.
            alone = shown is not None and pid not in taken
            if not alone and pid not in processes.alone and pid not in processes.folded:
                continue
            taken.add(pid)
            usage = first_usage[process]
            for device, index in enumerate(at):
                if not alone or shown is None:
                    folded[device].append(usage + device)
                elif index in shown:
                    own.append((shown[index], usage + device, container))
        for index, usages in zip(at, folded, strict=True):
            if usages and index in processes.other:
                other.append((processes.other[index], usages, container))
    has_util = {
        container: container.region is not None and container.region.layout.has_utilization
        for _, container, _ in devices.shown
    }
    own_util = [each for each in own if has_util[each[2]]]
    other_util = [each for each in other if has_util[each[2]]]
    labels = [each[0] for each in (*own, *other)]
    all_have = len(own_util) + len(other_util) == len(labels)
    return ProcessPlan(
        devices=devices,
        processes=background.processes,
        key=key,
        pick=picker([usage for _, usage, _ in own]),
        labels=labels,
        folds=[picker(usages) for _, usages, _ in other],
        util_pick=picker([usage for _, usage, _ in own_util]),
        util_labels=labels if all_have else [each[0] for each in (*own_util, *other_util)],
        util_folds=[picker(usages) for _, usages, _ in other_util],
        util_owners=[each[2] for each in (*own_util, *other_util)],
    )

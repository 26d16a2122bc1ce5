"""What each container uses of its limits, with bars: the middle part of `hamiregion top`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from .format import NAME_COLUMNS, Names, names_of
from .tables import (
    METER,
    NUMBER,
    OVER,
    PERCENT,
    PERCENT_LIMIT,
    QUIET,
    ROOMY,
    SIZE,
    SIZE_LIMIT,
    Column,
    Fill,
    Table,
    ratio_style,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from libhamiregion import DeviceUsage
    from libhamiregion.node import ContainerView, Node, NodeProcess, Selector

# Columns of a terminal from which there is room for the driver's memory, and for more bars.
_DRIVER = 80
_SM_BARS = 100
# libvgpu keeps a process near its SM limit, not under it: a little above is how it works.
_SM_SLACK = 10


@attrs.frozen
class DeviceUse:
    """One device of a container.

    Attributes:
        usage: As the region counts it, with its limits.
        has_utilization: Whether the region's layout has utilisation at all.
        memory_driver_bytes: What the driver says of the container's processes there; None if it
            says nothing of them.
        driver_sm_percent: Their SM utilisation by the driver; None as above.
        driver_index: The GPU's number for the driver; None if unknown.
    """

    usage: DeviceUsage
    has_utilization: bool
    memory_driver_bytes: int | None = None
    driver_sm_percent: int | None = None
    driver_index: int | None = None

    @property
    def memory_ratio(self) -> float | None:
        """Used memory as a share of the limit; None without a limit."""
        limit = self.usage.memory_limit_bytes
        return None if limit is None else self.usage.memory_used_bytes / limit

    @property
    def sm_percent(self) -> int | None:
        """SM utilisation as the region has it; None where its layout has none."""
        return self.usage.sm_util_percent if self.has_utilization else None


@attrs.frozen(kw_only=True)
class ContainerUse(Names):
    """A container with what it uses of each of its devices."""

    devices: tuple[DeviceUse, ...]


def container_uses(
    node: Node,
    views: Iterable[ContainerView],
    processes: Iterable[NodeProcess],
    selector: Selector,
) -> list[ContainerUse]:
    """Sum up what every chosen container uses.

    Args:
        node: Whose containers they are.
        views: What `Node.view` gave.
        processes: What `node_processes` made of it.
        selector: Which containers and devices.
    """
    driven: dict[int, list[NodeProcess]] = {}
    for process in processes:
        if process.container is not None:
            driven.setdefault(id(process.container), []).append(process)
    uses = []
    for view in views:
        container, snapshot = view.container, view.snapshot
        if snapshot is None or not selector.matches(container):
            continue
        devices = tuple(
            _device_use(device, driven.get(id(container), ()), snapshot.layout.has_utilization)
            for device in snapshot.devices
            if selector.device is None or selector.matches_device(device)
        )
        if devices:
            uses.append(ContainerUse(**names_of(node, container), devices=devices))
    return uses


def _device_use(
    device: DeviceUsage, processes: Sequence[NodeProcess], has_utilization: bool
) -> DeviceUse:
    rows = [
        row
        for process in processes
        for row in process.devices
        # What only the driver knows has the uuid and no index.
        if row.index == device.index or (row.index is None and row.uuid == device.uuid is not None)
    ]
    memory = [row.memory_driver_bytes for row in rows if row.memory_driver_bytes is not None]
    sm = [row.driver_sm_percent for row in rows if row.driver_sm_percent is not None]
    indices = [row.driver_index for row in rows if row.driver_index is not None]
    return DeviceUse(
        device,
        has_utilization,
        sum(memory) if memory else None,
        sum(sm) if sm else None,
        indices[0] if indices else None,
    )


_ORDERS: dict[str, Callable[[ContainerUse], Any]] = {
    "name": lambda use: use.order,
    "memory": lambda use: -sum(each.usage.memory_used_bytes for each in use.devices),
    "sm": lambda use: -sum(each.sm_percent or 0 for each in use.devices),
}


def use_table(uses: Iterable[ContainerUse], sort: str, *, driver: bool) -> Table:
    """Draw containers with bars of used against limit, on a terminal.

    Args:
        uses: The containers.
        sort: As `top` sorts its processes; containers have no pid and then go by name.
        driver: Whether the driver answers, so that there are figures of it.
    """
    columns = _COLUMNS if driver else [each for each in _COLUMNS if each not in _OF_DRIVER]
    return Table(columns, sorted(uses, key=_ORDERS.get(sort, _ORDERS["name"])), "devices")


def _memory_bar(device: DeviceUse) -> Fill:
    return Fill(device.memory_ratio or 0.0, _memory_style(device), width=10)


def _memory_style(device: DeviceUse) -> str:
    return ratio_style(device.memory_ratio)


def _sm_bar(device: DeviceUse) -> Fill:
    limit, sm = device.usage.sm_limit_percent, device.sm_percent or 0
    style = OVER if limit is not None and sm > limit + _SM_SLACK else "cyan"
    return Fill(sm / 100, style, None if limit is None else limit / 100, width=10)


_OF_DRIVER = (
    Column("", part="driver_index", kind=NUMBER, title="GPU", from_width=ROOMY),
    Column(
        "", part="memory_driver_bytes", kind=SIZE, title="driver", style=QUIET, from_width=_DRIVER
    ),
    Column(
        "", part="driver_sm_percent", kind=PERCENT, title="SM drv", style=QUIET, from_width=_SM_BARS
    ),
)
_GPU, _MEMORY_DRIVER, _SM_DRIVER = _OF_DRIVER
_COLUMNS = [
    *NAME_COLUMNS,
    Column("", part="usage.index", kind=NUMBER, title="dev", style="bold"),
    _GPU,
    Column("", part=_memory_bar, kind=METER, title="memory"),
    Column("", part="usage.memory_used_bytes", kind=SIZE, title="used", style=_memory_style),
    Column("", part="usage.memory_limit_bytes", kind=SIZE_LIMIT, title="limit"),
    _MEMORY_DRIVER,
    Column("", part=_sm_bar, kind=METER, title="SM", from_width=_SM_BARS),
    Column("", part="sm_percent", kind=PERCENT, title="SM"),
    Column("", part="usage.sm_limit_percent", kind=PERCENT_LIMIT, title="limit"),
    _SM_DRIVER,
]

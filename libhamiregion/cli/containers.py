"""`hamiregion containers`: the containers of a node, limits and usage, or why there is none."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import attrs
import click

from libhamiregion import RegionSnapshot
from libhamiregion.node import Observer
from libhamiregion.node.containers import missing_for
from libhamiregion.node.views import observed_views

from . import options
from .format import (
    NAME_COLUMNS,
    Names,
    fill_ratio,
    lock_word,
    memory_bar,
    memory_style,
    names_of,
    sm_bar,
)
from .help import Verb
from .node_page import node_page
from .output import Page, show_all, ticks
from .tables import (
    CRITICAL,
    DIM,
    DRAWING,
    GOOD,
    NAME,
    NUMBER,
    PERCENT,
    PERCENT_LIMIT,
    ROOMY,
    SIZE,
    SIZE_LIMIT,
    TEXT,
    WARN,
    WIDE,
    Column,
    Table,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from libhamiregion import DeviceUsage
    from libhamiregion.node import Container, ContainerView, Node, NodeProcess, Selector
    from libhamiregion.node.containers import MissingRegion

    from .options import NodeChoice


@click.command(
    cls=Verb,
    examples=["hamiregion containers", "hamiregion containers --namespace research --watch 2"],
)
@options.node_options
@options.selector_options
@options.watch_option
@options.wide_output_options
def containers(
    node_choice: NodeChoice, selector: Selector, wide: bool, interval_s: float | None, as_json: bool
) -> None:
    """Show the containers of this node: usage, limits, processes, or why there is no region."""
    with node_choice.open() as node:
        observer = Observer(node, anew=True)
        pages = (
            container_page(observer, selector, node_choice, wide=wide) for _ in ticks(interval_s)
        )
        show_all(pages, interval_s, as_json)


def container_page(
    observer: Observer, selector: Selector, node_choice: NodeChoice, *, wide: bool
) -> Page:
    """Look at the node's containers."""
    node, observation = observer.node, observer.observe()
    rows = container_rows(node, observed_views(node, observation), selector)
    present = [row for row in rows if row.missing is None]
    missing = [row for row in rows if row.missing is not None]
    empty = "" if missing else "No container has a directory or maps a region."
    more = WIDE_COLUMNS if wide else ()
    blocks = [container_table((*COLUMNS, *more), present, empty)]
    if missing:
        blocks.append(Table(_MISSING_COLUMNS, missing))
    return node_page(
        "containers/1",
        observation,
        node,
        node_choice,
        {"containers": [row.as_object() for row in rows]},
        blocks,
        selector=selector,
        found=bool(rows),
    )


@attrs.frozen
class DeviceRow:
    """One device of a container.

    Attributes:
        usage: As the region counts it, with its limits.
        sm_percent: SM utilisation as the region has it; None if its layout has none.
        memory_driver_bytes: What the driver says of the container's processes there, or None.
        driver_sm_percent: Their SM utilisation by the driver, or None.
    """

    usage: DeviceUsage
    sm_percent: int | None
    memory_driver_bytes: int | None = None
    driver_sm_percent: int | None = None


@attrs.frozen(kw_only=True)
class ContainerRow(Names):
    """A container with its region, or with why it has none."""

    found: Container
    missing: MissingRegion | None = None
    snapshot: RegionSnapshot | None = None
    lock: str | None = None
    #: How many processes of each state.
    states: dict[str, int] | None = None
    devices: tuple[DeviceRow, ...] = ()

    @property
    def file(self) -> str | None:
        """The region's file; outside the roots as its processes see it."""
        return self.found.path_in_namespace or self.found.region_path

    @property
    def needs_attention(self) -> bool:
        """Whether a process is dead, the lock is its, or memory is over its limit."""
        return (
            bool(self.states and self.states["dead"])
            or (self.lock or "").startswith("dead:")
            or any((fill_ratio(each.usage) or 0) > 1 for each in self.devices)
        )

    def as_object(self) -> dict[str, Any]:
        """The container for --json."""
        names = {field.name: getattr(self, field.name) for field in attrs.fields(Names)}
        places = ("directory", "region_path", "path_in_namespace", "other_files")
        return {
            **names,
            **{name: getattr(self.found, name) for name in places},
            "reason": None if self.missing is None else self.missing.reason,
            "message": None if self.missing is None else self.missing.message,
            **{name: getattr(self.snapshot, name, None) for name in _OF_SNAPSHOT},
            "lock": self.lock,
            "processes": self.states,
            "devices": [each.usage for each in self.devices],
        }


_OF_SNAPSHOT = [
    field.name
    for field in attrs.fields(RegionSnapshot)
    if field.name not in {"path", "taken_at_ns", "devices", "processes"}
]


def container_rows(
    node: Node,
    views: Iterable[ContainerView],
    selector: Selector,
    processes: Iterable[NodeProcess] = (),
) -> list[ContainerRow]:
    """Gather what there is to show of the selected containers, by name.

    Args:
        node: Whose containers they are.
        views: What was observed of them.
        selector: Which containers and devices.
        processes: The processes of the node, for the driver's figures.
    """
    of_container: defaultdict[int, list[NodeProcess]] = defaultdict(list)
    for process in processes:
        of_container[id(process.container)].append(process)
    rows = [
        _container_row(node, view, selector, of_container[id(view.container)])
        for view in views
        if selector.matches(view.container)
    ]
    if selector.device is not None:
        rows = [row for row in rows if row.devices]
    return sorted(rows, key=lambda row: row.order)


def _container_row(
    node: Node, view: ContainerView, selector: Selector, processes: Sequence[NodeProcess]
) -> ContainerRow:
    container, snapshot = view.container, view.snapshot
    names = names_of(node, container)
    if snapshot is None:
        missing = container.missing if view.error is None else missing_for(view.error)
        return ContainerRow(**names, found=container, missing=missing)
    slots = () if view.processes is None else view.processes.slots
    states = dict.fromkeys(("alive", "dead", "unknown"), 0)
    for slot in slots:
        states[slot.state] += 1
    for omitted in view.omitted:
        states[omitted.state] += omitted.slots
    states["unlisted"] = 0 if view.processes is None else len(view.processes.unlisted)
    return ContainerRow(
        **names,
        found=container,
        snapshot=snapshot,
        lock=lock_word(snapshot.owner_pid, {each.pid for each in slots if each.state == "dead"}),
        states=states,
        devices=tuple(
            _device_row(device, processes, snapshot.layout.has_utilization)
            for device in snapshot.devices
            if selector.device is None or selector.matches_device(device)
        ),
    )


def _device_row(
    device: DeviceUsage, processes: Sequence[NodeProcess], has_utilization: bool
) -> DeviceRow:
    rows = [
        row
        for process in processes
        for row in process.devices
        # A device that only the driver knows of has the uuid and no index.
        if row.index == device.index or (row.index is None and row.uuid == device.uuid is not None)
    ]
    memory = [row.memory_driver_bytes for row in rows if row.memory_driver_bytes is not None]
    sm = [row.driver_sm_percent for row in rows if row.driver_sm_percent is not None]
    return DeviceRow(
        device,
        device.sm_util_percent if has_utilization else None,
        sum(memory) if memory else None,
        sum(sm) if sm else None,
    )


def container_table(
    columns: Sequence[Column], rows: Sequence[ContainerRow], empty: str = ""
) -> Table:
    """One row per container and device; those that need attention come first."""
    return Table(columns, rows, "devices", empty, lambda row: row.needs_attention)


def _process_words(row: ContainerRow) -> str | None:
    if row.states is None:
        return None
    alive, *others = row.states.items()
    return " ".join([str(alive[1]), *(f"+{number} {state}" for state, number in others if number)])


def _process_style(row: ContainerRow) -> str:
    states = row.states or {}
    if not any(states.values()):
        return DIM
    if states["dead"]:
        return f"bold {CRITICAL}"
    return WARN if states["unknown"] or states["unlisted"] else GOOD


def _count_of(state: str) -> Column:
    return Column(state.upper(), lambda row: row.states and row.states[state], NUMBER, on="pipe")


USAGE_COLUMNS = (
    Column("DEVICE", part="usage.index", format=NUMBER, title="dev", style="bold"),
    Column(
        "", part=lambda each: memory_bar(each.usage), format=DRAWING, title="memory", on="terminal"
    ),
    Column(
        "MEM-USED",
        part="usage.memory_used_bytes",
        format=SIZE,
        title="used",
        style=lambda each: memory_style(each.usage),
    ),
    Column("MEM-LIMIT", part="usage.memory_limit_bytes", format=SIZE_LIMIT, title="limit"),
)
SM_COLUMNS = (
    Column(
        "",
        part=lambda each: sm_bar(each.sm_percent, each.usage.sm_limit_percent),
        format=DRAWING,
        title="SM",
        on="terminal",
        from_width=ROOMY,
    ),
    Column("SM", part="sm_percent", format=PERCENT, title="SM"),
    Column("SM-LIMIT", part="usage.sm_limit_percent", format=PERCENT_LIMIT, title="limit"),
)
COLUMNS = (
    *NAME_COLUMNS,
    Column("LAYOUT", "snapshot.layout", from_width=WIDE),
    *USAGE_COLUMNS,
    *SM_COLUMNS,
    *map(_count_of, ("alive", "dead", "unknown")),
    Column("", _process_words, title="processes", style=_process_style, on="terminal"),
    Column("PRIORITY", "snapshot.priority", NUMBER, title="prio", from_width=WIDE),
    Column("LOCK", "lock", style=lambda row: "" if row.lock == "free" else WARN, from_width=ROOMY),
)
WIDE_COLUMNS = (
    Column("UUID", part="usage.uuid", format=NAME, style=DIM),
    Column("FILE", "file", TEXT, style=DIM, from_width=WIDE),
)
_MISSING_COLUMNS = (
    *NAME_COLUMNS,
    Column("REASON", "missing.reason", on="pipe"),
    Column("MESSAGE", "missing.message", TEXT, title="no region, because"),
)

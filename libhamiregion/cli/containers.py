"""`hamiregion containers`: the containers of a node, limits and usage, or why there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import click

from libhamiregion import RegionSnapshot
from libhamiregion.node import Observer
from libhamiregion.node.containers import missing_for
from libhamiregion.node.views import observed_views

from . import options
from .format import NAME_COLUMNS, Names, lock_word, names_of
from .intervals import ticks
from .output import Page, node_page, show_all
from .show import memory_bar, memory_style
from .tables import (
    BAR,
    GOOD,
    NAME,
    NEAR,
    NUMBER,
    OVER,
    PERCENT,
    PERCENT_LIMIT,
    QUIET,
    ROOMY,
    SIZE,
    SIZE_LIMIT,
    TEXT,
    WIDE,
    Column,
    Table,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from libhamiregion import DeviceUsage
    from libhamiregion.node import Container, ContainerView, Node, Selector
    from libhamiregion.node.containers import MissingRegion

    from .options import NodeChoice


# Columns of a terminal from which there is room for paths.
_PATHS = 200


@click.command()
@options.node_options
@options.selector_options
@options.wide_option
@options.watch_option
@options.json_option
def containers(
    node_choice: NodeChoice, selector: Selector, wide: bool, interval_s: float | None, as_json: bool
) -> None:
    """Show the containers of this node: usage, limits, processes, or why there is no region.

    One line per container and device, then the containers that have a directory and no region,
    each with the reason.

    SM is the sum over the processes, so it can pass 100.  ALIVE, DEAD and UNKNOWN count slots, as
    /proc proves it; a dead process's memory still counts (hamiregion reap).  LOCK is free, pid:N
    or dead:N (the pid of the container's namespace that has signed for it), or tool (a program
    with libhamiregion).  PATTERNs are those of the shell.

    \b
    hamiregion containers --namespace research --watch 2

    Exit code 1 if no directory of containers can be listed, or no container is selected.

    JSON: taken_at_ns, complete (all processes could be seen), warnings, gaps (as of `hamiregion
    ps`), and containers, a list of objects with the keys namespace, pod, pod_uid, container,
    container_id, directory, region_path, path_in_namespace (outside the DIRs: the file as its
    processes see it), other_files, reason (no_file, not_ready, not_a_region, unknown_layout,
    no_permission, stale, failed, or null), message, the fields of RegionSnapshot but path and
    taken_at_ns, lock, processes (alive, dead, unknown, unlisted: how many) and devices, with the
    fields of DeviceUsage.  null is unlimited, or not known.
    """  # noqa: D301 (click looks for the character itself)
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
    rows = [
        container_row(node, view, selector)
        for view in observed_views(node, observation)
        if selector.matches(view.container)
    ]
    if selector.device is not None:
        rows = [row for row in rows if row.devices]
    rows.sort(key=lambda row: row.order)
    present = [row for row in rows if row.missing is None]
    missing = [row for row in rows if row.missing is not None]
    empty = "" if missing else "No container has a directory or maps a region."
    blocks = [Table(_columns(wide), present, "shown", empty)]
    if missing:
        blocks.append(Table(_MISSING_COLUMNS, missing))
    data = {"containers": [row.as_object() for row in rows]}
    return node_page(
        "containers/1",
        observation,
        node,
        node_choice,
        data,
        blocks,
        selector=selector,
        found=bool(rows),
    )


@attrs.frozen(kw_only=True)
class ContainerRow(Names):
    """A container with its region, or with why it has none."""

    found: Container
    missing: MissingRegion | None
    snapshot: RegionSnapshot | None
    lock: str | None = None
    #: How many processes of each state.
    states: dict[str, int] | None = None
    devices: tuple[DeviceUsage, ...] = ()

    @property
    def file(self) -> str | None:
        """The region's file; outside the roots as its processes see it."""
        return self.found.path_in_namespace or self.found.region_path

    @property
    def shown(self) -> Sequence[DeviceUsage]:
        """The devices; without utilisation where the layout has none."""
        if self.snapshot is None or self.snapshot.layout.has_utilization:
            return self.devices
        # None is "not known" in a column, and in no device of a snapshot.
        return [attrs.evolve(each, sm_util_percent=None) for each in self.devices]  # type: ignore[arg-type]

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
            "devices": self.devices,
        }


_OF_SNAPSHOT = [
    field.name
    for field in attrs.fields(RegionSnapshot)
    if field.name not in {"path", "taken_at_ns", "devices", "processes"}
]


def container_row(node: Node, view: ContainerView, selector: Selector) -> ContainerRow:
    """Gather what there is to show of a container."""
    container, snapshot = view.container, view.snapshot
    names = names_of(node, container)
    if snapshot is None:
        missing = container.missing if view.error is None else missing_for(view.error)
        return ContainerRow(**names, found=container, missing=missing, snapshot=None)
    slots = () if view.processes is None else view.processes.slots
    states = dict.fromkeys(("alive", "dead", "unknown"), 0)
    for slot in slots:
        states[slot.state] += 1
    for omitted in view.omitted:
        states[omitted.state] += omitted.slots
    states["unlisted"] = 0 if view.processes is None else len(view.processes.unlisted)
    dead = {slot.pid for slot in slots if slot.state == "dead"}
    return ContainerRow(
        **names,
        found=container,
        missing=None,
        snapshot=snapshot,
        lock=lock_word(snapshot.owner_pid, dead),
        states=states,
        devices=tuple(
            device
            for device in snapshot.devices
            if selector.device is None or selector.matches_device(device)
        ),
    )


def _columns(wide: bool) -> Sequence[Column]:
    more = (
        Column("UUID", part="uuid", kind=NAME, style=QUIET),
        Column("FILE", "file", TEXT, style=QUIET, from_width=_PATHS),
    )
    return (*_COLUMNS, *(more if wide else ()))


def _process_words(row: ContainerRow) -> str | None:
    if row.states is None:
        return None
    alive, *others = row.states.items()
    return " ".join([str(alive[1]), *(f"+{number} {state}" for state, number in others if number)])


def _process_style(row: ContainerRow) -> str:
    states = row.states or {}
    if not any(states.values()):
        return QUIET
    if states["dead"]:
        return f"bold {OVER}"
    return NEAR if states["unknown"] or states["unlisted"] else GOOD


def _count_of(state: str) -> Column:
    return Column(state.upper(), lambda row: row.states and row.states[state], NUMBER, on="pipe")


def _lock_style(row: ContainerRow) -> str:
    return "" if row.lock == "free" else NEAR


_COLUMNS = (
    *NAME_COLUMNS,
    Column("LAYOUT", "snapshot.layout", from_width=ROOMY),
    Column("DEVICE", part="index", kind=NUMBER, title="dev", style="bold"),
    Column("", part=memory_bar, kind=BAR, title="memory", on="terminal", from_width=WIDE),
    Column("MEM-USED", part="memory_used_bytes", kind=SIZE, title="used", style=memory_style),
    Column("MEM-LIMIT", part="memory_limit_bytes", kind=SIZE_LIMIT, title="limit"),
    Column("SM", part="sm_util_percent", kind=PERCENT, title="SM"),
    Column("SM-LIMIT", part="sm_limit_percent", kind=PERCENT_LIMIT, title="limit"),
    *map(_count_of, ("alive", "dead", "unknown")),
    Column("", _process_words, title="processes", style=_process_style, on="terminal"),
    Column("PRIORITY", "snapshot.priority", NUMBER, title="prio", from_width=ROOMY),
    Column("LOCK", "lock", style=_lock_style, from_width=ROOMY),
)
_MISSING_COLUMNS = (
    *NAME_COLUMNS,
    Column("REASON", "missing.reason", on="pipe"),
    Column("MESSAGE", "missing.message", TEXT, title="no region, because"),
)

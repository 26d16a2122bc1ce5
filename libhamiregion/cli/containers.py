"""`hamiregion containers`: the containers of a node, limits and usage, or why there is none."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import attrs
import click

from libhamiregion import DeviceUsage, RegionSnapshot
from libhamiregion.observation.cards import cards
from libhamiregion.observation.containers import NOT_LIMITED, MissingRegion, missing_for
from libhamiregion.observation.figures import with_sm, without_impossible
from libhamiregion.observation.pairing import devices_of
from libhamiregion.observation.rows import Join, ProcessDeviceRow
from libhamiregion.observation.without_region import figures_without_region

from . import options
from .format import fill_ratio, lock_word, memory_bar, sm_bar
from .help import verb
from .names import Names, name_columns, names_of
from .tables import CRITICAL, DIM, GOOD, ROOMY, WARN, WIDE, Column, On, Page, Table
from .views import NodeView, Opened, view_options

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from libhamiregion.node import Container, Observation
    from libhamiregion.observation.model import ContainerDetails
    from libhamiregion.observation.selector import HasDevice

    from .output import Answer


@verb("hamiregion containers", "hamiregion containers --namespace research --watch 2")
@view_options
@click.option("--by", type=click.Choice(["gpu"]), help="Sum up the limits on each GPU.")
@options.watch_options
def containers(opened: Opened, by: str | None, answer: Answer) -> None:
    """Show the containers of this node: usage, limits, processes, or why there is no region."""
    with opened as view:
        view.show(lambda node: container_page(node, wide=answer.wide, by=by), answer)


def container_page(view: NodeView, *, wide: bool, by: str | None = None) -> Page:
    """Observe the node, and show its containers, or its GPUs with their limits."""
    observation = view.observer.observe()
    rows = container_rows(view, observation)
    present = [row for row in rows if row.missing is None]
    missing = [row for row in rows if row.missing is not None]
    empty = "" if missing else "No container has a directory or maps a region."
    names = name_columns(observation.all_containers)
    columns = (
        *names,
        Column("LAYOUT", "snapshot.layout", from_width=WIDE),
        *device_columns(observation),
        *COLUMNS,
        *(WIDE_COLUMNS if wide else ()),
    )
    by_gpu = list(cards(observation).values())
    blocks = [Table(columns, present, "devices", empty, needs_attention)]
    if by is not None:
        blocks = [Table(_CARD_COLUMNS, by_gpu, attention=lambda card: card.is_overcommitted)]
    elif missing:
        blocks.append(missing_table(observation, missing))
    data = {"containers": [row.as_object() for row in rows], "by_gpu": by_gpu}
    return view.page("containers/1", observation, data, blocks, found=bool(rows))


@attrs.frozen
class DeviceRow:
    """One device of a container.

    Attributes:
        usage: As the region counts it, with its limits.
        sm_percent: SM utilisation as the region has it; None if its layout has none.
        gpu: NVML index of its GPU; None if not known.
    """

    usage: DeviceUsage
    sm_percent: int | None
    gpu: int | None


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
    #: By the driver, without a region.
    driver_devices: tuple[ProcessDeviceRow, ...] = ()

    @property
    def memory_bytes(self) -> int:
        """Its memory on all devices."""
        counted = sum(each.usage.memory_used_bytes or 0 for each in self.devices)
        return counted + sum(each.memory_driver_bytes or 0 for each in self.driver_devices)

    @property
    def sm_percent(self) -> int:
        """Its utilisation of all devices."""
        counted = sum(each.sm_percent or 0 for each in self.devices)
        return counted + sum(each.driver_sm_percent or 0 for each in self.driver_devices)

    def as_object(self) -> dict[str, Any]:
        """The container for --json."""
        places = ("directory", "region_path", "path_in_namespace", "other_files")
        return {
            **{field.name: getattr(self, field.name) for field in attrs.fields(Names)},
            **{name: getattr(self.found, name) for name in places},
            "reason": None if self.missing is None else self.missing.reason,
            "message": None if self.missing is None else self.missing.message,
            **{name: getattr(self.snapshot, name, None) for name in _OF_SNAPSHOT},
            "lock": self.lock,
            "processes": self.states,
            "devices": [each.usage for each in self.devices],
            "driver_devices": self.driver_devices,
        }


_OF_SNAPSHOT = [
    field.name
    for field in attrs.fields(RegionSnapshot)
    if field.name not in {"path", "taken_at_ns", "devices", "processes"}
]


def needs_attention(row: ContainerRow) -> bool:
    """Whether a process is dead, the lock is its, or memory is over its limit."""
    return (
        bool(row.states and row.states["dead"])
        or (row.lock or "").startswith("dead:")
        or any((fill_ratio(each.usage) or 0) > 1 for each in row.devices)
    )


def container_rows(view: NodeView, observation: Observation) -> list[ContainerRow]:
    """Gather the selected containers, by name."""
    test, join = view.device_test(observation), Join(observation)
    driver = figures_without_region(join)
    rows = [
        attrs.evolve(
            _container_row(details, test, join, row),
            driver_devices=tuple(filter(test, driver.get(details.container, ()))),
        )
        for row, details in enumerate(observation.details())
        if view.selector.matches(details.container)
    ]
    if test is not None:
        rows = [row for row in rows if row.devices or row.driver_devices]
    return sorted(rows, key=lambda row: row.order)


def missing_table(observation: Observation, rows: Sequence[ContainerRow]) -> Table:
    """Containers without a region: the driver's figures of their GPUs, and why there is none."""
    names = name_columns(observation.all_containers)
    on: On = "both" if observation.gpus else "pipe"
    columns = [attrs.evolve(each, on=on) for each in _DRIVER_COLUMNS]
    return Table(
        (*names, *columns, *_MISSING_COLUMNS),
        rows,
        "driver_devices",
        attention=lambda row: row.missing == NOT_LIMITED,
    )


def _container_row(
    details: ContainerDetails, test: Callable[[HasDevice], bool] | None, join: Join, row: int
) -> ContainerRow:
    container, gpus = details.container, join.observation.gpu_indexes
    snapshot = None if details.snapshot is None else without_impossible(details.snapshot)
    names = names_of(container)
    if snapshot is None or details.processes is None:
        missing = container.missing if details.error is None else missing_for(details.error)
        return ContainerRow(**names, found=container, missing=missing)
    slots = Counter(each.state for each in details.processes.slots)
    states = {state: slots[state] for state in ("alive", "dead", "unknown")}
    states["unlisted"] = len(details.processes.unlisted)
    devices, has_utilization = snapshot.devices, snapshot.layout.has_utilization
    if has_utilization:
        rows = devices_of(join.observation.table, row)
        devices = with_sm(devices, [join.device_percents[each] for each in rows])
    return ContainerRow(
        **names,
        found=container,
        snapshot=snapshot,
        lock=lock_word(snapshot.owner_pid, details.processes.dead),
        states=states,
        devices=tuple(
            DeviceRow(
                device,
                device.sm_util_percent if has_utilization else None,
                gpus.get(device.uuid),
            )
            for device in devices
            if test is None or test(device)
        ),
    )


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


def _file(row: ContainerRow) -> str | None:
    # Outside the roots as its processes see it.
    return row.found.path_in_namespace or row.found.region_path


def _count_of(state: str) -> Column:
    return Column(state.upper(), lambda row: row.states and row.states[state], "number", on="pipe")


def device_columns(observation: Observation) -> tuple[Column, Column]:
    """Columns that say which device it is."""
    on: On = "both" if observation.gpus else "pipe"
    return (
        Column("DEVICE", part="usage.index", format="number", title="dev", style="bold"),
        Column("GPU", part="gpu", format="number", title="GPU", on=on, from_width=ROOMY),
    )


USAGE_COLUMNS = (
    Column("", part=lambda each: memory_bar(each.usage), format="drawing", title="memory"),
    Column(
        "MEM-USED",
        part="usage.memory_used_bytes",
        format="size",
        title="used",
        style=lambda each: memory_bar(each.usage).style,
    ),
    Column("MEM-LIMIT", part="usage.memory_limit_bytes", format="size_limit", title="limit"),
)
SM_COLUMNS = (
    Column(
        "",
        part=lambda each: sm_bar(each.sm_percent, each.usage.sm_limit_percent),
        format="drawing",
        title="SM",
        from_width=ROOMY,
    ),
    Column("SM", part="sm_percent", format="percent", title="SM"),
    Column("SM-LIMIT", part="usage.sm_limit_percent", format="percent_limit", title="limit"),
)
COLUMNS = (
    *USAGE_COLUMNS,
    *SM_COLUMNS,
    *map(_count_of, ("alive", "dead", "unknown")),
    Column("", _process_words, title="processes", style=_process_style),
    Column("PRIORITY", "snapshot.priority", "number", title="prio", from_width=WIDE),
    Column("LOCK", "lock", style=lambda row: "" if row.lock == "free" else WARN, from_width=ROOMY),
)
WIDE_COLUMNS = (
    Column("UUID", part="usage.uuid", format="name", style=DIM),
    Column("FILE", _file, "text", style=DIM, from_width=WIDE),
)
_CARD_COLUMNS = (
    Column("GPU", "index", "number", title="GPU", style="bold"),
    Column("NAME", "name", "name", style=DIM),
    Column("DEVICES", "devices", "number"),
    Column(
        "MEM-LIMITS",
        "memory_limits_bytes",
        "size",
        title="limits",
        style=lambda card: WARN if card.is_overcommitted else "",
    ),
    Column("MEM-TOTAL", "memory_total_bytes", "size", title="of"),
    Column("MEM-DRIVER", "memory_used_bytes", "size", title="used"),
    Column("SM-LIMITS", "sm_limits_percent", "percent", title="SM limits"),
    Column("UUID", "uuid", "name", style=DIM),
)
_DRIVER_COLUMNS = (
    Column("GPU", part="driver_index", format="number", title="GPU", style="bold"),
    Column("MEM-DRIVER", part="memory_driver_bytes", format="size", title="driver"),
    Column("SM-DRIVER", part="driver_sm_percent", format="percent", title="SM drv"),
)
_MISSING_COLUMNS = (
    Column("REASON", "missing.reason", on="pipe"),
    Column("MESSAGE", "missing.message", "text", title="no region, because"),
)

"""`hamiregion ps` and `hamiregion top`: the processes of a node, and what they use of its GPUs."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any

import attrs
import click

from libhamiregion import ProcessStatus, format_size
from libhamiregion.node.join import Join
from libhamiregion.node.process_rows import process_rows
from libhamiregion.node.views import observed_views

from . import options
from .containers import SM_COLUMNS, USAGE_COLUMNS, container_rows, container_table
from .format import NAME_COLUMNS, Names, count, names_of, ratio_bar, sm_bar
from .help import Verb
from .node_page import driver_answer, node_page
from .output import Page, on_terminal, show_all, ticks
from .tables import (
    CRITICAL,
    DIM,
    DRAWING,
    GOOD,
    NAME,
    NUMBER,
    PERCENT,
    ROOMY,
    SIZE,
    WARN,
    WIDE,
    CellFormat,
    Column,
    Lines,
    Spark,
    Table,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from libhamiregion.node import Node, NodeProcess, Observer, ProcessDeviceRow, Selector
    from libhamiregion.node.nvml import NvmlDevice

    from .containers import ContainerRow
    from .options import DriverChoice, NodeChoice
    from .tables import Block, On

_SORTS = ("name", "memory", "sm", "pid")
# What a live table is sorted by after a key.
_SORT_KEYS = {"m": "memory", "s": "sm", "n": "name", "p": "pid"}
_KEYS = (
    "m  sort by memory        n  sort by name of pod and container",
    "s  sort by SM            p  sort by host pid",
    "?  show or hide this     q  quit",
)
_SAMPLES = 60
_STATE_STYLES = {
    "alive": GOOD,
    "suspended": WARN,
    "dead": f"bold {CRITICAL}",
    "unknown": WARN,
    "unlisted": WARN,
    "escaped": f"bold {CRITICAL}",
    "unmanaged": DIM,
}


def _common_options(sort: str) -> Callable[[options.Command], options.Command]:
    sort_option = click.option(
        "--sort",
        type=click.Choice(_SORTS),
        default=sort,
        show_default=True,
        help="By name, memory in use, SM or host pid.",
    )
    return options.all_of(
        sort_option,
        options.selector_options,
        options.node_options,
        options.driver_options,
        options.watch_option,
        options.wide_output_options,
    )


@click.command(
    cls=Verb,
    examples=["hamiregion ps --pod 'bert-*' --watch 1", "hamiregion ps -o wide --sort memory"],
)
@_common_options("name")
def ps(sort: str, interval_s: float | None, as_json: bool, **choice: Any) -> None:
    """Show the processes of this node that use a region or a GPU."""
    with _look(**choice) as look:
        show_all((look(sort) for _ in ticks(interval_s)), interval_s, as_json)


@click.command(
    cls=Verb, examples=["hamiregion top", "hamiregion top --namespace research --sort sm"]
)
@_common_options("memory")
def top(sort: str, interval_s: float | None, as_json: bool, **choice: Any) -> None:
    """Show the GPUs of this node, its containers and the processes that use most of them, live."""
    with _look(**choice) as look:
        if as_json or not on_terminal():
            show_all((look(sort) for _ in ticks(interval_s)), interval_s, as_json)
        else:
            with contextlib.suppress(KeyboardInterrupt):
                _top_live(look, interval_s or 1.0, sort)


@contextlib.contextmanager
def _look(node_choice: NodeChoice, selector: Selector, driver: DriverChoice, wide: bool) -> Any:
    """A context with what looks at the processes that are selected."""
    with driver.observe(node_choice) as observer:
        yield ProcessView(observer, selector, node_choice, wide=wide)


def _top_live(look: ProcessView, interval_s: float, sort: str) -> None:
    from .keyboard import Keyboard
    from .terminal import console, fit_page, live

    screen = console()
    with Keyboard() as keyboard, live(screen) as picture:
        key, keys_shown = "", False
        while key != "q":
            due = time.monotonic() + interval_s
            sort = _SORT_KEYS.get(key, sort)
            keys_shown ^= key == "?"
            page = look(sort, live=True, keys_shown=keys_shown)
            picture.update(fit_page(page, screen), refresh=True)
            key = keyboard.wait(due - time.monotonic())


@attrs.frozen(kw_only=True)
class ProcessRow(Names):
    """A process; the fields are the keys of --json.

    Attributes:
        region_path: The region's file; None if there is none.
        pid: Its pid in the container's namespace; None if it is not known.
        host_pid: Its pid in /proc, or by the driver; None if it is dead or unknown.
        state: alive, dead, unknown, unlisted, escaped or unmanaged.
        status: Of its slot: 0 exited, 1 running, 2 suspended; None without a slot.
        uid: Its user; None where /proc does not tell.
        user: That user's name.
        command: Its command line, raw text.
        slots: More than 1 for a sum over what one container has too many of.
        devices: Those of the region, then those that only the driver lists.
    """

    region_path: str | None
    pid: int | None
    host_pid: int | None
    state: str
    status: int | None
    uid: int | None
    user: str | None
    command: str | None
    slots: int
    devices: tuple[ProcessDeviceRow, ...]

    @property
    def pid_words(self) -> str | None:
        """Its pid inside; or how many slots it stands for."""
        if self.slots > 1:
            return f"{self.slots} slots"
        return None if self.pid is None else str(self.pid)

    @property
    def state_word(self) -> str:
        """Its state; a suspended process has one of its own."""
        is_suspended = self.state == "alive" and self.status == ProcessStatus.SUSPENDED
        return "suspended" if is_suspended else self.state

    @property
    def busy(self) -> Sequence[ProcessDeviceRow]:
        """The devices that it uses, or on which the driver lists it."""
        return [
            row
            for row in self.devices
            if row.memory_used_bytes is None
            or row.memory_used_bytes
            or row.sm_util_percent
            or row.memory_driver_bytes
            or row.driver_sm_percent
            or row.driver_memory_percent
            or row.driver_enc_percent
            or row.driver_dec_percent
        ]

    @property
    def memory_bytes(self) -> int:
        """What it uses in all: as counted, or what the driver says where that is more."""
        return sum(
            max(row.memory_used_bytes or 0, row.memory_driver_bytes or 0) for row in self.devices
        )

    @property
    def sm_percent(self) -> int:
        """Its utilisation in all; the driver's where it is known."""
        return sum(
            (row.sm_util_percent or 0) if row.driver_sm_percent is None else row.driver_sm_percent
            for row in self.devices
        )


_ORDERS: dict[str, Callable[[ProcessRow], Any]] = {
    "name": lambda row: row.order,
    "memory": lambda row: -row.memory_bytes,
    "sm": lambda row: (-row.sm_percent, -row.memory_bytes),
    "pid": lambda row: row.host_pid or 0,
}
_CONTAINER_ORDERS: dict[str, Callable[[ContainerRow], Any]] = {
    "memory": lambda row: -sum(each.usage.memory_used_bytes for each in row.devices),
    "sm": lambda row: -sum(each.sm_percent or 0 for each in row.devices),
}


def _process_row(node: Node, process: NodeProcess) -> ProcessRow:
    host, container = process.process, process.container
    # Without a slot, its pid inside its container.
    inner = host.ns_pids[-1] if process.pid is None and host is not None else process.pid
    return ProcessRow(
        **names_of(node, process.owner),
        region_path=None if container is None else container.region_path,
        pid=inner,
        host_pid=process.host_pid,
        state=process.state,
        status=process.status,
        uid=None if host is None else host.uid,
        user=None if host is None else host.user,
        command=None if host is None else host.command,
        slots=process.slots,
        devices=process.devices,
    )


class ProcessView:
    """Looks at a node's processes again and again; keeps the samples of its containers.

    Args:
        observer: Observes the node.
        selector: What to show.
        node_choice: What the node was chosen by.
        wide: Whether to show users, uuids and commands too.
    """

    def __init__(
        self, observer: Observer, selector: Selector, node_choice: NodeChoice, *, wide: bool = False
    ) -> None:
        self._observer = observer
        self._selector = selector
        self._node_choice = node_choice
        self._wide = wide
        self._samples: defaultdict[Any, deque[float]] = defaultdict(lambda: deque(maxlen=_SAMPLES))

    def __call__(self, sort: str, *, live: bool = False, keys_shown: bool = False) -> Page:
        """Look now; `live` adds the GPUs, the containers and the keys of `top`."""
        node, observation = self._observer.node, self._observer.observe()
        views = observed_views(node, observation)
        processes = process_rows(Join(observation), views)
        rows = sorted(self._chosen(node, processes), key=_ORDERS[sort])
        answer, gap = driver_answer(self._observer, observation)
        driver = answer is not None and gap is None
        blocks: list[Block] = [
            Table(_columns(self._wide, driver), rows, "busy", attention=_needs_attention),
            Lines([(_sums(rows, driver), DIM)], on="terminal"),
        ]
        if live:
            containers = container_rows(node, views, self._selector, processes)
            devices = () if observation.sample is None else observation.sample.devices
            blocks = [Table(_GPU_COLUMNS, devices), self._uses(containers, sort, driver), *blocks]
            if keys_shown:
                blocks.append(Lines(_KEYS))
            blocks.append(Lines([(f"sorted by {sort}     [?] keys     [q] quit", DIM)]))
        return node_page(
            "processes/1",
            observation,
            node,
            self._node_choice,
            {"driver": answer, "processes": rows},
            blocks,
            [] if gap is None else [f"no figures of the driver: {gap}"],
            selector=self._selector,
            found=bool(rows),
        )

    def _chosen(self, node: Node, processes: Iterable[NodeProcess]) -> Iterable[ProcessRow]:
        selector = self._selector
        for process in processes:
            if not selector.matches_container(process.owner, node.pod_name(process.owner)):
                continue
            row = _process_row(node, process)
            if selector.device is not None:
                chosen = [each for each in row.busy if selector.matches_device(each)]
                if not chosen:
                    continue
                row = attrs.evolve(row, devices=tuple(chosen))
            yield row

    def _uses(self, rows: Iterable[ContainerRow], sort: str, driver: bool) -> Table:
        """The containers, with the SM utilisation of their last samples."""
        present = [row for row in rows if row.missing is None]
        # Samples of containers that have gone are dropped.
        gone = self._samples.keys() - {row.order for row in present}
        for key in gone:
            del self._samples[key]
        for row in present:
            self._samples[row.order].append(sum(each.sm_percent or 0 for each in row.devices) / 100)
        trend = Column(
            "",
            lambda row: Spark(tuple(self._samples[row.order])),
            DRAWING,
            title="trend",
            on="terminal",
        )
        present.sort(key=_CONTAINER_ORDERS.get(sort, lambda row: row.order))
        return container_table(
            (
                *NAME_COLUMNS,
                *USAGE_COLUMNS,
                *(_DRIVER_COLUMNS if driver else ()),
                *SM_COLUMNS,
                trend,
            ),
            present,
        )


def _needs_attention(row: ProcessRow) -> bool:
    return row.state in {"dead", "escaped"}


def _gpu_ratio(device: NvmlDevice) -> float | None:
    used, total = device.memory_used_bytes, device.memory_total_bytes
    return None if used is None or not total else used / total


_GPU_COLUMNS = (
    Column("GPU", "index", NUMBER, title="GPU", style="bold"),
    Column("NAME", lambda device: device.name or device.state.value, NAME, style=DIM),
    Column("", lambda device: ratio_bar(_gpu_ratio(device)), DRAWING, title="memory"),
    Column("USED", "memory_used_bytes", SIZE),
    Column("TOTAL", "memory_total_bytes", SIZE),
    Column(
        "",
        lambda device: sm_bar(device.gpu_util_percent, None),
        DRAWING,
        title="SM",
        from_width=ROOMY,
    ),
    Column("SM", "gpu_util_percent", PERCENT, title="SM"),
)
_DRIVER_COLUMNS = (
    Column(
        "", part="memory_driver_bytes", format=SIZE, title="driver", style=DIM, from_width=ROOMY
    ),
    Column(
        "", part="driver_sm_percent", format=PERCENT, title="SM drv", style=DIM, from_width=WIDE
    ),
)
_STATE = CellFormat(str, right=False, min_width=len("unmanaged"))


def _columns(wide: bool, driver: bool) -> Sequence[Column]:
    on: On = "both" if driver else "pipe"
    # A wide terminal has room for user and command; a pipe keeps its columns.
    user, command = Column("USER", "user", NAME), Column("COMMAND", "command", NAME)
    more = (
        (user, Column("UUID", part="uuid", format=NAME, style=DIM, from_width=ROOMY), command)
        if wide
        else tuple(attrs.evolve(each, on="terminal", from_width=WIDE) for each in (user, command))
    )
    return (
        *NAME_COLUMNS,
        Column("DEVICE", part="index", format=NUMBER, title="dev"),
        Column("GPU", part="driver_index", format=NUMBER, title="GPU", on=on, from_width=ROOMY),
        Column("PID", "pid_words", NUMBER, title="PID", style="bold", from_width=ROOMY),
        Column("HOST-PID", "host_pid", NUMBER, title="host PID"),
        Column(
            "STATE", "state_word", _STATE, style=lambda row: _STATE_STYLES.get(row.state_word, "")
        ),
        Column("MEM-USED", part="memory_used_bytes", format=SIZE, title="used"),
        Column("MEM-DRIVER", part="memory_driver_bytes", format=SIZE, title="driver", on=on),
        Column("SM", part="sm_util_percent", format=PERCENT, title="SM"),
        Column("SM-DRIVER", part="driver_sm_percent", format=PERCENT, title="SM drv", on=on),
        *more,
    )


def _sums(rows: Sequence[ProcessRow], driver: bool) -> str:
    if not rows:
        return "No process uses a region or a GPU."
    devices = [device for row in rows for device in row.devices]
    containers = {row.region_path for row in rows} - {None}
    counted = format_size(sum(device.memory_used_bytes or 0 for device in devices))
    slots = sum(row.slots for row in rows)
    words = f"{count(slots, 'process', 'processes')} of {count(len(containers), 'container')}"
    words += f"; {counted} counted"
    if driver:
        total = sum(device.memory_driver_bytes or 0 for device in devices)
        words += f", {format_size(total)} by the driver"
    return words

"""`hamiregion ps` and `hamiregion top`: the processes of a node, and what they use of its GPUs."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any

import attrs
import click

from libhamiregion import ProcessStatus, format_size
from libhamiregion.node import NvmlState, node_processes
from libhamiregion.text import count_text, printable

from . import options
from .containers import (
    SM_COLUMNS,
    USAGE_COLUMNS,
    container_rows,
    device_columns,
    missing_table,
    needs_attention,
)
from .format import is_used, ratio_bar, sm_bar
from .help import verb
from .names import Names, name_columns, names_of
from .output import Answer, end_by_sigterm, on_terminal
from .tables import CRITICAL, DIM, GOOD, ROOMY, WARN, WIDE, CellFormat, Column, Lines, Spark, Table
from .views import NodesView, NodeView, Opened, driver_answer, view_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from libhamiregion.node import Container, NodeProcess, Observation, ProcessDeviceRow
    from libhamiregion.node.nvml import NvmlDevice

    from .containers import ContainerRow
    from .tables import Block, On, Page

_SORTS = ("name", "memory", "sm", "pid")
# What a live table is sorted by after a key.
_SORT_KEYS = {"m": "memory", "g": "sm", "n": "name", "p": "pid"}
_KEYS = (
    "m g n p  sort by memory, GPU use, name or host pid     ?  show or hide this",
    "arrows, page up and down, home, end  scroll            /  filter; esc: all",
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
    "gone": f"bold {CRITICAL}",
}


def _common_options(sort: str) -> Callable[[options.Command], options.Command]:
    sort_option = click.option(
        "--sort",
        type=click.Choice(_SORTS),
        default=sort,
        show_default=True,
        help="By name, memory in use, SM or host pid.",
    )
    return options.all_of(sort_option, view_options, options.watch_options)


@verb("hamiregion ps --pod 'bert-*' --watch 1", "hamiregion ps -o wide --sort memory")
@_common_options("name")
def ps(opened: Opened, sort: str, answer: Answer) -> None:
    """Show the processes of this node that use a region or a GPU."""
    with opened as view:
        view.show(lambda node: process_page(node, sort, wide=answer.wide), answer)


@verb("hamiregion top", "hamiregion top --namespace research --sort sm")
@_common_options("memory")
@click.option("--once", is_flag=True, help="Show one picture, and end.")
def top(opened: Opened, sort: str, once: bool, answer: Answer) -> None:
    """Show the GPUs of this node, its containers and the processes that use most of them, live."""
    if once and answer.interval_s is not None:
        raise click.UsageError("--once is one picture: leave --watch out.")
    with opened as view:
        if (once or isinstance(view, NodesView)) and not answer.as_json:
            view.show(lambda node: Top(node, wide=answer.wide).page(TopKeys(sort)), answer)
        elif isinstance(view, NodesView) or answer.as_json or not on_terminal() or not view.is_live:
            view.show(lambda node: process_page(node, sort, wide=answer.wide), answer)
        else:
            end_by_sigterm()
            with contextlib.suppress(KeyboardInterrupt):
                _top_live(Top(view, wide=answer.wide), answer.interval_s or 1.0, sort)


def _top_live(top: Top, interval_s: float, sort: str) -> None:
    from .terminal import console, fit_page, keyboard, live

    screen, chosen = console(), TopKeys(sort)
    due = time.monotonic() + interval_s
    with keyboard() as keys_within, live(screen) as picture:
        while not chosen.has_ended:
            # Between observations, a key shows the last one in another way.
            if time.monotonic() >= due:
                due = time.monotonic() + interval_s
                top.observe()
            drawn, chosen.offset = fit_page(top.live_page(chosen), screen, chosen.offset)
            picture.update(drawn, refresh=True)
            for key in keys_within(due - time.monotonic()):
                chosen.press(key, screen.height // 2)


@attrs.define
class TopKeys:
    """What the keys have chosen.

    Attributes:
        sort: What the tables are sorted by.
        offset: How many of their rows are above the picture.
        filter: Part of the names that are shown, or of the commands.
        is_typing: Whether keys are letters of the filter.
        are_shown: Whether the keys are explained.
        has_ended: Whether it was q.
    """

    sort: str
    offset: int = 0
    filter: str = ""
    is_typing: bool = False
    are_shown: bool = False
    has_ended: bool = False

    def press(self, key: str, rows: int) -> None:
        """Take a key; a page has so many rows."""
        if key == "esc":
            self.filter, self.is_typing = "", False
        elif self.is_typing and key in {"\r", "\n"}:
            self.is_typing = False
        elif self.is_typing and key in {"\x7f", "\b"}:
            self.filter = self.filter[:-1]
        elif self.is_typing and key.isprintable() and len(key) == 1:
            self.filter += key
        else:
            self.sort = _SORT_KEYS.get(key, self.sort)
            self.is_typing |= key == "/"
            self.are_shown ^= key == "?"
            self.has_ended |= key == "q"
            steps = {"up": -1, "down": 1, "page up": -rows, "page down": rows}
            steps |= {"home": -self.offset, "end": sys.maxsize}
            self.offset = max(0, self.offset + steps.get(key, 0))

    def words(self) -> str:
        """The foot of the picture."""
        typed = f"     /{printable(self.filter)}{'_' if self.is_typing else ''}"
        shown = typed if self.filter or self.is_typing else ""
        return f"sorted by {self.sort}{shown}     [?] keys     [q] quit"


@attrs.frozen(kw_only=True)
class ProcessRow(Names):
    """A process; the fields are the keys of --json.

    Attributes:
        region_path: The region's file; None if there is none.
        pid: Its pid in the container's namespace; None if it is not known.
        host_pid: Its pid in /proc, or by the driver; None if it is dead or unknown.
        state: alive, dead, unknown, unlisted, escaped, unmanaged or gone.
        status: Of its slot: 0 exited, 1 running, 2 suspended; None without a slot.
        uid: Its user; None if /proc does not show it.
        user: That user's name.
        command: Its command line, raw text.
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
    devices: tuple[ProcessDeviceRow, ...]

    @property
    def state_word(self) -> str:
        """Its state; a suspended process has one of its own."""
        is_suspended = self.state == "alive" and self.status == ProcessStatus.SUSPENDED
        return "suspended" if is_suspended else self.state

    @property
    def busy(self) -> Sequence[ProcessDeviceRow]:
        """The devices that it uses, or on which the driver lists it."""
        return [row for row in self.devices if row.memory_used_bytes is None or is_used(row)]

    @property
    def memory_bytes(self) -> int:
        """Its memory on all devices: the larger of counted and by the driver."""
        return sum(
            max(row.memory_used_bytes or 0, row.memory_driver_bytes or 0) for row in self.devices
        )

    @property
    def sm_percent(self) -> int:
        """Its utilisation of all devices; the driver's where it is known."""
        return sum(
            (row.sm_util_percent or 0) if row.driver_sm_percent is None else row.driver_sm_percent
            for row in self.devices
        )


_ORDERS: dict[str, Callable[[Any], Any]] = {
    "name": lambda row: row.order,
    "memory": lambda row: -row.memory_bytes,
    "sm": lambda row: (-row.sm_percent, -row.memory_bytes),
    "pid": lambda row: row.host_pid or 0,
}


def _process_row(owner: Container, process: NodeProcess) -> ProcessRow:
    host, container = process.process, process.container
    # Without a slot, its pid inside its container.
    inner = host.ns_pids[-1] if process.pid is None and host is not None else process.pid
    about: dict[str, Any] = {
        **{name: getattr(process, name) for name in ("host_pid", "state", "status", "devices")},
        **{name: getattr(host, name, None) for name in ("uid", "user", "command")},
    }
    path = None if container is None else container.region_path
    return ProcessRow(**names_of(owner), **about, pid=inner, region_path=path)


def process_page(view: NodeView, sort: str, *, wide: bool = False) -> Page:
    """Observe the node, and show its processes."""
    observation = view.observer.observe()
    rows = _chosen(view, node_processes(observation), observation)
    return _process_page(view, observation, rows, sort, wide=wide)


def _process_page(
    view: NodeView, observation: Observation, found: Iterable[ProcessRow], sort: str, *, wide: bool
) -> Page:
    rows = sorted(found, key=_ORDERS[sort])
    answer, gap = driver_answer(observation)
    driver = answer is not None and gap is None
    blocks: list[Block] = [
        Table(
            (*name_columns(observation.all_containers), *_columns(wide, driver)),
            rows,
            "busy",
            attention=lambda row: row.state in {"dead", "escaped", "gone"},
        ),
        Lines([(_sums(rows), DIM)], on="terminal"),
    ]
    data = {"driver": answer, "processes": rows}
    notes = [] if gap is None else [f"no figures of the driver: {gap}"]
    return view.page("processes/1", observation, data, blocks, notes, found=bool(rows))


def _chosen(
    view: NodeView, processes: Iterable[NodeProcess], observation: Observation
) -> Iterator[ProcessRow]:
    test = view.device_test(observation)
    for process in processes:
        owner = process.owner
        if owner is not process.container and owner.container_id is not None:
            owner = attrs.evolve(owner, pod_name=observation.names.get(owner.container_id.id))
        if not view.selector.matches(owner):
            continue
        row = _process_row(owner, process)
        if test is not None:
            chosen = list(filter(test, row.busy))
            if not chosen:
                continue
            row = attrs.evolve(row, devices=tuple(chosen))
        yield row


class Top:
    """What `top` shows: GPUs, containers with their last samples, processes.

    Args:
        view: The node, and what is selected of it.
        wide: Whether to show uuids too.
    """

    def __init__(self, view: NodeView, *, wide: bool = False) -> None:
        self._view = view
        self._wide = wide
        self._samples: defaultdict[Any, deque[float]] = defaultdict(lambda: deque(maxlen=_SAMPLES))
        self.observe()

    def observe(self) -> None:
        """Observe the node again."""
        self._observation = observation = self._view.observer.observe()
        self._processes = list(_chosen(self._view, node_processes(observation), observation))
        rows = container_rows(self._view, observation)
        self._containers = [row for row in rows if row.missing is None]
        self._missing = [row for row in rows if row.missing is not None]
        # Samples of containers that have gone are dropped.
        for key in self._samples.keys() - {row.order for row in self._containers}:
            del self._samples[key]
        for row in self._containers:
            self._samples[row.order].append(row.sm_percent / 100)

    def live_page(self, keys: TopKeys) -> Page:
        """Show what was observed, and the keys."""
        page = self.page(keys)
        lines = Lines([*(_KEYS if keys.are_shown else ()), (keys.words(), DIM)])
        return attrs.evolve(page, blocks=[*page.blocks, lines])

    def page(self, keys: TopKeys) -> Page:
        """Show what was observed."""
        observation, chosen = self._observation, self._view.gpus
        text = keys.filter.casefold()

        def is_shown(row: Names) -> bool:
            words = (row.path_words, getattr(row, "command", None))
            return not text or any(text in (each or "").casefold() for each in words)

        processes = filter(is_shown, self._processes)
        page = _process_page(self._view, observation, processes, keys.sort, wide=self._wide)
        order = _ORDERS["name" if keys.sort == "pid" else keys.sort]
        containers = sorted(filter(is_shown, self._containers), key=order)
        missing = sorted(filter(is_shown, self._missing), key=order)
        gpus = [each for each in observation.gpus if not chosen or each.index in chosen]
        blocks = [
            *([_gpu_table(gpus)] if gpus else []),
            *([self._container_table(containers)] if containers or not missing else []),
            *([missing_table(observation, missing)] if missing else []),
            *page.blocks,
        ]
        return attrs.evolve(page, blocks=blocks)

    def _container_table(self, rows: Sequence[ContainerRow]) -> Table:
        """The containers, with the SM utilisation of their last samples."""
        columns = (
            *name_columns(self._observation.all_containers),
            *device_columns(self._observation),
            *USAGE_COLUMNS,
            *SM_COLUMNS,
            Column("", lambda row: Spark(tuple(self._samples[row.order])), "drawing", "trend"),
        )
        return Table(columns, rows, "devices", attention=needs_attention)


def _gpu_ratio(device: NvmlDevice) -> float | None:
    used, total = device.memory_used_bytes, device.memory_total_bytes
    return None if used is None or not total else used / total


_GPU_COLUMNS = (
    Column("GPU", "index", "number", title="GPU", style="bold"),
    Column(
        "NAME",
        lambda device: (device.name or "") if device.state is NvmlState.OK else device.state.value,
        "name",
        style=lambda device: CRITICAL if device.state.is_failure else DIM,
    ),
    Column("", lambda device: ratio_bar(_gpu_ratio(device)), "drawing", title="memory"),
    Column("USED", "memory_used_bytes", "size"),
    Column("TOTAL", "memory_total_bytes", "size"),
    Column("", lambda device: sm_bar(device.gpu_util_percent), "drawing", "SM", from_width=ROOMY),
    Column("SM", "gpu_util_percent", "percent", title="SM"),
)


def _gpu_table(gpus: Sequence[NvmlDevice]) -> Table:
    return Table(_GPU_COLUMNS, gpus, attention=lambda gpu: gpu.state.is_failure)


_STATE = CellFormat(str, right=False, min_width=len("unmanaged"))


def _columns(wide: bool, driver: bool) -> Sequence[Column]:
    on: On = "both" if driver else "pipe"
    # A wide terminal has room for user and command; a pipe keeps its columns.
    user, command = Column("USER", "user", "name"), Column("COMMAND", "command", "name")
    more = (
        (user, Column("UUID", part="uuid", format="name", style=DIM, from_width=ROOMY), command)
        if wide
        else tuple(attrs.evolve(each, on="terminal", from_width=WIDE) for each in (user, command))
    )
    return (
        Column("DEVICE", part="index", format="number", title="dev"),
        Column("GPU", part="driver_index", format="number", title="GPU", on=on, from_width=ROOMY),
        Column("PID", "pid", "number", title="PID", style="bold", from_width=ROOMY),
        Column("HOST-PID", "host_pid", "number", title="host PID"),
        Column(
            "STATE", "state_word", _STATE, style=lambda row: _STATE_STYLES.get(row.state_word, "")
        ),
        Column("MEM-USED", part="memory_used_bytes", format="size", title="used"),
        Column("MEM-DRIVER", part="memory_driver_bytes", format="size", title="driver", on=on),
        Column("SM", part="sm_util_percent", format="percent", title="SM"),
        Column("SM-DRIVER", part="driver_sm_percent", format="percent", title="SM drv", on=on),
        *more,
    )


def _sums(rows: Sequence[ProcessRow]) -> str:
    if not rows:
        return "No process uses a region or a GPU."
    devices = [device for row in rows for device in row.devices]
    containers = {(row.pod_uid, row.path_words) for row in rows} - {(None, None)}
    counted = format_size(sum(device.memory_used_bytes or 0 for device in devices))
    processes = count_text(len(rows), "process")
    return f"{processes} of {count_text(len(containers), 'container')}; {counted} counted"

"""`hamiregion ps` and `hamiregion top`: the processes of a node, and what they use of its GPUs."""

from __future__ import annotations

import contextlib
import functools
import time
from typing import TYPE_CHECKING, Any

import attrs
import click
from click.core import ParameterSource

from libhamiregion import ProcessStatus, format_size
from libhamiregion.node.bounded_call import BoundedCall
from libhamiregion.node.join import Join
from libhamiregion.node.process_rows import process_rows
from libhamiregion.node.suspended import SuspendedProcesses
from libhamiregion.node.views import observed_views

from . import options
from .container_use import container_uses, use_table
from .driver import GPU_COLUMNS, driver_answer, driver_page
from .format import NAME_COLUMNS, Names, count, names_of
from .intervals import ticks
from .keyboard import SORT_KEYS, key_hint
from .output import Page, node_page, on_terminal, show_all
from .tables import (
    COMMAND,
    GOOD,
    NAME,
    NEAR,
    NUMBER,
    OVER,
    PERCENT,
    QUIET,
    ROOMY,
    SIZE,
    Column,
    Kind,
    Lines,
    On,
    Table,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from libhamiregion.node import (
        Node,
        NodeProcess,
        Observer,
        ProcessDeviceRow,
        Selector,
    )
    from libhamiregion.suspension import SuspendedActivity

    from .options import DriverChoice, NodeChoice
    from .tables import Block

# Columns of a terminal from which there is room for the pids of two namespaces.
_PIDS = 90
# ... and for users and commands beside whole names of pods.
_WHOSE = 150
_SORTS = ("name", "memory", "sm", "pid")
_STATE_STYLES = {
    "alive": GOOD,
    "suspended": NEAR,
    "goes-on": f"bold {OVER}",
    "dead": f"bold {OVER}",
    "unknown": NEAR,
    "unlisted": NEAR,
    "escaped": f"bold {OVER}",
    "unmanaged": QUIET,
}


def _common_options(sort: str) -> Callable[[options.Command], options.Command]:
    sort_option = click.option(
        "--sort",
        type=click.Choice(_SORTS),
        default=sort,
        show_default=True,
        help="By name of pod and container, by what is used, or by host pid.",
    )
    return options.all_of(
        options.node_options,
        options.selector_options,
        options.wide_option,
        sort_option,
        options.driver_options,
        options.watch_option,
        options.json_option,
    )


@click.command()
@_common_options("name")
@click.option(
    "--nvml",
    is_flag=True,
    help="Only what the driver says, without regions; works inside a container too.",
)
def ps(
    node_choice: NodeChoice,
    selector: Selector,
    wide: bool,
    sort: str,
    driver: DriverChoice,
    nvml: bool,
    interval_s: float | None,
    as_json: bool,
) -> None:
    """Show the processes of this node that use a region or a GPU.

    One line per process and device: what the region counts, and what the driver says.  Which
    process stands in which slot is proved by /proc; what the region calls host pids is not used.

    \b
    alive      has a slot, and runs
    suspended  the same, blocked by `hamiregion suspend`
    goes-on    suspended, and allocates or launches all the same (HAMi 2.10 without an SM limit)
    dead       has a slot whose process is gone; its memory still counts (hamiregion reap)
    unknown    /proc does not show enough to tell
    unlisted   maps a region and has no slot; a forked child is one until it uses CUDA
    escaped    uses a GPU in a container with a region, not counted there
    unmanaged  uses a GPU outside all containers with a region

    DEVICE is the container's own index, GPU the one of nvidia-smi.  PATTERNs are those of the
    shell.  Where the driver cannot be asked, the rest is shown and a note says why.

    \b
    hamiregion ps --pod 'bert-*' --watch 1
    hamiregion ps --nvml

    --nvml shows the driver's two lists instead: processes (pid, name, memory, utilisation), and
    the samples of the last second.

    Exit code 1 if none of the DIRs given by --root could be listed, or, with --nvml, if the
    driver could not be asked.

    JSON: taken_at_ns, complete (all processes could be seen), driver (state, message, version;
    null with --no-driver), warnings, gaps (what could not be looked at: kind, reason, count, and
    the container's names), and processes, a list of objects with the keys namespace, pod, pod_uid,
    container, container_id, region_path, pid, host_pid, state, status, goes_on (of a suspended
    process: allocating, launching, or null: not seen), uid, user, command, slots (more than 1: a
    sum over what one container has too many of) and devices, whose keys are the fields of
    ProcessDeviceRow.  With --nvml: taken_at_ns, driver, devices, processes
    and samples, with the fields of NvmlDevice and NvmlProcess.  null is not known.
    """  # noqa: D301 (click looks for the character itself)
    if nvml:
        patterns = (selector.namespace, selector.pod, selector.container)
        if any((*patterns, node_choice.roots, node_choice.outside, driver.no_driver, wide)):
            raise click.UsageError(
                "--nvml shows what the driver says, which knows no pods and no regions: it goes"
                " with --device, --library, --watch and --json."
            )
        with driver.open() as sampler:
            assert sampler is not None  # noqa: S101 (--no-driver was refused)
            ask = BoundedCall(sampler.sample, "hamiregion-nvml")
            pages = (driver_page(ask, sampler, selector) for _ in ticks(interval_s))
            show_all(pages, interval_s, as_json)
        return
    with driver.observe(node_choice) as observer:
        look = functools.partial(
            process_page, observer, selector, node_choice, wide=wide, suspended=SuspendedProcesses()
        )
        show_all((look(sort=sort) for _ in ticks(interval_s)), interval_s, as_json)


@click.command()
@click.option(
    "--from",
    "source",
    metavar="URL",
    help="All nodes, out of the Prometheus of that http(s) address that scrapes their exporters.",
)
@click.option(
    "-n",
    "most",
    type=click.IntRange(1, 100_000),
    metavar="N",
    help="With --from: the first N rows.  [default: 50]",
)
@_common_options("memory")
@click.pass_context
def top(
    context: click.Context,
    source: str | None,
    most: int | None,
    node_choice: NodeChoice,
    selector: Selector,
    wide: bool,
    sort: str,
    driver: DriverChoice,
    interval_s: float | None,
    as_json: bool,
) -> None:
    """Show the GPUs of this node, its containers and the processes that use most of them, live.

    Containers have a bar for each device: memory in use against the limit, and from 100 columns on
    SM utilisation with a mark at the limit; beside them the driver's figures, where it answers.
    A wide terminal has longer bars and whole names.

    On a terminal again every second, or as --watch says, until q or Ctrl-C; the keys m, s, n and p
    sort by memory, SM utilisation, name and host pid.  In a pipe, and with --json, once unless
    --watch is given.  Columns, states, PATTERNs, JSON and exit codes are those of `hamiregion ps`.

    With --from, the processes of all nodes as a Prometheus has last scraped them, on a terminal
    again every 15 seconds; --node is a PATTERN of the nodes' names then.  It is signed in to as
    `hamiregion report` does.

    \b
    hamiregion top --from http://prometheus:9090 --namespace research -n 20

    JSON with --from: taken_at_ns, warnings, and processes, a list of objects with the fields of
    FleetProcess; null is not known.
    """  # noqa: D301 (click looks for the character itself)
    if source is not None:
        _top_of_fleet(
            context, source, most, node_choice, selector, driver, interval_s, sort, wide, as_json
        )
        return
    if most is not None:
        raise click.UsageError("-n goes with --from")
    with driver.observe(node_choice) as observer:
        look = functools.partial(
            process_page, observer, selector, node_choice, wide=wide, suspended=SuspendedProcesses()
        )
        if as_json or not on_terminal():
            show_all((look(sort=sort) for _ in ticks(interval_s)), interval_s, as_json)
        else:
            with contextlib.suppress(KeyboardInterrupt):
                _top_live(look, interval_s or 1.0, sort)


def _top_of_fleet(
    context: click.Context,
    source: str,
    most: int | None,
    node_choice: NodeChoice,
    selector: Selector,
    driver: DriverChoice,
    interval_s: float | None,
    sort: str,
    wide: bool,
    as_json: bool,
) -> None:
    # With the report's modules only where they are asked for.
    from .fleet import fleet_page, open_fleet

    if node_choice.roots or node_choice.outside or driver.no_driver or driver.library:
        raise click.UsageError(
            "--from asks a Prometheus, and looks at no node: it goes with --node, --namespace,"
            " --pod, --container, --device, --sort, --wide, --watch, --json and -n."
        )
    # A pod's environment says which node it is on; all of them are meant where nobody says so.
    is_given = context.get_parameter_source("node_name") is ParameterSource.COMMANDLINE
    node = node_choice.node_name if is_given else None
    look = functools.partial(
        fleet_page, open_fleet(source), selector, node=node, most=most or 50, wide=wide
    )
    if as_json or not on_terminal():
        show_all((look(sort=sort) for _ in ticks(interval_s)), interval_s, as_json)  # type: ignore[arg-type]
    else:
        with contextlib.suppress(KeyboardInterrupt):
            _top_live(look, interval_s or 15.0, sort)


def _top_live(look: Callable[..., Page], interval_s: float, sort: str) -> None:
    from .keyboard import Keyboard
    from .terminal import console, fit_page, live

    screen = console()
    with Keyboard() as keyboard, live(screen) as picture:
        key = ""
        while key != "q":
            due = time.monotonic() + interval_s
            sort = SORT_KEYS.get(key, sort)
            picture.update(fit_page(look(sort=sort, live=True), screen), refresh=True)
            key = keyboard.wait(due - time.monotonic())


# ---- regions, /proc and the driver together ------------------------------------------------------


@attrs.frozen(kw_only=True)
class ProcessRow(Names):
    """A process; the fields are the keys of --json.

    Attributes:
        region_path: The region's file; None if there is none.
        pid: Its pid in the container's namespace; None if it is not known.
        host_pid: Its pid in /proc, or by the driver; None if it is dead or unknown.
        state: alive, dead, unknown, unlisted, escaped or unmanaged.
        status: Of its slot: 0 exited, 1 running, 2 suspended; None without a slot.
        goes_on: What it does though it is suspended; None if nothing was seen.
        uid: Its user; None where /proc does not tell.
        user: That user's name.
        command: Its command line, raw text.
        slots: More than 1 for a sum over what one container has too many of.
        devices: Those of the region, then those that only the driver tells of.
    """

    region_path: str | None
    pid: int | None
    host_pid: int | None
    state: str
    status: int | None
    goes_on: SuspendedActivity | None
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
        if self.status != ProcessStatus.SUSPENDED or self.state != "alive":
            return self.state
        return "suspended" if self.goes_on is None else "goes-on"

    @property
    def busy(self) -> Sequence[ProcessDeviceRow]:
        """The devices that it uses."""
        return [row for row in self.devices if _is_busy(row)]

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


def _is_busy(row: ProcessDeviceRow) -> bool:
    """Whether the process has or does something there, or the driver lists it there."""
    return row.memory_used_bytes is None or any(
        (
            row.memory_used_bytes,
            row.sm_util_percent,
            row.memory_driver_bytes,
            row.driver_sm_percent,
            row.driver_memory_percent,
            row.driver_enc_percent,
            row.driver_dec_percent,
        )
    )


def _process_row(
    node: Node, process: NodeProcess, goes_on: Mapping[int, SuspendedActivity]
) -> ProcessRow:
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
        goes_on=None if process.pid is None else goes_on.get(process.host_pid or 0),
        uid=None if host is None else host.uid,
        user=None if host is None else host.user,
        command=None if host is None else host.command,
        slots=process.slots,
        devices=process.devices,
    )


def _in_order(rows: Iterable[ProcessRow], sort: str) -> list[ProcessRow]:
    keys: dict[str, Callable[[ProcessRow], Any]] = {
        "name": lambda row: row.order,
        "memory": lambda row: -row.memory_bytes,
        "sm": lambda row: (-row.sm_percent, -row.memory_bytes),
        "pid": lambda row: row.host_pid or 0,
    }
    return sorted(rows, key=keys[sort])


def process_page(
    observer: Observer,
    selector: Selector,
    node_choice: NodeChoice,
    *,
    sort: str,
    wide: bool,
    suspended: SuspendedProcesses,
    live: bool = False,
) -> Page:
    """Look at the node's processes now.

    Args:
        observer: Observes the node.
        selector: What to show.
        node_choice: What the node was chosen by.
        sort: One of `_SORTS`.
        wide: Whether to show users, uuids and commands too.
        suspended: What was seen of suspended processes before.
        live: Whether it is for `top` on a terminal, with the GPUs, the containers and the keys.
    """
    node, observation = observer.node, observer.observe()
    sample = observation.sample
    views = observed_views(node, observation)
    processes = process_rows(Join(observation), views)
    suspended.look_at(views)
    if not live:
        suspended.watch()
    rows = _in_order(_chosen(node, processes, selector, suspended.going_on), sort)
    answer, gap = driver_answer(observer, observation)
    driver = answer is not None and gap is None
    data = {"driver": answer, "processes": rows}
    blocks: list[Block] = [
        *([Table(GPU_COLUMNS, sample.devices, whole=True)] if live and sample is not None else []),
        *(
            [use_table(container_uses(node, views, processes, selector), sort, driver=driver)]
            if live
            else []
        ),
        Table(_columns(wide, driver), rows, "busy"),
        Lines([(_sums(rows, driver), QUIET)], on="terminal"),
        *([Lines([key_hint(sort)])] if live else []),
    ]
    notes = [] if gap is None else [f"no figures of the driver: {gap}"]
    return node_page("processes/1", observation, node, node_choice, data, blocks, notes)


def _chosen(
    node: Node,
    processes: Iterable[NodeProcess],
    selector: Selector,
    goes_on: Mapping[int, SuspendedActivity],
) -> Iterable[ProcessRow]:
    for process in processes:
        owner = process.owner
        if not selector.matches_container(owner, node.pod_name(owner)):
            continue
        row = _process_row(node, process, goes_on)
        if selector.device is not None:
            chosen = [each for each in row.busy if selector.matches_device(each)]
            if not chosen:
                continue
            row = attrs.evolve(row, devices=tuple(chosen))
        yield row


def _columns(wide: bool, driver: bool) -> Sequence[Column]:
    on: On = "both" if driver else "pipe"

    more = (
        Column("USER", "user", NAME),
        Column("UUID", part="uuid", kind=NAME, style=QUIET, from_width=ROOMY),
        Column("COMMAND", "command", COMMAND),
    )
    # A wide terminal has room for whose each process is; a pipe keeps its columns.
    roomy = (
        Column("USER", "user", NAME, on="terminal", from_width=_WHOSE),
        Column("COMMAND", "command", COMMAND, on="terminal", from_width=_WHOSE),
    )
    gpu = Column("GPU", part="driver_index", kind=NUMBER, title="GPU", on=on, from_width=ROOMY)
    return (
        *NAME_COLUMNS,
        Column("DEVICE", part="index", kind=NUMBER, title="dev"),
        gpu,
        Column("PID", "pid_words", NUMBER, title="PID", style="bold", from_width=_PIDS),
        Column("HOST-PID", "host_pid", NUMBER, title="host PID"),
        Column("STATE", "state_word", _STATE, style=_state_style),
        Column("MEM-USED", part="memory_used_bytes", kind=SIZE, title="used"),
        Column("MEM-DRIVER", part="memory_driver_bytes", kind=SIZE, title="driver", on=on),
        Column("SM", part="sm_util_percent", kind=PERCENT, title="SM"),
        Column("SM-DRIVER", part="driver_sm_percent", kind=PERCENT, title="SM drv", on=on),
        *(more if wide else roomy),
    )


def _state_style(row: ProcessRow) -> str:
    return _STATE_STYLES.get(row.state_word, "")


_STATE = Kind(str, right=False, longest=len("unmanaged"))


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

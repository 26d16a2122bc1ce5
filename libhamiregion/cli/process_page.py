"""The processes of a node as a page: what each uses of its GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from libhamiregion import ProcessStatus, format_size
from libhamiregion.node.join import Join
from libhamiregion.node.process_rows import process_rows
from libhamiregion.node.views import observed_views

from .container_use import container_uses, use_table
from .driver import GPU_COLUMNS, driver_answer
from .format import NAME_COLUMNS, Names, count, names_of
from .keyboard import key_hint
from .output import Page, node_page
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
    from collections.abc import Callable, Iterable, Sequence

    from libhamiregion.node import Node, NodeProcess, Observer, ProcessDeviceRow, Selector

    from .options import NodeChoice
    from .tables import Block

# Columns of a terminal from which there is room for the pids of two namespaces.
_PIDS = 90
# ... and for users and commands beside whole names of pods.
_WHOSE = 150
#: What `ps` and `top` sort by.
SORTS = ("name", "memory", "sm", "pid")
_STATE_STYLES = {
    "alive": GOOD,
    "suspended": NEAR,
    "dead": f"bold {OVER}",
    "unknown": NEAR,
    "unlisted": NEAR,
    "escaped": f"bold {OVER}",
    "unmanaged": QUIET,
}


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
        devices: Those of the region, then those that only the driver tells of.
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
        if self.status != ProcessStatus.SUSPENDED or self.state != "alive":
            return self.state
        return "suspended"

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
    live: bool = False,
) -> Page:
    """Look at the node's processes now.

    Args:
        observer: Observes the node.
        selector: What to show.
        node_choice: What the node was chosen by.
        sort: One of `SORTS`.
        wide: Whether to show users, uuids and commands too.
        live: Whether it is for `top` on a terminal, with the GPUs, the containers and the keys.
    """
    node, observation = observer.node, observer.observe()
    sample = observation.sample
    views = observed_views(node, observation)
    processes = process_rows(Join(observation), views)
    rows = _in_order(_chosen(node, processes, selector), sort)
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
    return node_page(
        "processes/1",
        observation,
        node,
        node_choice,
        data,
        blocks,
        notes,
        selector=selector,
        found=bool(rows),
    )


def _chosen(
    node: Node,
    processes: Iterable[NodeProcess],
    selector: Selector,
) -> Iterable[ProcessRow]:
    for process in processes:
        owner = process.owner
        if not selector.matches_container(owner, node.pod_name(owner)):
            continue
        row = _process_row(node, process)
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

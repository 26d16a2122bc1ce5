"""`hamiregion top`: GPUs and the processes that use most of them, live."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import attrs
import click
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from libhamiregion import format_size
from libhamiregion.node import NvmlSampler
from libhamiregion.text import printable

from . import node_options, options
from .keys import Keys
from .output import on_terminal, terminal
from .pictures import show
from .process_tables import SORTS, ProcessPicture, in_order
from .ps import process_picture, process_pictures
from .render import NEAR, QUIET, WIDE, Bar, ratio_style
from .wording import NOTHING

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console, RenderableType

    from libhamiregion.node import NvmlDevice

_INTERVAL_S = 1.0
_KEYS = {"m": "memory", "s": "sm", "n": "name", "p": "pid"}


@click.command()
@node_options.root_option
@node_options.selector_options
@click.option("--wide", "-w", is_flag=True, help="With users, uuids and command lines.")
@click.option(
    "--sort",
    type=click.Choice(SORTS),
    default="memory",
    show_default=True,
    help="By what is used, by name of pod and container, or by host pid.",
)
@click.option("--no-driver", is_flag=True, help="Do not ask the driver (NVML).")
@node_options.library_option
@options.watch_option
@options.proc_option
@node_options.pod_logs_option
@options.json_option
@options.no_color_option
def top(
    roots: tuple[str, ...],
    namespace: str | None,
    pod: str | None,
    container: str | None,
    device: str | None,
    wide: bool,
    sort: str,
    no_driver: bool,
    library: str | None,
    interval_s: float | None,
    proc: str,
    pod_logs: str,
    as_json: bool,
) -> None:
    """Show the GPUs of this node and the processes that use most of them, live.

    On a terminal again every second, or as --watch says, until q or Ctrl-C; the keys m, s, n and p
    sort by memory, SM utilisation, name and host pid.  In a pipe, and with --json, once unless
    --watch is given.  Columns, states, PATTERNs, JSON and exit codes are those of `hamiregion ps`.
    """
    chosen = node_options.selector(namespace, pod, container, device)
    with (
        contextlib.nullcontext() if no_driver else NvmlSampler(library) as driver,
        node_options.open_node(roots, proc, pod_logs) as node,
    ):
        if as_json or not on_terminal():
            pictures = process_pictures(
                node, driver, chosen, interval_s, sort=sort, wide=wide, roots=roots
            )
            show(pictures, interval_s, as_json)
            return
        _watch(
            lambda by: process_picture(node, driver, chosen, sort=by, wide=wide, roots=roots),
            _INTERVAL_S if interval_s is None else interval_s,
            sort,
        )


def _watch(look: Callable[[str], ProcessPicture], interval_s: float, sort: str) -> None:
    console = terminal()
    # No refreshing thread and one write per picture: nothing to flicker.
    with (
        contextlib.suppress(KeyboardInterrupt),
        Keys() as keys,
        Live(console=console, auto_refresh=False, vertical_overflow="crop") as live,
    ):
        due = time.monotonic()
        picture = None
        while True:
            now = time.monotonic()
            if picture is None or now >= due:
                picture = look(sort)
                due = max(due + interval_s, now)
            live.update(_view(picture, console, sort), refresh=True)
            key = keys.wait(due - time.monotonic())
            if key == "q":
                return
            sort = _KEYS.get(key, sort)
            picture = attrs.evolve(picture, processes=in_order(picture.processes, sort))


def _view(picture: ProcessPicture, console: Console, sort: str) -> RenderableType:
    """GPUs, as many processes as fit, and what there is to know."""
    width, height = console.width, console.height
    devices = () if picture.sample is None else picture.sample.devices
    notes = [Text(printable(each), style=NEAR) for each in picture.warnings]
    notes += [Text(printable(each), style=QUIET) for each in picture.notes]
    parts: list[RenderableType] = []
    if devices:
        parts += [_device_table(devices, width), Text()]
    # Beside the processes: a heading and its rule, the sums, the keys, and empty lines.
    taken = len(devices) + 2 + 7 + sum(-(-note.cell_len // width) for note in notes)
    parts.append(picture.as_view(width, rows=max(3, height - taken)))
    parts += [Text(), *notes, _hint(sort)]
    return Group(*parts)


def _device_table(devices: tuple[NvmlDevice, ...], width: int) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(2):
        table.add_column(no_wrap=True)
    for _ in range(3):
        table.add_column(no_wrap=True, justify="right")
    for device in devices:
        used, total = device.memory_used_bytes, device.memory_total_bytes
        ratio = None if used is None or not total else used / total
        util = device.gpu_util_percent
        name = printable(device.name or device.state.value, 32)
        sizes = NOTHING
        if used is not None and total is not None:
            sizes = f"{format_size(used)} of {format_size(total)}"
        table.add_row(
            Text(f"GPU {device.index}", style="bold"),
            Text(name if width >= WIDE else name[:20], style=QUIET),
            Bar(ratio or 0.0, ratio_style(ratio), width=24 if width >= WIDE else 12),
            Text(sizes),
            Text(NOTHING if util is None else f"{util} %"),
        )
    return table


def _hint(sort: str) -> Text:
    line = Text("sort by ", style=QUIET)
    for key, name in _KEYS.items():
        line.append(f"[{key}] {name}  ", style="bold" if name == sort else QUIET)
    return line.append("   [q] quit", style=QUIET)

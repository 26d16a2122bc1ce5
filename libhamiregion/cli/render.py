"""Regions as a person likes to look at them: tables, bars and colours on a terminal."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rich import box
from rich.console import Group
from rich.measure import Measurement
from rich.panel import Panel
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from libhamiregion import format_size
from libhamiregion.text import printable

from .wording import (
    NOTHING,
    busy_devices,
    facts,
    fill_ratio,
    memory_words,
    percent_words,
    status_word,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

    from libhamiregion import DeviceUsage, ProcessUsage, RegionSnapshot

# From this width on there is room for whole uuids and for each kind of memory.
WIDE = 124
QUIET = "dim"
GOOD = "green"
NEAR = "yellow"
OVER = "red"


class Bar:
    """A horizontal bar: `ratio` of it full, and a tick where `mark` is."""

    def __init__(self, ratio: float, style: str, *, width: int, mark: float | None = None) -> None:
        self.ratio = min(max(ratio, 0.0), 1.0)
        self.style = style
        self.width = width
        self.mark = mark

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(self.width, options.max_width)
        full, half, rest, tick = "#-.|" if options.ascii_only else "━╸─┃"
        halves = round(self.ratio * width * 2)
        if self.ratio > 0:
            # Little is not nothing.
            halves = max(halves, 1)
        done = full * (halves // 2) + (half if halves % 2 else "")
        cells = done + rest * (width - len(done))
        at = width if self.mark is None else min(int(self.mark * width), width - 1)
        # Split at the tick and at the end of what is full: at most four runs of one style.
        for start, end, style in (
            (0, min(at, len(done)), self.style),
            (min(at, len(done)), at, QUIET),
            (at, at + 1, ""),
            (at + 1, max(at + 1, len(done)), self.style),
            (max(at + 1, len(done)), width, QUIET),
        ):
            run = tick if start == at else cells[start:end]
            if start < min(end, width):
                yield Segment(run, console.get_style(style))
        yield Segment.line()

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(min(4, self.width), self.width)


def region_view(snapshot: RegionSnapshot, width: int) -> RenderableType:
    """Show a whole region: header, devices, processes."""
    parts: list[RenderableType] = [header(snapshot, width), "", device_table(snapshot, width)]
    if width < WIDE and any(device.uuid for device in snapshot.devices):
        parts += ["", uuid_lines(snapshot)]
    parts.append("")
    if snapshot.processes:
        parts.append(process_table(snapshot, width))
    else:
        parts.append(Text("No process uses this region.", style=QUIET))
    return Group(*parts)


def header(snapshot: RegionSnapshot, width: int) -> RenderableType:
    """Frame what holds for the whole region, titled with the file's name."""
    directory, name = os.path.split(snapshot.path)
    width = min(width, WIDE)
    return Panel(
        Group(
            Text(printable(directory), style=QUIET, overflow="fold"),
            *_fact_lines(snapshot, width - 4),
        ),
        title=Text(printable(name), style="bold"),
        title_align="left",
        border_style=QUIET,
        box=box.ROUNDED,
        width=width,
    )


def _fact_lines(snapshot: RegionSnapshot, width: int) -> list[Text]:
    """Fill lines with facts; none is broken in two as long as it fits."""
    lines: list[Text] = []
    for label, words in facts(snapshot):
        fact = Text.assemble((f"{label} ", QUIET), (words, _fact_style(label, words)))
        if lines and lines[-1].cell_len + 3 + fact.cell_len <= width:
            lines[-1].append("   ").append_text(fact)
        else:
            lines.append(fact)
    return lines


def _fact_style(label: str, words: str) -> str:
    if label == "lock" and words != "free":
        return NEAR
    if label == "settled" and words != "yes":
        return NEAR
    if label == "launches" and words != "allowed":
        return OVER
    return ""


def device_table(snapshot: RegionSnapshot, width: int) -> Table:
    """One row per device; the tick in the SM bar is the limit."""
    wide = width >= WIDE
    util = snapshot.layout.has_utilization
    named = wide and any(device.uuid for device in snapshot.devices)
    table = columns()
    table.add_column("GPU", justify="right", style="bold", no_wrap=True)
    table.add_column("memory")
    # As wide as they get: a live table must not jump from one picture to the next.
    for name, longest in (("used", "1023 MiB"), ("limit", "unlimited"), ("", "100%")):
        table.add_column(name, justify="right", no_wrap=True, min_width=len(longest))
    if util:
        table.add_column("SM")
    for name, longest in (("util", "100 %"), ("limit", "unlimited")):
        table.add_column(name, justify="right", no_wrap=True, min_width=len(longest))
    if named:
        table.add_column("UUID", no_wrap=True, overflow="ellipsis", style=QUIET)
    for device in snapshot.devices:
        cells: list[RenderableType] = [str(device.index), *_memory_cells(device, wide=wide)]
        if util:
            cells.append(_sm_bar(device, width=14 if wide else 10))
        cells.append(f"{device.sm_util_percent} %" if util else NOTHING)
        cells.append(limit_text(percent_words(device.sm_limit_percent)))
        if named:
            cells.append(printable(device.uuid) if device.uuid else NOTHING)
        table.add_row(*cells)
    return table


def uuid_lines(snapshot: RegionSnapshot) -> Text:
    """The uuids on lines of their own, for where the table has no room."""
    return Text(
        "\n".join(
            f"{device.index:>3}  {printable(device.uuid)}"
            for device in snapshot.devices
            if device.uuid
        ),
        style=QUIET,
        overflow="fold",
    )


def _memory_cells(device: DeviceUsage, *, wide: bool) -> list[RenderableType]:
    ratio = fill_ratio(device)
    style = ratio_style(ratio)
    return [
        memory_bar(ratio, width=24 if wide else 14),
        Text(format_size(device.memory_used_bytes), style=style),
        limit_text(memory_words(device.memory_limit_bytes)),
        Text("" if ratio is None else _share(ratio), style=style),
    ]


def _share(ratio: float) -> str:
    return f"{ratio:.0%}" if ratio < 10 else ">999%"


def memory_bar(ratio: float | None, *, width: int) -> Bar:
    """Show how full the memory is; empty where there is no limit."""
    return Bar(ratio or 0.0, ratio_style(ratio), width=width)


def ratio_style(ratio: float | None) -> str:
    """Green, then yellow from 70 %, red from 90 %; where nothing limits, nothing is near."""
    if ratio is None:
        return ""
    if ratio > 1:
        return f"bold {OVER}"
    return OVER if ratio >= 0.9 else NEAR if ratio >= 0.7 else GOOD


def _sm_bar(device: DeviceUsage, *, width: int) -> Bar:
    limit = device.sm_limit_percent
    # libvgpu keeps a process near its limit, not under it: a little above is how it works.
    style = OVER if limit is not None and device.sm_util_percent > limit + 10 else "cyan"
    mark = None if limit is None else limit / 100
    return Bar(device.sm_util_percent / 100, style, width=width, mark=mark)


def limit_text(words: str) -> Text:
    """A limit; no limit is quiet."""
    return Text(words, style=QUIET if words == "unlimited" else "")


def process_table(snapshot: RegionSnapshot, width: int) -> Table:
    """One row per process and device that it uses."""
    wide = width >= WIDE
    util = snapshot.layout.has_utilization
    table = columns()
    table.add_column("PID", justify="right", style="bold", no_wrap=True)
    table.add_column("host PID", justify="right", no_wrap=True)
    table.add_column("status", no_wrap=True)
    table.add_column("GPU", justify="right", no_wrap=True)
    kinds = ("context", "module", "data", "driver") if wide else ("data", "driver")
    for name in ("used", *kinds, "SM"):
        table.add_column(name, justify="right", no_wrap=True)
    for process in snapshot.processes:
        for cells in _process_rows(process, kinds=kinds, util=util):
            table.add_row(*cells)
    return table


def _process_rows(
    process: ProcessUsage, *, kinds: Iterable[str], util: bool
) -> Iterable[list[Text]]:
    pid = Text(str(process.pid))
    if not process.settled:
        pid.append("*", style=NEAR)
    identity = [
        pid,
        Text(NOTHING if process.host_pid is None else str(process.host_pid)),
        status_text(process.status),
    ]
    busy = busy_devices(process)
    if not busy:
        yield [*identity, Text(NOTHING)]
    for position in busy:
        usage = process.devices[position]
        sizes = {
            "context": usage.memory_context_bytes,
            "module": usage.memory_module_bytes,
            "data": usage.memory_data_bytes,
            "driver": usage.memory_monitor_bytes,
        }
        yield [
            *identity,
            Text(str(usage.index)),
            Text(format_size(usage.memory_used_bytes)),
            *(_quiet_zero(sizes[kind]) for kind in kinds),
            Text(f"{usage.sm_util_percent} %" if util else NOTHING),
        ]
        # One process on several devices is one process.
        identity = [Text("")] * len(identity)


def _quiet_zero(nbytes: int) -> Text:
    return Text(format_size(nbytes), style="" if nbytes else QUIET)


def status_text(status: int) -> Text:
    """A process's status in its colour."""
    styles = {0: QUIET, 1: GOOD, 2: NEAR}
    return Text(status_word(status), style=styles.get(status, OVER))


def columns() -> Table:
    """An empty table in the house's look: a rule under the heading, and air."""
    return Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
        header_style=Style(bold=True),
        border_style=QUIET,
    )

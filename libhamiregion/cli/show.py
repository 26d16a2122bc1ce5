"""`hamiregion show`: one region, once or again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from rich.live import Live
from rich.text import Text

from libhamiregion import (
    RegionError,
    RegionNotFound,
    RegionNotReady,
    RegionSnapshot,
    RegionStale,
    open_region,
)
from libhamiregion.text import printable

from . import options
from .intervals import ticks
from .output import as_plain, on_terminal, terminal, write, write_json
from .plain import region_text
from .render import NEAR, region_view

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from libhamiregion import Layout

# What passes when a container restarts: its region is removed, made anew and filled.
PASSING = (RegionNotFound, RegionNotReady, RegionStale)


@click.command()
@options.file_argument
@options.watch_option
@options.layout_option
@options.json_option
@options.no_color_option
def show(path: str, interval_s: float | None, layout: Layout | None, as_json: bool) -> None:
    """Show the devices, limits and processes of the region FILE.

    Tables and bars on a terminal, plain aligned text in a pipe.  With --json one object (with
    --watch one object per line) whose keys are the fields of RegionSnapshot, DeviceUsage,
    ProcessUsage and ProcessDeviceUsage; null is unlimited, or not known.

    Shown is the memory that libvgpu enforces: the sum over all process slots.  "driver" is what
    the GPU's driver says of a process.  A process marked * (settled: no) was being written while
    it was read; its figures may belong to two moments.

    --watch follows the file when a restarted container replaces it; until the new one is there,
    an object has the keys path, error and message.
    """
    if interval_s is None:
        with open_region(path, layout=layout) as region:
            snapshot = region.snapshot()
        if as_json:
            write_json(as_plain(snapshot))
        elif on_terminal():
            console = terminal()
            console.print(region_view(snapshot, console.width))
        else:
            write(region_text(snapshot))
        return
    try:
        _watch(path, interval_s, layout, as_json=as_json)
    except KeyboardInterrupt:
        # Ctrl-C is how a watch ends, not how it fails.
        return


def _watch(path: str, interval_s: float, layout: Layout | None, *, as_json: bool) -> None:
    seen = _snapshots(path, interval_s, layout)
    if as_json:
        for snapshot in seen:
            write_json(_as_object(snapshot))
    elif on_terminal():
        console = terminal()
        # No refreshing thread and one write per picture: nothing to flicker.
        with Live(console=console, auto_refresh=False) as live:
            for snapshot in seen:
                live.update(_as_view(snapshot, console.width), refresh=True)
    else:
        for number, snapshot in enumerate(seen):
            write(("\n" if number else "") + _as_text(snapshot))


def _snapshots(
    path: str, interval_s: float, layout: Layout | None
) -> Iterator[RegionSnapshot | RegionError]:
    """Yield a snapshot per interval; once there was one, also what passes when the file changes."""
    region = open_region(path, layout=layout)
    try:
        for _ in ticks(interval_s):
            try:
                if region.closed or region.is_stale():
                    region.close()
                    region = open_region(path, layout=layout)
                yield region.snapshot()
            except PASSING as error:
                yield error
    finally:
        region.close()


def _as_object(answer: RegionSnapshot | RegionError) -> dict[str, Any]:
    if isinstance(answer, RegionSnapshot):
        return as_plain(answer)
    return {"path": answer.path, "error": type(answer).__name__, "message": str(answer)}


def _as_view(answer: RegionSnapshot | RegionError, width: int) -> RenderableType:
    if isinstance(answer, RegionSnapshot):
        return region_view(answer, width)
    return Text(printable(str(answer)), style=NEAR)


def _as_text(answer: RegionSnapshot | RegionError) -> str:
    if isinstance(answer, RegionSnapshot):
        return region_text(answer)
    return printable(str(answer)) + "\n"

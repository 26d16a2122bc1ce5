"""`hamiregion suspend`: block a process's CUDA calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from libhamiregion import open_region

from . import options
from .slot_changes import answer_status

if TYPE_CHECKING:
    from libhamiregion import Layout


@click.command()
@options.file_argument
@options.pid_argument
@options.timeout_option
@options.dry_run_option
@options.layout_option
@options.json_option
@options.no_color_option
def suspend(
    path: str, pid: int, timeout_s: float, dry_run: bool, layout: Layout | None, as_json: bool
) -> None:
    """Block the CUDA calls of process PID in the region FILE, within a second.

    PID is that of the container's namespace, as `hamiregion show` lists it.  `hamiregion resume`
    lets the process go on.

    JSON: path, layout, dry_run, pid, before and after (0 exited, 1 running, 2 suspended).
    """
    with open_region(path, writable=True, layout=layout) as region:
        change = region.suspend(pid, dry_run=dry_run, timeout_s=timeout_s)
        answer_status(region, change, dry_run=dry_run, as_json=as_json)

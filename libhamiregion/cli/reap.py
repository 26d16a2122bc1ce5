"""`hamiregion reap`: free the slots of dead processes, whose memory still counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from libhamiregion import RegionError, format_size, open_region

from . import options
from .failures import Failure
from .output import as_plain, write, write_json

if TYPE_CHECKING:
    from libhamiregion import Layout, ReapedSlot


@click.command()
@options.file_argument
@options.pids_argument
@options.timeout_option
@options.proc_option
@options.dry_run_option
@options.layout_option
@options.json_option
@options.no_color_option
def reap(
    path: str,
    pids: tuple[int, ...],
    timeout_s: float,
    proc: str,
    dry_run: bool,
    layout: Layout | None,
    as_json: bool,
) -> None:
    """Free the slots of dead processes in the region FILE, whose memory still counts.

    Without PIDs, all processes that are proved dead: no process that maps this very file has that
    pid.  With PIDs (of the container's namespace) only those; one that lives, or cannot be judged
    from here, keeps its slot, and the exit code is 1.

    JSON: path, layout, dry_run, and reaped, a list of objects with the keys pid, memory_bytes and
    removed (false where the slot was emptied in place).
    """
    with open_region(path, writable=True, layout=layout) as region:
        try:
            reaped = region.reap(pids or None, proc=proc, dry_run=dry_run, timeout_s=timeout_s)
        except RegionError:
            raise
        except ValueError as error:
            # One of the processes lives: the command was right, and yet not all of it was done.
            raise Failure(str(error)) from None
        path, name = region.path, region.layout.value
    if as_json:
        listed = [as_plain(slot) for slot in reaped]
        write_json({"path": path, "layout": name, "dry_run": dry_run, "reaped": listed})
        return
    write("".join(f"{_sentence(slot)}\n" for slot in reaped) or "no dead process has a slot\n")
    if dry_run:
        write("dry run: nothing was written\n")


def _sentence(slot: ReapedSlot) -> str:
    how = "slot removed" if slot.removed else "slot emptied"
    return f"process {slot.pid}: {how}, {format_size(slot.memory_bytes)} no longer counted"

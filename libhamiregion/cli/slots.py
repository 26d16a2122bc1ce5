"""`hamiregion suspend`, `resume` and `reap`: the process slots of a region."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from libhamiregion import (
    Effect,
    ReapedSlot,
    Region,
    RegionError,
    SearchCutShort,
    format_size,
    open_region,
)

from . import options
from .failures import Failure
from .format import effect_words, status_word
from .output import show_done

if TYPE_CHECKING:
    from collections.abc import Callable

    from libhamiregion import Layout, SlotChange

# How long a search of /proc goes on, over several calls.
_SEARCH_S = 30.0

_common = options.all_of(
    options.dry_run_option,
    options.layout_option,
    options.json_option,
)


@click.command()
@options.file_argument
@options.pid_argument
@_common
def suspend(path: str, pid: int, **settings: Any) -> None:
    """Block the CUDA calls of process PID in the region FILE, within a second.

    PID is that of the container's namespace, as `hamiregion show` lists it.  `hamiregion resume`
    lets the process go on.

    From HAMi 2.10 on a process obeys only where some device has an SM limit of 1 to 99, and the
    region does not tell which HAMi uses it.  Where no device has one, the process is watched for
    3 s, and the exit code is 1 if it goes on launching or allocating.

    JSON: path, layout, dry_run, pid, before and after (0 exited, 1 running, 2 suspended), effect
    (immediate or if_sm_limited), and goes_on (allocating, launching, or null: not seen).
    """
    _set_status(Region.suspend, path, pid, **settings)


@click.command()
@options.file_argument
@options.pid_argument
@_common
def resume(path: str, pid: int, **settings: Any) -> None:
    """Let the suspended process PID in the region FILE go on, within a second.

    PID is that of the container's namespace, as `hamiregion show` lists it.

    JSON: path, layout, dry_run, pid, before and after (0 exited, 1 running, 2 suspended), effect
    and goes_on as of `hamiregion suspend`.
    """
    _set_status(Region.resume, path, pid, **settings)


def _set_status(
    edit: Callable[..., SlotChange],
    path: str,
    pid: int,
    dry_run: bool,
    layout: Layout | None,
    as_json: bool,
) -> None:
    with open_region(path, writable=True, layout=layout) as region:
        change = edit(region, pid, dry_run=dry_run)
    words = f"process {change.pid}: {status_word(change.before)} -> {status_word(change.after)}"
    words += " (unchanged)" if change.before == change.after else ""
    lines = [words]
    if change.effect is Effect.IF_SM_LIMITED:
        lines.append(f"obeyed {effect_words(change.effect)}")
    show_done(
        "slot-status/1",
        region,
        lines,
        as_json,
        dry_run=dry_run,
        pid=change.pid,
        before=change.before,
        after=change.after,
        effect=change.effect,
    )


@click.command()
@options.file_argument
@options.pids_argument
@options.proc_option
@_common
def reap(
    path: str,
    pids: tuple[int, ...],
    proc: str,
    dry_run: bool,
    layout: Layout | None,
    as_json: bool,
) -> None:
    """Free the slots of dead processes in the region FILE, whose memory still counts.

    Without PIDs, all processes that are proved dead: no process that maps this very file has that
    pid.  With PIDs (of the container's namespace) only those; one that lives, or cannot be judged
    from here, keeps its slot, and the exit code is 1.  On a node with very many processes this
    may take half a minute.

    JSON: path, layout, dry_run, and reaped, a list of objects with the keys pid, memory_bytes and
    removed (false where the slot was emptied in place).
    """
    with open_region(path, writable=True, layout=layout) as region:
        try:
            if pids:
                reaped = region.reap(pids, proc=proc, dry_run=dry_run)
            else:
                reaped = _reap_all(region, proc, dry_run)
        except RegionError:
            raise
        except ValueError as error:
            # One of the processes lives: the command was right, and yet not all of it was done.
            raise Failure(str(error)) from None
    lines = [
        f"process {slot.pid}: slot {'removed' if slot.removed else 'emptied'},"
        f" {format_size(slot.memory_bytes)} no longer counted"
        for slot in reaped
    ] or ["no dead process has a slot"]
    show_done("reaped/1", region, lines, as_json, dry_run=dry_run, reaped=reaped)


def _reap_all(region: Region, proc: str, dry_run: bool) -> tuple[ReapedSlot, ...]:
    """Reap again and again where the search through /proc is cut short: it goes on each time."""
    until_s = time.monotonic() + _SEARCH_S
    done: list[ReapedSlot] = []
    while True:
        try:
            return (*done, *region.reap(proc=proc, dry_run=dry_run))
        except SearchCutShort as error:
            if not dry_run:
                done += error.done
            if time.monotonic() >= until_s:
                error.done = tuple(done)
                raise

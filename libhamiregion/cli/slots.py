"""`hamiregion suspend`, `resume` and `reap`: the process slots of a region."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from libhamiregion import Effect, Region, RegionError, format_size

from . import options
from .failures import Failure
from .format import effect_words, status_word
from .help import Verb
from .output import show_done
from .targets import Targets, target_options

if TYPE_CHECKING:
    from collections.abc import Callable

    from libhamiregion import SlotChange

_common = options.all_of(options.dry_run_option, options.output_options)


@click.command(
    cls=Verb,
    examples=["hamiregion suspend -n research bert-0 17", "hamiregion suspend usage.cache 17"],
)
@target_options()
@options.pid_argument
@_common
def suspend(targets: Targets, **settings: Any) -> int:
    """Block the CUDA calls of process PID of a container, within a second."""
    return targets.for_each(
        lambda region: _set_status(Region.suspend, region, **settings), writable=True
    )


@click.command(
    cls=Verb,
    examples=["hamiregion resume -n research bert-0 17", "hamiregion resume usage.cache 17"],
)
@target_options()
@options.pid_argument
@_common
def resume(targets: Targets, **settings: Any) -> int:
    """Let the suspended process PID of a container go on, within a second."""
    return targets.for_each(
        lambda region: _set_status(Region.resume, region, **settings), writable=True
    )


def _set_status(
    edit: Callable[..., SlotChange], region: Region, pid: int, dry_run: bool, as_json: bool
) -> None:
    change = edit(region, pid, dry_run=dry_run)
    words = f"process {pid}: {status_word(change.before)} -> {status_word(change.after)}"
    lines = [f"{words} (unchanged)" if change.before == change.after else words]
    if change.effect is Effect.IF_SM_LIMITED:
        lines.append(f"obeyed {effect_words(change.effect)}")
    answer = {"pid": pid, "before": change.before, "after": change.after, "effect": change.effect}
    show_done("slot-status/1", region, lines, as_json, dry_run=dry_run, **answer)


@click.command(
    cls=Verb,
    examples=["hamiregion reap -n research bert-0 --dry-run", "hamiregion reap usage.cache 17"],
)
@target_options()
@options.pids_argument
@options.proc_option
@_common
def reap(targets: Targets, **settings: Any) -> int:
    """Free the slots of processes of a container that are proved dead; their memory counts."""
    return targets.for_each(lambda region: _reap(region, **settings), writable=True)


def _reap(region: Region, pids: tuple[int, ...], proc: str, dry_run: bool, as_json: bool) -> None:
    try:
        reaped = region.reap(pids or None, proc=proc, dry_run=dry_run)
    except RegionError:
        raise
    except ValueError as error:
        # One of the processes lives: no wrong usage, but not all of it was done.
        raise Failure(str(error)) from None
    lines = [
        f"process {slot.pid}: slot emptied, {format_size(slot.memory_bytes)} no longer counted"
        for slot in reaped
    ] or ["no dead process has a slot"]
    show_done("reaped/1", region, lines, as_json, dry_run=dry_run, reaped=reaped)

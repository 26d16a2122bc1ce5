"""`hamiregion lock`: the holder of a region's lock, and freeing a lock whose holder is dead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from libhamiregion import open_region

from . import options
from .failures import ErrorGroup
from .format import OWN_WORDS
from .help import Verb
from .output import Page, as_plain, show_all, show_done, ticks
from .tables import Lines
from .targets import Targets, target_options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from libhamiregion import Layout, LockRecovery, LockState


@click.group(cls=ErrorGroup)
def lock() -> None:
    """Look at the lock of a region, and repair it."""


@lock.command(
    "status",
    cls=Verb,
    examples=[
        "hamiregion lock status -n research bert-0",
        "hamiregion lock status usage.cache -i 1",
    ],
)
@target_options()
@options.watch_option
@options.proc_option
@options.layout_option
@options.output_options
def status(
    targets: Targets, interval_s: float | None, proc: str, layout: Layout | None, as_json: bool
) -> int | None:
    """Show which process holds the lock of a container's region, and whether it lives."""

    def pages(path: str) -> Iterator[Page]:
        with open_region(path, layout=layout) as region:
            for _ in ticks(interval_s):
                state = region.lock_state(proc=proc)
                data = {"path": region.path, "layout": region.layout, **as_plain(state)}
                yield Page("lock/1", data, [Lines([state_sentence(state)])])

    if interval_s is None:
        return targets.for_each(lambda path: show_all(pages(path), None, as_json))
    show_all(pages(targets.only_path()), interval_s, as_json)
    return None


@lock.command(
    "recover",
    cls=Verb,
    examples=[
        "hamiregion lock recover -n research bert-0 --dry-run",
        "hamiregion lock recover usage.cache --watch-for 60",
    ],
)
@target_options()
@click.option(
    "--watch-for",
    "watch_s",
    type=options.Seconds(min=0, max=3600),
    default=10.5,
    show_default=True,
    metavar="SECONDS",
    help="How long to watch a lock without an owner; 60 judges the second semaphore too.",
)
@options.proc_option
@options.dry_run_option
@options.layout_option
@options.output_options
def recover(targets: Targets, **settings: Any) -> int:
    """Free the lock of a container's region, if there is proof that no process holds it."""
    return targets.for_each(lambda path: _recover(path, **settings))


def _recover(
    path: str, watch_s: float, proc: str, dry_run: bool, layout: Layout | None, as_json: bool
) -> None:
    with open_region(path, writable=not dry_run, layout=layout) as region:
        done: LockState | LockRecovery
        if dry_run:
            done = region.lock_state(proc=proc)
            sentences = [state_sentence(done)]
        else:
            done = region.recover_lock(proc=proc, watch_s=watch_s)
            sentences = recovery_sentences(done)
    schema = "lock/1" if dry_run else "lock-recovery/1"
    show_done(schema, region, sentences, as_json, dry_run=dry_run, **as_plain(done))


def state_sentence(state: LockState) -> str:
    """Say in one line who holds a lock.

    Damage comes first: such a lock excludes nobody.
    """
    if state.damaged:
        signed = "" if state.owner_life is None else " though somebody has signed"
        value = state.semaphore_value
        return f"damaged: the semaphore stands at {value}{signed}, and so excludes nobody"
    if not state.held:
        words = "free"
    elif state.owner_life is None:
        words = "held, but nobody has signed for it"
    else:
        owner = OWN_WORDS if state.by_library else f"pid {state.owner_pid}"
        if state.owner_host_pid is not None:
            owner += f" (pid {state.owner_host_pid} here)"
        words = f"held by {owner}, {_LIVES[state.owner_life]}"
    if state.held_for_s:
        words += f", the same owner at every check for {state.held_for_s:.1f} s"
    if state.postinit_value is not None and state.postinit_value != 1:
        words += f"; the second semaphore stands at {state.postinit_value}"
    return words


_LIVES = {
    "alive": "which is alive",
    "dead": "which is dead: `hamiregion lock recover` frees it",
    "unknown": "and /proc does not show whether that lives",
    None: "which has not signed",
}


def recovery_sentences(recovery: LockRecovery) -> list[str]:
    """Say what a recovery has done."""
    done_words = {
        "dead owner's lock given back": recovery.dead_owner,
        "lock that nobody had signed for given back": recovery.ownerless,
        "semaphore set back to 1": recovery.impossible_value,
        "second semaphore given back": recovery.postinit,
    }
    return [what for what, done in done_words.items() if done] or ["nothing was wrong"]

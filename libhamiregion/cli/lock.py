"""`hamiregion lock`: the holder of a region's lock, and freeing a lock whose holder is dead."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from libhamiregion import open_region

from . import options
from .failures import ErrorGroup
from .format import OWN_WORDS
from .output import Page, as_plain, show_all, show_done, ticks
from .tables import Lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from libhamiregion import Layout, LockRecovery, LockState


@click.group(cls=ErrorGroup)
def lock() -> None:
    """Look at the lock of a region, and repair it."""


@lock.command("status")
@options.file_argument
@options.watch_option
@options.proc_option
@options.layout_option
@options.json_option
def status(
    path: str, interval_s: float | None, proc: str, layout: Layout | None, as_json: bool
) -> None:
    """Show who holds the lock of the region FILE, and whether that process lives.

    Changes nothing.  Exit code 0 whether it is held or not.

    JSON: path, layout, and the fields of LockState.
    """

    def pages() -> Iterator[Page]:
        with open_region(path, layout=layout) as region:
            for _ in ticks(interval_s):
                state = region.lock_state(proc=proc)
                data = {"path": region.path, "layout": region.layout, **as_plain(state)}
                yield Page("lock/1", data, [Lines([state_sentence(state)])])

    show_all(pages(), interval_s, as_json)


@lock.command("recover")
@options.file_argument
@click.option(
    "--watch-for",
    "watch_s",
    type=options.Seconds(min=0, max=3600),
    default=10.5,
    show_default=True,
    metavar="SECONDS",
    help="How long to watch a lock that nobody has signed for; 60 judges the second semaphore too.",
)
@options.proc_option
@options.dry_run_option
@options.layout_option
@options.json_option
def recover(
    path: str, watch_s: float, proc: str, dry_run: bool, layout: Layout | None, as_json: bool
) -> None:
    """Free the lock of the region FILE, where there is proof that nobody holds it.

    A lock that a live process holds is never broken.  Without proof nothing is done: the message
    says what is missing, and the exit code is 1.  --dry-run only says who holds it.

    JSON: path, layout, dry_run, and the fields of LockRecovery (with --dry-run: of LockState).
    """
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
        signed = "" if state.owner_pid is None else " though somebody has signed"
        value = state.semaphore_value
        return f"damaged: the semaphore stands at {value}{signed}, and so excludes nobody"
    if not state.held:
        words = "free"
    elif state.owner_pid is None:
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

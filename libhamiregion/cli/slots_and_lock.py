"""`hamiregion suspend`, `resume`, `reap` and `lock`: the slots and the lock of a region."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from libhamiregion import Effect, ReapRefused, Region, SearchCutShort, format_size

from . import options
from .failures import ErrorGroup, failure
from .format import EFFECT_WORDS, status_word
from .help import verb
from .output import Answer, as_plain, program
from .tables import Lines, Page
from .targets import Place, Targets, target_options

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from libhamiregion import Evidence, LockRecovery, LockState, SlotChange

# Characters of a command.
_COMMAND_SHOWN = 80

_common = options.all_of(options.dry_run_option, options.answer_options)


@verb("hamiregion suspend -n research bert-0 17", "hamiregion suspend usage.cache 17")
@target_options()
@options.pid_argument
@_common
def suspend(targets: Targets, **settings: Any) -> int:
    """Block the CUDA calls of process PID of a container, within a second."""
    return targets.for_each(lambda *at: _set_status(Region.suspend, *at, **settings), writable=True)


@verb("hamiregion resume -n research bert-0 17", "hamiregion resume usage.cache 17")
@target_options()
@options.pid_argument
@_common
def resume(targets: Targets, **settings: Any) -> int:
    """Let the suspended process PID of a container go on, within a second."""
    return targets.for_each(lambda *at: _set_status(Region.resume, *at, **settings), writable=True)


def _set_status(
    edit: Callable[..., SlotChange],
    region: Region,
    place: Place,
    pid: int,
    dry_run: bool,
    answer: Answer,
) -> None:
    change = edit(region, pid, dry_run=dry_run)
    words = f"process {pid}: {status_word(change.before)} -> {status_word(change.after)}"
    if change.before == change.after:
        words += " (unchanged)"
    elif dry_run:
        words = f"would change {words}"
    lines = [words]
    if change.effect is Effect.IF_SM_LIMITED:
        lines.append(f"obeyed {EFFECT_WORDS[change.effect]}")
    data = {"pid": pid, "before": change.before, "after": change.after, "effect": change.effect}
    answer.show(place.done("slot-status/1", region, lines, dry_run=dry_run, **data))


@verb("hamiregion reap -n research bert-0 --dry-run", "hamiregion reap usage.cache 17")
@target_options()
@options.pids_argument
@options.proc_option
@_common
def reap(targets: Targets, **settings: Any) -> int:
    """Free the slots of processes of a container that are proved dead; their memory counts."""
    return targets.for_each(lambda *at: _reap(*at, **settings), writable=True)


def _evidence(region: Region, proc: str, *, everyone: bool = False) -> Evidence:
    """Ask the processes of a region, whatever one of them does to keep its readers waiting."""
    from libhamiregion.node.evidence import gather_alone

    return gather_alone(region, proc, everyone=everyone)


def _reap(
    region: Region, place: Place, pids: tuple[int, ...], proc: str, dry_run: bool, answer: Answer
) -> None:
    failed = None
    try:
        reaped = region.reap(pids or None, evidence=_evidence(region, proc), dry_run=dry_run)
    except (ReapRefused, SearchCutShort) as error:
        reaped, failed = error.done, failure(error)
    words = "slot emptied, {} no longer counted"
    if dry_run:
        words = "slot would be emptied, {} would no longer be counted"
    lines = [
        f"process {slot.pid}: {words.format(format_size(slot.memory_bytes))}" for slot in reaped
    ]
    if lines or failed is None:
        lines = lines or ["no process with a slot is proved dead"]
        answer.show(place.done("reaped/1", region, lines, dry_run=dry_run, reaped=reaped))
    if failed is not None:
        raise failed


# ---- the lock ------------------------------------------------------------------------------------


@click.group(cls=ErrorGroup)
def lock() -> None:
    """Look at the lock of a region, and repair it."""


@lock.verb(
    "status", "hamiregion lock status -n research bert-0", "hamiregion lock status usage.cache -i 1"
)
@target_options(reads=True)
@options.proc_option
@options.watch_options
def status(targets: Targets, proc: str, answer: Answer) -> int:
    """Show which process holds a region's lock, and whether it lives."""
    return targets.for_each(
        lambda *at: answer.show_all(lambda: _page(*at, proc=proc)),
        only_one=answer.interval_s is not None,
    )


def _page(region: Region, place: Place, *, proc: str) -> Page:
    state, tools = _state(region, proc)
    data = {**place.data, "path": region.path, "layout": region.layout, **as_plain(state)}
    sentence = place.label + state_sentence(state, tools)
    return Page("lock/1", data | {"tools": tools}, [Lines([sentence])])


@lock.verb(
    "recover",
    "hamiregion lock recover -n research bert-0 --dry-run",
    "hamiregion lock recover usage.cache --watch-for 60",
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
@options.answer_options
def recover(targets: Targets, watch_s: float, proc: str, dry_run: bool, answer: Answer) -> int:
    """Free a region's lock, if it is proved that no process holds it."""

    def act(region: Region, place: Place) -> None:
        done: LockState | LockRecovery
        data: dict[str, Any] = {}
        if dry_run:
            done, data["tools"] = _state(region, proc)
            schema, sentences = "lock/1", [_would_do(done, watch_s), state_sentence(done, **data)]
        else:
            done = region.recover_lock(
                evidence=_evidence(region, proc, everyone=True), watch_s=watch_s
            )
            schema, sentences = "lock-recovery/1", recovery_sentences(done)
        data = as_plain(done) | data
        answer.show(place.done(schema, region, sentences, dry_run=dry_run, **data))

    return targets.for_each(act, writable=not dry_run)


def _state(region: Region, proc: str) -> tuple[LockState, list[dict[str, Any]]]:
    """Judge the lock, and find the tools that may hold it."""
    state = region.lock_state(evidence=_evidence(region, proc))
    if not state.by_library or not state.held or state.owner_life == "dead":
        return state, []
    from libhamiregion.node import ProcessTable
    from libhamiregion.node.procfs import file_identity

    table = ProcessTable(proc)
    table.refresh()
    tools = table.view.lock_tools(file_identity(region), region.snapshot())
    return state, [program(each, each.pid) for each in tools]


def state_sentence(state: LockState, tools: Sequence[dict[str, Any]] = ()) -> str:
    """Say in one line who holds a lock.

    Damage comes first: such a lock excludes no one.
    """
    if state.damaged:
        return f"damaged: the semaphore is {state.semaphore_value}, so the lock excludes no one"
    if not state.held:
        words = "free"
    elif state.owner_life is None:
        words = "held, without an owner"
    else:
        pid = state.owner_pid
        owner = "an unknown process" if pid is None else f"pid {pid}"
        if state.by_library:
            named = [f"pid {each['pid']} ({each['command'][:_COMMAND_SHOWN]})" for each in tools]
            owner = " or ".join(named) or "a tool with libhamiregion"
        if state.owner_host_pid is not None:
            owner += f" (pid {state.owner_host_pid} here)"
        words = f"held by {owner}, {_LIVES[state.owner_life]}"
    if state.postinit_value not in (None, 1):
        words += f"; the second semaphore is {state.postinit_value}"
    return words


_LIVES = {
    "alive": "which is alive",
    "dead": "which is dead: `hamiregion lock recover` frees it",
    "unknown": "which may be dead: /proc does not show it",
    None: "whose life is not known",
}


def _would_do(state: LockState, watch_s: float) -> str:
    """Say in one line what a recovery would do."""
    if state.damaged:
        return "would set the semaphore back to 1"
    if state.owner_life == "dead":
        return "would give the dead owner's lock back"
    if state.held and state.owner_life is None:
        return f"would watch the lock for {watch_s:g} s, and give it back with proof"
    if state.postinit_value not in (None, 1):
        return f"would watch the second semaphore for {watch_s:g} s of 60"
    return "would leave the lock as it is"


def recovery_sentences(recovery: LockRecovery) -> list[str]:
    """Say what a recovery has done."""
    done_words = {
        "dead owner's lock given back": recovery.dead_owner,
        "lock without an owner given back": recovery.ownerless,
        "semaphore set back to 1": recovery.impossible_value,
        "second semaphore given back": recovery.postinit,
    }
    return [what for what, done in done_words.items() if done] or ["nothing was wrong"]

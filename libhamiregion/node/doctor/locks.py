"""Checks: the lock of a region."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from libhamiregion.layouts import Layout

from .findings import FindingKind, Severity, command_of, count_text, finding, key_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from libhamiregion.lock import LockState

    from .findings import DoctorContext, Finding, UsedRegion

# Before a lock is called stuck it is looked at without a pause: somebody who takes it again and
# again, and holds it nearly all of the time, is caught between two turns.
_LAST_LOOK_S = 0.02


def locks(context: DoctorContext, used: UsedRegion) -> Iterator[Finding]:
    """Everything about one region's lock."""
    has_startup_lock = used.snapshot.layout is Layout.V1_1_POSTINIT
    free = context.semaphores.get(id(used.container), 1) == 1 and not used.snapshot.owner_pid
    if free and not has_startup_lock:
        return
    state = used.region.lock_state(proc=context.node.proc)
    if state.damaged:
        yield _impossible(used, "the lock's semaphore", state.semaphore_value, "lock")
    elif state.held:
        yield from _held(context, used, state)
    if state.postinit_value is None or state.postinit_value == 1:
        return
    if state.postinit_value > 1:
        yield _impossible(used, "the start-up semaphore", state.postinit_value, "startup")
    elif context.is_unused(used):
        yield finding(
            FindingKind.LOCK_STUCK,
            used.container,
            "the start-up semaphore is taken and nobody uses the region",
            "sem_postinit stands at 0, and /proc shows no process that maps the file for writing",
            cause="startup",
        )


def _impossible(used: UsedRegion, which: str, value: int, cause: str) -> Finding:
    return finding(
        FindingKind.SEMAPHORE_IMPOSSIBLE,
        used.container,
        f"{which} stands at {value}" + (", though somebody has signed" if value == 1 else ""),
        "it may be 0 (taken), or 1 (free) where nobody has signed",
        cause=cause,
    )


def _held(context: DoctorContext, used: UsedRegion, state: LockState) -> Iterator[Finding]:
    owner = state.owner_pid
    pid = None if state.by_library else owner
    waiters = count_text(state.waiters, "waiter") if state.waiters else "nobody"
    if state.owner_life == "dead":
        yield finding(
            FindingKind.LOCK_STUCK,
            used.container,
            f"the lock is held by {_owner_text(state)}, which is dead",
            "the semaphore stands at 0 and its signature is of no process that maps this region;"
            f" {waiters} asleep on it",
            pid=pid,
            cause="dead_owner",
        )
        return
    if owner is None and context.is_unused(used):
        yield _ownerless(used, "no process maps the file for writing")
        return

    def has_moved() -> bool:
        if owner is not None:
            # Cheap, where telling who the owner is would be a scan of /proc.
            return used.region.snapshot().owner_pid != owner
        now = used.region.lock_state(proc=context.node.proc)
        return not now.held or now.owner_pid is not None

    what = ("lock", key_of(used.container))
    stood_s = context.unchanged_for_s(what, owner, has_moved)
    if stood_s is None:
        return
    if _moves_at_last(has_moved):
        context.forget(what)
    elif owner is None:
        yield _ownerless(used, f"nothing has moved for {stood_s:.1f} s")
    else:
        known = state.owner_life == "alive"
        host_pid = state.owner_host_pid
        process = None if host_pid is None else context.node.processes.get(host_pid)
        life = f"it is alive{command_of(process)}" if known else "whether it lives cannot be told"
        yield finding(
            FindingKind.LOCK_STUCK,
            used.container,
            f"the lock was held by {_owner_text(state)} at every check for {stood_s:.1f} s",
            f"releases between two checks are not seen; {life}; {waiters} asleep on it",
            pid=pid,
            cause="live_owner" if known else "unknown_owner",
            advice="see what the process does: if it is stopped, `kill -CONT` lets it go on; if it"
            " hangs in the driver, end it, and then run `hamiregion doctor --repair --root DIR`",
            repairable=False,
            severity=Severity.WARNING,
        )


def _ownerless(used: UsedRegion, evidence: str) -> Finding:
    return finding(
        FindingKind.LOCK_STUCK,
        used.container,
        "the lock is taken and nobody has signed for it",
        f"the semaphore stands at 0 and owner_pid is 0; {evidence}",
        cause="ownerless",
    )


def _owner_text(state: LockState) -> str:
    if state.by_library:
        return "a tool with libhamiregion"
    here = "" if state.owner_host_pid is None else f" ({state.owner_host_pid} on the host)"
    return f"process {state.owner_pid}{here}"


def _moves_at_last(has_moved: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + _LAST_LOOK_S
    while time.monotonic() < deadline:
        if has_moved():
            return True
    return False

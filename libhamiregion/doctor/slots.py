"""Checks of the process table: slots, seqlocks, host pids, and the lock."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from libhamiregion.layouts import SLOT_CAPACITY
from libhamiregion.observation.figures import IMPOSSIBLE_BYTES
from libhamiregion.observation.suspicions import NEARLY_FULL
from libhamiregion.text import count_text
from libhamiregion.units import format_size

from .context import memory_bytes
from .findings import FindingKind, Severity, command_of, finding, only_or_none, pids_text, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from libhamiregion.lock import LockState
    from libhamiregion.models import ProcessUsage
    from libhamiregion.observation.processes import HostProcess

    from .context import DoctorContext, ObservedRegion
    from .findings import Finding

# A container can have a thousand processes, each with something wrong.
_FINDINGS_PER_REGION = 16
_PATH_LIMIT = 200


def _size(nbytes: int) -> str:
    return "an impossible number of bytes" if nbytes >= IMPOSSIBLE_BYTES else format_size(nbytes)


# ---- slots --------------------------------------------------------------------------------------


def dead_processes(_: DoctorContext, used: ObservedRegion) -> Iterator[Finding]:
    """Dead processes whose memory still counts; one finding for all of a region."""
    dead = [
        usage
        for usage, match in used.slots
        if match.state == "dead" and usage.pid != 0 and memory_bytes(usage)
    ]
    if not dead:
        return
    pids = [usage.pid for usage in dead]
    size = _size(sum(map(memory_bytes, dead)))
    devices = sorted(
        {each.index for usage in dead for each in usage.devices if each.memory_used_bytes}
    )
    yield used.finding(
        FindingKind.DEAD_PROCESS_COUNTED,
        f"{size} of {count_text(len(dead), 'dead process')} still counted",
        f"{pids_text(pids)}: no process that maps this region has that pid, and /proc shows all"
        f" processes; {size} on device{'' if len(devices) == 1 else 's'}"
        f" {', '.join(map(str, devices))}",
        device=only_or_none(devices),
        pid=only_or_none(pids),
    )


def slots_without_pid(_: DoctorContext, used: ObservedRegion) -> Iterator[Finding]:
    """Slots of pid 0 among those that count."""
    # Generations with seqlocks take it for a dead one; only what it holds does harm.
    late = used.snapshot.layout.has_seqlock
    holding = [held for usage, _ in used.slots if usage.pid == 0 and (held := memory_bytes(usage))]
    found = len(holding) if late else used.evidence.pidless_slots
    if found:
        yield used.finding(
            FindingKind.SLOT_WITHOUT_PID,
            f"{count_text(found, 'slot')} taken with pid 0",
            f"{found} of {count_text(used.snapshot.slot_count, 'slot')} have pid 0 and count"
            f" {_size(sum(holding))}; layout {used.snapshot.layout.value}",
            severity=Severity.WARNING if late else None,
            consequence="what it holds counts against the limit" if late else None,
        )


def slot_table_fill(_: DoctorContext, used: ObservedRegion) -> Iterator[Finding]:
    """A table that is full, or nearly."""
    taken = used.snapshot.slot_count
    if taken >= NEARLY_FULL:
        of = Counter(match.state for _, match in used.slots)
        yield used.finding(
            FindingKind.SLOT_TABLE_FULL,
            f"{taken} of {SLOT_CAPACITY} slots taken",
            f"{of['alive']} by live processes, {of['dead']} by dead ones, {of['unknown']} by"
            f" unknown ones; {taken - len(used.slots)} are emptied",
            severity=None if taken >= SLOT_CAPACITY else Severity.WARNING,
        )


def unknown_processes(context: DoctorContext) -> Iterator[Finding]:
    """Slots whose processes are not known; one finding if /proc is the reason."""
    proved = context.observation.proved().proved
    unknown = {
        context.observation.containers[row]: pids
        for row, found in proved.items()
        if (pids := [pid for pid in found.pids if found.state(pid) == "unknown"])
    }
    processes = context.processes
    if unknown and not processes.is_complete:
        slots = sum(map(len, unknown.values()))
        hidden = "is not that of the host's pid namespace, or hides processes"
        if processes.visibility.sees_host:
            refused = count_text(len(processes.visibility.unreadable), "process")
            hidden = f"does not let {refused} be read"
        yield finding(
            FindingKind.PROCESSES_UNKNOWN,
            f"{count_text(slots, 'slot')} in {count_text(len(unknown), 'region')} cannot be judged",
            f"{processes.proc} {hidden}",
            cause="sight",
        )
        return
    for container, pids in unknown.items():
        yield finding(
            FindingKind.PROCESSES_UNKNOWN,
            f"{count_text(len(pids), 'slot')} cannot be judged",
            f"{pids_text(pids)}: several processes that map the region match, or one outside the"
            " container, or there was no time to read all of them",
            container=container,
            pid=only_or_none(pids),
            cause="ambiguous",
            advice="see who else maps the file: no other container should have it mounted",
        )


def moved_slots(_: DoctorContext, used: ObservedRegion) -> Iterator[Finding]:
    """Live processes that write behind the last slot that counts, or have two that count."""
    evidence = used.evidence
    living = {process.ns_pids[-1]: process for process in used.users}
    counting = Counter(usage.pid for usage, _ in used.slots if memory_bytes(usage))
    twice = {pid for pid, slots in counting.items() if slots > 1 and pid in living}
    if not (twice or evidence.slots_behind):
        return
    # Earlier processes leave slots there, and pids are used again: the core has the proof.
    if evidence.unproved:
        yield used.finding(
            FindingKind.PROCESSES_UNKNOWN,
            f"{count_text(len(evidence.unproved), 'slot')} cannot be judged",
            f"{pids_text(evidence.unproved)}: there was no time to read all processes",
            pid=only_or_none(evidence.unproved),
            cause="no_time",
            advice="run it again; if it lasts, reading some process of the node takes very long",
        )
    moved = [pid for pid in dict.fromkeys((*evidence.moved, *evidence.idle)) if pid in living]
    for pid in moved[:_FINDINGS_PER_REGION]:
        cause, what = "orphaned", "writes to a slot that does not count"
        slot = evidence.slots_behind.get(pid)
        where = f"slot {slot}, and only the first {used.snapshot.slot_count} count"
        if pid in twice:
            cause, what = "doubled", "has two slots that count"
            where = f"{counting[pid]} of the {len(used.slots)} slots that count"
        process = living[pid]
        proof = f"pid {pid} has {where}; process {process.pid}{command_of(process)} is alive"
        severity = Severity.WARNING if cause == "doubled" else None
        is_idle, advice = pid not in evidence.moved, None
        if is_idle:
            cause, severity, what = "idle", Severity.INFO, "may be counted wrongly"
            proof += " and idle: which of its slots it writes to is not known"
            advice = "repair while it allocates or frees memory, or restart it"
        yield used.finding(
            FindingKind.SLOT_MOVED,
            f"process {pid} {what}",
            proof,
            severity=severity,
            pid=pid,
            cause=cause,
            advice=advice,
            repairable=not is_idle,
        )


def stuck_seqlocks(_: DoctorContext, used: ObservedRegion) -> Iterator[Finding]:
    """Seqlocks that stay odd."""
    odd = [each for each in used.slots if each[0].slot in used.evidence.seqlocks]
    living = [(usage, match) for usage, match in odd if match.state != "dead"]
    for usage, match in living[:_FINDINGS_PER_REGION]:
        process = match.process
        life = "whether its process lives is not known"
        if process is not None:
            life = f"its process {process.pid}{command_of(process)} is alive"
        yield used.finding(
            FindingKind.SEQLOCK_STUCK,
            f"seqlock of process {usage.pid} stays odd",
            f"it was {used.evidence.seqlocks[usage.slot]} at every check; {life}",
            pid=usage.pid,
            cause="unknown_writer" if process is None else "live_writer",
            advice="if the process is stopped, `kill -CONT` continues it; if not, two of its"
            " threads were inside at once: restart it",
            repairable=False,
            is_transient=True,
        )
    dead = [usage.pid for usage, match in odd if match.state == "dead"]
    if dead:
        yield used.finding(
            FindingKind.SEQLOCK_STUCK,
            f"seqlock of {count_text(len(dead), 'dead process')} left odd",
            f"{pids_text(dead)} {'is' if len(dead) == 1 else 'are'} dead",
            pid=only_or_none(dead),
            cause="dead_writer",
        )


# ---- host pids ----------------------------------------------------------------------------------


def wrong_host_pids(context: DoctorContext, used: ObservedRegion) -> Iterator[Finding]:
    """Live processes whose slot has another host pid than their own; one finding per cause."""
    # Elsewhere the pids of this /proc are not those that the driver has.
    if not context.processes.visibility.sees_host:
        return
    wrong: dict[str, list[tuple[ProcessUsage, HostProcess]]] = {}
    for usage, process in used.alive:
        if usage.host_pid != process.pid:
            wrong.setdefault(_cause(context, usage), []).append((usage, process))
    for cause, found in wrong.items():
        usage, process = found[0]
        pids = [each.pid for each, _ in found]
        several = len(found) > 1
        what = _words(context, used, cause, usage.host_pid or 0)
        who = f"{len(found)} processes have" if several else f"process {usage.pid} has"
        yield used.finding(
            FindingKind.HOST_PID_WRONG,
            f"{who} {what}" + ("" if several else f"; it is {process.pid}"),
            f"hostpid in the slot of pid {usage.pid} is {usage.host_pid or 0}; /proc shows"
            f" that process {process.pid}{command_of(process)} maps this region and has pid"
            f" {usage.pid} in its own namespace" + (f"; so with {pids_text(pids)}" * several),
            pid=only_or_none(pids),
            cause=cause,
            severity=Severity.ERROR if cause in {"swapped", "foreign"} else None,
        )


def _cause(context: DoctorContext, usage: ProcessUsage) -> str:
    stored = usage.host_pid
    if stored is None:
        return "missing"
    if stored == usage.pid:
        return "container_pid"
    if stored in context.with_slot:
        return "swapped"
    return "foreign" if stored in context.evidence.existing_pids else "dead"


def _words(context: DoctorContext, used: ObservedRegion, cause: str, stored: int) -> str:
    """Return what a process has as its host pid."""
    if cause != "swapped":
        return _WORDS[cause]
    other, pid = context.with_slot[stored]
    whose = "the same region"
    if other is not used.container:
        whose = shown(other.directory, _PATH_LIMIT) if other.directory else "no HAMi directory"
    return f"the host pid of process {pid} of {whose}"


_WORDS = {
    "missing": "no host pid",
    "container_pid": "its own pid as host pid",
    "dead": "a host pid of no process",
    "foreign": "a foreign host pid, of a process without a slot in any region",
}


# ---- the lock -----------------------------------------------------------------------------------


def locks(context: DoctorContext, used: ObservedRegion) -> Iterator[Finding]:
    """Check a region's lock and start-up semaphore."""
    state, startup = used.evidence.lock, used.evidence.startup_value
    if state is not None and state.damaged:
        yield _impossible(used, "the lock's semaphore", state.semaphore_value, "lock")
    elif state is not None and state.held:
        yield _held(context, used, state)
    if startup > 1:
        yield _impossible(used, "the start-up semaphore", startup, "startup")
    elif startup == 0 and context.processes.is_unused(used.container.pod_uid, [used.identity]):
        yield used.finding(
            FindingKind.LOCK_STUCK,
            "the start-up semaphore is taken and no process uses the region",
            "sem_postinit is 0, and /proc shows no process that maps the file for writing",
            cause="startup",
            is_transient=True,
        )


def _impossible(used: ObservedRegion, which: str, value: int, cause: str) -> Finding:
    return used.finding(
        FindingKind.SEMAPHORE_IMPOSSIBLE,
        f"{which} is {value}" + (", though there is a signature" if value == 1 else ""),
        "it may be 0 (taken), or 1 (free) without a signature",
        cause=cause,
    )


def _held(context: DoctorContext, used: ObservedRegion, state: LockState) -> Finding:
    pid = state.owner_pid
    on_host = "" if state.owner_host_pid is None else f" ({state.owner_host_pid} on the host)"
    process = f"process {pid}{on_host}" if pid else "an unknown process"
    who, is_dead = process, state.owner_life == "dead"
    if state.by_library:
        tools = context.processes.lock_tools(used.identity, used.snapshot)
        # Another tool that lives is not the dead one.
        named = [f"process {each.pid}{command_of(each)}" for each in tools if not is_dead]
        who = " or ".join(named) or "a tool with libhamiregion"
    waiters = f"{count_text(state.waiters, 'waiter')} asleep on it"
    if is_dead:
        return used.finding(
            FindingKind.LOCK_STUCK,
            f"the lock is held by {who}, which is dead",
            "the semaphore is 0 and its signature is of no process that maps this region;"
            f" {waiters}",
            pid=pid,
            cause="dead_owner",
        )
    if state.owner_life is None:
        return used.finding(
            FindingKind.LOCK_STUCK,
            "the lock is taken without a signature",
            "the semaphore is 0 and owner_pid is 0, and nothing has moved",
            cause="ownerless",
            is_transient=True,
        )
    owner = context.processes.get(state.owner_host_pid or 0)
    known = state.owner_life == "alive"
    life = f"it is alive{command_of(owner)}" if known else "whether it lives is not known"
    return used.finding(
        FindingKind.LOCK_STUCK,
        f"the lock was held by {who} at every check",
        f"releases between two checks are not seen; {life}; {waiters}",
        pid=pid,
        cause="live_owner" if known else "unknown_owner",
        advice="see what the process does: if it is stopped, `kill -CONT` continues it; if a"
        " seqlock is stuck as well, it waits for that: `hamiregion doctor --repair --root DIR`"
        " frees both, and no process has to be ended",
        repairable=False,
        severity=Severity.WARNING,
        is_transient=True,
    )


CHECKS_OF_NODE = (unknown_processes,)
CHECKS = (
    locks,
    stuck_seqlocks,
    slots_without_pid,
    moved_slots,
    dead_processes,
    slot_table_fill,
    wrong_host_pids,
)

"""Checks: process slots, and the host pids in them."""

from __future__ import annotations

import os
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from libhamiregion.errors import SearchCutShort
from libhamiregion.layouts import SLOT_CAPACITY
from libhamiregion.units import format_size

from .findings import (
    FindingKind,
    Severity,
    command_of,
    count_text,
    finding,
    key_of,
    memory_bytes,
    only_or_none,
    pids_text,
    shown,
)
from .slot_file import odd_seqlocks, slots_behind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from libhamiregion.models import ProcessUsage
    from libhamiregion.node.matching import HostProcess

    from .findings import DoctorContext, Finding, UsedRegion

_NEARLY_FULL = SLOT_CAPACITY * 9 // 10
#: No GPU has as much: above, a counter has gone below zero.
IMPOSSIBLE_BYTES = 1 << 50
# A container can have a thousand processes, each with something wrong.
_FINDINGS_PER_REGION = 16


def _size(nbytes: int) -> str:
    return "an impossible number of bytes" if nbytes >= IMPOSSIBLE_BYTES else format_size(nbytes)


def dead_processes(context: DoctorContext, used: UsedRegion) -> Iterator[Finding]:  # noqa: ARG001
    """Dead processes whose memory still counts; one finding for all of a region."""
    dead = [
        usage
        for usage, match in used.slots
        if match.state == "dead" and usage.pid != 0 and memory_bytes(usage)
    ]
    more, sums = used.left_out("dead")
    for usage in dead:
        sums.update({each.index: each.memory_used_bytes for each in usage.devices})
    nbytes = sum(sums.values())
    if not nbytes:
        return
    pids = [usage.pid for usage in dead]
    devices = sorted(index for index, used_bytes in sums.items() if used_bytes)
    where = f"device{'' if len(devices) == 1 else 's'} {', '.join(map(str, devices))}"
    yield finding(
        FindingKind.DEAD_PROCESS_COUNTED,
        used.container,
        f"{_size(nbytes)} of {count_text(len(dead) + more, 'dead process')} still counted",
        f"{pids_text(pids, more)}: no process that maps this region"
        f" has that pid, and /proc shows all processes; {_size(nbytes)} on {where}",
        device=only_or_none(devices),
        pid=None if more else only_or_none(pids),
    )


def slots_without_pid(context: DoctorContext, used: UsedRegion) -> Iterator[Finding]:  # noqa: ARG001
    """Slots of pid 0 among those that count."""
    empty = [usage for usage, _ in used.slots if usage.pid == 0]
    if used.has_seqlock:
        # These generations take it for a dead one; only what it holds does harm.
        empty = [usage for usage in empty if memory_bytes(usage)]
    if empty:
        late = used.has_seqlock
        yield finding(
            FindingKind.SLOT_WITHOUT_PID,
            used.container,
            f"{count_text(len(empty), 'slot')} in use with pid 0",
            f"of {count_text(used.slot_count, 'slot')}, {len(empty)} or more have pid 0 and count"
            f" {_size(sum(map(memory_bytes, empty)))}; layout {used.snapshot.layout.value}",
            severity=Severity.WARNING if late else None,
            consequence="what it holds counts against the limit" if late else None,
        )


def slot_table_fill(context: DoctorContext, used: UsedRegion) -> Iterator[Finding]:  # noqa: ARG001
    """A table that is full, or nearly."""
    taken = used.slot_count
    if taken >= _NEARLY_FULL:
        dead = sum(match.state == "dead" for _, match in used.slots) + used.left_out("dead")[0]
        yield finding(
            FindingKind.SLOT_TABLE_FULL,
            used.container,
            f"{taken} of {SLOT_CAPACITY} slots taken",
            f"{dead} of them by dead processes, {len(used.processes.alive)} by live ones",
            severity=None if taken >= SLOT_CAPACITY else Severity.WARNING,
        )


def unobserved_processes(context: DoctorContext) -> Iterator[Finding]:
    """Processes of containers that could not be looked at; the driver and roots stand elsewhere."""
    diagnosed = {id(view.container) for view in context.views}
    for gap in context.observation.gaps:
        if gap.kind == "processes" and id(gap.container) in diagnosed:
            yield finding(
                FindingKind.NOT_OBSERVED,
                gap.container,
                f"{count_text(gap.count, 'process')} of the container could not be looked at",
                gap.reason,
            )


def unknown_processes(context: DoctorContext) -> Iterator[Finding]:
    """Slots about which nothing can be said; one finding where /proc is the reason."""
    unknown = []
    for used in context.used:
        pids = [match.pid for _, match in used.slots if match.state == "unknown"]
        count = len(pids) + used.left_out("unknown")[0]
        if count:
            unknown.append((used, pids, count))
    processes = context.node.processes
    if unknown and not processes.is_complete:
        slots = sum(count for _, _, count in unknown)
        hidden = f"does not let {count_text(len(processes.visibility.unreadable), 'process')} be"
        hidden += " looked into"
        if not processes.visibility.sees_host:
            hidden = "is not that of the host's pid namespace, or hides processes"
        yield finding(
            FindingKind.PROCESSES_UNKNOWN,
            None,
            f"{count_text(slots, 'slot')} in {count_text(len(unknown), 'region')} cannot be judged",
            f"{context.node.proc} {hidden}",
            cause="sight",
        )
        return
    for used, pids, count in unknown:
        yield finding(
            FindingKind.PROCESSES_UNKNOWN,
            used.container,
            f"{count_text(count, 'slot')} cannot be judged",
            f"{pids_text(pids, count - len(pids))}: several processes that map the region could be"
            " meant, or one that stands outside the container, or there was no time to look at all"
            " of them",
            pid=only_or_none(pids) if count == 1 else None,
            cause="ambiguous",
            advice="see who else maps the file: no other container should have it mounted",
        )


def moved_slots(context: DoctorContext, used: UsedRegion) -> Iterator[Finding]:
    """Live processes that write behind the last slot that counts, or stand in two that count."""
    living = {process.ns_pids[-1]: process for process in used.users}
    counting = Counter(usage.pid for usage, _ in used.slots if memory_bytes(usage))
    twice = {pid for pid, slots in counting.items() if slots > 1 and pid in living}
    behind = slots_behind(used.region, used.slot_count) if living else {}
    if not (twice or living.keys() & behind.keys()):
        return
    # Slots of earlier processes stand there too, and pids are used again: the core has the proof.
    try:
        found = used.region.repair_slots(proc=context.node.proc, dry_run=True)
    except SearchCutShort as error:
        yield finding(
            FindingKind.PROCESSES_UNKNOWN,
            used.container,
            f"{count_text(len(error.pids), 'slot')} cannot be judged",
            f"{pids_text(list(error.pids))}: there was no time to look at all processes",
            pid=only_or_none(error.pids),
            cause="no_time",
            advice="look again; if it lasts, some process of the node is very expensive to look at",
        )
        found = error.done
    moved = [pid for pid in dict.fromkeys((*found.repaired, *found.left)) if pid in living]
    for pid in moved[:_FINDINGS_PER_REGION]:
        cause, what = "orphaned", "writes to a slot that does not count"
        where = f"slot {behind.get(pid)}, and only the first {used.slot_count} count"
        if pid in twice:
            cause, what = "doubled", "stands in two slots that count"
            where = f"{counting[pid]} of the {used.slot_count} slots that count"
        evidence = (
            f"pid {pid} stands in {where}; process"
            f" {living[pid].pid}{command_of(living[pid])} is alive"
        )
        if pid in found.repaired:
            yield finding(
                FindingKind.SLOT_MOVED,
                used.container,
                f"process {pid} {what}",
                evidence,
                pid=pid,
                cause=cause,
                severity=Severity.WARNING if cause == "doubled" else None,
            )
        else:
            yield finding(
                FindingKind.SLOT_MOVED,
                used.container,
                f"process {pid} may be counted wrongly",
                f"{evidence} and idle: which of its slots it writes to cannot be told",
                severity=Severity.INFO,
                pid=pid,
                cause="idle",
                consequence="its memory may count as it was some time ago, or twice",
                advice="repair while it allocates or frees memory, or restart it",
                repairable=False,
            )


def stuck_seqlocks(context: DoctorContext, used: UsedRegion) -> Iterator[Finding]:
    """Seqlocks that stay odd."""
    matches = {match.pid: match for usage, match in used.slots if not usage.settled}
    if not (matches and used.has_seqlock):
        return
    odd = odd_seqlocks(used.region, used.slot_count, matches)
    dead = [pid for pid in odd if matches[pid].state == "dead"]
    if dead:
        yield finding(
            FindingKind.SEQLOCK_STUCK,
            used.container,
            f"seqlock of {count_text(len(dead), 'dead process')} left odd",
            f"{pids_text(dead)} {'is' if len(dead) == 1 else 'are'} dead, and the seqlock stands at"
            f" {', '.join(str(odd[pid]) for pid in dead[:8])}",
            pid=only_or_none(dead),
            cause="dead_writer",
        )
    for pid in [pid for pid in odd if pid not in dead][:_FINDINGS_PER_REGION]:
        what = ("seqlock", key_of(used.container), pid)
        stood_s = context.unchanged_for_s(what, odd[pid], partial(_has_moved, used, pid, odd[pid]))
        if stood_s is None:
            continue
        process = matches[pid].process
        life = "whether its process lives cannot be told"
        if process is not None:
            life = f"its process {process.pid}{command_of(process)} is alive"
        yield finding(
            FindingKind.SEQLOCK_STUCK,
            used.container,
            f"seqlock of process {pid} stays odd",
            f"it has stood at {odd[pid]} for {stood_s:.1f} s; {life}",
            pid=pid,
            cause="unknown_writer" if process is None else "live_writer",
            advice="see whether the process is stopped: `kill -CONT` lets it go on. If it is not,"
            " two of its threads were inside at once: restart it",
            repairable=False,
        )


def _has_moved(used: UsedRegion, pid: int, seqlock: int) -> bool:
    return odd_seqlocks(used.region, used.slot_count, {pid}) != {pid: seqlock}


# ---- host pids

_ERRORS = {"swapped", "foreign"}


def wrong_host_pids(context: DoctorContext, used: UsedRegion) -> Iterator[Finding]:
    """Live processes whose slot has another host pid than their own; one finding per cause."""
    # Elsewhere the pids of this /proc are not those that the driver tells.
    if not context.node.processes.visibility.sees_host:
        return
    wrong: dict[str, list[tuple[ProcessUsage, HostProcess]]] = {}
    for usage, process in used.alive:
        if usage.host_pid != process.pid:
            wrong.setdefault(_cause(context, usage), []).append((usage, process))
    for cause, found in wrong.items():
        usage, process = found[0]
        pids = [each.pid for each, _ in found]
        what, why = _words(context, used, cause, usage.host_pid or 0)
        who = f"{len(found)} processes have" if len(found) > 1 else f"process {usage.pid} has"
        yield finding(
            FindingKind.HOST_PID_WRONG,
            used.container,
            f"{who} {what}" + ("" if len(found) > 1 else f"; it is {process.pid}"),
            f"hostpid in the slot of pid {usage.pid} is {usage.host_pid or 0}{why}; /proc shows"
            f" that process {process.pid}{command_of(process)} maps this region and has pid"
            f" {usage.pid} in its own namespace"
            + (f"; so with {pids_text(pids)}" if len(found) > 1 else ""),
            pid=only_or_none(pids),
            cause=cause,
            severity=Severity.ERROR if cause in _ERRORS else None,
        )


def _cause(context: DoctorContext, usage: ProcessUsage) -> str:
    stored = usage.host_pid
    if stored is None:
        return "missing"
    if stored == usage.pid:
        return "container_pid"
    if stored in context.proved:
        return "swapped"
    # The table leaves kernel threads out, and threads of processes.
    exists = stored > 0 and os.path.exists(f"{context.node.proc}/{stored}/stat")  # noqa: PTH110
    return "foreign" if exists else "dead"


def _words(context: DoctorContext, used: UsedRegion, cause: str, stored: int) -> tuple[str, str]:
    """What a process has for its host pid, and what that number is."""
    if cause == "missing":
        return "no host pid", ""
    if cause == "container_pid":
        return "its own pid as host pid", ", the same as its pid"
    if cause == "dead":
        return "a host pid that nobody has", ", and there is no such process"
    if cause == "foreign":
        stranger = command_of(context.node.processes.get(stored))
        return "a stranger's host pid", f"{stranger}, which has no slot in any region"
    other, pid = context.proved[stored]
    whose = "the same region"
    if other is not used.container:
        whose = f"container {shown(other.directory_name)} of pod {shown(other.pod_uid)}"
        if other.claim_uid is not None:
            whose = f"claim {other.claim_uid}"
        if other.directory is None:
            whose = "a container outside the roots"
    return f"the host pid of process {pid} of {whose}", f", which is process {pid} of {whose}"

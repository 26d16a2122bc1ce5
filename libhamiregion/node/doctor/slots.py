"""Checks: the table of process slots, and the host pids in it."""

from __future__ import annotations

import os
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from libhamiregion.layouts import SLOT_CAPACITY, Layout
from libhamiregion.models import ProcessStatus
from libhamiregion.units import format_size

from .examination import command_of, container_text, count_text, key_of, pids_text
from .findings import FindingKind, Severity, finding
from .raw_slots import RawSlots

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from libhamiregion.models import ProcessUsage
    from libhamiregion.node.matching import HostProcess, SlotState

    from .examination import Examination, UsedRegion
    from .findings import Finding

_NEARLY_FULL = SLOT_CAPACITY * 9 // 10
#: No GPU has as much: above, a counter has gone below zero.
IMPOSSIBLE_BYTES = 1 << 50
# A container can have a thousand processes, each with something wrong.
_FINDINGS_PER_REGION = 16


def memory_bytes(usage: ProcessUsage) -> int:
    """What a slot counts, over all devices."""
    return sum(device.memory_used_bytes for device in usage.devices)


def _omitted(used: UsedRegion, state: SlotState) -> tuple[int, dict[int, int]]:
    """How many slots of a state a view has left out, and what they count by device."""
    slots, sums = 0, Counter[int]()
    for each in used.omitted:
        if each.state == state:
            slots += each.slots
            sums.update(each.memory_used_bytes)
    return slots, dict(sums)


# ---- Dead processes, and slots of nobody --------------------------------------------------------


def dead_processes(look: Examination, used: UsedRegion) -> Iterator[Finding]:  # noqa: ARG001
    """Dead processes whose memory still counts; one finding for all of a region."""
    dead = [
        usage
        for usage, match in used.slots
        if match.state == "dead" and usage.pid != 0 and memory_bytes(usage)
    ]
    more, sums = _omitted(used, "dead")
    sums = Counter(sums)
    for usage in dead:
        sums.update({each.index: each.memory_used_bytes for each in usage.devices})
    nbytes = sum(sums.values())
    # Those that are summed up alone count as well: slots without memory may stand before them.
    count = len(dead) + more
    if not nbytes:
        return
    pids = [usage.pid for usage in dead]
    named = [*([pids_text(pids)] if pids else []), *([f"{more} more"] if more else [])]
    devices = sorted(index for index, used_bytes in sums.items() if used_bytes)
    yield finding(
        FindingKind.DEAD_PROCESS_COUNTED,
        used.container,
        f"{_size(nbytes)} of {count_text(count, 'dead process')} still counted",
        f"{' and '.join(named)}: no process that maps this region"
        f" has that pid, and /proc shows all processes; {_size(nbytes)} on {_devices(devices)}",
        device=devices[0] if len(devices) == 1 else None,
        pid=pids[0] if count == 1 else None,
    )


def slots_without_pid(look: Examination, used: UsedRegion) -> Iterator[Finding]:  # noqa: ARG001
    """Slots of pid 0 among those that count."""
    empty = [usage for usage, _ in used.slots if usage.pid == 0]
    if used.has_seqlock:
        # These generations take it for a dead one; only what it holds does harm.
        empty = [usage for usage in empty if memory_bytes(usage)]
    if not empty:
        return
    nbytes = sum(map(memory_bytes, empty))
    yield finding(
        FindingKind.SLOT_WITHOUT_PID,
        used.container,
        f"{count_text(len(empty), 'slot')} in use with pid 0",
        f"of {count_text(used.slot_count, 'slot')}, {len(empty)} or more have pid 0 and count"
        f" {_size(nbytes)}; layout {used.snapshot.layout.value}",
        severity=Severity.WARNING if used.has_seqlock else Severity.ERROR,
        consequence=(
            "what it holds counts against the limit and belongs to nobody"
            if used.has_seqlock
            else None
        ),
    )


def exited_slots(look: Examination, used: UsedRegion) -> Iterator[Finding]:  # noqa: ARG001
    """Memory in slots of status 0 that are not dead: two sums that differ."""
    exited = [
        usage
        for usage, match in used.slots
        if usage.status == ProcessStatus.EXITED and match.state != "dead" and memory_bytes(usage)
    ]
    sums: dict[int, list[tuple[int, int]]] = {}
    for usage in exited:
        for device in usage.devices:
            if device.memory_used_bytes:
                sums.setdefault(device.index, []).append((usage.pid, device.memory_used_bytes))
    for index, held in sums.items():
        enforced = used.snapshot.device(index).memory_used_bytes
        pids, nbytes = [pid for pid, _ in held], sum(each for _, each in held)
        yield finding(
            FindingKind.USAGE_SUMS_DIFFER,
            used.container,
            f"{_size(nbytes)} in slots of status 0 on device {index}",
            f"libvgpu enforces {_size(enforced)}, of which {pids_text(pids)} with status 0 hold"
            f" {_size(nbytes)}; without them it is {_size(max(0, enforced - nbytes))}",
            device=index,
            pid=pids[0] if len(pids) == 1 else None,
        )


def slot_table_fill(look: Examination, used: UsedRegion) -> Iterator[Finding]:  # noqa: ARG001
    """A table that is full, or nearly."""
    taken = used.slot_count
    if taken < _NEARLY_FULL:
        return
    full = taken >= SLOT_CAPACITY
    dead = sum(match.state == "dead" for _, match in used.slots) + _omitted(used, "dead")[0]
    yield finding(
        FindingKind.SLOT_TABLE_FULL if full else FindingKind.SLOT_TABLE_NEARLY_FULL,
        used.container,
        f"{taken} of {SLOT_CAPACITY} slots taken",
        f"{dead} of them by dead processes, {len(used.processes.alive)} by live ones",
    )


def unknown_processes(look: Examination) -> Iterator[Finding]:
    """Slots about which nothing can be said; one finding where /proc is the reason."""
    unknown = []
    for used in look.used:
        pids = [match.pid for _, match in used.slots if match.state == "unknown"]
        count = len(pids) + _omitted(used, "unknown")[0]
        if count:
            unknown.append((used, pids, count))
    if not unknown:
        return
    processes = look.node.processes
    if not processes.is_complete:
        slots = sum(count for _, _, count in unknown)
        yield finding(
            FindingKind.PROCESSES_UNKNOWN,
            None,
            f"{count_text(slots, 'slot')} in {count_text(len(unknown), 'region')} cannot be judged",
            f"{look.node.proc} {_what_is_hidden(look)}",
            cause="sight",
        )
        return
    for used, pids, count in unknown:
        yield finding(
            FindingKind.PROCESSES_UNKNOWN,
            used.container,
            f"{count_text(count, 'slot')} cannot be judged",
            f"{pids_text(pids)}: several processes that map the region could be meant, or one that"
            " stands outside the container, or there was no time to look at all of them",
            pid=pids[0] if count == 1 else None,
            cause="ambiguous",
            advice="see who else maps the file: no other container should have it mounted",
        )


def _what_is_hidden(look: Examination) -> str:
    visibility = look.node.processes.visibility
    if not visibility.sees_host:
        return "is not that of the host's pid namespace, or hides processes"
    return f"does not let {count_text(len(visibility.unreadable), 'process')} be looked into"


# ---- Slots that were moved ----------------------------------------------------------------------


def _slots_behind(used: UsedRegion) -> dict[int, int]:
    """By pid, the slots behind the last one that counts; those of older processes are stale."""
    with RawSlots(used.region) as raw:
        return {
            pid: slot
            for slot, pid in raw.pids_from(used.slot_count).items()
            if used.has_seqlock or (used.snapshot.layout is Layout.V1_1 and raw.seqlock(slot))
        }


def moved_slots(look: Examination, used: UsedRegion) -> Iterator[Finding]:
    """Live processes that write behind the last slot that counts, or stand in two that count."""
    living = {process.ns_pids[-1]: process for process in used.users}
    counting = Counter(usage.pid for usage, _ in used.slots if memory_bytes(usage))
    twice = {pid for pid, slots in counting.items() if slots > 1 and pid in living}
    behind = _slots_behind(used) if living else {}
    if not (twice or living.keys() & behind.keys()):
        return
    # Slots of earlier processes stand there too, and pids are used again: the core has the proof.
    found = used.region.repair_slots(proc=look.node.proc, dry_run=True)
    moved = [pid for pid in dict.fromkeys((*found.repaired, *found.left)) if pid in living]
    for pid in moved[:_FINDINGS_PER_REGION]:
        if pid in twice:
            kind, what = FindingKind.DOUBLED_SLOT, "stands in two slots that count"
            where = f"{counting[pid]} of the {used.slot_count} slots that count"
        else:
            kind, what = FindingKind.ORPHANED_SLOT, "writes to a slot that does not count"
            where = f"slot {behind.get(pid)}, and only the first {used.slot_count} count"
        evidence = (
            f"pid {pid} stands in {where}; process"
            f" {living[pid].pid}{command_of(living[pid])} is alive"
        )
        if pid in found.repaired:
            yield finding(kind, used.container, f"process {pid} {what}", evidence, pid=pid)
        else:
            yield finding(
                kind,
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


# ---- Seqlocks -----------------------------------------------------------------------------------


def stuck_seqlocks(look: Examination, used: UsedRegion) -> Iterator[Finding]:
    """Seqlocks that stay odd."""
    doubtful = [(usage, match) for usage, match in used.slots if not usage.settled]
    if not (doubtful and used.has_seqlock):
        return
    dead: list[tuple[int, int]] = []
    with RawSlots(used.region) as raw:
        slots = {pid: slot for slot, pid in raw.pids_from(0).items() if slot < used.slot_count}
        for usage, match in doubtful[:_FINDINGS_PER_REGION]:
            slot = slots.get(usage.pid)
            seqlock = 0 if slot is None else raw.seqlock(slot)
            if slot is None or seqlock % 2 == 0:
                continue
            if match.state == "dead":
                dead.append((usage.pid, seqlock))
                continue
            what = ("seqlock", key_of(used.container), usage.pid)
            stood_s = look.stands_for_s(what, seqlock)
            if stood_s < look.seqlock_s or stood_s == 0:
                look.suspects[what] = partial(_has_moved, used, slot, seqlock)
                continue
            yield _stuck_alive(used, usage.pid, seqlock, stood_s, match.process)
    if dead:
        pids = [pid for pid, _ in dead]
        yield finding(
            FindingKind.SEQLOCK_STUCK,
            used.container,
            f"seqlock of {count_text(len(dead), 'dead process')} left odd",
            f"{pids_text(pids)} {'is' if len(pids) == 1 else 'are'} dead, and the seqlock stands at"
            f" {', '.join(str(seqlock) for _, seqlock in dead[:8])}",
            pid=pids[0] if len(pids) == 1 else None,
            cause="dead_writer",
        )


def _has_moved(used: UsedRegion, slot: int, seqlock: int) -> bool:
    with RawSlots(used.region) as raw:
        return raw.seqlock(slot) != seqlock


def _stuck_alive(
    used: UsedRegion, pid: int, seqlock: int, stood_s: float, process: HostProcess | None
) -> Finding:
    life = (
        f"its process {process.pid}{command_of(process)} is alive"
        if process is not None
        else "whether its process lives cannot be told"
    )
    return finding(
        FindingKind.SEQLOCK_STUCK,
        used.container,
        f"seqlock of process {pid} stays odd",
        f"it has stood at {seqlock} for {stood_s:.1f} s; {life}",
        pid=pid,
        cause="live_writer" if process is not None else "unknown_writer",
        advice=(
            "see whether the process is stopped: `kill -CONT` lets it go on. If it is not, two of"
            " its threads were inside at once: restart it"
        ),
        repairable=False,
    )


# ---- Host pids ----------------------------------------------------------------------------------


def wrong_host_pids(look: Examination, used: UsedRegion) -> Iterator[Finding]:
    """Live processes whose slot has another host pid than their own; one finding per kind."""
    # Elsewhere the pids of this /proc are not those that the driver tells.
    if not look.node.processes.visibility.sees_host:
        return
    wrong: dict[FindingKind, list[tuple[ProcessUsage, HostProcess]]] = {}
    for usage, process in used.alive:
        if usage.host_pid != process.pid:
            wrong.setdefault(host_pid_kind(look, usage), []).append((usage, process))
    for kind, found in wrong.items():
        usage, process = found[0]
        pids = [each.pid for each, _ in found]
        what, why = _host_pid_text(look, used, kind, usage)
        who = f"process {pids[0]} has" if len(found) == 1 else f"{len(found)} processes have"
        yield finding(
            kind,
            used.container,
            f"{who} {what}" + (f"; it is {process.pid}" if len(found) == 1 else ""),
            f"{why}; /proc shows that process {process.pid}{command_of(process)} maps this region"
            f" and has pid {usage.pid} in its own namespace"
            + (f"; so with {pids_text(pids)}" if len(found) > 1 else ""),
            pid=pids[0] if len(pids) == 1 else None,
        )


def host_pid_kind(look: Examination, usage: ProcessUsage) -> FindingKind:
    """What is wrong with the host pid in a live process's slot."""
    stored = usage.host_pid
    if stored is None:
        return FindingKind.HOST_PID_MISSING
    if stored == usage.pid:
        return FindingKind.HOST_PID_IS_CONTAINER_PID
    if stored in look.proved:
        return FindingKind.HOST_PID_SWAPPED
    # The table leaves kernel threads out, and threads of processes.
    exists = stored > 0 and os.path.exists(f"{look.node.proc}/{stored}/stat")  # noqa: PTH110
    return FindingKind.HOST_PID_FOREIGN if exists else FindingKind.HOST_PID_DEAD


def _host_pid_text(
    look: Examination, used: UsedRegion, kind: FindingKind, usage: ProcessUsage
) -> tuple[str, str]:
    stored = usage.host_pid
    stands = f"hostpid in the slot of pid {usage.pid} is {stored or 0}"
    if kind is FindingKind.HOST_PID_MISSING:
        return "no host pid", stands
    if kind is FindingKind.HOST_PID_IS_CONTAINER_PID:
        return "its own pid as host pid", f"{stands}, the same as its pid"
    if kind is FindingKind.HOST_PID_SWAPPED and stored is not None:
        other, other_pid = look.proved[stored]
        whose = "the same region" if other is used.container else container_text(other)
        return (
            f"the host pid of process {other_pid} of {whose}",
            f"{stands}, and {stored} is process {other_pid} of {whose}",
        )
    if kind is FindingKind.HOST_PID_FOREIGN:
        stranger = None if stored is None else look.node.processes.get(stored)
        return (
            "a stranger's host pid",
            f"{stands}, and {stored}{command_of(stranger)} has no slot in any region",
        )
    return "a host pid that nobody has", f"{stands}, and there is no such process"


def _size(nbytes: int) -> str:
    return "an impossible number of bytes" if nbytes >= IMPOSSIBLE_BYTES else format_size(nbytes)


def _devices(indexes: Sequence[int]) -> str:
    return (
        f"device {indexes[0]}" if len(indexes) == 1 else f"devices {', '.join(map(str, indexes))}"
    )

"""Checks: the table of process slots."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from libhamiregion.layouts import SLOT_CAPACITY, Layout
from libhamiregion.models import ProcessStatus
from libhamiregion.units import format_size

from .findings import FindingKind, Severity, finding
from .raw_slots import RawSlots
from .scene import command_of, count_words, pid_words, place_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from libhamiregion.models import ProcessUsage
    from libhamiregion.node.matching import HostProcess

    from .findings import Finding
    from .scene import Scene, Used

_NEARLY_FULL = SLOT_CAPACITY * 9 // 10
#: No GPU has as much: above, a counter has gone below zero.
IMPOSSIBLE_BYTES = 1 << 50


def memory_bytes(usage: ProcessUsage) -> int:
    """What a slot counts, over all devices."""
    return sum(device.memory_used_bytes for device in usage.devices)


def dead_processes(scene: Scene, used: Used) -> Iterator[Finding]:  # noqa: ARG001
    """Dead processes whose memory still counts; one finding for all of a region."""
    dead = [
        usage
        for _, usage, match in used.slots
        if match.state == "dead" and usage.pid != 0 and memory_bytes(usage)
    ]
    if not dead:
        return
    nbytes = sum(map(memory_bytes, dead))
    pids = [usage.pid for usage in dead]
    devices = sorted(
        {device.index for usage in dead for device in usage.devices if device.memory_used_bytes}
    )
    yield finding(
        FindingKind.DEAD_PROCESS_COUNTED,
        used.container,
        f"{_size(nbytes)} of {count_words(len(dead), 'dead process')} still count",
        f"{pid_words(pids)}: no process that maps this region has that pid, and /proc shows all"
        f" processes; {_size(nbytes)} on {_devices(devices)}",
        device=devices[0] if len(devices) == 1 else None,
        pid=pids[0] if len(pids) == 1 else None,
    )


def slots_without_pid(scene: Scene, used: Used) -> Iterator[Finding]:  # noqa: ARG001
    """Slots of pid 0 among those that count."""
    empty = [(slot, usage) for slot, usage, _ in used.slots if usage.pid == 0]
    if used.has_seqlock:
        # These generations take it for a dead one; only what it holds does harm.
        empty = [(slot, usage) for slot, usage in empty if memory_bytes(usage)]
    if not empty:
        return
    nbytes = sum(memory_bytes(usage) for _, usage in empty)
    numbers = ", ".join(str(slot) for slot, _ in empty[:8])
    yield finding(
        FindingKind.SLOT_WITHOUT_PID,
        used.container,
        f"{count_words(len(empty), 'slot')} in use with pid 0",
        f"of {count_words(len(used.slots), 'slot')}, number {numbers} has pid 0 and counts"
        f" {_size(nbytes)}; layout {used.snapshot.layout.value}",
        severity=Severity.WARNING if used.has_seqlock else Severity.ERROR,
        consequence=(
            "what it holds counts against the limit and belongs to nobody"
            if used.has_seqlock
            else None
        ),
    )


def _slots_behind(used: Used) -> dict[int, int]:
    """By pid, the slots behind the last one that counts; those of older processes are stale."""
    with RawSlots(used.region) as raw:
        return {
            pid: slot
            for slot, pid in raw.pids_from(len(used.slots)).items()
            if used.has_seqlock or (used.snapshot.layout is Layout.V1_1 and raw.seqlock(slot))
        }


def moved_slots(scene: Scene, used: Used) -> Iterator[Finding]:
    """Live processes that write behind the last slot that counts, or stand in two that count."""
    living = {process.ns_pids[-1]: process for process in used.users}
    counting = Counter(usage.pid for _, usage, _ in used.slots if memory_bytes(usage))
    twice = {pid for pid, slots in counting.items() if slots > 1 and pid in living}
    behind = _slots_behind(used) if living else {}
    if not (twice or living.keys() & behind.keys()):
        return
    # Slots of earlier processes stand there too, and pids are used again: the core has the proof.
    found = used.region.repair_slots(proc=scene.node.proc, dry_run=True)
    for pid in dict.fromkeys((*found.repaired, *found.left)):
        if pid not in living:
            continue
        kind = FindingKind.DOUBLED_SLOT if pid in twice else FindingKind.ORPHANED_SLOT
        what = (
            "stands in two slots that count"
            if pid in twice
            else "writes to a slot that does not count"
        )
        where = (
            f"pid {pid} stands in {counting[pid]} of the {len(used.slots)} slots that count"
            if pid in twice
            else f"pid {pid} stands in slot {behind.get(pid)}, and only the first"
            f" {len(used.slots)} count"
        )
        evidence = f"{where}; process {living[pid].pid}{command_of(living[pid])} is alive"
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


def stuck_seqlocks(scene: Scene, used: Used) -> Iterator[Finding]:
    """Seqlocks that stay odd."""
    doubtful = [(slot, usage, match) for slot, usage, match in used.slots if not usage.settled]
    if not (doubtful and used.has_seqlock):
        return
    dead: list[tuple[int, int]] = []
    with RawSlots(used.region) as raw:
        for slot, usage, match in doubtful:
            seqlock = raw.seqlock(slot)
            if seqlock % 2 == 0 or raw.pid(slot) != usage.pid:
                continue
            if match.state == "dead":
                dead.append((usage.pid, seqlock))
                continue
            what = ("seqlock", place_of(used.container), usage.pid)
            stood_s = scene.stands_for_s(what, seqlock)
            if stood_s < scene.seqlock_s or stood_s == 0:
                scene.suspects[what] = partial(_has_moved, used, slot, seqlock)
                continue
            yield _stuck_alive(used, usage.pid, seqlock, stood_s, match.process)
    if dead:
        pids = [pid for pid, _ in dead]
        yield finding(
            FindingKind.SEQLOCK_STUCK,
            used.container,
            f"seqlock of {count_words(len(dead), 'dead process')} left odd",
            f"{pid_words(pids)} {'is' if len(pids) == 1 else 'are'} dead, and the seqlock stands at"
            f" {', '.join(str(seqlock) for _, seqlock in dead[:8])}",
            pid=pids[0] if len(pids) == 1 else None,
            cause="dead_writer",
        )


def _has_moved(used: Used, slot: int, seqlock: int) -> bool:
    with RawSlots(used.region) as raw:
        return raw.seqlock(slot) != seqlock


def _stuck_alive(
    used: Used, pid: int, seqlock: int, stood_s: float, process: HostProcess | None
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


def slot_table_fill(scene: Scene, used: Used) -> Iterator[Finding]:  # noqa: ARG001
    """A table that is full, or nearly."""
    taken = len(used.slots)
    if taken < _NEARLY_FULL:
        return
    full = taken >= SLOT_CAPACITY
    dead = sum(match.state == "dead" for _, _, match in used.slots)
    yield finding(
        FindingKind.SLOT_TABLE_FULL if full else FindingKind.SLOT_TABLE_NEARLY_FULL,
        used.container,
        f"{taken} of {SLOT_CAPACITY} slots taken",
        f"{dead} of them by dead processes, {len(used.alive)} by live ones",
    )


def exited_slots(scene: Scene, used: Used) -> Iterator[Finding]:  # noqa: ARG001
    """Memory in slots of status 0 that are not dead: two sums that differ."""
    exited = [
        usage
        for _, usage, match in used.slots
        if usage.status == ProcessStatus.EXITED and match.state != "dead" and memory_bytes(usage)
    ]
    if not exited:
        return
    sums: dict[int, int] = {}
    for usage in exited:
        for device in usage.devices:
            if device.memory_used_bytes:
                sums[device.index] = sums.get(device.index, 0) + device.memory_used_bytes
    for index, nbytes in sums.items():
        enforced = used.snapshot.device(index).memory_used_bytes
        pids = [
            usage.pid
            for usage in exited
            if any(each.index == index and each.memory_used_bytes for each in usage.devices)
        ]
        yield finding(
            FindingKind.USAGE_SUMS_DIFFER,
            used.container,
            f"{_size(nbytes)} in slots of status 0 on device {index}",
            f"libvgpu enforces {_size(enforced)}, of which {pid_words(pids)} with status 0 hold"
            f" {_size(nbytes)}; without them it is {_size(max(0, enforced - nbytes))}",
            device=index,
            pid=pids[0] if len(pids) == 1 else None,
        )


def unknown_processes(scene: Scene) -> Iterator[Finding]:
    """Slots about which nothing can be said; one finding where /proc is the reason."""
    unknown = [
        (used, pids)
        for used in scene.used
        if (pids := [match.pid for _, _, match in used.slots if match.state == "unknown"])
    ]
    if not unknown:
        return
    processes = scene.node.processes
    if not processes.is_complete:
        slots = sum(len(pids) for _, pids in unknown)
        yield finding(
            FindingKind.PROCESSES_UNKNOWN,
            None,
            f"{count_words(slots, 'slot')} in {count_words(len(unknown), 'region')} cannot be"
            " judged",
            f"{scene.node.proc} {_blindness(scene, processes.visibility.unreadable)}",
            cause="sight",
        )
        return
    for used, pids in unknown:
        yield finding(
            FindingKind.PROCESSES_UNKNOWN,
            used.container,
            f"{count_words(len(pids), 'slot')} cannot be judged",
            f"{pid_words(pids)}: several processes that map the region could be meant, or one that"
            " stands outside the container, or there was no time to look at all of them",
            pid=pids[0] if len(pids) == 1 else None,
            cause="ambiguous",
            advice="see who else maps the file: no other container should have it mounted",
        )


def _blindness(scene: Scene, unreadable: Sequence[int]) -> str:
    if not scene.sees_host:
        return "is not that of the host's pid namespace, or hides processes"
    return f"does not let {count_words(len(unreadable), 'process')} be looked into"


def _size(nbytes: int) -> str:
    return "an impossible number of bytes" if nbytes >= IMPOSSIBLE_BYTES else format_size(nbytes)


def _devices(indexes: Sequence[int]) -> str:
    return (
        f"device {indexes[0]}" if len(indexes) == 1 else f"devices {', '.join(map(str, indexes))}"
    )

"""Checks: memory, devices and limits, as the region has them and as the driver does."""

from __future__ import annotations

import enum
from collections import Counter
from typing import TYPE_CHECKING

from libhamiregion.layouts import Layout
from libhamiregion.node.root_lock import RootUse, is_root_locked
from libhamiregion.node.writers import find_monitors
from libhamiregion.text import printable
from libhamiregion.units import format_size

from .examination import command_of, count_text, pids_text
from .findings import FindingKind, Severity, finding
from .process_facts import has_libvgpu, policy_of
from .slots import IMPOSSIBLE_BYTES, memory_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from libhamiregion.node.usage import NodeProcess

    from .examination import Examination, UsedRegion
    from .findings import Finding

_MIB = 1 << 20
# What is usual per process beside what is accounted: modules and the driver's own; and a context,
# some 300 to 650 MiB by the size of the GPU, where libvgpu has not counted one.
_UNCOUNTED_BYTES = 256 * _MIB
_UNCOUNTED_CONTEXT_BYTES = 768 * _MIB
_FAR_RATIO = 0.10
# Below this a sample may well be of a moment that libvgpu's own measurement has not seen.
_BUSY_PERCENT = 10
# 2.8.2 and later look at each device's own SM limit; earlier ones at device 0's, for all of them.
_LIMIT_PER_DEVICE = {Layout.V1_2}
# A launch counts for two passes of HAMi's monitor.
_LAUNCH_COUNTS_S = 10


def usage_above_limit(look: Examination, used: UsedRegion) -> Iterator[Finding]:  # noqa: ARG001
    """Devices on which more is in use than the limit allows."""
    for device in used.snapshot.devices:
        limit = device.memory_limit_bytes
        counted = device.memory_used_bytes
        if limit is None or counted <= limit or counted >= IMPOSSIBLE_BYTES:
            continue
        yield finding(
            FindingKind.USAGE_ABOVE_LIMIT,
            used.container,
            f"{format_size(counted)} in use on device {device.index}, limit {format_size(limit)}",
            f"{counted} bytes over all {count_text(used.slot_count, 'slot')}, {counted - limit}"
            " more than the limit",
            device=device.index,
        )


def impossible_usage(look: Examination, used: UsedRegion) -> Iterator[Finding]:  # noqa: ARG001
    """Slots of live processes whose counters cannot be right."""
    wrong = [
        (usage.pid, device.index, device.memory_used_bytes)
        for usage, match in used.slots
        if match.state != "dead"
        for device in usage.devices
        if device.memory_used_bytes >= IMPOSSIBLE_BYTES
    ]
    if not wrong:
        return
    pid, index, nbytes = wrong[0]
    yield finding(
        FindingKind.USAGE_IMPOSSIBLE,
        used.container,
        f"{count_text(len(wrong), 'counter')} of impossible size",
        f"process {pid} counts {nbytes} bytes on device {index}"
        + (f", which is {nbytes - (1 << 64)} as a signed number" if nbytes >= 1 << 63 else ""),
        device=index if len(wrong) == 1 else None,
        pid=pid if len(wrong) == 1 else None,
        repairable=False,
    )


def device_count_zero(look: Examination, used: UsedRegion) -> Iterator[Finding]:  # noqa: ARG001
    """Regions in use that name no device."""
    if used.snapshot.device_count:
        return
    busy = [usage for usage, _ in used.alive if memory_bytes(usage)]
    if busy:
        pids = [usage.pid for usage in busy]
        yield finding(
            FindingKind.DEVICE_COUNT_ZERO,
            used.container,
            f"{count_text(len(busy), 'process')} use memory and the region names no device",
            f"device_num is 0; {pids_text(pids)} count {format_size(sum(map(memory_bytes, busy)))}",
        )


# ---- With the driver's figures ------------------------------------------------------------------


def escaping_processes(look: Examination) -> Iterator[Finding]:
    """Processes that use a GPU in a container whose region does not count them."""
    for row in look.rows:
        if row.state != "escaped":
            continue
        cause, why = _why_it_escapes(look, row)
        driver = sum(device.memory_driver_bytes or 0 for device in row.devices)
        inside = None if row.process is None else row.process.ns_pids[-1]
        where = ", ".join(printable(device.uuid or "?", limit=48) for device in row.devices)
        indexes = {device.index for device in row.devices}
        yield finding(
            FindingKind.PROCESS_ESCAPES,
            row.container,
            f"process {row.host_pid} of the host uses {format_size(driver)} that nobody counts",
            f"the driver lists it{command_of(row.process)} on {where}, and no slot of the region"
            f" has its pid{'' if inside is None else f' {inside}'}; {why}",
            device=indexes.pop() if len(indexes) == 1 else None,
            pid=inside,
            cause=cause,
        )


def _why_it_escapes(look: Examination, row: NodeProcess) -> tuple[str | None, str]:
    if row.process is None:
        return None, "it is not shown in /proc"
    loaded = has_libvgpu(look.node.proc, row.process)
    if loaded is None:
        return None, "its maps cannot be read"
    return (
        ("other", "libvgpu.so is loaded in it")
        if loaded
        else ("no_library", "it has no libvgpu.so loaded")
    )


def driver_memory(look: Examination, used: UsedRegion) -> Iterator[Finding]:
    """Devices on which the driver's sum is far from the region's, over the same processes."""
    sums: dict[int, list[int]] = {}
    for row in look.rows_of.get(id(used.container), ()):
        if row.state != "alive":
            continue
        contexts = _contexts(used, row.pid)
        for device in row.devices:
            counted, driver = device.memory_used_bytes, device.memory_driver_bytes
            if device.index is None or counted is None or driver is None:
                continue
            if counted >= IMPOSSIBLE_BYTES or not (counted or driver):
                continue
            here = sums.setdefault(device.index, [0, 0, 0, 0])
            has_context = contexts.get(device.index, 0) > 0
            here[0] += counted
            here[1] += driver
            here[2] += _UNCOUNTED_BYTES if has_context else _UNCOUNTED_CONTEXT_BYTES
            here[3] += 1
    for index, (counted, driver, allowed, processes) in sorted(sums.items()):
        far = max(allowed, int(_FAR_RATIO * max(counted, driver)))
        apart = abs(driver - counted)
        if apart <= far:
            continue
        yield finding(
            FindingKind.DRIVER_MEMORY_DIFFERS,
            used.container,
            f"driver {format_size(driver)}, accounted {format_size(counted)} on device {index}",
            f"{format_size(apart)} {'more' if driver > counted else 'less'} than accounted for"
            f" {count_text(processes, 'process')}; up to {format_size(far)} is usual",
            device=index,
            cause="driver_more" if driver > counted else "driver_less",
        )


def _contexts(used: UsedRegion, pid: int | None) -> dict[int, int]:
    for usage, _ in used.alive:
        if usage.pid == pid:
            return {device.index: device.memory_context_bytes for device in usage.devices}
    return {}


def unrecorded_utilization(look: Examination, used: UsedRegion) -> Iterator[Finding]:
    """Processes at work whose slot says 0, though their host pid is right."""
    if not used.snapshot.layout.has_utilization:
        return
    right = {usage.pid for usage, process in used.alive if usage.host_pid == process.pid}
    for row in look.rows_of.get(id(used.container), ()):
        if row.state != "alive" or row.pid not in right:
            continue
        for device in row.devices:
            driver = device.driver_sm_percent
            if driver is None or driver < _BUSY_PERCENT or device.sm_util_percent != 0:
                continue
            yield finding(
                FindingKind.UTILIZATION_NOT_RECORDED,
                used.container,
                f"process {row.pid} is at {driver} % of the SMs and the region says 0",
                f"the driver's sample of process {row.host_pid} says {driver} %; its slot has the"
                " right host pid and a utilisation of 0",
                device=device.index,
                pid=row.pid,
            )


# ---- SM limits ----------------------------------------------------------------------------------


class _Rivals(enum.Enum):
    """Containers in whose favour HAMi's monitor would switch a region's limit on."""

    MORE_URGENT = "a more urgent container competes"
    AS_URGENT = "several containers compete"


def sm_limits_off(look: Examination, used: UsedRegion) -> Iterator[Finding]:
    """SM limits that do not hold, one finding for each cause."""
    limited = {
        device.index: device.sm_limit_percent
        for device in used.snapshot.devices
        if device.sm_limit_percent is not None
    }
    if not (limited and used.alive):
        return
    layout = used.snapshot.layout
    if not layout.has_utilization:
        yield _off(
            used,
            limited,
            "no_utilization",
            "whether the SM limit holds cannot be seen",
            f"layout {layout.value} records no utilisation",
            severity=Severity.INFO,
            consequence="every metric shows a utilisation of 0, with or without a limit that works",
            advice="upgrade HAMi, and restart the container",
        )
    policies = {usage.pid: policy_of(look.node.proc, process) for usage, process in used.alive}
    if not used.snapshot.utilization_switch and any(
        policy != "force" for policy in policies.values()
    ):
        yield _switched_off(look, used, limited)
    if 0 not in limited and layout not in _LIMIT_PER_DEVICE:
        yield _off(
            used,
            limited,
            "device_0",
            "the SM limit is off because device 0 has none",
            f"this generation (layout {layout.value}) goes by device 0's limit for all devices",
            advice="set an SM limit on device 0 too (`hamiregion limits set`), or upgrade HAMi",
        )
    disabled = [pid for pid, policy in policies.items() if policy == "disable"]
    if disabled:
        yield _off(
            used,
            limited,
            "policy",
            f"the SM limit is off for {pids_text(disabled)} by GPU_CORE_UTILIZATION_POLICY",
            "it is `disable` in the environment that the process was started with",
            pid=disabled[0] if len(disabled) == 1 else None,
            advice="start the container without it, or with `force`, if it shall be limited",
        )


def _switched_off(look: Examination, used: UsedRegion, limited: dict[int, int]) -> Finding:
    rivals = _rivals(used, (each for each in look.used if _is_launching(each)))
    if rivals is None:
        return _off(
            used,
            limited,
            "switch",
            "the SM limit is switched off",
            "utilization_switch is 0, and on none of its devices a more urgent region launches, nor"
            " do several of its own priority",
            severity=Severity.INFO,
            consequence="launches are not held back; HAMi's monitor has it so while nobody"
            " competes",
            advice="nothing, if that is what you want; GPU_CORE_UTILIZATION_POLICY=force in the"
            " container's environment makes the limit hold at all times",
        )
    urgent = rivals is _Rivals.MORE_URGENT
    who = "a more urgent region" if urgent else "more than one region of its priority"
    return _off(
        used,
        limited,
        "switch",
        f"the SM limit is switched off, though {rivals.value}",
        f"utilization_switch is 0, and on one of its devices {who} has launched within the last"
        f" {_LAUNCH_COUNTS_S} s",
        consequence="launches are not held back, at the cost of the others",
        advice="see that HAMi's monitor, or `hamiregion agent`, runs: it switches the limit on."
        " GPU_CORE_UTILIZATION_POLICY=force in the container does without it",
    )


def _off(
    used: UsedRegion,
    limited: dict[int, int],
    cause: str,
    summary: str,
    evidence: str,
    *,
    pid: int | None = None,
    severity: Severity | None = None,
    consequence: str | None = None,
    advice: str,
) -> Finding:
    limits = ", ".join(f"{percent} % on device {index}" for index, percent in limited.items())
    return finding(
        FindingKind.SM_LIMIT_OFF,
        used.container,
        summary,
        f"{evidence}; the limit is {limits}",
        device=next(iter(limited)) if len(limited) == 1 else None,
        pid=pid,
        cause=cause,
        severity=severity,
        consequence=consequence,
        advice=advice,
    )


def _rivals(used: UsedRegion, launching: Iterable[UsedRegion]) -> _Rivals | None:
    """The rule of HAMi's monitor: for which of those that launch it switches the limit on."""
    uuids = _uuids(used)
    as_urgent: Counter[str] = Counter()
    for each in launching:
        shared = uuids & _uuids(each)
        if shared and _priority(each) < _priority(used):
            return _Rivals.MORE_URGENT
        if _priority(each) == _priority(used):
            as_urgent.update(shared)
    return _Rivals.AS_URGENT if any(count > 1 for count in as_urgent.values()) else None


def _uuids(used: UsedRegion) -> set[str]:
    return {device.uuid for device in used.snapshot.devices if device.uuid}


def _priority(used: UsedRegion) -> int:
    # A container writes its own: none can make itself more urgent than HAMi's most urgent ones.
    return max(used.snapshot.priority, 0)


def _is_launching(used: UsedRegion) -> bool:
    """Whether a region has a launch mark, and a time that shows it to be a new one."""
    snapshot = used.snapshot
    launched_s = snapshot.last_kernel_time_s
    # A clock that was set back makes it a moment of the future.
    return (
        snapshot.recent_kernel > 0
        and launched_s is not None
        and abs(snapshot.taken_at_ns // 10**9 - launched_s) <= _LAUNCH_COUNTS_S
    )


# ---- Launches that nobody will unblock ----------------------------------------------------------


def blocked_launches(look: Examination, used: UsedRegion) -> Iterator[Finding]:
    """Regions whose launches are blocked while no writer of launch marks runs."""
    if used.snapshot.recent_kernel >= 0 or not used.alive:
        return
    if look.writer_may_run is None:
        look.writer_may_run = not look.node.processes.is_complete or _writer_seen(look)
    if look.writer_may_run:
        return
    limited = any(device.sm_limit_percent is not None for device in used.snapshot.devices)
    yield finding(
        FindingKind.LAUNCHES_BLOCKED,
        used.container,
        f"launches are blocked (recent_kernel {used.snapshot.recent_kernel}) and nobody will"
        " unblock them",
        "all processes of the node are visible, none outside the containers has a region open for"
        " writing, none is called as HAMi's monitor, and nobody has the containers' directories"
        " locked as `hamiregion agent` does",
        severity=Severity.ERROR if limited else Severity.WARNING,
        consequence=(
            None if limited else "processes wait for ever once they are given an SM limit"
        ),
    )


def _writer_seen(look: Examination) -> bool:
    """Whether somebody is seen who can be the writer of launch marks."""
    if find_monitors(look.node) or is_root_locked(look.node.directories, RootUse.FEEDBACK):
        return True
    processes = look.node.processes
    for used in look.used:
        users = {process.pid for process in used.users}
        # A process that can be neither matched nor ruled out counts as the writer.
        for process in processes.mappers(*processes.identity(used.region), writable=True):
            if process.pid not in users and process.pid != processes.visibility.own_pid:
                return True
    return False

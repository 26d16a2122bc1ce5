"""Checks: memory, devices and limits, by the region and by the driver."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, TypeAlias

from libhamiregion.text import printable
from libhamiregion.units import format_size

from .findings import (
    FindingKind,
    Severity,
    command_of,
    count_text,
    finding,
    memory_bytes,
    only_or_none,
    pids_text,
)
from .slots import IMPOSSIBLE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from libhamiregion.node.matching import HostProcess
    from libhamiregion.node.processes import ProcessTable

    from .findings import DoctorContext, Finding, UsedRegion

    Policy: TypeAlias = Literal["default", "force", "disable"]


def usage_above_limit(context: DoctorContext, used: UsedRegion) -> Iterator[Finding]:  # noqa: ARG001
    """Devices on which more is in use than the limit allows."""
    for device in used.snapshot.devices:
        limit, counted = device.memory_limit_bytes, device.memory_used_bytes
        if limit is not None and limit < counted < IMPOSSIBLE_BYTES:
            yield finding(
                FindingKind.USAGE_ABOVE_LIMIT,
                used.container,
                f"{format_size(counted)} in use on device {device.index},"
                f" limit {format_size(limit)}",
                f"{counted} bytes over all {count_text(used.slot_count, 'slot')}, {counted - limit}"
                " more than the limit",
                device=device.index,
            )


def impossible_usage(context: DoctorContext, used: UsedRegion) -> Iterator[Finding]:  # noqa: ARG001
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
    )


def device_count_zero(context: DoctorContext, used: UsedRegion) -> Iterator[Finding]:  # noqa: ARG001
    """Regions in use that name no device."""
    busy = [usage for usage, _ in used.alive if memory_bytes(usage)]
    if busy and not used.snapshot.device_count:
        pids = [usage.pid for usage in busy]
        yield finding(
            FindingKind.DEVICE_COUNT_ZERO,
            used.container,
            f"{count_text(len(busy), 'process')} use memory and the region names no device",
            f"device_num is 0; {pids_text(pids)} count {format_size(sum(map(memory_bytes, busy)))}",
        )


def sm_limits_off(context: DoctorContext, used: UsedRegion) -> Iterator[Finding]:
    """SM limits that do not hold, one finding for each cause."""
    limited = {
        device.index: device.sm_limit_percent
        for device in used.snapshot.devices
        if device.sm_limit_percent is not None
    }
    if not (limited and used.alive):
        return
    layout = used.snapshot.layout
    policies = {
        usage.pid: policy_of(context.node.processes, process) for usage, process in used.alive
    }
    disabled = [pid for pid, policy in policies.items() if policy == "disable"]
    limits = ", ".join(f"{percent} % on device {index}" for index, percent in limited.items())

    def off(
        cause: str,
        summary: str,
        evidence: str,
        advice: str,
        severity: Severity = Severity.WARNING,
        consequence: str | None = None,
    ) -> Finding:
        return finding(
            FindingKind.SM_LIMIT_OFF,
            used.container,
            summary,
            f"{evidence}; the limit is {limits}",
            device=only_or_none([*limited]),
            pid=only_or_none(disabled) if cause == "policy" else None,
            cause=cause,
            severity=severity,
            consequence=consequence,
            advice=advice,
        )

    if not layout.has_utilization:
        yield off(
            "no_utilization",
            "whether the SM limit holds cannot be seen",
            f"layout {layout.value} records no utilisation",
            "upgrade HAMi, and restart the container",
            Severity.INFO,
            "every metric shows a utilisation of 0, with or without a limit that works",
        )
    if not used.snapshot.utilization_switch and set(policies.values()) != {"force"}:
        alone = context.writer_may_run or not _competes(context, used)
        yield off(
            "switch",
            "the SM limit is switched off" + ("" if alone else ", and nobody will switch it on"),
            "utilization_switch is 0"
            + ("" if alone else ", others use the same GPU, and no monitor and no agent runs"),
            "nothing, if that is what you want: HAMi's monitor, and `hamiregion agent`, switch it"
            " on while others launch on the GPU. GPU_CORE_UTILIZATION_POLICY=force in the"
            " container's environment makes the limit hold at all times",
            Severity.INFO if alone else Severity.WARNING,
        )
    if 0 not in limited and not layout.has_limit_per_device:
        yield off(
            "device_0",
            "the SM limit is off because device 0 has none",
            f"this generation (layout {layout.value}) goes by device 0's limit for all devices",
            "set an SM limit on device 0 too (`hamiregion limits set`), or upgrade HAMi",
        )
    if disabled:
        yield off(
            "policy",
            f"the SM limit is off for {pids_text(disabled)} by GPU_CORE_UTILIZATION_POLICY",
            "it is `disable` in the environment that the process was started with",
            "start the container without it, or with `force`, if it shall be limited",
        )


def _competes(context: DoctorContext, used: UsedRegion) -> bool:
    """Whether live processes of another region use one of its GPUs."""
    uuids = {device.uuid for device in used.snapshot.devices} - {None}
    return any(
        other is not used
        and other.alive
        and not uuids.isdisjoint(device.uuid for device in other.snapshot.devices)
        for other in context.used
    )


def blocked_launches(context: DoctorContext, used: UsedRegion) -> Iterator[Finding]:
    """Regions whose launches are blocked while no writer of launch marks runs."""
    if used.snapshot.recent_kernel >= 0 or not used.alive or context.writer_may_run:
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
        severity=None if limited else Severity.WARNING,
        consequence=None if limited else "processes wait for ever once they are given an SM limit",
    )


# ---- the driver

_MIB = 1 << 20
# What is usual per process beside what is accounted: modules and the driver's own; and a context,
# some 300 to 650 MiB by the size of the GPU, where libvgpu has not counted one.
_UNCOUNTED_BYTES = 256 * _MIB
_UNCOUNTED_CONTEXT_BYTES = 768 * _MIB
_FAR_RATIO = 0.10
# Below this a sample may well be of a moment that libvgpu's own measurement has not seen.
_BUSY_PERCENT = 10
_LOADED = {
    None: (None, "whether libvgpu.so is loaded in it cannot be told"),
    True: ("other", "libvgpu.so is loaded in it"),
    False: ("no_library", "it has no libvgpu.so loaded"),
}


def escaping_processes(context: DoctorContext) -> Iterator[Finding]:
    """Processes that use a GPU in a container whose region does not count them."""
    for row in context.rows:
        process = row.process
        if row.state != "escaped" or process is None:
            continue
        cause, why = _LOADED[context.node.processes.has_libvgpu(process)]
        driver = sum(device.memory_driver_bytes or 0 for device in row.devices)
        where = ", ".join(printable(device.uuid or "?", limit=48) for device in row.devices)
        indexes = {device.index for device in row.devices if device.index is not None}
        yield finding(
            FindingKind.PROCESS_ESCAPES,
            row.container,
            f"process {row.host_pid} of the host uses {format_size(driver)} that nobody counts",
            f"the driver lists it{command_of(process)} on {where}, and no slot of the region"
            f" has its pid {process.ns_pids[-1]}; {why}",
            device=only_or_none([*indexes]),
            pid=process.ns_pids[-1],
            cause=cause,
        )


def driver_memory(context: DoctorContext, used: UsedRegion) -> Iterator[Finding]:
    """Devices on which the driver's sum is far from the region's, over the same processes."""
    contexts = {
        (usage.pid, device.index)
        for usage, _ in used.alive
        for device in usage.devices
        if device.memory_context_bytes
    }
    # By device: counted, the driver's, what they may be apart, processes.
    sums: dict[int, list[int]] = {}
    for row in context.rows_of(used):
        for device in row.devices:
            counted, driver = device.memory_used_bytes, device.memory_driver_bytes
            if device.index is None or counted is None or driver is None:
                continue
            if counted >= IMPOSSIBLE_BYTES or not (counted or driver):
                continue
            has_context = (row.pid, device.index) in contexts
            here = (counted, driver, _UNCOUNTED_BYTES if has_context else _UNCOUNTED_CONTEXT_BYTES)
            before = sums.get(device.index, [0, 0, 0, 0])
            sums[device.index] = [a + b for a, b in zip(before, (*here, 1), strict=True)]
    for index, (counted, driver, allowed, processes) in sorted(sums.items()):
        far = max(allowed, int(_FAR_RATIO * max(counted, driver)))
        apart = abs(driver - counted)
        if apart > far:
            yield finding(
                FindingKind.DRIVER_MEMORY_DIFFERS,
                used.container,
                f"driver {format_size(driver)}, accounted {format_size(counted)} on device {index}",
                f"{format_size(apart)} {'more' if driver > counted else 'less'} than accounted for"
                f" {count_text(processes, 'process')}; up to {format_size(far)} is usual",
                device=index,
                cause="driver_more" if driver > counted else "driver_less",
            )


def unrecorded_utilization(context: DoctorContext, used: UsedRegion) -> Iterator[Finding]:
    """Processes at work whose slot says 0, though their host pid is right."""
    right = {usage.pid for usage, process in used.alive if usage.host_pid == process.pid}
    for row in context.rows_of(used) if used.snapshot.layout.has_utilization else ():
        for device in row.devices if row.pid in right else ():
            driver = device.driver_sm_percent or 0
            if driver < _BUSY_PERCENT or device.sm_util_percent != 0:
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


# ---- environment


# The kernel lets a process have megabytes of it.
_ENVIRONMENT_LIMIT = 1 << 20
# As libvgpu compares them: these spellings and no others. Of two that are called the same, getenv()
# sees the first.
_POLICY = re.compile(rb"(?:\A|\0)GPU_CORE_UTILIZATION_POLICY=([^\0]*)")
_POLICIES: dict[bytes, Policy] = {
    b"force": "force",
    b"FORCE": "force",
    b"disable": "disable",
    b"DISABLE": "disable",
}


def policy_of(processes: ProcessTable, process: HostProcess) -> Policy:
    """What GPU_CORE_UTILIZATION_POLICY comes to in a process; the default where not known."""
    return processes.fact(process, "environ", _ENVIRONMENT_LIMIT, _policy_in) or "default"


def _policy_in(environment: bytes) -> Policy:
    found = _POLICY.search(environment)
    return "default" if found is None else _POLICIES.get(found[1], "default")

"""Checks: memory, devices and limits, as the region has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from libhamiregion.units import format_size

from .examination import memory_bytes
from .findings import FindingKind, Severity, count_text, finding, pids_text, the_single
from .process_facts import policy_of
from .slots import IMPOSSIBLE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .examination import Examination, UsedRegion
    from .findings import Finding


def usage_above_limit(exam: Examination, used: UsedRegion) -> Iterator[Finding]:  # noqa: ARG001
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


def impossible_usage(exam: Examination, used: UsedRegion) -> Iterator[Finding]:  # noqa: ARG001
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


def device_count_zero(exam: Examination, used: UsedRegion) -> Iterator[Finding]:  # noqa: ARG001
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


def sm_limits_off(exam: Examination, used: UsedRegion) -> Iterator[Finding]:
    """SM limits that do not hold, one finding for each cause."""
    limited = {
        device.index: device.sm_limit_percent
        for device in used.snapshot.devices
        if device.sm_limit_percent is not None
    }
    if not (limited and used.alive):
        return
    layout = used.snapshot.layout
    policies = {usage.pid: policy_of(exam.node.processes, process) for usage, process in used.alive}
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
            device=the_single([*limited]),
            pid=the_single(disabled) if cause == "policy" else None,
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
        alone = exam.writer_may_run or not _competes(exam, used)
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


def _competes(exam: Examination, used: UsedRegion) -> bool:
    """Whether live processes of another region use one of its GPUs."""
    uuids = {device.uuid for device in used.snapshot.devices} - {None}
    return any(
        other is not used
        and other.alive
        and not uuids.isdisjoint(device.uuid for device in other.snapshot.devices)
        for other in exam.used
    )


def blocked_launches(exam: Examination, used: UsedRegion) -> Iterator[Finding]:
    """Regions whose launches are blocked while no writer of launch marks runs."""
    if used.snapshot.recent_kernel >= 0 or not used.alive or exam.writer_may_run:
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

"""Checks: memory and devices, as the region counts them and as the driver does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from libhamiregion.text import printable
from libhamiregion.units import format_size

from .findings import FindingKind, finding
from .scene import command_of, count_words, pid_words
from .slots import IMPOSSIBLE_BYTES, memory_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from libhamiregion.node.usage import NodeProcess

    from .findings import Finding
    from .scene import Scene, Used

_MIB = 1 << 20
# What is usual per process beside what is accounted: modules and the driver's own; and a context,
# some 300 to 650 MiB by the size of the GPU, where libvgpu has not counted one.
_UNCOUNTED_BYTES = 256 * _MIB
_UNCOUNTED_CONTEXT_BYTES = 768 * _MIB
_FAR_RATIO = 0.10
# Below this a sample may well be of a moment that libvgpu's own measurement has not seen.
_BUSY_PERCENT = 10


def usage_above_limit(scene: Scene, used: Used) -> Iterator[Finding]:  # noqa: ARG001
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
            f"{counted} bytes over all {count_words(len(used.slots), 'slot')}, {counted - limit}"
            " more than the limit",
            device=device.index,
        )


def impossible_usage(scene: Scene, used: Used) -> Iterator[Finding]:  # noqa: ARG001
    """Slots of live processes whose counters cannot be right."""
    wrong = [
        (usage.pid, device.index, device.memory_used_bytes)
        for _, usage, match in used.slots
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
        f"{count_words(len(wrong), 'counter')} of impossible size",
        f"process {pid} counts {nbytes} bytes on device {index}"
        + (f", which is {nbytes - (1 << 64)} as a signed number" if nbytes >= 1 << 63 else ""),
        device=index if len(wrong) == 1 else None,
        pid=pid if len(wrong) == 1 else None,
        repairable=False,
    )


def device_count_zero(scene: Scene, used: Used) -> Iterator[Finding]:  # noqa: ARG001
    """Regions in use that name no device."""
    if used.snapshot.device_count:
        return
    busy = [usage for usage, _ in used.alive if memory_bytes(usage)]
    if busy:
        pids = [usage.pid for usage in busy]
        yield finding(
            FindingKind.DEVICE_COUNT_ZERO,
            used.container,
            f"{count_words(len(busy), 'process')} use memory and the region names no device",
            f"device_num is 0; {pid_words(pids)} count {format_size(sum(map(memory_bytes, busy)))}",
        )


# ---- With the driver's figures ------------------------------------------------------------------


def escaping_processes(scene: Scene) -> Iterator[Finding]:
    """Processes that use a GPU in a container whose region does not count them."""
    for row in scene.rows:
        if row.state != "escaped":
            continue
        cause, why = _why_it_escapes(scene, row)
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


def _why_it_escapes(scene: Scene, row: NodeProcess) -> tuple[str | None, str]:
    if row.process is None:
        return None, "it is not shown in /proc"
    environment = scene.memory.facts.environment(row.process)
    if environment is not None and environment.control_disabled:
        return "control_disabled", "CUDA_DISABLE_CONTROL is true in its environment"
    libraries = scene.memory.facts.libraries(row.process)
    if libraries is None:
        return None, "its maps cannot be read"
    if not libraries:
        return "no_library", "it has no libvgpu.so loaded"
    return "other", "libvgpu.so is loaded in it"


def driver_memory(scene: Scene, used: Used) -> Iterator[Finding]:
    """Devices on which the driver's sum is far from the region's, over the same processes."""
    sums: dict[int, list[int]] = {}
    for row in scene.rows_of.get(id(used.container), ()):
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
            f" {count_words(processes, 'process')}; up to {format_size(far)} is usual",
            device=index,
            cause="driver_more" if driver > counted else "driver_less",
        )


def _contexts(used: Used, pid: int | None) -> dict[int, int]:
    for usage, _ in used.alive:
        if usage.pid == pid:
            return {device.index: device.memory_context_bytes for device in usage.devices}
    return {}


def unrecorded_utilization(scene: Scene, used: Used) -> Iterator[Finding]:
    """Processes at work whose slot says 0, though their host pid is right."""
    if not used.snapshot.layout.has_utilization:
        return
    right = {usage.pid for usage, process in used.alive if usage.host_pid == process.pid}
    for row in scene.rows_of.get(id(used.container), ()):
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

"""Checks: what the driver says of a container's processes, and what their region does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from libhamiregion.text import printable
from libhamiregion.units import format_size

from .findings import FindingKind, command_of, count_text, finding, the_single
from .slots import IMPOSSIBLE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

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
_LOADED = {
    None: (None, "whether libvgpu.so is loaded in it cannot be told"),
    True: ("other", "libvgpu.so is loaded in it"),
    False: ("no_library", "it has no libvgpu.so loaded"),
}


def escaping_processes(exam: Examination) -> Iterator[Finding]:
    """Processes that use a GPU in a container whose region does not count them."""
    for row in exam.rows:
        process = row.process
        if row.state != "escaped" or process is None:
            continue
        cause, why = _LOADED[exam.node.processes.has_libvgpu(process)]
        driver = sum(device.memory_driver_bytes or 0 for device in row.devices)
        where = ", ".join(printable(device.uuid or "?", limit=48) for device in row.devices)
        indexes = {device.index for device in row.devices if device.index is not None}
        yield finding(
            FindingKind.PROCESS_ESCAPES,
            row.container,
            f"process {row.host_pid} of the host uses {format_size(driver)} that nobody counts",
            f"the driver lists it{command_of(process)} on {where}, and no slot of the region"
            f" has its pid {process.ns_pids[-1]}; {why}",
            device=the_single([*indexes]),
            pid=process.ns_pids[-1],
            cause=cause,
        )


def driver_memory(exam: Examination, used: UsedRegion) -> Iterator[Finding]:
    """Devices on which the driver's sum is far from the region's, over the same processes."""
    contexts = {
        (usage.pid, device.index)
        for usage, _ in used.alive
        for device in usage.devices
        if device.memory_context_bytes
    }
    # By device: counted, the driver's, what they may be apart, processes.
    sums: dict[int, list[int]] = {}
    for row in exam.rows_of(used):
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


def unrecorded_utilization(exam: Examination, used: UsedRegion) -> Iterator[Finding]:
    """Processes at work whose slot says 0, though their host pid is right."""
    right = {usage.pid for usage, process in used.alive if usage.host_pid == process.pid}
    for row in exam.rows_of(used) if used.snapshot.layout.has_utilization else ():
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

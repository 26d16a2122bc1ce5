"""Checks of memory, devices and limits, by the region and by the driver."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING

from libhamiregion.observation.driver import NvmlState
from libhamiregion.observation.figures import IMPOSSIBLE_BYTES, impossible
from libhamiregion.observation.visible import order_by_environment
from libhamiregion.text import count_text, printable
from libhamiregion.units import format_size

from .context import UNCOUNTED_BYTES, memory_bytes
from .findings import FindingKind, Severity, command_of, finding, only_or_none, pids_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .context import DoctorContext, ObservedRegion
    from .findings import Finding

# HAMi's lock for changing the MIG layout is there for seconds.
_MIG_APPLY_LIMIT_S = 600


def usage_above_limit(_: DoctorContext, used: ObservedRegion) -> Iterator[Finding]:
    """Devices on which more is in use than the limit allows."""
    for device in used.snapshot.devices:
        limit, counted = device.memory_limit_bytes, device.memory_used_bytes
        if limit is not None and limit < counted < IMPOSSIBLE_BYTES:
            yield used.finding(
                FindingKind.USAGE_ABOVE_LIMIT,
                f"{format_size(counted)} in use on device {device.index},"
                f" limit {format_size(limit)}",
                f"{counted} bytes over all {count_text(len(used.slots), 'slot')},"
                f" {counted - limit} more than the limit",
                device=device.index,
            )


def impossible_figures(_: DoctorContext, used: ObservedRegion) -> Iterator[Finding]:
    """Counters of live processes, limits and other figures that cannot be right."""
    counters: list[tuple[int | None, int, str, int]] = []
    others: list[tuple[int | None, int, str, int]] = [
        (None, device.index, "memory_limit_bytes", limit)
        for device in used.snapshot.devices
        if (limit := device.memory_limit_bytes or 0) >= IMPOSSIBLE_BYTES
    ]
    for usage, match in used.slots:
        for device in usage.devices:
            for name, value in impossible(device).items():
                wrong = usage.pid, device.index, name, value
                if name != "memory_used_bytes":
                    others.append(wrong)
                elif match.state != "dead":
                    counters.append(wrong)
    for found, kind, summary, cause in (
        (counters, FindingKind.USAGE_IMPOSSIBLE, "counter", None),
        (others, FindingKind.FIGURE_IMPOSSIBLE, "figure", "region"),
    ):
        if found:
            pid, index, name, value = found[0]
            of = "" if pid is None else f" of process {pid}"
            signed = f", which is {value - (1 << 64)} as a signed number" if value >> 63 else ""
            yield used.finding(
                kind,
                f"{count_text(len(found), summary)} that cannot be",
                f"{name}{of} on device {index} is {value}{signed}",
                device=index if len(found) == 1 else None,
                pid=pid if len(found) == 1 else None,
                cause=cause,
            )


def device_count_zero(_: DoctorContext, used: ObservedRegion) -> Iterator[Finding]:
    """Regions in use that name no device."""
    busy = [usage for usage, _ in used.alive if memory_bytes(usage)]
    if busy and not used.snapshot.device_count:
        pids = [usage.pid for usage in busy]
        yield used.finding(
            FindingKind.DEVICE_COUNT_ZERO,
            f"{count_text(len(busy), 'process')} use memory and the region names no device",
            f"device_num is 0; {pids_text(pids)} count {format_size(sum(map(memory_bytes, busy)))}",
        )


def sm_limits_off(context: DoctorContext, used: ObservedRegion) -> Iterator[Finding]:
    """SM limits that do not hold, one finding for each cause."""
    limited = {
        device.index: device.sm_limit_percent
        for device in used.snapshot.devices
        if device.sm_limit_percent is not None
    }
    if not (limited and used.alive):
        return
    layout = used.snapshot.layout
    policies = {usage.pid: context.processes.sm_policy(process) for usage, process in used.alive}
    limits = ", ".join(f"{percent} % on device {index}" for index, percent in limited.items())

    off = partial(used.finding, FindingKind.SM_LIMIT_OFF, device=only_or_none([*limited]))

    is_off = not used.snapshot.utilization_switch and not {"default", "disable"}.isdisjoint(
        policies.values()
    )
    if is_off and not context.writer_may_run and context.competes(used):
        yield off(
            "the SM limit is switched off, and no program switches it on",
            "utilization_switch is 0, others use the same GPU, and no monitor and no agent runs;"
            f" the limit is {limits}",
            cause="switch",
            advice="start HAMi's monitor or `hamiregion agent`, or start the container with"
            " GPU_CORE_UTILIZATION_POLICY=force",
        )
    if 0 not in limited and not layout.has_limit_per_device:
        yield off(
            "the SM limit is off because device 0 has none",
            f"this generation (layout {layout.value}) uses device 0's limit for all devices;"
            f" the limit is {limits}",
            cause="device_0",
            advice="set an SM limit on device 0 too (`hamiregion limits set`), or upgrade HAMi",
        )
    disabled = [pid for pid, policy in policies.items() if policy == "disable"]
    if disabled:
        yield off(
            f"the SM limit is off for {pids_text(disabled)} by GPU_CORE_UTILIZATION_POLICY",
            "it is `disable` in the environment that the process was started with;"
            f" the limit is {limits}",
            cause="policy",
            advice="start the container without it, or with `force`",
            pid=only_or_none(disabled),
        )


def blocked_launches(context: DoctorContext, used: ObservedRegion) -> Iterator[Finding]:
    """Regions whose launches are blocked while no writer of launch marks runs."""
    limited = any(device.sm_limit_percent is not None for device in used.snapshot.devices)
    blocked = limited and used.alive and used.snapshot.recent_kernel < 0
    if blocked and not context.writer_may_run:
        yield used.finding(
            FindingKind.LAUNCHES_BLOCKED,
            f"launches are blocked (recent_kernel {used.snapshot.recent_kernel}) and no program"
            " will unblock them",
            "all processes of the node are visible, none is HAMi's monitor or maps regions of"
            " several pods, and no `hamiregion agent` has the containers' directories locked",
        )


# ---- the driver ---------------------------------------------------------------------------------

# With a context, some 300 to 650 MiB by the size of the GPU, where libvgpu has not counted one.
_UNCOUNTED_CONTEXT_BYTES = 768 << 20
_FAR_RATIO = 0.10
_FULL = 0.95
# Below this a sample may well be of a moment that libvgpu's own measurement has not seen.
_BUSY_PERCENT = 10
_LOADED = {
    None: (None, "whether libvgpu.so is loaded in it is not known"),
    True: ("other", "libvgpu.so is loaded in it"),
    False: ("no_library", "it has no libvgpu.so loaded"),
}


def failed_gpus(context: DoctorContext) -> Iterator[Finding]:
    """GPUs that do not work, with the containers that have them."""
    observation = context.observation
    table = observation.table
    for gpu in () if observation.sample is None else observation.sample.failed:
        uuids = gpu.uuids - {None}
        pairs = zip(table.devices.region, table.devices.uuids(), strict=True)
        users = count_text(len({region for region, uuid in pairs if uuid in uuids}), "region")
        yield finding(
            FindingKind.GPU_FAILED,
            f"GPU {gpu.index} does not work: {gpu.state.value}",
            f"{gpu.state.explanation}; "
            + (f"{printable(gpu.uuid, 48)}, in {users}" if gpu.uuid else "its uuid is not known"),
            device=gpu.index,
            cause=gpu.state.value,
            is_transient=gpu.state not in {NvmlState.GPU_IS_LOST, NvmlState.RESET_REQUIRED},
        )


def stuck_mig_apply(context: DoctorContext) -> Iterator[Finding]:
    """HAMi's lock for changing the MIG layout, if it is old."""
    sample = context.observation.sample
    age_s = None if sample is None else sample.mig_apply_s
    if age_s is not None and age_s > _MIG_APPLY_LIMIT_S:
        yield finding(
            FindingKind.MIG_APPLY_STUCK,
            f"HAMi has been changing the MIG layout for {age_s / 60:.0f} minutes",
            "the host has /tmp/hami/hami-mig-apply.lock for so long",
        )


def impossible_driver_figures(context: DoctorContext) -> Iterator[Finding]:
    """GPUs that have, or whose MIG devices have, a driver's figure that cannot be."""
    for gpu in context.observation.gpus:
        devices = (gpu, *gpu.mig_devices)
        wrong = [(each.uuid, *figure) for each in devices for figure in each.out_of_range]
        for uuid, name, value in wrong[:1]:
            yield finding(
                FindingKind.FIGURE_IMPOSSIBLE,
                f"the driver gives a figure of GPU {gpu.index} that cannot be",
                f"{name} is {value} on {printable(uuid or 'a device', limit=48)}",
                device=gpu.index,
                severity=Severity.INFO,
                cause="driver",
                consequence="it is left out",
                advice="none is needed; update the driver if it lasts",
            )


def reordered_devices(context: DoctorContext) -> Iterator[Finding]:
    """Processes that count GPUs otherwise than NVML; one finding for each container and order."""
    seen = context.observation
    orders = context.join.orders
    found: defaultdict[tuple[int, str | None], list[int]] = defaultdict(list)
    for slot in orders:
        entry = context.processes.entry_of(seen.proved().processes[slot])
        region, visible = seen.table.processes.region[slot], None
        if entry is not None and order_by_environment(seen.table, region, entry) is not None:
            visible = entry.visible_devices
        found[region, visible].append(slot)
    for (region, visible), slots in found.items():
        pids = [seen.table.processes.pid[slot] for slot in slots]
        pairs = orders[slots[0]].items()
        order = ", ".join(f"CUDA device {each} is device {index}" for each, index in pairs)
        why = "the driver lists it on another device than the region"
        if visible is not None:
            why = f"its environment has CUDA_VISIBLE_DEVICES={printable(visible, limit=100)}"
        yield finding(
            FindingKind.DEVICES_REORDERED,
            f"{count_text(len(pids), 'process')} with another order of GPUs (CUDA_VISIBLE_DEVICES)",
            f"{pids_text(pids)}: {why}; {order or 'which devices these are is not known'}",
            container=seen.containers[region],
            pid=only_or_none(pids),
            cause="driver" if visible is None else "environment",
        )


def gone_processes(context: DoctorContext) -> Iterator[Finding]:
    """Memory of processes that do not exist any more; one finding for each GPU."""
    found: defaultdict[tuple[int | None, str], list[tuple[int, int]]] = defaultdict(list)
    for row in context.join.uncounted if context.observation.gone else ():
        for device in row.devices if row.state == "gone" else ():
            used = device.memory_driver_bytes or 0
            found[device.driver_index, device.uuid or "?"].append((row.host_pid or 0, used))
    for (index, uuid), users in found.items():
        pids = [pid for pid, _ in users]
        yield finding(
            FindingKind.PROCESS_GONE,
            f"{format_size(sum(used for _, used in users))} on GPU {index} of"
            f" {count_text(len(pids), 'process')} that no longer exist",
            f"the driver lists {pids_text(pids)} of the host on {printable(uuid, limit=48)}, twice,"
            " and /proc, which shows all processes, has none with that pid",
            device=index,
            cause=printable(uuid, limit=48),
        )


def escaping_processes(context: DoctorContext) -> Iterator[Finding]:
    """Processes that use a GPU in a container whose region does not count them."""
    join = context.join
    # Being counted in a region that a container has made itself limits nothing.
    own_making = [
        row
        for region, container in enumerate(context.observation.containers)
        if container.directory is None
        for row in join.slot_rows(region)
    ]
    for row in (*join.uncounted, *own_making):
        process = row.process
        if row.state != "escaped" or process is None:
            continue
        if row.container is not None and row.container.missing is not None:
            continue  # that container has a finding of its own
        cause, why = _LOADED[context.processes.has_libvgpu(process)]
        driver = sum(device.memory_driver_bytes or 0 for device in row.devices)
        where = ", ".join(printable(device.uuid or "?", limit=48) for device in row.devices)
        indexes = {device.index for device in row.devices if device.index is not None}
        yield finding(
            FindingKind.PROCESS_ESCAPES,
            f"process {row.host_pid} of the host uses {format_size(driver)} that is not counted",
            f"the driver lists it{command_of(process)} on {where}, and no slot of the region"
            f" has its pid {process.ns_pids[-1]}; {why}",
            container=row.container,
            device=only_or_none([*indexes]),
            pid=process.ns_pids[-1],
            cause=cause,
        )


def driver_memory(context: DoctorContext, used: ObservedRegion) -> Iterator[Finding]:
    """Devices on which the driver's sum is far from the region's, over the same processes."""
    contexts = {
        (usage.pid, device.index)
        for usage, _ in used.alive
        for device in usage.devices
        if device.memory_context_bytes
    }
    # By device: counted, the driver's, what they may be apart; each a process.
    sums: dict[int, list[tuple[int, int, int]]] = {}
    for row in context.driver_rows(used):
        for device in row.devices:
            counted, driver = device.memory_used_bytes, device.memory_driver_bytes
            if device.index is None or counted is None or driver is None:
                continue
            if max(counted, driver) > 0 and counted < IMPOSSIBLE_BYTES:
                has_context = (row.pid, device.index) in contexts
                usual = UNCOUNTED_BYTES if has_context else _UNCOUNTED_CONTEXT_BYTES
                sums.setdefault(device.index, []).append((counted, driver, usual))
    for index, processes in sorted(sums.items()):
        counted, driver, usual = map(sum, zip(*processes, strict=True))
        far = max(usual, int(_FAR_RATIO * max(counted, driver)))
        apart = abs(driver - counted)
        more = driver > counted
        if apart > far and (more or not oversubscribes(context, used, index)):
            yield used.finding(
                FindingKind.DRIVER_MEMORY_DIFFERS,
                f"driver {format_size(driver)}, accounted {format_size(counted)} on device {index}",
                f"{format_size(apart)} {'more' if more else 'less'} than accounted for"
                f" {count_text(len(processes), 'process')}; up to {format_size(far)} is usual",
                device=index,
                cause="driver_more" if more else "driver_less",
            )


def oversubscribes(context: DoctorContext, used: ObservedRegion, index: int) -> bool:
    """Whether a container may count more memory than its GPU has: the rest is the host's."""
    limit = used.snapshot.device(index).memory_limit_bytes
    card = context.cards.get(used.snapshot.device(index).uuid)
    total = None if card is None else card.memory_total_bytes
    entries = [context.processes.entry_of(process) for _, process in used.alive]
    return (
        any(each is not None and each.oversubscribes for each in entries)
        or (limit is not None and total is not None and limit > total)
        or (card is not None and card.is_overcommitted)
    )


def full_cards(context: DoctorContext) -> Iterator[Finding]:
    """Cards that are nearly full, and whose limits exceed them."""
    for card in context.cards.values():
        used, total = card.memory_used_bytes, card.memory_total_bytes
        if used is None or total is None or not card.is_overcommitted or used < _FULL * total:
            continue
        yield finding(
            FindingKind.GPU_OVERCOMMITTED,
            f"GPU {card.index} is nearly full, and limits on it exceed its memory",
            f"{format_size(used)} of {format_size(total)} in use by the driver; the limits of"
            f" {count_text(card.devices, 'device')} of containers, unlimited ones as the whole,"
            f" are {format_size(card.memory_limits_bytes or 0)};"
            f" {printable(card.uuid or '', limit=48)}",
            cause=card.uuid and printable(card.uuid, limit=48),
        )


def unrecorded_utilization(context: DoctorContext, used: ObservedRegion) -> Iterator[Finding]:
    """Processes at work whose slot says 0, though their host pid is right."""
    if not used.snapshot.layout.has_utilization:
        return
    zero = {
        (usage.pid, device.index)
        for usage, process in used.alive
        for device in usage.devices
        if usage.host_pid == process.pid and device.sm_util_percent == 0
    }
    for row in context.driver_rows(used):
        for device in row.devices:
            driver = device.driver_sm_percent or 0
            is_zero = (row.pid, device.index) in zero and not device.sm_util_percent
            if driver >= _BUSY_PERCENT and is_zero:
                yield used.finding(
                    FindingKind.UTILIZATION_NOT_RECORDED,
                    f"process {row.pid} is at {driver} % of the SMs and the region says 0",
                    f"the driver's sample of process {row.host_pid} says {driver} %; its slot has"
                    " the right host pid and a utilisation of 0",
                    device=device.index,
                    pid=row.pid,
                )


CHECKS_OF_NODE = (
    failed_gpus,
    stuck_mig_apply,
    full_cards,
    impossible_driver_figures,
    reordered_devices,
    gone_processes,
    escaping_processes,
)
CHECKS = (
    usage_above_limit,
    impossible_figures,
    device_count_zero,
    driver_memory,
    unrecorded_utilization,
    sm_limits_off,
    blocked_launches,
)

"""Checks: do the limits hold that the region has?"""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

from libhamiregion.layouts import Layout
from libhamiregion.units import format_size, limits_from_environment

from .findings import FindingKind, Severity, finding
from .scene import is_monitor, pid_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from libhamiregion.host.host_process import HostProcess

    from .findings import Finding
    from .process_facts import ProcessEnvironment
    from .scene import Scene, Used

# 2.8.2 and later look at each device's own SM limit; earlier ones at device 0's, for all of them.
_LIMIT_PER_DEVICE = {Layout.V1_2}
# These read the SM limit once, when a process starts.
_LIMIT_CACHED = {Layout.V1_1_POSTINIT, Layout.V1_2}


def sm_limits_off(scene: Scene, used: Used) -> Iterator[Finding]:
    """SM limits that do not hold, one finding for each cause."""
    limited = {
        device.index: device.sm_limit_percent
        for device in used.snapshot.devices
        if device.sm_limit_percent is not None
    }
    if not (limited and used.alive):
        return
    if not used.snapshot.layout.has_utilization:
        yield _off(
            used,
            limited,
            "no_utilization",
            "whether the SM limit holds cannot be seen",
            f"layout {used.snapshot.layout.value} records no utilisation",
            severity=Severity.INFO,
            consequence="every metric shows a utilisation of 0, with or without a limit that works",
            advice="upgrade HAMi, and restart the container",
        )
    environments = {process: scene.memory.facts.environment(process) for _, process in used.alive}
    forced = all(_policy(environment) == "force" for environment in environments.values())
    if not used.snapshot.utilization_switch and not forced:
        yield _switched_off(scene, used, limited)
    if 0 not in limited and used.snapshot.layout not in _LIMIT_PER_DEVICE:
        yield _off(
            used,
            limited,
            "device_0",
            "the SM limit is off because device 0 has none",
            f"this generation (layout {used.snapshot.layout.value}) goes by device 0's limit for"
            " all devices",
            advice="set an SM limit on device 0 too (`hamiregion limits set`), or upgrade HAMi",
        )
    yield from _off_in_processes(used, limited, environments)


def _off_in_processes(
    used: Used,
    limited: dict[int, int],
    environments: dict[HostProcess, ProcessEnvironment | None],
) -> Iterator[Finding]:
    disabled, unlimited = [], []
    for usage, process in used.alive:
        environment = environments[process]
        if _policy(environment) == "disable":
            disabled.append(usage.pid)
        elif usage.host_pid is None:
            yield _off(
                used,
                limited,
                "host_pid",
                f"the SM limit is off for process {usage.pid}, which has no host pid",
                "libvgpu measures nothing until its host pid is in its slot, and then limits",
                pid=usage.pid,
                advice="`hamiregion doctor --repair` stores it, which switches the limit on",
                repairable=True,
            )
        if (
            environment is not None
            and environment.has_limits
            and _starts_unlimited(environment, limited)
        ):
            unlimited.append(usage.pid)
    if disabled:
        yield _off(
            used,
            limited,
            "policy",
            f"the SM limit is off for {pid_words(disabled)} by GPU_CORE_UTILIZATION_POLICY",
            "it is `disable` in the environment that the process was started with",
            pid=disabled[0] if len(disabled) == 1 else None,
            advice="start the container without it, or with `force`, if it shall be limited",
        )
    if unlimited and used.snapshot.layout in _LIMIT_CACHED:
        yield _off(
            used,
            limited,
            "cached",
            f"{pid_words(unlimited)} may not know of the SM limit",
            "the environment gives no SM limit, so it was set later; this generation (layout"
            f" {used.snapshot.layout.value}) reads it when a process starts, and when it was set"
            " is not recorded",
            pid=unlimited[0] if len(unlimited) == 1 else None,
            severity=Severity.INFO,
            consequence="processes that were started before it was set are not held back",
            advice="restart them if they shall be",
        )


def _switched_off(scene: Scene, used: Used, limited: dict[int, int]) -> Finding:
    if _is_contended(scene, used):
        return _off(
            used,
            limited,
            "switch",
            "the SM limit is switched off, though several containers compete",
            "utilization_switch is 0, and on one of its devices more than one region of its"
            " priority has launched within the last seconds",
            advice="see that HAMi's monitor, or `hamiregion agent`, runs: it switches the limit on."
            " GPU_CORE_UTILIZATION_POLICY=force in the container does without it",
        )
    return _off(
        used,
        limited,
        "switch",
        "the SM limit is switched off",
        "utilization_switch is 0, and no other region of its priority launches on its devices",
        severity=Severity.INFO,
        consequence="launches are not held back; HAMi's monitor has it so while nobody competes",
        advice="nothing, if that is what you want; GPU_CORE_UTILIZATION_POLICY=force in the"
        " container's environment makes the limit hold at all times",
    )


def _off(
    used: Used,
    limited: dict[int, int],
    cause: str,
    summary: str,
    evidence: str,
    *,
    pid: int | None = None,
    severity: Severity | None = None,
    consequence: str | None = None,
    advice: str,
    repairable: bool = False,
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
        repairable=repairable,
    )


def _policy(environment: ProcessEnvironment | None) -> str:
    return "default" if environment is None else environment.policy


def _starts_unlimited(environment: ProcessEnvironment, limited: dict[int, int]) -> bool:
    given = limits_from_environment(environment.variables).sm_limits_percent
    return any(given[index] is None for index in limited)


def _is_contended(scene: Scene, used: Used) -> bool:
    """Whether HAMi's monitor would have the switch on: the same rule."""
    launching: Counter[tuple[str, int]] = Counter()
    for each in scene.used:
        if each.snapshot.recent_kernel > 0:
            for uuid in {device.uuid for device in each.snapshot.devices if device.uuid}:
                launching[uuid, each.snapshot.priority] += 1
    return any(
        device.uuid is not None and launching[device.uuid, used.snapshot.priority] > 1
        for device in used.snapshot.devices
    )


# ---- Where limits come from ---------------------------------------------------------------------


def limits_unlike_environment(scene: Scene, used: Used) -> Iterator[Finding]:
    """Devices whose limits in the region are not those in the environment of its processes."""
    differing: dict[tuple[int, str, int | None, int | None], list[int]] = {}
    for process in used.users:
        environment = scene.memory.facts.environment(process)
        # Who is told of no limit at all, after a login over SSH for one, says nothing about them.
        if environment is None or not environment.has_limits:
            continue
        given = limits_from_environment(environment.variables)
        for device in used.snapshot.devices:
            for what, in_file, in_environment in (
                ("memory", device.memory_limit_bytes, given.memory_limits_bytes[device.index]),
                ("sm", device.sm_limit_percent, given.sm_limits_percent[device.index]),
            ):
                if in_file != in_environment:
                    key = (device.index, what, in_file, in_environment)
                    differing.setdefault(key, []).append(process.ns_pids[-1])
    for (index, what, in_file, in_environment), pids in sorted(
        differing.items(), key=lambda entry: entry[0][:2]
    ):
        words = _memory_words if what == "memory" else _sm_words
        yield finding(
            FindingKind.LIMIT_DIFFERS_FROM_ENVIRONMENT,
            used.container,
            f"{'memory' if what == 'memory' else 'SM'} limit of device {index} is"
            f" {words(in_file)}, in the environment {words(in_environment)}",
            f"the region says {words(in_file)}; the environment of {pid_words(pids)} says"
            f" {words(in_environment)}",
            device=index,
            pid=pids[0] if len(pids) == 1 else None,
            cause=what,
        )


def _memory_words(limit: int | None) -> str:
    return "unlimited" if limit is None else format_size(limit)


def _sm_words(limit: int | None) -> str:
    return "unlimited" if limit is None else f"{limit} %"


# ---- Launches that nobody will unblock ----------------------------------------------------------


def blocked_launches(scene: Scene, used: Used) -> Iterator[Finding]:
    """Regions whose launches are blocked while nobody runs who unblocks them."""
    if used.snapshot.recent_kernel >= 0 or not used.alive:
        return
    if scene.writer_may_run is None:
        scene.writer_may_run = _writer_may_run(scene)
    if scene.writer_may_run:
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


def _writer_may_run(scene: Scene) -> bool:
    """Whether somebody on the node may be writing launch marks; in doubt, yes."""
    processes = scene.node.processes
    # Who is in a container that has a region can be called anything.
    inside = {
        user.container.id
        for used in scene.used
        for user in used.users
        if user.container is not None
    }
    monitors = (
        each
        for each in processes
        if is_monitor(each) and (each.container is None or each.container.id not in inside)
    )
    if not processes.is_complete or any(monitors):
        return True
    for used in scene.used:
        users = {process.pid for process in used.users}
        # Who can be neither matched nor ruled out counts as somebody.
        for mapping in processes.mappings(used.region):
            pid = mapping.process.pid
            if mapping.writable and pid not in users and pid != processes.own_pid:
                return True
    return _directories_locked(scene)


def _directories_locked(scene: Scene) -> bool:
    """Whether an agent of this library has the containers' directories locked (flock)."""
    wanted = set()
    for directory in scene.node.directories:
        try:
            status = os.stat(directory)  # noqa: PTH116
        except OSError:
            continue
        device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
        wanted.add(f"{device}:{status.st_ino}")
    try:
        with open(f"{scene.node.proc}/locks", encoding="ascii") as file:  # noqa: PTH123
            lines = file.read().splitlines()
    except OSError:
        return True
    return any(
        len(words) > 5 and words[1] == "FLOCK" and words[5] in wanted
        for words in map(str.split, lines)
    )

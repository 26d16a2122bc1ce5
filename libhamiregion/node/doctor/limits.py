"""Checks: do the limits hold that the region has?"""

from __future__ import annotations

import enum
import os
import time
from collections import Counter
from typing import TYPE_CHECKING

from libhamiregion.layouts import DEVICE_CAPACITY, Layout
from libhamiregion.units import format_size, limits_from_environment

from .findings import FindingKind, Severity, finding
from .scene import is_monitor, pid_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from libhamiregion.node.matching import HostProcess

    from .findings import Finding
    from .process_facts import ProcessEnvironment
    from .scene import Scene, Used

# 2.8.2 and later look at each device's own SM limit; earlier ones at device 0's, for all of them.
_LIMIT_PER_DEVICE = {Layout.V1_2}
# These read the SM limit once, when a process starts.
_LIMIT_CACHED = {Layout.V1_1_POSTINIT, Layout.V1_2}
# A launch counts for two passes of HAMi's monitor.
_LAUNCH_COUNTS_S = 10
# A process's first CUDA call sets the time of the last launch too, and may come late.
_STARTING_S = 60.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_INDEXED_LIMITS = ("CUDA_DEVICE_MEMORY_LIMIT_", "CUDA_DEVICE_SM_LIMIT_")


class _Rivals(enum.Enum):
    """For whom HAMi's monitor would switch a region's limit on."""

    MORE_URGENT = "a more urgent container"
    AS_URGENT = "several containers"


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
    marked = [each for each in scene.used if _may_be_launching(each)]
    rivals = _rivals(used, marked)
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
    proved = _rivals(used, _proved_to_launch(scene, marked))
    rivals = proved or rivals
    urgent = rivals is _Rivals.MORE_URGENT
    who = "a more urgent region" if urgent else "more than one region of its priority"
    consequence = (
        "launches that are not blocked are not held back, at the more urgent container's cost"
        if urgent
        else "launches are not held back, at the others' cost"
    )
    advice = (
        "see that HAMi's monitor, or `hamiregion agent`, runs: it switches the limit on."
        " GPU_CORE_UTILIZATION_POLICY=force in the container does without it"
    )
    if proved is None:
        return _off(
            used,
            limited,
            "switch",
            f"the SM limit is switched off, and {rivals.value} may compete",
            f"utilization_switch is 0, and on one of its devices {who} has a launch mark; whether"
            " the launch was just now is not known: only a monitor counts marks down, and no time"
            " that a launch alone can have set goes with it",
            severity=Severity.INFO,
            consequence=f"if so, {consequence}",
            advice=advice,
        )
    return _off(
        used,
        limited,
        "switch",
        f"the SM limit is switched off, though {rivals.value}"
        f" {'competes' if urgent else 'compete'}",
        f"utilization_switch is 0, and on one of its devices {who} has launched within the last"
        f" {_LAUNCH_COUNTS_S} s",
        consequence=consequence,
        advice=advice,
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


def _rivals(used: Used, launching: Iterable[Used]) -> _Rivals | None:
    """The rule of HAMi's monitor: who of those that launch makes it switch the limit on."""
    uuids = _uuids(used)
    as_urgent: Counter[str] = Counter()
    for each in launching:
        shared = uuids & _uuids(each)
        if shared and _priority(each) < _priority(used):
            return _Rivals.MORE_URGENT
        if _priority(each) == _priority(used):
            as_urgent.update(shared)
    return _Rivals.AS_URGENT if any(count > 1 for count in as_urgent.values()) else None


def _uuids(used: Used) -> set[str]:
    return {device.uuid for device in used.snapshot.devices if device.uuid}


def _priority(used: Used) -> int:
    # A container writes its own: none can make itself more urgent than HAMi's most urgent ones.
    return max(used.snapshot.priority, 0)


def _may_be_launching(used: Used) -> bool:
    """Whether a region has a launch mark, and no time that shows it to be an old one."""
    snapshot = used.snapshot
    if snapshot.recent_kernel <= 0:
        return False
    launched_s = snapshot.last_kernel_time_s
    # A clock that was set back makes it a moment of the future.
    return launched_s is None or (
        abs(snapshot.taken_at_ns // 10**9 - launched_s) <= _LAUNCH_COUNTS_S
    )


def _proved_to_launch(scene: Scene, marked: Iterable[Used]) -> Iterator[Used]:
    """Those whose mark and time cannot be an old launch's and a new process's."""
    writer_seen: bool | None = None
    for each in marked:
        if each.snapshot.last_kernel_time_s is None:
            continue
        if _has_starting(each):
            if writer_seen is None:
                writer_seen = _writer_seen(scene)
            if not writer_seen:
                continue
        yield each


def _has_starting(used: Used) -> bool:
    now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    return any(
        now_s - process.start_time_ticks / _TICKS_PER_S <= _STARTING_S for process in used.users
    )


# ---- Where limits come from ---------------------------------------------------------------------


def limits_unlike_environment(scene: Scene, used: Used) -> Iterator[Finding]:
    """Devices whose limits in the region are not those in the environment of its processes."""
    differing: dict[tuple[int, str, int | None, int | None], list[int]] = {}
    shown = {
        device.index: (device.memory_limit_bytes, device.sm_limit_percent)
        for device in used.snapshot.devices
    }
    for process in used.users:
        environment = scene.memory.facts.environment(process)
        # Who is told of no limit at all, after a login over SSH for one, says nothing about them.
        if environment is None or not environment.has_limits:
            continue
        given = limits_from_environment(environment.variables)
        indexes = set(shown)
        if not used.snapshot.device_count:
            indexes.update(_ordinals_named(environment.variables))
        for index in indexes:
            memory_limit, sm_limit = shown.get(index) or _limits_of(used, index)
            for what, in_file, in_environment in (
                ("memory", memory_limit, given.memory_limits_bytes[index]),
                ("sm", sm_limit, given.sm_limits_percent[index]),
            ):
                if in_file != in_environment:
                    key = (index, what, in_file, in_environment)
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


def _ordinals_named(variables: Mapping[str, str]) -> Iterator[int]:
    for index in range(DEVICE_CAPACITY):
        if any(f"{name}{index}" in variables for name in _INDEXED_LIMITS):
            yield index


def _limits_of(used: Used, index: int) -> tuple[int | None, int | None]:
    # While a region names no device its snapshot ends with the last memory limit.
    return used.region.memory_limit(index), used.region.sm_limit(index)


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
    return not scene.node.processes.is_complete or _writer_seen(scene)


def _writer_seen(scene: Scene) -> bool:
    """Whether somebody is seen who can be the writer of launch marks."""
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
    if any(monitors):
        return True
    for used in scene.used:
        users = {process.pid for process in used.users}
        # Who can be neither matched nor ruled out counts as somebody.
        for process in processes.mappers(*processes.identity(used.region), writable=True):
            if process.pid not in users and process.pid != processes.visibility.own_pid:
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

"""Checks: does each slot have the host pid of its own process?"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .findings import FindingKind, finding
from .scene import command_of, container_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from libhamiregion.models import ProcessUsage
    from libhamiregion.node.matching import HostProcess

    from .findings import Finding
    from .scene import Scene, Used


def wrong_host_pids(scene: Scene, used: Used) -> Iterator[Finding]:
    """One finding for each live process whose slot has another host pid than its own."""
    # Elsewhere the pids of this /proc are not those that the driver tells.
    if not scene.sees_host:
        return
    for usage, process in used.alive:
        if usage.host_pid != process.pid:
            yield _judge(scene, used, usage, process)


def _judge(scene: Scene, used: Used, usage: ProcessUsage, process: HostProcess) -> Finding:
    stored = usage.host_pid
    proof = (
        f"/proc shows that process {process.pid}{command_of(process)} maps this region and has pid"
        f" {usage.pid} in its own namespace"
    )
    if stored is None:
        kind = FindingKind.HOST_PID_MISSING
        summary = f"process {usage.pid} has no host pid; it is {process.pid}"
        evidence = f"hostpid in its slot is 0; {proof}"
    elif stored == usage.pid:
        kind = FindingKind.HOST_PID_IS_CONTAINER_PID
        summary = f"process {usage.pid} has its own pid as host pid; it is {process.pid}"
        evidence = f"hostpid in its slot is {stored}, the same as its pid; {proof}"
    elif stored in scene.proved:
        kind = FindingKind.HOST_PID_SWAPPED
        other, other_pid = scene.proved[stored]
        whose = (
            f"process {other_pid} of the same region"
            if other is used.container
            else f"process {other_pid} of {container_words(other)}"
        )
        summary = f"process {usage.pid} has the host pid of {whose}"
        evidence = f"hostpid in its slot is {stored}, and {stored} is {whose}; {proof}"
    elif _exists(scene, stored):
        kind = FindingKind.HOST_PID_FOREIGN
        stranger = scene.node.processes.get(stored)
        summary = f"process {usage.pid} has a stranger's host pid; it is {process.pid}"
        evidence = (
            f"hostpid in its slot is {stored}, and {stored}{command_of(stranger)} has no slot in"
            f" any region; {proof}"
        )
    else:
        kind = FindingKind.HOST_PID_DEAD
        summary = f"process {usage.pid} has a host pid that nobody has; it is {process.pid}"
        evidence = f"hostpid in its slot is {stored}, and there is no such process; {proof}"
    return finding(kind, used.container, summary, evidence, pid=usage.pid)


def _exists(scene: Scene, pid: int) -> bool:
    # The table leaves kernel threads out, and threads of processes.
    return pid > 0 and os.path.exists(f"{scene.node.proc}/{pid}/stat")  # noqa: PTH110

"""Checks: the host pids in the slots."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .findings import FindingKind, Severity, command_of, finding, pids_text, shown, the_single

if TYPE_CHECKING:
    from collections.abc import Iterator

    from libhamiregion.models import ProcessUsage
    from libhamiregion.node.matching import HostProcess

    from .examination import Examination, UsedRegion
    from .findings import Finding

_ERRORS = {"swapped", "foreign"}


def wrong_host_pids(exam: Examination, used: UsedRegion) -> Iterator[Finding]:
    """Live processes whose slot has another host pid than their own; one finding per cause."""
    # Elsewhere the pids of this /proc are not those that the driver tells.
    if not exam.node.processes.visibility.sees_host:
        return
    wrong: dict[str, list[tuple[ProcessUsage, HostProcess]]] = {}
    for usage, process in used.alive:
        if usage.host_pid != process.pid:
            wrong.setdefault(_cause(exam, usage), []).append((usage, process))
    for cause, found in wrong.items():
        usage, process = found[0]
        pids = [each.pid for each, _ in found]
        what, why = _words(exam, used, cause, usage.host_pid or 0)
        who = f"{len(found)} processes have" if len(found) > 1 else f"process {usage.pid} has"
        yield finding(
            FindingKind.HOST_PID_WRONG,
            used.container,
            f"{who} {what}" + ("" if len(found) > 1 else f"; it is {process.pid}"),
            f"hostpid in the slot of pid {usage.pid} is {usage.host_pid or 0}{why}; /proc shows"
            f" that process {process.pid}{command_of(process)} maps this region and has pid"
            f" {usage.pid} in its own namespace"
            + (f"; so with {pids_text(pids)}" if len(found) > 1 else ""),
            pid=the_single(pids),
            cause=cause,
            severity=Severity.ERROR if cause in _ERRORS else None,
        )


def _cause(exam: Examination, usage: ProcessUsage) -> str:
    stored = usage.host_pid
    if stored is None:
        return "missing"
    if stored == usage.pid:
        return "container_pid"
    if stored in exam.proved:
        return "swapped"
    # The table leaves kernel threads out, and threads of processes.
    exists = stored > 0 and os.path.exists(f"{exam.node.proc}/{stored}/stat")  # noqa: PTH110
    return "foreign" if exists else "dead"


def _words(exam: Examination, used: UsedRegion, cause: str, stored: int) -> tuple[str, str]:
    """What a process has for its host pid, and what that number is."""
    if cause == "missing":
        return "no host pid", ""
    if cause == "container_pid":
        return "its own pid as host pid", ", the same as its pid"
    if cause == "dead":
        return "a host pid that nobody has", ", and there is no such process"
    if cause == "foreign":
        stranger = command_of(exam.node.processes.get(stored))
        return "a stranger's host pid", f"{stranger}, which has no slot in any region"
    other, pid = exam.proved[stored]
    whose = "the same region"
    if other is not used.container:
        whose = f"container {shown(other.directory_name)} of pod {shown(other.pod_uid)}"
        if other.claim_uid is not None:
            whose = f"claim {other.claim_uid}"
        if other.directory is None:
            whose = "a container outside the roots"
    return f"the host pid of process {pid} of {whose}", f", which is process {pid} of {whose}"

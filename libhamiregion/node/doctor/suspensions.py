"""Checks: processes that go on though they are suspended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from libhamiregion.suspension import may_go_on

from .findings import FindingKind, command_of, finding
from .memory import memory_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .examination import Examination, UsedRegion
    from .findings import Finding


def ignored_suspensions(exam: Examination, used: UsedRegion) -> Iterator[Finding]:
    """Suspended processes that allocate or launch all the same."""
    living = {usage.pid: process for usage, process in used.alive}
    seen = memory_of(exam.node).suspended.look(used.region, used.snapshot, living.items())
    limited = not may_go_on(used.snapshot)
    for (pid, host_pid, _), activity in seen.items():
        if activity is None:
            continue
        what = "its memory has grown" if activity == "allocating" else "kernels were launched"
        yield finding(
            FindingKind.SUSPENSION_IGNORED,
            used.container,
            f"process {pid} is suspended and goes on {activity}",
            f"its slot says suspended, and {what} later than a second after that; process"
            f" {host_pid}{command_of(living[pid])} is alive",
            pid=pid,
            cause=activity,
            advice="end the process: it does not look at its slot" if limited else None,
        )

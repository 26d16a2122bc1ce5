"""Whether a suspended process goes on all the same, as of HAMi 2.10 without an SM limit."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal, TypeAlias

import attrs

from .layouts import Layout
from .models import ProcessStatus

if TYPE_CHECKING:
    from .models import ProcessUsage, RegionSnapshot

#: What a suspended process is seen doing.
SuspendedActivity: TypeAlias = Literal["allocating", "launching"]

#: How long a suspended process is watched, and how often it is looked at, seconds.
WATCH_S = 3.0
LOOK_EVERY_S = 0.1
# libvgpu looks at its status once a second.
_NOTICED_WITHIN_S = 1.2
# Whoever launches stores the region's time of the last launch, and so does a process that starts.
# Between looks that are further apart another one can have come and gone.
_CLOSE_S = 1.0


def may_go_on(snapshot: RegionSnapshot) -> bool:
    """Whether the processes of a region may be those that ignore it when they are suspended.

    Layout 1.2 does not tell HAMi 2.9 from 2.10, which obeys only where a device that the container
    has reported has an SM limit.
    """
    limited = any(
        device.sm_limit_percent is not None
        for device in snapshot.devices
        if device.index < snapshot.device_count
    )
    return snapshot.layout is Layout.V1_2 and not limited


@attrs.frozen
class _Look:
    """What a look at a region has shown of one process.

    Attributes:
        taken_s: When, on the clock that is never set.
        memory_bytes: What its slots count, by device; copies of a slot included.
        last_kernel_time_s: When somebody launched last in the region, Unix seconds.
        alone: Whether no other process of the region runs.
    """

    taken_s: float
    memory_bytes: tuple[tuple[tuple[int, int], ...], ...]
    last_kernel_time_s: int
    alone: bool


class SuspensionWatch:
    """One suspended process, as one look at its region after the other shows it.

    Args:
        pid: The process, in the container's namespace.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._since_s: float | None = None
        self._before: _Look | None = None

    def look(self, snapshot: RegionSnapshot) -> SuspendedActivity | None:
        """Compare what stands in the region now with the look before.

        Returns:
            What the process has done since; None if nothing was seen, also within the first 1.2 s,
            in which it need not have noticed.
        """
        now_s = time.monotonic()
        if self._since_s is None:
            self._since_s = now_s
        if now_s - self._since_s < _NOTICED_WITHIN_S:
            return None
        before = self._before
        now = self._before = _Look(
            now_s,
            tuple(
                tuple((device.index, device.memory_used_bytes) for device in slot.devices)
                for slot in _slots(snapshot, self._pid)
            ),
            snapshot.last_kernel_time_s or 0,
            all(
                process.pid == self._pid or process.status != ProcessStatus.RUNNING
                for process in snapshot.processes
            ),
        )
        if before is None:
            return None
        if _has_grown(before, now):
            return "allocating"
        launched = now.last_kernel_time_s > before.last_kernel_time_s
        if launched and now_s - before.taken_s <= _CLOSE_S and before.alone and now.alone:
            return "launching"
        return None


def is_suspended(snapshot: RegionSnapshot, pid: int) -> bool:
    """Whether a slot of that pid says that its process is suspended."""
    return any(each.status == ProcessStatus.SUSPENDED for each in _slots(snapshot, pid))


def _slots(snapshot: RegionSnapshot, pid: int) -> list[ProcessUsage]:
    return [process for process in snapshot.processes if process.pid == pid]


def _has_grown(before: _Look, now: _Look) -> bool:
    """Whether a slot counts more on some device; what a suspended process frees is its own."""
    if len(before.memory_bytes) != len(now.memory_bytes):
        return False
    return any(
        index == same and new > old
        for slot, later in zip(before.memory_bytes, now.memory_bytes, strict=True)
        for (index, old), (same, new) in zip(slot, later, strict=False)
    )

"""Counting the driver's XID events: errors of a GPU, of its memory or of programs on it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from .states import NvmlCallFailed, NvmlState

if TYPE_CHECKING:
    from .driver import Driver

# nvmlEventTypeXidCriticalError
_XID = 8
# More than come between two samples; the rest is counted at the next one.
_EVENTS_PER_SAMPLE = 256
# Of one GPU; there are some 150 of them.
_KINDS = 64


class XidEvents:
    """Counts the XID events of GPUs from the first time on that they are asked for.

    Not thread-safe by itself.

    Args:
        driver: Asks NVML.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._set: Any = None
        #: By index, whether events come, or why not.
        self._registered: dict[int, NvmlCallFailed | None] = {}
        self._counts: dict[int, Counter[int]] = {}

    def forget(self) -> None:
        """NVML was initialised anew: its event sets are gone, and an index may mean another GPU."""
        self._set = None
        self._registered.clear()
        self._counts.clear()

    def register(self, index: int, handle: Any) -> None:
        """Have a GPU's events come; costs one call for each GPU.

        Raises:
            NvmlCallFailed: They do not come from this GPU.
        """
        if index not in self._registered:
            try:
                if self._set is None:
                    self._set = self._driver.call("nvmlEventSetCreate")
                self._driver.call("nvmlDeviceRegisterEvents", handle, _XID, self._set)
                self._registered[index] = None
                self._counts[index] = Counter()
            except NvmlCallFailed as failure:
                self._registered[index] = failure
        refused = self._registered[index]
        if refused is not None:
            raise refused

    def collect(self) -> None:
        """Take what has come; waits for nothing."""
        if not self._counts:
            return
        for _ in range(_EVENTS_PER_SAMPLE):
            try:
                event = self._driver.call("nvmlEventSetWait_v2", self._set, 0)
                index = self._driver.call("nvmlDeviceGetIndex", event.device)
            except NvmlCallFailed as failure:
                if failure.state is NvmlState.GPU_IS_LOST:
                    # Of which one, a sample tells.
                    continue
                return
            counts = self._counts.get(index)
            if counts is not None and (event.eventData in counts or len(counts) < _KINDS):
                counts[event.eventData] += 1

    def counted(self, index: int) -> tuple[tuple[int, int], ...] | None:
        """XID and how often it has come, by number; None where events do not come."""
        counts = self._counts.get(index)
        return None if counts is None else tuple(sorted(counts.items()))

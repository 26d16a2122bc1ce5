"""Adds up looks: for one device of a container, and for groups of them, in one pass over time."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .history import Activity, Allocation, AllocationState

# Values are rounded up to so many binary digits before they are counted: 0.4 % at most, and a
# bounded number of them however long the report is.
_DIGITS = 9


def rounded_up(value: int) -> int:
    """A value as percentiles see it: nine binary digits, never less than it was.

    >>> rounded_up(511), rounded_up(2**30), rounded_up(2**30 + 1) - 2**30
    (511, 1073741824, 4194304)
    """
    shift = value.bit_length() - _DIGITS
    return value if shift <= 0 else -(-value >> shift) << shift


def percentile(time_ms: dict[int, int], share: float) -> int | None:
    """The value that was not passed during that share of the time; None if there was no time."""
    total = sum(time_ms.values())
    if not total:
        return None
    values = sorted(time_ms)
    passed = itertools.accumulate(time_ms[value] for value in values)
    return next(
        value for value, until in zip(values, passed, strict=True) if until >= share * total
    )


class Bins:
    """A series over time in a bounded number of equal bins."""

    __slots__ = (
        "busy",
        "covered_ms",
        "limit",
        "peak",
        "share",
        "start_ms",
        "step_ms",
        "used",
    )

    def __init__(self, start_ms: int, step_ms: int, count: int) -> None:
        self.start_ms = start_ms
        self.step_ms = step_ms
        self.covered_ms = [0] * count
        self.peak = [0] * count
        self.limit = [0] * count
        # Integrals over time: bytes, percent, percent.
        self.used = [0] * count
        self.busy = [0.0] * count
        self.share = [0.0] * count

    def add(
        self,
        since_ms: int,
        until_ms: int,
        used: int,
        peak: int,
        limit: int,
        busy: float,
        share: float,
    ) -> None:
        """Add values that held for a time."""
        start_ms, step_ms = self.start_ms, self.step_ms
        at = (since_ms - start_ms) // step_ms
        while since_ms < until_ms:
            end_ms = min(start_ms + (at + 1) * step_ms, until_ms)
            passed_ms = end_ms - since_ms
            self.covered_ms[at] += passed_ms
            if peak > self.peak[at]:
                self.peak[at] = peak
            if limit > self.limit[at]:
                self.limit[at] = limit
            self.used[at] += used * passed_ms
            if busy:
                self.busy[at] += busy * passed_ms
            if share:
                self.share[at] += share * passed_ms
            since_ms = end_ms
            at += 1


class GroupTally:
    """The sums over the allocations of a group, at each moment."""

    __slots__ = (
        "_since_ms",
        "bins",
        "busy",
        "limit",
        "limit_peak",
        "observed_ms",
        "peak",
        "peak_at_ms",
        "peak_time_ms",
        "present",
        "share",
        "used",
        "used_ms",
        "used_peak",
    )

    def __init__(self, bins: Bins | None) -> None:
        self.bins = bins
        self._since_ms = 0
        # Now.
        self.present = self.used = self.peak = self.limit = 0
        self.busy = self.share = 0.0
        # Over time.
        self.observed_ms = self.used_ms = 0
        self.used_peak = self.limit_peak = 0
        self.peak_at_ms: int | None = None
        self.peak_time_ms: dict[int, int] = {}

    def add(self, used: int, peak: int, limit: int, share: int, present: int) -> None:
        """Change the sums from now on."""
        self.used += used
        self.peak += peak
        self.limit += limit
        self.share += share
        self.present += present

    def advance(self, now_ms: int) -> None:
        """Count what has held until now; before anything of it changes."""
        since_ms = self._since_ms
        if since_ms == now_ms:
            return
        self._since_ms = now_ms
        if not self.present:
            return
        passed_ms = now_ms - since_ms
        peak = self.peak
        self.observed_ms += passed_ms
        self.used_ms += self.used * passed_ms
        if peak > self.used_peak or self.peak_at_ms is None:
            self.used_peak, self.peak_at_ms = peak, since_ms
        if self.limit > self.limit_peak:
            self.limit_peak = self.limit
        value = rounded_up(peak)
        self.peak_time_ms[value] = self.peak_time_ms.get(value, 0) + passed_ms
        if self.bins is not None:
            self.bins.add(since_ms, now_ms, self.used, peak, self.limit, self.busy, self.share)


class AllocationTally:
    """One device of one container."""

    __slots__ = (
        "_activity_since_ms",
        "_state_since_ms",
        "_stretch_since_ms",
        "allocation",
        "bins",
        "busy",
        "driver_busy",
        "driver_ms",
        "driver_peak",
        "driver_sm",
        "first_ms",
        "groups",
        "idle_ms",
        "known_ms",
        "last_limit",
        "last_ms",
        "last_sm_limit",
        "last_used_ms",
        "leftover_ms",
        "limit_ms",
        "limited_used_ms",
        "observed_ms",
        "peak_at_ms",
        "peak_time_ms",
        "processes_peak",
        "share_known_ms",
        "share_ms",
        "sm",
        "state",
        "unlimited_ms",
        "unused_limit_ms",
        "unused_longest_ms",
        "unused_ms",
        "unused_since_ms",
        "used_ms",
        "used_peak",
    )

    def __init__(self, allocation: Allocation, bins: Bins | None) -> None:
        self.allocation = allocation
        self.groups: tuple[GroupTally, ...] = ()
        self.bins = bins
        self.state: AllocationState | None = None
        self.sm: float | None = None
        self.driver_sm: float | None = None
        self._state_since_ms = self._activity_since_ms = 0
        self._stretch_since_ms: int | None = None
        self.first_ms: int | None = None
        self.last_ms = 0
        self.last_limit: int | None = None
        self.last_sm_limit: int | None = None
        self.last_used_ms: int | None = None
        #: Of the unused stretch at the very end.
        self.unused_since_ms: int | None = None
        self.observed_ms = self.used_ms = self.limit_ms = self.unlimited_ms = 0
        self.limited_used_ms = 0
        self.share_ms = self.share_known_ms = 0
        self.unused_ms = self.unused_limit_ms = self.unused_longest_ms = 0
        self.idle_ms = self.leftover_ms = self.known_ms = self.driver_ms = 0
        self.busy = self.driver_busy = 0.0
        self.used_peak = 0
        self.peak_at_ms: int | None = None
        self.peak_time_ms: dict[int, int] = {}
        self.driver_peak: int | None = None
        self.processes_peak: int | None = None

    def change(self, now_ms: int, state: AllocationState | None) -> None:
        """Another state from now on; None if there is nothing to be read any more."""
        before = self.state
        self._advance(now_ms)
        self.state = state
        if state is None:
            self._change_groups(now_ms, before, None)
            self.act(now_ms, (None, None))
            self._stretch_since_ms = None
            return
        self.last_limit = state.memory_limit_bytes
        self.last_sm_limit = state.sm_limit_percent
        self._change_groups(now_ms, before, state)

    def act(self, now_ms: int, activity: Activity) -> None:
        """Another activity from now on."""
        self._advance_activity(now_ms)
        sm, driver_sm = activity
        difference = min(sm or 0, 100) - min(self.sm or 0, 100)
        if difference:
            for group in self.groups:
                group.advance(now_ms)
                group.busy += difference
        self.sm, self.driver_sm = sm, driver_sm

    def join(self, groups: tuple[GroupTally, ...], now_ms: int) -> None:
        """Count in these groups from now on; those of before are among them."""
        weights = _weights(self.state)
        for group in groups:
            if group not in self.groups:
                group.advance(now_ms)
                group.add(*weights)
                group.busy += min(self.sm or 0, 100)
        self.groups = groups

    def finish(self, now_ms: int) -> None:
        """The end of the report."""
        self._advance(now_ms)
        if self.state is not None:
            self.unused_since_ms = self._stretch_since_ms

    def _change_groups(
        self, now_ms: int, before: AllocationState | None, after: AllocationState | None
    ) -> None:
        change = [new - old for new, old in zip(_weights(after), _weights(before), strict=True)]
        for group in self.groups:
            group.advance(now_ms)
            group.add(*change)

    def _advance(self, now_ms: int) -> None:
        self._advance_activity(now_ms)
        since_ms, self._state_since_ms = self._state_since_ms, now_ms
        state = self.state
        passed_ms = now_ms - since_ms
        if state is None or not passed_ms:
            return
        if self.first_ms is None:
            self.first_ms = since_ms
        self.last_ms = now_ms
        peak, limit = state.memory_peak_bytes, state.memory_limit_bytes
        self.observed_ms += passed_ms
        self.used_ms += state.memory_used_bytes * passed_ms
        self.share_ms += _share(state) * passed_ms
        if state.sm_limit_known:
            self.share_known_ms += passed_ms
        if limit is None:
            self.unlimited_ms += passed_ms
        else:
            self.limit_ms += limit * passed_ms
            self.limited_used_ms += state.memory_used_bytes * passed_ms
        if peak > self.used_peak or self.peak_at_ms is None:
            self.used_peak, self.peak_at_ms = peak, since_ms
        value = rounded_up(peak)
        self.peak_time_ms[value] = self.peak_time_ms.get(value, 0) + passed_ms
        if state.driver_memory_bytes is not None:
            self.driver_peak = max(self.driver_peak or 0, state.driver_memory_bytes)
        if state.processes is not None:
            self.processes_peak = max(self.processes_peak or 0, state.processes)
        if peak:
            self.last_used_ms = now_ms
            self._stretch_since_ms = None
            if state.processes == 0:
                self.leftover_ms += passed_ms
        else:
            self.unused_ms += passed_ms
            self.unused_limit_ms += (limit or 0) * passed_ms
            if self._stretch_since_ms is None:
                self._stretch_since_ms = since_ms
            self.unused_longest_ms = max(self.unused_longest_ms, now_ms - self._stretch_since_ms)
        if self.bins is not None:
            self.bins.add(since_ms, now_ms, state.memory_used_bytes, peak, limit or 0, 0, 0)

    def _advance_activity(self, now_ms: int) -> None:
        passed_ms = now_ms - self._activity_since_ms
        self._activity_since_ms = now_ms
        if self.state is None:
            return
        sm = self.sm
        if sm is not None:
            self.known_ms += passed_ms
            if sm:
                self.busy += min(sm, 100) * passed_ms
            elif self.state.memory_peak_bytes:
                self.idle_ms += passed_ms
        if self.driver_sm is not None:
            self.driver_ms += passed_ms
            self.driver_busy += min(self.driver_sm, 100) * passed_ms


def _weights(state: AllocationState | None) -> tuple[int, int, int, int, int]:
    if state is None:
        return 0, 0, 0, 0, 0
    return (
        state.memory_used_bytes,
        state.memory_peak_bytes,
        state.memory_limit_bytes or 0,
        _share(state),
        1,
    )


def _share(state: AllocationState) -> int:
    """The percentage of a GPU that is allocated; 0 where that is not known."""
    return (state.sm_limit_percent or 100) if state.sm_limit_known else 0

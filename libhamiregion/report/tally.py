"""Adds up samples over time, for one allocation or for a group of them, in one pass."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final, TypeAlias

from .models import Timeline

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .history import Allocation, Sample

#: What an allocation adds to each of its groups at a moment. The first four can change a peak; the
#: last five come from utilisation, which changes most often.
RATES: Final = (
    "present",
    "used",
    "peak",
    "limit",
    "limited_used",
    "share",
    "share_known",
    "unused",
    "unused_limit",
    "leftover",
    "processes_known",
    "busy",
    "busy_known",
    "driver_busy",
    "driver_busy_known",
    "idle",
)
_CAN_PEAK: Final = 4
_USED: Final = RATES.index("used")
_SHARE: Final = RATES.index("share")
_BUSY: Final = RATES.index("busy")
_NOTHING: Final[tuple[float, ...]] = (0,) * len(RATES)

#: Which rate changes, and by how much.
Changes: TypeAlias = "list[tuple[int, float]]"

# Values are rounded up to so many binary digits before they are counted: 0.4 % at most, and a
# bounded number of values however long the report is.
_DIGITS: Final = 9


def rates_of(sample: Sample | None) -> tuple[float, ...]:
    """What a sample adds, in the order of `RATES`; percentages of one GPU."""
    if sample is None:
        return _NOTHING
    used, limit = sample.memory_used_bytes, sample.memory_limit_bytes or 0
    peak = used if sample.memory_peak_bytes is None else sample.memory_peak_bytes
    share, processes = sample.sm_limit_percent, sample.processes
    sm, driver = sample.sm_percent, sample.driver_sm_percent
    return (
        1,
        used,
        peak,
        limit,
        used if limit else 0,
        share or 0,
        share is not None,
        not peak,
        0 if peak else limit,
        peak > 0 and processes == 0,
        processes is not None,
        min(sm or 0, 100),
        sm is not None,
        min(driver or 0, 100),
        driver is not None,
        peak > 0 and sm == 0,
    )


def rounded_up(value: int) -> int:
    """Round as percentiles do: nine binary digits, never less than it was.

    >>> rounded_up(511), rounded_up(2**30), rounded_up(2**30 + 1) - 2**30
    (511, 1073741824, 4194304)
    """
    shift = value.bit_length() - _DIGITS
    return value if shift <= 0 else -(-value >> shift) << shift


class Bins:
    """Memory and GPUs over time, in equal steps.

    Args:
        start_ms: Where the first step begins.
        step_ms: Length of a step.
        count: How many there are.
        gpus: Whether to add up GPUs as well.
    """

    def __init__(self, start_ms: int, step_ms: int, count: int, *, gpus: bool) -> None:
        self._start_ms = start_ms
        self._step_ms = step_ms
        self._covered_ms = [0] * count
        self._peak = [0] * count
        self._limit = [0] * count
        # By rate: its integral over each step, and by how much it changes from the next step on.
        rates = (_USED, _SHARE, _BUSY) if gpus else (_USED,)
        self._sums = {rate: ([0.0] * (count + 1), [0.0] * (count + 1)) for rate in rates}

    def change(self, now_ms: int, changes: Changes) -> None:
        """Change rates from now on."""
        at = (now_ms - self._start_ms) // self._step_ms
        left_ms = self._start_ms + (at + 1) * self._step_ms - now_ms
        for rate, by in changes:
            found = self._sums.get(rate)
            if found is not None and at + 1 < len(found[0]):
                found[0][at] += by * left_ms
                found[1][at + 1] += by

    def hold(self, since_ms: int, until_ms: int, peak: int, limit: int) -> None:
        """Note what has been the case for a while."""
        at = (since_ms - self._start_ms) // self._step_ms
        while since_ms < until_ms:
            end_ms = min(self._start_ms + (at + 1) * self._step_ms, until_ms)
            self._covered_ms[at] += end_ms - since_ms
            self._peak[at] = max(self._peak[at], peak)
            self._limit[at] = max(self._limit[at], limit)
            since_ms = end_ms
            at += 1

    def timeline(self) -> Timeline:
        """Return what it comes to."""
        return Timeline(
            self._start_ms,
            self._step_ms,
            tuple(_where(self._covered_ms, self._peak)),
            tuple(None if each is None else round(each) for each in self._averages(_USED)),
            tuple(_where(self._covered_ms, self._limit)),
            self._gpus(_BUSY),
            self._gpus(_SHARE),
        )

    def _gpus(self, rate: int) -> tuple[float | None, ...]:
        if rate not in self._sums:
            return ()
        return tuple(
            None if each is None else round(each / 100, 4) for each in self._averages(rate)
        )

    def _averages(self, rate: int) -> Iterable[float | None]:
        sums, turns = self._sums[rate]
        for covered_ms, here, before in zip(
            self._covered_ms, sums, itertools.accumulate(turns), strict=False
        ):
            yield (here + before * self._step_ms) / covered_ms if covered_ms else None


def _where(covered_ms: Sequence[int], values: Sequence[int]) -> Iterable[int | None]:
    return (
        value if passed_ms else None for value, passed_ms in zip(values, covered_ms, strict=True)
    )


class Tally:
    """The sums over the allocations of a group at each moment, and what they come to over time.

    Integrals need no step per look: a rate that changes at some moment counts from there to the
    end. Peaks, percentiles and stretches without use advance from change to change.

    Args:
        until_ms: Where the report ends.
        bins: Takes the timeline; None for none.
    """

    def __init__(self, until_ms: int, bins: Bins | None) -> None:
        self.bins = bins
        self._rates: list[float] = [0] * len(RATES)
        self._sums: list[float] = [0] * len(RATES)
        #: Changes of one moment, which count together.
        self._pending: list[float] = [0] * len(RATES)
        self._pending_ms = 0
        self._until_ms = until_ms
        self._since_ms = 0
        self._unused_from_ms: int | None = None
        self.first_ms: int | None = None
        self.last_ms = 0
        self.observed_ms = 0
        self.peak = self.limit_peak = 0
        self.peak_at_ms = 0
        self.last_used_ms: int | None = None
        self.unused_longest_ms = 0
        #: Of the stretch without use that was there at the end.
        self.unused_since_ms: int | None = None
        self._peak_time_ms: dict[int, int] = {}

    def add(self, now_ms: int, changes: Changes) -> None:
        """Change rates from now on, together with all other changes of this moment."""
        if now_ms != self._pending_ms:
            self._flush()
            self._pending_ms = now_ms
        for rate, by in changes:
            self._pending[rate] += by

    def _flush(self) -> None:
        changes = [(rate, by) for rate, by in enumerate(self._pending) if by]
        if changes:
            self._pending = [0] * len(RATES)
            self.change(self._pending_ms, changes)

    def change(self, now_ms: int, changes: Changes) -> None:
        """Change rates from now on; moments never go back."""
        first = changes[0][0]
        if first < _CAN_PEAK:
            self._advance(now_ms)
        left_ms = self._until_ms - now_ms
        for rate, by in changes:
            self._rates[rate] += by
            self._sums[rate] += by * left_ms
        if self.bins is not None:
            self.bins.change(now_ms, changes)

    def finish(self, now_ms: int) -> None:
        """End at the last moment that anything is known of."""
        self._flush()
        self._advance(now_ms)
        self.unused_since_ms = self._unused_from_ms if self._rates[0] else None
        changes = [(rate, -by) for rate, by in enumerate(self._rates) if by]
        if changes:
            self.change(now_ms, changes)

    def _advance(self, now_ms: int) -> None:
        since_ms, self._since_ms = self._since_ms, now_ms
        passed_ms = now_ms - since_ms
        if not passed_ms:
            return
        present, _, peak, limit = map(int, self._rates[:_CAN_PEAK])
        if not present:
            self._unused_from_ms = None
            return
        if self.first_ms is None:
            self.first_ms = self.peak_at_ms = since_ms
        self.last_ms = now_ms
        self.observed_ms += passed_ms
        if peak > self.peak:
            self.peak, self.peak_at_ms = peak, since_ms
        self.limit_peak = max(self.limit_peak, limit)
        value = rounded_up(peak)
        self._peak_time_ms[value] = self._peak_time_ms.get(value, 0) + passed_ms
        if peak:
            self.last_used_ms, self._unused_from_ms = now_ms, None
        else:
            if self._unused_from_ms is None:
                self._unused_from_ms = since_ms
            self.unused_longest_ms = max(self.unused_longest_ms, now_ms - self._unused_from_ms)
        if self.bins is not None:
            self.bins.hold(since_ms, now_ms, peak, limit)

    def over_time(self, rate: str) -> float:
        """Return the integral of a rate, times milliseconds."""
        return self._sums[RATES.index(rate)]

    def percentile(self, share: float) -> int:
        """Return the memory that was not passed during that share of the time."""
        values = sorted(self._peak_time_ms)
        passed = itertools.accumulate(self._peak_time_ms[value] for value in values)
        wanted_ms = share * self.observed_ms
        found = (v for v, until_ms in zip(values, passed, strict=True) if until_ms >= wanted_ms)
        return min(next(found, 0), self.peak)


class AllocationTally:
    """One allocation: what it shows now, and the tallies that it counts in.

    Args:
        allocation: Which.
        own: Of this allocation alone.
        groups: Of the groups that it is in.
    """

    def __init__(self, allocation: Allocation, own: Tally, groups: Iterable[Tally]) -> None:
        self.allocation = allocation
        self.own = own
        self._groups = tuple(groups)
        self._rates = _NOTHING
        self.sample: Sample | None = None
        #: The last that was seen.
        self.last: Sample | None = None
        self.driver_peak_bytes: int | None = None

    def change(self, now_ms: int, sample: Sample | None) -> None:
        """Show another sample from now on; None if there is nothing to be read any more."""
        before, self._rates, self.sample = self._rates, rates_of(sample), sample
        if sample is not None:
            self.last = sample
            driver = sample.driver_memory_bytes
            if driver is not None:
                self.driver_peak_bytes = max(self.driver_peak_bytes or 0, driver)
        after = self._rates
        first = _BUSY if after[:_BUSY] == before[:_BUSY] else 0
        changes = [
            (rate, after[rate] - before[rate])
            for rate in range(first, len(RATES))
            if after[rate] != before[rate]
        ]
        if changes:
            self.own.change(now_ms, changes)
            for group in self._groups:
                group.add(now_ms, changes)

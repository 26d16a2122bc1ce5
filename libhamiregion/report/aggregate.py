"""Adds up what containers held and used of GPUs over a stretch of time, in one pass."""

from __future__ import annotations

import heapq
import itertools
import time
from collections import defaultdict
from operator import itemgetter
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

from libhamiregion.layouts import SLOT_CAPACITY
from libhamiregion.observation.names import PodName

from .history import Sample
from .models import Advice, Level, Report, Timeline, Usage
from .prices import Cards

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from libhamiregion.observation.selector import Selector

    from .history import Allocation, Gpu, History, HistoryFacts, ReportInterval
    from .models import UnlimitedSm

DEFAULT_HEADROOM: Final = 0.1
_ROUND_TO_BYTES: Final = 256 << 20
# How long an allocation must have been seen to suggest a limit for it.
_OBSERVED_S: Final = 3_600
_GAPS_LISTED: Final = 1_000
_GIB_HOUR: Final = (1 << 30) * 3_600_000
_HOUR_MS: Final = 3_600_000
# Values are rounded up to so many binary digits before they are counted: 0.4 % at most, and a
# bounded number of values however long the report is.
_DIGITS: Final = 9

_Key: TypeAlias = "tuple[str | None, ...]"
_Spans: TypeAlias = "list[tuple[int, int]]"
_Changes: TypeAlias = "dict[Allocation, Sample | None]"

#: Names of the fields of an allocation that its group at each level has in common.
GROUP_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "total": (),
    "node": ("node",),
    "namespace": ("namespace",),
    "pod": ("namespace", "pod", "pod_uid"),
    "device": ("device_uuid",),
}


def group_key(of: Allocation | Usage, level: str) -> _Key:
    """Return the key of an allocation's group, the same for all its members."""
    return tuple(getattr(of, name) for name in GROUP_FIELDS[level])


def make_report(
    histories: Sequence[History],
    since_ms: int,
    until_ms: int,
    *,
    by: Level = "container",
    select: Selector | None = None,
    headroom: float = DEFAULT_HEADROOM,
    points: int = 0,
    from_first_sample: bool = False,
    unlimited_sm_as: UnlimitedSm = "memory",
    prices: Mapping[str, float] | None = None,
) -> Report:
    """Add up what recordings, or a Prometheus, have of a stretch of time.

    Memory is bounded by the number of allocations, not by the time.

    Args:
        histories: Each a `Recording` or a `PrometheusHistory`. Recordings of one node must not
            overlap in time: a warning says which do.
        since_ms: From when, Unix milliseconds.
        until_ms: Until when, exclusive.
        by: The kind of rows.
        select: Which containers and devices; None takes all.
        headroom: Added by a suggested limit to the 99th percentile of the memory used, 0.1 for a
            tenth; it is never below the highest use.
        points: Steps of the timelines; 0 leaves them out.
        from_first_sample: Begin with the first sample in that time, so that the time before is no
            gap: of a node that has been recorded for a minute, the last day is that minute.
        unlimited_sm_as: The share of a GPU that a container without an SM limit has: ``"memory"``,
            its memory limit's part of the GPU's memory, or ``"whole"``. Without any limit it is a
            whole GPU.
        prices: Of an hour of a whole GPU, by a part of its model's name such as ``A100``, or a
            pattern of the shell; the longest that fits counts. MIG devices have prices with ``MIG``
            in the name; ``*`` fits all.

    Raises:
        ValueError: No time at all.
        RecordingError, PrometheusError: A source cannot be read.
    """
    if until_ms <= since_ms:
        raise ValueError("a report needs a beginning before its end")
    sources = []
    first_ms = until_ms
    for history in histories:
        intervals = list(itertools.islice(found := history.intervals(since_ms, until_ms), 1))
        first_ms = min([first_ms, *(each.start_ms for each in intervals)])
        sources.append(itertools.chain(intervals, found))
    if from_first_sample and first_ms < until_ms:
        since_ms = first_ms
    whole_ms = until_ms - since_ms
    step_ms = -(-whole_ms // points) if points else whole_ms
    steps = -(-whole_ms // step_ms) if points else 0
    devices: dict[str, Gpu] = {}
    for history in histories:
        devices.update(history.devices(since_ms, until_ms))
    bill_by: Level = "pod" if by == "pod" else "namespace"
    aggregate = _Aggregate(
        lambda: _Tally(since_ms, step_ms, steps),
        select,
        {by, bill_by},
        Cards(devices, unlimited_sm_as, prices),
    )
    gaps, recorded = aggregate.add(sources, since_ms, until_ms)
    facts = [history.facts() for history in histories]
    warnings = [warning for each in facts for warning in each.warnings]
    # By node: a recording can be archived, and a new one begun.
    nodes: dict[str, list[tuple[HistoryFacts, _Spans]]] = defaultdict(list)
    for each, spans in zip(facts, recorded, strict=True):
        nodes[each.node or each.source].append((each, spans))
    recorded_ms = gpus = 0
    for members in nodes.values():
        spans = sorted(span for _, found in members for span in found)
        covered_ms = _covered_ms(spans)
        recorded_ms += covered_ms
        gpus += max(each.gpus or 0 for each, _ in members)
        names = ", ".join(each.source for each, _ in members)
        if len(nodes) > 1 and covered_ms < whole_ms:
            warnings.append(f"{names} covers {100 * covered_ms / whole_ms:.0f} % of the time")
        if covered_ms < sum(end_ms - start_ms for start_ms, end_ms in spans):
            warnings.append(f"{names} are of one node and overlap in time; leave one of them out")
    allocations = tuple(
        _allocation_usage(aggregate.usage([of]), of, aggregate.seen[of][1], headroom)
        for of in sorted(aggregate.seen, key=_order)
    )
    warnings += aggregate.cards.warnings()
    of_devices = aggregate.rows("device")
    return Report(
        kind=facts[0].kind,
        source=", ".join(each.source for each in facts),
        node=facts[0].node if len(nodes) == 1 else None,
        resolution_s=max(each.resolution_s for each in facts),
        since_ms=since_ms,
        until_ms=until_ms,
        made_at_ms=time.time_ns() // 1_000_000,
        by=by,
        recorded_ratio=recorded_ms / (whole_ms * len(nodes)),
        gaps=tuple(sorted(sorted(gaps, key=lambda gap: gap[0] - gap[1])[:_GAPS_LISTED])),
        gap_count=len(gaps),
        headroom=headroom,
        round_to_bytes=_ROUND_TO_BYTES,
        gpus=max(gpus, len(of_devices)),
        total=next(iter(aggregate.rows("total")), None),
        rows=allocations if by == "container" else aggregate.rows(by),
        allocations=allocations,
        devices=of_devices,
        warnings=tuple(warnings),
        bill_by=bill_by,
        bill=aggregate.rows(bill_by),
        unlimited_sm_as=unlimited_sm_as,
        prices=tuple(sorted((prices or {}).items())),
    )


# ---- sums ----------------------------------------------------------------------------------------


def _rates(sample: Sample | None, share: float | None = None) -> dict[str, float]:
    """Return what an allocation adds to each of its groups; percentages of one GPU."""
    if sample is None:
        return _NOTHING
    used, limit = sample.memory_used_bytes, sample.memory_limit_bytes or 0
    peak = used if sample.memory_peak_bytes is None else sample.memory_peak_bytes
    sm, driver = sample.sm_percent, sample.driver_sm_percent
    if sm is not None and sm > 100 * SLOT_CAPACITY:
        sm = None  # recorded before such figures were left out
    return {
        "present": 1,
        "used": used,
        "peak": peak,
        "limit": limit,
        "limited_used": used if limit else 0,
        "share": share or 0,
        "share_known": share is not None,
        "unused": not peak,
        "unused_limit": 0 if peak else limit,
        "leftover": peak > 0 and sample.processes == 0,
        "leftover_known": sample.processes is not None,
        "busy": min(sm or 0, 100),
        "busy_known": sm is not None,
        "driver_busy": min(driver or 0, 100),
        "driver_busy_known": driver is not None,
        "idle": peak > 0 and sm == 0,
    }


#: The rates of a timeline.
_OVER_TIME: Final = ("used", "busy", "share")
_NOTHING: Final = dict.fromkeys(_rates(Sample(0)), 0.0)


def rounded_up(value: int) -> int:
    """Round as percentiles do: nine binary digits, never less than it was.

    >>> rounded_up(511), rounded_up(2**30), rounded_up(2**30 + 1) - 2**30
    (511, 1073741824, 4194304)
    """
    shift = value.bit_length() - _DIGITS
    return value if shift <= 0 else -(-value >> shift) << shift


class _Sums:
    """Sums over a stretch of time in which an allocation, or one of a group, was seen."""

    def __init__(self) -> None:
        self.observed_ms = self.peak = self.limit_peak = 0
        #: Each rate times the milliseconds that it held.
        self.totals = _NOTHING.copy()

    def add(self, passed_ms: int, rates: dict[str, float], names: Iterable[str]) -> None:
        self.observed_ms += passed_ms
        self.peak = max(self.peak, int(rates["peak"]))
        self.limit_peak = max(self.limit_peak, int(rates["limit"]))
        for name in names:
            self.totals[name] += rates[name] * passed_ms

    def average(self, name: str) -> float:
        return self.totals[name] / self.observed_ms

    def gpus(self, name: str) -> float:
        return round(self.average(name) / 100, 4)


class _Tally(_Sums):
    """The sum of an allocation, or of a group, at each moment, and over time.

    Args:
        start_ms: When the timeline begins.
        step_ms: Length of its steps.
        steps: How many there are; 0 for no timeline.
    """

    def __init__(self, start_ms: int, step_ms: int, steps: int) -> None:
        super().__init__()
        self._start_ms, self._step_ms = start_ms, step_ms
        self._steps = [_Sums() for _ in range(steps)]
        self.rates = _NOTHING.copy()
        self._since_ms = 0
        self.first_ms: int | None = None
        self.last_ms = self.peak_at_ms = 0
        self.last_used_ms: int | None = None
        self.driver_peak_bytes: int | None = None
        #: Since when nothing is used; None if something is, or nothing is there.
        self.unused_since_ms: int | None = None
        self.unused_longest_ms = 0
        self._peak_time_ms: dict[int, int] = defaultdict(int)

    def advance(self, now_ms: int) -> None:
        """Add the time since the last change of rates."""
        since_ms, self._since_ms = self._since_ms, now_ms
        rates, peak = self.rates, int(self.rates["peak"])
        if since_ms == now_ms:
            return
        if not rates["present"]:
            self.unused_since_ms = None
            return
        if self.first_ms is None or peak > self.peak:
            self.peak_at_ms = since_ms
        self.first_ms = since_ms if self.first_ms is None else self.first_ms
        self.last_ms = now_ms
        self._peak_time_ms[rounded_up(peak)] += now_ms - since_ms
        if peak:
            self.last_used_ms, self.unused_since_ms = now_ms, None
        else:
            if self.unused_since_ms is None:
                self.unused_since_ms = since_ms
            self.unused_longest_ms = max(self.unused_longest_ms, now_ms - self.unused_since_ms)
        self.add(now_ms - since_ms, rates, rates)
        while self._steps and since_ms < now_ms:
            step = (since_ms - self._start_ms) // self._step_ms
            end_ms = min(self._start_ms + (step + 1) * self._step_ms, now_ms)
            self._steps[step].add(end_ms - since_ms, rates, _OVER_TIME)
            since_ms = end_ms

    def percentile(self, share: float) -> int:
        """Return the memory that was not passed during that share of the time."""
        left_ms = share * self.observed_ms
        for value in sorted(self._peak_time_ms):
            left_ms -= self._peak_time_ms[value]
            if left_ms <= 0:
                return min(value, self.peak)
        return self.peak

    def timeline(self) -> Timeline | None:
        if not self._steps:
            return None
        steps = self._steps
        return Timeline(
            self._start_ms,
            self._step_ms,
            tuple(each.peak if each.observed_ms else None for each in steps),
            tuple(round(each.average("used")) if each.observed_ms else None for each in steps),
            tuple(each.limit_peak if each.observed_ms else None for each in steps),
            tuple(each.gpus("busy") if each.observed_ms else None for each in steps),
            tuple(each.gpus("share") if each.observed_ms else None for each in steps),
        )


class _Aggregate:
    """One pass over all histories.

    Args:
        new_tally: Makes an empty one.
        select: Which containers and devices; None takes all.
        levels: The levels of rows.
        cards: The GPUs.
    """

    def __init__(
        self,
        new_tally: Callable[[], _Tally],
        select: Selector | None,
        levels: Iterable[Level],
        cards: Cards,
    ) -> None:
        self._new_tally = new_tally
        self._select = select
        self.cards = cards
        self._levels = sorted({*levels, "device", "total"} - {"container"})
        #: The tallies of groups, and their members.
        self._groups: dict[tuple[str, _Key], tuple[_Tally, list[Allocation]]] = {}
        #: The tallies of an allocation: its own, then those of its groups.
        self._tallies: dict[Allocation, list[_Tally]] = {}
        #: The own tally and the last sample of each allocation.
        self.seen: dict[Allocation, tuple[_Tally, Sample]] = {}

    def add(
        self, sources: Sequence[Iterator[ReportInterval]], since_ms: int, until_ms: int
    ) -> tuple[_Spans, list[_Spans]]:
        """Add up all sources; return the gaps that all have, and the time recorded by each."""
        gaps: _Spans = []
        recorded: list[_Spans] = [[] for _ in sources]
        covered_ms = now_ms = since_ms
        # At one moment the end of one recording comes before the beginning of the next.
        key = itemgetter(0, 2)
        merged = heapq.merge(*map(_changes, itertools.count(), sources), key=key)
        for now_ms, source, end_ms, changes in merged:
            spans = recorded[source]
            begin_ms = spans.pop()[0] if spans and spans[-1][1] == now_ms else now_ms
            spans.append((begin_ms, end_ms))
            if now_ms > covered_ms:
                gaps.append((covered_ms, now_ms))
            covered_ms = max(covered_ms, end_ms)
            for of, sample in changes.items():
                self._change(now_ms, of, sample)
        if covered_ms < until_ms:
            gaps.append((covered_ms, until_ms))
        for tally in itertools.chain(*self._tallies.values()):
            tally.advance(now_ms)
        return gaps, recorded

    def _change(self, now_ms: int, of: Allocation, sample: Sample | None) -> None:
        if of not in self._tallies:
            if sample is None or not (self._select is None or _is_selected(self._select, of)):
                return
            self._tallies[of] = [self._new_tally(), *self._groups_of(of)]
        tallies = self._tallies[of]
        if sample is not None:
            self.seen[of] = tallies[0], sample
            if (driver_bytes := sample.driver_memory_bytes) is not None:
                tallies[0].driver_peak_bytes = max(tallies[0].driver_peak_bytes or 0, driver_bytes)
        share = None if sample is None else self.cards.share_percent(of, sample)
        before, after = tallies[0].rates, _rates(sample, share)
        by = [(name, rate - before[name]) for name, rate in after.items() if rate != before[name]]
        for tally in tallies if by else ():
            tally.advance(now_ms)
            for name, difference in by:
                tally.rates[name] += difference

    def _groups_of(self, of: Allocation) -> Iterator[_Tally]:
        for level in self._levels:
            if level != "device" or of.device_uuid is not None:
                key = level, group_key(of, level)
                if key not in self._groups:
                    self._groups[key] = self._new_tally(), []
                tally, members = self._groups[key]
                members.append(of)
                yield tally

    def rows(self, level: str) -> tuple[Usage, ...]:
        """Return the groups of a level in the order of their names."""
        groups = [group for (of, _), group in self._groups.items() if of == level]
        groups.sort(key=lambda group: min(map(_order, group[1])))
        return tuple(self.usage(members, tally) for tally, members in groups)

    def usage(self, members: Sequence[Allocation], tally: _Tally | None = None) -> Usage:
        """Return the usage of a group, or of a single allocation, with its part of the costs."""
        made = _usage(tally or self._tallies[members[0]][0], members)
        whole = self._groups["total", ()][0].totals["share"] / (100 * _HOUR_MS)
        hours = made.allocated_gpu_hours
        owned = [(self._tallies[of][0].totals, self.cards.price(of)) for of in members]
        priced = [(totals, price) for totals, price in owned if price is not None]

        def cost(name: str) -> float | None:
            costs = (totals[name] * price / (100 * _HOUR_MS) for totals, price in priced)
            return sum(costs) if priced else None

        return attrs.evolve(
            made,
            allocated_ratio=hours / whole if hours is not None and whole else None,
            cost_allocated=cost("share"),
            cost_used=None if made.busy_gpu_hours is None else cost("busy"),
        )


def _changes(
    source: int, intervals: Iterator[ReportInterval]
) -> Iterator[tuple[int, int, int, _Changes]]:
    """Turn intervals into changes: in gaps, and after the end, everything is gone."""
    present: set[Allocation] = set()
    end_ms = 0
    for interval in intervals:
        if interval.start_ms > end_ms:
            yield end_ms, source, end_ms, dict.fromkeys(present)
        changes = dict(interval.changes)
        if interval.whole:
            changes.update(dict.fromkeys(present - changes.keys()))
        yield interval.start_ms, source, interval.end_ms, changes
        present.update(changes)
        present.difference_update([of for of, sample in changes.items() if sample is None])
        end_ms = interval.end_ms
    yield end_ms, source, end_ms, dict.fromkeys(present)


def _covered_ms(spans: _Spans) -> int:
    """Add up the time that some span covers; they are in the order of their beginnings."""
    covered_ms = until_ms = 0
    for start_ms, end_ms in spans:
        covered_ms += max(0, end_ms - max(start_ms, until_ms))
        until_ms = max(until_ms, end_ms)
    return covered_ms


def _usage(tally: _Tally, members: Sequence[Allocation]) -> Usage:
    def hours(name: str) -> float:
        return tally.totals[name] / _HOUR_MS

    def known_hours(name: str, whole: int = 1) -> float | None:
        return hours(name) / whole if tally.totals[f"{name}_known"] else None

    def gib_hours(name: str) -> float:
        return tally.totals[name] / _GIB_HOUR

    def common(name: str) -> str | None:
        found = {getattr(of, name) for of in members}
        return found.pop() if len(found) == 1 else None

    return Usage(
        node=common("node"),
        namespace=common("namespace"),
        pod=common("pod"),
        container=common("container"),
        pod_uid=common("pod_uid"),
        device_index=None,
        device_uuid=common("device_uuid"),
        allocations=len(members),
        first_seen_ms=tally.first_ms or 0,
        last_seen_ms=tally.last_ms,
        observed_s=tally.observed_ms / 1000,
        device_hours=hours("present"),
        allocated_gpu_hours=known_hours("share", 100),
        busy_gpu_hours=known_hours("busy", 100),
        driver_busy_gpu_hours=known_hours("driver_busy", 100),
        memory_limit_bytes=tally.limit_peak or None,
        sm_limit_percent=None,
        memory_average_bytes=int(tally.totals["used"] // max(1, tally.observed_ms)),
        memory_p95_bytes=tally.percentile(0.95),
        memory_p99_bytes=tally.percentile(0.99),
        memory_peak_bytes=tally.peak,
        peak_at_ms=tally.peak_at_ms,
        limit_gib_hours=gib_hours("limit"),
        used_gib_hours=gib_hours("used"),
        limited_used_gib_hours=gib_hours("limited_used"),
        unused_gib_hours=gib_hours("unused_limit"),
        unused_hours=hours("unused"),
        unused_longest_hours=tally.unused_longest_ms / _HOUR_MS,
        unused_since_ms=tally.unused_since_ms,
        last_used_ms=tally.last_used_ms,
        loaded_idle_hours=hours("idle"),
        leftover_hours=known_hours("leftover"),
        driver_memory_peak_bytes=tally.driver_peak_bytes,
        timeline=tally.timeline(),
    )


def _allocation_usage(usage: Usage, of: Allocation, last: Sample, headroom: float) -> Usage:
    advice, suggested = _advice(usage, last.memory_limit_bytes, headroom)
    return attrs.evolve(
        usage,
        device_index=of.device_index,
        memory_limit_bytes=last.memory_limit_bytes,
        sm_limit_percent=last.sm_limit_percent if last.sm_limit_percent != 100 else None,
        advice=advice,
        suggested_limit_bytes=suggested,
    )


def _advice(usage: Usage, limit: int | None, headroom: float) -> tuple[Advice, int | None]:
    if usage.observed_s < _OBSERVED_S:
        return "too_little_seen", None
    if not usage.memory_peak_bytes:
        return "unused", None
    # In thousandths: the result shall not depend on how a float was rounded.
    wanted = -(-usage.memory_p99_bytes * (1_000 + round(headroom * 1_000)) // 1_000)
    wanted = -(-max(wanted, usage.memory_peak_bytes) // _ROUND_TO_BYTES) * _ROUND_TO_BYTES
    if limit is None:
        return "limit", wanted
    return ("keep" if wanted == limit else "lower" if wanted < limit else "raise"), wanted


def _order(of: Allocation) -> tuple[object, ...]:
    names = (of.node, of.namespace, of.pod, of.pod_uid, of.container)
    return (*((name is None, name or "") for name in names), of.device_index, of.device_uuid or "")


def _is_selected(select: Selector, of: Allocation) -> bool:
    name = PodName(of.namespace, of.pod, of.container)
    return select.matches_names(of.pod_uid, name) and select.matches_device(of)

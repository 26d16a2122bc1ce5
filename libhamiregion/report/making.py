"""Adds up what containers held and used of GPUs over a stretch of time."""

from __future__ import annotations

import itertools
import time
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

from libhamiregion.text import printable

from .models import LEVELS, Advice, Level, Report, Usage
from .tally import AllocationTally, Bins, Tally

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from libhamiregion.node.selector import Selector

    from .history import Allocation, History, Look, Sample

DEFAULT_HEADROOM: Final = 0.1
DEFAULT_ROUND_TO_BYTES: Final = 256 << 20
# How long an allocation must have been seen to suggest a limit for it.
_OBSERVED_S: Final = 3_600
# More than any GPU has: a container that writes such figures into its region must not decide what
# everybody's sums and charts look like.
_BELIEVABLE_BYTES: Final = 1 << 46
_GAPS_LISTED: Final = 1_000
_NAMED_IN_WARNINGS: Final = 3
_NAME_LIMIT: Final = 80
_GIB_HOUR: Final = (1 << 30) * 3_600_000
_HOUR_MS: Final = 3_600_000

_Key: TypeAlias = "tuple[str | None, ...]"
#: What makes the groups of each level: names of the fields of an allocation.
GROUP_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "total": (),
    "namespace": ("namespace",),
    "pod": ("namespace", "pod", "pod_uid"),
    "device": ("device_uuid",),
}


def group_key(of: Allocation | Usage, level: str) -> _Key:
    """Tell the group of an allocation, or of a row about one, from others."""
    return tuple(getattr(of, name) for name in GROUP_FIELDS[level])


def make_report(
    history: History,
    since_ms: int,
    until_ms: int,
    *,
    by: Level = "container",
    select: Selector | None = None,
    headroom: float = DEFAULT_HEADROOM,
    round_to_bytes: int = DEFAULT_ROUND_TO_BYTES,
    points: int = 0,
    from_first_look: bool = False,
) -> Report:
    """Add up what a recording, or a Prometheus, has of a stretch of time.

    Memory is bounded by the number of allocations, not by the time.

    Args:
        history: `Recording` or `PrometheusHistory`.
        since_ms: From when, Unix milliseconds.
        until_ms: Until when, exclusive.
        by: What the rows are.
        select: Which containers and devices; None takes all.
        headroom: What a suggested limit adds to the 99th percentile of the memory used, 0.1 for a
            tenth; it is never below the highest use.
        round_to_bytes: Suggested limits are multiples of this, rounded up.
        points: Steps of the timelines; 0 leaves them out.
        from_first_look: Begin with the first look in that time, so that what lies before it is no
            gap: of a node that has been recorded for a minute, the last day is that minute.

    Raises:
        ValueError: No time at all, or an unknown `by`.
        RecordingError, PrometheusError: The source cannot be read.
    """
    if until_ms <= since_ms:
        raise ValueError("a report needs a beginning before its end")
    if by not in LEVELS:
        raise ValueError(f"{by!r} is none of {', '.join(LEVELS)}")
    levels = {by, "device", "total"} & GROUP_FIELDS.keys()
    looks = iter(history.looks(since_ms, until_ms))
    first = next(looks, None)
    if first is not None:
        looks = itertools.chain([first], looks)
        if from_first_look:
            since_ms = first.start_ms
    adding = _Adding(history, since_ms, until_ms, select, points, levels)
    adding.run(looks)
    return adding.report(by, headroom, round_to_bytes)


class _Adding:
    """One pass over the looks of a history."""

    def __init__(
        self,
        history: History,
        since_ms: int,
        until_ms: int,
        select: Selector | None,
        points: int,
        levels: Iterable[str],
    ) -> None:
        self._history = history
        self._since_ms, self._until_ms = since_ms, until_ms
        self._select = select
        self._levels = sorted(levels)
        self._step_ms = -(-(until_ms - since_ms) // points) if points else 0
        #: None for what is not selected.
        self._tallies: dict[Allocation, AllocationTally | None] = {}
        self._groups: dict[tuple[str, _Key], Tally] = {}
        self._gaps: list[tuple[int, int]] = []
        self._unbelievable: set[Allocation] = set()

    def _tally(self, *, gpus: bool = True) -> Tally:
        bins = None
        if self._step_ms:
            count = -(-(self._until_ms - self._since_ms) // self._step_ms)
            bins = Bins(self._since_ms, self._step_ms, count, gpus=gpus)
        return Tally(self._until_ms, bins)

    @property
    def _selected(self) -> list[AllocationTally]:
        return [each for each in self._tallies.values() if each is not None]

    # ---- the pass --------------------------------------------------------------------------------

    def run(self, looks: Iterable[Look]) -> None:
        end_ms = self._since_ms
        for look in looks:
            if look.start_ms > end_ms:
                for tally in self._selected:
                    tally.change(end_ms, None)
                self._gaps.append((end_ms, look.start_ms))
            self._add(look)
            end_ms = look.end_ms
        for own in self._selected:
            own.own.finish(end_ms)
        for group in self._groups.values():
            group.finish(end_ms)
        if end_ms < self._until_ms:
            self._gaps.append((end_ms, self._until_ms))

    def _add(self, look: Look) -> None:
        for allocation, sample in look.changes.items():
            try:
                tally = self._tallies[allocation]
            except KeyError:
                tally = self._tallies[allocation] = self._begun(allocation)
            if tally is not None:
                tally.change(look.start_ms, self._believed(allocation, sample))
        if look.whole:
            for tally in self._selected:
                if tally.sample is not None and tally.allocation not in look.changes:
                    tally.change(look.start_ms, None)

    def _begun(self, allocation: Allocation) -> AllocationTally | None:
        if self._select is not None and not _is_selected(self._select, allocation):
            return None
        groups = []
        for level in self._levels:
            if level == "device" and allocation.device_uuid is None:
                continue
            key = level, group_key(allocation, level)
            if key not in self._groups:
                self._groups[key] = self._tally()
            groups.append(self._groups[key])
        return AllocationTally(allocation, self._tally(gpus=False), groups)

    def _believed(self, allocation: Allocation, sample: Sample | None) -> Sample | None:
        if sample is None:
            return None
        most = max(
            sample.memory_used_bytes, sample.memory_peak_bytes or 0, sample.memory_limit_bytes or 0
        )
        if most < _BELIEVABLE_BYTES:
            return sample
        self._unbelievable.add(allocation)
        return None

    # ---- what it came to -------------------------------------------------------------------------

    def report(self, by: Level, headroom: float, round_to_bytes: int) -> Report:
        facts = self._history.facts()
        seen = [tally for tally in self._selected if tally.own.observed_ms]
        seen.sort(key=lambda tally: _order(tally.allocation))
        members = [each.allocation for each in seen]
        allocations = tuple(_usage_of_one(each, headroom, round_to_bytes) for each in seen)
        rows = {level: self._rows(level, members) for level in self._levels}
        whole_ms = self._until_ms - self._since_ms
        missing_ms = sum(end_ms - start_ms for start_ms, end_ms in self._gaps)
        longest = sorted(self._gaps, key=lambda gap: gap[0] - gap[1])[:_GAPS_LISTED]
        return Report(
            kind=facts.kind,
            source=facts.source,
            node=facts.node,
            resolution_s=facts.resolution_s,
            since_ms=self._since_ms,
            until_ms=self._until_ms,
            made_at_ms=time.time_ns() // 1_000_000,
            by=by,
            recorded_ratio=1 - missing_ms / whole_ms,
            gaps=tuple(sorted(longest)),
            gap_count=len(self._gaps),
            headroom=headroom,
            round_to_bytes=round_to_bytes,
            total=next(iter(rows["total"]), None),
            rows=rows.get(by, allocations),
            allocations=allocations,
            devices=rows["device"],
            warnings=(*facts.warnings, *self._doubts()),
        )

    def _rows(self, level: str, seen: Sequence[Allocation]) -> tuple[Usage, ...]:
        members: dict[_Key, list[Allocation]] = {}
        for allocation in seen:
            members.setdefault(group_key(allocation, level), []).append(allocation)
        return tuple(
            _usage(self._groups[level, key], each)
            for key, each in members.items()
            if (level, key) in self._groups
        )

    def _doubts(self) -> Iterable[str]:
        if self._unbelievable:
            names = ", ".join(
                printable(f"{of.container} of pod {of.pod or of.pod_uid}", _NAME_LIMIT)
                for of in sorted(self._unbelievable, key=_order)[:_NAMED_IN_WARNINGS]
            )
            yield (
                f"sizes above {_BELIEVABLE_BYTES >> 40} TiB, which no GPU has, are left out; they"
                f" are in {len(self._unbelievable):,} of the regions, such as that of {names}"
            )


def _usage(tally: Tally, members: Sequence[Allocation]) -> Usage:
    def hours(rate: str) -> float:
        return tally.over_time(rate) / _HOUR_MS

    def gpu_hours(rate: str) -> float | None:
        return hours(rate) / 100 if tally.over_time(f"{rate}_known") else None

    def gib_hours(rate: str) -> float:
        return tally.over_time(rate) / _GIB_HOUR

    def common(name: str) -> str | None:
        found = {getattr(of, name) for of in members}
        return found.pop() if len(found) == 1 else None

    return Usage(
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
        allocated_gpu_hours=gpu_hours("share"),
        busy_gpu_hours=gpu_hours("busy"),
        driver_busy_gpu_hours=gpu_hours("driver_busy"),
        memory_limit_bytes=tally.limit_peak or None,
        sm_limit_percent=None,
        memory_average_bytes=int(tally.over_time("used") // max(1, tally.observed_ms)),
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
        leftover_hours=hours("leftover") if tally.over_time("processes_known") else None,
        timeline=None if tally.bins is None else tally.bins.timeline(),
    )


def _usage_of_one(tally: AllocationTally, headroom: float, round_to_bytes: int) -> Usage:
    usage = _usage(tally.own, [tally.allocation])
    assert tally.last is not None  # noqa: S101 (it was observed)
    limit, sm_limit = tally.last.memory_limit_bytes, tally.last.sm_limit_percent
    advice, suggested = _advice(usage, limit, headroom, round_to_bytes)
    return attrs.evolve(
        usage,
        device_index=tally.allocation.device_index,
        memory_limit_bytes=limit,
        sm_limit_percent=sm_limit if sm_limit != 100 else None,
        driver_memory_peak_bytes=tally.driver_peak_bytes,
        advice=advice,
        suggested_limit_bytes=suggested,
    )


def _advice(
    usage: Usage, limit: int | None, headroom: float, round_to_bytes: int
) -> tuple[Advice, int | None]:
    if usage.observed_s < _OBSERVED_S:
        return "too_little_seen", None
    if not usage.memory_peak_bytes:
        return "unused", None
    # In thousandths: the result shall not depend on how a float was rounded.
    wanted = -(-usage.memory_p99_bytes * (1_000 + round(headroom * 1_000)) // 1_000)
    wanted = -(-max(wanted, usage.memory_peak_bytes) // round_to_bytes) * round_to_bytes
    if limit is None:
        return "limit", wanted
    return ("keep" if wanted == limit else "lower" if wanted < limit else "raise"), wanted


def _order(of: Allocation) -> tuple[object, ...]:
    names = (of.namespace, of.pod, of.pod_uid, of.container)
    return (*((name is None, name or "") for name in names), of.device_index, of.device_uuid or "")


def _is_selected(select: Selector, of: Allocation) -> bool:
    if select.device is not None and select.device.isdigit():
        if of.device_index != int(select.device):
            return False
    elif not _matches(select.device, of.device_uuid):
        return False
    return (
        _matches(select.pod_uid, of.pod_uid)
        and _matches(select.namespace, of.namespace)
        and _matches(select.pod, of.pod, of.pod_uid)
        and _matches(select.container, of.container)
    )


def _matches(pattern: str | None, *names: str | None) -> bool:
    return pattern is None or any(name is not None and fnmatchcase(name, pattern) for name in names)

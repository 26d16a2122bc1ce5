"""Who held and used what of a node's GPUs, over a stretch of time."""

from __future__ import annotations

import time
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, TypeAlias

import attrs

from .models import (
    LEVELS,
    Advice,
    Coverage,
    Gap,
    Level,
    Report,
    Suggestion,
    SuggestionPolicy,
    Timeline,
    Usage,
)
from .region_choice import RegionChoice
from .tally import AllocationTally, Bins, GroupTally, percentile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from libhamiregion.node.selector import Selector

    from .history import Allocation, AllocationState, History, HistoryFacts, Look

# More than any GPU has: a container that writes such figures into its region must not decide what
# everybody's sums and charts look like.
_BELIEVABLE_BYTES = 1 << 46
_GAPS_LISTED = 1_000
_GIB_HOUR = (1 << 30) * 3_600_000
_HOUR_MS = 3_600_000


def make_report(
    history: History,
    since_ms: int,
    until_ms: int,
    *,
    by: Level = "container",
    select: Selector | None = None,
    policy: SuggestionPolicy | None = None,
    points: int = 0,
) -> Report:
    """Add up what a recording, or a Prometheus, has of a stretch of time.

    Args:
        history: `Recording` or `PrometheusHistory`.
        since_ms: From when, Unix milliseconds.
        until_ms: Until when, exclusive.
        by: What the rows are.
        select: Which containers and devices; None takes all.
        policy: How limits are suggested.
        points: Steps of the timelines; 0 leaves them out.

    Raises:
        ValueError: No time at all, or an unknown `by`.
        RecordingError, PrometheusError: The source cannot be read.

    Cost: 2 to 4 us for each thing that changed; a day of 256 containers with two devices at 15 s,
    half of them busy, takes 3 s. Memory is bounded by the number of allocations, not by the time.
    """
    if until_ms <= since_ms:
        raise ValueError("a report needs a beginning before its end")
    if by not in LEVELS:
        raise ValueError(f"{by!r} is none of {', '.join(LEVELS)}")
    adding = _Adding(history, since_ms, until_ms, select, points, pods=by == "pod")
    adding.run()
    return adding.report(by, policy or SuggestionPolicy())


_Key: TypeAlias = "tuple[str | None, ...]"


class _Adding:
    """One pass over the looks of a history."""

    def __init__(
        self,
        history: History,
        since_ms: int,
        until_ms: int,
        select: Selector | None,
        points: int,
        *,
        pods: bool,
    ) -> None:
        self._history = history
        self._choice = RegionChoice(history.allocation)
        self._since_ms, self._until_ms = since_ms, until_ms
        self._select = select
        self._pods = pods
        self._step_ms = -(-(until_ms - since_ms) // points) if points else 0
        self._points = -(-(until_ms - since_ms) // self._step_ms) if points else 0
        #: Number in a look to its tally; None for what is not selected.
        self._numbers: dict[int, AllocationTally | None] = {}
        self._tallies: dict[Allocation, AllocationTally] = {}
        self._total = GroupTally(self._bins())
        self._groups: dict[tuple[str, _Key], GroupTally] = {}
        self._gaps: list[Gap] = []
        self._now_ms = self._end_ms = since_ms
        self._unbelievable: set[Allocation] = set()

    def _bins(self) -> Bins | None:
        if not self._points:
            return None
        return Bins(self._since_ms, self._step_ms, self._points)

    # ---- the pass --------------------------------------------------------------------------------

    def run(self) -> None:
        end_ms = self._since_ms
        for look in self._history.looks(self._since_ms, self._until_ms):
            if look.start_ms > end_ms:
                self._end_all(end_ms)
                self._gaps.append(Gap(end_ms, look.start_ms))
            self._add(self._choice.chosen(look))
            end_ms = look.end_ms
        self._end_ms = end_ms
        for tally in self._all():
            tally.finish(end_ms)
        for group in (self._total, *self._groups.values()):
            group.advance(end_ms)
        if end_ms < self._until_ms:
            self._gaps.append(Gap(end_ms, self._until_ms))

    def _all(self) -> Iterable[AllocationTally]:
        return self._tallies.values()

    def _end_all(self, now_ms: int) -> None:
        for tally in self._all():
            if tally.state is not None:
                tally.change(now_ms, None)

    def _add(self, look: Look) -> None:
        now_ms = self._now_ms = look.start_ms
        # One allocation can stand under several numbers: before its uuid was known and after, or of
        # the region that counted until now and that which counts from now on.
        changed: dict[AllocationTally, AllocationState | None] = {}
        for number, state in look.states.items():
            tally = self._tally(number)
            if tally is None:
                continue
            if state is None:
                changed.setdefault(tally, None)
            else:
                changed[tally] = self._believed(tally, state)
        if look.full:
            for tally in self._all():
                if tally.state is not None:
                    changed.setdefault(tally, None)
        for tally, state in changed.items():
            if tally.state != state:
                tally.change(now_ms, state)
        numbers = self._numbers
        for number, activity in look.activity.items():
            tally = numbers.get(number)
            if tally is not None and tally.state is not None:
                tally.act(now_ms, activity)

    def _believed(self, tally: AllocationTally, state: AllocationState) -> AllocationState | None:
        if max(state.memory_peak_bytes, state.memory_limit_bytes or 0) < _BELIEVABLE_BYTES:
            return state
        self._unbelievable.add(tally.allocation)
        return None

    def _tally(self, number: int) -> AllocationTally | None:
        try:
            return self._numbers[number]
        except KeyError:
            allocation = self._history.allocation(number)
            chosen = self._select is None or _is_selected(self._select, allocation)
            tally = self._tally_of(allocation) if chosen else None
            self._numbers[number] = tally
            return tally

    def _tally_of(self, allocation: Allocation) -> AllocationTally:
        key = attrs.evolve(allocation, place=None)
        tally = self._tallies.get(key)
        if tally is None:
            tally = self._tallies[key] = AllocationTally(key, self._bins())
            tally.join(self._groups_of(key), self._now_ms)
        return tally

    def _groups_of(self, allocation: Allocation) -> tuple[GroupTally, ...]:
        names: list[tuple[str, _Key]] = [("namespace", _namespace_key(allocation))]
        if allocation.device_uuid is not None:
            names.append(("device", _device_key(allocation)))
        if self._pods:
            names.append(("pod", _pod_key(allocation)))
        for name in names:
            if name not in self._groups:
                self._groups[name] = GroupTally(self._bins())
        return (self._total, *(self._groups[name] for name in names))

    # ---- what it came to -------------------------------------------------------------------------

    def report(self, by: Level, policy: SuggestionPolicy) -> Report:
        facts = self._history.facts()
        seen = [tally for tally in self._all() if tally.observed_ms]
        seen.sort(key=lambda tally: _order(tally.allocation))
        allocations = tuple(self._usage(tally, facts, policy) for tally in seen)
        namespaces = self._grouped("namespace", _namespace_key, allocations)
        devices = self._grouped("device", _device_key, allocations)
        rows = {
            "container": lambda: allocations,
            "namespace": lambda: namespaces,
            "device": lambda: devices,
            "pod": lambda: self._grouped("pod", _pod_key, allocations),
        }[by]()
        whole_ms = self._until_ms - self._since_ms
        missing_ms = sum(gap.end_ms - gap.start_ms for gap in self._gaps)
        longest = sorted(self._gaps, key=lambda gap: gap.start_ms - gap.end_ms)[:_GAPS_LISTED]
        return Report(
            facts=facts,
            since_ms=self._since_ms,
            until_ms=self._until_ms,
            made_at_ms=time.time_ns() // 1_000_000,
            by=by,
            coverage=Coverage(
                (whole_ms - missing_ms) / 1000,
                1 - missing_ms / whole_ms,
                tuple(sorted(longest, key=lambda gap: gap.start_ms)),
                len(self._gaps),
            ),
            policy=policy,
            total=self._sum(self._total, allocations) if allocations else None,
            rows=rows,
            allocations=allocations,
            namespaces=namespaces,
            devices=devices,
            warnings=(*facts.warnings, *self._doubts()),
        )

    def _doubts(self) -> Iterable[str]:
        for allocation in sorted(self._unbelievable, key=_order):
            yield (
                f"device {allocation.device_index} of container {allocation.container!r} of pod"
                f" {allocation.pod or allocation.pod_uid!r}: its region shows sizes above"
                f" {_BELIEVABLE_BYTES >> 40} TiB, which no GPU has; those samples are left out"
            )
        for left_out in self._choice.left_out.values():
            if self._select is None or _is_selected(self._select, left_out.allocation):
                yield left_out.words

    def _usage(
        self, tally: AllocationTally, facts: HistoryFacts, policy: SuggestionPolicy
    ) -> Usage:
        allocation = tally.allocation
        p99 = min(percentile(tally.peak_time_ms, 0.99) or 0, tally.used_peak)
        return Usage(
            namespace=allocation.namespace,
            pod=allocation.pod,
            container=allocation.container,
            pod_uid=allocation.pod_uid,
            device_index=allocation.device_index,
            device_uuid=allocation.device_uuid,
            allocations=1,
            first_seen_ms=tally.first_ms or 0,
            last_seen_ms=tally.last_ms,
            observed_s=tally.observed_ms / 1000,
            device_hours=tally.observed_ms / _HOUR_MS,
            allocated_gpu_hours=(
                tally.share_ms / 100 / _HOUR_MS
                if facts.knows_sm_limits and tally.share_known_ms
                else None
            ),
            busy_gpu_hours=tally.busy / 100 / _HOUR_MS if tally.known_ms else None,
            driver_busy_gpu_hours=tally.driver_busy / 100 / _HOUR_MS if tally.driver_ms else None,
            memory_limit_bytes=tally.last_limit,
            unlimited_hours=tally.unlimited_ms / _HOUR_MS,
            sm_limit_percent=tally.last_sm_limit,
            memory_average_bytes=tally.used_ms // tally.observed_ms,
            memory_p95_bytes=min(percentile(tally.peak_time_ms, 0.95) or 0, tally.used_peak),
            memory_p99_bytes=p99,
            memory_peak_bytes=tally.used_peak,
            peak_at_ms=tally.peak_at_ms or 0,
            limit_gib_hours=tally.limit_ms / _GIB_HOUR,
            used_gib_hours=tally.used_ms / _GIB_HOUR,
            limited_used_gib_hours=tally.limited_used_ms / _GIB_HOUR,
            unused_gib_hours=tally.unused_limit_ms / _GIB_HOUR,
            unused_hours=tally.unused_ms / _HOUR_MS,
            unused_longest_hours=tally.unused_longest_ms / _HOUR_MS,
            unused_since_ms=tally.unused_since_ms,
            last_used_ms=tally.last_used_ms,
            loaded_idle_hours=tally.idle_ms / _HOUR_MS,
            leftover_hours=None if tally.processes_peak is None else tally.leftover_ms / _HOUR_MS,
            processes_peak=tally.processes_peak,
            driver_memory_peak_bytes=tally.driver_peak,
            suggestion=_suggestion(tally, p99, policy),
            timeline=_timeline(tally.bins, summed=False),
        )

    def _grouped(
        self, kind: str, key_of: Callable[[Allocation | Usage], _Key], rows: Sequence[Usage]
    ) -> tuple[Usage, ...]:
        members: dict[_Key, list[Usage]] = {}
        for row in rows:
            members.setdefault(key_of(row), []).append(row)
        return tuple(
            self._sum(self._groups[kind, key], each)
            for key, each in members.items()
            if (kind, key) in self._groups
        )

    def _sum(self, group: GroupTally, rows: Sequence[Usage]) -> Usage:
        present = [row.unused_since_ms for row in rows if row.last_seen_ms >= self._end_ms]
        ended = [row.last_used_ms for row in rows if row.last_seen_ms < self._end_ms]
        used = [row.last_used_ms for row in rows if row.last_used_ms is not None]
        return Usage(
            namespace=_common(row.namespace for row in rows),
            pod=_common(row.pod for row in rows),
            container=_common(row.container for row in rows),
            pod_uid=_common(row.pod_uid for row in rows),
            device_index=None,
            device_uuid=_common(row.device_uuid for row in rows),
            allocations=len(rows),
            first_seen_ms=min(row.first_seen_ms for row in rows),
            last_seen_ms=max(row.last_seen_ms for row in rows),
            observed_s=group.observed_ms / 1000,
            device_hours=sum(row.device_hours for row in rows),
            allocated_gpu_hours=_total(row.allocated_gpu_hours for row in rows),
            busy_gpu_hours=_total(row.busy_gpu_hours for row in rows),
            driver_busy_gpu_hours=_total(row.driver_busy_gpu_hours for row in rows),
            memory_limit_bytes=group.limit_peak or None,
            unlimited_hours=sum(row.unlimited_hours for row in rows),
            sm_limit_percent=None,
            memory_average_bytes=group.used_ms // max(1, group.observed_ms),
            memory_p95_bytes=min(percentile(group.peak_time_ms, 0.95) or 0, group.used_peak),
            memory_p99_bytes=min(percentile(group.peak_time_ms, 0.99) or 0, group.used_peak),
            memory_peak_bytes=group.used_peak,
            peak_at_ms=group.peak_at_ms or 0,
            limit_gib_hours=sum(row.limit_gib_hours for row in rows),
            used_gib_hours=sum(row.used_gib_hours for row in rows),
            limited_used_gib_hours=sum(row.limited_used_gib_hours for row in rows),
            unused_gib_hours=sum(row.unused_gib_hours for row in rows),
            unused_hours=sum(row.unused_hours for row in rows),
            unused_longest_hours=max(row.unused_longest_hours for row in rows),
            unused_since_ms=_unused_since(present, ended),
            last_used_ms=max(used, default=None),
            loaded_idle_hours=sum(row.loaded_idle_hours for row in rows),
            leftover_hours=_total(row.leftover_hours for row in rows),
            timeline=_timeline(group.bins, summed=True),
        )


def _namespace_key(of: Allocation | Usage) -> _Key:
    return (of.namespace,)


def _device_key(of: Allocation | Usage) -> _Key:
    return (of.device_uuid,)


def _pod_key(of: Allocation | Usage) -> _Key:
    return (of.namespace, of.pod, of.pod_uid)


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


def _common(values: Iterable[str | None]) -> str | None:
    found = set(values)
    return found.pop() if len(found) == 1 else None


def _unused_since(present: Sequence[int | None], last_used: Iterable[int | None]) -> int | None:
    """Since when a group has used nothing, by what is there and by what has ended."""
    if not present or None in present:
        return None
    return max(moment for moment in (*present, *last_used) if moment is not None)


def _total(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _suggestion(tally: AllocationTally, p99: int, policy: SuggestionPolicy) -> Suggestion:
    if tally.observed_ms < policy.observed_s * 1000:
        return Suggestion("too_little_seen")
    if not tally.used_peak:
        return Suggestion("unused")
    wanted = policy.limit_bytes(p99, tally.used_peak)
    limit = tally.last_limit
    if limit is None:
        return Suggestion("limit", wanted)
    verdict: Advice = "keep" if wanted == limit else "lower" if wanted < limit else "raise"
    return Suggestion(verdict, wanted, wanted - limit)


def _timeline(bins: Bins | None, *, summed: bool) -> Timeline | None:
    if bins is None:
        return None
    covered = bins.covered_ms
    gpus: tuple[tuple[float | None, ...], ...] = ((), ())
    if summed:
        gpus = tuple(
            tuple(
                round(value / passed / 100, 4) if passed else None
                for value, passed in zip(values, covered, strict=True)
            )
            for values in (bins.busy, bins.share)
        )
    return Timeline(
        bins.start_ms,
        bins.step_ms,
        _known(bins.peak, covered),
        tuple(
            used // passed if passed else None
            for used, passed in zip(bins.used, covered, strict=True)
        ),
        _known(bins.limit, covered),
        *gpus,
    )


def _known(values: Iterable[int], covered: Iterable[int]) -> tuple[int | None, ...]:
    return tuple(value if passed else None for value, passed in zip(values, covered, strict=True))

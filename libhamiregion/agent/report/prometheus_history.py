"""What a Prometheus has kept of HAMi's metrics, as looks for a report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

from .history import Activity, Allocation, AllocationState, HistoryFacts, Look

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .prometheus_api import PrometheusApi, Series

# Points per query, far below the 11,000 that a Prometheus gives; a chunk of 512 series is some MiB.
_CHUNK_STEPS = 480
_POINTS_WANTED = 1_500
_STEPS_S: Final = (60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400, 43_200, 86_400)
# More than any metric of HAMi's can say; what comes from elsewhere under their names can.
_MOST = 2.0**64
# Two exporters hand over within a step or two; more are two that export the same.
_OVERLAP_ALLOWED = 2


@attrs.frozen
class _Names:
    """What a generation of HAMi's monitor calls its metrics and labels."""

    used: str
    limit: str
    utilization: str
    namespace: str
    pod: str
    container: str
    index: str
    uuid: str


_NOW = _Names(
    "hami_vgpu_memory_used_bytes",
    "hami_vgpu_memory_limit_bytes",
    "hami_container_device_utilization_ratio",
    "namespace",
    "pod",
    "container",
    "vdevice_index",
    "device_uuid",
)
_BEFORE = _Names(
    "vGPU_device_memory_usage_in_bytes",
    "vGPU_device_memory_limit_in_bytes",
    "Device_utilization_desc_of_container",
    "podnamespace",
    "podname",
    "ctrname",
    "vdeviceid",
    "deviceuuid",
)
# This library's exporter has them, HAMi's monitor does not. Absent means unlimited, where it runs.
_SM_LIMIT = "hamiregion_device_sm_limit_ratio"
_OUR_EXPORTER = "hamiregion_container_info"

_Key: TypeAlias = "tuple[str | None, str | None, str | None, int, str | None]"
_Values: TypeAlias = "list[float | None]"


@attrs.define
class _Chunk:
    """Values of one stretch of steps, by series."""

    peak: dict[_Key, _Values]
    used: dict[_Key, _Values]
    limit: dict[_Key, _Values]
    sm: dict[_Key, _Values]
    sm_limit: dict[_Key, _Values]


class PrometheusHistory:
    """HAMi's metrics of containers, out of a Prometheus.

    Each step stands for all samples that were scraped in it: the highest and the average of the
    memory used, the highest limit, the average utilisation. Samples count in their own step only,
    so a step without any is a gap, and nothing is carried over. The names of HAMi's monitor before
    2.10 are looked for where the present ones have nothing.

    Threads: one at a time.

    Args:
        api: Where to ask.
        step_s: Length of a step, at least the interval of scrapes; None chooses a minute for a
            day, and longer ones for more.
        matchers: Labels that the series must have, as in PromQL: ``job="hami",cluster="west"``.

    Raises:
        ValueError: A step below a second, or braces in the matchers.
    """

    def __init__(
        self, api: PrometheusApi, *, step_s: float | None = None, matchers: str = ""
    ) -> None:
        if step_s is not None and not 1 <= step_s <= 86_400:
            raise ValueError(f"a step is a second or more and a day at most, not {step_s:g} s")
        if "{" in matchers or "}" in matchers:
            raise ValueError('matchers are written without braces: job="hami"')
        self._api = api
        self._given_step_ms = None if step_s is None else round(step_s * 1000)
        self._step_ms = self._given_step_ms or 0
        self._matchers = f"{{{matchers}}}" if matchers else ""
        self._allocations: list[Allocation] = []
        self._numbers: dict[_Key, int] = {}
        self._warnings: dict[str, None] = {}
        self._overlaps: dict[_Key, int] = {}
        self._old_names = False
        self._knows_sm_limits = False

    def allocation(self, number: int) -> Allocation:
        """Which allocation a number in a look means.

        Raises:
            LookupError: None that was in a look.
        """
        return self._allocations[number]

    def facts(self) -> HistoryFacts:
        """What is known about the source, once its looks have been read."""
        warnings = list(self._warnings)
        doubled = sum(steps > _OVERLAP_ALLOWED for steps in self._overlaps.values())
        if doubled:
            warnings.append(
                f"{doubled} devices of containers are exported more than once (two exporters, or"
                " two jobs that scrape one); the higher value counts. Choose one with --match."
            )
        if self._old_names:
            warnings.append("part of this comes from the metrics' names before HAMi 2.10")
        return HistoryFacts(
            kind="prometheus",
            source=self._api.url,
            node=None,
            resolution_s=self._step_ms / 1000,
            averaged=True,
            knows_sm_limits=self._knows_sm_limits,
            warnings=tuple(warnings),
        )

    def looks(self, since_ms: int, until_ms: int) -> Iterator[Look]:
        """The looks that hold between two moments.

        Raises:
            PrometheusError: It cannot be asked, or refuses.
        """
        step_ms = self._step_ms = self._given_step_ms or _step_for(until_ms - since_ms)
        steps = -(-(until_ms - since_ms) // step_ms)
        states: dict[_Key, AllocationState] = {}
        activity: dict[_Key, Activity] = {}
        gap = True
        for first in range(0, steps, _CHUNK_STEPS):
            count = min(_CHUNK_STEPS, steps - first)
            chunk = self._chunk(since_ms + first * step_ms, count)
            for at in range(count):
                now, acting = self._at(chunk, at, states)
                if not now:
                    gap = True
                    states, activity = {}, {}
                    continue
                start_ms = since_ms + (first + at) * step_ms
                changed: dict[int, AllocationState | None] = {
                    self._number(key): state
                    for key, state in now.items()
                    if states.get(key) != state
                }
                changed.update((self._number(key), None) for key in states.keys() - now.keys())
                yield Look(
                    start_ms,
                    min(start_ms + step_ms, until_ms),
                    gap,
                    changed,
                    {
                        self._number(key): act
                        for key, act in acting.items()
                        if activity.get(key) != act or key not in states
                    },
                )
                states, activity, gap = now, acting, False

    def _number(self, key: _Key) -> int:
        number = self._numbers.get(key)
        if number is None:
            namespace, pod, container, index, uuid = key
            number = self._numbers[key] = len(self._allocations)
            self._allocations.append(Allocation(namespace, pod, container, None, index, uuid))
        return number

    def _at(
        self, chunk: _Chunk, at: int, before: dict[_Key, AllocationState]
    ) -> tuple[dict[_Key, AllocationState], dict[_Key, Activity]]:
        states: dict[_Key, AllocationState] = {}
        activity: dict[_Key, Activity] = {}
        for key, peaks in chunk.peak.items():
            peak = peaks[at]
            if peak is None:
                continue
            used = _value(chunk.used, key, at)
            limit = _value(chunk.limit, key, at)
            if limit is None and key in before:
                limit = before[key].memory_limit_bytes
            sm_limit = _value(chunk.sm_limit, key, at)
            states[key] = AllocationState(
                round(peak if used is None else used),
                round(peak),
                round(limit) if limit else None,
                # Whatever is no share of a GPU says nothing about one.
                round(sm_limit * 100) if sm_limit and sm_limit < 1 else None,
            )
            activity[key] = (_value(chunk.sm, key, at), None)
        return states, activity

    # ---- asking ----------------------------------------------------------------------------------

    def _chunk(self, start_ms: int, count: int) -> _Chunk:
        names = _NOW
        peak = self._ask("max", names.used, names, start_ms, count)
        if not peak:
            old = self._ask("max", _BEFORE.used, _BEFORE, start_ms, count)
            if not old:
                return _Chunk({}, {}, {}, {}, {})
            names, peak = _BEFORE, old
            self._old_names = True
        sm_limit = {}
        if names is _NOW:
            sm_limit = self._ask("max", _SM_LIMIT, names, start_ms, count)
            if not self._knows_sm_limits:
                ours = sm_limit or self._ask("max", _OUR_EXPORTER, names, start_ms, count)
                self._knows_sm_limits = bool(ours)
        return _Chunk(
            peak,
            self._ask("avg", names.used, names, start_ms, count),
            self._ask("max", names.limit, names, start_ms, count),
            self._ask("avg", names.utilization, names, start_ms, count),
            sm_limit,
        )

    def _ask(
        self, how: str, metric: str, names: _Names, start_ms: int, count: int
    ) -> dict[_Key, _Values]:
        step_ms = self._step_ms
        # A window ends just before the next begins, so that a sample on the border counts once.
        first_ms = start_ms + step_ms - 1
        answer = self._api.query_range(
            f"{how}_over_time({metric}{self._matchers}[{step_ms - 1}ms])",
            first_ms,
            first_ms + (count - 1) * step_ms,
            step_ms,
        )
        self._warnings.update(dict.fromkeys(answer.warnings))
        found: dict[_Key, _Values] = {}
        for series in answer.series:
            key = _key(series, names)
            values = found.get(key)
            if values is None:
                values = found[key] = [None] * count
            for at_s, text in series[1]:
                at = round((at_s * 1000 - first_ms) / step_ms)
                value = _number(text)
                if value is None or not 0 <= at < count:
                    continue
                known = values[at]
                if known is None:
                    values[at] = value
                else:
                    values[at] = max(known, value)
                    if metric == names.used and how == "max":
                        self._overlaps[key] = self._overlaps.get(key, 0) + 1
        return found


def _value(values: dict[_Key, _Values], key: _Key, at: int) -> float | None:
    of_key = values.get(key)
    return None if of_key is None else of_key[at]


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    # Also false for what is no number.
    return value if 0 <= value <= _MOST else None


def _key(series: Series, names: _Names) -> _Key:
    labels = series[0]

    def label(name: str) -> str | None:
        # Where a scrape adds labels of its own (the exporter's pod), those of the metric step back.
        return labels.get(f"exported_{name}", labels.get(name)) or None

    index = label(names.index) or ""
    return (
        label(names.namespace),
        label(names.pod),
        label(names.container),
        int(index) if index.isascii() and index.isdigit() and len(index) < 10 else 0,
        label(names.uuid),
    )


def _step_for(whole_ms: int) -> int:
    for step_s in _STEPS_S:
        if whole_ms <= step_s * 1000 * _POINTS_WANTED:
            return step_s * 1000
    return _STEPS_S[-1] * 1000

"""What a Prometheus has kept of HAMi's metrics, as looks for a report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import attrs

from .history import Activity, Allocation, AllocationState, HistoryFacts, Look

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .prometheus_api import PrometheusApi

# Points per query, far below the 11,000 that a Prometheus gives; a chunk of 512 series is some MiB.
_CHUNK_STEPS = 480
_POINTS_WANTED = 1_500
_STEPS_S: Final = (60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400, 43_200, 86_400)
# More than any metric of HAMi's can say; what comes from elsewhere under their names can.
_MOST = 2.0**64
# Two exporters hand over within a step or two; more are two that export the same.
_OVERLAP_ALLOWED = 2
# Scrapes are seldom closer. What a Prometheus computes for one answer has to be bounded.
_WINDOW_MS = 15_000
_WINDOWS_ASKED = 10_000_000


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
# This library's exporter has them, HAMi's monitor does not. Of a container that has the second one
# at that time, absent means unlimited.
_SM_LIMIT = "hamiregion_device_sm_limit_ratio"
_OUR_EXPORTER = "hamiregion_container_info"

_Key: TypeAlias = "tuple[str | None, str | None, str | None, int, str | None]"
_Values: TypeAlias = "list[float | None]"
#: Values of one series by step.
_Points: TypeAlias = "tuple[_Key, dict[int, float]]"
_AnyKey = TypeVar("_AnyKey")


@attrs.frozen
class _Steps:
    """A stretch of steps of one length."""

    start_ms: int
    step_ms: int
    count: int

    @property
    def window_ms(self) -> int:
        """What a step asks for. It ends before the next: a sample on the border counts once."""
        return max(1, self.step_ms - 1)

    @property
    def first_ms(self) -> int:
        """When the first window ends."""
        return self.start_ms + self.step_ms - 1


@attrs.define
class _Chunk:
    """Values of one stretch of steps, by device of a container."""

    peak: dict[_Key, _Values]
    used: dict[_Key, _Values]
    limit: dict[_Key, _Values]
    sm: dict[_Key, _Values]
    sm_limit: dict[_Key, _Values]
    #: Where this library's exporter was; by namespace, pod and container.
    ours: dict[tuple[str | None, ...], _Values]


class PrometheusHistory:
    """HAMi's metrics of containers, out of a Prometheus.

    Each step stands for all samples that were scraped in it: the highest and the average of the
    memory used, the highest limit, the average utilisation. Samples count in their own step only,
    so a step without any is a gap, and nothing is carried over. Where a device has nothing under
    the present names in a step, those of HAMi's monitor before 2.10 count.

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
        self._doubled: set[_Key] = set()
        self._old_names = False
        self._sm_limit_known = False
        self._sm_limit_unknown: set[_Key] = set()
        #: Job and instance of a target to the labels of identity that it has itself.
        self._moved: dict[tuple[str | None, ...], set[str]] = {}

    def allocation(self, number: int) -> Allocation:
        """Which allocation a number in a look means.

        Raises:
            LookupError: None that was in a look.
        """
        return self._allocations[number]

    def facts(self) -> HistoryFacts:
        """What is known about the source, once its looks have been read."""
        warnings = list(self._warnings)
        if self._doubled:
            warnings.append(
                "devices of containers that are exported more than once (two exporters, or two jobs"
                f" that scrape one): {len(self._doubled)}; the higher value counts. Choose one with"
                " --match."
            )
        if self._old_names:
            warnings.append("part of this comes from the metrics' names before HAMi 2.10")
        if self._sm_limit_known and self._sm_limit_unknown:
            warnings.append(
                "devices of containers whose SM limits are not known for all of the time, as only"
                f" HAMi's monitor exported them: {len(self._sm_limit_unknown)}; GPU hours allocated"
                " leave that time out"
            )
        return HistoryFacts(
            kind="prometheus",
            source=self._api.url,
            node=None,
            resolution_s=self._step_ms / 1000,
            averaged=True,
            knows_sm_limits=self._sm_limit_known,
            warnings=tuple(warnings),
        )

    def looks(self, since_ms: int, until_ms: int) -> Iterator[Look]:
        """The looks that hold between two moments.

        Raises:
            PrometheusError: It cannot be asked, or refuses.
        """
        self._step_ms = self._given_step_ms or _step_for(until_ms - since_ms)
        states: dict[_Key, AllocationState] = {}
        activity: dict[_Key, Activity] = {}
        gap = True
        for steps in _stretches(since_ms, until_ms, self._step_ms):
            chunk = self._chunk(steps)
            for at in range(steps.count):
                now, acting = self._at(chunk, at, states)
                if not now:
                    gap = True
                    states, activity = {}, {}
                    continue
                start_ms = steps.start_ms + at * steps.step_ms
                changed: dict[int, AllocationState | None] = {
                    self._number(key): state
                    for key, state in now.items()
                    if states.get(key) != state
                }
                changed.update((self._number(key), None) for key in states.keys() - now.keys())
                yield Look(
                    start_ms,
                    start_ms + steps.step_ms,
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
            # Whatever is no share of a GPU says nothing about one.
            percent = round(sm_limit * 100) if sm_limit and sm_limit < 1 else None
            is_known = percent is not None or _value(chunk.ours, key[:3], at) is not None
            if is_known:
                self._sm_limit_known = True
            else:
                self._sm_limit_unknown.add(key)
            states[key] = AllocationState(
                round(peak if used is None else used),
                round(peak),
                round(limit) if limit else None,
                percent,
                sm_limit_known=is_known,
            )
            activity[key] = (_value(chunk.sm, key, at), None)
        return states, activity

    # ---- asking ----------------------------------------------------------------------------------

    def _chunk(self, steps: _Steps) -> _Chunk:
        chunk = self._named(_NOW, steps)
        before = self._named(_BEFORE, steps)
        if chunk.peak:
            chunk.sm_limit = self._ask(self._over_time("max", _SM_LIMIT, steps), _NOW, steps)
            ours = self._ask(self._over_time("max", _OUR_EXPORTER, steps), _NOW, steps)
            chunk.ours = {key[:3]: values for key, values in ours.items()}
        if _fill(chunk.peak, before.peak):
            self._old_names = True
            _fill(chunk.used, before.used)
            _fill(chunk.limit, before.limit)
            _fill(chunk.sm, before.sm)
        return chunk

    def _named(self, names: _Names, steps: _Steps) -> _Chunk:
        """What there is under the names of one generation."""
        answer = self._series(self._over_time("max", names.used, steps), names, steps)
        self._doubled.update(_doubled(answer, steps))
        peak = _highest(answer, steps)
        if not peak:
            return _Chunk({}, {}, {}, {}, {}, {})
        return _Chunk(
            peak,
            self._ask(self._over_time("avg", names.used, steps), names, steps),
            self._ask(self._over_time("max", names.limit, steps), names, steps),
            self._utilization(names, steps),
            {},
            {},
        )

    def _utilization(self, names: _Names, steps: _Steps) -> dict[_Key, _Values]:
        """The average, with 100 % in place of what is above."""
        metric = names.utilization
        average = self._ask(self._over_time("avg", metric, steps), names, steps)
        above = self._ask(f"{self._over_time('max', metric, steps)} > 100", names, steps)
        if not above:
            return average
        # Samples cannot be cut, only averages of them: those of windows in which there is one. A
        # subquery over the samples themselves would carry them on for minutes.
        most = min(
            steps.step_ms // _WINDOW_MS, _WINDOWS_ASKED // (steps.count * max(1, len(average)))
        )
        windows = next((each for each in range(most, 1, -1) if steps.step_ms % each == 0), None)
        if windows is None:
            return average
        length_ms = steps.step_ms // windows
        # Subqueries look at multiples of their resolution, whenever the steps begin.
        to_multiple_ms = -steps.start_ms % length_ms
        window = f"[{length_ms - 1}ms] offset {to_multiple_ms + 1}ms"
        cut = self._ask(
            f"avg_over_time(clamp_max(avg_over_time({metric}{self._matchers}{window}), 100)"
            f"[{steps.window_ms}ms:{length_ms}ms])",
            names,
            steps,
            later_ms=to_multiple_ms + length_ms,
        )
        for key, passed in above.items():
            values = average.get(key)
            if values is not None:
                for at in range(steps.count):
                    value = _value(cut, key, at)
                    if passed[at] is not None and value is not None:
                        values[at] = value
        return average

    def _over_time(self, how: str, metric: str, steps: _Steps) -> str:
        return f"{how}_over_time({metric}{self._matchers}[{steps.window_ms}ms])"

    def _ask(
        self, query: str, names: _Names, steps: _Steps, *, later_ms: int = 0
    ) -> dict[_Key, _Values]:
        return _highest(self._series(query, names, steps, later_ms=later_ms), steps)

    def _series(
        self, query: str, names: _Names, steps: _Steps, *, later_ms: int = 0
    ) -> list[_Points]:
        """The series of an answer; asked for when each step has ended, or so much later."""
        first_ms = steps.first_ms + later_ms
        answer = self._api.query_range(
            query, first_ms, first_ms + (steps.count - 1) * steps.step_ms, steps.step_ms
        )
        self._warnings.update(dict.fromkeys(answer.warnings))
        for series in answer.series:
            self._note_moved(series[0], names)
        found = []
        for labels, values in answer.series:
            points = {}
            for at_s, text in values:
                at = round((at_s * 1000 - first_ms) / steps.step_ms)
                value = _number(text)
                if value is not None and 0 <= at < steps.count:
                    points[at] = value
            found.append((self._key(labels, names), points))
        return found

    # ---- whose series it is ----------------------------------------------------------------------

    def _note_moved(self, labels: dict[str, str], names: _Names) -> None:
        # Inner to outer: a target that is a container is in a pod, and a pod in a namespace. An
        # empty label of the metric is none: the target's stays then, and nothing is moved aside.
        identity = (names.container, names.pod, names.namespace)
        for at, name in enumerate(identity):
            if f"exported_{name}" in labels:
                self._moved.setdefault(_target(labels), set()).update(identity[at:])
                return

    def _key(self, labels: dict[str, str], names: _Names) -> _Key:
        of_target = self._moved.get(_target(labels), ())

        def label(name: str) -> str | None:
            # Where a scrape adds labels of its own (the exporter's pod), the metric's step back.
            own = None if name in of_target else labels.get(name)
            return labels.get(f"exported_{name}", own) or None

        index = label(names.index) or ""
        return (
            label(names.namespace),
            label(names.pod),
            label(names.container),
            int(index) if index.isascii() and index.isdigit() and len(index) < 10 else 0,
            label(names.uuid),
        )


def _target(labels: dict[str, str]) -> tuple[str | None, ...]:
    return labels.get("job"), labels.get("instance")


def _highest(answer: Iterable[_Points], steps: _Steps) -> dict[_Key, _Values]:
    """Values by step; of several series of one device the highest."""
    found: dict[_Key, _Values] = {}
    for key, points in answer:
        values = found.get(key)
        if values is None:
            values = found[key] = [None] * steps.count
        for at, value in points.items():
            known = values[at]
            values[at] = value if known is None else max(known, value)
    return found


def _doubled(answer: Iterable[_Points], steps: _Steps) -> Iterator[_Key]:
    """Devices that two series tell of at the same time, and not one after the other."""
    holders: dict[_Key, list[int | None]] = {}
    for number, (key, points) in enumerate(answer):
        holding = holders.setdefault(key, [None] * steps.count)
        shared: dict[int, int] = {}
        for at in points:
            holder = holding[at]
            if holder is None:
                holding[at] = number
            else:
                shared[holder] = shared.get(holder, 0) + 1
        if any(count > _OVERLAP_ALLOWED for count in shared.values()):
            yield key


def _fill(values: dict[_Key, _Values], others: dict[_Key, _Values]) -> bool:
    """Put in from others what is not there; tells whether there was anything."""
    filled = False
    for key, more in others.items():
        own = values.setdefault(key, [None] * len(more))
        for at, value in enumerate(more):
            if own[at] is None and value is not None:
                own[at] = value
                filled = True
    return filled


def _value(values: dict[_AnyKey, _Values], key: _AnyKey, at: int) -> float | None:
    of_key = values.get(key)
    return None if of_key is None else of_key[at]


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    # Also false for what is no number.
    return value if 0 <= value <= _MOST else None


def _stretches(since_ms: int, until_ms: int, step_ms: int) -> Iterator[_Steps]:
    """Whole steps, and what is left after them: nothing that was scraped later may count."""
    whole, rest_ms = divmod(until_ms - since_ms, step_ms)
    for first in range(0, whole, _CHUNK_STEPS):
        yield _Steps(since_ms + first * step_ms, step_ms, min(_CHUNK_STEPS, whole - first))
    if rest_ms:
        yield _Steps(until_ms - rest_ms, rest_ms, 1)


def _step_for(whole_ms: int) -> int:
    for step_s in _STEPS_S:
        if whole_ms <= step_s * 1000 * _POINTS_WANTED:
            return step_s * 1000
    return _STEPS_S[-1] * 1000

"""What a Prometheus has scraped of the exporter, as looks for a report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

from .history import Allocation, HistoryFacts, Look, Sample
from .prometheus_http import AnswerTooLarge, PrometheusServer, authorization

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from libhamiregion.errors import PathLike

    from .prometheus_http import Series

#: What is asked for each step. {match}: matchers. {step}: the step, without its last millisecond,
#: so that a sample on the border counts once. Utilisation is the average of samples that are cut at
#: 100 %: a subquery over the samples themselves would carry them on for minutes, so what is cut are
#: the averages of short windows.
QUERIES: Final = {
    "peak": "max_over_time(hami_vgpu_memory_used_bytes{match}[{step}ms])",
    "used": "avg_over_time(hami_vgpu_memory_used_bytes{match}[{step}ms])",
    "limit": "max_over_time(hami_vgpu_memory_limit_bytes{match}[{step}ms])",
    "sm": "avg_over_time(clamp_max(avg_over_time(hami_container_device_utilization_ratio{match}"
    "[{inside}ms] offset -{inside}ms), 100)[{whole}ms:{window}ms])",
    "sm_limit": "max_over_time(hamiregion_device_sm_limit_ratio{match}[{step}ms])",
    # HAMi's monitor does not have it. Of a container with it, no SM limit is a whole GPU.
    "info": "max_over_time(hamiregion_container_info{match}[{step}ms])",
}
# Points per query, far below the 11,000 that a Prometheus gives; 512 series come to some MiB.
_CHUNK_STEPS: Final = 480
_POINTS_WANTED: Final = 1_500
_STEPS_S: Final = (60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400, 43_200, 86_400)
# Scrapes are seldom closer. The number of windows bounds what the server computes for one answer.
_WINDOW_MS: Final = 15_000
_WINDOWS_PER_ANSWER: Final = 10_000_000
# More than any of these metrics can say.
_MOST: Final = 2.0**64

_Key: TypeAlias = "tuple[str | None, str | None, str | None, int, str | None]"
_Column: TypeAlias = "dict[_Key, list[float | None]]"


@attrs.frozen
class _Steps:
    """A stretch of steps of one length."""

    start_ms: int
    step_ms: int
    count: int

    @property
    def first_ms(self) -> int:
        """When the first step ends: where its values stand."""
        return self.start_ms + self.step_ms - 1

    def halves(self) -> tuple[_Steps, ...]:
        """Two parts of it, the later one first; itself if it is one step."""
        first = self.count // 2
        if not first:
            return (self,)
        later_ms = self.start_ms + first * self.step_ms
        return (
            attrs.evolve(self, start_ms=later_ms, count=self.count - first),
            attrs.evolve(self, count=first),
        )


class PrometheusHistory:
    """The exporter's metrics of containers, out of a Prometheus.

    Each step stands for all samples that were scraped in it: the highest and the average of the
    memory used, the highest limit, the average utilisation. Samples count in their own step only,
    so a step without any is a gap, and nothing is carried over. HAMi's monitor exports the same
    metrics but SM limits.

    Threads: one at a time.

    Args:
        url: Address of the Prometheus, or of what has its API: what comes before ``/api/v1``.
        step_s: Length of a step, at least the interval of scrapes; None chooses a minute for a
            day, and longer ones for more.
        matchers: Labels that the series must have, as in PromQL: ``job="hami",cluster="west"``.
        token: Bearer token to sign in with.
        user: Name to sign in with, if there is no token.
        password: Password of that user.
        ca_file: Certificates to trust in place of the system's.
        timeout_s: For connecting, and for each answer as a whole.

    Raises:
        ValueError: No http or https address, one with a password in it, a step below a second, or
            braces in the matchers.
        OSError: The file of certificates cannot be read.
    """

    def __init__(
        self,
        url: str,
        *,
        step_s: float | None = None,
        matchers: str = "",
        token: str | None = None,
        user: str | None = None,
        password: str | None = None,
        ca_file: PathLike | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        if step_s is not None and not 1 <= step_s <= 86_400:
            raise ValueError(f"a step is a second or more and a day at most, not {step_s:g} s")
        if "{" in matchers or "}" in matchers:
            raise ValueError('matchers are written without braces: job="hami"')
        self._server = PrometheusServer(
            url,
            authorization=authorization(token, user, password),
            ca_file=ca_file,
            timeout_s=timeout_s,
        )
        self._given_step_ms = None if step_s is None else round(step_s * 1000)
        self._step_ms = self._given_step_ms or 0
        self._match = f"{{{matchers}}}" if matchers else ""
        self._warnings: dict[str, None] = {}
        self._doubled: set[_Key] = set()
        self._sm_limit_unknown: set[_Key] = set()

    def facts(self) -> HistoryFacts:
        """Describe the source, once its looks have been read."""
        warnings = list(self._warnings)
        if self._doubled:
            warnings.append(
                "devices of containers that are exported more than once (two exporters, or two jobs"
                f" that scrape one): {len(self._doubled)}; the higher value counts. Choose one with"
                " --match."
            )
        if self._sm_limit_unknown:
            warnings.append(
                "devices of containers whose SM limits are not known for all of the time, as only"
                f" HAMi's monitor exported them: {len(self._sm_limit_unknown)}; GPU hours allocated"
                " leave that time out"
            )
        resolution_s = self._step_ms / 1000
        return HistoryFacts("prometheus", self._server.url, None, resolution_s, tuple(warnings))

    def looks(self, since_ms: int, until_ms: int) -> Iterator[Look]:
        """Yield the looks that hold between two moments.

        Raises:
            PrometheusError: It cannot be asked, or refuses.
        """
        self._step_ms = self._given_step_ms or _step_for(until_ms - since_ms)
        before: dict[Allocation, Sample] = {}
        left = list(_stretches(since_ms, until_ms, self._step_ms))[::-1]
        while left:
            steps = left.pop()
            try:
                columns = self._columns(steps)
            except AnswerTooLarge:
                if steps.count == 1:
                    raise
                # So many series: those to come are divided as well.
                left = [half for each in (*left, steps) for half in each.halves()]
                continue
            for at in range(steps.count):
                now = self._at(columns, at)
                changes: dict[Allocation, Sample | None] = {
                    allocation: sample
                    for allocation, sample in now.items()
                    if before.get(allocation) != sample
                }
                changes.update(dict.fromkeys(before.keys() - now.keys()))
                if now:
                    start_ms = steps.start_ms + at * steps.step_ms
                    yield Look(start_ms, start_ms + steps.step_ms, not before, changes)
                before = now

    def _columns(self, steps: _Steps) -> dict[str, _Column]:
        columns: dict[str, _Column] = {}
        for name, query in QUERIES.items():
            columns[name] = self._column(name, query, steps, len(columns.get("peak", ())))
            if not columns["peak"]:
                break
        return columns

    def _at(self, columns: Mapping[str, _Column], at: int) -> dict[Allocation, Sample]:
        found = {}
        for key, peaks in columns["peak"].items():
            peak = peaks[at]
            if peak is None:
                continue
            used, limit, sm, sm_limit = (
                _value(columns[name], key, at) for name in ("used", "limit", "sm", "sm_limit")
            )
            namespace, pod, container, index, uuid = key
            # Whatever is no share of a GPU says nothing about one.
            percent = round(sm_limit * 100) if sm_limit and sm_limit < 1 else None
            if percent is None:
                if _value(columns["info"], (*key[:3], 0, None), at) is None:
                    self._sm_limit_unknown.add(key)
                else:
                    percent = 100
            found[Allocation(namespace, pod, container, None, index, uuid)] = Sample(
                round(peak if used is None else used),
                round(limit) if limit else None,
                percent,
                sm,
                memory_peak_bytes=round(peak),
            )
        return found

    def _column(self, name: str, query: str, steps: _Steps, devices: int) -> _Column:
        """Ask for one figure: its values by step, of several series of one device the highest."""
        most = _WINDOWS_PER_ANSWER // (steps.count * max(1, devices))
        window_ms = max(1, steps.step_ms // max(1, min(most, steps.step_ms // _WINDOW_MS)))
        for placeholder, value in {
            "match": self._match,
            "step": max(1, steps.step_ms - 1),
            "whole": steps.step_ms,
            "window": window_ms,
            "inside": max(1, window_ms - 1),
        }.items():
            query = query.replace(f"{{{placeholder}}}", str(value))
        series, warnings = self._server.query_range(
            query, steps.first_ms, steps.first_ms + (steps.count - 1) * steps.step_ms, steps.step_ms
        )
        self._warnings.update(dict.fromkeys(warnings))
        found: _Column = {}
        for each in series:
            key, points = _points(each, steps)
            values = found.setdefault(key, [None] * steps.count)
            shared = 0
            for at, value in points.items():
                known = values[at]
                shared += known is not None
                values[at] = value if known is None else max(known, value)
            # One exporter that takes over from another shares a step or two with it.
            if name == "peak" and shared > 2 and 2 * shared > len(points):
                self._doubled.add(key)
        return found


def _points(series: Series, steps: _Steps) -> tuple[_Key, dict[int, float]]:
    labels, values = series

    def label(name: str) -> str | None:
        # A scrape without honor_labels moves the metric's own labels aside, for the target's.
        if any(f"exported_{each}" in labels for each in ("namespace", "pod")):
            moved = labels.get(f"exported_{name}")
            return moved or (labels.get(name) if name == "container" else None)
        return labels.get(f"exported_{name}") or labels.get(name) or None

    index = labels.get("vdevice_index", "")
    number = int(index) if index.isascii() and index.isdigit() and len(index) < 10 else 0
    key = (label("namespace"), label("pod"), label("container"), number, labels.get("device_uuid"))
    points = {}
    for at_s, text in values:
        at = round((at_s * 1000 - steps.first_ms) / steps.step_ms)
        value = _number(text)
        if value is not None and 0 <= at < steps.count:
            points[at] = value
    return key, points


def _value(column: _Column, key: _Key, at: int) -> float | None:
    values = column.get(key)
    return None if values is None else values[at]


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    # Also false for NaN.
    return value if 0 <= value <= _MOST else None


def _stretches(since_ms: int, until_ms: int, step_ms: int) -> Iterator[_Steps]:
    """Divide into whole steps and what is left: nothing that was scraped later may count."""
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

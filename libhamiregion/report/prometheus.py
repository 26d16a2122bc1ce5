"""Samples that a Prometheus has scraped from the exporter, as a history for a report."""

from __future__ import annotations

import base64
import http.client
import json
import urllib.error
import urllib.request
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias
from urllib.parse import urlencode, urlsplit

from libhamiregion.observation.figures import size_or_none
from libhamiregion.text import printable

from .history import Allocation, Gpu, HistoryFacts, ReportInterval, Sample

if TYPE_CHECKING:
    from collections.abc import Iterator

# Containers without a region that have no share of a GPU.
_WHOLE: Final = "max_over_time(hamiregion_container_missing_info{whole}[{inside}ms])"
_DRIVER: Final = "max_over_time(hamiregion_driver_container_memory_used_bytes{match}[{inside}ms])"
_NAMES: Final = "namespace,pod,container,exported_namespace,exported_pod,exported_container"
#: The query of each figure by step. {match}: matchers. {inside}: the step without its last
#: millisecond, so that a sample on the border counts once. {window}: the resolution of the average
#: of utilisation, which is cut at 100 % before. 1,024 processes cannot have more than 102,400 %.
QUERIES: Final = {
    "peak": "max_over_time(hami_vgpu_memory_used_bytes{match}[{inside}ms])"
    # Without a region: those that use a GPU, or were given a whole one.
    f" or {_DRIVER} > 0 or {_DRIVER} and on(instance,{_NAMES}) {_WHOLE}",
    "used": "avg_over_time(hami_vgpu_memory_used_bytes{match}[{inside}ms])"
    " or avg_over_time(hamiregion_driver_container_memory_used_bytes{match}[{inside}ms])",
    "limit": "max_over_time(hami_vgpu_memory_limit_bytes{match}[{inside}ms])",
    "sm": "avg_over_time(clamp_max(hami_container_device_utilization_ratio{match} <= 102400, 100)"
    "[{step}ms:{window}ms])"
    " or 100 * avg_over_time(clamp_max("
    "hamiregion_driver_container_sm_utilization_ratio{match}, 1)[{step}ms:{window}ms])",
    "sm_limit": "max_over_time(hamiregion_device_sm_limit_ratio{match}[{inside}ms])",
    # HAMi's monitor does not have it. Of a container with it, no SM limit is a whole GPU.
    "info": f"max_over_time(hamiregion_container_info{{match}}[{{inside}}ms]) or {_WHOLE}",
}
#: GPUs, and MIG devices; HAMi's monitor does not have it.
_DEVICES: Final = "max_over_time(hamiregion_gpu_memory_total_bytes{match}[{step}ms:{window}ms])"
# Points per query, far below the 11,000 that a Prometheus gives; 2,000 series come to some MiB.
_CHUNK_STEPS: Final = 120
_POINTS_WANTED: Final = 1_500
_MINUTE_MS: Final = 60_000
# Scrapes are seldom closer. The number of windows bounds the server's work.
_WINDOW_MS: Final = 15_000
_WINDOWS_PER_STEP: Final = 40
# More than any GPU has.
_MOST: Final = 2.0**46
# As Python's objects an answer takes ten times as much.
_ANSWER_LIMIT = 32 << 20
_SHOWN: Final = 300

#: Namespace, pod, container, device index and uuid.
_Key: TypeAlias = "tuple[str | None, str | None, str | None, int, str | None]"
#: The value of each step.
_Column: TypeAlias = "dict[_Key, dict[int, float]]"


class PrometheusError(Exception):
    """A Prometheus cannot be asked, or refuses to answer."""


class _Steps(NamedTuple):
    """A stretch of steps of one length, and when the first one ends: the time of its values."""

    start_ms: int
    step_ms: int
    number: int
    first_ms: int


class PrometheusHistory:
    """The exporter's metrics of containers, from a Prometheus, or anything with its API.

    Each step covers all samples that were scraped in it: the highest and the average of the
    memory used, the highest limit, the average utilisation. A step without samples is a gap.
    HAMi's monitor exports the same metrics, except SM limits.

    Redirects are not followed, as they could take the credentials elsewhere. Proxies of the
    environment are used, and the certificates of SSL_CERT_FILE if it is set.

    Threads: one at a time.

    Args:
        url: The address before ``/api/v1``.
        step_s: Length of a step, at least the scrape interval; None chooses a minute for a day, and
            seven for a week.
        matchers: Labels that the series must have, as in PromQL: ``job="hami",cluster="west"``.
        token: Bearer token to sign in with.
        user: Name to sign in with, if there is no token.
        password: Password of that user.
        timeout_s: For connecting, and for each wait for more of an answer.

    Raises:
        ValueError: No http or https address, one with a password in it, a step below a second, or
            braces in the matchers.
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
        timeout_s: float = 60.0,
    ) -> None:
        if step_s is not None and not 1 <= step_s <= 86_400:
            raise ValueError(f"a step is a second or more and a day at most, not {step_s:g} s")
        if "{" in matchers or "}" in matchers:
            raise ValueError('matchers are written without braces: job="hami"')
        self._url = _checked_url(url)
        self._authorization = _authorization(token, user, password)
        self._timeout_s = timeout_s
        self._opener = urllib.request.build_opener(_NoRedirect)
        self._given_step_ms = None if step_s is None else round(step_s * 1000)
        self._step_ms = self._given_step_ms or 0
        self._matchers = matchers
        self._warnings: dict[str, None] = {}
        self._is_sm_limit_unknown = False

    def facts(self) -> HistoryFacts:
        """Describe the source, once its intervals have been read."""
        warnings = list(self._warnings)
        if self._is_sm_limit_unknown:
            warnings.append(
                "some SM limits are not known for all of the time: only HAMi's monitor exported"
                " them, or the container had no region; GPU hours allocated leave that time out"
            )
        step_s = self._step_ms / 1000
        return HistoryFacts("prometheus", self._url, None, step_s, warnings=tuple(warnings))

    def devices(self, since_ms: int, until_ms: int) -> dict[str, Gpu]:
        """Describe the GPUs that were exported.

        Raises:
            PrometheusError: It cannot be asked, or refuses.
        """
        length_ms = until_ms - since_ms
        steps = _Steps(since_ms, length_ms, 1, until_ms - 1)
        window_ms = max(_MINUTE_MS, length_ms // _POINTS_WANTED)
        query = _DEVICES.format(match=self._match(), step=length_ms, window=window_ms)
        return {
            labels.get("device_uuid", ""): Gpu(labels.get("device_type"), round(points[0]))
            for labels, points in self._series(query, steps)
            if points.get(0)
        }

    def intervals(self, since_ms: int, until_ms: int) -> Iterator[ReportInterval]:
        """Yield one interval for each step with samples.

        Raises:
            PrometheusError: It cannot be asked, or refuses.
        """
        self._step_ms = self._given_step_ms or _MINUTE_MS * -(
            -(until_ms - since_ms) // (_POINTS_WANTED * _MINUTE_MS)
        )
        for steps in _stretches(since_ms, until_ms, self._step_ms):
            columns = {name: self._column(query, steps) for name, query in QUERIES.items()}
            for at in range(steps.number):
                samples = self._samples(columns, at)
                if samples:
                    start_ms = steps.start_ms + at * steps.step_ms
                    yield ReportInterval(start_ms, start_ms + steps.step_ms, True, samples)

    def _samples(self, columns: dict[str, _Column], at: int) -> dict[Allocation, Sample | None]:
        found: dict[Allocation, Sample | None] = {}
        for key, peaks in columns["peak"].items():
            peak = peaks.get(at)
            if peak is None or size_or_none(round(peak)) is None:
                continue
            used, limit, sm, sm_limit = (
                columns[name].get(key, {}).get(at) for name in ("used", "limit", "sm", "sm_limit")
            )
            namespace, pod, container, index, uuid = key
            # A value that is no share of a GPU says nothing about one.
            percent = round(sm_limit * 100) if sm_limit and sm_limit < 1 else None
            if percent is None:
                if at in columns["info"].get((namespace, pod, container, 0, None), {}):
                    percent = 100
                else:
                    self._is_sm_limit_unknown = True
            found[Allocation(namespace, pod, container, None, index, uuid)] = Sample(
                round(peak if used is None else used),
                round(limit) if limit else None,
                percent,
                sm,
                memory_peak_bytes=round(peak),
            )
        return found

    def _match(self, *more: str) -> str:
        given = (self._matchers.rstrip(", "),) if self._matchers else ()
        return f"{{{','.join((*given, *more))}}}"

    def _column(self, query: str, steps: _Steps) -> _Column:
        """Query one figure: its values by step, of several series of one device the highest."""
        query = query.format(
            match=self._match(),
            whole=self._match('reason=~"whole_gpu|shared_gpu|mig_device"'),
            inside=max(1, steps.step_ms - 1),
            step=steps.step_ms,
            window=min(steps.step_ms, max(_WINDOW_MS, steps.step_ms // _WINDOWS_PER_STEP)),
        )
        found: _Column = defaultdict(dict)
        for labels, points in self._series(query, steps):
            key = _key(labels)
            # Two exporters, or two jobs that scrape one, count once.
            for at, value in points.items():
                found[key][at] = max(value, found[key].get(at, value))
        return found

    def _series(
        self, query: str, steps: _Steps
    ) -> Iterator[tuple[dict[str, str], dict[int, float]]]:
        last_ms = steps.first_ms + (steps.number - 1) * steps.step_ms
        times = {"start": steps.first_ms, "end": last_ms, "step": steps.step_ms}
        parameters = {"query": query, **{name: f"{ms / 1000:.3f}" for name, ms in times.items()}}
        document = self._get(f"query_range?{urlencode(parameters)}")
        try:
            data = document["data"]
            if data["resultType"] != "matrix":
                raise ValueError(data["resultType"])
            for each in data["result"]:
                labels = {name: str(value) for name, value in each["metric"].items()}
                yield labels, _points(each["values"], steps)
            warnings = [printable(str(each), _SHOWN) for each in document.get("warnings") or ()]
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
            raise self._error("answers, but not with series as a Prometheus does") from None
        self._warnings.update(dict.fromkeys(warnings[:10]))

    # ---- HTTP ------------------------------------------------------------------------------------

    def _error(self, message: str) -> PrometheusError:
        return PrometheusError(f"{printable(self._url, _SHOWN)} {message}")

    def _get(self, what: str) -> dict[str, Any]:
        request = urllib.request.Request(  # noqa: S310 (the opener knows http and https only)
            f"{self._url}/api/v1/{what}",
            headers={"Accept": "application/json", "User-Agent": "hamiregion"},
        )
        if self._authorization is not None:
            request.add_unredirected_header("Authorization", self._authorization)
        try:
            with self._opener.open(request, timeout=self._timeout_s) as response:
                body = response.read(_ANSWER_LIMIT + 1)
        except urllib.error.HTTPError as error:
            with error:
                raise self._refused(error) from None
        except (OSError, http.client.HTTPException) as error:
            raise self._error(f"cannot be reached: {printable(str(error), _SHOWN)}") from None
        if len(body) > _ANSWER_LIMIT:
            raise self._error(
                f"sends more than {_ANSWER_LIMIT >> 20} MiB; choose fewer series by --match"
            )
        try:
            document: dict[str, Any] = json.loads(body)
            status = document["status"]
        except (ValueError, RecursionError, LookupError, TypeError):
            raise self._error("answers, but not as a Prometheus does") from None
        if status != "success":
            raise self._error(f"refuses: {printable(str(document.get('error')), _SHOWN)}")
        return document

    def _refused(self, error: urllib.error.HTTPError) -> PrometheusError:
        try:
            said = json.loads(error.read(1 << 16))["error"]
        except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError):
            said = f"{error.reason}; are the address and the credentials right?"
        return self._error(f"refuses (HTTP {error.code}): {printable(str(said), _SHOWN)}")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None


def _authorization(token: str | None, user: str | None, password: str | None) -> str | None:
    if token is not None:
        if not (token.isprintable() and token.isascii()):
            raise ValueError("the token has characters that no header can hold")
        return f"Bearer {token}"
    if user is not None:
        pair = f"{user}:{password or ''}".encode()
        return f"Basic {base64.b64encode(pair).decode('ascii')}"
    return None


def _checked_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.username is not None or parts.password is not None:
        raise ValueError(
            "the address of a Prometheus is part of the report, so it must not hold a password;"
            " give user and password on their own"
        )
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query:
        raise ValueError(f"{printable(url, _SHOWN)!r} is no http:// or https:// address")
    path = parts.path.rstrip("/").removesuffix("/api/v1").rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{path}"


def _key(labels: dict[str, str]) -> _Key:
    def label(name: str) -> str | None:
        # A scrape without honor_labels moves the metric's own labels aside, for the target's.
        if any(f"exported_{each}" in labels for each in ("namespace", "pod")):
            moved = labels.get(f"exported_{name}")
            return moved or (labels.get(name) if name == "container" else None)
        return labels.get(f"exported_{name}") or labels.get(name) or None

    index = labels.get("vdevice_index", "")
    number = int(index) if index.isascii() and index.isdigit() and len(index) < 10 else 0
    return label("namespace"), label("pod"), label("container"), number, labels.get("device_uuid")


def _points(values: list[tuple[float, str]], steps: _Steps) -> dict[int, float]:
    """Read the values by step; without those that cannot be."""
    points = {}
    for at_s, text in values:
        at = round((at_s * 1000 - steps.first_ms) / steps.step_ms)
        try:
            value = float(text)
        except ValueError:
            continue
        # Also false for NaN.
        if 0 <= value <= _MOST and 0 <= at < steps.number:
            points[at] = value
    return points


def _stretches(since_ms: int, until_ms: int, step_ms: int) -> Iterator[_Steps]:
    """Divide into whole steps and a shorter last one: samples after the end must not count."""
    whole, rest_ms = divmod(until_ms - since_ms, step_ms)
    for first in range(0, whole, _CHUNK_STEPS):
        start_ms = since_ms + first * step_ms
        count = min(_CHUNK_STEPS, whole - first)
        yield _Steps(start_ms, step_ms, count, start_ms + step_ms - 1)
    if rest_ms:
        yield _Steps(until_ms - rest_ms, rest_ms, 1, until_ms - 1)

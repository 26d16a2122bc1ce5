"""A report as one page of HTML: charts inline, nothing loaded, no scripts.

Charts are SVG paths that stretch. Texts stay HTML, so they are legible at any width, and colours
come from the page's style sheet. A chart of 240 steps takes 2 to 6 KiB.
"""

from __future__ import annotations

import datetime as dt
import functools
import itertools
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from libhamiregion import __version__
from libhamiregion.html_template import html_template
from libhamiregion.text import count_text, printable
from libhamiregion.units import format_size

from .aggregate import GROUP_FIELDS, group_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import jinja2

    from .models import Report, Timeline, Usage

#: Steps of the charts over time.
CHART_POINTS: Final = 240

# Together with the template's bounds: a page stays below some 1.5 MiB whatever the node has.
_GROUPS: Final = 20
_GAPS: Final = 40
_TEXT_LIMIT: Final = 400
_NAME_LIMIT: Final = 80

# Of a chart's paths, as in the template.
_HEIGHT: Final = 1_000
# Narrower stripes cannot be seen; in percent of the width.
_NARROW: Final = 0.05
_GAPS_DRAWN: Final = 200
_TICKS: Final = 5
_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * _HOUR_MS
_TIME_STEPS_MS: Final = (
    *(seconds * 1_000 for seconds in (1, 2, 5, 10, 15, 30)),
    *(minutes * 60_000 for minutes in (1, 2, 5, 10, 15, 30)),
    *(hours * _HOUR_MS for hours in (1, 2, 3, 6, 12)),
    *(days * _DAY_MS for days in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 5_000)),
)
_NOTHING: Final = "\u2013"
_MEMORY: Final = "memory used and limits"

#: A chart as the template draws it: its name for people who hear the page, the width of the paths
#: in steps, paths by class, the first at the back, gaps as left edge and width in percent, ticks as
#: height in percent and label, and times as left edge in percent and label.
Chart: TypeAlias = "dict[str, Any]"
_Values: TypeAlias = "Sequence[float | None]"
_Gaps: TypeAlias = "Sequence[tuple[int, int]]"


def report_html(report: Report, *, zone: dt.tzinfo | None = None) -> str:
    """Write a report as a page to look at and to print: one file, which loads and runs nothing.

    The page shows 24 small charts, 20 groups with a chart each, and 1,000 lines of tables, about
    1.5 MiB at most. It says what is left out; CSV and JSON have everything.

    Args:
        report: Made with ``points``, or there are no charts; 240 is a good number.
        zone: The time zone of its times; None is the local one.

    Raises:
        ImportError: jinja2 is missing, which the extra ``cli`` installs.
    """
    return _template().render(_context(report, Times(zone)))


@functools.cache
def _template() -> jinja2.Template:
    here = Path(__file__).parent
    filters = {each.__name__: each for each in (size, number, hours, count_text)}
    return html_template(
        here / "page.html",
        style=(here / "page.css").read_text(encoding="utf-8"),
        text_limit=_TEXT_LIMIT,
        filters={"name": _name, **filters},
        values={"share": share, "memory_chart": memory_chart, "version": __version__},
    )


# ---- texts ---------------------------------------------------------------------------------------


def size(nbytes: int | None) -> str:
    """Format a size; None is unlimited."""
    return "unlimited" if nbytes is None else format_size(nbytes)


def number(value: float | None, digits: int = 0) -> str:
    """Format a number with its thousands apart; small ones keep a digit that matters.

    >>> number(12345.6), number(9.26), number(0.04)
    ('12,346', '9.3', '0.04')
    """
    if value is None:
        return _NOTHING
    if value and abs(value) < 10:
        digits = max(digits, 2 if abs(value) < 0.1 else 1)
    return f"{value:,.{digits}f}"


def hours(value: float) -> str:
    """Format a length of time.

    >>> hours(0.5), hours(5.26), hours(30), hours(80), hours(0), hours(0.001)
    ('30 min', '5.3 h', '30 h', '3.3 d', '0 h', '4 s')
    """
    if value >= 72:
        return f"{value / 24:,.1f} d"
    if value >= 1 or not value:
        return f"{value:.1f} h" if 0 < value < 10 else f"{value:.0f} h"
    return f"{value * 60:.0f} min" if value >= 1 / 60 else f"{value * 3600:.0f} s"


def share(part: float | None, whole: float | None) -> str:
    """Format a part of a whole in percent.

    >>> share(1, 3), share(0, 3), share(1, 10_000)
    ('33 %', '0 %', '<1 %')
    """
    if part is None or not whole:
        return _NOTHING
    percent = round(100 * part / whole, 6)
    return "<1 %" if 0 < percent < 1 else ">99 %" if 99 < percent < 100 else f"{percent:.0f} %"


def _name(raw: str | None, missing: str = "not known") -> str:
    return missing if raw is None else printable(raw, _NAME_LIMIT)


class Times:
    """Formats moments, Unix milliseconds, in one time zone.

    Args:
        zone: None is the local one.
    """

    def __init__(self, zone: dt.tzinfo | None = None) -> None:
        self._zone = zone

    def at(self, moment_ms: int) -> dt.datetime:
        """Return a moment as a date and time."""
        utc = dt.datetime.fromtimestamp(moment_ms / 1000, tz=dt.timezone.utc)
        return utc.astimezone(self._zone)

    def midnight_ms(self, day: dt.date) -> int:
        """Return when a day begins."""
        midnight = dt.datetime(day.year, day.month, day.day, tzinfo=self._zone)
        return round(midnight.timestamp() * 1000)

    def full(self, moment_ms: int) -> str:
        """Such as ``1 Oct 2026, 12:30``."""
        return f"{self.at(moment_ms):%-d %b %Y, %H:%M}"

    def short(self, moment_ms: int) -> str:
        """Such as ``1 Oct 12:30``."""
        return f"{self.at(moment_ms):%-d %b %H:%M}"

    def zone_name(self, moment_ms: int) -> str:
        """Such as ``UTC``, or ``CEST, UTC+02:00``."""
        at = self.at(moment_ms)
        name, offset = at.tzname() or "", f"{at:%z}"
        offset = "UTC" if offset == "+0000" else f"UTC{offset[:3]}:{offset[3:5]}"
        return offset if not name or name.startswith("UTC") else f"{name}, {offset}"


# ---- charts --------------------------------------------------------------------------------------


def memory_chart(name: str, timeline: Timeline, gaps: _Gaps, times: Times | None) -> Chart:
    """Draw memory used, its peaks, and the limit; without times as one of many small charts."""
    limits = [value or None for value in timeline.memory_limit_bytes]
    highest = max((value or 0 for value in (*timeline.memory_peak_bytes, *limits)), default=0)
    step, top = _axis(highest * 1.02 or 1 << 30, 1 << 20)
    if times is None:
        # Room for the line of the limit.
        top = highest * 1.04 or 1.0
    paths = {
        "peak": _path(timeline.memory_peak_bytes, top, area=True),
        "used": _path(timeline.memory_used_bytes, top, area=True),
        "limit": _path(limits, top),
    }
    ticks = [(height, format_size(int(value))) for height, value in _ticks(step, top)]
    return _chart(name, timeline, gaps, times, paths, ticks)


def gpu_chart(timeline: Timeline, gaps: _Gaps, times: Times, gpus: int) -> Chart:
    """Draw GPUs busy and GPUs allocated, and how many there are."""
    allocated = timeline.allocated_gpus if any(timeline.allocated_gpus) else ()
    values = (*allocated, *timeline.busy_gpus, gpus or 1)
    step, top = _axis(max(value or 0 for value in values), 1 / 16)
    paths = {
        "busy": _path(timeline.busy_gpus, top, area=True),
        "capacity": _path((gpus or None,) * len(timeline.busy_gpus), top),
        "allocated": _path(allocated, top),
    }
    ticks = [(height, f"{value:g}") for height, value in _ticks(step, top)]
    return _chart("GPUs busy and allocated", timeline, gaps, times, paths, ticks)


def gap_stripes(gaps: _Gaps, since_ms: int, until_ms: int) -> tuple[tuple[float, float], ...]:
    """Place the time that was not recorded: left edge and width, in percent."""
    whole_ms = until_ms - since_ms
    longest = sorted(gaps, key=lambda gap: gap[0] - gap[1])[:_GAPS_DRAWN]
    places = (
        (100 * (start_ms - since_ms) / whole_ms, 100 * (end_ms - start_ms) / whole_ms)
        for start_ms, end_ms in longest
    )
    return tuple((left, width) for left, width in places if width > _NARROW)


def _chart(
    name: str,
    timeline: Timeline,
    gaps: _Gaps,
    times: Times | None,
    paths: dict[str, str],
    ticks: list[tuple[float, str]],
) -> Chart:
    steps = len(timeline.memory_peak_bytes)
    start_ms, end_ms = timeline.start_ms, timeline.start_ms + steps * timeline.step_ms
    return {
        "name": name,
        "steps": steps,
        "paths": {kind: path for kind, path in paths.items() if path},
        "gaps": gap_stripes(gaps, start_ms, end_ms),
        "ticks": ticks,
        "times": [] if times is None else list(_time_ticks(start_ms, end_ms, times)),
    }


def _axis(highest: float, step: float) -> tuple[float, float]:
    """Choose the step of an axis, the given one or twice, four times ... of it, and its end."""
    while highest > _TICKS * step:
        step *= 2
    return step, math.ceil(highest / step) * step


def _ticks(step: float, top: float) -> Iterator[tuple[float, float]]:
    """Place the ticks of an axis: height in percent, and value."""
    for each in range(round(top / step) + 1):
        yield 100 * each * step / top, each * step


def _path(values: _Values, top: float, *, area: bool = False) -> str:
    """Draw steps as a line, or the area below it, with a break at each gap."""
    heights = [
        None if value is None else round(_HEIGHT * (1 - min(value / top, 1))) for value in values
    ]
    parts = []
    at, before = 0, None
    for height, group in itertools.groupby((*heights, None)):
        until = at + sum(1 for _ in group)
        if height is not None:
            if before is None:
                parts.append(f"M{at} {_HEIGHT if area else height}")
            parts.append(f"V{height}H{until}")
        elif before is not None and area:
            parts.append(f"V{_HEIGHT}Z")
        at, before = until, height
    return "".join(parts)


def _time_ticks(since_ms: int, until_ms: int, times: Times) -> Iterator[tuple[float, str]]:
    """Place round local times."""
    whole_ms = until_ms - since_ms
    step_ms = next((step for step in _TIME_STEPS_MS if whole_ms <= 8 * step), _TIME_STEPS_MS[-1])
    day = times.at(since_ms).date()
    at_ms = times.midnight_ms(day)
    if step_ms < _HOUR_MS:
        # A day has many of them.
        at_ms += (since_ms - at_ms) // step_ms * step_ms
    while at_ms <= until_ms:
        if at_ms >= since_ms:
            at = times.at(at_ms)
            form = "%H:%M" if step_ms >= 60_000 else "%H:%M:%S"
            if at.hour == at.minute == 0:
                form = "%-d %b"
            yield 100 * (at_ms - since_ms) / whole_ms, at.strftime(form)
        if step_ms < _DAY_MS:
            at_ms += step_ms
        else:
            # Days have 23 or 25 hours when the clocks change.
            day += dt.timedelta(days=step_ms // _DAY_MS)
            at_ms = times.midnight_ms(day)


# ---- contents ------------------------------------------------------------------------------------


def _allocated(row: Usage) -> tuple[float, float]:
    return -(row.allocated_gpu_hours or 0.0), _held(row)


def _held(row: Usage) -> float:
    return -max(row.limit_gib_hours, row.used_gib_hours)


def _context(report: Report, times: Times) -> dict[str, Any]:
    """Choose and order what the template shows."""
    gaps = sorted(report.gaps, key=lambda gap: gap[0] - gap[1])[:_GAPS]
    nodes = {row.node for row in report.allocations}
    about = report.node or (count_text(len(nodes), "node") if len(nodes) > 1 else None)
    shown: dict[str, Any] = {
        "report": report,
        "times": times,
        "title": "GPU report" if about is None else f"GPU report: {about}",
        "strip": gap_stripes(report.gaps, report.since_ms, report.until_ms),
        "gaps": sorted(gaps),
        "many_nodes": len(nodes) > 1,
    }
    if report.total is not None:
        shown |= _sections(report, report.total, times)
    return shown


def _sections(report: Report, total: Usage, times: Times) -> dict[str, Any]:
    rows = report.allocations
    # The last moment that anything is known of.
    end_ms = total.last_seen_ms
    there = [row for row in rows if row.last_seen_ms >= end_ms]
    containers = {(row.namespace, row.pod, row.pod_uid, row.container) for row in rows}
    charts = []
    if total.timeline is not None:
        charts.append(memory_chart(_MEMORY, total.timeline, report.gaps, times))
        if total.busy_gpu_hours is not None:
            charts.append(gpu_chart(total.timeline, report.gaps, times, report.gpus))

    def change_order(row: Usage) -> tuple[bool, bool, int]:
        # What is there still can be changed; what has no limit yet comes last.
        limit, suggested = row.memory_limit_bytes or 0, row.suggested_limit_bytes or 0
        return (row.last_seen_ms < end_ms, row.advice == "limit", -abs(suggested - limit))

    suggested = [row for row in rows if row.advice in {"lower", "raise", "limit"}]
    return {
        "end_ms": end_ms,
        "there": there,
        "unused": [row for row in there if row.unused_since_ms is not None],
        "container_count": len(containers),
        "pod_count": len({container[:3] for container in containers}),
        "charts": charts,
        "suggested": sorted(suggested, key=change_order),
        "bill": sorted(report.bill, key=_allocated),
        "cards": sorted((row for row in rows if row.timeline is not None), key=_held),
        "groups": list(_groups(report, times)),
    }


def _groups(
    report: Report, times: Times
) -> Iterator[tuple[Usage | None, Chart | None, Sequence[Usage]]]:
    """Yield the groups that held most, each with its chart and its allocations."""
    rows = sorted(report.allocations, key=_held)
    if report.by not in GROUP_FIELDS:
        yield None, None, rows
        return
    for group in sorted(report.rows, key=_held)[:_GROUPS]:
        key = group_key(group, report.by)
        chart = None
        if group.timeline is not None:
            chart = memory_chart(_MEMORY, group.timeline, report.gaps, times)
        yield group, chart, [row for row in rows if group_key(row, report.by) == key]

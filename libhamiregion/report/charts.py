"""Charts of a report: plain SVG paths that stretch, and HTML for everything that is text.

Texts stay legible at any width, and colours come from the page's style sheet, so that one picture
serves light, dark and paper. A chart of 240 steps takes 2 to 6 KiB.
"""

from __future__ import annotations

import datetime as dt
import itertools
import math
from typing import TYPE_CHECKING, Final, TypeAlias

from .words import size, text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from .models import Coverage, Timeline
    from .words import Times

_HEIGHT: Final = 1_000
_GIB: Final = 1 << 30
_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * _HOUR_MS
_TIME_STEPS_MS: Final = (
    *(minutes * 60_000 for minutes in (1, 2, 5, 10, 15, 30)),
    *(hours * _HOUR_MS for hours in (1, 2, 3, 6, 12)),
    *(days * _DAY_MS for days in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 5_000)),
)
# Stripes narrower than this share of a chart cannot be seen.
_NARROW: Final = 0.0005
_GAPS_DRAWN: Final = 200
# Of the width: less than half of a label.
_EDGE: Final = 0.03
# Of the axis of memory, at most; powers of two apart.
_TICKS: Final = 5

_Values: TypeAlias = "Sequence[float | None]"


def memory_chart(timeline: Timeline, name: str, *, gaps: Coverage, times: Times) -> str:
    """Memory used, its peaks, and the limit, with both axes."""
    highest = _highest(timeline) * 1.02 or _GIB
    step = 1 << 20
    while highest > _TICKS * step:
        step *= 2
    count = math.ceil(highest / step)
    top = count * step
    ticks = [(each / count, size(each * step) if each else "0") for each in range(count + 1)]
    paths = _memory_paths(timeline, top)
    return _framed("memory", name, ticks, paths, timeline, gaps, times)


def gpu_chart(timeline: Timeline, name: str, *, gaps: Coverage, times: Times) -> str:
    """GPUs busy and GPUs allocated, with both axes."""
    allocated = [value or 0 for value in timeline.allocated_gpus]
    busy = [value or 0 for value in timeline.busy_gpus]
    top = _nice(max(*allocated, *busy, 0.0) or 1.0)
    ticks = [(share, f"{share * top:g}" if share else "0") for share in (0, 0.5, 1)]
    paths = _area("busy", timeline.busy_gpus, top)
    if any(allocated):
        paths += _line("allocated", timeline.allocated_gpus, top)
    return _framed("gpus", name, ticks, paths, timeline, gaps, times)


def small_memory_chart(timeline: Timeline, name: str, *, gaps: Coverage) -> str:
    """Memory used against the limit, without axes, for one of many."""
    # Room for the line of the limit.
    paths = _memory_paths(timeline, _highest(timeline) * 1.04 or 1)
    inner = _gap_stripes(gaps, timeline) + _svg(paths, len(timeline.memory_peak_bytes))
    return f'<div class="area small" role="img" aria-label="{text(name)}">{inner}</div>'


def coverage_strip(coverage: Coverage, since_ms: int, until_ms: int) -> str:
    """When there were figures, and when not."""
    stripes = _stripes(coverage, since_ms, until_ms)
    return f'<div class="strip" role="img" aria-label="recorded time">{stripes}</div>'


def share_bar(share: float, kind: str = "") -> str:
    """A horizontal bar, from 0 to 1."""
    width = f"{100 * min(max(share, 0), 1):.1f}"
    return f'<span class="bar {kind}"><i style="width:{width}%"></i></span>'


def limit_bullet(limit: int | None, p99: int, peak: int, suggested: int) -> str:
    """A bar as long as the limit, filled up to the 99th percentile; marks for peak and advice."""
    whole = max(limit or 0, suggested, peak) or 1

    def percent(value: int) -> str:
        return f"{100 * value / whole:.1f}%"

    return (
        f'<span class="bullet"><b style="width:{percent(limit or whole)}"></b>'
        f'<i style="width:{percent(p99)}"></i><u style="left:{percent(peak)}"></u>'
        f'<s style="left:{percent(suggested)}"></s></span>'
    )


# ---- paths ---------------------------------------------------------------------------------------


def _memory_paths(timeline: Timeline, top: float) -> str:
    limits = [value or None for value in timeline.memory_limit_bytes]
    return (
        _area("peak", timeline.memory_peak_bytes, top)
        + _area("used", timeline.memory_used_bytes, top)
        + _line("limit", limits, top)
    )


def _runs(values: _Values, top: float) -> Iterator[list[tuple[int, int, int]]]:
    """Stretches without a gap, each as (from, to, height) of equal steps."""
    heights = [
        None if value is None else round(_HEIGHT * (1 - min(value / top, 1))) for value in values
    ]
    run: list[tuple[int, int, int]] = []
    at = 0
    for height, group in itertools.groupby(heights):
        until = at + sum(1 for _ in group)
        if height is not None:
            run.append((at, until, height))
        elif run:
            yield run
            run = []
        at = until
    if run:
        yield run


def _area(kind: str, values: _Values, top: float) -> str:
    steps = "".join(
        f"M{run[0][0]} {_HEIGHT}"
        + "".join(f"V{height}H{until}" for _, until, height in run)
        + f"V{_HEIGHT}Z"
        for run in _runs(values, top)
    )
    return f'<path class="{kind}" d="{steps}"/>' if steps else ""


def _line(kind: str, values: _Values, top: float) -> str:
    steps = "".join(
        f"M{run[0][0]} {run[0][2]}" + "".join(f"V{height}H{until}" for _, until, height in run)
        for run in _runs(values, top)
    )
    return f'<path class="{kind}" d="{steps}"/>' if steps else ""


def _svg(paths: str, steps: int) -> str:
    # The upper edge of a line at the very top is cut in half without the margin.
    return (
        f'<svg viewBox="0 0 {steps} {_HEIGHT}" preserveAspectRatio="none" aria-hidden="true">'
        f"{paths}</svg>"
    )


# ---- frames --------------------------------------------------------------------------------------


def _framed(
    kind: str,
    name: str,
    ticks: Iterable[tuple[float, str]],
    paths: str,
    timeline: Timeline,
    gaps: Coverage,
    times: Times,
) -> str:
    steps = len(timeline.memory_peak_bytes)
    until_ms = timeline.start_ms + steps * timeline.step_ms
    lines = "".join(
        f'<div class="tick" style="bottom:{100 * share:g}%"><span>{label}</span></div>'
        for share, label in ticks
    )
    labels = "".join(
        f'<span class="{_place(number, share)}" style="left:{100 * share:.2f}%">{label}</span>'
        for number, (share, label) in enumerate(_time_ticks(timeline.start_ms, until_ms, times))
    )
    return (
        f'<div class="chart {kind}" role="img" aria-label="{text(name)}">'
        f'<div class="area">{lines}{_gap_stripes(gaps, timeline)}{_svg(paths, steps)}</div>'
        f'<div class="times">{labels}</div></div>'
    )


def _place(number: int, share: float) -> str:
    """Labels at the ends stay inside, and narrow pages show every second one."""
    side = "first" if share < _EDGE else "last" if share > 1 - _EDGE else ""
    return f"{side} {'odd' if number % 2 else ''}".strip()


def _gap_stripes(coverage: Coverage, timeline: Timeline) -> str:
    steps = len(timeline.memory_peak_bytes)
    until_ms = timeline.start_ms + steps * timeline.step_ms
    return _stripes(coverage, timeline.start_ms, until_ms)


def _stripes(coverage: Coverage, since_ms: int, until_ms: int) -> str:
    whole_ms = until_ms - since_ms
    drawn = sorted(coverage.gaps, key=lambda gap: gap.start_ms - gap.end_ms)[:_GAPS_DRAWN]
    return "".join(
        f'<div class="gap" style="left:{100 * (gap.start_ms - since_ms) / whole_ms:.2f}%;'
        f'width:{100 * (gap.end_ms - gap.start_ms) / whole_ms:.2f}%"></div>'
        for gap in drawn
        if gap.end_ms - gap.start_ms > _NARROW * whole_ms
    )


def _time_ticks(since_ms: int, until_ms: int, times: Times) -> Iterator[tuple[float, str]]:
    """Where the labels of a time axis are, as shares of it: round local times."""
    whole_ms = until_ms - since_ms
    step_ms = next((step for step in _TIME_STEPS_MS if whole_ms <= 8 * step), _TIME_STEPS_MS[-1])
    start = times.at(since_ms)
    midnight = start.replace(hour=0, minute=0, second=0, microsecond=0)
    at_ms = round(midnight.timestamp() * 1000)
    at_ms += (since_ms - at_ms + step_ms - 1) // step_ms * step_ms
    while at_ms <= until_ms:
        moment = times.at(at_ms)
        if step_ms >= _DAY_MS and (moment.hour or moment.minute):
            # The clocks have changed: days are 23 or 25 hours long.
            moment = (moment + dt.timedelta(hours=12)).replace(hour=0, minute=0)
            at_ms = round(moment.timestamp() * 1000)
            if at_ms > until_ms:
                return
        is_day = step_ms >= _DAY_MS or (moment.hour == 0 and moment.minute == 0)
        label = times.day(at_ms) if is_day else times.clock(at_ms)
        yield (at_ms - since_ms) / whole_ms, label
        at_ms += step_ms


def _highest(timeline: Timeline) -> int:
    return max(
        (
            value or 0
            for values in (timeline.memory_peak_bytes, timeline.memory_limit_bytes)
            for value in values
        ),
        default=0,
    )


def _nice(value: float) -> float:
    """The next number up with a round half: 8, 10, 12, 14 or 16 times a power of two."""
    scale = 1.0
    while value > 16 * scale:
        scale *= 2
    while value <= 8 * scale and scale > 1 / 1024:
        scale /= 2
    return next((step * scale for step in (8, 10, 12, 14) if value <= step * scale), 16 * scale)

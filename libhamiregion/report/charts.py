"""The geometry of a report's charts: SVG paths that stretch, and where labels and gaps stand.

Texts stay HTML, so they are legible at any width, and colours come from the page's style sheet. A
chart of 240 steps takes 2 to 6 KiB.
"""

from __future__ import annotations

import datetime as dt
import itertools
import math
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs
from markupsafe import Markup

from .words import size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .models import Timeline
    from .words import Times

HEIGHT: Final = 1_000
_GIB: Final = 1 << 30
_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * _HOUR_MS
_TIME_STEPS_MS: Final = (
    *(seconds * 1_000 for seconds in (1, 2, 5, 10, 15, 30)),
    *(minutes * 60_000 for minutes in (1, 2, 5, 10, 15, 30)),
    *(hours * _HOUR_MS for hours in (1, 2, 3, 6, 12)),
    *(days * _DAY_MS for days in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 5_000)),
)
# Narrower stripes cannot be seen; in percent of the width.
_NARROW: Final = 0.05
_GAPS_DRAWN: Final = 200
# Of the axis of memory, at most; powers of two apart.
_TICKS: Final = 5

_Values: TypeAlias = "Sequence[float | None]"


@attrs.frozen
class Chart:
    """What the page's template draws.

    Attributes:
        name: For people who hear the page.
        steps: Width of the paths; their height is `HEIGHT`.
        paths: Class and path, the first at the back.
        gaps: Left edge and width of what was not recorded, in percent.
        ticks: Height in percent, and label.
        times: Left edge in percent, and label.
    """

    name: str
    steps: int
    paths: tuple[tuple[str, Markup], ...]
    gaps: tuple[tuple[float, float], ...]
    ticks: tuple[tuple[float, str], ...] = ()
    times: tuple[tuple[float, str], ...] = ()


def memory_chart(
    name: str, timeline: Timeline, gaps: Sequence[tuple[int, int]], times: Times | None
) -> Chart:
    """Draw memory used, its peaks, and the limit; without times no axes, for one of many."""
    highest = max(
        itertools.chain.from_iterable(
            (value or 0 for value in values)
            for values in (timeline.memory_peak_bytes, timeline.memory_limit_bytes)
        ),
        default=0,
    )
    # Room for the line of the limit.
    step, count, top = 0, 0, highest * 1.04 or 1.0
    if times is not None:
        step = 1 << 20
        while (highest * 1.02 or _GIB) > _TICKS * step:
            step *= 2
        count = math.ceil((highest * 1.02 or _GIB) / step)
        top = count * step
    limits = [value or None for value in timeline.memory_limit_bytes]
    return _chart(
        name,
        timeline,
        gaps,
        (
            ("peak", _area(timeline.memory_peak_bytes, top)),
            ("used", _area(timeline.memory_used_bytes, top)),
            ("limit", _line(limits, top)),
        ),
        ((100 * each / count, size(each * step) if each else "0") for each in range(count + 1))
        if count
        else (),
        times,
    )


def gpu_chart(
    name: str, timeline: Timeline, gaps: Sequence[tuple[int, int]], times: Times
) -> Chart:
    """Draw GPUs busy and GPUs allocated."""
    allocated = timeline.allocated_gpus if any(timeline.allocated_gpus) else ()
    highest = max((value or 0 for value in (*allocated, *timeline.busy_gpus)), default=0)
    top = _round_half(highest or 1.0)
    return _chart(
        name,
        timeline,
        gaps,
        (("busy", _area(timeline.busy_gpus, top)), ("allocated", _line(allocated, top))),
        ((100 * part, f"{part * top:g}") for part in (0, 0.5, 1)),
        times,
    )


def gap_stripes(
    gaps: Sequence[tuple[int, int]], since_ms: int, until_ms: int
) -> tuple[tuple[float, float], ...]:
    """Place what was not recorded: left edge and width, in percent."""
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
    gaps: Sequence[tuple[int, int]],
    paths: tuple[tuple[str, str], ...],
    ticks: Iterator[tuple[float, str]] | tuple[()],
    times: Times | None,
) -> Chart:
    steps = len(timeline.memory_peak_bytes)
    start_ms, end_ms = timeline.start_ms, timeline.start_ms + steps * timeline.step_ms
    return Chart(
        name,
        steps,
        # Digits and letters of paths only.
        tuple((kind, Markup(path)) for kind, path in paths if path),  # noqa: S704
        gap_stripes(gaps, start_ms, end_ms),
        tuple(ticks),
        () if times is None else tuple(_time_ticks(start_ms, end_ms, times)),
    )


def _runs(values: _Values, top: float) -> Iterator[list[tuple[int, int, int]]]:
    """Divide into stretches without a gap, each as (from, to, height) of equal steps."""
    heights = [
        None if value is None else round(HEIGHT * (1 - min(value / top, 1))) for value in values
    ]
    at = 0
    run: list[tuple[int, int, int]] = []
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


def _area(values: _Values, top: float) -> str:
    return "".join(
        f"M{run[0][0]} {HEIGHT}"
        + "".join(f"V{height}H{until}" for _, until, height in run)
        + f"V{HEIGHT}Z"
        for run in _runs(values, top)
    )


def _line(values: _Values, top: float) -> str:
    return "".join(
        f"M{run[0][0]} {run[0][2]}" + "".join(f"V{height}H{until}" for _, until, height in run)
        for run in _runs(values, top)
    )


def _time_ticks(since_ms: int, until_ms: int, times: Times) -> Iterator[tuple[float, str]]:
    """Place round local times."""
    whole_ms = until_ms - since_ms
    step_ms = next((step for step in _TIME_STEPS_MS if whole_ms <= 8 * step), _TIME_STEPS_MS[-1])
    day = times.at(since_ms).date()
    at_ms = times.midnight_ms(day)
    if step_ms < _MINUTE_MS:
        # A day has many of them.
        at_ms += (since_ms - at_ms) // step_ms * step_ms
    while at_ms <= until_ms:
        if at_ms >= since_ms:
            is_day = f"{times.at(at_ms):%H%M}" == "0000"
            clock = times.clock(at_ms) if step_ms >= _MINUTE_MS else times.seconds(at_ms)
            label = times.day(at_ms) if is_day else clock
            yield 100 * (at_ms - since_ms) / whole_ms, label
        if step_ms < _DAY_MS:
            at_ms += step_ms
        else:
            # Days have 23 or 25 hours when the clocks change.
            day += dt.timedelta(days=step_ms // _DAY_MS)
            at_ms = times.midnight_ms(day)


def _round_half(value: float) -> float:
    """Return the next number up with a round half: 8, 10, 12, 14 or 16 times a power of two."""
    scale = 2.0 ** (math.ceil(math.log2(value)) - 4)
    return next(step * scale for step in (8, 10, 12, 14, 16) if value <= step * scale)

"""The axes of the report's charts: round numbers with room above, in equal steps."""

import datetime as dt

import pytest

from libhamiregion.report.models import Timeline
from libhamiregion.report.page import Times, gpu_chart, hours, memory_chart, number
from libhamiregion.units import GIB, MIB

UTC = Times(dt.timezone.utc)
# 1 October 2026, 12:00 UTC.
NOON_MS = 1_790_856_000_000


def timeline(peak: int | None, *, limit: int = 0, busy: float = 0.0, minutes: int = 60) -> Timeline:
    return Timeline(
        start_ms=NOON_MS,
        step_ms=60_000,
        memory_peak_bytes=(peak,) * minutes,
        memory_used_bytes=(peak,) * minutes,
        memory_limit_bytes=(limit,) * minutes,
        busy_gpus=(busy,) * minutes,
        allocated_gpus=(),
    )


@pytest.mark.parametrize(
    ("peak", "labels"),
    [
        (None, ["0 B", "256 MiB", "512 MiB", "768 MiB", "1 GiB"]),
        (1, ["0 B", "1 MiB"]),
        (3 * MIB, ["0 B", "1 MiB", "2 MiB", "3 MiB", "4 MiB"]),
        (8 * GIB, ["0 B", "2 GiB", "4 GiB", "6 GiB", "8 GiB", "10 GiB"]),
    ],
)
def test_the_axis_of_memory_has_five_round_steps_at_most(peak, labels):
    chart = memory_chart("memory", timeline(peak), (), UTC)
    assert [label for _, label in chart["ticks"]] == labels
    assert [at for at, _ in chart["ticks"]] == pytest.approx(
        [100 * each / (len(labels) - 1) for each in range(len(labels))]
    )


def test_a_limit_above_what_is_used_has_room_on_the_axis():
    chart = memory_chart("memory", timeline(GIB, limit=4 * GIB), (), UTC)
    assert chart["ticks"][-1] == (100.0, "5 GiB")


def test_a_small_chart_has_no_axes():
    chart = memory_chart("memory", timeline(GIB), (), None)
    assert chart["times"] == []
    assert chart["paths"]["used"].startswith("M0 1000V38H")


@pytest.mark.parametrize(
    ("busy", "gpus", "labels"),
    [(0.0, 1, "0 0.25 0.5 0.75 1"), (0.6, 3, "0 1 2 3"), (9.5, 8, "0 2 4 6 8 10")],
)
def test_the_axis_of_gpus_has_room_for_the_capacity(busy, gpus, labels):
    chart = gpu_chart(timeline(GIB, busy=busy), (), UTC, gpus)
    assert [label for _, label in chart["ticks"]] == labels.split()
    *_, top = map(float, labels.split())
    height = round(1000 * (1 - gpus / top))
    assert chart["paths"]["capacity"] == f"M0 {height}V{height}H60"


@pytest.mark.parametrize(
    ("minutes", "times"),
    [
        (5, ["12:00", "12:01", "12:02", "12:03", "12:04", "12:05"]),
        (60, ["12:00", "12:10", "12:20", "12:30", "12:40", "12:50", "13:00"]),
        (3 * 24 * 60, ["12:00", "2 Oct", "12:00", "3 Oct", "12:00", "4 Oct", "12:00"]),
    ],
)
def test_the_axis_of_time_has_round_local_times(minutes, times):
    chart = memory_chart("memory", timeline(GIB, minutes=minutes), (), UTC)
    assert [label for _, label in chart["times"]] == times
    assert chart["times"][0][0] == 0
    assert chart["times"][-1][0] == 100


def test_where_one_unit_ends_the_next_one_begins():
    lengths = {
        "3.0 d": 72,
        "72 h": 71.9,
        "10 h": 10,
        "9.9 h": 9.9,
        "1.0 h": 1,
        "59 min": 0.99,
        "1 min": 1 / 60,
        "58 s": 0.0162,
        "0 h": 0,
    }
    assert {text: hours(value) for text, value in lengths.items()} == {
        text: text for text in lengths
    }
    figures = {"10": 10, "9.9": 9.9, "0.1": 0.1, "0.09": 0.09, "0": 0, "-0.05": -0.05}
    assert {text: number(value) for text, value in figures.items()} == {
        text: text for text in figures
    }

"""What recording a large node costs, and what a report of it does."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from libhamiregion.report import (
    Allocation,
    Recording,
    RecordingWriter,
    Sample,
    make_report,
    report_html,
)
from libhamiregion.report.page import CHART_POINTS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

GIB = 1 << 30
T0 = 1_790_812_800_000
ALLOCATIONS = [
    Allocation(
        f"team-{number % 9}", f"pod-{number}", "main", f"{number:032x}", device,
        f"GPU-{number % 8}-{device}",
    )
    for number in range(256)
    for device in range(2)
]  # fmt: skip
NODE = "256 containers x 2 devices"


def samples_of(look: int) -> dict[Allocation, Sample]:
    """Half of the containers are busy: their utilisation changes with every look."""
    return {
        allocation: Sample(
            (2 + number // 2 % 5) * GIB,
            8 * GIB,
            50,
            (number + look) % 100 if number // 2 % 2 else 0,
            1,
        )
        for number, allocation in enumerate(ALLOCATIONS)
    }


def test_write(directory: Path, timed: Callable[..., Any]) -> None:
    prepared = [samples_of(look) for look in range(100)]
    numbers = itertools.count()
    with RecordingWriter(directory / "written.db") as writer:

        def look() -> None:
            number = next(numbers)
            writer.write(prepared[number % 100], at_ms=T0 + number * 15_000)

        timed(look, work=f"a look of the recorder written, {NODE}, half busy")
        ended = next(numbers)
    with Recording(directory / "written.db") as recording:
        written = make_report([recording], T0, T0 + ended * 15_000, by="pod")
    assert len(written.rows) == 256, "what is not written costs nothing"
    assert {each.memory_peak_bytes for each in written.rows} == {2 * n * GIB for n in range(2, 7)}


def test_report(directory: Path, timed: Callable[..., Any]) -> None:
    path = directory / "hour.db"
    with RecordingWriter(path) as writer:
        for number in range(240):
            writer.write(samples_of(number), at_ms=T0 + number * 15_000)
    with Recording(path) as recording:

        def report() -> str:
            hour = make_report([recording], T0, T0 + 3_600_000, by="namespace", points=CHART_POINTS)
            return report_html(hour)

        page = timed(report, work=f"report_html of an hour of that, {NODE}")
    assert len(page) < 1_500_000
    assert all(page.count(f"team-{number}") for number in range(9)), "an empty page costs nothing"

"""What recording a large node costs, and what a report of it does."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from libhamiregion.report import (
    CHART_POINTS,
    Reading,
    RecordedContainer,
    Recording,
    RecordingWriter,
    make_report,
    report_html,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

GIB = 1 << 30
T0 = 1_790_812_800_000
CONTAINERS = [
    RecordedContainer(f"{number:032x}", "main", None, None, f"team-{number % 9}", f"pod-{number}")
    for number in range(256)
]
NODE = "256 containers x 2 devices"


def readings(look: int) -> list[Reading]:
    """Half of the devices are busy: their utilisation changes with every look."""
    return [
        Reading(
            container,
            device,
            f"GPU-{number % 8}-{device}",
            (2 + number % 5) * GIB,
            8 * GIB,
            50,
            (number + look) % 100 if number % 2 else 0,
            1,
        )
        for number, container in enumerate(CONTAINERS)
        for device in range(2)
    ]


def test_write(directory: Path, timed: Callable[..., Any]) -> None:
    prepared = [readings(look) for look in range(100)]
    numbers = itertools.count()
    with RecordingWriter(directory / "written.db") as writer:

        def look() -> None:
            number = next(numbers)
            writer.write(
                prepared[number % 100], at_ms=T0 + number * 15_000, running_ms=number * 15_000
            )

        timed(look, work=f"a look of the recorder written, {NODE}, half busy")


def test_report(directory: Path, timed: Callable[..., Any]) -> None:
    path = directory / "hour.db"
    with RecordingWriter(path) as writer:
        for number in range(240):
            writer.write(readings(number), at_ms=T0 + number * 15_000, running_ms=number * 15_000)
    with Recording(path) as recording:

        def report() -> str:
            hour = make_report(recording, T0, T0 + 3_600_000, by="namespace", points=CHART_POINTS)
            return report_html(hour)

        page = timed(report, work=f"report_html of an hour of that, {NODE}")
    assert len(page) < 1_500_000

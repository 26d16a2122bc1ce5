"""The clock of `--watch`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def ticks(interval_s: float | None) -> Iterator[int]:
    """Yield 0, then 1, 2, ... every so many seconds; with None, only 0."""
    yield 0
    if interval_s is None:
        return
    number = 0
    due = time.monotonic()
    while True:
        # After a slow tick, ticks are skipped instead of caught up on.
        due = max(due + interval_s, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))
        number += 1
        yield number

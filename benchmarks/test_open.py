"""Opening and closing, as a tool does that looks once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from baselines import MappedReader
from scene import DEVICES, PROCESSES

import libhamiregion as hami

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ONCE = "open, read, close"


def look_once(path: str) -> hami.RegionSnapshot:
    with hami.open_region(path) as region:
        return region.snapshot()


def baseline_once(path: Path) -> dict[str, Any]:
    reader = MappedReader(path)
    found = reader.read()
    reader.close()
    return found


def test_open_snapshot_close(region_path: Path, timed: Callable[..., Any]) -> None:
    snapshot = timed(
        look_once,
        str(region_path),
        work="open_region() + snapshot() + close()",
        budget_us=45.0,
        against=ONCE,
    )
    assert snapshot.settled
    assert (len(snapshot.processes), len(snapshot.devices)) == (PROCESSES, DEVICES)


def test_identify(region_path: Path, timed: Callable[..., Any]) -> None:
    assert timed(hami.identify, str(region_path), work="identify()") is hami.Layout.V1_2


def test_baseline_once(region_path: Path, timed: Callable[..., Any]) -> None:
    found = timed(baseline_once, region_path, against=ONCE, reader=MappedReader.name)
    assert len(found["processes"]) == PROCESSES

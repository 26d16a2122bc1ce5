"""Opening and closing, as a tool does that looks once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from baselines import READERS

import libhamiregion as hami

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from baselines import CopyingReader, MappedReader

ONCE = "open, read, close"


def look_once(path: str) -> hami.RegionSnapshot:
    with hami.open_region(path) as region:
        return region.snapshot()


def baseline_once(reader_class: type[MappedReader | CopyingReader], path: Path) -> dict[str, Any]:
    reader = reader_class(path)
    found = reader.read()
    reader.close()
    return found


def test_open_snapshot_close(region_path: Path, timed: Callable[..., Any]) -> None:
    snapshot = timed(
        look_once,
        str(region_path),
        work="open_region() + snapshot() + close()",
        budget_us=40.0,
        against=ONCE,
    )
    assert snapshot.settled


def test_identify(region_path: Path, timed: Callable[..., Any]) -> None:
    assert timed(hami.identify, str(region_path), work="identify()") is hami.Layout.V1_2


@pytest.mark.parametrize("reader_class", READERS, ids=lambda cls: cls.name)
def test_baseline_once(reader_class: Any, region_path: Path, timed: Callable[..., Any]) -> None:
    timed(baseline_once, reader_class, region_path, against=ONCE, reader=reader_class.name)

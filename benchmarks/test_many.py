"""A node full of regions, read together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from baselines import READERS
from scene import DEVICES, PROCESSES

import libhamiregion as hami

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from baselines import CopyingReader, MappedReader

ALL = f"256 open regions, {PROCESSES} processes x {DEVICES} devices each"


def test_region_set(many: list[Path], timed: Callable[..., Any]) -> None:
    with hami.RegionSet(many) as regions:
        assert not regions.errors
        table = timed(
            regions.read,
            work="RegionSet.read(), 256 regions x 2 devices x 4 processes",
            budget_us=30.0,
            against=ALL,
        )
    assert len(table.regions) == len(many)
    assert len(table.devices) == len(many) * DEVICES
    assert len(table.usages) == len(many) * PROCESSES * DEVICES
    assert all(table.regions.settled)


def test_snapshot_of_each(many: list[Path], timed: Callable[..., Any]) -> None:
    regions = [hami.open_region(path) for path in many]
    timed(lambda: [region.snapshot() for region in regions], work="the same, 256 x snapshot()")
    for region in regions:
        region.close()


def read_each(readers: list[MappedReader | CopyingReader]) -> None:
    for reader in readers:
        reader.read()


@pytest.mark.parametrize("reader_class", READERS, ids=lambda cls: cls.name)
def test_baseline_of_each(reader_class: Any, many: list[Path], timed: Callable[..., Any]) -> None:
    readers = [reader_class(path) for path in many]
    timed(read_each, readers, against=ALL, reader=reader_class.name)
    for reader in readers:
        reader.close()

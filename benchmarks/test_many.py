"""A node full of regions, read together."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from plain_reader import PlainReader, build
from scene import DEVICES, PROCESSES

import libhamiregion as hami

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

ALL = f"256 open regions, {PROCESSES} processes x {DEVICES} devices each"


def test_region_set(many: list[Path], timed: Callable[..., Any]) -> None:
    with hami.RegionSet(many) as regions:
        assert not regions.errors
        table = timed(
            regions.read,
            work="RegionSet.read(), 256 regions x 2 devices x 4 processes",
            budget_us=38.0,
            against=ALL,
        )
    assert len(table.regions) == len(many)
    assert len(table.devices) == len(many) * DEVICES
    assert len(table.usages) == len(many) * PROCESSES * DEVICES
    assert all(table.regions.settled)


def test_region_set_and_every_column(many: list[Path], timed: Callable[..., Any]) -> None:
    tables = ("regions", "devices", "processes", "usages")
    with hami.RegionSet(many) as regions:
        table = regions.read()
        columns = [(name, column) for name in tables for column in getattr(table, name).columns]

        def read_all() -> list[Any]:
            table = regions.read()
            return [getattr(getattr(table, name), column) for name, column in columns]

        found = timed(read_all, work="the same, and every column looked up", budget_us=110.0)
    assert [len(each) for each in found] == [len(getattr(table, name)) for name, _ in columns]
    assert {name for name, _ in columns} == set(tables)


def test_snapshot_of_each(many: list[Path], timed: Callable[..., Any]) -> None:
    regions = [hami.open_region(path) for path in many]
    work = "the same, 256 x snapshot()"
    snapshots = timed(lambda: [region.snapshot() for region in regions], work=work)
    assert [each.path for each in snapshots] == [str(path) for path in many]
    assert {len(each.processes) for each in snapshots} == {PROCESSES}
    for region in regions:
        region.close()


@pytest.fixture
def plain_reader(many: list[Path], directory: Path) -> Iterator[PlainReader]:
    with contextlib.closing(PlainReader(build(directory), many)) as reader:
        yield reader


def test_plain_reader_decodes_the_same(
    many: list[Path], plain_reader: PlainReader, benchmark: Any
) -> None:
    """The comparison is fair: it finds what the table holds, column by column."""
    assert benchmark.pedantic(plain_reader.read) == len(plain_reader.usages)
    with hami.RegionSet(many) as regions:
        table = regions.read()
    for name in ("regions", "devices", "processes", "usages"):
        ours, theirs = getattr(table, name), getattr(plain_reader, name)
        for column in theirs.dtype.names:
            if column == "uuid":
                found = [ours.uuid(row) for row in range(len(ours))]
                assert found == [each.decode() for each in theirs[column]]
            else:
                assert np.array_equal(np.asarray(getattr(ours, column)), theirs[column]), column


def test_plain_reader(plain_reader: PlainReader, timed: Callable[..., Any]) -> None:
    timed(plain_reader.read, against=ALL, reader=PlainReader.name)

"""A node full of regions, read together, and by a plain reader."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import numpy as np
from conftest import least_us
from plain_reader import PlainReader
from scene import copies

import libhamiregion as hami

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ledger import Ledger


def test_region_set(directory: Path, ledger: Ledger, timed: Callable[..., float]) -> None:
    (directory / "many").mkdir()
    paths = list(copies(directory / "many", 256))
    with (
        hami.RegionSet(paths) as regions,
        contextlib.closing(PlainReader(directory, paths)) as plain,
    ):
        table = regions.read()
        assert all(table.regions.settled)
        assert plain.read() == len(table.usages) == len(plain.usages)
        # The comparison is fair: the plain reader finds what the table holds, column by column.
        for name in ("regions", "devices", "processes", "usages"):
            ours, theirs = getattr(table, name), getattr(plain, name)
            assert len(ours) == len(theirs)
            for column in theirs.dtype.names:
                if column == "uuid":
                    found = [ours.uuid(row) for row in range(len(ours))]
                    assert found == [each.decode() for each in theirs[column]]
                else:
                    assert np.array_equal(np.asarray(getattr(ours, column)), theirs[column]), column
        work = "256 regions x 2 devices x 4 processes"
        ours_us = timed(regions.read, f"RegionSet.read(), {work}", 38)
        plain_us = least_us(plain.read)
    ledger.add("  the same by plain C, which checks nothing", "us", None, plain_us)
    ledger.add("  RegionSet.read(), of plain C", "x", None, ours_us / plain_us)

"""One open region: snapshots and live values."""

from __future__ import annotations

import contextlib
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from baselines import MappedReader
from scene import DEVICES, PROCESSES

import libhamiregion as hami

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

ONE = f"one open region, {PROCESSES} processes x {DEVICES} devices, all fields"
USED = "memory in use on one device"


def names(cls: type) -> tuple[str, ...]:
    return tuple(field.name for field in attrs.fields(cls))


of_snapshot = attrgetter(*names(hami.RegionSnapshot))
of_device = attrgetter(*names(hami.DeviceUsage))
of_process = attrgetter(*names(hami.ProcessUsage))
of_usage = attrgetter(*names(hami.ProcessDeviceUsage))


def touch_all(region: hami.Region) -> hami.RegionSnapshot:
    """Take a snapshot and read every attribute of every object in it."""
    snapshot = region.snapshot()
    of_snapshot(snapshot)
    for device in snapshot.devices:
        of_device(device)
    for process in snapshot.processes:
        of_process(process)
        for usage in process.devices:
            of_usage(usage)
    return snapshot


@pytest.fixture
def region(region_path: Path) -> Iterator[hami.Region]:
    with hami.open_region(region_path) as region:
        yield region


def test_snapshot(region: hami.Region, timed: Callable[..., Any]) -> None:
    snapshot = timed(
        region.snapshot,
        work="Region.snapshot(), 4 processes x 2 devices",
        budget_us=1.7,
    )
    assert (len(snapshot.processes), len(snapshot.devices)) == (PROCESSES, DEVICES)
    assert snapshot.settled


def test_snapshot_beside_a_dead_holder(
    region: hami.Region, region_path: Path, timed: Callable[..., Any]
) -> None:
    """The first one waits for the holder; it is the later ones that are timed."""
    with region_path.open("r+b") as file:
        file.seek(region.layout.offsets["sem"])
        file.write(bytes(4))
    snapshot = timed(
        region.snapshot, work="Region.snapshot(), the lock's holder is dead", budget_us=1.5
    )
    assert not snapshot.settled


def test_snapshot_with_all_attributes(region: hami.Region, timed: Callable[..., Any]) -> None:
    snapshot = timed(
        touch_all,
        region,
        work="Region.snapshot(), every attribute read",
        budget_us=12.0,
        against=ONE,
    )
    assert [len(process.devices) for process in snapshot.processes] == [DEVICES] * PROCESSES
    assert all(device.memory_used_bytes > 0 for device in snapshot.devices)


def test_live_memory_limit(region: hami.Region, timed: Callable[..., Any]) -> None:
    limit = timed(region.memory_limit, 0, work="one live value: memory_limit(0)", budget_us=0.3)
    assert limit == region.snapshot().devices[0].memory_limit_bytes is not None


def test_live_memory_used(region: hami.Region, timed: Callable[..., Any]) -> None:
    work = "one live value: memory_used(0)"
    used = timed(region.memory_used, 0, work=work, budget_us=0.3, against=USED)
    assert used == region.snapshot().devices[0].memory_used_bytes > 0


def test_live_priority(region: hami.Region, timed: Callable[..., Any]) -> None:
    found = timed(lambda: region.priority, work="one live value: priority", budget_us=0.3)
    assert found == region.snapshot().priority


@pytest.fixture
def reader(region_path: Path) -> Iterator[MappedReader]:
    with contextlib.closing(MappedReader(region_path)) as reader:
        yield reader


def test_baseline_decodes_the_same(reader: MappedReader, region_path: Path, benchmark: Any) -> None:
    """The comparison is fair: the baseline finds what the snapshot holds, field by field."""
    found = benchmark.pedantic(reader.read)
    with hami.open_region(region_path) as region:
        expected = attrs.asdict(region.snapshot())
        used = [region.memory_used(device) for device in range(DEVICES)]
    for name in ("path", "layout", "layout_newer", "taken_at_ns", "settled"):
        del expected[name]
    for process in expected["processes"]:
        del process["settled"]
    assert found == expected
    assert [reader.memory_used(device) for device in range(DEVICES)] == used


def test_baseline_read(reader: MappedReader, timed: Callable[..., Any]) -> None:
    timed(reader.read, against=ONE, reader=reader.name)


def test_baseline_memory_used(reader: MappedReader, timed: Callable[..., Any]) -> None:
    timed(reader.memory_used, 0, against=USED, reader=reader.name)

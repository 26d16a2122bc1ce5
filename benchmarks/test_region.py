"""One region of four processes and two devices: a snapshot, an edit, the lock, and a single use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from scene import DEVICES, PROCESSES

import libhamiregion as hami

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Timed = Callable[..., float]

LIMIT_BYTES = 20 << 30


@pytest.fixture
def region(region_path: Path) -> Iterator[hami.Region]:
    with hami.open_region(region_path, writable=True) as region:
        yield region


def is_whole(snapshot: hami.RegionSnapshot) -> bool:
    found = [[each.memory_used_bytes > 0 for each in of.devices] for of in snapshot.processes]
    return snapshot.settled and found == [[True] * DEVICES] * PROCESSES


def test_snapshot(region: hami.Region, timed: Timed) -> None:
    assert is_whole(region.snapshot())
    timed(region.snapshot, "Region.snapshot(), 4 processes x 2 devices", 2.2)


def test_snapshot_with_devices(region: hami.Region, timed: Timed) -> None:
    timed(lambda: region.snapshot().devices, "Region.snapshot().devices", 12)


def test_open_snapshot_close(region_path: Path, timed: Timed) -> None:
    path = str(region_path)

    def use_once() -> hami.RegionSnapshot:
        with hami.open_region(path) as region:
            return region.snapshot()

    assert is_whole(use_once())
    timed(use_once, "open_region() + snapshot() + close()", 45)


def test_edit(region: hami.Region, timed: Timed) -> None:
    timed(
        lambda: region.set_memory_limit(LIMIT_BYTES, device=0),
        "set_memory_limit(), one device",
        4.2,
    )
    assert region.memory_limit(0) == LIMIT_BYTES


def test_lock(region: hami.Region, timed: Timed) -> None:
    def lock_and_unlock() -> None:
        with region.lock():
            pass

    timed(lock_and_unlock, "lock() and unlock", 3.8)
    assert not region.lock_state().held
    with region.lock():
        assert region.lock_state().held, "a lock that is not taken costs nothing"


def test_charge(region: hami.Region, timed: Timed) -> None:
    with region.attach() as slot:

        def charge_and_release() -> None:
            slot.charge(0, 4096)
            slot.release(0, 4096)

        timed(charge_and_release, "charge() and release(), integers", 8)
        assert region.snapshot().processes[-1].devices[0].memory_used_bytes == 0

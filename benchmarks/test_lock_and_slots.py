"""The lock, and accounting in a slot, with nobody else in the way."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from scene import GOLDEN

import libhamiregion as hami

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LIMIT_BYTES = 1 << 50
PLENTY_BYTES = 1 << 40

# What accounts under the lock, and what accounts beside it.
LAYOUTS = [hami.Layout.V1_1, hami.Layout.V1_2]


@pytest.fixture(params=LAYOUTS, ids=lambda layout: layout.value)
def region(request: pytest.FixtureRequest, region_path: Path) -> Iterator[hami.Region]:
    """Four processes and two devices, as HAMi-core of either generation wrote them."""
    golden = GOLDEN.with_name(f"{request.param.value}-many-processes.cache.gz")
    region_path.write_bytes(gzip.decompress(golden.read_bytes()))
    with hami.open_region(region_path, writable=True) as region:
        assert region.layout is request.param
        region.set_memory_limit(LIMIT_BYTES, device=0)
        yield region


def region_bytes(region: hami.Region) -> bytes:
    return Path(region.path).read_bytes()


def lock_and_unlock(region: hami.Region) -> None:
    with region.lock():
        pass


def test_lock(region: hami.Region, timed: Callable[..., Any]) -> None:
    work = f"lock() and unlock, layout {region.layout.value}"
    timed(lock_and_unlock, region, work=work, budget_us=3.0)
    assert not region.lock_state().held
    with region.lock():
        assert region.lock_state().held, "a lock that is not taken costs nothing"


def test_lock_by_a_process_of_the_region(region: hami.Region, timed: Callable[..., Any]) -> None:
    with region.attach():
        work = f"lock() and unlock, attached, layout {region.layout.value}"
        timed(lock_and_unlock, region, work=work, budget_us=3.0)
        assert not region.lock_state().held
        with region.lock():
            assert region.lock_state().held


def test_charge(region: hami.Region, timed: Callable[..., Any]) -> None:
    before = region.memory_used(0)
    with region.attach() as slot:
        work = f"charge(), layout {region.layout.value}"
        timed(slot.charge, 0, 1, work=work, budget_us=1.5)
        assert region.memory_used(0) > before
    assert region.memory_used(0) == before


def test_release(region: hami.Region, timed: Callable[..., Any]) -> None:
    with region.attach() as slot:
        slot.charge(0, PLENTY_BYTES)
        before = region.memory_used(0)
        work = f"release(), layout {region.layout.value}"
        timed(slot.release, 0, 1, work=work, budget_us=1.5)
        assert region.memory_used(0) < before


def test_charge_and_release_of_another_kind(region: hami.Region, timed: Callable[..., Any]) -> None:
    def charge_and_release() -> None:
        slot.charge(0, 4096, "context")
        slot.release(0, 4096, "context")

    before = region.memory_used(0)
    with region.attach() as slot:
        slot.charge(0, 4096, "context")
        assert region.memory_used(0) == before + 4096, "what is not counted costs nothing"
        slot.release(0, 4096, "context")
        work = f'charge() and release() of "context", layout {region.layout.value}'
        timed(charge_and_release, work=work, budget_us=3.0)
        assert region.memory_used(0) == before


def test_attach_and_detach(region: hami.Region, timed: Callable[..., Any]) -> None:
    before = len(region.snapshot().processes)
    # Held: a slot that nobody holds is given back by its finalizer, whatever detach() does.
    slot = region.attach()
    assert len(region.snapshot().processes) == before + 1
    slot.detach()
    assert len(region.snapshot().processes) == before, "a detach that gives nothing back is fast"
    timed(lambda: region.attach().detach(), work=f"attach, layout {region.layout.value}")
    assert len(region.snapshot().processes) == before


def test_refused_charge(region: hami.Region, timed: Callable[..., Any]) -> None:
    def charge() -> None:
        with pytest.raises(hami.MemoryLimitExceeded):
            slot.charge(0, LIMIT_BYTES)

    with region.attach() as slot:
        timed(charge, work=f"charge() that is refused, layout {region.layout.value}")


def test_edit_of_a_slot(region: hami.Region, timed: Callable[..., Any]) -> None:
    pid = region.snapshot().processes[2].pid
    work = f"set_monitor_used(), layout {region.layout.value}"
    before = region_bytes(region)
    timed(region.set_monitor_used, pid, 0, 4096, work=work)
    assert region_bytes(region) != before, "an edit that is not stored costs nothing"

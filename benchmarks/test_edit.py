"""Edits of an open region."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import libhamiregion as hami

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LIMIT_BYTES = 20 << 30


@pytest.fixture
def region(region_path: Path) -> Iterator[hami.Region]:
    with hami.open_region(region_path, writable=True) as region:
        yield region


def test_set_memory_limit(region: hami.Region, timed: Callable[..., Any]) -> None:
    def edit() -> hami.LimitChange:
        return region.set_memory_limit(LIMIT_BYTES, device=0)

    change = timed(edit, work="set_memory_limit(), one device", budget_us=3)
    assert change.after == LIMIT_BYTES == region.memory_limit(0)


def test_set_memory_limit_of_all_devices(region: hami.Region, timed: Callable[..., Any]) -> None:
    changes = timed(
        region.set_memory_limit, LIMIT_BYTES, work="set_memory_limit(), both devices", budget_us=3
    )
    assert [change.after for change in changes] == [LIMIT_BYTES, LIMIT_BYTES]
    assert [region.memory_limit(device) for device in (0, 1)] == [LIMIT_BYTES, LIMIT_BYTES]


def test_set_memory_limit_from_text(region: hami.Region, timed: Callable[..., Any]) -> None:
    def edit() -> hami.LimitChange:
        return region.set_memory_limit("20GiB", device=0)

    timed(edit, work='set_memory_limit("20GiB"), one device')
    assert region.memory_limit(0) == LIMIT_BYTES


def test_compare_and_set(region: hami.Region, timed: Callable[..., Any]) -> None:
    region.set_memory_limit(LIMIT_BYTES, device=0)

    def edit() -> hami.LimitChange:
        return region.set_memory_limit(LIMIT_BYTES, device=0, expected=LIMIT_BYTES)

    change = timed(edit, work="set_memory_limit(expected=), one device")
    assert change.after == LIMIT_BYTES == region.memory_limit(0)
    region.set_memory_limit(2 * LIMIT_BYTES, device=0)
    with pytest.raises(hami.LimitConflict):
        edit()
    assert region.memory_limit(0) == 2 * LIMIT_BYTES


def test_set_sm_limit(region: hami.Region, timed: Callable[..., Any]) -> None:
    def edit() -> hami.LimitChange:
        return region.set_sm_limit(50, device=0)

    timed(edit, work="set_sm_limit(), one device")
    assert region.sm_limit(0) == 50

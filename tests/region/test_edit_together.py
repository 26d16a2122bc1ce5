"""Several values of one region change together, and fields only where they are as expected."""

import os
from typing import Any

import pytest
from support.region_file import RegionFileFactory

from libhamiregion import (
    Effect,
    Layout,
    LimitChange,
    LimitConflict,
    LimitEdit,
    Region,
    RegionReadOnly,
    ValueChange,
    open_region,
)

GIB = 1 << 30


def stored(region: Region) -> list[object]:
    values: list[object] = [region.priority]
    for device in (0, 1):
        values += [region.memory_limit(device), region.sm_limit(device)]
    return values


def test_all_values_change_in_the_order_given(
    region_file: RegionFileFactory, layout: Layout
) -> None:
    path = region_file(layout, memory_limits=["4GiB", "3GiB"], sm_limits=[50, None]).path
    with open_region(path, writable=True) as region:
        changes = region.edit_limits(
            [
                LimitEdit(memory_limit="5GiB", device=0, expected=4 * GIB),
                LimitEdit(sm_limit=30, device=1, expected=None),
                LimitEdit(memory_limit=None, device=1),
                LimitEdit(priority=0, expected=1),
            ]
        )
        assert stored(region) == [0, 5 * GIB, 50, None, 30]
    assert changes == (
        LimitChange(0, 4 * GIB, 5 * GIB, Effect.IMMEDIATE, "memory"),
        LimitChange(1, None, 30, Effect.NEW_PROCESSES, "sm"),
        LimitChange(1, 3 * GIB, None, Effect.IMMEDIATE, "memory"),
        ValueChange("priority", 1, 0, Effect.IMMEDIATE),
    )


def test_one_conflict_leaves_everything_as_it_was(region_file: RegionFileFactory) -> None:
    file = region_file(memory_limits=["4GiB", "3GiB"])
    with open_region(file.path, writable=True) as region:
        before = stored(region)
        first = LimitEdit(memory_limit="5GiB", device=0)
        with pytest.raises(LimitConflict, match=r"device 1 is 3 GiB .* not 2 GiB") as error:
            region.edit_limits([first, LimitEdit(memory_limit=GIB, device=1, expected=2 * GIB)])
        assert (error.value.device, error.value.found) == (1, 3 * GIB)
        with pytest.raises(LimitConflict, match="priority is 1, not 7 as expected") as error:
            region.edit_limits([first, LimitEdit(priority=0, expected=7)])
        assert (error.value.device, error.value.found, error.value.expected) == (None, 1, 7)
        assert stored(region) == before


def test_a_dry_run_checks_and_stores_nothing(region_file: RegionFileFactory) -> None:
    file = region_file(memory_limits=["4GiB"])
    before = file.path.read_bytes()
    with open_region(file.path, writable=True) as region:
        change = region.edit_limits([LimitEdit(memory_limit=GIB, device=0)], dry_run=True)
        assert change == (LimitChange(0, 4 * GIB, GIB, Effect.IMMEDIATE, "memory"),)
        assert region.set_recent_kernel(0, expected=2, dry_run=True).before == 2
        assert region.set_utilization_switch(False, dry_run=True).after == 0
        assert region.set_priority(0, dry_run=True).before == 1
    assert file.path.read_bytes() == before


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"sm_limit": 0}, "1 to 100 percent"),
        ({"memory_limit": 0}, "say .unlimited."),
        ({"memory_limit": "0%"}, "say .unlimited."),
        ({"memory_limit": 1, "expected": "80%"}, "of what"),
        ({"priority": 1, "device": 0}, "whole region's"),
        ({"priority": -1}, "a priority is 0 to 2147483647, not -1"),
        ({"priority": 1 << 31}, "a priority is 0 to 2147483647, not 2147483648"),
        ({}, "one of"),
        ({"memory_limit": 1, "sm_limit": None}, "one of"),
        ({"sm_limit": 50, "device": "GPU-\0"}, "NUL"),
    ],
)
def test_what_is_no_edit_is_a_value_error_where_it_is_written(
    edit: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        LimitEdit(**edit)


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ([LimitEdit(memory_limit=1, device=0), LimitEdit(memory_limit=2, device=0)], "twice"),
        ([LimitEdit(sm_limit=50), LimitEdit(sm_limit=40, device=1)], "device 1 is edited twice"),
        ([LimitEdit(sm_limit=50), LimitEdit(sm_limit=40)], "device 0 is edited twice"),
    ],
)
def test_what_no_region_takes_is_a_value_error_and_changes_nothing(
    region_file: RegionFileFactory, edits: list[LimitEdit], message: str
) -> None:
    file = region_file(memory_limits=["4GiB", "3GiB"])
    before = file.path.read_bytes()
    with (
        open_region(file.path, writable=True) as region,
        pytest.raises(ValueError, match=message),
    ):
        region.edit_limits([LimitEdit(priority=0), *edits])
    assert file.path.read_bytes() == before


@pytest.mark.parametrize("limits", [["4GiB", "3GiB"], []], ids=["two devices", "all 16"])
def test_an_edit_without_a_device_is_of_every_device(
    region_file: RegionFileFactory, limits: list[str]
) -> None:
    file = region_file(memory_limits=limits)
    with open_region(file.path, writable=True) as region:
        devices = region.device_indices
        assert len(devices) == (2 if limits else 16)
        changes = region.edit_limits([LimitEdit(memory_limit="2GiB"), LimitEdit(sm_limit=30)])
        told = [(each.kind, each.device) for each in changes if isinstance(each, LimitChange)]
        assert told == [(kind, device) for kind in ("memory", "sm") for device in devices]
        assert {region.memory_limit(each) for each in devices} == {2 * GIB}
        assert {region.sm_limit(each) for each in devices} == {30}
        with pytest.raises(LimitConflict):
            region.edit_limits(
                [LimitEdit(sm_limit=40), LimitEdit(memory_limit="1GiB", expected="3GiB")]
            )
        assert {region.sm_limit(each) for each in devices} == {30}


def test_no_edit_at_all_changes_nothing(region_file: RegionFileFactory) -> None:
    with open_region(region_file().path, writable=True) as region:
        assert region.edit_limits([]) == ()


def test_a_reader_edits_nothing(region_file: RegionFileFactory) -> None:
    with open_region(region_file().path) as region, pytest.raises(RegionReadOnly):
        region.edit_limits([LimitEdit(priority=0)])


def test_no_launch_is_lost_by_who_counts_down(region_file: RegionFileFactory) -> None:
    with open_region(region_file().path, writable=True) as region:
        region.set_recent_kernel(1)
        seen = region.recent_kernel
        region.set_recent_kernel(2)
        with pytest.raises(LimitConflict, match="recent_kernel is 2, not 1") as error:
            region.set_recent_kernel(seen - 1, expected=seen)
        assert (error.value.device, error.value.found) == (None, 2)
        assert region.recent_kernel == 2
        assert region.set_recent_kernel(1, expected=2).before == 2


def test_every_field_of_the_region_can_be_expected(region_file: RegionFileFactory) -> None:
    file = region_file()
    before = file.path.read_bytes()
    with open_region(file.path, writable=True) as region:
        conflicts = (
            lambda: region.set_utilization_switch(True, expected=False),
            lambda: region.set_priority(0, expected=-(1 << 31)),
            lambda: region.set_recent_kernel(0, expected=-1),
        )
        for conflict in conflicts:
            with pytest.raises(LimitConflict):
                conflict()
    assert file.path.read_bytes() == before


def test_two_processes_never_both_win_a_compare_and_set(region_file: RegionFileFactory) -> None:
    path = region_file().path
    with open_region(path, writable=True) as region:
        region.set_priority(0)
    children = 3
    rounds = 500
    readers = []
    for _ in range(children):
        read, write = os.pipe()
        if os.fork() == 0:
            won = 0
            with open_region(path, writable=True) as region:
                while (now := region.priority) < rounds:
                    try:
                        region.edit_limits([LimitEdit(priority=now + 1, expected=now)])
                        won += 1
                    except LimitConflict:
                        pass
            os.write(write, str(won).encode())
            os._exit(0)
        os.close(write)
        readers.append(read)
    won = []
    for read in readers:
        with os.fdopen(read) as answer:
            won.append(int(answer.read()))
    for _ in range(children):
        os.wait()
    assert sum(won) == rounds

"""What an edit takes, which devices it reaches, and what it does to running processes."""

import itertools
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from support.region_file import RegionFile, RegionFileFactory

from libhamiregion import (
    ANYTHING,
    Anything,
    Effect,
    LaunchesWouldStop,
    Layout,
    LimitBelowUsage,
    LimitEdit,
    NoSuchDevice,
    Region,
    open_region,
)
from libhamiregion.limiter import CoreLimiter


@pytest.fixture(params=list(Layout))
def layout(request: pytest.FixtureRequest) -> Layout:
    chosen: Layout = request.param
    return chosen


GIB = 2**30
UUIDS = ("GPU-first", "MIG-second")
NO_WATCHER = (Layout.UNVERSIONED_NO_UTIL, Layout.UNVERSIONED)


# ---- which devices ----

# Every call that names a device to edit.
NAMING: dict[str, Callable[[Region, Any], object]] = {
    "memory": lambda region, device: region.set_memory_limit("1GiB", device=device),
    "sm": lambda region, device: region.set_sm_limit(50, device=device),
    "together": lambda region, device: region.edit_limits(
        [LimitEdit(memory_limit=GIB, device=device)]
    ),
}


@pytest.mark.parametrize("call", NAMING.values(), ids=NAMING)
def test_a_device_that_the_region_does_not_have_is_refused(
    call: Callable[[Region, Any], object], region_file: RegionFileFactory
) -> None:
    file = region_file(uuids=UUIDS)
    before = file.content()
    with open_region(file, writable=True) as region:
        for device in (2, 9, 15, "GPU-third", "", "0", "GPU-first\x00"):
            said = r"0 \(GPU-first\), 1 \(MIG-second\)|NUL"
            with pytest.raises((NoSuchDevice, ValueError), match=said) as error:
                call(region, device)
            assert device == "GPU-first\x00" or repr(device) in str(error.value)
            assert region.device_indices == (0, 1)
        for device in (-1, 16, 2**40):
            with pytest.raises(NoSuchDevice, match="a device is 0 to 15, not"):
                call(region, device)
    assert file.content() == before


@pytest.mark.parametrize("call", NAMING.values(), ids=NAMING)
def test_a_uuid_names_its_device(
    call: Callable[[Region, Any], object], region_file: RegionFileFactory
) -> None:
    with open_region(region_file(uuids=UUIDS), writable=True) as region:
        call(region, "MIG-second")
        assert (region.memory_limit(1), region.sm_limit(1)) != (None, None)
        assert (region.memory_limit(0), region.sm_limit(0)) == (None, None)


def test_a_forced_device_does_not_become_one_of_the_region(region_file: RegionFileFactory) -> None:
    file = region_file(memory_limits=["4GiB", "4GiB"], uuids=UUIDS)
    with open_region(file, writable=True) as region:
        region.set_memory_limit("1GiB", device=9, force=True)
        assert [change.device for change in region.set_memory_limit("2GiB")] == [0, 1]
        with pytest.raises(NoSuchDevice):
            region.memory_limit(9)
    assert file.get("limit", device=9) == GIB


def test_before_nvml_a_device_is_one_up_to_the_last_limit_or_use(
    region_file: RegionFileFactory, layout: Layout
) -> None:
    file = region_file(layout, memory_limits=["4GiB", "4GiB"])
    with open_region(file, writable=True) as region:
        assert region.device_indices == (0, 1)
        with pytest.raises(NoSuchDevice, match="only 0, 1: its container"):
            region.set_memory_limit("1GiB", device=2)
        for device in range(16):
            file.put("sm_limit", 50, device=device)
        assert region.device_indices == (0, 1), "one SM limit for all says nothing"
        file.put("sm_limit", 100, device=15)
        assert region.device_indices == tuple(range(15))
        for device in range(16):
            file.put("sm_limit", 100, device=device)
        file.add_process(1, {5: 1})
        assert region.device_indices == tuple(range(6))
        region.set_memory_limit("1GiB", device=5)


def test_a_first_limit_says_how_many_devices_a_fresh_region_has(
    region_file: RegionFileFactory,
) -> None:
    """HAMi limits each device that it gives: once there is a limit, one beyond is a mistake."""
    with open_region(region_file(uuids=()), writable=True) as region:
        assert region.device_indices == tuple(range(16)), "nothing says how many"
        region.set_memory_limit("1GiB", device=0)
        with pytest.raises(NoSuchDevice, match="has no device 1, only 0: its container has not"):
            region.set_memory_limit("1GiB", device=1)
        region.set_memory_limit("1GiB", device=1, force=True)
        assert region.device_indices == (0, 1)
    # Edits of one call are judged by what stood there before all of them.
    with open_region(region_file(uuids=()), writable=True) as region:
        region.edit_limits([LimitEdit(memory_limit="1GiB", device=device) for device in range(3)])
        assert region.device_indices == (0, 1, 2)


def test_the_same_device_by_two_names_stands_twice(region_file: RegionFileFactory) -> None:
    file = region_file(uuids=UUIDS)
    before = file.content()
    with open_region(file, writable=True) as region, pytest.raises(ValueError, match="twice"):
        region.edit_limits(
            [LimitEdit(sm_limit=10, device=1), LimitEdit(sm_limit=20, device="MIG-second")]
        )
    assert file.content() == before


def test_a_limit_below_use_names_its_device_among_several(region_file: RegionFileFactory) -> None:
    file = region_file(memory_limits=["4GiB"] * 2, uuids=UUIDS)
    file.add_process(1, {1: 2 * GIB})
    edits = [
        LimitEdit(priority=0),
        LimitEdit(memory_limit=GIB, device="GPU-first"),
        LimitEdit(memory_limit=GIB, device="MIG-second"),
    ]
    with open_region(file, writable=True) as region:
        with pytest.raises(LimitBelowUsage, match="device 1 uses 2 GiB") as error:
            region.edit_limits(edits)
        refused = error.value
        assert (refused.device, refused.used_bytes, refused.requested_bytes) == (1, 2 * GIB, GIB)
        assert (region.priority, region.memory_limit(0)) == (1, 4 * GIB)


# ---- SM limits that come to processes without one ----


def test_an_sm_limit_that_would_stop_running_processes_is_refused(
    layout: Layout, region_file: RegionFileFactory
) -> None:
    file = region_file(layout, uuids=UUIDS)
    file.add_process(7)
    before = file.content()
    calls: list[Callable[[Region, bool], Any]] = [
        lambda region, force: region.set_sm_limit(30, force=force),
        lambda region, force: region.edit_limits([LimitEdit(sm_limit=30, device=0)], force=force),
    ]
    for call in calls:
        file.put("sm_limit", 100)
        file.put("sm_limit", 100, device=1)
        with open_region(file, writable=True) as region:
            if layout not in NO_WATCHER:
                assert call(region, False)[0].effect is not Effect.STOPS_LAUNCHES
                continue
            with pytest.raises(LaunchesWouldStop, match="force=True") as error:
                call(region, False)
            refused = error.value
            assert (refused.device, refused.processes, refused.requested_percent) == (0, 1, 30)
            assert file.content() == before
            assert call(region, True)[0].effect is Effect.STOPS_LAUNCHES
            # Another level, and off, is seen as ever.
            assert region.set_sm_limit(40, device=0).effect is Effect.NEW_PROCESSES
            assert region.set_sm_limit(None, device=0).effect is Effect.IMMEDIATE


def test_while_nothing_runs_and_on_other_devices_than_the_first_an_sm_limit_stops_nothing(
    layout: Layout, region_file: RegionFileFactory
) -> None:
    """libvgpu looks at the limit of device 0 at each launch, for all devices."""
    file = region_file(layout, uuids=UUIDS)
    with open_region(file, writable=True) as region:
        assert region.set_sm_limit(30)[0].effect is not Effect.STOPS_LAUNCHES
        region.set_sm_limit(None)
        file.add_process(7)
        assert region.set_sm_limit(30, device=1).effect is Effect.NEW_PROCESSES


def test_in_1_1_only_a_process_that_found_100_can_be_limited_later(
    region_file: RegionFileFactory,
) -> None:
    """Since 2.4.1 libvgpu starts its watcher at 1 to 100, and not at 0 or above."""
    file = region_file(Layout.V1_1, uuids=UUIDS)
    file.add_process(7)
    with open_region(file, writable=True) as region:
        for stored in (0, 101, 100_000):
            file.put("sm_limit", stored)
            with pytest.raises(LaunchesWouldStop):
                region.set_sm_limit(30, device=0)
            assert region.set_sm_limit(30, device=0, force=True).effect is Effect.STOPS_LAUNCHES


# ---- one value, one language ----


def test_limits_in_the_words_of_people(region_file: RegionFileFactory) -> None:
    words: tuple[tuple[Any, int | None], ...] = (
        *((" 6 GiB ", 6 * GIB), ("unlimited", None), ("UNLIMITED", None), (np.uint64(5), 5)),
    )
    percentages: tuple[tuple[Any, int | None], ...] = (
        *(("50%", 50), ("50 %", 50), ("50", 50), ("unlimited", None), ("100%", None)),
        (np.int8(50), 50),
    )
    file = region_file(memory_limits=[7], sm_limits=[7], uuids=UUIDS)
    with open_region(file, writable=True) as region:
        for limit, stored in words:
            assert region.set_memory_limit(limit, device=0).after == stored
            assert region.edit_limits([LimitEdit(memory_limit=limit, device=0)])[0].after == stored
        for limit, stored in percentages:
            assert region.set_sm_limit(limit, device=0).after == stored
            assert region.edit_limits([LimitEdit(sm_limit=limit, device=0)])[0].after == stored


def test_a_percentage_of_memory_is_of_each_devices_limit(region_file: RegionFileFactory) -> None:
    file = region_file(memory_limits=["10GiB", "5GiB"], uuids=UUIDS)
    with open_region(file, writable=True) as region:
        assert [change.after for change in region.set_memory_limit("80%")] == [8 * GIB, 4 * GIB]
        (change,) = region.edit_limits([LimitEdit(memory_limit="150 %", device=1, expected="4GiB")])
        assert (change.before, change.after) == (4 * GIB, 6 * GIB)
        region.set_memory_limit("unlimited", device=1)
        for call in (
            lambda: region.set_memory_limit("80%"),
            lambda: region.edit_limits([LimitEdit(memory_limit="80%", device=1)]),
        ):
            with pytest.raises(ValueError, match="device 1 is unlimited, and 80% of that"):
                call()
        with pytest.raises(ValueError, match="unlimited"):
            region.set_memory_limit("0%")
        assert region.memory_limit(0) == 8 * GIB


# Every whole number that the library takes.
NUMBERS: dict[str, Callable[[Region, Any], object]] = {
    "limit": lambda region, n: region.set_memory_limit(n, device=0),
    "expected limit": lambda region, n: region.set_memory_limit(9, device=0, expected=n),
    "limit together": lambda region, n: region.edit_limits([LimitEdit(memory_limit=n, device=0)]),
    "SM limit": lambda region, n: region.set_sm_limit(n, device=0),
    "expected SM limit": lambda region, n: region.set_sm_limit(9, device=0, expected=n),
    "device to edit": lambda region, n: region.set_sm_limit(50, device=n),
    "device together": lambda region, n: region.edit_limits([LimitEdit(sm_limit=50, device=n)]),
    "device's limit": lambda region, n: region.memory_limit(n),
    "device's SM limit": lambda region, n: region.sm_limit(n),
    "device's use": lambda region, n: region.memory_used(n),
    "priority": lambda region, n: region.set_priority(n),
    "expected priority": lambda region, n: region.set_priority(1, expected=n),
    "priority together": lambda region, n: region.edit_limits([LimitEdit(priority=n)]),
    "launch mark": lambda region, n: region.set_recent_kernel(n),
    "expected launch mark": lambda region, n: region.set_recent_kernel(1, expected=n),
    "pid": lambda region, n: region.suspend(n),
    "pid to reap": lambda region, n: region.reap([n], dry_run=True),
    "host pid": lambda region, n: region.set_host_pid(1, n),
    "utilisation": lambda region, n: region.set_utilization(1, 0, sm=n),
    "device of a utilisation": lambda region, n: region.set_utilization(1, n, sm=1),
    "bytes of the driver": lambda region, n: region.set_monitor_used(1, 0, n),
    "device of a limiter": lambda region, n: CoreLimiter(
        sm_count=1, max_threads_per_sm=1, sm_limit=None, region=region, device=n
    ),
}


@pytest.fixture
def numbered(region_file: RegionFileFactory) -> RegionFile:
    """A region in which 1 is what stands everywhere, and a device, and a process."""
    file = region_file(memory_limits=[1], sm_limits=[1], uuids=UUIDS)
    file.put("recent_kernel", 1)
    file.add_process(1)
    return file


def test_an_integer_is_what_has_an_index_and_is_no_bool(numbered: RegionFile) -> None:
    before = numbered.content()
    with open_region(numbered, writable=True) as region:
        for call in NUMBERS.values():
            for number in (True, np.True_, 1.0, np.float64(1), Decimal(1), Fraction(1), b"1"):
                with pytest.raises(TypeError):
                    call(region, number)
    assert numbered.content() == before
    for call in NUMBERS.values():
        with open_region(numbered, writable=True) as region:
            try:
                call(region, np.uint8(1))
            except ValueError as error:
                assert "alive" in str(error) or "not known" in str(error)  # noqa: PT017
        numbered.put_bytes(0, before)


def test_a_charge_is_of_whole_bytes_on_a_whole_device(region_file: RegionFileFactory) -> None:
    numbers: tuple[Any, ...] = (True, 1.0, Decimal(1), Fraction(1), "1", None)
    with open_region(region_file(), writable=True) as region, region.attach() as slot:
        for call, number in itertools.product((slot.charge, slot.release), numbers):
            for arguments in ((0, number), (number, 0)):
                with pytest.raises(TypeError, match="is an integer, not"):
                    call(*arguments)
        slot.charge(np.int8(1), np.uint64(5))
        slot.release(np.int8(1), np.uint64(5))
        assert region.memory_used(1) == 0


@pytest.mark.parametrize("expected", [None, 0, 1, "on"])
def test_the_switch_is_true_or_false(expected: Any, region_file: RegionFileFactory) -> None:
    with open_region(region_file(), writable=True) as region:
        with pytest.raises(TypeError):
            region.set_utilization_switch(True, expected=expected)
        for call in (region.set_priority, region.set_recent_kernel):
            if not isinstance(expected, int):
                with pytest.raises(TypeError):
                    call(1, expected=expected)


def test_anything_is_the_expected_value_that_is_left_out() -> None:
    assert isinstance(ANYTHING, Anything)
    assert LimitEdit(sm_limit=5).expected is ANYTHING

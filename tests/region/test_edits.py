"""Edits of a live region: what is stored, what is refused, and which processes notice."""

import itertools
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from support.every_layout import every_layout  # noqa: F401 (the fixture layout)
from support.region_file import RegionFile, locate, unchanged

from libhamiregion import (
    Effect,
    LaunchesWouldStop,
    Layout,
    LimitBelowUsage,
    LimitChange,
    LimitConflict,
    LimitEdit,
    NoSuchDevice,
    Region,
    ValueChange,
    open_region,
)
from libhamiregion.limiter import CoreLimiter
from libhamiregion.units import GIB

UUIDS = ("GPU-first", "MIG-second")
IMMEDIATE, NEW_PROCESSES = Effect.IMMEDIATE, Effect.NEW_PROCESSES

# Running processes check device 0's SM limit at each launch.
CHECKED_AT_LAUNCH = (Layout.UNVERSIONED_NO_UTIL, Layout.UNVERSIONED, Layout.V1_1)
NO_WATCHER = (Layout.UNVERSIONED_NO_UTIL, Layout.UNVERSIONED)


@pytest.fixture
def used(region_file) -> RegionFile:
    """Device 0 uses 3 GiB, in slots of any status; device 1 uses 1 GiB."""
    file = region_file(memory_limits=(8 * GIB, 8 * GIB), uuids=UUIDS)
    file.add_process(1, {0: GIB, 1: GIB})
    file.add_process(2, {0: 2 * GIB}, status=0)
    return file


def limits_in(file: RegionFile) -> list[int]:
    return [file.get("limit", device=device) for device in range(16)]


def effects(changes: tuple[Any, ...]) -> list[Effect]:
    return [change.effect for change in changes]


# ---- What is stored ----


def test_limits_are_taken_in_the_words_of_people(region_file):
    memory: tuple[tuple[Any, int | None], ...] = (
        *((1, 1), ("12345", 12345), (" 6 GiB ", 6 * GIB), ("3000m", 3000 * 2**20)),
        *((2**64 - 1, 2**64 - 1), (np.uint64(5), 5), ("UNLIMITED", None), (None, None)),
    )
    sm: tuple[tuple[Any, int | None], ...] = (
        *((1, 1), ("50%", 50), ("50 %", 50), ("50", 50), (np.int8(50), 50), (99, 99)),
        *((100, None), ("100%", None), ("unlimited", None), (None, None)),
    )
    file = region_file(memory_limits=(7, 8), sm_limits=(30, 40), uuids=UUIDS)
    with open_region(file, writable=True) as region:
        for given, limit in memory:
            before = region.memory_limit(1)
            change = region.set_memory_limit(given, device=1)
            assert change == LimitChange(1, before, limit, IMMEDIATE, "memory")
            assert region.edit_limits([LimitEdit(memory_limit=given, device=1)])[0].after == limit
            assert (region.memory_limit(1), limits_in(file)[:3]) == (limit, [7, limit or 0, 0])
        for given, limit in sm:
            before = region.sm_limit(1)
            change = region.set_sm_limit(given, device=1)
            assert change == LimitChange(1, before, limit, NEW_PROCESSES, "sm")
            assert region.edit_limits([LimitEdit(sm_limit=given, device=1)])[0].after == limit
            assert file.get("sm_limit", device=1) == (limit or 100)


def test_an_edit_touches_nothing_but_its_own_bytes(layout, region_file):
    file = region_file(layout, memory_limits=[0x0101010101010101] * 16)
    edits: tuple[tuple[str, int, int, Callable[[Region], object]], ...] = (
        ("limit", 6, 8, lambda region: region.set_memory_limit(0x0202020202020202, device=6)),
        ("sm_limit", 15, 1, lambda region: region.set_sm_limit(1, device=15)),
        ("priority", 0, 4, lambda region: region.set_priority(0x02020202)),
        ("recent_kernel", 0, 4, lambda region: region.set_recent_kernel(0x01010101)),
        ("utilization_switch", 0, 4, lambda region: region.set_utilization_switch(False)),
    )
    with open_region(file, writable=True) as region:
        for field, device, size, edit in edits:
            at, _ = locate(layout, field, device=device)
            before = np.frombuffer(file.content(), np.uint8)
            edit(region)
            changed = np.flatnonzero(before != np.frombuffer(file.content(), np.uint8)).tolist()
            assert changed, field
            assert set(changed) <= set(range(at, at + size)), field


def test_a_percentage_of_memory_is_of_each_devices_limit(region_file):
    file = region_file(memory_limits=["10GiB", "5GiB"], uuids=UUIDS)
    with open_region(file, writable=True) as region:
        assert [change.after for change in region.set_memory_limit("80%")] == [8 * GIB, 4 * GIB]
        (change,) = region.edit_limits([LimitEdit(memory_limit="150 %", device=1, expected="4GiB")])
        assert (change.before, change.after) == (4 * GIB, 6 * GIB)
        region.set_memory_limit("unlimited", device=1)
        with pytest.raises(ValueError, match="device 1 is unlimited, and 80% of that"):
            region.set_memory_limit("80%")
        assert region.memory_limit(0) == 8 * GIB


def test_fields_of_the_region_are_set_and_returned(file):
    priority, mark = 1, 2
    with open_region(file, writable=True) as region:
        for n in (0, 7, 2**31 - 1):
            assert region.set_priority(n) == ValueChange("priority", priority, n, IMMEDIATE)
            priority = region.priority
            assert priority == file.get("priority") == n
        for n in (-1, 0, 2**31 - 1):
            assert region.set_recent_kernel(n) == ValueChange("recent_kernel", mark, n, IMMEDIATE)
            mark = region.recent_kernel
            assert mark == file.get("recent_kernel") == n
        change = region.set_utilization_switch(False)
        assert (change.field, change.before, change.after) == ("utilization_switch", 1, 0)
        assert region.utilization_switch is False
        region.set_utilization_switch(True)
        assert file.get("utilization_switch") == 1


# ---- Several together ----


def test_edits_of_one_call_are_made_in_the_order_given(region_file):
    file = region_file(memory_limits=["4GiB", "3GiB"], sm_limits=[50, None])
    edits = [
        LimitEdit(memory_limit="5GiB", device=0, expected=4 * GIB),
        LimitEdit(sm_limit=30, device=1, expected=None),
        LimitEdit(memory_limit=None, device=1),
        LimitEdit(priority=0, expected=1),
    ]
    with open_region(file, writable=True) as region:
        with unchanged(file):
            planned = region.edit_limits(edits, dry_run=True)
        assert region.edit_limits(edits) == planned
        assert (region.priority, region.memory_limit(0)) == (0, 5 * GIB)
        assert region.edit_limits([]) == ()
    assert planned == (
        LimitChange(0, 4 * GIB, 5 * GIB, IMMEDIATE, "memory"),
        LimitChange(1, None, 30, NEW_PROCESSES, "sm"),
        LimitChange(1, 3 * GIB, None, IMMEDIATE, "memory"),
        ValueChange("priority", 1, 0, IMMEDIATE),
    )


@pytest.mark.parametrize("limits", [["4GiB", "3GiB"], []], ids=["two devices", "all 16"])
def test_an_edit_without_a_device_is_of_every_device(region_file, limits):
    file = region_file(memory_limits=limits)
    with open_region(file, writable=True) as region:
        devices = region.device_indices
        assert len(devices) == (2 if limits else 16)
        changes = region.edit_limits([LimitEdit(memory_limit="2GiB"), LimitEdit(sm_limit=30)])
        found = [(each.kind, each.device) for each in changes if isinstance(each, LimitChange)]
        assert found == [(kind, device) for kind in ("memory", "sm") for device in devices]
        assert {region.memory_limit(each) for each in devices} == {2 * GIB}
        assert {region.sm_limit(each) for each in devices} == {30}


@pytest.mark.parametrize(
    "edits",
    [
        [LimitEdit(memory_limit=1, device=0), LimitEdit(memory_limit=2, device=0)],
        [LimitEdit(sm_limit=50), LimitEdit(sm_limit=40, device=1)],
        [LimitEdit(sm_limit=10, device=1), LimitEdit(sm_limit=20, device="MIG-second")],
    ],
)
def test_one_value_is_not_edited_twice(used, edits):
    refused = pytest.raises(ValueError, match="twice")
    with unchanged(used), open_region(used, writable=True) as region, refused:
        region.edit_limits([LimitEdit(priority=0), *edits])


# ---- Which devices ----

# Every call that names a device to edit.
NAMING: dict[str, Callable[[Region, Any], object]] = {
    "memory": lambda region, device: region.set_memory_limit("9GiB", device=device),
    "sm": lambda region, device: region.set_sm_limit(50, device=device),
    "together": lambda region, device: region.edit_limits([LimitEdit(sm_limit=50, device=device)]),
}


@pytest.mark.parametrize("call", NAMING.values(), ids=NAMING)
def test_a_device_is_an_index_or_a_uuid_of_the_region(call, used):
    before = used.content()
    with open_region(used, writable=True) as region:
        for device in (2, 15, "GPU-third", "", "0", "GPU-first\x00"):
            with pytest.raises(NoSuchDevice, match=r"0 \(GPU-first\), 1 \(MIG-second\)") as error:
                call(region, device)
            assert error.value.device == device
        for device in (-1, 16, 2**40):
            with pytest.raises(NoSuchDevice, match="a device is 0 to 15"):
                call(region, device)
        assert used.content() == before
        call(region, "MIG-second")
        changed = region.memory_limit(1), region.sm_limit(1)
        assert changed in {(9 * GIB, None), (8 * GIB, 50)}
        assert (region.memory_limit(0), region.sm_limit(0)) == (8 * GIB, None)


def test_force_takes_any_device_and_makes_it_none_of_the_region(used):
    with open_region(used, writable=True) as region:
        change = region.set_memory_limit(GIB, device=15, force=True)
        assert change == LimitChange(15, None, GIB, IMMEDIATE, "memory")
        assert [change.device for change in region.set_memory_limit("9GiB")] == [0, 1]
        with pytest.raises(NoSuchDevice):
            region.memory_limit(15)
    assert limits_in(used)[15] == GIB


def test_before_nvml_a_device_is_one_up_to_the_last_limit_or_use(region_file, layout):
    file = region_file(layout, memory_limits=["4GiB", "4GiB"])
    with open_region(file, writable=True) as region:
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


def test_edits_of_one_call_are_judged_by_the_devices_before_it(region_file):
    """Once there is a limit, an index beyond it is taken for a mistake."""
    with open_region(region_file(), writable=True) as region:
        region.edit_limits([LimitEdit(memory_limit="1GiB", device=device) for device in range(3)])
        assert region.device_indices == (0, 1, 2)
        with pytest.raises(NoSuchDevice, match="its container has not"):
            region.set_memory_limit("1GiB", device=3)


# ---- Expected values ----


def test_a_limit_is_set_only_if_the_expected_one_is_there(region_file):
    file = region_file(memory_limits=(GIB, 3 * GIB), sm_limits=(30, 40), uuids=UUIDS)
    with open_region(file, writable=True) as region:
        with pytest.raises(LimitConflict, match=r"3 GiB .*2 GiB .*as expected") as error:
            region.set_memory_limit(5, expected="2GiB", device=1)
        found = error.value
        assert (found.device, found.found, found.expected) == (1, 3 * GIB, 2 * GIB)
        assert found.path == str(file.path)
        with pytest.raises(LimitConflict, match=r"40%, not 30% as expected"):
            region.set_sm_limit(35, expected=30, device=1)
        assert (region.memory_limit(1), region.sm_limit(1)) == (3 * GIB, 40)
        for expected in (GIB, "1GiB", "1024m"):
            region.set_memory_limit(GIB, expected=expected, device=0)
        for unlimited in (None, "unlimited", " Unlimited "):
            region.set_memory_limit(None, device=0)
            region.set_memory_limit(GIB, expected=unlimited, device=0)
            with pytest.raises(LimitConflict) as error:
                region.set_memory_limit(2 * GIB, expected=unlimited, device=0)
            assert (error.value.found, error.value.expected) == (GIB, None)


def test_all_unlimited_sm_limits_are_one_and_the_same(region_file):
    file = region_file()
    unlimited: tuple[Any, ...] = (None, 100, "unlimited")
    with open_region(file, writable=True) as region:
        for stored, expected in itertools.product((0, 100, 101, 2**64 - 1), unlimited):
            file.put("sm_limit", stored)
            with pytest.raises(LimitConflict) as error:
                region.set_sm_limit(50, expected=99, device=0)
            assert (error.value.found, error.value.expected) == (None, 99)
            change = region.set_sm_limit(50, expected=expected, device=0)
            assert (change.before, change.after) == (None, 50)
            with pytest.raises(LimitConflict):
                region.set_sm_limit(60, expected=expected, device=0)


def test_one_conflict_leaves_everything_as_it_was(region_file):
    file = region_file(memory_limits=["4GiB", "3GiB"], sm_limits=[30, 20])
    first = LimitEdit(memory_limit="5GiB", device=0)
    calls: list[tuple[Callable[[Region], object], int | None, int]] = [
        (lambda region: region.set_memory_limit(GIB, expected="4GiB"), 1, 3 * GIB),
        (lambda region: region.set_sm_limit(40, expected=30), 1, 20),
        (lambda region: region.edit_limits([first, LimitEdit(priority=0, expected=7)]), None, 1),
        (lambda region: region.set_priority(0, expected=-(1 << 31)), None, 1),
        (lambda region: region.set_utilization_switch(True, expected=False), None, 1),
        # No launch is lost by a countdown.
        (lambda region: region.set_recent_kernel(0, expected=1), None, 2),
    ]
    with open_region(file, writable=True) as region:
        for call, device, found in calls:
            with unchanged(file), pytest.raises(LimitConflict) as error:
                call(region)
            assert (error.value.device, error.value.found) == (device, found)
        assert region.set_recent_kernel(1, expected=2).before == 2


# ---- Harm to running processes ----


def test_a_limit_below_use_is_refused_unless_forced(used):
    below_usage = pytest.raises(LimitBelowUsage, match=r"uses 3 GiB .*force=True")
    with open_region(used, writable=True) as region:
        with unchanged(used), below_usage as error:
            region.set_memory_limit(3 * GIB - 1, device=0)
        refused = error.value
        found = refused.device, refused.used_bytes, refused.requested_bytes
        assert found == (0, 3 * GIB, 3 * GIB - 1)
        region.set_memory_limit(3 * GIB, device=0)
        region.set_memory_limit(None, device=0)
        changes = region.set_memory_limit(5, force=True)
        assert [(change.before, change.after) for change in changes] == [(None, 5), (8 * GIB, 5)]
        assert region.snapshot().device(0).memory_free_bytes == 0
        # Slots behind the number of processes do not count.
        used.put("proc_num", 0)
        region.set_memory_limit(6, device=0)


def test_one_device_that_uses_too_much_keeps_all_as_they_were(used):
    used.add_process(3, {1: 4 * GIB})
    edits = [
        LimitEdit(priority=0),
        *(LimitEdit(memory_limit="4GiB", device=uuid) for uuid in UUIDS),
    ]
    with unchanged(used), open_region(used, writable=True) as region:
        for dry_run in (False, True):
            for call in (
                lambda dry_run=dry_run: region.set_memory_limit("4GiB", dry_run=dry_run),
                lambda dry_run=dry_run: region.edit_limits(edits, dry_run=dry_run),
            ):
                with pytest.raises(LimitBelowUsage) as error:
                    call()
                assert (error.value.device, error.value.used_bytes) == (1, 5 * GIB)


def test_an_sm_limit_that_would_stop_running_processes_is_refused(layout, region_file):
    file = region_file(layout, uuids=UUIDS)
    file.add_process(7)
    before = file.content()
    with open_region(file, writable=True) as region:
        # libvgpu checks the limit of device 0, for all devices.
        assert region.set_sm_limit(30, device=1, dry_run=True).effect is NEW_PROCESSES
        if layout not in NO_WATCHER:
            assert Effect.STOPS_LAUNCHES not in effects(region.set_sm_limit(30))
            return
        with pytest.raises(LaunchesWouldStop, match="force=True") as error:
            region.set_sm_limit(30)
        refused = error.value
        assert (refused.device, refused.processes, refused.requested_percent) == (0, 1, 30)
        with pytest.raises(LaunchesWouldStop):
            region.edit_limits([LimitEdit(sm_limit=30, device=0)], dry_run=True)
        assert file.content() == before
        assert region.set_sm_limit(30, force=True)[0].effect is Effect.STOPS_LAUNCHES
        # Another level, and off, is seen as ever.
        assert region.set_sm_limit(40, device=0).effect is NEW_PROCESSES
        assert region.set_sm_limit(None, device=0).effect is IMMEDIATE


def test_in_1_1_only_a_process_that_found_100_can_be_limited_later(region_file):
    """Since 2.4.1 libvgpu starts its watcher at 1 to 100, and not at 0 or above."""
    file = region_file(Layout.V1_1, uuids=UUIDS)
    file.add_process(7)
    with open_region(file, writable=True) as region:
        for stored in (0, 101, 100_000):
            file.put("sm_limit", stored)
            with pytest.raises(LaunchesWouldStop):
                region.set_sm_limit(30, device=0)
            assert region.set_sm_limit(30, device=0, force=True).effect is Effect.STOPS_LAUNCHES


# ---- When an edit takes effect ----


def test_an_sm_limit_of_device_0_holds_at_once_only_if_it_goes_on_or_off(layout, region_file):
    """A running process checks device 0's SM limit, whichever device it uses."""
    file = region_file(layout, sm_limits=(50, 50), uuids=UUIDS)
    crossing = IMMEDIATE if layout in CHECKED_AT_LAUNCH else NEW_PROCESSES
    with open_region(file, writable=True) as region:
        for limit in (30, 30):
            assert region.set_sm_limit(limit, device=0).effect is NEW_PROCESSES
        for limit in (None, 50):
            assert region.set_sm_limit(limit, device=1).effect is NEW_PROCESSES
        for limit in (None, 50, 100, 50):
            assert effects(region.set_sm_limit(limit)) == [crossing] * 2
        region.set_sm_limit(None, device=1)
        # Device 1 goes from off to 30, device 0 only from 50 to 30.
        assert effects(region.set_sm_limit(30)) == [NEW_PROCESSES] * 2
        file.put("sm_limit", 0)
        assert region.set_sm_limit(100, device=0).effect is NEW_PROCESSES
        file.put("sm_limit", 0)
        assert region.set_sm_limit(99, device=0).effect is crossing


def test_the_switch_holds_at_once_but_in_the_layout_that_reads_it_at_start(layout, region_file):
    with open_region(region_file(layout), writable=True) as region:
        effect = region.set_utilization_switch(False).effect
    assert effect is (NEW_PROCESSES if layout is Layout.V1_1_POSTINIT else IMMEDIATE)


# ---- What is no value ----

REFUSED: list[tuple[dict[str, Any], str]] = [
    *(({"memory_limit": limit}, "unlimited") for limit in (0, "0", "0GiB", "0%")),
    *(({"memory_limit": limit}, "size|bytes") for limit in (-1, 2**64, "-1", "6GB", "", "1.3")),
    *(({"sm_limit": limit}, "1 to 100") for limit in (0, -1, 101, 2**64)),
    *(({"priority": number}, "a priority is 0 to") for number in (-1, 2**31)),
    ({"memory_limit": 1, "expected": "80%"}, "of what"),
    ({"memory_limit": 1, "expected": 2**64 + 8 * GIB}, "bytes"),
    ({"sm_limit": 1, "expected": 2**64 + 100}, "1 to 100"),
    ({"priority": 1, "expected": 2**32 + 1}, "an expected value"),
    ({"priority": 1, "device": 0}, "whole region's"),
    ({}, "one of"),
    ({"memory_limit": 1, "sm_limit": None}, "one of"),
]


@pytest.mark.parametrize(("edit", "message"), REFUSED)
def test_what_is_no_edit_is_a_value_error_where_it_is_written(edit, message):
    with pytest.raises(ValueError, match=message):
        LimitEdit(**edit)


# Every whole number that the library takes.
NUMBERS: dict[str, Callable[[Region, Any], object]] = {
    "limit": lambda region, n: region.set_memory_limit(n, device=0),
    "expected limit": lambda region, n: region.set_memory_limit(9, device=0, expected=n),
    "limit together": lambda region, n: region.edit_limits([LimitEdit(memory_limit=n, device=0)]),
    "SM limit": lambda region, n: region.set_sm_limit(n, device=0),
    "expected SM limit": lambda region, n: region.set_sm_limit(9, device=0, expected=n),
    "device to edit": lambda region, n: region.set_sm_limit(50, device=n),
    "device to read": lambda region, n: region.memory_limit(n),
    "priority": lambda region, n: region.set_priority(n),
    "expected priority": lambda region, n: region.set_priority(1, expected=n),
    "priority together": lambda region, n: region.edit_limits([LimitEdit(priority=n)]),
    "launch mark": lambda region, n: region.set_recent_kernel(n),
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


def test_an_integer_is_what_has_an_index_and_is_no_bool(region_file):
    file = region_file(memory_limits=[1], sm_limits=[1], uuids=UUIDS)
    file.put("recent_kernel", 1)
    file.add_process(1)
    before = file.content()
    with open_region(file, writable=True) as region:
        for call in NUMBERS.values():
            for number in (True, np.True_, 1.0, np.float64(1), Decimal(1), Fraction(1), b"1"):
                with pytest.raises(TypeError):
                    call(region, number)
        assert file.content() == before
        for call in NUMBERS.values():
            try:
                call(region, np.uint8(1))
            except ValueError as error:
                assert "alive" in str(error) or "not known" in str(error)  # noqa: PT017
            file.put_bytes(0, before)


@pytest.mark.parametrize("value", [None, 0, 1, "on"])
def test_the_switch_is_true_or_false(value, region_file):
    with open_region(region_file(), writable=True) as region:
        with pytest.raises(TypeError):
            region.set_utilization_switch(value)
        with pytest.raises(TypeError):
            region.set_utilization_switch(True, expected=value)

"""Editing a live region: limits, switches, who sees an edit when, and what is refused."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.region_file import RegionFile, RegionFileFactory, locate

from libhamiregion import (
    Effect,
    Layout,
    LimitBelowUsage,
    LimitChange,
    LimitConflict,
    LimitEdit,
    Region,
    ValueChange,
    open_region,
)


@pytest.fixture(params=list(Layout))
def layout(request: pytest.FixtureRequest) -> Layout:
    chosen: Layout = request.param
    return chosen


GIB = 2**30
UUIDS = ("GPU-0", "GPU-1")
IMMEDIATE, NEW_PROCESSES = Effect.IMMEDIATE, Effect.NEW_PROCESSES

# Where a running process looks at device 0's SM limit at each launch.
LOOK_AT_LAUNCH = {Layout.UNVERSIONED_NO_UTIL, Layout.UNVERSIONED, Layout.V1_1}


def limits_in(file: RegionFile) -> list[int]:
    return [file.get("limit", device=device) for device in range(16)]


def sm_limits_in(file: RegionFile) -> list[int]:
    return [file.get("sm_limit", device=device) for device in range(16)]


def changed_bytes(before: bytes, after: bytes) -> set[int]:
    assert len(before) == len(after)
    differ = np.frombuffer(before, np.uint8) != np.frombuffer(after, np.uint8)
    return set(np.flatnonzero(differ).tolist())


# ---- memory limits ----


def test_a_memory_limit_is_stored_in_bytes(layout: Layout, region_file: RegionFileFactory) -> None:
    file = region_file(layout, memory_limits=(7, 8), uuids=UUIDS)
    before: int | None = 8
    with open_region(file, writable=True) as region:
        for given, stored in (
            (1, 1),
            ("12345", 12345),
            ("6GiB", 6 * GIB),
            ("3000m", 3000 * 2**20),
            (2**63 - 1, 2**63 - 1),
            (2**64 - 1, 2**64 - 1),
            (None, 0),
        ):
            changes = region.set_memory_limit(given, device=1)
            assert changes == LimitChange(1, before, stored or None, IMMEDIATE, "memory")
            before = stored or None
            assert region.memory_limit(1) == before
            assert region.snapshot().device(1).memory_limit_bytes == before
            assert limits_in(file) == [7, stored] + [0] * 14


def test_an_edit_touches_nothing_but_its_own_bytes(
    layout: Layout, region_file: RegionFileFactory
) -> None:
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
            before = file.content()
            edit(region)
            changed = changed_bytes(before, file.content())
            assert changed, field
            assert changed <= set(range(at, at + size)), field


def test_what_is_no_size_is_a_value_error_and_0_has_a_hint_to_none(
    region_file: RegionFileFactory,
) -> None:
    file = region_file(memory_limits=(5,))
    with open_region(file, writable=True) as region:
        for limit in (-1, 2**64, "-1", "6GB", "", "lots", "1.3", 0, "0", "0GiB"):
            said = "unlimited" if limit in {0, "0", "0GiB"} else r"size|negative|bytes|1000"
            for options in ({}, {"device": 0}, {"force": True}):
                with pytest.raises(ValueError, match=said):
                    region.set_memory_limit(limit, **options)
            with pytest.raises(ValueError, match=said):
                region.set_memory_limit(5, expected=limit)
    assert limits_in(file)[0] == 5


# ---- SM limits ----


def test_an_sm_limit_is_stored_in_percent_and_unlimited_as_100(
    layout: Layout, region_file: RegionFileFactory
) -> None:
    file = region_file(layout, sm_limits=(30, 40), uuids=UUIDS)
    before: int | None = 40
    with open_region(file, writable=True) as region:
        for given, stored in ((1, 1), (50, 50), (99, 99), (100, 100), (None, 100)):
            after = stored if stored < 100 else None
            change = region.set_sm_limit(given, device=1)
            assert (change.device, change.before, change.after) == (1, before, after)
            before = after
            assert region.sm_limit(1) == after
            assert region.snapshot().device(1).sm_limit_percent == after
            assert sm_limits_in(file) == [30, stored] + [100] * 14


def test_sm_limits_are_1_to_100(region_file: RegionFileFactory) -> None:
    with open_region(region_file(sm_limits=(30,)), writable=True) as region:
        for percent in (0, -1, 101, 2**64):
            with pytest.raises(ValueError, match="1 to 100"):
                region.set_sm_limit(percent)
            with pytest.raises(ValueError, match="1 to 100"):
                region.set_sm_limit(50, expected=percent)
        assert region.sm_limit(0) == 30


# ---- which devices ----


def test_any_device_can_be_forced(region_file: RegionFileFactory) -> None:
    file = region_file(uuids=UUIDS)
    with open_region(file, writable=True) as region:
        changes = region.set_memory_limit(5, device=15, force=True)
        assert changes == LimitChange(15, None, 5, IMMEDIATE, "memory")
        assert region.set_sm_limit(5, device=14, force=True).device == 14
    assert limits_in(file) == [0] * 15 + [5]
    assert sm_limits_in(file) == [100] * 14 + [5, 100]


# ---- expected: compare and set ----


def test_a_memory_limit_is_set_only_where_the_expected_one_stands(
    region_file: RegionFileFactory,
) -> None:
    file = region_file(memory_limits=(GIB, 3 * GIB), uuids=UUIDS)
    with open_region(file, writable=True) as region:
        with pytest.raises(LimitConflict, match=r"3 GiB .*2 GiB .*as expected") as error:
            region.set_memory_limit(5, expected="2GiB", device=1)
        found = error.value
        assert (found.device, found.found, found.expected) == (1, 3 * GIB, 2 * GIB)
        assert found.path == str(file.path)
        assert "nothing was changed" in str(found)
        with pytest.raises(LimitConflict, match="unlimited"):
            region.set_memory_limit(5, expected=None, device=1, force=True)
        assert region.memory_limit(1) == 3 * GIB
        for expected in (GIB, "1GiB", "1024m"):
            region.set_memory_limit(GIB, expected=expected, device=0)
        for unlimited in (None, "unlimited", " Unlimited "):
            region.set_memory_limit(None, device=0)
            region.set_memory_limit(GIB, expected=unlimited, device=0)
            with pytest.raises(LimitConflict) as error:
                region.set_memory_limit(2 * GIB, expected=unlimited, device=0)
            assert (error.value.found, error.value.expected) == (GIB, None)
            assert region.memory_limit(0) == GIB


@pytest.mark.parametrize("expected", [0, "0", "80%"])
def test_what_is_no_limit_is_not_expected(expected: Any, region_file: RegionFileFactory) -> None:
    with open_region(region_file(), writable=True) as region:
        for call in (
            lambda: region.set_memory_limit(5, expected=expected),
            lambda: region.edit_limits([LimitEdit(memory_limit=5, device=0, expected=expected)]),
        ):
            with pytest.raises(ValueError, match=r"unlimited|80%"):
                call()
        assert region.memory_limit(0) is None


def test_an_sm_limit_is_set_where_the_expected_one_stands(region_file: RegionFileFactory) -> None:
    file = region_file(sm_limits=(30, 40), uuids=UUIDS)
    with open_region(file, writable=True) as region:
        region.set_sm_limit(35, expected=30, device=0)
        assert region.sm_limit(0) == 35
        with pytest.raises(LimitConflict, match=r"40%, not 30% as expected") as error:
            region.set_sm_limit(35, expected=30, device=1)
        assert (error.value.device, error.value.found, error.value.expected) == (1, 40, 30)
        assert region.sm_limit(1) == 40


def test_all_unlimited_sm_limits_are_one_and_the_same(region_file: RegionFileFactory) -> None:
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
            assert region.sm_limit(0) == 50


@pytest.mark.parametrize("different", [0, 1, 2])
def test_where_one_device_is_not_as_expected_none_is_changed(
    different: int, region_file: RegionFileFactory
) -> None:
    uuids = ("GPU-0", "GPU-1", "GPU-2")
    file = region_file(memory_limits=[GIB] * 3, sm_limits=[30] * 3, uuids=uuids)
    file.put("limit", 5, device=different)
    file.put("sm_limit", 5, device=different)
    before = file.content()
    with open_region(file, writable=True) as region:
        with pytest.raises(LimitConflict) as error:
            region.set_memory_limit(2 * GIB, expected=GIB)
        assert error.value.device == different
        with pytest.raises(LimitConflict) as error:
            region.set_sm_limit(40, expected=30)
        assert error.value.device == different
    assert file.content() == before


# ---- limits under what is used ----


@pytest.fixture
def used(region_file: RegionFileFactory) -> RegionFile:
    """Device 0 uses 3 GiB, in slots of any status; device 1 uses 1 GiB."""
    file = region_file(memory_limits=(8 * GIB, 8 * GIB), uuids=UUIDS)
    file.add_process(1, {0: GIB, 1: GIB})
    file.add_process(2, {0: 2 * GIB}, status=0)
    return file


def test_a_limit_under_what_is_used_is_refused_with_both_numbers(used: RegionFile) -> None:
    before = used.content()
    with open_region(used, writable=True) as region:
        with pytest.raises(LimitBelowUsage, match=r"uses 3 GiB .*2 GiB .*force=True") as error:
            region.set_memory_limit("2GiB", device=0)
        refused = error.value
        assert (refused.device, refused.used_bytes, refused.requested_bytes) == (
            0,
            3 * GIB,
            2 * GIB,
        )
        assert refused.path == str(used.path)
        with pytest.raises(LimitBelowUsage) as error:
            region.set_memory_limit(3 * GIB - 1, device=0)
        assert str(3 * GIB) in str(error.value)
        assert str(3 * GIB - 1) in str(error.value)
        assert used.content() == before
        # Exactly what is used is allowed, and so is no limit.
        for limit in (3 * GIB, None):
            region.set_memory_limit(limit, device=0)
            assert region.memory_limit(0) == limit


def test_force_goes_under_what_is_used(used: RegionFile) -> None:
    with open_region(used, writable=True) as region:
        changes = region.set_memory_limit(5, force=True)
        assert changes == tuple(
            LimitChange(device, 8 * GIB, 5, IMMEDIATE, "memory") for device in (0, 1)
        )
        assert region.snapshot().device(0).memory_free_bytes == 0
    assert limits_in(used)[:2] == [5, 5]


def test_where_one_device_uses_too_much_none_is_changed(used: RegionFile) -> None:
    used.add_process(3, {1: 4 * GIB})
    before = used.content()
    with open_region(used, writable=True) as region:
        # Enough for device 0, which comes first, and not for device 1.
        with pytest.raises(LimitBelowUsage) as error:
            region.set_memory_limit("4GiB")
        assert error.value.device == 1
    assert used.content() == before


def test_usage_behind_proc_num_does_not_count(used: RegionFile) -> None:
    used.put("proc_num", 1)
    with open_region(used, writable=True) as region:
        region.set_memory_limit(GIB, device=0)
        assert region.memory_limit(0) == GIB


# ---- dry runs ----


def test_a_dry_run_tells_the_changes_and_makes_none(used: RegionFile) -> None:
    before = used.content()
    with open_region(used, writable=True) as region:
        planned = region.set_memory_limit("6GiB", expected="8GiB", dry_run=True)
        sm_planned = region.set_sm_limit(50, expected=None, dry_run=True, force=True)
        assert used.content() == before
        assert region.set_memory_limit("6GiB", expected="8GiB") == planned
        assert region.set_sm_limit(50, expected=None, force=True) == sm_planned
    assert planned == tuple(
        LimitChange(device, 8 * GIB, 6 * GIB, IMMEDIATE, "memory") for device in (0, 1)
    )
    assert [(change.before, change.after) for change in sm_planned] == [(None, 50)] * 2
    assert limits_in(used)[:2] == [6 * GIB] * 2


def test_a_dry_run_refuses_what_the_edit_would_refuse(used: RegionFile) -> None:
    with open_region(used, writable=True) as region:
        calls: tuple[tuple[type[Exception], Callable[[], object]], ...] = (
            (LimitBelowUsage, lambda: region.set_memory_limit(5, dry_run=True)),
            (LimitConflict, lambda: region.set_memory_limit(GIB, expected=5, dry_run=True)),
            (LimitConflict, lambda: region.set_sm_limit(5, expected=6, dry_run=True)),
            (ValueError, lambda: region.set_memory_limit(0, dry_run=True)),
            (ValueError, lambda: region.set_sm_limit(0, dry_run=True)),
        )
        for error, call in calls:
            with pytest.raises(error):
                call()


# ---- when an edit takes effect ----


@pytest.mark.parametrize(
    ("before", "after", "crosses"),
    [
        ((50,), 30, False),
        ((50,), 50, False),
        ((None,), None, False),
        ((50,), None, True),
        ((50,), 100, True),
        ((None,), 50, True),
    ],
)
def test_an_sm_limit_holds_at_once_only_where_processes_look_and_it_goes_on_or_off(
    before: tuple[int | None],
    after: int | None,
    *,
    crosses: bool,
    layout: Layout,
    region_file: RegionFileFactory,
) -> None:
    file = region_file(layout, sm_limits=before, uuids=UUIDS[:1])
    with open_region(file, writable=True) as region:
        (change,) = region.set_sm_limit(after)
    immediate = crosses and layout in LOOK_AT_LAUNCH
    assert change.effect is (IMMEDIATE if immediate else NEW_PROCESSES)


def test_an_sm_limit_stored_as_0_is_off_too(layout: Layout, region_file: RegionFileFactory) -> None:
    file = region_file(layout, uuids=UUIDS[:1])
    file.put("sm_limit", 0)
    with open_region(file, writable=True) as region:
        assert region.set_sm_limit(100)[0].effect is NEW_PROCESSES
        file.put("sm_limit", 0)
        effect = region.set_sm_limit(99)[0].effect  # nothing runs there
    assert effect is (IMMEDIATE if layout in LOOK_AT_LAUNCH else NEW_PROCESSES)


def test_device_0_decides_for_running_processes(
    layout: Layout, region_file: RegionFileFactory
) -> None:
    """A running process looks at device 0's SM limit, whichever device it uses."""
    file = region_file(layout, sm_limits=(50, 50), uuids=UUIDS)
    both = [IMMEDIATE if layout in LOOK_AT_LAUNCH else NEW_PROCESSES] * 2
    with open_region(file, writable=True) as region:
        assert region.set_sm_limit(None, device=1).effect is NEW_PROCESSES
        assert region.set_sm_limit(50, device=1).effect is NEW_PROCESSES
        assert [change.effect for change in region.set_sm_limit(None)] == both
        assert [change.effect for change in region.set_sm_limit(50)] == both
        region.set_sm_limit(None, device=1)
        # Device 1 goes from off to 30, device 0 only from 50 to 30.
        effects = [change.effect for change in region.set_sm_limit(30)]
        assert effects == [NEW_PROCESSES] * 2


def test_the_switch_holds_at_once_but_in_the_layout_that_reads_it_at_start(
    layout: Layout, region_file: RegionFileFactory
) -> None:
    with open_region(region_file(layout), writable=True) as region:
        change = region.set_utilization_switch(False)
    late = layout is Layout.V1_1_POSTINIT
    assert change.effect is (NEW_PROCESSES if late else IMMEDIATE)


# ---- fields of the whole region ----


def test_the_switch_is_set_and_told(file: RegionFile) -> None:
    with open_region(file, writable=True) as region:
        change = region.set_utilization_switch(False)
        assert (change.field, change.before, change.after) == ("utilization_switch", 1, 0)
        assert file.get("utilization_switch") == 0
        assert region.utilization_switch is False
        region.set_utilization_switch(True)
        assert file.get("utilization_switch") == 1


def test_the_priority_and_the_launch_mark_are_set_and_told(file: RegionFile) -> None:
    priority, mark = 1, 2
    with open_region(file, writable=True) as region:
        for n in (0, 1, 7, 2**31 - 1):
            assert region.set_priority(n) == ValueChange("priority", priority, n, IMMEDIATE)
            priority = n
            assert region.priority == file.get("priority") == n
        for n in (-1, 0, 2, 2**31 - 1):
            assert region.set_recent_kernel(n) == ValueChange("recent_kernel", mark, n, IMMEDIATE)
            mark = n
            assert region.recent_kernel == file.get("recent_kernel") == n


@pytest.mark.parametrize(
    ("call", "n"),
    [
        (Region.set_priority, -1),
        (Region.set_priority, 2**31),
        (Region.set_recent_kernel, -2),
        (Region.set_recent_kernel, 2**31),
    ],
)
def test_numbers_out_of_range_are_refused(
    call: Callable[[Region, int], object], n: int, region_file: RegionFileFactory
) -> None:
    file = region_file()
    before = file.content()
    with open_region(file, writable=True) as region, pytest.raises(ValueError, match=str(n)):
        call(region, n)
    assert file.content() == before


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("memory_limit", "4GiB", 2**64 + 8 * GIB),
        ("memory_limit", "4GiB", -1),
        ("sm_limit", 50, -5),
        ("sm_limit", 50, 2**64 + 100),
        ("priority", 1, 2**32 + 1),
    ],
)
def test_what_no_value_can_be_is_not_expected(
    region_file: RegionFileFactory, kind: Any, value: Any, expected: int
) -> None:
    """Cut to 64 bits it might be there."""
    file = region_file(memory_limits=["8GiB"], uuids=UUIDS)
    before = file.content()
    device = None if kind == "priority" else 0
    with open_region(file, writable=True) as region, pytest.raises(ValueError):  # noqa: PT011
        region.edit_limits([LimitEdit(**{kind: value}, device=device, expected=expected)])
    assert file.content() == before


# Freed memory is filled with something.

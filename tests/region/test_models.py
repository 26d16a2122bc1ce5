"""Snapshots and what they are made of are plain, frozen values."""

import copy
import pickle
from typing import Any

import attrs
import pytest
from support.region_file import RegionFile

from libhamiregion import (
    DeviceUsage,
    EnvironmentLimits,
    Layout,
    NoSuchDevice,
    ReapedSlot,
    RegionSnapshot,
    open_region,
)


def device(limit: int | None, used: int) -> DeviceUsage:
    return DeviceUsage(0, None, limit, used, 0, 0, 0, 0, None, 0, 0, 0)


@pytest.fixture
def file(region_file) -> RegionFile:
    made = region_file(memory_limits=(8, None), sm_limits=(50,), uuids=("GPU-0", "MIG-1"))
    made.add_process(7, {0: 3}, host_pid=4007)
    made.add_process(8, {1: 2}, status=2)
    return made


@pytest.fixture
def snapshot(file) -> RegionSnapshot:
    with open_region(file) as region:
        return region.snapshot()


def test_free_memory_is_never_below_0_and_none_where_unlimited():
    for limit, used, free in ((None, 5, None), (8, 3, 5), (8, 8, 0), (8, 9, 0), (1, 2**64, 0)):
        assert device(limit, used).memory_free_bytes == free


def every_object(snapshot: RegionSnapshot) -> list[Any]:
    with open_region(snapshot.path) as region:
        state = region.lock_state()
    return [
        state,
        ReapedSlot(7, 10),
        snapshot,
        snapshot.devices[0],
        snapshot.processes[0],
        snapshot.processes[0].devices[0],
        EnvironmentLimits((5,) * 16, (None,) * 16),
    ]


def test_nothing_can_be_changed_added_or_removed(snapshot):
    for thing in every_object(snapshot):
        name = attrs.fields(type(thing))[0].name
        before = getattr(thing, name)
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            setattr(thing, name, before)
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            delattr(thing, name)
        with pytest.raises(AttributeError):
            thing.remark = "mine"
        assert getattr(thing, name) == before


def test_equal_snapshots_are_equal_and_hash_alike(snapshot):
    again = attrs.evolve(snapshot)
    assert again is not snapshot
    assert again == snapshot
    assert hash(again) == hash(snapshot)
    assert attrs.evolve(snapshot, priority=5) != snapshot
    assert snapshot.devices[0] != snapshot.devices[1]


def test_snapshots_pickle_and_copy_looked_at_or_not(file):
    with open_region(file) as region:
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            untouched, touched = region.snapshot(), region.snapshot()
            assert touched.devices
            for snapshot in (untouched, touched):
                again = pickle.loads(pickle.dumps(snapshot, protocol))
                assert again == snapshot
                assert again.devices[0].memory_free_bytes == 5
                assert again.processes[1].status == 2
        for make in (copy.copy, copy.deepcopy):
            untouched = region.snapshot()
            assert make(untouched) == untouched


def test_the_other_values_pickle(snapshot):
    for thing in every_object(snapshot):
        assert pickle.loads(pickle.dumps(thing)) == thing


def test_device_finds_by_index_not_by_position(region_file):
    made = region_file(memory_limits=(5,))
    made.add_process(1, {9: 4})
    with open_region(made) as region:
        snapshot = region.snapshot()
    assert [found.index for found in snapshot.devices] == [0, 9]
    assert snapshot.device(9).memory_used_bytes == 4
    made.put("uuids", b"GPU-nine", device=9)
    with open_region(made) as region:
        assert region.snapshot().device("GPU-nine").index == 9
    for absent in (1, 10, 16, -1):
        with pytest.raises(NoSuchDevice, match=f"no device {absent}"):
            snapshot.device(absent)


def test_a_status_that_libvgpu_never_writes_is_shown_as_it_stands(file):
    file.put("slot_status", -77)
    with open_region(file) as region:
        status = region.snapshot().processes[0].status
    assert status == -77
    assert type(status) is int


@pytest.mark.parametrize(
    ("fields", "idle_s"),
    [
        ({"last_kernel_time": 1_000}, 600.0),
        ({"last_kernel_time": 2_000}, 0.0),
        ({"last_kernel_time": 0}, None),
        ({"last_kernel_time": 1_000, "recent_kernel": -1}, None),
    ],
)
def test_a_region_is_idle_since_its_last_launch_unless_launches_are_held_back(file, fields, idle_s):
    for name, value in fields.items():
        file.put(name, value)
    with open_region(file) as region:
        snapshot = attrs.evolve(region.snapshot(), taken_at_ns=1_600 * 10**9)
    assert snapshot.idle_s == idle_s


def test_a_layout_without_the_time_of_the_last_launch_has_no_idle_time(region_file):
    with open_region(region_file(Layout.UNVERSIONED)) as region:
        assert region.snapshot().idle_s is None

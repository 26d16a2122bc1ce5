"""The golden regions: every field that libvgpu wrote is read, exactly, in each way there is."""

from typing import Any

import pytest
from support.golden_regions import NAMES, GoldenRegion
from support.lock_bytes import is_free
from support.reaping import reap_in_time
from support.recovering import NOTHING, assert_usable, did, recover
from support.region_file import RegionFile, locate
from support.slot_bytes import slot_bytes, slot_range

from libhamiregion import Layout, MemoryLimitExceeded, ProcessUsage, identify, open_region

# JSON's names, and ours.
USAGE_NAMES = {
    "context": "memory_context_bytes",
    "module": "memory_module_bytes",
    "data": "memory_data_bytes",
    "total": "memory_used_bytes",
    "monitor_used": "memory_monitor_bytes",
    "sm_util": "sm_util_percent",
}


def held(golden: GoldenRegion) -> bool:
    return golden.expected["scenario"] == "owner-killed-holding-lock"


def sums(golden: GoldenRegion, device: int) -> dict[str, int]:
    """What a device's figures come to over all processes."""
    usages = [process["devices"][device] for process in golden.expected["processes"]]
    return {ours: sum(usage[name] for usage in usages) for name, ours in USAGE_NAMES.items()}


def sm_or_none(percent: int) -> int | None:
    return percent if 0 < percent < 100 else None


def test_identify_names_the_layout_from_size_version_and_content(golden):
    assert identify(golden.path) is golden.layout
    assert golden.path.stat().st_size == golden.expected["file_size"]
    assert golden.expected["file_size"] == golden.layout.size_bytes + 1


def test_reading_does_not_change_a_byte(golden):
    before = golden.path.read_bytes(), golden.path.stat().st_mtime_ns
    with open_region(golden.path) as region:
        region.snapshot()
        region.memory_used(0)
        region.is_stale()
    with open_region(golden.path, writable=True) as region:
        region.snapshot()
    assert (golden.path.read_bytes(), golden.path.stat().st_mtime_ns) == before


# ---- Region.snapshot() ----


def test_a_snapshot_has_every_field(golden):
    expected = golden.expected
    with open_region(golden.path) as region:
        snapshot = region.snapshot()
    assert snapshot.path == str(golden.path)
    assert snapshot.layout is golden.layout
    assert snapshot.device_count == expected["device_num"]
    assert snapshot.priority == expected["priority"]
    assert snapshot.utilization_switch is (expected["utilization_switch"] == 1)
    assert snapshot.recent_kernel == expected["recent_kernel"]
    assert snapshot.owner_pid == expected.get("lock", {"owner_pid": 0})["owner_pid"]
    assert snapshot.settled is not held(golden)
    assert [device.index for device in snapshot.devices] == list(range(expected["device_num"]))
    for device in snapshot.devices:
        index = device.index
        assert device.uuid == expected["uuids"][index]
        assert device.memory_limit_bytes == (expected["memory_limit"][index] or None)
        assert device.sm_limit_percent == sm_or_none(expected["sm_limit"][index])
        assert device.memory_used_bytes == expected["device_used"][index]
        for ours, value in sums(golden, index).items():
            assert getattr(device, ours) == value
        assert (device.enc_util_percent, device.dec_util_percent) == (0, 0)
    for process, figures in zip(snapshot.processes, expected["processes"], strict=True):
        check_process(process, figures)
        assert process.settled or held(golden)


def check_process(process: ProcessUsage, expected: dict[str, Any]) -> None:
    assert process.pid == expected["pid"]
    assert process.host_pid == (expected["host_pid"] or None)
    assert process.status == expected["status"]
    assert [usage.index for usage in process.devices] == list(range(len(expected["devices"])))
    for usage, figures in zip(process.devices, expected["devices"], strict=True):
        for name, ours in USAGE_NAMES.items():
            assert getattr(usage, ours) == figures[name]
        assert (usage.enc_util_percent, usage.dec_util_percent) == (0, 0)


# ---- live values ----


def test_last_kernel_time_is_there_from_1_1_on(golden):
    # Not in the JSON: the files were all recorded within these ten minutes.
    with open_region(golden.path) as region:
        live, of_snapshot = region.last_kernel_time_s, region.snapshot().last_kernel_time_s
    assert live == of_snapshot
    if golden.layout in {Layout.UNVERSIONED_NO_UTIL, Layout.UNVERSIONED}:
        assert live is None
    else:
        assert live is not None
        assert abs(live - 1_795_168_221) < 300


# ---- the lock and the slots ----

with_lock = pytest.mark.parametrize(
    "golden", [name for name in NAMES if not name.startswith("unversioned")], indirect=True
)


@with_lock
def test_a_golden_lock_is_recovered_where_its_owner_was_killed(golden):
    file = RegionFile(golden.path, golden.layout)
    if held(golden):
        assert not is_free(file)
        with open_region(file) as region:
            state = region.lock_state()
            assert state.owner_pid == golden.expected["lock"]["owner_pid"]
            assert (state.held, state.owner_life) == (True, "dead")
        assert recover(file) == did(dead_owner=True)
    else:
        assert recover(file) == NOTHING
    assert_usable(file)
    with open_region(file, writable=True) as region:
        devices = range(len(region.snapshot().devices))
        for device in devices:
            assert region.memory_used(device) == golden.expected["device_used"][device]
        reap_in_time(region)
        assert not any(region.memory_used(device) for device in devices)


@with_lock
def test_coming_and_going_leaves_a_golden_region_as_it_was(golden):
    """Attach, charge, release, detach. Bytes that may differ, and to what:

    - where the owner was killed holding the lock: owner_pid is 0 and the semaphore's value 1,
    - the first slot above the table, which we had: all 0; its seqlock, where there is one, even.
    """
    file = RegionFile(golden.path, golden.layout)
    file.put("limit", 0, device=1)
    layout = golden.layout
    expected = bytearray(file.content())
    own = file.get("proc_num")
    if held(golden):
        recover(file)
        owner, semaphore = locate(layout, "owner_pid")[0], locate(layout, "sem")[0]
        expected[owner : owner + 8] = bytes(8)
        expected[semaphore : semaphore + 4] = (1).to_bytes(4, "little")
    with open_region(file, writable=True) as region, region.attach() as slot:
        for device, used in enumerate(golden.expected["device_used"]):
            limit = region.memory_limit(device)
            if limit and used + 5 > limit:
                with pytest.raises(MemoryLimitExceeded):
                    slot.charge(device, 5)
                continue
            slot.charge(device, 5)
            slot.release(device, 2)
        slot.charge(1, 1 << 30, "context")
        slot.charge(1, 9, "module")
        slot.release(1, 1 << 30, "context")
    start, end = slot_range(layout, own)
    left = bytearray(slot_bytes(file, own))
    expected[start:end] = left
    assert file.content() == bytes(expected)
    if layout.has_seqlock:
        seqlock = layout.offsets["slot_seqlock"] or 0
        assert int.from_bytes(left[seqlock : seqlock + 8], "little") % 2 == 0
        left[seqlock : seqlock + 8] = bytes(8)
    assert not any(left)

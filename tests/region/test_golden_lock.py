"""The regions that libvgpu has left behind: recovered, used, and left as they were."""

from pathlib import Path

import pytest
from support.golden_regions import NAMES, GoldenRegion, unpack
from support.lock_bytes import is_free
from support.reaping import reap_in_time
from support.recovering import NOTHING, assert_usable, did, recover
from support.region_file import RegionFile, locate
from support.slot_bytes import slot_bytes, slot_range

from libhamiregion import MemoryLimitExceeded, open_region


@pytest.fixture(params=[name for name in NAMES if not name.startswith("unversioned")])
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> GoldenRegion:
    """Each golden region of a layout with a lock."""
    return unpack(request.param, tmp_path)


def is_killed_holder(golden: GoldenRegion) -> bool:
    return "lock" in golden.expected


def test_a_golden_lock_is_recovered_where_its_owner_was_killed(golden: GoldenRegion) -> None:
    file = RegionFile(golden.path, golden.layout)
    if is_killed_holder(golden):
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


def test_coming_and_going_leaves_a_golden_region_as_it_was(golden: GoldenRegion) -> None:
    """Attach, charge, release, detach. Bytes that may differ, and to what:

    - where the owner was killed holding the lock: owner_pid is 0 and the semaphore's value 1,
    - the first slot above the table, which we had: all 0; its seqlock, where there is one, even.
    """
    file = RegionFile(golden.path, golden.layout)
    file.put("limit", 0, device=1)
    layout = golden.layout
    expected = bytearray(file.content())
    own = file.get("proc_num")
    if is_killed_holder(golden):
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

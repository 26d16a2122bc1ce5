"""A process of this library whose slot is moved or removed by others goes on accounting rightly.

libvgpu moves the last slot into the hole when it removes one. From 2.8.1 on it must not do that to
a live process, and does it all the same when it removes two at once.
"""

import contextlib
import os

import pytest
from support.lock_bytes import NOBODY, is_free
from support.region_file import RegionFile
from support.slot_bytes import at_work, move_last_into, pids, put_slot, slot_bytes

from libhamiregion import Region, Slot, SlotRepair, open_region


def attach_behind(file: RegionFile, region: Region, others: int) -> Slot:
    """Attach as the last of several; the others are dead and hold 1000 each."""
    for number in range(others):
        file.add_process(NOBODY + number, {0: 1000})
    slot = region.attach()
    slot.charge(0, 100)
    slot.charge(0, 10, "module")
    slot.charge(9, 7, "context")
    assert pids(file)[-1] == os.getpid()
    return slot


def own_usage(region: Region, device: int) -> tuple[int, int, int, int]:
    (process,) = [one for one in region.snapshot().processes if one.pid == os.getpid()]
    usage = next(use for use in process.devices if use.index == device)
    return (
        usage.memory_context_bytes,
        usage.memory_module_bytes,
        usage.memory_data_bytes,
        usage.memory_used_bytes,
    )


def names_above(file: RegionFile) -> set[int]:
    count = file.get("proc_num")
    return {file.get("slot_pid", slot=slot) for slot in range(count, count + 6)} - {0}


@pytest.mark.parametrize("cleared", [False, True])
def test_after_a_move_into_the_hole_of_a_dead_one(cleared, layout, region_file):
    """From HAMi 2.10 on libvgpu clears the slot that it moves, whose seqlock may be odd then."""
    file = region_file(layout, uuids=["GPU-0"] * 10)
    with open_region(file, writable=True) as region:
        slot = attach_behind(file, region, 3)
        before = move_last_into(file, 1)
        if cleared:
            put_slot(file, before, bytes(len(slot_bytes(file, before))))
        if cleared and layout.has_seqlock:
            file.put("slot_seqlock", file.get("slot_seqlock", slot=1) + 1, slot=1)
        slot.charge(0, 1)
        assert pids(file) == [NOBODY, os.getpid(), NOBODY + 2]
        assert own_usage(region, 0) == (0, 10, 101, 111)
        assert own_usage(region, 9) == (7, 0, 0, 7)
        assert region.memory_used(0) == 2111
        assert region.snapshot().settled
        slot.release(0, 101)
        slot.release(0, 10, "module")
        slot.release(9, 7, "context")
        assert (region.memory_used(0), region.memory_used(9)) == (2000, 0)
        slot.detach()
        assert os.getpid() not in names_above(file) or not layout.has_seqlock
        assert region.memory_used(0) == 2000
        assert is_free(file)


@pytest.mark.parametrize("moved", [False, True])
def test_after_being_removed_altogether(moved, layout, region_file):
    """By one that could not see this process, and took it for dead."""
    file = region_file(layout, uuids=["GPU-0"] * 10)
    with open_region(file, writable=True) as region:
        slot = attach_behind(file, region, 2)
        if moved:
            # Somebody came after us, and was moved into our place.
            file.add_process(NOBODY + 5, {0: 3000})
            move_last_into(file, 2)
        else:
            file.put("proc_num", 2)
        assert os.getpid() not in pids(file)
        slot.charge(0, 1)
        assert pids(file).count(os.getpid()) == 1
        assert own_usage(region, 0) == (0, 10, 101, 111)
        assert own_usage(region, 9) == (7, 0, 0, 7)
        assert region.memory_used(0) == 2111 + (3000 if moved else 0)


def test_leaving_after_a_move_without_having_noticed_it(layout, region_file):
    file = region_file(layout, uuids=["GPU-0"] * 10)
    with open_region(file, writable=True) as region:
        slot = attach_behind(file, region, 2)
        tail = move_last_into(file, 0)
        slot.detach()
        assert region.memory_used(0) == 1000
        live = [one for one in region.snapshot().processes if one.devices[0].memory_used_bytes]
        assert [one.pid for one in live] == [NOBODY + 1]
        if layout.has_seqlock:
            assert file.get("slot_pid", slot=tail) != os.getpid()


@pytest.mark.parametrize("notice", [False, True])
def test_nobody_sees_an_orphan_of_a_process_of_this_library_once_it_has_noticed(
    notice, layout, file, actor
):
    moved, other = actor(file), actor(file)
    for number in range(3):
        file.add_process(NOBODY + number, {0: 1000})
    moved("attach")
    moved("slot.charge", 0, 50)
    move_last_into(file, 1)
    if notice:
        moved("slot.charge", 0, 1)
    with at_work(file, 3) if layout.has_seqlock else contextlib.nullcontext():
        found = other("region.repair_slots")
    # Before it noticed, others could have put it right just as well.
    repaired = () if notice or not layout.has_seqlock else (moved.pid,)
    assert found == SlotRepair(repaired=repaired, left=())
    moved("slot.charge", 0, 1)
    with open_region(file) as region:
        ours = 52 if notice else 51
        dead = sum(
            file.get("slot_used.total", slot=slot)
            for slot, pid in enumerate(pids(file))
            if pid != moved.pid
        )
        assert region.memory_used(0) == dead + ours
        moved("slot.release", 0, ours)
        assert region.memory_used(0) == dead
        moved("slot.detach")
        assert region.memory_used(0) == dead
        assert moved.pid not in [one.pid for one in region.snapshot().processes if one.status]

"""Being a process of a region: attaching, leaving, and what a death leaves behind."""

import os
import pickle
import struct
from collections.abc import Callable
from functools import partial

import pytest
from lock_bytes import NOBODY, hold, is_free, let_go
from slot_bytes import (
    differences,
    pids,
    put_slot,
    slot_bytes,
    slot_range,
    unmarked,
)
from support.actors import MakeActor
from support.region_file import SLOTS, RegionFile, RegionFileFactory, locate

from libhamiregion import (
    Layout,
    LockTimeout,
    ProcessStatus,
    RegionClosed,
    RegionCorrupt,
    RegionStale,
    Slot,
    SlotTableFull,
    open_region,
)

A_USAGE = {0: 700, 15: 41}


def new_slot(layout: Layout, pid: int, seqlock: int = 0) -> bytes:
    """A slot that has just been taken, byte by byte."""
    content = bytearray(layout.offsets["slot_stride"] or 0)
    struct.pack_into("<i", content, layout.offsets["slot_pid"] or 0, pid)
    struct.pack_into("<i", content, layout.offsets["slot_status"] or 0, ProcessStatus.RUNNING)
    if layout.has_seqlock:
        struct.pack_into("<Q", content, layout.offsets["slot_seqlock"] or 0, seqlock)
    return bytes(content)


def odd_garbage(layout: Layout) -> bytes:
    """A slot full of a predecessor's bytes, its seqlock odd."""
    return b"\x77" * (layout.offsets["slot_stride"] or 0)


# ---- attaching ----


def test_a_new_slot_is_the_next_one_and_nothing_else_changes(
    layout: Layout, file: RegionFile
) -> None:
    file.add_process(NOBODY, A_USAGE, host_pid=5, status=2)
    before = file.content()
    with open_region(file, writable=True) as region:
        slot = region.attach()
        assert slot.pid == os.getpid()
        assert pids(file) == [NOBODY, os.getpid()]
        assert unmarked(layout, slot_bytes(file, 1)) == new_slot(layout, os.getpid())
        counted = slot_range(layout, 1)
        number, _ = locate(layout, "proc_num")
        for start, end in differences(before, file.content()):
            assert counted[0] <= start < end <= counted[1] or start == number
        slot.detach()
        assert is_free(file)


def test_a_new_slot_takes_over_nothing_of_what_lay_there(layout: Layout, file: RegionFile) -> None:
    """Removed slots leave stale bytes above the table."""
    put_slot(file, 0, odd_garbage(layout))
    with open_region(file, writable=True) as region, region.attach():
        # Even, and never back to a number that a reader may have seen.
        stale = 0x7777777777777777
        expected = new_slot(layout, os.getpid(), seqlock=stale + 1)
        assert unmarked(layout, slot_bytes(file, 0)) == unmarked(layout, expected)


def test_a_slot_with_the_own_pid_is_a_dead_predecessors_and_is_taken(
    layout: Layout, region_file: RegionFileFactory
) -> None:
    file = region_file(layout, memory_limits=(1000,))
    file.add_process(os.getpid(), A_USAGE, host_pid=77, status=2)
    file.add_process(NOBODY, {0: 5})
    if layout.has_seqlock:
        file.put("slot_seqlock", 7, slot=0)
    with open_region(file, writable=True) as region:
        with region.attach() as slot:
            assert pids(file) == [os.getpid(), NOBODY]
            expected = new_slot(layout, os.getpid(), seqlock=8)
            assert unmarked(layout, slot_bytes(file, 0)) == expected
            slot.charge(0, 995)
            assert region.memory_used(0) == 1000
        assert region.memory_used(0) == 5


def test_a_process_attaches_once_to_a_region_whatever_the_handle(file: RegionFile) -> None:
    with (
        open_region(file, writable=True) as one,
        open_region(file, writable=True) as other,
    ):
        with one.attach():
            for handle in (one, other):
                with pytest.raises(RuntimeError, match="attached to the region already"):
                    handle.attach()
            assert pids(file) == [os.getpid()]
        # Not for ever.
        with other.attach():
            with pytest.raises(RuntimeError, match="attached to the region already"):
                one.attach()
            assert pids(file) == [os.getpid()]


def test_a_full_table_is_an_error_that_names_the_way_out(file: RegionFile) -> None:
    for slot in range(SLOTS):
        file.put("slot_pid", NOBODY + slot, slot=slot)
        file.put("slot_status", 1, slot=slot)
    file.put("proc_num", SLOTS)
    before = file.content()
    with open_region(file, writable=True) as region:
        with pytest.raises(SlotTableFull, match=r"1024 .*reap\(\)") as caught:
            region.attach()
        assert caught.value.path == str(file.path)
        assert file.content() == before
        # One less, and there is room.
        file.put("proc_num", SLOTS - 1)
        with region.attach():
            assert pids(file)[-1] == os.getpid()
            assert file.get("proc_num") == SLOTS
        assert file.get("proc_num") == SLOTS - 1


def test_an_impossible_number_of_processes_is_a_corrupt_region(
    layout: Layout, region_file: RegionFileFactory
) -> None:
    for count in (-1, SLOTS + 1, 2**31 - 1):
        file = region_file(layout)
        with open_region(file, writable=True) as region:
            slot = region.attach()
            file.put("proc_num", count)
            before = file.content()
            for call in (partial(slot.charge, 0, 1), slot.detach, region.attach):
                with pytest.raises(RegionCorrupt):
                    call()
            assert file.content() == before


# ---- leaving ----


def test_a_slot_is_a_context_manager(region_file: RegionFileFactory) -> None:
    file = region_file()
    with open_region(file, writable=True) as region:
        with region.attach() as slot:
            slot.charge(0, 1)
            assert pids(file) == [os.getpid()]
        assert pids(file) == []
        with pytest.raises(LookupError), region.attach():
            raise LookupError
        assert pids(file) == []


def test_leaving_twice_is_leaving_once(region_file: RegionFileFactory) -> None:
    file = region_file()
    with open_region(file, writable=True) as region:
        slot = region.attach()
        slot.detach()
        # Another attachment is not this slot's to end.
        with region.attach():
            slot.detach()
            assert pids(file) == [os.getpid()]


def test_a_slot_shows_what_it_is_does_not_pickle_and_does_not_account_once_it_was_left(
    region_file: RegionFileFactory,
) -> None:
    with open_region(region_file(), writable=True) as region:
        slot = region.attach()
        assert repr(slot) == f"<Slot pid {os.getpid()}>"
        with pytest.raises(TypeError):
            pickle.dumps(slot)
        slot.detach()
        assert repr(slot) == f"<Slot pid {os.getpid()}, detached>"
        for account in (slot.charge, slot.release):
            with pytest.raises(RuntimeError, match="detached"):
                account(0, 0)


def test_a_process_that_leaves_moves_nobody(file: RegionFile, actor: MakeActor) -> None:
    """In no layout: who came after an upgrade remembers its slot, also in a file that says 1.1."""
    with open_region(file, writable=True) as region:
        slot = region.attach()
        slot.charge(0, 50)
        other = actor(file)
        other("attach")
        other("slot.charge", 2, 9, "module")
        stays = slot_bytes(file, 1)
        slot.detach()
        assert slot_bytes(file, 1) == stays
        assert pids(file)[1:] == [other.pid]
        assert (region.memory_used(0), region.memory_used(2)) == (0, 9)
        # The emptied place can be had again, and never stands twice.
        with region.attach():
            assert sorted(pids(file)) == sorted([os.getpid(), other.pid])
        other("slot.detach")
        assert (region.memory_used(0), region.memory_used(2)) == (0, 0)


def test_leaving_waits_for_the_lock_and_the_slot_stays_where_it_is_not_free(
    file: RegionFile, actor: MakeActor
) -> None:
    holder = actor(file)
    with open_region(file, writable=True) as region:
        slot = region.attach(timeout_s=0.05)
        slot.charge(0, 8)
        hold(file, holder.pid)
        with pytest.raises(LockTimeout):
            slot.detach()
        assert pids(file) == [os.getpid()]
        let_go(file)
        slot.release(0, 3)
        assert region.memory_used(0) == 5
        slot.detach()
        assert pids(file) == []


# ---- states of the region ----


CALLS: dict[str, Callable[[Slot], object]] = {
    "charge": lambda slot: slot.charge(0, 1),
    "release": lambda slot: slot.release(0, 1),
    "detach": Slot.detach,
}


def test_a_slot_ends_with_its_region(region_file: RegionFileFactory) -> None:
    for call in CALLS.values():
        region = open_region(region_file(), writable=True)
        slot = region.attach()
        slot.charge(0, 5)
        region.close()
        for _ in range(2):
            with pytest.raises(RegionClosed):
                call(slot)
            with pytest.raises(RegionClosed):
                region.attach()


@pytest.mark.parametrize("locked", [False, True])
def test_closing_the_region_leaves_it(locked: bool, region_file: RegionFileFactory) -> None:
    file = region_file()
    region = open_region(file, writable=True)
    slot = region.attach()
    slot.charge(0, 5)
    if locked:
        region.lock().__enter__()
    region.close()
    assert pids(file) == []
    assert is_free(file)
    # And another handle may attach now.
    with open_region(file, writable=True) as again, again.attach():
        assert pids(file) == [os.getpid()]


def test_a_file_that_is_truncated_under_a_slot_is_an_error_and_no_signal(file: RegionFile) -> None:
    with open_region(file, writable=True) as region:
        slot = region.attach()
        slot.charge(0, 5)
        file.resize(0)
        for call in (CALLS["charge"], CALLS["release"], Slot.detach):
            with pytest.raises(RegionStale):
                call(slot)
        with pytest.raises(RegionStale):
            region.attach()

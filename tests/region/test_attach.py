"""Which slot a process of this library takes, when it attaches and when it has lost its own.

Live processes of libvgpu write where their slot was when they started, be it behind the last slot
that counts. And slots that were emptied where they stood are taken again.
"""

import os
from collections.abc import Callable

import pytest
from support.actors import Actor
from support.lock_bytes import NOBODY, hold, let_go
from support.region_file import SLOTS, RegionFile
from support.slot_bytes import (
    NOBODYS,
    WITH_NEWER,
    account,
    at_work,
    move_last_into,
    pids,
    put_seqlock,
    put_slot,
    slot_bytes,
    start,
    used,
)
from support.wait import eventually

from libhamiregion import Layout, Region, Slot, SlotTableFull, open_region

DEAD = NOBODY


with_newer = pytest.mark.parametrize("layout", WITH_NEWER)


def attach_until(attach: Callable[[], Actor | None]) -> Actor:
    """Play a scene anew until it gives a newcomer that has the slot that it should have.

    On a busy machine nobody may come to work while the newcomer looks, and it looks once.
    """
    newcomers: list[Actor | None] = []

    def attached() -> Actor | None:
        newcomers.append(attach())
        return newcomers[-1]

    eventually(attached)
    newcomer = newcomers[-1]
    assert newcomer is not None
    return newcomer


# ---- at the end of the table ----


@with_newer
def test_who_attaches_steps_over_the_slot_of_a_live_process(file, actor):
    """While it is idle it may count twice: rather too much than a process's slot destroyed."""
    moved, newcomer = actor(file), actor(file)
    file.add_process(DEAD, {0: 10_000})
    slot = start(file, moved, 100)
    move_last_into(file, 0)
    assert file.get("proc_num") == slot, "the next one to attach would come here"
    account(file, slot, 1)
    own = slot_bytes(file, slot)
    newcomer("attach")
    newcomer("slot.charge", 0, 7)
    assert slot_bytes(file, slot) == own
    assert pids(file) == [moved.pid, moved.pid, newcomer.pid]
    with at_work(file, slot), open_region(file, writable=True) as region:
        eventually(lambda: region.repair_slots().repaired == (moved.pid,))
    assert used(file) == 108
    newcomer("slot.detach")
    account(file, slot, -101)
    assert used(file) == 0


@with_newer
def test_a_process_that_is_seen_working_there_leaves_its_copy_at_once(region_file, layout, actor):
    files: list[RegionFile] = []

    def attach() -> Actor | None:
        files.append(file := region_file(layout))
        moved, newcomer = actor(file), actor(file)
        file.add_process(DEAD, {0: 10_000})
        slot = start(file, moved, 100)
        move_last_into(file, 0)
        account(file, slot, 20)
        with at_work(file, slot):
            newcomer("attach")
        return newcomer if used(file) == 120 else None

    newcomer = attach_until(attach)
    newcomer("slot.charge", 0, 7)
    assert used(files[-1]) == 127


@with_newer
def test_a_slot_whose_process_works_elsewhere_is_taken(region_file, layout, actor):
    """Or what an earlier life left there would count for as long as a process has its pid."""
    files: list[RegionFile] = []

    def attach() -> Actor | None:
        files.append(file := region_file(layout))
        process, newcomer = actor(file), actor(file)
        own = start(file, process, 1000)
        put_slot(file, 1, slot_bytes(file, own))
        put_seqlock(file, 1, 400)
        with at_work(file, own):
            newcomer("attach")
        return newcomer if pids(file) == [process.pid, newcomer.pid] else None

    newcomer = attach_until(attach)
    newcomer("slot.charge", 0, 1)
    assert used(files[-1]) == 1001


def test_in_a_file_of_1_1_the_slot_that_an_older_process_was_moved_from_is_taken(
    region_file, actor
):
    """If it counted again, that process would account in both."""
    file = region_file(Layout.V1_1)
    older, newcomer = actor(file), actor(file)
    file.add_process(DEAD, {0: 10_000})
    file.add_process(older.pid, {0: 100})
    move_last_into(file, 0)
    newcomer("attach")
    newcomer("slot.charge", 0, 7)
    assert pids(file) == [older.pid, newcomer.pid]
    assert used(file) == 107


def test_in_a_file_of_1_1_a_process_that_has_not_accounted_yet_keeps_its_slot_and_no_copy(
    region_file, actor
):
    """Of which generation it is cannot be told: it counts once, whichever slot it goes on in."""
    file = region_file(Layout.V1_1)
    unused, newcomer = actor(file), actor(file)
    file.add_process(DEAD, {0: 10_000})
    slot = file.add_process(unused.pid)
    move_last_into(file, 0)
    file.put("slot_hostpid", 4711, slot=0)
    assert file.get("proc_num") == slot, "the next one to attach would come here"
    newcomer("attach")
    newcomer("slot.charge", 0, 7)
    assert pids(file) == [NOBODYS, unused.pid, newcomer.pid]
    # From 2.8.1 on it may have been told its host pid in the copy.
    assert file.get("slot_hostpid", slot=slot) == 4711
    assert file.get("slot_status", slot=slot) == 1
    account(file, slot, 100)
    newcomer("slot.detach")
    assert used(file) == 100
    account(file, slot, -100)
    assert used(file) == 0


@pytest.mark.parametrize("names", ["dead", "nobody's", "of one that has accounted in the copy"])
def test_in_a_file_of_1_1_an_unused_slot_that_nobody_comes_back_to_is_taken(
    names, region_file, actor
):
    """A newer process that was moved accounts where it was, so the copy is an older one's."""
    file = region_file(Layout.V1_1)
    older, newcomer = actor(file), actor(file)
    file.add_process(older.pid, {0: 5 if names.startswith("of") else 0})
    file.put("slot_pid", {"dead": DEAD, "nobody's": NOBODYS}.get(names, older.pid), slot=1)
    newcomer("attach")
    assert pids(file) == [older.pid, newcomer.pid]


@with_newer
def test_a_slot_that_is_moved_while_a_newcomer_waits_for_the_lock_is_not_taken(file, actor):
    """Before it waited there was nothing behind the last slot."""
    moved, newcomer = actor(file), actor(file)
    file.add_process(DEAD, {0: 10})
    slot = start(file, moved, 4000)
    hold(file, moved.pid)
    newcomer.start("attach", timeout_s=20.0)
    assert not newcomer.is_done(within_s=0.3)
    move_last_into(file, 0)
    let_go(file)
    newcomer.outcome()
    newcomer("slot.charge", 0, 1)
    assert file.get("slot_pid", slot=slot) == moved.pid
    assert file.get("slot_used.total", slot=slot) == 4000


@with_newer
@pytest.mark.parametrize("what", ["charge", "release"])
def test_who_has_lost_its_slot_steps_over_the_slot_of_a_live_process(what, file, actor):
    """Taken over, that process would give back what it never had, and all be refused memory."""
    moved = actor(file)
    file.add_process(DEAD, {0: 10_000})
    slot_of_moved = start(file, moved, 400)
    with open_region(file, writable=True) as region, region.attach() as slot:
        slot.charge(0, 100)
        # Somebody who does not see this process takes it for dead; then another one is removed.
        file.put("proc_num", 2)
        move_last_into(file, 0)
        account(file, slot_of_moved, 5)
        own = slot_bytes(file, slot_of_moved)
        getattr(slot, what)(0, 10)
        assert slot_bytes(file, slot_of_moved) == own
        now = 110 if what == "charge" else 90
        assert file.get("slot_used.total", slot=2) == now
        with at_work(file, slot_of_moved):
            eventually(lambda: region.repair_slots().repaired == (moved.pid,))
        assert used(file) == 405 + now
        account(file, slot_of_moved, -405)
        assert used(file) == now


# ---- emptied slots ----


def fill_with_emptied(file: RegionFile, count: int) -> None:
    """As many as processes have come and gone, each while the next one lived."""
    while file.get("proc_num") < count:
        file.add_process(DEAD + file.get("proc_num"), status=0)


def test_a_table_full_of_emptied_slots_has_room_for_many(file, actor):
    """A thousand generations of a rolling restart, of which one process lives."""
    last = actor(file)
    fill_with_emptied(file, SLOTS - 1)
    file.add_process(last.pid, {0: 5})
    own = slot_bytes(file, SLOTS - 1)
    for generation in range(3):
        with open_region(file, writable=True) as region, region.attach() as slot:
            slot.charge(0, 7)
            assert used(file) == 12
            assert pids(file).count(os.getpid()) == 1
        assert used(file) == 5, generation
    assert file.get("proc_num") == SLOTS
    assert slot_bytes(file, SLOTS - 1) == own


@pytest.mark.parametrize(
    "whose", ["a live process's", "one that is ending", "counted", "suspended"]
)
def test_what_may_be_somebodys_is_not_taken_again(whose, file, actor):
    live = actor(file)
    for number in range(SLOTS):
        file.add_process(DEAD + number, {0: 1})
    pid, status, nbytes = {
        "a live process's": (live.pid, 0, 0),
        # libvgpu stores pid 0 first and gives memory back afterwards.
        "one that is ending": (0, 0, 0),
        "counted": (DEAD, 0, 1),
        "suspended": (DEAD, 2, 0),
    }[whose]
    file.put("slot_pid", pid, slot=500)
    file.put("slot_status", status, slot=500)
    file.put("slot_used.total", nbytes, slot=500)
    file.put("slot_used.data", nbytes, slot=500)
    before = file.content()
    with open_region(file, writable=True) as region:
        with pytest.raises(SlotTableFull, match=r"all 1024 .* reap\(\) empties"):
            region.attach()
        assert file.content() == before
        # What the message says to do helps; a busy machine may be searched in several turns.
        if whose != "suspended":
            eventually(lambda: region.reap() and has_room(region))


def has_room(region: Region) -> bool:
    try:
        region.attach().detach()
    except SlotTableFull:
        return False
    return True


def test_who_has_detached_takes_its_slot_again(file, actor):
    with open_region(file, writable=True) as region:
        first = _attach(region, 5)
        behind = actor(file, attach=True)
        behind("slot.charge", 0, 1)
        own = slot_bytes(file, 1)
        first.detach()
        # Not 0, over which older versions loop, nor a dead pid, which they remove.
        assert pids(file) == [os.getpid(), behind.pid]
        assert slot_bytes(file, 1) == own
        assert used(file) == 1
        assert region.reap() == (), "it was left, not lost"
        second = _attach(region, 7)
        assert pids(file) == [os.getpid(), behind.pid]
        assert used(file) == 8
        assert slot_bytes(file, 1) == own
        second.detach()
        behind("slot.detach")
        assert pids(file) == [os.getpid()]


def _attach(region: Region, nbytes: int) -> Slot:
    slot = region.attach()
    slot.charge(0, nbytes)
    return slot


def test_several_slots_of_a_predecessor_become_one(file):
    for nbytes in (100, 200, 300):
        file.add_process(os.getpid(), {0: nbytes})
    with open_region(file, writable=True) as region:
        slot = _attach(region, 5)
        assert used(file) == 5
        assert sorted(pids(file)) == [os.getpid(), NOBODYS, NOBODYS]
        slot.charge(0, 1)
        assert used(file) == 6

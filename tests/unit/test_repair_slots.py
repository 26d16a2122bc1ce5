"""Putting right live processes whose slots were moved without their knowledge.

The processes here behave as libvgpu's: they write where their slot was when they started. So tests
store in their stead; what an actor does is to live and to map the file.
"""

import os
from collections.abc import Callable

import pytest
from actors import Actor
from lock_bytes import NOBODY, hold, is_free, let_go
from patience import eventually
from poke import RegionFile, RegionFileFactory
from slot_bytes import WITH_SEQLOCK, WITHOUT_SEQLOCK, move_last_into, pids, put_slot, slot_bytes

from libhamiregion import Layout, LockTimeout, open_region

MakeActor = Callable[..., Actor]

DEAD = NOBODY

with_seqlock = pytest.mark.parametrize("layout", WITH_SEQLOCK, ids=lambda layout: layout.value)
without_seqlock = pytest.mark.parametrize(
    "layout", WITHOUT_SEQLOCK, ids=lambda layout: layout.value
)


def account(file: RegionFile, slot: int, nbytes: int) -> None:
    """As libvgpu of 2.8.1 and later does, in the slot that it remembers."""
    file.put("slot_seqlock", file.get("slot_seqlock", slot=slot) + 1, slot=slot)
    for part in ("total", "data"):
        name = f"slot_used.{part}"
        file.put(name, file.get(name, slot=slot) + nbytes, slot=slot)
    file.put("slot_seqlock", file.get("slot_seqlock", slot=slot) + 1, slot=slot)


def start(file: RegionFile, process: Actor, nbytes: int) -> int:
    """A process of libvgpu takes its slot and accounts. Returns where it will go on to do so."""
    slot = file.add_process(process.pid, host_pid=process.pid_here)
    account(file, slot, nbytes)
    return slot


def used(file: RegionFile) -> int:
    with open_region(file) as region:
        return region.memory_used(0)


def repair(file: RegionFile, *, dry_run: bool = False) -> tuple[int, ...]:
    with open_region(file, writable=True) as region:
        found = region.repair_slots(dry_run=dry_run)
    assert is_free(file)
    return found


# ---- from 2.8.1 on: orphans ----


@with_seqlock
@pytest.mark.parametrize("idle", [False, True], ids=["it goes on", "it is idle"])
def test_an_orphans_slot_is_taken_in_and_its_frozen_copy_emptied(
    idle: bool, layout: Layout, region_file: RegionFileFactory, actor: MakeActor
) -> None:
    file = region_file(layout)
    orphan = actor(file)
    file.add_process(DEAD, {0: 10_000})
    file.add_process(DEAD + 1, {0: 20_000})
    slot = start(file, orphan, 100)
    # Two dead ones at once: the second move takes what the first has left at the end.
    move_last_into(file, 0)
    file.put("proc_num", 1)
    now = 100
    if not idle:
        account(file, slot, 50)
        now = 150
    assert used(file) == 100, "what it allocates from now on is counted by nobody"
    assert repair(file) == (orphan.pid,)
    assert used(file) == now
    account(file, slot, 7)
    assert used(file) == now + 7
    account(file, slot, -(now + 7))
    assert used(file) == 0
    # The copy counts nothing and is marked as nobody's; once is enough.
    assert file.get("slot_status", slot=0) == 0
    assert repair(file) == ()


@with_seqlock
def test_a_live_process_with_a_slot_only_above_the_table_is_taken_in(
    layout: Layout, region_file: RegionFileFactory, actor: MakeActor
) -> None:
    file = region_file(layout)
    orphan = actor(file)
    file.add_process(DEAD, {0: 10})
    slot = start(file, orphan, 100)
    file.put("proc_num", slot)
    assert used(file) == 10
    assert repair(file) == (orphan.pid,)
    assert used(file) == 110
    assert pids(file) == [DEAD, orphan.pid]


@with_seqlock
def test_one_of_no_known_host_pid_is_taken_in_when_it_is_seen_writing(
    layout: Layout, region_file: RegionFileFactory, actor: MakeActor
) -> None:
    file = region_file(layout)
    process = actor(file)
    slot = start(file, process, 100)
    file.put("proc_num", slot)
    file.put("slot_hostpid", 0, slot=slot)
    assert repair(file) == ()
    at_work(file, process, slot)
    assert repair(file) == (process.pid,)
    assert pids(file) == [process.pid]


@with_seqlock
@pytest.mark.parametrize("left", ["another's host pid", "no host pid", "nothing used"])
def test_what_an_earlier_life_left_under_a_pid_is_no_process_without_a_slot(
    left: str, layout: Layout, region_file: RegionFileFactory, actor: MakeActor
) -> None:
    """A worker that was forked and uses no GPU, or a process that libvgpu has just seen off."""
    file = region_file(layout)
    file.add_process(DEAD, {0: 10})
    worker = actor(file)
    slot = start(file, worker, 0 if left == "nothing used" else 6000)
    file.put("proc_num", slot)
    if left == "another's host pid":
        file.put("slot_hostpid", worker.pid_here + 1, slot=slot)
    elif left == "no host pid":
        file.put("slot_hostpid", 0, slot=slot)
    before = file.content()
    assert repair(file) == ()
    assert file.content() == before


@with_seqlock
def test_who_attaches_takes_a_place_that_names_another_process(
    layout: Layout, region_file: RegionFileFactory, actor: MakeActor
) -> None:
    """Or 6,000 bytes of an earlier life would count for as long as a worker with its pid lives."""
    file = region_file(layout)
    worker, newcomer = actor(file), actor(file)
    slot = start(file, worker, 6000)
    file.put("proc_num", slot)
    file.put("slot_hostpid", worker.pid_here + 1, slot=slot)
    newcomer("attach")
    newcomer("slot.charge", 0, 1)
    assert used(file) == 1
    assert pids(file) == [newcomer.pid]


def at_work(file: RegionFile, process: Actor, slot: int) -> None:
    """From now on it accounts there again and again."""
    before = file.get("slot_seqlock", slot=slot)
    process.start("evaluate", AT_WORK, path=str(file.path), index=slot)
    eventually(lambda: file.get("slot_seqlock", slot=slot) > before)


@with_seqlock
@pytest.mark.parametrize("seqlock", [1000, 2], ids=["another's figures", "the same figures"])
def test_what_the_life_before_left_under_the_same_pid_is_no_orphan_without_a_host_pid(
    seqlock: int, layout: Layout, region_file: RegionFileFactory, actor: MakeActor
) -> None:
    """A container that starts again does the same under the same pids."""
    file = region_file(layout)
    process = actor(file)
    slot = start(file, process, 700)
    file.put("slot_hostpid", 0, slot=slot)
    put_slot(file, slot + 2, slot_bytes(file, slot))
    file.put("slot_seqlock", seqlock, slot=slot + 2)
    before = file.content()
    assert repair(file) == ()
    assert file.content() == before


@with_seqlock
def test_drivers_that_answer_with_the_containers_own_pids_prove_nothing(
    layout: Layout, region_file: RegionFileFactory, actor: MakeActor
) -> None:
    file = region_file(layout)
    process = actor(file)
    slot = start(file, process, 700)
    file.put("slot_hostpid", process.pid_here + 1, slot=slot)
    put_slot(file, slot + 2, slot_bytes(file, slot))
    file.put("slot_seqlock", 1000, slot=slot + 2)
    assert repair(file) == ()
    assert used(file) == 700


@with_seqlock
def test_one_whose_host_pid_was_found_after_it_was_moved_is_taken_in(
    layout: Layout, region_file: RegionFileFactory, actor: MakeActor
) -> None:
    file = region_file(layout)
    orphan = actor(file)
    file.add_process(DEAD, {0: 10_000})
    slot = start(file, orphan, 100)
    file.put("slot_hostpid", 0, slot=slot)
    move_last_into(file, 0)
    account(file, slot, 50)
    file.put("slot_hostpid", orphan.pid_here, slot=slot)
    assert repair(file) == (orphan.pid,)
    assert used(file) == 150


@with_seqlock
@pytest.mark.parametrize("between", ["idle", "our own", "dead"])
def test_what_may_be_a_live_ones_own_slot_between_orphans_is_not_emptied(
    between: str, layout: Layout, region_file: RegionFileFactory, actor: MakeActor
) -> None:
    """It would go on from 0, and below it when it frees what it has."""
    file = region_file(layout)
    idle, busy = actor(file), actor(file)
    for number in range(2):
        file.add_process(DEAD + number, {0: 10})
    if between == "our own":
        idle("attach")
        idle("slot.charge", 0, 5000)
        slot = file.get("proc_num") - 1
    else:
        slot = start(file, idle, 5000)
        file.put("slot_hostpid", 0, slot=slot)
    last = start(file, busy, 2000)
    for hole in range(2):
        move_last_into(file, hole)
    if between == "dead":
        idle.kill()
    at_work(file, busy, last)
    if between == "our own":
        assert idle("region.repair_slots") == (busy.pid,)
    else:
        assert repair(file) == (busy.pid,)
    left = file.get("slot_used.total", slot=slot)
    assert left == (0 if between == "dead" else 5000)
    if between == "our own":
        idle("slot.release", 0, 5000)
        assert used(file) < 10_000


@with_seqlock
def test_a_slot_that_is_moved_while_a_newcomer_waits_for_the_lock_is_not_taken(
    layout: Layout, region_file: RegionFileFactory, actor: MakeActor
) -> None:
    """Before it waited there was nothing behind the last slot."""
    file = region_file(layout)
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


@with_seqlock
def test_several_orphans_and_the_stale_slots_between_them(
    layout: Layout, region_file: RegionFileFactory, actor: MakeActor
) -> None:
    file = region_file(layout)
    first, second = actor(file), actor(file)
    for number in range(4):
        file.add_process(DEAD + number, {0: 10_000})
    first_slot = start(file, first, 1)
    file.add_process(DEAD + 4, {0: 10_000})
    second_slot = start(file, second, 2)
    frozen = [slot_bytes(file, first_slot), slot_bytes(file, second_slot)]
    put_slot(file, 0, frozen[1])
    put_slot(file, 1, frozen[0])
    file.put("proc_num", 2)
    account(file, first_slot, 10)
    account(file, second_slot, 20)
    assert used(file) == 3
    assert sorted(repair(file)) == sorted([first.pid, second.pid])
    # Both in full; nothing of the dead whose stale slots lie between them.
    assert used(file) == 33
    account(file, first_slot, 100)
    account(file, second_slot, 200)
    assert used(file) == 333
    assert repair(file) == ()


@with_seqlock
def test_a_repair_moves_no_slot_and_touches_no_other_one(
    layout: Layout, region_file: RegionFileFactory, actor: MakeActor
) -> None:
    file = region_file(layout)
    orphan, bystander = actor(file), actor(file)
    file.add_process(DEAD, {0: 10_000})
    stays = start(file, bystander, 5)
    file.add_process(DEAD + 1, {0: 20_000})
    slot = start(file, orphan, 100)
    move_last_into(file, 0)
    file.put("proc_num", 2)
    account(file, slot, 1)
    before = {number: slot_bytes(file, number) for number in (stays, slot)}
    assert repair(file) == (orphan.pid,)
    assert {number: slot_bytes(file, number) for number in (stays, slot)} == before
    assert used(file) == 106


@with_seqlock
def test_a_dry_run_names_the_orphans_and_changes_nothing(
    layout: Layout, region_file: RegionFileFactory, actor: MakeActor
) -> None:
    file = region_file(layout)
    orphan = actor(file)
    file.add_process(DEAD)
    slot = start(file, orphan, 100)
    move_last_into(file, 0)
    account(file, slot, 1)
    before = file.content()
    assert repair(file, dry_run=True) == (orphan.pid,)
    assert file.content() == before
    assert repair(file) == (orphan.pid,)


@with_seqlock
def test_stale_slots_of_the_dead_are_no_orphans(
    layout: Layout, region_file: RegionFileFactory, actor: MakeActor
) -> None:
    """Also where a live process has the number, but does not map the region."""
    file = region_file(layout)
    stranger = actor()
    for pid in (DEAD, stranger.pid, DEAD + 1, 0, -3):
        file.add_process(pid, {0: 10})
    file.put("proc_num", 1)
    before = file.content()
    assert repair(file) == ()
    assert file.content() == before


# For ever; the seqlock goes by twos.
AT_WORK = """
import time
from pathlib import Path
from poke import RegionFile
file = RegionFile(Path(path), region.layout)
seqlock = file.get("slot_seqlock", slot=index)
while True:
    seqlock += 200
    file.put("slot_seqlock", seqlock, slot=index)
    time.sleep(0.0005)
"""


@with_seqlock
@pytest.mark.parametrize("difference", ["host pid", "seqlock", "it is at work below"])
def test_a_stale_slot_of_an_earlier_process_with_the_same_pid_is_no_orphan(
    difference: str, layout: Layout, region_file: RegionFileFactory, actor: MakeActor
) -> None:
    """A container that starts again gives its processes the same numbers."""
    file = region_file(layout)
    process = actor(file)
    slot = start(file, process, 1000)
    account(file, slot, 0)
    stale = slot + 2
    put_slot(file, stale, slot_bytes(file, slot))
    account(file, stale, -995)
    if difference == "host pid":
        file.put("slot_hostpid", process.pid_here + 1, slot=stale)
    elif difference == "seqlock":
        file.put("slot_seqlock", 2, slot=stale)
    else:
        # Its own slot goes on while one looks, and so is not frozen.
        at_work(file, process, slot)
    assert repair(file) == ()
    assert pids(file) == [process.pid]
    if difference != "it is at work below":
        assert used(file) == 1000


@with_seqlock
def test_who_attaches_does_not_take_a_live_process_for_an_earlier_one(
    layout: Layout, region_file: RegionFileFactory, actor: MakeActor
) -> None:
    """Unasked, only a process that was seen writing above the table is put right."""
    file = region_file(layout)
    process, newcomer = actor(file), actor(file)
    slot = start(file, process, 1000)
    file.put("slot_pid", DEAD, slot=slot + 1)
    put_slot(file, slot + 2, slot_bytes(file, slot))
    account(file, slot + 2, -995)
    file.put("slot_hostpid", 0, slot=slot)
    file.put("slot_hostpid", 0, slot=slot + 2)
    newcomer("attach")
    newcomer("slot.charge", 0, 1)
    assert used(file) == 1001
    assert pids(file).count(process.pid) == 1


@with_seqlock
@pytest.mark.parametrize("idle", [False, True], ids=["it has gone on", "it is idle"])
def test_who_attaches_does_not_take_the_place_where_an_orphan_writes(
    idle: bool, layout: Layout, region_file: RegionFileFactory, actor: MakeActor
) -> None:
    file = region_file(layout)
    orphan, newcomer = actor(file), actor(file)
    file.add_process(DEAD, {0: 10_000})
    slot = start(file, orphan, 100)
    move_last_into(file, 0)
    assert file.get("proc_num") == slot, "the next one to attach would come here"
    if not idle:
        account(file, slot, 1)
    newcomer("attach")
    newcomer("slot.charge", 0, 7)
    account(file, slot, 20)
    newcomer("slot.charge", 0, 7)
    if not idle:
        account(file, slot, -1)
    repair(file)
    assert used(file) == 134
    newcomer("slot.detach")
    account(file, slot, -120)
    assert used(file) == 0


@with_seqlock
def test_a_process_of_this_library_puts_itself_right(
    layout: Layout, region_file: RegionFileFactory
) -> None:
    file = region_file(layout)
    file.add_process(DEAD, {0: 10_000})
    with open_region(file, writable=True) as region, region.attach() as slot:
        slot.charge(0, 100)
        move_last_into(file, 0)
        assert region.repair_slots() == ()
        slot.charge(0, 1)
        assert region.memory_used(0) == 101
        assert pids(file).count(os.getpid()) == 1


# ---- up to 2.8.0: slots that stand twice ----


@without_seqlock
def test_a_process_that_stands_twice_loses_its_later_slot(
    layout: Layout, region_file: RegionFileFactory, actor: MakeActor
) -> None:
    """Its process works in the first: that is the one it finds."""
    file = region_file(layout)
    twice = actor(file)
    file.add_process(DEAD, {0: 5})
    file.add_process(DEAD + 1, {0: 10_000})
    file.add_process(twice.pid, {0: 100})
    # One that removed the second slot was killed before it lowered the count.
    put_slot(file, 1, slot_bytes(file, 2))
    assert used(file) == 205
    before = file.content()
    assert repair(file, dry_run=True) == (twice.pid,)
    assert file.content() == before
    assert repair(file) == (twice.pid,)
    assert pids(file) == [DEAD, twice.pid]
    assert used(file) == 105
    assert repair(file) == ()


@without_seqlock
def test_a_dead_one_that_stands_twice_counts_once(
    layout: Layout, region_file: RegionFileFactory
) -> None:
    file = region_file(layout)
    for number in (0, 1, 0, 2, 1):
        file.add_process(DEAD + number, {0: 10**number})
    assert sorted(repair(file)) == [DEAD, DEAD + 1]
    assert sorted(pids(file)) == [DEAD, DEAD + 1, DEAD + 2]
    assert used(file) == 111


@without_seqlock
@pytest.mark.parametrize("accounts", [False, True])
def test_a_process_of_this_library_that_stood_twice_accounts_on(
    accounts: bool, layout: Layout, region_file: RegionFileFactory, actor: MakeActor
) -> None:
    file = region_file(layout)
    twice = actor(file)
    file.add_process(DEAD, {0: 10_000})
    twice("attach")
    twice("slot.charge", 0, 100)
    put_slot(file, 0, slot_bytes(file, 1))
    expected = 100
    if accounts:
        twice("slot.charge", 0, 30)
        twice("slot.release", 0, 10)
        expected = 120
    repair(file)
    twice("slot.charge", 0, 1)
    assert pids(file) == [twice.pid]
    assert used(file) == expected + 1
    twice("slot.release", 0, expected + 1)
    assert used(file) == 0


# ---- both ----


def test_nothing_torn_is_nothing_done(
    layout: Layout, region_file: RegionFileFactory, actor: MakeActor
) -> None:
    file = region_file(layout)
    file.add_process(DEAD, {0: 5})
    actor(file)("attach")
    before = file.content()
    assert repair(file) == ()
    assert file.content() == before


def test_a_repair_waits_for_the_lock_as_long_as_it_was_told(
    layout: Layout, region_file: RegionFileFactory, actor: MakeActor
) -> None:
    file = region_file(layout)
    file.add_process(0)  # reap() takes the lock only where there is something to do
    hold(file, actor(file).pid)
    with open_region(file, writable=True) as region:
        with pytest.raises(LockTimeout):
            region.repair_slots(timeout_s=0.01)
        with pytest.raises(LockTimeout):
            region.reap(timeout_s=0.01)
        with pytest.raises(ValueError, match="timeout"):
            region.repair_slots(timeout_s=-1)

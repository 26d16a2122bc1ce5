"""Putting right live processes whose slots were moved without their knowledge.

The processes here behave as libvgpu's: they write where their slot was when they started. So tests
store in their stead; what an actor does is to live and to map the file.
"""

from collections.abc import Iterator

import pytest
from support.actors import Actor, ProcessFactory, map_libvgpu
from support.lock_bytes import NOBODY, hold, is_free, let_go
from support.namespaces import NEW_NAMESPACE, why_no_new_namespace
from support.region_file import SLOTS, RegionFile, unchanged
from support.slot_bytes import (
    MARK_FLAG,
    NOBODYS,
    WITH_NEWER,
    WITH_SEQLOCK,
    WITHOUT_SEQLOCK,
    account,
    at_work,
    move_last_into,
    pids,
    put_seqlock,
    put_slot,
    seqlock_of,
    slot_bytes,
    start,
    used,
)
from support.wait import eventually

from libhamiregion import Layout, LockTimeout, SlotRepair, open_region

DEAD = NOBODY


def each_of(layouts: list[Layout]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("layout", layouts)


with_newer = each_of(WITH_NEWER)
with_seqlock = each_of(WITH_SEQLOCK)
without_seqlock = each_of(WITHOUT_SEQLOCK)

NOTHING = SlotRepair(repaired=(), left=())


def done(*processes: Actor) -> SlotRepair:
    return SlotRepair(repaired=tuple(process.pid for process in processes), left=())


def left(*processes: Actor) -> SlotRepair:
    return SlotRepair(repaired=(), left=tuple(process.pid for process in processes))


def repair(file: RegionFile, *, dry_run: bool = False) -> SlotRepair:
    with open_region(file, writable=True) as region:
        found = region.repair_slots(dry_run=dry_run)
    assert is_free(file)
    return found


def assert_left(file: RegionFile, *processes: Actor) -> None:
    """These are said to be left, and no byte is changed."""
    with unchanged(file):
        assert repair(file) == left(*processes)


def assert_repaired(file: RegionFile, *processes: Actor) -> None:
    """At last: on a busy machine nobody may come to work while a repair looks."""
    found: set[int] = set()

    def all_found() -> bool:
        found.update(repair(file).repaired)
        return found == {process.pid for process in processes}

    eventually(all_found)


def assert_taken_in(file: RegionFile, process: Actor, slot: int, nbytes: int) -> None:
    """A process that works in a slot is repaired, and all that it holds counts once."""
    with at_work(file, slot):
        assert_repaired(file, process)
        assert used(file) == nbytes
        assert repair(file) == NOTHING


def orphan(file: RegionFile, process: Actor, nbytes: int, *, host_pid: int | None = None) -> int:
    """libvgpu has moved the process's slot into the hole of a dead one at the start."""
    file.add_process(DEAD, {0: 10_000})
    slot = start(file, process, nbytes, host_pid=host_pid)
    move_last_into(file, slot - 1)
    return slot


# ---- orphans ----


@with_newer
def test_an_orphans_slot_is_taken_in_and_its_frozen_copy_emptied(file, actor):
    moved = actor(file)
    file.add_process(DEAD, {0: 10_000})
    file.add_process(DEAD + 1, {0: 20_000})
    slot = start(file, moved, 100)
    # Two dead ones at once: the second move takes what the first has left at the end.
    move_last_into(file, 0)
    file.put("proc_num", 1)
    account(file, slot, 50)
    assert used(file) == 100, "what it allocates from now on is counted by nobody"
    assert_taken_in(file, moved, slot, 150)
    account(file, slot, 7)
    assert used(file) == 157
    account(file, slot, -157)
    assert used(file) == 0
    # Up to 2.8.1 a process looks for its status in the first slot with its pid, and waits for 1.
    assert file.get("slot_status", slot=0) == 1
    assert pids(file) == [moved.pid, NOBODYS, moved.pid]


@with_newer
def test_a_process_that_was_moved_twice_keeps_what_it_holds(file, actor):
    """One slot with its pid counts, one lies stale behind that, and it works in the third."""
    moved = actor(file)
    file.add_process(DEAD, {0: 10_000})
    file.add_process(DEAD + 1, {0: 20_000})
    slot = start(file, moved, 100)
    move_last_into(file, 1)
    move_last_into(file, 0)
    account(file, slot, 50)
    assert pids(file) == [moved.pid]
    assert_taken_in(file, moved, slot, 150)
    account(file, slot, -150)
    assert used(file) == 0


@with_newer
@pytest.mark.parametrize("host_pid", ["its own", "another's", "the container's", "none"])
def test_an_idle_one_is_left_and_said_to_be_left_whatever_host_pid_it_has(host_pid, file, actor):
    """Two containers swap theirs, drivers answer with the container's own, reboots repeat them."""
    moved = actor(file)
    known = {"its own": moved.pid_here, "another's": moved.pid_here + 1, "none": 0}
    slot = orphan(file, moved, 100, host_pid=known.get(host_pid, moved.pid))
    account(file, slot, 50)
    assert_left(file, moved)
    assert_taken_in(file, moved, slot, 150)


@with_newer
def test_an_idle_one_that_counts_as_it_should_is_not_told(file, actor):
    """Whichever of the two slots is its own."""
    orphan(file, actor(file), 100)
    assert_left(file)


@with_newer
def test_a_live_process_with_a_slot_only_above_the_table_is_taken_in_when_it_writes(file, actor):
    moved = actor(file)
    file.add_process(DEAD, {0: 10})
    slot = start(file, moved, 100)
    file.put("proc_num", slot)
    assert used(file) == 10
    # It may as well be a worker that uses no GPU, and the slot an earlier life's.
    assert_left(file, moved)
    assert_taken_in(file, moved, slot, 110)
    assert pids(file) == [DEAD, moved.pid]


@with_seqlock
def test_what_an_earlier_life_left_is_neither_repaired_nor_told_where_it_can_be_no_original(
    file, actor
):
    """A copy never has a higher seqlock than what it was copied from."""
    process = actor(file)
    slot = start(file, process, 700)
    account(file, slot, 0)
    put_slot(file, slot + 2, slot_bytes(file, slot))
    account(file, slot + 2, -695)
    put_seqlock(file, slot + 2, 2)
    assert_left(file)


@with_newer
def test_what_an_earlier_life_left_is_no_orphan_while_the_process_works_below(file, actor):
    process = actor(file)
    slot = start(file, process, 1000)
    put_slot(file, slot + 2, slot_bytes(file, slot))
    account(file, slot + 2, -995)
    with at_work(file, slot):
        assert repair(file) == NOTHING
    assert pids(file) == [process.pid]
    assert used(file) == 1000


@with_seqlock
def test_the_flag_of_a_mark_does_not_make_a_blank_slot_look_used(file, actor):
    moved, newcomer = actor(file), actor(file)
    file.add_process(DEAD)
    file.add_process(DEAD + 1)
    newcomer("attach")
    assert seqlock_of(file, 2) == MARK_FLAG
    slot = start(file, moved, 100)
    # It comes into two holes, one after the other, before it is repaired.
    for hole in range(2):
        move_last_into(file, hole)
    account(file, slot, 50)
    assert_taken_in(file, moved, slot, 150)
    assert pids(file)[2:] == [newcomer.pid, moved.pid]
    newcomer("slot.charge", 0, 7)
    assert used(file) == 157


@with_newer
def test_an_idle_process_between_keeps_all_and_what_lies_behind_it_is_left(file, actor):
    """Its host pid is another process's: two containers that started together have swapped."""
    idle, busy = actor(file), actor(file)
    for number in range(2):
        file.add_process(DEAD + number, {0: 10})
    own = start(file, idle, 200, host_pid=idle.pid_here + 1)
    last = start(file, busy, 2000)
    for hole in range(2):
        move_last_into(file, hole)
    account(file, own, 300)
    before = slot_bytes(file, own)
    with at_work(file, last):
        eventually(lambda: sorted(repair(file).left) == sorted([idle.pid, busy.pid]))
        assert repair(file).repaired == ()
        # Neither emptied nor counted twice.
        assert slot_bytes(file, own) == before
        assert used(file) == 2200
        with at_work(file, own):
            assert_repaired(file, idle, busy)
    assert used(file) == 2500
    account(file, own, -500)
    account(file, last, -2000)
    assert used(file) == 0


@with_newer
def test_the_number_of_slots_that_libvgpu_lowers_meanwhile_is_not_written_over(
    layout, region_file, actor, tmp_path
):
    """When it refuses an allocation it removes the dead beside the lock."""
    for attempt in range(20):
        file = region_file(layout)
        bystander, busy, refused = actor(file), actor(file), actor(file)
        file.add_process(DEAD, {0: 10})
        file.add_process(DEAD + 1, {0: 20})
        start(file, bystander, 300)
        last = start(file, busy, 4000)
        move_last_into(file, 0)
        # Behind it, slots of a live process: a repair takes a while to judge them.
        for slot in range(last + 1, SLOTS):
            file.put("slot_pid", bystander.pid, slot=slot)
        with at_work(file, last):
            ready = tmp_path / f"ready-{attempt}"
            refused.start(
                "evaluate", REMOVE_BESIDE_THE_LOCK, path=str(file.path), ready=str(ready), hole=1
            )
            eventually(ready.exists)
            found = repair(file)
        # On a busy machine nobody may come to work while a repair looks.
        if refused.outcome() and found != NOTHING:
            break
    # libvgpu has moved the bystander's slot, and it does not count twice by our doing.
    assert pids(file) == [busy.pid, bystander.pid]
    assert found == left(busy)


# While somebody holds the lock and judges the table; answers whether it came in time.
REMOVE_BESIDE_THE_LOCK = """
import mmap, os, struct, time
from support.region_file import locate
layout = region.layout
fd = os.open(path, os.O_RDWR)
memory = mmap.mmap(fd, 0)
owner, _ = locate(layout, "owner_pid")
number, _ = locate(layout, "proc_num")
first, _ = locate(layout, "slot_pid")
stride = layout.offsets["slot_stride"]
count = struct.unpack_from("<i", memory, number)[0]
open(ready, "w").close()
give_up = time.monotonic() + 5
while memory[owner : owner + 8] == bytes(8) and time.monotonic() < give_up:
    pass
until = time.perf_counter_ns() + 100_000
while time.perf_counter_ns() < until:
    pass
answer = struct.unpack_from("<i", memory, number)[0] == count
last = count - 1
if answer:
    struct.pack_into("<i", memory, number, last)
taken = memory[first + last * stride : first + (last + 1) * stride]
if answer:
    memory[first + hole * stride : first + (hole + 1) * stride] = taken
memory.close()
"""


@with_newer
def test_a_stale_slot_between_loses_the_name_of_the_process_that_works_elsewhere(file, actor):
    moved, other = actor(file), actor(file)
    file.add_process(DEAD, {0: 10_000})
    below = start(file, other, 5)
    stale = file.add_process(other.pid, {0: 7777})
    put_seqlock(file, stale, 4)
    slot = start(file, moved, 100)
    put_slot(file, 0, slot_bytes(file, slot))
    file.put("proc_num", stale)
    with at_work(file, below, slot):
        assert_repaired(file, moved)
    assert used(file) == 105
    assert pids(file) == [moved.pid, other.pid, NOBODYS, moved.pid]


@pytest.mark.root
@with_newer
@pytest.mark.parametrize(("held", "seqlock"), [(500, 2), (0, 3)], ids=["memory", "the last of it"])
def test_a_slot_that_an_ending_process_may_still_write_to_bars_the_way(
    held, seqlock, file, actor, tmp_path
):
    """libvgpu 2.8.1 and later stores pid 0 first, and gives memory back afterwards."""
    moved, ending = actor(file), actor(file)
    map_libvgpu(ending, tmp_path)
    file.add_process(DEAD)
    file.add_process(DEAD + 1)
    nameless = file.add_process(0, {0: held})
    put_seqlock(file, nameless, seqlock)
    slot = start(file, moved, 100)
    move_last_into(file, 0)
    file.put("proc_num", nameless)
    with at_work(file, slot):
        eventually(lambda: repair(file) == left(moved))
        assert file.get("slot_used.total", slot=nameless) == held
        assert file.get("slot_pid", slot=nameless) == 0
        ending.kill()
        assert_repaired(file, moved)
    assert used(file) == 100


# ---- slots that stand twice among those that count ----


@with_newer
def test_a_copy_that_an_interrupted_repair_has_left_is_emptied_by_the_next(file, actor):
    moved = actor(file)
    slot = orphan(file, moved, 100)
    account(file, slot, 50)
    # Killed after it had raised the number of slots.
    file.put("proc_num", slot + 1)
    assert used(file) == 250
    assert_left(file, moved)
    with at_work(file, slot):
        eventually(lambda: repair(file, dry_run=True) == done(moved))
    assert used(file) == 250
    assert_taken_in(file, moved, slot, 150)


@without_seqlock
def test_two_slots_of_one_process_of_2_8_0_are_left(file, actor):
    """It accounts in both: emptied, one would go below zero with the next release."""
    twice = actor(file)
    file.add_process(twice.pid, {0: 100})
    file.add_process(twice.pid, {0: 100})
    assert_left(file, twice)


@pytest.fixture
def twins() -> Iterator[tuple[Actor, Actor]]:
    """Two processes with the same pid, each in a namespace of its own."""
    if why_no_new_namespace():
        pytest.skip(why_no_new_namespace())
    factories = [ProcessFactory(*NEW_NAMESPACE) for _ in range(2)]
    try:
        one, other = (process_factory.actor() for process_factory in factories)
        assert one.pid == other.pid
        yield one, other
    finally:
        for process_factory in factories:
            process_factory.close()


@with_newer
def test_of_two_processes_with_the_same_pid_nothing_is_emptied(file, twins):
    """One of them at work and another one idle look like an original and its copy."""
    for twin in twins:
        twin("open", str(file.path), writable=True)
    for nbytes in (100, 200):
        file.add_process(twins[0].pid, {0: nbytes})
    with at_work(file, 1):
        assert repair(file) == NOTHING
    assert used(file) == 300


# ---- nothing to do, and little time ----


@with_newer
def test_a_dry_run_names_the_orphans_and_changes_nothing(file, actor):
    moved, idle = actor(file), actor(file)
    slot = orphan(file, moved, 100)
    file.put("proc_num", slot + 1)
    start(file, idle, 7)
    file.put("proc_num", slot)
    before = slot_bytes(file, 0), used(file), file.get("proc_num")
    expected = SlotRepair(repaired=(moved.pid,), left=(idle.pid,))
    with at_work(file, slot):
        eventually(lambda: repair(file, dry_run=True) == expected)
        # Through a handle that may only read no lock is taken.
        hold(file, moved.pid)
        with open_region(file) as region:
            eventually(lambda: region.repair_slots(dry_run=True) == expected)
        let_go(file)
        assert (slot_bytes(file, 0), used(file), file.get("proc_num")) == before
        eventually(lambda: repair(file) == expected)


def test_stale_slots_of_the_dead_are_no_orphans(file, actor):
    """Also where a live process has the number, but does not map the region."""
    stranger = actor()
    for pid in (DEAD, stranger.pid, DEAD + 1, 0, -3):
        file.add_process(pid, {0: 10})
    file.put("proc_num", 1)
    assert_left(file)


@with_newer
def test_a_repair_waits_for_the_lock_as_long_as_it_was_told(file, actor):
    moved = actor(file)
    slot = orphan(file, moved, 100)

    def has_timed_out() -> bool:
        try:
            region.repair_slots(timeout_s=0.01)
        except LockTimeout:
            return True
        return False

    with at_work(file, slot), open_region(file, writable=True) as region:
        hold(file, moved.pid)
        eventually(has_timed_out)
        with pytest.raises(ValueError, match="timeout"):
            region.repair_slots(timeout_s=-1)


def test_the_lock_is_taken_only_if_there_is_something_to_do(file, actor):
    hold(file, actor(file).pid)
    with open_region(file, writable=True) as region:
        assert region.repair_slots(timeout_s=0) == NOTHING
        assert region.reap(timeout_s=0) == ()
        file.add_process(DEAD, {0: 1})
        assert region.repair_slots(timeout_s=0) == NOTHING
        with pytest.raises(LockTimeout):
            region.reap(timeout_s=0.01)

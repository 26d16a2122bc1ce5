"""Freeing the slots of dead processes, safely for processes of each generation."""

import os
import random
from typing import Any

import pytest
from support.actors import map_libvgpu
from support.lock_bytes import NOBODY, is_free
from support.namespaces import needs_first_namespace
from support.reaping import reap_in_time
from support.region_file import unchanged
from support.slot_bytes import NOBODYS, WITH_SEQLOCK, attached, pids, slot_bytes

from libhamiregion import ProcessNotInRegion, ReapedSlot, open_region

pytestmark = needs_first_namespace()

with_seqlock = pytest.mark.parametrize("layout", WITH_SEQLOCK)

DEAD = NOBODY


def test_nothing_moves_under_a_live_process_in_no_layout(file, actor):
    """Processes of 2.8.1 and later remember where their slot is, also in a file that says 1.1."""
    file.add_process(DEAD, {0: 100, 3: 50})
    one = attached(actor(file), 1)
    file.add_process(DEAD + 1, {0: 200})
    two = attached(actor(file), 2)
    file.add_process(DEAD + 2, {0: 400})
    file.add_process(DEAD + 3, {0: 800})
    live = [slot_bytes(file, 1), slot_bytes(file, 3)]
    with open_region(file, writable=True) as region:
        assert reap_in_time(region) == (
            ReapedSlot(DEAD, 150),
            ReapedSlot(DEAD + 1, 200),
            ReapedSlot(DEAD + 2, 400),
            ReapedSlot(DEAD + 3, 800),
        )
        # The dead at the end stay as well: libvgpu may be about to remove one of them.
        assert pids(file) == [DEAD, one.pid, DEAD + 1, two.pid, DEAD + 2, DEAD + 3]
        assert [slot_bytes(file, 1), slot_bytes(file, 3)] == live
        assert region.memory_used(0) == 3
        for process in (one, two):
            process("slot.charge", 0, 10)
            process("slot.release", 0, 5)
        assert region.memory_used(0) == 13
        # What has been emptied is not told again.
        assert reap_in_time(region) == ()
    assert is_free(file)


def test_a_live_process_behind_the_last_slot_is_somebody_else(file, actor):
    """libvgpu has moved it: it may refuse an allocation, and look for the dead, at any time."""
    file.add_process(DEAD, {0: 1})
    orphan = actor(file)
    file.add_process(orphan.pid, {0: 2})
    file.put("proc_num", 1)
    with open_region(file, writable=True) as region:
        assert reap_in_time(region) == (ReapedSlot(DEAD, 1),)
    assert pids(file) == [DEAD]


def test_a_slot_that_is_emptied_where_it_stands_holds_nothing(file, actor):
    file.add_process(DEAD, {0: 100}, host_pid=77, status=2)
    for part in ("context", "module", "data", "offset", "total"):
        file.put(f"slot_used.{part}", 5, device=15)
    file.put("slot_monitorused", 6, device=15)
    for part in ("dec", "enc", "sm"):
        file.put(f"slot_util.{part}", 7, device=15)
    attached(actor(file), 1)
    with open_region(file, writable=True) as region:
        (reaped,) = reap_in_time(region)
        assert reaped == ReapedSlot(DEAD, 105)
    # A host pid that is used again would get another process's utilisation.
    assert slot_bytes(file, 0).rstrip(b"\0") == DEAD.to_bytes(4, "little").rstrip(b"\0")


@with_seqlock
def test_a_seqlock_that_a_death_left_odd_is_made_even(file, actor):
    """Each reader of libvgpu spins on it for ever otherwise."""
    slot = file.add_process(DEAD)
    file.put("slot_seqlock", 41, slot=slot)
    attached(actor(file), 1)
    with open_region(file, writable=True) as region:
        assert not region.snapshot().settled
        # Also where nothing was charged.
        assert reap_in_time(region) == (ReapedSlot(DEAD, 0),)
        assert file.get("slot_seqlock", slot=slot) == 42
        assert region.snapshot().settled


@pytest.mark.root
def test_a_slot_with_pid_0_gets_a_name_that_no_process_ever_has(file, actor):
    """Versions up to 2.8.0 loop for ever over a slot with pid 0, and remove a dead process's."""
    file.add_process(0, {0: 30})
    live = attached(actor(file), 1)
    file.add_process(0, {0: 40})
    stays = slot_bytes(file, 1)
    with open_region(file, writable=True) as region:
        assert reap_in_time(region) == (ReapedSlot(0, 30), ReapedSlot(0, 40))
        assert pids(file) == [NOBODYS, live.pid, NOBODYS]
        assert slot_bytes(file, 1) == stays
        assert reap_in_time(region) == ()
        live("slot.charge", 0, 1)
        assert region.memory_used(0) == 2


@pytest.mark.root
@with_seqlock
def test_who_ends_by_itself_may_still_give_memory_back(file, actor, tmp_path):
    """libvgpu 2.8.1 and later stores pid 0 first; then destructors run, and other threads."""
    ending = actor(file)
    map_libvgpu(ending, tmp_path)
    file.add_process(0, {0: 500})
    with open_region(file, writable=True) as region:
        with unchanged(file):
            assert reap_in_time(region) == ()
        # Not so one that has its name in some slot.
        slot = file.add_process(ending.pid)
        assert [one.memory_bytes for one in reap_in_time(region)] == [500]
        file.put("slot_pid", 0, slot=slot)
        ending.kill()
        assert [one.pid for one in reap_in_time(region)] == [0]


# ---- named pids ----


def test_only_the_named_ones_are_reaped(file, actor):
    for number in range(4):
        file.add_process(DEAD + number, {0: 10**number})
    attached(actor(file), 5)
    with open_region(file, writable=True) as region:
        assert region.reap([]) == ()
        assert region.memory_used(0) == 1116
        reaped = reap_in_time(region, [DEAD + 2, DEAD])
        assert {(slot.pid, slot.memory_bytes) for slot in reaped} == {(DEAD, 1), (DEAD + 2, 100)}
        assert region.memory_used(0) == 1015
        (last,) = region.reap(iter([DEAD + 1]))
        assert last.pid == DEAD + 1
        assert region.memory_used(0) == 1005


def test_a_live_one_that_was_named_is_an_error_and_keeps_its_slot(file, actor):
    file.add_process(DEAD, {0: 10})
    live = attached(actor(file), 5)
    with open_region(file, writable=True) as region:
        with pytest.raises(ValueError, match=f"process {live.pid} is alive") as caught:
            region.reap([DEAD, live.pid])
        assert str(DEAD) not in str(caught.value)
        # The others have been freed, as the documentation says.
        assert region.memory_used(0) == 5
        assert live.pid in pids(file)
        live("slot.charge", 0, 1)
        assert region.memory_used(0) == 6


def test_the_reapers_own_slot_is_alive(file):
    with open_region(file, writable=True) as region, region.attach() as slot:
        slot.charge(0, 5)
        assert reap_in_time(region) == ()
        with pytest.raises(ValueError, match=f"process {os.getpid()} is alive"):
            region.reap([os.getpid()])
        # By another handle too.
        with open_region(file, writable=True) as other:
            assert reap_in_time(other) == ()
        assert region.memory_used(0) == 5


def test_one_without_a_slot_is_named_before_anything_is_done(file):
    file.add_process(DEAD, {0: 10})
    with unchanged(file), open_region(file, writable=True) as region:
        with pytest.raises(ProcessNotInRegion, match=f"process {DEAD + 1}"):
            region.reap([DEAD, DEAD + 1])
        with pytest.raises(ProcessNotInRegion):
            region.reap([DEAD + 1], dry_run=True)


# ---- proof ----


def test_a_re_used_pid_does_not_keep_a_dead_ones_slot(layout, region_file, actor):
    """A live process has the number, but it does not map the region."""
    file = region_file(layout)
    stranger = actor(region_file(layout))
    file.add_process(stranger.pid, {0: 10})
    with open_region(file, writable=True) as region:
        (reaped,) = reap_in_time(region, [stranger.pid])
        assert (reaped.pid, reaped.memory_bytes) == (stranger.pid, 10)
    stranger("region.snapshot")


def test_the_reapers_own_number_is_no_proof_of_life(file):
    """This process maps the region, but it has no slot in it: the number is another one's."""
    file.add_process(os.getpid(), {0: 10})
    with open_region(file, writable=True) as region:
        assert reap_in_time(region) == (ReapedSlot(os.getpid(), 10),)


def test_who_cannot_be_seen_is_not_taken_for_dead(file, tmp_path):
    file.add_process(DEAD, {0: 10})
    nothing = tmp_path / "proc"
    nothing.mkdir()
    with unchanged(file), open_region(file, writable=True) as region:
        assert region.reap(proc=nothing) == ()
        with pytest.raises(ValueError, match=f"whether process {DEAD} lives"):
            region.reap([DEAD], proc=nothing)
        with pytest.raises(FileNotFoundError):
            region.reap(proc=tmp_path / "missing")


# ---- dry runs and values ----


@pytest.mark.parametrize("named", [False, True])
def test_a_dry_run_foretells_exactly_what_is_done_and_changes_nothing(
    named, layout, region_file, actor
):
    chance = random.Random(5)
    live = [actor() for _ in range(2)]
    for _ in range(6):
        file = region_file(layout)
        for one in live:
            one("open", str(file.path), writable=True)
        content = [*(one.pid for one in live), *range(DEAD, DEAD + chance.randrange(1, 7))]
        chance.shuffle(content)
        for pid in content:
            file.add_process(pid, {0: pid, 2: 1})
        dead = [pid for pid in content if pid >= DEAD]
        wanted: Any = chance.sample(dead, chance.randrange(1, len(dead) + 1)) if named else None
        with open_region(file, writable=True) as region:
            with unchanged(file):
                foretold = reap_in_time(region, wanted, dry_run=True)
            assert reap_in_time(region, wanted) == foretold
        for one in live:
            one("region.close")

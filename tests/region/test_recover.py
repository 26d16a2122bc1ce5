"""Freeing a lock that nobody can hold any more."""

import contextlib
import os
import time

import pytest
from support.lock_bytes import LOW_HALF, NOBODY, hold, is_free, owner_of, set_value, value_of
from support.namespaces import FOREIGN_OWNER
from support.reaping import reap_in_time
from support.recovering import HOLD_STRUCT, NOTHING, assert_usable, did, recover, recover_in_time
from support.region_file import unchanged
from support.slot_bytes import attached
from support.wait import on_this_machine_s

from libhamiregion import Layout, LockNotRecoverable, LockTimeout, open_region

# Only root can read every process that may hold an unsigned lock.
pytestmark = pytest.mark.root

WAITERS = 3 << 32


# ---- a dead owner ----


def test_the_lock_of_a_killed_process_is_given_back_and_its_usage_counts_on(file, actor):
    holder = attached(actor(file), 640)
    holder("lock")
    assert owner_of(file) == holder.pid
    holder.kill()
    assert (value_of(file), owner_of(file)) == (0, holder.pid)
    assert recover_in_time(file) == did(dead_owner=True)
    assert_usable(file)
    with open_region(file, writable=True) as region:
        assert region.memory_used(0) == 640
        reap_in_time(region)
        assert region.memory_used(0) == 0


def test_the_lock_of_a_dead_owner_of_libvgpu_is_given_back_with_its_waiters(file, actor):
    dead, bystander = actor(file), actor(file)
    file.put("sem", WAITERS)
    file.put("owner_pid", dead.pid)
    dead.kill()
    assert recover_in_time(file) == did(dead_owner=True)
    assert file.get("sem") == WAITERS | 1
    assert_usable(file)
    # That others map the file does not matter, nor do they notice.
    bystander("region.snapshot")


def test_the_recoverers_own_number_is_not_its_owner(file):
    """It knows that it does not hold the lock: a predecessor had the number."""
    hold(file, os.getpid())
    assert recover_in_time(file) == did(dead_owner=True)
    assert_usable(file)


# ---- nobody has signed ----


def test_an_unsigned_lock_that_no_process_can_hold_is_given_back(file):
    """After a while: a process that came after the scan of /proc may be about to sign."""
    file.put("sem", WAITERS)
    started = time.monotonic()
    assert recover_in_time(file) == did(ownerless=True)
    assert time.monotonic() - started >= 0.3
    assert file.get("sem") == WAITERS | 1
    assert_usable(file)


@pytest.mark.parametrize("watch_s", [0, 0.2])
def test_an_unsigned_lock_is_left_alone_while_another_process_may_hold_it(watch_s, file, actor):
    other = actor(file)
    hold(file, 0)
    with unchanged(file):
        message = "not signed, .* watch it for 10 s, the second semaphore for 60 s"
        with pytest.raises(LockNotRecoverable, match=message) as caught:
            recover(file, watch_s)
        assert caught.value.path == str(file.path)
    # Once it has gone, there is nobody left.
    other.kill()
    assert recover_in_time(file) == did(ownerless=True)


def test_a_recovery_beside_another_one_says_so(file, actor):
    other = actor(file)
    hold(file, 0)
    other("evaluate", LOCK_HOST_BYTE, path=os.fspath(file), byte=0x50000000)
    with pytest.raises(LockNotRecoverable, match="another recovery is at work"):
        recover(file, 0)
    other.kill()
    assert recover_in_time(file) == did(ownerless=True)


LOCK_HOST_BYTE = """
import fcntl, os, struct
scene.fd = os.open(path, os.O_RDWR)
fcntl.fcntl(scene.fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, byte, 1, 0))
"""


def test_who_only_reads_cannot_hold_a_lock(file, actor):
    """An exporter maps every region, and its number may be anybody's in a container."""
    reader = actor(file, writable=False)
    hold(file, 0)
    assert recover_in_time(file) == did(ownerless=True)
    hold(file, reader.pid)
    with open_region(file) as region:
        assert region.lock_state().owner_life == "dead"
    assert recover_in_time(file) == did(dead_owner=True)
    assert_usable(file)
    reader("region.snapshot")


def test_an_unsigned_lock_of_another_handle_of_the_own_process_is_left_alone(file):
    with open_region(file, writable=True) as region, region.attach():
        hold(file, 0)
        with pytest.raises(LockNotRecoverable):
            recover(file)
        set_value(file, 1)


@pytest.mark.parametrize("change", ["signed", "given back"])
def test_a_watch_ends_when_something_changes(change, file, actor):
    other, recoverer = actor(file), actor(file)
    hold(file, 0)
    recoverer.start("region.recover_lock")
    assert not recoverer.is_done(within_s=0.2)
    if change == "signed":
        file.put("owner_pid", other.pid)
    else:
        set_value(file, 1)
    with unchanged(file), pytest.raises(LockNotRecoverable):
        recoverer.outcome()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "semaphore", "seconds", "found"),
    [
        (Layout.V1_1, "sem", 10, did(ownerless=True)),
        (Layout.V1_2, "sem_postinit", 60, did(postinit=True)),
    ],
    ids=["the lock", "the second semaphore"],
)
def test_an_unsigned_semaphore_that_does_not_change_for_long_is_given_back(
    semaphore, seconds, found, file, actor
):
    other = actor(file)
    set_value(file, 0, semaphore)
    with pytest.raises(LockNotRecoverable):
        recover(file, watch_s=9.5)
    started = time.monotonic()
    assert recover_in_time(file, watch_s=120) == found
    assert seconds <= time.monotonic() - started < on_this_machine_s(seconds + 3)
    assert_usable(file)
    other("region.snapshot")


# ---- values that no semaphore of this kind can have ----


@pytest.mark.parametrize("value", [2, LOW_HALF])
def test_a_value_above_1_is_set_to_1(value, file, actor):
    """A lock with more than one place excludes nobody."""
    actor(file)
    file.put("sem", WAITERS | value)
    assert recover_in_time(file) == did(impossible_value=True)
    assert file.get("sem") == WAITERS | 1
    assert_usable(file)


# What no process signs with: of a later version of this library, and none at all.
UNKNOWN_OWNERS = [0x50000000, 0x7FFFFFFF, 1 << 31, 1 << 40, (1 << 64) - 1]


@pytest.mark.slow(keep=5)
@pytest.mark.parametrize("owner", UNKNOWN_OWNERS)
@pytest.mark.parametrize("value", [0, 1, 2])
def test_an_owner_who_cannot_be_judged_is_replaced_only_where_nobody_else_has_the_file_open(
    value, owner, region_file, actor
):
    file = region_file()
    other = actor(file)
    with open_region(file, writable=True) as region:
        file.put("sem", WAITERS | value)
        file.put("owner_pid", owner)
        with pytest.raises(LockNotRecoverable, match="not known"):
            region.recover_lock(watch_s=0)
        assert (file.get("sem"), file.get("owner_pid")) == (WAITERS | value, owner)
        other.kill()
        assert recover_in_time(region) == did(dead_owner=True, impossible_value=value > 0)
    assert file.get("sem") == WAITERS | 1
    assert_usable(file)


@pytest.mark.parametrize("value", [1, 2])
def test_a_free_semaphore_beside_somebody_inside_is_told_and_mended(value, file, actor):
    """libvgpu up to 2.7.1 gets there by itself; then the lock excludes nobody."""
    holder = actor(file)
    file.put("sem", WAITERS | value)
    file.put("owner_pid", holder.pid)
    with open_region(file, writable=True) as region:
        state = region.lock_state()
        assert (state.damaged, state.semaphore_value, state.owner_life) == (True, value, "alive")
        # One that would take it waits instead of joining the other.
        with pytest.raises(LockTimeout), region.lock(0.02):
            pass
        assert (file.get("sem"), file.get("owner_pid")) == (WAITERS | value, holder.pid)
        assert region.recover_lock(watch_s=0) == did(impossible_value=True)
        assert (file.get("sem"), file.get("owner_pid")) == (WAITERS, holder.pid)
        assert not region.lock_state().damaged
        file.put("sem", WAITERS | value)
        holder.kill()
        assert region.lock_state().damaged
        assert recover_in_time(region) == did(dead_owner=True, impossible_value=True)
    assert file.get("sem") == WAITERS | 1
    assert_usable(file)


def test_who_takes_a_lock_that_stands_above_1_leaves_it_at_1(file):
    for value in (2, LOW_HALF):
        file.put("sem", WAITERS | value)
        with open_region(file, writable=True) as region:
            assert region.lock_state().damaged
            with region.lock(0):
                assert file.get("sem") == WAITERS
        assert file.get("sem") == WAITERS | 1


# ---- the second semaphore ----

with_postinit = pytest.mark.parametrize("layout", [Layout.V1_2])


@with_postinit
@pytest.mark.parametrize("value", [0, 2])
def test_both_semaphores_are_given_back_at_once(value, file):
    hold(file, NOBODY)
    file.put("sem_postinit", WAITERS | value)
    assert recover_in_time(file) == did(dead_owner=True, postinit=True)
    assert file.get("sem_postinit") == WAITERS | 1
    assert_usable(file)
    assert recover(file) == NOTHING


@with_postinit
def test_the_second_semaphore_is_left_alone_while_another_process_may_have_it(file, actor):
    """Nobody signs for it, and what is done under it takes long."""
    other = actor(file)
    set_value(file, 0, "sem_postinit")
    with unchanged(file), pytest.raises(LockNotRecoverable):
        recover(file)
    # Where there was something to do, that is told instead.
    set_value(file, 2)
    assert recover_in_time(file) == did(impossible_value=True)
    other.kill()
    assert recover_in_time(file) == did(postinit=True)


# ---- several recoveries ----


def test_of_many_recoverers_one_gives_the_lock_back_once(file, actor):
    crowd = [actor(file) for _ in range(4)]
    for owner in (NOBODY, FOREIGN_OWNER + NOBODY, NOBODY, FOREIGN_OWNER + NOBODY):
        hold(file, owner)
        for one in crowd:
            one.start("region.recover_lock", watch_s=0)
        recovered = 0
        for one in crowd:
            # A caller that waits for another recovery gives up after half a second, and says so.
            with contextlib.suppress(LockNotRecoverable):
                recovered += bool(one.outcome())
        assert recovered == 1
        assert is_free(file)


@pytest.mark.parametrize("layout", [Layout.V1_1])
def test_up_to_2_8_0_libvgpus_own_recovery_is_not_disturbed(layout, file, actor):
    """It repairs under a record lock over the struct."""
    libvgpu = actor()
    libvgpu("evaluate", HOLD_STRUCT, path=str(file.path), length=layout.size_bytes)
    hold(file, NOBODY)
    with unchanged(file), pytest.raises(LockNotRecoverable):
        recover(file)
    libvgpu.kill()
    assert recover_in_time(file) == did(dead_owner=True)

"""Freeing a lock that nobody can hold any more, and never one that somebody may hold."""

import contextlib
import os
import pickle
import platform
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest
from actors import Actor, Nursery
from golden_regions import GoldenRegion
from lock_bytes import LOW_HALF, NOBODY, hold, is_free, set_value, value_of
from namespaces import FOREIGN_OWNER, needs_first_namespace, why_no_new_namespace
from patience import eventually
from poke import RegionFile, RegionFileFactory, locate
from slot_bytes import WITH_SEQLOCK, WITHOUT_SEQLOCK, pids, put_slot, slot_bytes, slot_range

from libhamiregion import (
    Layout,
    LockNotRecoverable,
    LockRecovery,
    LockTimeout,
    MemoryLimitExceeded,
    create_region,
    open_region,
)

MakeActor = Callable[..., Actor]
pytestmark = needs_first_namespace

NOTHING = LockRecovery(
    dead_owner=False,
    ownerless=False,
    impossible_value=False,
    postinit=False,
    finished_removal=False,
)
WAITERS = 3 << 32

with_seqlock = pytest.mark.parametrize("layout", WITH_SEQLOCK, ids=lambda layout: layout.value)
without_seqlock = pytest.mark.parametrize(
    "layout", WITHOUT_SEQLOCK, ids=lambda layout: layout.value
)

# For tests that wait, because a lock that this library holds is looked at for a while.
one_of_each_generation = pytest.mark.parametrize(
    "layout", [Layout.V1_1, Layout.V1_2], ids=lambda layout: layout.value
)


def did(**what: bool) -> LockRecovery:
    return attrs.evolve(NOTHING, **what)


def recover(file: RegionFile, watch_s: float = 0.0) -> LockRecovery:
    with open_region(file, writable=True) as region:
        return region.recover_lock(watch_s=watch_s)


def assert_usable(file: RegionFile) -> None:
    assert is_free(file)
    with open_region(file, writable=True) as region:
        with region.lock(0.5):
            pass
        with region.attach(timeout_s=0.5) as slot:
            slot.charge(15, 1)
            assert os.getpid() in pids(file)
    assert is_free(file)


# ---- a dead owner ----


def test_the_lock_of_a_killed_process_is_given_back_and_its_usage_counts_on(
    layout: Layout, region_file: RegionFileFactory, actor: MakeActor
) -> None:
    file = region_file(layout)
    holder = actor(file)
    holder("attach")
    holder("slot.charge", 0, 640)
    holder("lock")
    assert file.get("owner_pid") == holder.pid
    holder.kill()
    assert (value_of(file), file.get("owner_pid")) == (0, holder.pid)
    assert recover(file) == did(dead_owner=True)
    assert_usable(file)
    with open_region(file, writable=True) as region:
        assert region.memory_used(0) == 640
        region.reap()
        assert region.memory_used(0) == 0


def test_the_lock_of_a_dead_owner_of_libvgpu_is_given_back_with_its_waiters(
    layout: Layout, region_file: RegionFileFactory, actor: MakeActor
) -> None:
    file = region_file(layout)
    dead, bystander = actor(file), actor(file)
    file.put("sem", WAITERS)
    file.put("owner_pid", dead.pid)
    dead.kill()
    assert recover(file) == did(dead_owner=True)
    assert file.get("sem") == WAITERS | 1
    assert_usable(file)
    # That others map the file does not matter, nor do they notice.
    bystander("region.snapshot")


def test_a_killed_writer_of_this_library_is_recovered_from_too(
    layout: Layout, region_file: RegionFileFactory, actor: MakeActor
) -> None:
    file = region_file(layout)
    holder = actor(file)
    holder("lock")
    assert file.get("owner_pid") == FOREIGN_OWNER + holder.pid
    holder.kill()
    assert recover(file) == did(dead_owner=True)
    assert_usable(file)


def test_a_re_used_pid_is_not_its_owner(
    layout: Layout, region_file: RegionFileFactory, actor: MakeActor
) -> None:
    """A live process has the owner's number, but it does not map the file."""
    file = region_file(layout)
    stranger = actor(region_file(layout))
    hold(file, stranger.pid)
    assert recover(file) == did(dead_owner=True)
    assert_usable(file)
    stranger("region.snapshot")


def test_the_recoverers_own_number_is_not_its_owner(
    layout: Layout, region_file: RegionFileFactory
) -> None:
    """It knows that it does not hold the lock: a predecessor had the number."""
    file = region_file(layout)
    hold(file, os.getpid())
    assert recover(file) == did(dead_owner=True)
    assert_usable(file)


GLIBC_WAITER = """
import ctypes, mmap, os, time
libc = ctypes.CDLL(None, use_errno=True)
mapping = mmap.mmap(os.open(path, os.O_RDWR), 0)
word = ctypes.c_char.from_buffer(mapping, offset)
class timespec(ctypes.Structure):
    _fields_ = [("s", ctypes.c_long), ("ns", ctypes.c_long)]
answer = libc.sem_timedwait(ctypes.byref(word), ctypes.byref(timespec(int(time.time()) + 25, 0)))
"""


def test_who_slept_on_a_dead_ones_lock_is_woken(
    layout: Layout, region_file: RegionFileFactory, actor: MakeActor
) -> None:
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("needs glibc, whose semaphores these are")
    file = region_file(layout)
    hold(file, NOBODY)
    waiter = actor()
    offset = locate(layout, "sem")[0]
    waiter.start("evaluate", GLIBC_WAITER, path=str(file.path), offset=offset)
    eventually(lambda: file.get("sem") >> 32 == 1)
    assert recover(file) == did(dead_owner=True)
    # It would sleep for 25 s if nobody woke it, and then fail.
    assert waiter.outcome() == 0
    assert file.get("sem") == 0


@without_seqlock
@pytest.mark.parametrize("foreign", [False, True], ids=["libvgpu", "this library"])
def test_a_removal_that_the_dead_one_did_not_finish_is_finished(
    foreign: bool, layout: Layout, region_file: RegionFileFactory
) -> None:
    """The last slot was copied into the hole, but still counts."""
    file = region_file(layout)
    for number in range(3):
        file.add_process(NOBODY + number, {0: 10**number})
    put_slot(file, 0, slot_bytes(file, 2))
    hold(file, FOREIGN_OWNER + NOBODY if foreign else NOBODY)
    assert recover(file) == did(dead_owner=True, finished_removal=True)
    assert pids(file) == [NOBODY + 2, NOBODY + 1]
    with open_region(file, writable=True) as region:
        assert region.memory_used(0) == 110
    assert_usable(file)


@without_seqlock
def test_who_replaces_a_dead_writer_finishes_its_removal(
    layout: Layout, region_file: RegionFileFactory
) -> None:
    file = region_file(layout)
    for number in range(3):
        file.add_process(NOBODY + number, {0: 10**number})
    put_slot(file, 0, slot_bytes(file, 2))
    hold(file, FOREIGN_OWNER + NOBODY)
    with open_region(file, writable=True) as region, region.lock(0.5):
        assert pids(file) == [NOBODY + 2, NOBODY + 1]
    assert_usable(file)


# ---- nobody has signed ----


def test_an_unsigned_lock_of_a_file_that_nobody_maps_is_free_at_once(
    layout: Layout, region_file: RegionFileFactory
) -> None:
    file = region_file(layout)
    file.put("sem", WAITERS)
    assert recover(file) == did(ownerless=True)
    assert file.get("sem") == WAITERS | 1
    assert_usable(file)


@pytest.mark.parametrize("watch_s", [0, 0.2])
def test_an_unsigned_lock_is_left_alone_while_another_process_may_hold_it(
    watch_s: float, layout: Layout, region_file: RegionFileFactory, actor: MakeActor
) -> None:
    file = region_file(layout)
    other = actor(file)
    hold(file, 0)
    before = file.content()
    with pytest.raises(LockNotRecoverable, match="nobody has signed") as caught:
        recover(file, watch_s)
    assert caught.value.path == str(file.path)
    assert file.content() == before
    # Once it has gone, there is nobody left.
    other.kill()
    assert recover(file) == did(ownerless=True)


def test_who_only_reads_cannot_hold_a_lock(
    layout: Layout, region_file: RegionFileFactory, actor: MakeActor
) -> None:
    """An exporter maps every region, and its number may be anybody's in a container."""
    file = region_file(layout)
    reader = actor(file, writable=False)
    hold(file, 0)
    assert recover(file) == did(ownerless=True)
    hold(file, reader.pid)
    with open_region(file) as region:
        assert region.lock_state().owner_life == "dead"
    assert recover(file) == did(dead_owner=True)
    assert_usable(file)
    reader("region.snapshot")


def test_an_unsigned_lock_of_another_handle_of_the_own_process_is_left_alone(
    layout: Layout, region_file: RegionFileFactory
) -> None:
    file = region_file(layout)
    with open_region(file, writable=True) as region, region.attach():
        hold(file, 0)
        with pytest.raises(LockNotRecoverable):
            recover(file)
        set_value(file, 1)


@pytest.mark.parametrize("change", ["signed", "given back"])
def test_a_watch_ends_when_something_changes(
    change: str, layout: Layout, region_file: RegionFileFactory, actor: MakeActor
) -> None:
    file = region_file(layout)
    other, recoverer = actor(file), actor(file)
    hold(file, 0)
    recoverer.start("region.recover_lock")
    assert not recoverer.is_done(within_s=0.2)
    if change == "signed":
        file.put("owner_pid", other.pid)
    else:
        set_value(file, 1)
    before = file.content()
    with pytest.raises(LockNotRecoverable):
        recoverer.outcome()
    assert file.content() == before


@pytest.mark.stress
def test_an_unsigned_lock_that_stood_still_for_10_s_is_given_back(
    layout: Layout, region_file: RegionFileFactory, actor: MakeActor
) -> None:
    file = region_file(layout)
    other = actor(file)
    hold(file, 0)
    started = time.monotonic()
    with pytest.raises(LockNotRecoverable):
        recover(file, watch_s=9.5)
    assert 9.5 <= time.monotonic() - started < 10
    started = time.monotonic()
    assert recover(file, watch_s=30) == did(ownerless=True)
    assert 10 <= time.monotonic() - started < 13
    assert_usable(file)
    other("region.snapshot")


# ---- values that no semaphore of this kind can have ----


@pytest.mark.parametrize("value", [2, 7, LOW_HALF])
def test_a_value_above_1_is_set_to_1(
    value: int, layout: Layout, region_file: RegionFileFactory, actor: MakeActor
) -> None:
    """A lock with more than one place excludes nobody."""
    file = region_file(layout)
    actor(file)
    file.put("sem", WAITERS | value)
    assert recover(file) == did(impossible_value=True)
    assert file.get("sem") == WAITERS | 1
    assert_usable(file)


@pytest.mark.parametrize("value", [2, 7])
def test_a_value_above_1_beside_a_dead_owner_is_set_to_1_too(
    value: int, layout: Layout, region_file: RegionFileFactory
) -> None:
    file = region_file(layout)
    file.put("sem", WAITERS | value)
    file.put("owner_pid", NOBODY)
    assert recover(file).dead_owner
    assert file.get("sem") == WAITERS | 1
    assert_usable(file)


@pytest.mark.parametrize("value", [2, 7])
def test_a_value_above_1_beside_a_live_owner_becomes_0_and_its_post_makes_it_1(
    value: int, layout: Layout, region_file: RegionFileFactory, actor: MakeActor
) -> None:
    file = region_file(layout)
    holder = actor(file)
    file.put("sem", WAITERS | value)
    file.put("owner_pid", holder.pid)
    assert recover(file) == did(impossible_value=True)
    assert (file.get("sem"), file.get("owner_pid")) == (WAITERS, holder.pid)


def test_a_value_above_1_beside_an_owner_who_cannot_be_judged_is_left_alone(
    layout: Layout, region_file: RegionFileFactory
) -> None:
    file = region_file(layout)
    with open_region(file, writable=True) as region:
        file.put("sem", 2)
        file.put("owner_pid", 1 << 40)
        with pytest.raises(LockNotRecoverable, match="cannot be told"):
            region.recover_lock(watch_s=0)
    assert (file.get("sem"), file.get("owner_pid")) == (2, 1 << 40)


# ---- the second semaphore ----


@with_seqlock
@pytest.mark.parametrize("value", [0, 2, 7])
def test_the_second_semaphore_is_given_back_where_nobody_can_have_it(
    value: int, layout: Layout, region_file: RegionFileFactory
) -> None:
    file = region_file(layout)
    file.put("sem_postinit", WAITERS | value)
    assert recover(file) == did(postinit=True)
    assert file.get("sem_postinit") == WAITERS | 1
    assert recover(file) == NOTHING


@with_seqlock
def test_both_semaphores_are_given_back_in_one_go(
    layout: Layout, region_file: RegionFileFactory
) -> None:
    file = region_file(layout)
    hold(file, NOBODY)
    set_value(file, 0, "sem_postinit")
    assert recover(file) == did(dead_owner=True, postinit=True)
    assert value_of(file, "sem_postinit") == 1
    assert_usable(file)


@with_seqlock
def test_the_second_semaphore_is_left_alone_while_another_process_may_have_it(
    layout: Layout, region_file: RegionFileFactory, actor: MakeActor
) -> None:
    """Nobody signs for it, and what is done under it takes long."""
    file = region_file(layout)
    other = actor(file)
    set_value(file, 0, "sem_postinit")
    before = file.content()
    assert not recover(file)
    assert file.content() == before
    other.kill()
    assert recover(file) == did(postinit=True)


@with_seqlock
def test_a_second_semaphore_above_1_is_set_to_1_whoever_maps_the_file(
    layout: Layout, region_file: RegionFileFactory, actor: MakeActor
) -> None:
    file = region_file(layout)
    actor(file)
    set_value(file, 2, "sem_postinit")
    assert recover(file) == did(postinit=True)
    assert value_of(file, "sem_postinit") == 1


@pytest.mark.stress
@with_seqlock
def test_a_second_semaphore_that_stood_still_for_60_s_is_given_back(
    layout: Layout, region_file: RegionFileFactory, actor: MakeActor
) -> None:
    file = region_file(layout)
    actor(file)
    set_value(file, 0, "sem_postinit")
    started = time.monotonic()
    assert recover(file, watch_s=61) == did(postinit=True)
    assert 60 <= time.monotonic() - started < 65


# ---- a recovery is interrupted, or there are several ----


def test_a_recovery_that_is_killed_at_any_moment_leaves_what_the_next_one_can_recover(
    layout: Layout, region_file: RegionFileFactory, actor: MakeActor, nursery: Nursery
) -> None:
    chance = random.Random(layout.value)
    file = region_file(layout)
    for number in range(3):
        file.add_process(NOBODY + number, {0: 10**number})
    took = []
    for _ in range(3):
        hold(file, NOBODY)
        started = time.monotonic()
        actor(file)("region.recover_lock", watch_s=0)
        took.append(time.monotonic() - started)
    nursery.kill_all()
    for turn in range(25):
        first = actor(file)
        file.put("sem", WAITERS | chance.choice([0, 0, 2]))
        file.put("owner_pid", chance.choice([0, NOBODY, FOREIGN_OWNER + NOBODY]))
        first.start("region.recover_lock", watch_s=0)
        first.is_done(within_s=chance.uniform(0, 1.2 * min(took)))
        first.kill()
        with contextlib.suppress(LockNotRecoverable):
            recover(file)
        assert (file.get("sem"), file.get("owner_pid")) == (WAITERS | 1, 0), f"turn {turn}"
        nursery.kill_all()
    with open_region(file) as region:
        assert region.memory_used(0) == 111
    assert_usable(file)


def test_of_many_recoverers_one_gives_the_lock_back_once(
    layout: Layout, region_file: RegionFileFactory, actor: MakeActor
) -> None:
    file = region_file(layout)
    crowd = [actor(file) for _ in range(4)]
    for owner in (NOBODY, FOREIGN_OWNER + NOBODY, NOBODY, FOREIGN_OWNER + NOBODY):
        hold(file, owner)
        for one in crowd:
            one.start("region.recover_lock", watch_s=0)
        done = [one.outcome() for one in crowd]
        assert sorted(map(bool, done)) == [False, False, False, True]
        assert is_free(file)


HOLD_STRUCT = """
import fcntl, os
descriptor = os.open(path, os.O_RDWR)
fcntl.lockf(descriptor, fcntl.LOCK_EX, length, 0)
scene.descriptor = descriptor
"""


@pytest.mark.parametrize("layout", [Layout.V1_1], ids=lambda layout: layout.value)
def test_up_to_2_8_0_libvgpus_own_recovery_is_not_disturbed(
    layout: Layout, region_file: RegionFileFactory, actor: MakeActor
) -> None:
    """It repairs under a record lock over the struct."""
    file = region_file(layout)
    libvgpu = actor()
    libvgpu("evaluate", HOLD_STRUCT, path=str(file.path), length=layout.size_bytes)
    hold(file, NOBODY)
    before = file.content()
    with pytest.raises(LockNotRecoverable):
        recover(file)
    assert file.content() == before
    libvgpu.kill()
    assert recover(file) == did(dead_owner=True)


# ---- never a live one ----


def test_a_lock_that_libvgpu_holds_is_never_broken(
    layout: Layout, region_file: RegionFileFactory, actor: MakeActor
) -> None:
    file = region_file(layout)
    holder = actor(file)
    others = [actor(file), actor(file)]
    hold(file, holder.pid)
    before = file.content()
    for _ in range(25):
        for other in others:
            other.start("region.recover_lock", watch_s=0)
        for other in others:
            with pytest.raises(LockNotRecoverable) as caught:
                other.outcome()
        with open_region(file, writable=True) as region:
            with pytest.raises(LockTimeout), region.lock(0.001):
                pass
            with pytest.raises(LockTimeout):
                region.attach(timeout_s=0.001)
    assert file.content() == before
    for part in (f"pid {holder.pid_here}", f"owner_pid {holder.pid}", "live", str(file.path)):
        assert part in str(caught.value)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (type(copy), str(copy), copy.path) == (
        LockNotRecoverable,
        str(caught.value),
        str(file.path),
    )


@one_of_each_generation
@pytest.mark.parametrize("attached", [False, True])
def test_a_lock_that_this_library_holds_is_never_broken(
    attached: bool, layout: Layout, region_file: RegionFileFactory, actor: MakeActor
) -> None:
    file = region_file(layout)
    holder = actor(file)
    if attached:
        holder("attach")
    holder("lock")
    before = file.content()
    with pytest.raises(LockNotRecoverable, match="live"):
        recover(file)
    assert file.content() == before
    holder("unlock")
    assert_usable(file)


TAKE_TURNS = """
import time
turns, until = 0, time.monotonic() + seconds
while time.monotonic() < until:
    with region.lock(10.0):
        turns += 1
    slot.charge(0, 1, "context")
    slot.release(0, 1, "context")
answer = turns
"""


def test_those_who_take_turns_are_not_disturbed_by_recoverers(
    layout: Layout, region_file: RegionFileFactory, actor: MakeActor
) -> None:
    """Whatever moment it looks at: a holder whose lock is broken gets an error on leaving."""
    file = region_file(layout)
    workers = [actor(file) for _ in range(2)]
    for worker in workers:
        worker("attach")
        worker.start("evaluate", TAKE_TURNS, seconds=0.5)
    attempts = 0
    with open_region(file, writable=True) as region:
        while not all(worker.is_done() for worker in workers):
            attempts += 1
            with contextlib.suppress(LockNotRecoverable):
                assert not region.recover_lock(watch_s=0)
            assert file.get("sem") & LOW_HALF <= 1
    assert attempts > 3
    assert all(worker.outcome() > 3 for worker in workers)
    for worker in workers:
        worker("slot.detach")
    assert_usable(file)


RECOVER_BESIDE_OWN_THREADS = """
import threading, time
import libhamiregion
errors, recovered, going = [], 0, True
def account():
    try:
        while going:
            slot.charge(0, 1)
            slot.release(0, 1)
    except BaseException as error:
        errors.append(repr(error))
threads = [threading.Thread(target=account) for _ in range(2)]
for thread in threads:
    thread.start()
until = time.monotonic() + seconds
with libhamiregion.open_region(region.path, writable=True) as other:
    while time.monotonic() < until:
        try:
            recovered += bool(other.recover_lock(watch_s=0))
        except libhamiregion.LockNotRecoverable:
            pass
going = False
for thread in threads:
    thread.join()
answer = (errors, recovered, region.memory_used(0))
"""


def test_a_processs_own_threads_are_not_disturbed_by_its_recovery_through_another_handle(
    layout: Layout, region_file: RegionFileFactory, actor: MakeActor
) -> None:
    file = region_file(layout)
    process = actor(file)
    process("attach")
    outcome = process("evaluate", RECOVER_BESIDE_OWN_THREADS, seconds=0.6)
    assert outcome == ([], 0, 0)
    assert is_free(file)


# ---- what cannot be told is left alone ----


@pytest.mark.parametrize("owner", [0, NOBODY])
def test_where_proc_shows_nobody_nothing_is_done(
    owner: int, layout: Layout, region_file: RegionFileFactory, tmp_path: Path
) -> None:
    file = region_file(layout)
    hold(file, owner)
    nothing = tmp_path / "proc"
    nothing.mkdir()
    before = file.content()
    with open_region(file, writable=True) as region:
        with pytest.raises(LockNotRecoverable):
            region.recover_lock(proc=nothing, watch_s=0)
        with pytest.raises(FileNotFoundError):
            region.recover_lock(proc=tmp_path / "missing", watch_s=0)
    assert file.content() == before


@pytest.fixture
def hidden(public_directory: Path) -> Iterator[Callable[[int], Nursery]]:
    """Nurseries with a /proc at ``public_directory / "proc"`` that hides others' processes."""
    reason = why_no_new_namespace()
    if reason:
        pytest.skip(reason)
    place = public_directory / "proc"
    place.mkdir()
    made: list[Nursery] = []

    def make(hidepid: int) -> Nursery:
        mount = f'mount -t proc -o hidepid={hidepid} proc "$0" && exec "$@"'
        made.append(Nursery("unshare", "--mount", "sh", "-c", mount, str(place)))
        return made[-1]

    yield make
    for nursery in made:
        nursery.close()


# A process that has changed its user may not look at itself until it is dumpable again.
DROP_PRIVILEGES = """
import ctypes, os
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
answer = ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
"""


@pytest.mark.root
@pytest.mark.parametrize("hidepid", [1, 2])
def test_a_holder_that_is_hidden_from_an_unprivileged_user_is_not_taken_for_dead(
    hidepid: int,
    public_directory: Path,
    hidden: Callable[[int], Nursery],
    actor: MakeActor,
) -> None:
    create_region(public_directory / "r.cache", layout=Layout.V1_1)
    file = RegionFile(public_directory / "r.cache", Layout.V1_1)
    holder = actor(file)
    holder("attach")
    hold(file, holder.pid)
    nobody = hidden(hidepid).actor(file)
    nobody("evaluate", DROP_PRIVILEGES)
    before = file.content()
    proc = str(public_directory / "proc")
    assert nobody("region.lock_state", proc=proc).owner_life == "unknown"
    with pytest.raises(LockNotRecoverable, match="cannot be told"):
        nobody("region.recover_lock", proc=proc, watch_s=0)
    assert file.content() == before
    hold(file, 0)
    with pytest.raises(LockNotRecoverable):
        nobody("region.recover_lock", proc=proc, watch_s=0)
    set_value(file, 1)
    assert nobody("region.reap", proc=proc) == ()
    assert holder.pid in pids(file)


# ---- what libvgpu itself has left behind ----


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
        for device, nbytes in enumerate(golden.expected["device_used"]):
            assert region.memory_used(device) == nbytes
        region.reap()
        assert not any(region.memory_used(device) for device in range(16))
        assert pids(file) == []


def test_coming_and_going_leaves_a_golden_region_as_it_was(golden: GoldenRegion) -> None:
    """Attach, charge, release, detach. Bytes that may differ, and to what:

    - where the owner was killed holding the lock: owner_pid is 0 and the semaphore's value 1,
    - the first slot above the table, which we had: all 0; its seqlock, where there is one, even.
    """
    file = RegionFile(golden.path, golden.layout)
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
            limit = golden.expected["memory_limit"][device]
            if limit and used + 5 > limit:
                with pytest.raises(MemoryLimitExceeded):
                    slot.charge(device, 5)
                continue
            slot.charge(device, 5)
            slot.release(device, 2)
        slot.charge(15, 1 << 30, "context")
        slot.charge(15, 9, "module")
        slot.release(15, 1 << 30, "context")
    start, end = slot_range(layout, own)
    left = bytearray(slot_bytes(file, own))
    expected[start:end] = left
    assert file.content() == bytes(expected)
    if layout.has_seqlock:
        seqlock = layout.offsets["slot_seqlock"] or 0
        assert int.from_bytes(left[seqlock : seqlock + 8], "little") % 2 == 0
        left[seqlock : seqlock + 8] = bytes(8)
    assert not any(left)

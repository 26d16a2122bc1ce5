"""The lock: taking it, waiting for it, reporting its owner, and the bytes that this changes."""

import contextlib
import os
import pickle
import platform
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
from support.alarm import Interrupted, alarm
from support.forked import meanwhile
from support.lock_bytes import (
    LOW_HALF,
    NOBODY,
    SEMAPHORES,
    hold,
    is_free,
    let_go,
    owner_of,
    semaphore_bytes,
    value_of,
)
from support.namespaces import is_own_signature, needs_first_namespace
from support.region_calls import LOCKING, TAKES_THE_LOCK_ITSELF
from support.region_file import locate, unchanged
from support.wait import PATIENCE_S, eventually

from libhamiregion import (
    Layout,
    LockLost,
    LockState,
    LockTimeout,
    Region,
    RegionClosed,
    RegionLock,
    RegionReadOnly,
    RegionStale,
    open_region,
)

# ---- Taking it and giving it back ----


@pytest.mark.parametrize("raw", SEMAPHORES.values(), ids=SEMAPHORES)
def test_locking_stores_the_value_and_a_signature_and_nothing_else(layout, raw, file):
    file.put_bytes(locate(layout, "sem")[0], raw)
    before = file.content()
    with open_region(file, writable=True) as region:
        lock = region.lock(float("inf"))
        assert isinstance(lock, RegionLock)
        for _ in range(2):
            with lock:
                assert semaphore_bytes(file) == bytes(4) + raw[4:]
                assert is_own_signature(file.get("owner_pid"), attached=False)
            assert file.content() == before
        with pytest.raises(LookupError), region.lock():
            raise LookupError
        assert file.content() == before
        with region.attach() as slot:
            slot.charge(0, 1)
            with region.lock():
                assert (value_of(file), owner_of(file)) == (0, os.getpid())
        assert semaphore_bytes(file) == raw


def test_the_lock_is_not_reentrant_and_says_so(file):
    # For reap(), which takes the lock only if there is something to do.
    file.add_process(NOBODY, {0: 1})
    with open_region(file, writable=True) as region, region.lock():
        with pytest.raises(RuntimeError, match="not re-entrant"), region.lock():
            pass
        assert value_of(file) == 0
        # repair_slots() takes the lock only if a slot is to be put right.
        for call in {*TAKES_THE_LOCK_ITSELF.values()} - {Region.repair_slots}:
            with pytest.raises(RuntimeError, match="this thread holds the lock"):
                call(region)
        assert value_of(file) == 0
    with open_region(file, writable=True) as region, region.attach() as slot:
        for account in (lambda: slot.charge(0, 0), lambda: slot.release(0, 0), slot.detach):
            with region.lock(), pytest.raises(RuntimeError, match="this thread holds the lock"):
                account()


@pytest.mark.parametrize("layout", [Layout.UNVERSIONED_NO_UTIL, Layout.UNVERSIONED])
def test_the_two_oldest_layouts_refuse_locks_and_slots_by_name(layout, region_file):
    file = region_file(layout, memory_limits=[5])
    file.add_process(os.getpid(), {0: 1})
    before = file.content()
    with open_region(file, writable=True) as region:
        for name, call in LOCKING.items():
            if name != "set_utilization" or layout.has_utilization:
                with pytest.raises(RegionReadOnly, match=layout.value):
                    call(region)
        assert file.content() == before
        assert region.lock_state().semaphore_value == 1
        assert region.set_memory_limit(7, device=0).before == 5


def test_everything_about_the_lock_needs_the_regions_file(region_file):
    file = region_file()
    with open_region(file, writable=True) as region:
        with pytest.raises(RegionStale), region.lock():
            file.resize(0)
        for call in (*LOCKING.values(), Region.lock_state):
            with pytest.raises(RegionStale):
                call(region)


def test_leaving_a_lock_that_was_taken_away_is_lock_lost_and_posts_nothing(file):
    with open_region(file, writable=True) as region:
        with pytest.raises(LockLost), region.lock():
            file.put("owner_pid", NOBODY)
        assert (value_of(file), file.get("owner_pid")) == (0, NOBODY)


def test_closing_the_region_gives_the_lock_back(file):
    region = open_region(file, writable=True)
    lock = region.lock()
    lock.__enter__()
    region.close()
    assert is_free(file)
    with pytest.raises(RegionClosed):
        lock.__exit__(None, None, None)


def test_a_timeout_is_not_negative_and_a_number(region_file):
    with open_region(region_file(), writable=True) as region:
        for timeout_s in (-1, -0.001, float("-inf"), float("nan")):
            for call in (
                region.lock,
                lambda seconds: region.attach(timeout_s=seconds),
                lambda seconds: region.recover_lock(watch_s=seconds),
                lambda seconds: region.repair_slots(timeout_s=seconds),
            ):
                with pytest.raises(ValueError, match="timeout"):
                    call(timeout_s)


# The rest of recovery is in tests/region/test_recover.py.
def test_nothing_wrong_is_nothing_done(file):
    with unchanged(file):
        with open_region(file, writable=True) as region:
            done = region.recover_lock()
        assert not done
        assert not any(attrs.astuple(done))
        for field in attrs.fields(type(done)):
            assert attrs.evolve(done, **{field.name: True})


# ---- Waiting ----


@pytest.mark.parametrize("holder", ["libvgpu", "this library", "another handle"])
def test_a_lock_that_is_held_is_a_timeout_that_names_the_owner(holder, file, actor):
    with contextlib.ExitStack() as stack:
        region = stack.enter_context(open_region(file, writable=True))
        if holder == "another handle":
            other = stack.enter_context(open_region(file, writable=True))
            stack.enter_context(other.lock())
        elif holder == "this library":
            actor(file)("lock")
        else:
            hold(file, actor(file).pid)
        owner = file.get("owner_pid")
        for timeout_s in (0, 0.05):
            started = time.monotonic()
            with pytest.raises(LockTimeout) as caught, region.lock(timeout_s):
                pass
            assert time.monotonic() - started >= timeout_s
        # A signature that is no pid is not printed as one.
        said = f"signed by pid {owner}" if owner <= 1 << 22 else "signed by no pid"
        for part in (str(file.path), said, "lock_state()", "recover_lock()"):
            assert part in str(caught.value)
        copy = pickle.loads(pickle.dumps(caught.value))
        assert (str(copy), copy.path) == (str(caught.value), str(file.path))
        assert (value_of(file), file.get("owner_pid")) == (0, owner)


def test_waiting_leaves_no_trace_in_the_semaphore(file, actor):
    """Not even while one waits: who is killed then leaves nothing behind."""
    hold(file, NOBODY)
    waiter, killed = actor(file), actor(file)
    with unchanged(file):
        for each in (waiter, killed):
            each.start("lock", 30.0)
        assert not killed.is_done(within_s=0.05)
    with unchanged(file):
        killed.kill()
    # A plain store of the value, without a wake: waiters of this library look again by themselves.
    let_go(file)
    waiter.outcome()
    assert value_of(file) == 0
    waiter("unlock")
    assert is_free(file)


WAITS: dict[str, Callable[[Region], object]] = {
    "lock": lambda region: region.lock(60).__enter__(),
    "attach": lambda region: region.attach(timeout_s=60),
    "suspend": lambda region: region.suspend(NOBODY, timeout_s=60),
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_closing_the_region_ends_the_waits_of_other_threads(wait, file):
    file.add_process(NOBODY)
    hold(file, NOBODY)
    before = file.content()
    caught: list[BaseException] = []
    waiting = threading.Event()

    def work() -> None:
        waiting.set()
        try:
            wait(region)
        except RegionClosed as error:
            caught.append(error)

    region = open_region(file, writable=True)
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    waiting.wait(PATIENCE_S)
    region.close()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert [type(error) for error in caught] == [RegionClosed]
    assert file.content() == before


UNTIL_INTERRUPTED = """
import signal
def once(*_):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt
signal.signal(signal.SIGINT, once)
open(mark, "w").close()
try:
    WAIT
except KeyboardInterrupt:
    answer = "interrupted"
"""


@pytest.mark.parametrize(
    "call",
    [
        "region.lock(60).__enter__()",
        "region.attach(timeout_s=60)",
        "region.suspend(pid, timeout_s=60)",
        "region.recover_lock()",
        "region.reap(timeout_s=60)",
        "slot.charge(0, 1)",
        "slot.detach()",
    ],
)
def test_an_interrupt_ends_a_wait(call, region_file, actor, tmp_path):
    """Ctrl-C ends a program without waiting for a timeout."""
    file = region_file(Layout.V1_1)
    file.add_process(NOBODY, {0: 1})
    bystander, waiter = actor(file), actor(file)
    if "slot" in call:
        waiter("attach", timeout_s=60)
    hold(file, 0 if "recover" in call else bystander.pid)
    before = file.content()
    mark = tmp_path / "waiting"
    waiter.start("evaluate", UNTIL_INTERRUPTED.replace("WAIT", call), mark=str(mark), pid=NOBODY)
    eventually(mark.exists)
    deadline = time.monotonic() + PATIENCE_S
    while not waiter.is_done(within_s=0.05):
        assert time.monotonic() < deadline, "it waits on"
        os.kill(waiter.pid_here, signal.SIGINT)
    assert waiter.outcome() == "interrupted"
    assert file.content() == before
    # And nothing is left half taken.
    let_go(file)
    waiter("lock", 1.0)
    waiter("unlock")
    assert is_free(file)


def test_who_is_interrupted_as_it_gets_the_lock_does_not_keep_it(file, actor):
    holder = actor(file)
    with open_region(file, writable=True) as region:
        # Free after 60 ms: in the same slice of waiting.
        hold(file, holder.pid)
        giver = threading.Timer(0.06, let_go, [file])
        giver.start()
        with pytest.raises(Interrupted), alarm(0.03), region.lock(PATIENCE_S):
            # Not signal.pause(), which never ends where the signal comes just before it.
            time.sleep(PATIENCE_S)
        giver.join()
        eventually(lambda: is_free(file))
        with region.lock(1.0):
            pass


# ---- Its state ----


@pytest.mark.parametrize("writable", [False, True])
def test_a_free_lock_is_reported_as_free(layout, writable, file):
    with unchanged(file), open_region(file, writable=writable) as region:
        state = region.lock_state()
    assert state == LockState(
        held=False,
        owner_pid=None,
        owner_host_pid=None,
        owner_life=None,
        by_library=False,
        semaphore_value=1,
        damaged=False,
        waiters=0,
        postinit_value=None if layout.offsets["sem_postinit"] is None else 1,
    )


def test_a_live_owner_is_named_by_both_its_pids(file, actor):
    holder = actor(file, attach=True)
    holder("lock")
    with open_region(file) as region:
        state = region.lock_state()
    assert (state.held, state.semaphore_value) == (True, 0)
    assert (state.owner_pid, state.owner_host_pid) == (holder.pid, holder.pid_here)
    assert (state.owner_life, state.by_library) == ("alive", False)


def test_a_writer_of_this_library_that_is_not_attached_has_no_pid(file, actor):
    """Killed inside, it is replaced at once."""
    holder = actor(file)
    with open_region(file, writable=True) as region, open_region(file) as reader:
        holder("lock")
        for handle in (region, reader):
            state = handle.lock_state()
            assert (state.by_library, state.owner_pid, state.owner_host_pid) == (True, None, None)
            assert state.owner_life == "alive"
        holder.kill()
        eventually(lambda: reader.lock_state().owner_life == "dead")
        for handle in (region, reader):
            state = handle.lock_state()
            assert (state.held, state.by_library, state.owner_life) == (True, True, "dead")
        with region.lock(0.5):
            assert is_own_signature(file.get("owner_pid"), attached=False)
        assert is_free(file)


@pytest.mark.parametrize("attached", [False, True])
def test_the_holder_itself_and_its_other_handles_see_a_live_owner(attached, file):
    pid = os.getpid() if attached else None
    with open_region(file, writable=True) as region, open_region(file) as other:
        slot = region.attach() if attached else None
        with region.lock():
            for handle in (region, other):
                state = handle.lock_state()
                found = state.owner_life, state.owner_pid, state.owner_host_pid
                assert found == ("alive", pid, pid)
        if slot is not None:
            slot.detach()


@needs_first_namespace()
def test_a_killed_owner_is_dead_even_before_anybody_waited_for_it(file):
    reading, writing = os.pipe()

    def hold_open() -> None:
        with open_region(file, writable=True):
            os.write(writing, b"+")
            signal.pause()

    with meanwhile(hold_open) as child, open_region(file) as region:
        os.read(reading, 1)
        hold(file, child)
        assert region.lock_state().owner_life == "alive"
        os.kill(child, signal.SIGKILL)
        eventually(lambda: b") Z " in Path(f"/proc/{child}/stat").read_bytes())
        state = region.lock_state()
    assert (state.owner_life, state.owner_host_pid) == ("dead", None)
    os.close(reading)
    os.close(writing)


@needs_first_namespace()
def test_a_live_process_that_does_not_map_the_file_is_not_its_owner(layout, region_file, actor):
    """Its number is a re-used one."""
    file = region_file(layout)
    for stranger in (actor(), actor(region_file(layout))):
        hold(file, stranger.pid)
        with open_region(file) as region:
            state = region.lock_state()
        assert (state.owner_pid, state.owner_life) == (stranger.pid, "dead")


def test_a_process_lives_as_long_as_one_of_its_threads(layout, region_file, actor):
    """The system shows no mappings of a process whose first thread has ended."""
    if platform.machine() not in {"x86_64", "aarch64"}:
        pytest.skip("needs the number of the exit call")
    file = region_file(layout)
    owner = actor(file, attach=True)
    hold(file, owner.pid)
    owner.start(
        "evaluate",
        "import ctypes, threading, time\n"
        "threading.Thread(target=time.sleep, args=(30,)).start()\n"
        "ctypes.CDLL(None).syscall(exit, 0)",
        exit=60 if platform.machine() == "x86_64" else 93,
    )
    stat = Path(f"/proc/{owner.pid_here}/stat")
    eventually(lambda: b") Z " in stat.read_bytes())
    with open_region(file, writable=True) as region:
        assert region.lock_state().owner_life == "alive"
        let_go(file)
        assert region.reap(dry_run=True) == ()


def test_an_owner_that_cannot_be_judged_is_unknown(file, actor, tmp_path):
    nothing = tmp_path / "proc"
    nothing.mkdir()
    with open_region(file) as region:
        for owner in (1 << 31, 1 << 40, (1 << 64) - 1):
            hold(file, owner)
            state = region.lock_state()
            assert (state.owner_pid, state.owner_life) == (None, "unknown")
        hold(file, actor(file).pid)
        assert region.lock_state(proc=nothing).owner_life == "unknown"
        assert region.lock_state(proc=Path("/proc")).owner_life == "alive"
        with pytest.raises(FileNotFoundError):
            region.lock_state(proc=tmp_path / "missing")


def test_whatever_the_semaphores_hold_is_reported(file, layout):
    hold(file, 0)
    with open_region(file) as region:
        state = region.lock_state()
        assert state.held
        assert (state.owner_pid, state.owner_host_pid, state.owner_life) == (None, None, None)
        for value, waiters in [(2, 0), (7, 5), (0, 2), (LOW_HALF, LOW_HALF)]:
            file.put("sem", waiters << 32 | value)
            state = region.lock_state()
            assert (state.semaphore_value, state.waiters) == (value, waiters)
            assert (state.held, state.damaged) == (value == 0, value > 1)
        for value in (0, 5) if layout is Layout.V1_2 else ():
            file.put("sem_postinit", 9 << 32 | value)
            assert region.lock_state().postinit_value == value

"""Waiting for the lock: who gets it, who is woken, and what a timeout says."""

import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lock_bytes import NOBODY, hold, is_free, let_go, value_of
from namespaces import is_own_signature
from support.actors import MakeActor
from support.region_file import RegionFile, RegionFileFactory
from support.wait import PATIENCE_S, eventually

from libhamiregion import Layout, LockTimeout, Region, RegionClosed, open_region


def assert_names_the_way_out(error: LockTimeout, file: RegionFile, owner: int) -> None:
    assert error.path == str(file.path)
    assert isinstance(error, TimeoutError)
    for part in (str(file.path), f"owner_pid {owner}", "lock_state()", "recover_lock()"):
        assert part in str(error)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.path) == (LockTimeout, str(error), error.path)


@pytest.mark.parametrize("by_library", [False, True], ids=["libvgpu", "this library"])
def test_a_lock_that_is_held_is_a_timeout_that_names_the_owner(
    by_library: bool, file: RegionFile, actor: MakeActor
) -> None:
    holder = actor(file)
    if by_library:
        holder("lock")
    else:
        hold(file, holder.pid)
    owner = file.get("owner_pid")
    with open_region(file, writable=True) as region:
        started = time.monotonic()
        with pytest.raises(LockTimeout) as caught, region.lock(0.05):
            pass
        assert time.monotonic() - started >= 0.05
        assert_names_the_way_out(caught.value, file, owner)
    assert (value_of(file), file.get("owner_pid")) == (0, owner)


def test_waiting_leaves_no_trace_in_the_semaphore(file: RegionFile, actor: MakeActor) -> None:
    """Not even while one waits: who is killed then leaves nothing behind."""
    hold(file, NOBODY)
    waiter = actor(file)
    before = file.content()
    waiter.start("lock")
    assert not waiter.is_done(within_s=0.05)
    assert file.content() == before
    waiter.kill()
    assert file.content() == before


WAITS: dict[str, Callable[[Region], object]] = {
    "lock": lambda region: region.lock(60).__enter__(),
    "attach": lambda region: region.attach(timeout_s=60),
    "suspend": lambda region: region.suspend(NOBODY, timeout_s=60),
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_closing_the_region_ends_the_waits_of_other_threads(
    wait: Callable[[Region], object], file: RegionFile
) -> None:
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
def test_an_interrupt_ends_a_wait(
    call: str, region_file: RegionFileFactory, actor: MakeActor, tmp_path: Path
) -> None:
    """Whoever presses Ctrl-C does not have to wait for a timeout."""
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


# A read and a store, which lose a turn wherever two are inside.
COUNT_ONE_UP = """
for _ in range(150):
    with region.lock(30.0):
        region.set_recent_kernel(region.recent_kernel + 1)
"""


def test_processes_hold_the_lock_one_at_a_time(file: RegionFile, actor: MakeActor) -> None:
    file.put("recent_kernel", 0)
    others = [actor(file) for _ in range(3)]
    for other in others:
        other.start("evaluate", COUNT_ONE_UP)
    for other in others:
        other.outcome()
    assert file.get("recent_kernel") == 450
    assert is_free(file)


def test_a_writer_of_this_library_that_died_inside_is_replaced_at_once(
    file: RegionFile, actor: MakeActor
) -> None:
    with open_region(file, writable=True) as region:
        holder = actor(file)
        holder("lock")
        holder.kill()
        assert value_of(file) == 0
        with region.lock(0.5):
            assert is_own_signature(file.get("owner_pid"), attached=False)
        assert is_free(file)


class Interrupted(Exception):
    """What a signal's handler raises, as Python's own does at Ctrl-C."""


@pytest.fixture
def interrupted_soon() -> Iterator[Callable[[], None]]:
    """Have the handler of a signal raise, 30 ms from then."""

    def interrupt(_: int, __: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    yield lambda: signal.setitimer(signal.ITIMER_REAL, 0.03) and None
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def given_soon() -> Iterator[Callable[[RegionFile, int], None]]:
    """Have the lock be somebody's, and free after 60 ms: in the same slice of waiting."""
    timers: list[threading.Timer] = []

    def give(file: RegionFile, holder: int) -> None:
        hold(file, holder)
        timers.append(threading.Timer(0.06, let_go, [file]))
        timers[-1].start()

    yield give
    for timer in timers:
        timer.join()


def test_who_is_interrupted_as_it_gets_the_lock_does_not_keep_it(
    file: RegionFile,
    actor: MakeActor,
    interrupted_soon: Callable[[], None],
    given_soon: Callable[[RegionFile, int], None],
) -> None:
    holder = actor(file)
    with open_region(file, writable=True) as region:
        given_soon(file, holder.pid)
        with pytest.raises(Interrupted):  # noqa: PT012
            interrupted_soon()
            with region.lock(PATIENCE_S):
                # Not signal.pause(), which never ends where the signal comes just before it.
                time.sleep(PATIENCE_S)
        eventually(lambda: is_free(file))
        with region.lock(1.0):
            pass


def test_the_lock_of_another_thread_is_not_given_back_by_one_that_is_interrupted(
    region_file: RegionFileFactory, interrupted_soon: Callable[[], None]
) -> None:
    file = region_file()
    over = threading.Event()
    held = threading.Event()
    with open_region(file, writable=True) as region:

        def hold_it() -> None:
            with region.lock():
                held.set()
                over.wait(PATIENCE_S)

        thread = threading.Thread(target=hold_it, daemon=True)
        thread.start()
        assert held.wait(PATIENCE_S)
        with pytest.raises(Interrupted):  # noqa: PT012
            interrupted_soon()
            with region.lock(PATIENCE_S):
                pytest.fail("it has the lock")
        assert not is_free(file)
        over.set()
        thread.join()
        assert is_free(file)

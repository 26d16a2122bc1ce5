"""Telling who holds the lock, and whether it lives."""

import os
import platform
import time
from pathlib import Path

import attrs
import pytest
from lock_bytes import LOW_HALF, hold, let_go
from namespaces import needs_first_namespace
from support.actors import MakeActor
from support.region_file import RegionFile, RegionFileFactory
from support.wait import PATIENCE_S, eventually

from libhamiregion import Layout, LockState, open_region

FREE = LockState(
    held=False,
    owner_pid=None,
    owner_host_pid=None,
    owner_life=None,
    by_library=False,
    semaphore_value=1,
    damaged=False,
    waiters=0,
    postinit_value=None,
)


@pytest.mark.parametrize("writable", [False, True])
def test_a_free_lock_is_told_so(layout: Layout, writable: bool, file: RegionFile) -> None:
    before = file.content()
    with open_region(file, writable=writable) as region:
        state = region.lock_state()
    has_postinit = layout.offsets["sem_postinit"] is not None
    assert state == attrs.evolve(FREE, postinit_value=1 if has_postinit else None)
    assert file.content() == before


def test_a_live_owner_is_named_by_both_its_pids(file: RegionFile, actor: MakeActor) -> None:
    holder = actor(file)
    holder("attach")
    holder("lock")
    with open_region(file) as region:
        state = region.lock_state()
    assert (state.held, state.semaphore_value) == (True, 0)
    assert (state.owner_pid, state.owner_host_pid) == (holder.pid, holder.pid_here)
    assert (state.owner_life, state.by_library) == ("alive", False)


@pytest.mark.slow(keep=1)
def test_a_writer_of_this_library_elsewhere_is_told_as_such(
    file: RegionFile, actor: MakeActor
) -> None:
    holder = actor(file)
    holder("lock")
    for writable in (False, True):
        with open_region(file, writable=writable) as region:
            state = region.lock_state()
            assert (state.by_library, state.owner_pid, state.owner_host_pid) == (True, None, None)
            assert state.owner_life == "alive"
    holder.kill()
    for writable in (False, True):
        with open_region(file, writable=writable) as region:
            state = region.lock_state()
            assert (state.held, state.by_library, state.owner_life) == (True, True, "dead")


@pytest.mark.parametrize("attached", [False, True])
def test_the_holder_itself_and_its_other_handles_see_a_live_owner(
    attached: bool, file: RegionFile
) -> None:
    with open_region(file, writable=True) as region:
        slot = region.attach() if attached else None
        with region.lock(), open_region(file) as other, open_region(file, writable=True) as third:
            for handle in (region, other, third):
                state = handle.lock_state()
                assert state.owner_life == "alive"
                assert state.owner_host_pid == (os.getpid() if attached else None)
                assert state.owner_pid == (os.getpid() if attached else None)
        if slot is not None:
            slot.detach()


@needs_first_namespace
def test_a_killed_owner_is_dead_even_before_anybody_waited_for_it(file: RegionFile) -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with open_region(file, writable=True):
            os.write(writing, b"+")
            time.sleep(PATIENCE_S)
        os._exit(0)
    os.read(reading, 1)
    hold(file, child)
    with open_region(file) as region:
        assert region.lock_state().owner_life == "alive"
        os.kill(child, 9)
        eventually(lambda: b") Z " in Path(f"/proc/{child}/stat").read_bytes())
        state = region.lock_state()
    assert (state.owner_life, state.owner_host_pid) == ("dead", None)
    os.waitpid(child, 0)
    os.close(reading)
    os.close(writing)


@needs_first_namespace
def test_a_live_process_that_does_not_map_the_file_is_not_its_owner(
    layout: Layout, region_file: RegionFileFactory, actor: MakeActor
) -> None:
    """Its number is a re-used one."""
    file = region_file(layout)
    other_region = region_file(layout)
    for stranger in (actor(), actor(other_region)):
        hold(file, stranger.pid)
        with open_region(file) as region:
            state = region.lock_state()
        assert (state.owner_pid, state.owner_life) == (stranger.pid, "dead")


def test_a_process_lives_as_long_as_one_of_its_threads(
    layout: Layout, region_file: RegionFileFactory, actor: MakeActor
) -> None:
    """The system shows no mappings of a process whose first thread has ended."""
    if platform.machine() not in {"x86_64", "aarch64"}:
        pytest.skip("needs the number of the exit call")
    file = region_file(layout)
    owner = actor(file)
    owner("attach")
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


def test_an_owner_that_can_be_no_pid_is_unknown(file: RegionFile) -> None:
    with open_region(file) as region:
        for owner in (1 << 31, 1 << 40, (1 << 64) - 1):
            hold(file, owner)
            state = region.lock_state()
            assert (state.owner_pid, state.owner_life) == (owner, "unknown")


def test_where_proc_shows_nobody_an_owner_is_unknown(
    file: RegionFile, actor: MakeActor, tmp_path: Path
) -> None:
    holder = actor(file)
    hold(file, holder.pid)
    nothing = tmp_path / "proc"
    nothing.mkdir()
    with open_region(file) as region:
        assert region.lock_state(proc=nothing).owner_life == "unknown"
        assert region.lock_state(proc=Path("/proc")).owner_life == "alive"
        with pytest.raises(FileNotFoundError):
            region.lock_state(proc=tmp_path / "missing")


def test_a_lock_without_a_signature_has_no_owner(file: RegionFile) -> None:
    hold(file, 0)
    with open_region(file) as region:
        state = region.lock_state()
    assert state.held
    assert (state.owner_pid, state.owner_host_pid, state.owner_life) == (None, None, None)


def test_values_above_1_and_waiters_are_told(file: RegionFile) -> None:
    with open_region(file) as region:
        for value, waiters in [(2, 0), (7, 5), (0, 2), (LOW_HALF, LOW_HALF)]:
            file.put("sem", waiters << 32 | value)
            state = region.lock_state()
            assert (state.semaphore_value, state.waiters) == (value, waiters)
            assert state.held == (value == 0)


@pytest.mark.parametrize("layout", [Layout.V1_1_POSTINIT, Layout.V1_2])
def test_the_second_semaphore_is_told(file: RegionFile) -> None:
    with open_region(file) as region:
        for value in (0, 1, 5):
            file.put("sem_postinit", 9 << 32 | value)
            assert region.lock_state().postinit_value == value

"""A seqlock that a killed process left odd, for which another one waits with the lock."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
import support.waiting_allocator
from support.actors import MakeActor
from support.lock_bytes import NOBODY, hold, is_free
from support.reaping import reap_in_time
from support.region_file import RegionFile
from support.waiting_allocator import Memory

from libhamiregion import Layout, LockTimeout, open_region

DEAD = NOBODY
ALLOCATOR = Path(support.waiting_allocator.__file__)
each_layout = pytest.mark.parametrize(
    "layout", [Layout.V1_1, Layout.V1_1_POSTINIT, Layout.V1_2], ids=lambda layout: layout.value
)


@contextlib.contextmanager
def allocator(file: RegionFile) -> Iterator[tuple[IO[str], IO[str]]]:
    command = [sys.executable, str(ALLOCATOR), str(file.path), file.layout.value]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    with subprocess.Popen(command, **pipes) as process:  # type: ignore[call-overload]
        try:
            assert process.stdout.readline() == "ready\n"
            yield process.stdin, process.stdout
        finally:
            process.kill()


def leave_odd(file: RegionFile, slot: int, word: int = 1) -> int:
    memory = Memory(str(file.path), file.layout)
    memory.put(memory.at("slot_seqlock", slot), word)
    return word


def seqlock(file: RegionFile, slot: int) -> int:
    memory = Memory(str(file.path), file.layout)
    return memory.get(memory.at("slot_seqlock", slot))


@each_layout
@pytest.mark.parametrize("pid", [DEAD, 0], ids=["dead", "pid 0"])
@pytest.mark.root
def test_a_reap_frees_a_container_that_waits_for_it(file: RegionFile, pid: int) -> None:
    slot = file.add_process(pid, {0: 1000})
    leave_odd(file, slot)
    with allocator(file) as (commands, answers), open_region(file, writable=True) as region:
        commands.write("70\n")
        assert answers.readline() == "inside\n"
        with pytest.raises(LockTimeout):
            region.lock(timeout_s=0.05).__enter__()
        began_ns = time.monotonic_ns()
        reaped = reap_in_time(region)
        used, ended_ns = map(int, answers.readline().split())
        print(f"healed after {(ended_ns - began_ns) / 1e6:.1f} ms")
        assert [each.memory_bytes for each in reaped] == [1000]
        assert used == 1000
        assert region.memory_used(0) == 70
        commands.write("7\n")
        assert answers.readline() == "inside\n"
        assert answers.readline().startswith("70 ")
        assert region.memory_used(0) == 77
    assert is_free(file)
    assert seqlock(file, slot) % 2 == 0


@each_layout
def test_an_odd_seqlock_of_a_live_process_is_left_as_it_is(
    file: RegionFile, actor: MakeActor
) -> None:
    inside, holder = actor(file), actor(file)
    slot = file.add_process(inside.pid, {0: 5})
    word = leave_odd(file, slot)
    file.add_process(holder.pid)
    hold(file, holder.pid)
    with open_region(file, writable=True) as region:
        assert region.reap() == ()
    assert seqlock(file, slot) == word


@each_layout
@pytest.mark.parametrize("owner", [0, DEAD + 1], ids=["no owner", "a dead owner"])
def test_without_a_live_owner_of_the_lock_it_is_not_made_even_beside_it(
    file: RegionFile, owner: int
) -> None:
    slot = file.add_process(DEAD, {0: 5})
    word = leave_odd(file, slot)
    hold(file, owner)
    with open_region(file, writable=True) as region, pytest.raises(LockTimeout):
        region.reap(timeout_s=0.05)
    assert seqlock(file, slot) == word


@each_layout
def test_a_recovery_makes_it_even_before_the_lock_is_free(file: RegionFile) -> None:
    slot = file.add_process(DEAD, {0: 5})
    leave_odd(file, slot)
    hold(file, DEAD + 1)
    with open_region(file, writable=True) as region:
        assert region.recover_lock().dead_owner
        assert seqlock(file, slot) == 2
        assert [each.memory_bytes for each in reap_in_time(region)] == [5]
    assert is_free(file)

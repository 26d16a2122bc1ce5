"""Processes of ours, whose slots have marks, and libvgpu of HAMi 2.10 in one region.

What libvgpu does is played by a process of its own (`libvgpu_210.py`), as its sources say.
"""

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import libvgpu_210
from support.process import piped
from support.region_file import RegionFile
from support.slot_bytes import MARK_FLAG, attached, pids

from libhamiregion import Layout, MemoryLimitExceeded, ReapedSlot, open_region
from libhamiregion.units import MIB


class Libvgpu:
    """A process of libvgpu's."""

    def __init__(self, path: Path) -> None:
        self.process = piped([sys.executable, libvgpu_210.__file__, str(path)])
        self.pid = self.process.pid

    def tell(self, *words: object) -> Any:
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def file(region_file) -> RegionFile:
    return region_file(Layout.V1_2, memory_limits=(1024 * MIB,))


@pytest.fixture
def libvgpu(file) -> Iterator[Callable[[], Libvgpu]]:
    with contextlib.ExitStack() as started:

        def start() -> Libvgpu:
            made = Libvgpu(file.path)
            started.callback(made.end)
            return made

        yield start


def test_its_newcomer_moves_a_marked_slot_and_nothing_is_lost(file, actor, libvgpu, empty_proc):
    """It sweeps the dead away at every join; the mark goes with the slot that it moves."""
    dead, living = attached(actor(file), 300 * MIB), attached(actor(file), 200 * MIB)
    assert file.get("slot_seqlock", slot=1) & MARK_FLAG
    dead.kill()
    other = libvgpu()
    assert other.tell("join") == [living.pid, other.pid]
    assert (other.tell("used"), other.tell("settled")) == (200 * MIB, True)
    assert file.get("slot_seqlock", slot=0) & MARK_FLAG

    assert other.tell("allocate", 100 * MIB)
    living("slot.charge", 0, 50 * MIB)
    for used in (other.tell("used"), living("region.memory_used", 0)):
        assert used == 350 * MIB
    assert pids(file) == [living.pid, other.pid], "no slot was lost, none is there twice"
    with open_region(file) as region:
        figures = {each.pid: each.devices[0] for each in region.snapshot().processes}
        assert region.snapshot().settled
    assert figures[living.pid].memory_data_bytes == 250 * MIB
    assert figures[other.pid].memory_data_bytes == 100 * MIB

    # Where it was moved to, the kernel's proof still holds, without /proc.
    living.kill()
    with open_region(file, writable=True) as region:
        assert region.reap(proc=empty_proc) == (ReapedSlot(living.pid, 250 * MIB),)
    assert other.tell("used") == 100 * MIB


def test_both_hold_the_limit_that_they_share(file, actor, libvgpu):
    ours, other = attached(actor(file), 500 * MIB), libvgpu()
    other.tell("join")
    assert other.tell("allocate", 500 * MIB)
    assert not other.tell("allocate", 100 * MIB)
    with pytest.raises(MemoryLimitExceeded):
        ours("slot.charge", 0, 100 * MIB)
    # What a killed one of ours had is given back by libvgpu's own sweep.
    ours.kill()
    assert other.tell("allocate", 100 * MIB)
    assert pids(file) == [other.pid]
    assert other.tell("used") == 600 * MIB


@pytest.mark.root
def test_a_slot_that_libvgpu_has_left_is_taken_and_marked_and_its_own_again(file, actor, libvgpu):
    """A normal exit leaves pid 0; ours comes, goes, and libvgpu takes the place: no mark stays."""
    first, keeper = libvgpu(), libvgpu()
    first.tell("join")
    keeper.tell("join")
    first.tell("allocate", 10 * MIB)
    first.tell("leave")
    first.end()
    ours = attached(actor(file), 20 * MIB)
    reaped = ours("region.reap")
    assert [(each.pid, each.memory_bytes) for each in reaped] == [(0, 10 * MIB)]
    assert keeper.tell("used") == 20 * MIB
    ours("slot.detach")
    last = libvgpu()
    assert last.tell("join")[-1] == last.pid
    assert last.tell("allocate", 30 * MIB)
    slot = pids(file).index(last.pid)
    assert not file.get("slot_seqlock", slot=slot) & MARK_FLAG
    assert (keeper.tell("used"), keeper.tell("settled")) == (30 * MIB, True)
    assert sorted(pids(file)) == sorted([keeper.pid, last.pid])

"""When a process that accounts has to look for others in /proc, and when it does not.

Here an empty directory is mounted there, which notes when it is read.
"""

import contextlib
from collections.abc import Iterator

import pytest
from support.actors import Actor, ProcessFactory
from support.namespaces import why_no_new_namespace
from support.region_file import RegionFile
from support.slot_bytes import move_last_into, pids, put_seqlock

pytestmark = pytest.mark.root

OTHER = 3_999_998
HIDE = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
strictatime = 1 << 24
mounted = libc.mount(b"none", b"/proc", b"tmpfs", strictatime, None)
assert mounted == 0, os.strerror(ctypes.get_errno())
assert os.listdir("/proc") == []
os.utime("/proc", (0, 0))
"""
SEARCHED = """
import os
answer = os.stat("/proc").st_atime_ns != 0
"""


@pytest.fixture
def process(file) -> Iterator[Actor]:
    """It stands behind another one's slot, has 300 bytes, and another /proc than it had."""
    if why := why_no_new_namespace():
        pytest.skip(why)
    with contextlib.closing(
        ProcessFactory("unshare", "--mount", "--propagation", "private")
    ) as apart:
        actor = apart.actor(file)
        file.add_process(OTHER, {0: 7})
        actor("attach")
        actor("slot.charge", 0, 300)
        actor("evaluate", HIDE)
        yield actor


def moved(file: RegionFile) -> None:
    # What it has left behind the last slot has its own pid.
    move_last_into(file, 0)


def removed(file: RegionFile) -> None:
    file.put("proc_num", 1)


def emptied(file: RegionFile) -> None:
    file.put("proc_num", 1)
    file.put("slot_pid", 0, slot=1)
    file.put("slot_used.total", 0, slot=1)


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("change", [None, moved, removed, emptied])
def test_a_process_that_accounts_does_not_search_proc(change, process, file):
    if change:
        change(file)
    process("slot.charge", 0, 150)
    process("slot.release", 0, 50)
    assert pids(file).count(process.pid) == 1
    assert process("region.memory_used", 0) == (400 if change is moved else 407)
    process("slot.detach")
    assert not process("evaluate", SEARCHED)


@pytest.mark.slow(keep=1)
def test_it_searches_only_if_another_pid_is_behind_the_last_slot(process, file):
    file.put("proc_num", 0)
    file.put("slot_used.total", 77, slot=0)
    put_seqlock(file, 0, 8)
    process("slot.charge", 0, 100)
    assert process("evaluate", SEARCHED)

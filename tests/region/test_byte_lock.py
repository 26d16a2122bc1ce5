"""Our own processes are proved dead or alive by the kernel: by a byte that each keeps locked."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from support.actors import ProcessFactory
from support.lock_bytes import hold, is_free, owner_of
from support.namespaces import NEW_NAMESPACE, own_mounts, why_no_new_namespace
from support.region_file import RegionFile, locate
from support.slot_bytes import NOBODYS, attached, move_last_into, pids, put_slot, slot_bytes
from support.wait import PATIENCE_S, eventually

from libhamiregion import (
    Layout,
    LockNotRecoverable,
    MemoryLimitExceeded,
    ReapedSlot,
    create_region,
    open_region,
)
from libhamiregion.units import MIB

MARKED = [Layout.V1_1, Layout.V1_1_POSTINIT, Layout.V1_2]


@pytest.fixture(params=MARKED)
def file(request, region_file) -> RegionFile:
    return region_file(request.param, memory_limits=(1024 * MIB,))


# ---- without /proc ----


def test_a_killed_process_is_reaped_without_proc(file, actor, empty_proc):
    living, dead = attached(actor(file), 100), attached(actor(file), 600)
    dead.kill()
    with open_region(file, writable=True) as region:
        assert region.reap(proc=empty_proc) == (ReapedSlot(dead.pid, 600),)
        assert region.memory_used(0) == 100
        assert region.reap(proc=empty_proc) == ()
    living("slot.charge", 0, 1)
    assert pids(file) == [living.pid, NOBODYS]


def test_a_slot_that_libvgpu_has_moved_keeps_its_proof(file, actor, empty_proc):
    file.add_process(4_000_001, {0: 7})
    file.add_process(4_000_002, {0: 7})
    dead, living = attached(actor(file), 600), attached(actor(file), 100)
    move_last_into(file, 0)
    move_last_into(file, 1)
    assert pids(file) == [living.pid, dead.pid]
    dead.kill()
    with open_region(file, writable=True) as region:
        assert region.reap(proc=empty_proc) == (ReapedSlot(dead.pid, 600),)
    living("slot.charge", 0, 1)
    assert living("region.memory_used", 0) == 101


def test_a_forked_child_does_not_keep_its_parent_alive(file, actor, empty_proc):
    dead = attached(actor(file), 600)
    child = dead("evaluate", "import os, signal; answer = os.fork() or signal.pause()")
    try:
        dead.kill()
        with open_region(file, writable=True) as region:
            # The child drops what it has inherited as soon as it runs.
            eventually(lambda: len(region.reap(proc=empty_proc)) == 1)
    finally:
        os.kill(child, signal.SIGKILL)


# ---- what is not of ours stays libvgpu's ----


@pytest.mark.parametrize("generation", ["old", "new"])
def test_libvgpu_that_takes_the_slot_of_a_dead_one_with_its_pid_is_not_dead_by_that_ones_byte(
    generation, file, actor, empty_proc
):
    """Up to 2.8.0 it clears the usage records whole, later the seqlock and single fields."""
    dead = attached(actor(file), 600)
    dead.kill()
    offset, _ = locate(file.layout, "slot_used.context")
    if generation == "old":
        stride = file.layout.offsets["slot_used_stride"]
        file.put_bytes(offset, bytes(stride * 16))
    else:
        layout = Layout.V1_2 if file.layout is Layout.V1_1 else file.layout
        at, _ = locate(layout, "slot_seqlock")
        file.put_bytes(at, bytes(8))
        file.put_bytes(offset, bytes(24))
    file.put("slot_used.data", 77)
    file.put("slot_used.total", 77)
    with open_region(file, writable=True) as region:
        assert region.reap(proc=empty_proc) == ()
        with pytest.raises(ValueError, match="not known"):
            region.reap([dead.pid], proc=empty_proc)
        assert region.memory_used(0) == 77


# ---- the lock ----


def test_the_lock_of_a_killed_process_is_recovered_without_proc(file, actor, empty_proc):
    dead = attached(actor(file), 600)
    dead("lock")
    dead.kill()
    assert owner_of(file) == dead.pid
    with open_region(file, writable=True) as region:
        state = region.lock_state(proc=empty_proc)
        assert (state.owner_pid, state.owner_life, state.by_library) == (dead.pid, "dead", False)
        assert region.recover_lock(proc=empty_proc, watch_s=0).dead_owner
    assert is_free(file)


def test_libvgpus_signature_is_not_judged_by_the_mark_of_its_namesake(file, actor, empty_proc):
    """It is a process of another pid namespace, or one that came after the dead one."""
    dead = attached(actor(file), 600)
    dead.kill()
    hold(file, dead.pid)
    with open_region(file, writable=True) as region:
        assert region.lock_state(proc=empty_proc).owner_life == "unknown"
        with pytest.raises(LockNotRecoverable):
            region.recover_lock(proc=empty_proc, watch_s=0)
    assert owner_of(file) == dead.pid


# ---- pid namespaces ----


@pytest.fixture
def containers() -> Iterator[tuple[ProcessFactory, ProcessFactory]]:
    if why := why_no_new_namespace():
        pytest.skip(why)
    with (
        contextlib.closing(ProcessFactory(*NEW_NAMESPACE)) as one,
        contextlib.closing(ProcessFactory(*NEW_NAMESPACE)) as other,
    ):
        yield one, other


@pytest.mark.slow(keep=1)
@pytest.mark.root
def test_two_live_processes_with_one_pid_do_not_take_each_others_slot(file, containers):
    first, second = (container.actor(file) for container in containers)
    assert first.pid == second.pid
    attached(first, 600 * MIB)
    with pytest.raises(RuntimeError, match=f"another pid namespace has the pid {first.pid}"):
        second("attach")
    with pytest.raises(MemoryLimitExceeded):
        first("slot.charge", 0, 600 * MIB)
    assert first("region.memory_used", 0) == 600 * MIB
    first.kill()
    attached(second, 600 * MIB)
    assert second("region.memory_used", 0) == 600 * MIB
    assert len(pids(file)) == 1


@pytest.mark.slow(keep=1)
@pytest.mark.root
def test_across_pid_namespaces_the_dead_are_reaped_and_the_living_are_not(file, containers):
    """Neither container sees the other's processes."""
    one, other = containers
    one.actor()
    dead, living = attached(one.actor(file), 600), attached(one.actor(file), 100)
    reaper = attached(other.actor(file), 10)
    dead.kill()
    assert [slot.pid for slot in reaper("region.reap")] == [dead.pid]
    assert reaper("region.memory_used", 0) == 110
    assert living("region.memory_used", 0) == 110


@pytest.mark.slow(keep=1)
@pytest.mark.root
def test_a_process_that_another_namespace_has_removed_keeps_others_of_its_pid_out(file, containers):
    """libvgpu in the second's namespace has removed the first, which it does not see."""
    first, second = (container.actor(file) for container in containers)
    attached(first, 300)
    file.put("proc_num", 0)
    put_slot(file, 0, bytes(len(slot_bytes(file, 0))))
    with pytest.raises(RuntimeError, match="another pid namespace"):
        second("attach")
    first("slot.charge", 0, 1)
    assert first("region.memory_used", 0) == 301


# ---- hidepid ----


HIDDEN = """
import ctypes, os
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
"""


@pytest.mark.root
@pytest.mark.parametrize("hidepid", [1, 2])
def test_where_proc_hides_processes_a_users_killed_program_frees_its_memory(
    hidepid, public_directory
):
    create_region(public_directory / "r.cache", memory_limits=("1GiB",))
    path = public_directory / "r.cache"
    path.chmod(0o666)
    inside = own_mounts(f"-t proc -o hidepid={hidepid} proc /proc")
    with contextlib.closing(ProcessFactory(*inside)) as users:
        keeper, dead, reaper = (users.actor() for _ in range(3))
        for process in (keeper, dead, reaper):
            process("evaluate", HIDDEN)
            process("open", os.fspath(path), writable=True)
        attached(keeper, 100 * MIB)
        attached(dead, 664 * MIB)
        dead.kill()
        assert reaper("region.reap") == (ReapedSlot(dead.pid, 664 * MIB),)
        assert reaper("region.memory_used", 0) == 100 * MIB


@pytest.mark.root
def test_emptied_slots_are_taken_again_where_nobody_can_be_seen(region_file):
    """Else each killed program would cost a slot for good."""
    file = region_file(Layout.V1_2)
    file.path.parent.chmod(0o755)
    for _ in range(70):
        file.add_process(NOBODYS, status=0)
    inside = own_mounts("-t proc -o hidepid=2 proc /proc")
    script = (
        f"import os, libhamiregion as h; f = h.open_region({os.fspath(file)!r}, writable=True);"
        " slot = f.attach(); print(f.snapshot().slot_count)"
    )
    command = [*inside, sys.executable, "-c", script]
    assert subprocess.check_output(command, timeout=PATIENCE_S) == b"70\n"

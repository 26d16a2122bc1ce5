"""How long a lock, and what tells that its holder lives, outlives what: nothing but the holder."""

import itertools
import os
import platform
import signal
import sys
import time

import pytest
from support.lock_bytes import NOBODY, hold, is_free, let_go, owner_of, value_of
from support.namespaces import FOREIGN_OWNER, is_number, own_mounts
from support.process import finished
from support.recovering import HOLD_STRUCT, assert_usable, did, recover
from support.slot_bytes import pids, used
from support.wait import PATIENCE_S, eventually

from libhamiregion import Layout, LockTimeout, RegionStale, open_region

# SIGCHLD and nothing else: what clone() does below fork(), which tells nobody of it.
RAW_CLONE = """
import ctypes, os, signal, time
answer = ctypes.CDLL(None).syscall(clone, signal.SIGCHLD, 0, 0, 0, 0)
if answer == 0:
    ctypes.CDLL(None).pause()
"""
CLONE = {"x86_64": 56, "aarch64": 220}.get(platform.machine())

FORK = """
import os, time
answer = os.fork()
if answer == 0:
    time.sleep(60)
    os._exit(0)
"""

SPAWN = """
import subprocess
child = subprocess.Popen(["sleep", "60"], close_fds=False)
child.returncode = 0  # not waited for
answer = child.pid
"""


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("beget", [RAW_CLONE, FORK, SPAWN], ids=["clone", "fork", "exec"])
def test_a_child_does_not_keep_a_killed_holder_alive(beget, layout, region_file, actor):
    if CLONE is None:
        pytest.skip("needs the number of the clone call")
    file = region_file(layout)
    holder = actor(file)
    holder("lock")
    child = holder("evaluate", beget, clone=CLONE)
    try:
        with open_region(file, writable=True) as region:
            assert region.lock_state().owner_life == "alive"
            holder.kill()
            os.kill(child, 0)
            # Who reads its maps at this moment keeps its mappings, and so its byte, for that long.
            eventually(lambda: region.lock_state().owner_life == "dead")
            with region.lock(0):
                pass
        assert is_free(file)
    finally:
        os.kill(child, signal.SIGKILL)


CLOSE_ALL = """
import os
os.closerange(20, 4096)  # not the actor's own channel
for fd in range(3, 20):
    try:
        leads_to = os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        continue
    if leads_to == region.path:
        os.close(fd)
"""


def test_a_program_that_closes_all_descriptors_keeps_its_lock(file, actor):
    holder = actor(file)
    holder("lock")
    holder("evaluate", CLOSE_ALL)
    with open_region(file, writable=True) as region:
        assert region.lock_state().owner_life == "alive"
        with pytest.raises(LockTimeout), region.lock(0.02):
            pass
    holder("unlock")
    assert_usable(file)


EXECUTE = """
import os, sys
os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(60)"])
"""


def test_a_program_that_executes_another_one_holds_nothing_any_more(region_file, actor):
    file = region_file()
    holder = actor(file)
    holder("lock")
    holder.start("evaluate", EXECUTE)
    deadline = time.monotonic() + PATIENCE_S
    with open_region(file, writable=True) as region:
        while region.lock_state().owner_life != "dead":
            assert time.monotonic() < deadline
        os.kill(holder.pid_here, 0)
        with region.lock(0):
            pass


def test_each_turn_is_signed_with_another_number(region_file):
    """A waiter of libvgpu that has judged one signature does not take the next one for it."""
    file = region_file()
    with open_region(file, writable=True) as region:
        numbers = []
        for _ in range(300):
            with region.lock():
                numbers.append(file.get("owner_pid"))
    assert all(one != other for one, other in itertools.pairwise(numbers))
    assert all(map(is_number, numbers))
    assert len(set(numbers)) == 256


def test_the_first_lock_through_a_region_whose_path_leads_elsewhere_says_so(region_file):
    file = region_file()
    with (
        open_region(file, writable=True) as late,
        open_region(file, writable=True) as early,
    ):
        with early.lock():
            pass
        file.path.rename(file.path.with_suffix(".gone"))
        with pytest.raises(RegionStale), late.lock():
            pass
        with early.lock():
            pass


def test_bytes_of_another_file_at_the_same_path_prove_nothing(layout, region_file, actor):
    file, other = region_file(layout), region_file(layout)
    holder = actor(file)
    holder("lock")
    with open_region(file) as reader, open_region(file, writable=True) as writer:
        other.path.replace(file.path)
        assert reader.lock_state().owner_life == "unknown"
        owner = reader.lock_state().owner_pid
        with pytest.raises((LockTimeout, RegionStale)), writer.lock(0.02):
            pass
        holder.kill()
        assert reader.lock_state().owner_life == "unknown"
        assert reader.lock_state().owner_pid == owner


def test_a_container_that_locks_all_bytes_costs_a_writer_its_timeout(region_file, actor):
    file = region_file()
    container = actor()
    container(
        "evaluate",
        "import fcntl, os, struct\n"
        "descriptor = os.open(path, os.O_RDWR)\n"
        "fcntl.fcntl(descriptor, 37, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 0, 0, 0))\n"
        "scene.descriptor = descriptor",
        path=str(file.path),
    )
    with open_region(file, writable=True) as region:
        started = time.monotonic()
        with pytest.raises(LockTimeout), region.lock(0.1):
            pass
        assert time.monotonic() - started >= 0.1
        region.set_memory_limit("1GiB", device=0)
        container.kill()
        with region.lock():
            pass


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("layout", [Layout.V1_1])
def test_up_to_2_8_0_a_dead_writers_lock_is_taken_over_under_libvgpus_own_range(
    layout, file, actor
):
    """A waiter that repairs under it stores its pid plainly; one that comes later has to wait."""
    libvgpu, late = actor(), actor()
    libvgpu("evaluate", HOLD_STRUCT, path=str(file.path), length=layout.size_bytes)
    hold(file, FOREIGN_OWNER + NOBODY)
    with open_region(file, writable=True) as region:
        with pytest.raises(LockTimeout), region.lock(0.02):
            pass
        assert (value_of(file), file.get("owner_pid")) == (0, FOREIGN_OWNER + NOBODY)
        libvgpu.kill()
        with region.lock():
            late.start("evaluate", HOLD_STRUCT, path=str(file.path), length=layout.size_bytes)
            assert not late.is_done(within_s=0.05)
        late.outcome()
    assert is_free(file)


# ---- the end of the interpreter, and closing without the lock ----

END = """
import sys
from libhamiregion import open_region
region = open_region(sys.argv[1], writable=True)
slot = region.attach()
slot.charge(0, 1 << 20)
{}
"""
ENDINGS = {
    "holding": "region.lock().__enter__()",
    "holding another one": (
        "other = open_region(sys.argv[1], writable=True); held = other.lock(); held.__enter__()"
    ),
    "with an exception": "with region.lock(): raise SystemExit",
    "idle": "",
}


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
@pytest.mark.parametrize("layout", [Layout.V1_1, Layout.V1_2])
def test_an_interpreter_that_ends_gives_the_lock_back_and_leaves(ending, file):
    file.add_process(NOBODY, {0: 7})
    ended = finished([sys.executable, "-c", END.format(ending), str(file.path)])
    assert (ended.returncode, ended.stderr) == (0, "")
    assert is_free(file)
    assert pids(file) == [NOBODY]
    assert used(file) == 7


def test_a_region_that_cannot_be_left_says_what_goes_on_counting(file, actor):
    holder = actor(file)

    region = open_region(file, writable=True)
    slot = region.attach()
    slot.charge(0, 600)
    slot.charge(0, 400, "module")
    hold(file, holder.pid)
    with pytest.raises(LockTimeout, match=r"counts 1000 B: .*reap\(\)"):
        region.close()
    assert region.closed
    region.close()
    assert owner_of(file) == holder.pid
    with open_region(file) as region:
        assert region.memory_used(0) == 1000
    holder.kill()
    assert recover(file) == did(dead_owner=True)
    with open_region(file, writable=True) as region:
        assert [slot.memory_bytes for slot in region.reap()] == [1000]
        assert region.memory_used(0) == 0


def test_closing_without_the_lock_does_not_hide_another_exception(region_file, actor):
    file = region_file()
    holder = actor(file)

    def leave_with(error: type[Exception] | None) -> None:
        with open_region(file, writable=True) as region:
            slot = region.attach()
            slot.charge(0, 1)
            hold(file, holder.pid)
            if error is not None:
                raise error

    with pytest.raises(LookupError):
        leave_with(LookupError)
    let_go(file)
    with pytest.raises(LockTimeout):
        leave_with(None)


WITHOUT_PROC = """
import os, sys
from libhamiregion import open_region
assert not os.path.exists("/proc/self")
with open_region(sys.argv[1], writable=True) as region:
    with region.lock():
        assert region.lock_state().owner_life == "alive"
    region.set_memory_limit("1GiB", device=0)
    with region.attach() as slot:
        slot.charge(0, 1)
"""


@pytest.mark.slow(keep=1)
@pytest.mark.root
def test_without_proc_a_region_is_opened_and_locked_like_any(layout, region_file):
    file = region_file(layout)
    done = finished(
        [*own_mounts("-t tmpfs none /proc"), sys.executable, "-c", WITHOUT_PROC, file.path]
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert is_free(file)

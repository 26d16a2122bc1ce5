"""A seqlock that a killed process left odd, for which another one waits with the lock."""

import pytest
from support.lock_bytes import NOBODY, hold, is_free, owner_of
from support.reaping import reap_in_time
from support.slot_bytes import LOCKABLE, put_seqlock, seqlock_of
from support.wait import eventually

from libhamiregion import LockTimeout, open_region

DEAD = NOBODY
each_layout = pytest.mark.parametrize("layout", LOCKABLE)

# As libvgpu allocates from September 2026 on: it adds up, compares and adds under the region's
# lock, and waits there without a limit until each seqlock is even. Answers with the sum.
ALLOCATE = """
import os
from support.lock_bytes import hold, let_go
from support.region_file import RegionFile
from support.slot_bytes import account, seqlock_of
file = RegionFile(path, layout)
hold(file, os.getpid())
answer = 0
for slot in range(file.get("proc_num")):
    while seqlock_of(file, slot) % 2:
        pass
    answer += file.get("slot_used.total", slot=slot)
account(file, own, nbytes)
let_go(file)
"""


@each_layout
@pytest.mark.parametrize("pid", [DEAD, 0], ids=["dead", "pid 0"])
@pytest.mark.root
def test_a_reap_frees_a_container_that_waits_for_it(file, pid, actor):
    slot = file.add_process(pid, {0: 1000})
    put_seqlock(file, slot, 1)
    libvgpu = actor(file)
    allocation = {"path": file.path, "layout": file.layout, "own": file.add_process(libvgpu.pid)}
    libvgpu.start("evaluate", ALLOCATE, nbytes=70, **allocation)
    eventually(lambda: owner_of(file) == libvgpu.pid)
    with open_region(file, writable=True) as region:
        with pytest.raises(LockTimeout):
            region.lock(timeout_s=0.05).__enter__()
        reaped = reap_in_time(region)
        assert libvgpu.outcome() == 1000
        assert [each.memory_bytes for each in reaped] == [1000]
        assert region.memory_used(0) == 70
        assert libvgpu("evaluate", ALLOCATE, nbytes=7, **allocation) == 70
        assert region.memory_used(0) == 77
    assert is_free(file)
    assert seqlock_of(file, slot) % 2 == 0


@each_layout
def test_an_odd_seqlock_of_a_live_process_is_left_as_it_is(file, actor):
    inside, holder = actor(file), actor(file)
    slot = file.add_process(inside.pid, {0: 5})
    put_seqlock(file, slot, 1)
    file.add_process(holder.pid)
    hold(file, holder.pid)
    with open_region(file, writable=True) as region:
        assert region.reap() == ()
    assert seqlock_of(file, slot) == 1


@each_layout
@pytest.mark.parametrize("owner", [0, DEAD + 1], ids=["no owner", "a dead owner"])
def test_without_a_live_owner_of_the_lock_it_is_not_made_even_beside_it(file, owner):
    slot = file.add_process(DEAD, {0: 5})
    put_seqlock(file, slot, 1)
    hold(file, owner)
    with open_region(file, writable=True) as region, pytest.raises(LockTimeout):
        region.reap(timeout_s=0.05)
    assert seqlock_of(file, slot) == 1


@each_layout
def test_a_recovery_makes_it_even_before_the_lock_is_free(file):
    slot = file.add_process(DEAD, {0: 5})
    put_seqlock(file, slot, 1)
    hold(file, DEAD + 1)
    with open_region(file, writable=True) as region:
        assert region.recover_lock().dead_owner
        assert seqlock_of(file, slot) == 2
        assert [each.memory_bytes for each in reap_in_time(region)] == [5]
    assert is_free(file)

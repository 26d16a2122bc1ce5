"""A search of /proc comes to its end, however many processes there are and whatever they map."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from crowd import crowd
from lock_bytes import hold, is_free
from namespaces import NEW_NAMESPACE, needs_first_namespace, why_no_new_namespace
from slot_bytes import put_seqlock
from support.actors import MakeActor, ProcessFactory
from support.region_file import RegionFile, RegionFileFactory, locate
from support.stress import scaled
from support.wait import PATIENCE_S, eventually

from libhamiregion import Layout, LockNotRecoverable, ReapedSlot, SearchCutShort, open_region

pytestmark = needs_first_namespace

GIB = 1 << 30
T = TypeVar("T")
LONG_S = 20 * PATIENCE_S


@pytest.fixture(params=[Layout.V1_1, Layout.V1_2])
def region(request: pytest.FixtureRequest, region_file: RegionFileFactory) -> RegionFile:
    return region_file(request.param)


# ---- a stranger ----

LONG_MAPS = """
import mmap, os
os.chdir(directory)
for _ in range(14):
    os.mkdir("x" * 250)
    os.chdir("x" * 250)
with open("file", "wb+") as file:
    file.truncate(4096)
    scene.kept = [
        mmap.mmap(file.fileno(), 4096, flags, mmap.PROT_READ | mmap.PROT_WRITE)
        for _ in range(9_500)
    ]
answer = sum(map(len, open("/proc/self/maps", "rb")))
"""
REMOVE = """
import os, shutil
os.chdir(directory)
answer = os.system("rm -rf xxx*")
"""


@pytest.fixture
def stranger(tmp_path: Path) -> Iterator[ProcessFactory]:
    """A container of its own."""
    if why := why_no_new_namespace():
        pytest.skip(why)
    with contextlib.closing(ProcessFactory(*NEW_NAMESPACE)) as container:
        yield container
        container.actor()("evaluate", REMOVE, directory=str(tmp_path))


@pytest.mark.slow(keep=1)
@pytest.mark.root
@pytest.mark.parametrize("flags", [1, 2])
def test_a_stranger_with_long_maps_keeps_the_dead_counted_until_it_is_excluded(
    flags: int, stranger: ProcessFactory, region: RegionFile, tmp_path: Path
) -> None:
    """It has the dead one's number in its own namespace, and maps files for writing, or private."""
    neighbour = stranger.actor()
    maps_bytes = neighbour("evaluate", LONG_MAPS, directory=str(tmp_path), flags=flags)
    assert maps_bytes > 32 << 20
    stat = Path(f"/proc/{neighbour.pid_here}/stat").read_text()
    started = int(stat.rpartition(")")[2].split()[19])
    region.add_process(neighbour.pid, {0: 8 * GIB})
    with open_region(region, writable=True) as opened:
        with pytest.raises(SearchCutShort):
            opened.reap()
        assert opened.memory_used(0) == 8 * GIB
        freed = opened.reap(excluded=[(neighbour.pid_here, started)])
        assert freed == (ReapedSlot(neighbour.pid, 8 * GIB),)


# ---- a crowd ----


def unless_cut_short(search: Callable[[], T]) -> T:
    """Search until /proc was read to its end within the 2 s that a search has."""
    deadline_s = time.monotonic() + LONG_S
    while True:
        try:
            return search()
        except (SearchCutShort, LockNotRecoverable):
            if time.monotonic() > deadline_s:
                raise


@pytest.fixture(scope="module")
def busy() -> Iterator[None]:
    with crowd(300, 2_000) as pids:
        assert len(pids) == 300
        yield


@pytest.mark.usefixtures("busy")
def test_slots_without_a_pid_are_judged_beside_a_crowd(
    region: RegionFile, actor: MakeActor
) -> None:
    """Each process there is may be the one that has taken its pid out."""
    region.add_process(0, {0: GIB})
    keeper = actor(region)
    keeper("attach")
    reaper = actor(region)
    assert unless_cut_short(lambda: reaper("region.reap")) == (ReapedSlot(0, GIB),)


@pytest.mark.usefixtures("busy")
def test_a_lock_that_nobody_has_signed_is_recovered_beside_a_crowd(region: RegionFile) -> None:
    region.put("sem", 0)
    with open_region(region, writable=True) as opened:
        assert unless_cut_short(lambda: opened.recover_lock(watch_s=0)).ownerless
    assert is_free(region)


@pytest.mark.usefixtures("busy")
def test_the_dead_owner_of_a_lock_is_found_dead_beside_a_crowd(region: RegionFile) -> None:
    hold(region, 3_999_999)
    with open_region(region, writable=True) as opened:
        assert opened.recover_lock().dead_owner


ORPHAN = """
import mmap, os, struct, threading, time
descriptor = os.open(path, os.O_RDWR)
mapping = mmap.mmap(descriptor, 0)
os.close(descriptor)
def work():
    while not scene.over:
        count, = struct.unpack_from("<Q", mapping, at)
        struct.pack_into("<Q", mapping, at, count + 2)
        time.sleep(0.001)
scene.over = False
scene.worker = threading.Thread(target=work, daemon=True)
scene.worker.start()
"""


@pytest.mark.usefixtures("busy")
def test_a_moved_slot_is_repaired_beside_a_crowd(
    region_file: RegionFileFactory, actor: MakeActor
) -> None:
    region = region_file(Layout.V1_2)
    orphan = actor()
    region.add_process(orphan.pid, {0: 100})
    region.add_process(orphan.pid, {0: 300})
    region.put("proc_num", 1)
    at, _ = locate(region.layout, "slot_seqlock", slot=1)
    orphan("evaluate", ORPHAN, path=os.fspath(region), at=at)
    repairer = actor(region)
    assert repairer("region.repair_slots").repaired == (orphan.pid,)
    assert repairer("region.memory_used", 0) == 300


@pytest.fixture
def busier() -> Iterator[None]:
    """More than one call can look at, whatever the kernel answers about maps."""
    with crowd(scaled(1_300), 8_000, shared=True):
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("busier")
def test_a_repair_behind_a_slot_without_a_pid_comes_to_its_end_beside_a_crowd(
    region_file: RegionFileFactory, actor: MakeActor
) -> None:
    region = region_file(Layout.V1_2)
    orphan = actor()
    region.add_process(orphan.pid, {0: 100})
    region.add_process(0, {0: GIB})
    region.add_process(orphan.pid, {0: 300})
    region.put("proc_num", 1)
    at, _ = locate(region.layout, "slot_seqlock", slot=2)
    orphan("evaluate", ORPHAN, path=os.fspath(region), at=at)
    cut_short = []

    def is_repaired() -> bool:
        with open_region(region, writable=True) as opened:
            try:
                return opened.repair_slots().repaired == (orphan.pid,)
            except SearchCutShort as error:
                cut_short.append((error.pids, opened.memory_used(0)))
                return False

    began_s = time.thread_time()
    eventually(is_repaired, within_s=LONG_S)
    spent_s = time.thread_time() - began_s
    print(f"repaired after {len(cut_short)} calls and {spent_s:.1f} s of the processor")
    assert set(cut_short) <= {((orphan.pid,), 100)}
    with open_region(region) as opened:
        assert opened.memory_used(0) == 300


@pytest.mark.slow
@pytest.mark.usefixtures("busier")
def test_a_process_that_has_lost_its_slot_accounts_on_beside_a_crowd(
    region: RegionFile, actor: MakeActor
) -> None:
    """Slots without a pid stand behind the last one: until their owners have been looked for, it
    goes behind them."""
    process = actor(region)
    process("attach")
    process("slot.charge", 0, 300)
    region.put("proc_num", 0)
    for index in range(4):
        region.put("slot_pid", 0, slot=index)
        region.put("slot_used.total", 77, slot=index)
        put_seqlock(region, index, 8)
    process("slot.charge", 0, 100)
    assert process("region.memory_used", 0) >= 400

    def is_reaped() -> bool:
        with open_region(region, writable=True) as opened:
            try:
                opened.reap()
            except SearchCutShort:
                return False
            return opened.memory_used(0) == 400

    eventually(is_reaped, within_s=LONG_S)
    process("slot.charge", 0, 1)
    assert process("region.memory_used", 0) == 401


@pytest.mark.usefixtures("busy")
def test_a_process_whose_slot_was_taken_goes_on_accounting_beside_a_crowd(
    region: RegionFile, actor: MakeActor
) -> None:
    """Names of earlier processes stand behind the last slot, so that it has to look for them."""
    process = actor(region)
    process("attach")
    process("slot.charge", 0, 300)
    other = 3_999_998
    region.put("proc_num", 0)
    for index in range(8):
        region.put("slot_pid", other, slot=index)
        region.put("slot_used.total", 77, slot=index)
        if region.layout is Layout.V1_2:
            region.put("slot_seqlock", 8, slot=index)
    process("slot.charge", 0, 100)
    assert process("region.memory_used", 0) == 400

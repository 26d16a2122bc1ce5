"""A search of /proc comes to its end, however many processes there are and whatever they map."""

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from support.actors import Actor, MakeActor, ProcessFactory
from support.crowd import crowd
from support.lock_bytes import is_free
from support.namespaces import NEW_NAMESPACE, why_no_new_namespace
from support.own_cgroups import cgroup_of_pod
from support.region_file import RegionFile, RegionFileFactory
from support.wait import PATIENCE_S

from libhamiregion import Layout, LockNotRecoverable, ReapedSlot, SearchCutShort, open_region

pytestmark = pytest.mark.root

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
import os
os.chdir(directory)
answer = os.system("rm -rf xxx*")
"""


@pytest.fixture
def stranger(tmp_path: Path) -> Iterator[Actor]:
    """A process in a container of its own."""
    if why := why_no_new_namespace():
        pytest.skip(why)
    with (
        # A process that cannot be read may use any region; in a pod, those of that pod only.
        cgroup_of_pod(str(uuid.uuid4()), "cafe" * 16) as cgroup,
        contextlib.closing(ProcessFactory(*NEW_NAMESPACE)) as container,
    ):
        process = container.actor()
        (cgroup / "cgroup.procs").write_text(str(process.pid_here))
        yield process
        container.actor()("evaluate", REMOVE, directory=str(tmp_path))
        container.kill_all()


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("flags", [1, 2])
def test_a_stranger_with_long_maps_keeps_the_dead_counted_until_it_is_left_out(
    flags: int, stranger: Actor, region: RegionFile, tmp_path: Path
) -> None:
    """It has the dead one's number in its own namespace, and maps files for writing, or private."""
    maps_bytes = stranger("evaluate", LONG_MAPS, directory=str(tmp_path), flags=flags)
    assert maps_bytes > 32 << 20
    region.add_process(stranger.pid, {0: 8 * GIB})
    with open_region(region, writable=True) as opened:
        with pytest.raises(SearchCutShort):
            opened.reap()
        assert opened.memory_used(0) == 8 * GIB
        freed = opened.reap(evidence=opened.evidence().add((), found_all=True))
        assert freed == (ReapedSlot(stranger.pid, 8 * GIB),)


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
    # Others on this machine have to read them too.
    with crowd(60, 2_000) as pids:
        assert len(pids) == 60
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

"""Evidence that others have gathered: the calls that take it judge by it alone."""

import contextlib
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.fake_proc import FakeProc, line_of
from support.lock_bytes import hold, is_free, let_go
from support.region_file import RegionFile
from support.slot_bytes import pids
from support.wait import eventually

from libhamiregion import (
    Evidence,
    Layout,
    LockNotRecoverable,
    LockTimeout,
    ReapedSlot,
    ReapRefused,
    Region,
    RegionClosed,
    SearchCutShort,
    ask_process,
    open_region,
)
from libhamiregion._core import lib

ALIVE, DEAD = 5, 6


@pytest.fixture
def file(region_file) -> RegionFile:
    return region_file()


@pytest.fixture
def fake_proc(tmp_path, region) -> FakeProc:
    """With one process of the region, which has the pid ALIVE in its container."""
    (tmp_path / "proc").mkdir()
    found = FakeProc(tmp_path / "proc")
    maps = tmp_path / "ours"
    maps.write_text(line_of(region))
    found.add(100, maps, ALIVE)
    return found


@pytest.fixture
def proc(fake_proc) -> Iterator[int]:
    descriptor = os.open(fake_proc.directory, os.O_PATH | os.O_DIRECTORY)
    yield descriptor
    os.close(descriptor)


def gathered(region: Region, proc: int, *, found_all: bool = True) -> Evidence:
    """Evidence as a service gathers it: begun, each process asked elsewhere, and put together."""
    evidence = region.evidence()
    asked = [ask_process(proc, pid, [evidence.file])[0] for pid in (1, 100)]
    return evidence.add(asked, found_all=found_all, is_all=found_all)


@pytest.fixture
def _no_file_can_be_opened() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.open("/dev/null", os.O_RDONLY)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(taken[0] + 1, 64), before[1]))
    with contextlib.suppress(OSError):
        while True:
            taken.append(os.dup(taken[0]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)
    for descriptor in taken:
        os.close(descriptor)


def test_slots_and_lock_are_judged_by_evidence_without_opening_a_file(region, file, proc, request):
    file.add_process(ALIVE, {0: 640})
    file.add_process(DEAD, {0: 320})
    with region.lock():  # which opens the file for its numbers, once
        pass
    evidence = gathered(region, proc)
    request.getfixturevalue("_no_file_can_be_opened")
    with pytest.raises(OSError, match="open files"):
        region.reap()
    assert region.reap(evidence=evidence) == (ReapedSlot(DEAD, 320),)
    with pytest.raises(ReapRefused, match=f"process {ALIVE} is alive"):
        region.reap([ALIVE], evidence=evidence)
    assert region.repair_slots(evidence=evidence).left == ()
    assert region.memory_used(0) == 640


@pytest.mark.parametrize(("owner", "life"), [(ALIVE, "alive"), (DEAD, "dead")])
def test_the_owner_of_the_lock_is_judged_by_evidence(owner, life, region, file, proc):
    """The machine's own /proc, which would be searched without it, has other processes."""
    hold(file, owner)
    evidence = gathered(region, proc)
    assert region.lock_state(evidence=evidence).owner_life == life
    if life == "dead":
        assert region.recover_lock(evidence=evidence).dead_owner
        assert is_free(file)
    else:
        with pytest.raises(LockNotRecoverable, match=r"live process, pid 100 here"):
            region.recover_lock(evidence=evidence)


def test_a_slot_and_a_lock_that_have_changed_since_are_not_judged(region, file, proc):
    file.add_process(DEAD, {0: 320})
    evidence = gathered(region, proc)
    file.put("slot_used.total", 321)
    hold(file, DEAD)
    assert region.lock_state(evidence=evidence).owner_life == "unknown"
    with pytest.raises(LockNotRecoverable, match="try again"):
        region.recover_lock(evidence=evidence)
    assert region.reap(dry_run=True, evidence=evidence) == ()


def test_evidence_that_is_not_complete_proves_no_death(region, file, proc):
    file.add_process(DEAD, {0: 320})
    hold(file, DEAD)
    evidence = gathered(region, proc, found_all=False)
    assert region.lock_state(evidence=evidence).owner_life == "unknown"
    assert region.reap(evidence=evidence) == ()
    late = region.evidence().add((), found_all=True, cut_short=True)
    with pytest.raises(SearchCutShort):
        region.reap(evidence=late)
    assert pids(file) == [DEAD]


@pytest.mark.slow
def test_old_evidence_proves_nothing(region, file, proc):
    file.add_process(DEAD, {0: 320})
    evidence = gathered(region, proc)
    assert region.reap(dry_run=True, evidence=evidence) == (ReapedSlot(DEAD, 320),)

    def is_too_old() -> bool:
        try:
            return not region.reap(dry_run=True, evidence=evidence)
        except SearchCutShort:
            return True

    eventually(is_too_old)


def test_a_slot_without_a_pid_is_judged_by_the_answers_of_all(region, file, proc):
    file.add_process(0, {0: 640})
    evidence = gathered(region, proc)
    assert evidence.pids is None, "any process may have taken its pid out"
    assert region.reap(evidence=evidence) == (ReapedSlot(0, 640),)


def test_it_names_the_pids_to_ask_for(region, file):
    file.add_process(ALIVE, {0: 640})
    hold(file, DEAD)
    assert region.evidence().pids == {ALIVE, DEAD}
    hold(file, 0)
    assert region.evidence().pids is None


def test_evidence_is_about_the_handle_that_it_was_begun_with(region, file, proc):
    with open_region(file, writable=True) as other:
        evidence = gathered(other, proc)
        with pytest.raises(ValueError, match="another handle"):
            region.reap(evidence=evidence)
    with pytest.raises(RegionClosed):
        other.reap(evidence=evidence)


# ---- one process ----


def test_a_process_answers_for_many_files_with_its_pids_and_its_age(region_file, actor):
    file, other = region_file(), region_file()
    process = actor(file)
    with open_region(file) as one, open_region(other) as two:
        files = [two.evidence().file, one.evidence().file]
        descriptor = os.open("/proc", os.O_PATH)
        answers = ask_process(descriptor, process.pid_here, files)
        own = ask_process(descriptor, os.getpid(), files)
        os.close(descriptor)
    assert [answer.maps_file for answer in answers] == [False, True]
    answer = answers[1]
    assert (answer.pids[0], answer.pids[-1]) == (process.pid_here, process.pid)
    stat = Path(f"/proc/{process.pid_here}/stat").read_text().rpartition(")")[2].split()
    assert answer._raw.start_time_ticks == int(stat[19])
    assert (answer._raw.is_self, own[1]._raw.is_self) == (False, True)


def test_a_process_that_has_ended_has_no_age(region):
    with subprocess.Popen(["true"]) as ended:
        descriptor = os.open("/proc", os.O_PATH)
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        (zombie,) = ask_process(descriptor, ended.pid, [region.evidence().file])
        ended.wait()
        (gone,) = ask_process(descriptor, ended.pid, [region.evidence().file])
        os.close(descriptor)
    for answer, seen in ((zombie, lib.HR_MAPS_NOTHING), (gone, lib.HR_GONE)):
        assert (answer._raw.start_time_ticks, answer._seen) == (lib.HR_HAS_ENDED, seen)
        assert not answer.maps_file


def test_the_process_that_asks_is_none_of_the_region(region, file):
    """It maps the file for writing, and may free a lock that no other process can hold."""
    hold(file, 0)
    evidence = region.evidence()
    descriptor = os.open("/proc", os.O_PATH)
    (own,) = ask_process(descriptor, os.getpid(), [evidence.file])
    os.close(descriptor)
    assert own.maps_file
    evidence.add([own], found_all=True, is_all=True)
    assert region.recover_lock(evidence=evidence, watch_s=0).ownerless


# ---- a seqlock that a killed process left odd ----


def test_a_dead_ones_odd_seqlock_is_made_even_beside_the_live_owner_that_waits_for_it(
    region, file, fake_proc, proc
):
    """The owner was asked, and is older than the evidence."""
    stat = fake_proc.directory / "100" / "stat"
    stat.write_text(f"100 (x) {' '.join(['S', *['0'] * 18, '1', *['0'] * 30])}\n")
    file.add_process(ALIVE, {0: 640})
    file.add_process(DEAD, {0: 320})
    file.put("slot_seqlock", 7, slot=1)
    hold(file, ALIVE)
    with pytest.raises(LockTimeout):
        region.reap(timeout_s=0.05, evidence=gathered(region, proc))
    assert file.get("slot_seqlock", slot=1) == 8
    let_go(file)
    assert region.reap(evidence=gathered(region, proc)) == (ReapedSlot(DEAD, 320),)


@pytest.mark.parametrize("layout", list(Layout))
def test_evidence_is_noted_in_every_layout(region_file, layout):
    with open_region(region_file(layout).path) as region:
        evidence = region.evidence()
        assert evidence.pids == frozenset()
        assert region.lock_state(evidence=evidence) == region.lock_state()

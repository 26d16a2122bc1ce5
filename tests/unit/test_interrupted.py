"""An exception that a signal's handler raises at any instruction, as Python's own does at Ctrl-C.

What a call has opened, locked or attached is given back by then, or with the exception.
"""

import contextlib
import gc
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lock_bytes import NOBODY, hold, is_free
from namespaces import needs_first_namespace
from region_bytes import RegionFile, RegionFileFactory
from slot_bytes import pids
from stress import scaled

from libhamiregion import Layout, Region, open_region

# The other method uses the timer that these tests need.
pytestmark = pytest.mark.timeout(120, method="thread")


class Interrupted(Exception):
    pass


class Timer:
    """Has a signal's handler raise, `bursts` times at most, some microseconds after `start`."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._left = 0
        self.raised = 0

    def _raise(self, *_: object) -> None:
        if self._left > 0:
            self._left -= 1
            self.raised += 1
            if self._left > 0:
                signal.setitimer(signal.ITIMER_REAL, self._chance.uniform(1e-6, 30e-6))
            raise Interrupted

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        before = signal.signal(signal.SIGALRM, self._raise)
        try:
            yield
        finally:
            self._left = 0
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def interrupt(self, work: Callable[[], object], longest_s: float, bursts: int) -> None:
        """Do the work, or as much of it as it comes to."""
        first = self._chance.uniform(1e-6, longest_s)
        try:
            try:
                self._left = bursts
                signal.setitimer(signal.ITIMER_REAL, first)
                work()
            finally:
                self._left = 0
        except Interrupted:
            self._left = 0


class Bench:
    """A region and what is done with it; each deed may end anywhere."""

    def __init__(self, file: RegionFile) -> None:
        self.file = file
        self.region = open_region(file, writable=True)

    def lock(self) -> None:
        with self.region.lock():
            pass

    def attach(self) -> None:
        with self.region.attach() as slot:
            slot.charge(0, 1)

    def open(self) -> None:
        with open_region(self.file, writable=True) as region, region.lock():
            pass

    def read(self) -> None:
        self.region.snapshot()

    def edit(self) -> None:
        self.region.set_memory_limit(1 << 30, device=0)

    def recover(self) -> None:
        self.region.recover_lock(watch_s=0)

    def prepare(self, deed: str) -> None:
        if deed == "recover":
            hold(self.file, NOBODY)

    def tidy(self, deed: str) -> None:
        """What an interrupted recovery may leave, and a `with` that has not come to its body."""
        if deed == "recover":
            self.region.recover_lock(watch_s=0)
        if deed == "attach" and pids(self.file) and self.file.get("slot_pid"):
            self.region.close()
            self.region = open_region(self.file, writable=True)


DEEDS = {
    "lock": 20e-6,
    "attach": 100e-6,
    "open": 300e-6,
    "read": 20e-6,
    "edit": 30e-6,
    "recover": 5e-3,
}


def counted(path: Path) -> tuple[int, int]:
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    return maps.count(str(path)), len(list(Path("/proc/self/fd").iterdir()))


def interrupt_often(deed: str, file: RegionFile, seconds: float, *, times: int, seed: int) -> None:
    """For so long, and for as long as it takes to interrupt so many times."""
    bench, timer = Bench(file), Timer(seed)
    getattr(bench, deed)()
    bench.lock()
    before = counted(file.path)
    until = time.monotonic() + seconds
    turn = 0
    with timer.installed():
        while time.monotonic() < until or timer.raised < times:
            turn += 1
            bench.prepare(deed)
            # Mostly once: a second one may come while the first is being dealt with.
            timer.interrupt(getattr(bench, deed), DEEDS[deed], bursts=3 if turn % 8 == 0 else 1)
            bench.tidy(deed)
            assert is_free(file), f"{deed}, turn {turn}"
    bench.lock()
    assert counted(file.path) == before
    bench.region.close()
    gc.collect()
    assert is_free(file)
    assert counted(file.path)[0] == 0
    assert file.get("proc_num") == 0 or pids(file) == []


@needs_first_namespace
@pytest.mark.parametrize("deed", DEEDS)
def test_an_exception_at_any_instruction_leaves_nothing_behind(
    deed: str, region_file: RegionFileFactory
) -> None:
    interrupt_often(deed, region_file(Layout.V1_2), 4 / len(DEEDS), times=50, seed=1)


@needs_first_namespace
@pytest.mark.stress
@pytest.mark.parametrize("deed", DEEDS)
def test_an_exception_at_any_instruction_leaves_nothing_behind_in_a_minute(
    deed: str, layout: Layout, region_file: RegionFileFactory
) -> None:
    interrupt_often(deed, region_file(layout), scaled(12.0), times=scaled(100), seed=layout.number)


def interrupted_on_leaving(region: Region) -> Interrupted:
    """What is raised at the very first instruction of `RegionLock.__exit__`, with its traceback."""
    lock = region.lock()
    leaving = type(lock).__exit__.__code__

    def interrupt(frame: object, event: str, _: object) -> None:
        if event == "call" and getattr(frame, "f_code", None) is leaving:
            sys.setprofile(None)
            raise Interrupted

    try:
        sys.setprofile(interrupt)
        with lock:
            pass
    except Interrupted as error:
        return error
    finally:
        sys.setprofile(None)
    raise AssertionError("not interrupted")


def test_a_lock_that_an_exception_kept_from_being_left_goes_with_its_traceback(
    file: RegionFile,
) -> None:
    with open_region(file, writable=True) as region:
        error = interrupted_on_leaving(region)
        assert not is_free(file)
        del error
        gc.collect()
        assert is_free(file)


def test_a_lock_that_a_traceback_keeps_can_be_taken_again_by_its_thread(file: RegionFile) -> None:
    """A debugger, or sys.last_exc, may keep a traceback for ever."""
    with open_region(file, writable=True) as region:
        error = interrupted_on_leaving(region)
        with region.lock(0):
            assert not is_free(file)
            # What goes with the traceback now is not this one.
            del error
            gc.collect()
            assert not is_free(file)
            with pytest.raises(RuntimeError, match="not re-entrant"), region.lock():
                pass
        assert is_free(file)

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
from slot_bytes import pids
from support.region_file import RegionFile, RegionFileFactory
from support.wait import PATIENCE_S, eventually

from libhamiregion import Layout, open_region

# The other method uses the timer that these tests need.
pytestmark = pytest.mark.timeout(4 * PATIENCE_S, method="thread")


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
            with self._swallowed():
                yield
        finally:
            self._left = 0
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    @staticmethod
    @contextlib.contextmanager
    def _swallowed() -> Iterator[None]:
        """Python itself drops what is raised in a finalizer or in a weak reference's callback."""
        before = sys.unraisablehook

        def hook(found: "sys.UnraisableHookArgs") -> None:
            if not isinstance(found.exc_value, Interrupted):
                before(found)

        sys.unraisablehook = hook
        try:
            yield
        finally:
            sys.unraisablehook = before

    def interrupt(self, work: Callable[[], object], longest_s: float, bursts: int) -> None:
        """Do the work, or as much of it as it comes to."""
        first = self._chance.uniform(1e-6, longest_s)
        # One more for each of three: the later ones may come while an earlier one is handled.
        try:
            try:
                try:
                    self._left = bursts
                    signal.setitimer(signal.ITIMER_REAL, first)
                    work()
                finally:
                    self._left = 0
            except Interrupted:
                self._left = 0
        except Interrupted:
            self._left = 0


class Bench:
    """A region and what is done with it; each deed may end anywhere."""

    def __init__(self, file: RegionFile) -> None:
        self.file = file
        self.region = open_region(file, writable=True)

    def open(self) -> None:
        with open_region(self.file, writable=True) as region, region.lock():
            pass

    def attach(self) -> None:
        with open_region(self.file, writable=True) as region, region.attach() as slot:
            slot.charge(0, 1)

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
        """What an interrupted recovery may leave."""
        if deed == "recover":
            self.region.recover_lock(watch_s=0)


DEEDS = {
    "attach": 400e-6,
    "open": 300e-6,
    "read": 20e-6,
    "edit": 30e-6,
    "recover": 5e-3,
}


def mappings(path: Path) -> int:
    return Path("/proc/self/maps").read_text(encoding="utf-8").count(str(path))


def descriptors() -> set[str]:
    return {each.name for each in Path("/proc/self/fd").iterdir()}


def interrupt_often(deed: str, file: RegionFile, seconds: float, *, times: int, seed: int) -> None:
    """For so long, and for as long as it takes to interrupt so many times."""
    bench, timer = Bench(file), Timer(seed)
    getattr(bench, deed)()
    bench.read()
    before = mappings(file.path), descriptors()
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
    bench.read()
    assert mappings(file.path) == before[0]
    # What an earlier test has left is closed whenever it is collected, or opened by its thread.
    eventually(lambda: descriptors() <= before[1])
    bench.region.close()
    gc.collect()
    assert is_free(file)
    assert mappings(file.path) == 0
    assert file.get("proc_num") == 0 or pids(file) == []


@pytest.mark.slow(keep=2)
@needs_first_namespace
@pytest.mark.parametrize("deed", DEEDS)
def test_an_exception_at_any_instruction_leaves_nothing_behind(
    deed: str, region_file: RegionFileFactory
) -> None:
    interrupt_often(deed, region_file(Layout.V1_2), 4 / len(DEEDS), times=50, seed=1)


def test_a_slot_that_is_dropped_is_detached(region_file: RegionFileFactory) -> None:
    file = region_file()
    with open_region(file, writable=True) as region:
        region.attach().charge(0, 5)
        gc.collect()
        assert pids(file) == []

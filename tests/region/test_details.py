"""What a failure tells is its own, also where a signal's handler fails in between."""

import contextlib
import gc
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from types import FrameType

import pytest
from support.region_file import RegionFileFactory
from support.wait import goes_on

from libhamiregion import (
    LimitConflict,
    LockTimeout,
    MemoryLimitExceeded,
    Region,
    open_region,
)

GIB = 2**30
SECONDS = 3.0


def conflict(region: Region, found: int) -> None:
    with pytest.raises(LimitConflict) as error:
        region.set_memory_limit(GIB, device=0, expected="9GiB")
    assert error.value.found == found * GIB


def timeout(region: Region, owner: int) -> None:
    with pytest.raises(LockTimeout, match=f"owner_pid {owner}0"), region.lock(0):
        pass


def timeout_after_slices(region: Region, owner: int) -> None:
    with pytest.raises(LockTimeout, match=f"owner_pid {owner}0"), region.lock(0.25):
        pass


@pytest.fixture
def pair(region_file: RegionFileFactory) -> Iterator[tuple[Region, Region]]:
    """Two regions that fail alike, with another number each: 4 and 5."""
    opened = []
    for number in (4, 5):
        file = region_file(memory_limits=[number * GIB])
        file.put("owner_pid", number * 10)
        file.put_bytes(file.layout.offsets["sem"] or 0, bytes(4))
        opened.append(open_region(file, writable=True))
    yield opened[0], opened[1]
    for region in opened:
        region.close()


@contextlib.contextmanager
def signals_at_random(handler: Callable[[], None]) -> Iterator[None]:
    """Have a child send a signal every 20 to 400 us; two handlers may run inside each other."""
    depth = 0

    def handle(_signal: int, _frame: FrameType | None) -> None:
        nonlocal depth
        if depth == 2:
            return
        depth += 1
        try:
            handler()
        finally:
            depth -= 1

    before = signal.signal(signal.SIGUSR1, handle)
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            while os.getppid() == parent:
                os.kill(parent, signal.SIGUSR1)
                time.sleep(random.uniform(20e-6, 400e-6))
        finally:
            os._exit(0)
    try:
        yield
    finally:
        # Not SIG_IGN: Python complains where one that came before finds no handler.
        signal.signal(signal.SIGUSR1, lambda *_: None)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("fail", [conflict, timeout], ids=lambda fail: fail.__name__)
def test_a_handlers_failure_is_not_taken_for_that_of_who_was_interrupted(
    fail: Callable[[Region, int], None], pair: tuple[Region, Region]
) -> None:
    ours, others = pair
    handled = failures = 0
    ways = [conflict, timeout] * 50 + [timeout_after_slices]

    def handler() -> None:
        nonlocal handled
        handled += 1
        random.choice(ways)(others, 5)

    began_s = time.monotonic()
    with signals_at_random(handler):
        while goes_on(began_s, SECONDS, is_enough=min(handled, failures) > 100):
            fail(ours, 4)
            failures += 1
    assert handled > 100
    assert failures > 100


@pytest.mark.slow
def test_an_exception_of_a_handler_leaves_nothing_that_is_mistaken_later(
    pair: tuple[Region, Region],
) -> None:
    """The interrupted call's detail stays behind untaken; each later failure has its own."""
    ours, others = pair
    interrupted = 0
    may_interrupt = False

    class Interrupt(Exception):
        pass

    def handler() -> None:
        nonlocal may_interrupt
        if may_interrupt:
            may_interrupt = False
            raise Interrupt

    began_s = time.monotonic()
    # Callbacks of the collector, such as hypothesis', swallow what is raised in them.
    gc.disable()
    try:
        with signals_at_random(handler):
            while goes_on(began_s, SECONDS / 2, is_enough=interrupted > 100):
                try:
                    may_interrupt = True
                    while may_interrupt:
                        conflict(others, 5)
                except Interrupt:
                    interrupted += 1
                conflict(ours, 4)
    finally:
        gc.enable()
    assert interrupted > 100


def test_what_a_charge_is_refused_for_is_its_own(region_file: RegionFileFactory) -> None:
    """A refused charge asks for its detail once; the next one finds its own."""
    file = region_file(memory_limits=[GIB, GIB])
    with open_region(file, writable=True) as region, region.attach() as slot:
        for requested in (2 * GIB, 3 * GIB):
            with pytest.raises(MemoryLimitExceeded) as error:
                slot.charge(0, requested)
            assert error.value.requested_bytes == requested
        with pytest.raises(ValueError, match="charged 0 bytes of data on device 1: 7 are too many"):
            slot.release(1, 7)

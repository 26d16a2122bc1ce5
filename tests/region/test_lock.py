"""The lock: taking it, giving it back, and the bytes that this changes."""

import os
from collections.abc import Callable

import pytest
from lock_bytes import NOBODY, SEMAPHORES, is_free, owner_of, semaphore_bytes, value_of
from namespaces import is_own_signature
from support.region_file import RegionFile, RegionFileFactory, locate

from libhamiregion import (
    Layout,
    LockLost,
    LockRecovery,
    Region,
    RegionClosed,
    RegionReadOnly,
    RegionStale,
    open_region,
)


def test_who_holds_the_lock_has_the_semaphore_and_has_signed(file: RegionFile) -> None:
    before = file.content()
    with open_region(file, writable=True) as region:
        with region.lock():
            assert value_of(file) == 0
            assert is_own_signature(file.get("owner_pid"), attached=False)
        assert file.content() == before


def test_an_attached_process_signs_with_its_pid(file: RegionFile) -> None:
    with open_region(file, writable=True) as region, region.attach(), region.lock():
        assert (value_of(file), owner_of(file)) == (0, os.getpid())


@pytest.mark.parametrize("raw", SEMAPHORES.values(), ids=SEMAPHORES)
def test_locking_leaves_all_bytes_of_the_semaphore_but_its_value(
    layout: Layout, raw: bytes, file: RegionFile
) -> None:
    file.put_bytes(locate(layout, "sem")[0], raw)
    with open_region(file, writable=True) as region:
        with region.lock():
            assert semaphore_bytes(file) == bytes(4) + raw[4:]
        assert semaphore_bytes(file) == raw
        with region.attach() as slot:
            slot.charge(0, 1)
            slot.release(0, 1)
        assert semaphore_bytes(file) == raw


def test_the_lock_is_not_reentrant_and_says_so(file: RegionFile) -> None:
    with open_region(file, writable=True) as region, region.lock():
        with pytest.raises(RuntimeError, match="not re-entrant"), region.lock():
            pass
        assert value_of(file) == 0
    assert value_of(file) == 1


TAKES_THE_LOCK_ITSELF: dict[str, Callable[[Region], object]] = {
    "attach": Region.attach,
    "recover_lock": Region.recover_lock,
    "reap": Region.reap,
    "repair_slots": Region.repair_slots,
    "set_host_pid": lambda region: region.set_host_pid(os.getpid(), 1),
    "set_utilization": lambda region: region.set_utilization(os.getpid(), 0, sm=1),
    "set_monitor_used": lambda region: region.set_monitor_used(os.getpid(), 0, 1),
    "suspend": lambda region: region.suspend(os.getpid()),
    "resume": lambda region: region.resume(os.getpid()),
}


def test_calls_that_take_the_lock_themselves_refuse_under_it(
    region_file: RegionFileFactory,
) -> None:
    file = region_file(Layout.V1_1)
    # For reap(), which takes the lock only if there is something to do.
    file.add_process(NOBODY, {0: 1})
    with open_region(file, writable=True) as region:
        for call in TAKES_THE_LOCK_ITSELF.values():
            with region.lock(), pytest.raises(RuntimeError, match="this thread holds the lock"):
                call(region)
            assert is_free(file)


@pytest.mark.parametrize("layout", [Layout.UNVERSIONED_NO_UTIL, Layout.UNVERSIONED])
def test_the_two_oldest_layouts_refuse_locks_and_slots_by_name(
    layout: Layout, region_file: RegionFileFactory
) -> None:
    file = region_file(layout, memory_limits=[5])
    file.add_process(os.getpid(), {0: 1})
    before = file.content()
    refused = {
        **TAKES_THE_LOCK_ITSELF,
        "lock": lambda region: region.lock().__enter__(),
        "attach": lambda region: region.attach(),
        "recover_lock": lambda region: region.recover_lock(),
    }
    with open_region(file, writable=True) as region:
        for name, call in refused.items():
            if name == "set_utilization" and not layout.has_utilization:
                continue
            with pytest.raises(RegionReadOnly, match=layout.value):
                call(region)
        assert file.content() == before
        assert region.lock_state().semaphore_value == 1
        assert region.set_memory_limit(7, device=0).before == 5


def test_accounting_refuses_under_the_own_lock(
    layout: Layout, region_file: RegionFileFactory
) -> None:
    with open_region(region_file(layout), writable=True) as region, region.attach() as slot:
        for call in (lambda: slot.charge(0, 0), lambda: slot.release(0, 0), slot.detach):
            with region.lock(), pytest.raises(RuntimeError, match="this thread holds the lock"):
                call()


def test_an_exception_inside_comes_out_and_gives_the_lock_back(
    region_file: RegionFileFactory,
) -> None:
    file = region_file()
    with open_region(file, writable=True) as region:
        with pytest.raises(LookupError), region.lock():
            raise LookupError
        assert is_free(file)


def test_leaving_a_lock_that_was_taken_away_is_a_lock_timeout_and_posts_nothing(
    file: RegionFile,
) -> None:
    with open_region(file, writable=True) as region:
        with pytest.raises(LockLost), region.lock():
            file.put("owner_pid", NOBODY)
        assert (value_of(file), file.get("owner_pid")) == (0, NOBODY)


def test_closing_the_region_gives_the_lock_back(file: RegionFile) -> None:
    region = open_region(file, writable=True)
    lock = region.lock()
    lock.__enter__()
    assert value_of(file) == 0
    region.close()
    assert is_free(file)
    with pytest.raises(RegionClosed):
        lock.__exit__(None, None, None)


def test_a_timeout_is_not_negative_and_a_number(region_file: RegionFileFactory) -> None:
    with open_region(region_file(), writable=True) as region:
        for timeout_s in (-1, -0.001, float("-inf"), float("nan")):
            for call in (
                region.lock,
                lambda seconds: region.attach(timeout_s=seconds),
                lambda seconds: region.recover_lock(watch_s=seconds),
            ):
                with pytest.raises(ValueError, match="timeout"):
                    call(timeout_s)


NEEDS_WRITABLE: dict[str, Callable[[Region], object]] = {
    "lock": lambda region: region.lock().__enter__(),
    **TAKES_THE_LOCK_ITSELF,
}


def test_what_writes_needs_a_region_open_for_writing(region_file: RegionFileFactory) -> None:
    with open_region(region_file()) as region:
        for call in NEEDS_WRITABLE.values():
            with pytest.raises(RegionReadOnly, match="writable=True"):
                call(region)


def test_everything_about_the_lock_ends_with_the_region_or_its_file(
    region_file: RegionFileFactory,
) -> None:
    calls = (*NEEDS_WRITABLE.values(), Region.lock_state)
    file = region_file()
    with open_region(file, writable=True) as region:
        file.resize(0)
        for call in calls:
            with pytest.raises(RegionStale):
                call(region)
    for call in calls:
        with pytest.raises(RegionClosed, match="closed"):
            call(region)


def test_a_file_truncated_while_the_lock_is_held_is_told_on_leaving(file: RegionFile) -> None:
    with open_region(file, writable=True) as region:
        with pytest.raises(RegionStale), region.lock():
            file.resize(0)
        # Neither is anything of it left behind in this process.
        with pytest.raises(RegionStale), region.lock():
            pass


# ---- recovery where nothing is wrong; the rest is in tests/integration/test_recovery.py ----


def test_nothing_wrong_is_nothing_done(file: RegionFile) -> None:
    before = file.content()
    with open_region(file, writable=True) as region:
        done = region.recover_lock()
    assert not done
    assert done == LockRecovery(
        dead_owner=False,
        ownerless=False,
        impossible_value=False,
        postinit=False,
    )
    assert file.content() == before

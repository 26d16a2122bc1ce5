"""Being a process of a region: attaching, accounting, leaving, and what a fork may do."""

import gc
import itertools
import os
import pickle
import struct
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest
from support.alarm import Interrupted, alarm, interrupt
from support.forked import in_child
from support.lock_bytes import NOBODY, hold, is_free, let_go
from support.region_calls import ALL
from support.region_file import DEVICES, SLOTS, RegionFile, locate, unchanged
from support.slot_bytes import (
    MARK_FLAG,
    WITH_SEQLOCK,
    WITHOUT_SEQLOCK,
    attached,
    differences,
    pids,
    put_slot,
    slot_bytes,
    slot_range,
    unmarked,
)
from support.wait import PATIENCE_S

from libhamiregion import (
    Layout,
    LockTimeout,
    MemoryLimitExceeded,
    ProcessStatus,
    Region,
    RegionClosed,
    RegionCorrupt,
    RegionError,
    RegionStale,
    Slot,
    open_region,
)
from libhamiregion.units import MIB

KINDS = ("context", "module", "data")

CALLS: dict[str, Callable[[Region, Slot], object]] = {
    "charge": lambda _, slot: slot.charge(0, 1),
    "release": lambda _, slot: slot.release(0, 1),
    "detach": lambda _, slot: slot.detach(),
    "attach": lambda region, _: region.attach(),
}


def new_slot(layout: Layout, pid: int, seqlock: int = 0) -> bytes:
    """A slot that has just been taken, byte by byte."""
    content = bytearray(layout.offsets["slot_stride"] or 0)
    struct.pack_into("<i", content, layout.offsets["slot_pid"] or 0, pid)
    struct.pack_into("<i", content, layout.offsets["slot_status"] or 0, ProcessStatus.RUNNING)
    if layout.has_seqlock:
        struct.pack_into("<Q", content, layout.offsets["slot_seqlock"] or 0, seqlock)
    return bytes(content)


def used(file: RegionFile, device: int, slot: int = 0) -> dict[str, int]:
    parts = (*KINDS, "offset", "total")
    return {part: file.get(f"slot_used.{part}", device=device, slot=slot) for part in parts}


# ---- Attaching ----


def test_a_new_slot_is_the_next_one_and_nothing_else_changes(layout, file):
    file.add_process(NOBODY, {0: 700, 15: 41}, host_pid=5, status=2)
    before = file.content()
    with open_region(file, writable=True) as region, region.attach() as slot:
        assert slot.pid == os.getpid()
        assert pids(file) == [NOBODY, os.getpid()]
        assert unmarked(layout, slot_bytes(file, 1)) == new_slot(layout, os.getpid())
        counted = slot_range(layout, 1)
        number, _ = locate(layout, "proc_num")
        for start, end in differences(before, file.content()):
            assert counted[0] <= start < end <= counted[1] or start == number
        assert is_free(file)


def test_a_new_slot_takes_over_nothing_of_what_lay_there(layout, file):
    """Removed slots leave stale bytes above the table; this one has an odd seqlock."""
    put_slot(file, 0, b"\x77" * (layout.offsets["slot_stride"] or 0))
    with open_region(file, writable=True) as region, region.attach():
        # Even, and never back to a number that a reader may have seen.
        expected = new_slot(layout, os.getpid(), seqlock=0x7777777777777777 + 1)
        assert unmarked(layout, slot_bytes(file, 0)) == unmarked(layout, expected)


def test_a_slot_with_the_own_pid_is_a_dead_predecessors_and_is_taken(layout, region_file):
    file = region_file(layout, memory_limits=(1000,))
    file.add_process(os.getpid(), {0: 700}, host_pid=77, status=2)
    file.add_process(NOBODY, {0: 5})
    if layout.has_seqlock:
        file.put("slot_seqlock", 7, slot=0)
    with open_region(file, writable=True) as region:
        with region.attach() as slot:
            assert pids(file) == [os.getpid(), NOBODY]
            expected = new_slot(layout, os.getpid(), seqlock=8)
            assert unmarked(layout, slot_bytes(file, 0)) == expected
            slot.charge(0, 995)
        assert region.memory_used(0) == 5


def test_a_process_attaches_once_to_a_region_whatever_the_handle(file):
    with open_region(file, writable=True) as one, open_region(file, writable=True) as other:
        for handle in (one, other):
            with handle.attach():
                for again in (one, other):
                    with pytest.raises(RuntimeError, match="attached to the region already"):
                        again.attach()
                assert pids(file) == [os.getpid()]


# ---- Leaving ----


def test_a_slot_is_left_once_and_does_not_account_then(region_file):
    file = region_file()
    with open_region(file, writable=True) as region:
        with pytest.raises(LookupError), region.attach():
            raise LookupError
        assert pids(file) == []
        with region.attach() as slot:
            assert repr(slot) == f"<Slot pid {os.getpid()}>"
            with pytest.raises(TypeError):
                pickle.dumps(slot)
        assert repr(slot) == f"<Slot pid {os.getpid()}, detached>"
        for account in (slot.charge, slot.release):
            with pytest.raises(RuntimeError, match="detached"):
                account(0, 0)
        # Another attachment is not this slot's to end.
        with region.attach():
            slot.detach()
            assert pids(file) == [os.getpid()]


def test_leaving_waits_for_the_lock_and_the_slot_stays_where_it_is_not_free(file, actor):
    holder = actor(file)
    with open_region(file, writable=True) as region:
        slot = region.attach(timeout_s=0.05)
        slot.charge(0, 8)
        hold(file, holder.pid)
        with pytest.raises(LockTimeout, match=f"signed by pid {holder.pid}"):
            slot.detach()
        assert pids(file) == [os.getpid()]
        let_go(file)
        slot.release(0, 3)
        assert region.memory_used(0) == 5
        slot.detach()
        assert pids(file) == []


def test_an_exception_while_a_slot_waits_to_be_detached_releases_it(file, actor):
    """The handler of a signal gives the lock free, and raises."""
    holder = actor(file)

    def let_go_and_interrupt() -> None:
        let_go(file)
        interrupt()

    with open_region(file, writable=True) as region:
        slot = region.attach(timeout_s=PATIENCE_S)
        hold(file, holder.pid)
        with alarm(0.05, let_go_and_interrupt), pytest.raises(Interrupted):
            slot.detach()
        assert pids(file) == []


def was_interrupted(step: int, call: Callable[[], object]) -> bool:
    """Make a call that is interrupted at one step of its bytecode, if it has as many."""
    left = step

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        frame.f_trace_opcodes = True
        left -= event == "opcode"
        if left == 0:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def test_a_slot_whose_detaching_was_interrupted_does_nothing_to_a_later_one(region_file):
    file = region_file()
    with open_region(file, writable=True) as region:
        old, replaced = region.attach(), 0
        for step in itertools.count(1):
            interrupted = was_interrupted(step, old.detach)
            if pids(file) == []:
                new = region.attach()
                new.charge(0, 5)
                with pytest.raises(RuntimeError, match="detached"):
                    old.charge(0, 1)
                old.detach()
                old, replaced = new, replaced + interrupted
                gc.collect()
                assert region.memory_used(0) == 5
            if not interrupted:
                break
        assert replaced


def test_a_slot_that_is_dropped_is_detached(region_file):
    file = region_file()
    with open_region(file, writable=True) as region:
        region.attach().charge(0, 5)
        gc.collect()
        assert pids(file) == []


@pytest.mark.parametrize("locked", [False, True])
def test_closing_the_region_leaves_it(locked, region_file):
    file = region_file()
    region = open_region(file, writable=True)
    slot = region.attach()
    slot.charge(0, 5)
    if locked:
        region.lock().__enter__()
    region.close()
    assert pids(file) == []
    assert is_free(file)
    with open_region(file, writable=True) as again, again.attach():
        assert pids(file) == [os.getpid()]


@pytest.mark.parametrize("name", CALLS)
def test_a_slot_ends_with_its_region_and_its_file(name, region_file, layout):
    def end_of(deed: Callable[[RegionFile, Region], object], error: type[RegionError]) -> None:
        file = region_file(layout)
        region = open_region(file, writable=True)
        slot = region.attach()
        slot.charge(0, 5)
        deed(file, region)
        if name == "attach" and error is not RegionClosed:
            with pytest.raises(error):
                slot.detach()
        with pytest.raises(error):
            CALLS[name](region, slot)
        region.close()

    end_of(lambda file, _: file.put("proc_num", -1), RegionCorrupt)
    end_of(lambda file, _: file.put("proc_num", SLOTS + 1), RegionCorrupt)
    end_of(lambda file, _: file.put("magic", 0), RegionStale)
    end_of(lambda file, _: file.resize(0), RegionStale)
    end_of(lambda _, region: region.close(), RegionClosed)


# ---- Accounting ----


@pytest.mark.parametrize("kind", KINDS)
def test_a_charge_stands_in_its_kind_and_in_the_total_and_nowhere_else(layout, kind, file):
    file.add_process(NOBODY, {0: 3, 7: 5})
    with open_region(file, writable=True) as region, region.attach() as slot:
        before = file.content()
        for device in (0, 7, DEVICES - 1):
            slot.charge(device, 100 + device, kind)
            amounts = used(file, device, slot=1)
            assert amounts.pop(kind) == amounts.pop("total") == 100 + device
            assert set(amounts.values()) == {0}
            slot.release(device, 60, kind)
        start, end = slot_range(layout, 1)
        assert all(start <= a < b <= end for a, b in differences(before, file.content()))
        for device in (0, 7, DEVICES - 1):
            slot.release(device, 40 + device, kind)
        if layout.has_seqlock:
            assert file.get("slot_seqlock", slot=1) == MARK_FLAG + 2 * 9
            file.put("slot_seqlock", MARK_FLAG, slot=1)
        assert file.content() == before


REFUSED: list[tuple[str, tuple[Any, ...], str]] = [
    ("release", (16, 1), "a device is 0 to 15"),
    *(("charge", (0, nbytes), "bytes is 0 to") for nbytes in (-1, 2**62, 2**64)),
    ("release", (0, -1), "bytes is 0 to"),
    ("charge", (0, 1, "total"), "context, module or data"),
    ("release", (0, 51), "charged 50 bytes of data on device 0: 51"),
    ("release", (1, 1), "charged 0 bytes of data on device 1"),
    ("release", (0, 1, "module"), "charged 0 bytes of module"),
]


def test_what_makes_no_sense_is_a_value_error_and_changes_nothing(file):
    with open_region(file, writable=True) as region, region.attach() as slot:
        slot.charge(0, 50)
        before = file.content()
        for method, arguments, message in REFUSED:
            with pytest.raises(ValueError, match=message) as caught:
                getattr(slot, method)(*arguments)
            assert not isinstance(caught.value, RegionError)
        for number in (True, 1.0, None):
            for call in (partial(slot.charge, 0, number), partial(slot.charge, number, 0)):  # type: ignore[arg-type]
                with pytest.raises(TypeError, match="is an integer, not"):
                    call()
        assert file.content() == before


def test_a_charge_past_the_limit_is_refused_with_all_its_figures(layout, region_file):
    file = region_file(layout, memory_limits=(MIB, 8 * MIB))
    # Whatever the status; not behind the number of slots.
    for number, status in enumerate([0, 2]):
        file.add_process(NOBODY + number, {1: MIB}, status=status)
    file.put("slot_used.total", 1000, slot=4, device=1)
    with open_region(file, writable=True) as region, region.attach() as slot:
        slot.charge(1, MIB, "module")
        exceeded = pytest.raises(MemoryLimitExceeded, match=r"device 1 uses 3 MiB .*of 8 MiB")
        with unchanged(file), exceeded as caught:
            slot.charge(1, 5 * MIB + 1, "context")
        error = caught.value
        assert (error.device, error.path) == (1, str(file.path))
        assert (error.used_bytes, error.limit_bytes) == (3 * MIB, 8 * MIB)
        assert error.requested_bytes == 5 * MIB + 1
        # To the last byte is not past it.
        slot.charge(1, 5 * MIB)
        with pytest.raises(MemoryLimitExceeded):
            slot.charge(1, 1)
        slot.charge(0, MIB)


def test_the_limit_is_read_anew_at_each_charge(region_file):
    file = region_file(memory_limits=(100,))
    with open_region(file, writable=True) as region, region.attach() as slot:
        slot.charge(0, 100)
        region.set_memory_limit(150, device=0)
        slot.charge(0, 50)
        region.set_memory_limit(149, device=0, force=True)
        with pytest.raises(MemoryLimitExceeded) as caught:
            slot.charge(0, 0)
        assert (caught.value.used_bytes, caught.value.limit_bytes) == (150, 149)
        # What is above the limit can always be given back.
        slot.release(0, 1)
        slot.charge(0, 0)
        region.set_memory_limit(None, device=0)
        slot.charge(0, 2**40)


def test_processes_share_one_limit(layout, region_file, actor):
    file = region_file(layout, memory_limits=(100,))
    one, other = actor(file), actor(file)
    one("attach")
    other("attach")
    one("slot.charge", 0, 60)
    with pytest.raises(MemoryLimitExceeded) as caught:
        other("slot.charge", 0, 41)
    assert caught.value.used_bytes == 60
    other("slot.charge", 0, 40)
    one("slot.detach")
    other("slot.charge", 0, 60)


@pytest.mark.parametrize("layout", [*WITHOUT_SEQLOCK, *WITH_SEQLOCK])
def test_a_charge_waits_for_the_holder_of_the_lock_and_up_to_2_8_0_a_release_too(
    layout, file, actor
):
    """From September 2026 on a holder may have added up, and be about to charge."""
    holder = actor(file)
    with open_region(file, writable=True) as region, region.attach(timeout_s=0.05) as slot:
        slot.charge(0, 5)
        hold(file, holder.pid)
        before = slot_bytes(file, 0)
        for method in (slot.charge, slot.release):
            if method == slot.release and layout.has_seqlock:
                method(0, 1)
                assert region.memory_used(0) == 4
                continue
            with pytest.raises(LockTimeout, match=f"signed by pid {holder.pid}"):
                method(0, 1)
            assert slot_bytes(file, 0) == before
        let_go(file)
        slot.charge(0, 1)
        assert is_free(file)


# ---- Fork ----


def test_in_a_child_every_call_refuses_each_time_and_the_parents_slot_is_untouched(file):
    with open_region(file, writable=True) as region, region.attach() as slot:
        slot.charge(0, 11)
        calls = [*(partial(call, region) for call in ALL.values())]
        calls += [partial(call, region, slot) for call in CALLS.values()]

        def in_the_child() -> None:
            for call in calls * 2:
                with pytest.raises(RegionClosed, match=r"before fork\(\)"):
                    call()

        with unchanged(file):
            in_child(in_the_child)
        slot.release(0, 1)
        assert region.memory_used(0) == 10


# The child ends as interpreters do, with its exit handlers.
FORK_AND_END = """
import os, sys
child = os.fork()
if child == 0:
    sys.exit(0)
answer = os.waitpid(child, 0)[1]
"""


def test_the_end_of_a_child_leaves_the_parents_slot(file, actor):
    parent = attached(actor(file), 12)
    with unchanged(file):
        assert parent("evaluate", FORK_AND_END) == 0


def test_a_child_attaches_as_itself_once_it_has_opened_the_region_again(file):
    with open_region(file, writable=True) as region, region.attach() as slot:
        slot.charge(0, 4)

        def in_the_child() -> tuple[int, list[int], int]:
            with open_region(file, writable=True) as again, again.attach() as own:
                own.charge(0, 30)
                return own.pid, pids(file), again.memory_used(0)

        child, both, used = in_child(in_the_child)
        assert both == [os.getpid(), child]
        assert used == 34
        assert pids(file) == [os.getpid()]
        assert region.memory_used(0) == 4

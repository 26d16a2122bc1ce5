"""Writing in other processes' slots: where each value goes, and what is refused."""

import struct
from collections.abc import Callable

import pytest
from support.lock_bytes import NOBODY, hold, is_free, let_go
from support.region_file import RegionFile, locate, unchanged
from support.slot_bytes import LOCKABLE, differences, put_slot, slot_bytes

from libhamiregion import (
    Effect,
    Layout,
    LockTimeout,
    ProcessNotInRegion,
    Region,
    RegionError,
    SlotChange,
    open_region,
)

PID = NOBODY + 7

# Each with values that stand there after `populated`.
EDITS: dict[str, Callable[..., object]] = {
    "set_host_pid": lambda region, pid, **more: region.set_host_pid(pid, 4321, **more),
    "set_utilization": lambda region, pid, **more: region.set_utilization(pid, 2, sm=61, **more),
    "set_monitor_used": lambda region, pid, **more: region.set_monitor_used(pid, 2, 999, **more),
    "suspend": lambda region, pid, **more: region.suspend(pid, **more),
    "resume": lambda region, pid, **more: region.resume(pid, **more),
}
edits = pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
one_layout = pytest.mark.parametrize("layout", [Layout.V1_1], ids=["1.1"])


@pytest.fixture
def populated(layout, region_file) -> RegionFile:
    """A region with three processes; `PID` is the one in the middle."""
    file = region_file(layout)
    for number, pid in enumerate((NOBODY, PID, NOBODY + 9)):
        file.add_process(pid, {0: 10 + number, 2: 20 + number}, host_pid=100 + number, status=7)
    return file


# ---- where each value goes ----

PLACES: dict[str, tuple[str, Callable[[Region, int], SlotChange], tuple[int, ...]]] = {
    "host_pid": (
        "slot_hostpid",
        lambda region, to: region.set_host_pid(PID, to),
        (0, 4321, 2**31 - 1),
    ),
    "monitor_used_bytes": (
        "slot_monitorused",
        lambda region, to: region.set_monitor_used(PID, 5, to),
        (1, 2**62 - 1, 0),
    ),
    "sm_util_percent": (
        "slot_util.sm",
        lambda region, to: region.set_utilization(PID, 5, sm=to)[0],
        (100, 0, 7),
    ),
    "enc_util_percent": (
        "slot_util.enc",
        lambda region, to: region.set_utilization(PID, 5, enc=to)[0],
        (100, 0),
    ),
    "dec_util_percent": (
        "slot_util.dec",
        lambda region, to: region.set_utilization(PID, 5, dec=to)[0],
        (100, 0),
    ),
    "status": (
        "slot_status",
        lambda region, to: region.suspend(PID) if to == 2 else region.resume(PID),
        (2, 1),
    ),
}


@pytest.mark.parametrize("layout", LOCKABLE)
@pytest.mark.parametrize("field", PLACES)
def test_each_value_stands_in_its_own_field(field, populated, layout):
    name, edit, values = PLACES[field]
    device = None if field in {"host_pid", "status"} else 5
    known = populated.get(name, slot=1, device=device or 0)
    before = populated.content()
    with open_region(populated, writable=True) as region:
        for to in values:
            assert edit(region, to) == SlotChange(PID, field, device, known, to)
            known = populated.get(name, slot=1, device=device or 0)
            assert known == to
        assert region.set_utilization(PID, 5) == ()
    at, form = locate(layout, name, slot=1, device=device or 0)
    for start, end in differences(before, populated.content()):
        assert at <= start
        assert end <= at + struct.calcsize(form)


# ---- found afresh, under the lock ----


@edits
@one_layout
def test_a_process_is_looked_for_each_time(edit, populated):
    """Slots move."""
    with open_region(populated, writable=True) as region:
        original = slot_bytes(populated, 2)
        edit(region, NOBODY + 9)
        edited = slot_bytes(populated, 2)
        assert edited != original
        put_slot(populated, 0, original)
        populated.put("proc_num", 2)
        edit(region, NOBODY + 9)
        assert slot_bytes(populated, 0) == edited
        # Nor is the stale one above the table touched again.
        put_slot(populated, 2, original)
        edit(region, NOBODY + 9)
        assert slot_bytes(populated, 2) == original


@one_layout
def test_where_a_pid_stands_twice_the_edit_goes_where_its_process_works(populated):
    """That is the last: libvgpu copies slots downwards, and a repair takes the original in."""
    populated.put("slot_pid", PID, slot=2)
    before = slot_bytes(populated, 1)
    with open_region(populated, writable=True) as region:
        region.suspend(PID)
    assert slot_bytes(populated, 1) == before
    assert populated.get("slot_status", slot=2) == 2


@edits
@one_layout
def test_every_edit_takes_the_lock_and_a_dry_run_changes_nothing(edit, populated, actor):
    holder = actor(populated)
    with open_region(populated, writable=True) as region:
        hold(populated, holder.pid)
        with unchanged(populated), pytest.raises(LockTimeout, match=f"signed by pid {holder.pid}"):
            edit(region, PID, timeout_s=0.01)
        let_go(populated)
        with unchanged(populated):
            foretold = edit(region, PID, dry_run=True)
        assert edit(region, PID, timeout_s=0.01) == foretold
        assert is_free(populated)


# ---- what is refused ----


@edits
@one_layout
def test_a_process_without_a_slot_is_named(edit, populated):
    # A stale slot above the table is none.
    populated.put("slot_pid", NOBODY + 50, slot=3)
    with unchanged(populated), open_region(populated, writable=True) as region:
        for pid in (NOBODY + 50, 1):
            for dry_run in (False, True):
                with pytest.raises(ProcessNotInRegion, match=f"process {pid}") as caught:
                    edit(region, pid, dry_run=dry_run)
                assert caught.value.path == str(populated.path)
        for pid in (0, -1, 2**31, 2**40):
            with pytest.raises(ValueError, match=f"a pid is 1 to .* not {pid}"):
                edit(region, pid)


BAD_VALUES: dict[str, Callable[[Region], object]] = {
    "host pid -1": lambda region: region.set_host_pid(PID, -1),
    "host pid 2**31": lambda region: region.set_host_pid(PID, 2**31),
    "monitor -1": lambda region: region.set_monitor_used(PID, 0, -1),
    "monitor 2**64": lambda region: region.set_monitor_used(PID, 0, 2**64),
    "sm -1": lambda region: region.set_utilization(PID, 0, sm=-1),
    "dec 101": lambda region: region.set_utilization(PID, 0, sm=5, dec=101),
}


@one_layout
def test_what_makes_no_sense_is_a_value_error_and_changes_nothing(populated):
    with unchanged(populated), open_region(populated, writable=True) as region:
        for call in BAD_VALUES.values():
            with pytest.raises(ValueError, match=r"not|cannot|too large") as caught:
                call(region)
            assert not isinstance(caught.value, RegionError)


# ---- what HAMi 2.10 makes of a suspended process ----


@pytest.mark.parametrize("limit", [None, 30])
def test_suspending_says_where_a_process_may_not_obey(limit, layout, region_file):
    """The region does not tell 2.9 from 2.10, which obeys only where a device has an SM limit."""
    file = region_file(layout, sm_limits=[limit], uuids=["GPU-1"])
    file.add_process(PID)
    unsure = layout is Layout.V1_2 and limit is None
    with open_region(file, writable=True) as region:
        effect = Effect.IF_SM_LIMITED if unsure else Effect.IMMEDIATE
        assert region.suspend(PID).effect is effect
        assert region.resume(PID).effect is Effect.IMMEDIATE
        # A limit of a device that the container has not reported counts for nothing there.
        file.put("device_num", 0)
        unsure = layout is Layout.V1_2
        effect = Effect.IF_SM_LIMITED if unsure else Effect.IMMEDIATE
        assert region.suspend(PID, dry_run=True).effect is effect

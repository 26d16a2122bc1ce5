"""Writing in other processes' slots: where each value goes, and what is refused."""

import itertools
import struct
from collections.abc import Callable

import pytest
from lock_bytes import NOBODY, hold, is_free, let_go
from slot_bytes import LOCKABLE, differences, put_slot, slot_bytes
from support.actors import MakeActor
from support.region_file import DEVICES, RegionFile, RegionFileFactory, locate

from libhamiregion import (
    Effect,
    Layout,
    LockTimeout,
    ProcessNotInRegion,
    ProcessStatus,
    Region,
    RegionError,
    SlotChange,
    open_region,
)

PID = NOBODY + 7
HAVE_UTILIZATION = LOCKABLE

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
def populated(layout: Layout, region_file: RegionFileFactory) -> RegionFile:
    """A region with three processes; `PID` is the one in the middle."""
    file = region_file(layout)
    for number, pid in enumerate((NOBODY, PID, NOBODY + 9)):
        file.add_process(pid, {0: 10 + number, 2: 20 + number}, host_pid=100 + number, status=7)
    return file


def only_changed(file: RegionFile, before: bytes, *places: tuple[int, str]) -> bool:
    """Whether nothing but the fields at these places differs."""
    for start, end in differences(before, file.content()):
        if not any(at <= start and end <= at + struct.calcsize(form) for at, form in places):
            return False
    return True


# ---- where each value goes ----


def test_a_host_pid_stands_in_its_own_field(populated: RegionFile, layout: Layout) -> None:
    before, known = populated.content(), 101
    with open_region(populated, writable=True) as region:
        for host_pid in (0, 1, 4321, 2**31 - 1):
            change = region.set_host_pid(PID, host_pid)
            assert change == SlotChange(PID, "host_pid", None, known, host_pid)
            known = host_pid
            assert region.snapshot().processes[1].host_pid == (host_pid or None)
            assert populated.get("slot_hostpid", slot=1) == host_pid
    assert only_changed(populated, before, locate(layout, "slot_hostpid", slot=1))


@pytest.mark.parametrize("layout", HAVE_UTILIZATION)
@pytest.mark.parametrize("device", [0, 5, DEVICES - 1])
def test_each_utilisation_stands_in_its_own_field(
    device: int, populated: RegionFile, layout: Layout
) -> None:
    before = populated.content()
    with open_region(populated, writable=True) as region:
        changes = region.set_utilization(PID, device, sm=100, enc=1, dec=57)
        assert changes == (
            SlotChange(PID, "sm_util_percent", device, 0, 100),
            SlotChange(PID, "enc_util_percent", device, 0, 1),
            SlotChange(PID, "dec_util_percent", device, 0, 57),
        )
        parts = [f"slot_util.{part}" for part in ("sm", "enc", "dec")]
        assert [populated.get(part, device=device, slot=1) for part in parts] == [100, 1, 57]
        places = [locate(layout, part, device=device, slot=1) for part in parts]
        assert only_changed(populated, before, *places)
        # What is not named stays as it is.
        assert region.set_utilization(PID, device, enc=0) == (
            SlotChange(PID, "enc_util_percent", device, 1, 0),
        )
        assert [populated.get(part, device=device, slot=1) for part in parts] == [100, 0, 57]
        assert region.set_utilization(PID, device) == ()


@pytest.mark.parametrize("device", [0, 5, DEVICES - 1])
def test_the_drivers_figure_stands_in_its_own_field(
    device: int, populated: RegionFile, layout: Layout
) -> None:
    before, known = populated.content(), 0
    with open_region(populated, writable=True) as region:
        for nbytes in (1, 2**62 - 1, 0, 3):
            change = region.set_monitor_used(PID, device, nbytes)
            assert change == SlotChange(PID, "monitor_used_bytes", device, known, nbytes)
            known = nbytes
            assert populated.get("slot_monitorused", device=device, slot=1) == nbytes
    place = locate(layout, "slot_monitorused", device=device, slot=1)
    assert only_changed(populated, before, place)


def test_a_process_is_suspended_and_resumed_by_its_status(
    populated: RegionFile, layout: Layout
) -> None:
    before = populated.content()
    with open_region(populated, writable=True) as region:
        assert region.suspend(PID) == SlotChange(PID, "status", None, 7, ProcessStatus.SUSPENDED)
        assert populated.get("slot_status", slot=1) == 2
        assert region.resume(PID) == SlotChange(PID, "status", None, 2, ProcessStatus.RUNNING)
        assert populated.get("slot_status", slot=1) == 1
    assert only_changed(populated, before, locate(layout, "slot_status", slot=1))


# ---- found afresh, under the lock ----


@edits
@one_layout
def test_a_process_is_looked_for_each_time(
    edit: Callable[..., object], populated: RegionFile
) -> None:
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


@edits
@one_layout
def test_where_a_pid_stands_twice_the_edit_goes_where_its_process_works(
    edit: Callable[..., object], populated: RegionFile
) -> None:
    """That is the last: libvgpu copies slots downwards, and a repair takes the original in."""
    populated.put("slot_pid", PID, slot=2)
    before = [slot_bytes(populated, slot) for slot in range(3)]
    with open_region(populated, writable=True) as region:
        edit(region, PID)
    after = [slot_bytes(populated, slot) for slot in range(3)]
    assert [slot for slot in range(3) if before[slot] != after[slot]] == [2]


@edits
@one_layout
def test_a_dry_run_tells_the_same_and_changes_nothing(
    edit: Callable[..., object], populated: RegionFile
) -> None:
    before = populated.content()
    with open_region(populated, writable=True) as region:
        foretold = edit(region, PID, dry_run=True)
        assert populated.content() == before
        assert edit(region, PID) == foretold


@edits
@one_layout
def test_every_edit_waits_for_the_lock_and_gives_it_back(
    edit: Callable[..., object], populated: RegionFile, actor: MakeActor
) -> None:
    holder = actor(populated)
    with open_region(populated, writable=True) as region:
        hold(populated, holder.pid)
        before = populated.content()
        with pytest.raises(LockTimeout, match=f"owner_pid {holder.pid}"):
            edit(region, PID, timeout_s=0.01)
        assert populated.content() == before
        let_go(populated)
        edit(region, PID, timeout_s=0.01)
        assert is_free(populated)


# ---- what is refused ----


@edits
@one_layout
def test_a_process_without_a_slot_is_named(
    edit: Callable[..., object], populated: RegionFile
) -> None:
    # A stale slot above the table is none.
    populated.put("slot_pid", NOBODY + 50, slot=3)
    before = populated.content()
    with open_region(populated, writable=True) as region:
        for pid in (NOBODY + 50, NOBODY + 51, 1):
            with pytest.raises(ProcessNotInRegion, match=f"process {pid}") as caught:
                edit(region, pid)
            assert isinstance(caught.value, LookupError)
            assert caught.value.path == str(populated.path)
            with pytest.raises(ProcessNotInRegion):
                edit(region, pid, dry_run=True)
    assert populated.content() == before


def test_what_can_be_no_pid_is_a_value_error(region_file: RegionFileFactory) -> None:
    file = region_file()
    file.add_process(0)
    file.add_process(-1)
    before = file.content()
    with open_region(file, writable=True) as region:
        for pid, edit in itertools.product((0, -1, 2**31, 2**40), EDITS.values()):
            with pytest.raises(ValueError, match=f"a pid is 1 to .* not {pid}"):
                edit(region, pid)
    assert file.content() == before


BAD_VALUES: dict[str, Callable[[Region], object]] = {
    "host pid -1": lambda region: region.set_host_pid(PID, -1),
    "host pid 2**31": lambda region: region.set_host_pid(PID, 2**31),
    "monitor -1": lambda region: region.set_monitor_used(PID, 0, -1),
    "monitor 2**64": lambda region: region.set_monitor_used(PID, 0, 2**64),
    "monitor device -1": lambda region: region.set_monitor_used(PID, -1, 5),
    "monitor device 16": lambda region: region.set_monitor_used(PID, DEVICES, 5),
    "sm -1": lambda region: region.set_utilization(PID, 0, sm=-1),
    "sm 101": lambda region: region.set_utilization(PID, 0, sm=101),
    "enc 101": lambda region: region.set_utilization(PID, 0, sm=5, enc=101),
    "dec 101": lambda region: region.set_utilization(PID, 0, sm=5, dec=101),
    "util device 16": lambda region: region.set_utilization(PID, DEVICES, sm=5),
    "util device -1": lambda region: region.set_utilization(PID, -1, sm=5),
}


@one_layout
def test_what_makes_no_sense_is_a_value_error_and_changes_nothing(populated: RegionFile) -> None:
    before = populated.content()
    with open_region(populated, writable=True) as region:
        for call in BAD_VALUES.values():
            with pytest.raises(ValueError, match=r"not|cannot|too large") as caught:
                call(region)
            assert not isinstance(caught.value, RegionError)
    assert populated.content() == before


def test_a_layout_without_utilisation_says_so(region_file: RegionFileFactory) -> None:
    file = region_file(Layout.UNVERSIONED_NO_UTIL)
    file.add_process(PID)
    before = file.content()
    with open_region(file, writable=True) as region:
        for values in ({"sm": 1}, {"enc": 1}, {"dec": 1}, {"sm": 1, "dec": 1}):
            for dry_run in (False, True):
                with pytest.raises(ValueError, match="its layout has no"):
                    region.set_utilization(PID, 0, dry_run=dry_run, **values)
    assert file.content() == before


# ---- what HAMi 2.10 makes of a suspended process ----


@pytest.mark.parametrize("limit", [None, 30])
def test_suspending_says_where_a_process_may_not_obey(
    limit: int | None, layout: Layout, region_file: RegionFileFactory
) -> None:
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

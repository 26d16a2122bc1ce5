"""An emptied slot is no process, whatever its pid; only the table's own count includes it."""

import pytest
from support.lock_bytes import NOBODY
from support.region_file import SLOTS, RegionFile
from support.slot_bytes import NOBODYS

from libhamiregion import LaunchesWouldStop, Layout, RegionSet, open_region

PIDS = [0, NOBODYS, NOBODY, 1]
LAYOUTS = pytest.mark.parametrize("layout", list(Layout))


@pytest.fixture
def file(layout, region_file) -> RegionFile:
    """Two processes, with emptied slots of any pid around them."""
    made = region_file(layout, memory_limits=[100], uuids=["GPU-0"])
    for pid in PIDS:
        made.add_process(pid, status=0)
    made.add_process(7, {0: 3})
    for pid in PIDS:
        made.add_process(pid, status=0, host_pid=4)
    made.add_process(8, {0: 2}, status=0)
    return made


@LAYOUTS
def test_a_snapshot_lists_processes_with_their_slots_and_counts_all_slots(file):
    with open_region(file) as region:
        snapshot = region.snapshot()
    assert [(each.pid, each.slot) for each in snapshot.processes] == [(7, 4), (8, 9)]
    assert [each.devices[0].memory_used_bytes for each in snapshot.processes] == [3, 2]
    assert snapshot.slot_count == 10
    assert snapshot.devices[0].memory_used_bytes == 5
    assert snapshot.settled


@LAYOUTS
def test_a_table_lists_processes_with_their_slots_and_counts_all_slots(file):
    with RegionSet([file]) as regions:
        table = regions.read()
    assert table.processes.pid.tolist() == [7, 8]
    assert table.processes.slot.tolist() == [4, 9]
    assert set(table.regions.process_count) == {2}
    assert set(table.regions.slot_count) == {10}
    assert set(table.regions.processes_truncated) == {0}


@pytest.mark.parametrize(
    ("field", "device"),
    [("slot_used.offset", 15), ("slot_monitorused", 3), ("slot_util.sm", 9), ("slot_seqlock", 0)],
)
def test_a_slot_that_holds_anything_is_a_process(field, device, region_file):
    file = region_file(memory_limits=[100])
    file.add_process(NOBODYS, status=0)
    file.put(field, 1, device=device)
    with open_region(file) as region:
        assert len(region.snapshot().processes) == 1


def test_processes_that_are_left_out_of_a_read_are_no_empty_table(region_file):
    """Regions that fill their tables are read without processes, and say so."""
    full, small = region_file(uuids=["GPU-0"]), region_file(uuids=["GPU-0"])
    small.add_process(1)
    full.put("device_num", 16)
    full.put("proc_num", SLOTS)
    for slot in range(SLOTS):
        full.put("slot_status", 1, slot=slot)
    files = [full, small]
    with RegionSet() as regions:
        for file in files * 8:
            regions._adopt(open_region(file))
        table = regions.read()
        row = table.snapshot(0)
    assert table.regions.processes_truncated.tolist() == [1, 0] * 8
    assert table.regions.process_count.tolist() == [0, 1] * 8
    assert table.regions.slot_count.tolist() == [SLOTS, 1] * 8
    assert (row.processes, row.processes_truncated, row.slot_count) == ((), True, SLOTS)


@pytest.mark.parametrize("layout", [Layout.UNVERSIONED, Layout.V1_1])
def test_no_emptied_slot_is_a_running_process_for_an_edit(layout, region_file):
    file = region_file(layout, memory_limits=[100], sm_limits=[50])
    file.put("sm_limit", 0)
    for pid in PIDS:
        file.add_process(pid, status=0)
    with open_region(file, writable=True) as region:
        assert region.set_sm_limit(50, device=0, dry_run=True).after == 50
        file.add_process(7)
        with pytest.raises(LaunchesWouldStop) as caught:
            region.set_sm_limit(50, device=0)
    assert caught.value.processes == 1

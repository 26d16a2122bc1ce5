"""Many regions in one call: rows, columns, failures, and who may hold them for how long."""

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attrs
import numpy as np
import pytest
from support.region_file import SLOTS, RegionFile
from support.wait import PATIENCE_S

from libhamiregion import (
    Columns,
    DeviceColumns,
    DeviceRow,
    Layout,
    NotARegion,
    ProcessColumns,
    RegionClosed,
    RegionColumns,
    RegionCorrupt,
    RegionNotFound,
    RegionSet,
    RegionStale,
    RegionTable,
    UsageColumns,
    create_region,
    open_region,
)
from libhamiregion.units import GIB

FIGURES = [
    "memory_used_bytes",
    "memory_context_bytes",
    "memory_module_bytes",
    "memory_data_bytes",
    "memory_offset_bytes",
    "memory_monitor_bytes",
    "sm_util_percent",
    "enc_util_percent",
    "dec_util_percent",
]
TABLES: dict[str, type[Columns]] = {
    "regions": RegionColumns,
    "devices": DeviceColumns,
    "processes": ProcessColumns,
    "usages": UsageColumns,
}


@pytest.fixture
def files(region_file) -> list[RegionFile]:
    """One region per layout, no two of them alike."""
    made = []
    for number, layout in enumerate(Layout):
        file = region_file(
            layout,
            memory_limits=[GIB * (number + 1)] * (number + 1),
            sm_limits=[10 * number + 5, 100],
            priority=number,
            uuids=[f"GPU-{number}-{device}" for device in range(number)],
        )
        for process in range(number):
            usage = {device: 100 * number + device for device in range(number)}
            file.add_process(10 * number + process, usage, host_pid=process, status=process % 3)
        made.append(file)
    made[3].put("utilization_switch", 0)
    made[4].put("recent_kernel", -1)
    made[4].put("slot_used.total", 9, slot=1, device=12)
    return made


def contents(table: RegionTable) -> dict[str, dict[str, list[int]]]:
    return {
        name: {column: getattr(getattr(table, name), column).tolist() for column in kind.columns}
        for name, kind in TABLES.items()
    }


def check(table: RegionTable, files: list[RegionFile]) -> None:
    """Every row of a table is what the region's own snapshot says, in the same order.

    The columns are held against snapshots in test_tables.py.
    """
    assert table.paths == tuple(str(file.path) for file in files)
    devices, processes, usages = 0, 0, 0
    for row, file in enumerate(files):
        with open_region(file) as region:
            expected = region.snapshot()
        found = table.snapshot(row)
        assert attrs.evolve(found, taken_at_ns=expected.taken_at_ns) == expected
        counts = table.regions.device_rows[row], table.regions.process_count[row]
        assert counts == (len(expected.devices), len(expected.processes))
        firsts = table.regions.first_device[row], table.regions.first_process[row]
        assert firsts == (devices, processes)
        devices += len(expected.devices)
        for process in expected.processes:
            assert table.processes.first_usage[processes] == usages
            processes += 1
            usages += len(process.devices)
    assert (len(table.devices), len(table.processes)) == (devices, processes)
    assert len(table.usages) == usages


# ---- reading ----


def test_rows_are_what_each_regions_snapshot_says(files, golden_regions):
    golden = [RegionFile(each.path, each.layout) for each in golden_regions]
    with RegionSet(golden) as region_set:
        check(region_set.read(), golden)
    with RegionSet(files) as region_set:
        assert region_set.errors == {}
        check(region_set.read(), files)
        files[2].add_process(99, {0: 5})
        files[4].put("limit", 7, device=2)
        check(region_set.read(), files)


def test_an_unknown_column_is_told_with_those_there_are(files):
    with RegionSet(files) as region_set:
        table = region_set.read()
    with pytest.raises(AttributeError, match=r"no column 'colour'.*memory_used_bytes"):
        table.devices.colour  # noqa: B018


def test_the_semaphore_column_is_the_word_in_the_file(region_file):
    file = region_file()
    with RegionSet([file]) as region_set:
        assert region_set.read().regions.semaphore.tolist() == [1]
        file.put("sem", 3 << 32)
        file.put("owner_pid", 2**40)
        regions = region_set.read().regions
        assert (regions.semaphore[0], regions.owner_pid[0]) == (3 << 32, 2**40)
        assert regions.settled[0] == 0


def test_each_figure_arrives_under_its_name(layout, region_file):
    """Two processes on two devices, every number another one; device columns are their sums."""
    file = region_file(layout, uuids=("GPU-0", "GPU-1"))
    parts = [f"slot_used.{part}" for part in ("total", "context", "module", "data", "offset")]
    parts += ["slot_monitorused", "slot_util.sm", "slot_util.enc", "slot_util.dec"]
    columns = dict(zip(FIGURES, parts, strict=True))
    expected: dict[str, list[int]] = {}
    for slot in (0, 1):
        file.add_process(slot + 1)
    for number, (column, part) in enumerate(columns.items()):
        there = layout.has_utilization or not part.startswith("slot_util")
        values = [1000 * row + 10 * number + 7 if there else 0 for row in range(4)]
        expected[column] = values
        for row, value in enumerate(values):
            if there:
                file.put(part, value, slot=row // 2, device=row % 2)
    with RegionSet([file]) as region_set:
        table = region_set.read()
    for column, values in expected.items():
        assert getattr(table.usages, column).tolist() == values
        sums = [values[0] + values[2], values[1] + values[3]]
        assert getattr(table.devices, column).tolist() == sums


def test_uuids_are_text_or_none_and_rows_are_bounded(region_file):
    first = region_file(uuids=("GPU-" + "x" * 91, "MIG-1"))
    second = region_file()
    with RegionSet([first, second]) as region_set:
        devices = region_set.read().devices
    assert [devices.uuid(row) for row in range(3)] == ["GPU-" + "x" * 91, "MIG-1", None]
    for row in (-1, 3):
        with pytest.raises(IndexError):
            devices.uuid(row)


def test_a_table_that_grows_is_read_whole(region_file):
    files = [region_file(layout) for layout in Layout]
    with RegionSet(files) as region_set:
        check(region_set.read(), files)
        for file in files:
            file.put("device_num", 16)
            file.put("proc_num", SLOTS)
            for slot in range(SLOTS):
                file.put("slot_status", 1, slot=slot)
            file.put("slot_pid", 77, slot=SLOTS - 1)
            file.put("slot_used.total", 78, slot=SLOTS - 1, device=15)
        table = region_set.read()
        assert len(table.usages) == len(files) * SLOTS * 16
        assert table.processes.pid[-1] == 77
        assert table.usages.memory_used_bytes[-1] == 78
        for file in files:
            file.put("device_num", 1)
            file.put("proc_num", 0)
        with RegionSet(files) as fresh:
            check(fresh.read(), files)


# ---- columns ----


def test_columns_are_read_only_memoryviews_of_64_bit_cells_and_numpy_takes_them_without_a_copy(
    files,
):
    with RegionSet(files) as region_set:
        table = region_set.read()
    for name, kind in TABLES.items():
        assert isinstance(getattr(table, name), kind)
        assert str(len(getattr(table, name))) in repr(getattr(table, name))
        for column in kind.columns:
            view = getattr(getattr(table, name), column)
            assert isinstance(view, memoryview)
            assert view.readonly
            assert (view.itemsize, view.ndim, view.format in {"q", "Q"}) == (8, 1, True)
            assert len(view) == len(getattr(table, name))
            array = np.asarray(view)
            assert array.tolist() == view.tolist()
            assert array.dtype == (np.int64 if view.format == "q" else np.uint64)
            assert not array.flags.owndata
            assert not array.flags.writeable
            # The same cells, each time they are asked for.
            assert np.shares_memory(array, np.asarray(getattr(getattr(table, name), column)))
    with pytest.raises(TypeError):
        table.devices.memory_used_bytes[0] = 1


def test_a_table_is_a_value_that_outlives_reads_set_and_files(files):
    region_set = RegionSet(files)
    table = region_set.read()
    column = np.asarray(table.devices.memory_used_bytes)
    before, uuid = contents(table), table.devices.uuid(0)
    for file in files:
        file.put("priority", 1000)
        file.add_process(500, {0: 500})
        file.put("limit", 500)
    for _ in range(5):
        assert contents(region_set.read()) != before
    region_set.discard(files[0])
    region_set.close()
    for file in files:
        file.path.unlink()
    del region_set
    gc.collect()
    assert contents(table) == before
    assert table.devices.uuid(0) == uuid
    expected = before["devices"]["memory_used_bytes"]
    del table
    gc.collect()
    # A column keeps the table's memory by itself.
    assert column.tolist() == expected


# ---- members ----


def test_paths_come_in_the_order_of_their_rows(files):
    paths = tuple(str(file.path) for file in files)
    with RegionSet([*files[:2], str(files[0].path), files[1].path]) as region_set:
        assert len(region_set) == len(region_set.read()) == 2, "a path given twice is one region"
        for file in files[2:]:
            assert region_set.add(file) is True
        assert region_set.paths == paths
        assert region_set.paths == paths
        assert len(region_set) == 5
        check(region_set.read(), files)


def test_an_open_region_is_taken_over_beside_others_of_its_path(region_file):
    file = region_file(priority=1)
    with RegionSet([file]) as region_set:
        old = open_region(file)
        file.path.unlink()
        create_region(file, priority=0)
        new = open_region(file)
        assert old.file_id != new.file_id == (file.path.stat().st_dev, file.path.stat().st_ino)
        region_set._adopt(old)
        region_set._adopt(new)
        region_set._adopt(new)
        assert region_set.paths == (str(file.path),) * 3
        assert region_set.regions[1:] == (old, new)
        assert region_set.read().regions.priority.tolist() == [1, 1, 0]
        region_set.discard(old)
        assert old.closed
        assert region_set.read().regions.priority.tolist() == [1, 0]
        region_set.discard(old)
        region_set.discard(file)
        assert region_set.regions == (new,)
        assert region_set.read().paths == (str(file.path),)
    assert new.closed
    with open_region(file) as region:
        with pytest.raises(RegionClosed):
            region_set._adopt(region)
        assert not region.closed


def test_what_cannot_be_opened_does_not_stop_the_others(files, tmp_path):
    missing = tmp_path / "missing.cache"
    files[1].put("magic", 5)
    with RegionSet([missing, *files]) as region_set:
        assert set(region_set.errors) == {str(missing), str(files[1].path)}
        assert type(region_set.errors[str(missing)]) is RegionNotFound
        assert type(region_set.errors[str(files[1].path)]) is NotARegion
        good = [files[0], *files[2:]]
        check(region_set.read(), good)
        create_region(missing)
        assert region_set.add(missing) is True
        assert set(region_set.errors) == {str(files[1].path)}
        check(region_set.read(), [*good, RegionFile(missing, Layout.V1_2)])


def test_adding_again_opens_anew(files):
    with RegionSet(files[4:]) as region_set:
        region_set.read()
        files[3].path.rename(files[4].path)
        assert region_set.read().regions.priority[0] == 4
        assert region_set.add(files[4]) is True
        assert len(region_set) == 1
        assert region_set.read().regions.priority[0] == 3
        files[4].path.unlink()
        assert region_set.add(files[4]) is False
        assert region_set.paths == ()


def test_discard_forgets_the_region_and_its_error(files, tmp_path):
    missing = tmp_path / "missing.cache"
    with RegionSet([missing, *files]) as region_set:
        region_set.read()
        region_set.discard(files[1])
        region_set.discard(missing)
        region_set.discard(tmp_path / "never there")
        assert region_set.errors == {}
        check(region_set.read(), [files[0], *files[2:]])


# ---- failures while reading ----


def test_a_region_that_fails_has_its_code_and_no_other_rows(files):
    with RegionSet(files) as region_set:
        files[0].put("proc_num", -1)
        files[2].resize(0)
        files[4].put("magic", 0)
        table = region_set.read()
        assert [code < 0 for code in table.regions.code] == [True, False, True, False, True]
        assert len(set(table.regions.code)) == 3
        errors = [table.error(row) for row in range(5)]
        assert [type(error) for error in errors] == [
            RegionCorrupt,
            type(None),
            RegionStale,
            type(None),
            RegionStale,
        ]
        for row in (0, 2, 4):
            error = errors[row]
            assert error.path == str(files[row].path)
            assert str(files[row].path) in str(error)
            assert (table.regions.device_rows[row], table.regions.process_count[row]) == (0, 0)
            # Where its rows would be: slices by first row and count need no special case.
            before = [region < row for region in table.devices.region].count(True)
            assert table.regions.first_device[row] == before
            before = [region < row for region in table.processes.region].count(True)
            assert table.regions.first_process[row] == before
        assert "-1" in str(errors[0])
        assert set(table.devices.region) == {1, 3}
        assert set(table.processes.region) == {1, 3}
        for row in (1, 3):
            with open_region(files[row]) as region:
                expected = region.snapshot()
            found = table.snapshot(row)
            assert attrs.evolve(found, taken_at_ns=expected.taken_at_ns) == expected


# ---- closing, threads, fork ----


def test_after_close_every_call_raises_region_closed(files):
    region_set = RegionSet(files)
    region_set.close()
    region_set.close()
    with pytest.raises(RegionClosed, match="closed"):
        region_set.read()
    with pytest.raises(RegionClosed, match="closed"):
        region_set.add(files[0])
    assert (len(region_set), region_set.paths) == (0, ())
    with RegionSet(files) as region_set:
        region_set.read()
    with pytest.raises(RegionClosed):
        region_set.read()
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    assert not any(str(file.path) in maps for file in files)


def test_a_set_can_be_read_while_another_thread_changes_it(files):
    for file in files:
        # A long read, so that changes fall into it.
        file.put("device_num", 16)
        file.put("proc_num", 200)
    over = threading.Event()
    with RegionSet(files) as region_set:

        def change() -> int:
            changes = 0
            while not over.is_set():
                region_set.discard(files[0])
                region_set.add(files[0])
                changes += 1
            return changes

        with ThreadPoolExecutor(1) as pool:
            changing = pool.submit(change)
            for _ in range(100):
                table = region_set.read()
                errors = [table.error(row) for row in range(len(table))]
                assert {type(error) for error in errors} <= {type(None), RegionClosed}
            over.set()
            assert changing.result(PATIENCE_S) > 0
        assert len(region_set.read()) == len(files)


def test_a_read_that_would_be_too_large_leaves_out_the_processes_of_full_tables(
    region_file, monkeypatch
):
    small = region_file(name="small", uuids=["GPU-a"])
    small.add_process(7, {0: 5})
    full = region_file(name="full", uuids=[f"GPU-{device}" for device in range(4)])
    for slot in range(300):
        full.add_process(100 + slot, {0: 1, 3: 2})
    with RegionSet([small, full]) as regions:
        assert list(regions.read().regions.process_count) == [1, 300]
    monkeypatch.setattr("libhamiregion.region_set.MAX_READ_BYTES", 10_000)
    with RegionSet([small, full]) as regions:
        for _ in range(3):
            capped = regions.read()
            assert list(capped.regions.process_count) == [1, 0]
            assert len(capped.usages) == 1
            assert list(capped.devices.memory_used_bytes) == [5, 300, 0, 0, 600]
        full.put("proc_num", 2)
        assert list(regions.read().regions.process_count) == [1, 2]


def test_rows_join_devices_with_their_regions_and_have_none_for_unlimited(region_file):
    limited = region_file(
        memory_limits=["8GiB", None], sm_limits=[30, 0x64], uuids=["GPU-a", "GPU-b"]
    )
    limited.add_process(7, {0: 3 * 2**30, 1: 5})
    with RegionSet([limited, region_file(memory_limits=["1GiB"])]) as region_set:
        table = region_set.read()
    first, second, third = table.rows()
    assert isinstance(first, DeviceRow)
    assert (first.path, first.pod, first.device, first.uuid) == (
        str(limited.path),
        None,
        0,
        "GPU-a",
    )
    assert (first.memory_limit_bytes, first.memory_free_bytes) == (8 * 2**30, 5 * 2**30)
    assert (second.memory_limit_bytes, second.memory_free_bytes) == (None, None)
    assert (first.sm_limit_percent, second.sm_limit_percent) == (30, None)
    assert (second.memory_used_bytes, third.memory_used_bytes) == (5, 0)
    named = table.with_identity(namespace=["research", None], pod=["bert-0", None])
    assert [row.pod for row in named.rows()] == ["bert-0", "bert-0", None]
    assert [row.namespace for row in named.rows()] == ["research", "research", None]

"""Many regions in one call: rows, columns, failures, and who may hold them for how long."""

import gc
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attrs
import numpy as np
import pytest
from forked import in_child
from golden_regions import GoldenRegion
from support.region_file import SLOTS, RegionFile, RegionFileFactory
from support.wait import PATIENCE_S, eventually

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
    RegionSnapshot,
    RegionStale,
    RegionTable,
    UsageColumns,
    create_region,
    open_region,
)

GIB = 2**30

REGION_COLUMNS = [
    "code",
    "layout",
    "taken_at_ns",
    "settled",
    "device_count",
    "process_count",
    "priority",
    "utilization_switch",
    "recent_kernel",
    "last_kernel_time_s",
    "owner_pid",
    "semaphore",
    "first_device",
    "device_rows",
    "first_process",
]
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
DEVICE_COLUMNS = ["region", "device", "memory_limit_bytes", "sm_limit_percent", *FIGURES]
PROCESS_COLUMNS = ["region", "pid", "host_pid", "status", "settled", "first_usage"]
USAGE_COLUMNS = ["process", "device", *FIGURES]
TABLES = {
    "regions": REGION_COLUMNS,
    "devices": DEVICE_COLUMNS,
    "processes": PROCESS_COLUMNS,
    "usages": USAGE_COLUMNS,
}


@pytest.fixture
def files(region_file: RegionFileFactory) -> list[RegionFile]:
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
        name: {column: getattr(getattr(table, name), column).tolist() for column in columns}
        for name, columns in TABLES.items()
    }


def rows_of(table: RegionTable, row: int, snapshot: RegionSnapshot) -> None:
    """Hold one region's rows against its snapshot."""
    regions, devices, processes, usages = (
        table.regions,
        table.devices,
        table.processes,
        table.usages,
    )
    assert regions.code[row] == 0
    assert regions.layout[row] == snapshot.layout.number
    assert regions.settled[row] == snapshot.settled
    assert regions.device_count[row] == snapshot.device_count
    assert regions.process_count[row] == len(snapshot.processes)
    assert regions.priority[row] == snapshot.priority
    assert bool(regions.utilization_switch[row]) == snapshot.utilization_switch
    assert regions.recent_kernel[row] == snapshot.recent_kernel
    assert regions.last_kernel_time_s[row] == (snapshot.last_kernel_time_s or 0)
    assert regions.owner_pid[row] == snapshot.owner_pid
    assert regions.device_rows[row] == len(snapshot.devices)
    at = regions.first_device[row]
    for device in snapshot.devices:
        assert devices.region[at] == row
        assert devices.uuid(at) == device.uuid
        for name, value in attrs.asdict(device).items():
            if name == "sm_limit_percent" and value is None:
                assert devices.sm_limit_percent[at] in {0, 100}
            elif name != "uuid":
                column = "device" if name == "index" else name
                assert getattr(devices, column)[at] == (value or 0)
        at += 1
    at = regions.first_process[row]
    for process in snapshot.processes:
        assert processes.region[at] == row
        assert processes.pid[at] == process.pid
        assert processes.host_pid[at] == (process.host_pid or 0)
        assert processes.status[at] == process.status
        assert processes.settled[at] == process.settled
        usage_at = processes.first_usage[at]
        for usage in process.devices:
            assert usages.process[usage_at] == at
            for name, value in attrs.asdict(usage).items():
                column = "device" if name == "index" else name
                assert getattr(usages, column)[usage_at] == value
            usage_at += 1
        at += 1


def check(table: RegionTable, files: list[RegionFile]) -> None:
    """Every row of a table is what the region's own snapshot says, in the same order."""
    snapshots = []
    for file in files:
        with open_region(file) as region:
            snapshots.append(region.snapshot())
    assert table.paths == tuple(str(file.path) for file in files)
    for row, snapshot in enumerate(snapshots):
        assert table.error(row) is None
        rows_of(table, row, snapshot)
    assert len(table.devices) == sum(len(snapshot.devices) for snapshot in snapshots)
    assert len(table.processes) == sum(len(snapshot.processes) for snapshot in snapshots)
    assert len(table.usages) == sum(
        len(snapshot.processes) * len(snapshot.devices) for snapshot in snapshots
    )


# ---- reading ----


def test_rows_are_what_each_regions_snapshot_says(
    files: list[RegionFile], golden_regions: list[GoldenRegion]
) -> None:
    golden = [RegionFile(each.path, each.layout) for each in golden_regions]
    with RegionSet(golden) as region_set:
        check(region_set.read(), golden)
    with RegionSet(files) as region_set:
        assert region_set.errors == {}
        check(region_set.read(), files)
        files[2].add_process(99, {0: 5})
        files[4].put("limit", 7, device=2)
        check(region_set.read(), files)


def test_an_empty_set_reads_empty_tables() -> None:
    with RegionSet() as region_set:
        table = region_set.read()
        assert (len(region_set), len(table), table.paths) == (0, 0, ())
        assert contents(table) == {
            name: {column: [] for column in columns} for name, columns in TABLES.items()
        }


def test_tables_have_the_columns_of_the_design(files: list[RegionFile]) -> None:
    with RegionSet(files) as region_set:
        table = region_set.read()
    for name, columns in TABLES.items():
        assert list(getattr(table, name).columns) == columns
        assert str(len(getattr(table, name))) in repr(getattr(table, name))


def test_an_unknown_column_is_told_with_those_there_are(files: list[RegionFile]) -> None:
    with RegionSet(files) as region_set:
        table = region_set.read()
    with pytest.raises(AttributeError, match=r"no column 'colour'.*memory_used_bytes"):
        table.devices.colour  # noqa: B018


def test_the_semaphore_column_is_the_word_in_the_file(region_file: RegionFileFactory) -> None:
    file = region_file()
    with RegionSet([file]) as region_set:
        assert region_set.read().regions.semaphore.tolist() == [1]
        file.put("sem", 3 << 32)
        file.put("owner_pid", 2**40)
        regions = region_set.read().regions
        assert (regions.semaphore[0], regions.owner_pid[0]) == (3 << 32, 2**40)
        assert regions.settled[0] == 0


def test_each_figure_arrives_under_its_name(layout: Layout, region_file: RegionFileFactory) -> None:
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


def test_unlimited_stays_0_and_negative_numbers_stay_negative(
    region_file: RegionFileFactory,
) -> None:
    file = region_file(memory_limits=(None, 5))
    file.put("sm_limit", 0)
    file.put("priority", -5)
    file.put("recent_kernel", -1)
    file.add_process(-3, host_pid=-4, status=-6)
    with RegionSet([file]) as region_set:
        table = region_set.read()
    assert table.devices.memory_limit_bytes.tolist() == [0, 5]
    assert table.devices.sm_limit_percent.tolist() == [0, 100]
    assert (table.regions.priority[0], table.regions.recent_kernel[0]) == (-5, -1)
    processes = table.processes
    assert (processes.pid[0], processes.host_pid[0], processes.status[0]) == (-3, -4, -6)


def test_uuids_are_text_or_none_and_rows_are_bounded(region_file: RegionFileFactory) -> None:
    first = region_file(uuids=("GPU-" + "x" * 91, "MIG-1"))
    second = region_file()
    with RegionSet([first, second]) as region_set:
        devices = region_set.read().devices
    assert [devices.uuid(row) for row in range(3)] == ["GPU-" + "x" * 91, "MIG-1", None]
    for row in (-1, 3):
        with pytest.raises(IndexError):
            devices.uuid(row)


def test_a_table_that_grows_is_read_whole(region_file: RegionFileFactory) -> None:
    files = [region_file(layout) for layout in Layout]
    with RegionSet(files) as region_set:
        check(region_set.read(), files)
        for file in files:
            file.put("device_num", 16)
            file.put("proc_num", SLOTS)
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
    files: list[RegionFile],
) -> None:
    with RegionSet(files) as region_set:
        table = region_set.read()
    for name, columns in TABLES.items():
        for column in columns:
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


def test_a_table_is_a_value_that_outlives_reads_set_and_files(files: list[RegionFile]) -> None:
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


def test_paths_come_in_the_order_of_their_rows(files: list[RegionFile]) -> None:
    paths = tuple(str(file.path) for file in files)
    with RegionSet([*files[:2], str(files[0].path), files[1].path]) as region_set:
        assert len(region_set) == len(region_set.read()) == 2, "a path given twice is one region"
        for file in files[2:]:
            assert region_set.add(file) is True
        assert region_set.paths == paths
        assert region_set.paths == paths
        assert len(region_set) == 5
        check(region_set.read(), files)


def test_an_open_region_is_taken_over_beside_others_of_its_path(
    region_file: RegionFileFactory,
) -> None:
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


def test_what_cannot_be_opened_does_not_stop_the_others(
    files: list[RegionFile], tmp_path: Path
) -> None:
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


def test_adding_again_opens_anew(files: list[RegionFile]) -> None:
    with RegionSet(files[4:]) as region_set:
        region_set.read()
        files[3].path.rename(files[4].path)
        assert region_set.read().regions.priority[0] == 4
        assert region_set.add(files[4]) is True
        assert len(region_set) == 1
        assert region_set.read().regions.priority[0] == 3


def test_adding_again_in_vain_drops_the_old_mapping(files: list[RegionFile]) -> None:
    with RegionSet(files) as region_set:
        files[2].path.unlink()
        assert region_set.add(files[2]) is False
        assert str(files[2].path) not in region_set.paths
        check(region_set.read(), files[:2] + files[3:])


def test_discard_forgets_the_region_and_its_error(files: list[RegionFile], tmp_path: Path) -> None:
    missing = tmp_path / "missing.cache"
    with RegionSet([missing, *files]) as region_set:
        region_set.read()
        region_set.discard(files[1])
        region_set.discard(missing)
        region_set.discard(tmp_path / "never there")
        assert region_set.errors == {}
        check(region_set.read(), [files[0], *files[2:]])


# ---- failures while reading ----


def test_a_region_that_fails_has_its_code_and_no_other_rows(files: list[RegionFile]) -> None:
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
            assert error is not None
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
                rows_of(table, row, region.snapshot())


def test_a_region_that_failed_can_come_back(files: list[RegionFile]) -> None:
    with RegionSet(files) as region_set:
        files[0].put("proc_num", 2000)
        assert region_set.read().error(0) is not None
        files[0].put("proc_num", 0)
        check(region_set.read(), files)


# ---- closing, threads, fork ----


def test_after_close_every_call_raises_region_closed(files: list[RegionFile]) -> None:
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


def test_threads_read_while_members_come_and_go(files: list[RegionFile]) -> None:
    region_set = RegionSet(files)
    stop = threading.Event()
    reads = [0, 0, 0]

    def read(number: int) -> None:
        while not stop.is_set():
            table = region_set.read()
            assert len(table.paths) == len(table)
            for row, path in enumerate(table.paths):
                if table.regions.code[row] != 0:
                    # Discarded since the read began.
                    assert isinstance(table.error(row), RegionClosed)
                    continue
                # Each region has its own priority, so rows and paths cannot be confused.
                assert str(files[table.regions.priority[row]].path) == path
            reads[number] += 1

    with ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(read, number) for number in range(3)]
        try:
            for turn in range(300):
                region_set.discard(files[turn % 5])
                region_set.add(files[turn % 5])
            # Each of them has read by then, however late it was given a processor.
            eventually(lambda: min(reads) > 0)
        finally:
            stop.set()
        for reader in readers:
            reader.result(PATIENCE_S)
    region_set.close()


def test_closing_under_reading_threads_gives_tables_or_region_closed(
    files: list[RegionFile],
) -> None:
    for _ in range(10):
        region_set = RegionSet(files)
        started = threading.Barrier(4, timeout=PATIENCE_S)

        def read_until_closed(
            region_set: RegionSet = region_set, started: threading.Barrier = started
        ) -> None:
            started.wait()
            while True:
                try:
                    table = region_set.read()
                except RegionClosed:
                    return
                assert len(table) in {0, 5}

        with ThreadPoolExecutor(3) as pool:
            readers = [pool.submit(read_until_closed) for _ in range(3)]
            started.wait()
            region_set.close()
            for reader in readers:
                reader.result(PATIENCE_S)


def test_a_region_that_was_closed_elsewhere_says_so_in_its_row(files: list[RegionFile]) -> None:
    with RegionSet(files) as region_set:
        region_set.regions[1].close()
        with region_set.regions[3]:
            pass
        table = region_set.read()
        assert [row for row in range(5) if isinstance(table.error(row), RegionClosed)] == [1, 3]
        assert str(files[1].path) in str(table.error(1))
        assert region_set.add(files[1])
        assert region_set.read().error(4) is None


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("how", ["thread", "handler"])
def test_a_set_is_read_whatever_happens_to_it_meanwhile(how: str, files: list[RegionFile]) -> None:
    """Neither another thread nor a handler of the reading thread makes it crash or hang."""
    script = Path(__file__).with_name("disturbed_set.py")
    for file in files:
        # A long read, so that others' deeds fall into it.
        file.put("device_num", 16)
        file.put("proc_num", 200)
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", str(script), how, "2", *map(os.fspath, files)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    reads, closed_rows, deeds = map(int, done.stdout.split())
    assert reads > 100
    assert deeds > 100
    assert closed_rows > 0


def test_in_a_forked_child_each_region_is_refused_and_can_be_opened_anew(
    files: list[RegionFile],
) -> None:
    with RegionSet(files) as region_set:
        before = contents(region_set.read())

        def child() -> list[str]:
            table = region_set.read()
            messages = []
            for row in range(5):
                error = table.error(row)
                assert isinstance(error, RegionClosed)
                messages.append(str(error))
            for file in files:
                assert region_set.add(file)
            check(region_set.read(), files)
            return messages

        assert all("fork()" in message for message in in_child(child))
        after = contents(region_set.read())
    for table in (before, after):
        table["regions"].pop("taken_at_ns")
    assert after == before


@pytest.mark.slow
def test_a_child_forked_while_other_threads_read_is_refused_and_not_stuck(
    files: list[RegionFile],
) -> None:
    region_set = RegionSet(files)
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            region_set.read()

    threads = [threading.Thread(target=read, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:

        def child() -> list[type]:
            errors = [type(region_set.read().error(row)) for row in range(5)]
            region_set.close()
            return errors

        for _ in range(20):
            assert in_child(child) == [RegionClosed] * 5
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert all(code == 0 for code in region_set.read().regions.code)
    region_set.close()


def test_a_read_that_would_be_too_large_leaves_out_the_processes_of_full_tables(
    region_file: RegionFileFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_rows_join_devices_with_their_regions_and_have_none_for_unlimited(
    region_file: RegionFileFactory,
) -> None:
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


def test_columns_are_declared_for_completion_and_type_checkers(file: RegionFile) -> None:
    with RegionSet([file]) as region_set:
        table = region_set.read()
    for columns, kind in (
        (table.regions, RegionColumns),
        (table.devices, DeviceColumns),
        (table.processes, ProcessColumns),
        (table.usages, UsageColumns),
    ):
        assert isinstance(columns, kind)
        assert isinstance(columns, Columns)
        declared = {name for each in kind.__mro__ for name in getattr(each, "__annotations__", {})}
        assert {*columns.columns} <= declared
    assert len(table.devices.uuid_bytes) == 96 * len(table.devices)

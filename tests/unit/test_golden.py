"""The golden regions: every field that libvgpu wrote is read, exactly, in each way there is."""

from typing import Any

import pytest
from golden_regions import NAMES, GoldenRegion

from libhamiregion import (
    Layout,
    NotARegion,
    ProcessUsage,
    RegionSet,
    RegionTable,
    identify,
    open_region,
)

SCENES = ("one-process", "many-processes", "owner-killed-holding-lock")
FIELDS = {
    "layout",
    "file_size",
    "device_num",
    "uuids",
    "memory_limit",
    "sm_limit",
    "priority",
    "utilization_switch",
    "recent_kernel",
    "proc_num",
    "processes",
    "device_used",
    "scenario",
}
PROCESS_FIELDS = {"pid", "host_pid", "status", "devices"}
USAGE_FIELDS = {"context", "module", "data", "total", "monitor_used", "sm_util"}

# JSON's names, and ours.
USAGE_NAMES = {
    "context": "memory_context_bytes",
    "module": "memory_module_bytes",
    "data": "memory_data_bytes",
    "total": "memory_used_bytes",
    "monitor_used": "memory_monitor_bytes",
    "sm_util": "sm_util_percent",
}


def held(golden: GoldenRegion) -> bool:
    return golden.expected["scenario"] == "owner-killed-holding-lock"


def sums(golden: GoldenRegion, device: int) -> dict[str, int]:
    """What a device's figures come to over all processes."""
    usages = [process["devices"][device] for process in golden.expected["processes"]]
    return {ours: sum(usage[name] for usage in usages) for name, ours in USAGE_NAMES.items()}


def sm_or_none(percent: int) -> int | None:
    return percent if 0 < percent < 100 else None


def test_there_are_three_scenes_in_each_of_five_layouts() -> None:
    assert sorted(f"{layout.value}-{scene}" for layout in Layout for scene in SCENES) == NAMES


def test_the_json_has_no_field_that_these_tests_do_not_know(golden: GoldenRegion) -> None:
    assert set(golden.expected) == FIELDS | ({"lock"} if held(golden) else set())
    assert golden.expected["scenario"] in SCENES
    assert golden.name == f"{golden.expected['layout']}-{golden.expected['scenario']}"
    for process in golden.expected["processes"]:
        assert set(process) == PROCESS_FIELDS
        assert len(process["devices"]) == golden.expected["device_num"]
        assert all(set(usage) == USAGE_FIELDS for usage in process["devices"])


def test_identify_names_the_layout_from_size_version_and_content(golden: GoldenRegion) -> None:
    assert identify(golden.path) is golden.layout
    assert golden.path.stat().st_size == golden.expected["file_size"]
    assert golden.expected["file_size"] == golden.layout.size_bytes + 1


def test_a_layout_that_does_not_fit_is_refused_by_name_too(golden: GoldenRegion) -> None:
    for layout in Layout:
        if layout is golden.layout:
            open_region(golden.path, layout=layout).close()
        else:
            contradiction = f"has layout {golden.layout.value}, not {layout.value}"
            with pytest.raises(NotARegion, match=contradiction):
                open_region(golden.path, layout=layout)


def test_reading_does_not_change_a_byte(golden: GoldenRegion) -> None:
    before = golden.path.read_bytes(), golden.path.stat().st_mtime_ns
    with open_region(golden.path) as region:
        region.snapshot()
        region.memory_used(0)
        region.is_stale()
    with open_region(golden.path, writable=True) as region:
        region.snapshot()
    assert (golden.path.read_bytes(), golden.path.stat().st_mtime_ns) == before


# ---- Region.snapshot() ----


def test_snapshot_has_every_field_of_the_region(golden: GoldenRegion) -> None:
    expected = golden.expected
    with open_region(golden.path) as region:
        snapshot = region.snapshot()
    assert snapshot.path == str(golden.path)
    assert snapshot.layout is golden.layout
    assert snapshot.device_count == expected["device_num"]
    assert snapshot.priority == expected["priority"]
    assert snapshot.utilization_switch is (expected["utilization_switch"] == 1)
    assert snapshot.recent_kernel == expected["recent_kernel"]
    assert snapshot.owner_pid == expected.get("lock", {"owner_pid": 0})["owner_pid"]
    assert snapshot.settled is not held(golden)
    assert len(snapshot.processes) == expected["proc_num"]


def test_snapshot_has_every_field_of_the_devices(golden: GoldenRegion) -> None:
    expected = golden.expected
    with open_region(golden.path) as region:
        snapshot = region.snapshot()
    assert [device.index for device in snapshot.devices] == list(range(expected["device_num"]))
    for device in snapshot.devices:
        index = device.index
        assert device.uuid == expected["uuids"][index]
        assert device.memory_limit_bytes == (expected["memory_limit"][index] or None)
        assert device.sm_limit_percent == sm_or_none(expected["sm_limit"][index])
        assert device.memory_used_bytes == expected["device_used"][index]
        for ours, value in sums(golden, index).items():
            assert getattr(device, ours) == value
        assert (device.enc_util_percent, device.dec_util_percent) == (0, 0)


def check_process(process: ProcessUsage, expected: dict[str, Any]) -> None:
    assert process.pid == expected["pid"]
    assert process.host_pid == (expected["host_pid"] or None)
    assert process.status == expected["status"]
    assert [usage.index for usage in process.devices] == list(range(len(expected["devices"])))
    for usage, figures in zip(process.devices, expected["devices"], strict=True):
        for name, ours in USAGE_NAMES.items():
            assert getattr(usage, ours) == figures[name]
        assert (usage.enc_util_percent, usage.dec_util_percent) == (0, 0)


def test_snapshot_has_every_field_of_the_processes(golden: GoldenRegion) -> None:
    with open_region(golden.path) as region:
        snapshot = region.snapshot()
    for process, expected in zip(snapshot.processes, golden.expected["processes"], strict=True):
        check_process(process, expected)
        assert process.settled or held(golden)


# ---- live values ----


def test_live_values_are_those_of_the_file(golden: GoldenRegion) -> None:
    expected = golden.expected
    with open_region(golden.path) as region:
        assert region.layout is golden.layout
        assert region.device_count == expected["device_num"]
        assert region.uuids == tuple(expected["uuids"])
        assert region.priority == expected["priority"]
        assert region.utilization_switch is (expected["utilization_switch"] == 1)
        assert region.recent_kernel == expected["recent_kernel"]
        limits = [region.memory_limit(device) for device in range(16)]
        assert limits == [limit or None for limit in expected["memory_limit"]]
        sm_limits = [region.sm_limit(device) for device in range(16)]
        assert sm_limits == [sm_or_none(percent) for percent in expected["sm_limit"]]
        used = [region.memory_used(device) for device in range(16)]
        assert used == expected["device_used"] + [0] * (16 - expected["device_num"])


def test_last_kernel_time_is_there_from_1_1_on(golden: GoldenRegion) -> None:
    # Not in the JSON: the files were all recorded within these ten minutes.
    with open_region(golden.path) as region:
        live, of_snapshot = region.last_kernel_time_s, region.snapshot().last_kernel_time_s
    assert live == of_snapshot
    if golden.layout in {Layout.UNVERSIONED_NO_UTIL, Layout.UNVERSIONED}:
        assert live is None
    else:
        assert live is not None
        assert abs(live - 1_795_168_221) < 300


# ---- RegionSet ----


def read_together(regions: list[GoldenRegion]) -> RegionTable:
    with RegionSet([golden.path for golden in regions]) as region_set:
        assert region_set.errors == {}
        return region_set.read()


def test_one_read_has_every_field_of_all_fifteen_regions(
    golden_regions: list[GoldenRegion],
) -> None:
    table = read_together(golden_regions)
    regions = table.regions
    assert table.paths == tuple(str(golden.path) for golden in golden_regions)
    assert len(table) == len(regions) == 15
    for row, golden in enumerate(golden_regions):
        expected = golden.expected
        lock = expected.get("lock", {"owner_pid": 0, "semaphore_value": 1})
        assert table.error(row) is None
        assert regions.code[row] == 0
        assert regions.layout[row] == golden.layout.number
        assert regions.device_count[row] == expected["device_num"]
        assert regions.process_count[row] == expected["proc_num"]
        assert regions.priority[row] == expected["priority"]
        assert regions.utilization_switch[row] == expected["utilization_switch"]
        assert regions.recent_kernel[row] == expected["recent_kernel"]
        assert regions.owner_pid[row] == lock["owner_pid"]
        assert regions.semaphore[row] & 0xFFFFFFFF == lock["semaphore_value"]
        assert regions.settled[row] == (not held(golden))
        assert regions.device_rows[row] == expected["device_num"]


def test_one_read_has_every_field_of_all_devices(golden_regions: list[GoldenRegion]) -> None:
    table = read_together(golden_regions)
    devices = table.devices
    assert len(devices) == sum(golden.expected["device_num"] for golden in golden_regions)
    row = 0
    for region_row, golden in enumerate(golden_regions):
        expected = golden.expected
        assert table.regions.first_device[region_row] == row
        for index in range(expected["device_num"]):
            assert devices.region[row] == region_row
            assert devices.index[row] == index
            assert devices.uuid(row) == expected["uuids"][index]
            assert devices.memory_limit_bytes[row] == expected["memory_limit"][index]
            assert devices.sm_limit_percent[row] == expected["sm_limit"][index]
            assert devices.memory_used_bytes[row] == expected["device_used"][index]
            for ours, value in sums(golden, index).items():
                assert getattr(devices, ours)[row] == value
            assert devices.memory_offset_bytes[row] == 0
            assert (devices.enc_util_percent[row], devices.dec_util_percent[row]) == (0, 0)
            row += 1


def test_one_read_has_every_field_of_all_processes(golden_regions: list[GoldenRegion]) -> None:
    table = read_together(golden_regions)
    processes, usages = table.processes, table.usages
    assert len(processes) == sum(golden.expected["proc_num"] for golden in golden_regions)
    row = usage_row = 0
    for region_row, golden in enumerate(golden_regions):
        assert table.regions.first_process[region_row] == row
        for expected in golden.expected["processes"]:
            assert processes.region[row] == region_row
            assert processes.pid[row] == expected["pid"]
            assert processes.host_pid[row] == expected["host_pid"]
            assert processes.status[row] == expected["status"]
            assert processes.settled[row] or held(golden)
            assert processes.first_usage[row] == usage_row
            for index, figures in enumerate(expected["devices"]):
                assert usages.process[usage_row] == row
                assert usages.device[usage_row] == index
                for name, ours in USAGE_NAMES.items():
                    assert getattr(usages, ours)[usage_row] == figures[name]
                usage_row += 1
            row += 1
    assert len(usages) == usage_row

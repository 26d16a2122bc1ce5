"""The monitor's metrics on a node with regions of all five layouts, against their golden JSON."""

import time
from pathlib import Path
from typing import Any

import pytest
from support.exposition import Exposition, exported, exporter_of, parsed, pod_of
from support.golden_regions import NAMES, GoldenRegion
from support.node_scene import NodeScene
from support.region_file import RegionFile

from libhamiregion import Layout, __version__, open_region

# What the first device of a container is called in either generation of names.
LABELS = ("namespace", "pod", "container", "vdevice_index", "device_uuid")
FORMER = ("podnamespace", "podname", "ctrname", "vdeviceid", "deviceuuid")


class Served:
    """One node with every golden region, and what it exports."""

    def __init__(self, directory: Path, *, legacy: bool) -> None:
        self.files = NodeScene(directory)
        self.regions = {name: self.files.golden(name) for name in NAMES}
        self.before_s = int(time.time())
        with self.files.open() as node:
            exporter = exporter_of(node, legacy=legacy)
            self.exposition: Exposition = parsed(exporter.render())
        self.after_s = int(time.time())


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Served:
    return Served(tmp_path_factory.mktemp("golden-node"), legacy=True)


@pytest.fixture(params=NAMES)
def region(request, served) -> GoldenRegion:
    return served.regions[request.param]


def counted(region: GoldenRegion, device: int, part: str) -> int:
    """The plain reading: the sum over processes whose status is not 0."""
    return sum(
        process["devices"][device].get(part, 0)
        for process in region.expected["processes"]
        if process["status"] != 0
    )


def where(region: GoldenRegion, device: int, names: tuple[str, ...] = LABELS) -> dict[str, str]:
    uuid = region.expected["uuids"][device]
    values = ("research", pod_of(region.name), "train", str(device), uuid)
    return {**dict(zip(names, values, strict=True)), "zone": "vGPU"}


def same(served: Served, name: str, labels: dict[str, str], value: float) -> None:
    """Exactly one series has exactly these labels, and this value."""
    assert served.exposition.series(name, **labels) == {frozenset(labels.items()): value}


def test_all_layouts_are_there(served):
    assert {region.layout for region in served.regions.values()} == set(Layout)


@pytest.mark.parametrize("device", [0, 1])
def test_every_metric_of_a_container_equals_the_golden_reading(served, region, device):
    expected: dict[str, Any] = region.expected
    labels = where(region, device)
    used = counted(region, device, "total")
    same(served, "hami_vgpu_memory_used_bytes", labels, used)
    same(served, "hami_container_device_memory_bytes", labels, used)
    same(served, "hami_vgpu_memory_limit_bytes", labels, expected["memory_limit"][device])
    for metric, part in (("context", "context"), ("module", "module"), ("buffer", "data")):
        name = f"hami_vgpu_memory_{metric}_bytes"
        same(served, name, labels, counted(region, device, part))


@pytest.mark.parametrize("device", [0, 1])
def test_utilization_is_told_where_the_layout_has_it(served, region, device):
    """The first layout has no such field, and 0 would say that the device is idle."""
    for name, labels in (
        ("hami_container_device_utilization_ratio", where(region, device)),
        ("Device_utilization_desc_of_container", where(region, device, FORMER)),
    ):
        if region.layout.has_utilization:
            same(served, name, labels, counted(region, device, "sm_util"))
        else:
            assert served.exposition.series(name, **labels) == {}


@pytest.mark.parametrize("device", [0, 1])
def test_the_former_names_say_the_same(served, region, device):
    labels = where(region, device, FORMER)
    used = counted(region, device, "total")
    same(served, "vGPU_device_memory_usage_in_bytes", labels, used)
    limit = region.expected["memory_limit"][device]
    same(served, "vGPU_device_memory_limit_in_bytes", labels, limit)
    parts = {part: counted(region, device, part) for part in ("context", "module", "data")}
    sizes = {part: str(size) for part, size in parts.items()}
    offset = str(used - sum(parts.values()))
    same(
        served,
        "Device_memory_desc_of_container",
        {**labels, **sizes, "offset": offset},
        used,
    )


@pytest.mark.parametrize("device", [0, 1])
def test_the_last_kernel_is_told_where_there_was_one(served, region, device):
    file = RegionFile(region.path, region.layout)
    has_time = region.layout.offsets["last_kernel_time"] is not None
    launched_s = file.get("last_kernel_time") if has_time else 0
    for name, labels in (
        ("hami_container_last_kernel_elapsed_seconds", where(region, device)),
        ("Device_last_kernel_of_container", where(region, device, FORMER)),
    ):
        found = served.exposition.series(name, **labels)
        if launched_s == 0:
            assert found == {}
        else:
            (elapsed,) = found.values()
            assert served.before_s - launched_s <= elapsed <= served.after_s - launched_s


def test_there_is_one_series_per_device_with_a_uuid_and_no_other(served):
    devices = sum(len(region.expected["uuids"]) for region in served.regions.values())
    for name in (
        "hami_vgpu_memory_used_bytes",
        "hami_vgpu_memory_limit_bytes",
        "hami_container_device_memory_bytes",
        "hami_vgpu_memory_context_bytes",
        "hami_vgpu_memory_module_bytes",
        "hami_vgpu_memory_buffer_bytes",
        "vGPU_device_memory_usage_in_bytes",
        "Device_memory_desc_of_container",
    ):
        assert len(served.exposition.series(name)) == devices, name


def test_ours_beside_them_say_what_libvgpu_enforces(served, region):
    for device, enforced in enumerate(region.expected["device_used"]):
        labels = where(region, device)
        del labels["zone"]
        same(served, "hamiregion_device_memory_counted_bytes", labels, enforced)
        limit = region.expected["sm_limit"][device]
        limits = served.exposition.series("hamiregion_device_sm_limit_ratio", **labels)
        assert list(limits.values()) == ([limit / 100] if 0 < limit < 100 else [])
    pod = pod_of(region.name)
    value = served.exposition.value
    assert value("hamiregion_container_priority", pod=pod) == region.expected["priority"]
    blocked = region.expected["recent_kernel"] < 0
    assert value("hamiregion_container_blocked", pod=pod) == blocked
    info = served.exposition.labels("hamiregion_container_info", pod=pod)
    assert info["layout"] == region.expected["layout"]


def test_the_former_names_are_there_on_request_only(tmp_path):
    served = Served(tmp_path, legacy=False)
    former = {
        name for name in served.exposition.names if not name.startswith(("hami_", "hamiregion_"))
    }
    assert former == set()


def test_the_build_info_names_this_program_and_has_no_zone(served):
    labels = served.exposition.labels("hami_build_info")
    assert labels["version"] == f"libhamiregion {__version__}"
    assert labels.keys() == {
        "version", "revision", "build_date", "go_version", "compiler", "platform"
    }  # fmt: skip
    assert served.exposition.value("hami_build_info") == 1


def test_slots_of_status_0_count_for_libvgpu_and_not_for_the_monitor(files):
    golden = files.golden("1.2-many-processes")
    file = RegionFile(golden.path, golden.layout)
    file.put("slot_status", 0, slot=1)
    gone = golden.expected["processes"][1]["devices"]
    found = exported(files, legacy=True)
    for device in (0, 1):
        at = {"vdevice_index": str(device)}
        enforced = golden.expected["device_used"][device]
        rest = enforced - gone[device]["total"]
        assert found.value("hamiregion_device_memory_counted_bytes", **at) == enforced
        assert found.value("hami_vgpu_memory_used_bytes", **at) == rest
        assert found.value("hami_container_device_memory_bytes", **at) == rest
        for metric, part in (("context", "context"), ("module", "module"), ("buffer", "data")):
            expected = counted(golden, device, part) - gone[device][part]
            assert found.value(f"hami_vgpu_memory_{metric}_bytes", **at) == expected
        sm = counted(golden, device, "sm_util") - gone[device]["sm_util"]
        assert found.value("hami_container_device_utilization_ratio", **at) == sm
        assert found.value("Device_utilization_desc_of_container", vdeviceid=str(device)) == sm


@pytest.mark.parametrize("ahead_s", [3600, -100])
def test_a_kernel_of_the_future_was_just_now(files, ahead_s):
    golden = files.golden("1.2-one-process")
    last_s = int(time.time()) + ahead_s
    RegionFile(golden.path, golden.layout).put("last_kernel_time", last_s)
    with files.open() as node:
        begun_s = time.time()
        found = parsed(exporter_of(node).render())
        ended_s = time.time()
    values = found.series("hami_container_last_kernel_elapsed_seconds").values()
    assert len(values) == 2
    least, most = (max(int(at_s) - last_s, 0) for at_s in (begun_s, ended_s))
    assert all(least <= value <= most for value in values)


def test_a_first_launch_makes_a_series_appear(files):
    file = files.container(uuids=["GPU-a"])
    file.put("last_kernel_time", 0)
    with files.open() as node:
        exporter = exporter_of(node)
        assert parsed(exporter.render()).series("hami_container_last_kernel_elapsed_seconds") == {}
        file.put("last_kernel_time", int(time.time()) + 60)
        assert parsed(exporter.render()).value("hami_container_last_kernel_elapsed_seconds") == 0


def test_a_device_without_a_uuid_has_no_series_until_it_has_one(files):
    file = files.container(memory_limits=["1GiB", "2GiB"])
    with files.open() as node:
        exporter = exporter_of(node)
        first = parsed(exporter.render())
        assert first.series("hami_vgpu_memory_limit_bytes") == {}
        assert len(first.series("hamiregion_container_info")) == 1
        file.put("uuids", b"GPU-late", device=1)
        found = parsed(exporter.render())
        assert found.labels("hami_vgpu_memory_limit_bytes")["vdevice_index"] == "1"
        assert found.value("hami_vgpu_memory_limit_bytes", device_uuid="GPU-late") == 2 << 30


def test_while_no_device_is_named_ours_alone_have_use_and_limit_with_an_empty_uuid(files):
    """As a region stands whose processes have not said yet which devices there are."""
    path = files.container(memory_limits=["8GiB", "4GiB"], sm_limits=[50]).path
    with open_region(path, writable=True) as region, region.attach() as slot:
        slot.charge(0, 2 << 30)
        RegionFile(path, Layout.V1_2).put("device_num", 0)
        with files.open() as node:
            exporter = exporter_of(node)
            found = parsed(exporter.render())
            labels = {"vdevice_index": "0", "device_uuid": ""}
            assert found.value("hamiregion_device_memory_counted_bytes", **labels) == 2 << 30
            assert found.value("hamiregion_device_sm_limit_ratio", **labels) == 0.5
            name = "hamiregion_unnamed_device_memory_limit_bytes"
            assert found.value(name, **labels) == 8 << 30
            assert found.value(name, vdevice_index="1", device_uuid="") == 4 << 30
            assert found.value("hamiregion_process_memory_used_bytes", **labels) == 2 << 30
            assert not {each for each in found.names if each.startswith("hami_vgpu")}
    named = files.container(pod="named", memory_limits=["1GiB"], uuids=["GPU-1"]).path
    assert named.exists()
    found = exported(files)
    assert found.labels("hami_vgpu_memory_limit_bytes")["device_uuid"] == "GPU-1"
    counted = found.series("hamiregion_device_memory_counted_bytes")
    assert {dict(each)["device_uuid"] for each in counted} == {"", "GPU-1"}


def test_refusals_are_shown_of_regions_whose_programs_count_them(files):
    for name, refusals in (("1.2-many-processes", b"\7" + b"\0" * 7), ("1.1-many-processes", b"")):
        golden = files.golden(name)
        at = (golden.layout.size_bytes + 15) // 8 * 8 + 8
        golden.path.write_bytes(golden.path.read_bytes().ljust(at, b"\0"))
        with golden.path.open("ab") as file:
            file.write(refusals and refusals + b"rfsd")
    shown = exported(files)
    series = shown.series("hamiregion_container_memory_refusals_total")
    assert list(series.values()) == [7]
    assert dict(*series)["pod"] == pod_of("1.2-many-processes")

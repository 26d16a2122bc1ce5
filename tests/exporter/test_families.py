"""The table of families: names, labels and units are what dashboards and the documentation say."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from libhamiregion.exporter import FAMILIES, NodeExporter

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"

K = ("namespace", "pod", "container", "vdevice_index", "device_uuid")
H = ("node", "device_index", "device_uuid", "device_type")
L = ("podnamespace", "podname", "ctrname", "vdeviceid", "deviceuuid")
LH = ("nodeid", "deviceidx", "deviceuuid", "devicetype")
MIG = ("mig_uuid", "profile", "gpu_instance_id", "compute_instance_id")

# HAMi's monitor, name for name and label for label.
GIVEN = {
    "hami_host_gpu_memory_used_bytes": H,
    "hami_host_gpu_utilization_ratio": H,
    "hami_host_gpu_memory_controller_utilization_ratio": H,
    "hami_host_gpu_temperature_celsius": H,
    "hami_host_gpu_power_usage_watts": H,
    "hami_host_gpu_ecc_errors_total": (*H, "error_type"),
    "hami_vgpu_memory_used_bytes": K,
    "hami_vgpu_memory_limit_bytes": K,
    "hami_container_device_memory_bytes": K,
    "hami_vgpu_memory_context_bytes": K,
    "hami_vgpu_memory_module_bytes": K,
    "hami_vgpu_memory_buffer_bytes": K,
    "hami_container_device_utilization_ratio": K,
    "hami_container_last_kernel_elapsed_seconds": K,
    "hami_mig_device_info": (*K, *MIG),
    "HostGPUMemoryUsage": LH,
    "HostCoreUtilization": LH,
    "vGPU_device_memory_usage_in_bytes": L,
    "vGPU_device_memory_limit_in_bytes": L,
    "Device_memory_desc_of_container": (*L, "context", "module", "data", "offset"),
    "Device_utilization_desc_of_container": L,
    "Device_last_kernel_of_container": L,
    "MigInfo": (*L, "instanceid"),
}


def test_the_monitors_names_and_labels_are_all_there_with_the_zone():
    found = {
        family.name: family.labels
        for family in FAMILIES
        if family.origin != "own" and family.constant == (("zone", "vGPU"),)
    }
    assert found == GIVEN


def test_the_build_info_alone_has_no_zone():
    (build,) = (each for each in FAMILIES if each.origin != "own" and not each.constant)
    assert build.name == "hami_build_info"
    assert {"version", "revision", "build_date"} <= set(build.labels)


def test_no_name_stands_twice():
    names = [family.name for family in FAMILIES]
    assert len(set(names)) == len(names)


def test_our_own_names_are_in_base_units_under_our_prefix():
    for family in (each for each in FAMILIES if each.origin == "own"):
        assert re.fullmatch(r"hamiregion_[a-z]+(_[a-z]+)*", family.name)
        assert family.help.endswith(".")
        assert family.constant == ()
        assert (family.kind == "counter") == family.name.endswith("_total")
        for wrong in ("percent", "megabytes", "_mib", "milliseconds", "_ms", "minutes"):
            assert wrong not in family.name


def test_all_labels_are_valid_names_and_none_stands_twice_in_a_family():
    for family in FAMILIES:
        names = [*family.labels, *dict(family.constant)]
        assert len(set(names)) == len(names)
        assert all(re.fullmatch(r"[a-z][a-z0-9_]*", name) for name in names)


def test_the_documentation_lists_exactly_these_families_with_their_labels_and_help():
    rows = {}
    for line in DOCS.read_text(encoding="utf-8").splitlines():
        if line.startswith("Labels: "):
            labels = tuple(re.findall(r"`(\w+)`", line))
        match = re.match(r"- `(hami\w+|[A-Zv]\w+)`: (.*)$", line)
        if match:
            rows[match[1]] = (labels, match[2])
    assert rows == {family.name: (family.labels, family.help) for family in FAMILIES}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool")
def test_promtool_finds_nothing_wrong_with_our_own_names_nor_with_the_monitors(files):
    files.golden("1.2-many-processes")
    files.container("waiting", region=False)
    with files.open() as node:
        text = NodeExporter(node).render()
    command = ["promtool", "check", "metrics"]
    checked = subprocess.run(command, input=text, capture_output=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")

"""Whatever a container writes, does or is called: bounded, distinct series, and others unharmed."""

import os
import random

import pytest
from support.exposition import exported, exporter_of, parsed
from support.region_file import DEVICES, SLOTS, RegionFile
from support.slot_bytes import attached

from libhamiregion import Layout
from libhamiregion.exporter.collectors import processes
from libhamiregion.text import printable

UUID = "GPU-00000000-0000-0000-0000-000000000000"
DEVICE_FAMILIES = 20
CONTAINER_FAMILIES = 20


def test_1024_invented_processes_get_no_series_of_their_own(files, exporter):
    path = files.container(uuids=[f"GPU-{index}" for index in range(DEVICES)]).path
    file = RegionFile(path, Layout.V1_2)
    for slot in range(SLOTS):
        file.put("slot_pid", slot + 1, slot=slot)
        file.put("slot_hostpid", slot + 1, slot=slot)
        file.put("slot_status", 1, slot=slot)
        file.put("slot_used.total", 1 << 20, slot=slot)
        file.put("slot_util.enc", 50, slot=slot)
    file.put("proc_num", SLOTS)
    found = parsed(exporter.render())
    assert not [name for name in found.names if name.startswith("hamiregion_process_")]
    of_container = [key for key in found.samples if ("pod", "bert-0") in key[1]]
    assert len(of_container) <= DEVICES * DEVICE_FAMILIES + CONTAINER_FAMILIES
    assert found.value("hami_vgpu_memory_used_bytes", vdevice_index="0") == SLOTS << 20
    counted = found.series("hamiregion_container_processes", pod="bert-0")
    assert sum(counted.values()) >= SLOTS


def test_more_real_processes_than_allowed_are_summed_up_and_nothing_is_lost(
    files, actor, monkeypatch
):
    path = files.container(uuids=["GPU-a", "GPU-b"]).path
    actors = [actor(path) for _ in range(5)]
    for number, each in enumerate(actors):
        attached(each, (number + 1) << 20)
        each("slot.charge", 1, (number + 1) << 10)
        each("region.set_utilization", each.pid, 0, sm=10 * (number + 1))
    with files.open() as node:
        with monkeypatch.context() as limits:
            limits.setattr(processes, "MAX_PAIRS", 6)
            found = parsed(exporter_of(node).render())
        for name, expected in (
            ("hamiregion_process_memory_used_bytes", {"0": 15 << 20, "1": 15 << 10}),
            ("hamiregion_process_sm_utilization_ratio", {"0": 1.5, "1": 0}),
        ):
            for device, total in expected.items():
                series = found.series(name, vdevice_index=device)
                assert len(series) == 4
                assert sum(series.values()) == pytest.approx(total)
        other = found.value("hamiregion_process_memory_used_bytes", pid="other", vdevice_index="0")
        assert other == 9 << 20
        assert found.value("hamiregion_container_processes_folded") == 2
        assert (
            "hamiregion_container_processes_folded" not in parsed(exporter_of(node).render()).names
        )


def test_a_process_whose_layout_has_no_utilization_is_not_said_to_be_idle(files, exporter, actor):
    without = files.container("old", layout=Layout.UNVERSIONED_NO_UTIL, uuids=["GPU-a"]).path
    beside = files.container("new", layout=Layout.V1_2, uuids=["GPU-b"]).path
    # The lock and the slots of the old layout are read-only: the slot is written by hand.
    reader = actor(without)
    RegionFile(without, Layout.UNVERSIONED_NO_UTIL).add_process(reader.pid, {0: 1 << 20})
    attached(actor(beside), 1 << 20)
    found = parsed(exporter.render())
    memory = found.series("hamiregion_process_memory_used_bytes")
    assert list(memory.values()) == [1 << 20] * 2
    name = "hamiregion_process_sm_utilization_ratio"
    assert found.series(name, container="old") == {}
    assert list(found.series(name, container="new").values()) == [0]


def test_a_process_that_stands_in_several_slots_is_one_series_and_the_rest_is_summed(
    files, exporter, actor
):
    path = files.container(uuids=["GPU-a"]).path
    file = RegionFile(path, Layout.V1_2)
    one = attached(actor(path), 1 << 20)
    file.add_process(one.pid, {0: 5 << 20})
    found = parsed(exporter.render())
    name = "hamiregion_process_memory_used_bytes"
    # Its process writes to the last of them.
    assert found.value(name, pid=str(one.pid)) == 5 << 20
    assert found.value(name, pid="other") == 1 << 20
    assert found.value("hami_vgpu_memory_used_bytes") == 6 << 20


def test_one_uuid_on_all_devices_makes_no_series_twice(files, actor):
    path = files.container(uuids=[UUID] * DEVICES, memory_limits=["1GiB"] * DEVICES).path
    actor(path)("attach")
    found = exported(files, legacy=True)
    for name in (
        "hami_vgpu_memory_used_bytes",
        "vGPU_device_memory_usage_in_bytes",
        "hamiregion_device_memory_counted_bytes",
        "hamiregion_process_memory_used_bytes",
    ):
        assert len(found.series(name)) == DEVICES


def test_hostile_uuids_are_escaped(files, exporter):
    uuids = [b'GPU-"} 1\\', b"GPU-\\n\\\\", b"GPU-%d%s{}", b"GPU-" + b"x" * 91]
    file = files.container(uuids=[UUID] * len(uuids))
    for device, uuid in enumerate(uuids):
        file.put("uuids", uuid, device=device)
    found = parsed(exporter.render()).series("hami_vgpu_memory_used_bytes")
    assert {dict(labels)["device_uuid"] for labels in found} == {uuid.decode() for uuid in uuids}


def test_hostile_directory_names_are_one_printable_line_each(files, exporter):
    uid = "0b5c1e64-27a1-4a1c-8a3c-7ab0d3ad3b0f"
    names = ['a"b', "a\nb", "back\\slash", "x" * 200, "sm\u00f6rg\u00e5s", "\udcff\udcfe"]
    for name in names:
        os.mkdir(f"{files.root}/{uid}_{name}")  # noqa: PTH102 (a name may be no UTF-8)
    found = parsed(exporter.render()).series("hamiregion_container_missing_info", pod_uid=uid)
    shown = {dict(labels)["container"] for labels in found}
    assert shown == {printable(name) for name in names}
    assert all(name.isprintable() for name in shown)


def test_values_of_all_ones_are_numbers_like_any_other(files):
    file = files.container(uuids=[UUID])
    most = 2**64 - 1
    file.add_process(os.getpid())
    for field in ("slot_used.total", "slot_used.context", "slot_used.module", "slot_used.data"):
        file.put(field, most)
    for part in ("sm", "enc", "dec"):
        file.put(f"slot_util.{part}", most)
    for field in ("limit", "last_kernel_time"):
        file.put(field, most)
    with files.open() as node:
        exporter = exporter_of(node, legacy=True)
        found = parsed(exporter.render())
        assert found.value("hami_vgpu_memory_used_bytes") == most
        assert found.value("hami_container_last_kernel_elapsed_seconds") == 0
        file.put("slot_status", 0)
        assert parsed(exporter.render()).value("hami_vgpu_memory_used_bytes") == 0


def test_random_bytes_in_a_region_break_no_scrape_and_touch_no_other(files):
    bad = files.golden("1.2-many-processes")
    files.container("good", pod="good", uuids=[UUID], memory_limits=["3GiB"])
    file = RegionFile(bad.path, bad.layout)
    whole = file.content()
    dice = random.Random(20260)
    header = bad.layout.offsets["procs"] + 4 * bad.layout.offsets["slot_stride"]
    shown = 0
    with files.open() as node:
        exporter = exporter_of(node, legacy=True)
        for number in range(150):
            at = dice.randrange(8, header)
            file.put_bytes(at, dice.randbytes(dice.choice([1, 4, 8, 64])))
            found = parsed(exporter.render())
            assert found.value("hami_vgpu_memory_limit_bytes", pod="good") == 3 << 30
            told = len(found.series("hamiregion_container_info", pod="1-2-many-processes"))
            why = len(found.series("hamiregion_container_missing_info"))
            assert told + why == 1
            shown += told
            if number % 5 == 4:
                file.put_bytes(0, whole[:header])
    assert 0 < shown < 150, "some of it damages the region, and some does not"

"""The driver's figures in the slots of regions."""

import threading

import pytest
from fake_nvml.driver import FakeDriver
from fake_nvml.scenes import CARD, GPU, MIB, MIG, MIG_A, MIG_B, OTHER, SECOND
from region_bytes import RegionFile, RegionFileFactory

from libhamiregion import Layout, LockTimeout, RegionReadOnly, open_region
from libhamiregion.node.nvml import NvmlSampler


def with_slots(file: RegionFile, *pids: int) -> RegionFile:
    for slot, pid in enumerate(pids):
        file.put("slot_pid", pid, slot=slot)
        file.put("slot_status", 1, slot=slot)
    file.put("proc_num", len(pids))
    return file


def test_figures_reach_the_right_slots_in_every_layout(
    fake_driver: FakeDriver,
    nvml_sampler: NvmlSampler,
    region_file: RegionFileFactory,
    layout: Layout,
) -> None:
    fake_driver.play(
        CARD,
        SECOND,
        f"process 0 compute 4101 {300 * MIB}",
        f"process 1 compute 4102 {200 * MIB}",
        "sample 0 4101 100 61 22 3 4",
    )
    file = with_slots(region_file(layout, uuids=[OTHER, GPU]), 11, 12, 13)
    # Each claims to be the other; nobody asks them.
    file.put("slot_hostpid", 4102, slot=0)
    file.put("slot_hostpid", 4101, slot=1)
    file.put("slot_hostpid", 4101, slot=2)
    with open_region(file, writable=True) as region:
        mapping = {11: 4101, 12: 4102, 99: 4101}
        planned = nvml_sampler.write(region, mapping, dry_run=True)
        assert region.snapshot().processes[0].devices[1].memory_monitor_bytes == 0
        written = nvml_sampler.write(region, mapping)
        assert written == planned
        expected = {
            (11, "monitor_used_bytes", 1): 300 * MIB,
            (12, "monitor_used_bytes", 0): 200 * MIB,
        }
        if layout.has_utilization:
            expected |= {
                (11, "sm_util_percent", 1): 61,
                (11, "enc_util_percent", 1): 3,
                (11, "dec_util_percent", 1): 4,
            }
        assert {(c.pid, c.field, c.device): c.after for c in written} == expected
        first, second, third = region.snapshot().processes
        assert [usage.memory_monitor_bytes for usage in first.devices] == [0, 300 * MIB]
        assert [usage.memory_monitor_bytes for usage in second.devices] == [200 * MIB, 0]
        assert [usage.memory_monitor_bytes for usage in third.devices] == [0, 0]
        assert first.devices[1].sm_util_percent == (61 if layout.has_utilization else 0)
        assert nvml_sampler.write(region, mapping) == (), "what stands there is not written again"


def test_what_is_unknown_stays_and_what_is_known_to_be_nothing_becomes_0(
    fake_driver: FakeDriver, nvml_sampler: NvmlSampler, region_file: RegionFileFactory
) -> None:
    file = with_slots(region_file(uuids=[GPU, OTHER, MIG_A]), 11)
    for device in range(3):
        file.put("slot_monitorused", 5 * MIB, device=device)
        for part in ("sm", "enc", "dec"):
            file.put(f"slot_util.{part}", 55, device=device)
    fake_driver.play(
        CARD,
        "process 0 compute 4101 unavailable",
        "sample 0 4101 100 61 0 4294967295 0",
        SECOND,
        "error nvmlDeviceGetProcessUtilization 999 1",
    )
    with open_region(file, writable=True) as region:
        written = nvml_sampler.write(region, {11: 4101})
        assert {(c.field, c.device, c.before, c.after) for c in written} == {
            ("sm_util_percent", 0, 55, 61),
            ("dec_util_percent", 0, 55, 0),
            ("monitor_used_bytes", 1, 5 * MIB, 0),
        }
        fake_driver.add("error nvmlDeviceGetComputeRunningProcesses_v3 4")
        assert nvml_sampler.write(region, {11: 7777}) == ()
        fake_driver.unload()
        assert nvml_sampler.write(region, {11: 4101}) == ()


def test_a_mig_device_is_matched_by_its_own_uuid(
    fake_driver: FakeDriver, nvml_sampler: NvmlSampler, region_file: RegionFileFactory
) -> None:
    fake_driver.play(CARD, *MIG)
    file = with_slots(region_file(uuids=[MIG_B]), 11)
    file.put("slot_util.sm", 55)
    with open_region(file, writable=True) as region:
        (change,) = nvml_sampler.write(region, {11: 302})
        assert (change.field, change.device, change.after) == (
            "monitor_used_bytes",
            0,
            1900 * MIB,
        )
        assert region.snapshot().processes[0].devices[0].sm_util_percent == 55


def test_one_sample_serves_many_regions(
    fake_driver: FakeDriver, nvml_sampler: NvmlSampler, region_file: RegionFileFactory
) -> None:
    fake_driver.play(CARD, *(f"process 0 compute {pid} {pid * MIB}" for pid in range(1, 9)))
    sample = nvml_sampler.sample()
    fake_driver.unload()
    for pid in range(1, 9):
        with open_region(with_slots(region_file(uuids=[GPU]), 11), writable=True) as region:
            (change,) = nvml_sampler.write(region, {11: pid}, sample=sample)
            assert change.after == pid * MIB


def test_a_region_without_uuids_or_without_mapped_processes_is_left_alone(
    fake_driver: FakeDriver, nvml_sampler: NvmlSampler, region_file: RegionFileFactory
) -> None:
    fake_driver.play(CARD, f"process 0 compute 11 {MIB}")
    for file in (region_file(memory_limits=["1GiB"]), region_file(uuids=[GPU])):
        with open_region(with_slots(file, 11), writable=True) as region:
            mapping = {} if region.device_count else {11: 11}
            assert nvml_sampler.write(region, mapping) == ()
            assert nvml_sampler.write(region, {11: 0}) == ()


def test_a_write_that_the_region_refuses_says_so(
    fake_driver: FakeDriver, nvml_sampler: NvmlSampler, region_file: RegionFileFactory
) -> None:
    fake_driver.play(CARD, f"process 0 compute 4101 {MIB}")
    file = with_slots(region_file(uuids=[GPU]), 11)
    with open_region(file) as region, pytest.raises(RegionReadOnly):
        nvml_sampler.write(region, {11: 4101})
    with open_region(file, writable=True) as holder, open_region(file, writable=True) as region:
        held, done = threading.Event(), threading.Event()

        def hold() -> None:
            with holder.lock():
                held.set()
                done.wait(30)

        thread = threading.Thread(target=hold)
        thread.start()
        try:
            assert held.wait(30)
            with pytest.raises(LockTimeout):
                nvml_sampler.write(region, {11: 4101}, timeout_s=0.05)
        finally:
            done.set()
            thread.join()

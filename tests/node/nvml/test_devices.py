"""The driver's figures: the real nvidia-ml-py, and a fake library in place of the driver's."""

import pickle
from collections.abc import Callable

import pytest
from fake_nvml.scenes import CARD, GPU, MIB, MIG, MIG_A, MIG_B, OTHER, SECOND, one, utils

from libhamiregion.node.nvml import NvmlSample, NvmlSampler, NvmlState


@pytest.fixture
def sampled(fake_driver, nvml_sampler) -> Callable[..., NvmlSample]:
    """Plays a scene of the driver, and takes a sample."""

    def sampled(*scene: str) -> NvmlSample:
        fake_driver.play(*scene)
        return nvml_sampler.sample()

    return sampled


def test_devices_and_processes_are_what_the_driver_says(sampled, nvml_sampler):
    sample = sampled(
        CARD,
        SECOND,
        f"process 0 compute 101 {3000 * MIB}",
        f"process 1 compute 101 {2000 * MIB}",
        "sample 0 101 100000 61 22 3 4",
    )
    assert (sample.state, sample.message) == (NvmlState.OK, None)
    assert sample.driver_version == "570.0-fake"
    first, second = sample.devices
    assert (first.index, first.uuid, first.name) == (0, GPU, "NVIDIA H100 80GB HBM3")
    assert (first.memory_total_bytes, first.memory_used_bytes) == (81920 * MIB, 5000 * MIB)
    assert (first.gpu_util_percent, first.memory_util_percent) == (37, 12)
    assert (first.mig_enabled, first.mig_devices) == (False, ())
    assert (second.index, second.uuid, second.state) == (1, OTHER, NvmlState.OK)
    on_first, on_second = sample.processes
    assert (on_first.pid, on_first.device_index, on_first.device_uuid) == (101, 0, GPU)
    assert (on_first.memory_used_bytes, utils(on_first)) == (3000 * MIB, (61, 22, 3, 4))
    assert (on_second.device_uuid, on_second.memory_used_bytes) == (OTHER, 2000 * MIB)
    assert utils(on_second) == (0, 0, 0, 0), "the driver samples busy processes only"
    assert nvml_sampler.sample().devices == sample.devices


def test_a_sample_is_a_value(sampled):
    sample = sampled(CARD, *MIG, "process 0 compute 101 unavailable")
    assert sample.process(GPU, 999) is not None
    assert pickle.loads(pickle.dumps(sample)) == sample
    assert sample.processes[0].memory_used_bytes is None
    assert sample.of_pid(101) == sample.processes[:1]


def test_a_process_in_several_lists_stands_once_and_its_memory_is_not_added_up(sampled):
    sample = sampled(
        CARD,
        f"process 0 compute 101 {300 * MIB}",
        f"process 0 graphics 101 {300 * MIB}",
        f"process 0 graphics 102 {20 * MIB}",
        f"process 0 mps 103 {30 * MIB}",
    )
    assert [(row.pid, row.memory_used_bytes) for row in sample.processes] == [
        (101, 300 * MIB),
        (102, 20 * MIB),
        (103, 30 * MIB),
    ]


def test_memory_that_the_driver_does_not_know_is_none(sampled):
    sample = sampled(
        CARD,
        "process 0 compute 101 unavailable",
        "process 0 graphics 101 unavailable",
        "process 0 compute 102 unavailable",
        f"process 0 graphics 102 {7 * MIB}",
        "process 0 compute 103 18446744073709551614",
    )
    found = [row.memory_used_bytes for row in sample.processes]
    assert found == [None, 7 * MIB, None]


def test_an_older_driver_is_asked_with_the_second_version(sampled, nvml_sampler):
    sample = sampled(
        CARD,
        f"process 0 compute 101 {MIB}",
        f"process 0 graphics 102 {MIB}",
        "error nvmlDeviceGetComputeRunningProcesses_v3 13",
        "error nvmlDeviceGetGraphicsRunningProcesses_v3 13",
        "error nvmlDeviceGetMPSComputeRunningProcesses_v3 13",
        "error nvmlDeviceGetMPSComputeRunningProcesses_v2 13",
    )
    assert [row.pid for row in sample.processes] == [101, 102]
    assert nvml_sampler.sample().devices[0].processes_state is NvmlState.OK


@pytest.mark.parametrize(
    "older",
    [
        "quirk blackwell",
        "error nvmlDeviceGetProcessUtilization 3",
        "error nvmlDeviceGetProcessUtilization 6",
        "error nvmlDeviceGetProcessUtilization 13",
    ],
)
def test_where_the_older_function_shows_nobody_at_work_the_newer_is_asked(sampled, older):
    scene = (f"process 0 compute 101 {MIB}", "sample 0 101 100 81 22 3 4", older)
    sample = sampled(CARD, *scene)
    assert utils(one(sample, 101)) == (81, 22, 3, 4)
    sample = sampled(CARD, *scene, "grow nvmlDeviceGetProcessesUtilizationInfo 2")
    assert utils(one(sample, 101)) == (81, 22, 3, 4)


def test_the_newer_function_is_not_asked_about_an_idle_device(sampled):
    idle = CARD.replace(" 37 12 ", " 0 0 ")
    sample = sampled(
        idle,
        f"process 0 compute 101 {MIB}",
        "sample 0 101 100 0 0 0 0",
        "error nvmlDeviceGetProcessesUtilizationInfo 15 *",
    )
    assert utils(one(sample, 101)) == (0, 0, 0, 0)
    assert sample.devices[0].state is NvmlState.OK, "it was asked, and is lost"


@pytest.mark.parametrize("version", ["535.54.03", "535.161.08", "570.0", "999.0"])
@pytest.mark.parametrize("count", [1, 2, 3, 63, 64, 65, 200])
@pytest.mark.parametrize("quirk", ["", "quirk wide-lists"])
def test_lists_with_entries_of_another_size_are_known_by_their_pids_whatever_the_version_is(
    sampled, version, count, quirk
):
    pids = range(101, 101 + count)
    scene = (CARD, *(f"process 0 compute {pid} {pid * MIB}" for pid in pids))
    # The second version is asked only if the third one's entries cannot be.
    second = () if quirk else ("error nvmlDeviceGetComputeRunningProcesses_v2 999",)
    sample = sampled(*scene, f"driver {version}", quirk, *second)
    found = [(row.pid, row.memory_used_bytes) for row in sample.processes]
    assert found == [(pid, pid * MIB) for pid in pids]


def test_a_pid_that_no_kernel_has_is_left_out(sampled):
    processes = (f"process 0 compute {pid} {MIB}" for pid in (101, 4194304, 4194305))
    sample = sampled(CARD, *processes, "sample 0 4194305 100 61 22 3 4")
    assert [row.pid for row in sample.processes] == [101, 4194304]
    assert sample.columns[0].sampled == frozenset()


@pytest.mark.parametrize(
    "call", ["nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetProcessUtilization"]
)
def test_a_list_that_grows_while_it_is_read_is_read_again_but_not_for_ever(
    sampled, fake_driver, nvml_sampler, call
):
    sample = sampled(
        CARD, f"process 0 compute 101 {MIB}", "sample 0 101 100 9 0 0 0", f"grow {call} 3"
    )
    process = one(sample, 101)
    assert (process.memory_used_bytes, process.sm_util_percent) == (MIB, 9)
    fake_driver.add(f"grow {call} 1000000")
    sample = nvml_sampler.sample()
    (device,) = sample.devices
    assert NvmlState.INSUFFICIENT_SIZE in {device.processes_state, device.utilization_state}
    for process in sample.processes:
        assert None in (process.memory_used_bytes, process.sm_util_percent)


def test_more_processes_than_the_first_guess_are_all_listed(sampled):
    pids = range(1000, 1500)
    sample = sampled(
        CARD,
        *(f"process 0 compute {pid} {MIB}" for pid in pids),
        *(f"sample 0 {pid} 5 1 0 0 0" for pid in pids),
    )
    assert [row.pid for row in sample.processes] == list(pids)
    assert {row.sm_util_percent for row in sample.processes} == {1}


@pytest.mark.parametrize("quirk", [(), ("quirk stale-samples",)], ids=["", "stale"])
def test_only_samples_of_the_last_second_count_and_the_newest_wins(sampled, quirk):
    sample = sampled(
        CARD,
        *(f"process 0 compute {pid} {MIB}" for pid in (101, 102, 103)),
        "sample 0 101 200000 70 7 1 2",
        "sample 0 101 500000 30 3 0 0",
        "sample 0 102 1500000 90 9 0 0",
        "sample 0 103 2500000 50 5 0 0",
        "sample 0 104 100000 11 1 0 0",
        *quirk,
    )
    newest, between, idle = sample.processes
    assert utils(newest) == (70, 7, 1, 2)
    assert utils(between) == (None,) * 4, "busy a moment ago: neither 90 nor 0 is known"
    assert utils(idle) == (0, 0, 0, 0)
    assert sample.columns[0].sampled == {101, 104}
    assert sample.process(GPU, 104) is None, "it came or went in this moment"


def test_outside_the_host_namespace_silence_proves_nothing(fake_driver):
    fake_driver.play(CARD, f"process 0 compute 12 {MIB}", "sample 0 645400 100 13 0 0 0")
    with NvmlSampler(fake_driver.library, host_namespace=False) as sampler:
        sample = sampler.sample()
        (process,) = sample.processes
        assert (process.pid, process.memory_used_bytes, utils(process)) == (12, MIB, (None,) * 4)
        assert sample.process(GPU, 13) is None
        assert sample.columns[0].sampled == {645400}


def test_a_percentage_that_cannot_be_is_none_and_the_others_stay(sampled):
    sample = sampled(
        f"device 0 {GPU} {MIB} {MIB} 4294967295 3 card",
        f"process 0 compute 101 {MIB}",
        "sample 0 101 100 2147483632 22 101 100",
    )
    (process,) = sample.processes
    assert utils(process) == (None, 22, None, 100)
    (device,) = sample.devices
    assert (device.gpu_util_percent, device.memory_util_percent) == (None, 3)


def test_with_the_list_refused_samples_still_show_who_is_busy(sampled):
    sample = sampled(
        CARD,
        f"process 0 compute 101 {MIB}",
        "sample 0 101 100 44 0 0 0",
        "error nvmlDeviceGetComputeRunningProcesses_v3 4",
    )
    (process,) = sample.processes
    assert (process.pid, process.memory_used_bytes, process.sm_util_percent) == (101, None, 44)
    assert sample.devices[0].processes_state is NvmlState.NO_PERMISSION
    assert sample.process(GPU, 999) is None


def test_mig_devices_have_their_instances_their_profile_and_their_processes(sampled):
    sample = sampled(CARD, *MIG, f"process 1 graphics 303 {MIB}", "sample 1 301 100 80 0 0 0")
    card = sample.devices[1]
    assert card.mig_enabled is True
    first, second = card.mig_devices
    assert (first.uuid, first.profile) == (MIG_A, "1g.5gb")
    assert (first.gpu_instance_id, first.compute_instance_id) == (7, 0)
    assert (first.memory_total_bytes, first.memory_used_bytes) == (4864 * MIB, 1000 * MIB)
    assert (second.uuid, second.profile) == (MIG_B, "1c.3g.20gb")
    assert (second.gpu_instance_id, second.compute_instance_id) == (3, 1)
    assert first.utilization_state is NvmlState.NOT_SUPPORTED
    assert [(row.device_uuid, row.pid, row.memory_used_bytes) for row in sample.processes] == [
        (OTHER, 303, MIB),
        (MIG_A, 301, 900 * MIB),
        (MIG_B, 302, 1900 * MIB),
    ]
    for process in sample.processes:
        assert utils(process) == (None,) * 4, "the driver samples nothing under MIG"
    idle = sample.process(MIG_A, 999)
    assert (idle.memory_used_bytes, idle.sm_util_percent) == (0, None)
    assert sample.process(OTHER, 301) is None


def test_a_mig_device_that_refuses_its_list_is_read_from_the_list_of_its_gpu(sampled, fake_driver):
    fake_driver.play(*MIG[1:], SECOND.replace("device 1", "device 0"))
    sample = sampled(
        *(line.replace(" 1 ", " 0 ", 1).replace(" 1.", " 0.", 1) for line in MIG),
        "error nvmlDeviceGetComputeRunningProcesses_v3 3 0.0",
    )
    assert [(row.device_uuid, row.pid, row.memory_used_bytes) for row in sample.processes] == [
        (MIG_A, 301, 900 * MIB),
        (MIG_B, 302, 1900 * MIB),
    ]


def test_a_gpu_with_mig_on_and_no_permission_for_its_own_list_shows_its_mig_devices(sampled):
    sample = sampled(CARD, *MIG, "error nvmlDeviceGetComputeRunningProcesses_v3 4 1")
    assert {row.pid for row in sample.processes} == {301, 302}
    card = sample.devices[1]
    assert card.processes_state is NvmlState.NO_PERMISSION
    assert [mig.processes_state for mig in card.mig_devices] == [NvmlState.OK] * 2


def test_a_name_that_is_no_utf_8_is_escaped(sampled):
    sample = sampled(f"device 0 {GPU} {MIB} {MIB} 0 0 red\udcff\udcfe")
    assert sample.devices[0].name == "red\\xff\\xfe"


@pytest.mark.parametrize(
    ("line", "figure", "value"),
    [
        (CARD.replace(f" {5000 * MIB} ", f" {81921 * MIB} "), "memory_used_bytes", 81921 * MIB),
        (CARD.replace(f" {81920 * MIB} ", f" {1 << 50} "), "memory_total_bytes", 1 << 50),
        (CARD.replace(" 37 12 ", " 101 12 "), "gpu_util_percent", 101),
        (CARD.replace(" 37 12 ", " 37 101 "), "memory_util_percent", 101),
        (f"process 0 compute 101 {81921 * MIB}", "process memory_used_bytes", 81921 * MIB),
        ("sample 0 101 100 101 2 3 4", "process sm_util_percent", 101),
        ("sample 0 101 100 1 101 3 4", "process memory_util_percent", 101),
        ("sample 0 101 100 1 2 3019901152 4", "process enc_util_percent", 3019901152),
        ("sample 0 101 100 1 2 3 101", "process dec_util_percent", 101),
    ],
)
def test_a_figure_of_the_driver_that_cannot_be_is_unknown_and_kept_as_evidence(
    sampled, line, figure, value
):
    lines = {"device": CARD, "process": f"process 0 compute 101 {MIB}", "sample": ""}
    lines[line.split(maxsplit=1)[0]] = line
    sample = sampled(*lines.values())
    (device,) = sample.devices
    assert device.out_of_range == ((figure, value),)
    process, name = one(sample, 101), figure.removeprefix("process ")
    assert getattr(process if name != figure else device, name) is None


def test_memory_that_the_driver_does_not_have_is_no_impossible_figure(sampled):
    sample = sampled(CARD, "process 0 compute 101 unavailable")
    assert one(sample, 101).memory_used_bytes is None
    assert sample.devices[0].out_of_range == ()

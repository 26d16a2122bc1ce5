"""What the driver refuses becomes a state: every documented error, at every call."""

from typing import Any

import pynvml
import pytest
from fake_nvml.scenes import CARD, GPU, MIB, MIG, OTHER, SECOND, initialisations

from libhamiregion.node.nvml import NvmlSample, NvmlSampler, NvmlState

# All calls of `sample`, as the library exports them.
CALLS = (
    "nvmlInitWithFlags",
    "nvmlSystemGetDriverVersion",
    "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetName",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetMigDeviceHandleByIndex",
    "nvmlDeviceGetGpuInstanceId",
    "nvmlDeviceGetComputeInstanceId",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    "nvmlDeviceGetProcessUtilization",
)
CODES = {
    name.removeprefix("NVML_ERROR_").lower(): getattr(pynvml, name)
    for name in dir(pynvml)
    if name.startswith("NVML_ERROR_")
}

# Where a refusal is an answer: there is no such thing, or nobody was busy.
ANSWERS = {
    ("nvmlDeviceGetMigMode", 3),
    ("nvmlDeviceGetMigMode", 13),
    ("nvmlDeviceGetMigDeviceHandleByIndex", 6),
    ("nvmlDeviceGetGraphicsRunningProcesses_v3", 3),
    ("nvmlDeviceGetGraphicsRunningProcesses_v3", 13),
    ("nvmlDeviceGetMPSComputeRunningProcesses_v3", 3),
    ("nvmlDeviceGetMPSComputeRunningProcesses_v3", 13),
    ("nvmlDeviceGetComputeRunningProcesses_v3", 13),
    ("nvmlDeviceGetProcessUtilization", 6),
}
FIGURES = (
    "memory_total_bytes",
    "memory_used_bytes",
    "gpu_util_percent",
    "memory_util_percent",
    "sm_util_percent",
    "enc_util_percent",
    "dec_util_percent",
)


STATES = ("state", "processes_state", "utilization_state", "mig_enabled")


def figures(sample: NvmlSample) -> dict[Any, Any]:
    """Every figure of a sample, by what it belongs to and its name."""
    found: dict[Any, Any] = {("driver_version",): sample.driver_version}
    for key, owner in owners(sample):
        for name in (*FIGURES, "uuid", "name", "gpu_instance_id", "compute_instance_id"):
            if hasattr(owner, name):
                found[(*key, name)] = getattr(owner, name)
    return found


def states_of(sample: NvmlSample) -> dict[Any, Any]:
    """Every state of a sample."""
    found: dict[Any, Any] = {("state",): sample.state}
    for key, owner in owners(sample):
        found.update(((*key, name), getattr(owner, name, None)) for name in STATES)
    return found


def owners(sample: NvmlSample) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = [((row.device_index, row.pid), row) for row in sample.processes]
    for device in sample.devices:
        found += [((device.index,), device)]
        found += [((device.index, n, "mig"), mig) for n, mig in enumerate(device.mig_devices)]
    return found


@pytest.mark.slow(keep=5)
@pytest.mark.parametrize("call", CALLS)
def test_each_error_of_each_call_is_a_state_and_never_a_wrong_figure(fake_driver, call):
    scene = (
        CARD,
        *MIG,
        f"process 0 compute 101 {3000 * MIB}",
        f"process 0 graphics 102 {30 * MIB}",
        "sample 0 101 100 61 22 3 4",
        "sample 0 102 100 5 6 7 8",
    )
    fake_driver.play(*scene)
    with NvmlSampler(fake_driver.library, host_namespace=True) as sampler:
        sample = sampler.sample()
        healthy, well = figures(sample), states_of(sample)
    for name, code in CODES.items():
        # What the older function refuses, the newer one may answer.
        newer = call.replace("ProcessUtilization", "ProcessesUtilizationInfo")
        fake_driver.play(*scene, f"error {call} {code}", f"error {newer} {code}")
        with NvmlSampler(fake_driver.library, host_namespace=True) as sampler:
            sample = sampler.sample()
            found = figures(sample)
            if (call, code) == ("nvmlDeviceGetProcessUtilization", 6):
                assert {row.sm_util_percent for row in sample.processes} == {0, None}
                continue
            for key, value in found.items():
                assert value is None or value == healthy[key], (name, key)
            if (call, code) not in ANSWERS:
                assert (found, states_of(sample)) != (healthy, well), name
        assert sampler.state is NvmlState.CLOSED
    assert initialisations() == 0


@pytest.mark.parametrize("code", CODES.values(), ids=CODES)
def test_closing_does_not_care_what_the_driver_says(fake_driver, code):
    fake_driver.play(CARD)
    sampler = NvmlSampler(fake_driver.library)
    assert sampler.open() is NvmlState.OK
    fake_driver.play(CARD, f"error nvmlShutdown {code}")
    sampler.close()
    assert sampler.state is NvmlState.CLOSED
    fake_driver.play(CARD)
    pynvml.nvmlShutdown()
    assert initialisations() == 0


def test_a_return_value_of_the_future_keeps_its_number(fake_driver, nvml_sampler):
    fake_driver.play(CARD, "error nvmlDeviceGetCount_v2 777")
    sample = nvml_sampler.sample()
    assert sample.state is NvmlState.FAILED
    assert sample.message is not None
    assert "777" in sample.message


def test_each_state_has_its_own_explanation():
    texts = [state.explanation for state in NvmlState]
    assert all(texts)
    assert len(set(texts)) == len(texts)


def test_a_driver_that_comes_later_is_found_and_one_that_goes_is_missed(fake_driver):
    with NvmlSampler(fake_driver.library) as sampler:
        assert sampler.state is NvmlState.DRIVER_NOT_LOADED
        sample = sampler.sample()
        assert (sample.state, sample.devices) == (NvmlState.DRIVER_NOT_LOADED, ())
        assert sample.message is not None
        assert "modprobe nvidia" in sample.message
        fake_driver.play(CARD)
        assert [device.uuid for device in sampler.sample().devices] == [GPU]
        fake_driver.unload()
        assert sampler.sample().devices == ()
        assert sampler.state is NvmlState.DRIVER_NOT_LOADED
        fake_driver.play(SECOND.replace("device 1", "device 0"))
        assert [device.uuid for device in sampler.sample().devices] == [OTHER]


def test_a_gpu_lost_in_mid_run_keeps_its_name_and_does_not_touch_the_others(
    fake_driver, nvml_sampler
):
    scene = (CARD, SECOND, f"process 0 compute 101 {MIB}", f"process 1 compute 102 {MIB}")
    fake_driver.play(*scene)
    assert [device.state for device in nvml_sampler.sample().devices] == [NvmlState.OK] * 2
    for call in ("nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID", "nvmlDeviceGetMemoryInfo"):
        fake_driver.play(*scene, f"error {call} 15 0")
        sample = nvml_sampler.sample()
        lost, alive = sample.devices
        assert (sample.state, lost.state, alive.state) == (
            NvmlState.OK,
            NvmlState.GPU_IS_LOST,
            NvmlState.OK,
        )
        assert (lost.uuid, lost.name) == (GPU, "NVIDIA H100 80GB HBM3")
        assert (lost.memory_used_bytes, lost.gpu_util_percent) == (None, None)
        assert lost.processes_state is lost.utilization_state is NvmlState.GPU_IS_LOST
        assert [row.pid for row in sample.processes] == [102]
        assert sample.process(GPU, 101) is None
    fake_driver.play(*scene)
    assert [device.state for device in nvml_sampler.sample().devices] == [NvmlState.OK] * 2


VITAL = ("HandleByIndex_v2", "UUID", "Name", "MemoryInfo", "UtilizationRates")


@pytest.mark.parametrize("call", [*VITAL, "ComputeRunningProcesses_v3"])
@pytest.mark.parametrize(
    ("code", "state"),
    [
        (15, NvmlState.GPU_IS_LOST),
        (16, NvmlState.RESET_REQUIRED),
        (999, NvmlState.UNKNOWN_ERROR),
        (17, NvmlState.FAILED),
    ],
)
def test_a_gpu_that_does_not_answer_what_each_one_can_has_failed(
    fake_driver, nvml_sampler, call, code, state
):
    for index in (0, 1):
        fake_driver.play(CARD, SECOND, f"error nvmlDeviceGet{call} {code} {index}")
        sample = nvml_sampler.sample()
        assert [(each.index, each.state) for each in sample.failed] == [(index, state)]


@pytest.mark.parametrize("code", [3, 4, 13])
def test_a_gpu_without_a_figure_or_a_right_to_it_has_not_failed(fake_driver, nvml_sampler, code):
    for call in VITAL:
        fake_driver.play(CARD, f"error nvmlDeviceGet{call} {code} *")
        assert nvml_sampler.sample().failed == ()
    optional = ("ProcessUtilization", "GraphicsRunningProcesses_v3", "MigMode")
    fake_driver.play(CARD, *(f"error nvmlDeviceGet{call} 999 *" for call in optional))
    assert nvml_sampler.sample().failed == ()


def test_any_answer_of_a_gpu_can_say_that_it_is_lost(fake_driver, nvml_sampler):
    for call in ("ProcessUtilization", "GraphicsRunningProcesses_v3", "MigMode"):
        fake_driver.play(CARD, f"error nvmlDeviceGet{call} 16 0")
        (failed,) = nvml_sampler.sample().failed
        assert failed.state is NvmlState.RESET_REQUIRED


@pytest.mark.parametrize("gone", [CARD, SECOND])
def test_a_gpu_that_is_no_longer_listed_is_missed_until_nvml_is_opened_anew(
    fake_driver, nvml_sampler, gone
):
    fake_driver.play(CARD, SECOND)
    assert nvml_sampler.sample().failed == ()
    left = (SECOND if gone == CARD else CARD).replace("device 1", "device 0")
    fake_driver.play(left)
    for _ in range(2):
        sample = nvml_sampler.sample()
        (missed,) = sample.failed
        assert (missed.state, len(sample.devices)) == (NvmlState.NOT_FOUND, 2)
        assert (missed.uuid, missed.index) == ((GPU, 0) if gone == CARD else (OTHER, 1))
    nvml_sampler.close()
    assert len(nvml_sampler.sample().devices) == 1

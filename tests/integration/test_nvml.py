"""The driver's figures: the real nvidia-ml-py, and a fake library in place of the driver's."""

import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pynvml
import pytest
from fake_nvml.driver import STATE, FakeDriver, build
from poke import RegionFile, RegionFileFactory

from libhamiregion import Layout, LockTimeout, RegionReadOnly, open_region
from libhamiregion.host.nvml import NvmlFault, NvmlProcess, NvmlSample, NvmlSampler, NvmlState

MIB = 1 << 20
GPU = "GPU-00000000-0000-0000-0000-000000000000"
OTHER = "GPU-11111111-1111-1111-1111-111111111111"
MIG_A = "MIG-aaaaaaaa-0000-0000-0000-000000000000"
MIG_B = "MIG-bbbbbbbb-0000-0000-0000-000000000000"

CARD = f"device 0 {GPU} {81920 * MIB} {5000 * MIB} 37 12 NVIDIA H100 80GB HBM3"
SECOND = f"device 1 {OTHER} {40960 * MIB} {3000 * MIB} 5 1 NVIDIA A100-SXM4-40GB"
MIG = (
    SECOND,
    "mode 1 mig-on",
    f"mig 1 0 {MIG_A} 7 0 {4864 * MIB} {1000 * MIB} NVIDIA A100-SXM4-40GB MIG 1g.5gb",
    f"mig 1 2 {MIG_B} 3 1 {19968 * MIB} {2000 * MIB} NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb",
    f"process 1.0 compute 301 {900 * MIB}",
    f"process 1.2 compute 302 {1900 * MIB}",
)
# All that `sample` and `process_view` call, as the library exports it.
CALLS = (
    "nvmlInitWithFlags",
    "nvmlSystemGetDriverVersion",
    "nvmlSystemGetProcessName",
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

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs the Linux loader")


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("fake-nvml"))


@pytest.fixture
def fake(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    state = tmp_path / "nvml-scene"
    monkeypatch.setenv(STATE, str(state))
    return FakeDriver(library, state)


@pytest.fixture
def sampler(fake: FakeDriver) -> Iterator[NvmlSampler]:
    """A sampler that sees the host's pids; open, with no scene yet."""
    with NvmlSampler(fake.library, host_namespace=True) as opened:
        yield opened


def initialisations() -> int:
    count: int = pynvml.nvmlLib.fake_nvml_initialised()
    return count


def one(sample: NvmlSample, pid: int) -> NvmlProcess:
    (process,) = (process for process in sample.processes if process.pid == pid)
    return process


def utils(process: NvmlProcess) -> tuple[int | None, ...]:
    return (
        process.sm_util_percent,
        process.memory_util_percent,
        process.enc_util_percent,
        process.dec_util_percent,
    )


def states(faults: tuple[NvmlFault, ...]) -> set[tuple[str, NvmlState]]:
    return {(fault.call, fault.state) for fault in faults}


# ---- devices and processes ----------------------------------------------------------------------


def test_devices_and_processes_are_what_the_driver_says(
    fake: FakeDriver, sampler: NvmlSampler
) -> None:
    fake.play(
        CARD,
        SECOND,
        f"process 0 compute 101 {3000 * MIB}",
        f"process 1 compute 101 {2000 * MIB}",
        "sample 0 101 100000 61 22 3 4",
    )
    sample = sampler.sample()
    assert (sample.state, sample.fault, sample.driver_version) == (
        NvmlState.OK,
        None,
        "570.0-fake",
    )
    first, second = sample.devices
    assert (first.index, first.uuid, first.name) == (0, GPU, "NVIDIA H100 80GB HBM3")
    assert (first.memory_total_bytes, first.memory_used_bytes) == (81920 * MIB, 5000 * MIB)
    assert (first.gpu_util_percent, first.memory_util_percent) == (37, 12)
    assert (first.mig_enabled, first.mig_devices, first.faults) == (False, (), ())
    assert (second.index, second.uuid, second.state) == (1, OTHER, NvmlState.OK)
    on_first, on_second = sample.processes
    assert (on_first.pid, on_first.device_uuid, on_first.kinds) == (101, GPU, ("compute",))
    assert (on_first.memory_used_bytes, utils(on_first)) == (3000 * MIB, (61, 22, 3, 4))
    assert on_first.sampled_at_us is not None
    assert abs(on_first.sampled_at_us * 1000 - sample.taken_at_ns) < 5e9
    assert (on_second.device_uuid, on_second.memory_used_bytes) == (OTHER, 2000 * MIB)
    assert utils(on_second) == (0, 0, 0, 0), "the driver samples busy processes only"
    assert sampler.devices() == sample.devices


def test_a_sample_is_a_value(fake: FakeDriver, sampler: NvmlSampler) -> None:
    fake.play(CARD, *MIG, "process 0 compute 101 unavailable")
    sample = sampler.sample()
    assert sample.process(GPU, 999) is not None
    assert pickle.loads(pickle.dumps(sample)) == sample
    plain = json.loads(json.dumps(attrs.asdict(sample)))
    assert plain["devices"][0]["state"] == "ok"
    assert plain["processes"][0]["faults"][0]["state"] == "no_figure"


def test_a_process_in_several_lists_stands_once_and_its_memory_is_not_added_up(
    fake: FakeDriver, sampler: NvmlSampler
) -> None:
    fake.play(
        CARD,
        f"process 0 compute 101 {300 * MIB}",
        f"process 0 graphics 101 {300 * MIB}",
        f"process 0 graphics 102 {20 * MIB}",
        f"process 0 mps 103 {30 * MIB}",
    )
    assert [(row.pid, row.kinds, row.memory_used_bytes) for row in sampler.processes()] == [
        (101, ("compute", "graphics"), 300 * MIB),
        (102, ("graphics",), 20 * MIB),
        (103, ("mps",), 30 * MIB),
    ]


def test_memory_that_the_driver_does_not_know_is_none_with_its_reason(
    fake: FakeDriver, sampler: NvmlSampler
) -> None:
    fake.play(
        CARD,
        "process 0 compute 101 unavailable",
        "process 0 graphics 101 unavailable",
        "process 0 compute 102 unavailable",
        f"process 0 graphics 102 {7 * MIB}",
        "process 0 compute 103 18446744073709551614",
    )
    first, second, third = sampler.processes()
    assert first.memory_used_bytes is None
    reason = first.reason("memory_used_bytes")
    assert reason is not None
    assert reason.state is NvmlState.NO_FIGURE
    assert first.reason("sm_util_percent") is None
    assert (second.memory_used_bytes, second.faults) == (7 * MIB, ())
    assert third.memory_used_bytes is None
    assert [fault.state for fault in third.faults] == [NvmlState.OUT_OF_RANGE]


def test_an_older_driver_is_asked_with_the_second_version(
    fake: FakeDriver, sampler: NvmlSampler
) -> None:
    fake.play(
        CARD,
        f"process 0 compute 101 {MIB}",
        f"process 0 graphics 102 {MIB}",
        "error nvmlDeviceGetComputeRunningProcesses_v3 13",
        "error nvmlDeviceGetGraphicsRunningProcesses_v3 13",
        "error nvmlDeviceGetMPSComputeRunningProcesses_v3 13",
        "error nvmlDeviceGetMPSComputeRunningProcesses_v2 13",
    )
    assert [row.pid for row in sampler.processes()] == [101, 102]
    assert sampler.devices()[0].processes_state is NvmlState.OK


@pytest.mark.parametrize(
    "call", ["nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetProcessUtilization"]
)
def test_a_list_that_grows_while_it_is_read_is_read_again_but_not_for_ever(
    fake: FakeDriver, sampler: NvmlSampler, call: str
) -> None:
    fake.play(CARD, f"process 0 compute 101 {MIB}", "sample 0 101 100 9 0 0 0", f"grow {call} 3")
    process = one(sampler.sample(), 101)
    assert (process.memory_used_bytes, process.sm_util_percent, process.faults) == (MIB, 9, ())
    fake.add(f"grow {call} 1000000")
    sample = sampler.sample()
    assert (call, NvmlState.INSUFFICIENT_SIZE) in states(sample.devices[0].faults)
    for process in sample.processes:
        assert None in (process.memory_used_bytes, process.sm_util_percent)


def test_more_processes_than_the_first_guess_are_all_listed(
    fake: FakeDriver, sampler: NvmlSampler
) -> None:
    pids = range(1000, 1500)
    fake.play(
        CARD,
        *(f"process 0 compute {pid} {MIB}" for pid in pids),
        *(f"sample 0 {pid} 5 1 0 0 0" for pid in pids),
    )
    sample = sampler.sample()
    assert [row.pid for row in sample.processes] == list(pids)
    assert {row.sm_util_percent for row in sample.processes} == {1}


# ---- utilisation --------------------------------------------------------------------------------


@pytest.mark.parametrize("quirk", [(), ("quirk stale-samples",)], ids=["", "stale"])
def test_only_samples_of_the_last_second_count_and_the_newest_wins(
    fake: FakeDriver, sampler: NvmlSampler, quirk: tuple[str, ...]
) -> None:
    fake.play(
        CARD,
        *(f"process 0 compute {pid} {MIB}" for pid in (101, 102, 103)),
        "sample 0 101 200000 70 7 1 2",
        "sample 0 101 500000 30 3 0 0",
        "sample 0 102 1500000 90 9 0 0",
        "sample 0 103 2500000 50 5 0 0",
        "sample 0 104 100000 11 1 0 0",
        *quirk,
    )
    sample = sampler.sample()
    newest, between, idle = sample.processes
    assert utils(newest) == (70, 7, 1, 2)
    assert utils(between) == (None,) * 4, "busy a moment ago: neither 90 nor 0 is known"
    reason = between.reason("sm_util_percent")
    assert reason is not None
    assert reason.state is NvmlState.NO_SAMPLE
    assert utils(idle) == (0, 0, 0, 0)
    assert [(row.pid, row.sm_util_percent) for row in sampler.sample_view()] == [
        (101, 70),
        (101, 30),
        (104, 11),
    ]
    assert sample.process(GPU, 104) is None, "it came or went in this moment"


def test_outside_the_host_namespace_silence_proves_nothing(fake: FakeDriver) -> None:
    fake.play(CARD, f"process 0 compute 12 {MIB}", "sample 0 645400 100 13 0 0 0")
    with NvmlSampler(fake.library, host_namespace=False) as sampler:
        sample = sampler.sample()
        (process,) = sample.processes
        assert (process.pid, process.memory_used_bytes, utils(process)) == (12, MIB, (None,) * 4)
        assert sample.process(GPU, 13) is None
        assert [row.pid for row in sampler.sample_view()] == [645400]


def test_a_percentage_that_cannot_be_is_none_and_the_others_stay(
    fake: FakeDriver, sampler: NvmlSampler
) -> None:
    fake.play(
        f"device 0 {GPU} {MIB} {MIB} 4294967295 3 card",
        f"process 0 compute 101 {MIB}",
        "sample 0 101 100 2147483632 22 101 100",
    )
    sample = sampler.sample()
    (process,) = sample.processes
    assert utils(process) == (None, 22, None, 100)
    assert {fault.figure for fault in process.faults} == {"sm_util_percent", "enc_util_percent"}
    assert {fault.state for fault in process.faults} == {NvmlState.OUT_OF_RANGE}
    (device,) = sample.devices
    assert (device.gpu_util_percent, device.memory_util_percent) == (None, 3)
    assert sampler.sample_view()[0].sm_util_percent is None


def test_with_the_list_refused_samples_still_show_who_is_busy(
    fake: FakeDriver, sampler: NvmlSampler
) -> None:
    fake.play(
        CARD,
        f"process 0 compute 101 {MIB}",
        "sample 0 101 100 44 0 0 0",
        "error nvmlDeviceGetComputeRunningProcesses_v3 4",
    )
    sample = sampler.sample()
    (process,) = sample.processes
    assert (process.pid, process.memory_used_bytes, process.sm_util_percent) == (101, None, 44)
    reason = process.reason("memory_used_bytes")
    assert reason is not None
    assert reason.state is NvmlState.NO_PERMISSION
    assert sample.devices[0].processes_state is NvmlState.NO_PERMISSION
    assert sample.process(GPU, 999) is None


# ---- MIG ----------------------------------------------------------------------------------------


def test_mig_devices_have_their_instances_their_profile_and_their_processes(
    fake: FakeDriver, sampler: NvmlSampler
) -> None:
    fake.play(CARD, *MIG, f"process 1 graphics 303 {MIB}", "sample 1 301 100 80 0 0 0")
    sample = sampler.sample()
    card = sample.devices[1]
    assert card.mig_enabled is True
    first, second = card.mig_devices
    assert (first.slot, first.uuid, first.profile) == (0, MIG_A, "1g.5gb")
    assert (first.gpu_instance_id, first.compute_instance_id) == (7, 0)
    assert (first.memory_total_bytes, first.memory_used_bytes) == (4864 * MIB, 1000 * MIB)
    assert (second.slot, second.uuid, second.profile) == (2, MIG_B, "1c.3g.20gb")
    assert (second.gpu_instance_id, second.compute_instance_id) == (3, 1)
    assert first.utilization_state is NvmlState.NOT_SUPPORTED
    assert [(row.device_uuid, row.pid, row.memory_used_bytes) for row in sample.processes] == [
        (OTHER, 303, MIB),
        (MIG_A, 301, 900 * MIB),
        (MIG_B, 302, 1900 * MIB),
    ]
    for process in sample.processes:
        assert utils(process) == (None,) * 4, "the driver samples nothing under MIG"
        reason = process.reason("sm_util_percent")
        assert reason is not None
        assert reason.state is NvmlState.NOT_SUPPORTED
    idle = sample.process(MIG_A, 999)
    assert idle is not None
    assert (idle.memory_used_bytes, idle.sm_util_percent) == (0, None)
    assert sample.process(OTHER, 301) is None


def test_a_mig_device_that_refuses_its_list_is_read_from_the_list_of_its_gpu(
    fake: FakeDriver, sampler: NvmlSampler
) -> None:
    fake.play(*MIG[1:], SECOND.replace("device 1", "device 0"))
    fake.play(
        *(line.replace(" 1 ", " 0 ", 1).replace(" 1.", " 0.", 1) for line in MIG),
        "error nvmlDeviceGetComputeRunningProcesses_v3 3 0.0",
    )
    sample = sampler.sample()
    assert [(row.device_uuid, row.pid, row.memory_used_bytes) for row in sample.processes] == [
        (MIG_A, 301, 900 * MIB),
        (MIG_B, 302, 1900 * MIB),
    ]


def test_a_gpu_with_mig_on_and_no_permission_for_its_own_list_shows_its_mig_devices(
    fake: FakeDriver, sampler: NvmlSampler
) -> None:
    fake.play(CARD, *MIG, "error nvmlDeviceGetComputeRunningProcesses_v3 4 1")
    sample = sampler.sample()
    assert {row.pid for row in sample.processes} == {301, 302}
    card = sample.devices[1]
    assert card.processes_state is NvmlState.NO_PERMISSION
    assert [mig.processes_state for mig in card.mig_devices] == [NvmlState.OK] * 2


# ---- faults -------------------------------------------------------------------------------------

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


def figures(sample: NvmlSample, view: tuple[NvmlProcess, ...]) -> dict[Any, int | None]:
    """Every figure of a sample, by what it belongs to and its name."""
    found: dict[Any, int | None] = {}
    owners: list[tuple[Any, Any]] = [((row.device_index, row.pid), row) for row in view]
    for device in sample.devices:
        owners += [((device.index,), device)]
        owners += [((device.index, "mig", mig.slot), mig) for mig in device.mig_devices]
    for key, owner in owners:
        for name in FIGURES:
            if hasattr(owner, name):
                found[(*key, name)] = getattr(owner, name)
    return found


def all_faults(sample: NvmlSample, view: tuple[NvmlProcess, ...]) -> tuple[NvmlFault, ...]:
    faults = () if sample.fault is None else (sample.fault,)
    for owner in (*view, *sample.devices):
        faults += owner.faults
    for device in sample.devices:
        for mig in device.mig_devices:
            faults += mig.faults
    return faults


@pytest.mark.parametrize("call", CALLS)
def test_each_error_of_each_call_is_a_state_and_never_a_wrong_figure(
    fake: FakeDriver, call: str
) -> None:
    scene = (
        CARD,
        *MIG,
        f"process 0 compute 101 {3000 * MIB}",
        f"process 0 graphics 102 {30 * MIB}",
        "sample 0 101 100 61 22 3 4",
        "sample 0 102 100 5 6 7 8",
        *(f"name {pid} program-{pid}" for pid in (101, 102, 301, 302)),
    )
    fake.play(*scene)
    with NvmlSampler(fake.library, host_namespace=True) as sampler:
        healthy = figures(sampler.sample(), sampler.process_view())
    for name, code in CODES.items():
        fake.play(*scene, f"error {call} {code}")
        with NvmlSampler(fake.library, host_namespace=True) as sampler:
            sample, view = sampler.sample(), sampler.process_view()
            found = figures(sample, view)
            if (call, code) == ("nvmlDeviceGetProcessUtilization", 6):
                assert {row.sm_util_percent for row in view} == {0, None}
                continue
            for key, value in found.items():
                assert value is None or value == healthy[key], (name, key)
            faults = all_faults(sample, view)
            named = {(fault.call.removesuffix("_v2"), fault.state.value) for fault in faults}
            if (call, code) not in ANSWERS:
                assert (call.removesuffix("_v2"), name) in named, name
            assert all(fault.message and fault.code == code for fault in faults if
                       fault.call == call)  # fmt: skip
        assert sampler.state is NvmlState.CLOSED
    assert initialisations() == 0


@pytest.mark.parametrize("code", CODES.values(), ids=CODES)
def test_closing_does_not_care_what_the_driver_says(fake: FakeDriver, code: int) -> None:
    fake.play(CARD)
    sampler = NvmlSampler(fake.library)
    assert sampler.open() is NvmlState.OK
    fake.play(CARD, f"error nvmlShutdown {code}")
    sampler.close()
    assert sampler.state is NvmlState.CLOSED
    fake.play(CARD)
    pynvml.nvmlShutdown()
    assert initialisations() == 0


def test_a_return_value_of_the_future_keeps_its_number(
    fake: FakeDriver, sampler: NvmlSampler
) -> None:
    fake.play(CARD, "error nvmlDeviceGetMemoryInfo 777")
    (device,) = sampler.devices()
    reason = device.reason("memory_used_bytes")
    assert reason is not None
    assert (reason.state, reason.code) == (NvmlState.UNDOCUMENTED, 777)
    assert "777" in reason.message


def test_every_documented_return_value_has_a_state_and_every_state_an_explanation() -> None:
    # Older releases of nvidia-ml-py know fewer of them.
    assert set(CODES) <= {state.value for state in NvmlState}
    texts = [state.explanation for state in NvmlState]
    assert all(texts)
    assert len(set(texts)) == len(texts)


def test_a_driver_that_comes_later_is_found_and_one_that_goes_is_missed(fake: FakeDriver) -> None:
    with NvmlSampler(fake.library) as sampler:
        assert sampler.state is NvmlState.DRIVER_NOT_LOADED
        sample = sampler.sample()
        assert (sample.state, sample.devices) == (NvmlState.DRIVER_NOT_LOADED, ())
        assert sample.fault is not None
        assert "modprobe nvidia" in sample.fault.message
        fake.play(CARD)
        assert [device.uuid for device in sampler.devices()] == [GPU]
        fake.unload()
        assert sampler.devices() == ()
        assert sampler.state is NvmlState.DRIVER_NOT_LOADED
        fake.play(SECOND.replace("device 1", "device 0"))
        assert [device.uuid for device in sampler.devices()] == [OTHER]
    fake.play(CARD)
    # The fake driver went without its initialisation being given back.
    while initialisations():
        pynvml.nvmlShutdown()


def test_a_gpu_lost_in_mid_run_keeps_its_name_and_does_not_touch_the_others(
    fake: FakeDriver, sampler: NvmlSampler
) -> None:
    scene = (CARD, SECOND, f"process 0 compute 101 {MIB}", f"process 1 compute 102 {MIB}")
    fake.play(*scene)
    assert [device.state for device in sampler.devices()] == [NvmlState.OK] * 2
    for call in ("nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID", "nvmlDeviceGetMemoryInfo"):
        fake.play(*scene, f"error {call} 15 0")
        sample = sampler.sample()
        lost, alive = sample.devices
        assert (sample.state, lost.state, alive.state) == (
            NvmlState.OK,
            NvmlState.GPU_IS_LOST,
            NvmlState.OK,
        )
        assert (lost.uuid, lost.name) == (GPU, "NVIDIA H100 80GB HBM3")
        assert (lost.memory_used_bytes, lost.gpu_util_percent) == (None, None)
        for figure in ("memory_used_bytes", "gpu_util_percent", "mig_enabled"):
            reason = lost.reason(figure)
            assert reason is not None
            assert reason.state is NvmlState.GPU_IS_LOST
        assert lost.processes_state is lost.utilization_state is NvmlState.GPU_IS_LOST
        assert [row.pid for row in sample.processes] == [102]
        assert sample.process(GPU, 101) is None
    fake.play(*scene)
    assert [device.state for device in sampler.devices()] == [NvmlState.OK] * 2


# ---- opening and closing ------------------------------------------------------------------------


def test_initialisations_are_given_back_however_it_is_opened(fake: FakeDriver) -> None:
    fake.play(CARD)
    sampler = NvmlSampler(fake.library)
    assert sampler.state is NvmlState.CLOSED
    assert len(sampler.devices()) == 1, "the first question opens it"
    assert initialisations() == 1
    with sampler, sampler, NvmlSampler(fake.library) as other:
        assert initialisations() == 2
        other.devices()
    assert (sampler.state, initialisations()) == (NvmlState.CLOSED, 0)
    sampler.close()
    assert initialisations() == 0
    assert repr(sampler) == "<NvmlSampler closed>"


def test_somebody_elses_shutdown_is_survived(fake: FakeDriver) -> None:
    fake.play(CARD)
    with NvmlSampler(fake.library) as sampler:
        pynvml.nvmlShutdown()
        assert sampler.sample().state is NvmlState.OK
        assert initialisations() == 1
    assert initialisations() == 0


def test_threads_share_a_sampler(fake: FakeDriver) -> None:
    fake.play(CARD, f"process 0 compute 101 {MIB}")
    sampler = NvmlSampler(fake.library)
    failures: list[BaseException] = []

    def ask() -> None:
        try:
            for _ in range(20):
                with sampler:
                    sample = sampler.sample()
                assert (sample.state, len(sample.processes)) == (NvmlState.OK, 1)
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert initialisations() == 0


def test_a_window_is_longer_than_nothing() -> None:
    with pytest.raises(ValueError, match="longer than 0 s"):
        NvmlSampler(window_s=0)


def run_python(code: str, env: dict[str, str]) -> str:
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_nvidia_ml_py_finds_the_library_by_itself(fake: FakeDriver) -> None:
    fake.play(CARD)
    code = (
        "from libhamiregion.host.nvml import NvmlSampler\n"
        "with NvmlSampler() as sampler: print(sampler.devices()[0].uuid)"
    )
    assert run_python(code, fake.environment()) == GPU


def test_nvidia_ml_py_is_imported_by_the_first_question_only(fake: FakeDriver) -> None:
    fake.play(CARD)
    code = (
        "import sys\n"
        "from libhamiregion.host.nvml import NvmlSampler\n"
        "sampler = NvmlSampler()\n"
        "before = 'pynvml' in sys.modules\n"
        "sampler.devices()\n"
        "print(before, 'pynvml' in sys.modules)"
    )
    assert run_python(code, fake.environment()) == "False True"


def test_without_the_library_or_the_package_there_is_a_state(fake: FakeDriver) -> None:
    ask = (
        "from libhamiregion.host.nvml import NvmlSampler\n"
        "sampler = NvmlSampler(LIBRARY)\n"
        "sample = sampler.sample()\n"
        "print(sampler.state.value, sample.fault.message, sampler.process_view())"
    )
    missing = "LIBRARY = '/nonexistent/libnvidia-ml.so.1'\n" + ask
    told = run_python(missing, dict(os.environ))
    assert told.startswith("library_not_found dlopen: libnvidia-ml.so.1 cannot be loaded")
    no_package = "import sys; sys.modules['pynvml'] = None; LIBRARY = None\n" + ask
    told = run_python(no_package, fake.environment())
    assert told.startswith("package_missing")
    assert "pip install nvidia-ml-py" in told


def test_without_any_library_nvidia_ml_pys_own_search_fails_the_same_way() -> None:
    code = (
        "import ctypes\n"
        "def refuse(*args, **options): raise OSError('no such library')\n"
        "import pynvml; pynvml.CDLL = refuse\n"
        "from libhamiregion.host.nvml import NvmlSampler\n"
        "print(NvmlSampler().open().value)"
    )
    assert run_python(code, dict(os.environ)) == "library_not_found"


# ---- the two views ------------------------------------------------------------------------------


def test_the_process_view_has_names_whatever_they_are(
    fake: FakeDriver, sampler: NvmlSampler
) -> None:
    fake.play(
        CARD,
        f"process 0 compute 101 {300 * MIB}",
        f"process 0 compute 102 {MIB}",
        f"process 0 compute 103 {MIB}",
        "sample 0 101 100 61 0 0 0",
        "name 101 /usr/bin/python3 train.py",
        "name 102 \x1b[31mred\udcff\udcfe",
    )
    named, hostile, gone = sampler.process_view()
    assert (named.pid, named.name, named.memory_used_bytes, named.sm_util_percent) == (
        101,
        "/usr/bin/python3 train.py",
        300 * MIB,
        61,
    )
    assert hostile.name == "\x1b[31mred\\xff\\xfe"
    assert gone.name is None
    reason = gone.reason("name")
    assert reason is not None
    assert (reason.call, reason.state) == ("nvmlSystemGetProcessName", NvmlState.NOT_FOUND)
    assert sampler.processes()[0].name is None


# ---- regions ------------------------------------------------------------------------------------


def with_slots(file: RegionFile, *pids: int) -> RegionFile:
    for slot, pid in enumerate(pids):
        file.put("slot_pid", pid, slot=slot)
        file.put("slot_status", 1, slot=slot)
    file.put("proc_num", len(pids))
    return file


def test_figures_reach_the_right_slots_in_every_layout(
    fake: FakeDriver, sampler: NvmlSampler, region_file: RegionFileFactory, layout: Layout
) -> None:
    fake.play(
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
        planned = sampler.write(region, mapping, dry_run=True)
        assert region.snapshot().processes[0].devices[1].memory_monitor_bytes == 0
        written = sampler.write(region, mapping)
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
        assert sampler.write(region, mapping) == (), "what stands there is not written again"


def test_what_is_unknown_stays_and_what_is_known_to_be_nothing_becomes_0(
    fake: FakeDriver, sampler: NvmlSampler, region_file: RegionFileFactory
) -> None:
    file = with_slots(region_file(uuids=[GPU, OTHER, MIG_A]), 11)
    for device in range(3):
        file.put("slot_monitorused", 5 * MIB, device=device)
        for part in ("sm", "enc", "dec"):
            file.put(f"slot_util.{part}", 55, device=device)
    fake.play(
        CARD,
        "process 0 compute 4101 unavailable",
        "sample 0 4101 100 61 0 4294967295 0",
        SECOND,
        "error nvmlDeviceGetProcessUtilization 999 1",
    )
    with open_region(file, writable=True) as region:
        written = sampler.write(region, {11: 4101})
        assert {(c.field, c.device, c.before, c.after) for c in written} == {
            ("sm_util_percent", 0, 55, 61),
            ("dec_util_percent", 0, 55, 0),
            ("monitor_used_bytes", 1, 5 * MIB, 0),
        }
        fake.add("error nvmlDeviceGetComputeRunningProcesses_v3 4")
        assert sampler.write(region, {11: 7777}) == ()
        fake.unload()
        assert sampler.write(region, {11: 4101}) == ()


def test_a_mig_device_is_matched_by_its_own_uuid(
    fake: FakeDriver, sampler: NvmlSampler, region_file: RegionFileFactory
) -> None:
    fake.play(CARD, *MIG)
    file = with_slots(region_file(uuids=[MIG_B]), 11)
    file.put("slot_util.sm", 55)
    with open_region(file, writable=True) as region:
        (change,) = sampler.write(region, {11: 302})
        assert (change.field, change.device, change.after) == (
            "monitor_used_bytes",
            0,
            1900 * MIB,
        )
        assert region.snapshot().processes[0].devices[0].sm_util_percent == 55


def test_one_sample_serves_many_regions(
    fake: FakeDriver, sampler: NvmlSampler, region_file: RegionFileFactory
) -> None:
    fake.play(CARD, *(f"process 0 compute {pid} {pid * MIB}" for pid in range(1, 9)))
    sample = sampler.sample()
    fake.unload()
    for pid in range(1, 9):
        with open_region(with_slots(region_file(uuids=[GPU]), 11), writable=True) as region:
            (change,) = sampler.write(region, {11: pid}, sample=sample)
            assert change.after == pid * MIB


def test_a_region_without_uuids_or_without_mapped_processes_is_left_alone(
    fake: FakeDriver, sampler: NvmlSampler, region_file: RegionFileFactory
) -> None:
    fake.play(CARD, f"process 0 compute 11 {MIB}")
    for file in (region_file(memory_limits=["1GiB"]), region_file(uuids=[GPU])):
        with open_region(with_slots(file, 11), writable=True) as region:
            mapping = {} if region.device_count else {11: 11}
            assert sampler.write(region, mapping) == ()
            assert sampler.write(region, {11: 0}) == ()


def test_a_write_that_the_region_refuses_says_so(
    fake: FakeDriver, sampler: NvmlSampler, region_file: RegionFileFactory
) -> None:
    fake.play(CARD, f"process 0 compute 4101 {MIB}")
    file = with_slots(region_file(uuids=[GPU]), 11)
    with open_region(file) as region, pytest.raises(RegionReadOnly):
        sampler.write(region, {11: 4101})
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
                sampler.write(region, {11: 4101}, timeout_s=0.05)
        finally:
            done.set()
            thread.join()


# ---- a real card --------------------------------------------------------------------------------

# Becomes a process of the first GPU by the CUDA driver's own functions, and looks at itself.
REAL = """
import ctypes, json, os, pathlib, sys, time
from libhamiregion import create_region, open_region
from libhamiregion.host.nvml import NvmlSampler, NvmlState

with NvmlSampler() as sampler:
    if sampler.state is not NvmlState.OK or not sampler.devices():
        print(json.dumps({"skip": sampler.state.value}))
        sys.exit()
    cuda = ctypes.CDLL("libcuda.so.1")
    context, address = ctypes.c_void_p(), ctypes.c_uint64()
    assert cuda.cuInit(0) == 0
    device = ctypes.c_int()
    assert cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    assert cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(256 << 20)) == 0
    sample = sampler.sample()
    mine = [row for row in sampler.process_view() if row.pid == os.getpid()]
    changes = []
    if mine:
        path = pathlib.Path(sys.argv[1]) / "real.cache"
        create_region(path, uuids=[mine[0].device_uuid])
        with open_region(path, writable=True) as region, region.attach():
            changes = sampler.write(region, {os.getpid(): os.getpid()}, sample=sample)
    print(json.dumps({
        "state": sample.state.value,
        "driver": sample.driver_version,
        "devices": [
            [d.uuid, d.name, d.memory_total_bytes, d.memory_used_bytes, d.mig_enabled,
             d.processes_state.value, d.utilization_state.value]
            for d in sample.devices
        ],
        "mine": [[row.device_uuid, row.name, row.memory_used_bytes] for row in mine],
        "changes": [[change.field, change.after] for change in changes],
        "all": sample.sees_all_processes,
    }))
"""


@pytest.mark.gpu
def test_a_real_card_tells_of_itself_and_of_a_process_on_it(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name != STATE}
    command = [sys.executable, "-c", REAL, str(tmp_path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    if "skip" in told:
        pytest.skip(f"no NVIDIA GPU: {told['skip']}")
    assert told["state"] == "ok"
    assert told["driver"]
    for uuid, name, total, used, _, processes, utilization in told["devices"]:
        assert uuid.startswith("GPU-")
        assert name
        assert 0 < used <= total
        assert processes == "ok"
        assert utilization in {"ok", "not_supported"}
    if told["all"]:
        assert told["mine"], "on the host the driver lists this very process"
    for uuid, name, used in told["mine"]:
        assert uuid.startswith(("GPU-", "MIG-"))
        assert name
        assert used is None or used >= 256 << 20
    if told["mine"] and told["mine"][0][2] is not None:
        assert ["monitor_used_bytes", told["mine"][0][2]] in told["changes"]

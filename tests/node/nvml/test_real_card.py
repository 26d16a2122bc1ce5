"""NVML with a real card."""

import json
import os
import sys

import pytest
from fake_nvml.driver import STATE
from support.process import finished

# Becomes a process of the first GPU by the CUDA driver's own functions, and looks at itself.
REAL = """
import ctypes, json, os, sys
from libhamiregion.node.nvml import NvmlSampler, NvmlState

with NvmlSampler() as sampler:
    if sampler.state is not NvmlState.OK or not sampler.sample().devices:
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
    mine = sample.of_pid(os.getpid())
    print(json.dumps({
        "state": sample.state.value,
        "driver": sample.driver_version,
        "devices": [
            [d.uuid, d.name, d.memory_total_bytes, d.memory_used_bytes, d.mig_enabled,
             d.processes_state.value, d.utilization_state.value]
            for d in sample.devices
        ],
        "mine": [[row.device_uuid, row.memory_used_bytes] for row in mine],
        "all": sample.sees_all_processes,
    }))
"""


@pytest.mark.gpu
def test_a_real_card_tells_of_itself_and_of_a_process_on_it():
    env = {name: value for name, value in os.environ.items() if name != STATE}
    command = [sys.executable, "-c", REAL]
    done = finished(command, env=env)
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
    for uuid, used in told["mine"]:
        assert uuid.startswith(("GPU-", "MIG-"))
        assert used is None or used >= 256 << 20


SENSORS = """
import json
from libhamiregion.node.nvml import NvmlSampler

with NvmlSampler(sensors=True) as sampler:
    print(json.dumps({
        "state": sampler.sample().state.value,
        "devices": [
            [d.temperature_celsius, d.power_usage_watts, d.ecc_corrected_errors,
             d.ecc_uncorrected_errors]
            for d in sampler.sample().devices
        ],
    }))
"""


@pytest.mark.gpu
def test_a_real_card_has_sensors_in_a_possible_range():
    env = {name: value for name, value in os.environ.items() if name != STATE}
    command = [sys.executable, "-c", SENSORS]
    done = finished(command, env=env)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    if not told["devices"]:
        pytest.skip(f"no NVIDIA GPU: {told['state']}")
    for temperature, power, corrected, uncorrected in told["devices"]:
        assert temperature is None or 5 < temperature < 120
        assert power is None or 1 < power < 2000
        assert corrected is None or corrected >= 0
        assert uncorrected is None or uncorrected >= 0

"""A process on a real card, in `hamiregion ps`."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from fake_nvml.driver import STATE
from support.command_line import run

from libhamiregion.node import NvmlSampler, NvmlState
from libhamiregion.node.procfs import initial_pid_namespace

# Becomes a process of the first GPU by the CUDA driver's own functions, with a slot in a region.
WORKER = """
import ctypes, sys
from libhamiregion import create_region, open_region
from libhamiregion.node import NvmlSampler

with NvmlSampler() as sampler:
    uuid = sampler.sample().devices[0].uuid
cuda = ctypes.CDLL("libcuda.so.1")
context, address, device = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_int()
assert cuda.cuInit(0) == 0
assert cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(256 << 20)) == 0
create_region(sys.argv[1], uuids=[uuid])
with open_region(sys.argv[1], writable=True) as region, region.attach() as slot:
    slot.charge(0, 256 << 20)
    print(flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def worker(tmp_path) -> Iterator[int]:
    with NvmlSampler() as sampler:
        sample = sampler.sample()
    if sample.state is not NvmlState.OK or not sample.devices:
        pytest.skip(f"no NVIDIA GPU: {sample.state.value}")
    if initial_pid_namespace() != "pid:[4026531836]" or not sample.sees_all_processes:
        pytest.skip("the driver reports the host's pids: run it there with -m gpu")
    directory = tmp_path / "0b5c1e64-27a1-4a1c-8a3c-7ab0d3ad3b0f_main"
    directory.mkdir()
    command = [sys.executable, "-c", WORKER, str(directory / "usage.cache")]
    env = {name: value for name, value in os.environ.items() if name != STATE}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=env, **pipes) as process:
        assert process.stdout.readline() == b"\n"
        yield process.pid
        process.kill()


@pytest.mark.gpu
def test_a_process_on_a_real_card_is_counted_and_driven(worker, tmp_path):
    answer = run("ps", "--root", str(tmp_path), "--json")
    assert answer.returncode == 0, answer.stderr
    found = json.loads(answer.stdout)
    assert found["driver"]["state"] == "ok"
    (process,) = [each for each in found["processes"] if each["host_pid"] == worker]
    assert (process["state"], process["container"]) == ("alive", "main")
    (device,) = process["devices"]
    assert device["memory_used_bytes"] == 256 << 20
    assert device["memory_driver_bytes"] is None or device["memory_driver_bytes"] >= 256 << 20

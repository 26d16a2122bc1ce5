"""A GPU that answers less than the others stops only the program that wants it."""

import sys

import pytest
from support.run_scene import RunScene

ALLOCATE = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
cuda.cuInit(0)
device, context, pointer = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
cuda.cuDeviceGet(ctypes.byref(device), 0)
cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device)
print([cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(3 << 30)) for _ in range(2)])
"""


def rules(runs: RunScene, *lines: str) -> dict[str, str]:
    """Have NVML answer by these rules, and programs use CUDA."""
    path = runs.base.parent / "rules"
    path.write_text("".join(f"{line}\n" for line in ("driver 580.95.05", *lines)))
    return {"FAKE_NVML_STATE": str(path)}


def test_a_gpu_with_unified_memory_has_a_budget_in_bytes(runs):
    """NVML does not say how much it has."""
    silent = rules(runs, "error nvmlDeviceGetMemoryInfo 3 *")
    program = (sys.executable, "-I", "-S", "-c", ALLOCATE)
    done = runs.run("--memory", "4GiB", "--", *program, **silent)
    assert (done.stdout, done.returncode) == ("[0, 2]\n", 0), done.stderr


def test_a_part_of_unified_memory_is_refused(runs):
    silent = rules(runs, "error nvmlDeviceGetMemoryInfo 3 *")
    done = runs.run("--memory", "80%", "--", "echo", "ran", **silent)
    assert (done.stdout, done.returncode) == ("", 1)
    assert "unified memory" in done.stderr


@pytest.mark.parametrize(
    "rule", ["nvmlDeviceGetMemoryInfo 15", "nvmlDeviceGetMemoryInfo 999", "nvmlDeviceGetUUID 15"]
)
def test_a_lost_gpu_stops_only_programs_that_want_it(runs, rule):
    lost = rules(runs, f"error {rule} 1")
    wanted = ("--memory", "4GiB", "--", "echo", "ran")
    done = runs.run("--gpus", "0", *wanted, CUDA_VISIBLE_DEVICES="0", **lost)
    assert (done.stdout, done.stderr) == ("ran\n", "")
    assert runs.run("--gpus", "0", *wanted, **lost).stdout == "ran\n"
    done = runs.run(*wanted, **lost)
    assert done.returncode == 1
    assert "GPU 1 cannot be used" in done.stderr

"""Programs that nobody here wrote, unchanged, on the fake driver: as they are, and with a limit."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
from fake_cuda.driver import gpu_uuid
from support.process import finished

from libhamiregion.units import GIB, MIB

CLIENTS = Path(__file__).parent / "clients"
CONTEXT = 256 * MIB
TOTAL = 16 * GIB


def need(module: str) -> None:
    """Skip where a client is not installed.

    pip install cuda-bindings numba-cuda nvidia-cuda-runtime tinygrad nvitop gpustat
    """
    name = module.partition(".")[0]
    if importlib.util.find_spec(name) is None or importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")


def python(environment: dict[str, str], *arguments: str) -> str:
    done = finished([sys.executable, *arguments], env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("module", "script"),
    [
        ("cuda.bindings", "bindings.py"),
        ("numba.cuda", "numba_arrays.py"),
        ("tinygrad", "tinygrad_graph.py"),
    ],
)
def test_a_client_works_and_is_held_to_its_limit(limited, gpus, inject, module, script):
    need(module)
    scene = limited(memory=[GIB], inject=inject)
    client = str(CLIENTS / script)
    assert python(gpus.environment(), client, str(GIB)).split("\n")[:2] == [
        f"{TOTAL - CONTEXT} {TOTAL}",
        "CUDA_SUCCESS",
    ]
    assert python(scene.environment(), client, str(GIB)).split("\n")[:2] == [
        f"{GIB - CONTEXT} {GIB}",
        "CUDA_ERROR_OUT_OF_MEMORY",
    ]
    assert scene.region.snapshot().processes == ()


def test_nvidia_ml_py_sees_the_budget(limited, gpus, inject):
    scene = limited(memory=[GIB], inject=inject)
    scene.program().start().allocate(100 * MIB)
    used = CONTEXT + 100 * MIB
    client = str(CLIENTS / "nvml.py")
    identity = f"{gpu_uuid(0)} NVIDIA Fake GPU"
    bare = python(gpus.environment(), client)
    assert bare.splitlines() == [f"{TOTAL} {TOTAL - used} {used}", identity]
    ours = python(scene.environment(), client)
    assert ours.splitlines() == [f"{GIB} {GIB - used} {used}", identity]


def test_nvitop_sees_the_budget_and_who_uses_it(limited, inject):
    need("nvitop")
    scene = limited(memory=[2 * GIB], inject=inject)
    program = scene.program().start()
    program.allocate(256 * MIB)
    shown = python(scene.environment(COLUMNS="120"), "-m", "nvitop", "--once", "--colorful")
    assert "512.0MiB / 2048MiB" in shown or "512MiB / 2048MiB" in shown
    assert str(program.pid) in shown


def test_gpustat_sees_the_budget_and_who_uses_it(limited, inject):
    need("gpustat")
    scene = limited(memory=[2 * GIB], inject=inject)
    program = scene.program().start()
    program.allocate(256 * MIB)
    first, second = json.loads(python(scene.environment(), "-m", "gpustat", "--json"))["gpus"]
    assert (first["memory.used"], first["memory.total"]) == (512, 2048)
    assert [process["pid"] for process in first["processes"]] == [program.pid]
    assert (second["memory.used"], second["memory.total"]) == (0, TOTAL // MIB)

"""Programs that nobody here wrote, unchanged, on the fake driver: as they are, and with a limit."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from fake_cuda.driver import GIB, MIB, FakeGpus, gpu_uuid
from support.limited import Limited

CLIENTS = Path(__file__).parent / "clients"
CONTEXT = 256 * MIB
TOTAL = 16 * GIB

Make = Callable[..., Limited]


def python(environment: dict[str, str], *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_nvidia_ml_py_sees_the_budget(limited: Make, gpus: FakeGpus, inject: str) -> None:
    scene = limited(memory=[GIB], inject=inject)
    scene.program().start().allocate(100 * MIB)
    used = CONTEXT + 100 * MIB
    client = str(CLIENTS / "nvml.py")
    identity = f"{gpu_uuid(0)} NVIDIA Fake GPU"
    bare = python(gpus.environment(), client)
    assert bare.splitlines() == [f"{TOTAL} {TOTAL - used} {used}", identity]
    ours = python(scene.environment(), client)
    assert ours.splitlines() == [f"{GIB} {GIB - used} {used}", identity]

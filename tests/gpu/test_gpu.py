"""The checks of check_gpu.py: on a real GPU where there is one, and briefly on the fake driver."""

import subprocess
import sys
from pathlib import Path

import pynvml
import pytest
from fake_cuda.driver import FakeGpus, build

SCRIPT = Path(__file__).with_name("check_gpu.py")


def has_gpu() -> bool:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return False
    count: int = pynvml.nvmlDeviceGetCount()
    pynvml.nvmlShutdown()
    return count > 0


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_real_gpu_is_limited() -> None:
    if not has_gpu():
        pytest.skip("no NVIDIA GPU")
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_the_checks_hold_on_the_fake_driver(tmp_path: Path) -> None:
    gpus = FakeGpus(build(tmp_path / "libraries"), tmp_path / "gpus")
    # By this signal Python shows its stack.
    python = ["timeout", "--signal=ABRT", "8m", sys.executable, "-X", "faulthandler"]
    command = [*python, SCRIPT, "--driver", str(gpus.libraries), "--seconds", "4"]
    env = gpus.environment(XDG_RUNTIME_DIR=str(tmp_path))
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

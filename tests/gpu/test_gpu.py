"""The steps of first_contact.py: on a real GPU where there is one, and on the fake driver."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pynvml
import pytest
from fake_cuda.driver import FakeGpus, build

SCRIPT = Path(__file__).with_name("first_contact.py")


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
def test_a_real_gpu_is_limited(tmp_path):
    if not has_gpu():
        pytest.skip("no NVIDIA GPU")
    command = [sys.executable, SCRIPT, "--trace", tmp_path / "trace.json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_the_checks_hold_on_the_fake_driver(tmp_path):
    gpus = FakeGpus(build(tmp_path / "libraries"), tmp_path / "gpus")
    # By this signal Python shows its stack.
    python = ["timeout", "--signal=ABRT", "8m", sys.executable, "-X", "faulthandler"]
    trace = tmp_path / "trace.json"
    options = ["--driver", str(gpus.libraries), "--seconds", "4", "--trace", str(trace)]
    # Other tests need the CPUs too: a program that waits for a launch wakes late.
    command = [*python, SCRIPT, *options, "--least", "0.5"]
    # The fake GPU works for all programs at once, as with MPS.
    control = tmp_path / "nvidia-cuda-mps-control"
    control.write_text("#!/bin/sh\n")
    control.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    env = gpus.environment(XDG_RUNTIME_DIR=str(tmp_path), PATH=path)
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    saved = json.loads(trace.read_text())
    verdicts = {name: verdict for name, verdict, _ in saved["steps"]}
    assert {*verdicts.values()} <= {"ok", "not tried"}
    assert verdicts["MPS"] == verdicts["law, replayed"] == "ok"
    assert [len(wave["pids"]) for wave in saved["waves"]] == [1, 4]
    for wave in saved["waves"]:
        shown = {pid for *_, listed in wave["answers"] for pid, _, percent in listed if percent}
        assert shown == set(wave["pids"])

"""CUDA programs under `hamiregion run`: what they see and get, and edits while they run."""

import json
import sys
import threading
import time
from pathlib import Path

import pytest
from fake_cuda.driver import gpu_uuid
from support.command_line import call
from support.cuda_program import OUT, OUT_OF_MEMORY, SUCCESS, room
from support.run_scene import PROGRAM, REGION, Program, RunScene, variables
from support.wait import PATIENCE_S, eventually

import libhamiregion as hami
from libhamiregion.units import GIB, MIB

ALLOCATE = "cuMemAlloc_v2"
INJECTIONS = pytest.mark.parametrize("inject", ["standin", "preload"])


def region_of(runs: RunScene, program: Program) -> str:
    return str(runs.base / f"run_{program.pid}" / "region.cache")


@pytest.mark.slow(keep=1)
@INJECTIONS
def test_a_program_sees_the_budget_as_its_gpu(runs, inject):
    program = runs.start_program("--inject", inject, "--memory", "2GiB", "--gpus", "1").start()
    assert program.do("cuDeviceGetCount", OUT) == 1
    assert program.do("cuDeviceGetUuid_v2", room(16), 0) == gpu_uuid(1)[4:].replace("-", "")
    free, total = program.info()
    assert (free, total) == (2 * GIB - 256 * MIB, 2 * GIB)
    assert program.call(ALLOCATE, OUT, free + 1)[0] == OUT_OF_MEMORY
    program.allocate(free)
    assert program.info() == (0, 2 * GIB)
    assert program.end() == ""


@pytest.mark.slow(keep=1)
@INJECTIONS
def test_an_edited_limit_is_obeyed_at_the_next_allocation(runs, inject):
    program = runs.start_program("--inject", inject, "--memory", "4GiB").start()
    region = region_of(runs, program)
    program.allocate(GIB)
    assert call("limits", "set", region, "--device", "0", "--memory", "2GiB").returncode == 0
    assert program.info() == (GIB - 256 * MIB, 2 * GIB)
    assert program.call(ALLOCATE, OUT, GIB)[0] == OUT_OF_MEMORY
    # Below what is in use only by force; what is there stays.
    assert call("limits", "set", region, "--memory", "1GiB").returncode == 3
    assert call("limits", "set", region, "--memory", "1GiB", "--force").returncode == 0
    assert program.info() == (0, GIB)
    assert program.call(ALLOCATE, OUT, 1)[0] == OUT_OF_MEMORY
    assert call("limits", "set", region, "--memory", "unlimited").returncode == 0
    program.allocate(8 * GIB)
    assert program.info()[1] == 16 * GIB


def test_a_running_program_can_be_looked_at(runs):
    program = runs.start_program("--memory", "1=4GiB").start(1)
    program.allocate(GIB)
    shown = json.loads(call("show", region_of(runs, program), "--json").stdout)
    assert [device["memory_used_bytes"] for device in shown["devices"]] == [0, GIB + 256 * MIB]
    assert [process["pid"] for process in shown["processes"]] == [program.pid]


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("on_error", [None, "refuse", "open"])
def test_a_program_whose_region_is_gone_does_as_the_run_was_told(runs, on_error):
    options = () if on_error is None else ("--on-error", on_error)
    script = f'rm "${REGION}"; exec "$@"'
    process = runs.start(*options, "--memory", "1g", "--", "sh", "-c", script, "sh", *PROGRAM)
    program = Program(process)
    program.do("cuInit", 0)
    code, _ = program.call("cuDevicePrimaryCtxRetain", OUT, 0)
    assert (code == SUCCESS) is (on_error == "open")
    said = program.end()
    what = "nothing is limited" if on_error == "open" else "CUDA contexts and memory are refused"
    assert said == (
        f"libhamiregion: the region {region_of(runs, program)} cannot be used: there is no such"
        f" file; {what}\n"
    )


def test_runs_are_listed_with_the_containers_of_the_node(runs, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runs.base.parent))
    monkeypatch.delenv("HOOK_PATH", raising=False)
    program = runs.start_program("--memory", "4GiB").start()
    name = str(program.pid)
    listed = json.loads(call("containers", "--container", name, "--json").stdout)
    (container,) = listed["containers"]
    assert (container["container"], container["region_path"]) == (name, region_of(runs, program))
    listed = json.loads(call("ps", "--container", name, "--no-driver", "--json").stdout)
    (process,) = listed["processes"]
    assert (process["pid"], process["state"]) == (program.pid, "alive")


def test_a_program_can_ask_for_its_own_budget(runs):
    asks = "import libhamiregion as h; r = h.own_region(); print(r.path, r.memory_limit(0))"
    answer = runs.run("--keep", "--memory", "3g", "--", sys.executable, "-c", asks)
    (name,) = runs.directories()
    assert answer.stdout == f"{runs.base / name / 'region.cache'} {3 * GIB}\n"


def test_a_suspended_program_waits_until_it_is_resumed(runs):
    program = runs.start_program().start()
    region = region_of(runs, program)
    assert call("suspend", region, str(program.pid)).returncode == 0
    answers: list[list[int]] = []

    def allocate() -> None:
        answers.append(program.call(ALLOCATE, OUT, 1))

    # It is held up within a second of the edit, not at once.
    def is_held() -> bool:
        thread = threading.Thread(target=allocate, daemon=True)
        thread.start()
        thread.join(1)
        held.append(thread)
        return thread.is_alive()

    held: list[threading.Thread] = []
    eventually(is_held)
    before = len(answers)
    assert call("resume", region, str(program.pid)).returncode == 0
    held[-1].join(PATIENCE_S)
    assert len(answers) == before + 1
    assert answers[-1][0] == SUCCESS


def test_an_edited_sm_limit_is_held_by_a_running_program(runs, busy_program):
    """And let go again: what NVML says of the process follows the region."""
    work = (str(busy_program), "kernel", "work_10ms", "64", "8", "0")
    process = runs.start("--", *work)
    region = region_of(runs, Program(process))
    looker = runs.start_with(runs.environment(LD_LIBRARY_PATH=str(runs.driver)))

    def busy_percent() -> int:
        since_us = time.time_ns() // 1000 - 1_000_000
        return looker.nvml_samples(0, since_us).get(process.pid, 0)

    eventually(lambda: busy_percent() > 80)
    assert call("limits", "set", region, "--device", "0", "--sm", "20").returncode == 0
    eventually(lambda: 0 < busy_percent() < 40)
    assert call("limits", "set", region, "--sm", "unlimited", "--all-devices").returncode == 0
    eventually(lambda: busy_percent() > 80)


@pytest.mark.slow
def test_what_a_program_starts_shares_its_budget_and_outlives_it_there(runs):
    program = runs.start_program("--memory", "2GiB").start()
    region = region_of(runs, program)
    inherited = Path(f"/proc/{program.pid}/environ").read_text()
    child = runs.start_with(variables(inherited)).start()
    program.allocate(GIB)
    assert child.info() == (GIB - 2 * 256 * MIB, 2 * GIB)
    assert program.end() == ""
    child.allocate(GIB + 256 * MIB)
    with hami.open_region(region) as opened:
        assert opened.memory_used(0) == GIB + 512 * MIB
    assert child.end() == ""
    eventually(lambda: not runs.directories())

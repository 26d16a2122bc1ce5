"""Budgets from Python: `libhamiregion.run`."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from fake_cuda.driver import gpu_uuid
from support.actors import map_libvgpu
from support.process import finished
from support.run_scene import REGION

import libhamiregion as hami
from libhamiregion.run import LaunchError, environment, run
from libhamiregion.units import GIB


@pytest.fixture
def settings(runs, monkeypatch) -> Mapping[str, object]:
    """What a call needs for this machine; NVML, in this process, reads this one's environment."""
    for name in ("FAKE_CUDA_STATE", "FAKE_CUDA_DEVICES", "FAKE_CUDA_MEMORY"):
        monkeypatch.setenv(name, runs.environment()[name])
    return {"driver": runs.driver, "env": runs.environment()}


def test_the_environment_is_the_one_that_there_was_with_the_budget(runs, settings):
    with environment(memory_limit={0: "1GiB", gpu_uuid(1): None}, sm_limit=50, **settings) as env:
        assert env.items() >= settings["env"].items()
        with hami.open_region(env[REGION]) as region:
            assert (region.memory_limit(0), region.memory_limit(1)) == (GIB, None)
            assert (region.sm_limit(0), region.sm_limit(1)) == (50, 50)
            assert region.uuids == (gpu_uuid(0), gpu_uuid(1))
    assert runs.directories() == []
    assert REGION not in os.environ


def test_a_soft_limit_is_marked_in_the_region_of_the_run(settings):
    for burst in (False, True):
        with (
            environment(sm_limit=50, burst=burst, **settings) as env,
            hami.open_region(env[REGION]) as region,
        ):
            assert region.burst is burst
    with pytest.raises(ValueError, match="say which one"), environment(burst=True, **settings):
        pass


def test_a_program_is_run_as_subprocess_runs_it(runs, settings):
    script = f"echo ${REGION}; exit 3"
    done = run(["sh", "-c", script], capture_output=True, text=True, **settings)
    assert done.returncode == 3
    assert Path(done.stdout.strip()).parent.parent == runs.base
    assert run(["sh", "-c", "kill -9 $$"], **settings).returncode == -9
    with pytest.raises(subprocess.CalledProcessError):
        run(["false"], check=True, **settings)
    with pytest.raises(subprocess.TimeoutExpired):
        run(["sleep", "60"], timeout=0.1, **settings)
    with pytest.raises(FileNotFoundError):
        run(["no-such-program"], **settings)
    assert runs.directories() == []


def test_a_region_is_removed_when_the_block_raises(runs, settings):
    with pytest.raises(KeyError), environment(**settings):
        raise KeyError
    assert runs.directories() == []


def test_a_region_is_kept_where_it_is_asked_for(runs, settings):
    run(["true"], keep=True, memory_limit="1g", **settings)
    (name,) = runs.directories()
    with hami.open_region(runs.base / name / "region.cache") as region:
        assert region.memory_limit(0) == GIB


@pytest.mark.parametrize(
    "wrong",
    [
        {"inject": "ptrace"},
        {"on_error": "ignore"},
        {"memory_limit": "6GB"},
        {"sm_limit": 0},
        {"priority": 2**40},
        {"region": "there.cache", "memory_limit": "1g"},
    ],
    ids=str,
)
def test_an_argument_that_is_none_is_a_value_error_and_nothing_is_made(runs, settings, wrong):
    with pytest.raises(ValueError), environment(keep=True, **wrong, **settings):  # noqa: PT011
        pass
    assert runs.directories() == []


def test_a_region_that_cannot_be_joined_is_an_error_of_the_region(tmp_path, settings):
    with pytest.raises(hami.RegionNotFound), environment(region=tmp_path / "none", **settings):
        pass
    other = tmp_path / "other.cache"
    hami.create_region(other, uuids=["GPU-of-another-machine"])
    with pytest.raises(LaunchError, match="the region of other GPUs"):
        run(["true"], region=other, **settings)


def test_a_path_that_the_loader_would_take_apart_is_refused(runs, settings, tmp_path):
    odd = tmp_path / "a:b"
    odd.mkdir()
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        (odd / name).symlink_to(runs.driver / name)
    with pytest.raises(LaunchError, match="cannot stand in a list of paths"):
        run(["true"], **{**settings, "driver": odd})
    assert runs.directories() == []


def test_the_driver_is_found_where_the_loader_finds_it(runs, settings):
    """On LD_LIBRARY_PATH, which it searches first, or in a place that only the loader knows."""
    command = ["sh", "-c", "readlink ${LD_LIBRARY_PATH%%:*}/libcuda-real.so.1"]
    env = {**settings["env"], "LD_LIBRARY_PATH": f"/nowhere:{runs.driver}"}
    done = run(command, env=env, capture_output=True, text=True)
    assert done.stdout == f"{runs.driver}/libcuda.so.1\n"
    # Nothing of it stays in this process, whose own NVML may be another.
    assert str(runs.driver) not in Path("/proc/self/maps").read_text()
    # The loader has read its variable at the start of the program; nobody else names the place.
    code = (
        "import os, sys; from libhamiregion.run import run\n"
        "del os.environ['LD_LIBRARY_PATH']\n"
        "run(sys.argv[1:], check=True)"
    )
    done = finished([sys.executable, "-c", code, *command], env=env, check=True)
    assert done.stdout == f"{runs.driver}/libcuda.so.1\n"


def test_a_run_within_a_run_joins_and_stands_before_the_driver_itself(runs, tmp_path):
    hami.create_region(tmp_path / "team.cache")
    inner = (*runs.command("--region", str(tmp_path / "team.cache")), "--", "sh", "-c")
    script = "readlink ${LD_LIBRARY_PATH%%:*}/libcuda-real.so.1; echo $LD_LIBRARY_PATH"
    # Its own --driver is left out: it is to be found behind the outer one's stand-in.
    words = [word for word in inner if word not in {"--driver", str(runs.driver)}]
    answer = runs.run("--", *words, script)
    real, path = answer.stdout.splitlines()
    assert real == f"{runs.driver}/libcuda.so.1"
    inner_directory, *rest = path.split(":")
    assert Path(inner_directory).parent == runs.base
    assert rest == [str(runs.driver)]


@pytest.mark.parametrize("limit", [50, None])
def test_a_region_whose_sm_limit_libvgpu_holds_is_not_joined(settings, tmp_path, actor, limit):
    """Two laws for one limit would hold each other's processes back."""
    path = tmp_path / "region.cache"
    hami.create_region(path, sm_limits=[limit], uuids=[gpu_uuid(0)])
    neighbour = actor(path, writable=True)
    map_libvgpu(neighbour, tmp_path)
    neighbour("attach")
    if limit is None:
        with environment(region=path, **settings) as env:
            assert env[REGION] == str(path)
        return
    with pytest.raises(LaunchError, match=f"process {neighbour.pid}"):
        environment(region=path, **settings).__enter__()

"""`hamiregion create`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from cli_process import on_terminal, run

import libhamiregion as hami

if TYPE_CHECKING:
    from pathlib import Path

GIB = 2**30
MIB = 2**20
UUIDS = ("GPU-9f1c2a60-0d5e-4c3b-8a77-1b2f6e5d4c30", "MIG-4b7d8e12-6a9f-4f01-b3c5-7e8d9a0b1c2d")


def test_options_are_those_of_one_device_after_the_other(tmp_path: Path) -> None:
    path = str(tmp_path / "new.cache")
    answer = run(
        *("create", path, "--memory", "8GiB", "--memory", "unlimited", "--sm", "50"),
        *("--uuid", UUIDS[0], "--uuid", UUIDS[1], "--priority", "0", "--json"),
    )
    assert answer.returncode == 0, answer.stderr
    with hami.open_region(path) as region:
        assert (region.memory_limit(0), region.memory_limit(1)) == (8 * GIB, None)
        assert (region.sm_limit(0), region.sm_limit(1)) == (50, None)
        assert region.uuids == UUIDS
        assert region.priority == 0
    shown = json.loads(run("show", path, "--json").stdout)
    assert json.loads(answer.stdout) | {"taken_at_ns": 0} == shown | {"taken_at_ns": 0}


@pytest.mark.parametrize("layout", hami.Layout)
def test_every_layout_can_be_made(layout: hami.Layout, tmp_path: Path) -> None:
    path = str(tmp_path / "new.cache")
    answer = run("create", path, "--layout", layout.value, "--memory", "1g", "--uuid", UUIDS[0])
    assert answer.returncode == 0, answer.stderr
    assert f"layout       {layout.value}\n" in answer.stdout
    assert hami.identify(path) is layout


def test_what_is_there_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "new.cache"
    path.write_bytes(b"mine")
    for dry in ((), ("--dry-run",)):
        answer = run("create", str(path), *dry)
        assert answer.returncode == 1
        assert str(path) in answer.stderr
        assert answer.stderr.count("\n") == 1
    assert path.read_bytes() == b"mine"


def test_limits_come_from_the_environment_by_libvgpus_rules(tmp_path: Path) -> None:
    path = str(tmp_path / "new.cache")
    env = {"CUDA_DEVICE_MEMORY_LIMIT": "3000m", "CUDA_DEVICE_SM_LIMIT_1": "30"}
    answer = run("create", path, "--from-environment", env=env)
    assert answer.returncode == 0, answer.stderr
    with hami.open_region(path) as region:
        assert [region.memory_limit(device) for device in range(16)] == [3000 * MIB] * 16
        assert (region.sm_limit(0), region.sm_limit(1)) == (None, 30)


def test_a_dry_run_shows_and_makes_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "new.cache")
    answer = run("create", path, "--memory", "1g", "--dry-run", env={"TMPDIR": str(tmp_path)})
    assert answer.returncode == 0, answer.stderr
    assert f"path         {path}\n" in answer.stdout
    assert "1GiB" in answer.stdout
    assert answer.stdout.endswith("\ndry run: nothing was written\n")
    assert list(tmp_path.iterdir()) == []
    dry = run("create", path, "--memory", "1g", "--dry-run", "--json")
    made = run("create", path, "--memory", "1g", "--json")
    now = {"taken_at_ns": 0, "last_kernel_time_s": 0}
    assert json.loads(dry.stdout) | now == json.loads(made.stdout) | now


def test_a_terminal_gets_the_table(tmp_path: Path) -> None:
    terminal = on_terminal("create", str(tmp_path / "new.cache"), "--memory", "1g")
    assert "╭" in terminal.text
    assert "No process uses this region." in terminal.text


@pytest.mark.parametrize(
    "arguments",
    [
        ("--memory", "6GB"),
        ("--memory", "1g") * 17,
        ("--sm", "0"),
        ("--uuid", "GPU-\x1b[31m"),
        ("--uuid", "rtx"),
        ("--layout", "2.0"),
        ("--priority", "high"),
        ("--from-environment", "--memory", "1g"),
    ],
)
def test_wrong_usage_is_exit_code_2_and_makes_nothing(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    answer = run("create", str(tmp_path / "new.cache"), *arguments)
    assert answer.returncode == 2, answer.stdout + answer.stderr
    assert "Traceback" not in answer.stderr
    assert "\x1b" not in answer.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_not_there_is_a_failure(tmp_path: Path) -> None:
    for dry in ((), ("--dry-run",)):
        answer = run("create", str(tmp_path / "none" / "new.cache"), *dry)
        assert answer.returncode == 1
        assert answer.stderr.count("\n") == 1
        assert str(tmp_path / "none") in answer.stderr

"""`hamiregion suspend`, `resume` and `reap`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.command_line import call
from support.region_file import RegionFile

import libhamiregion as hami

if TYPE_CHECKING:
    from collections.abc import Iterator


GIB = 2**30
VERBS = ("suspend", "resume", "reap")

ATTACH = """
import sys, libhamiregion as hami
with hami.open_region(sys.argv[1], writable=True) as region, region.attach() as slot:
    slot.charge(0, 3 * 2**30)
    print("charged", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    made = str(tmp_path / "usage.cache")
    hami.create_region(made, memory_limits=(8 * GIB,))
    return made


@pytest.fixture
def attached(path: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of the region that holds 3 GiB."""
    with subprocess.Popen(
        [sys.executable, "-c", ATTACH, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"charged\n"
        yield process
        if process.poll() is None:
            process.communicate()


def status_of(path: str, pid: int) -> int:
    with hami.open_region(path) as region:
        return next(p.status for p in region.snapshot().processes if p.pid == pid)


def used(path: str) -> int:
    with hami.open_region(path) as region:
        return region.memory_used(0)


def test_suspend_and_resume(path: str, attached: subprocess.Popen[bytes]) -> None:
    pid = attached.pid
    unsure = "obeyed up to HAMi 2.9; from 2.10 on not, as no reported device has an SM limit\n"
    words = f"process {pid}: running -> suspended\n{unsure}"
    dry = call("suspend", path, str(pid), "--dry-run")
    assert dry.stdout == f"would change {words}dry run: nothing was written\n"
    assert status_of(path, pid) == hami.ProcessStatus.RUNNING

    assert call("suspend", path, str(pid)).stdout == words
    assert status_of(path, pid) == hami.ProcessStatus.SUSPENDED
    assert "suspended" in call("show", path).stdout
    again = call("suspend", path, str(pid)).stdout
    assert again == f"process {pid}: suspended -> suspended (unchanged)\n{unsure}"

    answer = json.loads(call("resume", path, str(pid), "--json").stdout)
    assert answer == {
        "schema": "hamiregion/slot-status/1",
        "path": path,
        "layout": "1.2",
        "dry_run": False,
        "pid": pid,
        "before": 2,
        "after": 1,
        "effect": "immediate",
    }
    assert status_of(path, pid) == hami.ProcessStatus.RUNNING


def test_a_process_that_is_not_there_is_a_failure_and_no_pid_wrong_usage(path: str) -> None:
    for verb in VERBS:
        answer = call(verb, path, "4194303")
        assert (answer.returncode, answer.stdout) == (1, "")
        assert answer.stderr.startswith("Error: ")
        assert "4194303" in answer.stderr
        for pid in ("0", "x", "2147483648"):
            assert call(verb, path, pid).returncode == 2


def test_reap_frees_what_the_dead_held(path: str, attached: subprocess.Popen[bytes]) -> None:
    attached.kill()
    attached.wait()
    words = f"process {attached.pid}: slot emptied, 3 GiB no longer counted\n"
    dry = call("reap", path, "--dry-run")
    would = f"process {attached.pid}: slot would be emptied, 3 GiB would no longer be counted\n"
    assert dry.stdout == f"{would}dry run: nothing was written\n"
    assert used(path) == 3 * GIB
    as_json = json.loads(call("reap", path, str(attached.pid), "--dry-run", "--json").stdout)
    assert as_json == {
        "schema": "hamiregion/reaped/1",
        "path": path,
        "layout": "1.2",
        "dry_run": True,
        "reaped": [{"pid": attached.pid, "memory_bytes": 3 * GIB}],
    }
    assert call("reap", path).stdout == words
    assert used(path) == 0
    assert call("reap", path).stdout == "no process with a slot is proved dead\n"


def test_the_living_are_never_reaped(path: str, attached: subprocess.Popen[bytes]) -> None:
    assert call("reap", path).stdout == "no process with a slot is proved dead\n"
    named = call("reap", path, str(attached.pid))
    assert named.returncode == 3
    assert "alive" in named.stderr
    assert used(path) == 3 * GIB
    assert status_of(path, attached.pid) == hami.ProcessStatus.RUNNING


def test_what_was_reaped_is_reported_also_if_another_process_lives(
    path: str, attached: subprocess.Popen[bytes]
) -> None:
    dead = 4_194_305
    file = RegionFile(Path(path), hami.Layout.V1_2)
    file.add_process(dead, {0: 5})
    answer = call("reap", path, str(dead), str(attached.pid))
    assert answer.returncode == 3
    assert answer.stdout.startswith(f"process {dead}: slot emptied")
    assert "alive" in answer.stderr
    assert used(path) == 3 * GIB


def test_a_lock_that_is_held_is_a_failure_after_a_second(path: str) -> None:
    with hami.open_region(path, writable=True) as region, region.lock():
        answer = call("suspend", path, str(os.getpid()))
    assert answer.returncode == 1
    assert answer.stderr.count("\n") == 1

"""`hamiregion suspend`, `resume`, `reap` and `lock`."""

import contextlib
import gzip
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
from support.command_line import call
from support.region_file import RegionFile

import libhamiregion as hami

GOLDEN = Path(__file__).parents[1] / "golden"
# The layouts whose locks are written to.
KILLED = sorted(GOLDEN.glob("1.*-owner-killed-holding-lock.cache.gz"))

HOLD = """
import sys, libhamiregion as hami
with hami.open_region(sys.argv[1], writable=True) as region, region.lock():
    print("held", flush=True)
    sys.stdin.read()
"""

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
def path(tmp_path) -> str:
    made = str(tmp_path / "usage.cache")
    hami.create_region(made, memory_limits=(8 * GIB,))
    return made


@pytest.fixture
def attached(path) -> Iterator[subprocess.Popen[bytes]]:
    """A process of the region that holds 3 GiB."""
    with subprocess.Popen(
        [sys.executable, "-c", ATTACH, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
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


def test_suspend_and_resume(path, attached):
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


def test_a_process_that_is_not_there_is_a_failure_and_no_pid_wrong_usage(path):
    for verb in VERBS:
        answer = call(verb, path, "4194303")
        assert (answer.returncode, answer.stdout) == (1, "")
        assert answer.stderr.startswith("Error: ")
        assert "4194303" in answer.stderr
        for pid in ("0", "x", "2147483648"):
            assert call(verb, path, pid).returncode == 2


def test_reap_frees_what_the_dead_held(path, attached):
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


def test_the_living_are_never_reaped(path, attached):
    assert call("reap", path).stdout == "no process with a slot is proved dead\n"
    named = call("reap", path, str(attached.pid))
    assert named.returncode == 3
    assert "alive" in named.stderr
    assert used(path) == 3 * GIB
    assert status_of(path, attached.pid) == hami.ProcessStatus.RUNNING


def test_what_was_reaped_is_reported_also_if_another_process_lives(path, attached):
    dead = 4_194_305
    file = RegionFile(Path(path), hami.Layout.V1_2)
    file.add_process(dead, {0: 5})
    answer = call("reap", path, str(dead), str(attached.pid))
    assert answer.returncode == 3
    assert answer.stdout.startswith(f"process {dead}: slot emptied")
    assert "alive" in answer.stderr
    assert used(path) == 3 * GIB


def test_a_lock_that_is_held_is_a_failure_after_a_second(path):
    with hami.open_region(path, writable=True) as region, region.lock():
        answer = call("suspend", path, str(os.getpid()))
    assert answer.returncode == 1
    assert answer.stderr.count("\n") == 1


# ---- The lock ------------------------------------------------------------------------------------


@contextlib.contextmanager
def holder(path: str) -> Iterator[int]:
    """A process that holds the lock; its pid."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"held\n"
        yield process.pid
        process.communicate()


def test_a_free_lock_is_called_free(path):
    answer = call("lock", "status", path)
    assert (answer.returncode, answer.stdout) == (0, "free\n")


def test_a_held_lock_is_told_with_its_living_owner_and_not_broken(path):
    with holder(path) as pid:
        status = call("lock", "status", path)
        assert status.returncode == 0
        assert status.stdout.startswith(f"held by pid {pid} ({sys.executable} -c ")
        assert status.stdout.endswith("), which is alive\n")
        assert "lock         tool\n" in call("show", path).stdout
        recover = call("lock", "recover", path)
        assert recover.returncode == 3
        assert recover.stdout == ""
        assert "live" in recover.stderr
        assert json.loads(call("lock", "status", path, "--json").stdout)["held"] is True
    assert call("lock", "status", path).stdout == "free\n"


def test_a_tool_that_only_has_the_region_open_or_a_slot_is_not_named(path):
    with hami.open_region(path, writable=True) as region, region.attach(), holder(path) as pid:
        state = json.loads(call("lock", "status", path, "--json").stdout)
    assert [each["pid"] for each in state["tools"]] == [pid]
    assert state["owner_pid"] is None


@pytest.mark.parametrize("number", [2**22 + 1, 0x5000_0007, 0x6000_0000])
def test_a_signature_that_is_no_pid_is_not_printed_as_one(region_file, number):
    file = region_file(hami.Layout.V1_2)
    file.put("sem", 0)
    file.put("owner_pid", number)
    path = str(file.path)
    for verb in (("show",), ("lock", "status"), ("lock", "recover", "--watch-for", "0")):
        answer = call(*verb, path)
        assert str(number) not in answer.stdout.replace(path, "") + answer.stderr.replace(path, "")


def test_status_tells_a_lock_without_an_owner_and_the_second_semaphore(region_file):
    file = region_file(hami.Layout.V1_2)
    file.put("sem_postinit", 0)
    second = "; the second semaphore is 0\n"
    assert call("lock", "status", str(file.path)).stdout == f"free{second}"
    file.put("sem", 0)
    words = call("lock", "status", str(file.path)).stdout
    assert words == f"held, without an owner{second}"
    file.put("sem_postinit", 1)
    words = call("lock", "status", str(file.path)).stdout
    assert words == "held, without an owner\n"
    file.put("sem", 2)
    damaged = "damaged: the semaphore is 2, so the lock excludes no one\n"
    assert call("lock", "status", str(file.path)).stdout == damaged
    file.put("owner_pid", 7)
    assert call("lock", "status", str(file.path)).stdout == damaged


def test_status_as_json_has_the_fields_of_the_state(path):
    answer = json.loads(call("lock", "status", path, "--json").stdout)
    fields = [field.name for field in attrs.fields(hami.LockState)]
    assert list(answer) == ["schema", "path", "layout", *fields, "tools"]
    assert (answer["path"], answer["layout"], answer["held"]) == (path, "1.2", False)


@pytest.mark.parametrize("golden", KILLED, ids=lambda path: path.name)
def test_a_dead_owners_lock_is_recovered(golden, tmp_path):
    path = tmp_path / "killed.cache"
    path.write_bytes(gzip.decompress(golden.read_bytes()))
    with hami.open_region(path) as region:
        owner = region.snapshot().owner_pid
    status = call("lock", "status", str(path)).stdout
    assert status.startswith(f"held by pid {owner}, which is dead")
    before = path.read_bytes()
    dry = call("lock", "recover", str(path), "--dry-run")
    would = "would give the dead owner's lock back\n"
    assert dry.stdout == f"{would}{status}dry run: nothing was written\n"
    assert path.read_bytes() == before
    recovered = call("lock", "recover", str(path))
    assert recovered.returncode == 0, recovered.stderr
    assert "dead owner's lock given back\n" in recovered.stdout
    assert call("lock", "status", str(path)).stdout == "free\n"
    again = call("lock", "recover", str(path))
    assert (again.returncode, again.stdout) == (0, "nothing was wrong\n")


def test_a_dry_run_says_what_a_recovery_would_do(region_file):
    file = region_file(hami.Layout.V1_2)

    def would() -> str:
        return call("lock", "recover", str(file.path), "--dry-run").stdout.splitlines()[0]

    assert would() == "would leave the lock as it is"
    file.put("sem_postinit", 0)
    assert would() == "would watch the second semaphore for 10.5 s of 60"
    file.put("sem", 0)
    assert would() == "would watch the lock for 10.5 s, and give it back with proof"
    file.put("sem", 2)
    assert would() == "would set the semaphore back to 1"


def test_recover_as_json_has_the_fields_of_the_recovery(path):
    answer = json.loads(call("lock", "recover", path, "--json").stdout)
    fields = [field.name for field in attrs.fields(hami.LockRecovery)]
    assert list(answer) == ["schema", "path", "layout", "dry_run", *fields]
    assert not any(answer[field] for field in fields)
    dry = json.loads(call("lock", "recover", path, "--json", "--dry-run").stdout)
    assert dry["dry_run"] is True
    assert dry["held"] is False

"""`hamiregion suspend`, `resume`, `reap` and `lock`."""

import gzip
import json
import os
import sys
from pathlib import Path

import pytest
from support.actors import Actor
from support.command_line import call, refused
from support.region_file import RegionFile, unchanged
from support.slot_bytes import attached

import libhamiregion as hami
from libhamiregion.units import GIB

GOLDEN = Path(__file__).parents[1] / "golden"
# The layouts whose locks are written to.
KILLED = sorted(GOLDEN.glob("1.*-owner-killed-holding-lock.cache.gz"))

VERBS = ("suspend", "resume", "reap")


@pytest.fixture
def path(tmp_path) -> str:
    made = str(tmp_path / "usage.cache")
    hami.create_region(made, memory_limits=(8 * GIB,))
    return made


@pytest.fixture
def user(path, actor) -> Actor:
    """A process of the region that holds 3 GiB."""
    return attached(actor(path), 3 * GIB)


@pytest.fixture
def holder(path, actor) -> Actor:
    """A process that holds the lock."""
    process = actor(path)
    process("lock")
    return process


def status_of(path: str, pid: int) -> int:
    with hami.open_region(path) as region:
        return next(p.status for p in region.snapshot().processes if p.pid == pid)


def used(path: str) -> int:
    with hami.open_region(path) as region:
        return region.memory_used(0)


def test_suspend_and_resume(path, user):
    pid = user.pid
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
    assert (answer["pid"], answer["before"], answer["after"]) == (pid, 2, 1)
    assert status_of(path, pid) == hami.ProcessStatus.RUNNING


def test_a_process_that_is_not_there_is_a_failure_and_no_pid_wrong_usage(path):
    for verb in VERBS:
        said = refused(verb, path, "4194303", code=1)
        assert said.startswith("Error: ")
        assert "4194303" in said
        assert "; `hamiregion show FILE` lists them" in said
        for pid in ("0", "x", "2147483648"):
            assert call(verb, path, pid).returncode == 2


def test_reap_frees_what_the_dead_held(path, user):
    user.kill()
    words = f"process {user.pid}: slot emptied, 3 GiB no longer counted\n"
    dry = call("reap", path, "--dry-run")
    would = f"process {user.pid}: slot would be emptied, 3 GiB would no longer be counted\n"
    assert dry.stdout == f"{would}dry run: nothing was written\n"
    assert used(path) == 3 * GIB
    as_json = json.loads(call("reap", path, str(user.pid), "--dry-run", "--json").stdout)
    assert as_json["reaped"] == [{"pid": user.pid, "memory_bytes": 3 * GIB}]
    assert call("reap", path).stdout == words
    assert used(path) == 0
    assert call("reap", path).stdout == "no process with a slot is proved dead\n"


def test_what_was_reaped_is_reported_also_if_another_process_lives(path, user):
    dead = 4_194_305
    file = RegionFile(Path(path), hami.Layout.V1_2)
    file.add_process(dead, {0: 5})
    answer = call("reap", path, str(dead), str(user.pid))
    assert answer.returncode == 3
    assert answer.stdout.startswith(f"process {dead}: slot emptied")
    assert "alive" in answer.stderr
    assert used(path) == 3 * GIB
    assert status_of(path, user.pid) == hami.ProcessStatus.RUNNING


def test_a_lock_that_is_held_is_a_failure_after_a_second(path):
    with hami.open_region(path, writable=True) as region, region.lock():
        answer = call("suspend", path, str(os.getpid()))
    assert answer.returncode == 1
    assert answer.stderr.count("\n") == 1


# ---- The lock ------------------------------------------------------------------------------------


def test_a_held_lock_is_told_with_its_living_owner_and_not_broken(path, holder):
    status = call("lock", "status", path)
    assert status.returncode == 0
    assert status.stdout.startswith(f"held by pid {holder.pid} ({sys.executable} ")
    assert status.stdout.endswith("), which is alive\n")
    assert "lock         tool\n" in call("show", path).stdout
    assert "live" in refused("lock", "recover", path, code=3)
    assert json.loads(call("lock", "status", path, "--json").stdout)["held"] is True
    holder("unlock")
    assert call("lock", "status", path).stdout == "free\n"


@pytest.mark.usefixtures("user")
def test_a_tool_that_only_has_the_region_open_or_a_slot_is_not_named(path, holder):
    state = json.loads(call("lock", "status", path, "--json").stdout)
    assert [each["pid"] for each in state["tools"]] == [holder.pid]
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


@pytest.mark.parametrize("golden", KILLED, ids=lambda path: path.name)
def test_a_dead_owners_lock_is_recovered(golden, tmp_path):
    path = tmp_path / "killed.cache"
    path.write_bytes(gzip.decompress(golden.read_bytes()))
    with hami.open_region(path) as region:
        owner = region.snapshot().owner_pid
    status = call("lock", "status", str(path)).stdout
    assert status.startswith(f"held by pid {owner}, which is dead")
    with unchanged(path):
        dry = call("lock", "recover", str(path), "--dry-run")
        would = "would give the dead owner's lock back\n"
        assert dry.stdout == f"{would}{status}dry run: nothing was written\n"
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

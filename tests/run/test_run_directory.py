"""What a run leaves behind, and who removes it: proved dead and its own, or left alone."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.forked import NOBODY
from support.namespaces import NEW_NAMESPACE, why_no_new_namespace
from support.process import finished
from support.run_scene import REGION
from support.wait import eventually

import libhamiregion as hami
from libhamiregion.run import LaunchError, cleaner, environment
from libhamiregion.run.run_directory import make_run_directory, run_bases

RECORD = "owner.json"
EARLIER = "00000000-0000-0000-0000-000000000000"
# Opens the region argv[1] for "reading" or "writing", and loads the library argv[3] if any.
# What /proc shows of its environment is overwritten first, as programs do that change their title.
MAPS = """
import ctypes, sys, libhamiregion
start, end = map(int, open("/proc/self/stat").read().rpartition(")")[2].split()[47:49])
ctypes.memset(start, 0, end - start)
region = libhamiregion.open_region(sys.argv[1], writable=sys.argv[2] == "writing")
loaded = [ctypes.CDLL(path) for path in sys.argv[3:]]
print(flush=True)
input()
"""


@pytest.fixture
def mine(tmp_path) -> dict[str, str]:
    """An environment whose runs lie in the test's own directory."""
    (tmp_path / "session").mkdir(mode=0o700)
    return {"XDG_RUNTIME_DIR": str(tmp_path / "session")}


def record(path: str) -> dict[str, object]:
    return json.loads(Path(path, RECORD).read_text())


def rewrite(path: str, **changes: object) -> None:
    """Make a directory's record say something else."""
    Path(path, RECORD).write_text(json.dumps(record(path) | changes))


def ended() -> dict[str, object]:
    """Pid and start of a process that has ended, as a record has them."""
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    started = cleaner.start_time(process.pid)
    assert started is not None
    process.communicate()
    return {"pid": process.pid, "started": started}


# ---- the end of a run ----------------------------------------------------------------------------


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("number", [None, signal.SIGTERM, signal.SIGKILL])
def test_when_the_program_ends_its_directory_goes_however_it_ends(runs, number):
    with runs.start("--memory", "1g", "--", "cat") as process:
        eventually(runs.cleaners)
        assert runs.directories() == [f"run_{process.pid}"]
        if number is not None:
            process.send_signal(number)
        process.communicate()
    eventually(lambda: not runs.directories())
    eventually(lambda: not runs.cleaners())


def test_a_program_that_nobody_waits_for_has_ended_too(runs):
    process = runs.start("--", "true")
    eventually(lambda: runs.base.is_dir() and not runs.directories())
    assert process.wait() == 0


def test_what_the_program_has_left_running_keeps_the_region_until_it_ends(runs):
    script = "exec 3<&0; cat <&3 >/dev/null 2>&1 & exit 0"
    process = runs.start("--", "sh", "-c", script)
    assert process.wait() == 0
    eventually(lambda: len(runs.cleaners()) == 1)
    (directory,) = runs.directories()
    assert cleaner.users(str(runs.base / directory)) != []
    process.communicate()
    eventually(lambda: not runs.directories())
    eventually(lambda: not runs.cleaners())


def test_a_run_that_joins_by_preload_has_no_directory(runs, tmp_path):
    hami.create_region(tmp_path / "team.cache")
    joined = ("--region", str(tmp_path / "team.cache"), "--keep")
    assert runs.run(*joined, "--inject", "preload", "--", "true").returncode == 0
    assert not runs.base.exists()
    assert runs.run(*joined, "--", "true").returncode == 0
    eventually(lambda: not runs.directories())
    assert (tmp_path / "team.cache").exists()


def test_a_cleaner_that_was_killed_is_made_up_for_by_the_next_run(runs):
    with runs.start("--", "cat") as process:
        eventually(runs.cleaners)
        (pid,) = runs.cleaners()
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: not runs.cleaners())
        assert runs.run("--", "true").returncode == 0
        eventually(lambda: runs.directories() == [f"run_{process.pid}"])
        process.communicate()
    assert runs.directories() == [f"run_{process.pid}"]
    assert runs.run("--", "true").returncode == 0
    eventually(lambda: not runs.directories())


# ---- what the next run removes -------------------------------------------------------------------


def test_the_directory_of_a_dead_process_is_removed(mine):
    stale = make_run_directory(mine)
    rewrite(stale, **ended())
    Path(stale, "region.cache").write_bytes(b"")
    Path(stale, "libcuda.so.1").symlink_to(Path(mine["XDG_RUNTIME_DIR"]) / "nowhere")
    # It takes the name that has become free.
    assert make_run_directory(mine) == stale
    assert [path.name for path in Path(stale).iterdir()] == [RECORD]


def test_a_pid_that_has_another_process_now_is_a_dead_one(mine):
    stale = make_run_directory(mine)
    started = record(stale)["started"]
    assert isinstance(started, int)
    rewrite(stale, started=started - 1)
    make_run_directory(mine)
    assert list(Path(stale).parent.iterdir()) == [Path(stale)]
    assert record(stale)["started"] == started


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"keep": True},
        {"pid_namespace": "pid:[1]"},
        {"pid": "1"},
        {"boot_id": None},
        {"boot_id": EARLIER, "host": "another machine"},
        {"started": None},
    ],
    ids=str,
)
def test_a_directory_that_is_not_proved_dead_is_left(mine, changes):
    """The process lives, somebody wants it, its namespace or machine is another, or the record is
    odd."""
    first = make_run_directory(mine)
    if changes:
        rewrite(first, **(ended() | changes))
    before = record(first)
    # Not in its place, which would have become free.
    assert make_run_directory(mine) != first
    assert record(first) == before


def test_a_directory_from_before_the_last_boot_is_removed(mine):
    stale = make_run_directory(mine)
    rewrite(stale, boot_id=EARLIER)
    make_run_directory(mine)
    assert len(list(Path(stale).parent.iterdir())) == 1


def test_a_directory_that_a_process_was_started_with_is_left(mine):
    stale = make_run_directory(mine)
    rewrite(stale, **ended())
    environment = {**os.environ, REGION: f"{stale}/region.cache"}
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, env=environment)
    make_run_directory(mine)
    assert Path(stale).exists()
    process.communicate()
    assert make_run_directory(mine) == stale


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    ("how", "cuda", "left"),
    [("writing", True, True), ("writing", False, False), ("reading", True, False)],
    ids=["program", "agent", "monitor"],
)
def test_a_cuda_program_that_maps_the_region_keeps_it_and_a_monitor_does_not(
    mine, fake_libraries, how, cuda, left
):
    """Monitors let go of a region when it is removed, so it must not wait for them."""
    stale = make_run_directory(mine)
    rewrite(stale, **ended())
    hami.create_region(Path(stale, "region.cache"))
    libraries = [str(fake_libraries / "libcuda.so.1")] if cuda else []
    with subprocess.Popen(
        [sys.executable, "-c", MAPS, f"{stale}/region.cache", how, *libraries],
        env={**os.environ, REGION: f"{stale}/region.cache"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout.readline() == b"\n"
        assert cleaner.users(stale) == ([process.pid] if left else [])
        assert (make_run_directory(mine) == stale) is not left
        process.communicate(b"\n")


def test_an_empty_directory_is_nobodys(mine):
    """A run was killed before it wrote who it is, or when nothing else was left."""
    base = Path(make_run_directory(mine)).parent
    (base / "run_4711").mkdir(mode=0o700)
    (base / "run_4712").mkdir(mode=0o700)
    (base / "run_4712" / "something").write_text("")
    make_run_directory(mine)
    assert not (base / "run_4711").exists()
    assert (base / "run_4712").exists()


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff", b"[" * 100_000, None],
    ids=["empty", "cut", "no-text", "deep", "directory"],
)
def test_a_directory_whose_record_cannot_be_read_is_left(mine, content):
    """Also beside one whose owner is dead."""
    stale, odd = make_run_directory(mine), make_run_directory(mine)
    rewrite(stale, **ended())
    owner = Path(odd, RECORD)
    owner.unlink()
    if content is None:
        owner.mkdir()
    else:
        owner.write_bytes(content)
    assert make_run_directory(mine) == stale
    assert owner.exists()


def test_what_a_link_leads_to_is_not_touched(mine, tmp_path):
    base = Path(make_run_directory(mine)).parent
    target = tmp_path / "target"
    target.mkdir(mode=0o700)
    shutil.copy(next(base.iterdir()) / RECORD, target)
    rewrite(str(target), **ended())
    (base / "run_4711").symlink_to(target)
    make_run_directory(mine)
    assert (target / RECORD).exists()
    assert (base / "run_4711").is_symlink()


@pytest.mark.slow
@pytest.mark.skipif(bool(why_no_new_namespace()), reason=why_no_new_namespace())
def test_the_first_process_of_a_container_needs_no_cleaner_and_nobody_else_judges_it(runs):
    answer = finished(
        [*NEW_NAMESPACE, *runs.command("--", "sh", "-c", "echo $$ /proc/[0-9]*")],
        env=runs.environment(),
        check=True,
    )
    assert answer.stdout == "1 /proc/1\n"
    assert runs.directories() == ["run_1"]
    assert runs.run("--", "true").returncode == 0
    eventually(lambda: runs.directories() == ["run_1"])


# ---- where it lies -------------------------------------------------------------------------------


def test_a_run_lies_in_the_users_own_runtime_directory(mine):
    path = Path(make_run_directory(mine))
    assert path == Path(mine["XDG_RUNTIME_DIR"], "hamiregion", f"run_{os.getpid()}")
    for each in (path, path.parent):
        assert each.stat().st_mode & 0o777 == 0o700
    assert Path(make_run_directory(mine)).name == f"run_{os.getpid()}-1"


@pytest.mark.parametrize("spoil", ["link", "file", "open"])
def test_a_place_that_somebody_else_could_have_made_is_refused(mine, tmp_path, spoil):
    base = Path(mine["XDG_RUNTIME_DIR"], "hamiregion")
    if spoil == "link":
        (tmp_path / "theirs").mkdir(mode=0o700)
        base.symlink_to(tmp_path / "theirs")
    elif spoil == "file":
        base.write_text("")
    else:
        base.mkdir()
        base.chmod(0o750)
    with pytest.raises(LaunchError, match="not a directory that only this user can enter"):
        make_run_directory(mine)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make something another user's")
def test_a_directory_of_another_user_is_refused_and_so_is_his_runtime_directory(mine):
    session = Path(mine["XDG_RUNTIME_DIR"])
    (session / "hamiregion").mkdir(mode=0o700)
    os.chown(session / "hamiregion", NOBODY, NOBODY)
    with pytest.raises(LaunchError, match="remove it, or set XDG_RUNTIME_DIR"):
        make_run_directory(mine)
    os.chown(session, NOBODY, NOBODY)
    # As sudo may leave it: root's files would be in the user's way.
    assert str(session) not in "".join(run_bases(mine))


def test_without_a_runtime_directory_there_is_one_per_user(tmp_path):
    user = os.geteuid()
    expected = [f"/tmp/hamiregion-{user}"]
    if user == 0:
        expected.insert(0, "/run/hamiregion")
    if Path(f"/run/user/{user}").is_dir():
        expected.insert(0, f"/run/user/{user}/hamiregion")
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    for said in ("", "relative", str(tmp_path / "none"), str(open_to_all)):
        assert run_bases({"XDG_RUNTIME_DIR": said}) == expected
    assert run_bases({}) == expected


def test_an_environment_in_python_leaves_nothing_and_removes_nothing_in_use(runs, monkeypatch):
    for name, text in runs.environment().items():
        monkeypatch.setenv(name, text)
    with environment(driver=runs.driver, memory_limit="1g") as first:
        with environment(driver=runs.driver) as second:
            assert Path(first[REGION]).parent != Path(second[REGION]).parent
            assert len(runs.directories()) == 2
            process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, env=second)
        assert Path(second[REGION]).exists()
    assert runs.directories() == [Path(second[REGION]).parent.name]
    process.communicate()

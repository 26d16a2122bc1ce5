"""What different views of /proc show, and what they prove."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.container_factory import SCRIPT
from support.containers import libvgpu, look, match, mounted_proc, needs_namespaces, states
from support.forked import unprivileged
from support.process import descriptors
from support.region_file import RegionFile
from support.wait import eventually

from libhamiregion import create_region, open_region
from libhamiregion.node import ProcessTable
from libhamiregion.text import printable


@pytest.fixture
def region(region_file) -> RegionFile:
    return region_file(memory_limits=("8GiB",))


# ---- Other roots, other views -------------------------------------------------------------------


@needs_namespaces
def test_a_mounted_proc_of_the_host_shows_the_same(start, region, tmp_path):
    inside = start()
    pid = inside.tell("attach", region.path)
    with mounted_proc(tmp_path) as proc:
        table = ProcessTable(proc)
        assert look(region, table).host_pids == {pid: inside.host_pid}
        assert table.proc == str(proc)


@needs_namespaces
def test_from_inside_the_container_its_own_processes_are_told(start, region, tmp_path):
    inside = start()
    inside.tell("attach", region.path)
    region.add_process(4321)
    table = ProcessTable(f"/proc/{inside.host_pid}/root/proc")
    found = look(region, table)
    assert states(found) == {1: "alive", 4321: "unknown"}, "it may be a sidecar's namespace"
    inside.tell("load", libvgpu(tmp_path))
    found = look(region, table)
    assert states(found) == {1: "alive", 4321: "dead"}
    assert not table.view.is_complete, "the host's processes are not in there"
    assert not table.view.visibility.sees_host


@needs_namespaces
def test_the_proc_of_an_unrelated_namespace_proves_nothing(start, region):
    users, stranger = start(), start()
    users.tell("attach", region.path)
    region.add_process(4321)
    found = look(region, ProcessTable(f"/proc/{stranger.host_pid}/root/proc"))
    assert states(found) == {1: "unknown", 4321: "unknown"}


@needs_namespaces
def test_a_directory_that_is_no_proc_proves_nothing(region, tmp_path):
    region.add_process(4321)
    (tmp_path / "empty").mkdir()
    table = ProcessTable(tmp_path / "empty")
    assert states(look(region, table)) == {4321: "unknown"}
    assert list(table.view) == []
    assert not table.view.is_complete


def test_a_proc_that_is_not_there_is_an_error_and_the_table_stays(tmp_path):
    with pytest.raises(FileNotFoundError):
        ProcessTable(tmp_path / "none").refresh()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be without its rights in a child")
@needs_namespaces
def test_a_process_that_may_not_be_looked_at_is_unknown(start, public_directory):
    path = public_directory / "region.cache"
    create_region(path)
    inside = start()
    pid = inside.tell("attach", path)
    RegionFile(path, open_region(path).layout).add_process(3_999_999)
    host_pid = inside.host_pid

    # The machine's own may hide what this is about.
    with mounted_proc(public_directory, "hidepid=0") as proc:

        def work() -> tuple[dict[int, str], bool, bool, bool]:
            table = ProcessTable(proc)
            found = look(path, table)
            return (
                states(found),
                table.view.is_complete,
                host_pid in table.view.visibility.unreadable,
                table.view.visibility.sees_all_pids == table.view.visibility.sees_host
                and host_pid in {each.pid for each in table.view},
            )

        seen, complete, unreadable, listed = unprivileged(work)
    assert seen == {pid: "unknown", 3_999_999: "dead"}
    assert not complete
    assert unreadable
    assert listed, "its maps are refused, its pid and command line are not"


@needs_namespaces
def test_a_table_older_than_the_snapshot_calls_nobody_dead(start, region):
    table = ProcessTable()
    region.add_process(3_999_999)
    assert states(look(region, table)) == {3_999_999: "dead"}
    inside = start()
    inside.tell("attach", region.path)
    with open_region(region) as opened:
        snapshot = opened.snapshot()
        assert states(match(table, opened, snapshot)) == {1: "unknown", 3_999_999: "unknown"}
        table.refresh()
        assert states(match(table, opened, snapshot)) == {1: "alive", 3_999_999: "dead"}
        assert match(table, opened, snapshot).host_pids == {1: inside.host_pid}


# ---- What a process is --------------------------------------------------------------------------


def test_a_process_is_told_with_its_user_and_command(start):
    plain = start(0)
    table = ProcessTable()
    table.refresh()
    process = table.view.get(plain.process.pid)
    assert process is not None
    assert process in list(table.view)
    assert process.uid == os.geteuid()
    assert process.command == f"{sys.executable} {SCRIPT}"
    assert process.ns_pids == (plain.process.pid,)
    assert process.start_time_ticks > 0


def test_users_are_named_by_the_file_that_is_given(start, tmp_path):
    plain = start(0)
    users = tmp_path / "passwd"
    users.write_text(f"# odd\n\nx:y\nsomeone:x:{os.geteuid()}:0::/:/bin/sh\n")
    table = ProcessTable(user_file=users)
    table.refresh()
    process = table.view.get(plain.process.pid)
    assert process.user == "someone"
    pipe, endless = tmp_path / "pipe", tmp_path / "endless"
    os.mkfifo(pipe)
    endless.write_bytes(users.read_bytes())
    os.truncate(endless, 8 << 20)
    for unreadable in (tmp_path / "none", endless, pipe):
        table = ProcessTable(user_file=unreadable)
        table.refresh()
        process = table.view.get(plain.process.pid)
        assert process.user == str(os.geteuid())


def test_a_hostile_command_line_is_bounded_and_can_be_printed():
    script = "import time; print(flush=True); time.sleep(60)"
    arguments = ["\x1b]0;owned\x07", "a\nb", b"\xff\xfe", "x" * 100_000]
    process = subprocess.Popen([sys.executable, "-c", script, *arguments], stdout=subprocess.PIPE)
    try:
        process.stdout.readline()
        table = ProcessTable()
        table.refresh()
        found = table.view.get(process.pid)
        assert len(found.command) <= 4096
        assert "\x1b]0;owned\x07 a\nb \\xff\\xfe xxx" in found.command
        found.command.encode()
        assert printable(found.command, 80).isprintable()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_kernel_threads_and_other_names_in_proc_are_no_processes():
    table = ProcessTable()
    table.refresh()
    assert table.view.get(0) is None
    for process in table.view:
        stat = Path(f"/proc/{process.pid}/stat")
        if stat.exists():
            assert not int(stat.read_text().rpartition(")")[2].split()[6]) & 0x200000


@pytest.mark.root
def test_the_first_namespace_as_root_is_complete_once_it_was_read():
    table = ProcessTable()
    assert not table.view.is_complete
    table.refresh()
    assert table.view.is_complete
    assert table.view.visibility.unreadable == ()
    assert table.view.visibility.sees_all_pids
    assert table.view.visibility.own_pid == os.getpid()


def test_a_refresh_leaves_no_descriptor_open():
    table = ProcessTable()
    table.refresh()
    before = descriptors()
    for _ in range(3):
        table.refresh()
    # Threads of other tests may be at work.
    eventually(lambda: descriptors() <= before)

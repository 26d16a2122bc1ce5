"""Slots and host processes, in real pid namespaces.

What the library says is compared with the kernel's own tree of parents and children, which it does
not use.
"""

import json
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from forked import in_child, unprivileged
from poke import RegionFile, RegionFileFactory

from libhamiregion import RegionClosed, RegionStale, create_region, open_region
from libhamiregion.host import HostProcess, MappedRegion, ProcessTable, RegionProcesses, SlotMatch
from libhamiregion.text import printable

SCRIPT = Path(__file__).with_name("container_process.py")
UNSHARE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
PATIENCE_S = 30
GIB = 1 << 30


def can_unshare() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*UNSHARE, "true"], check=False, capture_output=True).returncode == 0


needs_namespaces = pytest.mark.skipif(
    not can_unshare(), reason="needs unshare and the right to make pid namespaces"
)


def children_of(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(word) for task in tasks for word in (task / "children").read_text().split()]


class Container:
    """A process `depth` pid namespaces below this one, and its children."""

    def __init__(self, depth: int, prefix: tuple[str, ...] = ()) -> None:
        self.depth = depth
        self.process = subprocess.Popen(
            [*prefix, *UNSHARE * depth, sys.executable, str(SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.init_pid: int = self.tell("pid")

    def tell(self, *words: object) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE_S)
        assert ready, f"no answer to {words}"
        return json.loads(self.process.stdout.readline())["answer"]

    @property
    def host_pid(self) -> int:
        """The host's pid of the first process, down the tree from the one that was started."""
        pid = self.process.pid
        for _ in range(self.depth):
            (pid,) = children_of(pid)
        return pid

    def child(self, *words: object) -> tuple[int, int]:
        """Make a child by a command; its pid inside and on the host."""
        before = set(children_of(self.host_pid))
        inside = self.tell(*words)
        (outside,) = set(children_of(self.host_pid)) - before
        return inside, outside

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


Starter = Callable[..., Container]


@pytest.fixture
def container() -> Iterator[Starter]:
    """Starts containers, by their depth; ends them afterwards."""
    running = []

    def start(depth: int = 1, prefix: tuple[str, ...] = ()) -> Container:
        running.append(Container(depth, prefix))
        return running[-1]

    yield start
    for each in running:
        each.end()


@pytest.fixture
def region(region_file: RegionFileFactory) -> RegionFile:
    return region_file(memory_limits=("8GiB",))


def look(
    path: os.PathLike[str], table: ProcessTable | None = None, **options: Any
) -> RegionProcesses:
    """Snapshot, refresh, match: in the order that proves a process dead."""
    table = ProcessTable() if table is None else table
    with open_region(path) as opened:
        snapshot = opened.snapshot()
        table.refresh()
        return table.match(opened, snapshot, **options)


def states(found: RegionProcesses) -> dict[int, str]:
    return {slot.pid: slot.state for slot in found.slots}


def pids(processes: tuple[HostProcess, ...]) -> list[int]:
    return [process.pid for process in processes]


# ---- The mapping --------------------------------------------------------------------------------


@needs_namespaces
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_each_slot_is_matched_with_its_host_process(
    depth: int, container: Starter, region: RegionFile
) -> None:
    inside = container(depth)
    expected = {inside.tell("attach", region.path): inside.host_pid}
    for _ in range(3):
        pid, host_pid = inside.child("spawn")
        assert inside.tell(f"@{pid}", "attach", region.path) == pid
        expected[pid] = host_pid

    found = look(region)
    assert found.host_pids == expected
    assert set(states(found).values()) == {"alive"}
    assert found.unlisted == ()
    for slot in found.slots:
        assert slot.process is not None
        assert len(slot.process.ns_pids) == depth + 1
        assert (slot.process.ns_pids[0], slot.process.ns_pids[-1]) == (slot.process.pid, slot.pid)


@needs_namespaces
def test_processes_of_two_nested_namespaces_share_a_region(
    container: Starter, region: RegionFile
) -> None:
    outer, inner = container(1), container(2)
    pid, host_pid = outer.child("spawn")
    outer.tell(f"@{pid}", "attach", region.path)
    assert inner.tell("attach", region.path) == 1
    assert look(region).host_pids == {pid: host_pid, 1: inner.host_pid}


@needs_namespaces
def test_the_same_pid_in_two_namespaces_is_two_processes(
    container: Starter, region_file: RegionFileFactory
) -> None:
    files = [region_file(), region_file()]
    containers = [container(), container()]
    for file, each in zip(files, containers, strict=True):
        assert each.tell("attach", file.path) == 1
    for file, each in zip(files, containers, strict=True):
        assert look(file).host_pids == {1: each.host_pid}


@needs_namespaces
def test_two_candidates_for_one_slot_are_unknown_until_others_tell_the_container(
    container: Starter, region: RegionFile
) -> None:
    users, stranger = container(), container()
    users.tell("attach", region.path)
    stranger.tell("map", region.path)
    found = look(region)
    assert found.slots == (SlotMatch(1, "unknown", None),)
    assert found.unlisted == ()

    pid, host_pid = users.child("spawn", 99)
    assert pid == 100
    users.tell(f"@{pid}", "attach", region.path)
    found = look(region)
    assert found.host_pids == {1: users.host_pid, pid: host_pid}
    assert pids(found.unlisted) == [stranger.host_pid]


def test_processes_without_a_namespace_of_their_own(container: Starter, region: RegionFile) -> None:
    plain = container(0)
    pid = plain.tell("attach", region.path)
    assert pid == plain.process.pid
    assert look(region).host_pids == {pid: pid}


@needs_namespaces
def test_a_host_pid_in_the_region_is_not_believed(container: Starter, region: RegionFile) -> None:
    first, second = container(), container()
    pid = first.tell("attach", region.path)
    for lie in (0, pid, second.host_pid, os.getpid(), 4_000_000):
        region.put("slot_hostpid", lie)
        assert look(region).host_pids == {pid: first.host_pid}


# ---- Forks, execs, mappings without a slot ------------------------------------------------------


@needs_namespaces
def test_a_forked_child_maps_the_region_and_has_no_slot(
    container: Starter, region: RegionFile
) -> None:
    inside = container()
    pid = inside.tell("attach", region.path)
    _, child = inside.child("fork")
    found = look(region)
    assert found.host_pids == {pid: inside.host_pid}
    assert pids(found.unlisted) == [child]


@needs_namespaces
def test_a_process_that_maps_the_region_without_attaching_is_unlisted(
    container: Starter, region: RegionFile
) -> None:
    inside = container()
    pid, host_pid = inside.child("spawn")
    inside.tell("attach", region.path)
    table = ProcessTable()
    assert look(region, table).unlisted == ()
    inside.tell(f"@{pid}", "map", region.path)
    assert pids(look(region, table).unlisted) == [host_pid]
    inside.tell(f"@{pid}", "close")
    assert look(region, table).unlisted == ()


@needs_namespaces
def test_a_process_that_only_reads_is_an_onlooker(container: Starter, region: RegionFile) -> None:
    inside = container()
    pid, host_pid = inside.child("spawn")
    inside.tell("attach", region.path)
    inside.tell(f"@{pid}", "map", region.path, "r")
    region.add_process(pid)
    found = look(region)
    assert states(found) == {1: "alive", pid: "dead"}
    assert host_pid in pids(found.onlookers)
    assert found.unlisted == ()


@needs_namespaces
def test_a_process_that_became_another_program_is_dead_to_the_region(
    container: Starter, region: RegionFile
) -> None:
    inside = container()
    pid, host_pid = inside.child("spawn")
    inside.tell(f"@{pid}", "attach", region.path)
    table = ProcessTable()
    assert states(look(region, table)) == {pid: "alive"}
    before = table.get(host_pid)
    inside.tell(f"@{pid}", "execute")
    found = look(region, table)
    assert found.slots == (SlotMatch(pid, "dead", None),)
    assert found.unlisted == ()
    after = table.get(host_pid)
    assert before is not None
    assert after is not None
    assert before.start_time_ticks == after.start_time_ticks, "an exec is no new process"
    assert "container_process.py" in before.command
    assert after.command.startswith("sh -c ")


@needs_namespaces
def test_a_zombie_is_dead(container: Starter, region: RegionFile) -> None:
    inside = container()
    pid, host_pid = inside.child("spawn")
    inside.tell(f"@{pid}", "attach", region.path)
    table = ProcessTable()
    assert states(look(region, table)) == {pid: "alive"}
    inside.tell("zombie", pid)
    assert states(look(region, table)) == {pid: "dead"}
    zombie = table.get(host_pid)
    assert zombie is not None
    assert zombie.command.startswith("[")


@needs_namespaces
def test_a_process_whose_first_thread_has_ended_is_alive(
    container: Starter, region: RegionFile
) -> None:
    inside = container()
    pid = inside.tell("attach", region.path)
    table = ProcessTable()
    assert states(look(region, table)) == {pid: "alive"}
    host_pid = inside.host_pid
    inside.tell("leave_first_thread")
    wait_for(lambda: Path(f"/proc/{host_pid}/maps").read_text() == "")
    found = look(region, table)
    assert found.host_pids == {pid: host_pid}


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition never held"
        time.sleep(0.005)


@needs_namespaces
def test_a_thread_is_no_process(container: Starter, region: RegionFile) -> None:
    inside = container()
    inside.tell("attach", region.path)
    thread = inside.tell("thread")
    assert thread != 1
    region.add_process(thread)
    assert states(look(region)) == {1: "alive", thread: "dead"}


# ---- Death and pids that are used again ---------------------------------------------------------


@needs_namespaces
def test_a_dead_processs_pid_that_is_used_again_is_not_mistaken(
    container: Starter, region: RegionFile
) -> None:
    inside = container()
    pid, first = inside.child("spawn", 499)
    assert pid == 500
    inside.tell(f"@{pid}", "attach", region.path)
    table = ProcessTable()
    assert look(region, table).host_pids == {500: first}

    inside.tell("kill", pid)
    assert states(look(region, table)) == {500: "dead"}
    again, second = inside.child("spawn", 499)
    assert again == 500
    found = look(region, table)
    assert found.slots == (SlotMatch(500, "dead", None),)
    assert found.unlisted == ()
    successor = table.get(second)
    assert successor is not None
    assert successor.ns_pids[-1] == 500

    inside.tell("@500", "attach", region.path)
    assert look(region, table).host_pids == {500: second}


@needs_namespaces
def test_a_pid_that_is_used_again_between_two_refreshes_is_another_process(
    container: Starter, region: RegionFile
) -> None:
    """Seen through the namespace's own /proc, where the successor has the very same pid."""
    inside = container()
    table = ProcessTable(f"/proc/{inside.host_pid}/root/proc")
    other = inside.tell("spawn")
    inside.tell(f"@{other}", "attach", region.path)
    inside.tell("spawn", 499)
    inside.tell("@500", "attach", region.path)
    assert look(region, table).host_pids == {other: other, 500: 500}
    first = table.get(500)

    inside.tell("kill", 500)
    assert inside.tell("spawn", 499) == 500
    found = look(region, table)
    second = table.get(500)
    assert first is not None
    assert second is not None
    assert first.start_time_ticks <= second.start_time_ticks
    assert states(found) == {other: "alive", 500: "dead"}
    assert found.unlisted == ()


# ---- Other roots, other views -------------------------------------------------------------------


@needs_namespaces
def test_a_mounted_proc_of_the_host_shows_the_same(
    container: Starter, region: RegionFile, tmp_path: Path
) -> None:
    inside = container()
    pid = inside.tell("attach", region.path)
    with mounted_proc(tmp_path) as proc:
        table = ProcessTable(proc)
        assert look(region, table).host_pids == {pid: inside.host_pid}
        assert table.proc == str(proc)


class mounted_proc:  # noqa: N801
    """Another mount of /proc, with options."""

    def __init__(self, directory: Path, options: str = "rw") -> None:
        self.path = directory / "host-proc"
        self.options = options

    def __enter__(self) -> Path:
        self.path.mkdir()
        command = ["mount", "-t", "proc", "-o", self.options, "proc", str(self.path)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode != 0:
            pytest.skip(f"needs the right to mount /proc: {done.stderr.strip()}")
        return self.path

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", str(self.path)], check=True)


@needs_namespaces
def test_from_inside_the_container_its_own_processes_are_told(
    container: Starter, region: RegionFile
) -> None:
    inside = container()
    inside.tell("attach", region.path)
    region.add_process(4321)
    table = ProcessTable(f"/proc/{inside.host_pid}/root/proc")
    found = look(region, table)
    assert states(found) == {1: "alive", 4321: "dead"}
    assert not table.is_complete, "the host's processes are not in there"


@needs_namespaces
def test_the_proc_of_an_unrelated_namespace_proves_nothing(
    container: Starter, region: RegionFile
) -> None:
    users, stranger = container(), container()
    users.tell("attach", region.path)
    region.add_process(4321)
    found = look(region, ProcessTable(f"/proc/{stranger.host_pid}/root/proc"))
    assert states(found) == {1: "unknown", 4321: "unknown"}


@needs_namespaces
def test_a_directory_that_is_no_proc_proves_nothing(region: RegionFile, tmp_path: Path) -> None:
    region.add_process(4321)
    (tmp_path / "empty").mkdir()
    table = ProcessTable(tmp_path / "empty")
    assert states(look(region, table)) == {4321: "unknown"}
    assert len(table) == 0
    assert not table.is_complete


def test_a_proc_that_is_not_there_is_an_error_and_the_table_stays(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ProcessTable(tmp_path / "none").refresh()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be without its rights in a child")
@needs_namespaces
def test_a_process_that_may_not_be_looked_at_is_unknown(
    container: Starter, public_directory: Path
) -> None:
    path = public_directory / "region.cache"
    create_region(path)
    inside = container()
    pid = inside.tell("attach", path)
    RegionFile(path, open_region(path).layout).add_process(3_999_999)
    host_pid = inside.host_pid

    def work() -> tuple[dict[int, str], bool, bool]:
        table = ProcessTable()
        found = look(path, table)
        return states(found), table.is_complete, host_pid in table.unreadable

    seen, complete, unreadable = unprivileged(work)
    assert seen == {pid: "unknown", 3_999_999: "dead"}
    assert not complete
    assert unreadable


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount /proc")
@pytest.mark.parametrize("hidepid", [1, 2])
@needs_namespaces
def test_where_processes_are_hidden_no_slot_is_called_dead(
    hidepid: int, container: Starter, public_directory: Path
) -> None:
    path = public_directory / "region.cache"
    create_region(path)
    inside = container()
    pid = inside.tell("attach", path)
    RegionFile(path, open_region(path).layout).add_process(3_999_999)
    with mounted_proc(public_directory, f"hidepid={hidepid}") as proc:

        def work() -> tuple[dict[int, str], bool]:
            table = ProcessTable(proc)
            return states(look(path, table)), table.is_complete

        assert unprivileged(work) == ({pid: "unknown", 3_999_999: "unknown"}, False)


@needs_namespaces
def test_a_table_older_than_the_snapshot_calls_nobody_dead(
    container: Starter, region: RegionFile
) -> None:
    table = ProcessTable()
    table.refresh()
    inside = container()
    inside.tell("attach", region.path)
    with open_region(region) as opened:
        snapshot = opened.snapshot()
        assert states(table.match(opened, snapshot)) == {1: "unknown"}
        table.refresh()
        assert table.match(opened, snapshot).host_pids == {1: inside.host_pid}


# ---- This process -------------------------------------------------------------------------------


def test_this_process_counts_only_where_it_is_attached(region: RegionFile) -> None:
    table = ProcessTable()
    with open_region(region, writable=True) as opened:
        region.add_process(os.getpid())
        found = look(region, table)
        assert states(found) == {os.getpid(): "dead"}
        assert pids(found.onlookers) == [os.getpid()]
        with opened.attach():
            found = look(region, table)
            assert found.host_pids == {os.getpid(): os.getpid()}


def test_a_closed_region_cannot_be_matched(region: RegionFile) -> None:
    table = ProcessTable()
    opened = open_region(region)
    snapshot = opened.snapshot()
    table.identity(opened)
    opened.close()
    with pytest.raises(RegionClosed, match="open it again"):
        table.match(opened, snapshot)


def test_a_regions_identity_follows_the_file_and_not_the_address(
    region_file: RegionFileFactory,
) -> None:
    table = ProcessTable()
    for _ in range(20):
        file = region_file()
        with open_region(file) as opened:
            status = file.path.stat()
            assert table.identity(opened) == (status.st_dev, status.st_ino)


# ---- Mapped files wherever they are -------------------------------------------------------------


def mapped(table: ProcessTable, pid: int) -> list[MappedRegion]:
    return [each for each in table.mapped_regions() if pid in each.pids]


@needs_namespaces
def test_a_private_region_is_found_and_opened_through_its_process(
    container: Starter, tmp_path: Path
) -> None:
    private = tmp_path / "private"
    private.mkdir()
    script = f'mount -t tmpfs none {private} && exec "$@"'
    inside = container(1, ("unshare", "--mount", "sh", "-c", script, "sh"))
    host_pid = inside.host_pid
    create_region(Path(f"/proc/{host_pid}/root{private}/cudevshr.cache"), memory_limits=(GIB,))
    assert not (private / "cudevshr.cache").exists()
    inside.tell("attach", private / "cudevshr.cache")
    inside.tell("charge", 1000)

    table = ProcessTable()
    table.refresh()
    (found,) = mapped(table, host_pid)
    assert found.path_in_namespace == str(private / "cudevshr.cache")
    assert (found.deleted, found.pids) == (False, (host_pid,))
    assert pids(table.mappers(found.device, found.inode)) == [host_pid]
    with table.open_mapped(found) as opened:
        assert opened.memory_used(0) == 1000
        assert not opened.writable
        snapshot = opened.snapshot()
        table.refresh()
        assert table.match(opened, snapshot).host_pids == {1: host_pid}
    with table.open_mapped(found, writable=True) as opened:
        assert opened.writable


@needs_namespaces
def test_a_mapped_file_that_was_deleted_is_told_and_cannot_be_opened(
    container: Starter, region: RegionFile
) -> None:
    inside = container()
    inside.tell("attach", region.path)
    table = ProcessTable()
    with open_region(region) as opened:
        table.refresh()
        region.path.unlink()
        (found,) = mapped(table, inside.host_pid)
        assert found.deleted
        assert found.path_in_namespace == str(region.path)
        with pytest.raises(RegionStale, match="deleted or replaced"):
            table.open_mapped(found)
        snapshot = opened.snapshot()
        table.refresh()
        assert table.match(opened, snapshot).host_pids == {1: inside.host_pid}


@needs_namespaces
def test_a_file_that_took_the_mapped_ones_name_is_not_opened_for_it(
    container: Starter, region: RegionFile
) -> None:
    inside = container()
    inside.tell("attach", region.path)
    table = ProcessTable()
    table.refresh()
    (found,) = mapped(table, inside.host_pid)
    region.path.unlink()
    create_region(region.path)
    with pytest.raises(RegionStale, match="deleted or replaced"):
        table.open_mapped(found)
    # The new file's mappers are not the old one's.
    assert look(region, table).slots == ()
    assert inside.host_pid not in pids(look(region, table).unlisted)


@needs_namespaces
@pytest.mark.parametrize("place", ["file", "directory"])
def test_a_link_inside_a_container_is_not_followed(
    place: str, container: Starter, region_file: RegionFileFactory, tmp_path: Path
) -> None:
    (tmp_path / "inside").mkdir()
    file = region_file(name="inside/region.cache")
    inside = container()
    inside.tell("attach", file.path)
    table = ProcessTable()
    table.refresh()
    (found,) = mapped(table, inside.host_pid)
    (tmp_path / "inside").rename(tmp_path / "moved")
    if place == "directory":
        (tmp_path / "inside").symlink_to("moved")
    else:
        (tmp_path / "inside").mkdir()
        file.path.symlink_to("../moved/region.cache")
    with pytest.raises((RegionStale, ValueError)):
        table.open_mapped(found)


@needs_namespaces
def test_hostile_file_names_stay_one_mapping_each(container: Starter, tmp_path: Path) -> None:
    names = [
        "a\nb.cache",
        "x rw-s 00000000 08:01 1 .cache",
        "\x1b[2J.cache",
        "a (deleted).cache",
        "'\"`$(reboot).cache",
        "é\udcff.cache",
        "a" * 249 + ".cache",
    ]
    inside = container()
    for name in names:
        create_region(tmp_path / name)
        with open_region(tmp_path / name) as opened:
            assert opened.device_count == 0
    # The name goes to the process in a line of words.
    (tmp_path / "links").mkdir()
    for index, name in enumerate(names):
        os.link(tmp_path / name, tmp_path / "links" / f"{index}.cache")
        inside.tell("map", tmp_path / "links" / f"{index}.cache")
        (tmp_path / "links" / f"{index}.cache").rename(tmp_path / "links" / name)
    table = ProcessTable()
    table.refresh()
    found = mapped(table, inside.host_pid)
    assert {Path(each.path_in_namespace).name for each in found} == set(names)
    assert not any(each.deleted for each in found)
    for each in found:
        assert printable(each.path_in_namespace).isprintable()
        table.open_mapped(each).close()


# ---- What a process is --------------------------------------------------------------------------


def test_a_process_is_told_with_its_user_and_command(container: Starter) -> None:
    plain = container(0)
    table = ProcessTable()
    table.refresh()
    process = table.get(plain.process.pid)
    assert process is not None
    assert process in list(table)
    assert process.uid == os.geteuid()
    assert process.command == f"{sys.executable} {SCRIPT}"
    assert process.ns_pids == (plain.process.pid,)
    assert process.start_time_ticks > 0


def test_users_are_named_by_the_file_that_is_given(container: Starter, tmp_path: Path) -> None:
    plain = container(0)
    users = tmp_path / "passwd"
    users.write_text(f"# odd\n\nx:y\nsomeone:x:{os.geteuid()}:0::/:/bin/sh\n")
    table = ProcessTable(user_file=users)
    table.refresh()
    process = table.get(plain.process.pid)
    assert process is not None
    assert process.user == "someone"
    table = ProcessTable(user_file=tmp_path / "none")
    table.refresh()
    process = table.get(plain.process.pid)
    assert process is not None
    assert process.user == str(os.geteuid())


def test_a_hostile_command_line_is_bounded_and_can_be_printed() -> None:
    script = "import time; print(flush=True); time.sleep(60)"
    arguments = ["\x1b]0;owned\x07", "a\nb", b"\xff\xfe", "x" * 100_000]
    process = subprocess.Popen([sys.executable, "-c", script, *arguments], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        table = ProcessTable()
        table.refresh()
        found = table.get(process.pid)
        assert found is not None
        assert len(found.command) <= 4096
        assert "\x1b]0;owned\x07 a\nb \\xff\\xfe xxx" in found.command
        found.command.encode()
        assert printable(found.command, 80).isprintable()
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_kernel_threads_and_other_names_in_proc_are_no_processes() -> None:
    table = ProcessTable()
    table.refresh()
    assert len(table) == len(list(table))
    assert table.get(0) is None
    for process in table:
        stat = Path(f"/proc/{process.pid}/stat")
        if stat.exists():
            assert not int(stat.read_text().rpartition(")")[2].split()[6]) & 0x200000


def test_the_host_as_root_is_complete_or_says_what_it_lacks() -> None:
    table = ProcessTable()
    assert not table.is_complete, "nothing has been read yet"
    table.refresh()
    if os.geteuid() == 0 and str(Path("/proc/self/ns/pid").readlink()) == "pid:[4026531836]":
        assert table.is_complete
        assert table.unreadable == ()


def test_a_refresh_leaves_no_descriptor_open() -> None:
    table = ProcessTable()
    table.refresh()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        table.refresh()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_without_descriptors_a_refresh_fails_and_the_table_stays() -> None:
    def work() -> tuple[bool, bool]:
        table = ProcessTable()
        table.refresh()
        before = list(table)
        lowest = os.open("/dev/null", os.O_RDONLY)
        # Room for /proc itself and nothing more.
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 1, lowest + 1))
        try:
            table.refresh()
        except OSError:
            return True, list(table) == before
        return False, False

    assert in_child(work) == (True, True)


# ---- A hostile container ------------------------------------------------------------------------


@needs_namespaces
def test_invented_slots_are_matched_with_nobody_in_bounded_time(
    container: Starter, region: RegionFile
) -> None:
    """1,023 invented processes with pids, inside and outside, of processes of others."""
    victims = [container() for _ in range(3)]
    inside = container()
    real = inside.tell("attach", region.path)
    table = ProcessTable()
    table.refresh()
    others = [process.pid for process in table]
    numbers = [victim.host_pid for victim in victims] + others + list(range(2, 5000))
    invented = list(dict.fromkeys(pid for pid in numbers if pid != real))[:1023]
    for slot, pid in enumerate(invented, start=1):
        region.put("slot_pid", pid, slot=slot)
        region.put("slot_hostpid", others[slot % len(others)], slot=slot)
        region.put("slot_status", 1, slot=slot)
    region.put("proc_num", 1024)

    with open_region(region) as opened:
        snapshot = opened.snapshot()
        table.refresh()
        started = time.process_time()
        found = table.match(opened, snapshot)
        spent_s = time.process_time() - started
    assert len(found.slots) == 1024
    assert found.host_pids == {real: inside.host_pid}
    assert {slot.state for slot in found.slots if slot.pid != real} == {"dead"}
    assert found.unlisted == ()
    assert spent_s < 1, "a thousand slots are milliseconds"


@needs_namespaces
def test_a_monitor_on_the_host_is_not_taken_for_a_process_that_a_slot_names(
    container: Starter, region: RegionFile
) -> None:
    """HAMi's monitor maps every region for writing, and a container can write its pid."""
    monitor, inside = container(0), container()
    monitor.tell("map", region.path)
    inside.tell("attach", region.path)
    region.add_process(monitor.process.pid)
    found = look(region)
    assert found.host_pids == {1: inside.host_pid}
    assert states(found)[monitor.process.pid] == "unknown"
    assert found.unlisted == ()
    assert monitor.process.pid in pids(found.onlookers)


@pytest.mark.parametrize("pid", [0, -1, -(1 << 31)])
def test_a_slot_with_an_impossible_pid_is_dead(pid: int, region: RegionFile) -> None:
    region.add_process(pid)
    found = look(region)
    assert {slot.state for slot in found.slots} <= {"dead"}


@needs_namespaces
def test_processes_that_come_and_go_do_not_disturb_a_refresh(
    container: Starter, region: RegionFile
) -> None:
    inside = container()
    inside.tell("attach", region.path)
    script = "import os\nwhile True:\n os.fork() or os._exit(0)\n os.wait()"
    storm = [subprocess.Popen([sys.executable, "-c", script]) for _ in range(4)]
    table = ProcessTable()
    try:
        for _ in range(50):
            assert look(region, table).host_pids == {1: inside.host_pid}
    finally:
        for process in storm:
            process.send_signal(signal.SIGKILL)
            process.wait()

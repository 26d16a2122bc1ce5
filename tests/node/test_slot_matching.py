"""Slots and host processes, in real pid namespaces.

What the library says is compared with the kernel's own tree of parents and children, which it does
not use.
"""

import ctypes
import os
import time
import uuid
from pathlib import Path

import pytest
from support.containers import container_with, libvgpu, look, match, needs_namespaces, pids, states
from support.forked import unprivileged
from support.own_cgroups import cgroup_of_pod
from support.region_file import RegionFile
from support.wait import eventually

from libhamiregion import RegionClosed, create_region, open_region
from libhamiregion.node import ProcessTable, match_slots, processes
from libhamiregion.node.outside import mapped_regions, open_mapped, resolve
from libhamiregion.node.procfs import file_identity
from libhamiregion.observation.processes import SlotMatch
from libhamiregion.text import printable


@pytest.fixture
def region(region_file) -> RegionFile:
    return region_file(memory_limits=("8GiB",))


@pytest.fixture(autouse=True)
def nothing_is_kept(monkeypatch) -> None:
    """Maps are read at each refresh."""
    monkeypatch.setattr(processes, "_KEPT_S", 0.0)


# ---- The mapping --------------------------------------------------------------------------------


@needs_namespaces
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_each_slot_is_matched_with_its_host_process(depth, start, region):
    inside = start(depth)
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
        assert len(slot.process.ns_pids) == depth + 1
        assert (slot.process.ns_pids[0], slot.process.ns_pids[-1]) == (slot.process.pid, slot.pid)


@needs_namespaces
def test_two_candidates_for_one_slot_are_unknown_until_others_tell_the_container(start, region):
    users, stranger = start(), start()
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


def test_processes_without_a_namespace_of_their_own(start, region):
    plain = start(0)
    pid = plain.tell("attach", region.path)
    assert pid == plain.process.pid
    assert look(region).host_pids == {pid: pid}


@needs_namespaces
def test_a_host_pid_in_the_region_is_not_believed(start, region):
    first, second = start(), start()
    pid = first.tell("attach", region.path)
    for lie in (0, pid, second.host_pid, os.getpid(), 4_000_000):
        region.put("slot_hostpid", lie)
        assert look(region).host_pids == {pid: first.host_pid}


# ---- Forks, execs, mappings without a slot ------------------------------------------------------


@needs_namespaces
def test_who_maps_the_region_without_a_slot_is_unlisted(start, region):
    """A forked child, and a process that has not attached."""
    inside = start()
    pid, host_pid = inside.child("spawn")
    inside.tell("attach", region.path)
    table = ProcessTable()
    assert look(region, table).unlisted == ()
    inside.tell(f"@{pid}", "map", region.path)
    assert pids(look(region, table).unlisted) == [host_pid]
    inside.tell(f"@{pid}", "close")
    assert look(region, table).unlisted == ()
    _, child = inside.child("fork")
    found = look(region, table)
    assert found.host_pids == {1: inside.host_pid}
    assert pids(found.unlisted) == [child]


@needs_namespaces
def test_a_process_that_only_reads_is_an_onlooker(start, region):
    inside = start()
    pid, host_pid = inside.child("spawn")
    inside.tell("attach", region.path)
    inside.tell(f"@{pid}", "map", region.path, "r")
    region.add_process(pid)
    found = look(region)
    assert states(found) == {1: "alive", pid: "dead"}
    assert host_pid in pids(found.onlookers)
    assert found.unlisted == ()


@needs_namespaces
def test_one_whose_cgroup_names_another_pod_is_not_called_dead(region, start):
    """One of the two is wrong about it; what maps the region under that pid lives."""
    inside = start()
    pid = inside.tell("attach", region.path)
    with cgroup_of_pod(str(uuid.uuid4()), "ab" * 32, inside.host_pid):
        found = look(region, pod_uid=str(uuid.uuid4()))
    assert states(found) == {pid: "unknown"}
    assert inside.host_pid in pids(found.onlookers)


@needs_namespaces
def test_a_process_that_became_another_program_is_dead_to_the_region(start, region):
    inside = start()
    pid, host_pid = inside.child("spawn")
    inside.tell(f"@{pid}", "attach", region.path)
    table = ProcessTable()
    assert states(look(region, table)) == {pid: "alive"}
    before = table.view.get(host_pid)
    inside.tell(f"@{pid}", "execute")
    found = look(region, table)
    assert found.slots == (SlotMatch(pid, "dead", None),)
    assert found.unlisted == ()
    after = table.view.get(host_pid)
    assert before.start_time_ticks == after.start_time_ticks, "an exec is no new process"
    assert "container_forker.py" in before.command
    assert after.command.startswith("sh -c ")


@needs_namespaces
def test_a_zombie_is_dead(start, region):
    inside = start()
    pid, host_pid = inside.child("spawn")
    inside.tell(f"@{pid}", "attach", region.path)
    table = ProcessTable()
    assert states(look(region, table)) == {pid: "alive"}
    inside.tell("zombie", pid)
    assert states(look(region, table)) == {pid: "dead"}
    assert table.view.get(host_pid) is None


@needs_namespaces
def test_a_process_whose_first_thread_has_ended_is_alive(start, region):
    inside = start()
    pid = inside.tell("attach", region.path)
    table = ProcessTable()
    assert states(look(region, table)) == {pid: "alive"}
    host_pid = inside.host_pid
    inside.tell("leave_first_thread")
    eventually(lambda: Path(f"/proc/{host_pid}/maps").read_text() == "")
    found = look(region, table)
    assert found.host_pids == {pid: host_pid}


@needs_namespaces
def test_a_thread_is_no_process(start, region):
    inside = start()
    inside.tell("attach", region.path)
    thread = inside.tell("thread")
    assert thread != 1
    region.add_process(thread)
    assert states(look(region)) == {1: "alive", thread: "dead"}


# ---- Death and pids that are used again ---------------------------------------------------------


@needs_namespaces
def test_a_dead_processs_pid_that_is_used_again_is_not_mistaken(start, region):
    inside = start()
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
    successor = table.view.get(second)
    assert successor.ns_pids[-1] == 500

    inside.tell("@500", "attach", region.path)
    assert look(region, table).host_pids == {500: second}


@needs_namespaces
def test_a_pid_that_is_used_again_between_two_refreshes_is_another_process(start, region, tmp_path):
    """Seen through the namespace's own /proc, where the successor has the very same pid."""
    inside = start()
    table = ProcessTable(f"/proc/{inside.host_pid}/root/proc")
    other = inside.tell("spawn")
    inside.tell(f"@{other}", "attach", region.path)
    inside.tell(f"@{other}", "load", libvgpu(tmp_path))
    inside.tell("spawn", 499)
    inside.tell("@500", "attach", region.path)
    assert look(region, table).host_pids == {other: other, 500: 500}
    first = table.view.get(500)

    inside.tell("kill", 500)
    assert inside.tell("spawn", 499) == 500
    found = look(region, table)
    second = table.view.get(500)
    assert first.start_time_ticks <= second.start_time_ticks
    assert states(found) == {other: "alive", 500: "dead"}
    assert found.unlisted == ()


# ---- This process -------------------------------------------------------------------------------


def test_this_process_counts_only_where_it_is_attached(region):
    table = ProcessTable()
    with open_region(region, writable=True) as opened:
        region.add_process(os.getpid())
        found = look(region, table)
        assert states(found) == {os.getpid(): "dead"}
        assert pids(found.onlookers) == [os.getpid()]
        with opened.attach():
            found = look(region, table)
            assert found.host_pids == {os.getpid(): os.getpid()}


def test_a_closed_region_cannot_be_matched(region):
    table = ProcessTable()
    opened = open_region(region)
    snapshot = opened.snapshot()
    file_identity(opened)
    opened.close()
    with pytest.raises(RegionClosed, match="open it again"):
        match(table, opened, snapshot)


def test_a_regions_identity_follows_the_file_and_not_the_address(region_file):
    for _ in range(20):
        file = region_file()
        with open_region(file) as opened:
            status = file.path.stat()
            assert file_identity(opened) == (status.st_dev, status.st_ino)


def test_where_our_own_maps_are_refused_the_files_own_numbers_have_to_do(public_directory):
    path = public_directory / "region.cache"
    create_region(path)
    status = path.stat()

    def work() -> tuple[int, int]:
        not_dumpable = ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
        assert not_dumpable == 0
        with open_region(path) as opened:
            return file_identity(opened)

    assert unprivileged(work) == (status.st_dev, status.st_ino)


# ---- A hostile container ------------------------------------------------------------------------


@needs_namespaces
def test_a_monitor_on_the_host_is_not_taken_for_a_process_that_a_slot_names(start, region):
    """HAMi's monitor maps every region for writing, and a container can write its pid."""
    monitor, inside = start(0), start()
    monitor.tell("map", region.path)
    inside.tell("attach", region.path)
    region.add_process(monitor.process.pid)
    found = look(region)
    assert found.host_pids == {1: inside.host_pid}
    assert states(found)[monitor.process.pid] == "unknown"
    assert found.unlisted == ()
    assert monitor.process.pid in pids(found.onlookers)


@needs_namespaces
def test_who_maps_a_region_and_how(start, region_file, region):
    user, monitor, reader = (start() for _ in range(3))
    user.tell("map", region.path)
    user.tell("map", region.path)
    for file in (region, region_file()):
        monitor.tell("map", file.path)
    reader.tell("map", region.path, "r")
    table = ProcessTable()
    with open_region(region) as opened:
        table.refresh()
        identity = file_identity(opened)
        found = {process.pid: mapping for process, mapping in table.view.mappings(identity)}
        pids = [7, 3_999_999]
        matched = match_slots(
            table.view,
            container_with(opened),
            pids,
            time.monotonic(),
        )
    assert matched.pids == pids
    once = found[reader.host_pid].length_bytes
    assert once >= opened.layout.size_bytes
    assert {pid: mapping.length_bytes for pid, mapping in found.items()} == {
        user.host_pid: 2 * once,
        monitor.host_pid: once,
        reader.host_pid: once,
        os.getpid(): once,
    }
    writers = {user.host_pid, monitor.host_pid}
    assert {pid for pid, mapping in found.items() if mapping.writable} == writers
    assert {each.pid for each in table.view.mappers(identity, writable=True)} == writers
    mine = {user.host_pid, monitor.host_pid}
    (mapped,) = (each for each in mapped_regions(table.view) if each.identity == identity)
    # The process that maps the fewest regions comes first, whatever its pid.
    assert (mapped.pids, mapped.exclusive) == ((user.host_pid, monitor.host_pid), True)
    assert mapped.payer == f"process {user.host_pid}", "it is in no container's cgroup"
    left = [
        each for each in mapped_regions(table.view, without={identity}) if mine & set(each.pids)
    ]
    assert [each.pids for each in left] == [(monitor.host_pid,)]


HOSTILE_NAMES = [
    "a\nb.cache",
    "x rw-s 00000000 08:01 1 .cache",
    "\x1b[2J.cache",
    "'\"`$(reboot).cache",
    "\u00e9\udcff.cache",
    "a" * 249 + ".cache",
]


@needs_namespaces
def test_hostile_file_names_stay_one_mapping_each(start, tmp_path):
    inside = start()
    for index, name in enumerate(HOSTILE_NAMES):
        # The name goes to the process in a line of words.
        plain = tmp_path / f"{index}.cache"
        create_region(plain)
        inside.tell("map", plain)
        plain.rename(tmp_path / name)
    table = ProcessTable()
    table.refresh()
    found = [
        resolve(table, each) for each in mapped_regions(table.view) if inside.host_pid in each.pids
    ]
    assert {each.inode_and_name[1] for each in found} == set(HOSTILE_NAMES)
    assert not any(each.deleted for each in found)
    for each in found:
        assert printable(each.path_in_namespace).isprintable()
        open_mapped(table, each).close()

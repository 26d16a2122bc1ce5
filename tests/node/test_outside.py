"""Regions that lie in no root: a node finds them through the processes that map them."""

import os
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest
from support.containers import Container as Processes
from support.containers import Starter, needs_namespaces
from support.namespaces import NEW_NAMESPACE
from support.observing import details
from support.own_cgroups import cgroup_of_pod
from support.process import finished
from support.region_file import RegionFile
from support.wait import PATIENCE_S, eventually

from libhamiregion import Layout, Region, RegionClosed, RegionStale, create_region, open_region
from libhamiregion.node import Container, MissingReason, Node, ProcessTable, outside
from libhamiregion.raw_slots import slots_beyond
from libhamiregion.units import GIB

POD, ID = "6d2b8f5e-3c1a-4b7d-9e0f-1a2b3c4d5e6f", "c0ffee42" * 8
SCENES = Path(__file__).parents[1] / "support/outside_scenes.py"


@pytest.fixture
def node(root) -> Iterator[Node]:
    with Node(root, outside=True) as node:
        yield node


@pytest.fixture
def region(region_file) -> RegionFile:
    return region_file(memory_limits=("8GiB",))


def mapped_by(found: tuple[Container, ...], *pids: int) -> list[Container]:
    """Of the containers outside the roots, those of a process: the machine has others."""
    return [each for each in found if each.directory is None and set(each.pids) & set(pids)]


def refreshed(node: Node, *pids: int) -> Container:
    node.refresh()
    (found,) = mapped_by(node.containers, *pids)
    return found


def region_of(container: Container) -> Region:
    assert container.region is not None
    return container.region


def private(start: Starter, directory: Path) -> Processes:
    """A container with a region of its own at that place."""
    directory.mkdir()
    create_region(directory / "cudevshr.cache", memory_limits=(GIB,))
    return start(1)


@needs_namespaces
def test_a_private_region_is_one_of_the_nodes(start, node, tmp_path):
    inside = private(start, tmp_path / "private")
    inside.tell("attach", tmp_path / "private/cudevshr.cache")
    inside.tell("charge", 1000)
    with cgroup_of_pod(POD, ID, inside.host_pid) as cgroup:
        found = refreshed(node, inside.host_pid)
        assert (found.pod_uid, found.name, found.directory) == (POD, None, None)
        assert found.container_id.id == ID
        assert found.missing is None
        assert found.pids == (inside.host_pid,)
        snapshot = node.snapshot()
        row = snapshot.containers.index(found)
        assert snapshot.table.paths[row] == found.region_path
        assert snapshot.table.regions.process_count[row] == 1
        (view,) = (each for each in details(node) if each.container is found)
        assert view.processes.host_pids == {1: inside.host_pid}
        with node.open(found) as opened:
            opened.set_memory_limit(2 * GIB)
        assert region_of(found).memory_limit(0) == 2 * GIB
        inside.end()
        eventually(lambda: not (cgroup / "cgroup.procs").read_text())
    assert node.refresh()
    assert found not in node.containers
    assert region_of(found).closed


@needs_namespaces
def test_a_node_that_shall_not_look_outside_does_not(start, root, tmp_path):
    inside = private(start, tmp_path / "private")
    inside.tell("attach", tmp_path / "private/cudevshr.cache")
    with Node(root) as node:
        node.refresh()
        assert node.containers == ()
        assert details(node) == ()


# ---- how long ----


def test_it_stays_while_anybody_maps_it_and_goes_with_the_last(actor, node, region):
    first, second = actor(region), actor(region)
    second("attach")
    found = refreshed(node, first.pid_here)
    assert set(found.pids) == {first.pid_here, second.pid_here}
    before = region_of(found)
    for survivor in (first, second):
        if survivor.pid_here != found.pids[0]:
            break
    dead = first if survivor is second else second
    dead.kill()
    # The path by which it was found leads nowhere now.
    assert refreshed(node, survivor.pid_here) is found
    assert before.is_stale()
    before.snapshot()
    with node.open(found) as opened:
        assert opened.path.startswith(f"/proc/{survivor.pid_here}/map_files/")
    survivor.kill()
    assert node.refresh()
    assert found not in node.containers
    with pytest.raises(RegionClosed):
        before.snapshot()
    with pytest.raises(RegionClosed):
        node.open(found)


def test_who_only_reads_neither_makes_nor_keeps_one(actor, node, region):
    """Or two monitors would keep what they watch alive for each other."""
    reader = actor(region, writable=False)
    node.refresh()
    assert not mapped_by(node.containers, reader.pid_here)
    writer = actor(region)
    found = refreshed(node, writer.pid_here)
    assert found.pids == (writer.pid_here,)
    writer.kill()
    node.refresh()
    assert found not in node.containers


def test_what_this_process_maps_itself_does_not_count(node, region):
    with open_region(region, writable=True):
        node.refresh()
        assert not mapped_by(node.containers, os.getpid())


def test_a_scan_without_processes_leaves_it_as_it_is(actor, node, region):
    user = actor(region)
    found = refreshed(node, user.pid_here)
    user.kill()
    assert not node.refresh(processes=False)
    assert found in node.containers
    node.refresh()
    assert found not in node.containers


# ---- what becomes of its file ----


def test_a_file_that_was_unlinked_is_read_on_where_it_was_open(actor, node, root, region):
    user = actor(region, attach=True)
    found = refreshed(node, user.pid_here)
    region.path.unlink()
    assert refreshed(node, user.pid_here) is found
    user("slot.charge", 0, 123)
    assert region_of(found).memory_used(0) == 123
    with pytest.raises(RegionStale, match="deleted or replaced"):
        node.open(found)
    # Who comes later has no name to open it by.
    with Node(root, outside=True) as late:
        missing = refreshed(late, user.pid_here).missing
        assert missing.reason is MissingReason.STALE
        assert refreshed(late, user.pid_here).missing is missing


def test_a_file_that_took_its_name_is_another_region(actor, node, region):
    old = actor(region)
    first = refreshed(node, old.pid_here)
    region.path.unlink()
    create_region(region.path, priority=0)
    new = actor(region)
    second = refreshed(node, new.pid_here)
    assert second is not first
    assert refreshed(node, old.pid_here) is first
    assert region_of(second).priority == 0
    assert region_of(first).priority == 1
    with node.open(second) as opened:
        assert opened.file_id == region_of(second).file_id


def test_one_that_is_damaged_while_it_is_open_says_so_and_comes_back(actor, node, region):
    user = actor(region)
    found = refreshed(node, user.pid_here)
    content = region.content()
    region.resize(0)
    broken = refreshed(node, user.pid_here)
    assert broken is not found
    assert (broken.region, found.region and found.region.closed) == (None, True)
    assert broken.missing.reason is MissingReason.NOT_READY
    # As long as it stays so nothing is reported.
    assert refreshed(node, user.pid_here) is broken
    region.put_bytes(0, content)
    again = refreshed(node, user.pid_here)
    region_of(again).snapshot()


# ---- what is inside, and what is not ----


def test_a_region_of_the_roots_is_not_found_a_second_time(actor, node, root):
    """The older of two, and one that cannot be read, are the roots' as well."""
    path = root.region("two")
    older = path.with_name("older.cache")
    create_region(older)
    os.utime(older, (1, 1))
    damaged = root.region("damaged")
    users = [actor(each) for each in (path, older, damaged)]
    RegionFile(damaged, Layout.V1_2).put("proc_num", -1)
    node.refresh()
    assert not mapped_by(node.containers, *(each.pid_here for each in users))
    assert sorted(str(each.name) for each in node.containers if each.directory) == [
        "damaged",
        "two",
    ]
    before = [each for each in node.containers if each.directory]
    node.refresh()
    assert [each for each in node.containers if each.directory] == before


def test_a_directory_that_appears_while_processes_are_read_is_still_inside(actor, root):
    """A view reads the directories before the processes."""
    with Node(root, outside=True) as node:
        node.refresh()
        user = actor()
        read = node.processes.refresh

        def appear_then_read(wanted: Collection[int] = (), **options: bool) -> None:
            if not any(root.path.iterdir()):
                user("open", str(root.region()), writable=True)
            read(wanted, **options)

        node.processes.refresh = appear_then_read  # type: ignore[method-assign]
        views = details(node)
        (view,) = (each for each in views if each.container.directory is not None)
        assert view.snapshot is not None
        assert not mapped_by(node.containers, user.pid_here)


def test_what_a_monitor_still_maps_of_a_container_that_went_is_nobodys(actor, node, root):
    paths = [root.region(f"c{number}") for number in range(3)]
    monitor = actor()
    for path in paths:
        monitor("evaluate", OPEN_ONE_MORE, path=str(path))
    user = actor(paths[0])
    for path in paths[:2]:
        path.unlink()
    node.refresh()
    # The one with a process left is worth a line, the other is not.
    (left,) = mapped_by(node.containers, monitor.pid_here, user.pid_here)
    assert left.pids == (user.pid_here, monitor.pid_here)
    assert left.missing.reason is MissingReason.STALE


OPEN_ONE_MORE = """
import libhamiregion
scene.more = getattr(scene, "more", []) + [libhamiregion.open_region(path, writable=True)]
"""


@needs_namespaces
def test_the_container_is_the_users_not_a_monitors(start, actor, node, region_file):
    files = [region_file(), region_file()]
    monitor = actor()
    for file in files:
        monitor("evaluate", OPEN_ONE_MORE, path=str(file.path))
    inside = start()
    inside.tell("attach", files[0].path)
    with cgroup_of_pod(POD, ID) as cgroup, cgroup_of_pod(POD, "beef" * 16) as other:
        (cgroup / "cgroup.procs").write_text(str(inside.host_pid))
        (other / "cgroup.procs").write_text(str(monitor.pid_here))
        found = refreshed(node, inside.host_pid)
        assert set(found.pids) == {inside.host_pid, monitor.pid_here}
        assert found.container_id.id == ID
        inside.end()
        monitor.kill()
        eventually(lambda: not (cgroup / "cgroup.procs").read_text())
        eventually(lambda: not (other / "cgroup.procs").read_text())


def test_a_file_of_another_name_is_told_by_its_length(actor, node, region_file, layout):
    """$CUDA_DEVICE_MEMORY_SHARED_CACHE can call it anything."""
    user = actor(region_file(layout, name="my-own-name"))
    assert region_of(refreshed(node, user.pid_here)).layout is layout


def test_what_stands_behind_its_table_is_read_by_a_mapping_of_our_own(actor, node, region):
    """For no path of a container's is walked."""
    user = actor(region, attach=True)
    region.put("slot_pid", 4242, slot=7)
    assert slots_beyond(region_of(refreshed(node, user.pid_here)), 1) == {4242: 7}


# ---- file systems that hang, and those that do not ----


@pytest.mark.slow(keep=2)
@needs_namespaces
@pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="needs /dev/fuse")
@pytest.mark.parametrize(
    "scene",
    [
        "dead_fuse_over_the_directory",
        "file_on_a_fuse",
        "region_on_an_overlay",
        "mount_of_the_containers_own",
        "more_mounts_than_are_read",
    ],
)
def test_no_file_system_of_a_container_is_walked(scene, tmp_path):
    """What the host has mounted is found by map_files, what a container has is left alone."""
    command = [*NEW_NAMESPACE, sys.executable, str(SCENES), scene, str(tmp_path)]
    ran = finished(
        command, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, timeout=2 * PATIENCE_S
    )
    assert ran.returncode == 0, ran.stderr


# ---- hostile ----

MAP_MANY = """
import mmap, os
scene.maps = []
for number in range(count):
    with open(f"{directory}/{number}.cache", "w+b") as file:
        file.truncate(1 << 20)
        scene.maps.append(mmap.mmap(file.fileno(), 1 << 20))
"""


def test_a_process_that_maps_a_thousand_files_hides_no_others_and_costs_a_bounded_number_of_tries(
    actor, node, region, tmp_path, monkeypatch
):
    hostile, honest = actor(), actor(region)
    (tmp_path / "many").mkdir()
    hostile("evaluate", MAP_MANY, directory=str(tmp_path / "many"), count=1000)
    tried: list[int] = []
    open_mapped = outside.open_mapped

    def counted(table: ProcessTable, mapped: outside.MappedRegion) -> Region:
        tried.append(mapped.pids[0])
        return open_mapped(table, mapped)

    monkeypatch.setattr(outside, "open_mapped", counted)
    for _ in range(3):
        node.refresh()
        assert region_of(mapped_by(node.containers, honest.pid_here)[0]).snapshot()
        found = mapped_by(node.containers, hostile.pid_here)
        assert len(found) == 16
        assert all(each.missing is not None for each in found)
        assert tried.count(hostile.pid_here) <= 16
        tried.clear()


def test_a_name_that_leads_elsewhere_by_a_link_is_not_followed(actor, node, region_file, tmp_path):
    (tmp_path / "inside").mkdir()
    file = region_file(name="inside/region.cache")
    victim = region_file(name="victim.cache", priority=0)
    user = actor(file)
    file.path.rename(tmp_path / "moved.cache")
    file.path.symlink_to(victim.path)
    found = refreshed(node, user.pid_here)
    # Renamed is not gone: the kernel tells what it is called now.
    assert region_of(found).priority == 1
    with node.open(found) as opened:
        assert opened.priority == 1

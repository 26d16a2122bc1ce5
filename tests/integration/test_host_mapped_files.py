"""Regions wherever they are, found through the processes that map them."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from containers import Starter, containers, look, needs_namespaces, pids
from poke import RegionFile, RegionFileFactory

from libhamiregion import RegionClosed, RegionStale, create_region, open_region
from libhamiregion.node import MappedFile, MappedRegion, ProcessTable, RegionMapping
from libhamiregion.text import printable

GIB = 1 << 30


@pytest.fixture
def container() -> Iterator[Starter]:
    with containers() as start:
        yield start


@pytest.fixture
def region(region_file: RegionFileFactory) -> RegionFile:
    return region_file(memory_limits=("8GiB",))


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


@needs_namespaces
def test_who_maps_a_region_and_how(
    container: Starter, region_file: RegionFileFactory, region: RegionFile
) -> None:
    user, monitor, reader = (container() for _ in range(3))
    user.tell("map", region.path)
    user.tell("map", region.path)
    for file in (region, region_file()):
        monitor.tell("map", file.path)
    reader.tell("map", region.path, "r")
    table = ProcessTable()
    with open_region(region) as opened:
        table.refresh()
        length = {each.process.pid: each.length_bytes for each in table.mappings(opened)}
        assert all(isinstance(each, RegionMapping) for each in table.mappings(opened))
        may_write = {each.process.pid: each.writable for each in table.mappings(opened)}
        identity = table.identity(opened)
    once = length[reader.host_pid]
    assert once >= opened.layout.size_bytes
    assert length == {
        user.host_pid: 2 * once,
        monitor.host_pid: once,
        reader.host_pid: once,
        os.getpid(): once,
    }
    writers = {user.host_pid, monitor.host_pid}
    assert {pid for pid, writes in may_write.items() if writes} == writers
    assert set(pids(table.mappers(*identity))) == set(length)
    assert set(pids(table.mappers(*identity, writable=True))) == writers

    (found,) = (each for each in table.mapped_files() if each.identity == identity)
    assert isinstance(found, MappedFile)
    # Who maps the fewest regions comes first, whatever its pid.
    assert (found.pids, found.exclusive) == ((user.host_pid, monitor.host_pid), True)
    assert found.payer == f"process {user.host_pid}", "it is in no container's cgroup"
    assert table.resolve(found) in mapped(table, user.host_pid)
    assert found.identity not in {each.identity for each in table.mapped_files(without={identity})}
    user.end()
    table.refresh()
    (left,) = (each for each in table.mapped_files() if each.identity == identity)
    assert (left.pids, left.exclusive) == ((monitor.host_pid,), False)
    with pytest.raises(RegionClosed):
        table.mappings(opened)

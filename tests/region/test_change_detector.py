"""Directories and regions that are watched together."""

import gc
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from forked import in_child
from support.region_file import RegionFile, RegionFileFactory, truncate
from support.wait import eventually

from libhamiregion import Region, create_region, open_region
from libhamiregion.node.change_detector import (
    ChangeDetector,
    Stamp,
    is_readable,
    is_readable_and_current,
)


def stamp(path: Path) -> Stamp:
    status = path.lstat()
    return status.st_dev, status.st_ino, status.st_ctime_ns


def wait_for_a_new_time(directory: Path) -> None:
    """The clock of files stands still for milliseconds: until what changes now has another one."""
    probe = directory / "probe"
    probe.touch()
    first = probe.stat().st_ctime_ns

    def is_later() -> bool:
        probe.touch()
        return probe.stat().st_ctime_ns > first

    eventually(is_later)


def test_only_what_is_not_as_it_was_is_named(tmp_path: Path) -> None:
    watch = ChangeDetector()
    names = [f"d{number}" for number in range(200)]
    for name in names:
        (tmp_path / name).mkdir()
        watch.put(name, str(tmp_path / name), stamp(tmp_path / name), None)
    assert len(watch) == 200
    assert watch.changed() == []
    wait_for_a_new_time(tmp_path)
    os.utime(tmp_path / "d7", (1, 1))
    (tmp_path / "d9").rmdir()
    (tmp_path / "d11").rmdir()
    (tmp_path / "d11").symlink_to("d12")
    (tmp_path / "d150/file").touch()
    assert set(watch.changed()) == {"d7", "d9", "d11", "d150"}
    watch.put("d7", str(tmp_path / "d7"), stamp(tmp_path / "d7"), None)
    watch.drop("d9")
    watch.drop("d9")
    watch.drop("d199")
    watch.drop("d11")
    assert watch.changed() == ["d150"]
    assert len(watch) == 197
    watch.clear()
    assert watch.changed() == []


def test_what_has_no_stamp_counts_as_changed(tmp_path: Path) -> None:
    watch = ChangeDetector()
    watch.put(1, str(tmp_path), None, None)
    assert watch.changed() == [1]


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    watch = ChangeDetector()
    watch.put(1, str(tmp_path / "file"), stamp(tmp_path / "file"), None)
    assert watch.changed() == [1]


def test_entries_may_come_and_go_in_any_order(tmp_path: Path) -> None:
    watch = ChangeDetector()
    there: set[int] = set()
    for number in range(300):
        (tmp_path / str(number)).mkdir()
        watch.put(number, str(tmp_path / str(number)), stamp(tmp_path / str(number)), None)
        there.add(number)
        if number % 3 == 0:
            gone = (number * 7) % (number + 1)
            watch.drop(gone)
            there.discard(gone)
    gc.collect()
    assert len(watch) == len(there)
    assert watch.changed() == []
    for number in there:
        (tmp_path / str(number)).rmdir()
    assert set(watch.changed()) == there


@pytest.fixture
def file(region_file: RegionFileFactory) -> RegionFile:
    return region_file()


def states(region: Region, path: Path) -> tuple[bool, bool, bool]:
    """Whether it is watched without news, well, readable."""
    watch = ChangeDetector()
    watch.put(0, str(path.parent), stamp(path.parent), region)
    return watch.changed() == [], is_readable_and_current(region), is_readable(region)


def test_a_region_is_well_while_its_name_leads_to_it_and_it_can_be_read(file: RegionFile) -> None:
    with open_region(file) as region:
        assert states(region, file.path) == (True, True, True)
        for field, bad, good in [
            ("magic", 1, 19920718),
            ("minor_version", 3, 2),
            ("proc_num", 1025, 0),
            ("device_num", 17, 0),
            ("uuids", b"x", b""),
        ]:
            device = {"device": 15} if field == "uuids" else {}
            file.put(field, bad, **device)
            assert states(region, file.path) == (False, False, False), field
            file.put(field, good, **device)
            assert states(region, file.path) == (True, True, True), field
        size = file.path.stat().st_size
        file.resize(4096)
        assert states(region, file.path) == (False, False, False)
        file.resize(size)
        file.path.rename(file.path.with_suffix(".moved"))
        assert states(region, file.path) == (False, False, True)
        create_region(file.path)
        assert states(region, file.path) == (False, False, True)
    assert states(region, file.path) == (False, False, False)


def by_cut(path: Path) -> None:
    truncate(path, path.stat().st_size - 2)


def by_unlink(path: Path) -> None:
    path.unlink()


def by_another_file(path: Path) -> None:
    other = path.with_suffix(".other")
    create_region(other)
    other.rename(path)


def by_another_directory(path: Path) -> None:
    path.parent.rename(path.parent.with_suffix(".moved"))
    path.parent.mkdir()
    create_region(path)


def by_a_link_in_its_directorys_place(path: Path) -> None:
    moved = path.parent.with_suffix(".moved")
    path.parent.rename(moved)
    path.parent.symlink_to(moved)


def by_a_directory_above(path: Path) -> None:
    above = path.parent.parent
    above.rename(above.with_suffix(".moved"))
    path.parent.mkdir(parents=True)
    create_region(path)


@pytest.mark.parametrize(
    "change",
    [
        by_cut,
        by_unlink,
        by_another_file,
        by_another_directory,
        by_a_link_in_its_directorys_place,
        by_a_directory_above,
    ],
)
def test_a_container_that_replaces_what_is_watched_is_seen(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    path = tmp_path / "root" / "c" / "usage.cache"
    path.parent.mkdir(parents=True)
    create_region(path)
    watch = ChangeDetector()
    with open_region(path) as region:
        watch.put(0, str(path.parent), stamp(path.parent), region)
        assert watch.changed() == watch.changed() == []
        change(path)
        assert watch.changed() == watch.changed() == [0]


def test_a_region_is_kept_alive_while_it_is_watched(file: RegionFile) -> None:
    watch = ChangeDetector()
    watch.put(0, str(file.path.parent), stamp(file.path.parent), open_region(file))
    gc.collect()
    assert watch.changed() == []


def test_in_a_forked_child_every_region_has_changed(file: RegionFile) -> None:
    watch = ChangeDetector()
    with open_region(file) as region:
        watch.put(0, str(file.path.parent), stamp(file.path.parent), region)
        assert in_child(lambda: (watch.changed(), is_readable_and_current(region))) == ([0], False)
        assert watch.changed() == []

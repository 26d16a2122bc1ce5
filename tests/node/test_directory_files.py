"""Which of the files of a container's directory is its region."""

import os

import pytest
from support.node_root import only, opened, reason, refresh, refreshed, touch
from support.region_file import RegionFile, truncate

from libhamiregion import Layout, RegionClosed, RegionNotFound, create_region
from libhamiregion.node import MissingReason, directories
from libhamiregion.region import open_in_container


def test_the_newest_that_is_a_region_counts_and_the_others_are_told(root, node):
    path = root.region(file="b.cache")
    path.with_name("z.cache").touch()
    os.mkfifo(path.with_name("y.cache"))
    create_region(path.with_name("c.cache"))
    RegionFile(path.with_name("c.cache"), Layout.V1_2).put("proc_num", 5000)
    for name in "zyc":
        touch(path.with_name(f"{name}.cache"))
    create_region(path.with_name("a.cache"))
    os.utime(path.with_name("a.cache"), (1, 1))
    container = refreshed(node)
    assert container.region_path == str(path)
    # Newest first; what can be no region comes last.
    assert container.other_files == ("c.cache", "z.cache", "a.cache", "y.cache")


def test_an_open_region_is_not_given_up_for_a_file_that_is_none(root, node):
    path = root.region()
    region = refreshed(node).region
    for number in range(20):
        (path.parent / f"new-{number}.cache").touch()
        touch(path.parent / f"new-{number}.cache")
        assert refreshed(node).region is region
    assert len(opened(node).other_files) == 8


def test_a_newer_region_takes_over_once_it_is_one(root, node):
    path = root.region()
    first = refreshed(node)
    newer = path.with_name("b.cache")
    newer.touch()
    assert refreshed(node).region is first.region
    newer.unlink()
    create_region(newer, priority=0)
    assert refresh(node)
    second = opened(node)
    assert second.region_path == str(newer)
    assert second.other_files == ("a.cache",)
    with pytest.raises(RegionClosed):
        first.region.snapshot()


@pytest.fixture
def few_entries(monkeypatch) -> None:
    """So that a directory need not be flooded with thousands of files."""
    monkeypatch.setattr(directories, "ENTRIES_LIMIT", 200)


@pytest.mark.usefixtures("few_entries")
def test_decoys_of_any_age_hide_no_open_region(root, node):
    path = root.region()
    region = refreshed(node).region
    for number in range(100):
        decoy = path.with_name(f"{number}.cache")
        decoy.touch()
        truncate(decoy, 2_008_953)
        os.utime(decoy, (4_000_000_000, 4_000_000_000))
    for number in range(300):
        path.with_name(f"{number}").touch()
    assert refreshed(node).region is region
    assert opened(node).region_path == str(path)


@pytest.mark.usefixtures("few_entries")
def test_a_directory_flooded_with_files_is_not_said_to_be_empty(root, node):
    directory = root.container()
    for number in range(300):
        (directory / str(number)).touch()
    refresh(node)
    assert reason(only(node)) is MissingReason.FAILED
    assert "more than" in str(only(node).missing)


def test_a_link_in_the_directorys_place_leads_to_no_region(root, node):
    """Where containers can write the root; the file behind the link may even be the same."""
    path = root.region()
    container = refreshed(node)
    moved = path.parent.rename(path.parent.with_name("moved"))
    path.parent.symlink_to(moved)
    with pytest.raises(RegionNotFound):
        node.open(container)
    with pytest.raises(RegionNotFound):
        open_in_container(str(path))
    assert container.region.is_stale()
    path.parent.unlink()
    moved.rename(path.parent)
    assert not container.region.is_stale()
    with node.open(container) as region:
        assert region.file_id == container.region.file_id


def test_a_directory_that_becomes_a_link_during_the_look_is_not_followed(root, node, monkeypatch):
    path, other = root.region(), root.region()
    listed = directories.list_directory

    def swapped(directory: str) -> object:
        listing = listed(directory)
        if directory == str(path.parent):
            path.parent.rename(path.parent.with_name("moved"))
            path.parent.symlink_to(other.parent)
        return listing

    monkeypatch.setattr(directories, "list_directory", swapped)
    node.refresh(processes=False)
    regions = [each.region_path for each in node.containers if each.region is not None]
    assert regions == [str(other)]

"""Regions that stay open for writing from one act to the next."""

import os
from pathlib import Path

import pytest
from support.agent_tasks import launch, one_pass
from support.node_scene import NodeScene
from support.region_file import RegionFile

from libhamiregion import RegionError
from libhamiregion.agent import Feedback
from libhamiregion.agent.acts import WritableRegions
from libhamiregion.node import Container, Node


def writable_maps(file: RegionFile) -> int:
    """How often this process has a file mapped for writing."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    return sum(str(file.path) in line and line.split()[1].startswith("rw") for line in maps)


@pytest.fixture
def writable(node: Node) -> WritableRegions:
    return WritableRegions(node)


def act(node: Node, writable: WritableRegions, value: int) -> Container:
    """Write to the only container that the node sees now."""
    node.refresh(processes=False)
    (container,) = node.containers
    with writable.open(container) as region:
        region.set_recent_kernel(value)
    return container


def test_a_region_is_opened_once_for_many_acts_and_closed_after_a_rest(
    scene: NodeScene, node: Node, writable: WritableRegions
) -> None:
    file = scene.container("a")
    node.refresh(processes=False)
    (container,) = node.containers
    used = set()
    for _ in range(3):
        with writable.open(container) as region:
            used.add(region)
            region.set_recent_kernel(2)
        writable.close_rested()
    assert (len(used), writable_maps(file)) == (1, 1)
    used.clear()
    del region
    writable.close_rested(0.0)
    assert writable_maps(file) == 0


@pytest.mark.parametrize("is_seen", [False, True])
def test_an_act_is_on_the_file_that_is_there_or_on_none(
    scene: NodeScene, node: Node, writable: WritableRegions, is_seen: bool
) -> None:
    """Whether the node has seen the new file or not."""
    file = scene.container("a")
    container = act(node, writable, 2)
    old = file.path.with_name("old")
    old.hardlink_to(file.path)
    new = file.path.with_name("new")
    new.write_bytes(file.content())
    new.rename(file.path)
    if is_seen:
        act(node, writable, 1)
    else:
        with pytest.raises(RegionError, match="replaced"), writable.open(container) as region:
            region.set_recent_kernel(1)
    assert RegionFile(old, file.layout).get("recent_kernel") == 2
    assert file.get("recent_kernel") == (1 if is_seen else 2)


def test_an_act_is_on_the_newest_file_of_a_container(
    scene: NodeScene, node: Node, writable: WritableRegions
) -> None:
    older = scene.container("a")
    act(node, writable, 2)
    newer = RegionFile(older.path.with_name("newer.cache"), older.layout)
    newer.path.write_bytes(older.content())
    os.utime(newer.path, (2**31, 2**31))
    act(node, writable, 1)
    assert (older.get("recent_kernel"), newer.get("recent_kernel")) == (2, 1)


def test_nothing_stays_open_of_an_act_that_fails(
    scene: NodeScene, node: Node, writable: WritableRegions
) -> None:
    file = scene.container("a")
    container = act(node, writable, 2)
    for _ in range(2):
        with pytest.raises(OSError, match="full"), writable.open(container) as region:
            raise OSError("full")
    del region
    assert writable_maps(file) == 0


def test_a_countdown_maps_no_region_anew(
    scene: NodeScene, feedback: Feedback, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [scene.container(name) for name in "abc"]
    opened = []
    original = Node.open
    monkeypatch.setattr(Node, "open", lambda *args: opened.append(args) or original(*args))
    for _ in range(4):
        for each in files:
            launch(each)
        one_pass(feedback)
        assert [each.get("recent_kernel") for each in files] == [1, 1, 1]
    assert len(opened) == len(files)
    assert [writable_maps(each) for each in files] == [1, 1, 1]
    feedback.stop()
    assert [writable_maps(each) for each in files] == [0, 0, 0]

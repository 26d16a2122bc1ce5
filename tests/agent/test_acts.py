"""Acts on real regions: compared, kept to be taken back, and on the file that was observed."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.agent_tasks import launch, one_pass
from support.node_scene import NodeScene
from support.region_file import RegionFile

from libhamiregion import RegionError
from libhamiregion.agent.acts import Act, Executor
from libhamiregion.node import Container, Node


def writable_maps(file: RegionFile) -> int:
    """How often this process has a file mapped for writing."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    return sum(str(file.path) in line and line.split()[1].startswith("rw") for line in maps)


def marked(scene: NodeScene, value: int) -> RegionFile:
    """The region of a new container with this launch mark."""
    file = scene.container("a")
    file.put("recent_kernel", value)
    return file


@pytest.fixture
def executor(node) -> Executor:
    return Executor(node, rest_s=60.0)


@pytest.fixture
def seen(node) -> Callable[[], Container]:
    """Have the node see its only container as it is now."""

    def refresh() -> Container:
        node.refresh(processes=False)
        (container,) = node.containers
        return container

    return refresh


def mark(container: Container, expected: int, wanted: int, back: int | None = None) -> Act:
    return Act(container, "recent_kernel", expected, wanted, back)


def test_a_value_is_set_only_where_the_observed_one_is_there(scene, executor, seen):
    file = marked(scene, 2)
    late, act = mark(seen(), 1, 0), mark(seen(), 2, 1)
    assert executor.carry_out([late, act]) == [act]
    assert file.get("recent_kernel") == 1
    assert executor.carry_out([late._replace(compares=False, wanted=5)]) != []
    assert file.get("recent_kernel") == 5


def test_what_is_taken_back_is_the_value_before_the_first_act(scene, executor, seen):
    file = marked(scene, 3)
    container = seen()
    for before, after in ((3, 4), (4, 5)):
        executor.carry_out([mark(container, before, after, back=before)])
    ((key, kept),) = executor.kept.items()
    assert [(act.expected, act.wanted, act.back) for act in kept.outstanding] == [(4, 5, 3)]
    executor.take_back(key, list(kept.acts))
    assert (file.get("recent_kernel"), kept.acts) == (3, {})


def test_a_value_that_another_has_set_since_is_not_taken_back(scene, executor, seen):
    file = marked(scene, 0)
    executor.carry_out([mark(seen(), 0, 4, back=0)])
    file.put("recent_kernel", 7)
    ((key, kept),) = executor.kept.items()
    assert executor.take_back(key, list(kept.acts)) == []
    assert (file.get("recent_kernel"), kept.acts) == (7, {})


def test_a_value_that_is_to_stay_is_taken_back_and_not_written(scene, executor, seen):
    file = marked(scene, -1)
    assert executor.carry_out([mark(seen(), -1, -1, back=0)]) == []
    assert writable_maps(file) == 0
    ((key, kept),) = executor.kept.items()
    executor.take_back(key, list(kept.acts))
    assert file.get("recent_kernel") == 0


def test_nothing_is_written_after_the_end(scene, executor, seen):
    file = marked(scene, 2)
    executor.end(1.0)
    assert executor.carry_out([mark(seen(), 2, 1, back=2)]) == []
    assert (file.get("recent_kernel"), executor.kept) == (2, {})


def test_a_region_is_opened_once_for_many_acts_and_closed_after_a_rest(scene, executor, seen):
    file = marked(scene, 9)
    container = seen()
    for before in (9, 8, 7):
        executor.carry_out([mark(container, before, before - 1)])
        assert writable_maps(file) == 1
        executor.close_rested()
    assert (file.get("recent_kernel"), writable_maps(file)) == (6, 1)
    executor.close_rested(0.0)
    assert writable_maps(file) == 0


@pytest.mark.parametrize("is_seen", [False, True])
def test_an_act_is_on_the_file_that_was_observed_or_on_none(scene, executor, seen, is_seen):
    """Whether the node has seen the new file or not."""
    file = marked(scene, 3)
    container = seen()
    executor.carry_out([mark(container, 3, 2)])
    old = file.path.with_name("old")
    old.hardlink_to(file.path)
    new = file.path.with_name("new")
    new.write_bytes(file.content())
    new.rename(file.path)
    if is_seen:
        executor.carry_out([mark(seen(), 2, 1)])
    else:
        with pytest.raises(RegionError, match="replaced"):
            executor.carry_out([mark(container, 2, 1)])
    assert RegionFile(old, file.layout).get("recent_kernel") == 2
    assert file.get("recent_kernel") == (1 if is_seen else 2)


def test_an_act_is_on_the_newest_file_of_a_container(scene, executor, seen):
    older = marked(scene, 3)
    executor.carry_out([mark(seen(), 3, 2)])
    newer = RegionFile(older.path.with_name("newer.cache"), older.layout)
    newer.path.write_bytes(older.content())
    os.utime(newer.path, (2**31, 2**31))
    executor.carry_out([mark(seen(), 2, 1)])
    assert (older.get("recent_kernel"), newer.get("recent_kernel")) == (2, 1)


def test_nothing_stays_open_of_an_act_that_fails(scene, executor, seen):
    file = marked(scene, 3)
    container = seen()
    executor.carry_out([mark(container, 3, 2)])
    with pytest.raises(ValueError, match="launch mark"):
        executor.carry_out([mark(container, 2, -7)])
    assert writable_maps(file) == 0


def test_a_countdown_maps_no_region_anew(scene, feedback, monkeypatch):
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

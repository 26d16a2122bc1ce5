"""The feedback on a node with real regions, real processes and other writers beside it."""

import os
import threading
from collections.abc import Callable, Sequence

import pytest
from support.agent_tasks import OtherWriter, launch, one_pass, stopping, values
from support.node_scene import GPU, OTHER_GPU
from support.region_file import RegionFile
from support.wait import PATIENCE_S

from libhamiregion import Layout, create_region
from libhamiregion.agent import Feedback, LaunchState, Verdict
from libhamiregion.agent import feedback as feedback_module
from libhamiregion.node import Node

LOW = (("b", 1), ("c", 1))


@pytest.fixture
def between(monkeypatch) -> Callable[[Callable[[], object]], None]:
    """Have something happen between reading and writing."""
    decide = feedback_module.decide

    def arrange(happens: Callable[[], object]) -> None:
        def decide_late(states: Sequence[LaunchState]) -> tuple[Verdict, ...]:
            happens()
            return decide(states)

        monkeypatch.setattr(feedback_module, "decide", decide_late)

    return arrange


# ---- The rule, written --------------------------------------------------------------------------


def test_one_region_of_each_layout_is_blocked_and_goes_on(scene, feedback, events):
    urgent = scene.container("urgent", priority=0)
    waiting = [scene.container(f"low-{n}", layout=each) for n, each in enumerate(Layout)]
    launch(urgent)
    one_pass(feedback)
    assert values(urgent) == (1, 0)
    assert [values(file) for file in waiting] == [(-1, 1)] * 5
    one_pass(feedback)
    assert values(urgent) == (0, 0)
    assert [values(file) for file in waiting] == [(0, 0)] * 5
    for number in range(5):
        # Limiting is on in a new region, and stays so while it is blocked.
        assert events.kinds(f"low-{number}") == ["blocked", "unblocked", "limiting_off"]
    counters = feedback.counters()
    assert counters["feedback_runs"] == 2
    assert counters["feedback_blocks"] == counters["feedback_unblocks"] == 5
    assert counters["feedback_errors"] == counters["feedback_paused"] == 0


def test_nothing_but_the_two_fields_is_written(scene, feedback):
    files = [scene.container("urgent", priority=0), scene.container("low", sm_limits=[30])]
    launch(files[0])
    before = [(values(file), file.content()) for file in files]
    one_pass(feedback)
    for file, (found, content) in zip(files, before, strict=True):
        assert values(file) != found
        file.put("recent_kernel", found[0])
        file.put("utilization_switch", found[1])
        assert file.content() == content


def test_a_launch_between_reading_and_writing_is_not_lost_and_does_not_save_from_a_block(
    scene, feedback, between
):
    busy, urgent = scene.container("busy"), scene.container("urgent", priority=0, uuids=[OTHER_GPU])
    low = scene.container("low", uuids=[OTHER_GPU])
    busy.put("recent_kernel", 1)
    launch(urgent)
    between(lambda: (launch(busy), launch(low)))
    one_pass(feedback)
    assert busy.get("recent_kernel") == 2, "it would be 0 without compare-and-set"
    assert low.get("recent_kernel") == -1
    assert feedback.counters()["feedback_launches_kept"] == 1


def test_a_negative_priority_does_not_stop_priority_0(scene, feedback):
    """A container can write its own priority, but nobody gets ahead of HAMi's most urgent."""
    hostile, urgent = scene.container("hostile"), scene.container("urgent", priority=0)
    for priority in (-1, -(2**31)):
        hostile.put("priority", priority)
        launch(hostile)
        launch(urgent)
        one_pass(feedback)
        assert (values(hostile), values(urgent)) == ((1, 1), (1, 1))


def test_who_has_no_directory_there_blocks_nobody(scene, tmp_path):
    """Anybody can make a file that looks like a region, and map it."""
    low = scene.container("low")
    low.put("recent_kernel", 2)
    evil = RegionFile(tmp_path / "evil.cache", Layout.V1_2)
    create_region(evil.path, uuids=[GPU], priority=0)
    evil.put("recent_kernel", 100_000)
    with OtherWriter("evil", [evil]), Node(scene.root, outside=True) as node:
        node.refresh()
        assert any(
            (each.path_in_namespace or "").endswith(str(evil.path)) for each in node.containers
        )
        one_pass(Feedback(node, assume_alone=True))
    assert (low.get("recent_kernel"), evil.get("recent_kernel")) == (1, 100_000)


# ---- The end ------------------------------------------------------------------------------------


def test_what_was_written_is_taken_back_at_the_end(scene, node):
    urgent, low, found = (scene.container(name, priority=p) for name, p in (("a", 0), *LOW))
    left = scene.container("left-alone", uuids=[OTHER_GPU])
    # An agent that was killed has left one blocked.
    for file, mark in ((urgent, 2), (low, 0), (found, -1), (left, 0)):
        file.put("recent_kernel", mark)
    task = Feedback(node)
    one_pass(task)
    assert (values(low), values(found), values(left)) == ((-1, 1), (-1, 1), (0, 0))
    # Somebody has decided otherwise since: that stays.
    left.put("utilization_switch", 7)
    for _ in range(2):
        task.stop()
        assert (values(low), values(found), values(left)) == ((0, 1), (0, 1), (0, 7))
        assert values(urgent) == (1, 1)


def test_a_switch_that_was_changed_twice_becomes_what_it_was_before_the_first(scene, node):
    """Off because it was alone, on because it no longer was; it had been off, or on."""
    first, second = scene.container("first"), scene.container("second")
    first.put("utilization_switch", 1)
    second.put("utilization_switch", 0)
    task = Feedback(node)
    launch(first)
    second.put("recent_kernel", 0)
    one_pass(task)
    assert (first.get("utilization_switch"), second.get("utilization_switch")) == (0, 0)
    launch(first)
    launch(second)
    one_pass(task)
    assert (first.get("utilization_switch"), second.get("utilization_switch")) == (1, 1)
    assert [each.split()[-1] for each in task.pending_cleanup()] == ["found"], "of the second only"
    # A mark below 0 that is not from here stays.
    first.put("recent_kernel", -1)
    task.stop()
    assert first.get("recent_kernel") == -1
    assert (first.get("utilization_switch"), second.get("utilization_switch")) == (1, 0)
    assert task.pending_cleanup() == ()


def test_after_the_end_nothing_is_written_also_by_a_pass_that_hung(scene, node, between):
    """Giving back does not wait for a pass that may never end, nor does it need the node's lock."""
    urgent, low = scene.container("urgent", priority=0), scene.container("low")
    late = scene.container("late")
    late.put("recent_kernel", 0)
    launch(urgent)
    task = Feedback(node)
    one_pass(task)
    assert low.get("recent_kernel") == -1
    hangs, goes_on = threading.Event(), threading.Event()
    between(lambda: (hangs.set(), goes_on.wait(PATIENCE_S)))
    for file in (urgent, late):
        launch(file)
    stuck = threading.Thread(target=one_pass, args=(task,), daemon=True)
    stuck.start()
    assert hangs.wait(PATIENCE_S)
    task.stop()
    assert (low.get("recent_kernel"), task.pending_cleanup()) == (0, ())
    goes_on.set()
    stuck.join()
    assert (low.get("recent_kernel"), late.get("recent_kernel")) == (0, 2)


def test_what_cannot_be_taken_back_is_reported_and_stays_to_be_taken_back(scene, node, events):
    """A region may be unreadable in the last pass and at the end, and readable again later."""
    urgent, low = scene.container("urgent", priority=0), scene.container("low")
    other = scene.container("other")
    task = Feedback(node, emit=events.append)
    devices = low.get("device_num")
    for count in (devices, 99):
        low.put("device_num", count)
        launch(urgent)
        one_pass(task)
        assert (low.get("recent_kernel"), other.get("recent_kernel")) == (-1, -1)
    task.stop()
    (failed,) = events.of("failed")
    assert failed.message.split(": ")[1] == "not given back"
    assert (failed.container or "").endswith("/low")
    assert task.counters()["feedback_errors"] == 1
    (phrase,) = task.pending_cleanup()
    assert "/low" in phrase
    assert (low.get("recent_kernel"), other.get("recent_kernel")) == (-1, 0)
    low.put("device_num", devices)
    task.stop()
    assert (values(low)[0], task.pending_cleanup()) == (0, ())


def test_a_container_that_writes_against_its_block_is_blocked_again_and_reported_seldom(
    scene, feedback, events
):
    urgent, low = scene.container("urgent", priority=0), scene.container("low")
    for _ in range(4):
        launch(urgent)
        launch(low)
        one_pass(feedback)
        assert low.get("recent_kernel") == -1
    assert events.kinds("low") == ["blocked"] * 3
    assert feedback.counters()["feedback_blocks"] == 4


def test_a_container_that_makes_its_region_anew_again_and_again_leaves_nothing_behind(
    scene, feedback
):
    urgent, low = scene.container("urgent", priority=0), scene.container("low")
    for _ in range(5):
        launch(urgent)
        content = low.content()
        low.path.unlink()
        low.path.write_bytes(content)
        launch(low)
        one_pass(feedback)
        assert low.get("recent_kernel") == -1
        assert len(feedback.executor.kept) <= 2


# ---- Containers that come, go and misbehave -----------------------------------------------------


def _truncate(file: RegionFile) -> None:
    file.resize(100)


def _remove(file: RegionFile) -> None:
    file.path.unlink()


def _replace_by_fifo(file: RegionFile) -> None:
    file.path.unlink()
    os.mkfifo(file.path)


def _replace_by_link(file: RegionFile) -> None:
    target = file.path.with_name("elsewhere")
    file.path.rename(target)
    file.path.symlink_to(target)


def _spoil(file: RegionFile) -> None:
    file.put("proc_num", 5000)


@pytest.mark.parametrize("harm", [_truncate, _remove, _replace_by_fifo, _replace_by_link])
def test_what_was_written_into_a_region_that_is_gone_is_gone_with_it(scene, node, events, harm):
    urgent, low = scene.container("urgent", priority=0), scene.container("low")
    other = scene.container("other", uuids=[GPU])
    launch(urgent)
    task = Feedback(node, emit=events.append)
    one_pass(task)
    assert (values(low)[0], values(other)[0]) == (-1, -1)
    harm(low)
    task.stop()
    assert (values(other)[0], task.pending_cleanup()) == (0, ())
    assert events.of("failed") == []
    assert task.counters()["feedback_errors"] == 0


@pytest.mark.parametrize("harm", [_truncate, _remove, _replace_by_fifo, _replace_by_link, _spoil])
@pytest.mark.parametrize("when", ["before", "during"])
def test_one_bad_container_does_not_keep_the_others_from_their_turn(
    scene, node, harm, when, between
):
    """Whether it goes bad between two passes, or between reading and writing."""
    first, bad, last = (scene.container(name, priority=p) for name, p in (("a", 0), *LOW))
    harmed = threading.Event()

    def harms() -> None:
        if not harmed.is_set():
            harmed.set()
            harm(bad)

    task = Feedback(node)
    with stopping(task):
        node.refresh()
        if when == "before":
            harms()
        else:
            between(harms)
        for _ in range(2):
            launch(first)
            one_pass(task)
            assert (values(first), values(last)) == ((1, 0), (-1, 1))
        assert task.counters()["feedback_errors"] <= 1

"""The feedback on a node with real regions, real processes and other writers beside it."""

import contextlib
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from containers import containers, needs_namespaces
from namespaces import needs_first_namespace
from node_scene import GPU, OTHER_GPU, Events, NodeScene, OtherWriter, cgroup_of_pod
from patience import eventually
from poke import RegionFile

from libhamiregion import Layout
from libhamiregion.agent import (
    Feedback,
    LaunchState,
    OtherWriterRuns,
    TaskRunner,
    WriterWatch,
    believed,
)
from libhamiregion.host import Container, Node

pytestmark = needs_first_namespace


@pytest.fixture
def scene(tmp_path: Path) -> NodeScene:
    return NodeScene(tmp_path / "containers")


@pytest.fixture
def node(scene: NodeScene) -> Iterator[Node]:
    with Node(scene.root, outside=False) as node:
        yield node


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture
def feedback(node: Node, events: Events) -> Iterator[Feedback]:
    task = Feedback(node, emit=events.append)
    yield task
    task.stop()


def launch(file: RegionFile) -> None:
    file.put("recent_kernel", 2)


def values(file: RegionFile) -> tuple[int, int]:
    return file.get("recent_kernel"), file.get("utilization_switch")


# ---- The rule, written --------------------------------------------------------------------------


def test_one_region_of_each_layout_is_blocked_and_goes_on(
    scene: NodeScene, feedback: Feedback, events: Events
) -> None:
    urgent = scene.container("urgent", priority=0)
    waiting = [scene.container(f"low-{n}", layout=each) for n, each in enumerate(Layout)]
    launch(urgent)
    feedback.run()
    assert values(urgent) == (1, 0)
    assert [values(file) for file in waiting] == [(-1, 1)] * 5
    feedback.run()
    assert values(urgent) == (0, 0)
    assert [values(file) for file in waiting] == [(0, 0)] * 5
    for number in range(5):
        # Limiting is on in a new region, and stays so while it is blocked.
        assert events.kinds(f"low-{number}") == ["blocked", "unblocked", "limiting_off"]
    counters = feedback.counters()
    assert counters["feedback_runs"] == 2
    assert counters["feedback_blocks"] == counters["feedback_unblocks"] == 5
    assert counters["feedback_errors"] == counters["feedback_paused"] == 0


def test_nothing_but_the_two_fields_is_written(scene: NodeScene, feedback: Feedback) -> None:
    files = [scene.container("urgent", priority=0), scene.container("low", sm_limits=[30])]
    launch(files[0])
    before = [file.content() for file in files]
    feedback.run()
    for file, old in zip(files, before, strict=True):
        offsets = file.layout.offsets
        changed = {at for at, (a, b) in enumerate(zip(old, file.content(), strict=True)) if a != b}
        allowed = {
            offsets[field] + byte
            for field in ("recent_kernel", "utilization_switch")
            for byte in range(4)
        }
        assert changed
        assert changed <= allowed


def test_a_launch_between_reading_and_writing_is_not_lost(
    scene: NodeScene, node: Node, events: Events
) -> None:
    file = scene.container("busy")

    def launches_now(_: Container, state: LaunchState) -> LaunchState:
        launch(file)
        return state

    file.put("recent_kernel", 1)
    task = Feedback(node, believe=launches_now, emit=events.append)
    with contextlib.closing(_Stopping(task)):
        task.run()
        assert file.get("recent_kernel") == 2, "it would be 0 without compare-and-set"
        assert task.counters()["feedback_launches_kept"] == 1


def test_a_launch_just_before_it_is_blocked_does_not_save_it(scene: NodeScene, node: Node) -> None:
    urgent, low = scene.container("urgent", priority=0), scene.container("low")
    launch(urgent)

    def launches_now(_: Container, state: LaunchState) -> LaunchState:
        launch(low)
        return state

    task = Feedback(node, believe=launches_now)
    with contextlib.closing(_Stopping(task)):
        task.run()
        assert low.get("recent_kernel") == -1


def test_a_negative_priority_does_not_stop_priority_0(scene: NodeScene, feedback: Feedback) -> None:
    """A container can write its own priority, but nobody gets ahead of HAMi's most urgent."""
    hostile, urgent = scene.container("hostile"), scene.container("urgent", priority=0)
    for priority in (-1, -(2**31)):
        hostile.put("priority", priority)
        launch(hostile)
        launch(urgent)
        feedback.run()
        assert (values(hostile), values(urgent)) == ((1, 1), (1, 1))


def test_other_priorities_can_be_believed_than_those_in_the_regions(
    scene: NodeScene, node: Node
) -> None:
    """Whoever knows better, a plan for one, says so."""
    liar, honest = scene.container("liar", priority=0), scene.container("honest")
    known = {"liar": 1, "honest": 0}

    def known_priority(container: Container, state: LaunchState) -> LaunchState:
        assert container.name is not None
        return believed(
            LaunchState(
                state.recent_kernel, state.utilization_switch, known[container.name], state.uuids
            )
        )

    launch(liar)
    launch(honest)
    task = Feedback(node, believe=known_priority)
    with contextlib.closing(_Stopping(task)):
        task.run()
        assert (values(liar), values(honest)) == ((-1, 1), (1, 0))


def test_hostile_numbers_cost_nothing_and_break_nothing(
    scene: NodeScene, feedback: Feedback
) -> None:
    odd = scene.container("odd", uuids=[GPU, OTHER_GPU])
    other = scene.container("other", uuids=[OTHER_GPU])
    for mark in (-(2**31), -7, 2**31 - 1):
        for priority in (-(2**31), 2**31 - 1):
            odd.put("recent_kernel", mark)
            odd.put("priority", priority)
            odd.put("utilization_switch", -(2**31))
            launch(other)
            feedback.run()
            assert odd.get("utilization_switch") in {0, 1}
            assert odd.get("recent_kernel") in {-1, 0, 2**31 - 2} or mark == odd.get(
                "recent_kernel"
            )
            assert other.get("recent_kernel") in {-1, 1}
    assert feedback.counters()["feedback_errors"] == 0


@needs_namespaces
def test_a_container_waits_while_a_more_urgent_one_launches(
    scene: NodeScene, node: Node, events: Events
) -> None:
    """End to end, at a short interval, with processes that launch as libvgpu does."""
    urgent, low = scene.container("urgent", priority=0), scene.container("low")
    task = Feedback(node, interval_s=0.02, emit=events.append)
    runner = TaskRunner([task], emit=events.append)
    with containers() as start:
        inside = start()
        inside.tell("attach", low.path)
        busy = start()
        busy.tell("attach", urgent.path)
        runner.start()
        try:

            def urgent_launches_until(condition: Callable[[], bool]) -> None:
                def step() -> bool:
                    launch(urgent)
                    return condition()

                eventually(step)

            launch(low)
            urgent_launches_until(lambda: low.get("recent_kernel") == -1)
            urgent_launches_until(lambda: low.get("utilization_switch") == 1)
            eventually(lambda: values(low) == (0, 0))
            launch(low)
            eventually(lambda: values(low) == (0, 0))
            assert "blocked" in events.kinds("low")
            assert events.kinds("low")[-2:] == ["unblocked", "limiting_off"]
        finally:
            runner.stop()
    assert runner.counters()["feedback_failures"] == 0


# ---- The end ------------------------------------------------------------------------------------


def test_what_was_written_is_taken_back_at_the_end(
    scene: NodeScene, node: Node, events: Events
) -> None:
    urgent, low, left = (
        scene.container("urgent", priority=0),
        scene.container("low"),
        scene.container("left-alone", uuids=[OTHER_GPU]),
    )
    for file in (urgent, low, left):
        file.put("recent_kernel", 0)
    launch(urgent)
    task = Feedback(node, emit=events.append)
    task.run()
    assert (values(low), values(left)) == ((-1, 1), (0, 0))
    # Somebody has decided otherwise since: that stays.
    left.put("utilization_switch", 7)
    task.stop()
    assert (values(urgent), values(low), values(left)) == ((1, 1), (0, 1), (0, 7))
    task.stop()


def test_a_region_found_blocked_and_kept_blocked_is_unblocked_at_the_end(
    scene: NodeScene, node: Node
) -> None:
    """An agent that was killed has left it so."""
    urgent, low = scene.container("urgent", priority=0), scene.container("low")
    launch(urgent)
    low.put("recent_kernel", -1)
    task = Feedback(node)
    task.run()
    assert low.get("recent_kernel") == -1
    task.stop()
    assert low.get("recent_kernel") == 0


def test_the_first_pass_unblocks_what_a_killed_agent_has_left(
    scene: NodeScene, feedback: Feedback
) -> None:
    low = scene.container("low")
    low.put("recent_kernel", -1)
    feedback.run()
    assert low.get("recent_kernel") == 0


# ---- Containers that come, go and misbehave -----------------------------------------------------


def _truncate(file: RegionFile) -> None:
    file.resize(1000)


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


@pytest.mark.parametrize("harm", [_truncate, _remove, _replace_by_fifo, _replace_by_link, _spoil])
@pytest.mark.parametrize("when", ["before", "during"])
def test_one_bad_container_does_not_keep_the_others_from_their_turn(
    scene: NodeScene, node: Node, harm: Callable[[RegionFile], None], when: str
) -> None:
    """Whether it goes bad between two passes, or between reading and writing."""
    first, bad, last = (
        scene.container(name, priority=p) for name, p in (("a", 0), ("b", 1), ("c", 1))
    )
    harmed = threading.Event()

    def harms(_: Container, state: LaunchState) -> LaunchState:
        if when == "during" and not harmed.is_set() and node.containers:
            harmed.set()
            harm(bad)
        return state

    task = Feedback(node, believe=harms)
    with contextlib.closing(_Stopping(task)):
        node.refresh()
        if when == "before":
            harm(bad)
        for _ in range(2):
            launch(first)
            task.run()
            assert (values(first), values(last)) == ((1, 0), (-1, 1))
        assert task.counters()["feedback_errors"] <= 1


def test_a_failure_that_lasts_is_said_once(
    scene: NodeScene, node: Node, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A region on a file system that has become read-only fails at each pass."""
    file = scene.container("read-only")
    task = Feedback(node, emit=events.append)
    opened = node.open

    def refused(_: Container) -> Any:
        raise PermissionError(1, "Operation not permitted", str(file.path))

    with contextlib.closing(_Stopping(task)):
        monkeypatch.setattr(node, "open", refused)
        for _ in range(3):
            launch(file)
            task.run()
        assert events.kinds() == ["failed"]
        assert task.counters()["feedback_errors"] == 3
        monkeypatch.setattr(node, "open", opened)
        task.run()
        monkeypatch.setattr(node, "open", refused)
        launch(file)
        task.run()
        assert events.kinds() == ["failed", "limiting_off", "failed"]


# ---- Dry run ------------------------------------------------------------------------------------


def test_a_dry_run_says_all_and_writes_nothing(
    scene: NodeScene, node: Node, events: Events
) -> None:
    urgent, low = scene.container("urgent", priority=0), scene.container("low")
    launch(urgent)
    low.put("recent_kernel", 0)
    before = urgent.content(), low.content()
    task = Feedback(node, dry_run=True, emit=events.append)
    task.run()
    task.stop()
    assert (urgent.content(), low.content()) == before
    said = {
        (e.detail["field"], e.detail["before"], e.detail["after"]) for e in events.of("would_write")
    }
    assert ("recent_kernel", 2, 1) in said
    assert ("recent_kernel", 0, -1) in said
    assert {each.event for each in events} == {"would_write"}


# ---- Other writers ------------------------------------------------------------------------------


def test_where_hamis_monitor_runs_it_does_not_start(feedback: Feedback) -> None:
    for name in ("vGPUmonitor", "/usr/bin/vGPUmonitor", "volcano-vgpu-monitor"):
        with OtherWriter(name) as monitor:
            with pytest.raises(
                OtherWriterRuns, match=f"process {monitor.pid} is {Path(name).name}"
            ) as told:
                feedback.start()
            (other,) = told.value.others
            assert (other.evidence, other.pid) == ("name", monitor.pid)
    feedback.start()


def test_who_holds_two_regions_open_for_writing_is_taken_for_a_monitor(
    scene: NodeScene, feedback: Feedback
) -> None:
    files = [scene.container("a"), scene.container("b")]
    with OtherWriter("python3", files) as other:
        with pytest.raises(
            OtherWriterRuns, match="holds regions of 2 pods open for writing"
        ) as told:
            feedback.start()
        assert [(each.evidence, each.pid) for each in told.value.others] == [("mapping", other.pid)]


@needs_namespaces
def test_one_region_open_for_writing_is_an_edit_unless_it_stays(
    scene: NodeScene, node: Node
) -> None:
    file = scene.container("a")
    watch = WriterWatch(node)
    with (
        contextlib.closing(watch),
        containers() as start,
        OtherWriter("python3", [file]) as other,
    ):
        start().tell("attach", file.path)
        node.refresh()
        assert watch.look() == ()
        node.refresh()
        (found,) = watch.look()
        assert (found.evidence, found.pid) == ("mapping", other.pid)


@needs_namespaces
def test_processes_of_the_containers_are_no_writers(scene: NodeScene, node: Node) -> None:
    files = [scene.container("a"), scene.container("b")]
    watch = WriterWatch(node)
    with contextlib.closing(watch), containers() as start:
        for file in files:
            inside = start()
            inside.tell("attach", file.path)
            pid, _ = inside.child("spawn")
            inside.tell(f"@{pid}", "map", file.path)
        for _ in range(3):
            node.refresh()
            assert watch.look() == ()


def test_writing_stops_when_a_monitor_appears_and_goes_on_when_it_has_gone(
    scene: NodeScene, node: Node, events: Events
) -> None:
    urgent, low = scene.container("urgent", priority=0), scene.container("low")
    task = Feedback(node, resume_after=2, emit=events.append)
    with contextlib.closing(_Stopping(task)):
        launch(urgent)
        task.run()
        assert low.get("recent_kernel") == -1
        with OtherWriter("vGPUmonitor", [urgent, low]) as monitor:
            before = urgent.content(), low.content()
            for _ in range(3):
                task.run()
            assert (urgent.content(), low.content()) == before
            assert {each.pid for each in task.paused} == {monitor.pid}
            assert task.counters()["feedback_paused"] == 1
            (paused,) = events.of("paused")
            assert "nothing is written any more" in paused.message
        task.run()
        assert (urgent.content(), low.content()) == before, "it has been gone for one pass only"
        task.run()
        assert task.paused == ()
        assert events.of("resumed")
        assert values(urgent) == (0, 0)
        assert task.counters()["feedback_pauses"] == 1


def test_it_can_be_told_not_to_go_on(scene: NodeScene, node: Node) -> None:
    file = scene.container("a")
    task = Feedback(node, resume_after=None)
    with contextlib.closing(_Stopping(task)):
        with OtherWriter("vGPUmonitor"):
            task.run()
        for _ in range(5):
            launch(file)
            task.run()
        assert file.get("recent_kernel") == 2
        assert task.paused


def test_at_the_end_a_monitor_keeps_what_it_finds(scene: NodeScene, node: Node) -> None:
    urgent, low = scene.container("urgent", priority=0), scene.container("low")
    launch(urgent)
    task = Feedback(node)
    task.run()
    with OtherWriter("vGPUmonitor"):
        node.refresh()
        task.stop()
        assert low.get("recent_kernel") == -1


def test_a_monitor_of_that_name_elsewhere_does_not_count(
    scene: NodeScene, feedback: Feedback, tmp_path: Path
) -> None:
    """A pod that calls its program so does not have the node's containers in its file system."""
    empty = tmp_path / "empty"
    empty.mkdir()
    with OtherWriter("vGPUmonitor", chroot=empty):
        feedback.start()
    link = empty / scene.root.relative_to("/")
    link.parent.mkdir(parents=True)
    link.symlink_to(scene.root)
    with OtherWriter("vGPUmonitor", chroot=empty):
        feedback.start()


def test_a_pod_that_holds_a_region_cannot_pass_for_a_monitor(
    scene: NodeScene,
) -> None:
    """Neither by a name nor by what it maps: it would switch the feedback off for all others."""
    tenant, other = str(uuid.uuid4()), str(uuid.uuid4())
    files = [scene.container("a", pod_uid=tenant), scene.container("b")]
    with OtherWriter("vGPUmonitor", files) as impostor:
        for pod_uid, counts in ((tenant, False), (other, True)):
            with cgroup_of_pod(pod_uid, "ab" * 32) as cgroup:
                (cgroup / "cgroup.procs").write_text(str(impostor.pid))
                expected = pytest.raises(OtherWriterRuns) if counts else contextlib.nullcontext()
                with expected, Node(scene.root, outside=False) as fresh:
                    task = Feedback(fresh)
                    try:
                        task.start()
                    finally:
                        task.stop()
                (cgroup.parents[2] / "cgroup.procs").write_text(str(impostor.pid))


def test_hook_path_tells_where_a_monitor_looks(
    scene: NodeScene, feedback: Feedback, tmp_path: Path
) -> None:
    """In its container the directory can have another path."""
    there = tmp_path / "root"
    (there / "vgpu/containers").mkdir(parents=True)
    script = f'mount --bind {scene.root} {there}/vgpu/containers && exec "$@"'
    inside = ("unshare", "--mount", "sh", "-c", script, "sh")
    if os.geteuid() != 0:
        pytest.skip("needs root to mount")
    with (
        OtherWriter("vGPUmonitor", inside=inside, chroot=there, env={"HOOK_PATH": "/vgpu"}),
        pytest.raises(OtherWriterRuns, match="is vGPUmonitor"),
    ):
        feedback.start()
    with OtherWriter("vGPUmonitor", inside=inside, chroot=there, env={"HOOK_PATH": "/other"}):
        feedback.start()


def test_two_agents_exclude_each_other(scene: NodeScene, node: Node, feedback: Feedback) -> None:
    file = scene.container("a")
    feedback.start()
    second = Feedback(node)
    with pytest.raises(
        OtherWriterRuns, match=f"another agent runs: process {os.getpid()} has locked"
    ):
        second.start()
    launch(file)
    second.run()
    assert file.get("recent_kernel") == 2
    feedback.stop()
    second.start()
    second.stop()


def test_the_lock_is_on_the_directory_whatever_its_name(
    scene: NodeScene, feedback: Feedback, tmp_path: Path
) -> None:
    link = tmp_path / "another-way"
    link.symlink_to(scene.root)
    feedback.start()
    with Node(link, outside=False) as same, pytest.raises(OtherWriterRuns):
        Feedback(same).start()
    elsewhere = NodeScene(tmp_path / "other-containers")
    with Node(elsewhere.root, outside=False) as other:
        task = Feedback(other)
        task.start()
        task.stop()


def test_where_processes_are_hidden_it_starts_only_if_told_that_it_is_alone(
    scene: NodeScene, tmp_path: Path
) -> None:
    proc = tmp_path / "proc"
    proc.mkdir()
    with Node(scene.root, proc=proc, outside=False) as node:
        with pytest.raises(OtherWriterRuns, match="does not show all processes") as told:
            Feedback(node).start()
        assert told.value.others[0].evidence == "sight"
        task = Feedback(node, watch=WriterWatch(node, assume_alone=True))
        task.start()
        task.stop()


class _Stopping:
    """Stops a task when it is closed."""

    def __init__(self, task: Feedback) -> None:
        self._task = task

    def close(self) -> None:
        self._task.stop()

"""Other writers beside the feedback: it does not start, or stops writing, and knows impostors."""

import contextlib
import uuid
from collections.abc import Iterator

import pytest
from support.agent_tasks import MONITOR, OtherWriter, launch, one_pass, start_task, stopping, values
from support.kubelet import KubeletFiles
from support.node_scene import GPU
from support.own_cgroups import cgroup_of_pod
from support.region_file import RegionFile

from libhamiregion import Layout, create_region
from libhamiregion.agent import Feedback, OtherWriterRuns
from libhamiregion.node import Node


def test_where_hamis_monitor_runs_it_does_not_start(scene, feedback):
    files = [scene.container("a")]
    for name in (MONITOR, f"/usr/bin/{MONITOR}"):
        with OtherWriter(name, files) as monitor:
            with pytest.raises(OtherWriterRuns, match=f"process {monitor.pid}") as told:
                start_task(feedback)
            (other,) = told.value.others
            assert (other.evidence, other.pid) == ("name", monitor.pid)
    # A name alone is none: any pod could stop the feedback by it.
    with OtherWriter(MONITOR):
        start_task(feedback)


def test_who_holds_two_regions_open_for_writing_is_taken_for_a_monitor(scene, feedback):
    files = [scene.container("a"), scene.container("b")]
    with OtherWriter("python3", files) as other:
        with pytest.raises(OtherWriterRuns, match="maps regions of 2 pods for writing") as told:
            start_task(feedback)
        assert [(each.evidence, each.pid) for each in told.value.others] == [("mapping", other.pid)]


def test_writing_stops_when_a_monitor_appears_and_goes_on_when_it_has_gone(scene, node, events):
    urgent, low = scene.container("urgent", priority=0), scene.container("low")
    task = Feedback(node, emit=events.append)
    with stopping(task):
        launch(urgent)
        one_pass(task)
        assert low.get("recent_kernel") == -1
        with OtherWriter(MONITOR, [urgent, low]) as monitor:
            before = urgent.content(), low.content()
            for _ in range(3):
                one_pass(task)
            assert {each.pid for each in task.paused} == {monitor.pid}
            assert task.counters()["feedback_paused"] == 1
            (paused,) = events.of("paused")
            assert "nothing is written: " in paused.message
        assert (urgent.content(), low.content()) == before
        one_pass(task)
        assert task.paused == ()
        (resumed,) = events.of("resumed")
        assert "it had paused: HAMi's monitor runs: process" in resumed.message
        assert values(urgent) == (0, 0)
        assert task.counters()["feedback_pauses"] == 1


def test_what_another_writer_has_taken_over_is_not_taken_back(scene, node):
    urgent, low = scene.container("urgent", priority=0), scene.container("low")
    launch(urgent)
    task = Feedback(node)
    one_pass(task)
    with OtherWriter(MONITOR, [urgent, low]):
        one_pass(task)
        assert task.paused
    task.stop()
    assert low.get("recent_kernel") == -1


def refused_with(node: Node) -> tuple[str, ...]:
    """By which evidence a feedback does not start on a node."""
    task = Feedback(node)
    with node, stopping(task):
        try:
            start_task(task)
        except OtherWriterRuns as refused:
            return tuple(other.evidence for other in refused.others)
    return ()


@contextlib.contextmanager
def in_pod(pod_uid: str, program: OtherWriter) -> Iterator[None]:
    """Have a program run in a pod's cgroup."""
    with program, cgroup_of_pod(pod_uid, uuid.uuid4().hex * 2) as cgroup:
        (cgroup / "cgroup.procs").write_text(str(program.pid))
        yield


def test_a_pod_that_holds_a_region_cannot_pass_for_a_monitor(scene):
    """Neither by a name nor by what it maps: it would switch the feedback off for all others."""
    tenant, other = str(uuid.uuid4()), str(uuid.uuid4())
    files = [scene.container("a", pod_uid=tenant, file_name=f"{uuid.uuid4()}.cache")]
    files.append(scene.container("b", file_name=f"{uuid.uuid4()}.cache"))
    for pod_uid, evidence in ((tenant, ()), (other, ("name",))):
        with in_pod(pod_uid, OtherWriter(MONITOR, files)):
            assert refused_with(Node(scene.root)) == evidence


def test_a_pod_that_holds_a_claim_cannot_pass_for_a_monitor(tmp_path):
    """Also if kubelet's checkpoint does not say who holds it."""
    holder, other, claim = (str(uuid.uuid4()) for _ in range(3))
    path = tmp_path / "claims" / claim / f"{uuid.uuid4()}.cache"
    path.parent.mkdir(parents=True)
    create_region(path, uuids=[GPU])
    kubelet = KubeletFiles(tmp_path)
    with in_pod(holder, OtherWriter(MONITOR, [RegionFile(path, Layout.V1_2)])):
        assert refused_with(Node(path.parents[1], names=kubelet.names())) == ()
        for pods, evidence in (([holder], ()), ([other], ("name",))):
            kubelet.claims({claim: ("a100-half", pods)})
            assert refused_with(Node(path.parents[1], names=kubelet.names())) == evidence


def test_directories_in_the_names_of_other_pods_make_no_monitor(scene):
    """Containers of the KAI scheduler make their own directories, so any can make several."""
    pods = [str(uuid.uuid4()) for _ in range(3)]
    files = [scene.container("a", pod_uid=uid) for uid in pods[:2]]
    with in_pod(pods[2], OtherWriter("python3", files)):
        assert refused_with(Node(scene.root)) == ()
        with (
            in_pod(pods[0], OtherWriter("python3", files[:1])),
            in_pod(pods[1], OtherWriter("python3", files[1:])),
        ):
            assert refused_with(Node(scene.root)) == ("mapping",)


def test_two_agents_exclude_each_other(scene, node, feedback):
    file = scene.container("a")
    start_task(feedback)
    second = Feedback(node)
    with pytest.raises(OtherWriterRuns, match="another agent runs: a process has locked"):
        start_task(second)
    launch(file)
    one_pass(second)
    assert file.get("recent_kernel") == 2
    feedback.stop()
    start_task(second)
    second.stop()

"""Which directories of pods are removed: those of which all proof says that nobody misses them."""

import os
import shutil
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from actors import Nursery
from fake_kubernetes.server import FakeApi
from gone_scene import GoneScene, gone, names, process_in, running_pod, until
from namespaces import NEW_NAMESPACE, needs_first_namespace
from own_cgroups import cgroup_of_pod, needs_cgroups
from patience import eventually

from libhamiregion.agent import (
    ApiPods,
    GoneRemover,
    KubeletPods,
    PodSource,
    PodsUnknown,
    TaskRunner,
)
from libhamiregion.node import KubernetesNames, Node

pytestmark = [needs_first_namespace, needs_cgroups]


@pytest.fixture(scope="module")
def alive() -> Iterator[str]:
    with running_pod() as uid:
        yield uid


@pytest.fixture
def scene(tmp_path: Path, alive: str) -> Iterator[GoneScene]:
    scene = GoneScene(tmp_path, alive)
    yield scene
    scene.close()


def test_the_directory_of_a_pod_that_is_gone_is_removed_and_nothing_else(
    scene: GoneScene,
) -> None:
    with_logs, with_volumes = str(uuid.uuid4()), str(uuid.uuid4())
    (scene.logs / f"research_ends_{with_logs}").mkdir()
    (scene.pods / with_volumes).mkdir()
    elsewhere = scene.root.parent / f"{uuid.uuid4()}_elsewhere"
    elsewhere.mkdir()
    kept = [
        scene.container(with_logs),
        scene.container(with_volumes, region=False),
        scene.container("not-a-uid"),
        scene.container(str(uuid.uuid4()).upper()),
        scene.container(name=f"bert-0_{uuid.uuid4()}"),
        elsewhere,
    ]
    (scene.root / f"{uuid.uuid4()}_train.limits").write_text("{}")
    (scene.root / f"{uuid.uuid4()}_link").symlink_to(elsewhere)
    before = names(scene.root)
    uid = str(uuid.uuid4())
    directories = [scene.container(uid), scene.container(uid, "init"), scene.container("ab" * 16)]
    (directories[0] / "libvgpu.so").write_bytes(b"\x7fELF")
    remover = scene.remover()
    until(remover, gone(*directories))
    assert names(scene.root) == before
    assert all(each.is_dir() for each in kept)
    events = scene.events.of("removed")
    assert {each.container for each in events} == {
        f"{uid}/train",
        f"{uid}/init",
        f"{'ab' * 16}/train",
    }
    assert scene.events.kinds() == ["removed"] * 3
    counters = remover.counters()
    assert counters["removal_directories"] == 3
    assert counters["removal_entries"] == 3 + 4
    freed = [each.detail["bytes"] for each in events]
    assert counters["removal_bytes"] == sum(int(each or 0) for each in freed) > 0
    assert counters["removal_errors"] == counters["removal_paused"] == 0


def test_a_node_closes_the_region_of_a_removed_directory(scene: GoneScene) -> None:
    directory = scene.container()
    with Node(scene.root, outside=False) as node:
        node.refresh()
        regions = {each.directory: each.region for each in node.containers}
        until(scene.remover(), gone(directory))
        node.refresh()
        assert [each.pod_uid for each in node.containers] == [scene.alive]
        region = regions[str(directory)]
        assert region is not None
        assert region.closed


def test_one_look_is_no_proof_and_two_within_the_time_are_none(scene: GoneScene) -> None:
    directory = scene.container()
    at_once, never = scene.remover(gone_after_s=0), scene.remover(gone_after_s=3600)
    for _ in range(3):
        never.run()
    at_once.run()
    assert directory.is_dir()
    at_once.run()
    assert not directory.exists()


def test_an_old_directory_is_not_enough_its_pod_has_to_be_gone_for_that_long(
    scene: GoneScene,
) -> None:
    directory = scene.container()
    remover = scene.remover(gone_after_s=1.0)
    eventually(lambda: time.time() - directory.stat().st_ctime > 1.2)
    began = time.monotonic()
    remover.run()
    remover.run()
    if time.monotonic() - began < 1.0:
        assert directory.is_dir()

    def removed() -> bool:
        remover.run()
        return not directory.exists()

    eventually(removed)
    assert time.monotonic() - began >= 1.0


def test_a_pod_that_is_there_again_begins_anew(scene: GoneScene) -> None:
    directory = scene.container()
    uid = directory.name.partition("_")[0]
    remover = scene.remover(gone_after_s=0)
    remover.run()
    scene.add_pod(uid)
    remover.run()
    scene.remove_pod(uid)
    remover.run()
    assert directory.is_dir(), "this was the first look of a new absence"
    remover.run()
    assert not directory.exists()


def test_a_directory_that_the_device_plugin_has_just_touched_stays(scene: GoneScene) -> None:
    """It sets the mode again whenever it gives a pod its devices; no time that is set hides it."""
    directory = scene.container()
    remover = scene.remover(gone_after_s=1.0)
    remover.run()
    eventually(lambda: remover.run() is None and remover._absent[str(directory)].looks > 1)
    remover._absent[str(directory)].since_s -= 3600
    directory.chmod(0o777)
    os.utime(directory, (0, 0))
    remover.run()
    assert directory.is_dir()
    os.utime(directory / "usage.cache", (4e9, 4e9))
    until(remover, gone(directory))


# ---- sources -------------------------------------------------------------------------------------


def break_source(directory: Path, how: str, alive: str) -> str:
    """Make one of kubelet's directories useless; what is to be said about it."""
    match how:
        case "missing":
            shutil.rmtree(directory)
            return f"{str(directory)!r} cannot be listed: No such file or directory"
        case "file":
            shutil.rmtree(directory)
            directory.touch()
            return f"{str(directory)!r} cannot be listed: Not a directory"
        case "empty":
            shutil.rmtree(directory)
            directory.mkdir()
            return f"{str(directory)!r} has no pod at all; is it mounted?"
    next(directory.glob(f"*{alive}")).rmdir()
    (directory / str(uuid.uuid4())).mkdir()
    return f"{str(directory)!r} knows none of the pods whose processes run on this node"


@pytest.mark.parametrize("what", ["missing", "file", "empty", "foreign"])
@pytest.mark.parametrize("where", ["logs", "pods"])
def test_a_source_that_does_not_know_this_node_says_so(
    scene: GoneScene, where: str, what: str
) -> None:
    why = break_source({"logs": scene.logs, "pods": scene.pods}[where], what, scene.alive)
    with pytest.raises(PodsUnknown) as told:
        KubeletPods(scene.logs, scene.pods).present({scene.alive}, frozenset({scene.alive}))
    assert str(told.value) == why


def test_a_source_that_does_not_know_this_node_stops_everything(scene: GoneScene) -> None:
    directory = scene.container()
    remover = scene.remover(gone_after_s=0)
    remover.run()
    why = break_source(scene.pods, "foreign", scene.alive)
    for _ in range(2):
        remover.run()
    assert directory.is_dir()
    assert [each.message for each in scene.events] == [f"nothing is removed: {why}"]
    assert remover.paused == why
    assert remover.counters()["removal_paused"] == 1
    (scene.pods / scene.alive).mkdir()
    remover.run()
    assert not directory.exists()
    assert scene.events.kinds() == ["paused", "resumed", "removed"]


def test_where_no_pod_runs_nothing_shows_that_the_source_is_right(scene: GoneScene) -> None:
    source = KubeletPods(scene.logs, scene.pods)
    with pytest.raises(PodsUnknown, match="no process of any pod runs here"):
        source.present({scene.alive}, frozenset())
    assert source.present({scene.alive, "ab" * 16}, frozenset({scene.alive})) == {scene.alive}


def test_processes_that_cannot_be_seen_stop_everything(scene: GoneScene) -> None:
    directory = scene.container()
    nursery = Nursery(*NEW_NAMESPACE)
    try:
        inside = nursery.actor()
        remover = scene.remover(gone_after_s=0, node={"proc": f"/proc/{inside.pid_here}/root/proc"})
        for _ in range(3):
            remover.run()
    finally:
        nursery.close()
    assert directory.is_dir()
    (event,) = scene.events
    assert "not every process of the node can be seen" in event.message


class _Api(FakeApi):
    """A server, and names from it that are never older than asked for."""

    def source(self, directory: Path, node: str = "node-1") -> ApiPods:
        path = self.kubeconfig(directory)
        return ApiPods(KubernetesNames(node, kubeconfig=path, max_age_s=0.0))


@pytest.fixture
def api() -> Iterator[_Api]:
    pytest.importorskip("kubernetes")
    with _Api() as api:
        yield api


def test_the_api_tells_which_pods_are_gone(scene: GoneScene, api: _Api, tmp_path: Path) -> None:
    pending, ended = scene.container(), scene.container()
    uid = pending.name.partition("_")[0]
    api.put("bert-0", scene.alive, {})
    api.put("pending", uid, {})
    remover = scene.remover(source=api.source(tmp_path))
    until(remover, gone(ended))
    assert pending.is_dir(), "kubelet has no directory for it, the API has the pod"
    api.delete(uid)
    until(remover, gone(pending))
    assert scene.events.kinds() == ["removed", "removed"]


def test_an_api_that_does_not_know_this_node_stops_everything(
    scene: GoneScene, api: _Api, tmp_path: Path
) -> None:
    directory = scene.container()
    api.put("other", str(uuid.uuid4()), {})
    source = api.source(tmp_path)
    remover = scene.remover(source=source, gone_after_s=0)
    for _ in range(3):
        remover.run()
    api.put("bert-0", scene.alive, {}, node="node-2")
    remover.run()
    (event,) = scene.events
    assert "the Kubernetes API, asked for this node, knows none of the pods" in event.message
    api.put("bert-0", scene.alive, {})
    api.refusals = [403, 403, 403]
    remover.run()
    assert scene.events[-1].message.startswith(
        "nothing is removed: the Kubernetes API does not tell: HTTP 403"
    )
    assert directory.is_dir()
    api.refusals = []
    until(remover, gone(directory))


def test_an_api_that_is_not_there_is_said_once(scene: GoneScene, tmp_path: Path) -> None:
    pytest.importorskip("kubernetes")
    with _Api() as api:
        source = api.source(tmp_path)
    scene.container()
    remover = scene.remover(source=source, gone_after_s=0)
    for _ in range(2):
        remover.run()
    (event,) = scene.events
    assert "refused" in event.message
    assert "0x" not in event.message


# ---- processes -----------------------------------------------------------------------------------


def test_while_a_process_maps_the_region_it_stays(scene: GoneScene) -> None:
    directory = scene.container()
    remover = scene.remover(gone_after_s=0)
    nursery = Nursery()
    try:
        mapper = nursery.actor(directory / "usage.cache")
        onlooker = nursery.actor(directory / "usage.cache", writable=False)
        for _ in range(3):
            remover.run()
        assert directory.is_dir()
        mapper.kill()
        until(remover, gone(directory))
        assert onlooker("region.snapshot").layout, "who only reads keeps what it has"
    finally:
        nursery.close()
    assert scene.events.kinds() == ["removed"]


def test_an_older_region_of_the_directory_counts_as_well(scene: GoneScene) -> None:
    directory = scene.container()
    shutil.copy(directory / "usage.cache", directory / "newer.cache")
    remover = scene.remover(gone_after_s=0)
    nursery = Nursery()
    try:
        nursery.actor(directory / "usage.cache")
        for _ in range(3):
            remover.run()
        assert directory.is_dir()
    finally:
        nursery.close()
    until(remover, gone(directory))


def test_while_a_process_of_the_pod_runs_it_stays(scene: GoneScene) -> None:
    directory = scene.container()
    uid = directory.name.partition("_")[0]
    remover = scene.remover(gone_after_s=0)
    with cgroup_of_pod(uid, "cd" * 32) as cgroup, process_in(cgroup):
        for _ in range(3):
            remover.run()
        assert directory.is_dir()
    until(remover, gone(directory))


class _LateSource:
    """Knows of a pod that comes back in the very moment in which its directory is taken away."""

    def __init__(self, scene: GoneScene) -> None:
        self._scene = scene

    def present(
        self,
        asked: Iterable[str],
        running: frozenset[str],  # noqa: ARG002
    ) -> frozenset[str]:
        back = set(asked) if self._scene.claimed() else {self._scene.alive}
        return frozenset(back.intersection(asked))


def test_a_pod_that_comes_back_at_the_last_moment_gets_its_directory_back(
    scene: GoneScene,
) -> None:
    directory = scene.container()
    before = (directory / "usage.cache").read_bytes()
    source: PodSource = _LateSource(scene)
    remover = scene.remover(source=source)
    until(remover, scene.saw("failed"))
    assert scene.claimed() == []
    assert (directory / "usage.cache").read_bytes() == before
    assert "its pod is there again" in scene.events[0].message


def test_a_static_pod_that_comes_back_loses_nothing(scene: GoneScene) -> None:
    uid = "ab" * 16
    directory = scene.container(uid)
    for number in range(40):
        (directory / str(number)).touch()
    remover = scene.remover(entries_per_pass=40)
    until(remover, scene.claimed)
    scene.add_pod(uid)
    again = scene.container(uid)
    (begun,) = scene.claimed()
    left = len(list(begun.iterdir()))
    for _ in range(3):
        remover.run()
    assert again.is_dir()
    assert len(list(begun.iterdir())) == left, "it may still be mounted somewhere"
    scene.remove_pod(uid)
    until(remover, lambda: not again.exists() and not scene.claimed())
    assert scene.events.kinds() == ["removed", "removed"]


# ---- several of them -----------------------------------------------------------------------------


def test_what_a_killed_agent_has_begun_another_ends(scene: GoneScene) -> None:
    directory = scene.container()
    uid = directory.name.partition("_")[0]
    for number in range(40):
        (directory / str(number)).touch()
    killed = scene.remover(entries_per_pass=40)
    until(killed, scene.claimed)
    assert not directory.exists()
    assert scene.events == []
    until(scene.remover(), lambda: not scene.claimed())
    (event,) = scene.events
    assert event.container == f"{uid}/(begun)"


def test_two_agents_and_a_monitor_do_each_other_no_harm(scene: GoneScene) -> None:
    directories = [scene.container(region=False) for _ in range(16)]
    for directory in directories:
        for number in range(20):
            (directory / str(number)).touch()
    removers = [scene.remover(entries_per_pass=400) for _ in range(2)]
    runners = [TaskRunner([each], emit=scene.events.append) for each in removers]
    for runner in runners:
        runner.start()
    monitor = threading.Thread(
        target=lambda: [shutil.rmtree(each, ignore_errors=True) for each in directories[::4]]
    )
    monitor.start()
    eventually(lambda: not scene.claimed() and gone(*directories)())
    monitor.join()
    for runner in runners:
        runner.stop()
    assert set(scene.events.kinds()) == {"removed"}
    assert all(each.counters()["removal_errors"] == 0 for each in removers)
    assert (scene.root / f"{scene.alive}_train" / "usage.cache").exists()


def test_a_dry_run_says_once_what_it_would_remove(scene: GoneScene) -> None:
    directory = scene.container()
    before = directory.stat().st_ctime_ns
    remover = scene.remover(dry_run=True)
    until(remover, scene.saw("would_remove"))
    for _ in range(3):
        remover.run()
    assert scene.events.kinds("train") == ["gone", "would_remove"]
    assert int(scene.events[-1].detail["bytes"] or 0) > 0
    assert directory.stat().st_ctime_ns == before
    assert remover.counters()["removal_directories"] == 0


def test_it_looks_twice_within_the_time_and_at_least_each_half_minute(scene: GoneScene) -> None:
    with Node(scene.root, outside=False) as node:
        source = KubeletPods(scene.logs, scene.pods)
        assert GoneRemover(node, source).interval_s == 30
        assert GoneRemover(node, source, gone_after_s=10).interval_s == 5
        with pytest.raises(ValueError, match="0 or more, not -1"):
            GoneRemover(node, source, gone_after_s=-1)
        GoneRemover(node, source).stop()

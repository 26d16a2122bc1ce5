"""Which directories of pods are removed: those of which all proof says that nobody misses them."""

import os
import shutil
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from namespaces import NEW_NAMESPACE, needs_first_namespace
from own_cgroups import cgroup_of_pod, needs_cgroups
from stale_scene import SOON_S, StaleScene, gone, names, process_in, running_pod, until
from support.actors import ProcessFactory
from support.wait import eventually

from libhamiregion import create_region
from libhamiregion.agent import TaskRunner, stale_directories

pytestmark = [needs_first_namespace, needs_cgroups]


@pytest.fixture(scope="module")
def alive() -> Iterator[str]:
    with running_pod() as uid:
        yield uid


@pytest.fixture
def scene(tmp_path: Path, alive: str) -> Iterator[StaleScene]:
    scene = StaleScene(tmp_path, alive)
    yield scene
    scene.close()


def test_the_directory_of_a_pod_that_is_gone_is_removed_and_nothing_else(
    scene: StaleScene,
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
    collector = scene.collector()
    until(collector, gone(*directories))
    assert names(scene.root) == before
    assert all(each.is_dir() for each in kept)
    events = scene.events.of("removed")
    assert {each.container for each in events} == {
        f"{uid}/train",
        f"{uid}/init",
        f"{'ab' * 16}/train",
    }
    assert scene.events.kinds() == ["removed"] * 3
    counters = collector.counters()
    assert counters["removal_directories"] == 3
    assert counters["removal_entries"] == 3 + 4
    assert counters["removal_errors"] == counters["removal_paused"] == 0


def test_the_directory_of_a_claim_is_left_to_its_driver(scene: StaleScene) -> None:
    claims = scene.root.parent / "claims"
    claim = claims / str(uuid.uuid4())
    claim.mkdir(parents=True)
    create_region(claim / "a.cache")
    directory = scene.container()
    collector = scene.collector(roots=(claims,))
    until(collector, gone(directory))
    assert names(claim) == ["a.cache"]


def test_a_pod_that_is_there_again_begins_anew(scene: StaleScene) -> None:
    directory = scene.container()
    uid = directory.name.partition("_")[0]
    collector = scene.collector(gone_after_s=0.3)
    collector.run()
    scene.add_pod(uid)
    time.sleep(0.3)
    collector.run()
    scene.remove_pod(uid)
    began = time.monotonic()
    collector.run()
    until(collector, gone(directory))
    assert time.monotonic() - began >= 0.3


def test_a_directory_that_the_device_plugin_has_just_touched_stays(scene: StaleScene) -> None:
    """It sets the mode again whenever it gives a pod its devices; no time that is set hides it."""
    directory = scene.container()
    collector = scene.collector(gone_after_s=0.5)
    collector.run()
    collector._absent_since_s[str(directory)] -= 3600
    directory.chmod(0o777)
    os.utime(directory, (0, 0))
    touched = time.time()
    collector.run()
    # On a busy machine that may have taken as long.
    if directory.is_dir():
        os.utime(directory / "usage.cache", (4e9, 4e9))
        until(collector, gone(directory))
    # The file system's clock may be some milliseconds behind.
    assert time.time() - touched >= 0.45


# ---- sources -------------------------------------------------------------------------------------


def break_source(directory: Path, how: str, alive: str) -> str:
    """Make one of kubelet's directories useless; what is to be said about it."""
    match how:
        case "missing":
            shutil.rmtree(directory)
            return f"it cannot be listed: {directory}: No such file or directory"
        case "file":
            shutil.rmtree(directory)
            directory.touch()
            return f"it cannot be listed: {directory}: Not a directory"
        case "empty":
            shutil.rmtree(directory)
            directory.mkdir()
            return f"{directory} has no pod at all; is it mounted?"
    next(directory.glob(f"*{alive}")).rmdir()
    (directory / str(uuid.uuid4())).mkdir()
    return f"{directory} knows none of the pods whose processes run on this node"


# One loop goes over both sources and judges them alike.
OTHERS = [("pods", "missing"), ("logs", "file"), ("pods", "empty"), ("logs", "foreign")]


@pytest.mark.parametrize(
    ("where", "how"),
    [
        *[("logs", "missing"), ("pods", "file"), ("logs", "empty"), ("pods", "foreign")],
        *[pytest.param(*each, marks=pytest.mark.slow) for each in OTHERS],
    ],
)
def test_a_source_that_does_not_know_this_node_stops_everything(
    scene: StaleScene, where: str, how: str
) -> None:
    directory = scene.container()
    collector = scene.collector()
    collector.run()
    why = break_source({"logs": scene.logs, "pods": scene.pods}[where], how, scene.alive)
    for _ in range(3):
        time.sleep(SOON_S)
        # Another process of this machine that does not show what it maps pauses it as well.
        until(collector, lambda: collector.paused == why)
    assert directory.is_dir()
    assert {each.message for each in scene.events} == {f"nothing is removed: {why}"}
    assert collector.counters()["removal_paused"] == 1
    if (where, how) == ("pods", "foreign"):
        (scene.pods / scene.alive).mkdir()
        until(collector, gone(directory))
        assert scene.events.kinds()[-2:] == ["resumed", "removed"]
        assert scene.events.of("resumed")[0].message.endswith(f"it had paused: {why}")


def test_where_no_pod_runs_nothing_shows_that_kubelets_directories_are_right(
    scene: StaleScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = scene.container()
    collector = scene.collector()
    collector.run()
    time.sleep(SOON_S)
    monkeypatch.setattr(type(collector._node.processes), "__iter__", lambda _: iter(()))
    collector.run()
    assert directory.is_dir()
    (event,) = scene.events
    assert "no process of any pod runs here" in event.message


def test_processes_that_cannot_be_seen_stop_everything(scene: StaleScene) -> None:
    directory = scene.container()
    process_factory = ProcessFactory(*NEW_NAMESPACE)
    try:
        inside = process_factory.actor()
        collector = scene.collector(node={"proc": f"/proc/{inside.pid_here}/root/proc"})
        for _ in range(3):
            time.sleep(SOON_S)
            collector.run()
    finally:
        process_factory.close()
    assert directory.is_dir()
    (event,) = scene.events
    assert "not every process of the node can be seen" in event.message


# ---- processes -----------------------------------------------------------------------------------


def test_while_a_process_maps_the_region_it_stays(scene: StaleScene) -> None:
    directory = scene.container()
    # An older region of the directory counts as well.
    shutil.copy(directory / "usage.cache", directory / "newer.cache")
    collector = scene.collector()
    process_factory = ProcessFactory()
    try:
        mapper = process_factory.actor(directory / "usage.cache")
        onlooker = process_factory.actor(directory / "usage.cache", writable=False)
        for _ in range(3):
            time.sleep(SOON_S)
            collector.run()
        assert directory.is_dir()
        mapper.kill()
        until(collector, gone(directory))
        assert onlooker("region.snapshot").layout, "who only reads keeps what it has"
    finally:
        process_factory.close()
    assert scene.events.kinds() == ["removed"]


def test_while_a_process_of_the_pod_runs_it_stays(scene: StaleScene) -> None:
    directory = scene.container()
    uid = directory.name.partition("_")[0]
    collector = scene.collector()
    with cgroup_of_pod(uid, "cd" * 32) as cgroup, process_in(cgroup):
        for _ in range(3):
            time.sleep(SOON_S)
            collector.run()
        assert directory.is_dir()
    until(collector, gone(directory))


def test_a_pod_that_comes_back_at_the_last_moment_gets_its_directory_back(
    scene: StaleScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = scene.container()
    uid = directory.name.partition("_")[0]
    before = (directory / "usage.cache").read_bytes()
    renamed = stale_directories.quarantine

    def comes_back(*words: Any) -> str:
        name = renamed(*words)
        scene.add_pod(uid)
        return name

    monkeypatch.setattr(stale_directories, "quarantine", comes_back)
    until(scene.collector(), scene.saw("failed"))
    assert scene.quarantined() == []
    assert (directory / "usage.cache").read_bytes() == before
    assert f"{directory} was not removed: its pod is there again" in scene.events[0].message


def test_a_region_that_is_made_at_the_last_moment_is_in_use(
    scene: StaleScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = scene.container()
    renamed = stale_directories.quarantine
    process_factory = ProcessFactory()

    def is_made(*words: Any) -> str:
        shutil.copy(directory / "usage.cache", directory / "newer.cache")
        process_factory.actor(directory / "newer.cache")
        return renamed(*words)

    monkeypatch.setattr(stale_directories, "quarantine", is_made)
    try:
        until(scene.collector(), scene.saw("failed"))
        assert scene.quarantined() == []
        assert names(directory) == ["newer.cache", "usage.cache"]
    finally:
        process_factory.close()


def test_a_static_pod_that_comes_back_loses_nothing(scene: StaleScene) -> None:
    uid = "ab" * 16
    directory = scene.container(uid)
    for number in range(40):
        (directory / str(number)).touch()
    collector = scene.collector(entries_per_pass=40)
    until(collector, scene.quarantined)
    scene.add_pod(uid)
    again = scene.container(uid)
    (begun,) = scene.quarantined()
    left = len(list(begun.iterdir()))
    for _ in range(3):
        collector.run()
    assert again.is_dir()
    assert len(list(begun.iterdir())) == left, "it may still be mounted somewhere"
    scene.remove_pod(uid)
    until(collector, lambda: not again.exists() and not scene.quarantined())
    assert scene.events.kinds() == ["removed", "removed"]


# ---- several of them -----------------------------------------------------------------------------


def test_what_a_killed_agent_has_begun_another_ends(scene: StaleScene) -> None:
    directory = scene.container()
    uid = directory.name.partition("_")[0]
    for number in range(40):
        (directory / str(number)).touch()
    killed = scene.collector(entries_per_pass=40)
    until(killed, scene.quarantined)
    assert not directory.exists()
    assert scene.events == []
    until(scene.collector(), lambda: not scene.quarantined())
    (event,) = scene.events
    assert event.container == f"{uid}/train"


def test_two_agents_and_a_monitor_do_each_other_no_harm(scene: StaleScene) -> None:
    directories = [scene.container(region=False) for _ in range(16)]
    for directory in directories:
        for number in range(20):
            (directory / str(number)).touch()
    collectors = [scene.collector(entries_per_pass=400) for _ in range(2)]
    runners = [TaskRunner([each], emit=scene.events.append) for each in collectors]
    for runner in runners:
        runner.start()
    monitor = threading.Thread(
        target=lambda: [shutil.rmtree(each, ignore_errors=True) for each in directories[::4]],
        daemon=True,
    )
    monitor.start()
    eventually(lambda: not scene.quarantined() and gone(*directories)())
    monitor.join()
    for runner in runners:
        runner.stop()
    assert set(scene.events.kinds()) == {"removed"}
    assert all(each.counters()["removal_errors"] == 0 for each in collectors)
    assert (scene.root / f"{scene.alive}_train" / "usage.cache").exists()


def test_a_dry_run_says_once_what_it_would_remove(scene: StaleScene) -> None:
    directory = scene.container()
    before = directory.stat().st_ctime_ns
    collector = scene.collector(dry_run=True)
    for _ in range(3):
        time.sleep(SOON_S)
        collector.run()
    assert scene.events.kinds("train") == ["would_remove"]
    assert directory.stat().st_ctime_ns == before
    assert collector.counters()["removal_directories"] == 0

"""Which directories of pods are removed: those of which all proof says that nobody misses them."""

import contextlib
import os
import shutil
import stat
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest
from support.actors import ProcessFactory
from support.agent_tasks import one_pass
from support.namespaces import NEW_NAMESPACE
from support.own_cgroups import cgroup_of_pod, needs_cgroups
from support.process import descriptors, finished
from support.stale_scene import SOON_S, StaleScene, gone, names, process_in, running_pod, until
from support.wait import eventually

from libhamiregion import create_region
from libhamiregion.agent import StaleDirectoryCleaner, TaskRunner
from libhamiregion.node import Observer, ProcessTable
from libhamiregion.observation.processes import ProcessView

pytestmark = needs_cgroups


@pytest.fixture(scope="module")
def alive() -> Iterator[str]:
    with running_pod() as uid:
        yield uid


@pytest.fixture
def scene(tmp_path, alive) -> Iterator[StaleScene]:
    with contextlib.closing(StaleScene(tmp_path, alive)) as scene:
        yield scene


def some_passes(cleaner: StaleDirectoryCleaner) -> None:
    """Enough of them that what is gone would be removed."""
    for _ in range(3):
        time.sleep(SOON_S)
        one_pass(cleaner)


def test_the_directory_of_a_pod_that_is_gone_is_removed_and_nothing_else(scene):
    with_logs, with_volumes = str(uuid.uuid4()), str(uuid.uuid4())
    (scene.pod_logs / f"research_ends_{with_logs}").mkdir()
    (scene.pods / with_volumes).mkdir()
    elsewhere = scene.root.parent / f"{uuid.uuid4()}_elsewhere"
    elsewhere.mkdir()
    kept = [
        scene.leave(with_logs),
        scene.leave(with_volumes, region=False),
        scene.leave("not-a-uid"),
        scene.leave(str(uuid.uuid4()).upper()),
        elsewhere,
    ]
    (scene.root / f"{uuid.uuid4()}_train.limits").write_text("{}")
    (scene.root / f"{uuid.uuid4()}_link").symlink_to(elsewhere)
    before = names(scene.root)
    uid = str(uuid.uuid4())
    directories = [scene.leave(uid), scene.leave(uid, "init"), scene.leave("ab" * 16)]
    (directories[0] / "libvgpu.so").write_bytes(b"\x7fELF")
    cleaner = scene.cleaner()
    until(cleaner, gone(*directories))
    assert names(scene.root) == before
    assert all(each.is_dir() for each in kept)
    events = scene.events.of("removed")
    assert {each.container for each in events} == {
        f"{uid}/train",
        f"{uid}/init",
        f"{'ab' * 16}/train",
    }
    assert scene.events.kinds() == ["removed"] * 3
    counters = cleaner.counters()
    assert counters["removal_directories"] == 3
    assert counters["removal_entries"] == 3 + 4
    assert counters["removal_errors"] == counters["removal_paused"] == 0


def test_the_directory_of_a_claim_is_left_to_its_driver(scene):
    claims = scene.root.parent / "claims"
    claim = claims / str(uuid.uuid4())
    claim.mkdir(parents=True)
    create_region(claim / "a.cache")
    directory = scene.leave()
    cleaner = scene.cleaner(roots=(claims,))
    until(cleaner, gone(directory))
    assert names(claim) == ["a.cache"]


def test_a_pod_that_is_there_again_begins_anew(scene):
    directory = scene.leave()
    uid = directory.name.partition("_")[0]
    cleaner = scene.cleaner(gone_after_s=0.3)
    one_pass(cleaner)
    scene.add_pod(uid)
    time.sleep(0.3)
    one_pass(cleaner)
    scene.remove_pod(uid)
    began = time.monotonic()
    one_pass(cleaner)
    until(cleaner, gone(directory))
    assert time.monotonic() - began >= 0.3


@pytest.mark.parametrize("what", ["directory", "file"])
def test_a_directory_that_has_just_changed_stays(scene, what):
    """The device plugin sets its mode, a program writes a file; no time that is set hides it."""
    directory = scene.leave()
    cleaner = scene.cleaner(gone_after_s=0.2)
    one_pass(cleaner)
    eventually(lambda: time.time() - directory.stat().st_ctime > 0.2)
    changed = directory if what == "directory" else directory / "usage.cache"
    changed.chmod(0o777)
    os.utime(changed, (0, 0))
    changed_s = time.time()
    until(cleaner, gone(directory))
    # The file system's clock may be some milliseconds behind.
    assert time.time() - changed_s >= 0.15


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
@pytest.mark.parametrize(
    ("where", "how"),
    [("logs", "missing"), ("pods", "file"), ("logs", "empty"), ("pods", "foreign")],
)
def test_a_source_that_does_not_know_this_node_stops_everything(scene, where, how):
    directory = scene.leave()
    cleaner = scene.cleaner()
    one_pass(cleaner)
    why = break_source({"logs": scene.pod_logs, "pods": scene.pods}[where], how, scene.alive)
    for _ in range(3):
        time.sleep(SOON_S)
        # Another process of this machine that does not show what it maps pauses it as well.
        until(cleaner, lambda: cleaner.paused == why)
    assert directory.is_dir()
    assert {each.message for each in scene.events} == {f"nothing is removed: {why}"}
    assert cleaner.counters()["removal_paused"] == 1
    if (where, how) == ("pods", "foreign"):
        (scene.pods / scene.alive).mkdir()
        until(cleaner, gone(directory))
        assert scene.events.kinds()[-2:] == ["resumed", "removed"]
        assert scene.events.of("resumed")[0].message.endswith(f"it had paused: {why}")


def test_where_no_pod_runs_nothing_shows_that_kubelets_directories_are_right(scene, monkeypatch):
    directory = scene.leave()
    cleaner = scene.cleaner()
    one_pass(cleaner)
    monkeypatch.setattr(ProcessView, "__iter__", lambda _: iter(()))
    some_passes(cleaner)
    assert directory.is_dir()
    (event,) = scene.events
    assert "no process of any pod runs here" in event.message


def test_processes_that_cannot_be_seen_stop_everything(scene):
    directory = scene.leave()
    with contextlib.closing(ProcessFactory(*NEW_NAMESPACE)) as factory:
        cleaner = scene.cleaner(node={"proc": f"/proc/{factory.actor().pid_here}/root/proc"})
        some_passes(cleaner)
    assert directory.is_dir()
    (event,) = scene.events
    assert "not every process of the node can be seen" in event.message


# ---- processes -----------------------------------------------------------------------------------


def test_while_a_process_of_the_pod_runs_it_stays(scene):
    directory = scene.leave()
    uid = directory.name.partition("_")[0]
    cleaner = scene.cleaner()
    with cgroup_of_pod(uid, "cd" * 32) as cgroup, process_in(cgroup):
        some_passes(cleaner)
        assert directory.is_dir()
    until(cleaner, gone(directory))


def test_while_a_process_maps_the_region_it_stays(scene, actor):
    directory = scene.leave()
    # An older region of the directory counts as well.
    shutil.copy(directory / "usage.cache", directory / "newer.cache")
    cleaner = scene.cleaner()
    mapper = actor(directory / "usage.cache")
    onlooker = actor(directory / "usage.cache", writable=False)
    some_passes(cleaner)
    assert directory.is_dir()
    mapper.kill()
    until(cleaner, gone(directory))
    assert onlooker("region.snapshot").layout, "a reader keeps its mapping"
    assert scene.events.kinds() == ["removed"]


def test_while_a_process_of_another_pod_maps_the_region_it_stays(scene, actor):
    """As a monitor does, without libvgpu."""
    directory = scene.leave()
    cleaner = scene.cleaner()
    mapper = actor(directory / "usage.cache")
    with cgroup_of_pod(scene.alive, "ef" * 32, mapper.pid_here):
        some_passes(cleaner)
        assert directory.is_dir()
        mapper.kill()
        until(cleaner, gone(directory))


@pytest.fixture
def between(scene, monkeypatch) -> Callable[[Callable[[], object]], None]:
    """Have something happen once, when a directory has just been renamed."""

    def arrange(happens: Callable[[], object]) -> None:
        refresh, pending = ProcessTable.refresh, [happens]

        def late(table: ProcessTable, wanted: Collection[int] = ()) -> None:
            if scene.quarantined() and pending:
                pending.pop()()
            refresh(table, wanted)

        monkeypatch.setattr(ProcessTable, "refresh", late)

    return arrange


def test_a_pod_that_comes_back_at_the_last_moment_gets_its_directory_back(scene, between):
    directory = scene.leave()
    before = (directory / "usage.cache").read_bytes()
    between(lambda: scene.add_pod(directory.name.partition("_")[0]))
    until(scene.cleaner(), scene.saw("failed"))
    assert scene.quarantined() == []
    assert (directory / "usage.cache").read_bytes() == before
    assert f"{directory} was not removed: its pod is there again" in scene.events[0].message


def test_a_new_directory_of_a_pod_that_comes_back_is_kept(scene, between):
    """The container has it mounted: a rename over it would take it away."""
    directory = scene.leave()

    def come_back() -> None:
        scene.add_pod(directory.name.partition("_")[0])
        directory.mkdir()

    between(come_back)
    until(scene.cleaner(), scene.saw("failed"))
    assert len(scene.quarantined()) == 1
    assert names(directory) == []


def test_a_region_that_is_mapped_at_the_last_moment_is_in_use(scene, between, actor):
    directory = scene.leave()
    between(lambda: actor(scene.quarantined()[0] / "usage.cache"))
    until(scene.cleaner(), scene.saw("failed"))
    assert scene.quarantined() == []
    assert names(directory) == ["usage.cache"]


# ---- the removal ---------------------------------------------------------------------------------


@pytest.fixture
def treasure(tmp_path) -> Path:
    """A directory outside, which nobody may touch."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("precious")
    return outside


def test_files_of_every_kind_are_removed_and_no_link_is_followed(scene, treasure):
    directory = scene.leave()
    (directory / "to-file").symlink_to(treasure / "file")
    (directory / "to-directory").symlink_to(treasure)
    os.link(treasure / "file", directory / "hard-link")
    os.mkfifo(directory / "fifo")
    os.mknod(directory / "socket", 0o666 | stat.S_IFSOCK)
    (directory / "two\nlines \udcff\x1b[2J").touch()
    (directory / "empty").mkdir()
    until(scene.cleaner(), lambda: gone(directory)() and not scene.quarantined())
    assert (treasure / "file").read_text() == "precious"
    assert scene.events.kinds() == ["removed"]


def test_what_stays_is_reported_and_holds_up_nothing_else(scene):
    filled, other = scene.leave(), scene.leave()
    (filled / "sub\x1b" / "deeper").mkdir(parents=True)
    cleaner = scene.cleaner()
    until(cleaner, gone(filled, other))
    until(cleaner, scene.saw("left"))
    (begun,) = scene.quarantined()
    assert names(begun) == ["sub\x1b"]
    (left, *_) = scene.events.of("left")
    assert left.message.endswith(f"1 entries of {begun} stay: sub\\x1b")
    (begun / "sub\x1b" / "deeper").rmdir()
    # A killed agent leaves such a directory as well: another one goes on with it.
    until(scene.cleaner(), lambda: not scene.quarantined())
    assert scene.events[-1].message.endswith(f"{begun.name}: its pod is gone; removed")


def test_a_huge_directory_takes_several_passes(scene):
    huge, small = scene.leave(region=False), scene.leave(region=False)
    for number in range(1_500):
        (huge / str(number)).touch()
    cleaner = scene.cleaner()
    until(cleaner, gone(huge, small))
    assert scene.quarantined()
    before = descriptors()
    until(cleaner, lambda: not scene.quarantined())
    assert cleaner.counters()["removal_entries"] == 1_500 + 2
    assert descriptors() <= before


MOUNTED = """
import subprocess, sys, time
from pathlib import Path
from libhamiregion.agent import StaleDirectoryCleaner
from libhamiregion.node import Node, Observer

what, outside, directory = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
target = {"itself": directory, "directory": directory / "mounted", "file": directory / "file"}[what]
if what == "file":
    target.touch()
    outside = outside / "file"
else:
    target.mkdir(exist_ok=True)
subprocess.run(["mount", "--bind", outside, target], check=True)
events = []
with Node(directory.parent) as node:
    logs, pods = sys.argv[4:6]
    cleaner = StaleDirectoryCleaner(
        node, pod_logs=logs, kubelet_pods=pods, gone_after_s=0.05, emit=events.append
    )
    for _ in range(4):
        cleaner.run(Observer(node).observe(slots=False, processes_max_age_s=0.0))
        time.sleep(0.06)
print(*(each.message for each in events), sep="\\n")
"""


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("what", ["itself", "directory", "file"])
def test_what_is_mounted_survives(scene, treasure, what):
    if subprocess.run(["unshare", "--mount", "true"], check=False).returncode != 0:
        pytest.skip("needs the right to make mount namespaces")
    directory = scene.leave(region=False)
    words = [sys.executable, "-c", MOUNTED, what, treasure, directory, scene.pod_logs, scene.pods]
    done = finished(["unshare", "--mount", "--propagation", "private", *map(str, words)])
    assert done.returncode == 0, done.stderr
    assert (treasure / "file").read_text() == "precious"
    assert ("Device or resource busy" if what == "itself" else " stay: ") in done.stdout


def test_two_agents_and_a_monitor_do_each_other_no_harm(scene):
    directories = [scene.leave(region=False) for _ in range(16)]
    for directory in directories:
        for number in range(20):
            (directory / str(number)).touch()
    cleaners = [scene.cleaner() for _ in range(2)]
    runners = [
        TaskRunner(Observer(each._node), [each], emit=scene.events.append) for each in cleaners
    ]
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
    assert set(scene.events.kinds()) <= {"removed"}
    assert all(each.counters()["removal_errors"] == 0 for each in cleaners)
    assert (scene.root / f"{scene.alive}_train" / "usage.cache").exists()


def test_a_dry_run_says_once_what_it_would_remove(scene):
    directory = scene.leave()
    before = directory.stat().st_ctime_ns
    cleaner = scene.cleaner(dry_run=True)
    until(cleaner, scene.saw("would_remove"))
    some_passes(cleaner)
    assert scene.events.kinds("train") == ["would_remove"]
    assert directory.stat().st_ctime_ns == before
    assert cleaner.counters()["removal_directories"] == 0

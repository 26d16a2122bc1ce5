"""The repair loop beside real processes of real pid namespaces."""

import time

import pytest
from support.agent_tasks import one_pass
from support.containers import Container, Starter, needs_namespaces
from support.lock_bytes import hold, is_free
from support.node_scene import NodeScene
from support.region_file import RegionFile
from support.wait import PATIENCE_S, eventually

from libhamiregion import Layout, open_region
from libhamiregion.agent import RepairLoop
from libhamiregion.doctor import FindingKind, diagnose
from libhamiregion.node import Node, Observer
from libhamiregion.observation.processes import ProcessView
from libhamiregion.units import MIB

pytestmark = needs_namespaces

SETTLE_S = 0.05


@pytest.fixture(autouse=True)
def quick(monkeypatch) -> None:
    """What may pass by itself is looked at again soon, and locks are not waited for long."""
    monkeypatch.setattr(RepairLoop, "settle_s", SETTLE_S)


@pytest.fixture
def loop(node, events) -> RepairLoop:
    return RepairLoop(Observer(node), emit=events.append)


def host_pids(file: RegionFile) -> dict[int, int | None]:
    with open_region(file) as region:
        return {process.pid: process.host_pid for process in region.snapshot().processes}


def used(file: RegionFile) -> int:
    with open_region(file) as region:
        return region.memory_used(0)


def child(process: Container, file: RegionFile) -> tuple[int, int]:
    pid, host_pid = process.child("spawn")
    process.tell(f"@{pid}", "attach", file.path)
    process.tell(f"@{pid}", "charge", MIB)
    return pid, host_pid


def container_with_child(scene: NodeScene, start: Starter) -> tuple[RegionFile, Container, int]:
    """A container's region, its first process, and the pid of that one's child; both attached."""
    file = scene.container("a")
    process = start()
    process.tell("attach", file.path)
    pid, _ = child(process, file)
    return file, process, pid


@pytest.mark.parametrize("layout", [Layout.V1_2, Layout.V1_1])
def test_host_pids_dead_processes_and_a_dead_lock_are_put_right(scene, start, loop, events, layout):
    file = scene.container("a", layout=layout)
    process = start()
    process.tell("attach", file.path)
    living, living_host = child(process, file)
    dead, _ = child(process, file)
    process.tell("kill", dead)
    assert host_pids(file)[living] is None
    assert used(file) == 2 * MIB
    hold(file, dead)

    one_pass(loop)
    assert is_free(file)
    assert {pid: host for pid, host in host_pids(file).items() if host} == {
        1: process.host_pid,
        living: living_host,
    }
    assert used(file) == MIB
    counters = loop.counters()
    assert counters["repair_lock_stuck"] == 1
    assert counters["repair_host_pid_wrong"] == 1, "one finding for both"
    assert counters["repair_dead_process_counted"] == 1
    assert counters["repair_errors"] == 0
    assert set(events.kinds()) == {"repaired"}
    assert len(events) == 3

    one_pass(loop)
    assert len(events) == 3, "there is nothing left to do"


def test_what_is_never_repaired_has_nobody_wait_for_it(scene, start, loop):
    """Usage above the limit, for example, which may pass."""
    file = scene.container("a", memory_limits=["1GiB"])
    process = start()
    process.tell("attach", file.path)
    one_pass(loop)
    file.put("slot_used.total", 2 << 30)
    kinds = [each.kind for each in diagnose(Observer.for_command(loop._node).observe())]
    assert FindingKind.USAGE_ABOVE_LIMIT in kinds
    loop.settle_s = 100.0
    began_s = time.monotonic()
    one_pass(loop)
    assert time.monotonic() - began_s < loop.settle_s


def test_what_a_live_process_holds_is_left_alone_and_the_others_get_their_turn(
    scene, node, start, events
):
    """Its own failure is tried again after more and more passes, and reported seldom."""
    stuck, fine = scene.container("stuck"), scene.container("fine")
    processes = [start(), start()]
    for process, file in zip(processes, (stuck, fine), strict=True):
        process.tell("attach", file.path)
    loop = RepairLoop(Observer(node), emit=events.append)
    loop.timeout_s = 0.01
    with open_region(stuck, writable=True) as region, region.lock():
        for number in range(6):
            one_pass(loop)
            # Whatever it calls its region.
            stuck.path = stuck.path.rename(stuck.path.with_name(f"{number}.cache"))
        assert host_pids(stuck) == {1: None}
        assert host_pids(fine) == {1: processes[1].host_pid}
        # Tried in passes 1, 3 and 6.
        assert loop.counters()["repair_errors"] == 3
        assert events.kinds("stuck") == ["failed"] * 2
        assert events.kinds("fine") == ["repaired"]
    for _ in range(9):
        one_pass(loop)
    assert host_pids(stuck) == {1: processes[0].host_pid}


def test_who_spoils_its_lock_again_and_again_is_mended_more_and_more_seldom(scene, loop):
    files = [scene.container(f"c-{number}") for number in range(3)]
    # In how many passes once, each time; more where other processes leave no proof in some.
    passes: list[int] = []
    deadline = time.monotonic() + PATIENCE_S
    for least in (1, 2, 3, 5):
        passes.append(0)
        while passes[-1] == 0 or not is_free(files[0]):
            assert time.monotonic() < deadline
            hold(files[0], 0)
            one_pass(loop)
            passes[-1] += 1
        assert passes[-1] >= least, passes
    # The others do not wait for it.
    hold(files[1], 0)
    hold(files[2], 0)
    eventually(lambda: (one_pass(loop), is_free(files[1]) and is_free(files[2]))[1])


def test_a_dry_run_says_what_it_would_do_and_does_nothing(scene, node, start, events):
    file, process, dead = container_with_child(scene, start)
    process.tell("kill", dead)
    before = file.content()
    loop = RepairLoop(Observer(node), dry_run=True, emit=events.append)
    kinds = {"dead_process_counted", "host_pid_wrong"}

    def are_found() -> bool:
        """One pass on a busy machine may have no time to prove the process dead."""
        one_pass(loop)
        return {each.detail["kind"] for each in events} == kinds

    eventually(are_found)
    assert file.content() == before
    assert set(events.kinds()) == {"would_repair"}
    assert loop.counters()["repair_host_pid_wrong"] == 0


def test_where_not_everybody_can_be_seen_that_is_said_once(scene, events, monkeypatch):
    scene.container("one")
    with Node(scene.root) as node:
        loop = RepairLoop(Observer(node), emit=events.append)
        one_pass(loop)
        assert events == []
        with monkeypatch.context() as patch:
            patch.setattr(ProcessView, "is_complete", False)
            for _ in range(2):
                one_pass(loop)
        one_pass(loop)
    assert [each.event for each in events] == ["hidden", "visible"]

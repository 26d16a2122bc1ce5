"""The repair loop beside real processes of real pid namespaces."""

import json
import random
import shutil
import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest
from support.agent_tasks import Events, one_pass
from support.containers import Container, Starter, needs_namespaces
from support.lock_bytes import hold, is_free
from support.node_scene import NodeScene
from support.region_file import RegionFile
from support.slot_bytes import LOCKABLE
from support.stress import scaled
from support.wait import PATIENCE_S, eventually

from libhamiregion import Layout, open_region
from libhamiregion.agent import Feedback, RepairLoop, TaskRunner
from libhamiregion.cli.service import ServiceLog
from libhamiregion.doctor import FindingKind, diagnose
from libhamiregion.node import Node, Observer
from libhamiregion.observation.processes import ProcessView

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = needs_namespaces

MIB = 1 << 20
SETTLE_S = 0.05


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What may pass by itself is looked at again soon, and locks are not waited for long."""
    monkeypatch.setattr(RepairLoop, "settle_s", SETTLE_S)


@pytest.fixture
def loop(node: Node, events: Events) -> RepairLoop:
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
def test_host_pids_dead_processes_and_a_dead_lock_are_put_right(
    scene: NodeScene, start: Starter, loop: RepairLoop, events: Events, layout: Layout
) -> None:
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


@pytest.mark.slow
def test_what_a_killed_process_leaves_is_repaired_within_30_s(
    scene: NodeScene, start: Starter, loop: RepairLoop
) -> None:
    """Its lock and its memory, in the agent's own time."""
    file = scene.container("a")
    process = start()
    process.tell("attach", file.path)
    runner = TaskRunner(loop._observer, [loop])
    runner.start()
    try:
        eventually(lambda: loop.counters()["repair_runs"] > 0)
        for _ in range(2):
            dead, _ = child(process, file)
            eventually(lambda: dead in host_pids(file))  # noqa: B023
            process.tell("kill", dead)
            hold(file, dead)
            eventually(lambda: not used(file) and is_free(file), within_s=32.0)
    finally:
        assert runner.stop() == ()


def test_what_is_never_repaired_has_nobody_wait_for_it(
    scene: NodeScene, start: Starter, loop: RepairLoop
) -> None:
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
    scene: NodeScene, node: Node, start: Starter, events: Events
) -> None:
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


def test_who_spoils_its_lock_again_and_again_is_mended_more_and_more_seldom(
    scene: NodeScene, loop: RepairLoop
) -> None:
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


def test_a_container_that_refills_its_table_makes_few_and_short_lines(
    scene: NodeScene, node: Node, start: Starter, capsys: pytest.CaptureFixture[str]
) -> None:
    file = scene.container("evil")
    start().tell("attach", file.path)
    loop = RepairLoop(Observer(node), emit=ServiceLog(as_json=True))
    for number in range(8):
        if number % 2 == 0:
            file.put("proc_num", 1)
        # Else behind those that have been emptied, which a bounded view shows first.
        for pid in range(400):
            file.add_process(100_000 + number * 1000 + pid, {0: MIB})
        # One pass on a busy machine may have no time to prove all of them dead, and says so.
        while loop.counters()["repair_dead_process_counted"] <= number:
            one_pass(loop)
    lines = capsys.readouterr().err.splitlines()
    assert loop.counters()["repair_dead_process_counted"] == 8
    # The 1st, 2nd, 4th and 8th time, and the host pid.
    assert [json.loads(line)["event"] for line in lines].count("repaired") == 5
    assert len(lines) < 20
    assert max(map(len, lines)) < 500


def test_a_dry_run_says_what_it_would_do_and_does_nothing(
    scene: NodeScene, node: Node, start: Starter, events: Events
) -> None:
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


def test_where_not_everybody_can_be_seen_that_is_said_once(
    scene: NodeScene, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
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


@pytest.mark.slow
def test_it_mends_while_containers_come_and_go(
    scene: NodeScene, node: Node, start: Starter, events: Events
) -> None:
    """Beside a feedback on the same node, while others are killed and their files break."""
    steady = scene.container("steady")
    process = start()
    process.tell("attach", steady.path)
    observer = Observer(node)
    tasks = [RepairLoop(observer, emit=events.append), Feedback(node, emit=events.append)]
    for task in tasks:
        task.interval_s = 0.02
    runner = TaskRunner(observer, tasks, emit=events.append)
    failure: list[BaseException] = []

    def come_and_go() -> None:
        dice = random.Random(7)
        harms: list[Callable[[RegionFile], object]] = [
            lambda _: None,
            lambda file: file.path.unlink(),
            lambda file: file.resize(100),
        ]
        deadline, rounds = time.monotonic() + scaled(60.0), 0
        try:
            while time.monotonic() < deadline or rounds < 2:
                rounds += 1
                file = scene.container(f"c{rounds}", layout=dice.choice(LOCKABLE))
                other = start()
                other.tell("attach", file.path)
                pids = [child(other, file)[0] for _ in range(3)]
                for pid in pids[: dice.randrange(3)]:
                    other.tell("kill", pid)
                dice.choice(harms)(file)
                if dice.random() < 0.5:
                    other.process.send_signal(signal.SIGKILL)
                other.end()
                if dice.random() < 0.5:
                    shutil.rmtree(file.path.parent)
        except BaseException as error:  # noqa: BLE001
            failure.append(error)

    others = threading.Thread(target=come_and_go, daemon=True)
    runner.start()
    others.start()
    try:
        mended = 0
        while others.is_alive() or mended < 3:
            pid, host_pid = child(process, steady)
            eventually(lambda: host_pids(steady).get(pid) == host_pid)  # noqa: B023
            process.tell("kill", pid)
            eventually(lambda: used(steady) == 0)
            hold(steady, pid)
            eventually(lambda: is_free(steady))
            mended += 1
        eventually(lambda: runner.counters()["feedback_runs"] > 10)
    finally:
        others.join()
        assert runner.stop() == ()
    assert not failure
    counters = runner.counters()
    # None of these processes is taken for another writer.
    assert counters["feedback_pauses"] == counters["feedback_failures"] == 0
    assert counters["repair_failures"] == 0
    assert not [each for each in events if each.event == "failed" and each.container is None]

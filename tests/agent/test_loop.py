"""Tasks in their threads, what they report, and what they leave alone after a failure."""

from __future__ import annotations

import threading
import uuid
from typing import TYPE_CHECKING

import pytest
from support.wait import PATIENCE_S, eventually

from libhamiregion.agent import RootWatch, Task, TaskRunner, loop
from libhamiregion.node import ClaimName, Container, Node, NodeNames, Observation, Observer
from libhamiregion.node.backoff import Backoff, owner_of
from libhamiregion.node.cgroups import ContainerId
from libhamiregion.node.events import Event, EventReporter, container_label

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class Counting(Task):
    """A task that does what a test tells it."""

    counted = ("passes",)

    def __init__(self, name: str) -> None:
        self.name = name  # type: ignore[misc]
        super().__init__()
        self.interval_s = 0.001
        self.passes = self.started = self.stopped = 0
        self.refusal: Exception | None = None
        self.error: Exception | None = None
        self.gate: threading.Event | None = None
        self.left: tuple[str, ...] = ()

    def start(self, observe: Callable[[], Observation]) -> None:
        assert observe().containers == ()
        self.started += 1
        if self.refusal is not None:
            raise self.refusal

    def run(self, observation: Observation) -> None:
        assert observation.containers == ()
        self.passes += 1
        self.count("passes")
        if self.gate is not None:
            self.gate.wait(PATIENCE_S)
        if self.error is not None:
            raise self.error

    def stop(self) -> None:
        self.stopped += 1
        if self.error is not None:
            raise self.error

    def pending_cleanup(self) -> tuple[str, ...]:
        return self.left


@pytest.fixture
def observer(tmp_path: Path) -> Iterator[Observer]:
    """Observes a node without containers."""
    with Node(tmp_path) as node:
        yield Observer(node)


def once(runner: TaskRunner) -> tuple[str, ...]:
    """One pass of each task."""
    done = threading.Event()
    runner.start(once=True, finished=done.set)
    assert done.wait(PATIENCE_S)
    return runner.stop()


def test_all_tasks_may_run_before_the_start_is_reported(observer: Observer) -> None:
    tasks = [Counting("a"), Counting("b")]
    runner = TaskRunner(observer, tasks)
    seen: list[tuple[int, int]] = []
    done = threading.Event()
    runner.start(
        once=True,
        prepared=lambda: seen.extend((each.started, each.passes) for each in tasks),
        finished=done.set,
    )
    assert done.wait(PATIENCE_S)
    runner.stop()
    assert seen == [(1, 0)] * 2
    assert [(each.started, each.passes, each.stopped) for each in tasks] == [(1, 1, 1)] * 2


def test_a_task_that_fails_goes_on_and_stops_no_other(observer: Observer) -> None:
    events: list[Event] = []
    bad, good = Counting("bad"), Counting("good")
    bad.error = OSError(5, "no \x1b[31mluck\n", "/some/path")
    runner = TaskRunner(observer, [bad, good], emit=events.append)
    runner.start()
    eventually(lambda: bad.passes > 20 and good.passes > 20)
    assert runner.stop() == ("bad: it could not be stopped in order",)
    failed = [each for each in events if each.event == "failed"]
    assert {each.task for each in events} == {"bad"}
    assert failed[0].message == r"a pass failed: /some/path: no \x1b[31mluck\n"
    assert failed[0].detail["error"] == "OSError"
    # Of what repeats the 1st, 2nd, 4th, 8th ... is reported.
    assert len(failed) <= 2 + bad.passes.bit_length()
    counters = runner.counters()
    assert counters["bad_passes"] == bad.passes
    assert counters["bad_failures"] == bad.passes + 1
    assert counters["good_failures"] == 0
    assert (bad.stopped, good.stopped) == (1, 1)


def test_a_task_that_is_woken_does_not_wait_for_its_time(observer: Observer) -> None:
    task = Counting("one")
    task.interval_s = 3600.0
    runner = TaskRunner(observer, [task])
    runner.start()
    for passes in (1, 2, 3):
        eventually(lambda: task.passes >= passes)  # noqa: B023
        task.wake()
    assert runner.stop() == ()


def test_a_slow_task_delays_no_other_and_catches_up_on_nothing(observer: Observer) -> None:
    slow, quick = Counting("slow"), Counting("quick")
    slow.gate = threading.Event()
    runner = TaskRunner(observer, [slow, quick])
    runner.start()
    eventually(lambda: quick.passes > 50)
    assert slow.passes == 1
    slow.gate.set()
    assert runner.stop() == ()
    assert slow.stopped == quick.stopped == 1


def test_a_pass_that_hangs_is_reported_and_everything_is_given_back_all_the_same(
    observer: Observer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop, "_LAST_PASS_S", 0.05)
    monkeypatch.setattr(loop, "STUCK_AFTER_S", 0.05)
    events: list[Event] = []
    stuck, good = Counting("stuck"), Counting("good")
    stuck.gate = threading.Event()
    stuck.left = tuple(f"launches of {number} are blocked" for number in range(7))
    runner = TaskRunner(observer, [stuck, good], emit=events.append)
    runner.start()
    eventually(lambda: "stuck" in runner.stuck())
    # On a busy machine the good one, too, may be in a pass for longer than that.
    eventually(lambda: ("stuck", "stuck") in {(each.task, each.event) for each in events})
    (left,) = (each for each in runner.stop() if not each.startswith("good: "))
    assert left.startswith("stuck: its last pass does not end; launches of 0 are blocked; ")
    assert left.endswith("launches of 6 are blocked")
    of_stuck = [each.event for each in events if each.task == "stuck"]
    assert of_stuck == ["stuck", "not_given_back"]
    assert stuck.stopped == 1
    eventually(lambda: good.stopped == 1)
    stuck.gate.set()


def test_a_task_whose_end_hangs_does_not_keep_the_others_from_giving_back(
    observer: Observer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop, "_GIVE_BACK_S", 0.05)
    gate = threading.Event()
    stuck, good = Counting("stuck"), Counting("good")
    monkeypatch.setattr(stuck, "stop", lambda: gate.wait(PATIENCE_S))
    assert "stuck: it could not be stopped in order" in once(TaskRunner(observer, [stuck, good]))
    eventually(lambda: good.stopped == 1)
    gate.set()


def test_a_task_that_refuses_to_start_keeps_all_from_starting(observer: Observer) -> None:
    first, second, third = Counting("first"), Counting("second"), Counting("third")
    second.refusal = RuntimeError("somebody else does it")
    runner = TaskRunner(observer, [first, second, third])
    with pytest.raises(RuntimeError, match="somebody else does it"):
        runner.start()
    assert [each.passes for each in (first, second, third)] == [0, 0, 0]
    assert [each.stopped for each in (first, second, third)] == [1, 1, 0]


def test_once_is_one_pass_of_each(observer: Observer) -> None:
    bad, good = Counting("bad"), Counting("good")
    bad.error = ValueError("no")
    runner = TaskRunner(observer, [bad, good])
    once(runner)
    assert (bad.passes, good.passes) == (1, 1)
    assert (bad.stopped, good.stopped) == (1, 1)
    assert runner.failures == 2, "the pass and the end"


def test_what_fails_is_left_alone_for_more_and_more_passes() -> None:
    backoff = Backoff()
    tried = []
    for number in range(300):
        if not backoff.should_skip("a"):
            tried.append(number)
            backoff.failed("a")
    assert tried == [0, 2, 5, 10, 19, 36, 69, 134, 199, 264]
    backoff.recovered("a")
    assert not backoff.should_skip("a")
    backoff.failed("a")
    assert [backoff.should_skip("a") for _ in range(2)] == [True, False]
    backoff.failed("b")
    backoff.retain({"b"})
    assert not backoff.should_skip("a")
    assert backoff.should_skip("b")


def test_whose_failures_count_together_is_nothing_that_a_container_can_change() -> None:
    named = Container("uid", "name", "/roots/uid_name", "/roots/uid_name/1.cache")
    renamed = Container("uid", "name", "/roots/uid_name", "/roots/uid_name/2.cache")
    assert owner_of(named) == owner_of(renamed) == "/roots/uid_name"
    docker = ContainerId("c" * 64)
    outside = [
        Container(None, None, None, f"/proc/7/root/{name}", container_id=docker) for name in "ab"
    ]
    assert {owner_of(each) for each in outside} == {"c" * 64}
    loose = [Container(None, None, None, f"/proc/{pid}/root/a", pids=(pid,)) for pid in (7, 8)]
    assert {owner_of(each) for each in loose} == {owner_of(None)}


# ---- what is reported ----------------------------------------------------------------------------


def test_a_container_cannot_fill_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by how long nor by how often, whatever it changes meanwhile."""
    said: list[Event] = []
    reporter = EventReporter("repair", said.append)
    for number in range(1000):
        path = f"/roots/uid_name/{number}.cache"
        container = Container("uid", "name" * 100, "/roots/uid_name", path)
        reporter.emit("repaired", f"{number} " * 20_000, container, kind="\x1b" * 5_000)
        reporter.failed("it was not", OSError(5, f"reason {number}", path), container)
        reporter.recovered(container)
    for event in ("repaired", "failed", "recovered"):
        of = [each for each in said if each.event == event]
        assert len(of) == 10, event
        assert of[-1].message.endswith("(512 times now)")
    assert max(len(each.message) for each in said) <= 400
    assert max(len(str(each.detail)) for each in said) < 150
    # What differs by a key of the task's own is not the same.
    reporter.emit("repaired", "other", container, distinct="kind")
    assert said[-1].message.endswith(": other")
    clock = reporter._counts[next(reversed(reporter._counts))][1]
    monkeypatch.setattr("time.monotonic", lambda: clock + 3601)
    reporter.emit("repaired", "anew", container)
    assert said[-1].message.endswith(": anew"), "after an hour it is news again"


def test_a_recovery_is_reported_if_a_failure_was_and_the_container_is_still_there() -> None:
    said: list[Event] = []
    reporter = EventReporter("task", said.append)
    one, other = (Container("uid", name, f"/roots/uid_{name}") for name in ("one", "other"))
    reporter.failed("it failed", "gone", one)
    reporter.failed("it failed", "gone", other)
    reporter.retain([one])
    for _ in range(2):
        reporter.recovered(one)
        reporter.recovered(other)
    assert [(each.event, each.container) for each in said] == [
        ("failed", "uid/one"),
        ("failed", "uid/other"),
        ("recovered", "uid/one"),
    ]


def test_a_container_is_named_without_anything_that_steers_a_terminal() -> None:
    hostile = Container("uid", "na\x1bme\n", "/roots/uid_name")
    assert container_label(hostile) == r"uid/na\x1bme\n"
    outside = Container(None, None, None, "/proc/7/root/tmp/\x07.cache")
    assert container_label(outside) == r"/proc/7/root/tmp/\x07.cache"
    assert container_label(Container(None, None, None)) == "a region outside the roots"


def test_an_event_names_a_pod_where_its_name_is_known_and_else_has_its_uid(
    tmp_path: Path,
) -> None:
    known, unknown = (str(uuid.uuid4()) for _ in range(2))
    (tmp_path / f"research_bert-0_{known}" / "train").mkdir(parents=True)
    names = NodeNames(tmp_path)

    class Claims(NodeNames):
        """Knows one claim, and two pods that hold it."""

        def resolve_claim(self, claim_uid: str) -> ClaimName | None:
            found = ClaimName("research", "shared", ("bert-0", "bert-1"))
            return found if claim_uid == known else None

    said: list[Event] = []
    reporter = EventReporter("task", said.append)
    for container in (
        Container(known, "train", f"/roots/{known}_train", names=names),
        Container(unknown, "train", f"/roots/{unknown}_train", names=names),
        Container(known, region_path="/proc/7/map_files/1", path_in_namespace="/a", names=names),
        Container(claim_uid=known, directory="/claims/a", names=Claims()),
        Container(claim_uid=unknown, directory="/claims/b", names=Claims()),
    ):
        reporter.emit("repaired", "so", container, figure=1)
    assert [(each.message, each.container, each.detail.get("pod")) for each in said] == [
        ("research/bert-0/train: so", f"{known}/train", "research/bert-0"),
        (f"{unknown}/train: so", f"{unknown}/train", None),
        ("research/bert-0 /a: so", "/a", "research/bert-0"),
        ("claim/research/shared: so", f"claim/{known}", None),
        (f"claim/{unknown}: so", f"claim/{unknown}", None),
    ]
    assert all(each.detail["figure"] == 1 for each in said)
    # Others are joined by it: a long one is whole.
    pod, uid = "a" * 180, str(uuid.uuid4())
    (tmp_path / f"research_{pod}_{uid}" / "train").mkdir(parents=True)
    container = Container(uid, "train", f"/roots/{uid}_train", names=NodeNames(tmp_path))
    reporter.emit("repaired", "so", container)
    assert said[-1].detail["pod"] == f"research/{pod}"


def test_a_directory_that_cannot_be_listed_is_reported_once_and_so_is_its_return(
    tmp_path: Path,
) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    said: list[Event] = []
    with Node([str(one), str(other)]) as node:
        observer = Observer(node)
        watch = RootWatch(node, emit=said.append)
        watch.run(observer.observe())
        watch.run(observer.observe())
        assert [each.message for each in said] == [
            f"{other}: No such file or directory; its containers are not seen"
        ]
        other.mkdir()
        watch.run(observer.observe())
        one.rmdir()
        watch.run(observer.observe())
    assert [(each.task, each.event) for each in said] == [
        ("roots", "unreadable"),
        ("roots", "readable"),
        ("roots", "unreadable"),
    ]

"""Tasks in their threads, and what they report."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from support.wait import PATIENCE_S, eventually

from libhamiregion.agent import RootWatch, Task, TaskRunner, loop
from libhamiregion.node import Node, Observation, Observer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from libhamiregion.services.events import Event


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
        self.has_slots: list[bool] = []

    def start(self, observe: Callable[[], Observation]) -> None:
        assert observe().containers == ()
        self.started += 1
        if self.refusal is not None:
            raise self.refusal

    def run(self, observation: Observation) -> None:
        assert observation.containers == ()
        self.passes += 1
        self.has_slots.append(observation.states is not None)
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
def observer(tmp_path) -> Iterator[Observer]:
    """Observes a node without containers."""
    with Node(tmp_path) as node:
        yield Observer(node)


def once(runner: TaskRunner, **options: Any) -> tuple[str, ...]:
    """One pass of each task."""
    done = threading.Event()
    runner.start(once=True, finished=done.set, **options)
    assert done.wait(PATIENCE_S)
    return runner.stop()


def test_all_tasks_may_run_before_the_start_is_reported_and_once_is_one_pass_of_each(observer):
    tasks = [Counting("a"), Counting("b")]
    tasks[0].error = ValueError("no")
    events: list[Event] = []
    runner = TaskRunner(observer, tasks, emit=events.append)
    seen: list[tuple[int, int]] = []
    once(runner, prepared=lambda: seen.extend((each.started, each.passes) for each in tasks))
    assert seen == [(1, 0)] * 2
    assert [(each.started, each.passes, each.stopped) for each in tasks] == [(1, 1, 1)] * 2
    assert runner.failures == 2, "the pass and the end"
    said = ["a pass failed: no", "the task could not be stopped in order: no"]
    assert [each.message for each in events[:2]] == said


def test_a_task_that_fails_goes_on_and_stops_no_other(observer):
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


def test_slots_are_judged_only_when_a_task_that_needs_them_is_due(observer):
    often, seldom = Counting("often"), Counting("seldom")
    seldom.needs, seldom.interval_s = "slots", 3600.0  # type: ignore[misc]
    runner = TaskRunner(observer, [often, seldom])
    runner.start()
    eventually(lambda: often.has_slots[-1:] == [False])
    runner.stop()
    assert seldom.has_slots == [True]


def test_a_task_that_is_woken_does_not_wait_for_its_time(observer):
    task = Counting("one")
    task.interval_s = 3600.0
    runner = TaskRunner(observer, [task])
    runner.start()
    for passes in (1, 2, 3):
        eventually(lambda: task.passes >= passes)  # noqa: B023
        task.wake()
    assert runner.stop() == ()


def test_a_slow_task_delays_no_other_and_catches_up_on_nothing(observer):
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
    observer, monkeypatch
):
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


def test_a_task_whose_end_hangs_does_not_keep_the_others_from_giving_back(observer, monkeypatch):
    monkeypatch.setattr(loop, "_STOP_S", 0.05)
    gate = threading.Event()
    stuck, good = Counting("stuck"), Counting("good")
    monkeypatch.setattr(stuck, "stop", lambda: gate.wait(PATIENCE_S))
    assert "stuck: it could not be stopped in order" in once(TaskRunner(observer, [stuck, good]))
    eventually(lambda: good.stopped == 1)
    gate.set()


def test_a_task_that_refuses_to_start_keeps_all_from_starting(observer):
    first, second, third = Counting("first"), Counting("second"), Counting("third")
    second.refusal = RuntimeError("somebody else does it")
    runner = TaskRunner(observer, [first, second, third])
    with pytest.raises(RuntimeError, match="somebody else does it"):
        runner.start()
    assert [each.passes for each in (first, second, third)] == [0, 0, 0]
    assert [each.stopped for each in (first, second, third)] == [1, 1, 0]


def test_a_directory_that_cannot_be_listed_is_reported_once_and_so_is_its_return(tmp_path):
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

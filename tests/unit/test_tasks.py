"""Tasks in their threads: none stops another, and what fails is counted and said."""

import threading
from collections.abc import Mapping

import pytest
from patience import eventually

from libhamiregion.agent import Task, TaskRunner
from libhamiregion.node import Container
from libhamiregion.node.backoff import Backoff, owner_of
from libhamiregion.node.cgroups import ContainerId
from libhamiregion.node.events import Event, Voice, container_label


class Counting:
    """A task that does what a test tells it."""

    def __init__(self, name: str, interval_s: float = 0.001) -> None:
        self.name = name
        self.interval_s = interval_s
        self.passes = 0
        self.stopped = 0
        self.error: Exception | None = None
        self.gate: threading.Event | None = None

    def run(self) -> None:
        self.passes += 1
        if self.gate is not None:
            self.gate.wait(30)
        if self.error is not None:
            raise self.error

    def stop(self) -> None:
        self.stopped += 1
        if self.error is not None:
            raise self.error

    def counters(self) -> Mapping[str, int]:
        return {f"{self.name}_passes": self.passes}


def test_a_task_that_fails_goes_on_and_stops_no_other() -> None:
    events: list[Event] = []
    bad, good = Counting("bad"), Counting("good")
    bad.error = RuntimeError("no \x1b[31mluck\n")
    tasks: list[Task] = [bad, good]
    runner = TaskRunner(tasks, emit=events.append)
    runner.start()
    eventually(lambda: bad.passes > 5 and good.passes > 5)
    bad.error = None
    passes = bad.passes
    eventually(lambda: bad.passes > passes + 1)
    bad.error = RuntimeError("no luck again")
    passes = bad.passes
    eventually(lambda: bad.passes > passes + 3)
    runner.stop()
    # Of each run of failures the first is said; the last is of the stop.
    assert [(each.task, each.event) for each in events] == [("bad", "failed")] * len(events)
    assert 2 <= len(events) <= 3
    assert "\x1b" not in events[0].message
    assert "\n" not in events[0].message
    assert events[0].detail["error"] == "RuntimeError"
    counters = runner.counters()
    assert counters["bad_passes"] == bad.passes
    assert counters["bad_failures"] > 5
    assert counters["good_failures"] == 0
    assert (bad.stopped, good.stopped) == (1, 1)


def test_a_slow_task_delays_no_other_and_catches_up_on_nothing() -> None:
    slow, quick = Counting("slow"), Counting("quick")
    slow.gate = threading.Event()
    runner = TaskRunner([slow, quick])
    runner.start()
    eventually(lambda: quick.passes > 50)
    assert slow.passes == 1
    slow.gate.set()
    runner.stop()
    assert slow.stopped == quick.stopped == 1


def test_a_pass_that_does_not_end_does_not_keep_the_others_from_stopping(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("libhamiregion.agent.tasks._PATIENCE_S", 0.05)
    events: list[Event] = []
    stuck, good = Counting("stuck"), Counting("good")
    stuck.gate = threading.Event()
    runner = TaskRunner([stuck, good], emit=events.append)
    runner.start()
    eventually(lambda: stuck.passes == 1)
    runner.stop()
    assert [each.event for each in events] == ["stuck"]
    assert (stuck.stopped, good.stopped) == (0, 1)
    stuck.gate.set()


def test_once_is_one_pass_of_each_here_and_now() -> None:
    bad, good = Counting("bad"), Counting("good")
    bad.error = ValueError("no")
    runner = TaskRunner([bad, good])
    before = threading.active_count()
    assert runner.run_once() == 1
    assert threading.active_count() == before
    assert (bad.passes, good.passes) == (1, 1)
    assert (bad.stopped, good.stopped) == (1, 1)


def test_what_fails_is_left_alone_for_more_and_more_passes() -> None:
    backoff = Backoff()
    tried = []
    for number in range(300):
        if not backoff.waits("a"):
            tried.append(number)
            backoff.failed("a")
    assert tried == [0, 2, 5, 10, 19, 36, 69, 134, 199, 264]
    backoff.well("a")
    assert not backoff.waits("a")
    backoff.failed("a")
    assert [backoff.waits("a") for _ in range(2)] == [True, False]


def test_whose_failures_count_together_is_nothing_that_a_container_can_change() -> None:
    named = Container("uid", "name", "/roots/uid_name", "/roots/uid_name/1.cache")
    renamed = Container("uid", "name", "/roots/uid_name", "/roots/uid_name/2.cache")
    assert owner_of(named) == owner_of(renamed) == "/roots/uid_name"
    docker = ContainerId("c" * 64, "docker", None, None)
    outside = [
        Container(None, None, None, f"/proc/7/root/{name}", container_id=docker) for name in "ab"
    ]
    assert {owner_of(each) for each in outside} == {"c" * 64}
    loose = [Container(None, None, None, f"/proc/{pid}/root/a", pids=(pid,)) for pid in (7, 8)]
    assert {owner_of(each) for each in loose} == {owner_of(None)}


def test_a_container_that_is_gone_is_forgotten() -> None:
    backoff = Backoff()
    backoff.failed("a")
    backoff.failed("b")
    backoff.keep(frozenset({"b"}))
    assert not backoff.waits("a")
    assert backoff.waits("b")
    said: list[Event] = []
    voice = Voice("task", said.append)
    gone = Container("uid", "name", "/roots/uid_name", "/roots/uid_name/x.cache")
    for _ in range(2):
        voice.failed("it failed", OSError("gone"), gone)
    voice.keep(frozenset())
    voice.failed("it failed", OSError("gone"), gone)
    assert len(said) == 2


def test_a_container_is_named_without_anything_that_steers_a_terminal() -> None:
    hostile = Container("uid", "na\x1bme\n", "/roots/uid_name")
    assert container_label(hostile) == r"uid/na\x1bme\n"
    outside = Container(None, None, None, "/proc/7/root/tmp/\x07.cache")
    assert container_label(outside) == r"/proc/7/root/tmp/\x07.cache"
    assert container_label(Container(None, None, None)) == "a region outside the roots"

"""Work that is done again and again: each task in a thread of its own, none stops another."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING, ClassVar, TypeVar

from libhamiregion.node.backoff import Backoff
from libhamiregion.node.events import EventReporter, silent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from libhamiregion.node.events import Emit

T = TypeVar("T")

# A pass in progress has this long to end, and giving back has this long after it. Together they
# take less than the 30 s after which kubelet kills.
_LAST_PASS_S, _GIVE_BACK_S = 15.0, 5.0
# The longest pass that is no sign of trouble: the proof that a lock has no owner takes 10 s.
STUCK_AFTER_S = 60.0
# What wakes a task within this time is one pass.
_TOGETHER_S = 0.05
_LISTED = 5


class Task(ABC):
    """Base of work that is repeated at an interval; it has events, counters and a back-off.

    A task overrides `run`, and the others where it needs to.

    Threads: `counters`, `pending_cleanup` and `wake` may be called from any. `run` is called from
    one, `stop` from another one after the last pass; or while a pass hangs, if it does not end in
    time.

    Args:
        emit: Gets the events.

    Attributes:
        name: One word for events and metrics.
        counted: What is counted; counters are called ``<name>_<what>``.
        interval_s: Seconds from the beginning of one pass to that of the next; may be set before
            the task is started.
        events: Reports events.
        backoff: Leaves alone for a while what has failed.
    """

    name: ClassVar[str] = "task"
    counted: ClassVar[tuple[str, ...]] = ()
    interval_s: float = 10.0

    def __init__(self, emit: Emit = silent) -> None:
        self.events = EventReporter(self.name, emit)
        self.backoff = Backoff()
        self._counts = dict.fromkeys(self.counted, 0)
        self._counting = threading.Lock()
        self._woken = threading.Event()

    def wake(self) -> None:
        """Have the next pass begin at once, or as soon as the one in progress has ended."""
        self._woken.set()

    def start(self) -> None:  # noqa: B027 (optional)
        """Make sure that the task may run; what it raises keeps all from starting."""

    @abstractmethod
    def run(self) -> None:
        """Do one pass."""

    def stop(self) -> None:  # noqa: B027 (optional)
        """Give back what must not outlive the task. The runner calls it once, with a time limit."""

    def pending_cleanup(self) -> tuple[str, ...]:
        """What still has to be given back, a phrase for each container."""
        return ()

    def counters(self) -> Mapping[str, int]:
        """How often what has happened, by name; a name that ends in ``_paused`` is 0 or 1."""
        with self._counting:
            return {f"{self.name}_{what}": number for what, number in self._counts.items()}

    def count(self, what: str, by: int = 1) -> None:
        """Count something of `counted`."""
        with self._counting:
            self._counts[what] += by


class TaskRunner:
    """Runs tasks until it is stopped.

        runner = TaskRunner([Feedback(node)])
        runner.start()
        ...
        runner.stop()

    A pass that raises is counted and reported, and the next one comes at its time. A pass that
    takes longer than its interval delays the next one of that task and no other task's.

    Args:
        tasks: Each is run by one thread only.
        emit: Gets the events about passes that failed.

    Attributes:
        tasks: As given.

    Threads: may be shared; `start` and `stop` are for one of them.
    """

    def __init__(self, tasks: Iterable[Task], *, emit: Emit = silent) -> None:
        self.tasks = tuple(tasks)
        self._reporters = {task.name: EventReporter(task.name, emit) for task in self.tasks}
        self._failures = dict.fromkeys(self._reporters, 0)
        # When the pass in progress has begun.
        self._began_s: dict[str, float] = {}
        self._prepared = False
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def counters(self) -> Mapping[str, int]:
        """The counters of all tasks together, and ``<task>_failures``: passes that raised."""
        merged: dict[str, int] = {}
        for task in self.tasks:
            merged.update(task.counters())
            merged[f"{task.name}_failures"] = self._failures[task.name]
        return merged

    @property
    def failures(self) -> int:
        """How many passes raised."""
        return sum(self._failures.values())

    def stuck(self) -> tuple[str, ...]:
        """The tasks whose pass has been in progress for more than a minute."""
        now_s = time.monotonic()
        began_s = self._began_s.copy()
        return tuple(name for name in began_s if now_s - began_s[name] > STUCK_AFTER_S)

    def prepare(self) -> None:
        """Make sure that all tasks may run; `start` does it as well.

        Raises:
            Exception: What the `start` of a task has raised; then all are stopped.
        """
        if self._prepared:
            return
        for number, task in enumerate(self.tasks):
            try:
                task.start()
            except BaseException:
                for started in self.tasks[: number + 1]:
                    self._end(started)
                raise
        self._prepared = True

    def start(self, *, once: bool = False, finished: Callable[[], None] | None = None) -> None:
        """Begin: the first pass of each task at once.

        Args:
            once: Do one pass of each task only.
            finished: Called when all have ended by themselves.

        Raises:
            Exception: As `prepare`.
        """
        self.prepare()
        working = threading.Semaphore(0)
        for task in self.tasks:
            # A pass that hangs in the kernel must not keep the program from ending.
            self._threads.append(_daemon(partial(self._work, task, once, working), task.name))
        _daemon(partial(self._watch, working, finished), "watch")

    def stop(self) -> tuple[str, ...]:
        """End: wait for the passes in progress, then have each task give back; 20 s at most.

        Returns:
            What has not come to its end in order, a sentence per task; each is reported as well.
        """
        self._stopping.set()
        for task in self.tasks:
            task.wake()
        deadline_s = time.monotonic() + _LAST_PASS_S
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        hanging = {
            task.name
            for task, thread in zip(self.tasks, self._threads, strict=False)
            if thread.is_alive()
        }
        self._threads.clear()
        failed = self._failures.copy()
        unfinished = run_each(self._end, self.tasks, _GIVE_BACK_S)
        left = []
        for task in self.tasks:
            wrong = []
            if task.name in hanging:
                wrong.append("its last pass does not end")
            if task in unfinished or self._failures[task.name] > failed[task.name]:
                wrong.append("it could not be stopped in order")
            wrong += _listed(task.pending_cleanup())
            if wrong:
                text = "; ".join(wrong)
                self._reporters[task.name].emit("not_given_back", text)
                left.append(f"{task.name}: {text}")
        return tuple(left)

    def _end(self, task: Task) -> None:
        try:
            task.stop()
        except Exception as error:  # noqa: BLE001 (the others have to stop as well)
            self._failures[task.name] += 1
            self._reporters[task.name].failed("the task could not be stopped in order", error)

    def _work(self, task: Task, once: bool, working: threading.Semaphore) -> None:
        due_s = time.monotonic()
        try:
            while not self._stopping.is_set():
                self._pass(task)
                if once:
                    break
                # After a slow pass, passes are skipped instead of caught up on.
                due_s = max(due_s + task.interval_s, time.monotonic())
                if task._woken.wait(max(0.0, due_s - time.monotonic())):
                    # What comes in crowds, such as pods, shall not have a pass each.
                    self._stopping.wait(_TOGETHER_S)
                    task._woken.clear()
                    due_s = time.monotonic()
        finally:
            working.release()

    def _pass(self, task: Task) -> None:
        reporter = self._reporters[task.name]
        self._began_s[task.name] = time.monotonic()
        try:
            task.run()
        except Exception as error:  # noqa: BLE001 (whatever it is, the agent goes on)
            self._failures[task.name] += 1
            reporter.failed("a pass failed", error)
        else:
            reporter.recovered()
        finally:
            del self._began_s[task.name]

    def _watch(self, working: threading.Semaphore, finished: Callable[[], None] | None) -> None:
        """Report tasks that are stuck, until all have ended."""
        ended, known = 0, set[str]()
        while ended < len(self.tasks):
            ended += working.acquire(timeout=STUCK_AFTER_S / 12)
            stuck = set(self.stuck())
            for name in stuck - known:
                self._reporters[name].emit("stuck", "a pass does not come to its end")
            known = stuck
        if finished is not None and not self._stopping.is_set():
            finished()


def run_each(work: Callable[[T], object], items: Iterable[T], for_s: float) -> list[T]:
    """Work on each item in a thread of its own, so that one that hangs holds up no other.

    Args:
        work: What to do; it raises nothing.
        items: Each is worked on once.
        for_s: How long to wait for all of them.

    Returns:
        The items that are not done by then.
    """
    deadline_s = time.monotonic() + for_s
    threads = [(item, _daemon(partial(work, item), "each")) for item in items]
    for _, thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))
    return [item for item, thread in threads if thread.is_alive()]


def _daemon(target: Callable[[], object], name: str) -> threading.Thread:
    thread = threading.Thread(target=target, name=f"hami-{name}", daemon=True)
    thread.start()
    return thread


def _listed(phrases: tuple[str, ...]) -> list[str]:
    more = len(phrases) - _LISTED
    return [*phrases[:_LISTED], *([f"and {more} more containers"] if more > 0 else [])]

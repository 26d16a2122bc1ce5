"""The agent's loop: observe the node, run a task on the observation, wait for the next time.

Each task has its own thread, so that a slow pass delays no other task; the observation is shared.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal, TypeVar

from libhamiregion.node.reader import SHARED_AGE_S
from libhamiregion.node.slots import LISTING_S
from libhamiregion.plan import PlanLocked
from libhamiregion.services.backoff import Backoff
from libhamiregion.services.events import EventReporter, silent
from libhamiregion.text import error_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from libhamiregion.node.node import Node
    from libhamiregion.node.reader import Observer
    from libhamiregion.observation.model import Observation
    from libhamiregion.plan import PlanReconciler
    from libhamiregion.services.events import Emit

T = TypeVar("T")

# Kubelet kills after 30 s: 15 s for the passes in progress, then 5 s for giving back, of which each
# task gives its containers 4.
_LAST_PASS_S, _STOP_S, _GIVE_BACK_S = 15.0, 5.0, 4.0
# A longer pass is reported as stuck: the proof that a lock has no owner takes 10 s.
STUCK_AFTER_S = 60.0
# Several wake-ups within this time are one pass.
_TOGETHER_S = 0.05


class Task(ABC):
    """Base of work that is repeated at an interval, with events, counters and a back-off.

    A task overrides `run`, and the other methods as needed.

    Threads: `counters`, `pending_cleanup` and `wake` may be called from any thread. `run` is called
    from one thread; `stop` from another one, after the last pass or while a pass hangs.

    Args:
        emit: Gets the events.

    Attributes:
        name: One word for events and metrics.
        counted: The counters, called ``<name>_<counter>``.
        needs: The part of an observation that a pass uses: the regions, also the processes, or also
            the states of the slots and the driver's figures.
        interval_s: Seconds from the start of one pass to the start of the next.
        events: Reports events.
        backoff: Skips containers that have failed.
    """

    name: ClassVar[str] = "task"
    counted: ClassVar[tuple[str, ...]] = ()
    needs: ClassVar[Literal["regions", "processes", "slots"]] = "regions"
    interval_s: float = 15.0

    def __init__(self, emit: Emit = silent) -> None:
        self.events = EventReporter(self.name, emit)
        self.backoff = Backoff()
        self._counts = dict.fromkeys(self.counted, 0)
        self._counting = threading.Lock()
        self._woken = threading.Event()

    def wake(self) -> None:
        """Begin the next pass at once, or when the pass in progress has ended."""
        self._woken.set()

    def start(self, observe: Callable[[], Observation]) -> None:  # noqa: B027 (optional)
        """Check that the task may run; an exception keeps all tasks from starting."""

    @abstractmethod
    def run(self, observation: Observation) -> None:
        """Do one pass."""

    def give_back(self) -> None:  # noqa: B027 (optional)
        """Give back what must not outlive passes. Called when one has failed or is stuck."""

    def stop(self) -> None:  # noqa: B027 (optional)
        """Give back what must not outlive the task. Called once, with a time limit."""

    def pending_cleanup(self) -> tuple[str, ...]:
        """List what is not given back yet, a phrase for each container."""
        return ()

    def counters(self) -> Mapping[str, int]:
        """Return the counters by name; a name that ends in ``_paused`` is 0 or 1."""
        with self._counting:
            return {f"{self.name}_{what}": number for what, number in self._counts.items()}

    def count(self, what: str, by: int = 1) -> None:
        """Increase a counter of `counted`."""
        with self._counting:
            self._counts[what] += by


class TaskRunner:
    """Runs tasks until it is stopped.

        runner = TaskRunner(Observer(node), [Feedback(node)])
        runner.start()
        ...
        runner.stop()

    A pass that raises is counted and reported; the next one comes at its time. A slow pass delays
    only the next pass of its own task.

    Args:
        observer: Observes the node for all tasks.
        tasks: The tasks.
        emit: Gets the events about failed passes.

    Attributes:
        tasks: As given.

    Threads: may be shared; `start` and `stop` are for one of them.
    """

    def __init__(self, observer: Observer, tasks: Iterable[Task], *, emit: Emit = silent) -> None:
        self.tasks = tuple(tasks)
        self._observer = observer
        self._reporters = {task.name: EventReporter(task.name, emit) for task in self.tasks}
        self._failures = dict.fromkeys(self._reporters, 0)
        self._began_s: dict[str, float] = {}
        self._due_s = dict.fromkeys(self._reporters, 0.0)
        self._stopping = threading.Event()
        self._threads: dict[str, threading.Thread] = {}

    def counters(self) -> Mapping[str, int]:
        """Return the counters of all tasks, and ``<task>_failures``: passes that raised."""
        merged: dict[str, int] = {}
        for task in self.tasks:
            merged.update(task.counters())
            merged[f"{task.name}_failures"] = self._failures[task.name]
        return merged

    @property
    def failures(self) -> int:
        """The number of passes that raised."""
        return sum(self._failures.values())

    def stuck(self) -> tuple[str, ...]:
        """Name the tasks whose pass has been in progress for more than a minute."""
        now_s = time.monotonic()
        began_s = self._began_s.copy()
        return tuple(name for name in began_s if now_s - began_s[name] > STUCK_AFTER_S)

    def start(
        self,
        *,
        once: bool = False,
        prepared: Callable[[], None] | None = None,
        finished: Callable[[], None] | None = None,
    ) -> None:
        """Check that all tasks may run, and begin with one pass of each.

        Args:
            once: End after that pass.
            prepared: Called before the first pass.
            finished: Called when all tasks have ended by themselves.

        Raises:
            Exception: From the `start` of a task; then all tasks are stopped.
        """
        for number, task in enumerate(self.tasks):
            try:
                task.start(partial(self._observe, task))
            except BaseException:
                for started in self.tasks[: number + 1]:
                    self._end(started)
                raise
        if prepared is not None:
            prepared()
        working = threading.Semaphore(0)
        for task in self.tasks:
            work = partial(self._work, task, once, working)
            self._threads[task.name] = _daemon(work, task.name)
        _daemon(partial(self._watch, working, finished), "watch")

    def stop(self) -> tuple[str, ...]:
        """Wait for the passes in progress, then have each task give back; 20 s at most.

        Returns:
            One sentence for each task that did not end in order; each is also reported.
        """
        self._stopping.set()
        deadline_s = time.monotonic() + _LAST_PASS_S
        for task in self.tasks:
            task.wake()
        # Another thread may still be starting them.
        threads = self._threads.copy()
        for thread in threads.values():
            thread.join(max(0.0, deadline_s - time.monotonic()))
        failed = self._failures.copy()
        unfinished = run_each(self._end, self.tasks, _STOP_S)
        left = []
        for task in self.tasks:
            wrong = []
            if task.name in threads and threads[task.name].is_alive():
                wrong.append("its last pass does not end")
            if task in unfinished or self._failures[task.name] > failed[task.name]:
                wrong.append("it could not be stopped in order")
            wrong += task.pending_cleanup()
            if wrong:
                text = "; ".join(wrong)
                self._reporters[task.name].emit("not_given_back", text)
                left.append(f"{task.name}: {text}")
        return tuple(left)

    def _observe(self, task: Task) -> Observation:
        # One observation serves all tasks that are due now.
        now_s = time.monotonic() + _TOGETHER_S
        due = [each for each in self.tasks if each is task or self._due_s[each.name] <= now_s]
        slots = any(each.needs == "slots" for each in due)
        return self._observer.observe(
            max_age_s=min(SHARED_AGE_S, task.interval_s / 2),
            slots=slots,
            driver=slots,
            processes_max_age_s=math.inf if task.needs == "regions" else LISTING_S,
        )

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
                # After a slow pass, missed passes are skipped.
                due_s = self._due_s[task.name] = max(due_s + task.interval_s, time.monotonic())
                if task._woken.wait(max(0.0, due_s - time.monotonic())):
                    self._stopping.wait(_TOGETHER_S)
                    task._woken.clear()
                    due_s = time.monotonic()
        finally:
            working.release()

    def _pass(self, task: Task) -> None:
        reporter = self._reporters[task.name]
        self._began_s[task.name] = time.monotonic()
        try:
            task.run(self._observe(task))
        except Exception as error:  # noqa: BLE001 (whatever it is, the agent goes on)
            self._failures[task.name] += 1
            reporter.failed("a pass failed", error)
            task.give_back()
        else:
            reporter.recovered()
        finally:
            del self._began_s[task.name]

    def _watch(self, working: threading.Semaphore, finished: Callable[[], None] | None) -> None:
        """Report stuck tasks until all tasks have ended."""
        ended, known = 0, set[str]()
        while ended < len(self.tasks):
            ended += working.acquire(timeout=STUCK_AFTER_S / 12)
            stuck = set(self.stuck())
            for name in stuck - known:
                self._reporters[name].emit("stuck", "a pass does not come to its end")
            for task in self.tasks:
                if task.name in stuck - known:
                    task.give_back()
            known = stuck
        if finished is not None and not self._stopping.is_set():
            finished()


def run_each(
    work: Callable[[T], object], items: Iterable[T], for_s: float = _GIVE_BACK_S
) -> list[T]:
    """Call `work` on each item in its own thread, so that one that hangs delays no other.

    Args:
        work: The function; it raises nothing.
        items: The items.
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
    # A pass that hangs in the kernel must not keep the program from ending.
    thread = threading.Thread(target=target, name=f"hami-{name}", daemon=True)
    thread.start()
    return thread


# ---- two small tasks -----------------------------------------------------------------------------


class RootWatch(Task):
    """Reports directories of containers that cannot be listed: a blind agent would look idle.

    Events (task ``roots``): ``unreadable`` and ``readable``, with the directory.

    Args:
        node: The node.
        emit: Gets the events.
    """

    name = "roots"

    def __init__(self, node: Node, *, emit: Emit = silent) -> None:
        super().__init__(emit)
        self._node = node
        self._failing: dict[str, str] = {}

    def run(self, observation: Observation) -> None:  # noqa: ARG002 (the node was refreshed)
        """Report changes."""
        failing = {root: error_text(error) for root, error in self._node.root_errors.items()}
        for root, why in failing.items():
            if self._failing.get(root) != why:
                self.events.emit("unreadable", f"{why}; its containers are not seen", distinct=root)
        for root in self._failing.keys() - failing.keys():
            self.events.emit("readable", f"{root}: can be listed again", distinct=root)
        self._failing = failing


class PlanKeeper(Task):
    """Keeps a node on a plan.

    A plan that cannot be read is reported and tried again at each pass. Only a second keeper on one
    node is refused, or waits until the first one has gone.

    Args:
        reconciler: Does the work and reports it.
        waits: If another process keeps this node on a plan at the start, try again at each pass
            instead of raising `PlanLocked`.
    """

    name = "plan"
    interval_s = 5.0

    def __init__(self, reconciler: PlanReconciler, *, waits: bool = False) -> None:
        super().__init__()
        self._waits = waits
        self._reconciler = reconciler
        reconciler.when_changed(self.wake)

    def start(self, observe: Callable[[], Observation]) -> None:  # noqa: ARG002 (reads no region)
        """Check that no other process keeps this node on a plan.

        Raises:
            PlanLocked: Another process does, and this one does not wait.
        """
        # Other errors are reported by each pass.
        with contextlib.suppress(OSError, *((PlanLocked,) if self._waits else ())):
            self._reconciler.start()

    def run(self, observation: Observation) -> None:  # noqa: ARG002 (the node was refreshed)
        """Do one pass.

        Raises:
            RuntimeError: There has been no usable plan yet; an event says why.
            PlanLocked: Another process keeps this node on a plan.
            OSError: The state directory or a root cannot be used.
        """
        self._reconciler.run()

    def stop(self) -> None:
        """Let others keep this node on a plan. Limits stay as they are."""
        self._reconciler.stop()

    def counters(self) -> Mapping[str, int]:
        """Return the reconciler's counters."""
        return self._reconciler.counters()

"""Work that is done again and again: each task in a thread of its own, none stops another."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Protocol

from libhamiregion.node.events import Emit, Voice, silent

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# What is in the middle of a pass gets this long to come to its end.
_PATIENCE_S = 10.0


class Task(Protocol):
    """Work that is done at an interval.

    Attributes:
        name: One word for events and metrics.
        interval_s: Seconds from the beginning of one pass to that of the next.
    """

    @property
    def name(self) -> str:
        """One word for events and metrics."""

    @property
    def interval_s(self) -> float:
        """Seconds from the beginning of one pass to that of the next."""

    def run(self) -> None:
        """Do one pass."""

    def stop(self) -> None:
        """Take back what must not outlive the task; called once, after the last pass."""

    def counters(self) -> Mapping[str, int]:
        """What has happened how often; may be called from other threads."""


class TaskRunner:
    """Runs tasks until it is stopped.

        runner = TaskRunner([Feedback(node)])
        runner.start()
        ...
        runner.stop()

    A pass that raises is counted and said, and the next one comes at its time. A pass that takes
    longer than its interval delays the next one of that task and no other task's.

    Args:
        tasks: Each is run by one thread only.
        emit: Gets the events about passes that failed.

    Threads: may be shared; `start` and `stop` are for one of them.
    """

    def __init__(self, tasks: Iterable[Task], *, emit: Emit = silent) -> None:
        self.tasks = tuple(tasks)
        self._voices = {task.name: Voice(task.name, emit) for task in self.tasks}
        self._errors = dict.fromkeys(self._voices, 0)
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def counters(self) -> Mapping[str, int]:
        """The counters of all tasks together, and ``<task>_failures``: passes that raised."""
        merged: dict[str, int] = {}
        for task in self.tasks:
            merged.update(task.counters())
            merged[f"{task.name}_failures"] = self._errors[task.name]
        return merged

    def run_once(self) -> int:
        """Do one pass of each task here and now, in order, and stop them.

        Returns:
            How many of them raised.
        """
        try:
            return sum(not self._pass(task) for task in self.tasks)
        finally:
            self._stop_tasks(self.tasks)

    def start(self) -> None:
        """Begin: the first pass of each task at once."""
        for task in self.tasks:
            thread = threading.Thread(target=self._go_on, args=(task,), name=f"hami-{task.name}")
            # A pass that hangs in the kernel must not keep the program from ending.
            thread.daemon = True
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """End: passes in progress are waited for, 10 s at most; then each task takes back."""
        self._stopping.set()
        deadline = time.monotonic() + _PATIENCE_S
        ended = []
        for task, thread in zip(self.tasks, self._threads, strict=False):
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                self._voices[task.name].say("stuck", "the last pass does not come to its end")
            else:
                ended.append(task)
        self._threads.clear()
        self._stop_tasks(ended)

    def _stop_tasks(self, tasks: Iterable[Task]) -> None:
        for task in tasks:
            try:
                task.stop()
            except Exception as error:  # noqa: BLE001 (the others have to stop as well)
                self._errors[task.name] += 1
                self._voices[task.name].failed("the task could not be stopped in order", error)

    def _go_on(self, task: Task) -> None:
        due = time.monotonic()
        while not self._stopping.is_set():
            self._pass(task)
            # Who was slow skips passes instead of catching up on them.
            due = max(due + task.interval_s, time.monotonic())
            self._stopping.wait(max(0.0, due - time.monotonic()))

    def _pass(self, task: Task) -> bool:
        voice = self._voices[task.name]
        try:
            task.run()
        except Exception as error:  # noqa: BLE001 (whatever it is, the agent goes on)
            self._errors[task.name] += 1
            voice.failed("a pass failed", error)
            return False
        voice.well()
        return True

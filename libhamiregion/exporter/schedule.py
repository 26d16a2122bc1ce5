"""The work behind the scrapes: collectors, run one after the other by a thread of their own."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

import attrs

from libhamiregion.text import error_text, printable

from .log_lines import LINE_LIMIT, RepeatedEvents
from .state import CollectedState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from libhamiregion.node import Node

    from .state import Collector

_log = logging.getLogger(__name__)

_STOP_PATIENCE_S = 10.0
_FIRST_LOOK_PATIENCE_S = 8.0
# Where nobody has asked for metrics for so long, nothing is looked at until somebody does.
_IDLE_S = 120.0
# What has not succeeded for so many of its intervals, and so many seconds, has stopped.
_OVERDUE_INTERVALS = 10
_OVERDUE_S = 60.0
# The thread's shortest nap, also where intervals are shorter than the work.
_NAP_S = 0.05


@attrs.define(eq=False)
class ScheduledCollector:
    """A collector, when it runs, and how it went the last time.

    Attributes:
        collector: The collector.
        interval_s: Time between two of its runs.
        due_s: Monotonic time of its next run.
        refreshed_at_s: When it last succeeded, Unix seconds; None if it never has.
        succeeded_s: Monotonic time of that.
        duration_s: How long it took the last time; None if it never ran.
        errors: How often it has failed.
        last_error: The message of the last failure, escaped; None if there was none.
        failing: Whether it failed the last time.
    """

    collector: Collector
    interval_s: float
    due_s: float = 0.0
    refreshed_at_s: float | None = None
    succeeded_s: float | None = None
    duration_s: float | None = None
    errors: int = 0
    last_error: str | None = None
    failing: bool = False

    @property
    def name(self) -> str:
        """The name of the collector."""
        return self.collector.name

    @property
    def patience_s(self) -> float:
        """How old its results may be."""
        return max(_OVERDUE_INTERVALS * self.interval_s, _OVERDUE_S)

    def overdue_s(self) -> float | None:
        """For how long it has not succeeded, if that is too long."""
        if self.succeeded_s is None:
            return None
        since_s = time.monotonic() - self.succeeded_s
        return since_s if since_s > self.patience_s else None


class Schedule:
    """Runs each collector when it is due, and keeps what they have found.

    Threads: may be shared; one collector runs at a time.

    Args:
        node: The node.
        collectors: The collectors, in the order in which they need each other.

    Attributes:
        state: What was found; replaced as a whole.
        collectors: As given.
        done_once: Whether every collector has run once, with success or without.
    """

    def __init__(self, node: Node, collectors: Sequence[ScheduledCollector]) -> None:
        for each in collectors:
            if not each.interval_s > 0:
                raise ValueError(f"an interval is longer than 0 s, not {each.interval_s!r}")
        self.state = CollectedState()
        self.done_once = False
        self.collectors = tuple(collectors)
        self._node = node
        self._failures = RepeatedEvents(_log)
        self._overdue: tuple[CollectedState, frozenset[str], CollectedState] | None = None
        self._one_at_a_time = threading.Lock()
        # Whether a scrape need not wait.
        self._fresh = threading.Event()
        self._thread: threading.Thread | None = None
        self._stopping, self._wake = threading.Event(), threading.Event()
        self._asked_s = 0.0
        self._is_asleep = False

    def current(self) -> CollectedState:
        """`state`, without what has not been looked at for too long: nothing holds for ever.

        Names and container ids stay.
        """
        state = self.state
        overdue = frozenset(each.name for each in self.collectors if each.overdue_s() is not None)
        if not overdue:
            return state
        if self._overdue is None or self._overdue[:2] != (state, overdue):
            # Made once: a scrape keeps what has not changed.
            series = {name: made for name, made in state.series.items() if name not in overdue}
            bare = attrs.evolve(state, series=series)
            if "processes" in overdue:
                # Pids may be others' by now.
                bare = attrs.evolve(bare, labels=None)
            self._overdue = state, overdue, bare
        return self._overdue[2]

    @property
    def is_watching(self) -> bool:
        """Whether a thread looks again and again; it does while somebody asks for metrics."""
        return self._thread is not None and not self._is_asleep

    def before_scrape(self) -> None:
        """Have everything looked at that a scrape needs; waits for some seconds at most.

        Without the thread it is done here. One that has gone to sleep begins anew.
        """
        self._asked_s = time.monotonic()
        if self._thread is None:
            self.run(everything=False)
            return
        if self._is_asleep:
            self._wake.set()
        self._fresh.wait(_FIRST_LOOK_PATIENCE_S)

    def start(self) -> None:
        """Look in a thread from now on; nothing happens if one is at it."""
        if self._thread is None:
            self._stopping, self._wake = threading.Event(), threading.Event()
            self._asked_s = time.monotonic()
            self._thread = threading.Thread(
                target=self._keep_on,
                args=(self._stopping, self._wake),
                name="hamiregion-collect",
                daemon=True,
            )
            self._thread.start()

    def stop(self) -> None:
        """End that thread and wait for it."""
        self._stopping.set()
        self._wake.set()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(_STOP_PATIENCE_S)

    def _keep_on(self, stopping: threading.Event, wake: threading.Event) -> None:
        while not stopping.is_set():
            if time.monotonic() - self._asked_s > _IDLE_S:
                self._fresh.clear()
                self._is_asleep = True
                wake.wait()
                self._is_asleep = False
            wake.clear()
            self.run(everything=False)
            left_s = min(each.due_s for each in self.collectors) - time.monotonic()
            wake.wait(max(_NAP_S, left_s))

    def run(self, *, everything: bool) -> None:
        """Run the collectors that are due, or all. What fails is counted and tried again."""
        with self._one_at_a_time:
            now = time.monotonic()
            # What is due a moment later has its turn now: one run for all of them.
            due = [
                each
                for each in self.collectors
                if everything or each.due_s - min(_NAP_S, each.interval_s / 10) <= now
            ]
            for each in due:
                self._run(each)
            if due:
                self._log_unreadable_roots()
            self.done_once = True
            self._fresh.set()

    def _run(self, scheduled: ScheduledCollector) -> None:
        started_s = time.monotonic()
        try:
            self.state = scheduled.collector.collect(self.state)
        except Exception as error:  # noqa: BLE001 (whatever it is, scrapes go on with what is known)
            scheduled.errors += 1
            scheduled.failing = True
            message = f"{type(error).__name__}: {error_text(error)}"
            scheduled.last_error = printable(f"{scheduled.name}: {message}", LINE_LIMIT)
            self._failures.failed(scheduled.name, message, error)
        else:
            scheduled.refreshed_at_s, scheduled.succeeded_s = time.time(), time.monotonic()
            scheduled.failing = False
            if self._failures.recovered(scheduled.name):
                _log.info("%s: all is well again", scheduled.name)
        ended_s = time.monotonic()
        scheduled.duration_s = ended_s - started_s
        scheduled.due_s = ended_s + scheduled.interval_s

    def _log_unreadable_roots(self) -> None:
        """Log which directories of containers cannot be listed."""
        unreadable = dict(self._node.root_errors)
        for root, error in unreadable.items():
            self._failures.failed(
                "root " + printable(root, 200).replace("%", "%%"),
                f"{error_text(error)}; the containers there are not seen",
            )
        for root in self._node.scanned_roots:
            if self._failures.recovered("root " + printable(root, 200).replace("%", "%%")):
                _log.info("containers: %s can be listed again", printable(root, LINE_LIMIT))

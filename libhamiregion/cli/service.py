"""Tasks that run in this process until it is told to end."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from libhamiregion.agent import OtherWriterRuns, RootWatch, TaskRunner
from libhamiregion.agent.loop import run_each
from libhamiregion.node import Observer
from libhamiregion.plan import PlanLocked

from .failures import FAILED, PROBLEMS, Failure
from .service_log import ServiceLog
from .signals import end_unfinished, stop_signals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from libhamiregion.agent import Task
    from libhamiregion.node import Node

_CLOSING_S = 3.0


class OtherWriterFailure(Failure):
    """The feedback cannot start beside somebody else's: exit code 3."""

    exit_code = PROBLEMS


def run_service(
    name: str,
    node: Node,
    tasks: Callable[[ServiceLog], Iterable[Task]],
    *,
    as_json: bool,
    once: bool = False,
    dry_run: bool = False,
    observer: Observer | None = None,
    extra_services: Callable[
        [TaskRunner, ServiceLog], tuple[Callable[[], None], ...]
    ] = lambda *_: (),
) -> TaskRunner:
    """Run tasks until a signal asks for the end, or with `once` one pass of each.

    Args:
        name: What the service calls itself in its events.
        node: Its node; not closed: a driver that does not answer would keep this from ending.
        tasks: Makes the tasks.
        as_json: Whether events are objects.
        once: Whether to make one pass, with the events as the answer on stdout.
        dry_run: Whether the tasks write nothing; said at the start.
        observer: Observes the node for the tasks; None makes one.
        extra_services: Starts what else the process does; returns what ends it.

    Raises:
        Failure: Another process does what a task would do.
        SystemExit: Something has not come to its end, or nobody reads the log any more.
    """
    with stop_signals() as stop:
        log = ServiceLog(as_json=as_json, lost=stop.ask, on_stdout=once)
        log.capture_logging("warning")
        wanted = list(tasks(log))
        roots = RootWatch(node, emit=log)
        runner = TaskRunner(observer or Observer(node), [roots, *wanted], emit=log)
        refusals: list[Exception] = []

        def begin() -> None:
            try:
                runner.prepare()
                names = ", ".join(task.name for task in wanted)
                dry = " (dry run: nothing is written)" if dry_run else ""
                log.emit(name, "started", f"{names}{dry}", pid=os.getpid())
                runner.start(once=once, finished=stop.ask)
            except Exception as error:  # noqa: BLE001 (raised again in the main thread)
                refusals.append(error)
                stop.ask()

        closers = extra_services(runner, log)
        # In a thread, so that a signal is heard whatever hangs.
        threading.Thread(target=begin, name="hami-start", daemon=True).start()
        stop.wait()
        left = runner.stop()
        if run_each(lambda close: close(), closers, _CLOSING_S):
            left = (*left, "exporter: a refresh does not end")
        if not refusals:
            log.emit(name, "stopped", "not in order" if left else "ended in order")
    for refusal in refusals:
        if isinstance(refusal, OtherWriterRuns):
            raise OtherWriterFailure(f"the feedback does not start: {refusal}") from None
        if isinstance(refusal, PlanLocked):
            raise Failure(str(refusal)) from None
        raise refusal
    if log.is_lost:
        raise SystemExit(FAILED)
    if left:
        end_unfinished(left)
    return runner

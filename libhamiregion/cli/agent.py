"""`hamiregion agent`: steer and repair the regions of a node for as long as it runs."""

from __future__ import annotations

import functools
import os
import signal
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click

from libhamiregion.agent import (
    Feedback,
    OtherWriterRuns,
    PlanKeeper,
    RepairLoop,
    RootWatch,
    StaleDirectoryCleaner,
    TaskRunner,
    UsageSync,
)
from libhamiregion.agent.loop import run_each
from libhamiregion.node import NvmlSampler, Observer
from libhamiregion.plan import PlanLocked, PlanReconciler
from libhamiregion.text import count_text

from . import options
from .exporter import metrics_options, metrics_server
from .failures import Failure, Refused, bad_arguments
from .help import verb
from .limits_plan import PlanChoice, annotations_option, state_option
from .service import (
    ServiceLog,
    collect_rarely,
    end_unfinished,
    on_signals,
    serve_documents,
    stop_signals,
)
from .views import root_failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from libhamiregion.agent import Task

# Between a device plugin's making a directory and kubelet's making its own.
SHORTEST_GONE_AFTER_S = 1.0
# A scrape shows the observation that the agent took last, if it is no older.
_METRICS_AGE_S = 5.0
_CLOSING_S = 3.0

_task = functools.partial(options.option, group="Tasks")


@verb("hamiregion agent --feedback --repair", "hamiregion agent --metrics --listen :9394 --repair")
@click.option(
    "--feedback", is_flag=True, help="Pause less urgent containers, as HAMi's monitor does."
)
@click.option("--repair", is_flag=True, help="Repair host pids, slots, locks and driver figures.")
@click.option(
    "--plan",
    "plan_path",
    type=options.PATH,
    metavar="PLAN",
    help="Keep limits as PLAN, a YAML or JSON file, says.",
)
@annotations_option
@state_option
@click.option("--metrics", is_flag=True, help="Serve metrics as `hamiregion exporter` does.")
@click.option("--remove-gone", is_flag=True, help="Remove the directories of pods that are gone.")
@_task("--kubelet-pods", type=options.PATH, default="/var/lib/kubelet/pods", metavar="DIR")
@metrics_options
@options.node_options
@_task("--assume-alone", is_flag=True)
@_task("--once", is_flag=True)
@options.dry_run_option
@options.library_option
@options.json_option
def agent(*, node_choice: options.NodeChoice, as_json: bool, **given: Any) -> None:
    """Steer and repair the regions of this node for as long as it runs.

    Exit codes: 0 ended in order, 1 failed (with --once: a pass or a repair failed), 2 wrong usage,
    3 another program writes the feedback on this node.
    """
    wanted = SimpleNamespace(**given)
    wanted.metrics = wanted.metrics or bool(wanted.listen)
    wanted.plan = wanted.plan_path is not None or wanted.from_annotations
    _check(wanted)
    with bad_arguments():
        node = node_choice.open()
    # Not closed: a driver that does not answer would keep this from ending.
    sampler = NvmlSampler(wanted.library, sensors=wanted.metrics)
    observer = Observer(
        node, sampler=sampler if wanted.repair or wanted.metrics or wanted.plan else None
    )
    runner = _run(wanted, observer, node_choice, ServiceLog(as_json=as_json, on_stdout=wanted.once))
    if wanted.once:
        failed = f"{runner.failures} of {len(runner.tasks)} passes failed; the events say why"
        failure = failed if runner.failures else root_failure(node, node_choice.roots)
        if unrepaired := runner.counters().get("repair_errors"):
            repairs = count_text(unrepaired, "repair")
            failure = failure or f"{repairs} failed; the events say why"
        if failure is not None:
            raise Failure(failure)


def _check(wanted: Any) -> None:
    """Refuse options that contradict each other."""
    once, dry_run = wanted.once, wanted.dry_run
    works = wanted.feedback or wanted.repair or wanted.plan or wanted.remove_gone or wanted.metrics
    if not works:
        raise click.UsageError(
            "name what to do: --feedback, --repair, --remove-gone, --plan FILE,"
            " --from-annotations or --metrics"
        )
    if wanted.plan and dry_run:
        raise click.UsageError("to see what a plan would change, use `hamiregion limits diff`")
    if wanted.metrics and (once or dry_run):
        raise click.UsageError("--metrics and --listen go with neither --once nor --dry-run")
    if wanted.remove_gone and once and not dry_run:
        raise click.UsageError("--remove-gone watches pods over time: use it without --once")
    if wanted.remove_gone and (wanted.gone_after_s or 0.0) < SHORTEST_GONE_AFTER_S:
        raise click.UsageError("with --remove-gone, --resync-interval is 1s or more")


def _run(
    wanted: Any, observer: Observer, node_choice: options.NodeChoice, log: ServiceLog
) -> TaskRunner:
    """Run the tasks until a signal asks for the end, or with --once one pass of each.

    Raises:
        Failure: Another process does what a task would do.
        SystemExit: Something has not ended in order.
    """
    collect_rarely()
    with stop_signals() as stop:
        log.capture_logging("info")
        tasks = list(_tasks(wanted, observer, log, node_choice))
        runner = TaskRunner(observer, [RootWatch(observer.node, emit=log), *tasks], emit=log)
        refusals: list[Exception] = []

        def report_start() -> None:
            names = ", ".join(task.name for task in tasks)
            dry = " (dry run: nothing is written)" if wanted.dry_run else ""
            log.emit("agent", "started", f"{names}{dry}", pid=os.getpid())

        def begin() -> None:
            try:
                runner.start(once=wanted.once, prepared=report_start, finished=stop.ask)
            except Exception as error:  # noqa: BLE001 (raised again in the main thread)
                refusals.append(error)
                stop.ask()

        end_serving = _export(wanted, observer, runner, log, node_choice.node_name)
        # In a thread, so that a signal is heard whatever hangs.
        threading.Thread(target=begin, name="hami-start", daemon=True).start()
        stop.wait()
        left = runner.stop()
        if run_each(lambda end: end(), [end_serving], _CLOSING_S):
            left = (*left, "exporter: a scrape does not end")
        if not refusals:
            log.emit("agent", "stopped", "not in order" if left else "ended in order")
    for refusal in refusals:
        if isinstance(refusal, OtherWriterRuns):
            raise Refused(f"the feedback does not start: {refusal}") from None
        if isinstance(refusal, PlanLocked):
            raise Failure(str(refusal)) from None
        raise refusal
    if left:
        end_unfinished(left)
    return runner


def _tasks(
    wanted: Any, observer: Observer, log: ServiceLog, node_choice: options.NodeChoice
) -> Iterator[Task]:
    node, waits = observer.node, wanted.metrics
    how: dict[str, Any] = {"dry_run": wanted.dry_run, "emit": log}
    if wanted.feedback:
        yield Feedback(node, assume_alone=wanted.assume_alone, waits=waits, **how)
    if wanted.repair:
        yield RepairLoop(observer, **how)
        yield UsageSync(node, **how)
    if wanted.remove_gone:
        yield StaleDirectoryCleaner(
            node,
            pod_logs=node_choice.pod_logs,
            kubelet_pods=wanted.kubelet_pods,
            gone_after_s=wanted.gone_after_s,
            **how,
        )
    if wanted.plan:
        sources = wanted.plan_path, wanted.from_annotations, wanted.maximum_percent
        choice = PlanChoice(*sources, wanted.kubeconfig, node_choice)
        watcher = PlanReconciler(
            node, choice.sources(), wanted.state, observe=observer.observe, emit=log
        )
        yield PlanKeeper(watcher, waits=waits)


def _export(
    wanted: Any, observer: Observer, runner: TaskRunner, log: ServiceLog, node_name: str | None
) -> Callable[[], None]:
    """Serve the metrics from now on, if that is wanted; return a function that ends it."""
    if not wanted.metrics:
        return lambda: None
    from libhamiregion.exporter import NodeExporter

    def stuck() -> str | None:
        names = runner.stuck()
        return f"stuck: {', '.join(names)}" if names else None

    with bad_arguments():
        exported = NodeExporter(
            observer.node,
            observer=observer,
            node_name=node_name,
            legacy=wanted.legacy_metrics,
            hami_version=wanted.hami_version,
            gone_after_s=wanted.gone_after_s,
            counters=runner.counters,
            max_age_s=_METRICS_AGE_S,
        )
    server = metrics_server(exported, wanted.listen, web_config=wanted.web_config, healthy=stuck)
    # As in the exporter. Without metrics there is nothing to read again, and the agent ends.
    on_signals(lambda *_: server.reload(), signal.SIGHUP)
    server.start()
    serve_documents(observer)
    for url in server.urls:
        log.emit("agent", "listening", f"metrics at {url}/metrics", url=url)
    return server.stop

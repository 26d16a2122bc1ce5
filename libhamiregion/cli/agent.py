"""`hamiregion agent`: steer and repair the regions of a node for as long as it runs."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import click

from libhamiregion.agent import (
    Feedback,
    PlanKeeper,
    RepairLoop,
    StaleDirectoryCleaner,
    UsageSync,
)
from libhamiregion.node import NvmlSampler, Observer
from libhamiregion.plan import PlanReconciler

from . import exporter_options, options
from .failures import Failure, bad_arguments
from .help import Verb
from .limits_plan import PlanChoice, annotations_option, state_option
from .node_page import root_failure
from .service import run_service

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from libhamiregion.agent import Task, TaskRunner

    from .service_log import ServiceLog

# Between a device plugin's making a directory and kubelet's making its own.
SHORTEST_GONE_AFTER_S = 1.0
# A scrape shows the observation that the agent took last, if it is no older.
_METRICS_AGE_S = 5.0


@click.command(
    cls=Verb,
    examples=[
        "hamiregion agent --feedback --repair",
        "hamiregion agent --metrics --listen :9394 --repair",
    ],
    brief={
        "Tasks": ("once", "state", "kubelet_pods", "gone_after_s", "assume_alone"),
        "Metrics": (
            *("listen", "web_config", "legacy_metrics", "hami_version"),
            *("labels", "node_label", "process_commands"),
        ),
    },
)
@click.option(
    "--feedback",
    is_flag=True,
    help="Pause less urgent containers, as HAMi's monitor does.",
)
@click.option(
    "--repair",
    is_flag=True,
    help="Repair host pids, slots, locks and missing driver figures.",
)
@click.option(
    "--plan",
    "plan_path",
    type=options.PATH,
    metavar="PLAN",
    help="Keep limits as PLAN says, as `limits apply --watch` does.",
)
@annotations_option
@state_option
@click.option(
    "--metrics",
    is_flag=True,
    help="Serve metrics as `hamiregion exporter` does.",
)
@click.option(
    "--remove-gone",
    is_flag=True,
    help="Remove the directories of pods that are gone.",
)
@click.option(
    "--kubelet-pods",
    type=options.PATH,
    default="/var/lib/kubelet/pods",
    show_default=True,
    metavar="DIR",
    help="Where kubelet keeps the pods' volumes, which with --pod-logs tells which pods there are;"
    " in a pod with hostPID without a mount: /proc/1/root/var/lib/kubelet/pods.",
)
@exporter_options.resync_interval_option
@exporter_options.listen_option(None)
@exporter_options.web_config_option
@exporter_options.legacy_metrics_option
@exporter_options.hami_version_option
@options.node_options
@click.option(
    "--assume-alone",
    is_flag=True,
    help="Start the feedback although not all processes of the node can be seen.",
)
@click.option("--once", is_flag=True, help="Run each task once and exit.")
@options.dry_run_option
@options.library_option
@options.json_option
def agent(
    *,
    node_choice: options.NodeChoice,
    library: str | None,
    once: bool,
    dry_run: bool,
    as_json: bool,
    **wanted: Any,
) -> None:
    """Steer and repair the regions of this node for as long as it runs.

    At least one of --feedback, --repair, --remove-gone, --plan, --from-annotations and --metrics
    says what to do.  With --metrics, or --listen, the same process exports the node's metrics, as
    `hamiregion exporter` does, and the agent's own: one process looks at the node in place of
    several.  /healthz then tells whether a task is stuck, and /readyz whether metrics are complete.

    --feedback takes the place of HAMi's monitor: where that runs, or another agent does, it does
    not start; when one appears, it stops writing and reports it, and goes on when it has gone.  It
    needs to see all processes of the node: run it on the host, or in a pod with hostPID: true.
    With --metrics it starts all the same and waits for the others to go, as does a plan that
    another process keeps: no figures are lost by a conflict.

    --remove-gone deletes files: the directories of pods that have been gone for --resync-interval
    by all that can be seen, and of which no process is left.  Where that cannot be told, for want
    of a right or a mount, nothing is removed and an event says why; try it with --dry-run.

    A plan that cannot be read is reported and tried again; it keeps nothing else from running.

    Told to end (SIGTERM, Ctrl-C), it gives back what must not outlast it, within 25 seconds:
    blocked launches go on, SM switches are as they were found, and the driver's figures that it has
    written become 0.  What could not be given back is in the last lines.  Killed, it leaves all of
    it; the next start puts it right.

    \b
    hamiregion agent --feedback --repair --root /usr/local/vgpu/containers
    hamiregion agent --metrics --listen :9394 --repair --root /usr/local/vgpu/containers
    hamiregion agent --repair --once --dry-run

    One line per event, 500 characters at most, on stderr; with --once on stdout.  What repeats is
    reported the 1st, 2nd, 4th, 8th ... time.  Exit codes: 0 ended in order, 1 failed (with --once:
    a pass did, or no directory given could be listed; else: something was not given back, or
    another process keeps this node on a plan), 2 wrong usage, 3 somebody else writes the feedback
    on this node.

    JSON: one object per event, with the keys time_s (Unix seconds), task, event, message,
    container (null if it is about none) and detail, an object of figures by name.
    """  # noqa: D301 (click looks for the character itself)
    _check(once=once, dry_run=dry_run, **wanted)
    if wanted["metrics"] and not wanted["listen"]:
        wanted["listen"] = (exporter_options.DEFAULT_ADDRESS,)
    with bad_arguments():
        node = node_choice.open()
    sampler = NvmlSampler(library, sensors=bool(wanted["listen"]))
    by_process = bool(wanted["repair"] or wanted["listen"])
    observer = Observer(
        node,
        sampler=sampler if by_process else None,
        slots=by_process,
        processes_max_age_s=_processes_age_s(**wanted),
    )
    runner = run_service(
        "agent",
        node,
        lambda log: _tasks(observer, log, node_choice, dry_run=dry_run, **wanted),
        as_json=as_json,
        once=once,
        dry_run=dry_run,
        observer=observer,
        extra_services=lambda runner, log: _export(
            observer, runner, log, node_choice.node_name, **wanted
        ),
    )
    if once:
        failed = f"{runner.failures} of {len(runner.tasks)} passes failed; the events say why"
        failure = failed if runner.failures else root_failure(node, node_choice.roots)
        if failure is not None:
            raise Failure(failure)


def _processes_age_s(*, feedback: bool, repair: bool, remove_gone: bool, **_: Any) -> float | None:
    """How old what is known of processes may be: less than the tasks ask for, as they share it."""
    return 9.0 if feedback or repair or remove_gone else None


def _check(
    *,
    feedback: bool,
    repair: bool,
    plan_path: str | None,
    from_annotations: bool,
    remove_gone: bool,
    metrics: bool,
    gone_after_s: float | None,
    listen: tuple[str, ...],
    legacy_metrics: bool,
    once: bool,
    dry_run: bool,
    **_: Any,
) -> None:
    """Refuse what does not go together."""
    has_plan = plan_path is not None or from_annotations
    lasts_long = gone_after_s is not None and gone_after_s >= SHORTEST_GONE_AFTER_S
    what = (
        "name what to do: --feedback, --repair, --remove-gone, --plan FILE, --from-annotations or"
        " --metrics"
    )
    serves = bool(listen) or metrics
    for holds, why in (
        (not (feedback or repair or has_plan or remove_gone or metrics), what),
        (has_plan and dry_run, "what a plan would change, `hamiregion limits diff` shows"),
        (
            serves and (once or dry_run),
            "--metrics and --listen go with neither --once nor --dry-run",
        ),
        (legacy_metrics and not serves, "--legacy-metrics goes with --metrics"),
        (
            remove_gone and once and not dry_run,
            "one look proves no pod gone: --remove-gone without --once",
        ),
        (
            remove_gone and not lasts_long,
            f"with --remove-gone, --resync-interval is {SHORTEST_GONE_AFTER_S:g}s or more",
        ),
    ):
        if holds:
            raise click.UsageError(why)


def _tasks(
    observer: Observer,
    log: ServiceLog,
    node_choice: options.NodeChoice,
    *,
    dry_run: bool,
    feedback: bool,
    repair: bool,
    plan_path: str | None,
    from_annotations: bool,
    state: str | None,
    remove_gone: bool,
    kubelet_pods: str,
    gone_after_s: float,
    assume_alone: bool,
    metrics: bool,
    **_: Any,
) -> Iterator[Task]:
    node = observer.node
    if feedback:
        yield Feedback(
            node,
            dry_run=dry_run,
            assume_alone=assume_alone,
            waits=metrics,
            emit=log,
        )
    if repair:
        yield RepairLoop(node, dry_run=dry_run, observer=observer, emit=log)
        yield UsageSync(node, dry_run=dry_run, emit=log)
    if remove_gone:
        yield StaleDirectoryCleaner(
            node,
            pod_logs=node_choice.pod_logs,
            kubelet_pods=kubelet_pods,
            gone_after_s=gone_after_s,
            dry_run=dry_run,
            emit=log,
        )
    if plan_path is not None or from_annotations:
        choice = PlanChoice(plan_path, from_annotations, node_choice)
        watcher = PlanReconciler(node, choice.sources(), state, emit=log)
        yield PlanKeeper(watcher, waits=metrics)


def _export(
    observer: Observer,
    runner: TaskRunner,
    log: ServiceLog,
    node_name: str | None,
    *,
    listen: tuple[str, ...],
    web_config: str | None,
    legacy_metrics: bool,
    hami_version: str,
    gone_after_s: float | None,
    **_: Any,
) -> tuple[Callable[[], None], ...]:
    """Serve the metrics from now on, if that is wanted; returns what ends it."""
    if not listen:
        return ()
    from libhamiregion.exporter import ListenError, MetricsServer, NodeExporter, WebConfigError

    def stuck() -> str | None:
        names = runner.stuck()
        return f"stuck: {', '.join(names)}" if names else None

    with bad_arguments():
        exporter = NodeExporter(
            observer.node,
            observer=observer,
            node_name=node_name,
            legacy=legacy_metrics,
            hami_version=hami_version,
            gone_after_s=gone_after_s,
            counters=runner.counters,
            max_age_s=_METRICS_AGE_S,
        )
    try:
        server = MetricsServer(exporter, listen, web_config=web_config, healthy=stuck)
    except (ListenError, WebConfigError) as error:
        raise Failure(str(error)) from None
    if web_config is not None:
        signal.signal(signal.SIGHUP, lambda *_: server.reload())
    server.start()
    for url in server.urls:
        log.emit("agent", "listening", f"metrics at {url}/metrics", url=url)
    return (server.stop,)

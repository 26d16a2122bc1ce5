"""`hamiregion agent`: steer and repair the regions of a node for as long as it runs."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

import attrs
import click

from libhamiregion.agent import (
    DriverFigures,
    Feedback,
    OtherWriterRuns,
    RepairLoop,
    TaskRunner,
    WriterWatch,
)
from libhamiregion.agent.root_watch import RootWatch
from libhamiregion.node import NvmlSampler
from libhamiregion.units import parse_duration

from . import exporter_options, node_options, options
from .agent_log import EventLog
from .failures import FAILED, Failure
from .node_words import root_failure
from .stopping import stop_signals

if TYPE_CHECKING:
    from collections.abc import Iterator

    from libhamiregion.agent import PodSource, Task
    from libhamiregion.node import Node

OTHER_WRITER = 3
# Between a device plugin's making a directory and kubelet's making its own.
SHORTEST_GONE_AFTER_S = 1.0
# How old the API's answer may be when a pod is missing from it.
API_MAX_AGE_S = 10.0


class OtherWriterFailure(Failure):
    """The feedback cannot start beside somebody else's: exit code 3."""

    exit_code = OTHER_WRITER


@attrs.frozen
class Wanted:
    """What the command line says; the fields are the options' names."""

    feedback: bool
    repair: bool
    plan_path: str | None
    from_annotations: bool
    remove_gone: bool
    remove_after: str | None
    gone_by: str
    kubelet_pods: str
    node_name: str | None
    kubeconfig: str | None
    state_directory: str | None
    listen: tuple[str, ...]
    web_config: str | None
    legacy_metrics: bool
    gone_after_s: float | None
    roots: tuple[str, ...]
    feedback_interval_s: float
    repair_interval_s: float
    figures_interval_s: float
    plan_interval_s: float
    figures: bool
    resume_after: int
    assume_alone: bool
    once: bool
    timeout_s: float
    dry_run: bool
    library: str | None
    proc: str
    pod_logs: str
    as_json: bool

    @property
    def plan(self) -> bool:
        """Whether there is a plan."""
        return self.plan_path is not None or self.from_annotations

    def check(self) -> None:
        """Refuse what does not go together."""
        if not (self.feedback or self.repair or self.plan or self.remove_gone):
            raise click.UsageError(
                "name what to do: --feedback, --repair, --remove-gone, --plan FILE or"
                " --from-annotations"
                + (" (`hamiregion exporter` only exports)" if self.listen else "")
            )
        if self.plan and self.dry_run:
            raise click.UsageError("what a plan would change, `hamiregion limits diff` shows")
        if self.listen and (self.once or self.dry_run):
            raise click.UsageError("--listen goes with neither --once nor --dry-run")
        if self.legacy_metrics and not self.listen:
            raise click.UsageError("--legacy-metrics goes with --listen")
        if self.remove_gone:
            self._check_removal()
        elif self.remove_after is not None:
            raise click.UsageError("--gone-after goes with --remove-gone")

    @property
    def remove_after_s(self) -> float:
        """For how long a pod has to be gone before its directory goes.

        What cannot be read is refused also where it comes from the environment: this deletes.
        """
        name, text = "--gone-after", self.remove_after
        if text is None:
            name = "HAMI_RESYNC_INTERVAL"
            text = os.environ.get(name) or exporter_options.RESYNC_INTERVAL
        try:
            return parse_duration(text)
        except ValueError as error:
            raise click.UsageError(f"{name}: {error}") from None

    def _check_removal(self) -> None:
        if self.once and not self.dry_run:
            raise click.UsageError("one look proves no pod gone: --remove-gone without --once")
        if self.remove_after_s < SHORTEST_GONE_AFTER_S:
            raise click.UsageError(
                f"--gone-after (or HAMI_RESYNC_INTERVAL) is {SHORTEST_GONE_AFTER_S:g}s or more"
            )
        if self.gone_by == "api" and not self.node_name:
            raise click.UsageError("--gone-by api needs --node-name")


@click.command()
@click.option(
    "--feedback",
    is_flag=True,
    help="Block launches of less urgent containers, and switch SM limits, as HAMi's monitor does.",
)
@click.option(
    "--repair",
    is_flag=True,
    help="Keep host pids right, free dead processes' slots and locks, and write the driver's"
    " figures where libvgpu does not.",
)
@click.option(
    "--plan",
    "plan_path",
    type=options.PATH,
    metavar="FILE",
    help="Keep the limits of this node on a plan, as `hamiregion limits apply --watch` does.",
)
@click.option(
    "--from-annotations",
    is_flag=True,
    help="Take hamiregion.io/... annotations of this node's pods as rules, after FILE's.",
)
@click.option(
    "--remove-gone",
    is_flag=True,
    help="Remove the directories of pods that are gone, as HAMi's monitor does.",
)
@click.option(
    "--gone-after",
    "remove_after",
    metavar="DURATION",
    help="For how long a pod has to be gone before.  [default: $HAMI_RESYNC_INTERVAL, else 5m]",
)
@click.option(
    "--gone-by",
    type=click.Choice(["kubelet", "api"]),
    default="kubelet",
    show_default=True,
    help="Who tells which pods there are: kubelet's directories (--pod-logs and --kubelet-pods), or"
    " the Kubernetes API.",
)
@click.option(
    "--kubelet-pods",
    type=options.PATH,
    default="/var/lib/kubelet/pods",
    show_default=True,
    metavar="DIR",
    help="Where kubelet keeps the pods' volumes; in a pod with hostPID without a mount:"
    " /proc/1/root/var/lib/kubelet/pods.",
)
@exporter_options.listen_option(None)
@exporter_options.web_config_option
@exporter_options.legacy_metrics_option
@exporter_options.resync_interval_option
@click.option(
    "--node-name",
    "--node",
    "node_name",
    envvar="NODE_NAME",
    metavar="NAME",
    help="This node's name, for annotations and metrics.  [default: $NODE_NAME]",
)
@click.option(
    "--kubeconfig",
    type=options.PATH,
    metavar="FILE",
    help="For --from-annotations and --gone-by api.  [default: the pod's service account, else"
    " kubectl's]",
)
@click.option(
    "--state",
    "state_directory",
    type=options.PATH,
    metavar="DIR",
    help="Where a plan's journal and undo plans are.  [default: as `limits apply`]",
)
@node_options.root_option
@options.interval_option("feedback", 5.0, "Between two passes of the feedback; HAMi's is 5.")
@options.interval_option("repair", 10.0, "Between two passes of the repair.")
@options.interval_option("figures", 5.0, "Between two looks at the driver's figures.")
@options.interval_option("plan", 5.0, "Between two looks at the plan and what it is about.")
@click.option(
    "--figures/--no-figures",
    default=True,
    help="With --repair: whether to write the driver's figures.  [default: figures]",
)
@click.option(
    "--resume-after",
    type=click.IntRange(0, 1_000_000),
    default=3,
    show_default=True,
    metavar="N",
    help="Go on with the feedback when another writer has been gone for so many passes; 0 is"
    " never.",
)
@click.option(
    "--assume-alone",
    is_flag=True,
    help="Start the feedback although not all processes of the node can be seen.",
)
@click.option("--once", is_flag=True, help="One pass of everything, then end.")
@click.option(
    "--timeout",
    "timeout_s",
    type=options.Seconds(min=0, max=60),
    default=0.2,
    show_default=True,
    metavar="SECONDS",
    help="How long a repair waits for a region's lock; who does not give it is left alone longer"
    " and longer.",
)
@options.dry_run_option
@node_options.library_option
@options.proc_option
@node_options.pod_logs_option
@options.json_option
@options.no_color_option
def agent(**given: Any) -> None:
    """Steer and repair the regions of this node for as long as it runs.

    At least one of --feedback, --repair, --remove-gone, --plan and --from-annotations says what to
    do.  With
    --listen the same process exports the node's metrics, as `hamiregion exporter` does, and the
    agent's own.

    Without --root, regions outside HAMi's directories are included, such as those of containers
    that plain Docker has started: found through the processes that map them.

    --feedback takes the place of HAMi's monitor: where that runs, or another agent does, it does
    not start; when one appears, it stops writing and says so, and goes on when it has gone (see
    --resume-after).  It needs to see all processes of the node: run it on the host, or in a pod
    with hostPID: true.

    --remove-gone deletes files: the directories of pods that have been gone for --gone-after by all
    that can be seen, and of which no process is left.  Where that cannot be told, for want of a
    right or a mount, nothing is removed and an event says why; try it with --dry-run.

    Told to end (SIGTERM, Ctrl-C), it takes back what must not outlast it: blocked launches go on,
    and SM switches are as they were found.  Killed, it leaves them; the next start puts them
    right.

    \b
    hamiregion agent --feedback --repair --root /usr/local/vgpu/containers
    hamiregion agent --repair --once --dry-run

    One line per event on stdout.  Exit codes: 0 ended in order, 1 failed (with --once: a pass
    did, or no directory given could be listed), 2 wrong usage, 3 somebody else writes the feedback
    on this node.

    JSON: one object per event, with the keys time_s (Unix seconds), task, event, message,
    container (null if it is about none) and detail, an object of figures by name.
    """  # noqa: D301 (click looks for the character itself)
    wanted = Wanted(**given)
    wanted.check()
    with stop_signals() as stop:
        log = EventLog(stop.ask, as_json=wanted.as_json)
        # Neither is closed: who waits for a driver that does not answer would never end.
        node = node_options.open_node(wanted.roots, wanted.proc, wanted.pod_logs)
        sampler = NvmlSampler(wanted.library, sensors=bool(wanted.listen))
        tasks = list(_tasks(wanted, node, sampler, log))
        runner = TaskRunner([RootWatch(node, emit=log), *tasks], emit=log)
        with _exporting(wanted, node, sampler, runner, log):
            names = ", ".join(task.name for task in tasks)
            dry = " (dry run: nothing is written)" if wanted.dry_run else ""
            log.say("started", f"{names}{dry}", pid=os.getpid())
            failed = 0
            if wanted.once:
                failed = runner.run_once()
            else:
                runner.start()
                try:
                    stop.wait()
                finally:
                    runner.stop()
        log.say("stopped", "ended in order", **runner.counters())
    if log.is_lost:
        raise SystemExit(FAILED)
    if failed:
        raise Failure(f"{failed} of {len(tasks)} passes failed; the events say why")
    blind = root_failure(node, wanted.roots) if wanted.once else None
    if blind is not None:
        raise Failure(blind)


def _tasks(wanted: Wanted, node: Node, sampler: NvmlSampler, log: EventLog) -> Iterator[Task]:
    if wanted.feedback:
        yield _feedback(wanted, node, log)
    if wanted.repair:
        yield RepairLoop(
            node,
            interval_s=wanted.repair_interval_s,
            dry_run=wanted.dry_run,
            timeout_s=wanted.timeout_s,
            emit=log,
        )
        if wanted.figures:
            yield DriverFigures(
                node,
                sampler,
                interval_s=wanted.figures_interval_s,
                dry_run=wanted.dry_run,
                timeout_s=wanted.timeout_s,
                emit=log,
            )
    if wanted.remove_gone:
        yield _removal(wanted, node, log)
    if wanted.plan:
        from libhamiregion.plan.state import PlanState
        from libhamiregion.plan.watch import PlanWatcher

        from .limits_plan import Origin, watched_sources

        origin = Origin(
            wanted.plan_path, wanted.from_annotations, wanted.node_name, wanted.kubeconfig
        )
        yield PlanWatcher(
            node,
            watched_sources(origin),
            PlanState(wanted.state_directory),
            interval_s=wanted.plan_interval_s,
            emit=log,
        )


def _feedback(wanted: Wanted, node: Node, log: EventLog) -> Feedback:
    task = Feedback(
        node,
        interval_s=wanted.feedback_interval_s,
        dry_run=wanted.dry_run,
        watch=WriterWatch(node, assume_alone=wanted.assume_alone),
        resume_after=wanted.resume_after or None,
        emit=log,
    )
    try:
        task.start()
    except OtherWriterRuns as others:
        raise OtherWriterFailure(f"the feedback does not start: {others}") from None
    return task


def _removal(wanted: Wanted, node: Node, log: EventLog) -> Task:
    from libhamiregion.agent import ApiPods, GoneRemover, KubeletPods
    from libhamiregion.node import KubernetesNames

    source: PodSource = KubeletPods(wanted.pod_logs, wanted.kubelet_pods)
    if wanted.gone_by == "api":
        try:
            names = KubernetesNames(
                wanted.node_name, kubeconfig=wanted.kubeconfig, max_age_s=API_MAX_AGE_S
            )
        except (ImportError, ValueError) as error:
            raise Failure(str(error)) from None
        source = ApiPods(names)
    return GoneRemover(
        node, source, gone_after_s=wanted.remove_after_s, dry_run=wanted.dry_run, emit=log
    )


@contextlib.contextmanager
def _exporting(
    wanted: Wanted, node: Node, sampler: NvmlSampler, runner: TaskRunner, log: EventLog
) -> Iterator[None]:
    """Serve the metrics meanwhile, if that is wanted."""
    if not wanted.listen:
        yield
        return
    from libhamiregion.exporter.listening import ListenError
    from libhamiregion.exporter.node_exporter import NodeExporter
    from libhamiregion.exporter.node_server import exporter_server
    from libhamiregion.exporter.web_config import WebConfigError

    from .service_log import log_to_stderr

    log_to_stderr("warning", as_json=wanted.as_json)
    exporter = NodeExporter(
        node,
        sampler=sampler,
        node_name=wanted.node_name,
        legacy=wanted.legacy_metrics,
        gone_after_s=wanted.gone_after_s,
        counters=runner.counters,
    )
    try:
        server = exporter_server(exporter, wanted.listen, web_config=wanted.web_config)
    except (ListenError, WebConfigError) as error:
        raise Failure(str(error)) from None
    with exporter, server:
        for url in server.urls:
            log.say("listening", f"metrics at {url}/metrics", url=url)
        yield

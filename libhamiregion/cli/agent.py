"""`hamiregion agent`: steer and repair the regions of a node for as long as it runs."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, NoReturn

import attrs
import click

from libhamiregion.agent import (
    DriverFigures,
    Feedback,
    OtherWriterRuns,
    PlanKeeper,
    RepairLoop,
    StaleDirectoryCollector,
    TaskRunner,
)
from libhamiregion.agent.roots import RootWatch
from libhamiregion.agent.tasks import run_each
from libhamiregion.node import NvmlSampler
from libhamiregion.plan import OtherKeeperRuns
from libhamiregion.units import parse_duration

from . import exporter_options, options
from .failures import FAILED, Failure
from .format import root_failure
from .service_log import ServiceLog
from .signals import end_unfinished, stop_signals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from libhamiregion.agent import Task
    from libhamiregion.node import Node

OTHER_WRITER = 3
# Between a device plugin's making a directory and kubelet's making its own.
SHORTEST_GONE_AFTER_S = 1.0
_CLOSING_S = 3.0


class OtherWriterFailure(Failure):
    """The feedback cannot start beside somebody else's: exit code 3."""

    exit_code = OTHER_WRITER


@attrs.frozen
class AgentOptions:
    """What the command line says; the fields are the options' names."""

    feedback: bool
    repair: bool
    plan_path: str | None
    from_annotations: bool
    remove_gone: bool
    remove_after: str | None
    kubelet_pods: str
    node_name: str | None
    kubeconfig: str | None
    state_directory: str | None
    listen: tuple[str, ...]
    web_config: str | None
    legacy_metrics: bool
    gone_after_s: float | None
    assume_alone: bool
    once: bool
    dry_run: bool
    library: str | None
    place: options.NodeChoice
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
            if self.once and not self.dry_run:
                raise click.UsageError("one look proves no pod gone: --remove-gone without --once")
            if self.remove_after_s < SHORTEST_GONE_AFTER_S:
                raise click.UsageError(
                    f"--gone-after (or HAMI_RESYNC_INTERVAL) is {SHORTEST_GONE_AFTER_S:g}s or more"
                )
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
    "--kubelet-pods",
    type=options.PATH,
    default="/var/lib/kubelet/pods",
    show_default=True,
    metavar="DIR",
    help="Where kubelet keeps the pods' volumes, which with --pod-logs tells which pods there are;"
    " in a pod with hostPID without a mount: /proc/1/root/var/lib/kubelet/pods.",
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
    help="For --from-annotations.  [default: the pod's service account, else kubectl's]",
)
@click.option(
    "--state",
    "state_directory",
    type=options.PATH,
    metavar="DIR",
    help="Where plans remember what was there before.  [default: as `limits apply`]",
)
@options.node_options
@click.option(
    "--assume-alone",
    is_flag=True,
    help="Start the feedback although not all processes of the node can be seen.",
)
@click.option("--once", is_flag=True, help="One pass of everything, then end.")
@options.dry_run_option
@options.library_option
@options.json_option
def agent(**given: Any) -> None:
    """Steer and repair the regions of this node for as long as it runs.

    At least one of --feedback, --repair, --remove-gone, --plan and --from-annotations says what to
    do.  With
    --listen the same process exports the node's metrics, as `hamiregion exporter` does, and the
    agent's own; /healthz then tells whether a task is stuck.

    --feedback takes the place of HAMi's monitor: where that runs, or another agent does, it does
    not start; when one appears, it stops writing and reports it, and goes on when it has gone.  It
    needs to see all processes of the node: run it on the host, or in a pod with hostPID: true.

    --remove-gone deletes files: the directories of pods that have been gone for --gone-after by all
    that can be seen, and of which no process is left.  Where that cannot be told, for want of a
    right or a mount, nothing is removed and an event says why; try it with --dry-run.

    A plan that cannot be read is reported and tried again; it keeps nothing else from running.

    Told to end (SIGTERM, Ctrl-C), it gives back what must not outlast it, within 25 seconds:
    blocked launches go on, SM switches are as they were found, and the driver's figures that it has
    written become 0.  What could not be given back is in the last lines.  Killed, it leaves all of
    it; the next start puts it right.

    \b
    hamiregion agent --feedback --repair --root /usr/local/vgpu/containers
    hamiregion agent --repair --once --dry-run

    One line per event, 500 characters at most, on stderr; with --once on stdout.  What repeats is
    reported the 1st, 2nd, 4th, 8th ... time.  Exit codes: 0 ended in order, 1 failed (with --once:
    a pass did, or no directory given could be listed; else: something was not given back, or
    another process keeps this node on a plan), 2 wrong usage, 3 somebody else writes the feedback
    on this node.

    JSON: one object per event, with the keys time_s (Unix seconds), task, event, message,
    container (null if it is about none) and detail, an object of figures by name.
    """  # noqa: D301 (click looks for the character itself)
    wanted = AgentOptions(**given)
    wanted.check()
    with stop_signals(bounded=True) as stop:
        log = ServiceLog(as_json=wanted.as_json, lost=stop.ask, on_stdout=wanted.once)
        log.capture_logging("warning")
        # Neither is closed: a driver that does not answer would keep this from ending.
        node = wanted.place.open()
        sampler = NvmlSampler(wanted.library, sensors=bool(wanted.listen))
        tasks = list(_tasks(wanted, node, sampler, log))
        runner = TaskRunner([RootWatch(node, emit=log), *tasks], emit=log)
        refusals: list[Exception] = []

        def begin() -> None:
            try:
                runner.prepare()
                names = ", ".join(task.name for task in tasks)
                dry = " (dry run: nothing is written)" if wanted.dry_run else ""
                log.emit("agent", "started", f"{names}{dry}", pid=os.getpid())
                runner.start(once=wanted.once, finished=stop.ask)
            except Exception as error:  # noqa: BLE001 (raised again in the main thread)
                refusals.append(error)
                stop.ask()

        closers = _export(wanted, node, sampler, runner, log)
        # In a thread, so that a signal is heard whatever hangs.
        threading.Thread(target=begin, name="hami-start", daemon=True).start()
        stop.wait()
        left = runner.stop()
        if run_each(lambda close: close(), closers, _CLOSING_S):
            left = (*left, "exporter: a refresh does not end")
        if not refusals:
            log.emit("agent", "stopped", "not in order" if left else "ended in order")
    for refusal in refusals:
        _refuse(refusal)
    if log.is_lost:
        raise SystemExit(FAILED)
    if left:
        end_unfinished(left)
    if wanted.once:
        _check_passes(wanted, node, runner)


def _refuse(error: Exception) -> NoReturn:
    if isinstance(error, OtherWriterRuns):
        raise OtherWriterFailure(f"the feedback does not start: {error}") from None
    if isinstance(error, OtherKeeperRuns):
        raise Failure(str(error)) from None
    raise error


def _check_passes(wanted: AgentOptions, node: Node, runner: TaskRunner) -> None:
    if runner.failures:
        raise Failure(f"{runner.failures} of {len(runner.tasks)} passes failed; the events say why")
    failure = root_failure(node, wanted.place.roots)
    if failure is not None:
        raise Failure(failure)


def _tasks(
    wanted: AgentOptions, node: Node, sampler: NvmlSampler, log: ServiceLog
) -> Iterator[Task]:
    dry_run = wanted.dry_run
    if wanted.feedback:
        yield Feedback(node, dry_run=dry_run, assume_alone=wanted.assume_alone, emit=log)
    if wanted.repair:
        yield RepairLoop(node, dry_run=dry_run, emit=log)
        yield DriverFigures(node, sampler, dry_run=dry_run, emit=log)
    if wanted.remove_gone:
        yield StaleDirectoryCollector(
            node,
            pod_logs=wanted.place.pod_logs,
            kubelet_pods=wanted.kubelet_pods,
            gone_after_s=wanted.remove_after_s,
            dry_run=dry_run,
            emit=log,
        )
    if wanted.plan:
        from libhamiregion.plan import PlanWatcher

        from .limits_plan import PlanChoice

        choice = PlanChoice(
            wanted.plan_path, wanted.from_annotations, wanted.node_name, wanted.kubeconfig
        )
        yield PlanKeeper(PlanWatcher(node, choice.sources(), wanted.state_directory, emit=log))


def _export(
    wanted: AgentOptions, node: Node, sampler: NvmlSampler, runner: TaskRunner, log: ServiceLog
) -> tuple[Callable[[], None], ...]:
    """Serve the metrics from now on, if that is wanted; returns what ends it."""
    if not wanted.listen:
        return ()
    from libhamiregion.exporter import (
        ListenError,
        NodeExporter,
        WebConfigError,
        exporter_server,
    )

    def stuck() -> str | None:
        names = runner.stuck()
        return f"stuck: {', '.join(names)}" if names else None

    exporter = NodeExporter(
        node,
        sampler=sampler,
        node_name=wanted.node_name,
        legacy=wanted.legacy_metrics,
        gone_after_s=wanted.gone_after_s,
        counters=runner.counters,
    )
    try:
        server = exporter_server(
            exporter, wanted.listen, web_config=wanted.web_config, healthy=stuck
        )
    except (ListenError, WebConfigError) as error:
        raise Failure(str(error)) from None
    exporter.start()
    server.start()
    for url in server.urls:
        log.emit("agent", "listening", f"metrics at {url}/metrics", url=url)
    return (server.stop, exporter.stop)

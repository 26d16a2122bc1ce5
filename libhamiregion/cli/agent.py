"""`hamiregion agent`: steer and repair the regions of a node for as long as it runs."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import click

from libhamiregion.agent import (
    DriverFigures,
    Feedback,
    OtherWriterRuns,
    RepairLoop,
    TaskRunner,
    WriterWatch,
)
from libhamiregion.host import NvmlSampler

from . import node_options, options
from .agent_log import EventLog
from .failures import FAILED, Failure
from .stopping import stop_signals

if TYPE_CHECKING:
    from libhamiregion.agent import Task
    from libhamiregion.host import Node

OTHER_WRITER = 3


class OtherWriterFailure(Failure):
    """The feedback cannot start beside somebody else's: exit code 3."""

    exit_code = OTHER_WRITER


def _interval(name: str, seconds: float, what: str) -> object:
    return click.option(
        f"--{name}-interval",
        f"{name}_interval_s",
        type=options.Seconds(min=0.01, max=86_400),
        default=seconds,
        show_default=True,
        metavar="SECONDS",
        help=what,
    )


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
    type=click.Path(path_type=str),
    metavar="FILE",
    help="Keep the limits of this node on a plan, as `hamiregion limits apply --watch` does.",
)
@click.option(
    "--from-annotations",
    is_flag=True,
    help="Take hamiregion.io/... annotations of this node's pods as a plan, after FILE's rules.",
)
@click.option(
    "--node",
    "node_name",
    envvar="NODE_NAME",
    metavar="NAME",
    help="For --from-annotations: this node's name.  [default: $NODE_NAME]",
)
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=str),
    metavar="FILE",
    help="For --from-annotations.  [default: the pod's service account, else kubectl's]",
)
@click.option(
    "--state",
    "state_directory",
    type=click.Path(path_type=str),
    metavar="DIR",
    help="Where the plan's journal and undo plans are.  [default: as `limits apply`]",
)
@node_options.root_option
@_interval("feedback", 5.0, "Between two passes of the feedback; HAMi's is 5.")
@_interval("repair", 10.0, "Between two passes of the repair.")
@_interval("figures", 5.0, "Between two looks at the driver's figures.")
@_interval("plan", 5.0, "Between two looks at the plan and what it says about.")
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
def agent(
    feedback: bool,
    repair: bool,
    plan_path: str | None,
    from_annotations: bool,
    node_name: str | None,
    kubeconfig: str | None,
    state_directory: str | None,
    roots: tuple[str, ...],
    feedback_interval_s: float,
    repair_interval_s: float,
    figures_interval_s: float,
    plan_interval_s: float,
    figures: bool,
    resume_after: int,
    assume_alone: bool,
    once: bool,
    timeout_s: float,
    dry_run: bool,
    library: str | None,
    proc: str,
    pod_logs: str,
    as_json: bool,
) -> None:
    """Steer and repair the regions of this node for as long as it runs.

    At least one of --feedback, --repair, --plan and --from-annotations says what to do.

    Without --root, regions outside HAMi's directories are included, such as those of containers
    that plain Docker has started: found through the processes that map them.

    --feedback takes the place of HAMi's monitor: where that runs, or another agent does, it does
    not start; when one appears, it stops writing and says so, and goes on when it has gone (see
    --resume-after).  It needs to see all processes of the node: run it on the host, or in a pod
    with hostPID: true.

    Told to end (SIGTERM, Ctrl-C), it takes back what must not outlast it: blocked launches go on,
    and SM switches are as they were found.  Killed, it leaves them; the next start puts them
    right.

    \b
    hamiregion agent --feedback --repair
    hamiregion agent --repair --once --dry-run

    One line per event on stdout.  Exit codes: 0 ended in order, 1 failed (with --once: a pass
    did), 2 wrong usage, 3 somebody else writes the feedback on this node.

    JSON: one object per event, with the keys time_s (Unix seconds), task, event, message,
    container (null if it is about none) and detail, an object of figures by name.
    """  # noqa: D301 (click looks for the character itself)
    planned = plan_path is not None or from_annotations
    if not (feedback or repair or planned):
        raise click.UsageError("name what to do: --feedback, --repair, --plan FILE")
    if planned and dry_run:
        raise click.UsageError("what a plan would change is shown by `hamiregion limits diff`")
    with contextlib.ExitStack() as stack:
        stop = stack.enter_context(stop_signals())
        log = EventLog(stop.ask, as_json=as_json)
        # Who names a directory means that one, and no region that some process has elsewhere.
        node = stack.enter_context(node_options.open_node(roots, proc, pod_logs, outside=not roots))
        tasks: list[Task] = []
        if feedback:
            tasks.append(
                _feedback(
                    node,
                    log,
                    interval_s=feedback_interval_s,
                    dry_run=dry_run,
                    resume_after=resume_after or None,
                    assume_alone=assume_alone,
                )
            )
        if repair:
            tasks.append(
                RepairLoop(
                    node,
                    interval_s=repair_interval_s,
                    dry_run=dry_run,
                    timeout_s=timeout_s,
                    emit=log,
                )
            )
            if figures:
                tasks.append(
                    DriverFigures(
                        node,
                        stack.enter_context(NvmlSampler(library)),
                        interval_s=figures_interval_s,
                        dry_run=dry_run,
                        timeout_s=timeout_s,
                        emit=log,
                    )
                )
        if planned:
            from libhamiregion.agent.plan_state import PlanState
            from libhamiregion.agent.plan_watch import PlanWatcher

            from .limits_plan import Origin, watched_sources

            origin = Origin(plan_path, from_annotations, node_name, kubeconfig)
            tasks.append(
                PlanWatcher(
                    node,
                    watched_sources(origin),
                    PlanState(state_directory),
                    interval_s=plan_interval_s,
                    emit=log,
                )
            )
        runner = TaskRunner(tasks, emit=log)
        names = ", ".join(task.name for task in tasks)
        log.say(
            "started",
            f"{names}{' (dry run: nothing is written)' if dry_run else ''}",
            pid=os.getpid(),
        )
        if once:
            failed = runner.run_once()
        else:
            runner.start()
            try:
                stop.wait()
            finally:
                runner.stop()
            failed = 0
        log.say("stopped", "ended in order", **runner.counters())
        if log.is_lost:
            raise SystemExit(FAILED)
    if failed:
        raise Failure(f"{failed} of {len(tasks)} passes failed; the events say why")


def _feedback(
    node: Node,
    log: EventLog,
    *,
    interval_s: float,
    dry_run: bool,
    resume_after: int | None,
    assume_alone: bool,
) -> Feedback:
    task = Feedback(
        node,
        interval_s=interval_s,
        dry_run=dry_run,
        watch=WriterWatch(node, assume_alone=assume_alone),
        resume_after=resume_after,
        emit=log,
    )
    try:
        task.start()
    except OtherWriterRuns as others:
        raise OtherWriterFailure(f"the feedback does not start: {others}") from None
    return task

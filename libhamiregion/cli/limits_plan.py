"""`hamiregion limits diff`, `apply` and `export`: limits by plan, over a whole node."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

import attrs
import click

from libhamiregion.agent import PlanKeeper, TaskRunner
from libhamiregion.agent.roots import RootWatch
from libhamiregion.plan.apply import PlanApplier
from libhamiregion.plan.diff import diff_plan
from libhamiregion.plan.journal import RecoveryOutcome, unfinished
from libhamiregion.plan.limit_plan import PlanError, load_plan, plan_document, plan_text
from libhamiregion.plan.pods import PodApiError, PodWatch
from libhamiregion.plan.sources import FixedPlan, PlanFile, PodAnnotations, SeveralSources
from libhamiregion.plan.state import PlanState
from libhamiregion.plan.undo import export_plan
from libhamiregion.plan.watch import PlanWatcher
from libhamiregion.text import printable

from . import node_options, options
from .failures import FAILED, Failure
from .limits_plan_tables import diff_object, outcome_objects, say_diff, say_outcomes
from .node_words import root_failure, root_warnings
from .output import as_plain, write, write_json
from .service_log import ServiceLog
from .signals import stop_signals

if TYPE_CHECKING:
    from collections.abc import Iterator

    from libhamiregion.node.node import Node
    from libhamiregion.plan.diff import PlanDiff
    from libhamiregion.plan.sources import PlanSource, SourceReading

OFF_PLAN = 3


class InvalidPlan(click.ClickException):
    """The plan cannot be used: exit code 2, one line per problem."""

    exit_code = 2


@attrs.frozen
class Origin:
    """Where a plan comes from, as the command line says."""

    path: str | None
    from_annotations: bool
    node_name: str | None
    kubeconfig: str | None

    def pods(self) -> PodWatch:
        """The watch of this node's pods.

        Raises:
            click.UsageError: No node was named.
        """
        if self.node_name is None:
            raise click.UsageError(
                "--from-annotations asks for the pods of one node: name it with --node or NODE_NAME"
            )
        return PodWatch(self.node_name, kubeconfig=self.kubeconfig)


def plan_options(command: Any) -> Any:
    """Add the options that choose a plan and a node."""
    for option in (
        options.no_color_option,
        options.json_option,
        click.option(
            "--state",
            "state_directory",
            type=options.PATH,
            metavar="DIR",
            help="Where the journal and undo plans are."
            "  [default: $HAMIREGION_STATE, /var/lib/hamiregion for root, else"
            " ~/.local/state/hamiregion]",
        ),
        node_options.pod_logs_option,
        node_options.root_option,
        click.option(
            "--force", is_flag=True, help="Also set memory limits below what is used now."
        ),
        click.option(
            "--kubeconfig",
            type=options.PATH,
            metavar="FILE",
            help="For --from-annotations.  [default: the pod's service account, else kubectl's]",
        ),
        click.option(
            "--node",
            "node_name",
            envvar="NODE_NAME",
            metavar="NAME",
            help="For --from-annotations: this node's name.  [default: $NODE_NAME]",
        ),
        click.option(
            "--from-annotations",
            is_flag=True,
            help="Take hamiregion.io/... annotations of this node's pods as rules, after PLAN's.",
        ),
        click.argument("path", metavar="[PLAN]", required=False, type=options.PATH),
    ):
        command = option(command)
    return command


@click.command()
@plan_options
def diff(
    path: str | None,
    from_annotations: bool,
    node_name: str | None,
    kubeconfig: str | None,
    force: bool,
    roots: tuple[str, ...],
    pod_logs: str,
    state_directory: str | None,
    as_json: bool,
) -> int:
    """Show what PLAN, a YAML or JSON file, would change on this node.  Nothing is changed.

    Exit codes: 0 all is as the plan says, 1 failed, 2 the plan or the command is wrong, 3
    something would be changed, or is left as it is although the plan says otherwise.

    JSON: kept (values that stand as the plan says), changes, skipped, unused_rules, overrides and
    problems (of annotations).  A change has the keys pod_uid, namespace, pod, container,
    region_path, refused, and edits, a list with field, device, before, after (bytes, percent or
    priority; null is unlimited), effect and rule (its index in the plan).
    """
    origin = _origin(path, from_annotations, node_name, kubeconfig)
    reading = _read(origin)
    with node_options.open_node(roots, "/proc", pod_logs) as node:
        _look(node, roots)
        found = _compared(node, reading, force=force)
        state = PlanState(state_directory)
        if not as_json:
            _say_others(state)
            _say_problems(reading)
        if as_json:
            write_json({**diff_object(found), "problems": dict(reading.problems)})
        else:
            say_diff(found)
    calm = not found.changes and not found.off_plan and not reading.problems
    return 0 if calm else OFF_PLAN


@click.command()
@plan_options
@options.dry_run_option
@click.option(
    "--undo",
    type=options.PATH,
    metavar="FILE",
    help="Where to write the plan that restores what was there; a new file.  [default: in --state]",
)
@click.option("--watch", is_flag=True, help="Stay, and keep this node on the plan.")
@click.option(
    "--interval",
    "interval_s",
    type=options.Seconds(min=0.05, max=86_400),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="With --watch: how often to look.",
)
@click.option(
    "--keep", is_flag=True, help="With --watch: leave what the plan names no longer as it is."
)
def apply(
    path: str | None,
    from_annotations: bool,
    node_name: str | None,
    kubeconfig: str | None,
    force: bool,
    roots: tuple[str, ...],
    pod_logs: str,
    state_directory: str | None,
    as_json: bool,
    dry_run: bool,
    undo: str | None,
    watch: bool,
    interval_s: float,
    keep: bool,
) -> int:
    """Set the limits of this node's containers as PLAN, a YAML or JSON file, says.

    \b
    hamiregion limits apply plan.yaml --dry-run
    hamiregion limits apply plan.yaml --undo before.yaml --root DIR
    hamiregion limits apply plan.yaml --watch --root /usr/local/vgpu/containers
    hamiregion limits apply --from-annotations --watch --root DIR

    Each container is changed wholly or not at all, and only if it is as shown.  Before the first
    change a plan that restores what was there is written.  If the command is killed in the middle
    of a container, another process finishes it, or the next apply.

    --watch keeps the node on the plan: when the file changes, a container comes or restarts, or
    somebody edits a limit.  What the plan names no longer goes back to what it was.  A plan that
    becomes wrong is said, and the last good one stays in force.  Ends by Ctrl-C or SIGTERM.

    Exit codes: 0 all is as the plan says, 1 failed, 2 the plan or the command is wrong, 3 a
    container was left as it was, because it refused or could not be reached.

    JSON: the keys of `diff`, and dry_run, undo (a path), recovered, and outcomes, a list with
    pod_uid, namespace, pod, container, region_path, status (applied, conflict, refused or failed)
    and message.  With --watch one event per line, as `hamiregion agent` has them: time_s, task,
    event, message, container and detail.
    """  # noqa: D301 (click looks for the character itself)
    if watch and (dry_run or undo is not None):
        raise click.UsageError("--watch goes with neither --dry-run nor --undo.")
    if keep and not watch:
        raise click.UsageError("--keep goes with --watch: without it nothing is put back.")
    if undo is not None:
        _check_new(undo, path)
    origin = _origin(path, from_annotations, node_name, kubeconfig)
    state = PlanState(state_directory)
    if watch:
        _watch(origin, state, roots, pod_logs, interval_s, force=force, keep=keep, as_json=as_json)
        return 0
    reading = _read(origin)
    if not as_json:
        _say_problems(reading)
    with node_options.open_node(roots, "/proc", pod_logs) as node:
        if dry_run:
            return _dry_run(node, reading, roots, state, force=force, as_json=as_json)
        with PlanApplier(node, state, force=force, guard=True) as applier:
            _look(node, roots)
            found = _compared(node, reading, force=force)
            if not as_json:
                _say_others(state)
                say_diff(found)
            result = applier.apply(found, undo=undo)
    recovered = [
        each
        for each in applier.recovered
        if each.outcome not in {RecoveryOutcome.OLD, RecoveryOutcome.NEW}
    ]
    if as_json:
        write_json(
            {
                **diff_object(found),
                "problems": dict(reading.problems),
                "dry_run": False,
                "undo": result.undo_path,
                "recovered": [as_plain(each) for each in recovered],
                "outcomes": outcome_objects(result),
            }
        )
    else:
        for each in recovered:
            write(f"an earlier apply was killed: {each.message}\n")
        say_outcomes(result)
    return 0 if result.all_applied and not found.off_plan and not reading.problems else OFF_PLAN


@click.command()
@node_options.selector_options
@node_options.root_option
@node_options.pod_logs_option
@options.json_option
@options.no_color_option
def export(
    namespace: str | None,
    pod: str | None,
    container: str | None,
    device: str | None,
    roots: tuple[str, ...],
    pod_logs: str,
    as_json: bool,
) -> None:
    """Write the limits of this node's containers as they are, as a plan.

    A rule names each container by its pod's UID and its own name, and each device by its index.
    YAML, or with --json JSON; both are what `apply` and `diff` read.
    """
    chosen = node_options.selector(namespace, pod, container, device)
    with node_options.open_node(roots, "/proc", pod_logs) as node:
        _look(node, roots)
        plan = export_plan(node, chosen)
    if as_json:
        write_json(plan_document(plan))
    else:
        write(plan_text(plan))


def _origin(
    path: str | None, from_annotations: bool, node_name: str | None, kubeconfig: str | None
) -> Origin:
    if path is None and not from_annotations:
        raise click.UsageError("Say which plan: a FILE, --from-annotations, or both.")
    return Origin("/dev/stdin" if path == "-" else path, from_annotations, node_name, kubeconfig)


def _check_new(undo: str, plan: str | None) -> None:
    """Refuse to write an undo plan over anything.

    An earlier undo plan is the only way back to what was there before, and a second one knows only
    what has changed since.

    Raises:
        click.UsageError: Something is there.
    """
    if not os.path.lexists(undo):
        return
    with contextlib.suppress(OSError):
        if plan is not None and os.path.samefile(undo, plan):  # noqa: PTH121
            raise click.UsageError(f"--undo {undo} is the plan itself; name a new file.")
    raise click.UsageError(
        f"--undo {undo} is there already, and may be what undoes an earlier plan; name a new file."
    )


def _read(origin: Origin) -> SourceReading:
    """Read the plan, once.

    Raises:
        InvalidPlan: It cannot be used.
        Failure: The Kubernetes API cannot be asked.
    """
    sources: list[PlanSource] = []
    if origin.path is not None:
        with _usable():
            sources.append(FixedPlan(load_plan(origin.path)))
    if origin.from_annotations:
        pods = origin.pods()
        try:
            pods.load()
        except PodApiError as error:
            raise Failure(f"the pods of this node cannot be listed: {error}") from None
        sources.append(PodAnnotations(pods))
    return SeveralSources(sources).read()


@contextlib.contextmanager
def _usable() -> Iterator[None]:
    try:
        yield
    except PlanError as error:
        raise InvalidPlan(f"the plan cannot be used\n{error}") from None


def _look(node: Node, roots: tuple[str, ...]) -> None:
    node.refresh(processes=False)
    for warning in root_warnings(node):
        click.echo(f"Warning: {printable(warning)}", err=True)
    if node.scanned_roots:
        return
    failure = root_failure(node, roots) or f"there is none of {', '.join(node.roots)}"
    raise Failure(f"{printable(failure)}; --root says where the containers' directories are")


def _compared(node: Node, reading: SourceReading, *, force: bool) -> PlanDiff:
    assert reading.plan is not None  # noqa: S101 (each source was read to its end)
    return diff_plan(node, reading.plan, force=force, held=reading.held)


def _say_others(state: PlanState) -> None:
    """Say who else has to do with the limits of this node."""
    left = len(unfinished(state))
    if left:
        click.echo(
            f"Note: an apply has not come to its end in {left} containers; it is at work now, or"
            " was killed, and the next one finishes it.",
            err=True,
        )
    pid = state.watcher_pid()
    if pid is not None:
        who = f"process {pid}" if pid else "a process"
        click.echo(
            f"Note: {who} keeps this node on a plan (--watch), and sets what differs from it.",
            err=True,
        )


def _say_problems(reading: SourceReading) -> None:
    for about, message in reading.problems.items():
        click.echo(f"Warning: {printable(f'{about}: {message}')}", err=True)


def _dry_run(
    node: Node,
    reading: SourceReading,
    roots: tuple[str, ...],
    state: PlanState,
    *,
    force: bool,
    as_json: bool,
) -> int:
    _look(node, roots)
    found = _compared(node, reading, force=force)
    if as_json:
        problems = dict(reading.problems)
        write_json({**diff_object(found), "problems": problems, "dry_run": True, "outcomes": []})
    else:
        _say_others(state)
        say_diff(found)
        write("dry run: nothing was written\n")
    return OFF_PLAN if found.off_plan or reading.problems else 0


def watched_sources(origin: Origin, *, check: bool = True) -> SeveralSources:
    """The plan as it is now and will be; the watch of pods has begun.

    Args:
        origin: Where the plan comes from.
        check: Refuse a file that cannot be used now; else each pass tries it again.

    Raises:
        InvalidPlan: The file cannot be used now.
        OSError: The file cannot be read now.
        click.UsageError: No node was named for the annotations.
    """
    sources: list[PlanSource] = []
    if origin.path is not None:
        file = PlanFile(origin.path)
        if check:
            with _usable():
                file.load()
        sources.append(file)
    if origin.from_annotations:
        pods = origin.pods()
        pods.start()
        sources.append(PodAnnotations(pods))
    return SeveralSources(sources)


def _watch(
    origin: Origin,
    state: PlanState,
    roots: tuple[str, ...],
    pod_logs: str,
    interval_s: float,
    *,
    force: bool,
    keep: bool,
    as_json: bool,
) -> None:
    with (
        stop_signals(bounded=True) as stop,
        node_options.open_node(roots, "/proc", pod_logs) as node,
    ):
        log = ServiceLog(as_json=as_json, lost=stop.ask)
        watcher = PlanWatcher(
            node,
            watched_sources(origin),
            state,
            force=force,
            restore=not keep,
            emit=log,
        )
        keeper = PlanKeeper(watcher)
        keeper.interval_s = interval_s
        runner = TaskRunner([RootWatch(node, emit=log), keeper], emit=log)
        left: tuple[str, ...] = ()
        try:
            # Here, so that what cannot work at all is a failure of the command.
            watcher.run()
            runner.start()
            stop.wait()
        finally:
            left = runner.stop()
        if log.is_lost:
            raise SystemExit(FAILED)
        if left:
            raise Failure("; ".join(left))

"""`hamiregion limits diff`, `apply` and `export`: limits by plan, over a whole node."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import attrs
import click

from libhamiregion.node.containers import MissingReason
from libhamiregion.node.node_lock import LockUse, is_node_locked
from libhamiregion.plan import (
    PlanError,
    PlanFile,
    PlanReconciler,
    PodAnnotations,
    PodApiError,
    apply_diff,
    diff_plan,
    export_plan,
    load_plan,
    plan_text,
)
from libhamiregion.plan.reconcile import SourceReading, join_readings
from libhamiregion.text import printable

from . import options
from .failures import PROBLEMS, USAGE, Failure
from .help import Verb
from .limits_plan_tables import diff_blocks, diff_object, outcome_objects, result_lines
from .node_page import node_warnings
from .output import DRY_RUN, Page, show, write
from .tables import Lines

if TYPE_CHECKING:
    from libhamiregion.node import Node, Selector
    from libhamiregion.plan import LimitPlan, PlanDiff
    from libhamiregion.plan.reconcile import PlanSource

    from .service_log import ServiceLog
    from .tables import Block


class InvalidPlan(click.ClickException):
    """The plan cannot be used: exit code 2, one line per problem."""

    exit_code = USAGE


@attrs.frozen
class PlanChoice:
    """The plan that the command line names."""

    path: str | None
    from_annotations: bool
    node_choice: options.NodeChoice

    def __attrs_post_init__(self) -> None:
        if self.path is None and not self.from_annotations:
            raise click.UsageError("Say which plan: a FILE, --from-annotations, or both.")
        if self.from_annotations and self.node_choice.node_name is None:
            raise click.UsageError(
                "--from-annotations asks for the pods of one node: name it with --node or NODE_NAME"
            )

    def sources(self) -> list[PlanSource]:
        """The plan as it is and will be; the watch of pods has begun. A bad plan is no failure."""
        sources: list[PlanSource] = []
        if self.path is not None:
            sources.append(PlanFile(self.path))
        if self.from_annotations:
            pods = self._pods()
            pods.start()
            sources.append(pods)
        return sources

    def load(self) -> SourceReading:
        """Read the plan, once.

        Raises:
            InvalidPlan: It cannot be used.
            Failure: The Kubernetes API cannot be asked.
        """
        readings = []
        if self.path is not None:
            readings.append(SourceReading(self.load_file()))
        if self.from_annotations:
            pods = self._pods()
            try:
                pods.load()
            except PodApiError as error:
                raise Failure(f"the pods of this node cannot be listed: {error}") from None
            readings.append(pods.read())
        return join_readings(readings)

    def load_file(self) -> LimitPlan:
        """Read the plan's file.

        Raises:
            InvalidPlan: It cannot be used.
        """
        try:
            return load_plan("/dev/stdin" if self.path == "-" else str(self.path))
        except PlanError as error:
            raise InvalidPlan(f"the plan cannot be used\n{error}") from None

    def _pods(self) -> PodAnnotations:
        return PodAnnotations(pods=self.node_choice.pods())


annotations_option = click.option(
    "--from-annotations",
    is_flag=True,
    help="Take annotations of this node's pods as rules, after PLAN.",
)
state_option = click.option(
    "--state",
    type=options.PATH,
    metavar="DIR",
    help="Where undo plans are, and what was there before a plan that is kept."
    "  [default: $HAMIREGION_STATE, /var/lib/hamiregion for root, else ~/.local/state/hamiregion]",
)
plan_options = options.all_of(
    click.argument("path", metavar="[PLAN]", required=False, type=options.PATH),
    annotations_option,
    click.option(
        "--force",
        is_flag=True,
        help="Also set memory limits below what is used now, and SM limits that stop what runs.",
    ),
    options.directory_options,
    options.json_option,
)


@click.command(
    cls=Verb,
    examples=[
        "hamiregion limits diff plan.yaml",
        "hamiregion limits diff --from-annotations --node gpu-1",
    ],
)
@plan_options
def diff(
    path: str | None,
    *,
    from_annotations: bool,
    node_choice: options.NodeChoice,
    force: bool,
    as_json: bool,
) -> int:
    """Show what PLAN, a YAML or JSON file, would change on this node.  Nothing is changed.

    Exit codes: 0 all is as the plan says, 1 failed, 2 the plan or the command is wrong, 3
    something would be changed, or is left as it is although the plan says otherwise.

    JSON: changes, skipped, unused_rules and problems (of annotations).  A change has the keys
    pod_uid, namespace, pod, container, region_path, refused, and edits, a list with field, device,
    before, after (bytes, percent or priority; null is unlimited), effect and rule (its index in the
    plan).
    """
    reading = PlanChoice(path, from_annotations, node_choice).load()
    with node_choice.open() as node:
        found = _compared(node, reading, force=force)
        show(_page(node, reading, found), as_json)
    return PROBLEMS if found.changes or found.unapplied or reading.problems else 0


@click.command(
    cls=Verb,
    examples=[
        "hamiregion limits apply plan.yaml --dry-run",
        "hamiregion limits apply plan.yaml --watch",
    ],
    brief={"State": ("state", "undo", "interval_s")},
)
@plan_options
@options.dry_run_option
@state_option
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
def apply(
    path: str | None,
    *,
    from_annotations: bool,
    node_choice: options.NodeChoice,
    force: bool,
    as_json: bool,
    dry_run: bool,
    state: str | None,
    undo: str | None,
    watch: bool,
    interval_s: float,
) -> int:
    """Set the limits of this node's containers as PLAN, a YAML or JSON file, says.

    \b
    hamiregion limits apply plan.yaml --dry-run
    hamiregion limits apply plan.yaml --undo before.yaml --root DIR
    hamiregion limits apply plan.yaml --watch --root /usr/local/vgpu/containers
    hamiregion limits apply --from-annotations --watch --root DIR

    Each container is changed wholly or not at all, and only if it is as shown.  Before the first
    change a plan is written that restores what was there.  Killed on the way, the same command
    again does the rest, and the undo plan puts all back.

    With --watch the node is kept on the plan, which is read again when it changes; what the plan
    names no longer goes back to what it was.  One process keeps a node on a plan: a second one is
    refused.  Told to end (SIGTERM, Ctrl-C), limits stay as they are; undo-watch.yaml in --state
    puts everything back.

    Exit codes: 0 done, 1 failed, 2 the plan or the command is wrong and nothing was changed, 3 a
    container was left as it was, because it refused or could not be reached.

    JSON: the keys of `diff`, and dry_run, undo (a path) and outcomes, a list with pod_uid,
    namespace, pod, container, region_path, status (applied, conflict, refused or failed) and
    message.  With --watch one event per line on stderr, as `hamiregion agent` has them: time_s,
    task, event, message, container and detail.
    """  # noqa: D301 (click looks for the character itself)
    source = click.get_current_context().get_parameter_source("interval_s")
    if not watch and source is click.core.ParameterSource.COMMANDLINE:
        raise click.UsageError("--interval goes with --watch: without it the plan is applied once.")
    if watch and (dry_run or undo is not None):
        raise click.UsageError("--watch goes with neither --dry-run nor --undo.")
    if watch and path == "-":
        raise click.UsageError("--watch reads the plan again and again: name a file, not -.")
    if undo is not None and os.path.lexists(undo):
        raise click.UsageError(
            f"--undo {undo} is there already, and may be what undoes an earlier plan;"
            " name a new file."
        )
    choice = PlanChoice(path, from_annotations, node_choice)
    with node_choice.open() as node:
        if watch:
            _watch(node, choice, state, interval_s, force=force, as_json=as_json)
            return 0
        reading = choice.load()
        found = _compared(node, reading, force=force)
        page = _page(node, reading, found)
        done: Block = Lines([DRY_RUN])
        answer: dict[str, Any] = {"dry_run": True, "undo": None, "outcomes": []}
        is_complete = not found.unapplied and not reading.problems
        if not dry_run:
            result = apply_diff(node, found, undo=undo, state=state, force=force)
            done = result_lines(found, result)
            outcomes = outcome_objects(result)
            answer = {"dry_run": False, "undo": result.undo_path, "outcomes": outcomes}
            is_complete = is_complete and result.all_applied
    data = {**page.data, **answer}
    show(
        attrs.evolve(page, schema="plan-result/1", data=data, blocks=[*page.blocks, done]), as_json
    )
    return 0 if is_complete else PROBLEMS


@click.command(
    cls=Verb,
    examples=[
        "hamiregion limits export > plan.yaml",
        "hamiregion limits export --namespace research --json",
    ],
)
@options.selector_options
@options.directory_options
@options.json_option
def export(selector: Selector, node_choice: options.NodeChoice, as_json: bool) -> None:
    """Write the limits of this node's containers as they are, as a plan.

    A rule names each container by its pod's UID and its own name, and each device by its index.
    YAML, or with --json JSON; both are what `apply` and `diff` read.  A container whose region
    cannot be read is left out, which a warning says.
    """
    with node_choice.open() as node:
        _refresh(node)
        plan = export_plan(node, selector)
        for warning in (*node_warnings(node), *_left_out(node, selector)):
            click.echo(f"Warning: {printable(warning)}", err=True)
    write(plan_text(plan, as_json=as_json))


def _left_out(node: Node, selector: Selector) -> tuple[str, ...]:
    """How many containers an export leaves out; one that has no region has no limits."""
    count = sum(
        each.directory is not None
        and each.missing is not None
        and each.missing.reason is not MissingReason.NO_FILE
        and selector.matches(each)
        for each in node.containers
    )
    if not count:
        return ()
    why = "`hamiregion containers` says why"
    return (f"containers left out, as their regions cannot be read: {count}; {why}",)


def _refresh(node: Node) -> None:
    node.refresh(processes=False)
    if node.root_problem is not None:
        raise Failure(f"{node.root_problem}; name it with --root")


def _compared(node: Node, reading: SourceReading, *, force: bool) -> PlanDiff:
    _refresh(node)
    assert reading.plan is not None  # noqa: S101 (each source was read to its end)
    return diff_plan(node, reading.plan, force=force, held=reading.held)


def _page(node: Node, reading: SourceReading, found: PlanDiff) -> Page:
    assert reading.plan is not None  # noqa: S101 (each source was read to its end)
    problems = tuple(f"{about}: {message}" for about, message in reading.problems.items())
    kept = "another process keeps this node on a plan, and sets back what differs from it"
    return Page(
        "plan-diff/1",
        {**diff_object(found), "problems": dict(reading.problems)},
        diff_blocks(found, reading.plan),
        notes=(kept,) if is_node_locked(node.directories, LockUse.PLAN) else (),
        warnings=(*node_warnings(node), *problems),
    )


def _watch(
    node: Node,
    choice: PlanChoice,
    state: str | None,
    interval_s: float,
    *,
    force: bool,
    as_json: bool,
) -> None:
    # With its threads only where a plan is watched.
    from libhamiregion.agent import PlanKeeper

    from .service import run_service

    if choice.path is not None:
        # Somebody is there to correct it; later a bad plan is reported and the last one stays.
        choice.load_file()

    def tasks(log: ServiceLog) -> list[PlanKeeper]:
        keeper = PlanKeeper(PlanReconciler(node, choice.sources(), state, force=force, emit=log))
        keeper.interval_s = interval_s
        return [keeper]

    run_service("plan", node, tasks, as_json=as_json)

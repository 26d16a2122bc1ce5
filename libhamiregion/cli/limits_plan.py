"""`hamiregion limits diff` and `apply`: limits by plan, over a whole node."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import attrs
import click

from libhamiregion.node import Container, Node, NvmlSampler, Observer
from libhamiregion.node.node_lock import LockUse, is_node_locked
from libhamiregion.plan import (
    KubernetesError,
    NodePods,
    PlanError,
    PlanFile,
    PodAnnotations,
    apply_diff,
    diff_plan,
    load_plan,
)
from libhamiregion.plan.annotations import DEFAULT_MAXIMUM_PERCENT
from libhamiregion.plan.diff import ContainerDiff, PlannedEdit, Unapplied, equal_edits, value_words
from libhamiregion.plan.reconcile import PlanSource, SourceReading, join_readings
from libhamiregion.text import count_text
from libhamiregion.units import memory_limit_percent

from . import options
from .failures import DONE, PROBLEMS, USAGE, Failure, failures_of
from .help import verb
from .names import Names, name_columns, name_texts, names_of, some
from .output import DRY_RUN, Answer
from .tables import CRITICAL, DIM, UNLIMITED, WARN, Block, Column, Lines, Page, Table
from .views import node_warnings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from libhamiregion.plan import LimitPlan, PlanDiff, PlanResult


class InvalidPlan(click.ClickException):
    """The plan cannot be used: exit code 2, one line per problem."""

    exit_code = USAGE


@attrs.frozen
class PlanChoice:
    """The plan that the command line names."""

    path: str | None
    from_annotations: bool
    maximum_percent: int | None
    kubeconfig: str | None
    node_choice: options.NodeChoice

    def __attrs_post_init__(self) -> None:
        if self.path is None and not self.from_annotations:
            raise click.UsageError("Say which plan: a FILE, --from-annotations, or both.")
        if self.from_annotations and self.node_choice.node_name is None:
            raise click.UsageError(
                "--from-annotations asks for the pods of one node: name it with --node-name or"
                " NODE_NAME"
            )

    def sources(self) -> list[PlanSource]:
        """The plan as it is and will be; the watch of pods has begun. A bad plan is no failure."""
        sources: list[PlanSource] = [] if self.path is None else [PlanFile(self.path)]
        if self.from_annotations:
            annotations = self._annotations()
            annotations.pods.start()
            sources.append(annotations)
        return sources

    def load(self) -> SourceReading:
        """Read the plan, once.

        Raises:
            InvalidPlan: It cannot be used.
            Failure: The Kubernetes API cannot be asked.
        """
        readings = []
        if self.path is not None:
            try:
                plan = load_plan("/dev/stdin" if self.path == "-" else self.path)
            except PlanError as error:
                raise InvalidPlan(f"the plan cannot be used\n{error}") from None
            readings.append(SourceReading(plan))
        if self.from_annotations:
            annotations = self._annotations()
            with failures_of(KubernetesError, about="the pods of this node cannot be listed: "):
                annotations.pods.load()
            readings.append(annotations.read())
        return join_readings(readings)

    def _annotations(self) -> PodAnnotations:
        pods = NodePods(self.node_choice.node_name, kubeconfig=self.kubeconfig)
        return PodAnnotations(pods, maximum_percent=self.maximum_percent)


_plan = functools.partial(options.option, group="Plan")


def _maximum(typed: str) -> int:
    percent = memory_limit_percent(typed)
    if percent is None:
        raise ValueError(f"{typed!r} is no percentage such as 100%, nor `unlimited`")
    return percent


annotations_option = options.all_of(
    click.option(
        "--from-annotations",
        is_flag=True,
        help="Take annotations of pods as rules, after PLAN.",
    ),
    _plan(
        "--annotations-maximum",
        "maximum_percent",
        type=options.Parsed("percentage", options.none_or(UNLIMITED, _maximum)),
        default=f"{DEFAULT_MAXIMUM_PERCENT}%",
        metavar="PERCENT",
    ),
    _plan("--kubeconfig", type=options.PATH, metavar="FILE"),
)
state_option = _plan("--state", type=options.PATH, metavar="DIR")
plan_options = options.all_of(
    click.argument("path", metavar="[PLAN]", required=False, type=options.PATH),
    annotations_option,
    click.option(
        "--force",
        is_flag=True,
        help="Also limits below use or beyond the card, and SM limits that stop processes.",
    ),
    options.directory_options,
    options.json_answer_options,
    options.group_options("choice", PlanChoice),
)


@verb(
    "hamiregion limits diff plan.yaml",
    "hamiregion limits diff --from-annotations --node-name gpu-1",
)
@plan_options
def diff(choice: PlanChoice, force: bool, answer: Answer) -> int:
    """Show what PLAN, a YAML or JSON file, would change on this node.  Nothing is changed."""
    reading = choice.load()
    with choice.node_choice.open() as node:
        found = _compared(node, reading, force=force)
        answer.show(_page(node, reading, found))
    return PROBLEMS if found.changes or found.unapplied or reading.problems else DONE


@verb(
    "hamiregion limits apply plan.yaml --dry-run",
    "hamiregion limits apply --from-annotations --node-name gpu-1",
)
@plan_options
@options.dry_run_option
@state_option
@_plan("--undo", type=options.PATH, metavar="FILE")
def apply(
    choice: PlanChoice,
    force: bool,
    answer: Answer,
    dry_run: bool,
    state: str | None,
    undo: str | None,
) -> int:
    """Set this node's limits as PLAN, a YAML or JSON file, says.

    Each container is changed wholly or not at all, and only if it is as shown. The undo plan is
    written before the first change.
    """
    with choice.node_choice.open() as node:
        reading = choice.load()
        found = _compared(node, reading, force=force)
        page = _page(node, reading, found)
        is_complete = not found.unapplied and not reading.problems
        done: dict[str, Any] = {"dry_run": dry_run, "undo": None, "outcomes": []}
        lines = Lines([DRY_RUN])
        if not dry_run:
            result = apply_diff(node, found, undo=undo, state=state, force=force)
            lines = _result_lines(found, result, name_texts(node.containers))
            outcomes = [
                {**_place(each.diff), "status": each.status, "message": each.message}
                for each in result.outcomes
            ]
            done |= {"undo": result.undo_path, "outcomes": outcomes}
            is_complete = is_complete and result.all_applied
    data, blocks = {**page.data, **done}, [*page.blocks, lines]
    answer.show(attrs.evolve(page, schema="plan-result/1", data=data, blocks=blocks))
    return DONE if is_complete else PROBLEMS


def _compared(node: Node, reading: SourceReading, *, force: bool) -> PlanDiff:
    node.refresh(processes=False)
    if node.root_problem is not None:
        raise Failure(f"{node.root_problem}; name it with --root")
    assert reading.plan is not None  # noqa: S101 (each source was read to its end)
    observe = Observer(node, sampler=NvmlSampler()).observe
    return diff_plan(node, reading.plan, force=force, held=reading.held, observe=observe)


def _page(node: Node, reading: SourceReading, found: PlanDiff) -> Page:
    assert reading.plan is not None  # noqa: S101 (each source was read to its end)
    problems = tuple(f"{about}: {message}" for about, message in reading.problems.items())
    kept = "another process keeps this node on a plan, and sets back what differs from it"
    return Page(
        "plan-diff/1",
        {**_diff_object(found), "problems": dict(reading.problems)},
        _diff_blocks(found, reading.plan, node.containers),
        notes=(kept,) if is_node_locked(node.directories, LockUse.PLAN) else (),
        warnings=(*node_warnings(node), *problems),
    )


# ---- tables --------------------------------------------------------------------------------------


def _names(about: ContainerDiff | Unapplied) -> Names:
    return Names(**names_of(about.container))


@attrs.frozen
class _Row:
    """An edit of neighbouring devices, with what becomes of it."""

    devices: str | None
    edit: PlannedEdit
    effect: str
    rule: str


def _limit_column(name: str, style: str = "") -> Column:
    def words(row: _Row) -> str:
        return value_words(row.edit.field, getattr(row.edit, name))

    return Column(name.upper(), part=words, style=style)


_COLUMNS = (
    Column("DEVICE", part="devices"),
    Column("LIMIT", part="edit.field"),
    _limit_column("before"),
    _limit_column("after", "bold"),
    Column("EFFECT", part="effect", style=DIM),
    Column("RULE", part="rule", format="name", style=DIM),
)


def _diff_blocks(found: PlanDiff, plan: LimitPlan, containers: Sequence[Container]) -> list[Block]:
    """Show a diff: a table of the changes, then what is left as it is, and why."""

    def rows(each: ContainerDiff) -> list[_Row]:
        refused = dict.fromkeys(skip.reason for skip in each.refused)
        reasons = f"refused: {', '.join(refused)}"
        return [
            _Row(devices, edit, reasons if refused else edit.effect.value, _rule(plan, edit.rule))
            for devices, edit in equal_edits(each.edits)
        ]

    changed = [each for each in found.containers if each.edits]
    changed.sort(key=lambda each: _names(each).order)
    columns = (*name_columns(containers, _names), *_COLUMNS)
    changes = Table(columns, changed, rows) if changed else Lines(["nothing is to be changed"])
    texts = name_texts(containers)
    sentences = [
        (f"left as it is: {texts[skip.container]}: {skip.message}{_rules(skip.rules)}", WARN)
        for skip in found.unapplied
    ]
    sentences += [(f"no region yet: {texts[skip.container]}", DIM) for skip in found.waiting]
    if found.unused:
        unused = f"some rules choose no container of this node{_rules(found.unused)}"
        sentences.append((unused, DIM))
    return [changes, Lines(sentences)]


def _result_lines(found: PlanDiff, result: PlanResult, texts: Mapping[Container, str]) -> Lines:
    """Say what has become of a diff."""
    sentences: list[str | tuple[str, str]] = [
        (f"left as it was ({each.status}): {texts[each.diff.container]}: {each.message}", CRITICAL)
        for each in result.outcomes
        if each.status != "applied"
    ]
    wanted = sum(bool(each.edits or each.refused) for each in found.containers)
    if wanted:
        done = sum(each.status == "applied" for each in result.outcomes)
        sentences.append(f"changed {done} of {count_text(wanted, 'container')}")
    if result.undo_path is not None:
        sentences.append(f"undo plan: {result.undo_path}")
    return Lines(sentences)


def _diff_object(found: PlanDiff) -> dict[str, Any]:
    """A diff for programs."""
    return {
        "changes": [
            {**_place(each), "refused": bool(each.refused), "edits": each.edits}
            for each in found.containers
            if each.edits
        ],
        "skipped": [
            {
                **_place(skip),
                "reason": skip.reason,
                "missing": None if (why := skip.container.missing) is None else why.reason,
                "message": skip.message,
                "device": skip.device,
                "rules": skip.rules,
            }
            for skip in (*found.unapplied, *found.waiting)
        ],
        "unused_rules": found.unused,
    }


def _place(about: ContainerDiff | Unapplied) -> dict[str, Any]:
    """The container for --json."""
    return {**names_of(about.container), "region_path": about.container.region_path}


def _rule(plan: LimitPlan, number: int) -> str:
    return plan.rules[number].name or f"rules[{number}]"


def _rules(numbers: tuple[int, ...]) -> str:
    words = some([f"rules[{number}]" for number in numbers])
    return f" ({words})" if numbers else ""

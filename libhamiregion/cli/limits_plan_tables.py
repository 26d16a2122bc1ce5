"""What a plan changes, as a table for people and as objects for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from libhamiregion.plan.diff import equal_edits, value_words

from .format import NAME_COLUMNS, Names, count
from .output import as_plain
from .tables import CRITICAL, DIM, NAME, NOTHING, WARN, WORD, Column, Lines, Table

if TYPE_CHECKING:
    from libhamiregion.node import Container
    from libhamiregion.plan import LimitPlan, PlanDiff, PlanResult
    from libhamiregion.plan.diff import ContainerDiff, PlannedEdit, Unapplied

    from .tables import Block

_VALUE = attrs.evolve(WORD, blank="")


@attrs.frozen
class _Row:
    """Equal edits of neighbouring devices, with what becomes of them."""

    devices: str | None
    field: str
    before: str
    after: str
    effect: str
    rule: str


@attrs.frozen(kw_only=True)
class _Changed(Names):
    """A container that differs from the plan."""

    rows: tuple[_Row, ...]


_COLUMNS = (
    *NAME_COLUMNS,
    Column("DEVICE", part="devices"),
    Column("LIMIT", part="field"),
    Column("BEFORE", part="before", format=_VALUE),
    Column("AFTER", part="after", format=_VALUE, style="bold"),
    Column("EFFECT", part="effect", format=NAME, style=DIM),
    Column("RULE", part="rule", format=NAME, style=DIM),
)


def diff_blocks(found: PlanDiff, plan: LimitPlan) -> list[Block]:
    """Show a diff: a table of what is to be changed, then what is left as it is, and why."""
    changed = [
        _Changed(
            **_names(each.container),
            rows=tuple(_row(each, *edits, plan) for edits in equal_edits(each.edits)),
        )
        for each in found.containers
        if each.edits
    ]
    blocks: list[Block] = [Lines(["nothing is to be changed"])]
    if changed:
        blocks = [Table(_COLUMNS, changed, "rows")]
    sentences = [
        (f"left as it is: {_called(skip)}: {skip.message}{_rules(skip.rules)}", WARN)
        for skip in found.unapplied
    ]
    sentences += [(f"no region yet: {_called(skip)}", DIM) for skip in found.waiting]
    if found.unused:
        sentences.append(
            (f"some rules choose no container of this node{_rules(found.unused)}", DIM)
        )
    return [*blocks, Lines(sentences)]


def _row(change: ContainerDiff, devices: str | None, edit: PlannedEdit, plan: LimitPlan) -> _Row:
    effect = str(edit.effect)
    if change.refused:
        reasons = dict.fromkeys(each.reason.replace("_", " ") for each in change.refused)
        effect = f"refused: {', '.join(reasons)}"
    name = None if edit.rule is None else plan.rules[edit.rule].name
    before, after = (value_words(edit.field, each) for each in (edit.before, edit.after))
    return _Row(devices, edit.field, before, after, effect, name or _rule(edit.rule))


def result_lines(found: PlanDiff, result: PlanResult) -> Lines:
    """Say what has become of a diff."""
    sentences: list[str | tuple[str, str]] = [
        (f"left as it was ({each.status}): {_called(each.diff)}: {each.message}", CRITICAL)
        for each in result.outcomes
        if each.status != "applied"
    ]
    wanted = sum(bool(each.edits or each.refused) for each in found.containers)
    if wanted:
        done = sum(each.status == "applied" for each in result.outcomes)
        sentences.append(f"changed {done} of {count(wanted, 'container')}")
    if result.undo_path is not None:
        sentences.append(f"undo plan: {result.undo_path}")
    return Lines(sentences)


def diff_object(found: PlanDiff) -> dict[str, Any]:
    """A diff for programs."""
    return {
        "changes": [
            {
                **_object(each),
                "refused": bool(each.refused),
                "edits": [as_plain(edit) for edit in each.edits],
            }
            for each in found.containers
            if each.edits
        ],
        "skipped": [
            {
                **_object(skip),
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


def outcome_objects(result: PlanResult) -> list[dict[str, Any]]:
    """What has become of a diff, for programs."""
    return [
        {**_object(each.diff), "status": each.status, "message": each.message}
        for each in result.outcomes
    ]


def _names(container: Container) -> dict[str, Any]:
    return {
        "namespace": container.namespace,
        "pod": container.pod,
        "pod_uid": container.pod_uid,
        "container": container.name,
    }


def _object(about: ContainerDiff | Unapplied) -> dict[str, Any]:
    named = _names(about.container)
    return {**named, "region_path": about.container.region_path}


def _called(about: ContainerDiff | Unapplied) -> str:
    return Names(**_names(about.container)).words or NOTHING


def _rule(number: int | None) -> str:
    return "restore" if number is None else f"rules[{number}]"


def _rules(numbers: tuple[int, ...]) -> str:
    if not numbers:
        return ""
    shown = ", ".join(map(_rule, numbers[:10]))
    return f" ({shown}{', ...' if len(numbers) > 10 else ''})"

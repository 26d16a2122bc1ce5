"""What a plan changes, as a table for people and as objects for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from libhamiregion.plan.watch import alike, device_words, value_words
from libhamiregion.text import printable

from .node_words import word
from .output import as_plain, on_terminal, terminal, write
from .plain import aligned
from .render import NEAR, OVER, QUIET, columns
from .wording import NOTHING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from libhamiregion.node import Container, PodName
    from libhamiregion.plan.apply import PlanResult
    from libhamiregion.plan.diff import ContainerDiff, PlanDiff, PlannedEdit, Skip

_HEADING = ("POD", "CONTAINER", "DEVICE", "LIMIT", "BEFORE", "AFTER", "EFFECT", "RULE")


# ---- objects ------------------------------------------------------------------------------------


def diff_object(found: PlanDiff) -> dict[str, Any]:
    """A diff for programs."""
    return {
        "changes": [
            {
                **_named(each.container, each.name),
                "refused": bool(each.refused),
                "edits": [as_plain(edit) for edit in each.edits],
            }
            for each in found.containers
            if each.edits
        ],
        "skipped": [_skip_object(skip) for skip in found.off_plan],
        "unused_rules": list(found.unused),
    }


def outcome_objects(result: PlanResult) -> list[dict[str, Any]]:
    """What has become of a diff, for programs."""
    return [
        {
            **_named(each.diff.container, each.diff.name),
            "status": each.status,
            "message": each.message,
        }
        for each in result.outcomes
    ]


def _skip_object(skip: Skip) -> dict[str, Any]:
    missing = skip.container.missing
    return {
        **_named(skip.container, skip.name),
        "reason": skip.reason,
        "missing": None if missing is None else missing.reason.value,
        "message": skip.message,
        "device": skip.device,
        "rules": list(skip.rules),
    }


def _named(container: Container, name: PodName | None) -> dict[str, Any]:
    return {
        "pod_uid": container.pod_uid,
        "namespace": None if name is None else name.namespace,
        "pod": None if name is None else name.pod,
        "container": container.name,
        "region_path": container.region_path,
    }


# ---- for people ---------------------------------------------------------------------------------


def say_diff(found: PlanDiff) -> None:
    """Show a diff: a table of what is to be changed, then what is left as it is, and why."""
    rows = [row for each in found.containers if each.edits for row in _rows(each)]
    if not rows:
        write("nothing is to be changed\n")
    elif on_terminal():
        table = columns()
        for heading in _HEADING:
            table.add_column(heading.lower())
        for refused, row in rows:
            before, after = row[4:6]
            style = QUIET if refused else ""
            cells = [Text(cell, style=style) for cell in (*row[:4], before)]
            cells.append(Text(after, style=OVER if refused else "bold"))
            table.add_row(*cells, *(Text(cell, style=QUIET) for cell in row[6:]))
        terminal().print(table)
    else:
        write(aligned([_HEADING, *(row for _, row in rows)]))
    for skip in found.off_plan:
        called = _called(skip.container, skip.name)
        _say(f"left as it is: {called}: {skip.message}{_rule_words(skip.rules)}", NEAR)
    if found.unused:
        _say(f"some rules choose no container of this node{_rule_words(found.unused)}", QUIET)


def say_outcomes(result: PlanResult) -> None:
    """Say what has become of a diff."""
    for outcome in result.outcomes:
        if outcome.status != "applied":
            called = _called(outcome.diff.container, outcome.diff.name)
            _say(f"left as it was ({outcome.status}): {called}: {outcome.message}", OVER)
    done = sum(each.status == "applied" for each in result.outcomes)
    if result.outcomes:
        _say(f"changed {done} of {len(result.outcomes)} containers", "")
    if result.undo_path is not None:
        _say(f"undo plan: {printable(result.undo_path)}", "")


def _rows(change: ContainerDiff) -> Iterable[tuple[bool, tuple[str, ...]]]:
    for edits in alike(change.edits):
        first = edits[0]
        yield (
            bool(change.refused),
            (
                _pod_word(change.container, change.name),
                word(change.container.name or ""),
                device_words(edits) or NOTHING,
                first.field,
                _value_word(first, first.before),
                _value_word(first, first.after),
                first.effect.value,
                "restore" if first.rule is None else f"rules[{first.rule}]",
            ),
        )


def _rule_words(numbers: tuple[int, ...]) -> str:
    if not numbers:
        return ""
    shown = ", ".join(f"rules[{number}]" for number in numbers[:10])
    return f" ({shown}{', ...' if len(numbers) > 10 else ''})"


def _value_word(edit: PlannedEdit, value: int | None) -> str:
    return value_words(edit.field, value).replace(" ", "")


def _pod_word(container: Container, name: PodName | None) -> str:
    if name is None or name.pod is None:
        return word(container.pod_uid or "")
    return word(name.pod if name.namespace is None else f"{name.namespace}/{name.pod}")


def _called(container: Container, name: PodName | None) -> str:
    return f"{_pod_word(container, name)} {word(container.name or '')}"


def _say(sentence: str, style: str) -> None:
    if on_terminal():
        terminal().print(Text(sentence, style=style))
    else:
        write(f"{sentence}\n")

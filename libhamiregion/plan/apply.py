"""Apply a plan, each container wholly or not at all, and write the plan that undoes it.

The undo plan is written and synced before the first edit, and all edits of a container are one call
of `Region.edit_limits`. A killed process leaves containers that are on the plan and containers that
are not; killed within the some 100 ns between two stores of one call, a mixture in that container.
Applying the plan again makes the rest true, and the undo plan puts all back. A plan with
percentages takes them of the present values: undo before applying it again.
"""

from __future__ import annotations

import contextlib
import glob
import re
import time
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import attrs

from libhamiregion.errors import LaunchesWouldStop, LimitBelowUsage, LimitConflict, RegionError
from libhamiregion.layouts import DEVICE_CAPACITY
from libhamiregion.observation.selector import Selector
from libhamiregion.text import printable

from .plan import LIMIT_FIELDS, LimitPlan, Limits, Rule
from .plan_file import UNDO_NAME, plan_text
from .state import PlanState, write_new

if TYPE_CHECKING:
    from collections.abc import Iterable

    from libhamiregion.changes import LimitChange, ValueChange
    from libhamiregion.errors import PathLike
    from libhamiregion.node.node import Node

    from .diff import ContainerDiff, PlanDiff

_UNDO_COMMENT: Final = """\
# The values of before a plan was applied on {now}, of what it changed.
# hamiregion limits apply FILE puts them back.
"""
_NO_UNICODE: Final = re.compile("[\ud800-\udfff]")

#: The result of a container's edits. ``applied``: all of them hold; ``conflict``: none, because a
#: value was changed meanwhile; ``refused``: none, because running processes could not bear one of
#: them; ``failed``: none, for the reason in the message.
ChangeStatus: TypeAlias = Literal["applied", "conflict", "refused", "failed"]


@attrs.frozen
class ContainerOutcome:
    """The result of one container's edits.

    Attributes:
        diff: The edits.
        status: The result, a `ChangeStatus`.
        message: Why nothing was changed, as a sentence, escaped; None if it was.
        changes: The changes, for `libhamiregion.undo`.
    """

    diff: ContainerDiff
    status: ChangeStatus
    message: str | None = None
    changes: tuple[LimitChange | ValueChange, ...] = ()


@attrs.frozen
class PlanResult:
    """The result of a plan.

    Attributes:
        outcomes: One for each container that was to be edited, in the order of the diff.
        undo_path: The undo plan; None if nothing was to be changed.
    """

    outcomes: tuple[ContainerOutcome, ...]
    undo_path: str | None = None

    @property
    def all_applied(self) -> bool:
        """Whether every container was edited that was to be."""
        return all(outcome.status == "applied" for outcome in self.outcomes)

    @property
    def changes(self) -> tuple[LimitChange | ValueChange, ...]:
        """The changes, which `libhamiregion.undo` takes back."""
        return tuple(change for outcome in self.outcomes for change in outcome.changes)


def apply_diff(
    node: Node,
    diff: PlanDiff,
    *,
    undo: PathLike | None = None,
    state: PathLike | None = None,
    force: bool = False,
) -> PlanResult:
    """Make a diff's edits.

    Each container's values are compared with those of the diff and changed in one call; if one has
    changed by now, or is refused, that container is left as it was.

    Args:
        node: The node that was compared.
        diff: From `diff_plan`.
        undo: Path of the undo plan, a new file. None means one of its own in the state directory.
        state: The state directory; None means ``$HAMIREGION_STATE``, ``/var/lib/hamiregion`` for
            root, else ``~/.local/state/hamiregion``.
        force: Allow what `diff_plan` allows with it.

    Raises:
        FileExistsError: `undo` exists, and may be the undo plan of an earlier plan; nothing has
            been changed.
        OSError: The undo plan cannot be written; nothing has been changed.

    Shell: ``hamiregion limits apply FILE --root DIR``.
    """
    if not diff.changes:
        return PlanResult(())
    text = undo_text(diff.changes)
    undo_path = PlanState(state).write_undo(text) if undo is None else write_new(undo, text)
    outcomes = tuple(change_container(node, each, force=force) for each in diff.changes)
    return PlanResult(outcomes, undo_path)


def change_container(node: Node, change: ContainerDiff, *, force: bool = False) -> ContainerOutcome:
    """Make one container's edits, all of them or none."""
    try:
        with node.open(change.container) as region:
            # A value may go back on a device that has neither limit nor use without it.
            former = {edit.device for edit in change.edits} - {None, *region.device_indices}
            edits = [edit.limit_edit for edit in change.edits]
            made = region.edit_limits(edits, force=force or bool(former))
    except (RegionError, OSError, ValueError) as error:
        status: ChangeStatus = "conflict" if isinstance(error, LimitConflict) else "failed"
        if isinstance(error, LimitBelowUsage | LaunchesWouldStop):
            status = "refused"
        return ContainerOutcome(change, status, printable(str(error)))
    return ContainerOutcome(change, "applied", changes=made)


def undo_text(changes: Iterable[ContainerDiff]) -> str:
    """Write the plan that puts back what edits change, with its comment."""
    now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    return _UNDO_COMMENT.format(now=now) + plan_text(undo_plan(changes))


def undo_plan(changes: Iterable[ContainerDiff]) -> LimitPlan:
    """Make the plan that puts back what edits change, unless it is changed again afterwards.

    Each rule names one container by its pod's UID and its own name, one device, and one value. A
    value that no plan can hold, as only a damaged region has it, is left out.
    """
    return LimitPlan(tuple(rule for each in changes for rule in _undo_rules(each)), name=UNDO_NAME)


def _undo_rules(change: ContainerDiff) -> list[Rule]:
    rules = []
    container = change.container
    # By its directory: another process may not have proved yet which container uses the region.
    own = container.claim_uid or container.directory_name or container.name or ""
    own_name = printable(f"{container.pod_uid or 'claim'}/{own}", 200)
    # Of a claim empty: any pod may name a container of its own like a claim's UID.
    select = Selector(pod_uid=_exact(container.pod_uid or ""), container=_exact(own))
    for field in LIMIT_FIELDS:
        edits = [edit for edit in change.edits if edit.field == field]
        if (
            len(edits) == DEVICE_CAPACITY
            and len({(each.before, each.after) for each in edits}) == 1
        ):
            # A container that has not reported its devices: it will not turn out to have 16.
            edits = [attrs.evolve(edits[0], device=None)]
        for edit in edits:
            before: dict[str, Any] = {field: edit.before}
            after: dict[str, Any] = {field: edit.after}
            device, name = None, own_name
            if edit.device is not None:
                device, name = str(edit.device), f"{own_name} device {edit.device}"
            with contextlib.suppress(ValueError):  # a damaged region's negative priority
                rule = Rule(attrs.evolve(select, device=device), Limits(**before), name)
                rules.append(attrs.evolve(rule, only_if=Limits(**after)))
    return rules


def _exact(text: str) -> str:
    """The pattern of one text only; a byte that is no Unicode, as in a file's name, is a `?`."""
    return _NO_UNICODE.sub("?", glob.escape(text))

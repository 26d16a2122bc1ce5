"""A plan put into effect: each container wholly or not at all.

The undo plan is written and synced before the first edit, and all edits of a container are one call
of `Region.edit_limits`. A process that is killed leaves containers that are on the plan and
containers that are not; killed within the some 100 ns between two stores of one call, a mixture
in that container. Applying the plan again makes the rest true, and the undo plan puts all back. A
plan with percentages takes them of what stands there by then: undo before applying it again.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import attrs

from libhamiregion.edits import LimitEdit
from libhamiregion.errors import LimitBelowUsage, LimitConflict, RegionError
from libhamiregion.text import printable
from libhamiregion.units import format_size

from .diff import PlanDiff
from .plan_file import plan_text
from .state import PlanState, write_new
from .undo import undo_plan

if TYPE_CHECKING:
    from collections.abc import Iterable

    from libhamiregion.effects import LimitChange, LimitKind, ValueChange
    from libhamiregion.errors import PathLike
    from libhamiregion.node.node import Node

    from .diff import ContainerDiff
    from .limit_plan import LimitField

_UNDO_COMMENT: Final = """\
# What stood here before a plan was applied on {now}, of what it changed.
# hamiregion limits apply FILE puts it back.
"""
_KINDS: Final[dict[LimitField, LimitKind]] = {
    "memory_limit": "memory",
    "sm_limit": "sm",
    "priority": "priority",
}

#: What has become of a container's edits. ``applied``: all of them hold; ``conflict``: none, as
#: somebody else changed one of the values meanwhile; ``refused``: none, as what runs there could
#: not bear one of the limits; ``failed``: none, for the reason that the message tells.
ChangeStatus: TypeAlias = Literal["applied", "conflict", "refused", "failed"]


@attrs.frozen
class ContainerOutcome:
    """What has become of one container's edits.

    Attributes:
        diff: What was to be done.
        status: What has been done, a `ChangeStatus`.
        message: Why nothing was, as a sentence, escaped; None if it was done.
        changes: What was changed, for `libhamiregion.undo`.
    """

    diff: ContainerDiff
    status: ChangeStatus
    message: str | None = None
    changes: tuple[LimitChange | ValueChange, ...] = ()


@attrs.frozen
class PlanResult:
    """What has become of a plan.

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
        """What `libhamiregion.undo` takes to take the plan back."""
        return tuple(change for outcome in self.outcomes for change in outcome.changes)


def apply_diff(
    node: Node,
    diff: PlanDiff | Iterable[ContainerDiff],
    *,
    undo: PathLike | None = None,
    state: PathLike | None = None,
    force: bool = False,
) -> PlanResult:
    """Make a diff's edits.

    Each container's values are compared with those of the diff and changed in one call; if one is
    another by now, or is refused, that container is left as it was.

    Args:
        node: The node that was compared.
        diff: From `diff_plan`, or some of its containers; those that are refused are left out.
        undo: Where to write the undo plan: a file that is not there yet. None means one of its own
            in the state directory.
        state: The state directory; None means ``$HAMIREGION_STATE``, ``/var/lib/hamiregion`` for
            root, else ``~/.local/state/hamiregion``.
        force: Allow what `diff_plan` allows with it.

    Raises:
        FileExistsError: There is something at `undo`, which may be the way back from an earlier
            plan; nothing has been changed.
        OSError: The undo plan cannot be written; nothing has been changed.

    Shell: ``hamiregion limits apply FILE --root DIR``.
    """
    containers = diff.changes if isinstance(diff, PlanDiff) else diff
    changes = [each for each in containers if each.edits and not each.refused]
    if not changes:
        return PlanResult(())
    now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    text = _UNDO_COMMENT.format(now=now) + plan_text(undo_plan(changes))
    if undo is None:
        undo_path = PlanState(state).write_undo(text)
    else:
        write_new(undo, text)
        undo_path = str(undo)
    outcomes = tuple(change_container(node, each, force=force) for each in changes)
    return PlanResult(outcomes, undo_path)


def change_container(node: Node, change: ContainerDiff, *, force: bool = False) -> ContainerOutcome:
    """Make one container's edits, all of them or none."""
    edits = [
        LimitEdit(_KINDS[edit.field], edit.after, edit.device, edit.before) for edit in change.edits
    ]
    try:
        with node.open(change.container) as region:
            # What goes back may be of a device that without it has neither limit nor use.
            former = {edit.device for edit in edits} - {None, *region.device_indices}
            made = region.edit_limits(edits, force=force or bool(former))
    except LimitConflict as error:
        return ContainerOutcome(change, "conflict", printable(str(error)))
    except LimitBelowUsage as error:
        message = str(error)
        if error.used_bytes is not None and error.requested_bytes is not None:
            used, wanted = format_size(error.used_bytes), format_size(error.requested_bytes)
            message = (
                f"device {error.device} uses {used} by now, more than the {wanted} of the plan"
            )
        return ContainerOutcome(change, "refused", printable(message))
    except (RegionError, OSError, ValueError) as error:
        return ContainerOutcome(change, "failed", printable(str(error)))
    return ContainerOutcome(change, "applied", changes=made)

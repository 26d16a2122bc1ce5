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
from libhamiregion.node.selector import Selector
from libhamiregion.text import printable

from .diff import PlanDiff, region_devices, value_now
from .plan import DEVICE_FIELDS, LimitPlan, Limits, Rule
from .plan_file import plan_text
from .state import PlanState, write_new

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from libhamiregion.changes import LimitChange, ValueChange
    from libhamiregion.errors import PathLike
    from libhamiregion.node.containers import Container
    from libhamiregion.node.node import Node

    from .diff import ContainerDiff, ValueKey

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
    diff: PlanDiff | Iterable[ContainerDiff],
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
        diff: From `diff_plan`, or some of its containers; those that are refused are left out.
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
    containers = diff.changes if isinstance(diff, PlanDiff) else diff
    changes = [each for each in containers if each.edits and not each.refused]
    if not changes:
        return PlanResult(())
    now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    text = _UNDO_COMMENT.format(now=now) + plan_text(undo_plan(changes))
    undo_path = PlanState(state).write_undo(text) if undo is None else write_new(undo, text)
    return PlanResult(
        tuple(change_container(node, each, force=force) for each in changes), undo_path
    )


def change_container(node: Node, change: ContainerDiff, *, force: bool = False) -> ContainerOutcome:
    """Make one container's edits, all of them or none."""
    try:
        with node.open(change.container) as region:
            # A value may go back on a device that has neither limit nor use without it.
            former = {edit.device for edit in change.edits} - {None, *region.device_indices}
            edits = [edit.limit_edit for edit in change.edits]
            made = region.edit_limits(edits, force=force or bool(former))
    except LimitConflict as error:
        return ContainerOutcome(change, "conflict", printable(str(error)))
    except (LimitBelowUsage, LaunchesWouldStop) as error:
        return ContainerOutcome(change, "refused", printable(str(error)))
    except (RegionError, OSError, ValueError) as error:
        return ContainerOutcome(change, "failed", printable(str(error)))
    return ContainerOutcome(change, "applied", changes=made)


# ---- limits as plans ----------------------------------------------------------------------------


def undo_plan(changes: Iterable[ContainerDiff]) -> LimitPlan:
    """Make the plan that puts back what edits change, unless it is changed again afterwards.

    Each rule names one container by its pod's UID and its own name, and one device. A value that
    no plan can hold, as only a damaged region has it, is left out.
    """
    rules: list[Rule] = []
    for change in changes:
        before = [(edit.key, edit.before) for edit in change.edits]
        after = {edit.key: edit.after for edit in change.edits}
        rules += exact_rules(change.container, before, only_if=after)
    return LimitPlan(tuple(rules), name="undo")


def export_plan(node: Node, select: Selector | None = None) -> LimitPlan:
    """Write the limits of a node, as they are, as a plan.

    Args:
        node: The node, as of its last refresh. Containers without a region, and those outside the
            node's roots, are left out.
        select: Only these containers and devices; a priority is left out if a device is chosen.

    Raises:
        RegionClosed: The node has been closed.

    Shell: ``hamiregion limits export``.
    """
    chosen = Selector() if select is None else select
    rules: list[Rule] = []
    for container in node.containers:
        region = container.region
        if container.directory is None or region is None or not chosen.matches(container):
            continue
        with contextlib.suppress(RegionError):
            devices = [each for each in region_devices(region) if chosen.matches_device(each)]
            keys: list[ValueKey] = [] if chosen.device is not None else [("priority", None)]
            keys += [(field, each.index) for each in devices for field in DEVICE_FIELDS]
            rules += exact_rules(container, [(key, value_now(region, key)) for key in keys])
    return LimitPlan(tuple(rules))


def exact_rules(
    container: Container,
    values: Iterable[tuple[ValueKey, int | None]],
    only_if: Mapping[ValueKey, int | None] | None = None,
) -> list[Rule]:
    """Make rules for one container and nothing else, one per device.

    Args:
        container: The container.
        values: Its new values.
        only_if: Its present values, as a condition.
    """
    expected = only_if or {}
    by_device: dict[int | None, tuple[dict[str, Any], dict[str, Any]]] = {}
    for (field, device), value in values:
        # No plan can hold the negative priority of a damaged region.
        if field != "priority" or (value is not None and value >= 0):
            wanted, present = by_device.setdefault(device, ({}, {}))
            wanted[field] = value
            if (field, device) in expected:
                present[field] = expected[field, device]
    alike = [by_device.get(device) for device in range(DEVICE_CAPACITY)]
    if alike[0] is not None and all(each == alike[0] for each in alike):
        # A container that has not reported its devices: it will not turn out to have 16.
        wanted, present = by_device.get(None, ({}, {}))
        by_device = {None: (wanted | alike[0][0], present | alike[0][1])}
    # By its directory: another process may not have proved yet which container uses the region.
    own = container.claim_uid or container.directory_name or container.name
    name = printable(f"{container.pod_uid or 'claim'}/{own}", 200)
    return [
        Rule(
            Selector(
                # Of a claim empty: any pod may name a container of its own like a claim's UID.
                pod_uid=_exact(container.pod_uid or ""),
                container=container.claim_uid or _exact(own or ""),
                device=None if device is None else str(device),
            ),
            Limits(**wanted),
            name if device is None else f"{name} device {device}",
            Limits(**present),
        )
        for device, (wanted, present) in sorted(
            by_device.items(), key=lambda each: -1 if each[0] is None else each[0]
        )
    ]


def _exact(text: str) -> str:
    """The pattern of one text only; a byte that is no Unicode, as in a file's name, is a `?`."""
    return _NO_UNICODE.sub("?", glob.escape(text))

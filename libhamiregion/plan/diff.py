"""What a plan would change on a node, and what it cannot reach, and why."""

from __future__ import annotations

import enum
import glob
from collections import defaultdict
from typing import TYPE_CHECKING

import attrs

from libhamiregion.effects import Effect, sm_limit_effects, sm_limit_stops_launches
from libhamiregion.errors import RegionError
from libhamiregion.text import printable
from libhamiregion.units import format_size

from .limit_plan import LimitField
from .values import RegionValues, settled_snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from libhamiregion.layouts import Layout
    from libhamiregion.models import RegionSnapshot
    from libhamiregion.node.containers import Container, MissingReason
    from libhamiregion.node.names import PodName
    from libhamiregion.node.node import Node

    from .limit_plan import LimitPlan, Rule
    from .values import KeptValue, ValueKey


class SkipReason(str, enum.Enum):
    """Why something that a rule chooses is left as it is. Equal to its value, a plain string."""

    #: The container has no region that can be read; `Skip.missing` tells why.
    NO_REGION = "no_region"
    #: Its region could not be read just now.
    UNREADABLE = "unreadable"
    #: Nobody knows the name of its pod, and the rule asks for it.
    UNKNOWN_NAME = "unknown_name"
    #: It has no device that the rule chooses.
    NO_DEVICE = "no_device"
    #: The memory limit would be less than what is in use.
    BELOW_USAGE = "below_usage"
    #: What is in use could not be told for certain, and the limit would be lowered.
    UNSETTLED = "unsettled"

    def __str__(self) -> str:
        return self.value


@attrs.frozen
class Skip:
    """Something that a rule chooses and that is left as it is.

    Attributes:
        container: The container.
        name: Its names; None if no resolver knows them.
        reason: The kind of reason.
        message: The same as a sentence, escaped.
        rules: Indices of the rules that choose it.
        device: Index of the device; None where it is not about one.
        missing: Why there is no region; None with other reasons.
    """

    container: Container
    name: PodName | None
    reason: SkipReason
    message: str
    rules: tuple[int, ...] = ()
    device: int | None = None
    missing: MissingReason | None = None


@attrs.frozen
class PlannedEdit:
    """One value that differs from what the plan says.

    Attributes:
        field: What is edited.
        device: Index of the device; None for a priority.
        before: As it is: bytes, percent or a priority; None is unlimited.
        after: As the plan says.
        effect: Whether running processes will see it.
        rule: Index of the rule that counts; None where a value goes back to what it was before
            this plan or an earlier one set it.
    """

    field: LimitField
    device: int | None
    before: int | None
    after: int | None
    effect: Effect
    rule: int | None = None

    @property
    def key(self) -> ValueKey:
        """Field and device."""
        return self.field, self.device


@attrs.frozen
class Override:
    """A value that two rules set differently; the later one counts.

    Attributes:
        field: What is set.
        rule: Index of the rule that counts.
        over: Index of the one that does not.
        containers: How many containers are concerned.
    """

    field: LimitField
    rule: int
    over: int
    containers: int


@attrs.frozen
class ContainerDiff:
    """What a plan changes in one container, all of it or nothing.

    Attributes:
        container: The container.
        name: Its names; None if no resolver knows them.
        path: Its region's file.
        file_id: That file's device and inode.
        layout: The region's layout.
        edits: What differs; empty where the container is on the plan.
        kept: How many values the plan sets that stand as it says.
        refused: Why none of the edits may be made; empty if they may.
        governed: The values that some rule sets, whether they differ or not.
    """

    container: Container
    name: PodName | None
    path: str
    file_id: tuple[int, int]
    layout: Layout
    edits: tuple[PlannedEdit, ...] = ()
    kept: int = 0
    refused: tuple[Skip, ...] = ()
    governed: frozenset[ValueKey] = attrs.field(default=frozenset(), repr=False)


@attrs.frozen
class PlanDiff:
    """What a plan changes on a node.

    Attributes:
        containers: Those that some rule chooses and whose region can be read.
        skipped: What rules choose and cannot reach; with the containers' own `refused`, all that
            stays off the plan.
        unused: Indices of rules that choose no container of this node.
        overrides: Rules that set what a later rule sets differently.
    """

    containers: tuple[ContainerDiff, ...]
    skipped: tuple[Skip, ...]
    unused: tuple[int, ...]
    overrides: tuple[Override, ...]

    @property
    def changes(self) -> tuple[ContainerDiff, ...]:
        """The containers that are to be edited, and may be."""
        return tuple(each for each in self.containers if each.edits and not each.refused)

    @property
    def off_plan(self) -> tuple[Skip, ...]:
        """All that stays as it is although the plan says otherwise."""
        refused = tuple(skip for each in self.containers for skip in each.refused)
        return self.skipped + refused


def diff_plan(
    node: Node,
    plan: LimitPlan,
    *,
    force: bool = False,
    kept: Mapping[str, Mapping[ValueKey, KeptValue]] | None = None,
    held: frozenset[str] = frozenset(),
) -> PlanDiff:
    """Compare a node with a plan. Nothing is changed.

    Containers outside the node's roots are left alone: a directory's name is what tells which
    container a plan means.

    Args:
        node: As it was at its last refresh.
        plan: The plan.
        force: Whether a memory limit may be less than what is in use.
        kept: What earlier plans changed: by a container's directory, each value as it was before,
            and the values that it may have been set to. What the plan sets no longer, and still
            stands at one of these, goes back.
        held: UIDs of pods that are to be left alone.

    Raises:
        RegionClosed: The node has been closed.
    """
    return _Diff(node, plan, force, kept or {}, held).made()


class _Diff:
    def __init__(
        self,
        node: Node,
        plan: LimitPlan,
        force: bool,
        kept: Mapping[str, Mapping[ValueKey, KeptValue]],
        held: frozenset[str],
    ) -> None:
        self._node = node
        self._rules = tuple(enumerate(plan.rules))
        self._force = force
        self._kept = kept
        self._held = held
        # Plans that were written by a program name each pod; looking at all of their rules for
        # each container would take the square of the time.
        self._by_uid: dict[str, list[tuple[int, Rule]]] = defaultdict(list)
        self._general: list[tuple[int, Rule]] = []
        for number, rule in self._rules:
            uid = rule.select.pod_uid
            if uid is not None and not glob.has_magic(uid):
                self._by_uid[uid].append((number, rule))
            else:
                self._general.append((number, rule))
        self._skipped: list[Skip] = []
        self._used: set[int] = set()
        self._overrides: dict[tuple[LimitField, int, int], int] = defaultdict(int)

    def made(self) -> PlanDiff:
        found = []
        for container in self._node.containers:
            if container.directory is None or container.pod_uid in self._held:
                continue
            diff = self._container(container, self._kept.get(container.directory, {}))
            if diff is not None:
                found.append(diff)
        return PlanDiff(
            tuple(found),
            tuple(self._skipped),
            tuple(number for number, _ in self._rules if number not in self._used),
            tuple(
                Override(field, rule, over, containers)
                for (field, rule, over), containers in sorted(self._overrides.items())
            ),
        )

    def _container(
        self, container: Container, kept: Mapping[ValueKey, KeptValue]
    ) -> ContainerDiff | None:
        candidates = self._general
        if container.pod_uid in self._by_uid:
            candidates = sorted(
                [*candidates, *self._by_uid[container.pod_uid]], key=lambda entry: entry[0]
            )
        if not candidates and not kept:
            return None
        name = self._node.pod_name(container)
        rules = [
            entry for entry in candidates if entry[1].select.matches_container(container, name)
        ]
        self._used.update(number for number, _ in rules)
        if name is None:
            self._skip_unnamed(container, candidates, rules)
        if not rules and not kept:
            return None
        if container.region is None:
            if rules:
                missing = container.missing
                self._skip(
                    container,
                    name,
                    SkipReason.NO_REGION,
                    "no region" if missing is None else missing.message,
                    rules,
                    missing=None if missing is None else missing.reason,
                )
            return None
        try:
            snapshot = settled_snapshot(container.region)
            values = RegionValues(container.region, snapshot)
            return self._compared(container, name, rules, values, kept)
        except RegionError as error:
            self._skip(container, name, SkipReason.UNREADABLE, str(error), rules)
            return None

    def _skip_unnamed(
        self,
        container: Container,
        candidates: list[tuple[int, Rule]],
        chosen: list[tuple[int, Rule]],
    ) -> None:
        """Say which rules might choose a container, if somebody knew its names."""
        in_doubt = []
        for entry in candidates:
            select = entry[1].select
            if entry not in chosen and (select.namespace is not None or select.pod is not None):
                rest = attrs.evolve(select, namespace=None, pod=None)
                if rest.matches_container(container, None):
                    in_doubt.append(entry)
        if in_doubt:
            message = "the name of its pod is not known here, and a rule asks for it"
            self._skip(container, None, SkipReason.UNKNOWN_NAME, message, in_doubt)

    def _skip(
        self,
        container: Container,
        name: PodName | None,
        reason: SkipReason,
        message: str,
        rules: list[tuple[int, Rule]],
        *,
        missing: MissingReason | None = None,
    ) -> None:
        numbers = tuple(number for number, _ in rules)
        self._skipped.append(
            Skip(container, name, reason, printable(message), numbers, missing=missing)
        )

    def _compared(
        self,
        container: Container,
        name: PodName | None,
        rules: list[tuple[int, Rule]],
        values: RegionValues,
        kept: Mapping[ValueKey, KeptValue],
    ) -> ContainerDiff:
        wanted = self._wanted(container, name, rules, values)
        edits = []
        for key, (after, rule) in wanted.items():
            before = values[key]
            if before != after:
                edits.append(PlannedEdit(*key, before, after, Effect.IMMEDIATE, rule))
        for key, (before_us, ours) in kept.items():
            now = values[key]
            # What somebody else has set since is theirs.
            if key not in wanted and now in ours and now != before_us:
                edits.append(PlannedEdit(*key, now, before_us, Effect.IMMEDIATE))
        ordered = _with_effects(values.snapshot, edits)
        return ContainerDiff(
            container,
            name,
            values.region.path,
            values.region.file_id,
            values.region.layout,
            ordered,
            sum(1 for edit in wanted if values[edit] == wanted[edit][0]),
            () if self._force else tuple(_refusals(container, name, ordered, values)),
            frozenset(wanted),
        )

    def _wanted(
        self,
        container: Container,
        name: PodName | None,
        rules: list[tuple[int, Rule]],
        values: RegionValues,
    ) -> dict[ValueKey, tuple[int | None, int]]:
        wanted: dict[ValueKey, tuple[int | None, int]] = {}
        overrides: set[tuple[LimitField, int, int]] = set()
        empty = []
        for number, rule in rules:
            devices = values.chosen(rule)
            if not devices:
                empty.append((number, rule))
                continue
            for setting in rule.settings:
                whole = setting.field is LimitField.PRIORITY
                for device in (None,) if whole else devices:
                    key = (setting.field, device)
                    earlier = wanted.get(key)
                    if earlier is not None and earlier[0] != setting.value:
                        overrides.add((setting.field, number, earlier[1]))
                    wanted[key] = (setting.value, number)
        for override in overrides:
            self._overrides[override] += 1
        if empty:
            message = _no_device(values.snapshot)
            self._skip(container, name, SkipReason.NO_DEVICE, message, empty)
        return wanted


def _no_device(snapshot: RegionSnapshot) -> str:
    if not snapshot.device_count:
        return "it has not told of its devices yet, so no rule can choose them by their uuids"
    return f"it has no device that a rule chooses; it has {snapshot.device_count}"


def _with_effects(snapshot: RegionSnapshot, edits: list[PlannedEdit]) -> tuple[PlannedEdit, ...]:
    """The edits in the order in which they are made, each with its effect."""
    order = list(LimitField)
    edits.sort(key=lambda edit: (order.index(edit.field), edit.device or 0))
    percents = [
        (edit.device, edit.before, edit.after)
        for edit in edits
        if edit.field is LimitField.SM_LIMIT and edit.device is not None
    ]
    effects = {
        change.device: change.effect
        for change in sm_limit_effects(
            snapshot.layout,
            percents,
            stops_launches=bool(snapshot.processes)
            and any(sm_limit_stops_launches(snapshot.layout, *edit) for edit in percents),
        )
    }
    return tuple(
        attrs.evolve(edit, effect=effects[edit.device])
        if edit.field is LimitField.SM_LIMIT and edit.device is not None
        else edit
        for edit in edits
    )


def _refusals(
    container: Container, name: PodName | None, edits: Iterable[PlannedEdit], values: RegionValues
) -> Iterable[Skip]:
    for edit in edits:
        rules = () if edit.rule is None else (edit.rule,)
        if edit.field is not LimitField.MEMORY_LIMIT or edit.after is None or edit.device is None:
            continue
        used = values.used_bytes(edit.device)
        if used > edit.after:
            message = (
                f"device {edit.device} uses {format_size(used)}, more than the"
                f" {format_size(edit.after)} that the plan says"
            )
            yield Skip(container, name, SkipReason.BELOW_USAGE, message, rules, edit.device)
        elif not values.snapshot.settled and (edit.before is None or edit.after < edit.before):
            message = (
                f"its figures did not stand still, so it is not certain that device {edit.device}"
                f" uses no more than {format_size(edit.after)}"
            )
            yield Skip(container, name, SkipReason.UNSETTLED, message, rules, edit.device)

"""Compare a node with a plan: what would change, and what stays as it is, and why."""

from __future__ import annotations

import functools
import glob
import itertools
import operator
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import attrs

from libhamiregion.changes import ANYTHING, Effect
from libhamiregion.edits import LimitEdit
from libhamiregion.errors import LaunchesWouldStop, LimitBelowUsage, NoSuchDevice, RegionError
from libhamiregion.observation.cards import MemoryChange, beyond_cards
from libhamiregion.observation.containers import MissingReason
from libhamiregion.text import printable
from libhamiregion.units import format_limit, format_size, memory_limit_percent

from .plan import DEVICE_FIELDS, LIMIT_FIELDS, LimitField

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from libhamiregion.node.node import Node
    from libhamiregion.observation.cards import BeyondCard
    from libhamiregion.observation.containers import Container
    from libhamiregion.observation.model import Observation
    from libhamiregion.observation.selector import Selector
    from libhamiregion.observation.share import Allocation
    from libhamiregion.region import Region

    from .plan import LimitPlan, Rule

#: A value of a container: its field, and the device's index, None for one of the whole container.
ValueKey: TypeAlias = "tuple[LimitField, int | None]"
NumberedRule: TypeAlias = "tuple[int, Rule]"

#: Why a value that a rule sets is not applied. ``no_region``: the container has no region that can
#: be read, `Container.missing` says why; ``unreadable``: its region could not be read just now;
#: ``unknown_name``: the rule asks for the name of its pod, which is not known; ``no_device``: it
#: has no device that the rule chooses; ``below_usage``: the memory limit would be less than what is
#: in use; ``stops_launches``: the SM limit would stop running processes for good; ``no_limit``: the
#: rule has a percentage of a memory limit, and there is none; ``changed``: another value is there
#: than the rule expects; ``above_maximum``: the rule may not set as much; ``above_card``: the
#: limits of the GPU's containers would be more than its memory.
UnappliedReason: TypeAlias = Literal[
    "no_region",
    "unreadable",
    "unknown_name",
    "no_device",
    "below_usage",
    "stops_launches",
    "no_limit",
    "changed",
    "above_maximum",
    "above_card",
]

_NAMES: Final = {"memory_limit": "memory limit", "sm_limit": "SM limit", "priority": "priority"}


@attrs.frozen
class Unapplied:
    """Something that a rule chooses and that stays as it is.

    Attributes:
        container: The container.
        reason: The kind of reason, an `UnappliedReason`.
        message: The reason as a sentence, escaped.
        rules: Indices of the rules that choose it.
        device: Index of the device; None if the reason is not about one.
    """

    container: Container
    reason: UnappliedReason
    message: str = attrs.field(converter=printable)
    rules: tuple[int, ...] = ()
    device: int | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether the container has no region yet."""
        missing = self.container.missing
        return missing is not None and missing.reason is MissingReason.NO_FILE


@attrs.frozen
class PlannedEdit:
    """One value that differs from the plan.

    Attributes:
        field: ``memory_limit``, ``sm_limit`` or ``priority``.
        device: Index of the device; None for a priority.
        before: The present value: bytes, percent or a priority; None is unlimited.
        after: The plan's value, in the same unit.
        effect: When running processes will see it.
        rule: Index of the rule that counts.
    """

    field: LimitField
    device: int | None
    before: int | None
    after: int | None
    rule: int
    effect: Effect = Effect.IMMEDIATE

    @property
    def limit_edit(self) -> LimitEdit:
        """The edit of the region, which is refused if the value is no longer `before`."""
        value: dict[str, Any] = {self.field: self.after}
        return LimitEdit(**value, device=self.device, expected=self.before)

    @property
    def words(self) -> str:
        """The change as a sentence, without the device."""
        before, after = (value_words(self.field, each) for each in (self.before, self.after))
        return f"{_NAMES[self.field]} {before} -> {after}"


@attrs.frozen
class ContainerDiff:
    """The changes of a plan in one container: all of them or none.

    Attributes:
        container: The container.
        edits: What differs; empty if the container is on the plan.
        refused: Why none of the edits may be made; empty if they may.
        settled: Indices of rules that have nothing left to do here: each of their values counts,
            and is as they say, or is not as their `only_if` expects.
        file_id: Device and inode of the region's file.
    """

    container: Container
    edits: tuple[PlannedEdit, ...] = ()
    refused: tuple[Unapplied, ...] = ()
    settled: frozenset[int] = attrs.field(default=frozenset(), repr=False)
    file_id: tuple[int, int] = (0, 0)


@attrs.frozen
class PlanDiff:
    """The changes of a plan on a node.

    Attributes:
        containers: Those that some rule chooses and whose region can be read.
        skipped: What rules choose and cannot reach.
        unused: Indices of rules that choose no container of this node.
    """

    containers: tuple[ContainerDiff, ...]
    skipped: tuple[Unapplied, ...]
    unused: tuple[int, ...]

    @property
    def changes(self) -> tuple[ContainerDiff, ...]:
        """The containers that are to be edited, and may be."""
        return tuple(each for each in self.containers if each.edits and not each.refused)

    @property
    def unapplied(self) -> tuple[Unapplied, ...]:
        """All that stays as it is although the plan says otherwise."""
        reached = tuple(each for each in self.skipped if not each.is_waiting)
        return reached + tuple(each for diff in self.containers for each in diff.refused)

    @property
    def waiting(self) -> tuple[Unapplied, ...]:
        """Containers that have no region yet, so that nothing of them differs from the plan."""
        return tuple(each for each in self.skipped if each.is_waiting)


def diff_plan(
    node: Node,
    plan: LimitPlan,
    *,
    force: bool = False,
    held: frozenset[str] = frozenset(),
    undo_rules: int = 0,
    observe: Callable[[], Observation] | None = None,
) -> PlanDiff:
    """Compare a node with a plan. Nothing is changed.

    Containers outside the node's roots are left alone: only a directory's name says which
    container a region belongs to.

    Args:
        node: The node, as of its last refresh.
        plan: The plan.
        force: Whether a memory limit may be less than what is in use, or more than fits the card,
            and an SM limit may stop running processes.
        held: UIDs of pods that are to be left alone.
        undo_rules: How many rules at the beginning are those of an undo plan. They set the limits
            from before the other rules, so percentages are of these.
        observe: Observes the node and its driver, if a limit is raised: a raise that does not fit
            the GPU is refused. None allows it.

    Raises:
        RegionClosed: The node has been closed.

    Shell: ``hamiregion limits diff FILE``.
    """
    general, exact = _rules_by_pod(plan)
    found: list[ContainerDiff] = []
    skipped: list[Unapplied] = []
    used: set[int] = set()
    for container in node.containers:
        candidates = sorted(
            [*general, *exact.get(container.pod_uid or "", ())], key=operator.itemgetter(0)
        )
        if container.directory is None or not candidates:
            continue
        name = container.pod_name
        named = [each for each in candidates if each[1].select.matches_container(container, name)]
        chosen = [each for each in named if _is_for_file(each[1], container)]
        used.update(number for number, _ in chosen)
        if container.pod_uid in held:
            continue
        if name is None:
            in_doubt = [each for each in candidates if each[1].select.might_match(container)]
            skipped += _skip(container, "unknown_name", "the name of its pod is unknown", in_doubt)
        if container.region is None:
            missing = container.missing
            message = "no region" if missing is None else missing.message
            skipped += _skip(container, "no_region", message, chosen)
        elif chosen:
            try:
                has_maximum = any(rule.maximum_percent is not None for _, rule in chosen)
                given = node.allocations_of(container) if has_maximum else ()
                comparison = _Comparison(container, container.region, force, undo_rules, given)
                found.append(comparison.diff(chosen))
                skipped += comparison.skipped
            except (RegionError, ValueError) as error:
                skipped += _skip(container, "unreadable", str(error), chosen)
    if observe is not None and not force:
        found = _within_cards(found, functools.cache(observe))
    unused = tuple(number for number in range(len(plan.rules)) if number not in used)
    return PlanDiff(tuple(found), tuple(skipped), unused)


def _within_cards(
    found: list[ContainerDiff], observe: Callable[[], Observation]
) -> list[ContainerDiff]:
    """Refuse the edits of containers whose limits would not fit their GPU."""
    while True:
        changes = [change for each in found if not each.refused for change in _memory_changes(each)]
        raised = any(each.is_raise for each in changes)
        beyond = beyond_cards(observe(), changes) if raised else []
        if not beyond:
            return found
        # A container that is refused keeps all its limits: its lower ones make no room.
        refused = {each.change.file_id: each for each in beyond}
        found = [
            attrs.evolve(each, refused=(*each.refused, _above_card(each, refused[each.file_id])))
            if each.file_id in refused
            else each
            for each in found
        ]


def _memory_changes(of: ContainerDiff) -> Iterator[MemoryChange]:
    edits = [each for each in of.edits if each.field == "memory_limit"]
    region = of.container.region
    uuids = dict(enumerate(region.uuids)) if edits and region is not None else {}
    for each in edits:
        if each.device is not None:
            uuid = uuids.get(each.device)
            yield MemoryChange(of.file_id, each.device, uuid, each.before, each.after)


def _above_card(of: ContainerDiff, beyond: BeyondCard) -> Unapplied:
    device = beyond.change.device
    rules = tuple(each.rule for each in of.edits if each.device == device)
    return Unapplied(of.container, "above_card", beyond.words, rules, device)


def _rules_by_pod(plan: LimitPlan) -> tuple[list[NumberedRule], dict[str, list[NumberedRule]]]:
    """A plan's rules for any pod, and by UID those for one.

    Undo plans name each pod: matching all their rules with each container would take the square of
    the time.
    """
    general: list[NumberedRule] = []
    exact: dict[str, list[NumberedRule]] = defaultdict(list)
    for each in enumerate(plan.rules):
        uid = each[1].select.pod_uid
        (exact[uid] if uid and not glob.has_magic(uid) else general).append(each)
    return general, exact


def rules_of(container: Container, plan: LimitPlan) -> dict[ValueKey, Rule]:
    """Return the rule that sets each value of a container: the last one that chooses it.

    None of a region that cannot be read.
    """
    region = container.region
    if region is None:
        return {}
    chosen = [
        (number, rule)
        for number, rule in enumerate(plan.rules)
        if rule.select.matches(container) and _is_for_file(rule, container)
    ]
    try:
        found = _Comparison(container, region, force=False, undo_rules=0).rules_by_value(chosen)
    except (RegionError, ValueError):
        return {}
    return {value: rules[-1][1] for value, rules in found.items()}


def _is_for_file(rule: Rule, container: Container) -> bool:
    region = container.region
    return region is None or rule.file_id in {None, region.file_id}


def _skip(
    container: Container, reason: UnappliedReason, message: str, rules: Iterable[NumberedRule]
) -> list[Unapplied]:
    numbers = tuple(number for number, _ in rules)
    return [Unapplied(container, reason, message, numbers)] if numbers else []


# ---- one container ------------------------------------------------------------------------------


@attrs.frozen
class _Device:
    """A device that an edit can name: its index, and its uuid if the container has reported it."""

    index: int
    uuid: str | None


def _value_now(region: Region, field: LimitField, device: int | None) -> int | None:
    # A region's methods are named as a plan's fields.
    value: Any = getattr(region, field)
    try:
        found: int | None = value if device is None else value(device)
    except NoSuchDevice:
        # Of a container that has not reported its devices: one with neither limit nor use.
        return None
    return found


@attrs.define
class _Comparison:
    """One container and the rules that choose it."""

    container: Container
    region: Region
    force: bool
    undo_rules: int
    given: tuple[Allocation, ...] = ()
    skipped: list[Unapplied] = attrs.field(factory=list)
    refused: list[Unapplied] = attrs.field(factory=list)

    def diff(self, rules: list[NumberedRule]) -> ContainerDiff:
        """Compare the values, and ask the region what it refuses."""
        by_value = self.rules_by_value(rules)
        found = [self._edit(*value, setting) for value, setting in by_value.items()]
        edits = [edit for edit in found if edit is not None]
        edits.sort(key=lambda edit: (LIMIT_FIELDS.index(edit.field), edit.device or 0))
        if edits:
            asked = [edit.limit_edit for edit in edits]
            changes = self.region.edit_limits(asked, force=True, dry_run=True)
            pairs = zip(edits, changes, strict=True)
            edits = [attrs.evolve(edit, effect=change.effect) for edit, change in pairs]
        there = {None, *self.region.device_indices}
        for edit in edits:
            if edit.device in there and not self.force:
                self._ask(edit)
        settled = {setting[-1][0] for setting in by_value.values()}
        settled -= {number for setting in by_value.values() for number, _ in setting[:-1]}
        settled -= {edit.rule for edit in edits}
        lists = tuple(edits), tuple(self.refused), frozenset(settled)
        return ContainerDiff(self.container, *lists, self.region.file_id)

    def rules_by_value(self, rules: list[NumberedRule]) -> dict[ValueKey, list[NumberedRule]]:
        """Collect the rules that set each value, in their order."""
        found: dict[ValueKey, list[NumberedRule]] = defaultdict(list)
        without_device = []
        uuids, count = dict(enumerate(self.region.uuids)), self.region.device_count
        there = [_Device(index, uuids.get(index)) for index in self.region.device_indices]
        for number, rule in rules:
            devices = [each.index for each in there if rule.select.matches_device(each)]
            if not devices and not count:
                devices = _former_device(rule.select)
            if not devices:
                without_device.append((number, rule))
            for field, _ in rule.set if devices else ():
                for device in devices if field in DEVICE_FIELDS else (None,):
                    found[field, device].append((number, rule))
        message = f"it has no device that a rule chooses; it has {count}"
        if not count:
            message = "it has not reported its devices yet, so no uuid chooses one of them"
        self.skipped += _skip(self.container, "no_device", message, without_device)
        return found

    def _edit(
        self, field: LimitField, device: int | None, rules: list[NumberedRule]
    ) -> PlannedEdit | None:
        """Return the edit of one value; None if there is none.

        The last rule counts whose `only_if` and maximum hold. A percentage is of the limit that
        such a rule before it sets, else of the present one.
        """
        now = there = base = _value_now(self.region, field, device)
        given = self._given(field, device)
        most = now if given is None else given
        name = _NAMES[field] + ("" if device is None else f" of device {device}")
        counting = None
        for number, rule in rules:
            wanted, expected = getattr(rule.set, field), getattr(rule.only_if, field)
            after = wanted
            if isinstance(wanted, str):
                after = (base or 0) * (memory_limit_percent(wanted) or 0) // 100
            percent = rule.maximum_percent
            if percent is not None and _is_above(field, after, most, percent):
                values = f"{value_words(field, after)}, above {percent} % of"
                message = f"{name} would be {values} {value_words(field, most)}"
                self._skip_value("above_maximum", message, number, device)
                continue
            holds = expected is ANYTHING or bool({now, there} & {expected, after})
            if holds:
                counting = number, wanted, after
            if number < self.undo_rules:
                # The limit from before the plan: also if others have changed the plan's since, and
                # if they have not, the one that the plan's conditions are about.
                base, there = wanted, wanted if holds else there
            elif holds and not isinstance(wanted, str):
                base = wanted
            if percent is None and (given is None if number < self.undo_rules else holds):
                most = after
        if counting is None and rule.maximum_percent is not None:
            return None
        if counting is None:
            values = f"{value_words(field, now)} by now, not {value_words(field, expected)}"
            self._skip_value("changed", f"{name} is {values}", number, device)
            return None
        number, wanted, after = counting
        if isinstance(wanted, str) and not after:
            message = f"device {device} has no memory limit to take {wanted} of"
            self.refused.append(Unapplied(self.container, "no_limit", message, (number,), device))
            return None
        return None if now == after else PlannedEdit(field, device, now, after, number)

    def _given(self, field: LimitField, device: int | None) -> int | None:
        """Return the limit that the container was given; None if that is not known."""
        # Of several allocations the smallest counts.
        found = []
        for limits in (each.limits for each in self.given if each.limits is not None):
            is_memory = field == "memory_limit"
            by_device = limits.memory_limits_bytes if is_memory else limits.sm_limits_percent
            found.append(None if device is None else dict(enumerate(by_device)).get(device))
        return min((each for each in found if each is not None), default=None)

    def _skip_value(
        self, reason: UnappliedReason, message: str, rule: int, device: int | None
    ) -> None:
        self.skipped.append(Unapplied(self.container, reason, message, (rule,), device))

    def _ask(self, edit: PlannedEdit) -> None:
        """Note if running processes could not bear an edit."""
        reason: UnappliedReason
        try:
            self.region.edit_limits([edit.limit_edit], dry_run=True)
            return
        except LaunchesWouldStop:
            reason = "stops_launches"
            message = (
                "a running process that started without an SM limit would launch once more and"
                " then never again"
            )
        except LimitBelowUsage as error:
            reason = "below_usage"
            used, limit = format_size(error.used_bytes), format_limit(error.requested_bytes)
            message = f"device {edit.device} uses {used}, more than the plan's {limit}"
        self.refused.append(Unapplied(self.container, reason, message, (edit.rule,), edit.device))


def _is_above(field: LimitField, after: int | None, most: int | None, percent: int) -> bool:
    """Whether a rule with a maximum asks for more than a percentage of `most`."""
    if field == "priority":
        # 0 is the most urgent.
        return after is not None and most is not None and after < most
    return most is not None and (after is None or after * 100 > most * percent)


def _former_device(select: Selector) -> list[int]:
    """The device of a rule for one container, as undo plans have them.

    In a container that has not reported its devices, only limits and use show which it has, and a
    plan may have taken the last limit of one.
    """
    exact = select.pod_uid is not None and select.container is not None
    index = select.device or ""
    return [int(index)] if exact and index.isascii() and index.isdigit() else []


# ---- words --------------------------------------------------------------------------------------


def value_words(field: LimitField, value: int | None) -> str:
    """Write a value with its unit, for people."""
    if value is None:
        return "unlimited"
    if field == "memory_limit":
        return format_limit(value)
    return f"{value} %" if field == "sm_limit" else str(value)


def equal_edits(edits: Iterable[PlannedEdit]) -> Iterator[tuple[str | None, PlannedEdit]]:
    """Join edits of neighbouring devices that are equal: the devices, as ``0-15``, and an edit."""

    def same(numbered: tuple[int, PlannedEdit]) -> object:
        number, edit = numbered
        step = None if edit.device is None else edit.device - number
        return attrs.evolve(edit, device=None), step

    for _, group in itertools.groupby(enumerate(edits), key=same):
        first, *more = [edit for _, edit in group]
        devices = None if first.device is None else str(first.device)
        yield (f"{devices}-{more[-1].device}" if more else devices), first

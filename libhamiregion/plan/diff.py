"""What a plan would change on a node, and what it leaves as it is, and why."""

from __future__ import annotations

import glob
import operator
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import attrs

from libhamiregion.effects import ANYTHING, Effect, sm_limit_effects, sm_limit_stops_launches
from libhamiregion.errors import RegionError
from libhamiregion.node.containers import MissingReason
from libhamiregion.text import printable
from libhamiregion.units import format_size, memory_limit_percent

from .equal_edits import value_name, value_words
from .limit_plan import DEVICE_FIELDS, LIMIT_FIELDS, LimitField

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from libhamiregion.node.containers import Container
    from libhamiregion.node.node import Node
    from libhamiregion.node.selector import Selector
    from libhamiregion.region import Region

    from .limit_plan import LimitPlan, LimitValue, Rule

#: A value of a container: its field, and the device's index, None for one of the whole container.
ValueKey: TypeAlias = "tuple[LimitField, int | None]"

#: Why something that a rule chooses is left as it is. ``no_region``: the container has no region
#: that can be read, `Container.missing` tells why; ``unreadable``: its region could not be read
#: just now; ``unknown_name``: the name of its pod is not known, and the rule asks for it;
#: ``no_device``: it has no device that the rule chooses; ``below_usage``: the memory limit would be
#: less than what is in use; ``stops_launches``: the SM limit would stop what runs there for good;
#: ``no_limit``: the rule has a percentage of a memory limit, and there is none; ``changed``:
#: another value stands there than the rule expects.
SkipReason: TypeAlias = Literal[
    "no_region",
    "unreadable",
    "unknown_name",
    "no_device",
    "below_usage",
    "stops_launches",
    "no_limit",
    "changed",
]


@attrs.frozen
class Skip:
    """Something that a rule chooses and that is left as it is.

    Attributes:
        container: The container.
        reason: The kind of reason, a `SkipReason`.
        message: The reason as a sentence, escaped.
        rules: Indices of the rules that choose it.
        device: Index of the device; None where the reason is not about one.
    """

    container: Container
    reason: SkipReason
    message: str
    rules: tuple[int, ...] = ()
    device: int | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether the container has no region yet."""
        missing = self.container.missing
        return missing is not None and missing.reason is MissingReason.NO_FILE


@attrs.frozen
class PlannedEdit:
    """One value that differs from what the plan says.

    Attributes:
        field: ``memory_limit``, ``sm_limit`` or ``priority``.
        device: Index of the device; None for a priority.
        before: As it is: bytes, percent or a priority; None is unlimited.
        after: As the plan says, in the same unit.
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
class ContainerDiff:
    """What a plan changes in one container: all of it or nothing.

    Attributes:
        container: The container.
        edits: What differs; empty where the container is on the plan.
        refused: Why none of the edits may be made; empty if they may.
        governed: The values that some rule sets, whether they differ or not.
        file_id: Device and inode of the region's file.
    """

    container: Container
    edits: tuple[PlannedEdit, ...] = ()
    refused: tuple[Skip, ...] = ()
    governed: frozenset[ValueKey] = attrs.field(default=frozenset(), repr=False)
    file_id: tuple[int, int] = attrs.field(default=(0, 0), repr=False)


@attrs.frozen
class PlanDiff:
    """What a plan changes on a node.

    Attributes:
        containers: Those that some rule chooses and whose region can be read.
        skipped: What rules choose and cannot reach.
        unused: Indices of rules that choose no container of this node.
    """

    containers: tuple[ContainerDiff, ...]
    skipped: tuple[Skip, ...]
    unused: tuple[int, ...]

    @property
    def changes(self) -> tuple[ContainerDiff, ...]:
        """The containers that are to be edited, and may be."""
        return tuple(each for each in self.containers if each.edits and not each.refused)

    @property
    def off_plan(self) -> tuple[Skip, ...]:
        """All that stays as it is although the plan says otherwise."""
        reached = tuple(skip for skip in self.skipped if not skip.is_waiting)
        return reached + tuple(skip for each in self.containers for skip in each.refused)

    @property
    def waiting(self) -> tuple[Skip, ...]:
        """Containers that have no region yet, so that nothing of them differs from the plan."""
        return tuple(skip for skip in self.skipped if skip.is_waiting)


@attrs.frozen
class Original:
    """A value as it was before a plan changed it.

    Attributes:
        before: The value before the first change; None is unlimited.
        ours: The values that may stand there without anybody else having set them.
    """

    before: int | None
    ours: tuple[int | None, ...]


def diff_plan(
    node: Node,
    plan: LimitPlan,
    *,
    force: bool = False,
    originals: Mapping[str, Mapping[ValueKey, Original]] | None = None,
    held: frozenset[str] = frozenset(),
) -> PlanDiff:
    """Compare a node with a plan. Nothing is changed.

    Containers outside the node's roots are left alone: only a directory's name says which
    container a region belongs to.

    Args:
        node: As it was at its last refresh.
        plan: The plan.
        force: Whether a memory limit may be less than what is in use, and an SM limit may stop
            what runs.
        originals: What earlier plans changed, by a container's directory. What the plan sets no
            longer, and still stands as it was set, goes back; percentages are of these values.
        held: UIDs of pods that are to be left alone.

    Raises:
        RegionClosed: The node has been closed.

    Shell: ``hamiregion limits diff FILE``.
    """
    general, exact = _rules_by_pod(plan)
    found: list[ContainerDiff] = []
    skipped: list[Skip] = []
    used: set[int] = set()
    for container in node.containers:
        if container.directory is None or container.pod_uid in held:
            continue
        before = (originals or {}).get(container.directory, {})
        candidates = sorted(
            [*general, *exact.get(container.pod_uid or "", ())], key=operator.itemgetter(0)
        )
        if not candidates and not before:
            continue
        name = container.pod_name
        chosen = [each for each in candidates if each[1].select.matches_container(container, name)]
        used.update(number for number, _ in chosen)
        if name is None:
            numbers = {number for number, _ in chosen}
            others = [each for each in candidates if each[0] not in numbers]
            in_doubt = [each for each in others if each[1].select.might_match(container)]
            message = "the name of its pod is not known here, and a rule asks for it"
            skipped += _skip(container, "unknown_name", message, in_doubt)
        if not chosen and not before:
            continue
        if container.region is None:
            missing = container.missing
            message = "no region" if missing is None else missing.message
            skipped += _skip(container, "no_region", message, chosen)
            continue
        try:
            wanted, without_device = _wanted(container, container.region, chosen)
            skipped += without_device
            skipped += _leave_unexpected(container, container.region, wanted, plan.rules, before)
            found.append(_compared(container, container.region, wanted, before, force=force))
        except RegionError as error:
            skipped += _skip(container, "unreadable", str(error), chosen)
    unused = tuple(number for number in range(len(plan.rules)) if number not in used)
    return PlanDiff(tuple(found), tuple(skipped), unused)


# ---- which rules choose a container -------------------------------------------------------------

NumberedRule: TypeAlias = "tuple[int, Rule]"
#: What the rules set: each value with the index of the rule that counts.
Wanted: TypeAlias = "dict[ValueKey, tuple[LimitValue, int]]"


def _rules_by_pod(plan: LimitPlan) -> tuple[list[NumberedRule], dict[str, list[NumberedRule]]]:
    """A plan's rules for any pod, and by UID those for one.

    Plans that a program wrote name each pod; matching all of their rules with each container would
    take the square of the time.
    """
    general: list[NumberedRule] = []
    exact: dict[str, list[NumberedRule]] = defaultdict(list)
    for each in enumerate(plan.rules):
        uid = each[1].select.pod_uid
        (exact[uid] if uid and not glob.has_magic(uid) else general).append(each)
    return general, exact


def _skip(
    container: Container, reason: SkipReason, message: str, rules: Iterable[NumberedRule]
) -> list[Skip]:
    numbers = tuple(number for number, _ in rules)
    return [Skip(container, reason, printable(message), numbers)] if numbers else []


# ---- what they change in it ---------------------------------------------------------------------


@attrs.frozen
class RegionDevice:
    """A device that an edit can name.

    Attributes:
        index: Index of the device.
        uuid: None until something in the container initialises NVML.
    """

    index: int
    uuid: str | None


def region_devices(region: Region) -> list[RegionDevice]:
    """The devices of `Region.device_indices`.

    Raises:
        RegionStale, RegionCorrupt, RegionClosed: As `Region.snapshot`.
    """
    uuids = dict(enumerate(region.uuids))
    return [RegionDevice(index, uuids.get(index)) for index in region.device_indices]


def value_now(region: Region, key: ValueKey) -> int | None:
    """A value as it stands in a region.

    Raises:
        RegionStale, RegionCorrupt, RegionClosed: As `Region.snapshot`.
    """
    field, device = key
    # A region calls them as a plan does.
    value: Any = getattr(region, field)
    found: int | None = value if device is None else value(device)
    return found


def _wanted(
    container: Container, region: Region, rules: list[NumberedRule]
) -> tuple[Wanted, list[Skip]]:
    """What the rules set in a container, and those that choose no device of it."""
    wanted: Wanted = {}
    without_device = []
    there, count = region_devices(region), region.device_count
    for number, rule in rules:
        devices = [each.index for each in there if rule.select.matches_device(each)]
        if not devices and not count:
            devices = _former_device(rule.select)
        if not devices:
            without_device.append((number, rule))
            continue
        for field, value in rule.set:
            for device in devices if field in DEVICE_FIELDS else (None,):
                wanted[field, device] = (value, number)
    message = f"it has no device that a rule chooses; it has {count}"
    if not count:
        message = "it has not reported its devices yet, so no uuid chooses one of them"
    return wanted, _skip(container, "no_device", message, without_device)


def _leave_unexpected(
    container: Container,
    region: Region,
    wanted: Wanted,
    rules: tuple[Rule, ...],
    originals: Mapping[ValueKey, Original],
) -> list[Skip]:
    """Take out of `wanted` where another value stands than the rule expects."""
    left = []
    for key, (value, number) in list(wanted.items()):
        field, device = key
        expected = getattr(rules[number].only_if, field)
        if expected is ANYTHING:
            continue
        now, after = value_now(region, key), value
        if isinstance(value, str) and key in originals:
            after = _share(value, originals[key].before)
        if now not in (expected, after):
            del wanted[key]
            name, found = value_name(field), value_words(field, now)
            where = "" if device is None else f" of device {device}"
            message = f"{name}{where} is {found} by now, not {value_words(field, expected)}"
            left.append(Skip(container, "changed", message, (number,), device))
    return left


def _share(percent: str, limit: int | None) -> int:
    """A percentage of a memory limit, rounded as the core does; 0 where there is no limit."""
    return (limit or 0) * (memory_limit_percent(percent) or 0) // 100


def _former_device(select: Selector) -> list[int]:
    """The device of a rule for one container, as undo plans have them.

    Where a container has not reported its devices, only limits and use tell which it has, and a
    plan may have taken the last limit of one.
    """
    exact = select.pod_uid is not None and select.container is not None
    index = select.device or ""
    return [int(index)] if exact and index.isascii() and index.isdigit() else []


def _compared(
    container: Container,
    region: Region,
    wanted: Wanted,
    originals: Mapping[ValueKey, Original],
    *,
    force: bool,
) -> ContainerDiff:
    edits: list[PlannedEdit] = []
    refused: list[Skip] = []
    for key, (value, rule) in wanted.items():
        now = after = value_now(region, key)
        if isinstance(value, str):
            base = originals[key].before if key in originals else now
            after = _share(value, base)
            if not after:
                limit = "unlimited" if base is None else format_size(base)
                message = f"the memory limit of device {key[1]} is {limit}, and {value} of it is"
                refused.append(Skip(container, "no_limit", f"{message} no limit", (rule,), key[1]))
                continue
        else:
            after = value
        if now != after:
            edits.append(PlannedEdit(*key, now, after, Effect.IMMEDIATE, rule))
    for key, original in originals.items():
        now = value_now(region, key)
        # A value that somebody else has set since is theirs.
        if key not in wanted and now in original.ours and now != original.before:
            edits.append(PlannedEdit(*key, now, original.before, Effect.IMMEDIATE))
    edits = _with_effects(region, edits)
    if not force:
        refused += [skip for edit in edits for skip in _refusals(container, region, edit)]
    return ContainerDiff(container, tuple(edits), tuple(refused), frozenset(wanted), region.file_id)


def _with_effects(region: Region, edits: list[PlannedEdit]) -> list[PlannedEdit]:
    """The edits in the order in which they are made, each with its effect."""
    edits = sorted(edits, key=lambda edit: (LIMIT_FIELDS.index(edit.field), edit.device or 0))
    sm = [(e.device or 0, e.before, e.after) for e in edits if e.field == "sm_limit"]
    stops = any(sm_limit_stops_launches(region.layout, *edit) for edit in sm) and bool(
        region.snapshot().processes
    )
    effects = iter(sm_limit_effects(region.layout, sm, stops_launches=stops))
    return [
        attrs.evolve(edit, effect=next(effects)) if edit.field == "sm_limit" else edit
        for edit in edits
    ]


def _refusals(container: Container, region: Region, edit: PlannedEdit) -> Iterator[Skip]:
    """Why what runs there could not bear an edit."""
    rules = () if edit.rule is None else (edit.rule,)
    if edit.effect is Effect.STOPS_LAUNCHES and edit.device == 0:
        message = (
            "a running process that started without an SM limit would launch once more and then"
            " never again"
        )
        yield Skip(container, "stops_launches", message, rules, 0)
    if edit.field == "memory_limit" and edit.device is not None and edit.after is not None:
        used = region.memory_used(edit.device)
        if used > edit.after:
            message = (
                f"device {edit.device} uses {format_size(used)}, more than the"
                f" {format_size(edit.after)} that the plan says"
            )
            yield Skip(container, "below_usage", message, rules, edit.device)

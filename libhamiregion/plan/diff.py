"""What a plan would change on a node, and what it leaves as it is, and why."""

from __future__ import annotations

import glob
from collections import defaultdict
from typing import TYPE_CHECKING, Literal, TypeAlias

import attrs

from libhamiregion.effects import Effect, sm_limit_effects, sm_limit_stops_launches
from libhamiregion.errors import RegionError
from libhamiregion.text import printable
from libhamiregion.units import format_size, memory_limit_percent

from .limit_plan import LIMIT_FIELDS, LimitField

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
#: ``no_limit``: the rule has a percentage of a memory limit, and there is none.
SkipReason: TypeAlias = Literal[
    "no_region",
    "unreadable",
    "unknown_name",
    "no_device",
    "below_usage",
    "stops_launches",
    "no_limit",
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
        return self.skipped + tuple(skip for each in self.containers for skip in each.refused)


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
    rules = _Rules(plan)
    found: list[ContainerDiff] = []
    skipped: list[Skip] = []
    used: set[int] = set()
    for container in node.containers:
        if container.directory is None or container.pod_uid in held:
            continue
        before = (originals or {}).get(container.directory, {})
        candidates = rules.candidates(container.pod_uid)
        if not candidates and not before:
            continue
        name = container.pod_name
        chosen = [each for each in candidates if each[1].select.matches_container(container, name)]
        used.update(number for number, _ in chosen)
        if name is None:
            skipped += _in_doubt(container, candidates, chosen)
        if not chosen and not before:
            continue
        try:
            compared = _Comparison(container, chosen, before, force=force)
        except RegionError as error:
            skipped += _skip(container, "unreadable", str(error), chosen)
            continue
        skipped += compared.skipped
        if compared.diff is not None:
            found.append(compared.diff)
    unused = tuple(number for number in range(len(plan.rules)) if number not in used)
    return PlanDiff(tuple(found), tuple(skipped), unused)


NumberedRule: TypeAlias = "tuple[int, Rule]"


class _Rules:
    """A plan's rules by the pod that they name.

    Plans that a program wrote name each pod; matching all of their rules with each container would
    take the square of the time.
    """

    def __init__(self, plan: LimitPlan) -> None:
        self._by_uid: dict[str, list[NumberedRule]] = defaultdict(list)
        self._general: list[NumberedRule] = []
        for number, rule in enumerate(plan.rules):
            uid = rule.select.pod_uid
            exact = uid is not None and not glob.has_magic(uid)
            (self._by_uid[uid] if exact and uid else self._general).append((number, rule))

    def candidates(self, pod_uid: str | None) -> list[NumberedRule]:
        exact = self._by_uid.get(pod_uid or "", [])
        return sorted([*self._general, *exact], key=lambda each: each[0])


def _skip(
    container: Container,
    reason: SkipReason,
    message: str,
    rules: Iterable[NumberedRule],
) -> list[Skip]:
    numbers = tuple(number for number, _ in rules)
    return [Skip(container, reason, printable(message), numbers)] if numbers else []


def _in_doubt(
    container: Container, candidates: list[NumberedRule], chosen: list[NumberedRule]
) -> list[Skip]:
    """Which rules might choose a container if the name of its pod were known."""

    def might(rule: Rule) -> bool:
        select = rule.select
        nameless = attrs.evolve(select, namespace=None, pod=None)
        return nameless != select and nameless.matches_container(container, None)

    numbers = {number for number, _ in chosen}
    rules = [each for each in candidates if each[0] not in numbers and might(each[1])]
    message = "the name of its pod is not known here, and a rule asks for it"
    return _skip(container, "unknown_name", message, rules)


def _former_device(select: Selector) -> list[int]:
    """The device of a rule for one container, as undo plans have them.

    Where a container has not reported its devices, only limits and use tell which it has, and a
    plan may have taken the last limit of one.
    """
    exact = select.pod_uid is not None and select.container is not None
    index = select.device or ""
    return [int(index)] if exact and index.isascii() and index.isdigit() else []


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
    if device is None:
        return region.priority
    return region.memory_limit(device) if field == "memory_limit" else region.sm_limit(device)


class _Comparison:
    """One container compared with the rules that choose it."""

    def __init__(
        self,
        container: Container,
        rules: list[NumberedRule],
        originals: Mapping[ValueKey, Original],
        *,
        force: bool,
    ) -> None:
        self._container = container
        self._originals = originals
        self.skipped: list[Skip] = []
        self.diff: ContainerDiff | None = None
        if container.region is None:
            missing = container.missing
            message = "no region" if missing is None else missing.message
            self.skipped += _skip(container, "no_region", message, rules)
            return
        self._region = container.region
        self._refused: list[Skip] = []
        wanted = self._wanted(rules)
        edits = self._ordered([*self._changed(wanted), *self._going_back(wanted)])
        if not force:
            self._check(edits)
        self.diff = ContainerDiff(
            container,
            edits,
            tuple(self._refused),
            frozenset(wanted),
            self._region.file_id,
        )

    def _wanted(self, rules: list[NumberedRule]) -> dict[ValueKey, tuple[LimitValue, int]]:
        """What the rules set, each value with the rule that counts."""
        wanted: dict[ValueKey, tuple[LimitValue, int]] = {}
        there = region_devices(self._region)
        without_device = []
        for number, rule in rules:
            devices = [each.index for each in there if rule.select.matches_device(each)]
            if not devices and not self._region.device_count:
                devices = _former_device(rule.select)
            if not devices:
                without_device.append((number, rule))
                continue
            for field, value in rule.set:
                for device in (None,) if field == "priority" else devices:
                    wanted[field, device] = (value, number)
        count = self._region.snapshot().device_count
        message = f"it has no device that a rule chooses; it has {count}"
        if not count:
            message = "it has not reported its devices yet, so no uuid chooses one of them"
        self.skipped += _skip(self._container, "no_device", message, without_device)
        return wanted

    def _changed(self, wanted: Mapping[ValueKey, tuple[LimitValue, int]]) -> Iterator[PlannedEdit]:
        for key, (value, rule) in wanted.items():
            now = value_now(self._region, key)
            after = value if not isinstance(value, str) else self._share(key, value, now, rule)
            if now != after:
                yield PlannedEdit(*key, now, after, Effect.IMMEDIATE, rule)

    def _share(self, key: ValueKey, percentage: str, now: int | None, rule: int) -> int | None:
        """A percentage of a memory limit in bytes, rounded as the core does."""
        original = self._originals.get(key)
        base = now if original is None else original.before
        share = (base or 0) * (memory_limit_percent(percentage) or 0) // 100
        if share:
            return share
        limit = "unlimited" if base is None else format_size(base)
        message = (
            f"the memory limit of device {key[1]} is {limit}, and {percentage} of it is no limit"
        )
        self._refuse("no_limit", message, key[1], rule)
        return now

    def _going_back(self, wanted: Mapping[ValueKey, object]) -> Iterator[PlannedEdit]:
        for key, original in self._originals.items():
            now = value_now(self._region, key)
            # A value that somebody else has set since is theirs.
            if key not in wanted and now in original.ours and now != original.before:
                yield PlannedEdit(*key, now, original.before, Effect.IMMEDIATE)

    def _ordered(self, edits: list[PlannedEdit]) -> tuple[PlannedEdit, ...]:
        """The edits in the order in which they are made, each with its effect."""
        edits.sort(key=lambda edit: (LIMIT_FIELDS.index(edit.field), edit.device or 0))
        sm = [
            (edit.device or 0, edit.before, edit.after)
            for edit in edits
            if edit.field == "sm_limit"
        ]
        layout = self._region.layout
        stops = any(sm_limit_stops_launches(layout, *edit) for edit in sm) and bool(
            self._region.snapshot().processes
        )
        effects: dict[ValueKey, Effect] = {
            ("sm_limit", change.device): change.effect
            for change in sm_limit_effects(layout, sm, stops_launches=stops)
        }
        return tuple(attrs.evolve(e, effect=effects.get(e.key, e.effect)) for e in edits)

    def _check(self, edits: Iterable[PlannedEdit]) -> None:
        """Note which edits what runs there could not bear."""
        for edit in edits:
            if edit.effect is Effect.STOPS_LAUNCHES and edit.device == 0:
                message = (
                    "a running process that started without an SM limit would launch once more and"
                    " then never again"
                )
                self._refuse("stops_launches", message, 0, edit.rule)
            if edit.field != "memory_limit" or edit.device is None or edit.after is None:
                continue
            used = self._region.memory_used(edit.device)
            if used > edit.after:
                message = (
                    f"device {edit.device} uses {format_size(used)}, more than the"
                    f" {format_size(edit.after)} that the plan says"
                )
                self._refuse("below_usage", message, edit.device, edit.rule)

    def _refuse(
        self, reason: SkipReason, message: str, device: int | None, rule: int | None
    ) -> None:
        rules = () if rule is None else (rule,)
        self._refused.append(Skip(self._container, reason, message, rules, device))

"""`hamiregion limits`: read and edit limits, also under running containers."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
import click

from libhamiregion import LimitChange, LimitEdit, Region, ValueChange, open_region
from libhamiregion.changes import ANYTHING
from libhamiregion.edits import find_device
from libhamiregion.observation.figures import without_impossible
from libhamiregion.text import count_text
from libhamiregion.units import (
    MIN_MEMORY_LIMIT_BYTES,
    UNLIMITED,
    format_limit,
    memory_limit_percent,
    typed_memory_limit,
)

from . import options
from .failures import ErrorGroup, Refused, bad_arguments
from .format import EFFECT_WORDS, memory_bar
from .tables import Block, Column, Lines, Page, Table
from .targets import UNDO, Place, Targets, target_options

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from libhamiregion.observation.cards import MemoryChange
    from libhamiregion.observation.model import Observation
    from libhamiregion.observation.processes import ProcessView
    from libhamiregion.plan import Rule
    from libhamiregion.plan.plan import LimitField

    from .output import Answer

    #: By file, then by kind of limit and device.
    KeptLimits: TypeAlias = "dict[tuple[int, int], dict[tuple[str, int | None], Rule]]"

# Imported when called: most calls are about one file.
_BY_PLAN = dict.fromkeys(("apply", "diff"), "limits_plan")


@click.group(cls=ErrorGroup, modules=_BY_PLAN)
def limits() -> None:
    """Read and edit the limits of a region, or of all containers of a node by a plan."""


_OF_DEVICE = ("index", "memory_limit_bytes", "memory_used_bytes", "sm_limit_percent")
_OF_CHANGE = ("device", "before", "after", "effect")
_FIELDS: dict[str, LimitField] = {"memory": "memory_limit", "sm": "sm_limit"}
_COLUMNS = (
    Column("DEVICE", "index", "number", title="device", style="bold"),
    Column("", memory_bar, "drawing", title="memory"),
    Column("MEM-LIMIT", "memory_limit_bytes", "size_limit", title="limit"),
    Column("MEM-USED", "memory_used_bytes", "size", title="used"),
    Column("SM-LIMIT", "sm_limit_percent", "percent_limit", title="SM limit"),
)


@limits.verb("get", "hamiregion limits get -n research bert-0", "hamiregion limits get --all")
@target_options(reads=True)
@options.device_option
@options.answer_options
def get(targets: Targets, **settings: Any) -> int:
    """Show a container's limits, and the rules of a plan that keep them."""
    kept = _kept(targets)
    return targets.for_each(lambda region, place: _get(region, place, kept, **settings))


def _get(
    region: Region, place: Place, kept: KeptLimits, device: int | str | None, answer: Answer
) -> None:
    with bad_arguments():
        indices = region.device_indices if device is None else (find_device(region, device),)
    devices = without_impossible(region.snapshot()).devices
    found = [each for each in devices if each.index in indices]
    burst = region.burst
    rules = {key: rule for key, rule in kept.get(region.file_id, {}).items() if key[1] in indices}
    data = {
        **place.data,
        "path": region.path,
        "layout": region.layout,
        "burst": burst,
        "devices": [{name: getattr(each, name) for name in _OF_DEVICE} for each in found],
        "kept": [
            {"limit": kind, "device": device, "rule": rule.name}
            for (kind, device), rule in rules.items()
        ],
    }
    blocks: list[Block] = [Table(_COLUMNS, found)]
    if rules:
        blocks.append(Lines([_kept_words(key, rule) for key, rule in rules.items()]))
    if burst:
        blocks.append(Lines(["burst: programs of `hamiregion run` use idle GPU time"]))
    answer.show(Page("limits/1", data, blocks, heading=place.heading))


def _kept(targets: Targets) -> KeptLimits:
    """Find which rules keep limits, if a process keeps this node on a plan."""
    # Most calls are about one file, and where no process ever has.
    from libhamiregion.node.node_lock import lock_directory

    # Unlike Path.is_dir, it is no error of users who may not look there.
    if not os.path.isdir(lock_directory()):  # noqa: PTH112
        return {}
    from libhamiregion.plan import PlanError
    from libhamiregion.plan.diff import rules_of
    from libhamiregion.plan.state import PlanState

    try:
        plan = PlanState().kept_plan()
    except (OSError, PlanError, ModuleNotFoundError):
        return {}
    if plan is None:
        return {}
    with targets.node() as node:
        return {
            each.region.file_id: {
                (field.removesuffix("_limit"), device): rule
                for (field, device), rule in rules_of(each, plan).items()
            }
            for each in node.containers
            if each.region is not None
        }


def _kept_words(key: tuple[str, int | None], rule: Rule) -> str:
    limit = {"memory": "memory limit", "sm": "SM limit"}[key[0]]
    return f"device {key[1]}: {limit} kept by {rule.name}"


@limits.verb(
    "set",
    "hamiregion limits set -n research bert-0 --device 0 --memory 6GiB",
    "hamiregion limits set --all 'bert-*' --memory 80% --dry-run",
)
@target_options(several=True)
@click.option(
    "--memory", help="6GiB, 3000m, 80% (of the limit now) or unlimited.", **options.MEMORY
)
@click.option("--sm", metavar="PERCENT", help="1 to 100, or unlimited.")
@click.option(
    "--burst/--no-burst", default=None, help="Programs of `run` may use idle GPU time, or not."
)
@options.device_option
@click.option("--all-devices", is_flag=True, help="All devices, also where their limits differ.")
@options.dry_run_option
@options.force_option(
    help="Also limits below use, 16 MiB or beyond the card, and SM limits that stop processes."
)
@click.option("--if-equals", metavar="VALUE", help="Only if each limit has this value now.")
@click.option("--undo-file", type=options.NO_DIRECTORY, metavar="FILE", help="Write an undo plan.")
@options.answer_options
def set_(
    targets: Targets,
    memory: str | None,
    sm: str | None,
    device: int | str | None,
    all_devices: bool,
    if_equals: str | None,
    undo_file: str | None,
    burst: bool | None,
    dry_run: bool,
    **settings: Any,
) -> int:
    """Change limits, also while their containers run."""
    given: dict[str, Any] = {"memory_limit": memory, "sm_limit": sm}
    wanted = {field: limit for field, limit in given.items() if limit is not None}
    if not wanted and burst is None:
        raise click.UsageError("Say what to set: --memory, --sm or --burst.")
    if if_equals is not None and len(wanted) != 1:
        raise click.UsageError("--if-equals compares one limit: give --memory or --sm, not both.")
    if device is not None and not wanted:
        raise click.UsageError("--burst is of the whole region: leave --device out.")
    if device is not None and all_devices:
        raise click.UsageError("--device and --all-devices exclude each other.")
    if undo_file is not None and (not wanted or dry_run):
        raise click.UsageError("--undo-file is for --memory and --sm, and not for --dry-run.")
    expected = ANYTHING if if_equals is None else if_equals
    # Wrong values are reported before the first file is changed.
    with bad_arguments():
        if memory is not None and if_equals is not None:
            typed_memory_limit(if_equals)
        edits = [
            LimitEdit(**{field: limit}, device=device, expected=expected)
            for field, limit in wanted.items()
        ]
    # A percentage is of each device's own limit.
    has_percent = memory is not None and memory_limit_percent(memory) is not None
    kinds = {"sm"} if has_percent else {"sm", "memory"}
    one_value = kinds if device is None and not all_devices else set()
    with contextlib.ExitStack() as stack:
        call = _Call(targets, edits, one_value, _kept(targets), burst, dry_run, stack, **settings)
        if undo_file is not None:
            attrs.evolve(call, dry_run=True).write_undo(undo_file)
        return targets.for_each(call.apply, writable=True)


@attrs.define
class _Call:
    """One call of `limits set`.

    Attributes:
        targets: The regions.
        edits: What is done in each of them.
        one_value: The kinds of limits that are one value for devices that may differ.
        kept: The rules that will set limits back.
        burst: The switch of each region; None leaves it.
        dry_run: Whether nothing is written.
        stack: Closes the node.
        force: Whether raises beyond the card are allowed, and all that the library refuses.
        answer: How to answer.
        regions: Their files.
        changes: What was changed, or would be, and is not in the observation.
        observation: The node, once a limit was to be raised.
        processes: Those of this machine, once a region with several devices was changed.
    """

    targets: Targets
    edits: list[LimitEdit]
    one_value: set[str]
    kept: KeptLimits
    burst: bool | None
    dry_run: bool
    stack: contextlib.ExitStack
    force: bool
    answer: Answer
    regions: set[tuple[int, int]] = attrs.field(init=False, factory=set)
    changes: list[MemoryChange] = attrs.field(init=False, factory=list)
    observation: Observation | None = attrs.field(init=False, default=None)
    processes: ProcessView | None = attrs.field(init=False, default=None)

    def apply(self, region: Region, place: Place) -> None:
        """Edit one region, and show what has changed."""
        # The same file by another name: 80% of 80% is not what was asked for.
        if region.file_id in self.regions:
            return
        self.regions.add(region.file_id)
        dry_run, switch = self.dry_run, None
        with bad_arguments():
            if self.burst is not None:
                region.set_burst(self.burst, dry_run=True)
            changes = self._edit(region, place)
            if self.burst is not None:
                switch = region.set_burst(self.burst, dry_run=dry_run)
        rules = self.kept.get(region.file_id, {})
        different = [each for each in changes if each.before != each.after]
        lines = [_sentence(each, dry_run=dry_run) for each in changes]
        if not dry_run:
            lines += [_undo_command(place, each) for each in different]
        lines += [
            f"{_kept_words(key, rules[key])}: it will be set back"
            for each in different
            if (key := (each.kind, each.device)) in rules
        ]
        if switch is not None:
            lines.append(_sentence(switch, dry_run=dry_run))
        self._note_unknown_cards(region, place, changes)
        notes = self._other_orders(region, changes)
        lines += [f"note: {each}" for each in notes]
        data: dict[str, Any] = {
            "burst": switch and {"before": bool(switch.before), "after": bool(switch.after)},
            "changes": [
                {
                    "limit": each.kind,
                    **{name: getattr(each, name) for name in _OF_CHANGE},
                    "kept_by": getattr(rules.get((each.kind, each.device)), "name", None),
                }
                for each in changes
            ],
            "notes": notes,
        }
        self.answer.show(place.done("limit-changes/1", region, lines, dry_run=dry_run, **data))

    def write_undo(self, path: str) -> None:
        """Write the plan that undoes edits, before the first of them; not if one is refused."""
        from libhamiregion.plan.apply import undo_text
        from libhamiregion.plan.diff import ContainerDiff, PlannedEdit
        from libhamiregion.plan.state import write_new

        diffs = []
        with self.targets.node() as node:
            owners = {
                each.region.file_id: each for each in node.containers if each.region is not None
            }
            for place in self.targets.places(writable=True):
                with open_region(place.path, layout=self.targets.layout) as region, bad_arguments():
                    changes = self._edit(region, place)
                    if region.file_id not in owners:
                        raise click.UsageError(
                            f"no plan can name {place.path}: it is in no container's directory of"
                            " this node, so leave --undo-file out"
                        )
                    planned = tuple(
                        PlannedEdit(
                            _FIELDS[each.kind], each.device, each.before, each.after, rule=0
                        )
                        for each in changes
                        if each.before != each.after
                    )
                    diffs.append(ContainerDiff(owners[region.file_id], planned))
        write_new(path, undo_text(diffs))

    def _edit(self, region: Region, place: Place) -> list[LimitChange]:
        """Edit one region, unless an edit is refused."""
        tried = self._edit_limits(region, dry_run=True)
        _refuse_raises(place, tried, self.one_value)
        self._refuse_beyond_cards(region, tried)
        made = tried if self.dry_run else self._edit_limits(region, dry_run=False)
        # Only now: the next container is not to answer for a raise that has failed.
        self.changes += _memory_changes(region, made)
        return made

    def _edit_limits(self, region: Region, *, dry_run: bool) -> list[LimitChange]:
        made = region.edit_limits(self.edits, force=self.force, dry_run=dry_run)
        # None of the edits is of the priority.
        return [each for each in made if isinstance(each, LimitChange)]

    def _refuse_beyond_cards(self, region: Region, tried: list[LimitChange]) -> None:
        """Refuse raises that do not fit the card with the limits of other containers."""
        from libhamiregion.observation.cards import beyond_cards

        changes = _memory_changes(region, tried)
        if self.observation is None and any(each.is_raise for each in changes) and not self.force:
            self.observation = self._observe()
            if not self.dry_run:
                self.changes.clear()
        if self.observation is not None:
            files = {each.identity for each in self.observation.containers}
            for each in beyond_cards(self.observation, [*self.changes, *changes]):
                if each.change in changes and region.file_id in files:
                    raise Refused(f"{each.words}; --force sets it all the same")

    def _note_unknown_cards(self, region: Region, place: Place, made: list[LimitChange]) -> None:
        """Say which raises were not compared with the card: its memory is not known."""
        from libhamiregion.observation.cards import cards

        if self.observation is None or all(
            each.identity != region.file_id for each in self.observation.containers
        ):
            return
        by_uuid = cards(self.observation)
        for each in _memory_changes(region, made):
            card = by_uuid.get(each.uuid)
            if each.is_raise and (card is None or card.memory_total_bytes is None):
                click.echo(
                    f"Note: {place.label}the memory of device {each.device}'s GPU is not known, so"
                    " its limits may add up to more",
                    err=True,
                )

    def _observe(self) -> Observation:
        from libhamiregion.node import NvmlSampler, Observer

        node = self.stack.enter_context(self.targets.node_choice.open())
        # The sampler is not closed: that would wait for a driver that does not answer.
        return Observer(node, sampler=NvmlSampler()).observe()

    def _other_orders(self, region: Region, changes: list[LimitChange]) -> list[str]:
        """Say which limits hold for processes that count devices otherwise than the region."""
        from libhamiregion.node import ProcessTable
        from libhamiregion.node.procfs import file_identity
        from libhamiregion.observation.visible import limits_in_force

        if len(region.device_indices) == 1 or not changes:
            return []
        if self.processes is None:
            table = ProcessTable(self.targets.node_choice.proc)
            # Without any if they cannot be listed.
            with contextlib.suppress(OSError):
                table.refresh()
            self.processes = table.view
        view = self.processes
        entries = [
            view.entry_of(each)
            for each in view.mappers(file_identity(region), writable=True)
            if each.pid != view.visibility.own_pid
        ]
        counts = Counter(each.visible_devices for each in entries if each is not None)
        uuids = [each.uuid for each in region.snapshot().devices]
        devices = sorted({each.device for each in changes})
        return [
            f"{count_text(count, 'process')} with CUDA_VISIBLE_DEVICES={visible[:100]}: {words}"
            for visible, count in counts.items()
            if visible is not None
            for words in limits_in_force(visible, uuids, devices)
        ]


def _memory_changes(region: Region, changes: Iterable[LimitChange]) -> list[MemoryChange]:
    from libhamiregion.observation.cards import MemoryChange

    uuids = dict(enumerate(region.uuids))
    return [
        MemoryChange(region.file_id, each.device, uuids.get(each.device), each.before, each.after)
        for each in changes
        if each.kind == "memory"
    ]


def _sentence(change: LimitChange | ValueChange, *, dry_run: bool) -> str:
    if change.before == change.after:
        return f"{change.words} (unchanged)"
    words = f"would change {change.words}" if dry_run else change.words
    if isinstance(change, LimitChange):
        words += f" ({'raised' if _is_raised(change) else 'lowered'})"
    return f"{words}, {EFFECT_WORDS[change.effect]}"


def _is_raised(change: LimitChange) -> bool:
    if change.before is None:
        return False
    return change.after is None or change.after > change.before


def _refuse_raises(place: Place, limits: Sequence[LimitChange], kinds: set[str]) -> None:
    """Refuse one limit for devices with different ones, if it would raise some of them."""
    for kind in sorted(kinds):
        mine = [each for each in limits if each.kind == kind]
        raised = [each for each in mine if _is_raised(each)]
        if raised and len({each.before for each in mine}) > 1:
            device = next((each.device for each in mine if not _is_raised(each)), mine[0].device)
            command = _command(place, mine[0], raised[0].after)
            raise click.UsageError(
                f"the devices have different limits, and this would raise {raised[0].words};"
                f" say which is meant:\n  {command} --device {device}\n  {command} --all-devices"
            )


def _undo_command(place: Place, change: LimitChange) -> str:
    is_low = change.kind == "memory" and (change.before or 2**63) < MIN_MEMORY_LIMIT_BYTES
    command = _command(place, change, change.before)
    return f"{UNDO}{command} --device {change.device}{' --force' if is_low else ''}"


def _command(place: Place, change: LimitChange, value: int | None) -> str:
    """The command that sets a value, of the devices that are added."""
    shown = UNLIMITED
    if value is not None:
        shown = str(value) if change.kind == "sm" else format_limit(value).replace(" ", "")
    target = shlex.quote(place.name or place.path)
    return f"hamiregion limits set {target} --{change.kind} {shown}"

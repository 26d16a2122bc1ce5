"""`hamiregion limits`: read and edit limits, also under running containers."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import attrs
import click

from libhamiregion import LimitChange, LimitEdit
from libhamiregion.changes import ANYTHING
from libhamiregion.edits import find_device
from libhamiregion.observation.figures import size_or_none
from libhamiregion.units import (
    MIN_MEMORY_LIMIT_BYTES,
    UNLIMITED,
    format_limit,
    memory_limit_percent,
    typed_memory_limit,
)

from . import options
from .failures import ErrorGroup, bad_arguments
from .format import effect_words, memory_bar
from .help import Verb
from .output import UNDO, show, show_done
from .tables import Column, Lines, Page, Table
from .targets import Place, Targets, target_options

if TYPE_CHECKING:
    from collections.abc import Iterable

    from libhamiregion import Region, ValueChange

    from .tables import Block

# Imported when called: most calls are about one file.
_BY_PLAN = dict.fromkeys(("apply", "diff"), "limits_plan")


@click.group(cls=ErrorGroup, modules=_BY_PLAN)
def limits() -> None:
    """Read and edit the limits of a region, or of all containers of a node by a plan."""


@attrs.frozen
class DeviceLimits:
    """The limits of one device, with what they limit.

    Attributes:
        index: Index of the device (CUDA ordinal).
        memory_limit_bytes: None if unlimited.
        memory_used_bytes: What counts against the limit; None if it cannot be.
        sm_limit_percent: 1 to 99, or None if unlimited.
    """

    index: int
    memory_limit_bytes: int | None
    memory_used_bytes: int | None
    sm_limit_percent: int | None


_COLUMNS = (
    Column("DEVICE", "index", "number", title="device", style="bold"),
    Column("", memory_bar, "drawing", title="memory"),
    Column("MEM-LIMIT", "memory_limit_bytes", "size_limit", title="limit"),
    Column("MEM-USED", "memory_used_bytes", "size", title="used"),
    Column("SM-LIMIT", "sm_limit_percent", "percent_limit", title="SM limit"),
)


@limits.command(
    "get",
    cls=Verb,
    examples=["hamiregion limits get -n research bert-0", "hamiregion limits get usage.cache"],
)
@target_options()
@options.device_option
@options.output_options
def get(targets: Targets, **settings: Any) -> int:
    """Show the limits of a container."""
    return targets.for_each(lambda region, place: _get(region, place, **settings))


def _get(region: Region, place: Place, device: int | str | None, as_json: bool) -> None:
    with bad_arguments():
        indices = region.device_indices if device is None else (find_device(region, device),)
    found = [
        DeviceLimits(
            index,
            region.memory_limit(index),
            size_or_none(region.memory_used(index)),
            region.sm_limit(index),
        )
        for index in indices
    ]
    burst = region.burst
    data = {
        **place.data,
        "path": region.path,
        "layout": region.layout,
        "burst": burst,
        "devices": found,
    }
    blocks: list[Block] = [Table(_COLUMNS, found)]
    if burst:
        blocks.append(Lines(["burst: programs of `hamiregion run` use idle GPU time"]))
    show(Page("limits/1", data, blocks, heading=place.heading), as_json)


@limits.command(
    "set",
    cls=Verb,
    examples=[
        "hamiregion limits set -n research bert-0 --device 0 --memory 6GiB",
        "hamiregion limits set --all 'bert-*' --memory 80% --dry-run",
    ],
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
@options.force_option(help="Also limits below use or 16 MiB, and SM limits that stop processes.")
@click.option("--if-equals", metavar="VALUE", help="Only if each limit has this value now.")
@options.output_options
def set_(
    targets: Targets,
    memory: str | None,
    sm: str | None,
    device: int | str | None,
    all_devices: bool,
    if_equals: str | None,
    **settings: Any,
) -> int:
    """Change limits, also while their containers run."""
    given: dict[str, Any] = {"memory_limit": memory, "sm_limit": sm}
    wanted = {field: limit for field, limit in given.items() if limit is not None}
    if not wanted and settings["burst"] is None:
        raise click.UsageError("Say what to set: --memory, --sm or --burst.")
    if if_equals is not None and len(wanted) != 1:
        raise click.UsageError("--if-equals compares one limit: give --memory or --sm, not both.")
    if device is not None and not wanted:
        raise click.UsageError("--burst is of the whole region: leave --device out.")
    if device is not None and all_devices:
        raise click.UsageError("--device and --all-devices exclude each other.")
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
    settings["one_value"] = kinds if device is None and not all_devices else set()
    edited: set[tuple[int, int]] = set()
    return targets.for_each(
        lambda region, place: _set(region, place, edits, edited, **settings), writable=True
    )


def _set(
    region: Region,
    place: Place,
    edits: list[LimitEdit],
    edited: set[tuple[int, int]],
    *,
    one_value: set[str],
    burst: bool | None,
    dry_run: bool,
    force: bool,
    as_json: bool,
) -> None:
    # The same file by another name: 80% of 80% is not what was asked for.
    if region.file_id in edited:
        return
    edited.add(region.file_id)
    with bad_arguments():
        if burst is not None:
            region.set_burst(burst, dry_run=True)
        if one_value:
            tried = region.edit_limits(edits, force=force, dry_run=True)
            _refuse_raises(place, tried, one_value)
        made = region.edit_limits(edits, force=force, dry_run=dry_run)
        switch = None if burst is None else region.set_burst(burst, dry_run=dry_run)
    # None of the edits is of the priority.
    changes = [each for each in made if isinstance(each, LimitChange)]
    lines = [_sentence(each, dry_run=dry_run) for each in changes]
    if not dry_run:
        lines += [_undo_command(place, each) for each in changes if each.before != each.after]
    switched = None
    if switch is not None:
        switched = {"before": bool(switch.before), "after": bool(switch.after)}
        lines.append(_sentence(switch, dry_run=dry_run))
    answer = [
        {
            "limit": change.kind,
            "device": change.device,
            "before": change.before,
            "after": change.after,
            "effect": change.effect,
        }
        for change in changes
    ]
    show_done(
        "limit-changes/1",
        region,
        lines,
        as_json,
        place=place,
        dry_run=dry_run,
        burst=switched,
        changes=answer,
    )


def _sentence(change: LimitChange | ValueChange, *, dry_run: bool) -> str:
    if change.before == change.after:
        return f"{change.words} (unchanged)"
    words = f"would change {change.words}" if dry_run else change.words
    if isinstance(change, LimitChange):
        words += f" ({'raised' if _is_raised(change) else 'lowered'})"
    return f"{words}, {effect_words(change.effect)}"


def _is_raised(change: LimitChange) -> bool:
    if change.before is None:
        return False
    return change.after is None or change.after > change.before


def _refuse_raises(
    place: Place, changes: Iterable[LimitChange | ValueChange], kinds: set[str]
) -> None:
    """Refuse one limit for devices with different ones, if it would raise some of them."""
    limits = [each for each in changes if isinstance(each, LimitChange)]
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

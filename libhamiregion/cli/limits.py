"""`hamiregion limits`: read and edit limits, also under running containers."""

from __future__ import annotations

import os
import re
from importlib import import_module
from typing import TYPE_CHECKING, cast

import attrs
import click

from libhamiregion import LimitChange, LimitEdit, RegionError, open_region
from libhamiregion.effects import ANYTHING
from libhamiregion.text import printable

from . import options
from .failures import FAILED, ErrorGroup, bad_arguments, sentence
from .format import effect_words, memory_bar
from .output import Page, show, show_done
from .tables import (
    DRAWING,
    NUMBER,
    PERCENT_LIMIT,
    SIZE,
    SIZE_LIMIT,
    Column,
    Lines,
    Table,
)

if TYPE_CHECKING:
    from libhamiregion import Layout, Region, ValueChange
    from libhamiregion.effects import Anything

    from .tables import Block

# Over a node, by plan. Imported when asked for: most calls are about one file.
_BY_PLAN = ("apply", "diff", "export")


class _Limits(ErrorGroup):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *_BY_PLAN])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _BY_PLAN:
            return super().get_command(ctx, cmd_name)
        module = import_module(".limits_plan", __package__)
        return cast("click.Command", getattr(module, cmd_name))


@click.group(cls=_Limits)
def limits() -> None:
    """Read and edit the limits of a region, or of all containers of a node by a plan."""


@attrs.frozen
class DeviceLimits:
    """The limits of one device, with what they limit.

    Attributes:
        index: Index of the device (CUDA ordinal).
        memory_limit_bytes: None if unlimited.
        memory_used_bytes: What counts against the limit.
        sm_limit_percent: 1 to 99, or None if unlimited.
    """

    index: int
    memory_limit_bytes: int | None
    memory_used_bytes: int
    sm_limit_percent: int | None


_COLUMNS = (
    Column("DEVICE", "index", NUMBER, title="GPU", style="bold"),
    Column("", memory_bar, DRAWING, title="memory", on="terminal"),
    Column("MEM-LIMIT", "memory_limit_bytes", SIZE_LIMIT, title="limit"),
    Column("MEM-USED", "memory_used_bytes", SIZE, title="used"),
    Column("SM-LIMIT", "sm_limit_percent", PERCENT_LIMIT, title="SM limit"),
)


@limits.command("get")
@options.file_argument
@options.device_option
@options.layout_option
@options.json_option
def get(path: str, device: int | str | None, layout: Layout | None, as_json: bool) -> None:
    """Show the limits in the region FILE.

    JSON: path, layout, burst (whether programs of `run` may pass the SM limits while nobody else
    uses the GPU), and devices, a list of objects with the keys index, memory_limit_bytes,
    memory_used_bytes and sm_limit_percent; null is unlimited.
    """
    with open_region(path, layout=layout) as region, bad_arguments():
        indices = region.device_indices if device is None else (_index(region, device),)
        found = [
            DeviceLimits(
                index, region.memory_limit(index), region.memory_used(index), region.sm_limit(index)
            )
            for index in indices
        ]
        burst = region.burst
    data = {"path": region.path, "layout": region.layout, "burst": burst, "devices": found}
    blocks: list[Block] = [Table(_COLUMNS, found)]
    if burst:
        blocks.append(Lines(["burst: programs of `hamiregion run` use what nobody else does"]))
    show(Page("limits/1", data, blocks), as_json)


@limits.command("set")
@click.argument("paths", metavar="FILE...", type=options.PATH, nargs=-1, required=True)
@click.option("--memory", metavar="SIZE", help="6GiB, 3000m, 80% (of the limit now) or unlimited.")
@click.option("--sm", metavar="PERCENT", help="1 to 100, or unlimited.")
@click.option(
    "--burst/--no-burst",
    default=None,
    help="Whether programs of `run` may pass the SM limits by what nobody else on the GPU uses; of"
    " all devices.",
)
@options.device_option
@options.dry_run_option
@click.option(
    "--force",
    is_flag=True,
    help="Also set a memory limit below what is used now, an SM limit that stops running processes"
    " for good (HAMi up to 2.4.0), and devices that the region does not have.",
)
@click.option(
    "--if-equals",
    metavar="VALUE",
    help="Only if this is the limit now, in every device concerned; else change nothing, exit 1.",
)
@options.layout_option
@options.json_option
def set_(
    paths: tuple[str, ...],
    memory: str | None,
    sm: str | None,
    burst: bool | None,
    device: int | str | None,
    dry_run: bool,
    force: bool,
    if_equals: str | None,
    layout: Layout | None,
    as_json: bool,
) -> int:
    """Change limits in the region FILE, also while its container runs.

    \b
    hamiregion limits set FILE --memory 6GiB
    hamiregion limits set FILE --device 0 --memory unlimited --sm 50
    hamiregion limits set FILE --memory 8GiB --if-equals 4GiB
    hamiregion limits set FILE --sm 30 --burst
    hamiregion limits set DIR/*/*.cache --memory 80% --dry-run

    Each file is changed wholly or not at all, also by a command that is killed, but for the 100 ns
    between the stores of one file, and before --burst.  Of several files one that cannot be changed
    is a line on stderr, the others are changed all the same, and the exit code is 1.  A file that
    is named twice is changed once.

    JSON, one object per file that was changed: path, layout, dry_run, burst (an object with the
    keys before and after, null without the option), and changes, a list of objects with the keys
    limit ("memory" or "sm"), device, before, after (bytes or percent, null is unlimited) and effect
    ("immediate", "new_processes" or, with --force only, "stops_launches").
    """  # noqa: D301 (click looks for the character itself)
    if memory is None and sm is None and burst is None:
        raise click.UsageError("Say what to set: --memory, --sm or --burst.")
    if if_equals is not None and (memory is None) == (sm is None):
        raise click.UsageError("--if-equals compares one limit: give --memory or --sm, not both.")
    edits = _edits(memory, sm, device, ANYTHING if if_equals is None else if_equals)
    _check_paths(paths)
    failed = False
    edited: set[tuple[int, int]] = set()
    for path in paths:
        try:
            with open_region(path, writable=True, layout=layout) as region, bad_arguments():
                # By a link to its directory too: 80% of 80% is not what was asked for.
                if region.file_id in edited:
                    continue
                edited.add(region.file_id)
                if burst is not None:
                    region.set_burst(burst, dry_run=True)
                made = region.edit_limits(edits, force=force, dry_run=dry_run)
                marked = None if burst is None else region.set_burst(burst, dry_run=dry_run)
        except (RegionError, OSError, click.UsageError) as error:
            if len(paths) == 1:
                raise
            failed = True
            said = error.message if isinstance(error, click.UsageError) else sentence(error)
            click.echo(f"Error: {printable(said)}", err=True)
            continue
        start = f"{printable(path)}: " if len(paths) > 1 else ""
        # None of the edits is of the priority.
        changes = [each for each in made if isinstance(each, LimitChange)]
        lines = [f"{start}{_sentence(change)}" for change in changes]
        if marked is not None:
            lines.append(f"{start}{_burst_sentence(marked)}")
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
        switched = (
            None if marked is None else {"before": bool(marked.before), "after": bool(marked.after)}
        )
        more = {"burst": switched, "changes": answer}
        show_done("limit-changes/1", region, lines, as_json, dry_run=dry_run, **more)
    return FAILED if failed else 0


# What follows a number in "6 GiB", which a shell makes two words of.
_SIZE_ALONE = re.compile(r"[0-9.]*(?:[kmgt](?:ib?)?|b|%)", re.ASCII | re.IGNORECASE)


def _edits(
    memory: str | None, sm: str | None, device: int | str | None, expected: str | Anything
) -> list[LimitEdit]:
    """What to change in each file; what is wrong with a value is said before the first of them."""
    edits = []
    with bad_arguments():
        if memory is not None:
            edits.append(LimitEdit("memory", memory, device, expected))
        if sm is not None:
            edits.append(LimitEdit("sm", sm, device, expected))
    return edits


def _check_paths(paths: tuple[str, ...]) -> None:
    for path in paths[1:]:
        if _SIZE_ALONE.fullmatch(path) and not os.path.lexists(path):
            raise click.UsageError(
                f"There is no file {path!r}; a size is one word, such as --memory 6GiB."
            )


def _sentence(change: LimitChange) -> str:
    if change.before == change.after:
        return f"{change.words} (unchanged)"
    return f"{change.words}, {effect_words(change.effect)}"


def _burst_sentence(change: ValueChange) -> str:
    before, after = ("on" if value else "off" for value in (change.before, change.after))
    if before == after:
        return f"burst {after} (unchanged)"
    return f"burst {before} -> {after}, {effect_words(change.effect)}"


def _index(region: Region, device: int | str) -> int:
    """The index of a device of the region, which may be named by its uuid."""
    uuids = region.uuids
    for index in region.device_indices:
        if device == index or (index < len(uuids) and device == uuids[index]):
            return index
    there = ", ".join(
        f"{index} ({uuids[index]})" if index < len(uuids) and uuids[index] else str(index)
        for index in region.device_indices
    )
    raise ValueError(f"{region.path!r} has no device {device!r}, only {there}")

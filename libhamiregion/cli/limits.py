"""`hamiregion limits`: read and edit limits, also under running containers."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

import attrs
import click

from libhamiregion import open_region
from libhamiregion.effects import ANYTHING

from . import options
from .failures import ErrorGroup, bad_arguments
from .format import effect_words, memory_words, percent_words
from .output import Page, as_plain, show, show_done
from .show import memory_bar
from .tables import (
    BAR,
    NUMBER,
    PERCENT_LIMIT,
    SIZE,
    SIZE_LIMIT,
    Column,
    Table,
)

if TYPE_CHECKING:
    from libhamiregion import Layout, LimitChange, Region

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
    """The limits of one device, with what they limit."""

    index: int
    memory_limit_bytes: int | None
    memory_used_bytes: int
    sm_limit_percent: int | None


_COLUMNS = (
    Column("DEVICE", "index", NUMBER, title="GPU", style="bold"),
    Column("", memory_bar, BAR, title="memory", on="terminal"),
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

    JSON: path, layout, and devices, a list of objects with the keys index, memory_limit_bytes,
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
    data = {"path": region.path, "layout": region.layout, "devices": found}
    show(Page(data, [Table(_COLUMNS, found)]), as_json)


@limits.command("set")
@options.file_argument
@click.option("--memory", metavar="SIZE", help="6GiB, 3000m, 80% (of the limit now) or unlimited.")
@click.option("--sm", metavar="PERCENT", help="1 to 100, or unlimited.")
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
    path: str,
    memory: str | None,
    sm: str | None,
    device: int | str | None,
    dry_run: bool,
    force: bool,
    if_equals: str | None,
    layout: Layout | None,
    as_json: bool,
) -> None:
    """Change limits in the region FILE, also while its container runs.

    \b
    hamiregion limits set FILE --memory 6GiB
    hamiregion limits set FILE --device 0 --memory unlimited --sm 50
    hamiregion limits set FILE --memory 8GiB --if-equals 4GiB

    JSON: path, layout, dry_run, and changes, a list of objects with the keys limit ("memory" or
    "sm"), device, before, after (bytes or percent, null is unlimited) and effect ("immediate",
    "new_processes" or, with --force only, "stops_launches").
    """  # noqa: D301 (click looks for the character itself)
    if memory is None and sm is None:
        raise click.UsageError("Say what to set: --memory, --sm or both.")
    if if_equals is not None and memory is not None and sm is not None:
        raise click.UsageError("--if-equals compares one limit: give --memory or --sm, not both.")
    expected = ANYTHING if if_equals is None else if_equals

    def edit(region: Region, dry_run: bool) -> list[tuple[str, LimitChange]]:
        done: list[tuple[str, LimitChange]] = []
        for limit, value, setter in (
            ("memory", memory, region.set_memory_limit),
            ("sm", sm, region.set_sm_limit),
        ):
            if value is not None:
                changed = setter(
                    value, device=device, expected=expected, force=force, dry_run=dry_run
                )
                done += [(limit, change) for change in changed]
        return done

    with open_region(path, writable=True, layout=layout) as region, bad_arguments():
        # Both are checked before either is stored: two limits, but one command.
        changes = edit(region, dry_run=True)
        if not dry_run:
            changes = edit(region, dry_run=False)
    lines = [_sentence(limit, change) for limit, change in changes]
    made = [{"limit": limit, **as_plain(change)} for limit, change in changes]
    show_done(region, lines, as_json, dry_run=dry_run, changes=made)


def _sentence(limit: str, change: LimitChange) -> str:
    words = memory_words if limit == "memory" else percent_words
    name = "memory limit" if limit == "memory" else "SM limit"
    what = f"device {change.device}: {name} {words(change.before)} -> {words(change.after)}"
    if change.before == change.after:
        return f"{what} (unchanged)"
    return f"{what}, {effect_words(change.effect)}"


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

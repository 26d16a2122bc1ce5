"""`hamiregion limits`: read and edit limits, also under running containers."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, cast

import attrs
import click
from rich.text import Text

from libhamiregion import LimitChange, open_region
from libhamiregion.effects import ANYTHING

from . import options
from .failures import SpeakingGroup, bad_arguments
from .output import as_plain, on_terminal, terminal, write, write_json
from .plain import aligned, percent_word, size_word
from .render import columns, limit_text, memory_bar, ratio_style
from .wording import effect_words, memory_words, percent_words

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.table import Table

    from libhamiregion import Layout, Region

    from .options import Limit

MEMORY = "memory"
SM = "sm"


@attrs.frozen
class DeviceLimits:
    """The limits of one device, with what they limit."""

    index: int
    memory_limit_bytes: int | None
    memory_used_bytes: int
    sm_limit_percent: int | None


# Over a node, by plan. Imported when asked for: most calls are about one file.
_BY_PLAN = ("apply", "diff", "export")


class _Limits(SpeakingGroup):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *_BY_PLAN])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _BY_PLAN:
            return super().get_command(ctx, cmd_name)
        from . import limits_plan

        return cast("click.Command", getattr(limits_plan, cmd_name))


@click.group(cls=_Limits)
def limits() -> None:
    """Read and edit the limits of a region, or of all containers of a node by a plan."""


@limits.command("get")
@options.file_argument
@options.device_option
@options.layout_option
@options.json_option
@options.no_color_option
def get(path: str, device: int | None, layout: Layout | None, as_json: bool) -> None:
    """Show the limits in the region FILE.

    JSON: path, layout, and devices, a list of objects with the keys index, memory_limit_bytes,
    memory_used_bytes and sm_limit_percent; null is unlimited.
    """
    with open_region(path, layout=layout) as region:
        indices = (
            [shown.index for shown in region.snapshot().devices] if device is None else [device]
        )
        found = [
            DeviceLimits(
                index,
                region.memory_limit(index),
                region.memory_used(index),
                region.sm_limit(index),
            )
            for index in indices
        ]
        path, name = region.path, region.layout.value
    if as_json:
        devices = [as_plain(entry) for entry in found]
        write_json({"path": path, "layout": name, "devices": devices})
    elif on_terminal():
        terminal().print(_table(found))
    else:
        write(
            aligned(
                [["DEVICE", "MEM-LIMIT", "MEM-USED", "SM-LIMIT"]]
                + [
                    [
                        str(entry.index),
                        size_word(entry.memory_limit_bytes),
                        size_word(entry.memory_used_bytes),
                        percent_word(entry.sm_limit_percent),
                    ]
                    for entry in found
                ]
            )
        )


@limits.command("set")
@options.file_argument
@click.option("--memory", type=options.MEMORY, metavar="SIZE", help="6GiB, 3000m, or `unlimited`.")
@click.option("--sm", type=options.SM, metavar="PERCENT", help="1 to 100, or `unlimited`.")
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
@options.no_color_option
def set_(
    path: str,
    memory: Limit | None,
    sm: Limit | None,
    device: int | None,
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
    with open_region(path, writable=True, layout=layout) as region:
        edits = _edits(region, memory, sm, device=device, force=force, if_equals=if_equals)
        with bad_arguments():
            # Both are checked before either is stored: two limits, but one command.
            changes = [(kind, edit(dry_run=True)) for kind, edit in edits]
            if not dry_run:
                changes = [(kind, edit(dry_run=False)) for kind, edit in edits]
        path, name = region.path, region.layout.value
    rows = [(kind, change) for kind, changed in changes for change in changed]
    if as_json:
        listed = [{"limit": kind, **as_plain(change)} for kind, change in rows]
        write_json({"path": path, "layout": name, "dry_run": dry_run, "changes": listed})
        return
    _print_changes(rows, dry_run=dry_run)


def _table(found: list[DeviceLimits]) -> Table:
    table = columns()
    table.add_column("GPU", justify="right", style="bold")
    table.add_column("Memory")
    for name in ("used", "limit", "SM limit"):
        table.add_column(name, justify="right", no_wrap=True)
    for entry in found:
        limit = entry.memory_limit_bytes
        ratio = None if limit is None else entry.memory_used_bytes / limit
        table.add_row(
            str(entry.index),
            memory_bar(ratio, width=20),
            Text(memory_words(entry.memory_used_bytes), style=ratio_style(ratio)),
            limit_text(memory_words(limit)),
            limit_text(percent_words(entry.sm_limit_percent)),
        )
    return table


def _edits(
    region: Region,
    memory: Limit | None,
    sm: Limit | None,
    *,
    device: int | None,
    force: bool,
    if_equals: str | None,
) -> list[tuple[str, Callable[..., tuple[LimitChange, ...]]]]:
    kind = options.MEMORY if memory is not None else options.SM
    expected = ANYTHING if if_equals is None else kind.convert(if_equals, None, None).value
    edits: list[tuple[str, Callable[..., tuple[LimitChange, ...]]]] = []
    if memory is not None:
        set_memory = functools.partial(
            region.set_memory_limit, memory.value, device=device, expected=expected, force=force
        )
        edits.append((MEMORY, set_memory))
    if sm is not None:
        set_sm = functools.partial(
            region.set_sm_limit, sm.value, device=device, expected=expected, force=force
        )
        edits.append((SM, set_sm))
    return edits


def _print_changes(rows: list[tuple[str, LimitChange]], *, dry_run: bool) -> None:
    fancy = on_terminal()
    console = terminal()
    for kind, change in rows:
        words = memory_words if kind == MEMORY else percent_words
        line = Text(f"device {change.device}: {'SM' if kind == SM else kind} limit ")
        line.append(words(change.before))
        line.append(" -> ")
        line.append(words(change.after), style="bold")
        if change.before == change.after:
            line.append(" (unchanged)")
        else:
            line.append(f", {effect_words(change.effect)}")
        if fancy:
            console.print(line)
        else:
            write(f"{line.plain}\n")
    if dry_run:
        write("dry run: nothing was written\n")

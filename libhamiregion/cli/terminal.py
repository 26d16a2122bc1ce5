"""What a terminal shows: tables with colours and bars, and live pictures."""

from __future__ import annotations

import itertools
import os
import sys
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.measure import Measurement
from rich.padding import Padding
from rich.panel import Panel
from rich.segment import Segment
from rich.style import Style
from rich.table import Table as RichTable
from rich.text import Text

from libhamiregion.text import printable

from .tables import (
    BAR,
    LONGEST_BAR,
    METER,
    NEAR,
    NOTHING,
    QUIET,
    UNLIMITED,
    WIDE,
    Column,
    Facts,
    Fill,
    Lines,
    Table,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import ConsoleOptions, RenderableType, RenderResult

    from .output import Page
    from .tables import Block


def console() -> Console:
    """Open the terminal; nothing in a text is markup. With NO_COLOR there is no style at all."""
    return Console(
        file=sys.stdout,
        markup=False,
        emoji=False,
        highlight=False,
        # rich alone would leave bold and dim.
        color_system=None if os.environ.get("NO_COLOR") else "auto",
    )


def live(on: Console) -> Live:
    """Open a picture that is repainted in place: no thread and one write each, so no flicker."""
    return Live(console=on, auto_refresh=False, vertical_overflow="crop")


def draw_page(page: Page, width: int, rows: int | Sequence[int] | None = None) -> RenderableType:
    """Draw all blocks of a page with empty lines between, and its warnings and notes.

    Args:
        page: What to draw.
        width: Columns of the terminal.
        rows: How many rows a table has at most: each, or in turn each that may be cut.
    """
    shares = itertools.repeat(rows) if rows is None or isinstance(rows, int) else iter(rows)
    blocks = [
        draw(block, width, next(shares) if _may_be_cut(block) else None) for block in page.blocks
    ]
    asides = [Text(printable(each), style=NEAR) for each in page.warnings]
    asides += [Text(printable(each), style=QUIET) for each in page.notes]
    if asides:
        blocks.append(Group(*asides))
    parts: list[RenderableType] = []
    for block in blocks:
        if block is not None:
            parts += [Text(), block] if parts else [block]
    return Group(*parts)


def fit_page(page: Page, screen: Console) -> RenderableType:
    """Draw a page with as many rows in its tables as the terminal has room for."""
    frame = len(screen.render_lines(draw_page(page, screen.width, 0)))
    wanted = [
        sum(1 for _ in block.rows())
        for block in page.blocks
        if isinstance(block, Table) and _may_be_cut(block)
    ]
    return draw_page(page, screen.width, fair_shares(max(3, screen.height - frame - 1), wanted))


def fair_shares(room: int, wanted: Sequence[int]) -> list[int]:
    """Share rows among tables: what one does not want, the others have.

    >>> fair_shares(20, [30, 4]), fair_shares(20, [30, 40]), fair_shares(20, [])
    ([16, 4], [10, 10], [])
    """
    shares = [0] * len(wanted)
    left = sorted(range(len(wanted)), key=wanted.__getitem__)
    while left:
        at = left.pop(0)
        shares[at] = min(wanted[at], room // (len(left) + 1))
        room -= shares[at]
    return shares


def _may_be_cut(block: Block) -> bool:
    return isinstance(block, Table) and not block.whole and bool(block.records)


def draw(block: Block, width: int, rows: int | None = None) -> RenderableType | None:
    """Draw a block for a terminal of that many columns; None if it is not shown there.

    A table has so many rows at most, if that is given.
    """
    if isinstance(block, Facts):
        return _draw_facts(block, min(width, WIDE))
    if isinstance(block, Lines):
        return _draw_lines(block, width)
    if block.records:
        return _draw_table(block, width, None if block.whole else rows)
    return _draw_lines(Lines([(block.empty, QUIET)] if block.empty else []), width)


def _draw_facts(block: Facts, width: int) -> RenderableType:
    directory, name = os.path.split(block.path)
    lines = [Text(printable(directory), style=QUIET, overflow="fold")]
    for label, words, style in block.facts:
        fact = Text.assemble((f"{label} ", QUIET), (words, style))
        # None is broken in two as long as it fits a line.
        if len(lines) > 1 and lines[-1].cell_len + 3 + fact.cell_len <= width - 4:
            lines[-1].append("   ").append_text(fact)
        else:
            lines.append(fact)
    return Panel(
        Group(*lines),
        title=Text(printable(name), style="bold"),
        title_align="left",
        border_style=QUIET,
        box=box.ROUNDED,
        width=width,
    )


def _draw_lines(block: Lines, width: int) -> RenderableType | None:
    if block.on == "pipe" or width >= block.to_width or not block.sentences:
        return None
    lines: list[RenderableType] = []
    for text, style in block.styled():
        words = text.lstrip(" ")
        line = Text(printable(words), style=style, overflow="fold")
        # What is wrapped stays indented.
        lines.append(Padding(line, (0, 0, 0, len(text) - len(words)), expand=False))
    return Group(*lines)


def _draw_table(table: Table, width: int, limit: int | None) -> RenderableType:
    """Draw a rule under the heading, and air; with so many rows at most."""
    shown = [
        column
        for column in table.columns
        if column.on != "pipe" and column.from_width <= width < column.to_width
    ]
    drawn = RichTable(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
        header_style=Style(bold=True),
        border_style=QUIET,
    )
    for column in shown:
        drawn.add_column(
            column.name.lower() if column.title is None else column.title,
            justify="right" if column.kind.right else "left",
            # Only columns that may wrap give way to others.
            no_wrap=not column.kind.shrinks,
            min_width=6 if column.kind.shrinks else column.kind.longest or None,
        )
    before = None
    rows = list(table.rows())
    meters: list[Bar] = []
    for record, part in rows[:limit]:
        cells: list[RenderableType] = []
        for column in shown:
            # One process on several devices is one process.
            again = column.part is None and record is before
            cell = Text() if again else _cell(column, record, part)
            cells.append(cell)
            if column.kind.grows and isinstance(cell, Bar):
                meters.append(cell)
        drawn.add_row(*cells)
        before = record
    growing = sum(column.kind.grows for column in shown)
    if meters:
        screen = Console(width=width)
        spare = width - Measurement.get(screen, screen.options, drawn).maximum
        for meter in meters:
            meter.grow(max(0, spare) // growing)
    if limit is None or len(rows) <= limit:
        return drawn
    return Group(drawn, Text(f"and {len(rows) - limit} more; a pipe gets all", style=QUIET))


def _cell(column: Column, record: object, part: object) -> RenderableType:
    value = column.of(record, part)
    if column.kind in (BAR, METER):
        return Bar(value) if isinstance(value, Fill) else Text()
    words = column.words(value)
    style = QUIET if words in (NOTHING, UNLIMITED) else column.style_of(record, part)
    if column.kind.folds:
        return Text(words, style=style, overflow="fold")
    return Text(words, style=style, no_wrap=True, overflow="ellipsis")


class Bar:
    """A horizontal bar."""

    def __init__(self, fill: Fill) -> None:
        self.fill = fill
        self.width = fill.width

    def grow(self, columns: int) -> None:
        """Make it that much wider, within reason."""
        self.width = min(self.width + columns, LONGEST_BAR)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        fill = self.fill
        width = min(self.width, options.max_width)
        full, half, rest, tick = "#-.|" if options.ascii_only else "━╸─┃"
        halves = round(min(max(fill.ratio, 0.0), 1.0) * width * 2)
        if fill.ratio > 0:
            # Little is not nothing.
            halves = max(halves, 1)
        cells = [*full * (halves // 2), *half * (halves % 2)]
        styles = [fill.style] * len(cells) + [QUIET] * (width - len(cells))
        cells += rest * (width - len(cells))
        if fill.mark is not None:
            at = min(int(fill.mark * width), width - 1)
            cells[at], styles[at] = tick, ""
        for style, run in itertools.groupby(zip(cells, styles, strict=True), lambda pair: pair[1]):
            yield Segment("".join(cell for cell, _ in run), console.get_style(style))
        yield Segment.line()

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(min(4, self.width), self.width)

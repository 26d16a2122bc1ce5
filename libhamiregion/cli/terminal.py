"""Tables with colours and bars, and live pictures, on a terminal."""

from __future__ import annotations

import itertools
import os
import select
import sys
import termios
import time
import tty
from contextlib import contextmanager
from typing import TYPE_CHECKING

import attrs
from rich import box
from rich.columns import Columns
from rich.console import Console, Group
from rich.live import Live
from rich.measure import Measurement
from rich.padding import Padding
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table as RichTable
from rich.text import Text

from libhamiregion.text import count_text, printable

from .tables import DIM, NOTHING, ROOMY, UNLIMITED, WARN, Bar, Facts, Lines, Spark, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import ConsoleOptions, RenderableType, RenderResult

    from .tables import Block, Column, Page

_LONGEST_FACTS = 124
_STEPS = "▁▂▃▄▅▆▇█"


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


# ---- live pictures -------------------------------------------------------------------------------


def live(on: Console) -> Live:
    """Open a picture that is repainted in place: no thread and one write each, so no flicker."""
    return Live(console=on, auto_refresh=False, vertical_overflow="crop")


@contextmanager
def keyboard() -> Iterator[Callable[[float], str]]:
    """A context in which keys are not shown; Ctrl-C is still Ctrl-C.

    Yields:
        A function that waits for a key for some seconds, and returns "" if there is none.
    """
    if sys.stdin is None or not sys.stdin.isatty():
        yield _no_key
        return
    modes = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield _key
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, modes)


def _no_key(seconds: float) -> str:
    time.sleep(max(0.0, seconds))
    return ""


def _key(seconds: float) -> str:
    descriptor = sys.stdin.fileno()
    ready, _, _ = select.select([descriptor], [], [], max(0.0, seconds))
    if not ready:
        return ""
    typed = os.read(descriptor, 64).decode("ascii", "replace")
    # A terminal that has gone is empty for ever.
    return typed[-1:] or _no_key(seconds)


# ---- pages ---------------------------------------------------------------------------------------


def draw_page(page: Page, width: int, rows: Sequence[int] | None = None) -> RenderableType:
    """Draw all blocks of a page with empty lines between, and its warnings and notes.

    Args:
        page: What to draw.
        width: Columns of the terminal.
        rows: How many rows each table has at most; None: all.
    """
    limits = itertools.repeat(None) if rows is None else iter(rows)
    blocks = [
        draw(block, width, next(limits) if isinstance(block, Table) else None)
        for block in page.blocks
    ]
    asides = [Text(printable(each), style=WARN) for each in page.warnings]
    asides += [Text(printable(each), style=DIM) for each in page.notes]
    if asides:
        blocks.append(Group(*asides))
    shown = [block for block in blocks if block is not None]
    parts = [part for block in shown for part in (Text(), block)][1:]
    return Group(*([Text(page.heading.rstrip(), "bold")] if page.heading else []), *parts)


def fit_page(page: Page, screen: Console) -> RenderableType:
    """Draw a page with as many rows in its tables as the terminal has room for."""
    tables = [block for block in page.blocks if isinstance(block, Table)]
    wanted = [sum(1 for _ in table.rows()) for table in tables]
    frame = len(screen.render_lines(draw_page(page, screen.width, [0] * len(tables))))
    return draw_page(page, screen.width, fair_shares(max(3, screen.height - frame - 1), wanted))


def fair_shares(room: int, wanted: Sequence[int]) -> list[int]:
    """Share rows among tables: rows that one does not need go to the others.

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


def draw(block: Block, width: int, rows: int | None = None) -> RenderableType | None:
    """Draw a block for a terminal of that many columns; None if it is not shown there.

    Args:
        block: What to draw.
        width: Columns of the terminal.
        rows: How many rows a table has at most; None: all.
    """
    if isinstance(block, Facts):
        return _draw_facts(block, min(width, _LONGEST_FACTS))
    if isinstance(block, Lines):
        return None if block.on == "pipe" else _draw_lines(block.sentences)
    if block.records:
        return _draw_table(block, width, rows)
    return _draw_lines([(block.empty, DIM)] if block.empty else [])


def _draw_facts(block: Facts, width: int) -> RenderableType:
    directory, file = os.path.split(block.path)
    facts = [
        Text.assemble((f"{label} ", DIM), (words, style)) for label, words, style in block.facts
    ]
    path = Text(printable(directory), style=DIM, overflow="fold")
    title = Text(printable(file), style="bold")
    body = Group(path, Columns(facts, padding=(0, 3)))
    return Panel(body, title=title, title_align="left", border_style=DIM, width=width)


def _draw_lines(styled: Sequence[tuple[str, str]]) -> RenderableType | None:
    lines: list[RenderableType] = []
    for text, style in styled:
        words = text.lstrip(" ")
        line = Text(printable(words), style=style, overflow="fold")
        # A wrapped line stays indented.
        lines.append(Padding(line, (0, 0, 0, len(text) - len(words)), expand=False))
    return Group(*lines) if lines else None


# ---- tables --------------------------------------------------------------------------------------


def _draw_table(table: Table, width: int, limit: int | None) -> RenderableType:
    shown = [
        column for column in table.columns if column.on != "pipe" and column.from_width <= width
    ]
    drawn = RichTable(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1 if width >= ROOMY else 0, 0, 0),
        header_style="bold",
        border_style=DIM,
    )
    for column in shown:
        drawn.add_column(
            column.name.lower() if column.title is None else column.title,
            justify="right" if column.format.right else "left",
            # Only columns that may wrap become narrower.
            no_wrap=column.format.narrow == "no",
            min_width=column.format.min_width or None,
        )
    rows = list(table.rows(sorted(table.records, key=lambda each: not table.attention(each))))
    before = None
    for record, part in rows[:limit]:
        # The names of a record are written once.
        drawn.add_row(
            *(
                Text()
                if column.part is None and record is before
                else _cell(column, record, part, width)
                for column in shown
            )
        )
        before = record
    hidden = 0 if limit is None else len(rows) - limit
    if hidden <= 0:
        return drawn
    return Group(drawn, Text(f"{count_text(hidden, 'row')} hidden; enlarge the window", style=DIM))


def _cell(column: Column, record: object, part: object, width: int) -> RenderableType:
    value = column.of(record, part)
    if isinstance(value, Bar):
        return _drawn_bar(value, width)
    if isinstance(value, Spark):
        return _drawn_spark(value, width)
    words = column.words(value)
    style = DIM if words in (NOTHING, UNLIMITED) else column.style_of(record, part)
    narrow = column.format.narrow
    if narrow == "middle":
        return _CutInTheMiddle(words, style)
    if narrow == "fold":
        return Text(words, style=style, overflow="fold")
    return Text(words, style=style, no_wrap=True, overflow="ellipsis")


@attrs.frozen
class _CutInTheMiddle:
    """Words whose beginning and end say most, such as a namespace and a container."""

    words: str
    style: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        words, width = self.words, options.max_width
        if len(words) > width:
            dots = "..." if options.ascii_only else "…"
            tail = max(0, (width - len(dots)) // 2)
            words = words[: width - len(dots) - tail] + dots + words[len(words) - tail :]
        yield Text(words, style=self.style, no_wrap=True, overflow="crop")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(min(4, len(self.words)), len(self.words))


def _drawn_bar(bar: Bar, width: int) -> ProgressBar:
    style = bar.style or DIM
    width = min(max(6, width // 10), 24)
    return ProgressBar(
        1.0, bar.ratio, width=width, style=DIM, complete_style=style, finished_style=style
    )


def _drawn_spark(spark: Spark, width: int) -> Text:
    heights = [min(int(ratio * len(_STEPS)), len(_STEPS) - 1) for ratio in spark.ratios]
    shown = heights[-max(6, width - ROOMY) :]
    return Text("".join(_STEPS[at] for at in shown), style="cyan", no_wrap=True)

"""Tables with colours and bars, and live pictures, on a terminal."""

from __future__ import annotations

import itertools
import os
import re
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

    from rich.console import ConsoleOptions, OverflowMethod, RenderableType, RenderResult

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
def keyboard() -> Iterator[Callable[[float], list[str]]]:
    """A context in which keys are not shown; Ctrl-C is still Ctrl-C.

    Yields:
        A function that waits for keys for some seconds, and returns their letters or names.
    """
    if sys.stdin is None or not sys.stdin.isatty():
        yield _no_keys
        return
    modes = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield _keys
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, modes)


def _no_keys(seconds: float) -> list[str]:
    time.sleep(max(0.0, seconds))
    return []


# A key that is no letter, as terminals send it: in both of their modes.
_KEY = re.compile(r"\x1b(?:\[[0-9;]*|O)[~A-Za-z]|.", re.DOTALL)
_KEY_NAMES = {
    **dict.fromkeys(("\x1b[A", "\x1bOA"), "up"),
    **dict.fromkeys(("\x1b[B", "\x1bOB"), "down"),
    **dict.fromkeys(("\x1b[H", "\x1bOH", "\x1b[1~", "\x1b[7~"), "home"),
    **dict.fromkeys(("\x1b[F", "\x1bOF", "\x1b[4~", "\x1b[8~"), "end"),
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\x1b": "esc",
}


def _keys(seconds: float) -> list[str]:
    descriptor = sys.stdin.fileno()
    ready, _, _ = select.select([descriptor], [], [], max(0.0, seconds))
    if not ready:
        return []
    typed = os.read(descriptor, 1024).decode("utf-8", "ignore")
    # A terminal that has gone is empty for ever.
    return [_KEY_NAMES.get(key, key) for key in _KEY.findall(typed)] or _no_keys(seconds)


# ---- pages ---------------------------------------------------------------------------------------


def draw_page(page: Page, width: int, rows: Sequence[range] | None = None) -> RenderableType:
    """Draw all blocks of a page with empty lines between, and its warnings and notes.

    Args:
        page: What to draw.
        width: Columns of the terminal.
        rows: Which rows each table shows in a live picture; None: all.
    """
    is_live, parts = rows is not None, itertools.repeat(None) if rows is None else iter(rows)
    drawn: list[RenderableType] = []
    for block in page.blocks:
        one = draw(block, width, next(parts) if isinstance(block, Table) else None)
        if one is not None:
            # In a live picture, lines of text stand together.
            drawn += [Text()] if drawn and (isinstance(block, Table) or not is_live) else []
            drawn.append(one)
    asides = [(printable(each), WARN) for each in page.warnings]
    asides += [(printable(each), DIM) for each in page.notes]
    if is_live:
        # One line, whatever there is to be said.
        more = f" (and {len(asides) - 1} more)" if len(asides) > 1 else ""
        asides = [(words + more, style) for words, style in asides[:1]]
    elif asides:
        drawn.append(Text())
    overflow: OverflowMethod = "ellipsis" if is_live else "fold"
    drawn += [Text(*each, no_wrap=is_live, overflow=overflow) for each in asides]
    return Group(*([Text(page.heading.rstrip(), "bold")] if page.heading else []), *drawn)


def fit_page(page: Page, screen: Console, offset: int = 0) -> tuple[RenderableType, int]:
    """Draw a page with as many rows in its tables as the terminal has room for.

    Args:
        page: What to draw.
        screen: The terminal.
        offset: How many rows, of the first tables, are above the picture.

    Returns:
        The picture, and the offset if there are that many rows.
    """
    tables = [block for block in page.blocks if isinstance(block, Table)]
    wanted = [sum(1 for _ in table.rows()) for table in tables]
    frame = len(screen.render_lines(draw_page(page, screen.width, [range(0)] * len(tables))))
    room = max(3, screen.height - frame - 1)
    offset = left = max(0, min(offset, sum(wanted) - room))
    starts = []
    for number in wanted:
        starts.append(min(left, number))
        left -= starts[-1]
    shares = fair_shares(room, [a - b for a, b in zip(wanted, starts, strict=True)])
    rows = [range(start, start + share) for start, share in zip(starts, shares, strict=True)]
    return draw_page(page, screen.width, rows), offset


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


def draw(block: Block, width: int, rows: range | None = None) -> RenderableType | None:
    """Draw a block for a terminal of that many columns; None if it is not shown there.

    Args:
        block: What to draw.
        width: Columns of the terminal.
        rows: Which rows a table shows; None: all.
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


def _draw_table(table: Table, width: int, shown_rows: range | None) -> RenderableType:
    shown = [
        column for column in table.columns if column.on != "pipe" and column.from_width <= width
    ]
    drawn = RichTable(
        # A live picture has more rows instead of a rule.
        box=None if shown_rows is not None else box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, (width >= ROOMY) + (shown_rows is not None), 0, 0),
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
    shown_rows = range(len(rows)) if shown_rows is None else shown_rows
    before = None
    for record, part in rows[shown_rows.start : shown_rows.stop]:
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
    beyond = {"above": shown_rows.start, "below": len(rows) - shown_rows.stop}
    words = [f"{count_text(count, 'row')} {where}" for where, count in beyond.items() if count > 0]
    return Group(drawn, Text(", ".join(words), style=DIM)) if words else drawn


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

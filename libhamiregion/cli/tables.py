"""Tables: one list of columns gives aligned text in a pipe and a drawn table on a terminal.

A table has records. A record may have parts, such as the devices of a process: then there is one
row per part, and a record without parts has one row with "-" for theirs.

In a pipe there are no escapes and no drawing, and every line splits on white space into as many
words as the heading has; only the last column may hold blanks. Sizes are written without their
space, which `parse_size` reads too. `terminal` draws tables; it needs rich, which a pipe does not.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import attrs

from libhamiregion import format_size
from libhamiregion.text import printable
from libhamiregion.units import format_limit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

NOTHING = "-"
#: Stands for a blank in a pipe; as a pattern it means one.
BLANK = "?"
UNLIMITED = "unlimited"

DIM = "dim"
GOOD = "green"
WARN = "yellow"
CRITICAL = "red"

# Widths of a terminal from which there is room for more columns.
ROOMY = 116
WIDE = 150
# No terminal shows more of a name, a path or a command line.
_LONGEST_TEXT = 1000

On = Literal["both", "pipe", "terminal"]
Getter: TypeAlias = "Callable[[Any], Any]"


@attrs.frozen
class CellFormat:
    """How the values of a column are written.

    Attributes:
        words: Writes a value that is not None.
        blank: Replaces a blank in a pipe, where blanks separate columns.
        none: How None is written.
        right: Whether a terminal aligns the column at its right.
        min_width: Minimum width on a terminal: a live table must not jump.
        narrow: How a narrow terminal cuts the column: not at all, at the end, in the middle, or
            folded into several lines.
    """

    words: Callable[[Any], str]
    blank: str = ""
    none: str = NOTHING
    right: bool = True
    min_width: int = 0
    narrow: Literal["no", "end", "middle", "fold"] = "no"

    def text(self, value: Any) -> str:
        """Write a value for a terminal."""
        return self.none if value is None else self.words(value) or NOTHING


_LIMIT: dict[str, Any] = {"none": UNLIMITED, "min_width": len(UNLIMITED)}
# Text from outside: names, uuids, commands; escaped, and cut where it is long.
_NAME = CellFormat(
    lambda text: printable(text, _LONGEST_TEXT),
    blank=BLANK,
    right=False,
    min_width=6,
    narrow="end",
)
FORMATS = {
    # A word of ours: a state, a layout.
    "word": CellFormat(lambda word: str(getattr(word, "value", word)), right=False),
    "name": _NAME,
    "path": attrs.evolve(_NAME, min_width=20, narrow="middle"),
    # Sentences; best the last column.
    "text": attrs.evolve(_NAME, narrow="fold"),
    "number": CellFormat(str),
    "size": CellFormat(format_size, min_width=len("1023 MiB")),
    "size_limit": CellFormat(format_limit, **_LIMIT),
    "percent": CellFormat("{} %".format, min_width=len("100 %")),
    "percent_limit": CellFormat("{} %".format, **_LIMIT),
    # A value that the layout does not have.
    "unknown": CellFormat(lambda _: NOTHING),
    # The value is a `Bar` or a `Spark`.
    "drawing": CellFormat(str, right=False, min_width=6, narrow="end"),
}


@attrs.frozen
class Bar:
    """A bar on a terminal, full to `ratio`, 0 to 1."""

    ratio: float
    style: str


@attrs.frozen
class Spark:
    """A line of small bars on a terminal, the last sample at the right; 0 to 1 each."""

    ratios: Sequence[float]


def _getter(of: str | Getter | None) -> Getter | None:
    return operator.attrgetter(of) if isinstance(of, str) else of


def _format(of: str | CellFormat) -> CellFormat:
    return FORMATS[of] if isinstance(of, str) else of


@attrs.frozen
class Column:
    """One column of a table, of its records (`value`) or of their parts (`part`).

    Attributes:
        name: The heading in a pipe, one word; a pipe has no column without a name.
        value: Gets a record's value: an attribute's name, or a function. A terminal shows it once
            per record.
        format: How it is written: a name of `FORMATS`, or a format.
        part: Gets a part's value.
        title: The heading on a terminal; by default the name in lower case.
        style: A style of rich, or a function that gets it from the record or part.
        on: Where the column is shown.
        from_width: Minimum width of a terminal that shows it.
    """

    name: str
    value: Getter | None = attrs.field(default=None, converter=_getter)
    format: CellFormat = attrs.field(default=FORMATS["word"], converter=_format)
    title: str | None = None
    style: str | Callable[[Any], str] = ""
    part: Getter | None = attrs.field(default=None, converter=_getter)
    on: On = "both"
    from_width: int = 0

    def of(self, record: Any, part: Any) -> Any:
        """The value in one row."""
        if self.part is None:
            return None if self.value is None else self.value(record)
        return NOTHING if part is None else self.part(part)

    def words(self, value: Any) -> str:
        """A value as a terminal shows it."""
        return NOTHING if value is NOTHING else self.format.text(value)

    def style_of(self, record: Any, part: Any) -> str:
        """The style of one row's value."""
        if isinstance(self.style, str):
            return self.style
        about = record if self.part is None else part
        return "" if about is None else self.style(about)


@attrs.frozen
class Table:
    """Records in columns.

    Attributes:
        columns: What is shown of them.
        records: The records.
        parts: Gets a record's parts: an attribute's name, or a function; none by default.
        empty: What a terminal shows if there are no records; a pipe shows the heading.
        attention: Whether a record needs attention. A terminal shows such records first.
    """

    columns: Sequence[Column]
    records: Sequence[Any]
    parts: Getter | None = attrs.field(default=None, converter=_getter)
    empty: str = ""
    attention: Callable[[Any], bool] = lambda _: False

    def rows(self, records: Sequence[Any] | None = None) -> Iterator[tuple[Any, Any]]:
        """Yield a record with one of its parts, or with None, per row."""
        for record in self.records if records is None else records:
            parts = () if self.parts is None else self.parts(record)
            for part in parts or (None,):
                yield record, part

    def text(self) -> str:
        """Write the table for a pipe; ends with a newline."""
        shown = [column for column in self.columns if column.name and column.on != "terminal"]
        blanks = [column.format.blank for column in shown]
        if blanks[-1] == _NAME.blank:
            # No column follows that its blanks could be taken for.
            blanks[-1] = " "
        lines = [[column.name for column in shown]]
        for record, part in self.rows():
            words = [column.words(column.of(record, part)) for column in shown]
            lines.append([w.replace(" ", blank) for w, blank in zip(words, blanks, strict=True)])
        return aligned(lines)


def _styled(sentences: Sequence[str | tuple[str, str]]) -> list[tuple[str, str]]:
    return [(each, "") if isinstance(each, str) else each for each in sentences]


@attrs.frozen
class Lines:
    """Sentences, one a line; each is a text, or a text with a style. They are escaped here."""

    sentences: Sequence[tuple[str, str]] = attrs.field(converter=_styled)
    on: On = "both"

    def text(self) -> str:
        """Write them for a pipe; ends with a newline."""
        if self.on == "terminal":
            return ""
        return "".join(f"{printable(text)}\n" for text, _ in self.sentences)


@attrs.frozen
class Facts:
    """What holds for one file: each a label, words and a style. Framed on a terminal."""

    path: str
    facts: Sequence[tuple[str, str, str]]

    def text(self) -> str:
        """Write them for a pipe, a line each; ends with a newline."""
        facts = [(label.replace(" ", "-").lower(), words) for label, words, _ in self.facts]
        return aligned([("path", printable(self.path)), *facts])


#: A part of an answer.
Block: TypeAlias = "Table | Lines | Facts"


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Write left-aligned columns, two spaces apart; each line ends with a newline."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        + "\n"
        for row in rows
    )


@attrs.frozen
class Page:
    """One answer in all its forms.

    Attributes:
        schema: Name and version of the answer for --json, such as ``containers/1``; docs, JSON.
        data: For --json: a dictionary of what json takes, or an attrs class, with attrs classes
            and enums anywhere in it.
        blocks: For people; printed with an empty line between them.
        notes: Remarks for people, a sentence each, raw text.
        warnings: What could not be read, a sentence each, raw text.
        failure: Why the command has failed, if it has.
        heading: Begins the answer for people: whose it is, if there are several.
    """

    schema: str
    data: Any
    blocks: Sequence[Block]
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    failure: str | None = None
    heading: str = ""

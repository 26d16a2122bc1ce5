"""Tables: one list of columns gives aligned text in a pipe and a drawn table on a terminal.

A table shows records. A record may have parts, such as a process and the devices that it uses:
then there is one row per part, and a record without parts has one row with "-" for theirs.
The records themselves are what `--json` gives, so their attributes are named as its keys.

In a pipe there are no escapes and no drawing, and every line splits on white space into as many
words as the heading has; only the last column may hold blanks. Sizes stand without their space,
which `parse_size` reads as well.
"""

from __future__ import annotations

import enum
import operator
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import attrs

from libhamiregion import format_size
from libhamiregion.text import printable
from libhamiregion.units import MAX_SIZE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

NOTHING = "-"
UNLIMITED = "unlimited"

QUIET = "dim"
GOOD = "green"
NEAR = "yellow"
OVER = "red"

# Names of Kubernetes have 253 characters; a directory's name is anything.
LONGEST_NAME = 253
# No terminal shows more of a command line or a path.
LONGEST_TEXT = 1000

# Widths of a terminal from which there is room for a pod beside its container, and for uuids.
ROOMY = 108
WIDE = 124

On = Literal["both", "pipe", "terminal"]
Getter: TypeAlias = "Callable[[Any], Any]"


@attrs.frozen
class Kind:
    """How the values of a column are written.

    Attributes:
        words: Writes a value that is not None.
        blank: What stands for a blank in a pipe.
        none: How None is written.
        right: Whether a terminal aligns the column at its right.
        longest: As wide as a terminal makes the column at least: a live table must not jump.
        shrinks: Whether the column gives way where a terminal has too little room.
        folds: Whether it does so by more lines, instead of cutting its words.
        grows: Whether bars take the room that a terminal has left.
    """

    words: Callable[[Any], str]
    blank: str = ""
    none: str = NOTHING
    right: bool = True
    longest: int = 0
    shrinks: bool = False
    folds: bool = False
    grows: bool = False

    def text(self, value: Any) -> str:
        """Write a value for a terminal."""
        return self.none if value is None else self.words(value) or NOTHING


def _name(text: str) -> str:
    return printable(text, LONGEST_NAME)


def _free_text(text: str) -> str:
    return printable(text, LONGEST_TEXT)


def _word(word: str | enum.Enum) -> str:
    return str(word.value if isinstance(word, enum.Enum) else word)


def percent(number: int) -> str:
    """Write a percentage for people."""
    return f"{number} %"


# Text from outside: names, uuids; escaped, and cut where it is long.
NAME = Kind(_name, blank=r"\x20", right=False, shrinks=True)
# Text from outside that may be long, such as a path or a message; best the last column.
COMMAND = Kind(_free_text, blank=r"\x20", right=False, shrinks=True)
TEXT = attrs.evolve(COMMAND, folds=True)
# A word of ours: a state, a layout.
WORD = Kind(_word, blank="-", right=False)
NUMBER = Kind(str)
# Of 2**63 and more: a counter that has wrapped around, and is no size.
SIZE = Kind(
    lambda nbytes: NOTHING if nbytes > MAX_SIZE_BYTES else format_size(nbytes),
    longest=len("1023 MiB"),
)
SIZE_LIMIT = Kind(format_size, none=UNLIMITED, longest=len(UNLIMITED))
PERCENT = Kind(percent, longest=len("100 %"))
PERCENT_LIMIT = Kind(percent, none=UNLIMITED, longest=len(UNLIMITED))
SHARE = Kind(lambda ratio: f"{min(ratio, 9.99):.0%}", longest=len("100%"))
# What a layout does not have.
UNKNOWN = Kind(lambda _: NOTHING)
# The value is a `Fill`.
BAR = Kind(str, right=False)
# The same, wider on a wide terminal.
METER = attrs.evolve(BAR, grows=True)
# So wide at most: a longer one says no more.
LONGEST_BAR = 48


@attrs.frozen
class Fill:
    """A bar on a terminal: `ratio` of it full, a tick where `mark` is; 0 to 1 each."""

    ratio: float
    style: str
    mark: float | None = None
    width: int = 12


def _getter(of: str | Getter | None) -> Getter | None:
    return operator.attrgetter(of) if isinstance(of, str) else of


@attrs.frozen
class Column:
    """One column of a table; exactly one of `value` and `part` is given.

    Attributes:
        name: The heading in a pipe, one word; a terminal shows `title`, else it in lower case.
        value: Takes a record's value: the attribute's name, or a function. On a terminal it is
            shown once per record.
        part: Takes a part's value.
        kind: How it is written.
        style: A style of rich, or what takes it from what `value` or `part` is given.
        on: Where the column is shown.
        from_width: Columns of the terminal from which it is shown there.
        to_width: Columns of the terminal from which it is not shown any more.
    """

    name: str
    value: Getter | None = attrs.field(default=None, converter=_getter)
    kind: Kind = WORD
    title: str | None = None
    style: str | Callable[[Any], str] = ""
    part: Getter | None = attrs.field(default=None, converter=_getter)
    on: On = "both"
    from_width: int = 0
    to_width: int = 10_000

    def of(self, record: Any, part: Any) -> Any:
        """The value in one row."""
        if self.part is None:
            return None if self.value is None else self.value(record)
        return NOTHING if part is None else self.part(part)

    def words(self, value: Any) -> str:
        """A value as a terminal shows it; "-" stands for a part that there is not."""
        return NOTHING if value is NOTHING else self.kind.text(value)

    def style_of(self, record: Any, part: Any) -> str:
        """The style of one row's value."""
        if isinstance(self.style, str):
            return self.style
        if self.part is None:
            return self.style(record)
        return "" if part is None else self.style(part)


@attrs.frozen
class Table:
    """Records in columns.

    Attributes:
        columns: What is shown of them.
        records: What is shown.
        parts: Takes a record's parts: the attribute's name, or a function; none by default.
        whole: Whether it is never cut to the height of a terminal.
        empty: What a terminal shows in place of a table without records; a pipe shows the heading.
    """

    columns: Sequence[Column]
    records: Sequence[Any]
    parts: Getter | None = attrs.field(default=None, converter=_getter)
    empty: str = ""
    whole: bool = False

    def rows(self) -> Iterator[tuple[Any, Any]]:
        """Yield a record with one of its parts, or with None, per row."""
        for record in self.records:
            parts = () if self.parts is None else self.parts(record)
            for part in parts or (None,):
                yield record, part

    def text(self) -> str:
        """Write the table for a pipe; ends with a newline."""
        shown = [column for column in self.columns if column.on != "terminal"]
        lines = [[column.name for column in shown]]
        for record, part in self.rows():
            cells = [(column, column.words(column.of(record, part))) for column in shown]
            lines.append([words.replace(" ", column.kind.blank) for column, words in cells])
            if cells[-1][0].kind in (NAME, COMMAND, TEXT):
                # Nothing follows that its blanks could be taken for.
                lines[-1][-1] = cells[-1][1]
        return aligned(lines)


@attrs.frozen
class Lines:
    """Sentences, one a line; each is a text, or a text with a style. They are escaped here."""

    sentences: Sequence[str | tuple[str, str]]
    on: On = "both"
    to_width: int = 10_000

    def text(self) -> str:
        """Write them for a pipe; ends with a newline."""
        if self.on == "terminal":
            return ""
        return "".join(f"{printable(text)}\n" for text, _ in self.styled())

    def styled(self) -> list[tuple[str, str]]:
        """Give each sentence with its style."""
        return [(each, "") if isinstance(each, str) else each for each in self.sentences]


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


def ratio_style(ratio: float | None) -> str:
    """Green, yellow from 70 %, red from 90 %; nothing is near where nothing limits."""
    if ratio is None:
        return ""
    if ratio > 1:
        return f"bold {OVER}"
    return OVER if ratio >= 0.9 else NEAR if ratio >= 0.7 else GOOD

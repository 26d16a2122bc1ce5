"""One list of columns as text and as a drawing, and pages in a pipe and as JSON."""

from __future__ import annotations

import io
import json
from typing import Any

import attrs
import pytest
from rich.console import Console

from libhamiregion import Layout
from libhamiregion.cli import output
from libhamiregion.cli.tables import (
    BAR,
    NAME,
    NUMBER,
    PERCENT,
    SIZE,
    SIZE_LIMIT,
    TEXT,
    Column,
    Fill,
    Lines,
    Table,
)
from libhamiregion.cli.terminal import draw, fit_page

HOSTILE = "evil \x1b[2J\u202ename"


@attrs.frozen
class Row:
    name: str | None
    devices: tuple[int, ...]
    layout: Layout = Layout.V1_2


COLUMNS = (
    Column("NAME", lambda row: row.name, NAME, title="called"),
    Column("DEVICE", part=lambda device: device, kind=NUMBER),
    Column("USED", part=lambda device: device * 2**30, kind=SIZE),
    Column("LIMIT", part=lambda device: device or None, kind=SIZE_LIMIT),
    Column("", part=lambda device: Fill(device / 2, "green"), kind=BAR, on="terminal"),
    Column("SM", lambda _: None, PERCENT, on="pipe"),
    Column("ROOM", lambda _: "yes", from_width=60),
    Column("MESSAGE", lambda row: row.name, TEXT),
)
ROWS = [Row("a", (0, 1)), Row(HOSTILE, (2,)), Row(None, ())]


def table() -> Table:
    return Table(COLUMNS, ROWS, lambda row: row.devices, empty="There is nothing.")


def drawn(block: Any, width: int) -> str:
    file = io.StringIO()
    Console(file=file, width=width, color_system=None).print(draw(block, width))
    return file.getvalue()


def test_in_a_pipe_each_line_has_as_many_words_as_the_heading() -> None:
    heading, *lines = table().text().splitlines()
    assert heading.split() == ["NAME", "DEVICE", "USED", "LIMIT", "SM", "ROOM", "MESSAGE"]
    assert [line.split() for line in lines[:2]] == [
        ["a", "0", "0B", "unlimited", "-", "yes", "a"],
        ["a", "1", "1GiB", "1B", "-", "yes", "a"],
    ]
    assert lines[2].split()[0] == r"evil\x20\x1b[2J\u202ename"
    assert lines[2].endswith(r"yes   evil \x1b[2J\u202ename"), "the last column may hold blanks"
    assert lines[3].split() == ["-"] * 5 + ["yes", "-"], "a record without parts has a row"


def test_on_a_terminal_a_record_is_named_once_and_nothing_passes_the_edge() -> None:
    for width in (30, 59, 60, 120):
        text = drawn(table(), width)
        assert max(map(len, text.splitlines())) <= width
        assert ("yes" in text) == (width >= 60)
        assert "\x1b" not in text
        assert "\u202e" not in text
    assert drawn(table(), 120).count(" a ") + drawn(table(), 120).count("\na ") <= 3
    assert "1 GiB" in drawn(table(), 120)
    assert "unlimited" in drawn(table(), 120)


def test_an_empty_table_is_a_heading_in_a_pipe_and_a_sentence_on_a_terminal() -> None:
    empty = attrs.evolve(table(), records=[])
    assert empty.text() == "NAME  DEVICE  USED  LIMIT  SM  ROOM  MESSAGE\n"
    assert drawn(empty, 80) == "There is nothing.\n"


@pytest.mark.thorough
def test_a_terminal_shows_as_many_rows_as_it_has_room_for_and_a_pipe_all() -> None:
    many = attrs.evolve(table(), records=[Row(str(number), ()) for number in range(2000)])
    page = output.Page("x/1", {}, [many, Lines(["the end"])])
    screen = Console(file=io.StringIO(), width=80, height=24, color_system=None)
    lines = screen.render_lines(fit_page(page, screen))
    assert 20 < len(lines) <= 24
    assert drawn(many, 80).count("\n") > 2000
    assert len(many.text().splitlines()) == 2001
    few = io.StringIO()
    Console(file=few, width=80, color_system=None).print(draw(many, 80, 500))
    assert "and 1500 more; a pipe gets all\n" in few.getvalue()


def test_a_page_is_its_blocks_in_a_pipe_and_its_data_as_json(capsys: Any) -> None:
    page = output.Page(
        "rows/1",
        {"rows": ROWS[:1], "name": HOSTILE},
        [Lines([HOSTILE, "two"]), Lines(["not here"], on="terminal"), table()],
        notes=("a note",),
        warnings=(HOSTILE,),
    )
    output.show(page, as_json=False)
    told = capsys.readouterr()
    assert told.out.startswith("evil \\x1b[2J\\u202ename\ntwo\n\nNAME")
    assert told.err == "Warning: evil \\x1b[2J\\u202ename\nNote: a note\n"
    output.show(page, as_json=True)
    told = capsys.readouterr()
    assert told.out.isascii()
    assert json.loads(told.out) == {
        "schema": "hamiregion/rows/1",
        "rows": [{"name": "a", "devices": [0, 1], "layout": "1.2"}],
        "name": HOSTILE,
    }
    assert told.err == "Warning: evil \\x1b[2J\\u202ename\n"


def test_many_pages_say_each_note_once_and_fail_none(capsys: Any) -> None:
    pages = [output.Page("x/1", {}, [Lines(["x"])], ("a note",), failure="nothing there")] * 3
    output.show_all(iter(pages), 0.1, as_json=False)
    told = capsys.readouterr()
    assert told.out == "x\n\nx\n\nx\n"
    assert told.err == "Warning: nothing there\nNote: a note\n"

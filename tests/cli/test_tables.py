"""One list of columns as text and as a drawing, and pages in a pipe and as JSON."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import attrs
from rich.console import Console

from libhamiregion import Layout
from libhamiregion.cli import output
from libhamiregion.cli.tables import Bar, Column, Lines, Page, Spark, Table
from libhamiregion.cli.terminal import draw, fit_page

HOSTILE = "evil \x1b[2J\u202ename"


@attrs.frozen
class Row:
    name: str | None
    devices: tuple[int, ...]
    layout: Layout = Layout.V1_2


COLUMNS = (
    Column("NAME", lambda row: row.name, "name", title="called"),
    Column("DEVICE", part=lambda device: device, format="number"),
    Column("USED", part=lambda device: device * 2**30, format="size"),
    Column("LIMIT", part=lambda device: device or None, format="size_limit"),
    Column("", part=lambda device: Bar(device / 2, "green"), format="drawing"),
    Column("SM", lambda _: None, "percent", on="pipe"),
    Column("ROOM", lambda _: "yes", from_width=60),
    Column("MESSAGE", lambda row: row.name, "text"),
)
ROWS = [Row("a", (0, 1)), Row(HOSTILE, (2,)), Row(None, ())]


def table() -> Table:
    return Table(COLUMNS, ROWS, lambda row: row.devices, empty="There is nothing.")


def drawn(block: Any, width: int, rows: range | None = None) -> str:
    file = io.StringIO()
    Console(file=file, width=width, color_system=None).print(draw(block, width, rows))
    return file.getvalue()


def test_in_a_pipe_each_line_has_as_many_words_as_the_heading():
    heading, *lines = table().text().splitlines()
    assert heading.split() == ["NAME", "DEVICE", "USED", "LIMIT", "SM", "ROOM", "MESSAGE"]
    assert [line.split() for line in lines[:2]] == [
        ["a", "0", "0B", "unlimited", "-", "yes", "a"],
        ["a", "1", "1GiB", "1B", "-", "yes", "a"],
    ]
    assert lines[2].split()[0] == r"evil?\x1b[2J\u202ename"
    assert lines[2].endswith(r"yes   evil \x1b[2J\u202ename"), "the last column may hold blanks"
    assert lines[3].split() == ["-"] * 5 + ["yes", "-"], "a record without parts has a row"


def test_on_a_terminal_a_record_is_named_once_and_nothing_passes_the_edge():
    for width in (30, 59, 60, 120):
        text = drawn(table(), width)
        assert max(map(len, text.splitlines())) <= width
        assert ("yes" in text) == (width >= 60)
        assert "\x1b" not in text
        assert "\u202e" not in text
    assert drawn(table(), 120).count(" a ") + drawn(table(), 120).count("\na ") <= 3
    assert "1 GiB" in drawn(table(), 120)
    assert "unlimited" in drawn(table(), 120)


def test_an_empty_table_is_a_heading_in_a_pipe_and_a_sentence_on_a_terminal():
    empty = attrs.evolve(table(), records=[])
    assert empty.text() == "NAME  DEVICE  USED  LIMIT  SM  ROOM  MESSAGE\n"
    assert drawn(empty, 80) == "There is nothing.\n"


def test_a_live_picture_fits_and_shows_all_that_needs_attention_first():
    records = [Row(str(number), ()) for number in range(200)]
    many = attrs.evolve(table(), records=records, attention=lambda row: row.name in {"150", "199"})
    page = Page("x/1", {}, [many, Lines(["the end"])])
    screen = Console(file=io.StringIO(), width=80, height=24, color_system=None)
    lines = [
        "".join(part.text for part in line)
        for line in screen.render_lines(fit_page(page, screen)[0])
    ]
    assert 20 < len(lines) <= 24
    assert [line.split()[0] for line in lines[1:4]] == ["150", "199", "0"]
    assert "rows below" in "".join(lines)
    assert drawn(many, 80).count("\n") > 200
    assert many.text().splitlines()[1].split()[0] == "0", "a pipe keeps the order"
    urgent = attrs.evolve(many, attention=lambda _: True)
    assert "195 rows below" in drawn(urgent, 80, range(5)), (
        "they never push the foot off the screen"
    )


def test_a_long_name_is_cut_in_the_middle_and_samples_are_a_line_of_bars():
    columns = (
        Column("CONTAINER", lambda _: "research/" + "x" * 40 + "/train", "path"),
        Column("", lambda _: Spark((0.0, 0.5, 1.0)), "drawing", title="trend"),
    )
    text = drawn(Table(columns, [1]), 40)
    assert re.search(r"research/x+…x+/train +▁▅█", text)


def test_a_page_is_its_blocks_in_a_pipe_and_its_data_as_json(capsys):
    page = Page(
        "rows/1",
        {"rows": ROWS[:1], "name": HOSTILE},
        [Lines([HOSTILE, "two"]), Lines(["not here"], on="terminal"), table()],
        notes=("a note",),
        warnings=(HOSTILE,),
    )
    output.Answer().show(page)
    told = capsys.readouterr()
    assert told.out.startswith("evil \\x1b[2J\\u202ename\ntwo\n\nNAME")
    assert told.err == "Warning: evil \\x1b[2J\\u202ename\nNote: a note\n"
    output.Answer(as_json=True).show(page)
    told = capsys.readouterr()
    assert told.out.isascii()
    assert json.loads(told.out) == {
        "schema": "hamiregion/rows/1",
        "rows": [{"name": "a", "devices": [0, 1], "layout": "1.2"}],
        "name": HOSTILE,
    }
    assert told.err == "Warning: evil \\x1b[2J\\u202ename\n"


def test_many_pages_say_each_note_once_and_fail_none(capsys):
    page = Page("x/1", {}, [Lines(["x"])], ("a note",), failure="nothing there")
    looks = iter((page, page, page))

    def look() -> Page:
        for each in looks:
            return each
        raise KeyboardInterrupt

    output.Answer(interval_s=0.1).show_all(look)
    told = capsys.readouterr()
    assert told.out == "x\n\nx\n\nx\n"
    assert told.err == "Warning: nothing there\nNote: a note\n"

"""`hamiregion dump`: every field of a region's file with its offset."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from libhamiregion import Layout, RegionError, identify
from libhamiregion.layouts import SLOT_CAPACITY

from . import options
from .dump_fields import Field, FieldReader, RawFile, likeliest_layout, read_raw
from .output import Page, show
from .tables import NAME, NUMBER, OVER, QUIET, TEXT, Column, Facts, Table

if TYPE_CHECKING:
    from collections.abc import Iterator


@click.command()
@options.file_argument
@options.layout_option_of("Read the file in this layout, whatever it is:")
@click.option(
    "all_slots", "--all", is_flag=True, help="Also slots that are not in use, and zeros in slots."
)
@options.json_option
def dump(path: str, layout: Layout | None, all_slots: bool, as_json: bool) -> None:
    """Show every field of the region FILE with its offset, and what is wrong with it.

    Also works on a file that no other verb opens: damaged, cut short, not ready, or of a version
    that is not known.  Such a file is read in the layout that its version or its size suggests.

    Of the process slots those in use are shown (where their number is damaged or missing: all that
    are not empty), and of each the devices on which anything is not 0.  Slots of zeros alone are
    never shown.

    The file is read once and without its lock: what a process writes meanwhile can stand half
    written.

    JSON: path, size_bytes, layout, chosen ("identified", "guessed" or "named"), error (why the file
    cannot be opened, or null), missing (fields behind the end of the file), behind_bytes, faults
    (their number) and fields, each with offset, name, type, value, note and fault.
    """
    show(_page(path, layout, all_slots), as_json)


def _page(path: str, named: Layout | None, all_slots: bool) -> Page:
    file = read_raw(path)
    error: str | None = None
    layout, chosen = named, "named"
    try:
        identified = identify(path)
        if layout is None:
            layout, chosen = identified, "identified"
    except RegionError as reason:
        error = str(reason)
    if layout is None:
        layout, chosen = likeliest_layout(file), "guessed"
    reader = FieldReader(file, layout)
    fields = [*reader.header(), *_slots(reader, all_slots), *reader.tail()]
    faults = sum(field.fault is not None for field in fields)
    behind = max(0, file.size - layout.size_bytes)
    data = {
        "path": path,
        "size_bytes": file.size,
        "layout": layout,
        "chosen": chosen,
        "error": error,
        "missing": reader.missing,
        "behind_bytes": behind,
        "faults": faults,
        "fields": fields,
    }
    facts = [
        ("size", _size_words(file, layout), ""),
        ("layout", f"{layout.value}, {chosen}", ""),
        ("opens", "yes" if error is None else f"no: {error}", OVER if error else ""),
        ("faults", str(faults), OVER if faults else ""),
    ]
    if reader.missing:
        first, last = reader.missing[0], reader.missing[-1]
        facts.append(("missing", f"{first} to {last}: the file ends before them", OVER))
    return Page("dump/1", data, [Facts(path, facts), Table(_COLUMNS, fields, whole=True)])


def _slots(reader: FieldReader, all_slots: bool) -> Iterator[Field]:
    count = reader.process_count
    for slot in range(SLOT_CAPACITY):
        is_wanted = slot < count if count is not None and not all_slots else True
        if is_wanted and not reader.is_empty(slot):
            yield from reader.slot(slot, with_zeros=all_slots)


def _size_words(file: RawFile, layout: Layout) -> str:
    words = f"{file.size} bytes"
    if file.size < layout.size_bytes:
        return f"{words}, {layout.size_bytes - file.size} too few"
    return f"{words}, {file.size - layout.size_bytes} behind the struct"


def _remark(field: Field) -> str | None:
    if field.fault is None:
        return field.note or None
    return f"BAD: {field.fault}"


def _style(field: Field) -> str:
    return QUIET if field.fault is None else OVER


_COLUMNS = (
    Column("OFFSET", "offset", NUMBER),
    Column("TYPE", "type"),
    Column("FIELD", "name", NAME, style="bold"),
    Column("VALUE", lambda field: str(field.value), NAME),
    Column("REMARK", _remark, TEXT, style=_style),
)

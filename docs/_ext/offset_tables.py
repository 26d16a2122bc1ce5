"""The directive ``offset-table``: offsets of all layouts, from the table that the C core uses.

    ```{offset-table} header
    ```

The argument is ``files``, ``header`` or ``slot``. A field that the core's table has and this page
does not name is an error of the build, and so is the reverse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from libhamiregion import Layout

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ABSENT = "-"

# What a field is called in this documentation: its type, and a name where the core's differs.
HEADER = {
    "sm_init_flag": ("i32", "sm_init_flag"),
    "owner_pid": ("u64", "owner_pid"),
    "sem": ("32 bytes", "sem"),
    "sem_postinit": ("32 bytes", "sem_postinit"),
    "device_num": ("u64", "device_num"),
    "uuids": ("16 x 96 bytes", "uuids"),
    "limit": ("16 x u64", "limit"),
    "sm_limit": ("16 x u64", "sm_limit"),
    "procs": ("1,024 slots", "procs"),
    "slot_stride": ("distance", "from one slot to the next"),
    "proc_num": ("i32", "proc_num"),
    "utilization_switch": ("i32", "utilization_switch"),
    "recent_kernel": ("i32", "recent_kernel"),
    "priority": ("i32", "priority"),
    "last_kernel_time": ("u64", "last_kernel_time"),
}
SLOT = {
    "slot_pid": ("i32", "pid"),
    "slot_hostpid": ("i32", "hostpid"),
    "slot_seqlock": ("u64", "seqlock"),
    "slot_used": ("16 x used", "used"),
    "slot_used_stride": ("distance", "from one used to the next"),
    "slot_monitorused": ("16 x u64", "monitorused"),
    "slot_util": ("16 x device_util", "device_util"),
    "slot_util_stride": ("distance", "from one device_util to the next"),
    "slot_status": ("i32", "status"),
}
# Where they are in every layout that has them, and so not in the core's table.
START = (("initialized_flag", "i32", 0), ("major_version", "u32", 4), ("minor_version", "u32", 8))


def _number(value: int | None) -> str:
    return ABSENT if value is None else f"{value:,}"


def _field_rows(fields: dict[str, tuple[str, str]]) -> list[list[str]]:
    rows = []
    for field, (kind, name) in fields.items():
        values = [layout.offsets[field] for layout in Layout]
        # No two things are 0 bytes apart: the layout has none of them.
        absent = 0 if kind == "distance" else None
        rows.append([name, kind, *(_number(None if v == absent else v) for v in values)])
    return rows


def _start_rows() -> list[list[str]]:
    return [
        [name, kind]
        + [_number(offset if layout.version or offset == 0 else None) for layout in Layout]
        for name, kind, offset in START
    ]


def _files() -> list[list[str]]:
    versions = [layout.version for layout in Layout]
    return [
        ["version in the file"]
        + [ABSENT if version is None else "{}.{}".format(*version) for version in versions],
        ["size of the struct", *(_number(layout.size_bytes) for layout in Layout)],
        ["size of the file", *(_number(layout.size_bytes + 1) for layout in Layout)],
    ]


class OffsetTable(SphinxDirective):
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        known = HEADER.keys() | SLOT.keys()
        for layout in Layout:
            if layout.offsets.keys() != known:
                raise self.error(
                    "the core's table and this page differ in "
                    + ", ".join(sorted(layout.offsets.keys() ^ known))
                )
        names = [layout.value for layout in Layout]
        which = self.arguments[0]
        if which == "files":
            return [_table(["", *names], _files())]
        rows = _start_rows() + _field_rows(HEADER) if which == "header" else _field_rows(SLOT)
        return [_table(["field", "type", *names], rows)]


def _table(title: list[str], rows: list[list[str]]) -> nodes.table:
    group = nodes.tgroup(cols=len(title))
    group += [nodes.colspec(colwidth=1) for _ in title]
    group += nodes.thead("", _row(title, literal_first=False))
    group += nodes.tbody("", *(_row(cells, literal_first=True) for cells in rows))
    return nodes.table("", group, classes=["offsets"])


def _row(cells: list[str], *, literal_first: bool) -> nodes.row:
    row = nodes.row()
    for number, cell in enumerate(cells):
        is_code = literal_first and number == 0 and " " not in cell
        text = nodes.literal(text=cell) if is_code else nodes.inline(text=cell)
        row += nodes.entry("", nodes.paragraph("", "", text))
    return row


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("offset-table", OffsetTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

"""Tables for people and their tools: dicts, pandas, polars, and HTML in notebooks.

Importing this module gives the tables of `region_set` and the snapshots of `models` their methods.
Each row says which region and device it is about. Unlimited is null. Numbers are signed, so that
differences of columns are right.
"""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

import attrs

from .layouts import LAYOUTS
from .models import DeviceUsage, RegionSnapshot
from .region_set import (
    Columns,
    DeviceColumns,
    ProcessColumns,
    RegionColumns,
    RegionTable,
)
from .units import format_size, sm_limit_or_none

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Cells = dict[str, list[Any]]

# How the numbers of a region become cells, where they are not the cells themselves.
_CONVERT: dict[str, Callable[[int], Any]] = {
    "layout": lambda number: LAYOUTS[number].value,
    "settled": bool,
    "processes_truncated": bool,
    "utilization_switch": bool,
    "memory_limit_bytes": lambda limit: limit or None,
    "sm_limit_percent": sm_limit_or_none,
    "host_pid": lambda pid: pid or None,
    "last_kernel_time_s": lambda time_s: time_s or None,
}
# Row numbers, and figures that only this library reads.
_LEFT_OUT = {"code", "semaphore", "region", "process", "device", "device_rows"}
_TEXTS = {"path", "error", "layout", "uuid"}
_FLAGS = {"settled", "utilization_switch", "processes_truncated"}
# Only a damaged region holds larger numbers.
_SIGNED_END = 2**63
_SHOWN_ROWS = 20


def _own_cells(columns: Columns) -> Cells:
    cells: Cells = {}
    for name in columns.columns:
        if name not in _LEFT_OUT and not name.startswith("first_"):
            convert = _CONVERT.get(name, int)
            column = getattr(columns, name)
            cells[name] = [None if cell >= _SIGNED_END else convert(cell) for cell in column]
    return cells


def _to_dict(columns: Columns) -> Cells:
    """Return the columns by name: path and identity of each row's region, then the table's own.

    None is unlimited, not known, or a number of 2**63 and above.
    """
    table = RegionTable(columns._read)
    devices, usages = table.devices, table.usages
    regions: Sequence[int] = range(len(table))
    cells = _own_cells(columns)
    if isinstance(columns, RegionColumns):
        errors = [table.error(row) for row in regions]
        for name, column in cells.items():
            cells[name] = [None if errors[row] else cell for row, cell in enumerate(column)]
        cells = {"error": [None if error is None else str(error) for error in errors], **cells}
    elif isinstance(columns, ProcessColumns):
        regions = columns.region
    elif isinstance(columns, DeviceColumns):
        regions = columns.region
        limited = zip(cells["memory_limit_bytes"], columns.memory_used_bytes, strict=True)
        free = [None if limit is None else max(0, limit - used) for limit, used in limited]
        uuids = [columns.uuid(row) for row in range(len(columns))]
        own: Cells = {"device": list(columns.device), "uuid": uuids}
        cells = {**own, **cells, "memory_free_bytes": free}
    else:
        regions = [table.processes.region[process] for process in usages.process]
        places = zip(devices.region, devices.device, strict=True)
        by_place = {place: devices.uuid(row) for row, place in enumerate(places)}
        cells = {
            "pid": [table.processes.pid[process] for process in usages.process],
            "device": list(usages.device),
            "uuid": [by_place[place] for place in zip(regions, usages.device, strict=True)],
            **cells,
        }
    names = {"path": table.paths, **table.identity}
    return {**{name: [texts[row] for row in regions] for name, texts in names.items()}, **cells}


def _typed(columns: Columns, text: Any, flag: Any, number: Any) -> dict[str, tuple[Any, Any]]:
    """Return the cells and the type of each column."""
    texts = {*_TEXTS, *columns._read.identity}
    return {
        name: (cells, text if name in texts else flag if name in _FLAGS else number)
        for name, cells in _to_dict(columns).items()
    }


def _to_pandas(columns: Columns) -> Any:
    """Return the cells of `to_dict` as a ``pandas.DataFrame`` of nullable types.

    Raises:
        ModuleNotFoundError: pandas is not installed.
    """
    import pandas as pd

    typed = _typed(columns, "string", "boolean", "Int64")
    return pd.DataFrame(
        {name: pd.array(cells, dtype=kind) for name, (cells, kind) in typed.items()}
    )


def _to_polars(columns: Columns) -> Any:
    """Return the cells of `to_dict` as a ``polars.DataFrame``.

    Raises:
        ModuleNotFoundError: polars is not installed.
    """
    import polars as pl

    typed = _typed(columns, pl.String, pl.Boolean, pl.Int64)
    return pl.DataFrame([pl.Series(name, *each) for name, each in typed.items()])


def _cell(name: str, cell: object) -> str:
    if cell is None:
        unlimited = name.endswith(("_limit_bytes", "_limit_percent", "_free_bytes"))
        return "unlimited" if unlimited else ""
    if isinstance(cell, int) and name.endswith("_bytes"):
        return format_size(cell)
    return html.escape(f"{cell}%" if name.endswith("_percent") else str(cell))


def _table_html(cells: Mapping[str, Sequence[Any]]) -> str:
    """The first rows as a table, sizes with their units."""
    count = len(next(iter(cells.values()), ()))
    rows = "".join(
        "<tr>" + "".join(f"<td>{_cell(name, cells[name][row])}</td>" for name in cells) + "</tr>"
        for row in range(min(count, _SHOWN_ROWS))
    )
    more = f"<caption>{_SHOWN_ROWS} of {count} rows</caption>" if count > _SHOWN_ROWS else ""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in cells)
    return f"<table>{more}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _snapshot_html(snapshot: RegionSnapshot) -> str:
    """The devices as a table."""
    rows = [attrs.asdict(device) for device in snapshot.devices]
    names = attrs.fields_dict(DeviceUsage)
    table = _table_html({name: [row[name] for row in rows] for name in names})
    return f"<p>{html.escape(snapshot.path)}, layout {snapshot.layout.value}</p>{table}"


_METHODS: tuple[tuple[type, str, Callable[[Any], Any]], ...] = (
    (Columns, "to_dict", _to_dict),
    (Columns, "to_pandas", _to_pandas),
    (Columns, "to_polars", _to_polars),
    (Columns, "_repr_html_", lambda columns: _table_html(_to_dict(columns))),
    (RegionTable, "_repr_html_", lambda table: _table_html(_to_dict(table.devices))),
    (RegionSnapshot, "_repr_html_", _snapshot_html),
)
for _kind, _name, _method in _METHODS:
    setattr(_kind, _name, _method)

"""Tables as pandas, Arrow and notebooks see them: typed columns, null for what is not there.

A `RegionTable` has the numbers as they stand in the regions, and its columns refer to each other
by row. A `Frame` is one of its tables for people and their tools: each row says which region and
device it is about, unlimited is null, and text is text.
"""

from __future__ import annotations

import ctypes
import html
import struct
from importlib import import_module
from typing import TYPE_CHECKING, Any

import attrs

from ._core import ffi, lib
from .layouts import LAYOUTS
from .units import format_size, sm_limit_or_none

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from .models import RegionSnapshot
    from .region_set import Columns, RegionTable

    Cells = Mapping[str, Sequence[Any]]

# What a notebook shows of a long table.
_SHOWN_ROWS = 20
# What stands there at the left, behind whose the row is, also where it is 0; and at the right.
_SHOWN_FIRST = (
    "index",
    "device",
    "pid",
    "memory_used_bytes",
    "memory_limit_bytes",
    "memory_free_bytes",
    "sm_util_percent",
    "sm_limit_percent",
)
_SHOWN_LAST = ("uuid", "path")

# Formats of Arrow's C data interface, and the struct codes of their values.
_INT64, _BOOL, _TEXT, _TIME_NS = "l", "b", "u", "tsn:UTC"
_CODES = {_INT64: "q", _TIME_NS: "q"}
_PANDAS_TYPES = {_INT64: "Int64", _BOOL: "boolean", _TEXT: "string"}

# Regions hold unsigned numbers. A frame has signed ones: differences of unsigned columns wrap,
# silently, and a container over its limit would have 18 exabytes free.
_INT64_END = 2**63

# What is no number.
_FORMATS = {
    "path": _TEXT,
    "layout": _TEXT,
    "error": _TEXT,
    "uuid": _TEXT,
    "taken_at": _TIME_NS,
    "settled": _BOOL,
    "utilization_switch": _BOOL,
}

_CAPSULE = b"arrow_array_stream"


def _package(name: str) -> Any:
    """Import what only this one method needs."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        message = f"this needs {name}: pip install {name}"
        raise ModuleNotFoundError(message, name=name) from None


def _format_of(name: str, identity: Iterable[str]) -> str:
    return _TEXT if name in identity else _FORMATS.get(name, _INT64)


def _signed(cells: Sequence[Any]) -> Sequence[Any]:
    """Put null in place of numbers that a signed column cannot hold."""
    if all(cell is None or cell < _INT64_END for cell in cells):
        return cells
    return [None if cell is None or cell >= _INT64_END else cell for cell in cells]


class Frame:
    """A table of named and typed columns: what `RegionTable` gives to data frames and notebooks.

    pandas, polars, pyarrow, DuckDB and all that take Arrow's PyCapsule interface read it without
    a conversion of their own: ``polars.DataFrame(table.devices)``. Of these libraries it imports
    none but the one that a method is named for. A value: it does not change, and threads may
    share it.

    Attributes:
        columns: Name to cells, one per row; None is null. Numbers are signed, 64 bits wide: one of
            2**63 and above, which only a damaged region holds, is null.
    """

    __slots__ = ("_formats", "_identity", "columns")

    def __init__(self, columns: Cells, identity: Iterable[str] = ()) -> None:
        self._identity = tuple(identity)
        self._formats = {name: _format_of(name, self._identity) for name in columns}
        self.columns = {
            name: _signed(cells) if self._formats[name] in _CODES else cells
            for name, cells in columns.items()
        }

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Go through the rows, each a dict."""
        for cells in zip(*self.columns.values(), strict=True):
            yield dict(zip(self.columns, cells, strict=True))

    def __repr__(self) -> str:
        return f"<Frame {len(self)} rows: {', '.join(self.columns)}>"

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Give the table as an Arrow stream of one batch; a schema that is asked for is ignored."""
        kept: list[object] = []  # until the core has copied all of it
        described = ffi.new("struct hr_arrow_column[]", len(self.columns))
        for column, (name, cells) in zip(described, self.columns.items(), strict=True):
            arrow_format = self._formats[name]
            for field, text in (("name", name), ("format", arrow_format)):
                kept.append(ffi.new("char[]", text.encode()))
                setattr(column, field, kept[-1])
            column.null_count = sum(cell is None for cell in cells)
            validity = _bits(cell is not None for cell in cells) if column.null_count else None
            for part, data in enumerate((validity, *_values(arrow_format, cells))):
                if data is not None:
                    kept.append(ffi.from_buffer(data))
                    column.buffers[part], column.bytes[part] = kept[-1], len(data)
        stream = lib.hr_arrow_stream(described, len(described), len(self))
        if not stream:
            raise MemoryError("no memory for a copy of the table")
        new_capsule = ctypes.pythonapi.PyCapsule_New
        new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        new_capsule.restype = ctypes.py_object
        destructor = ffi.addressof(lib, "hr_drop_stream_capsule")
        return new_capsule(_number(stream), _CAPSULE, _number(destructor))

    def to_arrow(self) -> Any:
        """Return a ``pyarrow.Table``.

        Raises:
            ModuleNotFoundError: pyarrow is not installed.
        """
        pa = _package("pyarrow")
        return pa.table(self)

    def to_pandas(self) -> Any:
        """Return a ``pandas.DataFrame`` of nullable types, ``Int64`` for numbers.

        Raises:
            ModuleNotFoundError: pandas is not installed.
        """
        pd = _package("pandas")
        return pd.DataFrame(
            {
                name: pd.to_datetime(list(cells), unit="ns", utc=True)
                if self._formats[name] == _TIME_NS
                else pd.array(list(cells), dtype=_PANDAS_TYPES[self._formats[name]])
                for name, cells in self.columns.items()
            }
        )

    def _repr_html_(self) -> str:
        """Show the first rows in a notebook, sizes with their units.

        Whose a row is and what it uses of its limit stand at the left, the path at the right.
        Columns in which nothing but zeros stands are left out; the frame has them.
        """
        names = [name for name in self._shown_order() if self._is_worth_showing(name)]
        head = "".join(f"<th>{_breakable(name)}</th>" for name in names)
        rows = "".join(
            "<tr>" + "".join(_cell(name, row) for name in names) + "</tr>"
            for row, _ in zip(self, range(_SHOWN_ROWS), strict=False)
        )
        more = f"<caption>{_SHOWN_ROWS} of {len(self)} rows</caption>"
        return (
            f"<table>{more if len(self) > _SHOWN_ROWS else ''}"
            f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        )

    def _shown_order(self) -> list[str]:
        last = [name for name in _SHOWN_LAST if name in self.columns]
        first = [name for name in (*self._identity, *_SHOWN_FIRST) if name in self.columns]
        rest = [name for name in self.columns if name not in {*first, *last}]
        return [*first, *rest, *last]

    def _is_worth_showing(self, name: str) -> bool:
        kept = name in self._identity or name in _SHOWN_FIRST
        return kept or not len(self) or any(self.columns[name])


def _number(pointer: Any) -> int:
    return int(ffi.cast("uintptr_t", pointer))


def _bits(flags: Iterable[bool]) -> bytes:
    """Pack flags into bits, the lowest first."""
    number = count = 0
    packed = bytearray()
    for flag in flags:
        number |= flag << count
        count += 1
        if count == 8:
            packed.append(number)
            number = count = 0
    packed.append(number)
    return bytes(packed)


def _values(arrow_format: str, cells: Sequence[Any]) -> Iterator[bytes]:
    """The buffers behind the validity: values, or offsets and text; null is 0 or empty there."""
    if arrow_format == _BOOL:
        yield _bits(bool(cell) for cell in cells)
    elif arrow_format == _TEXT:
        texts = [(cell or "").encode() for cell in cells]
        offsets, end = [0], 0
        for text in texts:
            end += len(text)
            offsets.append(end)
        yield struct.pack(f"<{len(offsets)}i", *offsets)
        yield b"".join(texts)
    else:
        code = _CODES[arrow_format]
        yield struct.pack(f"<{len(cells)}{code}", *(cell or 0 for cell in cells))


def _breakable(name: str) -> str:
    """A column's name as HTML that may be broken between its words."""
    return html.escape(name).replace("_", "_<wbr>")


def _cell(name: str, row: Mapping[str, Any]) -> str:
    """One cell as HTML; memory in use has a bar of its share of the limit behind it."""
    words = html.escape(_shown(name, row[name]))
    if name == "path":
        return f'<td style="overflow-wrap:anywhere;min-width:14em">{words}</td>'
    used, limit = row[name], row.get("memory_limit_bytes")
    if name != "memory_used_bytes" or used is None or not limit:
        return f"<td>{words}</td>"
    colour = "rgba(214,69,41,.45)" if used > limit else "rgba(0,114,178,.3)"
    percent = min(100.0, 100 * used / limit)
    bar = f"linear-gradient(90deg,{colour} {percent:.1f}%,rgba(128,128,128,.1) {percent:.1f}%)"
    return f'<td style="background:{bar};min-width:7em">{words}</td>'


def _shown(name: str, cell: object) -> str:
    if cell is None:
        unlimited = name.endswith(("_limit_bytes", "_limit_percent", "_free_bytes"))
        return "unlimited" if unlimited else ""
    if isinstance(cell, int) and name.endswith("_bytes"):
        return format_size(cell)
    if name.endswith("_percent"):
        return f"{cell}%"
    return str(cell)


def snapshot_html(snapshot: RegionSnapshot) -> str:
    """The devices of one snapshot and its processes, as two tables of HTML."""
    devices = [attrs.asdict(device) for device in snapshot.devices]
    processes = [
        {"pid": process.pid, "host_pid": process.host_pid, **attrs.asdict(usage)}
        for process in snapshot.processes
        for usage in process.devices
    ]
    tables = "".join(
        Frame({name: [row[name] for row in rows] for name in rows[0]})._repr_html_()
        for rows in (devices, processes)
        if rows
    )
    return f"<p>{html.escape(snapshot.path)}, layout {snapshot.layout.value}</p>{tables}"


def frame_of(table: RegionTable, name: str) -> Frame:
    """Make the frame of one table of `table`: "regions", "devices", "processes" or "usages"."""
    make = {
        "regions": _regions,
        "devices": _devices,
        "processes": _processes,
        "usages": _usages,
    }[name]
    return Frame(make(table), table.identity)


def _identity(table: RegionTable, rows: Iterable[int]) -> dict[str, Sequence[Any]]:
    """The columns that say which region a row is about."""
    found = list(rows)
    columns: dict[str, Sequence[Any]] = {"path": [table.paths[row] for row in found]}
    for name, cells in table.identity.items():
        columns[name] = [cells[row] for row in found]
    return columns


def _figures(columns: Columns, first: str) -> dict[str, Sequence[Any]]:
    """Every column from `first` on, as it stands there."""
    names = columns.columns[columns.columns.index(first) :]
    return {name: getattr(columns, name) for name in names}


def _regions(table: RegionTable) -> Cells:
    regions = table.regions
    failed = [code != 0 for code in regions.code]
    errors = [table.error(row) for row in range(len(table))]

    def where_read(cells: Iterable[Any]) -> list[Any]:
        return [None if bad else cell for bad, cell in zip(failed, cells, strict=True)]

    return {
        **_identity(table, range(len(table))),
        "error": [None if error is None else str(error) for error in errors],
        "layout": where_read(LAYOUTS[number].value for number in regions.layout),
        "taken_at": where_read(regions.taken_at_ns),
        "settled": where_read(cell != 0 for cell in regions.settled),
        "device_count": where_read(regions.device_count),
        "process_count": where_read(regions.process_count),
        "priority": where_read(regions.priority),
        "utilization_switch": where_read(cell != 0 for cell in regions.utilization_switch),
        "recent_kernel": where_read(regions.recent_kernel),
        "last_kernel_time_s": [cell or None for cell in regions.last_kernel_time_s],
        "owner_pid": where_read(regions.owner_pid),
    }


def _devices(table: RegionTable) -> Cells:
    devices = table.devices
    limits = _signed([cell or None for cell in devices.memory_limit_bytes])
    used = devices.memory_used_bytes
    return {
        **_identity(table, devices.region),
        "device": devices.index,
        "uuid": [devices.uuid(row) for row in range(len(devices))],
        "memory_limit_bytes": limits,
        # As `DeviceUsage.memory_free_bytes`.
        "memory_free_bytes": [
            None if limit is None else max(0, limit - cell)
            for limit, cell in zip(limits, used, strict=True)
        ],
        "sm_limit_percent": [sm_limit_or_none(cell) for cell in devices.sm_limit_percent],
        **_figures(devices, "memory_used_bytes"),
    }


def _processes(table: RegionTable) -> Cells:
    processes = table.processes
    return {
        **_identity(table, processes.region),
        "pid": processes.pid,
        "host_pid": [cell or None for cell in processes.host_pid],
        "status": processes.status,
        "settled": [cell != 0 for cell in processes.settled],
    }


def _usages(table: RegionTable) -> Cells:
    devices, processes, usages = table.devices, table.processes, table.usages
    regions = [processes.region[process] for process in usages.process]
    uuids = {
        place: devices.uuid(row)
        for row, place in enumerate(zip(devices.region, devices.index, strict=True))
    }
    return {
        **_identity(table, regions),
        "pid": [processes.pid[process] for process in usages.process],
        "device": usages.device,
        "uuid": [uuids[place] for place in zip(regions, usages.device, strict=True)],
        **_figures(usages, "memory_used_bytes"),
    }

"""The figures of many regions as columns, and as data frames.

Each row of a frame says which region and device it is about. Unlimited is null. Numbers are signed,
so that differences of columns are right.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final

import attrs

from ._core import ffi, lib
from .errors import RegionError, region_error
from .layouts import LAYOUTS
from .models import lazy_snapshot, uuid_text
from .units import sm_limit_or_none

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from .models import RegionSnapshot

    Cells = dict[str, list[Any]]

# Not cleared: all that is shown has been written.
new_memory = ffi.new_allocator(should_clear_after_alloc=False)
_CELL_BYTES: Final = 8

# How the numbers of a region become cells of a frame, where they are not the cells themselves.
_CONVERT: dict[str, Callable[[int], Any]] = {
    "layout": lambda number: LAYOUTS[number].value,
    "settled": bool,
    "processes_truncated": bool,
    "utilization_switch": bool,
    "memory_limit_bytes": lambda limit: limit or None,
    "sm_limit_percent": sm_limit_or_none,
    "host_pid": lambda pid: pid or None,
    "last_kernel_time_s": lambda time_s: time_s or None,
    "refusals": lambda count: None if count < 0 else count,
}
# Row numbers, and figures that only this library reads.
_LEFT_OUT = {"code", "semaphore", "region", "process", "device", "device_rows"}
_TEXTS = {"path", "error", "layout", "uuid"}
_FLAGS = {"settled", "utilization_switch", "processes_truncated"}
# Only a damaged region holds larger numbers.
_SIGNED_END: Final = 2**63


@attrs.frozen(eq=False)
class ReadResult:
    """The result of one `RegionSet.read`: snapshots and errors in the core's form."""

    paths: tuple[str, ...]
    newer: tuple[tuple[int, int] | None, ...]
    memory: Any
    size: Any
    failed: int
    identity: Mapping[str, Sequence[str | None]] = attrs.field(factory=dict)


class Columns:
    """One table of a `RegionTable`: a column is an attribute, a read-only memoryview.

    numpy takes a column without a copy (``numpy.asarray(table.devices.memory_used_bytes)``). Cells
    are 64 bits wide, format ``q`` or ``Q``. The columns of a table are made together, when the
    first of them is used. `to_dict`, `to_pandas` and `to_polars` give typed columns that say which
    region and device each row is about, signed so that differences are right, with null for
    unlimited.

    Attributes:
        columns: The names of the columns, in order.
    """

    _table: ClassVar[int]
    columns: ClassVar[tuple[str, ...]]

    def __init__(self, read: ReadResult, rows: int) -> None:
        # Not the `RegionTable` itself: such a cycle would wait for the garbage collector.
        self._read = read
        self._rows = rows

    def __init_subclass__(cls) -> None:
        # In the order of the enums in csrc/api.h: a table's own columns, then the figures.
        declared = [each.__annotations__ for each in cls.__mro__ if each not in (Columns, object)]
        cls.columns = tuple(name for names in declared for name in names)

    def __len__(self) -> int:
        return self._rows

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._rows} rows: {', '.join(self.columns)}>"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> memoryview:
            # Reached only while the columns are not there yet, or for a wrong name.
            if name not in self.columns:
                raise AttributeError(f"no column {name!r}; there are {', '.join(self.columns)}")
            # Columns that lie a multiple of 4,096 bytes apart are written at half the speed.
            step = self._rows | 8
            cells = self._cells(self._table, len(self.columns) * step * _CELL_BYTES, step)
            for number, column in enumerate(self.columns):
                view = cells.cast("Q" if column in UNSIGNED_COLUMNS else "q")
                self.__dict__[column] = view[number * step : number * step + self._rows]
            return self.__dict__[name]

    def _cells(self, table: int, size_bytes: int, step: int) -> memoryview:
        cells = new_memory("char[]", size_bytes)
        lib.hr_columns(self._read.memory, len(self._read.paths), table, cells, step)
        return memoryview(ffi.buffer(cells)).toreadonly()

    def to_dict(self) -> dict[str, list[Any]]:
        """Return the columns by name: path and identity of each row's region, then the table's own.

        None is unlimited, not known, or a number of 2**63 and above.
        """
        regions, cells = self._described()
        names = {"path": self._read.paths, **self._read.identity}
        return {**{name: [texts[row] for row in regions] for name, texts in names.items()}, **cells}

    def to_pandas(self) -> Any:
        """Return the cells of `to_dict` as a ``pandas.DataFrame`` of nullable types.

        Raises:
            ModuleNotFoundError: pandas is not installed.
        """
        import pandas as pd

        typed = self._typed("string", "boolean", "Int64")
        return pd.DataFrame(
            {name: pd.array(cells, dtype=kind) for name, (cells, kind) in typed.items()}
        )

    def to_polars(self) -> Any:
        """Return the cells of `to_dict` as a ``polars.DataFrame``.

        Raises:
            ModuleNotFoundError: polars is not installed.
        """
        import polars as pl

        typed = self._typed(pl.String, pl.Boolean, pl.Int64)
        return pl.DataFrame([pl.Series(name, *each) for name, each in typed.items()])

    def _described(self) -> tuple[Sequence[int], Cells]:
        """Return the region of each row, and the cells by column."""
        raise NotImplementedError

    def _own_cells(self) -> Cells:
        cells: Cells = {}
        for name in self.columns:
            if name not in _LEFT_OUT and not name.startswith("first_"):
                convert = _CONVERT.get(name, int)
                column = getattr(self, name)
                cells[name] = [None if cell >= _SIGNED_END else convert(cell) for cell in column]
        return cells

    def _typed(self, text: Any, flag: Any, number: Any) -> dict[str, tuple[Any, Any]]:
        """Return the cells and the type of each column."""
        texts = {*_TEXTS, *self._read.identity}
        return {
            name: (cells, text if name in texts else flag if name in _FLAGS else number)
            for name, cells in self.to_dict().items()
        }


class _Figures:
    memory_used_bytes: memoryview
    memory_context_bytes: memoryview
    memory_module_bytes: memoryview
    memory_data_bytes: memoryview
    memory_offset_bytes: memoryview
    memory_monitor_bytes: memoryview
    sm_util_percent: memoryview
    enc_util_percent: memoryview
    dec_util_percent: memoryview


class RegionColumns(Columns):
    """The regions, one row each; `code` is 0, or negative if the region could not be read.

    `process_count` is the number of rows in the table of processes, `slot_count` includes emptied
    slots, and `processes_truncated` is 1 if `RegionSet.read` has left out the region's processes.
    `semaphore` has the value in the low 32 bits, the waiters in the high ones. `first_device` and
    `first_process` are rows of the other tables, `device_rows` their number. `last_kernel_time_s`
    and `owner_pid` are 0 if unknown, `refusals` is -1.
    """

    _table = lib.HR_TABLE_REGIONS

    code: memoryview
    layout: memoryview
    taken_at_ns: memoryview
    settled: memoryview
    device_count: memoryview
    process_count: memoryview
    slot_count: memoryview
    processes_truncated: memoryview
    priority: memoryview
    utilization_switch: memoryview
    recent_kernel: memoryview
    last_kernel_time_s: memoryview
    owner_pid: memoryview
    semaphore: memoryview
    refusals: memoryview
    first_device: memoryview
    device_rows: memoryview
    first_process: memoryview

    def _described(self) -> tuple[Sequence[int], Cells]:
        table = RegionTable(self._read)
        errors = [table.error(row) for row in range(len(self))]
        cells: Cells = {"error": [None if error is None else str(error) for error in errors]}
        for name, column in self._own_cells().items():
            cells[name] = [
                None if error else cell for error, cell in zip(errors, column, strict=True)
            ]
        return range(len(self)), cells


class DeviceColumns(Columns, _Figures):
    """The devices of all regions, with the sums over their processes, and their uuids.

    Unlimited is 0 in `memory_limit_bytes`, and 0 or 100 and above in `sm_limit_percent`. `region`
    is a row of `RegionTable.regions`, `device` the index in that region.
    """

    _table = lib.HR_TABLE_DEVICES

    region: memoryview
    device: memoryview
    memory_limit_bytes: memoryview
    sm_limit_percent: memoryview

    @cached_property
    def uuid_bytes(self) -> memoryview:
        """The uuids as the regions have them, 96 bytes a row, padded with NUL."""
        return self._cells(lib.HR_TABLE_UUIDS, self._rows * lib.HR_UUID_BYTES, 0)

    def uuids(self) -> list[str | None]:
        """Return the uuids of all devices; None where one is unset."""
        cells, size = bytes(self.uuid_bytes), lib.HR_UUID_BYTES
        return [uuid_text(cells[at : at + size]) for at in range(0, len(cells), size)]

    def uuid(self, row: int) -> str | None:
        """Return the uuid of the device in that row; None if unset.

        Raises:
            IndexError: No such row.
        """
        if not 0 <= row < self._rows:
            raise IndexError(f"row {row} of {self._rows}")
        start = row * lib.HR_UUID_BYTES
        return uuid_text(bytes(self.uuid_bytes[start : start + lib.HR_UUID_BYTES]))

    def _described(self) -> tuple[Sequence[int], Cells]:
        cells = self._own_cells()
        limited = zip(cells["memory_limit_bytes"], self.memory_used_bytes, strict=True)
        free = [None if limit is None else max(0, limit - used) for limit, used in limited]
        named: Cells = {"device": list(self.device), "uuid": self.uuids()}
        return self.region, {**named, **cells, "memory_free_bytes": free}


class ProcessColumns(Columns):
    """The process slots in use of all regions; `host_pid` is 0 if unknown.

    `region` is a row of `RegionTable.regions`, `first_usage` one of `RegionTable.usages`, `slot`
    the index in the region's table, which does not identify a process.
    """

    _table = lib.HR_TABLE_PROCESSES

    region: memoryview
    slot: memoryview
    pid: memoryview
    host_pid: memoryview
    status: memoryview
    settled: memoryview
    first_usage: memoryview

    def _described(self) -> tuple[Sequence[int], Cells]:
        return self.region, self._own_cells()


class UsageColumns(Columns, _Figures):
    """The use of each process on each listed device.

    `process` is a row of `RegionTable.processes`, `device` the index in that region.
    """

    _table = lib.HR_TABLE_USAGES

    process: memoryview
    device: memoryview

    def _described(self) -> tuple[Sequence[int], Cells]:
        table = RegionTable(self._read)
        devices, processes = table.devices, table.processes
        regions = [processes.region[process] for process in self.process]
        places = zip(devices.region, devices.device, strict=True)
        by_place = dict(zip(places, devices.uuids(), strict=True))
        cells: Cells = {
            "pid": [processes.pid[process] for process in self.process],
            "device": list(self.device),
            "uuid": [by_place[place] for place in zip(regions, self.device, strict=True)],
        }
        return regions, {**cells, **self._own_cells()}


#: Each column's format is `Q` if it is here, else `q`.
UNSIGNED_COLUMNS: Final = {
    *("taken_at_ns", "last_kernel_time_s", "owner_pid", "semaphore"),
    *("memory_limit_bytes", "sm_limit_percent", *_Figures.__annotations__),
}


@attrs.frozen
class DeviceRow:
    """One device of one region, of `RegionTable.rows`.

    Attributes:
        path: The region's file.
        namespace: Of the pod; None if the table has no such column, or the name is unknown.
        pod: The pod's name, likewise.
        container: The container's name, likewise.
        device: Index of the device.
        uuid: None until something in the container initialises NVML.
        memory_limit_bytes: None if unlimited.
        memory_used_bytes: Sum over the processes.
        memory_free_bytes: Limit minus usage, never below 0; None if unlimited.
        sm_limit_percent: 1 to 99, or None if unlimited.
        sm_util_percent: Sum over the processes, so it can pass 100; 0 if the layout has none.
    """

    path: str
    namespace: str | None
    pod: str | None
    container: str | None
    device: int
    uuid: str | None
    memory_limit_bytes: int | None
    memory_used_bytes: int
    memory_free_bytes: int | None
    sm_limit_percent: int | None
    sm_util_percent: int


class RegionTable:
    """The result of one `RegionSet.read`. A value: later reads do not change it.

    Rows refer to each other by row number: `devices.region` and `processes.region` to `regions`,
    `usages.process` to `processes`; `first_…` columns point the other way.

    Attributes:
        paths: The regions' files, one per row of `regions`.
        regions: One row per region.
        devices: One row per device that the region's snapshot would list.
        processes: One row per process slot in use.
        usages: One row per process and listed device.
        identity: Name to one text per region: columns of frames, next to the path. Empty
            unless `with_identity` gave some.
    """

    def __init__(self, read: ReadResult) -> None:
        self._read = read
        self.paths = read.paths
        self.identity = read.identity
        self.regions = RegionColumns(read, len(read.paths))
        self.devices = DeviceColumns(read, read.size.devices)
        self.processes = ProcessColumns(read, read.size.processes)
        self.usages = UsageColumns(read, read.size.usages)

    def __len__(self) -> int:
        return len(self.paths)

    def __repr__(self) -> str:
        return f"<RegionTable of {len(self)} regions, {self._read.failed} of them with errors>"

    def rows(self) -> Iterator[DeviceRow]:
        """Iterate over the devices of all regions, joined with their regions' names."""
        devices = self.devices
        nameless = (None,) * len(self)
        namespaces, pods, containers = (
            self.identity.get(name, nameless) for name in ("namespace", "pod", "container")
        )
        for row, region in enumerate(devices.region):
            limit, used = devices.memory_limit_bytes[row] or None, devices.memory_used_bytes[row]
            yield DeviceRow(
                path=self.paths[region],
                namespace=namespaces[region],
                pod=pods[region],
                container=containers[region],
                device=devices.device[row],
                uuid=devices.uuid(row),
                memory_limit_bytes=limit,
                memory_used_bytes=used,
                memory_free_bytes=None if limit is None else max(0, limit - used),
                sm_limit_percent=sm_limit_or_none(devices.sm_limit_percent[row]),
                sm_util_percent=devices.sm_util_percent[row],
            )

    def with_identity(self, **columns: Sequence[str | None]) -> RegionTable:
        """Return the same table, whose frames say more about each region than its path.

        Args:
            columns: Name to one text per region, such as ``pod=["bert-0", None]``.

        Raises:
            ValueError: A column has not one cell per region.
            TypeError: A column is a text.
        """
        for name, cells in columns.items():
            if isinstance(cells, str | bytes):
                raise TypeError(f"{name} is a sequence with one text per region, not one text")
            if len(cells) != len(self):
                raise ValueError(f"{name} has {len(cells)} cells for {len(self)} regions")
        return RegionTable(attrs.evolve(self._read, identity={**self.identity, **columns}))

    def snapshot(self, row: int) -> RegionSnapshot:
        """Return one region's data as `Region.snapshot` does; nothing is read again.

        Without processes if `RegionSet.read` has left them out (`processes_truncated`).

        Args:
            row: The region's row.

        Raises:
            IndexError: There is no such row.
            RegionError, OSError: Why the region could not be read.
        """
        error = self.error(row)
        if error is not None:
            raise error
        memory = self._read.memory
        members = ffi.cast("struct hr_member *", memory)
        start = members[row].at
        head = ffi.cast("struct hr_snapshot *", memory + start)
        end = members[row + 1].at if row + 1 < len(self) else self._read.size.bytes
        raw = ffi.new("char[]", end - start)
        ffi.memmove(raw, memory + start, end - start)
        return lazy_snapshot(raw, self.paths[row], LAYOUTS[head.layout], self._read.newer[row])

    def layout_newer(self, row: int) -> tuple[int, int] | None:
        """Return the version of the region in that row, if it is newer than its layout's."""
        return self._read.newer[row]

    def error(self, row: int) -> RegionError | OSError | None:
        """Return why the region in that row could not be read; None if it was.

        Raises:
            IndexError: There is no such row.
        """
        memory = self._read.memory
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        at = ffi.cast("struct hr_member *", memory)[row].at
        head = ffi.cast("struct hr_snapshot *", memory + at)
        if head.code == lib.HR_OK:
            return None
        detail = ffi.cast("struct hr_error *", head + 1)
        error: Any = region_error(head.code, self.paths[row], detail)
        return error  # type: ignore[no-any-return]

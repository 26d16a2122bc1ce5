"""Many regions in one native call, as columns."""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, NoReturn

from ._core import ffi, lib
from .errors import RegionClosed, RegionError, error_from_detail, last_detail, no_detail
from .models import uuid_text
from .region import Region, absolute_path, open_region

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType

    from typing_extensions import Self

    from .errors import PathLike

# The columns' names, in the order of the enums in csrc/region.h; q is signed, Q unsigned.
_REGION_COLUMNS = (
    ("code", "q"),
    ("layout", "q"),
    ("taken_at_ns", "Q"),
    ("settled", "q"),
    ("device_count", "q"),
    ("process_count", "q"),
    ("priority", "q"),
    ("utilization_switch", "q"),
    ("recent_kernel", "q"),
    ("last_kernel_time_s", "Q"),
    ("owner_pid", "Q"),
    ("semaphore", "Q"),
    ("first_device", "q"),
    ("device_rows", "q"),
    ("first_process", "q"),
)
_FIGURES = (
    ("memory_used_bytes", "Q"),
    ("memory_context_bytes", "Q"),
    ("memory_module_bytes", "Q"),
    ("memory_data_bytes", "Q"),
    ("memory_offset_bytes", "Q"),
    ("memory_monitor_bytes", "Q"),
    ("sm_util_percent", "Q"),
    ("enc_util_percent", "Q"),
    ("dec_util_percent", "Q"),
)
_DEVICE_COLUMNS = (
    ("region", "q"),
    ("index", "q"),
    ("memory_limit_bytes", "Q"),
    ("sm_limit_percent", "Q"),
    *_FIGURES,
)
_PROCESS_COLUMNS = (
    ("region", "q"),
    ("pid", "q"),
    ("host_pid", "q"),
    ("status", "q"),
    ("settled", "q"),
    ("first_usage", "q"),
)
_USAGE_COLUMNS = (("process", "q"), ("device", "q"), *_FIGURES)

# Not cleared: every cell that a row shows has been written.
_new_arena = ffi.new_allocator(should_clear_after_alloc=False)
_CELL_BYTES = 8

# Bound once: 256 regions are read in well under 0.1 ms.
_read_set = lib.hr_read_set
_REGION_CELLS, _DEVICE_CELLS = lib.HR_REGION_COLUMNS, lib.HR_DEVICE_COLUMNS
_PROCESS_CELLS, _USAGE_CELLS = lib.HR_PROCESS_COLUMNS, lib.HR_USAGE_COLUMNS

# A table's columns by name: number and format.
_Schema = dict[str, tuple[int, str]]


def _schema(columns: tuple[tuple[str, str], ...]) -> _Schema:
    return {name: (number, cell) for number, (name, cell) in enumerate(columns)}


_REGIONS, _DEVICES = _schema(_REGION_COLUMNS), _schema(_DEVICE_COLUMNS)
_PROCESSES, _USAGES = _schema(_PROCESS_COLUMNS), _schema(_USAGE_COLUMNS)


class Columns:
    """One table of a `RegionTable`: a column is an attribute, a read-only memoryview.

    numpy takes a column without a copy (``numpy.asarray(table.devices.memory_used_bytes)``), and so
    does pandas. Cells are 64 bits wide, format ``q`` or ``Q``.
    """

    __slots__ = ("_arena", "_capacity", "_first", "_rows", "_schema")

    def __init__(self, arena: Any, first: int, capacity: int, rows: int, schema: _Schema) -> None:
        self._arena = arena
        self._first = first
        self._capacity = capacity
        self._rows = rows
        self._schema = schema

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns, in order."""
        return tuple(self._schema)

    def __len__(self) -> int:
        return self._rows

    def __repr__(self) -> str:
        return f"<Columns {self._rows} rows: {', '.join(self.columns)}>"

    def __getattr__(self, name: str) -> memoryview:
        if name.startswith("_"):
            # Of an object that is being copied: it has nothing yet.
            raise AttributeError(name)
        try:
            number, cell_format = self._schema[name]
        except KeyError:
            raise AttributeError(
                f"no column {name!r}; there are {', '.join(self.columns)}"
            ) from None
        cells: memoryview = self._cells(number, self._rows).cast(cell_format)  # type: ignore[call-overload]
        return cells

    def _cells(self, column: int, cells: int) -> memoryview:
        start = (self._first + column * self._capacity) * _CELL_BYTES
        whole = memoryview(ffi.buffer(self._arena))
        return whole[start : start + cells * _CELL_BYTES].toreadonly()


class DeviceColumns(Columns):
    """The devices of all regions, with their uuids."""

    __slots__ = ()

    def uuid(self, row: int) -> str | None:
        """The uuid of the device in that row; None if unset.

        Raises:
            IndexError: No such row.
        """
        if not 0 <= row < self._rows:
            raise IndexError(f"row {row} of {self._rows}")
        start = row * lib.HR_UUID_BYTES
        cells = self._cells(lib.HR_DEVICE_UUID, (row + 1) * lib.HR_UUID_BYTES // _CELL_BYTES)
        return uuid_text(bytes(cells[start : start + lib.HR_UUID_BYTES]))


class RegionTable:
    """What one `RegionSet.read` found. A value: later reads do not change it.

    Rows refer to each other by row number: `devices.region` and `processes.region` to `regions`,
    `usages.process` to `processes`; `first_…` columns point the other way. Unlimited stays 0, as
    it stands in the file.

    Attributes:
        paths: The regions' files, one per row of `regions`.
        regions: One row per region; `code` is 0, or negative where it could not be read.
        devices: One row per device that the region's snapshot would list, with the sums over its
            processes.
        processes: One row per process slot in use.
        usages: One row per process and listed device.
    """

    __slots__ = ("_errors", "devices", "paths", "processes", "regions", "usages")

    def __init__(
        self,
        paths: tuple[str, ...],
        tables: tuple[Columns, DeviceColumns, Columns, Columns],
        errors: dict[int, RegionError | OSError],
    ) -> None:
        self.paths = paths
        self.regions, self.devices, self.processes, self.usages = tables
        self._errors = errors

    def __len__(self) -> int:
        return len(self.regions)

    def error(self, row: int) -> RegionError | OSError | None:
        """Why the region in that row could not be read; None if it was."""
        return self._errors.get(row)


_sets: weakref.WeakSet[RegionSet] = weakref.WeakSet()


def _unlock_in_child() -> None:
    # Another thread of the parent may have been reading, and does not exist in the child.
    for region_set in _sets:
        region_set._guard = threading.Lock()


os.register_at_fork(after_in_child=_unlock_in_child)


class RegionSet:
    """Many regions, read together.

    Files that cannot be opened do not stop the others: `errors` tells why. Threads: calls may come
    from several threads; they take turns. Fork: as `Region`.

    Args:
        paths: The files; each is opened read-only.

    Attributes:
        errors: Path to error, for the files that could not be opened.
    """

    __slots__ = (
        "__weakref__",
        "_capacity",
        "_closed",
        "_guard",
        "_handles",
        "_paths",
        "_regions",
        "_scratch",
        "errors",
    )

    def __init__(self, paths: Iterable[PathLike] = ()) -> None:
        if isinstance(paths, str | bytes | os.PathLike):
            raise TypeError("several paths are wanted; put a single one into a list")
        self._guard = threading.Lock()
        _sets.add(self)
        # By path where the set has opened it, by itself where it was adopted.
        self._regions: dict[str | Region, Region] = {}
        self._handles: Any = None
        self._paths: tuple[str, ...] = ()
        self._capacity = [0, 0, 0]
        self._closed = False
        self._scratch: Any = None
        self.errors: dict[str, RegionError | OSError] = {}
        for path in paths:
            self.add(path)

    @property
    def paths(self) -> tuple[str, ...]:
        """The regions that are open, in the order of their rows."""
        return tuple(region.path for region in self.regions)

    @property
    def regions(self) -> tuple[Region, ...]:
        """The same as objects. The set closes them."""
        with self._guard:
            return tuple(self._regions.values())

    def __len__(self) -> int:
        return len(self._regions)

    def __iter__(self) -> Iterator[str]:
        return iter(self.paths)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a RegionSet cannot be pickled; send its paths, or a RegionTable's columns")

    def _check_open(self) -> None:
        if self._closed:
            raise RegionClosed("the RegionSet has been closed; make a new one")

    def add(self, path: PathLike) -> bool:
        """Open one more region, or the same path anew if it is there already.

        Returns:
            True if it is open now; False puts the reason into `errors`.

        Raises:
            RegionClosed: After `close`.
        """
        self._check_open()
        absolute = absolute_path(path)
        try:
            region = open_region(absolute)
        except (RegionError, OSError) as error:
            self._replace(absolute, None)
            self.errors[absolute] = error
            return False
        self._replace(absolute, region)
        self.errors.pop(absolute, None)
        return True

    def adopt(self, region: Region) -> None:
        """Take over an open region, beside those with the same path if there are any.

        The set closes it from now on.

        Raises:
            RegionClosed: After `close`; the region stays the caller's.
        """
        self._replace(region, region)

    def discard(self, which: PathLike | Region) -> None:
        """Close one region and forget it, and its error; nothing happens if it is not there.

        Args:
            which: The path of one that was added, or one that was adopted.
        """
        key = which if isinstance(which, Region) else absolute_path(which)
        self._replace(key, None)
        if isinstance(key, str):
            self.errors.pop(key, None)

    def _replace(self, key: str | Region, region: Region | None) -> None:
        with self._guard:
            if region is not None:
                self._check_open()
            before = self._regions.pop(key, None)
            if region is not None:
                self._regions[key] = region
            self._handles = None
        if before is not None and before is not region:
            before.close()

    def close(self) -> None:
        """Close all regions; may be called again."""
        with self._guard:
            self._closed = True
            regions = tuple(self._regions.values())
            self._regions.clear()
            self._handles = None
            self._scratch = None
        for region in regions:
            region.close()

    def read(self) -> RegionTable:
        """Read all regions in one call into the core.

        A region that fails (truncated, say) has its code and no other rows; the rest is not
        affected. One thing is cheaper than in `Region.snapshot`: on a region that has told of its
        devices, usage of devices beyond those, which libvgpu never writes, is looked for in the
        first read and then in every sixteenth.

        Raises:
            RegionClosed: After `close`.
        """
        with self._guard:
            self._check_open()
            if self._handles is None:
                self._handles = ffi.new(
                    "hr_region *[]", [region._handle for region in self._regions.values()]
                )
                self._paths = tuple([region.path for region in self._regions.values()])
            if self._scratch is None:
                self._scratch = _new_arena("char[]", lib.HR_SNAPSHOT_MAX_BYTES)
            return self._read(len(self._handles))

    def _read(self, regions: int) -> RegionTable:
        filled = ffi.new("struct hr_rows *")
        while True:
            devices, processes, usages = self._capacity
            cells = (
                regions * _REGION_CELLS
                + devices * _DEVICE_CELLS
                + processes * _PROCESS_CELLS
                + usages * _USAGE_CELLS
            )
            arena = _new_arena("uint64_t[]", cells)
            capacity = ffi.new("struct hr_rows *", (regions, devices, processes, usages))
            code = _read_set(self._handles, capacity, arena, self._scratch, filled)
            if code >= 0:
                break
            # A quarter more than needed, so that a process that comes does not cost a second read.
            self._capacity = [
                needed + needed // 4 + 8
                for needed in (filled.devices, filled.processes, filled.usages)
            ]
        first_device = regions * _REGION_CELLS
        first_process = first_device + devices * _DEVICE_CELLS
        first_usage = first_process + processes * _PROCESS_CELLS
        tables = (
            Columns(arena, 0, regions, regions, _REGIONS),
            DeviceColumns(arena, first_device, devices, filled.devices, _DEVICES),
            Columns(arena, first_process, processes, filled.processes, _PROCESSES),
            Columns(arena, first_usage, usages, filled.usages, _USAGES),
        )
        errors = self._errors_of(self._paths, tables[0].code) if code else {}
        return RegionTable(self._paths, tables, errors)

    def _errors_of(
        self, paths: tuple[str, ...], codes: memoryview
    ) -> dict[int, RegionError | OSError]:
        # The core keeps the details of one failure only, so those that failed are asked again.
        errors: dict[int, RegionError | OSError] = {}
        for row, code in enumerate(codes):
            if code == lib.HR_OK:
                continue
            again = lib.hr_snapshot(self._handles[row], self._scratch, lib.HR_SNAPSHOT_MAX_BYTES)
            detail = last_detail(code) if again == code else no_detail()
            error = error_from_detail(code, paths[row], detail)
            if isinstance(error, RegionError | OSError):
                errors[row] = error
        return errors

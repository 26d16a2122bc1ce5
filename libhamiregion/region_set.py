"""Many regions in one native call, as columns."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, NoReturn

from ._core import ffi, lib
from .errors import RegionClosed, RegionError, region_error
from .models import lazy_snapshot, uuid_text
from .region import Region, absolute_path, open_region

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import TracebackType

    from typing_extensions import Self

    from .errors import PathLike
    from .models import RegionSnapshot

# The columns' names, in the order of the enums in csrc/region.h.
_FIGURES = [
    "memory_used_bytes",
    "memory_context_bytes",
    "memory_module_bytes",
    "memory_data_bytes",
    "memory_offset_bytes",
    "memory_monitor_bytes",
    "sm_util_percent",
    "enc_util_percent",
    "dec_util_percent",
]
_COLUMNS = {
    "regions": [
        "code",
        "layout",
        "taken_at_ns",
        "settled",
        "device_count",
        "process_count",
        "priority",
        "utilization_switch",
        "recent_kernel",
        "last_kernel_time_s",
        "owner_pid",
        "semaphore",
        "first_device",
        "device_rows",
        "first_process",
    ],
    "devices": ["region", "index", "memory_limit_bytes", "sm_limit_percent", *_FIGURES],
    "processes": ["region", "pid", "host_pid", "status", "settled", "first_usage"],
    "usages": ["process", "device", *_FIGURES],
}
_UNSIGNED = {
    *("taken_at_ns", "last_kernel_time_s", "owner_pid", "semaphore"),
    *("memory_limit_bytes", "sm_limit_percent", *_FIGURES),
}

# Not cleared: what is shown has been written.
_new_memory = ffi.new_allocator(should_clear_after_alloc=False)
_CELL_BYTES = 8

# Bound once: 256 regions are read in well under 0.1 ms.
_read_set = lib.hr_read_set

#: Bytes of the snapshots of one read, unless regions with few processes take more: 4,096 containers
#: with 2 devices and 4 processes each take 6 MiB.
MAX_READ_BYTES = 8 << 20
_UNCAPPED = 0xFFFF_FFFF
_CAPPED_USAGES = 1024


# The columns get memory behind the snapshots: of its own, it would be given back to the system and
# faulted in again with each table that comes and goes. Snapshot and columns of a usage take 72 and
# 88 bytes, of a process with one usage 88 and 136, of a device 184 and 200, of a region 96 and 120.
_COLUMN_BYTES_PER_BYTE = 2
_PADDING_BYTES = 8 * _CELL_BYTES * sum(map(len, _COLUMNS.values()))


class Columns:
    """One table of a `RegionTable`: a column is an attribute, a read-only memoryview.

    numpy takes a column without a copy (``numpy.asarray(table.devices.memory_used_bytes)``). Cells
    are 64 bits wide, format ``q`` or ``Q``. The columns of a table are made together, when the
    first of them is asked for. `to_dict`, `to_pandas` and `to_polars` give typed columns that say
    which region and device each row is about, signed so that differences are right, with null for
    unlimited.
    """

    def __init__(
        self,
        name: str,
        source: tuple[Any, ...],
        table: int,
        rows: int,
        start: int,
    ) -> None:
        self._name = name
        # What its `RegionTable` is made of, and not that one itself: both would wait for the
        # garbage collector.
        self._source = source
        self._table = table
        self._columns = columns = _COLUMNS[name]
        self._rows = rows
        # Columns that lie a multiple of 4,096 bytes apart are written at half the speed.
        self._step = rows | 8
        self._start = start
        self._end = start + len(columns) * self._step * _CELL_BYTES

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns, in order."""
        return tuple(self._columns)

    def __len__(self) -> int:
        return self._rows

    def __repr__(self) -> str:
        return f"<Columns {self._rows} rows: {', '.join(self.columns)}>"

    if TYPE_CHECKING:
        # Given by `frames`.
        to_dict: Callable[[], dict[str, list[Any]]]
        to_pandas: Callable[[], Any]
        to_polars: Callable[[], Any]
        _repr_html_: Callable[[], str]

    def __getattr__(self, name: str) -> memoryview:
        # Reached only while the columns are not there yet, or for what does not exist.
        if name.startswith("_"):
            # Of an object that is being copied: it has nothing yet.
            raise AttributeError(name)
        if name not in self._columns:
            raise AttributeError(f"no column {name!r}; there are {', '.join(self._columns)}")
        cells = self._cells(self._table, self._start, self._end)
        signed, unsigned = cells.cast("q"), cells.cast("Q")
        found, start, rows, step = self.__dict__, 0, self._rows, self._step
        for column in self._columns:
            view = unsigned if column in _UNSIGNED else signed
            # Another thread may be here too: it finds the same numbers, and the first one's view.
            found.setdefault(column, view[start : start + rows])
            start += step
        column_found: memoryview = found[name]
        return column_found

    def _cells(self, table: int, start: int, end: int) -> memoryview:
        paths, memory = self._source[:2]
        lib.hr_columns(memory, len(paths), table, memory + start, self._step)
        return memoryview(ffi.buffer(memory))[start:end].toreadonly()


class DeviceColumns(Columns):
    """The devices of all regions, with their uuids."""

    _uuids: memoryview | None = None

    @property
    def uuid_bytes(self) -> memoryview:
        """The uuids as they stand in the regions, 96 bytes a row, padded with NUL."""
        if self._uuids is None:
            end = self._end + self._rows * lib.HR_UUID_BYTES
            self._uuids = self._cells(lib.HR_TABLE_UUIDS, self._end, end)
        return self._uuids

    def uuid(self, row: int) -> str | None:
        """The uuid of the device in that row; None if unset.

        Raises:
            IndexError: No such row.
        """
        if not 0 <= row < self._rows:
            raise IndexError(f"row {row} of {self._rows}")
        start = row * lib.HR_UUID_BYTES
        return uuid_text(bytes(self.uuid_bytes[start : start + lib.HR_UUID_BYTES]))


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
        identity: Name to one text per region: columns that frames have beside the path. Empty
            unless `with_identity` gave some.
    """

    regions: Columns
    devices: DeviceColumns
    processes: Columns
    usages: Columns

    def __init__(
        self,
        paths: tuple[str, ...],
        memory: Any,
        start: int,
        size: Any,
        errors: dict[int, RegionError | OSError],
        identity: Mapping[str, Sequence[str | None]] | None = None,
    ) -> None:
        self.paths = paths
        self.identity = identity or {}
        self._source = (paths, memory, start, size, errors, identity)
        self._errors = errors

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Columns:
            # Reached only while the tables are not there yet, which costs a read nothing.
            if name not in RegionTable.__annotations__:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            source, count, found = self._source, len(self), self.__dict__
            start, size = source[2:4]
            for table, number, rows in (
                ("regions", lib.HR_TABLE_REGIONS, count),
                ("processes", lib.HR_TABLE_PROCESSES, size.processes),
                ("usages", lib.HR_TABLE_USAGES, size.usages),
                # Last: behind their columns the uuids follow.
                ("devices", lib.HR_TABLE_DEVICES, size.devices),
            ):
                kind = DeviceColumns if table == "devices" else Columns
                made = kind(table, source, number, rows, start)
                found.setdefault(table, made)
                start = made._end
            return found[name]

    def __len__(self) -> int:
        return len(self.paths)

    def __repr__(self) -> str:
        return f"<RegionTable of {len(self)} regions, {len(self._errors)} of them with errors>"

    if TYPE_CHECKING:
        # Given by `frames`.
        def _repr_html_(self) -> str: ...

    def with_identity(self, **columns: Sequence[str | None]) -> RegionTable:
        """Return the same table, whose frames say more about each region than its path.

        Args:
            columns: Name to one text per region, such as ``pod=["bert-0", None]``.

        Raises:
            ValueError: A column has not one cell per region.
        """
        for name, cells in columns.items():
            if isinstance(cells, str):
                raise TypeError(f"{name} is a list with one text per region, not str")
            if len(cells) != len(self):
                raise ValueError(f"{name} has {len(cells)} cells for {len(self)} regions")
        return RegionTable(*self._source[:5], {**self.identity, **columns})

    def snapshot(self, row: int, region: Region) -> RegionSnapshot:
        """What this read found in one region, as `Region.snapshot` has it; nothing is read again.

        Where `RegionSet.read` has left a region's processes out, they are missing here too.

        Args:
            row: The region's row.
            region: The region of that row.

        Raises:
            IndexError: There is no such row.
            RegionError, OSError: Why the region could not be read.
        """
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        error = self._errors.get(row)
        if error is not None:
            raise error
        memory, size = self._source[1], self._source[3]
        members = ffi.cast("struct hr_member *", memory)
        start = members[row].at
        end = members[row + 1].at if row + 1 < len(self) else size.bytes
        raw = ffi.new("char[]", end - start)
        ffi.memmove(raw, memory + start, end - start)
        return lazy_snapshot(raw, *region._identity)

    def error(self, row: int) -> RegionError | OSError | None:
        """Why the region in that row could not be read; None if it was."""
        return self._errors.get(row)


class _Members:
    """The open regions of a set at one time, in the order of their rows."""

    __slots__ = ("handles", "paths", "regions", "since")

    def __init__(self, regions: tuple[Region, ...], since: object) -> None:
        # They keep the handles alive while a read is under way.
        self.regions = regions
        self.handles = ffi.new("hr_region *[]", [region._handle for region in regions])
        self.paths = tuple([region.path for region in regions])
        self.since = since


class RegionSet:
    """Many regions, read together.

    Files that cannot be opened do not stop the others: `errors` tells why. Threads and signal
    handlers: any call may be made during any other; a region that is closed while it is read has
    `RegionClosed` for its error. Fork: as `Region`.

    Args:
        paths: The files; each is opened read-only.

    Attributes:
        errors: Path to error, for the files that could not be opened.
    """

    __slots__ = (
        "__weakref__",
        "_change",
        "_closed",
        "_members",
        "_regions",
        "_room_bytes",
        "errors",
    )

    # A handler may interrupt between any two instructions, in the thread that would have to let go
    # of a lock first. So there is none: each step on `_regions` is one that nothing can interrupt.

    def __init__(self, paths: Iterable[PathLike] = ()) -> None:
        if isinstance(paths, str | bytes | os.PathLike):
            raise TypeError("a RegionSet takes several paths; put a single one into a list")
        # By path where the set has opened it, by itself where it was adopted.
        self._regions: dict[str | Region, Region] = {}
        # Another one after each change of `_regions`.
        self._change = object()
        self._members = _Members((), self._change)
        self._room_bytes = 0
        self._closed = False
        self.errors: dict[str, RegionError | OSError] = {}
        for path in paths:
            self.add(path)

    @property
    def paths(self) -> tuple[str, ...]:
        """The regions that are open, in the order of their rows."""
        return tuple(region.path for region in self.regions)

    @property
    def regions(self) -> tuple[Region, ...]:
        """The regions that are open, in the order of their rows; the set closes them."""
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

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ""
        return f"<RegionSet of {len(self)} regions, {len(self.errors)} errors{state}>"

    if TYPE_CHECKING:
        # Given by `frames`.
        def _repr_html_(self) -> str | None: ...

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
            self._drop(absolute)
            self.errors[absolute] = error
            return False
        self._drop(absolute)
        try:
            self._put(absolute, region)
        except RegionClosed:
            region.close()
            raise
        self.errors.pop(absolute, None)
        return True

    def adopt(self, region: Region) -> None:
        """Take over an open region, beside those with the same path if there are any.

        The set closes it from now on.

        Raises:
            RegionClosed: After `close`; the region stays the caller's.
        """
        self._check_open()
        if not isinstance(region, Region):
            raise TypeError(
                f"adopt() takes an open Region, not {type(region).__name__}; add() takes a path"
            )
        self._put(region, region)

    def discard(self, which: PathLike | Region) -> None:
        """Close one region and forget it, and its error; nothing happens if it is not there.

        Args:
            which: The path of one that was added, or one that was adopted.
        """
        key = which if isinstance(which, Region) else absolute_path(which)
        self._drop(key)
        if isinstance(key, str):
            self.errors.pop(key, None)

    def _put(self, key: str | Region, region: Region) -> None:
        while self._regions.setdefault(key, region) is not region:
            self._drop(key)  # somebody else has put one there since
        self._change = object()
        if self._closed:
            # Since we looked: close() may have missed this one.
            self._regions.pop(key, None)
            self._check_open()

    def _drop(self, key: str | Region) -> None:
        region = self._regions.pop(key, None)
        self._change = object()
        if region is not None:
            region.close()

    def close(self) -> None:
        """Close all regions; may be called again, and from a signal handler."""
        self._closed = True
        while self._regions:
            with contextlib.suppress(KeyError):  # somebody else has taken the last one
                _, region = self._regions.popitem()
                region.close()
        self._change = object()

    def _current_members(self) -> _Members:
        # In this order: a change after the first line shows in the next read.
        change = self._change
        members = self._members
        if members.since is not change:
            members = self._members = _Members(tuple(self._regions.values()), change)
        return members

    def read(self) -> RegionTable:
        """Read all regions in one call into the core.

        A region that fails (truncated, say) has its code and no other rows; the rest is not
        affected. Where all snapshots together would take more than 8 MiB, regions with more than
        1,024 usages (processes times devices) have no rows of processes, and `process_count` 0; the
        sums of their devices are whole: containers can fill their tables.

        Raises:
            RegionClosed: After `close`.
        """
        self._check_open()
        members = self._current_members()
        count = len(members.paths)
        size = ffi.new("struct hr_set_size *")
        max_usages = _UNCAPPED
        while True:
            room = self._room_bytes
            memory = _new_memory("char[]", room + _COLUMN_BYTES_PER_BYTE * room + _PADDING_BYTES)
            bytes_free = min(room, MAX_READ_BYTES) if max_usages == _UNCAPPED else room
            failed = _read_set(
                members.handles, count, memory, bytes_free, max_usages, size, ffi.NULL
            )
            if failed >= 0:
                break
            if size.bytes > MAX_READ_BYTES and max_usages == _UNCAPPED:
                max_usages = _CAPPED_USAGES
            else:
                # A quarter more than needed, so that a new process does not cost a second read.
                self._room_bytes = (size.bytes + size.bytes // 4) // _CELL_BYTES * _CELL_BYTES
        errors = _errors_in(memory, members.paths) if failed else {}
        return RegionTable(members.paths, memory, room, size, errors)


def _errors_in(memory: Any, paths: tuple[str, ...]) -> dict[int, RegionError | OSError]:
    members = ffi.cast("struct hr_member *", memory)
    errors: dict[int, RegionError | OSError] = {}
    for row, path in enumerate(paths):
        head = ffi.cast("struct hr_snapshot *", memory + members[row].at)
        if head.code != lib.HR_OK:
            detail = ffi.cast("struct hr_error *", head + 1)
            error = region_error(head.code, path, detail)
            if isinstance(error, RegionError | OSError):
                errors[row] = error
    return errors

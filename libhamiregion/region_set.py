"""Many regions in one native call, as columns."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, ClassVar, Final

import attrs

from ._core import ffi, lib
from .errors import RegionClosed, RegionError, region_error
from .layouts import LAYOUTS
from .models import lazy_snapshot, uuid_text
from .region import Region, absolute_path, open_region
from .units import sm_limit_or_none

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from typing_extensions import Self

    from .errors import PathLike
    from .models import RegionSnapshot

# Not cleared: all that is shown has been written.
_new_memory = ffi.new_allocator(should_clear_after_alloc=False)
_CELL_BYTES: Final = 8

#: Bytes of the snapshots of one read, unless regions with few processes take more: 4,096 containers
#: with 2 devices and 4 processes each take 6 MiB.
MAX_READ_BYTES: Final = 8 << 20
_UNCAPPED: Final = 0xFFFF_FFFF
_CAPPED_USAGES: Final = 1024


@attrs.frozen(eq=False)
class _Read:
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

    def __init__(self, read: _Read, rows: int) -> None:
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

    if TYPE_CHECKING:
        # Given by `frames`.
        to_dict: Callable[[], dict[str, list[Any]]]
        to_pandas: Callable[[], Any]
        to_polars: Callable[[], Any]
    else:

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
        cells = _new_memory("char[]", size_bytes)
        lib.hr_columns(self._read.memory, len(self._read.paths), table, cells, step)
        return memoryview(ffi.buffer(cells)).toreadonly()


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
    and `owner_pid` are 0 if unknown.
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
    first_device: memoryview
    device_rows: memoryview
    first_process: memoryview


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

    @property
    def uuid_bytes(self) -> memoryview:
        """The uuids as the regions have them, 96 bytes a row, padded with NUL."""
        if "_uuid_cells" not in self.__dict__:
            size_bytes = self._rows * lib.HR_UUID_BYTES
            self.__dict__["_uuid_cells"] = self._cells(lib.HR_TABLE_UUIDS, size_bytes, 0)
        cells: memoryview = self.__dict__["_uuid_cells"]
        return cells

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


class UsageColumns(Columns, _Figures):
    """The use of each process on each listed device.

    `process` is a row of `RegionTable.processes`, `device` the index in that region.
    """

    _table = lib.HR_TABLE_USAGES

    process: memoryview
    device: memoryview


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

    def __init__(self, read: _Read) -> None:
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

    if TYPE_CHECKING:
        # Given by `frames`.
        def _repr_html_(self) -> str: ...

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


class RegionSet:
    """Many regions, read together.

    Files that cannot be opened do not stop the others: `errors` has the reasons. Threads and signal
    handlers: any call may be made during any other; a region that is closed while it is read has
    `RegionClosed` for its error. Fork: a child makes a set of its own.

    Args:
        paths: The files; each is opened read-only.

    Attributes:
        errors: Path to error, for the files that could not be opened.
    """

    # A handler may interrupt between any two instructions, in the thread that would have to let go
    # of a lock first. So there is none: each step on `_regions` is one that nothing can interrupt.

    def __init__(self, paths: Iterable[PathLike] = ()) -> None:
        if isinstance(paths, str | bytes | os.PathLike):
            raise TypeError("a RegionSet takes several paths; put a single one into a list")
        # By path if the set has opened it, by itself if it was adopted.
        self._regions: dict[str | Region, Region] = {}
        # What `read` passes to the core, until the regions have changed.
        self._passed: tuple[Any, ...] = (), (), (), ffi.NULL
        self._room_bytes = 0
        self._closed = False
        self._pid = os.getpid()
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise RegionClosed("the RegionSet has been closed; make a new one")
        if self._pid != os.getpid():
            raise RegionClosed("the RegionSet was made before fork(); make a new one in the child")

    def add(self, path: PathLike) -> bool:
        """Open one more region, or the same path anew if it is there already.

        Returns:
            True if it is open now; False puts the reason into `errors`.

        Raises:
            RegionClosed: After `close`, or in a forked child.
        """
        self._check_open()
        absolute = absolute_path(path)
        self._drop(absolute)
        try:
            region = open_region(absolute)
        except (RegionError, OSError) as error:
            self.errors[absolute] = error
            return False
        self.errors.pop(absolute, None)
        self._put(absolute, region)
        return True

    def _adopt(self, region: Region) -> None:
        """Take over an open region, alongside those with the same path if there are any."""
        self._check_open()
        self._put(region, region)

    def discard(self, which: PathLike | Region) -> None:
        """Close one region and forget it, and its error; a no-op if it is not there.

        Args:
            which: The path of one that was added, or a region of the set.
        """
        key = which if isinstance(which, Region) else absolute_path(which)
        self._drop(key)
        if isinstance(key, str):
            self.errors.pop(key, None)

    def _put(self, key: str | Region, region: Region) -> None:
        while self._regions.setdefault(key, region) is not region:
            self._drop(key)  # another thread has put one there since
        if self._closed:
            # Since the check: close() may have missed this one.
            self._drop(key)
            self._check_open()

    def _drop(self, key: str | Region) -> None:
        region = self._regions.pop(key, None)
        if region is not None:
            region.close()

    def close(self) -> None:
        """Close all regions; may be called again, and from a signal handler."""
        self._closed = True
        while self._regions:
            with contextlib.suppress(KeyError):  # another thread has taken the last one
                _, region = self._regions.popitem()
                region.close()

    def read(self) -> RegionTable:
        """Read all regions in one call into the core.

        A region that fails (truncated, say) has its code and no other rows; the rest is not
        affected. If all snapshots together would take more than 8 MiB, regions with more than
        1,024 usages (processes times devices) have no rows of processes, and `processes_truncated`
        1; the sums of their devices are whole: containers can fill their tables.

        Raises:
            RegionClosed: After `close`, or in a forked child.
        """
        self._check_open()
        regions, paths, newer, handles = self._passed
        if regions != (now := self.regions):
            regions, paths = now, tuple([each.path for each in now])
            newer = tuple([each.layout_newer for each in now])
            handles = ffi.new("hr_region *[]", [each._handle for each in now])
            self._passed = regions, paths, newer, handles
        size = ffi.new("struct hr_set_size *")
        max_usages = _UNCAPPED
        while True:
            room = self._room_bytes
            memory = _new_memory("char[]", room)
            usable = min(room, MAX_READ_BYTES) if max_usages == _UNCAPPED else room
            failed = lib.hr_read_set(
                handles, len(regions), memory, usable, max_usages, size, ffi.NULL
            )
            if failed >= 0:
                break
            if size.bytes > MAX_READ_BYTES and max_usages == _UNCAPPED:
                max_usages = _CAPPED_USAGES
            else:
                # A quarter more than needed, so that a new process does not cost a second read.
                self._room_bytes = size.bytes + size.bytes // 4
        return RegionTable(_Read(paths, newer, memory, size, failed))

"""The columns of regions that were read elsewhere, or earlier: a `RegionTable` of a document."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final, TypeVar

from libhamiregion._core import lib
from libhamiregion.layouts import DEVICE_CAPACITY, LAYOUTS, SLOT_CAPACITY
from libhamiregion.models import (
    DeviceUsage,
    ProcessDeviceUsage,
    ProcessUsage,
    RegionSnapshot,
)
from libhamiregion.tables import (
    UNSIGNED_COLUMNS,
    Columns,
    DeviceColumns,
    ProcessColumns,
    RegionColumns,
    RegionTable,
    UsageColumns,
)
from libhamiregion.units import sm_limit_or_none

from .figures import LARGEST

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from libhamiregion.errors import RegionError

T = TypeVar("T", bound=Columns)

UUID_BYTES: Final[int] = lib.HR_UUID_BYTES


class StoredTable(RegionTable):
    """A table of given columns, whose rows are checked against each other.

    Args:
        paths: The regions' files.
        columns: Table to column to cells.
        uuids: Of each device.
        errors: Of each region why it could not be read; None if it was.
        layouts_newer: Of each region its version, if that is not known.

    Raises:
        KeyError: A column is missing.
        OverflowError: A cell has more than 64 bits.
        ValueError: Rows or lengths do not fit.
    """

    def __init__(
        self,
        paths: Sequence[str],
        columns: Mapping[str, Mapping[str, Sequence[int]]],
        uuids: Sequence[str | None],
        errors: Sequence[RegionError | OSError | None],
        layouts_newer: Sequence[tuple[int, int] | None],
    ) -> None:
        self.paths = tuple(paths)
        self.identity = {}
        self._errors, self._newer = tuple(errors), tuple(layouts_newer)
        self.regions = _filled(RegionColumns, columns["regions"])
        self.devices = _filled(DeviceColumns, columns["devices"])
        self.processes = _filled(ProcessColumns, columns["processes"])
        self.usages = _filled(UsageColumns, columns["usages"])
        cells = b"".join((uuid or "").encode("ascii").ljust(UUID_BYTES, b"\0") for uuid in uuids)
        self.devices.uuid_bytes = memoryview(cells)
        if not len(self.paths) == len(self.regions) == len(errors) == len(layouts_newer):
            raise ValueError("regions")
        if len(uuids) != len(self.devices):
            raise ValueError("uuids")
        self._check_rows()

    def _check_rows(self) -> None:
        """Make sure that rows which refer to each other exist."""
        regions, device, process, usage = self.regions, 0, 0, 0
        for row in range(len(self)):
            devices, processes = regions.device_rows[row], regions.process_count[row]
            fits = (
                0 <= regions.layout[row] < len(LAYOUTS)
                and (regions.code[row] < 0) == (self._errors[row] is not None)
                and regions.code[row] <= 0
                and 0 <= devices <= DEVICE_CAPACITY
                and 0 <= processes <= SLOT_CAPACITY
                and device + devices <= len(self.devices)
                and process + processes <= len(self.processes)
                # An empty region's first rows are of no use.
                and (not devices or regions.first_device[row] == device)
                and (not processes or regions.first_process[row] == process)
            )
            if not fits:
                raise ValueError(f"region {row}")
            for each in range(device, device + devices):
                if self.devices.region[each] != row:
                    raise ValueError(f"device {each}")
            for each in range(process, process + processes):
                if self.processes.region[each] != row or self.processes.first_usage[each] != usage:
                    raise ValueError(f"process {each}")
                for at in range(usage, usage + devices):
                    if at >= len(self.usages) or self.usages.process[at] != each:
                        raise ValueError(f"usage {at}")
                usage += devices
            device, process = device + devices, process + processes
        for name, end in (("devices", device), ("processes", process), ("usages", usage)):
            if len(getattr(self, name)) != end:
                raise ValueError(name)
        indexes = (*self.devices.device, *self.usages.device)
        if not all(0 <= index < DEVICE_CAPACITY for index in indexes):
            raise ValueError("device")

    def __repr__(self) -> str:
        return f"<StoredTable of {len(self)} regions>"

    def layout_newer(self, row: int) -> tuple[int, int] | None:
        """Return the version of the region in that row, if it is newer than its layout's."""
        return self._newer[row]

    def error(self, row: int) -> RegionError | OSError | None:
        """Return why the region in that row could not be read; None if it was.

        Raises:
            IndexError: There is no such row.
        """
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        return self._errors[row]

    def snapshot(self, row: int) -> RegionSnapshot:
        """Return one region's data as `Region.snapshot` does.

        Raises:
            IndexError: There is no such row.
            RegionError, OSError: Why the region could not be read.
        """
        if (error := self.error(row)) is not None:
            raise error
        regions = self.regions
        return RegionSnapshot(
            path=self.paths[row],
            layout=LAYOUTS[regions.layout[row]],
            layout_newer=self._newer[row],
            taken_at_ns=regions.taken_at_ns[row],
            device_count=regions.device_count[row],
            devices=tuple(self._devices(row)),
            processes=tuple(self._processes(row)),
            priority=regions.priority[row],
            utilization_switch=bool(regions.utilization_switch[row]),
            recent_kernel=regions.recent_kernel[row],
            last_kernel_time_s=regions.last_kernel_time_s[row] or None,
            refusals=None if regions.refusals[row] < 0 else regions.refusals[row],
            owner_pid=regions.owner_pid[row],
            settled=bool(regions.settled[row]),
            slot_count=regions.slot_count[row],
            processes_truncated=bool(regions.processes_truncated[row]),
        )

    def _devices(self, region: int) -> Iterator[DeviceUsage]:
        devices, first = self.devices, self.regions.first_device[region]
        for row in range(first, first + self.regions.device_rows[region]):
            yield DeviceUsage(
                index=devices.device[row],
                uuid=devices.uuid(row),
                memory_limit_bytes=devices.memory_limit_bytes[row] or None,
                sm_limit_percent=sm_limit_or_none(devices.sm_limit_percent[row]),
                **{name: getattr(devices, name)[row] for name in LARGEST},
            )

    def _processes(self, region: int) -> Iterator[ProcessUsage]:
        processes, devices = self.processes, self.regions.device_rows[region]
        first = self.regions.first_process[region]
        for row in range(first, first + self.regions.process_count[region]):
            usage = processes.first_usage[row]
            yield ProcessUsage(
                pid=processes.pid[row],
                host_pid=processes.host_pid[row] or None,
                status=processes.status[row],
                devices=tuple(map(self._usage, range(usage, usage + devices))),
                settled=bool(processes.settled[row]),
                slot=processes.slot[row],
            )

    def _usage(self, row: int) -> ProcessDeviceUsage:
        figures = {name: getattr(self.usages, name)[row] for name in LARGEST}
        return ProcessDeviceUsage(index=self.usages.device[row], **figures)


def _filled(kind: type[T], cells: Mapping[str, Sequence[int]]) -> T:
    """Make a table's columns, all of one length."""
    arrays = {
        name: array("Q" if name in UNSIGNED_COLUMNS else "q", cells[name]) for name in kind.columns
    }
    lengths = {len(column) for column in arrays.values()}
    if len(lengths) != 1:
        raise ValueError(f"columns of {len(lengths)} lengths")
    made = kind(None, lengths.pop())  # type: ignore[arg-type]
    made.__dict__.update({name: memoryview(each).toreadonly() for name, each in arrays.items()})
    return made

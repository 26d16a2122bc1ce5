"""The five layouts of the shared region, and how a file is matched with one."""

from __future__ import annotations

import enum
import functools
import mmap
from types import MappingProxyType
from typing import TYPE_CHECKING

from ._core import ffi, lib

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Devices that each layout has room for.
DEVICE_CAPACITY: int = lib.HR_DEVICES

#: Process slots that each layout has room for.
SLOT_CAPACITY: int = lib.HR_SLOTS


class Layout(enum.Enum):
    """One generation of the region's format; the value is its published name.

    HAMi releases: before 2.4 (``UNVERSIONED_NO_UTIL``), 2.4.0 (``UNVERSIONED``),
    2.4.1 to 2.8.0 (``V1_1``), 2.8.1 (``V1_1_POSTINIT``), 2.8.2 and later (``V1_2``).
    """

    UNVERSIONED_NO_UTIL = "unversioned-no-util"
    UNVERSIONED = "unversioned"
    V1_1 = "1.1"
    V1_1_POSTINIT = "1.1-postinit"
    V1_2 = "1.2"

    @functools.cached_property
    def number(self) -> int:
        """The core's number of this layout, as in the column ``layout``."""
        return LAYOUTS.index(self)

    @functools.cached_property
    def size_bytes(self) -> int:
        """Bytes of the region's struct; a file of this layout is at least this long."""
        return int(lib.hr_layouts[self.number].size)

    @functools.cached_property
    def version(self) -> tuple[int, int] | None:
        """The version in the file; None if the layout has no such fields."""
        row = lib.hr_layouts[self.number]
        return (row.major_version, row.minor_version) if row.major_version else None

    @property
    def has_utilization(self) -> bool:
        """Whether slots have sm, enc and dec figures."""
        return self is not Layout.UNVERSIONED_NO_UTIL

    @functools.cached_property
    def has_lock(self) -> bool:
        """Whether this library locks regions of the layout, and edits and repairs their slots."""
        return self.version is not None

    @property
    def has_limit_per_device(self) -> bool:
        """Whether libvgpu holds each device to its own SM limit.

        Up to 2.8.1 it looks whether device 0 has one, for all devices.
        """
        return self is Layout.V1_2

    @functools.cached_property
    def has_seqlock(self) -> bool:
        """Whether each slot has a seqlock (HAMi 2.8.1 and later)."""
        return self.offsets["slot_seqlock"] is not None

    @functools.cached_property
    def offsets(self) -> Mapping[str, int | None]:
        """The offset table that the C core works with, in bytes; None where a field is absent.

        Names with ``slot_`` count from the start of a slot, the others from the start of the
        file; those that end in ``_stride`` are distances.
        """
        row = lib.hr_layouts[self.number]
        return MappingProxyType(
            {
                name: None if (value := getattr(row, name)) == lib.HR_ABSENT else value
                for name, _ in ffi.typeof("struct hr_layout").fields
                if name not in {"name", "id", "major_version", "minor_version", "size"}
            }
        )


#: All layouts in the order of the core's table.
LAYOUTS: tuple[Layout, ...] = tuple(Layout)


def mapped_length(size_bytes: int) -> int:
    """Return a length in whole pages, as ``/proc/<pid>/maps`` shows it."""
    return -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE

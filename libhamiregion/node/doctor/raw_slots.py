"""What a snapshot leaves out of a region's slots: seqlocks, and what stands behind the last one."""

from __future__ import annotations

import errno
import os
import struct
from functools import cache
from typing import TYPE_CHECKING

from libhamiregion.errors import RegionStale
from libhamiregion.layouts import SLOT_CAPACITY, Layout

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from typing_extensions import Self

    from libhamiregion.region import Region

_HOLD = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_PAGE = os.sysconf("SC_PAGE_SIZE")
_PID = struct.Struct("<i")
_SEQLOCK = struct.Struct("<Q")
# A file system that does not know its holes gives one piece of 2 MB.
_PIECE_BYTES = 1 << 21


@cache
def _offsets(layout: Layout) -> Mapping[str, int | None]:
    if layout is not Layout.V1_1:
        return layout.offsets
    # Processes of 2.8.2 and later that use such a file keep their seqlock where 1.2 has it.
    return {**layout.offsets, "slot_seqlock": Layout.V1_2.offsets["slot_seqlock"]}


def _open(region: Region) -> int:
    """Open a region's file for reading."""
    if "/map_files/" in region.path:
        # Outside the roots: by this process's own mapping, so that no container's path is walked.
        info = region._mapping()
        end = -(-(info.address + info.mapped_bytes) // _PAGE) * _PAGE
        return os.open(f"/proc/self/map_files/{info.address:x}-{end:x}", _READ)
    known = region.file_id
    held = os.open(region.path, _HOLD)
    try:
        status = os.fstat(held)
        if (status.st_dev, status.st_ino) != known:
            raise RegionStale(f"{region.path!r} has been replaced; open it again", path=region.path)
        # By that hold: what replaces it now is not opened, which of a device can do harm.
        return os.open(f"/proc/self/fd/{held}", _READ)
    finally:
        os.close(held)


class RawSlots:
    """Single fields of a region's slots, read through the file and not through a mapping.

    A truncated file then reads as short and not as a signal. Each read is of one moment; nothing is
    consistent with anything else.

    Threads: one at a time.

    Args:
        region: The region whose file is read; that very file is opened, or nothing.

    Raises:
        RegionStale: The path leads to another file now.
        RegionClosed: After `Region.close`.
        OSError: The file cannot be opened.
    """

    def __init__(self, region: Region) -> None:
        self._path = region.path
        self._offsets = _offsets(region.layout)
        self._descriptor = _open(region)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def _at(self, slot: int, field: str) -> int:
        procs, stride, offset = (
            self._offsets["procs"],
            self._offsets["slot_stride"],
            self._offsets[field],
        )
        assert procs is not None  # noqa: S101 (every layout has slots)
        assert stride is not None  # noqa: S101
        if offset is None:
            raise ValueError(f"the layout of {self._path!r} has no {field}")
        return procs + slot * stride + offset

    def _read(self, field: struct.Struct, at: int) -> int:
        raw = os.pread(self._descriptor, field.size, at)
        if len(raw) != field.size:
            raise RegionStale(f"{self._path!r} was truncated; open it again", path=self._path)
        value: int = field.unpack(raw)[0]
        return value

    def pid(self, slot: int) -> int:
        """The pid in a slot, whether it counts or not.

        Raises:
            RegionStale: The file is too short now.
        """
        return self._read(_PID, self._at(slot, "slot_pid"))

    def seqlock(self, slot: int) -> int:
        """A slot's seqlock; odd while a writer is inside, 0 where an older process works.

        Raises:
            ValueError: The layout has none.
            RegionStale: The file is too short now.
        """
        return self._read(_SEQLOCK, self._at(slot, "slot_seqlock"))

    def pids_from(self, first: int) -> dict[int, int]:
        """The pids of the slots from `first` on that are not 0, by slot.

        Parts of the file that were never written are skipped, not read: most of a region is hole.
        """
        found: dict[int, int] = {}
        end = self._at(SLOT_CAPACITY, "slot_pid")
        stride = self._at(1, "slot_pid") - self._at(0, "slot_pid")
        base = self._at(0, "slot_pid")
        at = self._at(first, "slot_pid")
        while at < end:
            try:
                data = os.lseek(self._descriptor, at, os.SEEK_DATA)
                hole = os.lseek(self._descriptor, data, os.SEEK_HOLE)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                break
            # A pid can begin before the piece in which it ends.
            first_slot = max(first, -(-(data - _PID.size - base) // stride))
            start = base + first_slot * stride
            if start >= end:
                break
            piece = os.pread(self._descriptor, min(hole, end, start + _PIECE_BYTES) - start, start)
            for offset in range(0, len(piece) - _PID.size + 1, stride):
                (pid,) = _PID.unpack_from(piece, offset)
                if pid:
                    found[first_slot + offset // stride] = pid
            at = max(start + stride, start + len(piece))
        return found

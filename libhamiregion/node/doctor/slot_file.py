"""What a snapshot leaves out: seqlocks, and the slots behind the last one that counts.

The file is read, not the mapping: a truncated one then reads as short and not as a signal.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
from typing import TYPE_CHECKING

from libhamiregion.errors import RegionStale
from libhamiregion.layouts import SLOT_CAPACITY, Layout

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from libhamiregion.region import Region

_HOLD = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_PAGE = os.sysconf("SC_PAGE_SIZE")
_PID = struct.Struct("<i")
# A file system that does not know its holes gives one piece of 2 MB.
_PIECE_BYTES = 1 << 21


def slots_behind(region: Region, count: int) -> dict[int, int]:
    """By pid, the slots from `count` on that a process may remember as its own.

    Processes of 2.8.1 and later remember their slot. They have a seqlock in it, also in a region of
    layout 1.1, where they keep it at the place that layout 1.2 has for it; what stands behind the
    last slot of older processes is stale.

    Raises:
        RegionStale: The path leads to another file now.
        RegionClosed: After `Region.close`.
        OSError: The file cannot be opened.
    """
    layout = region.layout
    if not (layout.has_seqlock or layout is Layout.V1_1):
        return {}
    descriptor = _open(region)
    try:
        found = dict(_pids(descriptor, layout, count))
        if layout is Layout.V1_1:
            return {p: slot for p, slot in found.items() if _seqlock(descriptor, layout, slot)}
        return found
    finally:
        os.close(descriptor)


# Set in the slots of this library's processes; nobody counts so far.
_MARK_FLAG = 1 << 62


def odd_seqlocks(region: Region, count: int, pids: Container[int]) -> dict[int, int]:
    """By pid, the seqlocks among the first `count` slots that are odd: a writer is inside.

    Raises:
        RegionStale: The path leads to another file now.
        RegionClosed: After `Region.close`.
        OSError: The file cannot be opened.
    """
    layout = region.layout
    descriptor = _open(region)
    try:
        slots = {p: s for p, s in _pids(descriptor, layout, 0) if s < count and p in pids}
        seqlocks = {pid: _seqlock(descriptor, layout, slot) for pid, slot in slots.items()}
    finally:
        os.close(descriptor)
    return {pid: seqlock for pid, seqlock in seqlocks.items() if seqlock % 2}


def _seqlock(descriptor: int, layout: Layout, slot: int) -> int:
    at = Layout.V1_2.offsets if layout is Layout.V1_1 else layout.offsets
    offset, stride = at["slot_seqlock"] or 0, layout.offsets["slot_stride"] or 0
    start = (layout.offsets["procs"] or 0) + slot * stride + offset
    return int.from_bytes(os.pread(descriptor, 8, start), sys.byteorder) & ~_MARK_FLAG


def _open(region: Region) -> int:
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


def _pids(descriptor: int, layout: Layout, first: int) -> Iterator[tuple[int, int]]:
    """Pid and slot, where the pid is not 0.

    Parts of the file that were never written are skipped, not read: most of a region is hole.
    """
    stride = layout.offsets["slot_stride"] or 0
    base = (layout.offsets["procs"] or 0) + (layout.offsets["slot_pid"] or 0)
    at, end = base + first * stride, base + SLOT_CAPACITY * stride
    while at < end:
        try:
            data = os.lseek(descriptor, at, os.SEEK_DATA)
            hole = os.lseek(descriptor, data, os.SEEK_HOLE)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return
        # A pid can begin before the piece in which it ends.
        slot = max(first, -(-(data - _PID.size - base) // stride))
        start = base + slot * stride
        if start >= end:
            return
        piece = os.pread(descriptor, min(hole, end, start + _PIECE_BYTES) - start, start)
        for offset in range(0, len(piece) - _PID.size + 1, stride):
            (pid,) = _PID.unpack_from(piece, offset)
            if pid:
                yield pid, slot + offset // stride
        at = max(start + stride, start + len(piece))

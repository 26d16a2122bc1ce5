"""The bytes of slots that a snapshot does not have, read from the file."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from typing import TYPE_CHECKING

from .errors import RegionStale
from .layouts import SLOT_CAPACITY, Layout, mapped_length

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .region import Region

_HOLD = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
# Set in the seqlocks of this library's processes, also of those that never count.
_MARK_FLAG = 1 << 62


def slots_beyond(region: Region, count: int) -> dict[int, int]:
    """Return, by pid, the slots from `count` on that a process may remember as its own.

    Processes of 2.8.1 and later remember their slot. They have a seqlock in it, also in layout 1.1,
    where they keep it at layout 1.2's place; slots that older processes left there are stale.

    The file is read, not the mapping: a truncated file then reads as short, without a signal. Holes
    are skipped: most of a region is hole.

    Raises:
        RegionStale: The path leads to another file now.
        RegionClosed: After `Region.close`.
        OSError: The file cannot be opened.
    """
    layout = region.layout
    if not (layout.has_seqlock or layout is Layout.V1_1):
        return {}
    offsets = layout.offsets
    stride, base = offsets["slot_stride"] or 0, offsets["procs"] or 0
    pid_at = offsets["slot_pid"] or 0
    seqlock_at = Layout.V1_2.offsets["slot_seqlock"] or 0
    slot, found = count, {}
    with _opened(region) as descriptor:
        while slot < SLOT_CAPACITY:
            try:
                data = os.lseek(descriptor, base + slot * stride, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                break
            slot = max(slot, (data - base) // stride)
            read = os.pread(descriptor, stride, base + slot * stride)
            pid = int.from_bytes(read[pid_at : pid_at + 4], sys.byteorder, signed=True)
            seqlock = int.from_bytes(read[seqlock_at : seqlock_at + 8], sys.byteorder) & ~_MARK_FLAG
            if pid and slot < SLOT_CAPACITY and (layout.has_seqlock or seqlock):
                found[pid] = slot
            slot += 1
    return found


@contextlib.contextmanager
def _opened(region: Region) -> Iterator[int]:
    if "/map_files/" in region.path:
        # Outside the roots: by this process's own mapping, so that no container's path is walked.
        info = region._mapping()
        end = mapped_length(info.address + info.mapped_bytes)
        descriptor = os.open(f"/proc/self/map_files/{info.address:x}-{end:x}", _READ)
    else:
        held = os.open(region.path, _HOLD)
        try:
            status = os.fstat(held)
            if (status.st_dev, status.st_ino) != region.file_id:
                raise RegionStale(f"{region.path!r} has been replaced", path=region.path)
            # What replaces the file now is not opened: of a device that can do harm.
            descriptor = os.open(f"/proc/self/fd/{held}", _READ)
        finally:
            os.close(held)
    try:
        yield descriptor
    finally:
        os.close(descriptor)

"""Many regions, read in one native call."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, Final

from ._core import ffi, lib
from .errors import RegionClosed, RegionError
from .region import Region, absolute_path, open_region
from .tables import ReadResult, RegionTable, new_memory

if TYPE_CHECKING:
    from collections.abc import Iterable

    from typing_extensions import Self

    from .errors import PathLike

#: Bytes of the snapshots of one read, unless regions with few processes take more: 4,096 containers
#: with 2 devices and 4 processes each take 6 MiB.
MAX_READ_BYTES: Final = 8 << 20
_UNCAPPED: Final = 0xFFFF_FFFF
_CAPPED_USAGES: Final = 1024


def read_whole(region: Region) -> RegionTable:
    """Read one region, whatever its size: all slots and devices take 2 MiB.

    Raises:
        RegionClosed: After `Region.close`.
    """
    region._mapping()
    single = RegionSet()
    single._adopt(region)
    return single.read()


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
        """Take over an open region as the last one; others may have the same path."""
        self._check_open()
        self._regions.pop(region, None)
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
            memory = new_memory("char[]", room)
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
        return RegionTable(ReadResult(paths, newer, memory, size, failed))

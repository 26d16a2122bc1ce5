"""Directories and regions, watched together: which of them are not as they were."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any

from libhamiregion.errors import RegionError

if TYPE_CHECKING:
    from collections.abc import Hashable

    from libhamiregion.region import Region

#: Device, inode and time of the last change (ctime, ns) of a directory.
Stamp = tuple[int, int, int]


def is_readable(region: Region) -> bool:
    """Whether a snapshot of an open region succeeds."""
    try:
        region.snapshot()
    except (RegionError, OSError):
        return False
    return True


def is_readable_and_current(region: Region) -> bool:
    """`is_readable`, and its name still leads to it."""
    try:
        return not region.is_stale() and is_readable(region)
    except RegionError:
        return False


def _stamp_of(directory: str) -> Stamp | None:
    """How a directory is now; None if there is none."""
    try:
        # Its last change is a time that nobody can set, unlike the last modification.
        status = os.lstat(directory)
    except OSError:
        return None
    if not stat.S_ISDIR(status.st_mode):
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns


class ChangeDetector:
    """Looks at any number of directories and open regions: two `stat` calls and a snapshot each.

    Threads: its user lets only one in at a time.
    """

    def __init__(self) -> None:
        self._entries: dict[Hashable, tuple[str, Stamp | None, Region | None]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def put(
        self, key: Hashable, directory: str, stamp: Stamp | None, region: Region | None
    ) -> None:
        """Watch a directory and a region in it, from now on under that key.

        Args:
            key: Whatever `changed` shall say.
            directory: Its path; never followed if it is a link.
            stamp: As it was; None if it is to count as changed each time.
            region: Kept alive, not kept open.
        """
        self._entries[key] = directory, stamp, region

    def drop(self, key: Hashable) -> None:
        """Watch it no more; nothing happens if it is not there."""
        self._entries.pop(key, None)

    def clear(self) -> None:
        """Watch nothing."""
        self._entries.clear()

    def changed(self) -> list[Any]:
        """The keys of those that are not as they were.

        A directory is another one or has changed; a region's name leads to it no more, it has been
        closed, or a snapshot of it would fail.
        """
        return [
            key
            for key, (directory, stamp, region) in self._entries.items()
            if stamp is None
            or _stamp_of(directory) != stamp
            or (region is not None and not is_readable_and_current(region))
        ]

"""Directories and regions, watched together: which of them are not as they were."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from libhamiregion._core import ffi, lib
from libhamiregion.errors import RegionClosed

if TYPE_CHECKING:
    from collections.abc import Hashable

    from libhamiregion.region import Region

#: Device, inode and time of the last change (ctime, ns) of a directory.
Stamp = tuple[int, int, int]

_FIRST_CAPACITY = 64
# Inode 0 is no file's.
_NEVER_THE_SAME: Stamp = (0, 0, -1)


def is_readable(region: Region) -> bool:
    """Whether a snapshot of an open region is to be expected to succeed."""
    entry = ffi.new("struct hr_watch_entry *")
    entry.region = region._handle
    changed: int = lib.hr_find_changed(entry, 1, ffi.new("unsigned char *"))
    return not changed


def is_readable_and_current(region: Region) -> bool:
    """`is_readable`, and its name still leads to it."""
    try:
        return not region.is_stale() and is_readable(region)
    except RegionClosed:
        return False


class ChangeDetector:
    """Looks at any number of directories and open regions in one call into the core.

    Two `stat` calls each, and no more. Threads: its user lets only one in at a time.
    """

    def __init__(self) -> None:
        self._keys: list[Hashable] = []
        self._rows: dict[Hashable, int] = {}
        # What the core's array points to has to live as long.
        self._alive: list[tuple[Any, Region | None]] = []
        self._entries: Any = ffi.new("struct hr_watch_entry[]", _FIRST_CAPACITY)
        self._changed: Any = ffi.new("unsigned char[]", _FIRST_CAPACITY)

    def __len__(self) -> int:
        return len(self._keys)

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
        row = self._rows.get(key)
        if row is None:
            row = len(self._keys)
            self._make_room(row + 1)
            self._keys.append(key)
            self._rows[key] = row
            self._alive.append((None, None))
        path, _ = self._alive[row]
        if path is None:
            path = ffi.new("char[]", os.fsencode(directory))
        self._alive[row] = (path, region)
        entry = self._entries[row]
        entry.directory = path
        entry.device_id, entry.inode, entry.changed_ns = stamp or _NEVER_THE_SAME
        entry.region = ffi.NULL if region is None else region._handle

    def _make_room(self, rows: int) -> None:
        if rows <= len(self._entries):
            return
        longer = ffi.new("struct hr_watch_entry[]", 2 * rows)
        ffi.memmove(longer, self._entries, ffi.sizeof(self._entries))
        self._entries = longer
        self._changed = ffi.new("unsigned char[]", 2 * rows)

    def drop(self, key: Hashable) -> None:
        """Watch it no more; nothing happens if it is not there."""
        row = self._rows.pop(key, None)
        if row is None:
            return
        last_key, last = self._keys.pop(), self._alive.pop()
        if last_key != key:
            self._keys[row], self._alive[row] = last_key, last
            self._rows[last_key] = row
            self._entries[row] = self._entries[len(self._keys)]

    def clear(self) -> None:
        """Watch nothing."""
        self._keys.clear()
        self._rows.clear()
        self._alive.clear()

    def changed(self) -> list[Any]:
        """The keys of those that are not as they were.

        A directory is another one or has changed; a region's name leads to it no more, it has been
        closed, or a snapshot of it would fail.
        """
        count = len(self._keys)
        if not lib.hr_find_changed(self._entries, count, self._changed):
            return []
        flags = bytes(ffi.buffer(self._changed, count))
        return [key for key, flag in zip(self._keys, flags, strict=True) if flag]

"""Which file a region is, as /proc/<pid>/maps names it."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from . import procfs
from .procfs import AccessDenied, Gone, TooMuch

if TYPE_CHECKING:
    from libhamiregion.region import Region

#: A file as maps prints it: device and inode. `os.stat` can give another device number.
FileIdentity = tuple[int, int]


class FileIdentities:
    """Tells regions that this process has mapped by the names that maps has for them.

    `os.stat` gives another device number on some file systems (btrfs, overlay).

    Threads: may be shared.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Address -> how maps calls what is mapped there, and what stat called it.
        self._own_mappings: dict[int, FileIdentity] = {}
        self._checked: dict[int, FileIdentity] = {}

    def leave_in_child(self) -> None:
        """Forget a lock of the parent's threads, which do not exist in a forked child."""
        self._lock = threading.Lock()

    def of(self, region: Region) -> FileIdentity:
        """A region's device and inode as maps prints them.

        Raises:
            RegionClosed: After `Region.close`.
        """
        info = region._mapping()
        # Another file may be mapped now where one was when maps was read.
        as_stat = (info.device_id, info.inode)
        with self._lock:
            known = self._own_mappings.get(info.address)
            if known != as_stat and self._checked.get(info.address) != as_stat:
                # A process that has dropped its privileges may not read its own maps; then stat's
                # numbers have to do.
                with contextlib.suppress(AccessDenied, Gone, TooMuch):
                    self._own_mappings = procfs.read_own_mappings()
                known = self._own_mappings.get(info.address)
                self._checked = {
                    address: seen
                    for address, seen in self._checked.items()
                    if address in self._own_mappings
                }
                self._checked[info.address] = as_stat
        return as_stat if known is None else known

"""Files that processes map and that look like regions: what they are called, how to get there."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import attrs

from libhamiregion.layouts import LAYOUTS

from . import procfs
from .procfs import Gone, Mapping, Refused

if TYPE_CHECKING:
    from .host_process import HostProcess

_REGION_SUFFIX = ".cache"
_PAGE = os.sysconf("SC_PAGE_SIZE")
_MAPPED_LENGTHS = frozenset(-(-layout.size_bytes // _PAGE) * _PAGE for layout in LAYOUTS)
_NO_WAY = (errno.ENOENT, errno.ESRCH, errno.ENOTDIR, errno.ELOOP)
_WALK = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@attrs.frozen
class MappedRegion:
    """A file that processes map and that looks like a region, wherever it is.

    Attributes:
        device: The file system's device number as maps prints it.
        inode: The file's inode number as maps prints it.
        path_in_namespace: The file as the first of `pids` sees it, raw and hostile.
        deleted: Whether that name is gone.
        pids: The processes that map it for writing, pids of the /proc that was read. Those that map
            the fewest regions come first: a user maps one, a monitor all of them.
        exclusive: Whether the first of `pids` maps no other region.
    """

    device: int
    inode: int
    path_in_namespace: str
    deleted: bool
    pids: tuple[int, ...]
    exclusive: bool


@attrs.frozen
class MappedFile:
    """The same, before anybody has asked what it is called.

    Attributes:
        identity: Device and inode as maps prints them.
        pids: As in `MappedRegion`.
        exclusive: As in `MappedRegion`.
        process: The first of `pids`.
        mapping: How that one maps it.
    """

    identity: tuple[int, int]
    pids: tuple[int, ...]
    exclusive: bool
    process: HostProcess
    mapping: Mapping

    @property
    def payer(self) -> str:
        """The container, or else the process, whose share of a limit it takes."""
        container = self.process.container
        return f"process {self.process.pid}" if container is None else container.id


def looks_like_a_region(mapping: Mapping) -> bool:
    """Whether a process maps it as a region is mapped."""
    return mapping.writable and (
        mapping.path.endswith(_REGION_SUFFIX) or mapping.length_bytes in _MAPPED_LENGTHS
    )


def path_now(proc: str, process: HostProcess, mapping: Mapping) -> tuple[str, bool]:
    """What a mapped file is called now, and whether that name is gone.

    A rename or deletion shows in no figure of a process.
    """
    shown = None
    try:
        directory = os.open(proc, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return mapping.path, mapping.deleted
    try:
        descriptor = procfs.open_process(directory, str(process.pid))
        try:
            stat = procfs.parse_stat(procfs.stat_line(descriptor))
            if stat.start_time_ticks == process.start_time_ticks:
                name = f"map_files/{mapping.start:x}-{mapping.end:x}"
                shown = procfs.read_link(descriptor, name)
        finally:
            os.close(descriptor)
    except (Gone, Refused, OSError):
        pass
    finally:
        os.close(directory)
    if shown is None:
        return mapping.path, mapping.deleted
    return procfs.split_deleted(shown)


def is_plain(root: str, path: str) -> bool:
    """Whether every directory on the way is one, not a link that leads elsewhere.

    Raises:
        OSError: Not for want of such a way, but of a right or a descriptor.
    """
    *directories, name = path.split("/")[1:]
    if name in {"", ".", ".."} or ".." in directories:
        return False
    at = None
    try:
        # The link itself is the kernel's, and leads into the container.
        at = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        for directory in directories:
            outer, at = at, os.open(directory, _WALK, dir_fd=at)
            os.close(outer)
    except OSError as error:
        if error.errno in _NO_WAY:
            return False
        raise
    finally:
        if at is not None:
            os.close(at)
    return True

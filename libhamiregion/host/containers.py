"""Containers, and what their directories hold: a region, or a reason why there is none."""

from __future__ import annotations

import enum
import os
import stat
import time
from itertools import islice
from typing import TYPE_CHECKING

import attrs

from libhamiregion.errors import (
    AmbiguousLayout,
    NotARegion,
    RegionCorrupt,
    RegionError,
    RegionNotFound,
    RegionNotReady,
    RegionStale,
)

if TYPE_CHECKING:
    from libhamiregion.region import Region

    from .cgroups import ContainerId

_REGION_SUFFIX = ".cache"
# A container can make as many files as it likes; real directories hold three or four.
_ENTRIES_LIMIT = 1_000
_CANDIDATES_LIMIT = 8
# A directory's time can stand still while it changes: the kernel's clock ticks every 1 to 10 ms.
_TIME_GRAIN_NS = 100_000_000


class MissingReason(enum.Enum):
    """Why a container has no region that can be read."""

    #: The directory holds no ``.cache`` file: nothing in the container has used CUDA yet, or it
    #: has a whole GPU or a MIG device, for which HAMi makes none.
    NO_FILE = "no_file"
    #: The file is being created: empty, short, or without its magic.
    NOT_READY = "not_ready"
    #: A link, FIFO, socket, directory or foreign file stands in its place.
    NOT_A_REGION = "not_a_region"
    #: A region of no layout that this version knows, or of several; or a damaged one.
    UNKNOWN_LAYOUT = "unknown_layout"
    #: The system refuses to open the file or its directory.
    NO_PERMISSION = "no_permission"
    #: The file was truncated, removed or replaced since it was opened.
    STALE = "stale"
    #: Any other failure of the system, such as no descriptors left.
    FAILED = "failed"


@attrs.frozen
class MissingRegion:
    """Why a container has no region.

    Attributes:
        reason: The kind of reason.
        message: The same as a sentence; it can hold the file's name, escaped.
    """

    reason: MissingReason
    message: str


@attrs.frozen(eq=False)
class Container:
    """A container of the node. Compares by identity: one that has changed is another object.

    Attributes:
        pod_uid: UID of its pod; None where neither its directory nor its cgroup tells.
        name: The container's name, from its directory: raw text; None outside the roots.
        directory: Its directory on the host; None for a region outside the roots.
        region_path: The region's file; None if there is none.
        region: The region, read-only, kept open by the `Node`, which also closes it; None if
            there is none that can be read.
        missing: Why there is none; None if there is.
        other_files: Further ``.cache`` files of the directory, newest first, raw names.
        container_id: What the cgroup of its processes says; known for regions outside the roots
            only.
        pids: For a region outside the roots, the processes that mapped it when it was found, pids
            of the /proc that was read; else empty.
    """

    pod_uid: str | None
    name: str | None
    directory: str | None
    region_path: str | None = None
    region: Region | None = None
    missing: MissingRegion | None = None
    other_files: tuple[str, ...] = ()
    container_id: ContainerId | None = None
    pids: tuple[int, ...] = ()


@attrs.frozen
class Listing:
    """What a container's directory held.

    Attributes:
        stamp: Of the directory, for `changed_since`; None if it may change unnoticed.
        files: Names that end as a region's does, newest first.
        error: Why it could not be listed.
    """

    stamp: tuple[int, int] | None
    files: tuple[str, ...]
    error: OSError | None = None


def split_name(directory_name: str) -> tuple[str, str] | None:
    """Pod UID and container name of a directory's name; None if it is no container's.

    >>> split_name("0b5c1e64-27a1-4a1c-8a3c-7ab0d3ad3b0f_train_0")
    ('0b5c1e64-27a1-4a1c-8a3c-7ab0d3ad3b0f', 'train_0')
    """
    pod_uid, separator, name = directory_name.partition("_")
    return (pod_uid, name) if separator and pod_uid and name else None


def settled_stamp(status: os.stat_result, now_ns: int) -> tuple[int, int] | None:
    """A stamp of a directory's state; None if it could change once more without a sign."""
    if now_ns - status.st_mtime_ns <= _TIME_GRAIN_NS:
        return None
    return status.st_ino, status.st_mtime_ns


def list_directory(path: str) -> Listing:
    """List the files of a directory that a container can write; never follows a link."""
    now_ns = time.time_ns()
    try:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        descriptor = os.open(path, flags)
    except OSError as error:
        return Listing(None, (), error)
    try:
        stamp = settled_stamp(os.fstat(descriptor), now_ns)
        found = []
        with os.scandir(descriptor) as entries:
            for entry in islice(entries, _ENTRIES_LIMIT):
                if not entry.name.endswith(_REGION_SUFFIX):
                    continue
                try:
                    status = entry.stat(follow_symlinks=False)
                except OSError:
                    continue
                # What cannot be a region comes last: it must not keep one from being tried.
                regular = stat.S_ISREG(status.st_mode)
                found.append((regular, status.st_mtime_ns, entry.name))
    except OSError as error:
        return Listing(None, (), error)
    finally:
        os.close(descriptor)
    found.sort(reverse=True)
    return Listing(stamp, tuple(name for _, _, name in found[:_CANDIDATES_LIMIT]))


def missing_for(error: RegionError | OSError) -> MissingRegion:
    """The reason that an error stands for."""
    message = str(error)
    if isinstance(error, PermissionError):
        return MissingRegion(MissingReason.NO_PERMISSION, message)
    if isinstance(error, RegionNotReady):
        return MissingRegion(MissingReason.NOT_READY, message)
    if isinstance(error, NotARegion):
        return MissingRegion(MissingReason.NOT_A_REGION, message)
    if isinstance(error, (AmbiguousLayout, RegionCorrupt)):
        return MissingRegion(MissingReason.UNKNOWN_LAYOUT, message)
    if isinstance(error, (RegionStale, RegionNotFound)):
        return MissingRegion(MissingReason.STALE, message)
    return MissingRegion(MissingReason.FAILED, message)


NO_FILE = MissingRegion(
    MissingReason.NO_FILE,
    "no .cache file: nothing in the container has used CUDA yet, or it has a whole GPU or a MIG"
    " device",
)

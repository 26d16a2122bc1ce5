"""A container's directory, and which of its files is the region."""

from __future__ import annotations

import errno
import os
import stat
import time
from itertools import islice
from typing import TYPE_CHECKING

import attrs

from libhamiregion.errors import RegionError
from libhamiregion.region import open_in_container

from .change_detector import is_readable_and_current
from .containers import (
    NO_FILE,
    Container,
    MissingReason,
    MissingRegion,
    missing_for,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from libhamiregion.region import Region

    from .change_detector import Stamp
    from .names import NodeNames

_REGION_SUFFIX = ".cache"
#: How many entries are looked at of a directory that containers can write. They can make as many
#: files as they like; real directories hold three or four.
ENTRIES_LIMIT = 4_096
_FILES_LIMIT = 64
_CANDIDATES_LIMIT = 8
# A directory's time can stand still while it changes: the kernel's clock ticks every 1 to 10 ms.
_TIME_GRAIN_NS = 100_000_000
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_NO_DIRECTORY = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


@attrs.frozen
class File:
    """A file whose name ends as a region's does.

    Attributes:
        name: Raw.
        id: Device and inode.
        regular: Whether it is a regular file, which alone can become a region.
    """

    name: str
    id: tuple[int, int]
    regular: bool


@attrs.frozen
class Listing:
    """What a container's directory held.

    Attributes:
        stamp: Of the directory; None if it could change once more without a sign.
        files: Those that may be regions, newest first.
        cut: Whether there was more than was looked at.
    """

    stamp: Stamp | None
    files: tuple[File, ...]
    cut: bool


@attrs.frozen
class DirectoryScan:
    """A container's directory between two scans.

    Attributes:
        stamp: Of the directory as it was; None if it has to be looked into each time.
        container: What was found.
        files: Of its files that may be regions.
    """

    stamp: Stamp | None
    container: Container
    files: tuple[File, ...] = ()


def settled_stamp(status: os.stat_result, now_ns: int) -> Stamp | None:
    """A stamp of a directory's state; None if it could change once more without a sign.

    By the time of the last change, which nobody can set: that of the last modification anybody can.
    """
    if now_ns - status.st_ctime_ns <= _TIME_GRAIN_NS:
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns


def list_directory(path: str) -> Listing:
    """List the files of a directory that a container can write; never follows a link.

    Raises:
        OSError: It cannot be listed.
    """
    now_ns = time.time_ns()
    descriptor = os.open(path, _OPEN)
    try:
        stamp = settled_stamp(os.fstat(descriptor), now_ns)
        found: list[tuple[bool, int, File]] = []
        seen = 0
        with os.scandir(descriptor) as entries:
            for entry in islice(entries, ENTRIES_LIMIT):
                seen += 1
                if not entry.name.endswith(_REGION_SUFFIX):
                    continue
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                regular = stat.S_ISREG(status.st_mode)
                file = File(entry.name, (status.st_dev, status.st_ino), regular)
                # What cannot be a region comes last: it must not keep one from being tried.
                found.append((regular, status.st_mtime_ns, file))
                if len(found) == _FILES_LIMIT:
                    break
            cut = next(entries, None) is not None
    finally:
        os.close(descriptor)
    found.sort(key=lambda each: (each[0], each[1], each[2].name), reverse=True)
    files = tuple(file for _, _, file in found[:_CANDIDATES_LIMIT])
    return Listing(stamp, files, cut or len(found) > len(files))


def scan_directory(
    directory: str, whose: Mapping[str, str], before: DirectoryScan | None, names: NodeNames
) -> DirectoryScan | None:
    """Find a container's region, or why there is none.

    The newest file that is a region counts.

    Args:
        directory: Its path.
        whose: What its name says, as `read_name` gives it.
        before: What was found last time; what it has open is kept if it is still good, and is the
            caller's to close if not.
        names: Names the container.

    Returns:
        What there is now; None if it is no directory.
    """
    kept = None if before is None else before.container.region
    if kept is not None and not is_readable_and_current(kept):
        kept = None
    container = Container(**whose, directory=directory, names=names)  # type: ignore[arg-type]
    try:
        listing = list_directory(directory)
    except OSError as error:
        if error.errno in _NO_DIRECTORY:
            return None
        # What passes, such as a lack of descriptors, says nothing against an open region.
        if before is not None and kept is not None:
            return attrs.evolve(before, stamp=None)
        return DirectoryScan(None, attrs.evolve(container, missing=missing_for(error)))
    if not listing.files and kept is None:
        if listing.cut:
            return DirectoryScan(None, attrs.evolve(container, missing=_FLOODED))
        return DirectoryScan(listing.stamp, attrs.evolve(container, missing=NO_FILE))
    return _choose(container, listing, kept)


def _choose(container: Container, listing: Listing, kept: Region | None) -> DirectoryScan:
    region: Region | None = None
    missing: MissingRegion | None = None
    wanted: str | None = None
    # Whether the files are what they will be until the directory changes.
    settled = True
    for file in listing.files:
        path = f"{container.directory}/{file.name}"
        try:
            is_kept = kept is not None and path == kept.path
            region = kept if is_kept else open_in_container(path)
        except (RegionError, OSError) as error:
            settled = settled and not file.regular
            if missing is None:
                missing, wanted = missing_for(error), path
        else:
            wanted = path
            break
    if region is None and kept is not None:
        region, wanted = kept, kept.path  # behind more files than were tried
    names = (file.name for file in listing.files)
    return DirectoryScan(
        listing.stamp if settled and region is not None else None,
        attrs.evolve(
            container,
            region_path=wanted,
            region=region,
            missing=None if region is not None else missing,
            other_files=tuple(name for name in names if f"{container.directory}/{name}" != wanted),
        ),
        listing.files,
    )


def is_unchanged(before: Container, after: Container) -> bool:
    """Whether nothing is different but the order of further files."""
    return (
        before.region is after.region
        and before.region_path == after.region_path
        and before.missing == after.missing
        and set(before.other_files) == set(after.other_files)
    )


_FLOODED = MissingRegion(
    MissingReason.FAILED,
    f"more than {ENTRIES_LIMIT:,} files, and no .cache file among those that were looked at",
)

"""The containers' directories in the roots, and which of their files is the region."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import attrs

from libhamiregion.errors import RegionError
from libhamiregion.observation.containers import (
    NO_FILE,
    Container,
    MissingReason,
    MissingRegion,
    missing_for,
)
from libhamiregion.region import open_in_container

from .procfs import file_identity
from .roots import ENTRIES_LIMIT, settled_stamp

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from libhamiregion.region import Region

    from .roots import Roots, Stamp

#: How the name of a region's file ends.
REGION_SUFFIX = ".cache"
_FILES_LIMIT = 64
_CANDIDATES_LIMIT = 8
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_NO_DIRECTORY = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
_FLOODED = MissingRegion(
    MissingReason.FAILED,
    f"more than {ENTRIES_LIMIT:,} files, and no .cache file among those that were listed",
)


class File(NamedTuple):
    """A file whose name ends as a region's does; only a regular one can become a region."""

    name: str
    inode: int
    is_regular: bool


@attrs.frozen
class DirectoryScan:
    """A container's directory between two scans.

    Attributes:
        stamp: Of the directory; None if it has to be scanned each time.
        container: The container.
        files: Its files that may be regions, newest first.
    """

    stamp: Stamp | None
    container: Container
    files: tuple[File, ...] = ()

    def has_changed(self, failed: Collection[Region]) -> bool:
        """Whether the directory or the region is not as it was.

        Args:
            failed: Regions that could not be read.
        """
        return (
            self.stamp is None
            or _stamp_of(str(self.container.directory)) != self.stamp
            or self.container.region in failed
        )


class RootContainers:
    """The containers whose directories lie in the roots.

    Only directories and regions that have changed are scanned again.

    Threads: one at a time.

    Args:
        roots: The roots.
    """

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self._scans: dict[str, DirectoryScan] = {}
        self._directories: Mapping[str, Mapping[str, str]] = {}
        # None if something has changed since.
        self._containers: tuple[Container, ...] | None = ()

    @property
    def containers(self) -> tuple[Container, ...]:
        """All of them, by root and directory; the same object while nothing changes."""
        if self._containers is None:
            scans = self._scans
            self._containers = tuple(
                [scans[each].container for each in self._directories if each in scans]
            )
        return self._containers

    def files(self) -> set[tuple[int, str]]:
        """Inode and name of every file that may be a region."""
        return {(file.inode, file.name) for scan in self._scans.values() for file in scan.files}

    def scan(self, failed: Collection[Region] = ()) -> None:
        """Bring them up to date with the directories.

        After an exception, everything found until then is kept.

        Args:
            failed: Regions that could not be read.
        """
        directories = self._roots.scan()
        if directories is not self._directories:
            self._containers = None
            self._directories = directories
            for gone in self._scans.keys() - directories.keys():
                del self._scans[gone]
        for directory, fields in directories.items():
            before = self._scans.get(directory)
            if before is not None and not before.has_changed(failed):
                continue
            scan = scan_directory(directory, fields, before)
            if scan and before and is_unchanged(before.container, scan.container):
                self._scans[directory] = attrs.evolve(scan, container=before.container)
                continue
            self._containers = None
            self._scans.pop(directory, None)
            if scan is not None:
                self._scans[directory] = scan

    def replace(self, container: Container, named: Container) -> None:
        """Put a container in the place of another one, if that one is still there."""
        directory = container.directory or ""
        scan = self._scans.get(directory)
        if named is not container and scan is not None and scan.container is container:
            self._containers = None
            self._scans[directory] = attrs.evolve(scan, container=named)

    def clear(self) -> None:
        """Forget all; their regions are the caller's to close."""
        self._containers = None
        self._scans.clear()


def scan_directory(
    directory: str, fields: Mapping[str, str], before: DirectoryScan | None
) -> DirectoryScan | None:
    """Find a container's region, or why there is none. The newest file that is a region counts.

    Args:
        directory: Its path.
        fields: Attributes of the container, as `read_name` reads them from the directory's name.
        before: The last scan; its open region is kept if it is still good, and is the caller's to
            close if not.

    Returns:
        The scan; None if there is no such directory.
    """
    kept = None if before is None else before.container.region
    if kept is not None and not (is_current(kept) and is_readable(kept)):
        kept = None
    container = Container(**fields, directory=directory)  # type: ignore[arg-type]
    try:
        stamp, files, is_cut = list_directory(directory)
    except OSError as error:
        if error.errno in _NO_DIRECTORY:
            return None
        # A passing error, such as a lack of descriptors, says nothing against an open region.
        if before is not None and kept is not None:
            return attrs.evolve(before, stamp=None)
        return DirectoryScan(None, attrs.evolve(container, missing=missing_for(error)))
    if not files and kept is None:
        missing = _FLOODED if is_cut else NO_FILE
        return DirectoryScan(None if is_cut else stamp, attrs.evolve(container, missing=missing))
    region: Region | None = None
    found: str | None = None
    failure: MissingRegion | None = None
    is_settled = True
    for file in files:
        path = f"{directory}/{file.name}"
        try:
            is_kept = kept is not None and path == kept.path
            region, found = kept if is_kept else open_in_container(path), path
            break
        except (RegionError, OSError) as error:
            # A regular file can become a region without a change of the directory.
            is_settled = is_settled and not file.is_regular
            if failure is None:
                failure, found = missing_for(error), path
    if region is None and kept is not None:
        region, found = kept, kept.path  # behind more files than were tried
    others = [file for file in files if f"{directory}/{file.name}" != found]
    return DirectoryScan(
        stamp if is_settled and region is not None else None,
        attrs.evolve(
            container,
            region_path=found,
            region=region,
            identity=None if region is None else file_identity(region),
            missing=None if region is not None else failure,
            other_files=tuple(file.name for file in others),
            other_inodes=tuple(file.inode for file in others),
        ),
        files,
    )


def list_directory(path: str) -> tuple[Stamp | None, tuple[File, ...], bool]:
    """List the files of a directory that a container can write; never follows a link.

    Returns:
        A stamp of the directory, the files that may be regions, newest first, and whether there
        are more files than were listed.

    Raises:
        OSError: It cannot be listed.
    """
    now_ns = time.time_ns()
    descriptor = os.open(path, _OPEN)
    try:
        stamp = settled_stamp(os.fstat(descriptor), now_ns)
        found: list[tuple[bool, int, str, int]] = []
        with os.scandir(descriptor) as entries:
            for entry in islice(entries, ENTRIES_LIMIT):
                if not entry.name.endswith(REGION_SUFFIX):
                    continue
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                is_regular = stat.S_ISREG(status.st_mode)
                # Files that cannot be a region come last: they must not keep one from being tried.
                found.append((is_regular, status.st_mtime_ns, entry.name, status.st_ino))
                if len(found) == _FILES_LIMIT:
                    break
            is_cut = next(entries, None) is not None
    finally:
        os.close(descriptor)
    newest = sorted(found, reverse=True)[:_CANDIDATES_LIMIT]
    files = tuple(File(name, inode, is_regular) for is_regular, _, name, inode in newest)
    return stamp, files, is_cut


def is_unchanged(before: Container, after: Container) -> bool:
    """Whether nothing is different but the order of further files."""
    return (
        before.region is after.region
        and before.region_path == after.region_path
        and before.missing == after.missing
        and set(before.other_inodes) == set(after.other_inodes)
        and set(before.other_files) == set(after.other_files)
    )


def is_readable(region: Region) -> bool:
    """Whether a snapshot of an open region succeeds."""
    with contextlib.suppress(RegionError, OSError):
        region.snapshot()
        return True
    return False


def is_current(region: Region) -> bool:
    """Whether the name of an open region still leads to it."""
    with contextlib.suppress(RegionError):
        return not region.is_stale()
    return False


def _stamp_of(directory: str) -> Stamp | None:
    """The directory's stamp now; None if there is none."""
    with contextlib.suppress(OSError):
        status = os.lstat(directory)
        if stat.S_ISDIR(status.st_mode):
            return status.st_dev, status.st_ino, status.st_ctime_ns
    return None

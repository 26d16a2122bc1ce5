"""The roots, the containers' directories in them, and which of their files is the region."""

from __future__ import annotations

import errno
import glob
import os
import stat
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from libhamiregion.errors import RegionError
from libhamiregion.launch.run_directory import run_bases
from libhamiregion.region import open_in_container

from .change_detector import is_well
from .containers import (
    NO_FILE,
    Container,
    MissingReason,
    MissingRegion,
    missing_for,
)
from .places import DEFAULT_ROOTS, read_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from libhamiregion.region import Region

    from .change_detector import Stamp
    from .names import NameResolver

_REGION_SUFFIX = ".cache"
# A container can make as many files as it likes; real directories hold three or four.
_ENTRIES_LIMIT = 4_096
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
        older: Of those, regions that were there when a newer one was taken.
    """

    stamp: Stamp | None
    container: Container
    files: tuple[File, ...] = ()
    older: frozenset[File] = frozenset()


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
            for entry in islice(entries, _ENTRIES_LIMIT):
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
    directory: str, whose: Mapping[str, str], before: DirectoryScan | None, names: NameResolver
) -> DirectoryScan | None:
    """Find a container's region, or why there is none.

    The newest file that is a region counts. One that is open stays so until it is stale, or a newer
    region appears that was not there before: two that are both in use must not take turns.

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
    if kept is not None and not is_well(kept):
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
    older = frozenset() if before is None or kept is None else before.older
    return _choose(container, listing, kept, older)


def _choose(
    container: Container, listing: Listing, kept: Region | None, passed: frozenset[File]
) -> DirectoryScan:
    region: Region | None = None
    missing: MissingRegion | None = None
    wanted: str | None = None
    older: set[File] = set()
    # Whether all of them are what they will be until the directory changes.
    settled = True
    for file in listing.files:
        path = f"{container.directory}/{file.name}"
        try:
            if region is not None:
                if file not in passed:
                    open_in_container(path).close()
                older.add(file)
            elif kept is not None and path == kept.path:
                region, wanted = kept, path
            elif file in passed:
                older.add(file)
            else:
                region, wanted = open_in_container(path), path
        except (RegionError, OSError) as error:
            settled = settled and not file.regular
            if region is None and missing is None:
                missing, wanted = missing_for(error), path
    if region is None and kept is not None:
        region, wanted = kept, kept.path  # behind more files than were looked at
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
        frozenset(older),
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
    f"more than {_ENTRIES_LIMIT:,} files, and no .cache file among those that were looked at",
)


# ---- The roots --------------------------------------------------------------------------------

# A node has some hundred containers at most. Where all may write, as with KAI, `_ENTRIES_LIMIT`.
_ROOT_ENTRIES_LIMIT = 20_000


class _Distrusted(PermissionError):
    """A directory that anybody may have made."""


@attrs.frozen
class _RootListing:
    stamp: Stamp | None
    #: What each directory's name says, as `read_name` gives it.
    names: Mapping[str, Mapping[str, str]]
    #: How many entries are looked at, and whether there are more.
    most: int
    cut: bool


class Roots:
    """Lists the roots, and again only those that have changed.

    Args:
        given: The roots that somebody asked for; None for those where HAMi and volcano put theirs.

    Attributes:
        paths: As given, absolute.
        errors: Root to error, for those that the last scan could not list, or not whole.
        scanned: The directories that it could list.
    """

    def __init__(self, given: tuple[str, ...] | None = None) -> None:
        # In this order, as KAI's port of HAMi's monitor has them.
        hook_path = os.environ.get("CONTAINER_VGPU_MOUNT") or os.environ.get("HOOK_PATH")
        optional: tuple[str, ...] = ()
        if given is None and hook_path:
            given = (f"{hook_path}/containers",)
            optional = (f"{hook_path}/claims",)
        self._given = given is not None
        paths = (*DEFAULT_ROOTS, *run_bases(os.environ)) if given is None else (*given, *optional)
        self.paths = tuple(dict.fromkeys(str(Path(each).absolute()) for each in paths))
        self._optional = frozenset(self.paths if given is None else optional)
        self.errors: dict[str, OSError] = {}
        self.scanned: tuple[str, ...] = ()
        self._listings: dict[str, _RootListing] = {}
        self._matched: dict[str, list[str]] = {}
        self._found: dict[str, Mapping[str, str]] = {}

    def directories(self) -> tuple[str, ...]:
        """The roots that exist now: patterns expanded, links resolved, each directory once."""
        return tuple(root for root in self._expanded({}) if os.path.isdir(root))  # noqa: PTH112

    def scan(self) -> dict[str, Mapping[str, str]]:
        """The containers' directories there are, in order: path to what its name says.

        The very same object as last time if they are the same.
        """
        errors: dict[str, OSError] = {}
        listings: dict[str, _RootListing] = {}
        for root, shown in self._expanded(errors).items():
            try:
                listings[root] = self._list(root, shown)
            except OSError as error:
                if shown not in self._optional or not isinstance(error, FileNotFoundError):
                    errors[shown] = error
                lasting = isinstance(error, (FileNotFoundError, NotADirectoryError, _Distrusted))
                # What passes, such as a lack of descriptors, takes no container away.
                if not lasting and root in self._listings:
                    listings[root] = self._listings[root]
                continue
            if listings[root].cut:
                most = listings[root].most
                message = f"more than {most:,} entries; the others are left out"
                errors[shown] = OSError(errno.EOVERFLOW, message, shown)
        self._listings = listings
        self.errors = errors
        self.scanned = tuple(root for root in listings if root not in errors)
        found = {
            f"{root}/{name}": whose
            for root, each in listings.items()
            for name, whose in each.names.items()
        }
        if list(found) != list(self._found):
            self._found = found
        return self._found

    def _expanded(self, errors: dict[str, OSError]) -> dict[str, str]:
        """Resolved root to the way it was found by."""
        found: dict[str, str] = {}
        known: set[tuple[int, int]] = set()
        for pattern in self.paths:
            for each in self._matches(pattern, errors):
                real = os.path.realpath(each)
                try:
                    status = os.stat(real)  # noqa: PTH116
                except OSError:
                    found.setdefault(real, each)
                    continue
                # Two ways to one directory, a bind mount too, are one root.
                if (status.st_dev, status.st_ino) not in known:
                    known.add((status.st_dev, status.st_ino))
                    found.setdefault(real, each)
        return found

    def _matches(self, pattern: str, errors: dict[str, OSError]) -> list[str]:
        if not glob.has_magic(pattern) or os.path.lexists(pattern):
            return [pattern]
        # What has matched and is still there matches; glob keeps silent about what went wrong.
        matches = {*glob.glob(pattern), *self._matched.get(pattern, ())}  # noqa: PTH207
        directories = sorted(each for each in matches if os.path.isdir(each))  # noqa: PTH112
        self._matched[pattern] = directories
        if not directories and pattern not in self._optional:
            errors[pattern] = FileNotFoundError(errno.ENOENT, "no directory matches", pattern)
        return directories

    def _list(self, root: str, shown: str) -> _RootListing:
        now_ns = time.time_ns()
        status = os.stat(root)  # noqa: PTH116
        if not stat.S_ISDIR(status.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), root)
        if not self._given:
            _check_makers(shown)
            _check_makers(root)
        stamp = settled_stamp(status, now_ns)
        known = self._listings.get(root)
        if known is not None and stamp is not None and known.stamp == stamp:
            return known
        most = _ENTRIES_LIMIT if status.st_mode & stat.S_IWOTH else _ROOT_ENTRIES_LIMIT
        with os.scandir(root) as entries:
            found = list(islice(entries, most + 1))
        names = {}
        for entry in sorted(found[:most], key=lambda each: each.name):
            whose = read_name(root, entry.name)
            if whose is not None and entry.is_dir(follow_symlinks=False):
                names[entry.name] = whose
        return _RootListing(stamp, names, most, len(found) > most)


def _check_makers(path: str) -> None:
    """Only root and this user have made the directory and what is around it.

    A default root can lie in a directory that all users may write, such as /tmp, and any of them
    could make it. In a sticky one nobody else can replace what is there.
    """
    trusted = {0, os.geteuid()}
    at = Path(path)
    for each in (at, *at.parents):
        status = os.lstat(each)
        if status.st_uid not in trusted:
            message = (
                f"not taken unasked: {str(each)!r} belongs to user {status.st_uid}, who may have"
                " made it up; name this root if it is right"
            )
            raise _Distrusted(errno.EPERM, message, path)
        if status.st_mode & stat.S_ISVTX and each != at:
            return

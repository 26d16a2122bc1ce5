"""The roots: the directories that hold those of the containers."""

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

from libhamiregion.launch.run_directory import run_bases

from .directories import ENTRIES_LIMIT, settled_stamp
from .places import DEFAULT_ROOTS, read_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .change_detector import Stamp

# A node has some hundred containers at most. Where all may write, as with KAI, `ENTRIES_LIMIT`.
_ROOT_ENTRIES_LIMIT = 20_000


class RootsUnreadable(OSError):
    """None of the directories that were given for containers can be listed.

    Attributes:
        errors: Each directory, with the system's error.
    """

    def __init__(self, errors: Mapping[str, OSError]) -> None:
        self.errors = dict(errors)
        reasons = ", ".join(
            f"{path!r} ({error.strerror or error})" for path, error in errors.items()
        )
        super().__init__(f"none of the directories given can be listed: {reasons}")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.errors,)


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
        given: Whether somebody asked for them.
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
        self.given = given is not None
        paths = (*DEFAULT_ROOTS, *run_bases(os.environ)) if given is None else (*given, *optional)
        self.paths = tuple(dict.fromkeys(str(Path(each).absolute()) for each in paths))
        self._optional = frozenset(self.paths if given is None else optional)
        self.errors: dict[str, OSError] = {}
        self.scanned: tuple[str, ...] = ()
        self._listings: dict[str, _RootListing] = {}
        self._matched: dict[str, list[str]] = {}
        self._found: dict[str, Mapping[str, str]] = {}

    def check(self) -> None:
        """Make sure that the last scan could list a directory, if directories were given.

        Raises:
            RootsUnreadable: It could list none of them.
        """
        if self.given and not self._listings:
            raise RootsUnreadable(self.errors)

    @property
    def problem(self) -> str | None:
        """Why the last scan could list no directory; None if it could list one."""
        if self._listings:
            return None
        if self.given:
            return str(RootsUnreadable(self.errors))
        untrusted = "".join(f"; {error.strerror}" for error in self.errors.values())
        return (
            f"no directory of containers was found; looked for {', '.join(self.paths)}{untrusted}"
        )

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
        before, self._listings = self._listings, listings
        self.errors = errors
        self.scanned = tuple(root for root in listings if root not in errors)
        if list(before) == list(listings) and all(
            before[root] is each for root, each in listings.items()
        ):
            return self._found
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
        if not self.given:
            _check_makers(shown)
            _check_makers(root)
        stamp = settled_stamp(status, now_ns)
        known = self._listings.get(root)
        if known is not None and stamp is not None and known.stamp == stamp:
            return known
        most = ENTRIES_LIMIT if status.st_mode & stat.S_IWOTH else _ROOT_ENTRIES_LIMIT
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

"""The directories that hold the containers' directories."""

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

from .containers import split_name
from .directories import settled_stamp

if TYPE_CHECKING:
    from libhamiregion.change_detector import Stamp

# HAMi's, volcano-vgpu's from 1.12 on, and volcano-vgpu's before.
_DEFAULT_ROOTS = (
    "/usr/local/vgpu/containers",
    "/usr/local/vgpu/vgpu/containers",
    "/tmp/vgpu/containers",  # noqa: S108 (where they are)
)
# A node has some hundred containers at most; the directory is the node's own.
_ENTRIES_LIMIT = 20_000


class _Distrusted(PermissionError):
    """A directory that anybody may have made."""


@attrs.frozen
class _Listing:
    stamp: Stamp | None
    names: tuple[str, ...]
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
        hook_path = os.environ.get("HOOK_PATH")
        if given is None and hook_path:
            given = (f"{hook_path}/containers",)
        self._given = given is not None
        paths = _DEFAULT_ROOTS if given is None else given
        self.paths = tuple(dict.fromkeys(str(Path(each).absolute()) for each in paths))
        self.errors: dict[str, OSError] = {}
        self.scanned: tuple[str, ...] = ()
        self._listings: dict[str, _Listing] = {}
        self._matched: dict[str, list[str]] = {}
        self._parts: list[tuple[str, tuple[str, ...]]] = []
        self._found: dict[str, str] = {}

    def directories(self) -> tuple[str, ...]:
        """The roots that exist now: patterns expanded, links resolved, each directory once."""
        return tuple(root for root in self._expanded({}) if os.path.isdir(root))  # noqa: PTH112

    def scan(self) -> dict[str, str]:
        """The containers' directories there are, in order: path to name.

        The very same object as last time if they are the same.
        """
        errors: dict[str, OSError] = {}
        listings: dict[str, _Listing] = {}
        for root, shown in self._expanded(errors).items():
            try:
                listings[root] = self._list(root, shown)
            except OSError as error:
                if self._given or not isinstance(error, FileNotFoundError):
                    errors[shown] = error
                lasting = isinstance(error, (FileNotFoundError, NotADirectoryError, _Distrusted))
                # What passes, such as a lack of descriptors, takes no container away.
                if not lasting and root in self._listings:
                    listings[root] = self._listings[root]
                continue
            if listings[root].cut:
                message = f"more than {_ENTRIES_LIMIT:,} entries; the others are left out"
                errors[shown] = OSError(errno.EOVERFLOW, message, shown)
        self._listings = listings
        self.errors = errors
        self.scanned = tuple(root for root in listings if root not in errors)
        parts = [(root, listing.names) for root, listing in listings.items()]
        if not _are_the_same(parts, self._parts):
            self._parts = parts
            self._found = {f"{root}/{name}": name for root, names in parts for name in names}
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
        if not directories and self._given:
            errors[pattern] = FileNotFoundError(errno.ENOENT, "no directory matches", pattern)
        return directories

    def _list(self, root: str, shown: str) -> _Listing:
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
        with os.scandir(root) as entries:
            found = list(islice(entries, _ENTRIES_LIMIT + 1))
        names = tuple(
            sorted(
                entry.name
                for entry in found[:_ENTRIES_LIMIT]
                if split_name(entry.name) is not None and entry.is_dir(follow_symlinks=False)
            )
        )
        if known is not None and known.names == names:
            names = known.names
        return _Listing(stamp, names, len(found) > _ENTRIES_LIMIT)


def _are_the_same(
    one: list[tuple[str, tuple[str, ...]]], other: list[tuple[str, tuple[str, ...]]]
) -> bool:
    return len(one) == len(other) and all(
        a[0] == b[0] and a[1] is b[1] for a, b in zip(one, other, strict=True)
    )


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

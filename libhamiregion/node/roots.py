"""The roots: the directories that hold those of the containers, and how these are called.

docs/node.md has the versions that the default roots were established from.
"""

from __future__ import annotations

import errno
import glob
import os
import re
import stat
import time
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import attrs

from libhamiregion.run.run_directory import run_bases

if TYPE_CHECKING:
    from collections.abc import Mapping

#: HAMi's and KAI's resource isolator's, volcano-vgpu's from 1.12 on, volcano-vgpu's before, and
#: HAMi's DRA driver's.
DEFAULT_ROOTS = (
    "/usr/local/vgpu/containers",
    "/usr/local/vgpu/vgpu/containers",
    "/tmp/vgpu/containers",  # noqa: S108 (volcano's path)
    "/usr/local/vgpu/claims",
)
# Pattern of a root, and how the directories in it are called; the first that fits counts. The
# groups are attributes of `Container`. By the root, because a container of KAI's can make
# directories next to its own, and must not make one that passes for a claim.
_NAMES = (
    ("*/claims", re.compile(r"(?P<claim_uid>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")),
    ("*", re.compile(r"(?P<pod_uid>[^_]+)_(?P<directory_name>.+)", re.DOTALL)),
)
#: The most entries that are listed of a directory that containers can write. They can make as many
#: files as they like; real directories hold three or four.
ENTRIES_LIMIT = 4_096
# A node has some hundred containers at most. If all may write there, as with KAI, `ENTRIES_LIMIT`.
_ROOT_ENTRIES_LIMIT = 20_000
# A directory's time can be the same while it changes: the kernel's clock ticks every 1 to 10 ms.
_TIME_GRAIN_NS = 100_000_000

#: Device, inode and time of the last change (ctime, ns) of a directory. Nobody can set that time.
Stamp: TypeAlias = "tuple[int, int, int]"


def read_name(root: str, directory_name: str) -> dict[str, str] | None:
    """Whose a directory is, as attributes of `Container`; None if it is no container's.

    >>> read_name("/usr/local/vgpu/containers", "0b5c1e64-27a1-4a1c-8a3c-7ab0d3ad3b0f_train_0")
    {'pod_uid': '0b5c1e64-27a1-4a1c-8a3c-7ab0d3ad3b0f', 'directory_name': 'train_0'}
    >>> read_name("/usr/local/vgpu/claims", "6f1c0d8e-9f2b-4f0a-8a51-0c5f6d1e2a3b")
    {'claim_uid': '6f1c0d8e-9f2b-4f0a-8a51-0c5f6d1e2a3b'}
    """
    names = next(names for pattern, names in _NAMES if fnmatchcase(root, pattern))
    found = names.fullmatch(directory_name)
    return None if found is None else found.groupdict()


def settled_stamp(status: os.stat_result, now_ns: int) -> Stamp | None:
    """A stamp of a directory's state; None if it could change once more without a sign."""
    if now_ns - status.st_ctime_ns <= _TIME_GRAIN_NS:
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns


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
    """A directory that any user may have made."""


@attrs.frozen
class _RootListing:
    """One root.

    Attributes:
        stamp: Of the root; None if it has to be listed again.
        names: Name of a directory to its fields, as `read_name` has them.
        limit: How many entries are listed.
        is_cut: Whether there are more.
    """

    stamp: Stamp | None
    names: Mapping[str, Mapping[str, str]]
    limit: int
    is_cut: bool


class Roots:
    """Lists the roots, and again only those that have changed.

    Args:
        given: The roots that were asked for; None for the default ones.

    Attributes:
        given: Whether roots were asked for.
        paths: As given, absolute.
        errors: Root to error, for those that the last scan could not list, or not whole.
        scanned: The directories that it could list.
    """

    def __init__(self, given: tuple[str, ...] | None = None) -> None:
        # KAI's port of HAMi's monitor has the first; HAMi has the second from 2.11 on.
        names = ("CONTAINER_VGPU_MOUNT", "HAMI_VGPU_CACHE_ROOT", "HOOK_PATH")
        hook_path = next(filter(None, map(os.environ.get, names)), None)
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
        self._resolved: dict[str, str] = {}
        self._listings: dict[str, _RootListing] = {}
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
        paths = ", ".join(self.paths)
        return f"no directory of containers was found; looked for {paths}{untrusted}"

    def directories(self) -> tuple[str, ...]:
        """The roots that exist: patterns expanded, links resolved, each directory once.

        Those of the last scan; before the first one, those of now.
        """
        roots = self._resolved or self._expanded({})
        return tuple(root for root in roots if os.path.isdir(root))  # noqa: PTH112

    def scan(self) -> dict[str, Mapping[str, str]]:
        """The containers' directories, in order: path to the fields in its name.

        The same object as last time if they are the same.
        """
        errors: dict[str, OSError] = {}
        listings: dict[str, _RootListing] = {}
        self._resolved = self._expanded(errors)
        for root, shown in self._resolved.items():
            try:
                listings[root] = self._list(root, shown)
            except OSError as error:
                if shown not in self._optional or not isinstance(error, FileNotFoundError):
                    errors[shown] = error
                lasting = isinstance(error, (FileNotFoundError, NotADirectoryError, _Distrusted))
                # A passing error, such as a lack of descriptors, takes no container away.
                if not lasting and root in self._listings:
                    listings[root] = self._listings[root]
                continue
            if listings[root].is_cut:
                message = f"more than {listings[root].limit:,} entries; the others are left out"
                errors[shown] = OSError(errno.EOVERFLOW, message, shown)
        is_same = list(map(id, self._listings.values())) == list(map(id, listings.values()))
        self._listings, self.errors = listings, errors
        self.scanned = tuple(root for root in listings if root not in errors)
        if not is_same:
            self._found = {
                f"{root}/{name}": fields
                for root, each in listings.items()
                for name, fields in each.names.items()
            }
        return self._found

    def _expanded(self, errors: dict[str, OSError]) -> dict[str, str]:
        """Resolved root to the path that led to it."""
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
        matches = glob.glob(pattern)  # noqa: PTH207
        directories = sorted(each for each in matches if os.path.isdir(each))  # noqa: PTH112
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
        limit = ENTRIES_LIMIT if status.st_mode & stat.S_IWOTH else _ROOT_ENTRIES_LIMIT
        with os.scandir(root) as entries:
            found = list(islice(entries, limit + 1))
        names = {}
        for entry in sorted(found[:limit], key=lambda each: each.name):
            fields = read_name(root, entry.name)
            if fields is not None and entry.is_dir(follow_symlinks=False):
                names[entry.name] = fields
        return _RootListing(stamp, names, limit, len(found) > limit)


def _check_makers(path: str) -> None:
    """Make sure that only root and this user can have made a directory and those around it.

    A default root can lie in a directory that all users may write, such as /tmp, and any of them
    could make it. In a sticky one no other user can replace it.
    """
    trusted = {0, os.geteuid()}
    at = Path(path)
    for each in (at, *at.parents):
        status = os.lstat(each)
        if status.st_uid not in trusted:
            owner = f"{str(each)!r} belongs to user {status.st_uid}"
            message = f"not used by default: {owner}; name this root if it is right"
            raise _Distrusted(errno.EPERM, message, path)
        if status.st_mode & stat.S_ISVTX and each != at:
            return

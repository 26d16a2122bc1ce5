"""Removing a container's directory: through open directories, following nothing.

A container may have filled its directory with anything: links, a tree of any depth, millions of
entries, names that lead elsewhere a moment later. So no path is ever resolved below the root. Every
step names an entry of a directory that is open, and unlinks or moves that entry itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import stat
from itertools import islice
from typing import TYPE_CHECKING

import attrs

from libhamiregion.node.cgroups import is_pod_uid

if TYPE_CHECKING:
    from collections.abc import Iterator

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
# A real directory holds three or four; what a container hides behind more, it hides from itself.
_LOOK_LIMIT = 4_096
_ROOT_LIMIT = 20_000
# No underscore, and the UID in capitals: neither this library nor HAMi's monitor, which looks for
# the UIDs of pods in names, takes it for a container's directory.
_QUARANTINED = re.compile(r"\.gone-([0-9A-F-]{32,36})-[0-9a-f]{16}-([-a-z0-9]+)\Z")
_MOUNT = re.compile(rb"^mnt_id:\s*([0-9]+)$", re.MULTILINE)
_NOT_EMPTY = (errno.ENOTEMPTY, errno.EEXIST)
_RENAME_NOREPLACE = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


class NotRemoved(Exception):
    """The directory is left alone; the message says why."""


@attrs.frozen
class DirectoryLook:
    """What a directory is like before anything is done to it.

    Attributes:
        identity: Its device and inode.
        changed_ns: The last change of it or of what is directly inside, Unix nanoseconds: the time
            that nobody can set.
        inodes: Of the regular files directly inside.
    """

    identity: tuple[int, int]
    changed_ns: int
    inodes: frozenset[int]


@attrs.define
class Budget:
    """How many entries may still be touched.

    Attributes:
        left: The number.
        removed: How many entries have been removed.
    """

    left: int
    removed: int = 0

    def take(self) -> bool:
        """Whether one more entry may be touched; counts it."""
        if self.left <= 0:
            return False
        self.left -= 1
        return True


@contextlib.contextmanager
def opened_root(path: str) -> Iterator[int]:
    """A directory, reached without a link, that only root and this user could have put there.

    Args:
        path: Absolute, links resolved.

    Raises:
        NotRemoved: It, or a directory on the way, belongs to somebody else.
        OSError: It is not there, or a link is on the way.
    """
    trusted = {0, os.geteuid()}
    at = os.open("/", _DIRECTORY)
    try:
        for name in filter(None, path.split("/")):
            outer, at = at, os.open(name, _DIRECTORY, dir_fd=at)
            os.close(outer)
            owner = os.fstat(at).st_uid
            if owner not in trusted:
                raise NotRemoved(
                    f"{name!r} on the way belongs to user {owner}: {path!r} is not to be trusted"
                )
        yield at
    finally:
        os.close(at)


def look_at(root: int, name: str) -> DirectoryLook:
    """Look at a directory in an open root.

    Raises:
        NotRemoved: It is a mount point.
        OSError: It is gone, or no directory.
    """
    with _opened(root, name) as directory:
        status = os.fstat(directory)
        if _mount(directory) != _mount(root):
            raise NotRemoved("it is a mount point")
        newest, inodes = status.st_ctime_ns, set()
        with os.scandir(directory) as entries:
            for entry in islice(entries, _LOOK_LIMIT):
                try:
                    inside = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                newest = max(newest, inside.st_ctime_ns)
                if stat.S_ISREG(inside.st_mode):
                    inodes.add(inside.st_ino)
    return DirectoryLook((status.st_dev, status.st_ino), newest, frozenset(inodes))


def quarantined_in(root: int) -> dict[str, tuple[str, str]]:
    """The quarantined directories, whoever began: to each pod UID and container."""
    found = {}
    with os.scandir(root) as entries:
        for entry in islice(entries, _ROOT_LIMIT):
            container = quarantined_container(entry.name)
            if container is not None and entry.is_dir(follow_symlinks=False):
                found[entry.name] = container
    return found


def quarantined_container(name: str) -> tuple[str, str] | None:
    """Pod UID and container in the name of a quarantined directory; None if it is none."""
    match = _QUARANTINED.match(name)
    if match is None or not is_pod_uid(match[1].lower()):
        return None
    return match[1].lower(), match[2]


def quarantine(root: int, name: str, container: tuple[str, str], look: DirectoryLook) -> str:
    """Give a directory a name that nobody uses: one step, and one of several agents makes it.

    Args:
        root: The open root.
        name: The directory's name.
        container: Its pod's UID and the container's name.
        look: What it was like: nothing else is taken.

    Returns:
        The name.

    Raises:
        NotRemoved: Another directory had come in its place; it has its name again, unless yet
            another one has that by now. Or the file system has no way to give a name back.
        OSError: It is gone, or may not be renamed.
    """
    uid, container_name = container
    quarantined = f".gone-{uid.upper()}-{os.urandom(8).hex()}-{container_name}"
    # By the rename that can give it back: where there is none, nothing is taken.
    rename_to_free_name(root, name, quarantined)
    status = os.stat(quarantined, dir_fd=root, follow_symlinks=False)
    if (status.st_dev, status.st_ino) != look.identity or not stat.S_ISDIR(status.st_mode):
        give_back(root, quarantined, name)
        raise NotRemoved("another one has come in its place")
    return quarantined


def give_back(root: int, quarantined: str, name: str) -> bool:
    """Give a quarantined directory its name again, unless there is a new one of that name.

    Returns:
        Whether it has it.

    Raises:
        OSError: It is gone, or may not be renamed.
    """
    try:
        rename_to_free_name(root, quarantined, name)
    except FileExistsError:
        return False
    return True


def rename_to_free_name(root: int, name: str, free: str) -> None:
    """Rename an entry of an open directory, and replace nothing.

    `os.rename` replaces an empty directory, such as one that a device plugin has just made.

    Raises:
        NotRemoved: The kernel or the file system has no such rename.
        FileExistsError: There is something of that name.
        OSError: It is gone, or may not be renamed.
    """
    number = errno.ENOSYS
    with contextlib.suppress(AttributeError):  # a C library that does not have it
        before, after = os.fsencode(name), os.fsencode(free)
        if _LIBC.renameat2(root, before, root, after, ctypes.c_uint(_RENAME_NOREPLACE)) == 0:
            return
        number = ctypes.get_errno()
    if number in {errno.ENOSYS, errno.EINVAL}:
        raise NotRemoved("its file system cannot rename it without replacing something")
    raise OSError(number, os.strerror(number), name)


def remove_quarantined(root: int, quarantined: str, budget: Budget) -> bool:
    """Remove a quarantined directory and what is in it, as far as the budget goes.

    Returns:
        Whether it is gone; if not, the next call goes on.

    Raises:
        NotRemoved: It is a mount point.
        OSError: Something in it cannot be removed; the rest has been.
    """
    try:
        with _opened(root, quarantined) as top:
            place = _mount(top)
            if place != _mount(root):
                raise NotRemoved("it is a mount point")
            while _empty(top, place, budget):
                pass
            if budget.left <= 0:
                return False
        os.rmdir(quarantined, dir_fd=root)
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno in _NOT_EMPTY:
            return False  # somebody goes on filling it
        raise
    budget.removed += 1
    return True


def _empty(top: int, place: tuple[int, int], budget: Budget) -> bool:
    """Remove each entry of a directory, or part of what is in it; False if there was none.

    What is deeper is first moved up: a directory in a directory becomes one of the top. So a tree
    of any depth takes no more descriptors and no more stack than a flat one.

    Raises:
        OSError: Nothing of what is left can be removed.
    """
    found = moved = False
    errors: list[OSError] = []
    for name in _names(top):
        if not budget.take():
            return False
        found = True
        try:
            moved = _remove_entry(top, name, budget) or moved
            continue
        except OSError as error:
            if error.errno not in _NOT_EMPTY:
                errors.append(error)
                continue
        try:
            with _opened(top, name) as inner:
                if _mount(inner) != place:
                    raise OSError(errno.EBUSY, "something is mounted there", name)
                for below in _names(inner):
                    if not budget.take():
                        return False
                    try:
                        moved = _remove_entry(inner, below, budget, up=top) or moved
                    except OSError as error:
                        errors.append(error)
        except FileNotFoundError:
            moved = True  # somebody else has removed it
        except OSError as error:
            errors.append(error)
    if errors and not moved:
        raise errors[0]
    return found


def _remove_entry(parent: int, name: str, budget: Budget, up: int | None = None) -> bool:
    """Remove an entry; a directory that is not empty moves up, where that is asked for.

    Returns:
        True: something has happened.

    Raises:
        OSError: Nothing has.
    """
    try:
        if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=parent)
        else:
            os.rmdir(name, dir_fd=parent)
    except FileNotFoundError:
        return True  # somebody else has removed it
    except OSError as error:
        if up is None or error.errno not in _NOT_EMPTY:
            raise
        os.rename(name, os.urandom(8).hex(), src_dir_fd=parent, dst_dir_fd=up)
        return True
    budget.removed += 1
    return True


@contextlib.contextmanager
def _opened(parent: int, name: str) -> Iterator[int]:
    descriptor = os.open(name, _DIRECTORY, dir_fd=parent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _names(directory: int) -> Iterator[str]:
    with os.scandir(directory) as entries:
        for entry in entries:
            yield entry.name


def _mount(descriptor: int) -> tuple[int, int]:
    """Device and mount: a bind mount of the same file system differs in the latter only."""
    with open(f"/proc/self/fdinfo/{descriptor}", "rb") as file:  # noqa: PTH123
        match = _MOUNT.search(file.read())
    if match is None:
        raise OSError(errno.ENOSYS, "the kernel does not tell what is mounted where")
    return os.fstat(descriptor).st_dev, int(match[1])

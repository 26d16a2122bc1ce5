"""One process's files under /proc, read in bounded time and bounded size.

Every function takes the descriptor of a process's directory: it stays with that very process, so
that what is read through it never comes from a later one with the same pid.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, TypeAlias

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator

_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW

#: Characters of a command line that are kept.
COMMAND_LIMIT = 4096

_CHUNK = 1 << 16
# 65,536 supplementary groups stand before NSpid, if a process wants.
_STATUS_LIMIT = 1 << 20
# 260,000 lines of maps; a process with more counts as unreadable.
_MAPS_LIMIT = 32 << 20
_CGROUP_LIMIT = 1 << 16

_KERNEL_THREAD = 0x00200000  # PF_KTHREAD

# The last letter of a shared mapping's rights and what follows, to find the few such lines in maps.
# A newline in a name is escaped by the kernel, so that each line is one mapping, whatever the name;
# but a name may hold what looks like this, so the place in the line counts too.
_SHARED = re.compile(
    rb"s [0-9a-f]+ ([0-9a-f]+):([0-9a-f]+) ([1-9][0-9]*) *(.*)$",
    re.MULTILINE,
)
_UID = re.compile(rb"^Uid:\s+[0-9]+\s+([0-9]+)", re.MULTILINE)
_NS_PIDS = re.compile(rb"^NSpid:((?:[ \t]+[0-9]+)+)$", re.MULTILINE)
_DELETED = " (deleted)"


class Gone(Exception):
    """The process has ended."""


class Refused(Exception):
    """This process may not look."""


@attrs.frozen
class Mapping:
    """What a process maps of one file, all its mappings of it taken together.

    Attributes:
        device: The file system's device number as maps prints it; on some file systems `os.stat`
            gives another one.
        inode: The file's inode number as maps prints it.
        start: First address of the first of them.
        end: The address behind it.
        length_bytes: Sum over all of them.
        writable: Whether one of them may be written.
        path: As the process sees it, raw.
        deleted: Whether that name is gone.
    """

    device: int
    inode: int
    start: int
    end: int
    length_bytes: int
    writable: bool
    path: str
    deleted: bool


@attrs.define
class _Sum:
    start: int
    end: int
    path: bytes
    length: int = 0
    writable: bool = False


@attrs.frozen
class Stat:
    """What is taken from ``stat``.

    Attributes:
        start_time_ticks: Clock ticks after boot at which the process started.
        kernel_thread: It has no memory of its own and never will.
        leader_gone: The first thread has ended and others go on.
        name: The kernel's short name of it.
    """

    start_time_ticks: int
    kernel_thread: bool
    leader_gone: bool
    name: str


#: Page faults (minor and major), start time and size of the address space, as ``stat`` prints them.
Activity: TypeAlias = tuple[bytes, bytes, bytes, bytes]


def open_process(proc: int, pid: str) -> int:
    """Open a process's directory; the descriptor is the caller's to close."""
    return _open(proc, pid, _DIRECTORY)


def stat_line(directory: int, name: str = "stat") -> bytes:
    """The raw ``stat`` of a process, from its own directory or by ``<pid>/stat`` from /proc."""
    return _first_bytes(directory, name, 4096)


def activity(line: bytes) -> Activity:
    """What tells, out of a line of ``stat``, whether the process has done anything since."""
    # The name in parentheses may hold anything, parentheses and newlines too.
    fields = line[line.rindex(b")") + 2 :].split(None, 21)
    return fields[7], fields[9], fields[19], fields[20]


def has_ended(line: bytes) -> bool:
    """Whether a line of ``stat`` is of a zombie, all threads of which have ended."""
    fields = line[line.rindex(b")") + 2 :].split(None, 18)
    return fields[0] in {b"Z", b"X"} and int(fields[17]) <= 1


def parse_stat(line: bytes) -> Stat:
    """Take a line of ``stat`` apart."""
    end = line.rindex(b")")
    fields = line[end + 2 :].split(None, 21)
    return Stat(
        start_time_ticks=int(fields[19]),
        kernel_thread=bool(int(fields[6]) & _KERNEL_THREAD),
        leader_gone=fields[0] == b"Z" and int(fields[17]) > 1,
        name=_text(line[line.index(b"(") + 1 : end]),
    )


def read_status(process: int) -> tuple[int, tuple[int, ...]]:
    """The effective user of a process, and its pids from the outermost namespace inwards."""
    text = _read_until(process, "status", b"\nNSpid:", _STATUS_LIMIT)
    uid, ns_pids = _UID.search(text), _NS_PIDS.search(text)
    if uid is None or ns_pids is None:
        raise Refused
    return int(uid[1]), tuple(map(int, ns_pids[1].split()))


def read_mappings(
    process: int, *, leader_gone: bool, smallest: int, most: int
) -> tuple[Mapping, ...]:
    """The files that a process maps shared, with at least `smallest` bytes each.

    Raises:
        Gone: The process has ended.
        Refused: This process may not look, or there are more than `most`.
    """
    try:
        raw = read_all(process, "maps", _MAPS_LIMIT)
    except Gone:
        # Linux 6.16 says so of zombies, whose maps are empty elsewhere; of one that has ended, the
        # next file says it too.
        raw = b""
    if not raw and leader_gone:
        raw = _maps_of_threads(process)
    files: dict[tuple[bytes, bytes, bytes], _Sum] = {}
    for start, end, writable, match in _shared(raw):
        major, minor, inode, path = match.groups()
        seen = files.get((major, minor, inode))
        if seen is None:
            seen = files[major, minor, inode] = _Sum(start, end, path)
        seen.length += end - start
        seen.writable = seen.writable or writable
    if sum(seen.length >= smallest for seen in files.values()) > most:
        raise Refused
    return tuple(
        Mapping(
            os.makedev(int(major, 16), int(minor, 16)),
            int(inode),
            seen.start,
            seen.end,
            seen.length,
            seen.writable,
            *split_deleted(os.fsdecode(seen.path)),
        )
        for (major, minor, inode), seen in files.items()
        if seen.length >= smallest
    )


def split_deleted(path: str) -> tuple[str, bool]:
    """A path as the kernel shows it: the path, and whether that name is gone."""
    return path.removesuffix(_DELETED), path.endswith(_DELETED)


def read_own_mappings() -> dict[int, tuple[int, int]]:
    """Start address -> (device, inode) of this process's own shared file mappings."""
    process = _open(None, "/proc/self", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        raw = read_all(process, "maps", _MAPS_LIMIT)
    finally:
        os.close(process)
    return {
        start: (os.makedev(int(match[1], 16), int(match[2], 16)), int(match[3]))
        for start, _, _, match in _shared(raw)
    }


def _shared(maps: bytes) -> Iterator[tuple[int, int, bool, re.Match[bytes]]]:
    """First address, the one behind the last, whether it may be written, and the match."""
    for match in _SHARED.finditer(maps):
        line = maps.rfind(b"\n", 0, match.start()) + 1
        rights = maps.find(b" ", line)
        if rights == match.start() - len(b" rw-"):
            start, _, end = maps[line:rights].partition(b"-")
            yield int(start, 16), int(end, 16), maps[rights + 2] == ord("w"), match


def read_cgroup(process: int) -> str:
    """The text of ``cgroup``."""
    return _text(read_all(process, "cgroup", _CGROUP_LIMIT, cut=True))


def read_command(process: int) -> str:
    """The command line with spaces between its arguments; empty where there is none."""
    raw = _first_bytes(process, "cmdline", COMMAND_LIMIT)
    return _text(raw.rstrip(b"\0").replace(b"\0", b" "))[:COMMAND_LIMIT]


def read_link(directory: int, name: str) -> str | None:
    """Where a link points to, None where that cannot be told."""
    try:
        return os.readlink(name, dir_fd=directory)
    except OSError:
        return None


def _maps_of_threads(process: int) -> bytes:
    tasks = _open(process, "task", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    thread_ended = False
    try:
        for name in os.listdir(tasks):  # noqa: PTH208 (a descriptor)
            try:
                raw = read_all(tasks, f"{name}/maps", _MAPS_LIMIT)
            except Gone:
                thread_ended = True
                continue
            if raw:
                return raw
    except FileNotFoundError as error:
        raise Gone from error
    finally:
        os.close(tasks)
    if thread_ended:
        raise Refused  # a thread that ended may have left a successor that was not listed
    return b""


def _open(directory: int | None, name: str, flags: int) -> int:
    try:
        return os.open(name, flags, dir_fd=directory)
    except PermissionError as error:
        raise Refused from error
    except (FileNotFoundError, ProcessLookupError, NotADirectoryError) as error:
        raise Gone from error


def _read(descriptor: int, nbytes: int) -> bytes:
    try:
        return os.read(descriptor, nbytes)
    except PermissionError as error:
        raise Refused from error
    except ProcessLookupError as error:
        raise Gone from error


def _first_bytes(directory: int, name: str, nbytes: int) -> bytes:
    descriptor = _open(directory, name, _READ)
    try:
        return _read(descriptor, nbytes)
    finally:
        os.close(descriptor)


def read_all(directory: int, name: str, limit: int, *, cut: bool = False) -> bytes:
    """A whole file; where it is longer than the limit, Refused or its beginning."""
    descriptor = _open(directory, name, _READ)
    chunks = []
    total = 0
    try:
        while chunk := _read(descriptor, _CHUNK):
            chunks.append(chunk)
            total += len(chunk)
            if total > limit:
                if cut:
                    break
                raise Refused
    finally:
        os.close(descriptor)
    return b"".join(chunks)


def _read_until(directory: int, name: str, wanted: bytes, limit: int) -> bytes:
    """Whole chunks up to the line that begins with `wanted`, that line complete."""
    descriptor = _open(directory, name, _READ)
    text = b""
    try:
        while len(text) <= limit:
            chunk = _read(descriptor, _CHUNK)
            text += chunk
            at = text.find(wanted)
            if not chunk or (at >= 0 and text.find(b"\n", at + 1) >= 0):
                break
    finally:
        os.close(descriptor)
    return text


def _text(raw: bytes) -> str:
    # What is no UTF-8 stays visible, and the result can be encoded again.
    return raw.decode("utf-8", "backslashreplace")

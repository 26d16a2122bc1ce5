"""One process's files under /proc, read in bounded time and bounded size.

Every function takes the descriptor of a process's directory: it stays with that very process, so
that what is read through it never comes from a later one with the same pid.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING, NamedTuple

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW

#: Characters of a command line that are kept.
COMMAND_LIMIT = 4096

_CHUNK = 1 << 16
# 65,536 supplementary groups stand before NSpid, if a process wants.
_STATUS_LIMIT = 1 << 20
# 260,000 lines of maps; more are not read.
_MAPS_LIMIT = 32 << 20
# What is kept of them until they have been read: different files, and the bytes of their paths.
_DISTINCT_FILES_LIMIT = 16_384
_PATHS_LIMIT = 2 << 20
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
_LIBVGPU = b"/libvgpu.so"
_LIBVGPU_LINE = re.compile(rb"^[^\n]*/libvgpu\.so[^/\n]*$", re.MULTILINE)
_DELETED = " (deleted)"


class Gone(Exception):
    """The process has ended."""


class AccessDenied(Exception):
    """The system does not let this process look."""


class TooMuch(Exception):
    """There is more of it than is read."""


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

    @property
    def name(self) -> tuple[str, bool]:
        """The path, and whether that name is gone, as `split_deleted` tells them."""
        return self.path, self.deleted


@attrs.frozen
class Maps:
    """What a process has mapped, as far as it matters here.

    Attributes:
        files: The files that it maps shared, with so many bytes each, or more.
        has_libvgpu: Whether it has libvgpu.so loaded.
    """

    files: tuple[Mapping, ...] = ()
    has_libvgpu: bool = False


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
        address_space_bytes: All that it has mapped.
        kernel_thread: It has no memory of its own and never will.
        leader_gone: The first thread has ended and others go on.
        name: The kernel's short name of it.
    """

    start_time_ticks: int
    address_space_bytes: int
    kernel_thread: bool
    leader_gone: bool
    name: str


class Activity(NamedTuple):
    """What tells, out of ``stat``, whether a process has done anything since.

    Attributes:
        start_time: When it started; with its pid, its identity.
        address_space: How large all is that it has mapped.
        stack: Where its stack begins: elsewhere after exec, and the same in processes made by fork.
            0 where this process may not trace it.
        minor_faults: Page faults.
        major_faults: Those that took a disk.
    """

    start_time: int
    address_space: int
    stack: int
    minor_faults: int
    major_faults: int

    def maps_the_same(self, other: Activity) -> bool:
        """Whether nothing tells that it has mapped or unmapped anything in between."""
        return self[:3] == other[:3]


def open_process(proc: int, pid: str) -> int:
    """Open a process's directory; the descriptor is the caller's to close."""
    return _open(proc, pid, _DIRECTORY)


def open_process_at(path: str) -> int:
    """Do as `open_process`, by the path of the process's directory."""
    return _open(None, path, _DIRECTORY)


def stat_line(directory: int, name: str = "stat") -> bytes:
    """The raw ``stat`` of a process, from its own directory or by ``<pid>/stat`` from /proc."""
    return _first_bytes(directory, name, 4096)


def activity(line: bytes) -> Activity:
    """Take out of a line of ``stat`` what tells whether the process has done anything since."""
    # The name in parentheses may hold anything, parentheses and newlines too.
    fields = line[line.rindex(b")") + 2 :].split(None, 26)
    return Activity(*(int(fields[each]) for each in (19, 20, 25, 7, 9)))


def read_activities(directory: int, pids: Sequence[int]) -> Iterator[tuple[int, Activity | None]]:
    """What `activity` says of many processes that have not ended.

    Args:
        directory: /proc.
        pids: The processes.

    Returns:
        Pid and activity; None where this process may not look.

    Raises:
        OSError: The system is out of descriptors or memory.
    """
    for pid in pids:
        try:
            yield pid, activity(stat_line(directory, f"{pid}/stat"))
        except AccessDenied:
            yield pid, None
        except Gone:
            continue


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
        address_space_bytes=int(fields[20]),
        kernel_thread=bool(int(fields[6]) & _KERNEL_THREAD),
        leader_gone=fields[0] == b"Z" and int(fields[17]) > 1,
        name=_text(line[line.index(b"(") + 1 : end]),
    )


def read_status(process: int) -> tuple[int, tuple[int, ...]]:
    """The effective user of a process, and its pids from the outermost namespace inwards."""
    text = _read_until(process, "status", b"\nNSpid:", _STATUS_LIMIT)
    uid, ns_pids = _UID.search(text), _NS_PIDS.search(text)
    if uid is None or ns_pids is None:
        raise AccessDenied
    return int(uid[1]), tuple(map(int, ns_pids[1].split()))


def read_maps(process: int, *, leader_gone: bool, smallest: int, most: int) -> Maps:
    """What a process has mapped, with the files that it maps shared, `smallest` bytes or more each.

    It is taken apart as it comes; what is kept meanwhile is less than 10 MiB.

    Raises:
        Gone: The process has ended.
        AccessDenied: This process may not look.
        TooMuch: There are more files than `most`, or more of maps than is read.
    """
    found = _MapsParser()
    # Linux 6.16 says so of zombies, whose maps are empty elsewhere; of one that has ended, the next
    # file says it too.
    with contextlib.suppress(Gone):
        found.add_all(_lines_of_maps(process, "maps"))
    if not found.bytes_read and leader_gone:
        _parse_maps_of_threads(found, process)
    return found.result(smallest, most)


class _MapsParser:
    """Sums up the shared mappings of a process, piece by piece of its maps."""

    def __init__(self) -> None:
        self.bytes_read = 0
        self._has_libvgpu = False
        self._files: dict[tuple[bytes, bytes, bytes], _Sum] = {}
        self._paths_left = _PATHS_LIMIT

    def add_all(self, pieces: Iterable[bytes]) -> None:
        """Take in pieces of whole lines.

        Raises:
            TooMuch: There are more different files than are kept.
        """
        for lines in pieces:
            self.bytes_read += len(lines)
            self._add(lines)

    def _add(self, lines: bytes) -> None:
        if not self._has_libvgpu and _LIBVGPU in lines:
            self._has_libvgpu = _LIBVGPU_LINE.search(lines) is not None
        for start, end, writable, match in _shared(lines):
            major, minor, inode, path = match.groups()
            identity = major, minor, inode
            seen = self._files.get(identity)
            if seen is None:
                self._paths_left -= len(path)
                if self._paths_left < 0 or len(self._files) >= _DISTINCT_FILES_LIMIT:
                    raise TooMuch
                seen = self._files[identity] = _Sum(start, end, path)
            seen.length += end - start
            seen.writable = seen.writable or writable

    def result(self, smallest: int, most: int) -> Maps:
        """All that has been taken in.

        Raises:
            TooMuch: There are more than `most` files of that size.
        """
        large = [(each, seen) for each, seen in self._files.items() if seen.length >= smallest]
        if len(large) > most:
            raise TooMuch
        return Maps(
            tuple(
                Mapping(
                    os.makedev(int(major, 16), int(minor, 16)),
                    int(inode),
                    seen.start,
                    seen.end,
                    seen.length,
                    seen.writable,
                    *split_deleted(os.fsdecode(seen.path)),
                )
                for (major, minor, inode), seen in large
            ),
            self._has_libvgpu,
        )


def _lines_of_maps(directory: int, name: str) -> Iterator[bytes]:
    """Maps in pieces of whole lines."""
    descriptor = _open(directory, name, _READ)
    total = 0
    chunks: list[bytes] = []
    gathered = 0
    try:
        # The kernel gives a page of whole lines at a time, where they are not longer than that.
        while chunk := _read(descriptor, _CHUNK):
            total += len(chunk)
            if total > _MAPS_LIMIT:
                raise TooMuch
            chunks.append(chunk)
            gathered += len(chunk)
            if gathered >= _CHUNK:
                lines = b"".join(chunks)
                end = lines.rfind(b"\n") + 1
                yield lines[:end]
                chunks = [lines[end:]]
                gathered = len(lines) - end
        yield b"".join(chunks)
    finally:
        os.close(descriptor)


def split_deleted(path: str) -> tuple[str, bool]:
    """A path as the kernel shows it: the path, and whether that name is gone."""
    return path.removesuffix(_DELETED), path.endswith(_DELETED)


def read_own_mappings() -> dict[int, tuple[int, int]]:
    """Start address -> (device, inode) of this process's own shared file mappings."""
    process = _open(None, "/proc/self", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return {
            start: (os.makedev(int(match[1], 16), int(match[2], 16)), int(match[3]))
            for lines in _lines_of_maps(process, "maps")
            for start, _, _, match in _shared(lines)
        }
    finally:
        os.close(process)


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


def _parse_maps_of_threads(found: _MapsParser, process: int) -> None:
    tasks = _open(process, "task", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    thread_ended = False
    try:
        for name in os.listdir(tasks):  # noqa: PTH208 (a descriptor)
            try:
                found.add_all(_lines_of_maps(tasks, f"{name}/maps"))
            except Gone:
                thread_ended = True
                continue
            if found.bytes_read:
                return
    except FileNotFoundError as error:
        raise Gone from error
    finally:
        os.close(tasks)
    if thread_ended:
        raise AccessDenied  # a thread that ended may have left a successor that was not listed


def _open(directory: int | None, name: str, flags: int) -> int:
    try:
        return os.open(name, flags, dir_fd=directory)
    except PermissionError as error:
        raise AccessDenied from error
    except (FileNotFoundError, ProcessLookupError, NotADirectoryError) as error:
        raise Gone from error


def _read(descriptor: int, nbytes: int) -> bytes:
    try:
        return os.read(descriptor, nbytes)
    except PermissionError as error:
        raise AccessDenied from error
    except ProcessLookupError as error:
        raise Gone from error


def _first_bytes(directory: int, name: str, nbytes: int) -> bytes:
    descriptor = _open(directory, name, _READ)
    try:
        return _read(descriptor, nbytes)
    finally:
        os.close(descriptor)


def read_all(directory: int, name: str, limit: int, *, cut: bool = False) -> bytes:
    """A whole file; where it is longer than the limit, TooMuch or its beginning."""
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
                raise TooMuch
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

"""HAMi's monitor on a node: who else writes launch marks and SM switches."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal, TypeAlias

import attrs

from libhamiregion.errors import RegionError
from libhamiregion.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .file_identities import FileIdentity
    from .matching import HostProcess
    from .node import Node

#: The programs of HAMi and of volcano-vgpu that write these fields.
MONITOR_NAMES = frozenset({"vGPUmonitor", "volcano-vgpu-monitor"})

# Nearly no process has anything like it in its command line, and taking paths apart is slow.
_ENDING = os.path.commonprefix([name[::-1] for name in MONITOR_NAMES])[::-1]  # noqa: RUF071 (is meant)
_COMMAND_LIMIT = 60
_MOUNTS_LIMIT_BYTES = 1 << 24
_MANY = 2
_ESCAPE = re.compile(rb"\\([0-7]{3})")

Evidence: TypeAlias = Literal["name", "mapping", "lock", "hidden"]
# A directory as all mount namespaces know it: the file system's device, and the path in it.
_Place: TypeAlias = "tuple[bytes, bytes]"


@attrs.frozen
class OtherWriter:
    """Somebody else who writes launch marks and SM switches, or may.

    Attributes:
        evidence: ``"name"``: a program of HAMi's monitor's name that has the node's containers in
            its file system; ``"mapping"``: a process outside the containers that holds regions of
            several pods open for writing; ``"lock"``: another agent of this library; ``"hidden"``:
            nobody was found, but not all processes of the node can be seen.
        pid: The process in the /proc that was read; None if it is not known.
        message: The evidence as a sentence.
    """

    evidence: Evidence
    pid: int | None
    message: str


def is_monitor(process: HostProcess) -> bool:
    """Whether a process is called as the monitor of HAMi, or of volcano-vgpu."""
    if _ENDING not in process.command:
        return False
    return PurePosixPath(process.command.partition(" ")[0]).name in MONITOR_NAMES


def find_monitors(node: Node) -> tuple[OtherWriter, ...]:
    """Find programs that do what HAMi's monitor does, by the node's last refresh.

    A monitor opens every region for writing and keeps it so: a process that has regions of two pods
    open is one, whatever it is called. The name tells where there are fewer. What runs in a pod
    that itself holds a region never counts, and what has the name but not the node's containers in
    its file system does not either: nobody can stop an agent by calling a program of his own so.

    Where there was none, what the node has read is not searched again.

    Args:
        node: The node.
    """
    read = node.processes.read_at_ns, node.containers
    clear = node._without_monitors
    if clear is not None and clear[0] == read[0] and clear[1] is read[1]:
        return ()
    tenants = frozenset(each.pod_uid for each in read[1] if each.pod_uid is not None)
    found = {}
    for other, process in (*_by_mapping(node, tenants), *_by_name(node)):
        pod = None if process.container is None else process.container.pod_uid
        if pod not in tenants and not _is_this(process):
            found[process.pid] = other
    node._without_monitors = None if found else read
    return tuple(found.values())


def _by_mapping(node: Node, tenants: frozenset[str]) -> Iterator[tuple[OtherWriter, HostProcess]]:
    table = node.processes
    holders: list[tuple[HostProcess, list[FileIdentity]]] = []
    for process, mappings in table._users_of_several_files():
        if process.container is not None and process.container.pod_uid in tenants:
            continue
        writable = [(each.device, each.inode) for each in mappings if each.writable]
        if len(writable) >= _MANY:
            holders.append((process, writable))
    pod_of: dict[FileIdentity, str | None] = {}
    # The monitor looks below the roots only.
    for container in node.containers if holders else ():
        if container.region is not None and container.directory is not None:
            with contextlib.suppress(RegionError):
                pod_of[table.identity(container.region)] = container.pod_uid
    for process, writable in holders:
        held = {pod_of[each] for each in writable if each in pod_of}
        if len(held) >= _MANY:
            message = (
                f"process {process.pid} ({printable(process.command, _COMMAND_LIMIT)}) holds"
                f" regions of {len(held)} pods open for writing and is in none of them, as HAMi's"
                " monitor does"
            )
            yield OtherWriter("mapping", process.pid, message), process


def _by_name(node: Node) -> Iterator[tuple[OtherWriter, HostProcess]]:
    named = [process for process in node.processes if is_monitor(process)]
    places = _places(node.directories) if named else []
    for process in named:
        if not places or _has_in_its_file_system(f"{node.proc}/{process.pid}", places):
            name = PurePosixPath(process.command.partition(" ")[0]).name
            message = f"HAMi's monitor runs: process {process.pid} is {name}"
            yield OtherWriter("name", process.pid, message), process


def _has_in_its_file_system(process: str, places: list[_Place]) -> bool:
    """Whether a process can reach one of these directories.

    By its list of mounts alone: whoever walked its file system could be made to wait for ever.
    """
    try:
        mounts = _mounts(f"{process}/mountinfo")
    except (FileNotFoundError, ProcessLookupError):
        return False  # it has ended
    except OSError:
        return True  # unreadable (EACCES, EMFILE): it may reach one
    return any(
        device == mounted and (top == b"/" or path == top or path.startswith(top + b"/"))
        for device, path in places
        for mounted, top, _ in mounts.values()
    )


def _mounts(path: str) -> dict[int, tuple[bytes, bytes, bytes]]:
    """The mounts of a process by their number: device, directory of that device, mount point."""
    with open(path, "rb") as file:  # noqa: PTH123
        lines = file.read(_MOUNTS_LIMIT_BYTES).split(b"\n")
    mounts = {}
    # What stands behind the last newline is nothing, or half a line.
    for line in lines[:-1]:
        number, _, device, top, point, *_ = line.split(b" ", 5)
        mounts[int(number)] = (device, _unescaped(top), _unescaped(point))
    return mounts


def _places(directories: Iterable[str]) -> list[_Place]:
    """What directories are to all mount namespaces; empty if that cannot be told of one of them."""
    try:
        return [place for each in directories if (place := _place(each)) is not None]
    except OSError:
        return []


def _place(directory: str) -> _Place | None:
    try:
        descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        with open(f"/proc/self/fdinfo/{descriptor}", "rb") as file:  # noqa: PTH123
            number = re.search(rb"^mnt_id:\s*(\d+)$", file.read(), re.MULTILINE)
        real = os.fsencode(os.readlink(f"/proc/self/fd/{descriptor}"))  # noqa: PTH115
    finally:
        os.close(descriptor)
    mount = number and _mounts("/proc/self/mountinfo").get(int(number[1]))
    if not mount:
        return None
    device, top, point = mount
    inner = real if point == b"/" else real[len(point) :]
    return device, (b"" if top == b"/" else top) + inner


def _unescaped(field: bytes) -> bytes:
    return _ESCAPE.sub(lambda match: bytes([int(match[1], 8)]), field)


def _is_this(process: HostProcess) -> bool:
    """Whether it is this very process, whatever that /proc calls it."""
    if process.ns_pids[-1] != os.getpid():
        return False
    with contextlib.suppress(OSError), open("/proc/self/stat", "rb") as file:  # noqa: PTH123
        return process.start_time_ticks == int(file.read().rpartition(b")")[2].split()[19])
    return False

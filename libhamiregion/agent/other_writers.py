"""Whether somebody else on the node writes launch marks and SM switches.

Only one may: two writers would block and unblock each other's containers. Looked for are HAMi's
monitor, by its name and by what it maps, and a second agent of this library, by a lock.
"""

from __future__ import annotations

import os
import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal, TypeAlias

import attrs

from libhamiregion.errors import RegionError
from libhamiregion.text import printable

from .root_locks import RootLocks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from libhamiregion.node.containers import Container
    from libhamiregion.node.matching import HostProcess
    from libhamiregion.node.node import Node

#: The programs of HAMi and of volcano-vgpu that write these fields.
MONITOR_NAMES = frozenset({"vGPUmonitor", "volcano-vgpu-monitor"})

_COMMAND_LIMIT = 60
_MOUNTS_LIMIT_BYTES = 1 << 24
_MANY = 2
_ESCAPE = re.compile(rb"\\([0-7]{3})")
# Where there are no containers' directories, as with plain Docker, agents meet here.
_WITHOUT_ROOTS = "/run"

Evidence: TypeAlias = Literal["name", "mapping", "lock", "hidden"]
# A directory as all mount namespaces know it: the file system's device, and the path in it.
_Place: TypeAlias = "tuple[bytes, bytes]"


@attrs.frozen
class OtherWriter:
    """Somebody else who writes launch marks and SM switches, or may.

    Attributes:
        evidence: ``"name"``: a program of HAMi's monitor's name that has the node's containers in
            its file system; ``"mapping"``: a process outside the containers that holds regions
            open for writing; ``"lock"``: another agent of this library; ``"hidden"``: nobody was
            found, but not all processes of the node can be seen.
        pid: The process in the /proc that was read; None if it is not known.
        message: The evidence as a sentence.
    """

    evidence: Evidence
    pid: int | None
    message: str


class OtherWriterRuns(RuntimeError):
    """Somebody else writes launch marks and SM switches on this node.

    Attributes:
        others: Who, and how that is known.
    """

    def __init__(self, others: tuple[OtherWriter, ...]) -> None:
        super().__init__("; ".join(other.message for other in others))
        self.others = others

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.others,)


@attrs.define
class _Held:
    """What one process holds open for writing.

    Attributes:
        pods: The pods of all such regions. No process inside a container has those of two pods.
        directories: Of those regions that it is certainly no user of.
    """

    pods: set[str | None] = attrs.field(factory=set)
    directories: set[str] = attrs.field(factory=set)


class WriterWatch:
    """Looks for other writers of launch marks and SM switches on a node.

    HAMi's monitor opens every region for writing and keeps it so. The evidence ``"mapping"`` is a
    process that has regions of two pods open so, or, at two looks, one region that it is certainly
    no user of: an edit by a tool is over by then. The name alone tells where there are no regions
    yet. What runs in a pod that itself holds a region never counts, and what has the name but not
    the node's containers in its file system does not either, so that nobody can stop the agent by
    calling a program of his own so.

    Agents of this library exclude each other through a lock on the directories that hold the
    containers' directories: the kernel gives it back when the agent ends, however it ends, and no
    container has those directories.

    Args:
        node: Whose regions and processes; the watch works on its last refresh.
        assume_alone: Take it for granted that nobody is hidden where not all processes of the node
            can be seen.

    Threads: one at a time.
    """

    def __init__(self, node: Node, *, assume_alone: bool = False) -> None:
        self._node = node
        self._assume_alone = assume_alone
        self._locks = RootLocks()
        self._seen: dict[HostProcess, _Held] = {}

    def look(self, *, lock: bool = True) -> tuple[OtherWriter, ...]:
        """Look once, and take the lock if it is free.

        Args:
            lock: Without it, neither take the lock nor look who has it.

        Returns:
            Who else writes; empty if nobody does.

        Raises:
            OSError: The directories of containers cannot be locked.
        """
        tenants = frozenset(
            each.pod_uid for each in self._node.containers if each.pod_uid is not None
        )
        by_pid = {
            other.pid: other for other in (*self._by_mapping(tenants), *self._by_name(tenants))
        }
        found = list(by_pid.values())
        if not (self._assume_alone or self._node.processes.visibility.sees_all_pids):
            message = (
                f"{self._node.proc!r} does not show all processes of the node, so HAMi's monitor"
                " may run unseen; run in the host's pid namespace (hostPID: true)"
            )
            found.append(OtherWriter("hidden", None, message))
        directories = self._node.directories or (_WITHOUT_ROOTS,)
        for directory, pid in self._locks.take(directories).items() if lock else ():
            holder = "a process that cannot be seen" if pid is None else f"process {pid}"
            message = f"another agent runs: {holder} has locked {directory!r}"
            found.append(OtherWriter("lock", pid, message))
        return tuple(found)

    def close(self) -> None:
        """Give the lock back."""
        self._locks.close()

    # ---- by what it maps -------------------------------------------------------------------------

    def _by_mapping(self, tenants: frozenset[str]) -> Iterator[OtherWriter]:
        held: dict[HostProcess, _Held] = {}
        for container in self._node.containers:
            for process, certain in self._writers(container):
                if _pod(process) in tenants or _is_this(process):
                    continue
                of = held.setdefault(process, _Held())
                of.pods.add(container.pod_uid)
                if certain:
                    of.directories.add(container.directory or "")
        before, self._seen = self._seen, held
        for process, of in held.items():
            stays = process in before and of.directories & before[process].directories
            if len(of.pods) >= _MANY or stays:
                yield OtherWriter(
                    "mapping",
                    process.pid,
                    f"process {process.pid} ({printable(process.command, _COMMAND_LIMIT)}) holds"
                    f" regions of {len(of.pods)} pods open for writing and is in none of them, as"
                    " HAMi's monitor does",
                )

    def _writers(self, container: Container) -> Iterable[tuple[HostProcess, bool]]:
        """Who can write a region, and whether it is certain that it is none of its users."""
        region = container.region
        # The monitor looks below the roots only.
        if region is None or container.directory is None:
            return
        table = self._node.processes
        try:
            writers = table.mappers(*table.identity(region), writable=True)
            if not writers:
                return
            onlookers = set(self._node.match(container, region.snapshot()).onlookers)
        except RegionError:
            return
        for process in writers:
            yield process, _pod(process) is not None or process in onlookers

    # ---- by its name -----------------------------------------------------------------------------

    def _by_name(self, tenants: frozenset[str]) -> Iterator[OtherWriter]:
        places: list[_Place] | None = None
        for process in self._node.processes:
            name = PurePosixPath(process.command.partition(" ")[0]).name
            if name not in MONITOR_NAMES or _pod(process) in tenants or _is_this(process):
                continue
            if places is None:
                found = map(_place, self._node.directories)
                places = [place for place in found if place is not None]
            if not places or self._has_in_its_file_system(process, places):
                yield OtherWriter(
                    "name", process.pid, f"HAMi's monitor runs: process {process.pid} is {name}"
                )

    def _has_in_its_file_system(self, process: HostProcess, places: list[_Place]) -> bool:
        """Whether a process can reach one of these directories.

        By its list of mounts alone: whoever walked its file system could be made to wait for ever.
        """
        try:
            mounts = _mounts(f"{self._node.proc}/{process.pid}/mountinfo")
        except PermissionError:
            return True
        except OSError:
            return False  # it has ended
        return any(
            device == mounted and _is_below(path, top)
            for device, path in places
            for mounted, top, _ in mounts.values()
        )


def _pod(process: HostProcess) -> str | None:
    return None if process.container is None else process.container.pod_uid


def _is_this(process: HostProcess) -> bool:
    """Whether it is this very process, whatever that /proc calls it."""
    if process.ns_pids[-1] != os.getpid():
        return False
    with open("/proc/self/stat", "rb") as file:  # noqa: PTH123
        return process.start_time_ticks == int(file.read().rpartition(b")")[2].split()[19])


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


def _place(directory: str) -> _Place | None:
    """What a directory is to all mount namespaces; None if that cannot be told."""
    try:
        descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
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


def _is_below(path: bytes, top: bytes) -> bool:
    return top == b"/" or path == top or path.startswith(top + b"/")


def _unescaped(field: bytes) -> bytes:
    return _ESCAPE.sub(lambda match: bytes([int(match[1], 8)]), field)

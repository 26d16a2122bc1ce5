"""Whether somebody else on the node writes launch marks and SM switches.

Only one may: two writers would block and unblock each other's containers. Looked for are HAMi's
monitor, by its name and by what it maps, and a second agent of this library, by a lock.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal, TypeAlias

import attrs

from libhamiregion.errors import RegionError
from libhamiregion.text import printable

from .root_locks import RootLocks

if TYPE_CHECKING:
    from collections.abc import Iterable

    from libhamiregion.node.containers import Container
    from libhamiregion.node.matching import HostProcess
    from libhamiregion.node.node import Node

#: The programs of HAMi and of volcano-vgpu that write these fields.
MONITOR_NAMES = frozenset({"vGPUmonitor", "volcano-vgpu-monitor"})

_ENVIRONMENT_LIMIT = 1 << 16
_WALK = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MANY = 2
# Where there are no containers' directories, as with plain Docker, agents meet here.
_WITHOUT_ROOTS = "/run"

Evidence: TypeAlias = Literal["name", "mapping", "lock", "sight"]


@attrs.frozen
class OtherWriter:
    """Somebody else who writes launch marks and SM switches, or may.

    Attributes:
        evidence: ``"name"``: a program of HAMi's monitor's name that has the node's containers in
            its file system; ``"mapping"``: a process outside the containers that holds regions
            open for writing; ``"lock"``: another agent of this library; ``"sight"``: nobody was
            found, but not everybody can be seen.
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
        pods: The pods of all such regions. Nobody inside a container has those of two pods.
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
        others = {other.pid: other for other in (*self._mapping(), *self._named())}
        found = [*others.values(), *self._blind()]
        directories = self._node.directories or (_WITHOUT_ROOTS,)
        for holder in self._locks.take(directories) if lock else ():
            who = "a process that cannot be seen" if holder.pid is None else f"process {holder.pid}"
            found.append(
                OtherWriter(
                    "lock", holder.pid, f"another agent runs: {who} has locked {holder.directory!r}"
                )
            )
        return tuple(found)

    def close(self) -> None:
        """Give the lock back."""
        self._locks.close()

    def _blind(self) -> Iterable[OtherWriter]:
        if not (self._assume_alone or self._node.processes.visibility.sees_all_pids):
            yield OtherWriter(
                "sight",
                None,
                f"{self._node.proc!r} does not show all processes of the node, so HAMi's monitor"
                " may run unseen; run in the host's pid namespace (hostPID: true)",
            )

    # ---- by what it maps -------------------------------------------------------------------------

    def _mapping(self) -> Iterable[OtherWriter]:
        held: dict[HostProcess, _Held] = {}
        tenants = self._tenants()
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
                    f"process {process.pid} ({_shown(process)}) holds regions of {len(of.pods)}"
                    " pods open for writing and is in none of them, as HAMi's monitor does",
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

    def _tenants(self) -> frozenset[str | None]:
        """The pods that hold a region, or a place for one."""
        return frozenset(
            container.pod_uid
            for container in self._node.containers
            if container.pod_uid is not None
        )

    # ---- by its name -----------------------------------------------------------------------------

    def _named(self) -> Iterable[OtherWriter]:
        tenants = self._tenants()
        for process in self._node.processes:
            name = PurePosixPath(process.command.partition(" ")[0]).name
            if name not in MONITOR_NAMES or _pod(process) in tenants or _is_this(process):
                continue
            if self._reaches_the_roots(process) is not False:
                yield OtherWriter(
                    "name", process.pid, f"HAMi's monitor runs: process {process.pid} is {name}"
                )

    def _reaches_the_roots(self, process: HostProcess) -> bool | None:
        """Whether a process has the node's containers in its file system; None if in the dark."""
        wanted = set()
        for directory in self._node.directories:
            with contextlib.suppress(OSError):
                status = os.stat(directory)  # noqa: PTH116
                wanted.add((status.st_dev, status.st_ino))
        if not wanted:
            return None
        base = f"{self._node.proc}/{process.pid}"
        paths = {*self._node.roots, *self._node.directories}
        try:
            hook_path = _variable(f"{base}/environ", b"HOOK_PATH")
            if hook_path is not None:
                paths.add(f"{hook_path}/containers")
            return any(_identity(f"{base}/root", path) in wanted for path in paths)
        except PermissionError:
            return None
        except OSError:
            return False  # it has ended


def _pod(process: HostProcess) -> str | None:
    return None if process.container is None else process.container.pod_uid


def _is_this(process: HostProcess) -> bool:
    """Whether it is this very process, whatever that /proc calls it."""
    return process.ns_pids[-1] == os.getpid() and process.start_time_ticks == _own_start()


def _own_start() -> int:
    with open("/proc/self/stat", "rb") as file:  # noqa: PTH123
        return int(file.read().rpartition(b")")[2].split()[19])


def _shown(process: HostProcess) -> str:
    command = printable(process.command)
    return command if len(command) <= 60 else f"{command[:57]}..."


def _variable(path: str, name: bytes) -> str | None:
    with open(path, "rb") as file:  # noqa: PTH123
        for entry in file.read(_ENVIRONMENT_LIMIT).split(b"\0"):
            if entry.startswith(name + b"="):
                return os.fsdecode(entry[len(name) + 1 :])
    return None


def _identity(root: str, path: str) -> tuple[int, int] | None:
    """Device and inode of a directory below a process's root.

    No link is followed: one that is absolute would lead through this process's own root.
    """
    at = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in PurePosixPath(path).parts[1:]:
            if part == "..":
                return None
            inner = os.open(part, _WALK, dir_fd=at)
            os.close(at)
            at = inner
        status = os.fstat(at)
    except (FileNotFoundError, NotADirectoryError):
        return None
    finally:
        os.close(at)
    return status.st_dev, status.st_ino

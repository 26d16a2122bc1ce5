"""The processes of a node, and which of them map which region."""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import attrs

from libhamiregion._core import ffi, lib
from libhamiregion.errors import new_error, region_error

from . import procfs
from .process_reader import ProcessReader, gaps_of
from .procfs import Gone

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from collections.abc import Mapping as MappingOf

    from libhamiregion._handle import Handle
    from libhamiregion.errors import PathLike

    from .process_reader import Entry, FileUser, HostProcess, ProcessGap
    from .procfs import FileIdentity, Mapping

T = TypeVar("T")


@attrs.frozen
class ProcVisibility:
    """How much of the node a /proc shows.

    Attributes:
        sees_host: It is that of the first pid namespace: its pids are those that the driver and a
            slot's ``hostpid`` mean.
        sees_all_pids: Every process of the node is in it, with its pids and command line. The maps
            of some may still be refused.
        unreadable: Pids whose maps may not be read; sorted, without the host's own init.
        own_pid: This process's pid in it; 0 if it is not shown.
        is_own_namespace: Whether its pids are those of this process's own pid namespace.
    """

    sees_host: bool = False
    sees_all_pids: bool = False
    unreadable: tuple[int, ...] = ()
    own_pid: int = 0
    is_own_namespace: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether every process of the node is shown and can be read."""
        return self.sees_all_pids and not self.unreadable

    @classmethod
    def of(
        cls, directory: int, entries: MappingOf[int, Entry], refused: Iterable[int]
    ) -> ProcVisibility:
        """What a /proc shows; not even ``stat`` may be read of the refused processes."""
        sees_host = procfs.initial_pid_namespace() in (
            procfs.read_link(directory, "self/ns/pid"),
            procfs.read_link(directory, "1/ns/pid"),
        )
        own = procfs.read_link(directory, "self") or ""
        own_pid = int(own) if own.isdigit() else 0
        # The init of the host itself is no process of a container.
        init = 1 if sees_host else 0
        hidden = [pid for pid, each in entries.items() if not each.is_readable and pid != init]
        itself = entries[own_pid].process if own_pid in entries else None
        return cls(
            sees_host=sees_host,
            # hidepid leaves out other users' processes, and the first of all is one of them.
            sees_all_pids=sees_host and not refused and 1 in entries,
            unreadable=tuple(sorted((*refused, *hidden))),
            own_pid=own_pid,
            is_own_namespace=itself is not None and len(itself.ns_pids) == 1,
        )


@attrs.frozen
class ProcessView:
    """One state of the table, replaced as a whole.

    Attributes:
        started_s: When reading it began, on the monotonic clock.
        ended_s: When it ended.
        entries: The processes by pid.
        by_ns_pid: The processes by the pid that they have in their own namespace.
        by_inode: Inode to the processes that map a file with it, by pid. An overlay or btrfs shows
            one file on another device.
        visibility: How much of the node could be seen.
        gaps: The processes that could not be read, by container and reason.
    """

    started_s: float = float("-inf")
    ended_s: float = float("-inf")
    entries: dict[int, Entry] = attrs.field(factory=dict)
    by_ns_pid: dict[int, list[Entry]] = attrs.field(factory=dict)
    by_inode: dict[int, tuple[FileUser, ...]] = attrs.field(factory=dict)
    visibility: ProcVisibility = attrs.field(factory=ProcVisibility)
    gaps: tuple[ProcessGap, ...] = ()


class ProcessTable:
    """All processes that one /proc shows, and the regions they map.

    A refresh lists /proc. A process that is new is read: its status, cgroup, maps and command line.
    What it maps is kept for five minutes, and read again at once where a slot has no process. A
    refresh takes 2 s for that, one process of each container in turn; a process that keeps its
    reader waiting for more than 1 s is given up. Processes that could not be read are in `gaps`.

    So a file that a process without a slot has mapped since may not be seen, and one that it has
    unmapped may still be. A slot is dead only if every process that could be its own was read after
    the slot was.

    Memory: about 1 KiB per process, and 0.5 KiB and the path per file that it maps in a region's
    size; 8 MiB per container at most. A process that maps more than 4,096 of those, or has more
    than 8 MiB of maps, is not read.

    Threads: may be shared. Refreshes exclude each other; all other methods work on the last
    complete one.

    Args:
        proc: The root of /proc, where it is mounted elsewhere (``/host/proc``).
        user_file: Names the users; where it cannot be read they are numbers.

    Attributes:
        proc: The root of /proc, absolute.
        view: The last complete state.
    """

    def __init__(self, proc: PathLike = "/proc", *, user_file: PathLike = "/etc/passwd") -> None:
        self.proc = str(Path(proc).absolute())
        self._refreshing = threading.Lock()
        self.view = ProcessView()
        self._user_file = Path(user_file)
        self._reader = ProcessReader()

    def refresh(self, wanted: Collection[int] = ()) -> None:
        """List the processes, and read those that are new or due.

        Args:
            wanted: Pids of processes that are read again, whatever their age.

        Raises:
            OSError: /proc itself cannot be listed, or the system is out of descriptors or memory;
                the table then stays as it was.
        """
        with self._refreshing:
            started_s = time.monotonic()
            directory = os.open(self.proc, procfs.DIRECTORY)
            try:
                users = _user_names(self._user_file)
                entries, refused = self._reader.read(directory, self.view.entries, users, wanted)
                by_ns_pid: defaultdict[int, list[Entry]] = defaultdict(list)
                by_inode: defaultdict[int, list[FileUser]] = defaultdict(list)
                for _, entry in sorted(entries.items()):
                    if entry.process is not None:
                        by_ns_pid[entry.process.ns_pids[-1]].append(entry)
                        for user in entry.uses:
                            by_inode[user.mapping.inode].append(user)
                users_of = {inode: tuple(users) for inode, users in by_inode.items()}
                visibility = ProcVisibility.of(directory, entries, refused)
                gaps = gaps_of(entries.values())
                self.view = ProcessView(
                    started_s, time.monotonic(), entries, by_ns_pid, users_of, visibility, gaps
                )
            finally:
                os.close(directory)

    # ---- the processes ---------------------------------------------------------------------------

    def get(self, pid: int) -> HostProcess | None:
        """The process with a pid of this /proc; None if there is none, or a kernel thread."""
        entry = self.view.entries.get(pid)
        return None if entry is None else entry.process

    def __iter__(self) -> Iterator[HostProcess]:
        """All processes but kernel threads, in no particular order."""
        entries = self.view.entries.values()
        return iter([entry.process for entry in entries if entry.process is not None])

    @property
    def visibility(self) -> ProcVisibility:
        """How much of the node the last refresh could see."""
        return self.view.visibility

    @property
    def is_complete(self) -> bool:
        """Whether this is the /proc of the first pid namespace and every process may be read.

        What was not read although it may be is in `gaps`.
        """
        return self.view.visibility.is_complete

    @property
    def gaps(self) -> tuple[ProcessGap, ...]:
        """The processes that the last refresh could not read, by container and reason."""
        return self.view.gaps

    def hides_users_of(self, pod_uid: str | None) -> bool:
        """Whether a process that could not be read may use the region of a pod.

        A container can reach the regions of its own pod only.

        Args:
            pod_uid: The pod; None if it is not known.
        """
        pods = {None if gap.container is None else gap.container.pod_uid for gap in self.view.gaps}
        return bool(pods if pod_uid is None else pods & {None, pod_uid})

    def has_libvgpu(self, process: HostProcess) -> bool | None:
        """Whether a process has libvgpu.so loaded, as of when it was read; None if not known."""
        entry = self._entry_of(process)
        return None if entry is None else entry.has_libvgpu

    def sm_policy(self, process: HostProcess) -> str:
        """Whether a process's environment has libvgpu limit SMs: force, disable or default.

        As of when it was read; the default if it is not known.
        """
        entry = self._entry_of(process)
        return "default" if entry is None else entry.sm_policy

    def ask(self, process: HostProcess, work: Callable[[], T]) -> T:
        """Do what may wait for a process, in a thread that is given up when it does.

        Args:
            process: The process.
            work: What to do.

        Raises:
            Blocked: The process keeps the thread waiting, or has done so before, or its container
                has used up its share of time.
            Gone: The process is not in the table any more.
            Exception: What `work` raises.
        """
        entry = self._entry_of(process)
        if entry is None:
            raise Gone
        return self._reader.ask(entry, work)

    def _entry_of(self, process: HostProcess) -> Entry | None:
        entry = self.view.entries.get(process.pid)
        is_same = entry is not None and entry.start_time_ticks == process.start_time_ticks
        return entry if is_same else None

    def ended(self, processes: Collection[HostProcess]) -> set[HostProcess]:
        """Find those that have ended; costs one read of ``stat`` each."""
        try:
            directory = os.open(self.proc, procfs.DIRECTORY)
        except OSError:
            return set(processes)
        try:
            starts = dict(procfs.read_start_times(directory, [each.pid for each in processes]))
        finally:
            os.close(directory)
        return {each for each in processes if starts.get(each.pid) != each.start_time_ticks}

    # ---- the files that they map -----------------------------------------------------------------

    def identity(self, region: Handle) -> FileIdentity:
        """A region's device and inode as maps prints them.

        `os.stat` gives another device number on some file systems (btrfs, overlay).

        Raises:
            RegionClosed: After `Region.close`.
        """
        found = ffi.new("struct hr_file_id *")
        error = new_error()
        code = lib.hr_get_file_id(region._handle, found, error)
        if code != lib.HR_OK:
            raise region_error(code, region.path, error)
        return os.makedev(found.major_number, found.minor_number), found.inode

    def mappings(self, identity: FileIdentity) -> tuple[tuple[HostProcess, Mapping], ...]:
        """The processes that map a file shared, and how; sorted by pid.

        Mappings of less than a region's size do not count.

        Args:
            identity: As `identity` gives it.
        """
        return tuple(
            (user.process, user.mapping)
            for user in self.users_of(identity)
            if user.mapping.identity == identity
        )

    def mappers(self, identity: FileIdentity, *, writable: bool = False) -> tuple[HostProcess, ...]:
        """The processes that map a file shared; sorted by pid.

        Args:
            identity: As `identity` gives it.
            writable: Only those that may write it.
        """
        return tuple(
            process
            for process, mapping in self.mappings(identity)
            if mapping.writable or not writable
        )

    def users_of(self, identity: FileIdentity) -> tuple[FileUser, ...]:
        """The processes that map a file, or one with its inode number on another device."""
        return self.view.by_inode.get(identity[1], ())


def _user_names(path: Path) -> dict[int, str]:
    """Names by number, from a passwd file; no directory service is asked, which could hang."""
    try:
        text = path.read_text(encoding="utf-8", errors="backslashreplace")
    except OSError:
        return {}
    rows = [line.split(":") for line in text.splitlines()]
    return {int(row[2]): row[0] for row in rows if len(row) > 2 and row[2].isdecimal()}

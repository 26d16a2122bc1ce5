"""The processes of a node, and which of them map which region."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar, cast

import attrs

from libhamiregion._core import ffi, lib
from libhamiregion.errors import RegionClosed, RegionStale, new_error, region_error
from libhamiregion.slots import attached_slots

from . import procfs
from .process_reader import ProcessReader, gaps_of
from .procfs import INITIAL_PID_NAMESPACE, AccessDenied, Gone, TooMuch
from .slots import FileUser, match_slots
from .workers import Blocked

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from collections.abc import Mapping as MappingOf

    from libhamiregion._handle import Handle
    from libhamiregion.errors import PathLike
    from libhamiregion.region import Region

    from .process_reader import Entry, HostProcess, ProcessGap
    from .procfs import Mapping
    from .slots import RegionProcesses

T = TypeVar("T")
# Static pods have a hash as UID in their cgroup, and their directory may have another UID.
_HASH_DIGITS: Final = 32
#: A file as maps prints it: device and inode. `os.stat` can give another device number.
FileIdentity: TypeAlias = "tuple[int, int]"


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
        sees_host = INITIAL_PID_NAMESPACE in (
            procfs.read_link(directory, "self/ns/pid"),
            procfs.read_link(directory, "1/ns/pid"),
        )
        own = procfs.read_link(directory, "self") or ""
        own_pid = int(own) if own.isdigit() else 0
        # The init of the host itself is no process of a container.
        hidden = [
            pid
            for pid, entry in entries.items()
            if not entry.is_readable
            and not (sees_host and entry.process is not None and entry.process.ns_pids == (1,))
        ]
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
class _View:
    """One state of the table, replaced as a whole."""

    started_ns: int = 0
    ended_s: float = float("-inf")
    entries: dict[int, Entry] = attrs.field(factory=dict)
    # By the pid that they have in their own namespace.
    by_pid: dict[int, list[Entry]] = attrs.field(factory=dict)
    # Inode to the processes that map a file with it, by pid. An overlay or btrfs shows one file on
    # another device.
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
    """

    def __init__(self, proc: PathLike = "/proc", *, user_file: PathLike = "/etc/passwd") -> None:
        self.proc = str(Path(proc).absolute())
        self._refreshing = threading.Lock()
        self._view = _View()
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
            started_ns = time.time_ns()
            directory = os.open(self.proc, procfs.DIRECTORY)
            try:
                users = _user_names(self._user_file)
                entries, refused = self._reader.read(directory, self._view.entries, users, wanted)
                by_pid: defaultdict[int, list[Entry]] = defaultdict(list)
                by_inode: defaultdict[int, list[FileUser]] = defaultdict(list)
                for pid in sorted(entries):
                    entry = entries[pid]
                    process = entry.process
                    if process is not None:
                        by_pid[process.ns_pids[-1]].append(entry)
                        for file in entry.mappings:
                            user = FileUser(process, entry.namespace, file)
                            by_inode[file.inode].append(user)
                self._view = _View(
                    started_ns,
                    time.monotonic(),
                    entries,
                    by_pid,
                    {inode: tuple(users) for inode, users in by_inode.items()},
                    ProcVisibility.of(directory, entries, refused),
                    gaps_of(entries.values()),
                )
            finally:
                os.close(directory)

    # ---- the processes ---------------------------------------------------------------------------

    def get(self, pid: int) -> HostProcess | None:
        """The process with a pid of this /proc; None if there is none, or a kernel thread."""
        entry = self._view.entries.get(pid)
        return None if entry is None else entry.process

    def __iter__(self) -> Iterator[HostProcess]:
        """All processes but kernel threads, in no particular order."""
        entries = self._view.entries.values()
        return iter([entry.process for entry in entries if entry.process is not None])

    def __len__(self) -> int:
        return sum(entry.process is not None for entry in self._view.entries.values())

    @property
    def read_at_ns(self) -> int:
        """When the last refresh began, Unix nanoseconds; 0 before the first."""
        return self._view.started_ns

    @property
    def read_s(self) -> float:
        """When the last refresh ended, on the monotonic clock."""
        return self._view.ended_s

    @property
    def visibility(self) -> ProcVisibility:
        """How much of the node the last refresh could see."""
        return self._view.visibility

    @property
    def is_complete(self) -> bool:
        """Whether this is the /proc of the first pid namespace and every process may be read.

        What was not read although it may be is in `gaps`.
        """
        return self._view.visibility.is_complete

    @property
    def gaps(self) -> tuple[ProcessGap, ...]:
        """The processes that the last refresh could not read, by container and reason."""
        return self._view.gaps

    def hides_users_of(self, pod_uid: str | None) -> bool:
        """Whether a process that could not be read may use the region of a pod.

        A container can reach the regions of its own pod only.

        Args:
            pod_uid: The pod; None if it is not known.
        """
        pods = {None if gap.container is None else gap.container.pod_uid for gap in self._view.gaps}
        return bool(pods if pod_uid is None else pods & {None, pod_uid})

    def has_libvgpu(self, process: HostProcess) -> bool | None:
        """Whether a process has libvgpu.so loaded, as of when it was read; None if not known."""
        entry = self._entry_of(process)
        return None if entry is None else entry.has_libvgpu

    def fact(
        self, process: HostProcess, file: str, limit: int, parse: Callable[[bytes], T]
    ) -> T | None:
        """What a file of a process says; it is read once until the process calls exec.

        Args:
            process: The process.
            file: The file's name in the process's directory.
            limit: The most bytes that are read.
            parse: Makes of the file what is to be known and kept.

        Returns:
            What `parse` returns; None where the file cannot be read whole, or not in time.
        """

        def read() -> bytes:
            descriptor = procfs.open_process(None, f"{self.proc}/{process.pid}")
            try:
                if procfs.read_stat(descriptor).start_time_ticks != process.start_time_ticks:
                    raise Gone
                content = procfs.read_file(descriptor, file, limit + 1)
                if len(content) > limit:
                    raise TooMuch
                return content
            finally:
                os.close(descriptor)

        entry = self._entry_of(process)
        if entry is None:
            return None
        if file not in entry.facts:
            try:
                entry.facts[file] = parse(self.ask(process, read))
            except (Gone, AccessDenied, TooMuch, Blocked, OSError):
                return None
        return cast("T", entry.facts[file])

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
        entry = self._view.entries.get(process.pid)
        if entry is None or entry.process is None:
            return None
        is_same = entry.start_time_ticks == process.start_time_ticks
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
            (user.process, user.mapping) for user in self.users_of(identity) if user.maps(identity)
        )

    def mappers(
        self, device: int, inode: int, *, writable: bool = False
    ) -> tuple[HostProcess, ...]:
        """The processes that map a file shared, by its identity as maps prints it; sorted by pid.

        Args:
            device: As `identity` gives it.
            inode: As `identity` gives it.
            writable: Only those that may write it.
        """
        return tuple(
            process
            for process, mapping in self.mappings((device, inode))
            if mapping.writable or not writable
        )

    def mapped_files(self) -> Iterator[FileIdentity]:
        """Every file that processes map shared, in a region's size or more."""
        for inode, users in self._view.by_inode.items():
            for device in {user.mapping.device for user in users}:
                yield device, inode

    def users_of(self, identity: FileIdentity) -> tuple[FileUser, ...]:
        """The processes that map a file, or one with its inode number on another device."""
        return self._view.by_inode.get(identity[1], ())

    def unread_since(self, pids: Iterable[int], pod_uid: str | None, since_s: float) -> set[int]:
        """Find processes that may have mapped a region since they were read.

        Args:
            pids: The pids in the region's slots whose processes are not known.
            pod_uid: The region's pod; None if it is not known.
            since_s: When the slots were read, on the monotonic clock.
        """
        return {
            entry.process.pid
            for pid in pids
            for entry in self._view.by_pid.get(pid, ())
            if entry.process is not None
            and entry.unread is None
            and entry.read_s < since_s
            and (pod_uid is None or entry.process.pod_uid in {None, pod_uid})
        }

    def match(
        self,
        region: Region,
        pids: Sequence[int],
        taken_at_ns: int,
        *,
        pod_uid: str | None = None,
        shared: bool = False,
        exclusive: bool = False,
    ) -> RegionProcesses:
        """Which process each slot of a region belongs to, and which map it without a slot.

        Take a snapshot first and refresh afterwards: a process that came between cannot be told
        from a dead one otherwise, and slots without a process are ``"unknown"``. `hostpid` in the
        region is not used.

        That a slot's process is dead is for showing; `Region.reap` searches /proc again.

        Args:
            region: The region, for the identity of its file.
            pids: The pids in its slots.
            taken_at_ns: When they were read, as `RegionSnapshot.taken_at_ns`.
            pod_uid: The pod that the region belongs to, if its directory says so: processes that
                are known to be of another one are onlookers.
            shared: Whether several containers use the region, each with pids of its own.
            exclusive: Whether containers of other pods cannot have mapped it: then their processes
                need not be read.

        Raises:
            RegionClosed: After `Region.close`.

        Source: docs, The protocol (Which process is which).
        """
        view, identity = self._view, self.identity(region)
        own = 0 if self._is_attached(identity) else view.visibility.own_pid
        users: list[FileUser] = []
        onlookers: list[FileUser] = []
        for user in self.users_of(identity):
            if user.maps(identity):
                is_other_pod = pod_uid is not None and user.process.pod_uid not in {None, pod_uid}
                is_user = user.mapping.writable and user.process.pid != own and not is_other_pod
                (users if is_user else onlookers).append(user)
        found = match_slots(
            pids, users, onlookers, sees_host=view.visibility.sees_host, shared=shared
        )
        lost = set(pids).difference(found.alive)
        if not lost or view.started_ns < taken_at_ns:
            return found
        others = self.other_pod_processes(region, lost, pod_uid if exclusive else None)
        # The init of the host itself is no process of a container, also if it may not be read.
        init = 1 if view.visibility.sees_host else 0
        none = {own, init, *(pid for pid, _ in others)}
        return attrs.evolve(found, dead=self._dead(lost, pids, identity, none, taken_at_ns))

    def other_pod_processes(
        self, region: Region, pids: Iterable[int], pod_uid: str | None
    ) -> list[tuple[int, int]]:
        """Find the processes that are proved to be of other pods than a region.

        A container decides how long its maps take to read, and its processes often have the pids
        of another container's: 1, or 7. A directory of regions is mounted into the containers of
        its pod alone, and only the host's root moves a process from one pod's cgroup to another's:
        so these need not be read.

        Args:
            region: The region.
            pids: Pids in its slots.
            pod_uid: Its pod; None if it is not known, and nothing is proved.

        Returns:
            Pid and start time of each, by pid.
        """
        view = self._view
        own = self.get(view.visibility.own_pid)
        # If this process is not shown, nothing is proved.
        if pod_uid is None or own is None:
            return []
        # On a node that is itself in a pod, that is the outermost pod of all its processes.
        same = {None, own.pod_uid, pod_uid}
        users = {user.process.pid for user in self.users_of(self.identity(region))}
        return sorted(
            entry.identity
            for pid in pids
            for entry in view.by_pid.get(pid, ())
            if entry.process is not None
            and entry.process.pod_uid not in same
            and len(entry.process.pod_uid or "") != _HASH_DIGITS
            and entry.process.pid not in users
        )

    def _dead(
        self,
        lost: Collection[int],
        pids: Collection[int],
        identity: FileIdentity,
        none: Collection[int],
        taken_at_ns: int,
    ) -> frozenset[int]:
        """The pids in slots that no process has that maps the file, or may map it."""
        view = self._view
        users = [user for user in view.by_inode.get(identity[1], ()) if user.mapping.writable]
        # Another namespace than the first proves nothing unless the slots' processes live in it.
        is_theirs = not view.visibility.unreadable and any(
            user.pid in pids
            and len(user.process.ns_pids) == 1
            and user.maps(identity)
            and view.entries[user.process.pid].has_libvgpu
            for user in users
        )
        sees_all = view.visibility.sees_all_pids if view.visibility.sees_host else is_theirs
        if not sees_all:
            return frozenset()
        taken_s = time.monotonic() - (time.time_ns() - taken_at_ns) / 1e9
        possible = {user.pid for user in users if user.process.pid not in none}
        for pid in lost:
            for entry in view.by_pid.get(pid, ()):
                is_known = entry.unread is None and entry.is_readable and entry.read_s >= taken_s
                if not is_known and entry.identity[0] not in none:
                    possible.add(pid)
        return frozenset(lost) - possible

    def _is_attached(self, identity: FileIdentity) -> bool:
        """Whether this process has a slot in that region."""
        for slot in attached_slots():
            with contextlib.suppress(RegionClosed, RegionStale):
                if self.identity(slot.region) == identity:
                    return True
        return False


def _user_names(path: Path) -> dict[int, str]:
    """Names by number, from a passwd file; no directory service is asked, which could hang."""
    try:
        text = path.read_text(encoding="utf-8", errors="backslashreplace")
    except OSError:
        return {}
    rows = [line.split(":") for line in text.splitlines()]
    return {int(row[2]): row[0] for row in rows if len(row) > 2 and row[2].isdecimal()}

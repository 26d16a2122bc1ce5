"""The processes of a node, and which of them map which region."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar, cast

import attrs

from libhamiregion._core import ffi, lib
from libhamiregion.errors import RegionClosed, RegionStale, new_error, region_error
from libhamiregion.slot import attached_slots

from . import procfs
from .matching import Mapper, RegionProcesses, match_slots
from .proc_visibility import ProcVisibility, visibility_of
from .process_entry import Entry, gaps_of
from .process_reader import ProcessReader
from .procfs import AccessDenied, Gone, TooMuch
from .reader_threads import Blocked

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from collections.abc import Mapping as MappingOf

    from libhamiregion.errors import PathLike
    from libhamiregion.region import Region

    from .matching import HostProcess
    from .process_entry import ProcessGap
    from .procfs import Mapping

T = TypeVar("T")
K = TypeVar("K")
_HASH_DIGITS = 32
#: A file as maps prints it: device and inode. `os.stat` can give another device number.
FileIdentity: TypeAlias = "tuple[int, int]"
#: The processes that map a file, by pid; with each its pid namespace, and what it maps.
FileUsers: TypeAlias = "tuple[tuple[HostProcess, str | None, Mapping], ...]"


@attrs.frozen
class _View:
    """One state of the table, replaced as a whole."""

    started_ns: int = 0
    entries: dict[int, Entry] = attrs.field(factory=dict)
    # By the pid that they have in their own namespace.
    by_pid: dict[int, list[Entry]] = attrs.field(factory=dict)
    # Those that map files in a region's size, by pid; the same object while they are the same. What
    # they did otherwise since is in `entries` alone.
    mapping: tuple[Entry, ...] = ()
    by_file: dict[FileIdentity, FileUsers] = attrs.field(factory=dict)
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
        self._wanted: set[int] = set()

    def refresh(self) -> None:
        """List the processes, and read those that are new or due.

        Raises:
            OSError: /proc itself cannot be listed, or the system is out of descriptors or memory;
                the table then stays as it was.
        """
        with self._refreshing:
            started_ns = time.time_ns()
            directory = os.open(self.proc, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                users = _user_names(self._user_file)
                wanted, self._wanted = self._wanted, set()
                entries, refused = self._reader.read(directory, self._view.entries, users, wanted)
                before = self._view
                visibility = visibility_of(directory, entries, refused)
                mapping = _that_map(entries)
                if _same_users(before.mapping, mapping):
                    mapping = before.mapping
                self._view = _View(
                    started_ns,
                    entries,
                    _by_innermost_pid(entries),
                    mapping,
                    before.by_file if mapping is before.mapping else _users_by_file(mapping),
                    visibility,
                    gaps_of(entries.values()),
                )
            finally:
                os.close(directory)

    def _find_late(
        self, lost: MappingOf[K, tuple[Collection[int], str | None]], since_s: float
    ) -> set[K]:
        """Find regions that processes may have mapped since they were read.

        The next refresh reads these processes again.

        Args:
            lost: For each region the pids in its slots whose processes are not known, and its pod.
            since_s: When the slots had been read, on the clock that is never set.

        Returns:
            The regions of which some process is read again.
        """
        regions: defaultdict[int, list[K]] = defaultdict(list)
        for region, (pids, _) in lost.items():
            for pid in pids:
                regions[pid].append(region)
        late: set[K] = set()
        for pid, entry in self._view.entries.items():
            process = entry.process
            if process is None or entry.unread is not None or entry.looked_at_s >= since_s:
                continue
            pods = {None, None if process.container is None else process.container.pod_uid}
            found = [
                region
                for region in regions.get(process.ns_pids[-1], ())
                if lost[region][1] in pods or pods == {None}
            ]
            if found:
                late.update(found)
                self._wanted.add(pid)
        return late

    # ---- the processes ---------------------------------------------------------------------------

    def get(self, pid: int) -> HostProcess | None:
        """The process with a pid of this /proc; None if there is none, or a kernel thread."""
        entry = self._view.entries.get(pid)
        return None if entry is None else entry.process

    def look_up(self, pid: int) -> HostProcess | None:
        """Do as `get`; a process that the last refresh did not see is read now."""
        known = self.get(pid)
        if known is not None and self.is_running(known):
            return known
        try:
            directory = os.open(self.proc, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            entry = self._reader.look_up(directory, pid)
        except OSError:
            return None
        finally:
            os.close(directory)
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
            pod_uid: The pod; None where it is not known.
        """
        return any(
            pod_uid is None
            or gap.container is None
            or gap.container.pod_uid is None
            or gap.container.pod_uid == pod_uid
            for gap in self._view.gaps
        )

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
            descriptor = procfs.open_process_at(f"{self.proc}/{process.pid}")
            try:
                stat = procfs.parse_stat(procfs.stat_line(descriptor))
                if stat.start_time_ticks != process.start_time_ticks:
                    raise Gone
                return procfs.read_all(descriptor, file, limit)
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
        return cast("T", self._reader.ask(entry, work))

    def _entry_of(self, process: HostProcess) -> Entry | None:
        entry = self._view.entries.get(process.pid)
        if entry is None or entry.process is None:
            return None
        is_same = entry.start_time_ticks == process.start_time_ticks
        return entry if is_same else None

    def is_running(self, process: HostProcess) -> bool:
        """Whether that very process is still there; costs one read of its ``stat``."""
        return not self.ended([process])

    def ended(self, processes: Collection[HostProcess]) -> set[HostProcess]:
        """Find those that have ended; costs one read of ``stat`` each."""
        try:
            directory = os.open(self.proc, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return set(processes)
        try:
            starts = dict(procfs.read_start_times(directory, [each.pid for each in processes]))
        finally:
            os.close(directory)
        return {each for each in processes if starts.get(each.pid) != each.start_time_ticks}

    # ---- the files that they map -----------------------------------------------------------------

    def identity(self, region: Region) -> FileIdentity:
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
        users = self._view.by_file.get(identity, ())
        return tuple((process, mapping) for process, _, mapping in users)

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
        return iter(self._view.by_file)

    def _users_state(self) -> tuple[object, ...]:
        """What `_users_of` rests on; compared by identity, and for equality but for the first."""
        view = self._view
        attached = tuple(map(id, attached_slots()))
        return view.mapping, view.visibility.sees_host, view.visibility.own_pid, attached

    def _users_of(self, region: Region) -> tuple[object, ...]:
        """What `match` makes of a region's slots rests on this; equal things match equally.

        But for what it says of the dead: that comes from the core.

        Raises:
            RegionClosed: After `Region.close`.
        """
        view = self._view
        identity = self.identity(region)
        own = view.visibility.own_pid if not self._is_attached(identity) else 0
        return view.by_file.get(identity, ()), view.visibility.sees_host, own

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
        region is not looked at.

        That a slot's process is dead is for showing; `Region.reap` searches /proc again.

        Args:
            region: The region, for the identity of its file.
            pids: The pids in its slots.
            taken_at_ns: When they were read, as `RegionSnapshot.taken_at_ns`.
            pod_uid: The pod that the region belongs to, where its directory tells: processes that
                are known to be of another one are onlookers.
            shared: Whether several containers use the region, each with pids of its own.
            exclusive: Whether containers of other pods cannot have mapped it: what their processes
                map is not read for it.

        Raises:
            RegionClosed: After `Region.close`.

        Source: docs, The protocol (Which process is which).
        """
        view = self._view
        identity = self.identity(region)
        own = view.visibility.own_pid if not self._is_attached(identity) else 0
        mappers = []
        for process, namespace, mapping in view.by_file.get(identity, ()):
            container = process.container
            pod = container.pod_uid if container is not None else None
            stranger = pod_uid is not None and pod is not None and pod != pod_uid
            may_use = mapping.writable and process.pid != own and not stranger
            mappers.append(Mapper(process, namespace, may_use))

        def dead(lost: Sequence[int]) -> frozenset[int]:
            if view.started_ns < taken_at_ns:
                return frozenset()
            others = _strangers(view, identity, pod_uid if exclusive else None, lost)
            none = {own, *(pid for pid, _ in others)}
            return _dead(view, lost, pids, identity, none, taken_at_ns)

        return match_slots(
            pids, mappers, sees_host=view.visibility.sees_host, dead=dead, shared=shared
        )

    def _strangers_to(
        self, region: Region, pids: Iterable[int], pod_uid: str
    ) -> list[tuple[int, int]]:
        """Find processes of other pods than a region's, as `other_pod_processes`."""
        return _strangers(self._view, self.identity(region), pod_uid, pids)

    def _is_attached(self, identity: FileIdentity) -> bool:
        """Whether this process has a slot in that region."""
        for slot in attached_slots():
            with contextlib.suppress(RegionClosed, RegionStale):
                if self.identity(slot.region) == identity:
                    return True
        return False


def _strangers(
    view: _View, identity: FileIdentity, pod_uid: str | None, pids: Iterable[int]
) -> list[tuple[int, int]]:
    users = {process.pid for process, _, _ in view.by_file.get(identity, ())}
    own = view.entries.get(view.visibility.own_pid)
    return other_pod_processes(view.by_pid, own, pod_uid, pids, users)


def other_pod_processes(
    by_pid: MappingOf[int, Iterable[Entry]],
    own: Entry | None,
    pod_uid: str | None,
    pids: Iterable[int],
    users: Collection[int],
) -> list[tuple[int, int]]:
    """Find the processes that are proved to be of other pods than a region.

    A container decides how long its maps take to read, and its processes often have the pids of
    another container's: 1, or 7. A directory of regions is mounted into the containers of its pod
    alone, and only the host's root moves a process from one pod's cgroup to another's: so these
    need not be read.

    Args:
        by_pid: The processes, by the pid in their own namespace.
        own: This process; None if it is not shown, and nothing is proved.
        pod_uid: The region's pod; None if it is not known, and nothing is proved.
        pids: Pids in slots.
        users: Pids of processes that are known to map the region.

    Returns:
        Pid and start time of each, by pid.
    """
    if pod_uid is None or own is None or own.process is None:
        return []
    # On a node that is itself in a pod, that is the outermost pod of all its processes.
    own_pod = None if own.process.container is None else own.process.container.pod_uid
    found = []
    for entry in (entry for pid in pids for entry in by_pid.get(pid, ())):
        container = None if entry.process is None else entry.process.container
        pod = None if container is None else container.pod_uid
        # A static pod's cgroup has a hash, and its directory may have another UID.
        if pod is None or pod in {own_pod, pod_uid} or len(pod) == _HASH_DIGITS:
            continue
        if entry.identity[0] not in users:
            found.append(entry.identity)
    return sorted(found)


def _dead(
    view: _View,
    lost: Collection[int],
    pids: Sequence[int],
    identity: FileIdentity,
    none: Collection[int],
    taken_at_ns: int,
) -> frozenset[int]:
    """The pids in slots of which no process can be: none has that pid and maps the file, or may."""
    users = view.by_file.get(identity, ())
    named = set(pids)
    # Another namespace than the first one proves nothing unless the slots' processes live in it.
    is_theirs = not view.visibility.unreadable and any(
        process.ns_pids[-1] in named
        and len(process.ns_pids) == 1
        and mapping.writable
        and view.entries[process.pid].has_libvgpu
        for process, _, mapping in users
    )
    sees_all = view.visibility.sees_all_pids if view.visibility.sees_host else is_theirs
    if not sees_all:
        return frozenset()
    taken_s = time.monotonic() - (time.time_ns() - taken_at_ns) / 1e9
    possible = {
        process.ns_pids[-1]
        for process, _, mapping in users
        if mapping.writable and process.pid not in none
    }
    for pid in lost:
        for entry in view.by_pid.get(pid, ()):
            is_known = entry.unread is None and entry.readable and entry.looked_at_s >= taken_s
            if not is_known and entry.identity[0] not in none:
                possible.add(pid)
    return frozenset(lost).difference(possible)


def _by_innermost_pid(entries: MappingOf[int, Entry]) -> dict[int, list[Entry]]:
    found: defaultdict[int, list[Entry]] = defaultdict(list)
    for entry in entries.values():
        if entry.process is not None:
            found[entry.process.ns_pids[-1]].append(entry)
    return found


def _that_map(entries: MappingOf[int, Entry]) -> tuple[Entry, ...]:
    """The processes that map files in a region's size, by pid."""
    pids = sorted([pid for pid, each in entries.items() if each.mappings])
    return tuple([entries[pid] for pid in pids])


def _same_users(before: Sequence[Entry], now: Sequence[Entry]) -> bool:
    """Whether the same processes map the same files."""
    return len(before) == len(now) and all(
        each.is_as_used(was) for was, each in zip(before, now, strict=True)
    )


def _users_by_file(mapping: Iterable[Entry]) -> dict[FileIdentity, FileUsers]:
    found: defaultdict[FileIdentity, list[tuple[HostProcess, str | None, Mapping]]]
    found = defaultdict(list)
    for entry in mapping:
        for file in entry.mappings:
            assert entry.process is not None  # noqa: S101 (kernel threads map no files)
            found[file.device, file.inode].append((entry.process, entry.namespace, file))
    return {file: tuple(users) for file, users in found.items()}


def _user_names(path: Path) -> dict[int, str]:
    """Names by number, from a passwd file; no directory service is asked, which could hang."""
    try:
        text = path.read_text(encoding="utf-8", errors="backslashreplace")
    except OSError:
        return {}
    rows = [line.split(":") for line in text.splitlines()]
    return {int(row[2]): row[0] for row in rows if len(row) > 2 and row[2].isdecimal()}

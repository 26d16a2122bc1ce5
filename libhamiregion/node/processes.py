"""The processes of a node, and which of them map which region."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from libhamiregion.errors import RegionClosed, RegionStale
from libhamiregion.layouts import LAYOUTS
from libhamiregion.region import open_region
from libhamiregion.slot import attached_slots

from . import procfs
from .cgroups import parse_cgroup
from .host_process import HostProcess, RegionMapping
from .liveness import Liveness
from .mapped import MappedFile, MappedRegion, is_plain, looks_like_a_region, path_now
from .matching import Mapper, RegionProcesses, match_slots
from .process_view import Entry, View, view_of
from .procfs import Gone, Mapping, Refused
from .users import UserNames

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

    from libhamiregion.errors import PathLike
    from libhamiregion.models import RegionSnapshot
    from libhamiregion.region import Region

_SMALLEST_REGION = min(layout.size_bytes for layout in LAYOUTS)
# A monitor maps one file per container. What is kept of all processes together is bounded too: who
# maps many is refused where thousands of processes do.
_FILES_LIMIT = 4_096
_FILES_LIMIT_IF_MANY = 64
_MANY_FILES = 100_000
# A process can have so many mappings that looking at it takes half a second, and stay busy, so that
# it has to be looked at each time. Looks at such ones share this time, in each refresh.
_DEAR_LOOK_S = 0.02
_DEAR_LOOKS_S = 0.25


_tables: weakref.WeakSet[ProcessTable] = weakref.WeakSet()


def _unlock_in_child() -> None:
    # Another thread of the parent may have been inside, and does not exist in the child.
    for table in _tables:
        table._refreshing = threading.Lock()
        table._identifying = threading.Lock()
        table._view = attrs.evolve(table._view, liveness=Liveness(table.proc))


os.register_at_fork(after_in_child=_unlock_in_child)


class ProcessTable:
    """All processes that one /proc shows, and the regions they map.

    Cost: a refresh lists /proc and reads ``stat`` of each process, about 15 us each. More is read
    only of a process that is new, or whose page faults, address space or start time differ from
    what they were: then its maps, status, cgroup and command line, about 0.1 ms and 2 us per
    mapping, nearly all of it in the kernel. Kernel threads cost ``stat`` only. So 1,000 processes
    cost 15 ms while they are idle, and 0.3 s, with 100 mappings each, where all of them are new or
    busy. A look at a process with tens of thousands of mappings takes up to 0.5 s; once they are
    known, those share 0.25 s in each refresh. Who has to wait stays in the table as it was.

    Slots without a process in the table are judged by the core, as `Region.reap` does. That takes a
    second pass over /proc at the first such slot after a refresh, 15 us for each process, and the
    maps of those processes that have the same pid in their container; 1.5 s at most for all regions
    together.

    What that misses: a process that maps a file, unmaps as many bytes elsewhere and touches no new
    page at all, until it does; a change of user or cgroup alone, until the process touches one.

    Memory: about 1 KiB per process, and 0.5 KiB per file that it maps in a region's size. Who maps
    more than 4,096 of those (64 where all together map more than 100,000), or has more than 32 MiB
    of maps, counts as unreadable. A descriptor of /proc is kept from when the core is asked until
    the next refresh.

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
        self._identifying = threading.Lock()
        _tables.add(self)
        self._view = View(Liveness(self.proc))
        self._users = UserNames(user_file)
        self._files_kept = 0
        # Address -> how maps calls what is mapped there, and what stat called it.
        self._own_mappings: dict[int, tuple[int, int]] = {}
        self._checked: dict[int, tuple[int, int]] = {}

    def refresh(self) -> None:
        """Read what has changed since the last refresh.

        Raises:
            OSError: /proc itself cannot be listed, or the system is out of descriptors or memory;
                the table then stays as it was.
        """
        with self._refreshing:
            started_ns = time.time_ns()
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            directory = os.open(self.proc, flags)
            try:
                self._users.refresh()
                self._view = self._read(directory, started_ns)
            finally:
                os.close(directory)

    def _read(self, directory: int, started_ns: int) -> View:
        before = self._view.entries
        entries: dict[int, Entry] = {}
        refused: list[int] = []
        dear: list[tuple[int, Entry]] = []
        self._files_kept = sum(len(entry.mappings) for entry in before.values())
        for name in os.listdir(directory):
            if not name.isdigit():
                continue
            pid = int(name)
            try:
                activity = procfs.activity(procfs.stat_line(directory, f"{name}/stat"))
                known = before.get(pid)
                if known is not None and known.activity == activity:
                    entries[pid] = known
                elif known is not None and _may_wait(known, activity):
                    dear.append((pid, known))
                else:
                    entries[pid] = self._look_at(directory, name)
            except Gone:
                continue
            except Refused:
                refused.append(pid)
        self._look_at_dear(directory, dear, entries, refused)
        return view_of(directory, Liveness(self.proc), started_ns, entries, refused)

    def _look_at_dear(
        self,
        directory: int,
        dear: list[tuple[int, Entry]],
        entries: dict[int, Entry],
        refused: list[int],
    ) -> None:
        """Look at one, and at more as long as there is time; the rest stays as it was."""
        left_s = _DEAR_LOOKS_S
        for pid, known in sorted(dear, key=lambda each: each[1].looked_at_s):
            if left_s <= 0:
                entries[pid] = known
                continue
            try:
                entries[pid] = self._look_at(directory, str(pid))
            except Gone:
                continue
            except Refused:
                refused.append(pid)
                continue
            left_s -= entries[pid].look_s

    def _look_at(self, directory: int, name: str) -> Entry:
        begun_s = time.thread_time()
        descriptor = procfs.open_process(directory, name)
        try:
            # stat comes first: what the process maps later differs from this and is seen next time.
            stat = procfs.parse_stat(procfs.stat_line(descriptor))
            if stat.kernel_thread:
                return Entry(stat.activity)
            status = procfs.read_status(descriptor)
            command = cgroup = ""
            mappings: tuple[Mapping, ...] = ()
            readable = True
            try:
                mappings = procfs.read_mappings(
                    descriptor,
                    leader_gone=stat.leader_gone,
                    smallest=_SMALLEST_REGION,
                    most=_FILES_LIMIT if self._files_kept < _MANY_FILES else _FILES_LIMIT_IF_MANY,
                )
                self._files_kept += len(mappings)
            except Refused:
                readable = False
            with contextlib.suppress(Refused):
                cgroup = procfs.read_cgroup(descriptor)
            with contextlib.suppress(Refused):
                command = procfs.read_command(descriptor)
            process = HostProcess(
                pid=int(name),
                start_time_ticks=stat.start_time_ticks,
                ns_pids=status.ns_pids,
                uid=status.uid,
                user=self._users.name(status.uid),
                command=command or f"[{stat.name}]",
                container=parse_cgroup(cgroup),
            )
            namespace = procfs.pid_namespace(descriptor) if mappings else None
            look_s = time.thread_time() - begun_s
            return Entry(
                stat.activity, process, mappings, namespace, readable, look_s, time.monotonic()
            )
        finally:
            os.close(descriptor)

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
    def is_complete(self) -> bool:
        """Whether this is the /proc of the first pid namespace and every process can be read."""
        view = self._view
        return view.everybody and not view.hidden and not view.unreadable

    @property
    def sees_host(self) -> bool:
        """Whether this is the /proc of the first pid namespace, the host's.

        Its pids are then those that the driver and a slot's ``hostpid`` mean.
        """
        return self._view.everybody

    @property
    def sees_everybody(self) -> bool:
        """Whether every process of the node is in the table, with its pids and command line.

        The maps of some may still be refused; see `is_complete`.
        """
        view = self._view
        return view.everybody and not view.hidden

    @property
    def own_pid(self) -> int:
        """This process's pid in the table; 0 where that /proc does not show it."""
        return self._view.own_pid

    @property
    def unreadable(self) -> tuple[int, ...]:
        """Pids whose maps may not be read, or are too long; sorted, without the host's own init."""
        return self._view.unreadable

    # ---- the files that they map -----------------------------------------------------------------

    def identity(self, region: Region) -> tuple[int, int]:
        """A region's device and inode as maps prints them, for `mappers` and `mapped_regions`.

        `os.stat` gives another device number on some file systems (btrfs, overlay).

        Raises:
            RegionClosed: After `Region.close`.
        """
        info = region._mapping()
        # Another file may be mapped now where one was when maps was read.
        as_stat = (info.device_id, info.inode)
        with self._identifying:
            known = self._own_mappings.get(info.address)
            if known != as_stat and self._checked.get(info.address) != as_stat:
                # A process that has dropped its privileges may not read its own maps; then stat's
                # numbers have to do.
                with contextlib.suppress(Refused, Gone):
                    self._own_mappings = procfs.read_own_mappings()
                known = self._own_mappings.get(info.address)
                self._checked = {
                    address: seen
                    for address, seen in self._checked.items()
                    if address in self._own_mappings
                }
                self._checked[info.address] = as_stat
        return as_stat if known is None else known

    def mappers(
        self, device: int, inode: int, *, writable: bool = False
    ) -> tuple[HostProcess, ...]:
        """The processes that map a file shared, by its identity as maps prints it; sorted by pid.

        Mappings of less than a region's size do not count.

        Args:
            device: As `identity` gives it.
            inode: As `identity` gives it.
            writable: Only those that may write it.
        """
        return tuple(
            entry.process
            for entry, mapping in self._view.by_file.get((device, inode), ())
            if entry.process is not None and (mapping.writable or not writable)
        )

    def mappings(self, region: Region) -> tuple[RegionMapping, ...]:
        """Who maps a region, and how; sorted by pid.

        Raises:
            RegionClosed: After `Region.close`.
        """
        return tuple(
            RegionMapping(entry.process, mapping.length_bytes, mapping.writable)
            for entry, mapping in self._view.by_file.get(self.identity(region), ())
            if entry.process is not None
        )

    def mapped_files(self, *, without: Container[tuple[int, int]] = ()) -> Iterator[MappedFile]:
        """Every file mapped by others for writing that looks like a region.

        That is one called ``*.cache``, or one mapped in the exact length of a layout. What this
        process maps itself does not count. Costs no look at /proc.

        Args:
            without: Files to leave out, each as `identity` gives it.
        """
        view = self._view
        for identity, users in view.by_file.items():
            if identity in without:
                continue
            others = [
                (view.region_counts[entry.process.pid], entry.process, mapping)
                for entry, mapping in users
                if entry.process is not None
                and entry.process.pid != view.own_pid
                and looks_like_a_region(mapping)
            ]
            if others:
                others.sort(key=lambda each: (each[0], each[1].pid))
                count, process, mapping = others[0]
                pids = tuple(process.pid for _, process, _ in others)
                yield MappedFile(identity, pids, count == 1, process, mapping)

    def mapped_regions(self) -> tuple[MappedRegion, ...]:
        """`mapped_files` with what they are called now.

        Also outside any root, such as ``/tmp/cudevshr.cache`` inside a container: `open_mapped`
        reaches those.
        """
        return tuple(map(self.resolve, self.mapped_files()))

    def resolve(self, file: MappedFile) -> MappedRegion:
        """Find out what a mapped file is called now."""
        path, deleted = path_now(self.proc, file.process, file.mapping)
        return MappedRegion(*file.identity, path, deleted, file.pids, file.exclusive)

    def open_mapped(self, mapped: MappedRegion, *, writable: bool = False) -> Region:
        """Open a mapped region through the root of one of its processes.

        No symbolic link is followed inside the container, and what was opened is the mapped file
        or nothing. The region's path leads through ``/proc/<pid>/root``: it is stale when that
        process has ended.

        Raises:
            RegionStale: The name is gone, or is another file's now.
            RegionError, OSError: As `open_region`.
        """
        refusal: OSError | None = None
        for pid in mapped.pids:
            path = f"{self.proc}/{pid}/root{mapped.path_in_namespace}"
            try:
                if mapped.deleted or not is_plain(
                    f"{self.proc}/{pid}/root", mapped.path_in_namespace
                ):
                    continue
                region = open_region(path, writable=writable)
            except FileNotFoundError:
                continue
            except OSError as error:
                # Another process may be looked into; and if not, this is why.
                refusal = refusal or error
                continue
            if self.identity(region) == (mapped.device, mapped.inode):
                return region
            region.close()
        if refusal is not None:
            raise refusal
        name = repr(mapped.path_in_namespace)
        raise RegionStale(
            f"{name} of process {mapped.pids[0]} is mapped, but its name leads to it no more; "
            "it was deleted or replaced",
            path=mapped.path_in_namespace,
        )

    def match(
        self, region: Region, snapshot: RegionSnapshot, *, pod_uid: str | None = None
    ) -> RegionProcesses:
        """Which process each slot of a region belongs to, and who maps it without a slot.

        Take the snapshot first and refresh afterwards: a process that came between cannot be told
        from a dead one otherwise, and slots without a process are ``"unknown"``. `hostpid` in the
        region is not looked at.

        The table tells which process is meant. That a slot's process is dead is said by the core
        alone, by the proof by which `Region.reap` frees slots.

        Args:
            region: The region, for the identity of its file.
            snapshot: A snapshot of it.
            pod_uid: The pod that the region belongs to, where its directory tells: processes that
                are known to be of another one are onlookers.

        Raises:
            RegionClosed: After `Region.close`.

        Source: docs, The protocol (Which process is which).
        """
        view = self._view
        identity = self.identity(region)
        own = view.own_pid if not self._is_attached(identity) else 0
        mappers = []
        for entry, mapping in view.by_file.get(identity, ()):
            process = entry.process
            if process is not None:
                container = process.container
                pod = container.pod_uid if container is not None else None
                stranger = pod_uid is not None and pod is not None and pod != pod_uid
                may_use = mapping.writable and process.pid != own and not stranger
                mappers.append(Mapper(process, entry.namespace, may_use))

        def dead(pids: Sequence[int]) -> frozenset[int]:
            is_too_old = view.started_ns < snapshot.taken_at_ns
            return frozenset() if is_too_old else view.liveness.dead(region, pids)

        return match_slots(
            [process.pid for process in snapshot.processes],
            mappers,
            sees_host=view.everybody,
            dead=dead,
        )

    def _is_attached(self, identity: tuple[int, int]) -> bool:
        """Whether this process has a slot in that region."""
        for slot in attached_slots():
            with contextlib.suppress(RegionClosed, RegionStale):
                if self.identity(slot.region) == identity:
                    return True
        return False


def _may_wait(known: Entry, activity: tuple[bytes, ...]) -> bool:
    """Whether it is still the same process, and a look at it is dear."""
    return known.look_s > _DEAR_LOOK_S and procfs.is_same_process(known.activity, activity)

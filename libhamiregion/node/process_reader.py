"""Reads the processes of a /proc within a budget of time, those of all containers in turn."""

from __future__ import annotations

import contextlib
import os
import time
from collections import defaultdict, deque
from functools import partial
from typing import TYPE_CHECKING

import attrs

from libhamiregion.layouts import LAYOUTS

from . import procfs
from .cgroups import parse_cgroup, payer_of
from .matching import HostProcess, is_monitor
from .process_entry import Entry
from .procfs import AccessDenied, Gone, TooMuch
from .reader_threads import Blocked, Job, ReaderThreads

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from collections.abc import Mapping as MappingOf

    from .cgroups import ContainerId, Payer
    from .process_entry import GapReason
    from .reader_threads import Outcome

_SMALLEST_REGION = min(layout.size_bytes for layout in LAYOUTS)
# A monitor maps one file per container. What is kept of the processes of one container together is
# bounded too, and far higher outside of containers.
_FILES_LIMIT = 4_096
_KEPT_BYTES_LIMIT = 8 << 20
_KEPT_BYTES_LIMIT_OUTSIDE = 64 << 20
# What reading maps may take in one refresh, all processes together.
_REFRESH_S = 2.0
# The maps of a process are kept for so long, each process until another moment, and read again at
# once where a slot has no process.
_KEPT_S = 300.0
_MOMENTS = 64


class ProcessReader:
    """Reads processes, and keeps what they map for five minutes.

    What can make a reader wait is read by other threads (`ReaderThreads`).

    Threads: one refresh at a time; `look_up` and `ask` may be called meanwhile.
    """

    def __init__(self) -> None:
        self._threads = ReaderThreads()
        self._users: MappingOf[int, str] = {}
        # Text of cgroup -> what it says, within one refresh.
        self._containers: dict[str, tuple[ContainerId | None, Payer]] = {}

    def read(
        self,
        directory: int,
        before: MappingOf[int, Entry],
        users: MappingOf[int, str],
        wanted: Collection[int] = (),
    ) -> tuple[dict[int, Entry], list[int]]:
        """List all processes, and read the maps of those that are new or due.

        Args:
            directory: /proc.
            before: What the last call found.
            users: Names of users.
            wanted: Pids whose maps are read again, whatever their age.

        Returns:
            All processes by pid, and the pids that not even `stat` may be read of.

        Raises:
            OSError: /proc cannot be listed, or the system is out of descriptors, memory or threads.
        """
        self._users, self._containers = users, {}
        entries: dict[int, Entry] = {}
        refused: list[int] = []
        due: list[Entry] = []
        now_s = time.monotonic()
        pids = [int(name) for name in os.listdir(directory) if name.isdigit()]
        for pid, start in procfs.read_start_times(directory, pids):
            known = before.get(pid)
            try:
                if start is None:
                    refused.append(pid)
                    continue
                if known is None or known.start_time_ticks != start:
                    known = self._identify(directory, str(pid))
                elif known.unread == "blocked":
                    known = self._late(known)
            except Gone:
                continue
            except AccessDenied:
                refused.append(pid)
                continue
            entries[pid] = known
            if known.process is not None and (pid in wanted or _is_due(pid, known, now_s)):
                due.append(known)
        self._threads.keep_only(
            each.identity for each in entries.values() if each.process is not None
        )
        # Those never read come first, then the oldest.
        due.sort(key=lambda each: (each.looked_at_s, each.identity))
        self._read_all(directory, entries, refused, _in_turn(due))
        return entries, refused

    def _read_all(
        self, directory: int, entries: dict[int, Entry], refused: list[int], due: Iterator[Entry]
    ) -> None:
        end_s = time.monotonic() + _REFRESH_S
        kept = _kept_bytes(entries.values())

        def next_job() -> Job | None:
            for entry in due:
                if time.monotonic() >= end_s:
                    return None
                if self._threads.refusal(entry.payer, entry.identity) is None:
                    work = partial(self._look_at, directory, entry)
                    return Job(entry.payer, entry.identity, work)
                entries[entry.identity[0]] = _blocked(entry)
            return None

        def deliver(job: Job, outcome: Outcome) -> None:
            pid = job.process[0]
            if isinstance(outcome, Entry):
                entries[pid] = _bounded(outcome, entries[pid], kept)
            elif isinstance(outcome, Blocked):
                entries[pid] = _blocked(entries[pid])
            else:
                entries.pop(pid, None)
                if isinstance(outcome, AccessDenied):
                    refused.append(pid)

        self._threads.run(next_job, deliver)

    # ---- one process -----------------------------------------------------------------------------

    def look_up(self, directory: int, pid: int) -> Entry | None:
        """Read one process now; None if there is none, or it may not be read.

        Raises:
            OSError: As `read`.
        """
        try:
            entry = self._identify(directory, str(pid))
        except (Gone, AccessDenied):
            return None
        if entry.unread is None or entry.payer is None:
            return entry
        outcome = self._run(entry, lambda: self._look_at(directory, entry))
        if isinstance(outcome, Entry):
            return outcome
        return _blocked(entry) if isinstance(outcome, Blocked) else None

    def ask(self, entry: Entry, work: Callable[[], object]) -> object:
        """Read something of one process in a thread that may be stuck with it.

        Args:
            entry: The process.
            work: Reads it.

        Returns:
            What `work` returns.

        Raises:
            Blocked: The process does not let itself be read.
            Exception: What `work` raises.
        """
        outcome = self._run(entry, work)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _run(self, entry: Entry, work: Callable[[], object]) -> Outcome:
        refusal = self._threads.refusal(entry.payer, entry.identity)
        if refusal is not None:
            return refusal
        jobs = [Job(entry.payer, entry.identity, work)]
        found: list[Outcome] = []
        self._threads.run(
            lambda: jobs.pop() if jobs else None, lambda _, outcome: found.append(outcome)
        )
        return found[0]

    def _identify(self, directory: int, name: str) -> Entry:
        """Read what a process tells without its address space."""
        descriptor = procfs.open_process(directory, name)
        try:
            stat = procfs.parse_stat(procfs.stat_line(descriptor))
            if stat.kernel_thread:
                return Entry(stat.start_time_ticks)
            uid, ns_pids = procfs.read_status(descriptor)
            cgroup = ""
            with contextlib.suppress(AccessDenied):
                cgroup = procfs.read_cgroup(descriptor)
        finally:
            os.close(descriptor)
        container = self._containers.get(cgroup)
        if container is None:
            container = self._containers[cgroup] = parse_cgroup(cgroup), payer_of(cgroup)
        process = HostProcess(
            pid=int(name),
            start_time_ticks=stat.start_time_ticks,
            ns_pids=ns_pids,
            uid=uid,
            user=self._users.get(uid, str(uid)),
            command=f"[{stat.name}]",
            container=container[0],
        )
        return Entry(stat.start_time_ticks, process, container[1], unread="no_time")

    def _late(self, entry: Entry) -> Entry:
        """A process that had blocked a reader, as that reader has found it since."""
        outcome = self._threads.late(entry.identity)
        return outcome if isinstance(outcome, Entry) else entry

    def _look_at(self, directory: int, known: Entry) -> Entry:
        """Read a process whole, in another thread, which may be stuck with it."""
        # Before its maps: what is mapped later is newer than this.
        now_s = time.monotonic()
        fresh = self._identify(directory, str(known.identity[0]))
        process = fresh.process
        if process is None or fresh.start_time_ticks != known.start_time_ticks:
            raise Gone
        maps = procfs.Maps()
        readable = True
        unread: GapReason | None = None
        try:
            maps = procfs.read_maps(
                directory, *known.identity, smallest=_SMALLEST_REGION, limit=_FILES_LIMIT
            )
        except AccessDenied:
            readable = False
        except TooMuch:
            unread = "too_large"
        command, namespace = "", None
        descriptor = procfs.open_process(directory, str(process.pid))
        try:
            with contextlib.suppress(AccessDenied):
                command = procfs.read_command(descriptor)
            if maps.files:
                namespace = procfs.read_link(descriptor, "ns/pid")
        finally:
            os.close(descriptor)
        process = attrs.evolve(process, command=command or process.command)
        return Entry(
            known.start_time_ticks,
            # The same object says that nothing has changed.
            known.process if process == known.process else process,
            fresh.payer,
            known.mappings if maps.files == known.mappings else maps.files,
            namespace,
            maps.has_libvgpu if readable and unread is None else None,
            readable,
            unread,
            now_s,
            is_first=not known.looked_at_s,
        )


def _is_due(pid: int, known: Entry, now_s: float) -> bool:
    # A process that has just started may run another program, and map a region, a moment later.
    if known.unread in {"no_time", "blocked"} or known.is_first:
        return True
    # Feedback must not write beside a monitor that has just mapped its first region.
    if known.process is not None and is_monitor(known.process):
        return True
    moment = 0.5 + pid % _MOMENTS / (2 * _MOMENTS)
    return now_s - known.looked_at_s >= _KEPT_S * moment


def _in_turn(due: Iterable[Entry]) -> Iterator[Entry]:
    """One process of each container after the other."""
    waiting: defaultdict[Payer | None, deque[Entry]] = defaultdict(deque)
    for each in due:
        waiting[each.payer].append(each)
    while waiting:
        for payer in list(waiting):
            yield waiting[payer].popleft()
            if not waiting[payer]:
                del waiting[payer]


def _kept_bytes(entries: Iterable[Entry]) -> defaultdict[Payer | None, int]:
    kept: defaultdict[Payer | None, int] = defaultdict(int)
    for each in entries:
        if each.mappings:
            kept[each.payer] += each.kept_bytes
    return kept


def _bounded(now: Entry, before: Entry, kept: defaultdict[Payer | None, int]) -> Entry:
    """A process that was read, without what is more than is kept of a container."""
    outside = now.payer is None or now.payer.container is None
    limit = _KEPT_BYTES_LIMIT_OUTSIDE if outside else _KEPT_BYTES_LIMIT
    kept[before.payer] -= before.kept_bytes
    if now.mappings and kept[now.payer] + now.kept_bytes > limit:
        return attrs.evolve(now, mappings=(), namespace=None, unread="too_large")
    kept[now.payer] += now.kept_bytes
    return now


def _blocked(entry: Entry) -> Entry:
    """A process that could not be read: what was known of it still holds."""
    return entry if entry.unread is None else attrs.evolve(entry, unread="blocked")

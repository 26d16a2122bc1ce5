"""Reads the processes of a /proc within a budget of time, those of all containers in turn."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter, defaultdict, deque
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from libhamiregion.layouts import LAYOUTS
from libhamiregion.observation.processes import Entry, FileUser, HostProcess, is_monitor
from libhamiregion.observation.share import Share

from . import procfs
from .cgroups import budget_key, parse_cgroup
from .procfs import AccessDenied, Gone, TooMuch
from .workers import Call, Workers

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from collections.abc import Mapping as MappingOf
    from concurrent.futures import Future

    from libhamiregion.observation.names import ContainerId
    from libhamiregion.observation.processes import GapReason

T = TypeVar("T")

_SMALLEST_REGION = min(layout.size_bytes for layout in LAYOUTS)
# A monitor maps one file per container. What is kept of one container together is bounded too.
_FILES_LIMIT = 4_096
_KEPT_BYTES_LIMIT = 8 << 20
# Reading maps takes so long in one refresh, of all processes together.
_REFRESH_S = 2.0
# The maps of a process are kept for so long, each process until another moment.
_KEPT_S = 300.0
_MOMENTS = 64


class ProcessReader:
    """Reads processes, and keeps their mappings for five minutes.

    Threads: one refresh at a time; `ask` may be called meanwhile.

    Attributes:
        gpu_pids: Pids on the driver's lists: what their environment says of shares is read.
    """

    def __init__(self) -> None:
        self.gpu_pids: frozenset[int] = frozenset()
        self._workers = Workers()
        self._users: MappingOf[int, str] = {}
        # Text of cgroup to the container and the budget's key, within one refresh.
        self._cgroups: dict[str, tuple[ContainerId | None, str]] = {}

    def read(
        self,
        directory: int,
        before: MappingOf[int, Entry],
        users: MappingOf[int, str],
        wanted: Collection[int] = (),
        *,
        only_wanted: bool = False,
    ) -> tuple[dict[int, Entry], list[int]]:
        """List all processes, and read the maps of those that are new or due.

        Args:
            directory: /proc.
            before: The entries of the last call.
            users: Names of users.
            wanted: Pids of processes to read again, whatever their age.
            only_wanted: Read the maps of no others.

        Returns:
            All processes by pid, and the pids that not even `stat` may be read of.

        Raises:
            OSError: /proc cannot be listed, or the system is out of descriptors, memory or threads.
        """
        self._users, self._cgroups = users, {}
        entries: dict[int, Entry] = {}
        refused: list[int] = []
        due: list[Entry] = []
        now_s = time.monotonic()
        pids = [int(name) for name in os.listdir(directory) if name.isdigit()]
        for pid, start in procfs.read_start_times(directory, pids):
            entry = before.get(pid)
            try:
                if start is None:
                    raise AccessDenied
                if entry is None or entry.start_time_ticks != start:
                    with procfs.opened_process(directory, pid) as process:
                        entry = self._identify(process, pid)
            except Gone:
                continue
            except AccessDenied:
                refused.append(pid)
                continue
            entries[pid] = entry
            is_due = not only_wanted and entry.due_s <= now_s
            if entry.process is not None and (is_due or pid in wanted):
                due.append(entry)
        self._workers.keep_only(each.identity for each in entries.values() if each.process)
        # Those never read come first, then the oldest.
        due.sort(key=lambda each: (each.read_s, each.identity))
        kept: Counter[str] = Counter()
        for entry in entries.values() if due else ():
            kept[entry.budget_key] += entry.kept_bytes if entry.uses else 0
        turn = {self._call_for(directory, each): each for each in in_turn(due)}
        made = dict(self._workers.call_all(turn, now_s + _REFRESH_S))
        for call, entry in turn.items():
            pid, _ = entry.identity
            try:
                if call in made:
                    entries[pid] = _bounded(made[call].result(), entry, kept)
                elif entry.unread is not None and self._workers.is_blocked(call):
                    entries[pid] = attrs.evolve(entry, unread="blocked", due_s=0.0)
            except Gone:
                del entries[pid]
            except AccessDenied:
                refused.append(pid)
                del entries[pid]
        return entries, refused

    def call_all(self, calls: Iterable[Call], until_s: float) -> list[tuple[Call, Future[Any]]]:
        """Make calls that may wait for processes; see `Workers.call_all`."""
        return self._workers.call_all(calls, until_s)

    def ask(self, entry: Entry, work: Callable[[], T]) -> T:
        """Call a function that may wait for a process.

        Raises:
            Blocked: The process does not let itself be read.
            Exception: As the function.
        """
        return self._workers.call(entry.budget_key, entry.identity, work)

    def _identify(self, descriptor: int, pid: int) -> Entry:
        """Read the facts about a process that need no lock of its address space."""
        stat = procfs.read_stat(descriptor)
        if stat.is_kernel_thread:
            return Entry(stat.start_time_ticks)
        uid, ns_pids = procfs.read_status(descriptor)
        text = ""
        with contextlib.suppress(AccessDenied):
            text = procfs.read_cgroup(descriptor)
        if text not in self._cgroups:
            self._cgroups[text] = parse_cgroup(text), budget_key(text)
        container, key = self._cgroups[text]
        process = HostProcess(
            pid=pid,
            start_time_ticks=stat.start_time_ticks,
            ns_pids=ns_pids,
            uid=uid,
            user=self._users.get(uid, str(uid)),
            command=f"[{stat.name}]",
            container=container,
        )
        return Entry(stat.start_time_ticks, process, key, unread="no_time")

    def _call_for(self, directory: int, entry: Entry) -> Call:
        """The call that reads a process whole; until it has returned, what was known holds."""
        late = self._workers.late(entry.identity)
        read = (lambda: late) if isinstance(late, Entry) else partial(self._read, directory, entry)
        return Call(entry.budget_key, entry.identity, read)

    def _read(self, directory: int, known: Entry) -> Entry:
        """Read a process whole, in a thread that this may block."""
        # Before its maps: mappings made later are newer than this.
        now_s = time.monotonic()
        pid, start_time_ticks = known.identity
        maps: procfs.Maps | None = None
        unread: GapReason | None = None
        command, namespace, sm_policy, share = "", None, "default", None
        visible_devices, oversubscribes = None, False
        with procfs.opened_process(directory, pid) as descriptor:
            fresh = self._identify(descriptor, pid)
            process = fresh.process
            if process is None or fresh.start_time_ticks != start_time_ticks:
                raise Gone
            try:
                maps = procfs.read_maps(descriptor, smallest=_SMALLEST_REGION, limit=_FILES_LIMIT)
            except TooMuch:
                unread = "too_large"
            except AccessDenied:
                pass
            # After its maps: a program that has just become a monitor is known as one.
            with contextlib.suppress(AccessDenied):
                command = procfs.read_command(descriptor)
            files = () if maps is None else maps.files
            is_on_gpu = pid in self.gpu_pids and process.container is not None
            if files:
                namespace = procfs.read_link(descriptor, "ns/pid")
            if is_on_gpu:
                share = Share(is_known=False)
            # Linux 6.16 shows no environ of a process whose first thread has ended.
            with contextlib.suppress(AccessDenied, Gone):
                if files or is_on_gpu:
                    environment = procfs.read_environment(descriptor)
                    sm_policy = procfs.sm_policy_in(environment) if files else sm_policy
                    share = procfs.share_in(environment) if is_on_gpu else None
                if files:
                    visible_devices = procfs.visible_devices_in(environment)
                    oversubscribes = procfs.oversubscribes_in(environment)
        process = attrs.evolve(process, command=command or process.command)
        # The same objects say that nothing has changed.
        process = known.process if process == known.process else process
        uses = tuple(FileUser(process, namespace, file) for file in files)
        kept_s = _KEPT_S * (0.9 + 0.1 * (pid % _MOMENTS) / _MOMENTS)
        return Entry(
            start_time_ticks,
            process,
            fresh.budget_key,
            known.uses if uses == known.uses else uses,
            None if maps is None else maps.has_libvgpu,
            sm_policy,
            share,
            visible_devices,
            oversubscribes,
            maps is not None or unread is not None,
            unread,
            now_s,
            # One that has just started may run another program, and map a region, a moment later.
            # Feedback must not write while a monitor runs that has just mapped its first region.
            due_s=now_s + kept_s if known.read_s and not is_monitor(process) else 0.0,
        )


def in_turn(due: Iterable[Entry]) -> Iterator[Entry]:
    """One process of each container after the other."""
    waiting: defaultdict[str, deque[Entry]] = defaultdict(deque)
    for each in due:
        waiting[each.budget_key].append(each)
    while waiting:
        for key in list(waiting):
            yield waiting[key].popleft()
            if not waiting[key]:
                del waiting[key]


def _bounded(now: Entry, before: Entry, kept: Counter[str]) -> Entry:
    """A process that was read, without its mappings if its container has too many."""
    kept[before.budget_key] -= before.kept_bytes
    if now.uses and kept[now.budget_key] + now.kept_bytes > _KEPT_BYTES_LIMIT:
        return attrs.evolve(now, uses=(), unread="too_large")
    kept[now.budget_key] += now.kept_bytes
    return now

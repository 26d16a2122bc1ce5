"""The processes of a node, and which of them map which region.

They are read within a budget of time, those of all containers in turn.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter, defaultdict, deque
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import attrs

from libhamiregion.bounded_file import read_bounded
from libhamiregion.layouts import LAYOUTS
from libhamiregion.observation.processes import (
    Entry,
    FileUser,
    HostProcess,
    ProcessView,
    ProcVisibility,
    gaps_of,
    is_monitor,
)
from libhamiregion.observation.share import Share

from . import procfs
from .cgroups import budget_key, parse_cgroup
from .procfs import AccessDenied, Gone, TooMuch
from .workers import Call, Workers

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from collections.abc import Mapping as MappingOf

    from libhamiregion.errors import PathLike
    from libhamiregion.observation.names import ContainerId
    from libhamiregion.observation.processes import GapReason

T = TypeVar("T")

# A file of 40,000 users; it is read at each refresh.
_USERS_LIMIT = 4 << 20
_SMALLEST_REGION = min(layout.size_bytes for layout in LAYOUTS)
# A monitor maps one file per container. What is kept of one container together is bounded too.
_FILES_LIMIT = 4_096
_KEPT_BYTES_LIMIT = 8 << 20
# Reading maps takes so long in one refresh, of all processes together.
_REFRESH_S = 2.0
# The maps of a process are kept for so long, each process until another moment.
_KEPT_S = 300.0
_MOMENTS = 64


class ProcessTable:
    """All processes that one /proc shows, and the regions they map.

    A refresh lists /proc. A process that is new is read: its status, cgroup, maps and command line.
    What it maps is kept for five minutes, and read again at once where a slot has no process. A
    refresh takes 2 s for that, one process of each container in turn; a process that keeps its
    reader waiting for more than 1 s is given up. Processes that could not be read are in the view's
    gaps.

    So a file that a process without a slot has mapped since may not be seen, and one that it has
    unmapped may still be. A slot is dead only if every process that could be its own was read after
    the slot was.

    Memory: about 1 KiB per process, and 0.5 KiB and the path per file that it maps in a region's
    size; 8 MiB per container at most. A process that maps more than 4,096 of those, or has more
    than 8 MiB of maps, is not read.

    Threads: may be shared. Refreshes exclude each other; `view` is the last complete one.

    Args:
        proc: The root of /proc, where it is mounted elsewhere (``/host/proc``).
        user_file: Names the users; where it cannot be read they are numbers.

    Attributes:
        proc: The root of /proc, absolute.
        view: The last complete state.
        spent_s: Budget key to the seconds that its processes have taken to answer for evidence.
        workers: Make the calls that may wait for a process.
    """

    def __init__(self, proc: PathLike = "/proc", *, user_file: PathLike = "/etc/passwd") -> None:
        self.proc = str(Path(proc).absolute())
        self._refreshing = threading.Lock()
        self.view = ProcessView(self.proc)
        self._user_file = Path(user_file)
        self.workers = Workers()
        # Pids on the driver's lists: what their environment says of shares is read.
        self._gpu_pids: frozenset[int] = frozenset()
        self._users: MappingOf[int, str] = {}
        # Text of cgroup to the container and the budget's key, within one refresh.
        self._cgroups: dict[str, tuple[ContainerId | None, str]] = {}
        self.spent_s: defaultdict[str, float] = defaultdict(float)

    def refresh(self, wanted: Collection[int] = (), *, only_wanted: bool = False) -> None:
        """List the processes, and read those that are new or due.

        Args:
            wanted: Pids of processes that are read again, whatever their age.
            only_wanted: Read the maps of no others.

        Raises:
            OSError: /proc itself cannot be listed, or the system is out of descriptors or memory;
                the table then stays as it was.
        """
        with self._refreshing:
            started_s = time.monotonic()
            directory = os.open(self.proc, procfs.DIRECTORY)
            try:
                self._users, self._cgroups = _user_names(self._user_file), {}
                entries, due, refused = self._list(directory, wanted, only_wanted=only_wanted)
                self._read_due(directory, entries, due, refused, started_s + _REFRESH_S)
                visibility = _visibility(directory, entries, refused)
                gaps = gaps_of(entries.values())
                self.view = ProcessView(
                    self.proc, started_s, time.monotonic(), entries, visibility, gaps
                )
            finally:
                os.close(directory)

    def note_listed(self, pids: Collection[int]) -> set[int]:
        """Note the pids on the driver's lists, and find those to be read again.

        Maps that were read before do not show whether libvgpu limits the process.
        """
        self._gpu_pids = frozenset(pids)
        entries = self.view.entries
        return {
            pid
            for pid in pids
            if (entry := entries.get(pid)) is not None
            and entry.process is not None
            and entry.process.container is not None
            and entry.unread != "blocked"
            and not (entry.uses or entry.share)
        }

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
        entry = self.view.entry_of(process)
        if entry is None:
            raise Gone
        return self.workers.call(entry.budget_key, entry.identity, work)

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

    # ---- reading ---------------------------------------------------------------------------------

    def _list(
        self, directory: int, wanted: Collection[int], *, only_wanted: bool
    ) -> tuple[dict[int, Entry], list[Entry], list[int]]:
        """List /proc; returns all processes, those to be read, and pids that are refused."""
        entries: dict[int, Entry] = {}
        due: list[Entry] = []
        refused: list[int] = []
        now_s = time.monotonic()
        pids = [int(name) for name in os.listdir(directory) if name.isdigit()]
        for pid, start in procfs.read_start_times(directory, pids):
            entry = self.view.entries.get(pid)
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
        return entries, due, refused

    def _read_due(
        self,
        directory: int,
        entries: dict[int, Entry],
        due: list[Entry],
        refused: list[int],
        until_s: float,
    ) -> None:
        """Read processes, and put them in the place of what was known of them."""
        self.workers.keep_only(each.identity for each in entries.values() if each.process)
        # Those never read come first, then the oldest.
        due.sort(key=lambda each: (each.read_s, each.identity))
        kept: Counter[str] = Counter()
        for entry in entries.values() if due else ():
            kept[entry.budget_key] += entry.kept_bytes if entry.uses else 0
        turn = {self._call_for(directory, each): each for each in in_turn(due)}
        made = dict(self.workers.call_all(turn, until_s))
        for call, entry in turn.items():
            pid, _ = entry.identity
            try:
                if call in made:
                    entries[pid] = _bounded(made[call].result(), entry, kept)
                elif entry.unread is not None and self.workers.is_blocked(call):
                    entries[pid] = attrs.evolve(entry, unread="blocked", due_s=0.0)
            except Gone:
                del entries[pid]
            except AccessDenied:
                refused.append(pid)
                del entries[pid]

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
        late = self.workers.late(entry.identity)
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
            is_on_gpu = pid in self._gpu_pids and process.container is not None
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


def _user_names(path: Path) -> dict[int, str]:
    """Names by number, from a passwd file; no directory service is asked, which could hang."""
    try:
        text = read_bounded(path, _USERS_LIMIT).decode("utf-8", "backslashreplace")
    except OSError:
        return {}
    rows = [line.split(":") for line in text.splitlines()]
    return {int(row[2]): row[0] for row in rows if len(row) > 2 and row[2].isdecimal()}


def _visibility(
    directory: int, entries: MappingOf[int, Entry], refused: Iterable[int]
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
    return ProcVisibility(
        sees_host=sees_host,
        # hidepid leaves out other users' processes, and the first of all is one of them.
        sees_all_pids=sees_host and not refused and 1 in entries,
        unreadable=tuple(sorted((*refused, *hidden))),
        own_pid=own_pid,
        is_own_namespace=itself is not None and len(itself.ns_pids) == 1,
    )

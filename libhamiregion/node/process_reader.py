"""Reads the processes of a /proc within a budget of time, those of all containers in turn."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter, defaultdict, deque
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

import attrs

from libhamiregion.layouts import LAYOUTS
from libhamiregion.text import count_text

from . import procfs
from .cgroups import budget_key, parse_cgroup
from .procfs import AccessDenied, Gone, TooMuch
from .workers import Call, Workers

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from collections.abc import Mapping as MappingOf

    from .cgroups import ContainerId
    from .procfs import Mapping

T = TypeVar("T")

GapReason: TypeAlias = Literal["no_time", "blocked", "too_large"]

#: The programs of HAMi and of volcano-vgpu that write launch marks and SM switches.
MONITOR_NAMES = frozenset({"vGPUmonitor", "volcano-vgpu-monitor"})
_SMALLEST_REGION = min(layout.size_bytes for layout in LAYOUTS)
# A monitor maps one file per container. What is kept of one container together is bounded too.
_FILES_LIMIT = 4_096
_KEPT_BYTES_LIMIT = 8 << 20
_KEPT_BYTES_PER_FILE = 512
# Reading maps takes so long in one refresh, of all processes together.
_REFRESH_S = 2.0
# The maps of a process are kept for so long, each process until another moment.
_KEPT_S = 300.0
_MOMENTS = 64


@attrs.frozen
class HostProcess:
    """A process as /proc shows it. Together, `pid` and `start_time_ticks` are its identity.

    Attributes:
        pid: Its pid in the namespace of the /proc that was read; the host's, on the host.
        start_time_ticks: Start time, clock ticks after boot (field 22 of ``stat``).
        ns_pids: Its pids from that namespace to its own, the innermost one; the last is the pid in
            its slot.
        uid: Its effective user.
        user: That user's name in the passwd file, else the number.
        command: Command line, raw and hostile, 4,096 characters at most; ``[name]`` without one.
            Use `libhamiregion.text.printable` before showing it.
        container: The container that its cgroup names, if any.
    """

    pid: int
    start_time_ticks: int
    ns_pids: tuple[int, ...]
    uid: int
    user: str
    command: str
    container: ContainerId | None

    @property
    def pod_uid(self) -> str | None:
        """The pod that its cgroup names, if any."""
        return None if self.container is None else self.container.pod_uid


def is_monitor(process: HostProcess) -> bool:
    """Whether a process has the name of HAMi's monitor, or of volcano-vgpu's."""
    return process.command.partition(" ")[0].rpartition("/")[2] in MONITOR_NAMES


@attrs.frozen
class ProcessGap:
    """Processes that a refresh could not read: their mappings are not known.

    Attributes:
        container: The container that they are in; None outside of containers.
        cgroup: The container's id; without a container, the upper part of the cgroup's path, raw.
        count: The number of processes.
        reason: ``"no_time"``: the refresh had no time left; a later one reads them.
            ``"blocked"``: reading a process does not end (its address space is locked, for example
            by a file system that does not answer), or processes of that container keep as many
            readers waiting as it may have. ``"too_large"``: there are more mappings than are read.
    """

    container: ContainerId | None
    cgroup: str
    count: int
    reason: GapReason

    @property
    def explanation(self) -> str:
        """The gap as a sentence."""
        why = {
            "no_time": "there was no time to read them yet",
            "blocked": "reading them, or others of their container, does not end",
            "too_large": "they have more mappings than are read",
        }[self.reason]
        return f"the mappings of {count_text(self.count, 'process')} are not known: {why}"


@attrs.frozen
class FileUser:
    """A process that maps a file.

    Attributes:
        process: The process.
        namespace: The name of its pid namespace; None if it may not be read.
        mapping: The file.
    """

    process: HostProcess
    namespace: str | None
    mapping: Mapping

    @property
    def pid(self) -> int:
        """The pid that it would have in its slot."""
        return self.process.ns_pids[-1]

    @property
    def container_id(self) -> str | None:
        """The container that its cgroup names."""
        return None if self.process.container is None else self.process.container.id


@attrs.frozen
class Entry:
    """The facts about a process that are kept between refreshes.

    Attributes:
        start_time_ticks: Start time.
        process: The process; None for a kernel thread.
        budget_key: Whose share of a budget it takes.
        uses: Itself with each file that it maps, in a region's size or more.
        has_libvgpu: Whether it has libvgpu loaded; None if not known.
        sm_policy: As `procfs.read_sm_policy`, of processes that map such a file.
        is_readable: Whether its maps may be read.
        unread: Why its maps have not been read; None if they were, or may not be.
        read_s: When it was last read, on the monotonic clock; 0 if never.
        due_s: When it is to be read again, on that clock; 0 for the next listing.
    """

    start_time_ticks: int
    process: HostProcess | None = None
    budget_key: str = ""
    uses: tuple[FileUser, ...] = ()
    has_libvgpu: bool | None = None
    sm_policy: str = "default"
    is_readable: bool = True
    unread: GapReason | None = None
    read_s: float = 0.0
    due_s: float = 0.0

    @property
    def identity(self) -> tuple[int, int]:
        """The pid and the start time."""
        assert self.process is not None  # noqa: S101 (kernel threads are not read)
        return self.process.pid, self.process.start_time_ticks

    @property
    def kept_bytes(self) -> int:
        """About how much memory its mappings take."""
        return sum(_KEPT_BYTES_PER_FILE + len(each.mapping.path) for each in self.uses)


def gaps_of(entries: Iterable[Entry]) -> tuple[ProcessGap, ...]:
    """The processes that could not be read, by container and reason; the largest group first."""
    counts: Counter[tuple[str, ContainerId | None, GapReason]] = Counter()
    for each in entries:
        if each.unread is not None and each.process is not None:
            counts[each.budget_key, each.process.container, each.unread] += 1
    return tuple(
        ProcessGap(container, cgroup, count, reason)
        for (cgroup, container, reason), count in counts.most_common()
    )


class ProcessReader:
    """Reads processes, and keeps their mappings for five minutes.

    Threads: one refresh at a time; `ask` may be called meanwhile.
    """

    def __init__(self) -> None:
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
    ) -> tuple[dict[int, Entry], list[int]]:
        """List all processes, and read the maps of those that are new or due.

        Args:
            directory: /proc.
            before: The entries of the last call.
            users: Names of users.
            wanted: Pids of processes to read again, whatever their age.

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
            if entry.process is not None and (entry.due_s <= now_s or pid in wanted):
                due.append(entry)
        self._workers.keep_only(each.identity for each in entries.values() if each.process)
        # Those never read come first, then the oldest.
        due.sort(key=lambda each: (each.read_s, each.identity))
        kept: Counter[str] = Counter()
        for entry in entries.values() if due else ():
            kept[entry.budget_key] += entry.kept_bytes if entry.uses else 0
        turn = {self._call_for(directory, each): each for each in _in_turn(due)}
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
        command, namespace, sm_policy = "", None, "default"
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
            if files:
                namespace = procfs.read_link(descriptor, "ns/pid")
                # Linux 6.16 shows no environ of a process whose first thread has ended.
                with contextlib.suppress(AccessDenied, Gone):
                    sm_policy = procfs.read_sm_policy(descriptor)
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
            maps is not None or unread is not None,
            unread,
            now_s,
            # One that has just started may run another program, and map a region, a moment later.
            # Feedback must not write while a monitor runs that has just mapped its first region.
            due_s=now_s + kept_s if known.read_s and not is_monitor(process) else 0.0,
        )


def _in_turn(due: Iterable[Entry]) -> Iterator[Entry]:
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

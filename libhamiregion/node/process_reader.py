"""Reads the processes of a /proc, within a budget of time that is shared by container."""

from __future__ import annotations

import contextlib
import heapq
import os
import time
from collections import Counter, defaultdict, deque
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias

import attrs

from libhamiregion.layouts import LAYOUTS

from . import procfs
from .cgroups import parse_cgroup, payer_of
from .fair_shares import FairShares
from .matching import HostProcess
from .procfs import Gone, Mapping, Refused, TooMuch
from .reader_threads import Blocked, Job, ReaderThreads

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from collections.abc import Mapping as MappingOf

    from .cgroups import ContainerId, Payer
    from .procfs import Activity
    from .reader_threads import Outcome

GapReason: TypeAlias = Literal["no_time", "blocked", "too_large"]

_SMALLEST_REGION = min(layout.size_bytes for layout in LAYOUTS)
# A monitor maps one file per container. What is kept of the processes of one container together is
# bounded too, and far higher outside of containers.
_FILES_LIMIT = 4_096
_KEPT_BYTES_PER_FILE = 512
_KEPT_BYTES_LIMIT = 8 << 20
_KEPT_BYTES_LIMIT_OUTSIDE = 64 << 20
# Reading the maps of a busy CUDA program takes a millisecond, and a program can have so many
# mappings that it takes half a second. The processes of a container may cost a second at once, and
# a fiftieth of a processor on average; a program outside of containers more, for a node's own
# processes are often those of one program.
_SHARE_S, _SHARE_REFILL = 1.0, 0.02
_SHARE_OUTSIDE_S, _SHARE_OUTSIDE_REFILL = 10.0, 0.05
# The real time that one refresh takes for new processes: so much, and so much for each share.
_FIRST_LOOKS_S, _FIRST_LOOKS_PER_SHARE_S = 5.0, 0.02
# The processor time that all processes take together that were seen before; the second one where
# those that hold slots were left out.
_SECOND_LOOKS_S, _SECOND_LOOKS_PARTIAL_S = 0.05, 0.005
# So often those are looked at, too, that are known to live.
_FULL_AFTER_S = 50.0
# Listing so few processes of a container is not worth being counted.
_FREE_LISTED = 64
# What has mapped nothing since, by its `stat`, is read again after this time, each process at
# another moment: it can have put a mapping in the place of another.
_UNCHANGED_FOR_S = 600.0
_MOMENTS = 64


@attrs.frozen
class ProcessGap:
    """Processes that a refresh could not read: what they map is not known.

    Attributes:
        container: The container that they are in; None outside of containers.
        cgroup: The container's id; without a container, the upper part of the cgroup's path, raw.
        count: How many processes.
        reason: ``"no_time"``: reading the processes of that container has taken the time that it
            has a share of; they are read later. ``"blocked"``: a process does not let itself be
            read (its address space is locked, by a file system that does not answer, for example),
            and is not asked again while it lives; or processes of that container keep as many
            readers waiting as it may have. ``"too_large"``: there are more mappings than are read.
    """

    container: ContainerId | None
    cgroup: str
    count: int
    reason: GapReason

    @property
    def explanation(self) -> str:
        """The gap as a sentence."""
        payer = "container" if self.container is not None else "program"
        why = {
            "no_time": f"the {payer}'s share of time for reading its processes is used up",
            "blocked": "reading them, or others of their container, never comes to its end",
            "too_large": "they have more mappings than are read",
        }[self.reason]
        processes = "1 process" if self.count == 1 else f"{self.count:,} processes"
        return f"the mappings of {processes} are not known: {why}"


@attrs.frozen
class Entry:
    """What is kept of a process between refreshes; `process` is None for kernel threads."""

    activity: Activity
    process: HostProcess | None = None
    payer: Payer | None = None
    mappings: tuple[Mapping, ...] = ()
    namespace: str | None = None
    has_libvgpu: bool | None = None
    readable: bool = True
    unread: GapReason | None = None
    looked_at_s: float = 0.0
    # What was found out about the program that it runs.
    facts: dict[str, object] = attrs.field(factory=dict, eq=False)

    @property
    def identity(self) -> tuple[int, int]:
        """The pid and the start time."""
        assert self.process is not None  # noqa: S101 (kernel threads are not read)
        return self.process.pid, self.process.start_time_ticks

    @property
    def kept_bytes(self) -> int:
        """About how much memory its mappings take."""
        return sum(_KEPT_BYTES_PER_FILE + len(each.path) for each in self.mappings)


def gaps_of(entries: Iterable[Entry]) -> tuple[ProcessGap, ...]:
    """What could not be read, by container and reason; the largest first."""
    counts: Counter[tuple[str, ContainerId | None, GapReason]] = Counter()
    for each in entries:
        if each.unread is not None and each.payer is not None:
            counts[each.payer.cgroup, each.payer.container, each.unread] += 1
    return tuple(
        ProcessGap(container, cgroup, count, reason)
        for (cgroup, container, reason), count in counts.most_common()
    )


class ProcessReader:
    """Reads processes, and remembers what each container has cost.

    What can make a reader wait is read by other threads (`ReaderThreads`).

    Threads: one refresh at a time; `look_up` and `ask` may be called beside it.
    """

    def __init__(self) -> None:
        self._threads = ReaderThreads()
        self._inside = FairShares(_SHARE_S, _SHARE_REFILL)
        self._outside = FairShares(_SHARE_OUTSIDE_S, _SHARE_OUTSIDE_REFILL)
        self._users: MappingOf[int, str] = {}
        self._kept_bytes: Counter[Payer] = Counter()
        self._full_s = float("-inf")
        # Text of cgroup -> what it says, within one refresh.
        self._containers: dict[str, tuple[ContainerId | None, Payer]] = {}

    def read(
        self,
        directory: int,
        before: MappingOf[int, Entry],
        users: MappingOf[int, str],
        *,
        living: MappingOf[int, int],
        wanted: Collection[int] = (),
        full: bool = True,
    ) -> tuple[dict[int, Entry], list[int]]:
        """Read what is new, and what has changed.

        Args:
            directory: /proc.
            before: What the last call found.
            users: Names of users.
            living: Pid to start time of processes with a slot that are known to live. Their maps
                are read again where they have called exec, and after ten minutes.
            wanted: Pids whose maps are read again if they have done anything since.
            full: Whether to look at those of `living` too; else they are, once in 50 s.

        Returns:
            All processes by pid, and the pids that not even `stat` may be read of.

        Raises:
            OSError: /proc cannot be listed, or the system is out of descriptors, memory or threads.
        """
        self._users = users
        self._containers = {}
        entries: dict[int, Entry] = {}
        refused: list[int] = []
        first: list[Entry] = []
        again: list[tuple[bool, float, int]] = []
        now_s = time.monotonic()
        full = full or now_s - self._full_s >= _FULL_AFTER_S
        if full:
            self._full_s = now_s
        costs = _Costs()
        for name in os.listdir(directory):
            if not name.isdigit():
                continue
            pid = int(name)
            known = before.get(pid)
            process = None if known is None else known.process
            holds_slot = (
                process is not None
                and process.start_time_ticks == living.get(pid)
                and pid not in wanted
            )
            if holds_slot and not full and known is not None and known.unread is None:
                entries[pid] = known
                continue
            try:
                line = procfs.stat_line(directory, f"{name}/stat")
                activity = procfs.activity(line)
                if known is None or known.activity.start_time != activity.start_time:
                    with costs.of_new() as identified:
                        known = self._identify(directory, name, line)
                        identified(known.payer)
                elif known.unread == "blocked":
                    known = self._late(known)
                entries[pid] = known
            except Gone:
                continue
            except Refused:
                refused.append(pid)
                continue
            costs.count(known.payer)
            has_acted = known.activity != activity
            if (pid in wanted and has_acted) or known.unread in {"no_time", "blocked"}:
                first.append(known)
            elif has_acted and _is_due(pid, known, activity, now_s, holds_slot=holds_slot):
                again.append((known.activity.maps_the_same(activity), known.looked_at_s, pid))
        again.sort()
        looked_again = [entries[pid] for *_, pid in again]
        # Of those that something is read of.
        self._kept_bytes = Counter()
        payers = {each.payer for each in (*first, *looked_again)}
        for each in entries.values() if payers else ():
            payer = each.payer
            if each.mappings and payer is not None and payer in payers:
                self._kept_bytes[payer] += each.kept_bytes
        self._threads.keep_only(
            each.identity for each in entries.values() if each.process is not None
        )
        for shares in (self._inside, self._outside):
            shares.forget_idle()
        for payer, cost_s in costs.by_payer():
            self.shares_of(payer).charge(payer, cost_s)
        second_s = _SECOND_LOOKS_S if full else _SECOND_LOOKS_PARTIAL_S
        self._read_all(directory, entries, refused, first, looked_again, second_s)
        return entries, refused

    def _read_all(
        self,
        directory: int,
        entries: dict[int, Entry],
        refused: list[int],
        first: list[Entry],
        again: list[Entry],
        second_s: float,
    ) -> None:
        turns = [_Turns(self, first), _Turns(self, again)]
        now_s = time.monotonic()
        turns[0].end_s = now_s + _FIRST_LOOKS_S + _FIRST_LOOKS_PER_SHARE_S * turns[0].parties
        turns[1].cost_limit_s = second_s
        in_hand: list[tuple[_Turns, Entry]] = []

        def next_job() -> Job | None:
            for each in turns:
                while (entry := each.next()) is not None:
                    assert entry.process is not None  # noqa: S101 (as `Entry.identity`)
                    if self._threads.refusal(entry.payer, entry.identity) is None:
                        in_hand[:] = [(each, entry)]
                        work = partial(self._look_at, directory, str(entry.process.pid), entry)
                        return Job(entry.payer, entry.identity, work)
                    entries[entry.process.pid] = _blocked(entry)
                    each.add(entry.payer, 0.0)
            return None

        def deliver(_: Job, outcome: Outcome, cost_s: float) -> None:
            ((turn, entry),) = in_hand
            pid = entry.identity[0]
            turn.add(entry.payer, cost_s)
            if isinstance(outcome, Entry):
                self._count(entry, outcome)
                entries[pid] = outcome
            elif isinstance(outcome, Blocked):
                entries[pid] = _blocked(entry)
            else:
                del entries[pid]
                if isinstance(outcome, Refused):
                    refused.append(pid)

        if first or again:
            self._threads.run(next_job, deliver)

    def _count(self, before: Entry, now: Entry) -> None:
        if now.payer is not None:
            self._kept_bytes[now.payer] += now.kept_bytes
        if before.payer is not None:
            self._kept_bytes[before.payer] -= before.kept_bytes

    def shares_of(self, payer: Payer) -> FairShares:
        """Where the share of a container is kept, or of a program outside of containers."""
        return self._inside if payer.container is not None else self._outside

    # ---- one process -----------------------------------------------------------------------------

    def look_up(self, directory: int, pid: int) -> Entry | None:
        """Read one process now; None if there is none, or it may not be looked at.

        What makes a reader wait, or whose container has used up its share, is not read whole.

        Raises:
            OSError: As `read`.
        """
        name = str(pid)
        try:
            entry = self._identify(directory, name, procfs.stat_line(directory, f"{name}/stat"))
        except (Gone, Refused):
            return None
        if entry.unread is None or entry.payer is None:
            return entry
        if self.shares_of(entry.payer).left_s(entry.payer) <= 0:
            return entry
        outcome = self._run(entry, lambda: self._look_at(directory, name, entry))
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
            Blocked: The process does not let itself be read, or its container has used up its
                share.
            Exception: What `work` raises.
        """
        assert entry.payer is not None  # noqa: S101 (kernel threads are not asked)
        if self.shares_of(entry.payer).left_s(entry.payer) <= 0:
            raise Blocked
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

        def deliver(_: Job, outcome: Outcome, cost_s: float) -> None:
            assert entry.payer is not None  # noqa: S101 (as above)
            self.shares_of(entry.payer).charge(entry.payer, cost_s)
            found.append(outcome)

        self._threads.run(lambda: jobs.pop() if jobs else None, deliver)
        return found[0]

    def _identify(self, directory: int, name: str, line: bytes) -> Entry:
        """What can be read of a process without its address space."""
        activity, stat = procfs.activity(line), procfs.parse_stat(line)
        if stat.kernel_thread:
            return Entry(activity)
        descriptor = procfs.open_process(directory, name)
        try:
            uid, ns_pids = procfs.read_status(descriptor)
            cgroup = ""
            with contextlib.suppress(Refused):
                cgroup = procfs.read_cgroup(descriptor)
        finally:
            os.close(descriptor)
        container = self._containers.get(cgroup)
        if container is None:
            container = self._containers[cgroup] = parse_cgroup(cgroup), payer_of(cgroup)
        payer = container[1]
        if payer.container is None:
            payer = attrs.evolve(payer, program=activity.stack)
        process = HostProcess(
            pid=int(name),
            start_time_ticks=stat.start_time_ticks,
            ns_pids=ns_pids,
            uid=uid,
            user=self._users.get(uid, str(uid)),
            command=f"[{stat.name}]",
            container=container[0],
        )
        # What has ended maps nothing and has no command line.
        unread: GapReason | None = None if procfs.has_ended(line) else "no_time"
        return Entry(activity, process, payer, unread=unread)

    def _late(self, entry: Entry) -> Entry:
        """A process that had blocked a reader, as that reader has found it since."""
        outcome = self._threads.late(entry.identity)
        return outcome if isinstance(outcome, Entry) else entry

    def _look_at(self, directory: int, name: str, known: Entry) -> Entry:
        """Read a process whole; in another thread than all the rest, which may be stuck with it."""
        descriptor = procfs.open_process(directory, name)
        try:
            # stat comes first: what the process maps later differs from this and is seen next time.
            line = procfs.stat_line(descriptor)
            activity, stat = procfs.activity(line), procfs.parse_stat(line)
            if activity.start_time != known.activity.start_time:
                raise Gone
            stack, known_facts = known.activity.stack, known.facts
            if known.unread is None:
                known = self._identify(directory, name, line)
            process, payer = known.process, known.payer
            assert process is not None  # noqa: S101 (kernel threads are not read)
            assert payer is not None  # noqa: S101 (as all others have one)
            maps = procfs.Maps()
            readable = True
            unread: GapReason | None = None
            try:
                # What is smaller than a region maps none.
                if stat.address_space_bytes >= _SMALLEST_REGION or stat.leader_gone:
                    maps = procfs.read_maps(
                        descriptor,
                        leader_gone=stat.leader_gone,
                        smallest=_SMALLEST_REGION,
                        most=_FILES_LIMIT,
                    )
            except Refused:
                readable = False
            except TooMuch:
                unread = "too_large"
            command = ""
            with contextlib.suppress(Refused):
                command = procfs.read_command(descriptor)
            if command != process.command:
                process = attrs.evolve(process, command=command or process.command)
            namespace = procfs.read_link(descriptor, "ns/pid") if maps.files else None
            entry = Entry(
                activity,
                process,
                payer,
                maps.files,
                namespace,
                maps.has_libvgpu if readable and unread is None else None,
                readable,
                unread,
                time.monotonic(),
                known_facts if activity.stack == stack else {},
            )
            if entry.mappings and not self._may_be_kept(entry):
                return attrs.evolve(entry, mappings=(), namespace=None, unread="too_large")
            return entry
        finally:
            os.close(descriptor)

    def _may_be_kept(self, entry: Entry) -> bool:
        assert entry.payer is not None  # noqa: S101 (as in `_look_at`)
        limit = _KEPT_BYTES_LIMIT_OUTSIDE if entry.payer.container is None else _KEPT_BYTES_LIMIT
        return self._kept_bytes[entry.payer] + entry.kept_bytes <= limit


class _Turns:
    """Whose process is read next: among all shares that are not used up, the least served."""

    def __init__(self, reader: ProcessReader, entries: Iterable[Entry]) -> None:
        self._reader = reader
        self._waiting: defaultdict[Payer, deque[Entry]] = defaultdict(deque)
        for each in entries:
            if each.payer is not None:
                self._waiting[each.payer].append(each)
        self._order = [(0.0, number, payer) for number, payer in enumerate(self._waiting)]
        self._served: dict[Payer, tuple[float, int]] = {
            payer: (0.0, number) for number, payer in enumerate(self._waiting)
        }
        self._began_s = 0.0
        self._cost_s = 0.0
        self.end_s = float("inf")
        self.cost_limit_s = float("inf")

    @property
    def parties(self) -> int:
        """How many share."""
        return len(self._waiting)

    def next(self) -> Entry | None:
        """The process to be read next, for which `add` has to be called; None if there is none."""
        self._began_s = time.monotonic()
        while self._order:
            took_s, _, payer = heapq.heappop(self._order)
            is_over = self._began_s > self.end_s or (0 < self._cost_s >= self.cost_limit_s)
            shares = self._reader.shares_of(payer)
            if not is_over and shares.left_s(payer) > 0 and took_s <= 2 * shares.burst_s:
                return self._waiting[payer].popleft()
        return None

    def add(self, payer: Payer | None, cost_s: float) -> None:
        """Note what reading the last one has cost."""
        assert payer is not None  # noqa: S101 (as `next` gives no other)
        self._cost_s += cost_s
        self._reader.shares_of(payer).charge(payer, cost_s)
        took_s, number = self._served[payer]
        took_s += time.monotonic() - self._began_s
        self._served[payer] = (took_s, number)
        if self._waiting[payer]:
            heapq.heappush(self._order, (took_s, number, payer))


class _Costs:
    """What it costs to look at `stat` of each process, and to identify the new ones."""

    def __init__(self) -> None:
        self._began_s = time.thread_time()
        self._identified: defaultdict[Payer, float] = defaultdict(float)
        self._listed: Counter[Payer] = Counter()
        self._new_s = 0.0

    @contextlib.contextmanager
    def of_new(self) -> Iterator[Callable[[Payer | None], None]]:
        """While a new process is identified; what it yields wants to know who pays."""
        began_s = time.thread_time()
        payers: list[Payer | None] = []
        try:
            yield payers.append
        finally:
            cost_s = time.thread_time() - began_s
            self._new_s += cost_s
            for payer in payers:
                if payer is not None:
                    self._identified[payer] += cost_s

    def count(self, payer: Payer | None) -> None:
        """One process was looked at."""
        if payer is not None:
            self._listed[payer] += 1

    def by_payer(self) -> Iterator[tuple[Payer, float]]:
        """What each container has cost; those with few processes are let off."""
        rest_s = max(0.0, time.thread_time() - self._began_s - self._new_s)
        each_s = rest_s / max(1, self._listed.total())
        for payer, number in self._listed.items():
            identified_s = self._identified[payer]
            if number > _FREE_LISTED or identified_s:
                yield payer, identified_s + number * each_s


def _is_due(pid: int, known: Entry, now: Activity, now_s: float, *, holds_slot: bool) -> bool:
    """Whether a process that has done something has to be read again.

    One with a slot is not for a mapping more or less: it keeps its region until it ends or calls
    exec, which shows in where its stack begins, where that may be seen.
    """
    has_same_program = now.stack == known.activity.stack != b"0"
    if not (known.activity.maps_the_same(now) or (holds_slot and has_same_program)):
        return True
    moment = 0.5 + pid % _MOMENTS / (2 * _MOMENTS)
    return now_s - known.looked_at_s >= _UNCHANGED_FOR_S * moment


def _blocked(entry: Entry) -> Entry:
    """A process that could not be asked: what was known of it before still stands."""
    return entry if entry.unread is None else attrs.evolve(entry, unread="blocked")

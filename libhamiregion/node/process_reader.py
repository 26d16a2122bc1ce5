"""Reads the processes of a /proc, within a budget of time that is shared by container."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Literal

import attrs

from libhamiregion.layouts import LAYOUTS

from . import procfs
from .cgroups import parse_cgroup, payer_of
from .matching import HostProcess
from .process_entry import Entry
from .procfs import AccessDenied, Gone, TooMuch
from .reader_threads import Blocked, Job, ReaderThreads
from .reading_shares import ListingCosts, ReadingOrder, ReadingShares

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from collections.abc import Mapping as MappingOf

    from .cgroups import ContainerId, Payer
    from .process_entry import GapReason
    from .procfs import Activity
    from .reader_threads import Outcome

_SMALLEST_REGION = min(layout.size_bytes for layout in LAYOUTS)
# A monitor maps one file per container. What is kept of the processes of one container together is
# bounded too, and far higher outside of containers.
_FILES_LIMIT = 4_096
_KEPT_BYTES_LIMIT = 8 << 20
_KEPT_BYTES_LIMIT_OUTSIDE = 64 << 20
# The real time that one refresh takes for new processes: so much, and so much for each share.
_FIRST_LOOKS_S, _FIRST_LOOKS_PER_SHARE_S = 5.0, 0.02
# The processor time that all processes take together that were seen before; the second one where
# those that hold slots were left out.
_SECOND_LOOKS_S, _SECOND_LOOKS_PARTIAL_S = 0.05, 0.005
# So often those are looked at, too, that are known to live.
_FULL_AFTER_S = 55.0
# What has mapped nothing since, by its `stat`, is read again after this time, each process at
# another moment: it can have put a mapping in the place of another. Of one that holds a slot the
# links to what it maps tell that, at a fiftieth of the cost; its maps are read for what else it may
# have mapped.
_UNCHANGED_FOR_S = 600.0
_HOLDER_UNCHANGED_FOR_S = 3600.0
# What has been as it is for so long is looked at in every third listing only, each process in
# another one: kernel threads, and the daemons of a node.
_QUIET_AFTER_S = 60.0
_QUIET_LISTINGS = 3
# So many files of a process are held against its links, 4 us each.
_LINKS_LIMIT = 16
_MOMENTS = 64


class ProcessReader:
    """Reads processes, and remembers what each container has cost.

    What can make a reader wait is read by other threads (`ReaderThreads`).

    Threads: one refresh at a time; `look_up` and `ask` may be called beside it.
    """

    def __init__(self) -> None:
        self._threads = ReaderThreads()
        self._shares = ReadingShares()
        self._users: MappingOf[int, str] = {}
        # Of which entries, and how much of each payer's.
        self._kept_of: MappingOf[int, Entry] = {}
        self._kept_bytes: Counter[Payer] = Counter()
        self._full_s = float("-inf")
        self._listing = 0
        # Text of cgroup -> what it says, within one refresh.
        self._containers: dict[str, tuple[ContainerId | None, Payer]] = {}
        self._payers: dict[Payer, Payer] = {}

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
                are read again where they have called exec or do not map what they did, and after
                an hour.
            wanted: Pids whose maps are read again if they have done anything since.
            full: Whether to look at every process. Else, but for once a minute, those of `living`
                are left out, this process itself, which maps all regions, and two thirds of those
                that were last read more than a minute ago, in turns.

        Returns:
            All processes by pid, and the pids that not even `stat` may be read of.

        Raises:
            OSError: /proc cannot be listed, or the system is out of descriptors, memory or threads.
        """
        self._users = users
        self._containers, self._payers = {}, {}
        if before is not self._kept_of:
            self._kept_bytes.clear()
            for each in before.values():
                self._count(None, each)
        # What is counted from here on is of the entries to come.
        self._kept_of = {}
        entries: dict[int, Entry] = {}
        refused: list[int] = []
        first: list[Entry] = []
        again: list[tuple[bool, float, int]] = []
        checked: list[Entry] = []
        now_s = time.monotonic()
        full = full or now_s - self._full_s >= _FULL_AFTER_S
        if full:
            self._full_s = now_s
        costs = ListingCosts()
        pids = [int(name) for name in os.listdir(directory) if name.isdigit()]
        holders = _known_holders(before, living, wanted)
        untouched = set()
        if not full:
            itself = procfs.read_link(directory, "self") or ""
            own = {int(itself)} if itself.isdigit() else set()
            alive = holders | (own - set(wanted)) & before.keys()
            untouched = {pid for pid in alive if before[pid].unread is None}
            self._listing += 1
            untouched.update(_quiet(before, wanted, now_s - _QUIET_AFTER_S, self._listing))
        entries.update((pid, before[pid]) for pid in pids if pid in untouched)
        asked = [pid for pid in pids if pid not in untouched]
        for pid, activity in procfs.read_activities(directory, asked):
            if activity is None:
                refused.append(pid)
                continue
            known = before.get(pid)
            has_acted = False
            try:
                if known is None or known.activity.start_time != activity.start_time:
                    with costs.of_new() as identified:
                        line = procfs.stat_line(directory, f"{pid}/stat")
                        known = self._identify(directory, str(pid), line)
                        identified(known.payer)
                else:
                    has_acted = known.activity != activity
                    if known.unread == "blocked":
                        known = self._late(known)
            except Gone:
                continue
            except AccessDenied:
                refused.append(pid)
                continue
            entries[pid] = known
            costs.count(known.payer)
            if not has_acted and known.unread not in {"no_time", "blocked"}:
                continue
            if pid in wanted or known.unread in {"no_time", "blocked"}:
                first.append(known)
                continue
            due = _what_is_due(pid, known, activity, now_s, holds_slot=pid in holders)
            if due == "maps":
                again.append((known.activity.maps_the_same(activity), known.looked_at_s, pid))
            elif due == "links":
                checked.append(known)
        again.sort()
        looked_again = [entries[pid] for *_, pid in again]
        for pid, each in before.items():
            now = entries.get(pid)
            if now is not each:
                self._count(each, now)
        self._threads.keep_only(
            each.identity for each in entries.values() if each.process is not None
        )
        self._shares.forget_idle()
        for payer, cost_s in costs.by_payer():
            self._shares.charge(payer, cost_s)
        second_s = _SECOND_LOOKS_S if full else _SECOND_LOOKS_PARTIAL_S
        self._read_all(directory, entries, refused, (first, looked_again, checked), second_s)
        self._kept_of = entries
        return entries, refused

    def _read_all(
        self,
        directory: int,
        entries: dict[int, Entry],
        refused: list[int],
        wanted: tuple[list[Entry], list[Entry], list[Entry]],
        second_s: float,
    ) -> None:
        """Read those that were never read, those that are due again, and those to be checked."""
        orders = [ReadingOrder(self._shares, each) for each in wanted]
        looks = (self._look_at, self._look_at, self._look_where_unmapped)
        now_s = time.monotonic()
        orders[0].end_s = now_s + _FIRST_LOOKS_S + _FIRST_LOOKS_PER_SHARE_S * orders[0].parties
        orders[1].cost_limit_s = orders[2].cost_limit_s = second_s
        in_hand: list[tuple[ReadingOrder, Entry]] = []

        def next_job() -> Job | None:
            for each, look in zip(orders, looks, strict=True):
                while (entry := each.next()) is not None:
                    assert entry.process is not None  # noqa: S101 (as `Entry.identity`)
                    if self._threads.refusal(entry.payer, entry.identity) is None:
                        in_hand[:] = [(each, entry)]
                        work = partial(look, directory, str(entry.process.pid), entry)
                        return Job(entry.payer, entry.identity, work)
                    entries[entry.process.pid] = _blocked(entry)
                    each.add(entry.payer, 0.0)
            return None

        def deliver(_: Job, outcome: Outcome, cost_s: float) -> None:
            ((order, entry),) = in_hand
            pid = entry.identity[0]
            order.add(entry.payer, cost_s)
            if isinstance(outcome, Entry):
                self._count(entry, outcome)
                entries[pid] = outcome
            elif isinstance(outcome, Blocked):
                entries[pid] = _blocked(entry)
            else:
                self._count(entry, None)
                del entries[pid]
                if isinstance(outcome, AccessDenied):
                    refused.append(pid)

        if any(wanted):
            self._threads.run(next_job, deliver)

    def _count(self, before: Entry | None, now: Entry | None) -> None:
        """Count what is kept of a process from now on in place of what was kept of it."""
        if now is not None and now.payer is not None and now.mappings:
            self._kept_bytes[now.payer] += now.kept_bytes
        if before is not None and before.payer is not None and before.mappings:
            self._kept_bytes[before.payer] -= before.kept_bytes

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
        except (Gone, AccessDenied):
            return None
        if entry.unread is None or entry.payer is None:
            return entry
        if self._shares.is_used_up(entry.payer):
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
        if self._shares.is_used_up(entry.payer):
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
            self._shares.charge(entry.payer, cost_s)
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
            with contextlib.suppress(AccessDenied):
                cgroup = procfs.read_cgroup(descriptor)
        finally:
            os.close(descriptor)
        container = self._containers.get(cgroup)
        if container is None:
            container = self._containers[cgroup] = parse_cgroup(cgroup), payer_of(cgroup)
        payer = container[1]
        if payer.container is None:
            payer = attrs.evolve(payer, program=activity.stack)
        # The same object compares at once.
        payer = self._payers.setdefault(payer, payer)
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

    def _look_where_unmapped(self, directory: int, name: str, known: Entry) -> Entry:
        """Read a process whole if it does not map a file that it had, which costs a link for each.

        One that maps a file in several pieces is read as well.
        """
        try:
            for each in known.mappings[:_LINKS_LIMIT]:
                link = f"{name}/map_files/{each.start:x}-{each.end:x}"
                if procfs.split_deleted(os.readlink(link, dir_fd=directory)) != each.name:
                    return self._look_at(directory, name, known)
        except FileNotFoundError:
            return self._look_at(directory, name, known)
        except OSError:
            pass  # this process may not ask
        return attrs.evolve(known, checked_at_s=time.monotonic())

    def _look_at(self, directory: int, name: str, known: Entry) -> Entry:
        """Read a process whole; in another thread than all the rest, which may be stuck with it."""
        descriptor = procfs.open_process(directory, name)
        try:
            # stat comes first: what the process maps later differs from this and is seen next time.
            line = procfs.stat_line(descriptor)
            activity, stat = procfs.activity(line), procfs.parse_stat(line)
            if activity.start_time != known.activity.start_time:
                raise Gone
            before = known
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
            except AccessDenied:
                readable = False
            except TooMuch:
                unread = "too_large"
            command = ""
            with contextlib.suppress(AccessDenied):
                command = procfs.read_command(descriptor)
            if command != process.command:
                process = attrs.evolve(process, command=command or process.command)
            namespace = procfs.read_link(descriptor, "ns/pid") if maps.files else None
            now_s = time.monotonic()
            entry = Entry(
                activity,
                # The same object says that nothing has changed.
                before.process if process == before.process else process,
                payer,
                before.mappings if maps.files == before.mappings else maps.files,
                namespace,
                maps.has_libvgpu if readable and unread is None else None,
                readable,
                unread,
                now_s,
                now_s,
                before.facts if activity.stack == before.activity.stack else {},
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


def _known_holders(
    before: MappingOf[int, Entry], living: MappingOf[int, int], wanted: Collection[int]
) -> set[int]:
    """The pids of processes that have a slot, live, and are not wanted for another one."""
    return {
        pid
        for pid, start_time_ticks in living.items()
        if pid not in wanted
        and (known := before.get(pid)) is not None
        and known.process is not None
        and known.process.start_time_ticks == start_time_ticks
    }


def _quiet(
    before: MappingOf[int, Entry], wanted: Collection[int], since_s: float, listing: int
) -> set[int]:
    """The pids of processes that have been as they are for long and have no turn in a listing."""
    return {
        pid
        for pid, entry in before.items()
        if (pid + listing) % _QUIET_LISTINGS
        and entry.unread is None
        and entry.looked_at_s < since_s
        and pid not in wanted
    }


def _what_is_due(
    pid: int, known: Entry, now: Activity, now_s: float, *, holds_slot: bool
) -> Literal["maps", "links"] | None:
    """What has to be read again of a process that has done something.

    One with a slot is not for a mapping more or less: it keeps its region until it ends or calls
    exec, which shows in where its stack begins, where that may be seen. Whether it still maps it
    is checked where its size has changed, and now and then.
    """
    is_as_large = known.activity.maps_the_same(now)
    has_same_program = now.stack == known.activity.stack != 0
    moment = 0.5 + pid % _MOMENTS / (2 * _MOMENTS)
    if not (holds_slot and has_same_program):
        is_due = not is_as_large or now_s - known.looked_at_s >= _UNCHANGED_FOR_S * moment
        return "maps" if is_due else None
    if now_s - known.looked_at_s >= _HOLDER_UNCHANGED_FOR_S * moment:
        return "maps"
    is_due = not is_as_large or now_s - known.checked_at_s >= _UNCHANGED_FOR_S * moment
    return "links" if is_due and known.mappings else None


def _blocked(entry: Entry) -> Entry:
    """A process that could not be asked: what was known of it before still stands."""
    return entry if entry.unread is None else attrs.evolve(entry, unread="blocked")

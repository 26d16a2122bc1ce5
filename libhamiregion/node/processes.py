"""The processes of a node, and which of them map which region."""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from libhamiregion.bounded_file import read_bounded
from libhamiregion.observation.processes import ProcessView, ProcVisibility, gaps_of

from . import procfs
from .process_reader import ProcessReader
from .procfs import Gone

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from collections.abc import Mapping as MappingOf
    from concurrent.futures import Future

    from libhamiregion.errors import PathLike
    from libhamiregion.observation.processes import Entry, HostProcess

    from .workers import Call

T = TypeVar("T")

# A file of 40,000 users; it is read at each refresh.
_USERS_LIMIT = 4 << 20


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
    """

    def __init__(self, proc: PathLike = "/proc", *, user_file: PathLike = "/etc/passwd") -> None:
        self.proc = str(Path(proc).absolute())
        self._refreshing = threading.Lock()
        self.view = ProcessView(self.proc)
        self._user_file = Path(user_file)
        self._reader = ProcessReader()
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
                users = _user_names(self._user_file)
                entries, refused = self._reader.read(
                    directory, self.view.entries, users, wanted, only_wanted=only_wanted
                )
                visibility = _visibility(directory, entries, refused)
                gaps = gaps_of(entries.values())
                self.view = ProcessView.of(
                    self.proc, started_s, time.monotonic(), entries, visibility, gaps
                )
            finally:
                os.close(directory)

    def note_listed(self, pids: Collection[int]) -> set[int]:
        """Note the pids on the driver's lists, and find those to be read again.

        Maps that were read before do not show whether libvgpu limits the process.
        """
        self._reader.gpu_pids = frozenset(pids)
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

    def call_all(self, calls: Iterable[Call], until_s: float) -> list[tuple[Call, Future[Any]]]:
        """Make calls that may wait for processes; see `Workers.call_all`."""
        return self._reader.call_all(calls, until_s)

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
        return self._reader.ask(entry, work)

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

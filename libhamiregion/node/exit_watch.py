"""Which of many processes have ended, told by the kernel: one poll for all."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import threading
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .matching import HostProcess
    from .processes import ProcessTable

# Each watched process takes a descriptor.
_WATCHED_LIMIT = 16_384


def _close_all(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


class ExitWatch:
    """Tells which of many processes have ended, by their pidfds in one epoll.

    Where /proc is that of another pid namespace, or descriptors are short, `stat` is read instead.

    Threads: may be shared.

    Args:
        table: The processes.
    """

    def __init__(self, table: ProcessTable) -> None:
        self._table = table
        self._guard = threading.RLock()
        self._poll: select.epoll | None = None
        self._watched: dict[int, HostProcess] = {}
        self._by_process: dict[HostProcess, int] = {}
        # Without a pidfd.
        self._asked: set[HostProcess] = set()
        # What `ended` has not told yet.
        self._ended: set[HostProcess] = set()
        # Of a node that nobody has closed.
        weakref.finalize(self, _close_all, self._watched)

    def is_crowded(self, wanted: int) -> bool:
        """Whether many more are watched than are wanted."""
        return len(self._watched) + len(self._asked) > 2 * wanted + 64

    def watch(self, processes: Iterable[HostProcess]) -> None:
        """Watch these too."""
        with self._guard:
            for process in processes:
                if process not in self._by_process and process not in self._asked:
                    descriptor = self._open(process)
                    if descriptor is None:
                        self._asked.add(process)
                    else:
                        self._watched[descriptor] = process
                        self._by_process[process] = descriptor

    def _open(self, process: HostProcess) -> int | None:
        limit = min(_WATCHED_LIMIT, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        if not self._table.visibility.is_own_namespace or len(self._watched) >= limit:
            return None
        descriptor = None
        try:
            if self._poll is None:
                self._poll = select.epoll()
            descriptor = os.pidfd_open(process.pid)
            # The pid may have been another's by then.
            if self._table.is_running(process):
                self._poll.register(descriptor, select.EPOLLIN)
                return descriptor
        except OSError:
            pass
        if descriptor is not None:
            os.close(descriptor)
        return None

    def living(self) -> dict[int, int]:
        """Pid to start time of those that have a pidfd, and live: whatever has their pid is them.

        Others may live as well.
        """
        with self._guard:
            self._note_ended()
            return {each.pid: each.start_time_ticks for each in self._by_process}

    def ended(self) -> set[HostProcess]:
        """The processes that have ended since the last call."""
        with self._guard:
            asked = {each for each in self._asked if not self._table.is_running(each)}
            self._asked -= asked
            self._note_ended()
            found, self._ended = self._ended | asked, set()
            return found

    def _note_ended(self) -> None:
        if self._poll is not None and self._watched:
            for descriptor, _ in self._poll.poll(0, len(self._watched)):
                self._ended.add(self._watched[descriptor])
                self._drop(descriptor)

    def keep_only(self, processes: Iterable[HostProcess]) -> None:
        """Watch no others."""
        kept = set(processes)
        with self._guard:
            self._asked &= kept
            for process in self._by_process.keys() - kept:
                self._drop(self._by_process[process])

    def _drop(self, descriptor: int) -> None:
        del self._by_process[self._watched.pop(descriptor)]
        # Closing alone does not take it out of the epoll of a forked child's parent.
        with contextlib.suppress(OSError):
            if self._poll is not None:
                self._poll.unregister(descriptor)
        os.close(descriptor)

    def renew_lock(self) -> None:
        """In a forked child: a thread that does not exist there may have it."""
        self._guard = threading.RLock()

    def close(self) -> None:
        """Give all descriptors back."""
        with self._guard:
            # The epoll first, so that nothing is taken out of it: a forked child shares its
            # parent's.
            if self._poll is not None:
                self._poll.close()
                self._poll = None
            for descriptor in list(self._watched):
                self._drop(descriptor)
            self._asked.clear()
            self._ended.clear()

"""Calls that may never return, in threads that are abandoned if they do not.

The kernel reads ``cmdline``, ``environ``, ``map_files`` and, before Linux 6.17, ``maps`` under a
lock of the process's address space. A process can keep that lock for as long as it likes: it maps a
file of its own FUSE server, which never answers. The driver may never answer after a GPU's fault.
"""

from __future__ import annotations

import errno
import queue
import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable

    _Calls: TypeAlias = queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]

T = TypeVar("T")

# Reading the largest maps takes half a second.
_TIMEOUT_S = 1.0
# A thread that is abandoned stays until its call returns: so many at most, in all and per party.
_ABANDONED_LIMIT = 64
_LIMIT_PER_PARTY = 2


class Blocked(Exception):
    """The process does not let itself be read, or others of its container have kept readers."""


class Workers:
    """Makes calls one after the other in a thread that is replaced if one takes too long.

    The process of an abandoned call is not asked again until that call's `late` result is taken;
    while two such calls of a party last, none of its processes is asked.

    Threads: may be shared.

    Args:
        timeout_s: How long a call may take.
        name: Of the threads.
    """

    def __init__(self, timeout_s: float = _TIMEOUT_S, name: str = "hami-reader") -> None:
        self._timeout_s = timeout_s
        self._name = name
        self._calling = threading.Lock()
        self._calls: _Calls | None = None
        self._abandoned: dict[Hashable, tuple[Hashable, Future[Any]]] = {}

    def call(self, party: Hashable, process: Hashable, work: Callable[[], T]) -> T:
        """Call a function that may wait for a process.

        Args:
            party: Budget that the process belongs to.
            process: Identifies the process.
            work: The function.

        Raises:
            Blocked: It has not returned in time, or is not called because of earlier ones.
            OSError: No thread can be started.
            Exception: As the function.
        """
        with self._calling:
            # Another thread may remove a call meanwhile.
            abandoned = self._abandoned.copy().values()
            stuck = [each for each, future in abandoned if not future.done()]
            is_full = len(stuck) >= _ABANDONED_LIMIT
            if process in self._abandoned or is_full or stuck.count(party) >= _LIMIT_PER_PARTY:
                raise Blocked
            future: Future[T] = Future()
            if self._calls is None:
                self._calls = _start(self._name)
            self._calls.put((future, work))
            in_time = False
            try:
                future.exception(self._timeout_s)
                in_time = True
            except NotInTime:
                raise Blocked from None
            finally:
                if not in_time:
                    self._abandoned[process] = party, future
                    self._end_thread()
        return future.result()

    def late(self, process: Hashable) -> object:
        """Take the result of an abandoned call that has returned since; None without one."""
        _, future = self._abandoned.get(process, (None, None))
        if future is None or not future.done():
            return None
        del self._abandoned[process]
        return None if future.exception() else future.result()

    def rest(self) -> None:
        """End the thread when it has done its calls; the next call starts another one."""
        with self._calling:
            self._end_thread()

    def _end_thread(self) -> None:
        calls, self._calls = self._calls, None
        if calls is not None:
            calls.put(None)

    def keep_only(self, processes: Collection[Hashable]) -> None:
        """Forget the abandoned calls of all other processes."""
        for each in self._abandoned.keys() - set(processes):
            del self._abandoned[each]


def _start(name: str) -> _Calls:
    calls: _Calls = queue.SimpleQueue()

    def work_on() -> None:
        while (call := calls.get()) is not None:
            future, work = call
            try:
                future.set_result(work())
            except Exception as error:  # noqa: BLE001 (raised again for the caller)
                future.set_exception(error)
            del call, future  # the result may be large

    try:
        threading.Thread(target=work_on, name=name, daemon=True).start()
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, str(error)) from error
    return calls

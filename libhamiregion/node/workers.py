"""Calls that may never return, in threads that are abandoned if they do not.

The kernel reads ``cmdline``, ``environ``, ``map_files`` and, before Linux 6.17, ``maps`` under a
lock of the process's address space. A process can keep that lock for as long as it likes: it maps a
file of its own FUSE server, which never answers. The driver may never answer after a GPU's fault.
"""

from __future__ import annotations

import errno
import queue
import threading
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable

T = TypeVar("T")

# Reading the largest maps takes half a second.
_TIMEOUT_S = 1.0
# A thread that is abandoned stays until its call returns: so many at most, in all and per party.
_ABANDONED_LIMIT = 64
_LIMIT_PER_PARTY = 2


class Blocked(Exception):
    """The process does not let itself be read, or others of its container have kept readers."""


class _Call(Generic[T]):
    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self.done = threading.Event()
        self.results: list[T] = []
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self.results.append(self._work())
        except Exception as error:  # noqa: BLE001 (raised again for the caller)
            self.error = error
        finally:
            self.done.set()

    def result(self) -> T:
        if self.error is not None:
            raise self.error
        return self.results[0]


class BoundedCall(Generic[T]):
    """Calls a function in a thread of its own, and waits for it for a bounded time.

    While a call hangs, no second one is begun: its thread cannot be ended. Its late result is
    dropped.

    Threads: one at a time.

    Args:
        function: The function.
        name: Of the thread.
    """

    def __init__(self, function: Callable[[], T], name: str) -> None:
        self._function = function
        self._name = name
        self._hanging: _Call[T] | None = None

    def __call__(self, for_s: float) -> list[T]:
        """Return the function's result in a list; an empty list if it has not returned by then.

        Args:
            for_s: How long to wait, seconds.

        Raises:
            Exception: As the function.
        """
        if self._hanging is not None and not self._hanging.done.is_set():
            return []
        call = self._hanging = _Call(self._function)
        threading.Thread(target=call.run, name=self._name, daemon=True).start()
        if not call.done.wait(for_s):
            return []
        self._hanging = None
        return [call.result()]


class Workers:
    """Makes calls one after the other in a thread that is replaced if one takes more than 1 s.

    The process of an abandoned call is not asked again until that call returns; while two such
    calls of a party last, none of its processes is asked.

    Threads: may be shared.
    """

    def __init__(self) -> None:
        self._calling = threading.Lock()
        self._calls: queue.SimpleQueue[_Call[Any] | None] | None = None
        self._abandoned: dict[Hashable, tuple[Hashable, _Call[Any]]] = {}

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
            stuck = [each for each, call in abandoned if not call.done.is_set()]
            is_full = len(stuck) >= _ABANDONED_LIMIT
            if process in self._abandoned or is_full or stuck.count(party) >= _LIMIT_PER_PARTY:
                raise Blocked
            call = _Call(work)
            if self._calls is None:
                self._calls = _start()
            self._calls.put(call)
            in_time = False
            try:
                in_time = call.done.wait(_TIMEOUT_S)
            finally:
                if not in_time:
                    self._abandoned[process] = party, call
                    self._end_thread()
            if not in_time:
                raise Blocked
        return call.result()

    def late(self, process: Hashable) -> object:
        """Take the result of an abandoned call that has returned since; None without one."""
        _, call = self._abandoned.get(process, (None, None))
        if call is None or not call.done.is_set():
            return None
        del self._abandoned[process]
        return call.results[0] if call.results else None

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


def _start() -> queue.SimpleQueue[_Call[Any] | None]:
    calls: queue.SimpleQueue[_Call[Any] | None] = queue.SimpleQueue()

    def work() -> None:
        while (call := calls.get()) is not None:
            call.run()
            del call  # its result may be large

    try:
        threading.Thread(target=work, name="hami-reader", daemon=True).start()
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, str(error)) from error
    return calls

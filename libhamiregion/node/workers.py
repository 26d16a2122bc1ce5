"""Calls that may never return, in threads that are abandoned if they do not.

The kernel reads ``cmdline``, ``environ``, ``map_files`` and, before Linux 6.17, ``maps`` under a
lock of the process's address space. A process can keep that lock for as long as it likes: it maps a
file of its own FUSE server, which never answers. The driver may never answer after a GPU's fault.
"""

from __future__ import annotations

import errno
import threading
import time
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

T = TypeVar("T")

#: How long a call may take: reading the largest maps takes half a second.
TIMEOUT_S = 1.0
# A thread that is abandoned stays until its call returns: so many at most, in all and per party.
_ABANDONED_LIMIT = 64
_LIMIT_PER_PARTY = 2


class Blocked(Exception):
    """The process does not let itself be read, or others of its container have kept readers."""


class Call(NamedTuple):
    """A function that may wait for a process.

    Attributes:
        party: Budget that the process belongs to.
        process: Identifies the process.
        work: The function.
    """

    party: Hashable
    process: Hashable
    work: Callable[[], Any]


class Workers:
    """Makes calls one after the other in a thread that is replaced if one takes too long.

    The process of an abandoned call is not asked again until that call's `late` result is taken;
    while two such calls of a party last, none of its processes is asked.

    Threads: may be shared.

    Args:
        timeout_s: How long a call may take.
        name: Of the threads.
    """

    def __init__(self, timeout_s: float = TIMEOUT_S, name: str = "hami-reader") -> None:
        self._timeout_s = timeout_s
        self._name = name
        self._calling = threading.Lock()
        self._abandoned: dict[Hashable, tuple[Hashable, _Run]] = {}

    def call(self, party: Hashable, process: Hashable, work: Callable[[], T]) -> T:
        """Make one call.

        Args:
            party: As in `Call`.
            process: As in `Call`.
            work: As in `Call`.

        Raises:
            Blocked: It has not returned in time, or is not made because of earlier ones.
            OSError: No thread can be started.
            Exception: As the function.
        """
        for _, made in self.call_all([Call(party, process, work)]):
            result: T = made.result()
            return result
        raise Blocked

    def call_all(
        self, calls: Iterable[Call], until_s: float = float("inf")
    ) -> list[tuple[Call, Future[Any]]]:
        """Make calls in their order, and return those that have returned in time.

        One thread makes all of them: to change threads costs as much as a short call.

        Args:
            calls: The calls; those of blocked processes are not made.
            until_s: On the monotonic clock; no call begins after it.

        Raises:
            OSError: No thread can be started.
        """
        found: list[tuple[Call, Future[Any]]] = []
        with self._calling:
            while time.monotonic() < until_s and (
                waiting := deque(each for each in calls if not self.is_blocked(each))
            ):
                run = _Run(waiting, until_s, self._name)
                made, stuck, calls = run.wait(self._timeout_s)
                found += made
                if stuck is not None:
                    self._abandoned[stuck.process] = stuck.party, run
        return found

    def is_blocked(self, call: Call) -> bool:
        """Whether a call is not made, because of earlier ones."""
        # Another thread may remove a call meanwhile.
        abandoned = self._abandoned.copy().values()
        stuck = [party for party, run in abandoned if not run.has_ended.is_set()]
        return (
            call.process in self._abandoned
            or len(stuck) >= _ABANDONED_LIMIT
            or stuck.count(call.party) >= _LIMIT_PER_PARTY
        )

    def late(self, process: Hashable) -> object:
        """Take the result of an abandoned call that has returned since; None without one."""
        _, run = self._abandoned.get(process, (None, None))
        if run is None or not run.has_ended.is_set():
            return None
        del self._abandoned[process]
        _, made = run.made[-1]
        return None if made.exception() else made.result()

    def keep_only(self, processes: Iterable[Hashable]) -> None:
        """Forget the abandoned calls of all other processes."""
        for each in self._abandoned.keys() - set(processes if self._abandoned else ()):
            del self._abandoned[each]


class _Run:
    """Calls that one thread makes.

    Attributes:
        made: The calls that were made, with their results or exceptions.
        has_ended: Set when no call is made any more.
    """

    def __init__(self, calls: deque[Call], until_s: float, name: str) -> None:
        self._calls, self._until_s = calls, until_s
        self._began_s = time.monotonic()
        self._changing = threading.Lock()
        self._making: Call | None = None
        self.made: list[tuple[Call, Future[Any]]] = []
        self.has_ended = threading.Event()
        try:
            threading.Thread(target=self._work, name=name, daemon=True).start()
        except RuntimeError as error:
            raise OSError(errno.EAGAIN, str(error)) from error

    def _work(self) -> None:
        while True:
            with self._changing:
                self._began_s = time.monotonic()
                if not self._calls or self._began_s >= self._until_s:
                    break
                call = self._making = self._calls.popleft()
            made: Future[Any] = Future()
            try:
                made.set_result(call.work())
            except Exception as error:  # noqa: BLE001 (raised again for the caller)
                made.set_exception(error)
            with self._changing:
                self.made.append((call, made))
                self._making = None
        self.has_ended.set()

    def wait(
        self, timeout_s: float
    ) -> tuple[list[tuple[Call, Future[Any]]], Call | None, list[Call]]:
        """Wait until a call has taken too long, or no more are made.

        Returns:
            The calls that were made, the one that takes too long, and those that are left.
        """
        while (left_s := self._began_s + timeout_s - time.monotonic()) > 0:
            if self.has_ended.wait(left_s):
                break
        with self._changing:
            left, made = list(self._calls), self.made
            # A thread that is abandoned keeps nothing but its own call.
            self._calls.clear()
            self.made = []
            return made, self._making, left

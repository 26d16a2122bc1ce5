"""Reads what a process can make wait for ever, in threads that are given up when they are stuck.

The kernel reads ``cmdline``, ``environ``, ``map_files`` and, before Linux 6.17, ``maps`` under a
lock of the process's address space. A process can keep that lock for as long as it likes: it maps a
file of its own FUSE server, which never answers.
"""

from __future__ import annotations

import errno
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import attrs

from .procfs import AccessDenied, Gone, TooMuch

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

# What reading a process may take. The largest maps that are read take half a second.
_DEADLINE_S = 1.0
# What is stuck is looked for so often.
_POLL_S = 0.05
# A thread that is stuck stays until its process ends. So many may be, in all and of one party.
_STUCK_LIMIT = 64
_STUCK_LIMIT_PER_PARTY = 2


class Blocked(Exception):
    """The process does not let itself be read, or others of its container have kept readers."""


@attrs.frozen(eq=False)
class Job:
    """Something to be read of one process.

    Attributes:
        party: Who the process belongs to.
        process: What tells it from all others.
        work: Reads it.
    """

    party: Hashable
    process: tuple[int, int]
    work: Callable[[], object]


#: What became of a job: what it returned, or why it did not.
Outcome: TypeAlias = object


class ReaderThreads:
    """Does jobs one after the other in a thread that is replaced when one of them is stuck.

    One thread does all jobs of a run, so that a job costs nothing but itself. It is stuck when a
    job takes more than a second and the thread neither runs nor wants to. Then another thread goes
    on with the next job; the process is not asked again while it lives, and what its own job finds
    at last can be had from `late`.

    Threads: may be shared.
    """

    def __init__(self) -> None:
        # Held for moments only.
        self._guard = threading.Lock()
        self._stuck: dict[Hashable, _Worker] = {}

    def refusal(self, party: Hashable, process: Hashable) -> Blocked | None:
        """Why a process must not be asked: it has blocked a reader, or its party has too many."""
        if not self._stuck:
            return None
        if process in self._stuck:
            return Blocked()
        stuck = list(self._stuck.values())
        held = Counter(each.party for each in stuck if not each.done.is_set())
        if held[party] >= _STUCK_LIMIT_PER_PARTY or held.total() >= _STUCK_LIMIT:
            return Blocked()
        return None

    def late(self, process: Hashable) -> Outcome:
        """What the job of a process that was given up has found since; None if nothing."""
        worker = self._stuck.get(process)
        return None if worker is None else worker.late

    def keep_only(self, processes: Iterable[Hashable]) -> None:
        """Forget all that has blocked a reader but these."""
        if self._stuck:
            living = set(processes)
            self._stuck = {each: at for each, at in self._stuck.items() if each in living}

    def run(
        self, next_job: Callable[[], Job | None], deliver: Callable[[Job, Outcome], None]
    ) -> None:
        """Do jobs until there is none.

        Args:
            next_job: Gives the next one; called in another thread, one call at a time.
            deliver: Takes what became of one. A job that was
                given up has the outcome `Blocked`.

        Raises:
            OSError: What a job has raised, but for `Gone`, `AccessDenied` and `TooMuch`; or no
                thread can be started.
        """
        is_done = False
        while not is_done:
            worker = _Worker(self._guard, next_job, deliver)
            try:
                is_done = self._wait_for(worker)
            finally:
                # Also where the waiting was interrupted.
                worker.given_up = True
            if worker.error is not None:
                raise worker.error

    def _wait_for(self, worker: _Worker) -> bool:
        """Whether it has done all jobs; it is stuck otherwise."""
        while not worker.done.wait(_POLL_S):
            if worker.is_stuck():
                with self._guard:
                    job = worker.job
                    if job is not None:
                        worker.given_up = True
                        worker.party = job.party
                        self._stuck[job.process] = worker
                        worker.deliver(job, Blocked())
                        return False
        return True


class _Worker:
    """A thread that does jobs until there is none, or until it is given up."""

    def __init__(
        self,
        guard: threading.Lock,
        next_job: Callable[[], Job | None],
        deliver: Callable[[Job, Outcome], None],
    ) -> None:
        self._guard = guard
        self._next_job = next_job
        self.deliver = deliver
        self.given_up = False
        self.done = threading.Event()
        self.error: BaseException | None = None
        self.party: Hashable = None
        self.late: Outcome = None
        # The job in hand, and since when.
        self.job: Job | None = None
        self._began_s = 0.0
        self._clock = 0
        self._sample: tuple[Job, float] | None = None
        self._thread = threading.Thread(target=self._run, name="hami-reader", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            raise OSError(errno.EAGAIN, str(error)) from error

    def _run(self) -> None:
        try:
            self._clock = time.pthread_getcpuclockid(threading.get_ident())
            while self._take():
                self._do()
        except BaseException as error:  # noqa: BLE001 (raised again where it was waited for)
            self.error = error
        finally:
            self.done.set()

    def _take(self) -> bool:
        with self._guard:
            if not self.given_up:
                self._began_s = time.monotonic()
                self.job = self._next_job()
        return not self.given_up and self.job is not None

    def _do(self) -> None:
        job = self.job
        assert job is not None  # noqa: S101 (what `_take` has said)
        outcome: Outcome
        try:
            outcome = job.work()
        except (Gone, AccessDenied, TooMuch) as error:
            outcome = error
        with self._guard:
            self.job = None
            if self.given_up:
                self.late = outcome
            else:
                self.deliver(job, outcome)

    def is_stuck(self) -> bool:
        """Whether the job in hand takes too long, and the thread has not done anything lately."""
        job = self.job
        if job is None or time.monotonic() - self._began_s < _DEADLINE_S:
            return False
        try:
            sample = (job, time.clock_gettime(self._clock))
        except OSError:
            return False  # it ends just now
        before, self._sample = self._sample, sample
        return before == sample and not self._wants_to_run()

    def _wants_to_run(self) -> bool:
        """Whether it only waits for a processor."""
        try:
            line = Path(f"/proc/self/task/{self._thread.native_id}/stat").read_bytes()
        except OSError:
            return False
        return line[line.rindex(b")") + 2 :][:1] == b"R"

"""Reader threads: what never comes back costs its deadline once, and holds up nobody."""

import os
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from support.wait import eventually

from libhamiregion.node import reader_threads
from libhamiregion.node.procfs import AccessDenied, Gone, TooMuch
from libhamiregion.node.reader_threads import Blocked, Job, Outcome, ReaderThreads


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> ReaderThreads:
    monkeypatch.setattr(reader_threads, "_DEADLINE_S", 0.1)
    return ReaderThreads()


class Pipe:
    """What is read of it comes when `answer` is called."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()

    def read(self) -> bytes:
        return os.read(self._reading, 8)

    def answer(self) -> None:
        os.write(self._writing, b"at last")

    def close(self) -> None:
        self.answer()
        os.close(self._writing)


@pytest.fixture
def pipes() -> Iterator[Callable[[], Pipe]]:
    made: list[Pipe] = []

    def make() -> Pipe:
        made.append(Pipe())
        return made[-1]

    yield make
    for each in made:
        each.close()


def outcomes(threads: ReaderThreads, *jobs: Job) -> dict[object, Outcome]:
    waiting = list(jobs)
    found: dict[object, Outcome] = {}

    def deliver(job: Job, outcome: Outcome) -> None:
        found[job.process] = outcome

    threads.run(lambda: waiting.pop(0) if waiting else None, deliver)
    return found


def raising(error: Exception) -> Callable[[], object]:
    def work() -> object:
        raise error

    return work


def readers() -> set[threading.Thread]:
    """Those of an earlier test may be among them, and end meanwhile."""
    return {each for each in threading.enumerate() if each.name == "hami-reader"}


def test_one_thread_does_all_jobs_and_ends(threads: ReaderThreads) -> None:
    before = readers()
    names = outcomes(threads, *(Job("a", n, threading.get_ident) for n in range(100)))
    assert len(names) == 100
    assert len(set(names.values())) == 1
    assert threading.get_ident() not in names.values()
    eventually(lambda: readers() <= before)


def test_what_a_process_says_by_an_error_is_its_outcome(threads: ReaderThreads) -> None:
    errors = [Gone(), AccessDenied(), TooMuch()]
    jobs = [Job("a", number, raising(error)) for number, error in enumerate(errors)]
    assert list(outcomes(threads, *jobs).values()) == errors


def test_an_error_of_the_system_is_raised(threads: ReaderThreads) -> None:
    with pytest.raises(OSError, match="too many"):
        outcomes(threads, Job("a", 1, raising(OSError(24, "too many"))))
    assert outcomes(threads, Job("a", 1, lambda: "well")) == {1: "well"}


def test_what_blocks_is_given_up_and_the_others_are_done(
    threads: ReaderThreads, pipes: Callable[[], Pipe]
) -> None:
    pipe = pipes()
    found = outcomes(
        threads,
        Job("a", 1, lambda: "before"),
        Job("a", 2, pipe.read),
        Job("a", 3, lambda: "after"),
    )
    assert isinstance(found.pop(2), Blocked)
    assert found == {1: "before", 3: "after"}
    assert isinstance(threads.refusal("a", 2), Blocked)
    assert threads.refusal("a", 3) is None
    assert threads.late(2) is None
    pipe.answer()
    eventually(lambda: threads.late(2) == b"at last")
    # Its process is not asked again for all that.
    assert isinstance(threads.refusal("a", 2), Blocked)
    threads.keep_only([3])
    assert threads.refusal("a", 2) is None


def test_who_keeps_readers_waiting_gets_no_more_of_them_and_others_do(
    threads: ReaderThreads, pipes: Callable[[], Pipe]
) -> None:
    held = [pipes() for _ in range(reader_threads._STUCK_LIMIT_PER_PARTY)]
    outcomes(threads, *(Job("a", number, each.read) for number, each in enumerate(held)))
    assert isinstance(threads.refusal("a", "another process"), Blocked)
    assert threads.refusal("b", "another process") is None
    held[0].answer()
    eventually(lambda: threads.refusal("a", "another process") is None)


def test_all_together_may_keep_so_many_waiting_and_no_more(
    threads: ReaderThreads, pipes: Callable[[], Pipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_threads, "_STUCK_LIMIT", 3)
    held = [pipes() for _ in range(3)]
    outcomes(threads, *(Job(number, number, each.read) for number, each in enumerate(held)))
    assert isinstance(threads.refusal("b", "another process"), Blocked)


def test_a_long_job_that_works_is_not_stuck(threads: ReaderThreads) -> None:
    def work() -> str:
        end_s = time.thread_time() + 0.5
        while time.thread_time() < end_s:
            pass
        return "done"

    assert outcomes(threads, Job("a", 1, work)) == {1: "done"}


def test_a_run_that_is_interrupted_does_no_further_job(
    threads: ReaderThreads, pipes: Callable[[], Pipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = pipes()
    done: list[int] = []

    def interrupt(_: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(reader_threads._Worker, "is_stuck", interrupt)
    before = readers()
    with pytest.raises(KeyboardInterrupt):
        outcomes(threads, Job("a", 1, pipe.read), Job("a", 2, lambda: done.append(2)))
    pipe.answer()
    eventually(lambda: readers() <= before)
    assert done == []

"""Calls that never return cost their timeout once, and hold up nobody else."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from support.wait import PATIENCE_S, eventually

from libhamiregion.node import workers as workers_module
from libhamiregion.node.workers import Blocked, Call, Workers


class Pipe:
    """A read that returns when `answer` is called."""

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
    with contextlib.ExitStack() as made:
        yield lambda: made.enter_context(contextlib.closing(Pipe()))


@pytest.fixture
def workers() -> Workers:
    return Workers()


def readers() -> set[threading.Thread]:
    """Those of an earlier test may be among them, and end meanwhile."""
    return {each for each in threading.enumerate() if each.name == "hami-reader"}


def block(workers: Workers, party: str, process: object, pipe: Pipe) -> None:
    with pytest.raises(Blocked):
        workers.call(party, process, pipe.read)


def refuse(workers: Workers, party: str, process: object) -> None:
    """A call that is not made, though it would return at once."""
    with pytest.raises(Blocked):
        workers.call(party, process, lambda: "made")


def test_one_thread_makes_all_calls_and_ends(workers):
    before = readers()
    calls = [Call("a", number, threading.get_ident) for number in range(100)]
    made = workers.call_all(calls)
    assert [call for call, _ in made] == calls
    threads = {each.result() for _, each in made}
    assert len(threads) == 1
    assert threading.get_ident() not in threads
    eventually(lambda: readers() <= before)


def test_the_calls_behind_a_blocked_one_are_made(workers, pipes):
    pipe = pipes()
    calls = [Call("a", 0, os.getpid), Call("a", 1, pipe.read), Call("a", 2, os.getpid)]
    assert [call.process for call, _ in workers.call_all(calls)] == [0, 2]
    assert [workers.is_blocked(each) for each in calls] == [False, True, False]
    pipe.answer()
    eventually(lambda: workers.late(1) == b"at last")


def test_many_calls_may_take_longer_than_one():
    workers = Workers(timeout_s=2.0)
    calls = [Call("a", number, partial(time.sleep, 0.5)) for number in range(5)]
    assert len(workers.call_all(calls)) == 5


def test_no_call_begins_when_the_time_is_over():
    workers, end_s = Workers(timeout_s=PATIENCE_S), time.monotonic() + 1
    lasting = Call("a", 0, lambda: time.sleep(end_s - time.monotonic()))
    late = Call("a", 1, os.getpid)
    assert [call for call, _ in workers.call_all([lasting, late], end_s)] == [lasting]
    assert not workers.is_blocked(late)
    assert len(workers.call_all([late])) == 1


def test_an_error_of_a_call_is_raised_and_the_next_call_is_made(workers):
    def fail() -> object:
        raise OSError(24, "too many")

    with pytest.raises(OSError, match="too many"):
        workers.call("a", 1, fail)
    assert workers.call("a", 1, lambda: "well") == "well"


def test_a_blocked_process_is_not_asked_again_until_its_call_returns(workers, pipes):
    pipe = pipes()
    block(workers, "a", 1, pipe)
    assert workers.call("a", 2, lambda: "another process") == "another process"
    began_s = time.monotonic()
    block(workers, "a", 1, pipe)
    assert time.monotonic() - began_s < 0.1
    assert workers.late(1) is None
    pipe.answer()
    found: list[object] = []
    eventually(lambda: found.append(workers.late(1)) or found[-1] is not None)
    assert found[-1] == b"at last"
    assert workers.call("a", 1, lambda: "again") == "again"


def test_a_process_that_has_ended_is_forgotten(workers, pipes):
    block(workers, "a", 1, pipes())
    workers.keep_only([2])
    assert workers.call("a", 1, lambda: "its pid is used again") == "its pid is used again"


def test_two_blocked_calls_of_a_party_are_the_most_and_others_are_made(workers, pipes):
    held = [pipes() for _ in range(2)]
    for number, each in enumerate(held):
        block(workers, "a", number, each)
    refuse(workers, "a", "another process")
    assert workers.call("b", "another process", lambda: "b") == "b"
    held[0].answer()
    eventually(lambda: workers.late(0) is not None)
    assert workers.call("a", "another process", lambda: "a") == "a"


def test_there_is_a_limit_for_all_parties(workers, pipes, monkeypatch):
    monkeypatch.setattr(workers_module, "_ABANDONED_LIMIT", 3)
    for number in range(3):
        block(workers, str(number), number, pipes())
    refuse(workers, "b", "another process")


# ---- One call -----------------------------------------------------------------------------------


class Held:
    """Returns how often it was called, when it may."""

    def __init__(self) -> None:
        self.calls = 0
        self.may_return = threading.Event()

    def __call__(self) -> int:
        self.calls += 1
        number = self.calls
        assert self.may_return.wait(PATIENCE_S)
        return number


@pytest.fixture
def held() -> Iterator[Held]:
    made = Held()
    yield made
    made.may_return.set()

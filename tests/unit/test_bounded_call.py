"""Calls that may never come back."""

import threading
from collections.abc import Iterator

import pytest
from support.wait import PATIENCE_S, eventually

from libhamiregion.node.bounded_call import BoundedCall


class Held:
    """Returns how often it was called, when it is let."""

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


def test_what_comes_in_time_is_returned_or_raised() -> None:
    call = BoundedCall(lambda: 5, "five")
    assert call(PATIENCE_S) == [5]
    assert not call.hangs

    def fail() -> int:
        raise MemoryError("no memory")

    failing = BoundedCall(fail, "fails")
    for _ in range(2):
        with pytest.raises(MemoryError, match="no memory"):
            failing(PATIENCE_S)
        assert not failing.hangs


def test_nobody_waits_twice_for_a_call_that_hangs_and_its_late_result_is_dropped(
    held: Held,
) -> None:
    call = BoundedCall(held, "held")
    assert call(0.01) == []
    assert call.hangs
    # With all the patience there is: it does not wait at all.
    assert call(PATIENCE_S) == []
    eventually(lambda: held.calls == 1)
    held.may_return.set()
    eventually(lambda: call(PATIENCE_S) == [2])
    assert not call.hangs


def test_a_late_result_is_taken_where_that_is_wanted(held: Held) -> None:
    call = BoundedCall(held, "held", keeps_late=True)
    assert call(0.01) == []
    assert call(0.01) == []
    held.may_return.set()
    assert call(PATIENCE_S) == [1]
    assert held.calls == 1

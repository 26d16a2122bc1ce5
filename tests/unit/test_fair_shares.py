"""Shares of time: who uses up their own takes nothing from anybody else."""

import pytest

from libhamiregion.node.fair_shares import FairShares


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def shares(clock: Clock) -> FairShares:
    return FairShares(1.0, 0.1, clock=clock)


def test_what_one_uses_up_nobody_else_loses(shares: FairShares) -> None:
    shares.charge("a", 0.75)
    assert shares.left_s("a") == pytest.approx(0.25)
    assert shares.left_s("b") == 1.0
    shares.charge("a", 0.5)
    assert shares.left_s("a") < 0


def test_a_share_comes_back_with_time_and_no_further(shares: FairShares, clock: Clock) -> None:
    shares.charge("a", 1.0)
    clock.now_s += 5
    assert shares.left_s("a") == pytest.approx(0.5)
    clock.now_s += 50
    assert shares.left_s("a") == 1.0


def test_one_accident_costs_one_share_at_most(shares: FairShares, clock: Clock) -> None:
    """A machine that stood still for an hour is nobody's fault."""
    shares.charge("a", 3600.0)
    clock.now_s += 11
    assert shares.left_s("a") > 0


def test_who_has_all_of_it_again_is_forgotten(shares: FairShares, clock: Clock) -> None:
    shares.charge("a", 0.5)
    shares.charge("b", 1.5)
    clock.now_s += 6
    shares.forget_idle()
    assert list(shares._left) == ["b"]

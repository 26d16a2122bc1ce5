"""Processes killed by SIGKILL at every point of each layout that has locks, and at random moments.

`tests/c/crash.c` kills and judges: after each death the lock is free again in time, no slot is
lost or doubled, every sum is what the survivors hold and the dead held, and without the dead once
they are reaped, while the survivors go on charging and releasing.
"""

from pathlib import Path
from typing import Any

import pytest
from support import c_tools
from support.stress import scaled

LAYOUTS = 3
# In the layouts whose slots have a seqlock.
WITH_SEQLOCK = 2
ONLY_WITH_SEQLOCK = {
    "ACCOUNT_SEQLOCK_ODD",
    "ACCOUNT_SEQLOCK_EVEN",
    "REPAIR_COPY_CLEARED",
    "REPAIR_COUNT_STORED",
    "SEQLOCK_ENDED",
}


@pytest.fixture(scope="module")
def crash() -> Path:
    return c_tools.build("crash")


def layouts_with(point: str) -> int:
    return WITH_SEQLOCK if point in ONLY_WITH_SEQLOCK else LAYOUTS


def assert_all_were_killed(counted: dict[str, Any], rounds: int) -> None:
    points = {point["name"]: point for point in counted["points"]}
    assert set(points) > ONLY_WITH_SEQLOCK
    too_few = {
        name: point["kills"]
        for name, point in points.items()
        if point["kills"] < rounds * layouts_with(name)
    }
    assert too_few == {}
    assert counted["kills"] == counted["passed"] == sum(p["kills"] for p in points.values())


def test_nobody_is_harmed_by_anothers_death(crash):
    """Once at each point; in all layouts, more often, and in sight of all, in the long runs."""
    counted = c_tools.run(crash, "--rounds", 1, "--layout", "1.2", inside=c_tools.alone())
    assert counted["kills"] == counted["passed"]
    kills = {point["name"]: point["kills"] for point in counted["points"]}
    assert [name for name, count in kills.items() if count == 0] == []
    assert set(kills) > ONLY_WITH_SEQLOCK
    assert sum(kills.values()) >= 30


@pytest.mark.slow
def test_nobody_is_harmed_by_three_thousand_deaths(crash):
    rounds = scaled(28)
    counted = c_tools.run(crash, "--rounds", rounds)
    assert_all_were_killed(counted, rounds)
    assert counted["kills"] >= 109 * rounds


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 2 + scaled(4)))
def test_nobody_is_harmed_whatever_the_order(crash, seed):
    assert_all_were_killed(c_tools.run(crash, "--rounds", 3, "--seed", seed), 3)

"""Processes killed by SIGKILL at every point of every layout, and at random moments.

`tests/c/crash.c` kills and judges: after each death the lock is free again in time, no slot is
lost or doubled, every sum is what the survivors hold and the dead held, and without the dead once
they are reaped, while the survivors go on charging and releasing.
"""

import collections
from pathlib import Path
from typing import Any

import c_tools
import pytest
from stress import scaled

LAYOUTS = 5
# One with seqlocks, and one whose semaphore and signature cannot be stored together: between them,
# they have each point.
TWO_LAYOUTS = ("1.2", "unversioned-no-util")
# In the layouts whose slots have a seqlock.
WITH_SEQLOCK = 2
ONLY_WITH_SEQLOCK = {
    "CHARGE_SEQLOCK_ODD",
    "CHARGE_SEQLOCK_EVEN",
    "RELEASE_SEQLOCK_ODD",
    "RELEASE_SEQLOCK_EVEN",
    "REPAIR_COPY_CLEARED",
    "REPAIR_COUNT_STORED",
}
# Where the semaphore and the signature cannot be stored together.
IN_TWO_STEPS = 2
ONLY_IN_TWO_STEPS = {"LOCK_HOST_TAKEN", "LOCK_SEM_TAKEN", "UNLOCK_OWNER_CLEARED"}
# Where a slot has room for a mark.
ONLY_WITH_MARKS = {"SLOT_BYTE_LOCKED"}


@pytest.fixture(scope="module")
def crash() -> Path:
    return c_tools.build("crash")


def layouts_with(point: str) -> int:
    if point in ONLY_WITH_SEQLOCK:
        return WITH_SEQLOCK
    if point in ONLY_WITH_MARKS:
        return LAYOUTS - IN_TWO_STEPS
    return IN_TWO_STEPS if point in ONLY_IN_TWO_STEPS else LAYOUTS


def assert_all_were_killed(counted: dict[str, Any], rounds: int) -> None:
    points = {point["name"]: point for point in counted["points"]}
    assert set(points) > ONLY_WITH_SEQLOCK | ONLY_IN_TWO_STEPS | ONLY_WITH_MARKS
    too_few = {
        name: point["kills"]
        for name, point in points.items()
        if point["kills"] < rounds * layouts_with(name)
    }
    assert too_few == {}
    assert counted["kills"] == counted["passed"] == sum(p["kills"] for p in points.values())


def test_nobody_is_harmed_by_anothers_death(crash: Path) -> None:
    """Once at each point; in all layouts, more often, and in sight of all, in the long runs."""
    with_marks, without = TWO_LAYOUTS
    counted = [
        c_tools.run(crash, "--rounds", 1, "--layout", with_marks, inside=c_tools.alone()),
        # Proof of a death takes the sight of all there.
        *(
            c_tools.run(crash, "--rounds", 1, "--layout", without, "--point", point)
            for point in sorted(ONLY_IN_TWO_STEPS)
        ),
    ]
    kills = collections.Counter[str]()
    for each in counted:
        assert each["kills"] == each["passed"]
        kills.update({point["name"]: point["kills"] for point in each["points"]})
    assert [name for name, count in kills.items() if count == 0] == []
    assert set(kills) > ONLY_WITH_SEQLOCK | ONLY_IN_TWO_STEPS | ONLY_WITH_MARKS
    assert kills.total() >= 36


@pytest.mark.thorough
def test_nobody_is_harmed_where_slots_have_no_marks(crash: Path) -> None:
    """Also at the points that the other layouts have."""
    counted = c_tools.run(crash, "--rounds", 1, "--layout", TWO_LAYOUTS[1])
    assert counted["kills"] == counted["passed"] >= 30


@pytest.mark.stress
def test_nobody_is_harmed_by_three_thousand_deaths(crash: Path) -> None:
    rounds = scaled(20)
    counted = c_tools.run(crash, "--rounds", rounds)
    assert_all_were_killed(counted, rounds)
    assert counted["kills"] >= 150 * rounds


@pytest.mark.stress
@pytest.mark.parametrize("seed", range(2, 2 + scaled(4)))
def test_nobody_is_harmed_whatever_the_order(crash: Path, seed: int) -> None:
    assert_all_were_killed(c_tools.run(crash, "--rounds", 3, "--seed", seed), 3)


@pytest.mark.stress
@pytest.mark.parametrize("point", ["LOCK_SEM_TAKEN", "UNLOCK_OWNER_CLEARED"])
def test_a_lock_that_nobody_signed_is_free_after_ten_seconds(crash: Path, point: str) -> None:
    """The other tests shorten this rule; here it is what users have."""
    arguments = (
        "--rounds",
        1,
        "--layout",
        "unversioned",
        "--point",
        point,
        "--ownerless-ms",
        10_000,
    )
    counted = c_tools.run(crash, *arguments)
    worst_ms = max(row["worst_ms"] for row in counted["points"])
    assert 10_000 <= worst_ms < 30_000

"""Eight processes of four threads each in one region, in every layout.

`tests/c/contention.c` attaches, charges, releases, detaches, writes utilisation, locks and reads at
random, and judges: one holder at a time, settled snapshots that add up, final sums of exactly 0,
the semaphore at 1, no waiter left behind.
"""

from pathlib import Path

import pytest
from support import c_tools
from support.slot_bytes import LOCKABLE
from support.stress import scaled
from support.wait import eventually


@pytest.fixture(scope="module")
def contention() -> Path:
    return c_tools.build("contention")


def assert_busy(contention: Path, seconds: float) -> None:
    def is_busy() -> bool:
        counted = c_tools.run(contention, seconds)
        assert [run["layout"] for run in counted["layouts"]] == [
            layout.value for layout in LOCKABLE
        ]
        # Far below what any quiet machine does: that the work took place at all.
        return all(
            run["operations"] > 1000 * seconds
            and run["locked"] > 0
            and run["refused"] > 0
            and run["settled"] > run["snapshots"] / 2
            for run in counted["layouts"]
        )

    eventually(is_busy)


def test_thirty_two_threads_leave_nothing_behind(contention):
    assert_busy(contention, 0.2)


@pytest.mark.slow
def test_thirty_two_threads_leave_nothing_behind_in_a_minute(contention):
    assert_busy(contention, scaled(12.0))

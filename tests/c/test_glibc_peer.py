"""Glibc's own semaphore on the other side, in the same bytes, as libvgpu uses it.

`tests/c/glibc_peer.c` takes turns with `sem_timedwait` and `sem_post` in one process and with this
library in another, and wakes a sleeper in `sem_timedwait` by a release of ours and by a recovery;
all that with the semaphore of today's glibc and with that of a glibc before 2.21.
"""

from pathlib import Path

import pytest
from support import c_tools
from support.stress import scaled
from support.wait import eventually

LAYOUTS = 3
FORMATS = 2


@pytest.fixture(scope="module")
def glibc_peer() -> Path:
    return c_tools.build("glibc_peer")


def assert_both_took_turns(glibc_peer: Path, turns: int, tries: int) -> None:
    changes = 0

    def are_mixed() -> bool:
        nonlocal changes
        counted = c_tools.run(glibc_peer, turns, tries)
        assert counted["turns"] >= turns
        assert counted["wakes"] == tries * LAYOUTS * FORMATS
        assert counted["worst_wake_ms"] < 5000
        changes += counted["changes"]
        return changes > turns / 1000

    # Not one side after the other, but in between each other: a busy machine takes a while to.
    eventually(are_mixed)


def test_one_of_both_at_a_time(glibc_peer):
    assert_both_took_turns(glibc_peer, 30_000, 5)


@pytest.mark.slow
def test_one_of_both_at_a_time_a_million_times(glibc_peer):
    assert_both_took_turns(glibc_peer, scaled(1_000_000), scaled(50))

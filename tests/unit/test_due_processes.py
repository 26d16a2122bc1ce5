"""What is read again of a process that has done something since it was read."""

import pytest

from libhamiregion.node.process_entry import Entry
from libhamiregion.node.process_reader import _what_is_due
from libhamiregion.node.procfs import Activity, Mapping

READ = Activity(start_time=700, address_space=1 << 30, stack=0x7FF0, minor_faults=5, major_faults=1)
BUSY = READ._replace(minor_faults=900, major_faults=2)
LARGER = BUSY._replace(address_space=READ.address_space + 4096)
OTHER_PROGRAM = BUSY._replace(stack=0x7FE0)
REGION = Mapping(1, 40, 4096, 8192, 4096, True, "/region", False)
# By its pid each has a moment of its own between a half and the whole of it.
TEN_MINUTES_S, AN_HOUR_S = 600.0, 3600.0
AT_S = 100_000.0


@pytest.mark.parametrize("pid", [0, 31, 63, 64])
@pytest.mark.parametrize(
    ("now", "holds_slot", "after_s", "due"),
    [
        (BUSY, False, 1.0, None),
        (BUSY, False, 0.499 * TEN_MINUTES_S, None),
        (BUSY, False, TEN_MINUTES_S, "maps"),
        (LARGER, False, 0.0, "maps"),
        (OTHER_PROGRAM, False, 0.0, "maps"),
        (BUSY, True, 1.0, None),
        (BUSY, True, 0.499 * TEN_MINUTES_S, None),
        (BUSY, True, TEN_MINUTES_S, "links"),
        (LARGER, True, 0.0, "links"),
        (LARGER, True, 0.499 * AN_HOUR_S, "links"),
        (BUSY, True, AN_HOUR_S, "maps"),
        (OTHER_PROGRAM, True, 0.0, "maps"),
    ],
)
def test_it_is_due_when_it_has_grown_runs_something_else_or_was_read_long_ago(
    pid: int, now: Activity, holds_slot: bool, after_s: float, due: str | None
) -> None:
    known = Entry(READ, mappings=(REGION,), looked_at_s=AT_S, checked_at_s=AT_S)
    assert _what_is_due(pid, known, now, AT_S + after_s, holds_slot=holds_slot) == due


def test_not_all_are_due_at_the_same_time() -> None:
    known = Entry(READ, looked_at_s=AT_S)
    at_s = AT_S + 0.75 * TEN_MINUTES_S
    due = [_what_is_due(pid, known, BUSY, at_s, holds_slot=False) for pid in range(64)]
    assert due == ["maps"] * 33 + [None] * 31


def test_where_a_stack_is_not_shown_a_process_with_a_slot_is_as_any_other() -> None:
    hidden = READ._replace(stack=0)
    known = Entry(hidden, mappings=(REGION,), looked_at_s=AT_S, checked_at_s=AT_S)
    larger = hidden._replace(address_space=READ.address_space - 4096)
    assert _what_is_due(7, known, larger, AT_S, holds_slot=True) == "maps"
    assert _what_is_due(7, known, hidden, AT_S, holds_slot=True) is None


def test_links_are_checked_as_often_as_maps_are_read_and_only_of_one_that_maps_a_file() -> None:
    at_s = AT_S + TEN_MINUTES_S
    for mappings, checked_at_s, due in (
        ((REGION,), AT_S, "links"),
        ((REGION,), at_s, None),
        ((), AT_S, None),
    ):
        known = Entry(READ, mappings=mappings, looked_at_s=AT_S, checked_at_s=checked_at_s)
        assert _what_is_due(0, known, BUSY, at_s, holds_slot=True) == due

"""The priority rule, case by case; the cases follow HAMi's monitor, branch by branch."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libhamiregion.agent import LaunchState, Verdict, decide

A, B, C, MIG = "GPU-a", "GPU-b", "GPU-c", "MIG-a"
MIN, MAX = -(2**31), 2**31 - 1


def state(mark: int, priority: int, *uuids: str, switch: int = 0) -> LaunchState:
    return LaunchState(mark, switch, priority, frozenset(uuids))


# Each: what it shows, the regions, and (launch mark, switch) that each shall have afterwards.
CASES = [
    ("no region at all", [], []),
    ("idle: nothing changes", [state(0, 1, A)], [(0, 0)]),
    ("any mark above 0 counts down by one", [state(7, 1, A)], [(6, 0)]),
    ("alone on its device it is not limited", [state(2, 1, A, switch=1)], [(1, 0)]),
    ("a switch of another number is put right", [state(0, 1, A, switch=7)], [(0, 0)]),
    ("more urgent and busy: blocks", [state(2, 0, A), state(0, 1, A)], [(1, 0), (-1, 1)]),
    ("what has counted down to 0 blocks no more", [state(1, 0, A), state(0, 1, A)], [(0, 0)] * 2),
    ("whatever is below 0 is blocked", [state(2, 0, A), state(MIN, 1, A)], [(1, 0), (MIN, 1)]),
    ("unblocked when nobody is more urgent", [state(1, 0, A), state(-1, 1, A)], [(0, 0), (0, 0)]),
    ("the less urgent never blocks", [state(0, 0, A), state(2, 1, A)], [(0, 0), (1, 0)]),
    ("two of the same priority are limited", [state(2, 1, A), state(2, 1, A)], [(1, 1), (1, 1)]),
    (
        "two busy ones limit an idle third of theirs",
        [state(2, 1, A), state(2, 1, A), state(0, 1, A)],
        [(1, 1), (1, 1), (0, 1)],
    ),
    (
        "two busy less urgent ones do not limit the urgent",
        [state(2, 1, A), state(2, 1, A), state(2, 0, A)],
        [(-1, 1), (-1, 1), (1, 0)],
    ),
    ("other devices do not matter", [state(2, 0, A), state(2, 1, B)], [(1, 0), (1, 0)]),
    ("one shared device is enough", [state(2, 0, A, B), state(2, 1, B, C)], [(1, 0), (-1, 1)]),
    ("contention on any device limits", [state(2, 1, B), state(2, 1, A, B)], [(1, 1), (1, 1)]),
    (
        "each device counts for itself",
        [state(2, 1, A), state(2, 1, B), state(0, 1, A, B)],
        [(1, 0), (1, 0), (0, 0)],
    ),
    ("a MIG device is another than its GPU", [state(2, 0, A), state(2, 1, MIG)], [(1, 0)] * 2),
    ("without devices nothing is shared", [state(2, 0), state(2, 1)], [(1, 0), (1, 0)]),
    ("without devices it is unblocked", [state(2, 0, A), state(-1, 1, switch=1)], [(1, 0), (0, 0)]),
    (
        "the bare rule counts a negative priority as it stands",
        [state(2, MIN, A), state(2, 0, A)],
        [(1, 0), (-1, 1)],
    ),
]


@pytest.mark.parametrize(
    ("states", "expected"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
def test_case(states, expected):
    """Each case of the table, in each order of its regions."""
    for order in itertools.permutations(range(len(states))):
        verdicts = decide([states[at] for at in order])
        assert [(v.recent_kernel, v.utilization_switch) for v in verdicts] == [
            expected[at] for at in order
        ]


marks = st.sampled_from([MIN, -2, -1, 0, 1, 2, 3, MAX])
states = st.builds(
    LaunchState,
    recent_kernel=marks,
    utilization_switch=st.sampled_from([-1, 0, 1, 7]),
    priority=st.sampled_from([MIN, -1, 0, 1, 2, MAX]),
    uuids=st.frozensets(st.sampled_from([A, B, C, MIG]), max_size=3),
)


def slowly(all_states: list[LaunchState]) -> list[Verdict]:
    """The rule as its text says it, word by word, with no thought of cost."""
    counted_down = [
        s.recent_kernel - 1 if s.recent_kernel > 0 else s.recent_kernel for s in all_states
    ]
    counts = [
        (uuid, s.priority)
        for s, mark in zip(all_states, counted_down, strict=True)
        if mark > 0
        for uuid in s.uuids
    ]
    verdicts = []
    for s, mark in zip(all_states, counted_down, strict=True):
        blocked = any(uuid in s.uuids and priority < s.priority for uuid, priority in counts)
        contended = blocked or any(counts.count((uuid, s.priority)) > 1 for uuid in s.uuids)
        after = mark
        if blocked and mark >= 0:
            after = -1
        elif not blocked and mark < 0:
            after = 0
        verdicts.append(Verdict(after, 1 if contended else 0, blocked))
    return verdicts


@given(st.lists(states, max_size=7))
def test_the_rule_is_its_text(all_states):
    assert list(decide(all_states)) == slowly(all_states)


@given(st.lists(states, max_size=7))
def test_nobody_waits_for_ever(all_states):
    """Where nobody launches any more, all go on after as many passes as the largest mark."""
    current = [s for s in all_states if s.recent_kernel < MAX]
    for _ in range(4):
        current = [
            LaunchState(v.recent_kernel, v.utilization_switch, s.priority, s.uuids)
            for s, v in zip(current, decide(current), strict=True)
        ]
    assert all(s.recent_kernel == 0 and s.utilization_switch == 0 for s in current)

"""The control law holds a share of a GPU's time, on two models whose clock is their own.

The table of the guide (docs/how-run-works.md) has what these print.
"""

from itertools import product
from typing import Any

import pytest
from support.law_model import BOUNDS, LIMITS, nvml_of, play, replay

KERNELS_US = (10, 100, 1000, 10_000, 50_000)
PROCESSES = (1, 3, 6, 16)
ANSWERS = {"mean": {}, "last": {"last": 1}, "late": {"late_ms": 300}}


@pytest.mark.slow(keep=4)
@pytest.mark.parametrize("sample_ms", BOUNDS)
@pytest.mark.parametrize("answers", ANSWERS)
@pytest.mark.parametrize("sharing", [0, 1])
def test_the_mean_is_near_the_limit_and_no_process_starves(c_programs, sharing, answers, sample_ms):
    above, below = BOUNDS[sample_ms]
    for processes, kernel_us, limit in product(PROCESSES, KERNELS_US, LIMITS):
        settings = {"processes": processes, "kernel_us": kernel_us, "limit": limit}
        settings |= {"sharing": sharing, "sample_ms": sample_ms, **ANSWERS[answers]}
        played = play(c_programs, **settings)
        assert limit - below <= played.busy <= limit + above, (settings, played)
        assert played.least >= 0.3, (settings, played)
        assert played.longest_wait_s <= 20, (settings, played)


@pytest.mark.parametrize(
    ("change_s", "back_s", "above", "below"), [(2, 0, 10, 45), (5, 0, 12, 40), (5, 30, 12, 40)]
)
def test_kernels_that_become_ten_times_as_long_pass_the_limit_by_a_little(
    c_programs, change_s, back_s, above, below
):
    """Also where the clock is set back meanwhile."""
    for sharing, processes, limit in product((0, 1), (1, 3), LIMITS):
        settings = {"sharing": sharing, "processes": processes, "limit": limit}
        played = play(c_programs, change_s=change_s, back_s=back_s, **settings)
        assert limit - below <= played.busy <= limit + above, (settings, played)


def test_a_program_that_needs_less_than_its_limit_is_not_held_up(c_programs):
    """A kernel of 100 us in each millisecond is a tenth of the time."""
    for limit in LIMITS:
        played = play(c_programs, limit=limit, kernel_us=100, pending=1)
        assert played.busy == pytest.approx(10, abs=0.5)


def test_no_limit_is_so_low_that_a_process_stops(c_programs):
    for processes, kernel_us in product((1, 3), (10, 1000)):
        played = play(c_programs, limit=1, processes=processes, kernel_us=kernel_us)
        assert 0.1 < played.busy < 4, (processes, kernel_us, played)


def test_ranks_with_collectives_make_a_small_part_of_their_progress(c_programs):
    """A rank that waits for another keeps its GPU busy: the guide and `run --sm` say so."""
    for kernel_us in (100, 1000, 10_000):
        played = play(c_programs, ranks=1, processes=4, limit=50, kernel_us=kernel_us)
        assert played.busy > 60, played
        assert played.progress < 10, played


def saved_wave(sample_ms: int, late_ms: int, last: int) -> dict[str, Any]:
    """The answers of such an NVML about a process that works in every second second."""
    answers = []
    for at_ms in range(0, 6000, 50):
        for since_ms in (100, 500, 1000, 2000):
            newest = (at_ms - late_ms) // sample_ms
            taken = range(max(1, (at_ms - since_ms) // sample_ms + 1), newest + 1)
            percents = [100 if number * sample_ms % 2000 < 1000 else 0 for number in taken]
            percents = percents[-1:] if last else percents
            listed = []
            if sum(percents):
                listed = [[7, newest * sample_ms * 1000, sum(percents) // len(percents)]]
            answers.append([at_ms / 1000, since_ms / 1000, 0.0, 50, listed])
    return {"pids": [7], "answers": answers}


@pytest.mark.parametrize(("sample_ms", "late_ms", "last"), [(150, 0, 0), (150, 300, 1)])
def test_the_law_holds_by_an_nvml_that_answers_as_a_saved_one(c_programs, sample_ms, late_ms, last):
    wave = saved_wave(sample_ms, late_ms, last)
    assert nvml_of(wave) == {"sample_ms": sample_ms, "late_ms": late_ms, "last": last}
    assert "points" in replay(c_programs, wave)


def test_a_replay_fails_where_samples_are_too_rare_for_the_law(c_programs):
    with pytest.raises(AssertionError, match="'sample_ms': 2000"):
        replay(c_programs, saved_wave(2000, 0, 0))

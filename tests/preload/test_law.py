"""The control law holds a share of a GPU's time, on two models whose clock is their own.

The table of the guide (docs/how-run-works.md) has what these print.
"""

from __future__ import annotations

import subprocess
from itertools import product
from typing import TYPE_CHECKING

import attrs
import pytest

if TYPE_CHECKING:
    from pathlib import Path

KERNELS_US = (10, 100, 1000, 10_000, 50_000)
LIMITS = (20, 50, 80)
PROCESSES = (1, 3, 6, 16)
ANSWERS = {"mean": {}, "last": {"last": 1}, "late": {"late_ms": 300}}
# Points above and below the limit, by milliseconds between two samples.
BOUNDS = {20: (5, 10), 166: (5, 14), 1000: (8, 22)}


@attrs.frozen
class Played:
    """The output of the model: percent, a part of an even share, seconds, percent."""

    busy: float
    highest: float
    lowest: float
    least: float
    longest_wait_s: float
    progress: float


def play(c_programs: Path, **settings: int) -> Played:
    """Run the model; its comment explains the settings."""
    command = [str(c_programs / "law_model"), *(f"{key}={settings[key]}" for key in settings)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return Played(*map(float, answer.split()))


@pytest.mark.slow(keep=4)
@pytest.mark.parametrize("sample_ms", BOUNDS)
@pytest.mark.parametrize("answers", ANSWERS)
@pytest.mark.parametrize("sharing", [0, 1])
def test_the_mean_is_near_the_limit_and_no_process_starves(
    c_programs: Path, sharing: int, answers: str, sample_ms: int
) -> None:
    above, below = BOUNDS[sample_ms]
    for processes, kernel_us, limit in product(PROCESSES, KERNELS_US, LIMITS):
        settings = {"processes": processes, "kernel_us": kernel_us, "limit": limit}
        settings |= {"sharing": sharing, "sample_ms": sample_ms, **ANSWERS[answers]}
        played = play(c_programs, **settings)
        assert limit - below <= played.busy <= limit + above, (settings, played)
        assert played.least >= 0.3, (settings, played)
        assert played.longest_wait_s <= 20, (settings, played)


@pytest.mark.parametrize(("change_s", "above", "below"), [(2, 10, 45), (5, 12, 40)])
def test_kernels_that_become_ten_times_as_long_pass_the_limit_by_a_little(
    c_programs: Path, change_s: int, above: int, below: int
) -> None:
    for sharing, processes, limit in product((0, 1), (1, 3), LIMITS):
        settings = {"sharing": sharing, "processes": processes, "limit": limit}
        played = play(c_programs, change_s=change_s, **settings)
        assert limit - below <= played.busy <= limit + above, (settings, played)


def test_a_program_that_needs_less_than_its_limit_is_not_held_up(c_programs: Path) -> None:
    """A kernel of 100 us in each millisecond is a tenth of the time."""
    for limit in LIMITS:
        played = play(c_programs, limit=limit, kernel_us=100, pending=1)
        assert played.busy == pytest.approx(10, abs=0.5)


def test_no_limit_is_so_low_that_a_process_stops(c_programs: Path) -> None:
    for processes, kernel_us in product((1, 3), (10, 1000)):
        played = play(c_programs, limit=1, processes=processes, kernel_us=kernel_us)
        assert 0.1 < played.busy < 4, (processes, kernel_us, played)


def test_ranks_with_collectives_make_a_small_part_of_their_progress(c_programs: Path) -> None:
    """A rank that waits for another keeps its GPU busy: the guide and `run --sm` say so."""
    for kernel_us in (100, 1000, 10_000):
        played = play(c_programs, ranks=1, processes=4, limit=50, kernel_us=kernel_us)
        assert played.busy > 60, played
        assert played.progress < 10, played

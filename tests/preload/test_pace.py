"""The pace of launches holds a share of a GPU's time, on a model whose clock is its own."""

import subprocess
from itertools import product
from pathlib import Path

import pytest
from c_model import build_model, run_model

TOLERANCE = 5.0
SAMPLE_MS = {"slow samples": 166, "fast samples": 20}


def play(
    c_programs: Path, limit: int, kernel_us: int, pending: int, processes: int, sample_ms: int
) -> tuple[float, float]:
    """The percent of the time for which the GPU was busy after the first two seconds, and the
    seconds of work that were queued at most.
    """
    arguments = map(str, (limit, kernel_us, pending, processes, sample_ms))
    command = [str(c_programs / "pace_model"), *arguments]
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    busy_percent, queued_s = map(float, answer.split())
    return busy_percent, queued_s


@pytest.mark.parametrize("sample_ms", SAMPLE_MS.values(), ids=SAMPLE_MS)
@pytest.mark.parametrize("processes", [1, 3])
def test_the_mean_is_the_limit_for_short_and_long_kernels(
    c_programs: Path, processes: int, sample_ms: int
) -> None:
    """After two seconds, with a queue that is always full, from 10 us to 50 ms a kernel."""
    for kernel_us, limit in product((10, 100, 1000, 10_000, 50_000), (20, 50, 80)):
        busy, _ = play(c_programs, limit, kernel_us, 1000, processes, sample_ms)
        assert abs(busy - limit) <= TOLERANCE, (kernel_us, limit, busy)


def test_the_mean_is_the_limit_for_many_processes(c_programs: Path) -> None:
    """What is rounded off their figures is not taken for work."""
    for processes in (6, 10, 16):
        busy, _ = play(c_programs, 80, 50_000, 100, processes, SAMPLE_MS["slow samples"])
        assert abs(busy - 80) <= TOLERANCE, (processes, busy)


def test_the_mean_is_the_limit_for_a_program_that_waits_for_each_kernel(c_programs: Path) -> None:
    for kernel_us, limit in product((2000, 10_000, 50_000), (20, 50, 80)):
        busy, _ = play(c_programs, limit, kernel_us, 1, 1, SAMPLE_MS["slow samples"])
        assert abs(busy - limit) <= TOLERANCE, (kernel_us, limit, busy)


def test_a_program_that_needs_less_than_its_limit_is_not_held_up(c_programs: Path) -> None:
    """One kernel of 100 us in each millisecond is a tenth of the time."""
    for limit in (20, 50, 80):
        busy, _ = play(c_programs, limit, 100, 1, 1, SAMPLE_MS["slow samples"])
        assert busy == pytest.approx(10, abs=0.5)


def test_nearly_all_of_a_gpu_is_used_without_a_queue_that_a_newcomer_would_have_to_wait_for(
    c_programs: Path,
) -> None:
    """A soft limit while nobody else is there; each process would queue five seconds of work."""
    for processes, sample_ms in product((1, 2, 3, 6), SAMPLE_MS.values()):
        busy, queued_s = play(c_programs, 98, 50_000, 100, processes, sample_ms)
        assert busy >= 90, (processes, sample_ms)
        assert queued_s <= 3, (processes, sample_ms)


def test_no_figures_let_a_program_take_more_than_a_little_beyond_its_limit(tmp_path: Path) -> None:
    run_model(build_model(tmp_path, "pace_bounds_model", "pace"))

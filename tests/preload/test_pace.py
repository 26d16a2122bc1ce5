"""The pace of launches holds a share of a GPU's time, on a model whose clock is its own."""

import subprocess
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest
from c_model import build_model, run_model

TOLERANCE = 5.0
RARE_TOLERANCE = 8.0
"""Where samples are a second apart."""
SAMPLE_MS = {"slow samples": 166, "fast samples": 20}
KERNELS_US = (10, 1000, 10_000, 50_000)
MANY = (4, 6, 10, 16, 24, 40)
LONG_S = 60


class Played(NamedTuple):
    """What became of the processes of a region after the first two seconds.

    Attributes:
        busy_percent: Of the time for which the GPU was busy for them.
        queued_s: The seconds of work that were queued at most.
        least: What the process had that had the least, as a part of an even share.
    """

    busy_percent: float
    queued_s: float
    least: float


def play(
    c_programs: Path,
    limit: int,
    kernel_us: int,
    pending: int,
    processes: int,
    sample_ms: int,
    *,
    beside: int = 0,
    last_s: int = 0,
    device: str = "shown",
    span_s: int = 10,
    active: int | None = None,
) -> Played:
    """Run the model; its comment says what the arguments are."""
    first = (limit, kernel_us, pending, processes, sample_ms)
    then = (beside, last_s, device, span_s, processes if active is None else active)
    command = [str(c_programs / "pace_model"), *map(str, first), *map(str, then)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return Played(*map(float, answer.split()))


@pytest.mark.parametrize("sample_ms", SAMPLE_MS.values(), ids=SAMPLE_MS)
@pytest.mark.parametrize("processes", [1, 3])
def test_the_mean_is_the_limit_for_short_and_long_kernels(
    c_programs: Path, processes: int, sample_ms: int
) -> None:
    """After two seconds, with a queue that is always full, from 10 us to 50 ms a kernel."""
    for kernel_us, limit in product((10, 100, 1000, 10_000, 50_000), (20, 50, 80)):
        busy = play(c_programs, limit, kernel_us, 1000, processes, sample_ms).busy_percent
        assert abs(busy - limit) <= TOLERANCE, (kernel_us, limit, busy)


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("processes", MANY)
def test_the_mean_is_the_limit_for_many_processes(c_programs: Path, processes: int) -> None:
    """What is rounded off their figures is not taken for work, nor for none."""
    for kernel_us, limit in product(KERNELS_US, (5, 10, 20, 50, 80)):
        played = play(c_programs, limit, kernel_us, 100, processes, 167, span_s=LONG_S)
        assert abs(played.busy_percent - limit) <= TOLERANCE, (kernel_us, limit, played)
        assert played.busy_percent >= limit * 0.6, (kernel_us, limit, played)
        assert played.least > 0.05, (kernel_us, limit, played)


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("processes", MANY)
def test_many_processes_are_held_where_samples_are_a_second_apart(
    c_programs: Path, processes: int
) -> None:
    for kernel_us, limit in product(KERNELS_US, (5, 10, 20, 50)):
        played = play(c_programs, limit, kernel_us, 100, processes, 1000, span_s=LONG_S)
        assert abs(played.busy_percent - limit) <= RARE_TOLERANCE, (kernel_us, limit, played)
        assert played.least > 0.01, (kernel_us, limit, played)


def test_few_that_work_among_many_that_do_not_have_their_limit(c_programs: Path) -> None:
    for active, kernel_us, limit in product((1, 3), (10, 1000, 10_000), (20, 50, 80)):
        played = play(c_programs, limit, kernel_us, 100, 40, 167, span_s=LONG_S, active=active)
        assert abs(played.busy_percent - limit) <= TOLERANCE, (active, kernel_us, limit, played)
        assert played.least > 0.5, (active, kernel_us, limit, played)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("processes", [24, 4, 40])
def test_what_others_do_is_not_taken_for_the_work_of_many_processes(
    c_programs: Path, processes: int
) -> None:
    """A program beside them has 30 % of the time, and shows it."""
    for kernel_us, limit in product(KERNELS_US, (10, 20, 50)):
        played = play(c_programs, limit, kernel_us, 100, processes, 167, beside=30, span_s=LONG_S)
        assert abs(played.busy_percent - limit) <= TOLERANCE, (kernel_us, played)
        assert played.busy_percent >= limit * 0.6, (kernel_us, played)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("processes", [10, 4, 40])
def test_many_processes_go_on_beside_a_program_that_nvml_does_not_show(
    c_programs: Path, processes: int
) -> None:
    """Its work may be taken for theirs, for a while: then they have less than their limit."""
    for kernel_us, limit in product(KERNELS_US, (5, 10, 20, 50)):
        found = {"beside": 30, "device": "hidden", "span_s": LONG_S}
        busy = play(c_programs, limit, kernel_us, 100, processes, 167, **found).busy_percent
        assert limit * 0.1 <= busy <= limit + TOLERANCE, (kernel_us, limit, busy)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("processes", MANY)
def test_many_processes_go_on_where_nothing_is_known_of_the_device(
    c_programs: Path, processes: int
) -> None:
    """How much they do is not held there; that they do anything is."""
    for kernel_us, limit in product(KERNELS_US, (5, 10, 50)):
        played = play(
            c_programs, limit, kernel_us, 100, processes, 167, device="none", span_s=LONG_S
        )
        assert played.busy_percent >= 0.1 * limit, (kernel_us, limit, played)
        assert played.least > 0, (kernel_us, limit, played)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("processes", [24, 10, 40])
def test_a_process_that_comes_to_many_gets_its_share(c_programs: Path, processes: int) -> None:
    """It begins with single launches ten seconds after them, where one is not seen."""
    for kernel_us, limit in product((10, 1000, 10_000), (10, 20, 50)):
        played = play(c_programs, limit, kernel_us, 100, processes, 167, last_s=10, span_s=LONG_S)
        assert played.least > 0.05, (kernel_us, limit, played)


def test_the_figure_of_the_device_means_nothing_for_up_to_three_processes(
    c_programs: Path,
) -> None:
    for processes, kernel_us, limit in product((1, 2, 3), KERNELS_US, (5, 50, 98)):
        wanted = (limit, kernel_us, 100, processes, 167)
        assert play(c_programs, *wanted) == play(c_programs, *wanted, device="none"), wanted


def test_no_limit_is_so_low_that_a_process_stops(c_programs: Path) -> None:
    """Its share is at the resolution of the figures, or below."""
    for processes, kernel_us in product((1, 3), (10, 1000)):
        busy = play(
            c_programs, 1, kernel_us, 100, processes, 167, last_s=0, span_s=LONG_S
        ).busy_percent
        assert busy > 0.1, (processes, kernel_us, busy)


def test_the_mean_is_the_limit_for_a_program_that_waits_for_each_kernel(c_programs: Path) -> None:
    for kernel_us, limit in product((2000, 10_000, 50_000), (20, 50, 80)):
        busy = play(c_programs, limit, kernel_us, 1, 1, SAMPLE_MS["slow samples"]).busy_percent
        assert abs(busy - limit) <= TOLERANCE, (kernel_us, limit, busy)


def test_a_program_that_needs_less_than_its_limit_is_not_held_up(c_programs: Path) -> None:
    """One kernel of 100 us in each millisecond is a tenth of the time."""
    for limit in (20, 50, 80):
        busy = play(c_programs, limit, 100, 1, 1, SAMPLE_MS["slow samples"]).busy_percent
        assert busy == pytest.approx(10, abs=0.5)


def test_nearly_all_of_a_gpu_is_used_without_a_queue_that_a_newcomer_would_have_to_wait_for(
    c_programs: Path,
) -> None:
    """A soft limit while nobody else is there; each process would queue five seconds of work."""
    for processes, sample_ms in product((1, 2, 3, 6), SAMPLE_MS.values()):
        played = play(c_programs, 98, 50_000, 100, processes, sample_ms)
        assert played.busy_percent >= 90, (processes, sample_ms)
        assert played.queued_s <= 3, (processes, sample_ms)


@pytest.mark.parametrize("sample_ms", SAMPLE_MS.values(), ids=SAMPLE_MS)
def test_the_queue_of_many_is_kept_short_by_the_figure_of_the_device(
    c_programs: Path, sample_ms: int
) -> None:
    for processes in (10, 16, 24, 40):
        played = play(c_programs, 98, 50_000, 100, processes, sample_ms)
        assert played.busy_percent >= 75, processes
        assert played.queued_s <= 0.35 * processes, processes


def test_no_figures_let_a_program_take_more_than_a_little_beyond_its_limit(tmp_path: Path) -> None:
    run_model(build_model(tmp_path, "pace_bounds_model", "pace"))

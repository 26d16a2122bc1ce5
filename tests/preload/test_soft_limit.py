"""Soft limits share a GPU as they should, on a model whose clock is its own."""

import ctypes
import subprocess
from pathlib import Path

import pytest

HALF_SECONDS_OF_A_START = 8
SAMPLE_MS = {"slow samples": 166, "fast samples": 20, "very slow samples": 333}
ENDLESS_S = 14


def shares(c_programs: Path, sample_ms: int, *regions: str) -> list[list[float]]:
    """For each half second, the percent of it for which the GPU worked for each region.

    Args:
        c_programs: Where the model is.
        sample_ms: How often NVML takes samples.
        regions: Limit in percent (100 is none), 1 if it is soft, microseconds of a kernel, and the
            second at which it begins, separated by commas.
    """
    command = [str(c_programs / "soft_model"), str(sample_ms), str(ENDLESS_S), *regions]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [[float(each) for each in line.split()] for line in done.stdout.splitlines()]


def mean(rows: list[list[float]], region: int) -> float:
    return sum(row[region] for row in rows) / len(rows)


@pytest.mark.parametrize("sample_ms", SAMPLE_MS.values(), ids=SAMPLE_MS)
@pytest.mark.parametrize("limit", [5, 30, 80])
def test_alone_a_program_has_nearly_all_of_the_gpu(
    c_programs: Path, sample_ms: int, limit: int
) -> None:
    for kernel_us in (10, 1000, 10_000):
        rows = shares(c_programs, sample_ms, f"{limit},1,{kernel_us},0")
        assert mean(rows[HALF_SECONDS_OF_A_START:], 0) >= 96, kernel_us
        assert min(row[0] for row in rows[HALF_SECONDS_OF_A_START:]) >= 90, kernel_us


@pytest.mark.parametrize("sample_ms", SAMPLE_MS.values(), ids=SAMPLE_MS)
@pytest.mark.parametrize("limit", [20, 30, 50])
def test_when_another_comes_a_program_is_back_at_its_limit_within_half_a_second(
    c_programs: Path, sample_ms: int, limit: int
) -> None:
    """One without any limit, which takes what it is given, comes just after the fourth second."""
    for kernel_us in (10, 1000, 10_000):
        rows = shares(c_programs, sample_ms, f"{limit},1,{kernel_us},0", "100,0,1000,4.001")
        for number, row in enumerate(rows[9:], 9):
            assert abs(row[0] - limit) <= 5, (kernel_us, number, row)
            assert row[1] >= 0.95 * (100 - limit), (kernel_us, number, row)


@pytest.mark.parametrize("sample_ms", SAMPLE_MS.values(), ids=SAMPLE_MS)
@pytest.mark.parametrize("begin_s", [0, 0.3, 3])
def test_two_share_what_is_left_in_the_proportion_of_their_limits(
    c_programs: Path, sample_ms: int, begin_s: float
) -> None:
    for first_us, second_us in ((1000, 1000), (10_000, 100)):
        rows = shares(c_programs, sample_ms, f"30,1,{first_us},0", f"50,1,{second_us},{begin_s}")
        settled = rows[14:]
        first, second = mean(settled, 0), mean(settled, 1)
        assert first + second >= 93
        left = 100 * 3 / 8, 100 * 5 / 8
        assert abs(first - left[0]) <= 5, (first, second)
        assert abs(second - left[1]) <= 5, (first, second)


def test_three_share_it_too(c_programs: Path) -> None:
    rows = shares(c_programs, 166, "10,1,1000,0", "20,1,1000,0", "40,1,1000,1")[14:]
    found = [mean(rows, region) for region in range(3)]
    for share, limit in zip(found, (10, 20, 40), strict=True):
        assert abs(share - limit * 100 / 70) <= 10, found


def test_a_neighbour_under_a_hard_limit_is_left_its_own(c_programs: Path) -> None:
    rows = shares(c_programs, 166, "30,1,1000,0", "50,0,1000,4.001")
    for row in rows[9:]:
        assert abs(row[0] - 30) <= 5
    assert mean(rows[18:], 1) == pytest.approx(50, abs=2)


class Soft(ctypes.Structure):
    """struct hr_soft_limit."""

    _fields_ = [
        ("stepped_s", ctypes.c_double),
        ("excess", ctypes.c_double),
        ("is_shared", ctypes.c_bool),
    ]


class View(ctypes.Structure):
    """struct hr_soft_view."""

    _fields_ = [
        ("now_s", ctypes.c_double),
        ("limit", ctypes.c_uint32),
        ("is_disturbed", ctypes.c_bool),
        ("own", ctypes.c_uint32),
        ("soft", ctypes.c_uint32),
    ]


def test_what_is_allowed_has_its_bounds(tmp_path: Path) -> None:
    """Beside others that leave the GPU idle, too; below the limit it never is."""
    source = Path(__file__).parents[2] / "csrc" / "preload" / "soft_limit.c"
    library = tmp_path / "soft.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    step = ctypes.CDLL(str(library)).hr_step_soft_limit
    step.restype = ctypes.c_uint32

    def allowed(state: Soft, at_s: float, **seen: int | bool) -> int:
        found: int = step(ctypes.byref(state), ctypes.byref(View(now_s=at_s, limit=30, **seen)))
        return found

    state = Soft()
    alone, idle, full = {"own": 90}, {"own": 5, "soft": 5}, {"own": 60, "soft": 40}
    assert allowed(state, 0, **alone) == 98
    assert allowed(state, 0.1, own=90, soft=2) == 98
    assert allowed(state, 0.2, own=90, soft=50, is_disturbed=True) == 30
    assert allowed(state, 0.3, **idle) == 30
    steps = [allowed(state, 0.3 + tenth / 10, **idle) for tenth in range(1, 200)]
    assert steps == sorted(steps)
    assert (steps[9], steps[-1]) == (30 + 5, 98)  # 15 % of 30 in a second: 4.5
    steps = [allowed(state, 30 + tenth / 10, **full) for tenth in range(1, 300)]
    assert steps == sorted(steps, reverse=True)
    assert steps[-1] == 30
    # After a pause of any length no more than all of the excess is taken off.
    assert allowed(state, 1000, **full) == 30
    # Nearly nothing left, and nearly something: it stays.
    before = allowed(state, 1001, **idle)
    assert allowed(state, 1002, own=50, soft=45) == before

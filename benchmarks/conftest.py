"""Fixtures of the benchmarks, and their summary.

A benchmark never fails because of time: the figures are printed with their budgets, and a person
judges them. It fails if the work that it measures is not done.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import timeit
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import pytest
from ledger import Ledger
from scene import copies, working_directory_root

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LEDGER = pytest.StashKey[Ledger]()

# Long enough for the clock's own cost not to show, short enough to fall between two disturbances.
ROUND_S = 0.001


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="fewer rounds, shorter minutes")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.stash[LEDGER] = Ledger()
    config.option.benchmark_columns = ["min", "median", "iqr", "rounds", "iterations"]


@pytest.fixture(scope="session", autouse=True)
def _locks_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Agents lock no roots in the machine's /run; those that are started inherit this."""
    os.environ["HAMIREGION_LOCKS"] = str(tmp_path_factory.mktemp("locks"))


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    terminalreporter.section("budgets")
    for line in config.stash[LEDGER].lines():
        terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def ledger(pytestconfig: pytest.Config) -> Ledger:
    return pytestconfig.stash[LEDGER]


@pytest.fixture(scope="session")
def quick(pytestconfig: pytest.Config) -> bool:
    return bool(pytestconfig.getoption("quick"))


@pytest.fixture(scope="session")
def directory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="hamiregion-bench-", dir=working_directory_root()))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def region_path(directory: Path) -> Path:
    """A region of this test alone."""
    (path,) = copies(Path(tempfile.mkdtemp(dir=directory)), 1)
    return path


def least_us(function: Callable[[], Any]) -> float:
    """The least time of many calls in a row, in microseconds."""
    timer = timeit.Timer(function)
    calls = max(1, round(ROUND_S / min(timer.repeat(15, 1))))
    return min(timer.repeat(200, calls)) / calls * 1e6


# What a program does between two calls: long enough to put other data into the caches.
OTHER_WORK_S = 100e-6


def lone_us(function: Callable[[], Any], calls: int) -> list[float]:
    """Time single calls, each after other work, in microseconds."""
    others = list(range(1_000))
    took_us = []
    for _ in range(calls):
        end = time.perf_counter() + OTHER_WORK_S
        while time.perf_counter() < end:
            others.sort(key=str)
        began = time.perf_counter_ns()
        function()
        took_us.append((time.perf_counter_ns() - began) / 1e3)
    return took_us


@pytest.fixture
def timed(benchmark: Any, ledger: Ledger, quick: bool) -> Callable[..., float]:
    """Time a function, enter it with its budget, and return its least time in microseconds."""

    def measure(function: Callable[[], Any], work: str, budget_us: float) -> float:
        calls = max(1, round(ROUND_S / min(timeit.repeat(function, number=1, repeat=15))))
        rounds = 200 if quick else 1000
        benchmark.pedantic(function, iterations=calls, rounds=rounds, warmup_rounds=1)
        stats = benchmark.stats.stats
        ledger.add(work, "us", budget_us, stats.median * 1e6, stats.min * 1e6)
        alone_us = lone_us(function, 500 if quick else 2000)
        ledger.add("  one call after 100 us of other work", "us", None, median(alone_us))
        return float(stats.min) * 1e6

    return measure

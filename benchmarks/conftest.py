"""Fixtures of the benchmarks, and their summary.

A benchmark never fails because of time: the figures are printed beside the budgets, and a person
judges them.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import timeit
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from exporter_scene import BusyNode, busy_node
from ledger import OURS, Ledger
from scene import copies, working_directory_root

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LEDGER = pytest.StashKey[Ledger]()

# Long enough for the clock's own cost not to show, short enough to fall between two disturbances.
ROUND_S = 0.001
MOST_ROUNDS = 2000

# Of the summary: what a reader does most often comes first.
ORDER = [
    "test_read",
    "test_from_c",
    "test_many",
    "test_exporter",
    "test_agent",
    "test_open",
    "test_edit",
    "test_lock_and_slots",
    "test_node_looks",
    "test_preload",
    "test_memory",
    "test_import",
    "test_writer",
]


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.stash[LEDGER] = Ledger()
    if not getattr(config.option, "benchmark_columns", None):
        config.option.benchmark_columns = ["min", "median", "iqr", "rounds", "iterations"]


@pytest.fixture(scope="session", autouse=True)
def _locks_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Agents lock no roots in the machine's /run; those that are started inherit this."""
    os.environ["HAMIREGION_LOCKS"] = str(tmp_path_factory.mktemp("locks"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: ORDER.index(item.path.stem) if item.path.stem in ORDER else 99)


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    ledger = config.stash[LEDGER]
    if ledger.entries:
        terminalreporter.section("budgets")
        for line in ledger.budget_lines():
            terminalreporter.write_line(line)
    if ledger.readers:
        terminalreporter.section(
            "the same work by plain readers, which check nothing (least times)"
        )
        for line in ledger.ratio_lines():
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def ledger(pytestconfig: pytest.Config) -> Ledger:
    return pytestconfig.stash[LEDGER]


@pytest.fixture(scope="session")
def quick(pytestconfig: pytest.Config) -> bool:
    """Whether a short run was asked for: --benchmark-max-time under half a second."""
    return float(pytestconfig.getoption("benchmark_max_time")) < 0.5


@pytest.fixture(scope="session")
def directory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="hamiregion-bench-", dir=working_directory_root()))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def many(directory: Path) -> list[Path]:
    """256 regions in as many files."""
    (directory / "many").mkdir()
    return list(copies(directory / "many", 256))


@pytest.fixture(scope="module", params=[256, 512, 1024])
def busy(request: pytest.FixtureRequest, directory: Path, quick: bool) -> Iterator[BusyNode]:
    """A node of so many containers with real processes."""
    if quick and request.param > 256:
        pytest.skip("a short run was asked for")
    own = Path(tempfile.mkdtemp(dir=directory))
    with busy_node(own, request.param) as node:
        yield node
    shutil.rmtree(own)


@pytest.fixture
def region_path(directory: Path) -> Path:
    """A region of this test alone."""
    own = Path(tempfile.mkdtemp(dir=directory))
    (path,) = copies(own, 1)
    return path


def quickest_s(function: Callable[..., Any], args: tuple[Any, ...]) -> float:
    """A first guess at what one call costs; the least of several is not fooled by a preemption."""
    return min(timeit.repeat(lambda: function(*args), number=1, repeat=15))


@pytest.fixture
def timed(benchmark: Any, ledger: Ledger, pytestconfig: pytest.Config) -> Callable[..., Any]:
    """Time a function and enter it under `work`, beside its budget if it has one.

    `against` names the line of the comparison that it belongs to, `reader` who does the work.
    """

    def rounds_that_fit(round_s: float) -> int:
        option = pytestconfig.getoption
        fitting = int(float(option("benchmark_max_time")) / round_s)
        return max(int(option("benchmark_min_rounds")), min(fitting, MOST_ROUNDS))

    def measure(
        function: Callable[..., Any],
        *args: Any,
        work: str | None = None,
        budget_us: float | None = None,
        against: str | None = None,
        reader: str = OURS,
    ) -> Any:
        call_s = quickest_s(function, args)
        iterations = max(1, round(ROUND_S / call_s))
        rounds = rounds_that_fit(iterations * call_s)
        result = function(*args)
        benchmark.pedantic(function, args, iterations=iterations, rounds=rounds, warmup_rounds=1)
        if benchmark.stats is None:  # --benchmark-disable
            return result
        stats = benchmark.stats.stats
        median_us, least_us = stats.median * 1e6, stats.min * 1e6
        if work is not None:
            ledger.add(work, "us", budget_us, median_us, least_us)
            benchmark.extra_info.update(work=work, budget_us=budget_us)
        if against is not None:
            # The least of each: another program's turn on the processor is nobody's work.
            ledger.compare(against, reader, least_us)
        return result

    return measure

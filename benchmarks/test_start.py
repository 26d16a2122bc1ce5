"""What an import adds to a program, and what the command line costs to start."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from libhamiregion import create_region

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ledger import Ledger

# Both in one process: what disturbs one of them, disturbs the other.
IMPORT = """
import time
import cffi, attrs
began = time.process_time()
import libhamiregion
print(time.process_time() - began)
libhamiregion.open_region, libhamiregion.Region.snapshot  # it is all there
"""


@pytest.fixture(scope="module")
def run(directory: Path) -> Callable[..., str]:
    # With compiled modules at hand, as after any installation.
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(directory / "compiled")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def run(*words: str) -> str:
        return subprocess.run(
            [sys.executable, *words],
            env=environment,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout

    return run


def test_import(run: Callable[..., str], ledger: Ledger, quick: bool) -> None:
    run("-c", IMPORT)  # which writes the compiled modules
    taken_ms = [float(run("-c", IMPORT)) * 1e3 for _ in range(10 if quick else 40)]
    work = "import libhamiregion, after cffi and attrs"
    ledger.add(work, "ms", 15, statistics.median(taken_ms), min(taken_ms))


@pytest.mark.parametrize(
    ("verb", "answer", "budget_ms"), [("--help", "Usage: ", 100), ("show FILE", "8GiB", 110)]
)
def test_command_line(
    run: Callable[..., str],
    directory: Path,
    ledger: Ledger,
    quick: bool,
    verb: str,
    answer: str,
    budget_ms: int,
) -> None:
    """CPU time of the whole process, Python itself included."""
    region = directory / "usage.cache"
    region.unlink(missing_ok=True)
    create_region(region, memory_limits=("8GiB",))
    words = ("-m", "libhamiregion", *verb.replace("FILE", str(region)).split())

    def cpu_ms() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert answer in run(*words)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e3

    cpu_ms()
    taken_ms = [cpu_ms() for _ in range(10 if quick else 40)]
    work = f"`hamiregion {verb}`, CPU of the process"
    ledger.add(work, "ms", budget_ms, statistics.median(taken_ms), min(taken_ms))

"""What the command line costs to start: CPU time of a whole process, Python itself included."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from libhamiregion import create_region

if TYPE_CHECKING:
    from pathlib import Path

    from ledger import Ledger

BUDGETS_MS = {"--help": 100, "show FILE": 110}
#: What an answer has; an empty one costs nothing.
SAID = {"--help": "Usage: ", "show FILE": "8GiB"}


def test_start(benchmark: Any, ledger: Ledger, quick: bool, directory: Path) -> None:
    region = str(directory / "usage.cache")
    create_region(region, memory_limits=("8GiB",))
    taken_ms: dict[str, list[float]] = {verb: [] for verb in BUDGETS_MS}
    # With compiled modules at hand, as after any installation; the first run writes them.
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(directory / "compiled")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def once() -> None:
        for verb, taken in taken_ms.items():
            words = verb.replace("FILE", region).split()
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            answer = subprocess.run(
                [sys.executable, "-m", "libhamiregion", *words],
                env=environment,
                check=True,
                capture_output=True,
                text=True,
            )
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            taken.append(cpu_s * 1e3)
            assert SAID[verb] in answer.stdout
            assert answer.stderr == ""

    once()
    for taken in taken_ms.values():
        taken.clear()
    benchmark.pedantic(once, rounds=10 if quick else 40)
    for verb, taken in taken_ms.items():
        work = f"`hamiregion {verb}`, CPU of the process"
        ledger.add(work, "ms", BUDGETS_MS[verb], statistics.median(taken), min(taken))

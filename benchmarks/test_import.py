"""What `import libhamiregion` adds to a program that has cffi and attrs already."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from ledger import Ledger

# Both in one process: what disturbs one of them, disturbs the other.
PROGRAM = """
import time
began = time.perf_counter()
import cffi, attrs
between = time.perf_counter()
import libhamiregion
ended = time.perf_counter()
libhamiregion.open_region, libhamiregion.Region.snapshot  # it is all there
print(between - began, ended - between)
"""


def test_import(benchmark: Any, ledger: Ledger, quick: bool, directory: Path) -> None:
    before_ms, added_ms = [], []
    # With compiled modules at hand, as after any installation; the first run writes them.
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(directory / "compiled")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def once() -> None:
        answer = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        )
        before, added = map(float, answer.stdout.split())
        before_ms.append(before * 1e3)
        added_ms.append(added * 1e3)

    once()
    before_ms.clear()
    added_ms.clear()
    benchmark.pedantic(once, rounds=10 if quick else 40)
    ledger.add(
        "import libhamiregion, after cffi and attrs",
        "ms",
        15,
        statistics.median(added_ms),
        min(added_ms),
    )
    ledger.add(
        "  cffi and attrs themselves", "ms", None, statistics.median(before_ms), min(before_ms)
    )

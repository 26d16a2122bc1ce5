"""One open region read from C, through the C library."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scene import DEVICES, PROCESSES, compiler

from libhamiregion import open_region

if TYPE_CHECKING:
    from ledger import Ledger

HERE = Path(__file__).parent
CORE = HERE.parent / "csrc"
# What is asked, its name in the summary, and its budget in microseconds.
WORKS = (
    ("snapshot", f"hr_snapshot() from C, {PROCESSES} processes x {DEVICES} devices", 0.3),
    ("value", "hr_get() from C: memory in use on one device", None),
)


def test_from_c(
    region_path: Path, directory: Path, benchmark: Any, ledger: Ledger, quick: bool
) -> None:
    program = directory / "snapshot_from_c"
    sources = [HERE / "snapshot_from_c.c", *sorted(CORE.glob("*.c"))]
    flags = ["-std=gnu11", "-O2", "-pthread", '-DHR_VERSION="bench"', f"-I{CORE}"]
    subprocess.run([*compiler(), *flags, *map(str, sources), "-o", str(program)], check=True)
    command = [program, region_path, "100" if quick else "1000"]
    answer = benchmark.pedantic(
        lambda: subprocess.run(command, check=True, capture_output=True, text=True), rounds=1
    )
    found = {name: figures for name, *figures in map(str.split, answer.stdout.splitlines())}
    # All of it was read, at one moment.
    assert found["processes"] == [str(PROCESSES), "1"]
    with open_region(region_path) as region:
        assert found["used"] == [str(region.snapshot().devices[0].memory_used_bytes)] != ["0"]
    for name, work, budget_us in WORKS:
        median_ns, least_ns = map(float, found[name])
        assert least_ns > 0
        ledger.add(work, "us", budget_us, median_ns / 1000, least_ns / 1000)

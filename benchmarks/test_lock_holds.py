"""How long this library holds a region's lock, for which all allocations of a container wait.

The table is full of dead processes.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import pytest
from scene import compiler

from libhamiregion import create_region

if TYPE_CHECKING:
    from ledger import Ledger

HERE = Path(__file__).parent
CSRC = HERE.parent / "csrc"

# Rounds, and the budget in microseconds.
WORK = {
    "edit": (2_000, 2),
    "attach": (2_000, 4),
    "reap": (50, 40),
    "recover": (500, 2),
}


@pytest.fixture(scope="module")
def lock_holds(directory: Path) -> str:
    program = str(directory / "lock_holds")
    core = sorted(str(path) for path in CSRC.glob("*.c"))
    options = ["-std=gnu11", "-O2", "-pthread", '-DHR_VERSION="bench"', f"-I{CSRC}"]
    clock = ["-include", str(HERE / "lock_clock.h")]
    command = [*compiler(), *options, *clock, "-o", program, str(HERE / "lock_holds.c"), *core]
    subprocess.run(command, check=True)
    return program


@pytest.mark.parametrize("what", WORK)
def test_lock_is_held(what: str, lock_holds: str, region_path: Path, ledger: Ledger) -> None:
    rounds, budget_us = WORK[what]
    path = region_path.with_name("full.cache")
    create_region(path, memory_limits=[None, None])
    command = [lock_holds, str(path), what, str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    held_us = [int(line) / 1e3 for line in done.stdout.split()]
    assert len(held_us) >= rounds
    ledger.add(f"lock held, full table: {what}", "us", budget_us, median(held_us))
    ledger.add(f"  the longest of {len(held_us)}", "us", None, max(held_us))

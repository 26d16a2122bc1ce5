"""What a region costs while it is open."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ledger import Ledger

PROBE = Path(__file__).parent / "memory_probe.py"


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="this C library has no mallinfo2()"
)
def test_memory_per_open_region(many: list[Path], benchmark: Any, ledger: Ledger) -> None:
    def probe() -> dict[str, float]:
        answer = subprocess.run(
            [sys.executable, str(PROBE), *map(str, many)],
            env={**os.environ, "PYTHONMALLOC": "malloc"},
            check=True,
            capture_output=True,
            text=True,
        )
        found: dict[str, float] = json.loads(answer.stdout)
        return found

    found = benchmark.pedantic(probe)
    benchmark.extra_info.update(found)
    # What is not open, and not read, takes nothing.
    assert found["allocated"] > 0
    assert found["touched_pages"] >= 4096
    ledger.add("an open region: allocated, Python and C", "bytes", 1024, found["allocated"])
    ledger.add("  resident, without the region's pages", "bytes", 1024, found["resident"])
    ledger.add("  the region's pages that were touched", "bytes", None, found["touched_pages"])
    ledger.add("  the kernel's page tables", "bytes", None, found["page_tables"])

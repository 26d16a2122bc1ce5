"""The region that all benchmarks read: one that HAMi-core itself wrote."""

from __future__ import annotations

import gzip
import os
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

# Layout 1.2, four processes, two devices.
GOLDEN = Path(__file__).parent.parent / "tests" / "golden" / "1.2-many-processes.cache.gz"
PROCESSES = 4
DEVICES = 2

_BLOCK = 4096


def compiler() -> list[str]:
    """The C compiler's command; without one the benchmark is left out."""
    command = shlex.split(os.environ.get("CC", "cc"))
    if shutil.which(command[0]) is None:
        pytest.skip(f"no C compiler: {command[0]}")
    return command


def copies(directory: Path, count: int) -> Iterator[Path]:
    """Make copies that take room only for the pages with something in them, as real ones do."""
    content = gzip.decompress(GOLDEN.read_bytes())
    blocks = [
        (start, block)
        for start in range(0, len(content), _BLOCK)
        if any(block := content[start : start + _BLOCK])
    ]
    for number in range(count):
        path = directory / f"region-{number:03}.cache"
        with path.open("wb") as file:
            for start, block in blocks:
                file.seek(start)
                file.write(block)
            file.truncate(len(content))
        yield path


def working_directory_root() -> str | None:
    """Where to put regions: in memory if there is such a place, as on a node; else the default."""
    shm = "/dev/shm"
    return shm if os.access(shm, os.W_OK) else None

"""What one open region costs in memory; run by test_memory.py in a process of its own.

    PYTHONMALLOC=malloc python memory_probe.py FILE...

With that setting all of Python's objects come from malloc too, so that malloc's own count of bytes
in use, headers included, covers Python and C alike. Prints JSON: bytes per region.
"""

from __future__ import annotations

import ctypes
import gc
import json
import re
import sys
from pathlib import Path

import libhamiregion as hami


class Mallinfo2(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


_mallinfo2 = ctypes.CDLL(None).mallinfo2
_mallinfo2.restype = Mallinfo2


def allocated_bytes() -> int:
    gc.collect()
    info = _mallinfo2()
    return int(info.uordblks + info.hblkhd)


def resident_bytes() -> int:
    rollup = Path("/proc/self/smaps_rollup").read_text()
    return sum(int(size) * 1024 for size in re.findall(r"^Rss:\s+(\d+) kB", rollup, re.MULTILINE))


def mapped_resident_bytes(paths: set[str]) -> int:
    """Of the regions' own pages, those that this process has touched."""
    total = 0
    counted = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            counted = line.split(maxsplit=5)[-1] in paths
        elif counted and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


def page_table_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    match = re.search(r"^VmPTE:\s+(\d+) kB", status, re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def main(paths: list[str]) -> None:
    regions: list[hami.Region | None] = [None] * len(paths)
    with hami.open_region(paths[0]) as first:  # what is paid once
        first.snapshot().devices  # noqa: B018
    mapped_resident_bytes(set(paths))
    resident = resident_bytes()
    tables = page_table_bytes()
    allocated = allocated_bytes()
    for number, path in enumerate(paths):
        regions[number] = region = hami.open_region(path)
        region.snapshot().devices  # noqa: B018
    allocated = allocated_bytes() - allocated
    mapped = mapped_resident_bytes(set(paths))
    resident = resident_bytes() - resident - mapped
    count = len(paths)
    print(
        json.dumps(
            {
                "allocated": allocated / count,
                "resident": resident / count,
                "touched_pages": mapped / count,
                "page_tables": (page_table_bytes() - tables) / count,
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1:])

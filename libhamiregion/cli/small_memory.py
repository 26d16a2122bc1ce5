"""Settings of the C library's allocator for programs that run for months and should stay small."""

from __future__ import annotations

import ctypes
from typing import Final

# From glibc's malloc.h.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8

_LARGE_BYTES: Final = 128 * 1024


def stay_small() -> bool:
    """Have freed memory go back to the system; for a program's first lines, before its threads.

    A scrape, or a look at a node, takes megabytes for a moment, each in another thread than the
    last one. glibc would keep them, for each thread apart, and count on needing them again.

    Returns:
        Whether the C library took the settings; those of others than glibc have none.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # One heap for all threads, which run one at a time anyway. What is large is mapped by itself;
    # glibc otherwise stops doing so for sizes that it has seen freed once.
    settings = (
        (_M_ARENA_MAX, 1),
        (_M_MMAP_THRESHOLD, _LARGE_BYTES),
        (_M_TRIM_THRESHOLD, 2 * _LARGE_BYTES),
    )
    return all(mallopt(name, value) == 1 for name, value in settings)

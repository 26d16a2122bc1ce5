"""Reaping where other people's processes take as long to look at as they like."""

import time
from collections.abc import Iterable
from typing import Any

from libhamiregion import ReapedSlot, Region, SearchCutShort
from support.wait import PATIENCE_S


def reap_in_time(
    region: Region, pids: Iterable[int] | None = None, **options: Any
) -> tuple[ReapedSlot, ...]:
    """Reap until /proc has been searched to its end; all that was freed, or would be."""
    deadline_s = time.monotonic() + PATIENCE_S
    wanted = None if pids is None else list(pids)
    freed: tuple[ReapedSlot, ...] = ()
    while True:
        try:
            return freed + region.reap(wanted, **options)
        except SearchCutShort as error:
            if time.monotonic() > deadline_s:
                raise
            if not options.get("dry_run"):
                freed += error.done
                wanted = wanted and [pid for pid in wanted if pid in error.pids]

"""Which slots are of dead processes: the core says so, by one search of /proc for many regions."""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from libhamiregion._core import ffi, lib
from libhamiregion.errors import region_error

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable

    from libhamiregion.region import Region

    from .fair_shares import FairShares

# All of the processor's time: on a busy node it takes longer.
_LIST_NS = 500_000_000
# Containers decide how long the maps of their processes are, and some how many regions they have.
# All together get this time, each container a quarter of it at most, and each search a quarter of
# what is left, so that those that come later get some as well.
_LOOKS_NS = 1_000_000_000
_SHARE = 4


def _free(owner: Any) -> None:
    lib.hr_free_process_list(owner[0])


class Liveness:
    """The core's judgment of slots that were read before this object was made.

    /proc is listed when the first slot is asked about, and the maps of a process are read once for
    all regions. A descriptor of /proc is kept until the object goes.

    Threads: may be shared. Not for a child of fork().

    Args:
        proc: The root of /proc.
        shares: What searches for each container may still cost; None for one use of this object
            alone.
    """

    def __init__(self, proc: str, shares: FairShares | None = None) -> None:
        self._proc = os.fsencode(proc)
        self._shares = shares
        self._spent_ns: defaultdict[Hashable, int] = defaultdict(int)
        # A signal handler may ask while its thread is about to.
        self._guard = threading.RLock()
        self._list = ffi.gc(ffi.new("struct hr_process_list **"), _free)
        self._left_ns = _LOOKS_NS

    def dead(
        self,
        region: Region,
        pids: Iterable[int],
        payer: Hashable = None,
        strangers: Collection[tuple[int, int]] = (),
    ) -> frozenset[int]:
        """The pids of these that `Region.reap` would take for dead; not all, if time runs out.

        Args:
            region: The region in whose slots they stand.
            pids: Pids of the container's namespace.
            payer: The container whose share of time the search uses.
            strangers: Processes that are known to have no slot there, as `Strangers.of` gives them:
                nobody asks what they map.

        Raises:
            RegionClosed: After `Region.close`, or in a forked child.
        """
        asked = list(dict.fromkeys(pids))
        lives = ffi.new("uint32_t[]", len(asked))
        with self._guard:
            code = self._judge(region, asked, lives, payer, strangers)
        if code in {lib.HR_ECLOSED, lib.HR_EFORKED}:
            raise region_error(code, region.path)
        if code != lib.HR_OK:
            return frozenset()  # such as a lack of descriptors: it says nothing about a process
        return frozenset(pid for pid, life in zip(asked, lives, strict=True) if life == lib.HR_DEAD)

    def _judge(
        self,
        region: Region,
        pids: list[int],
        lives: Any,
        payer: Hashable,
        strangers: Collection[tuple[int, int]],
    ) -> int:
        if not self._list[0]:
            code: int = lib.hr_list_processes(self._proc, _LIST_NS, self._list)
            if code != lib.HR_OK:
                return code
        limit_ns = min(self._left_ns // _SHARE, _LOOKS_NS // _SHARE - self._spent_ns[payer])
        if self._shares is not None:
            limit_ns = min(limit_ns, int(self._shares.left_s(payer) * 1e9))
        left_out = ffi.new("struct hr_stranger[]", [(start, pid) for pid, start in strangers])
        begun_ns = time.thread_time_ns()
        code = lib.hr_judge_slots_without(
            region._handle,
            self._list[0],
            left_out,
            len(strangers),
            pids,
            len(pids),
            max(0, limit_ns),
            lives,
        )
        spent_ns = time.thread_time_ns() - begun_ns
        self._left_ns = max(0, self._left_ns - spent_ns)
        self._spent_ns[payer] += spent_ns
        if self._shares is not None:
            self._shares.charge(payer, spent_ns / 1e9)
        return code

"""How the time for reading processes is shared between containers."""

from __future__ import annotations

import contextlib
import heapq
import time
from collections import Counter, defaultdict, deque
from typing import TYPE_CHECKING

from .fair_shares import FairShares

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from .cgroups import Payer
    from .process_entry import Entry

# Reading the maps of a busy CUDA program takes a millisecond, and a program can have so many
# mappings that it takes half a second. The processes of a container may cost a second at once, and
# a fiftieth of a processor on average; a program outside of containers more, for a node's own
# processes are often those of one program.
_SHARE_S, _SHARE_REFILL = 1.0, 0.02
_SHARE_OUTSIDE_S, _SHARE_OUTSIDE_REFILL = 10.0, 0.05
# Listing so few processes of a container is not worth being counted.
_FREE_LISTED = 64


class ReadingShares:
    """What may still be spent on reading the processes of each container, or program outside them.

    Threads: as `FairShares`.
    """

    def __init__(self) -> None:
        self._inside = FairShares(_SHARE_S, _SHARE_REFILL)
        self._outside = FairShares(_SHARE_OUTSIDE_S, _SHARE_OUTSIDE_REFILL)

    def of(self, payer: Payer) -> FairShares:
        """Where the share of a container is kept, or of a program outside of containers."""
        return self._inside if payer.container is not None else self._outside

    def is_used_up(self, payer: Payer) -> bool:
        """Whether nothing may be spent on a container's processes now."""
        return self.of(payer).left_s(payer) <= 0

    def charge(self, payer: Payer, cost_s: float) -> None:
        """Take what was spent from the share that it was spent on."""
        self.of(payer).charge(payer, cost_s)

    def forget_idle(self) -> None:
        """Forget those who have all of their share again."""
        for shares in (self._inside, self._outside):
            shares.forget_idle()


class ReadingOrder:
    """Whose process is read next: among all shares that are not used up, the least served."""

    def __init__(self, shares: ReadingShares, entries: Iterable[Entry]) -> None:
        self._shares = shares
        self._waiting: defaultdict[Payer, deque[Entry]] = defaultdict(deque)
        for each in entries:
            if each.payer is not None:
                self._waiting[each.payer].append(each)
        self._order = [(0.0, number, payer) for number, payer in enumerate(self._waiting)]
        self._served: dict[Payer, tuple[float, int]] = {
            payer: (0.0, number) for number, payer in enumerate(self._waiting)
        }
        self._began_s = 0.0
        self._cost_s = 0.0
        self.end_s = float("inf")
        self.cost_limit_s = float("inf")

    @property
    def parties(self) -> int:
        """How many share."""
        return len(self._waiting)

    def next(self) -> Entry | None:
        """The process to be read next, for which `add` has to be called; None if there is none."""
        self._began_s = time.monotonic()
        while self._order:
            took_s, _, payer = heapq.heappop(self._order)
            is_over = self._began_s > self.end_s or (0 < self._cost_s >= self.cost_limit_s)
            share = self._shares.of(payer)
            if not is_over and share.left_s(payer) > 0 and took_s <= 2 * share.burst_s:
                return self._waiting[payer].popleft()
        return None

    def add(self, payer: Payer | None, cost_s: float) -> None:
        """Note what reading the last one has cost."""
        assert payer is not None  # noqa: S101 (as `next` gives no other)
        self._cost_s += cost_s
        self._shares.charge(payer, cost_s)
        took_s, number = self._served[payer]
        took_s += time.monotonic() - self._began_s
        self._served[payer] = (took_s, number)
        if self._waiting[payer]:
            heapq.heappush(self._order, (took_s, number, payer))


class ListingCosts:
    """What it costs to look at `stat` of each process, and to identify the new ones."""

    def __init__(self) -> None:
        self._began_s = time.thread_time()
        self._identified: defaultdict[Payer, float] = defaultdict(float)
        self._listed: Counter[Payer] = Counter()
        self._new_s = 0.0

    @contextlib.contextmanager
    def of_new(self) -> Iterator[Callable[[Payer | None], None]]:
        """While a new process is identified; what it yields wants to know who pays."""
        began_s = time.thread_time()
        payers: list[Payer | None] = []
        try:
            yield payers.append
        finally:
            cost_s = time.thread_time() - began_s
            self._new_s += cost_s
            for payer in payers:
                if payer is not None:
                    self._identified[payer] += cost_s

    def count(self, payer: Payer | None) -> None:
        """One process was looked at."""
        if payer is not None:
            self._listed[payer] += 1

    def by_payer(self) -> Iterator[tuple[Payer, float]]:
        """What each container has cost; those with few processes are let off."""
        rest_s = max(0.0, time.thread_time() - self._began_s - self._new_s)
        each_s = rest_s / max(1, self._listed.total())
        for payer, number in self._listed.items():
            identified_s = self._identified[payer]
            if number > _FREE_LISTED or identified_s:
                yield payer, identified_s + number * each_s

"""Time that many parties share: each has a share of its own, and nobody else's."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable


class FairShares:
    """How much time may still be spent on each of many parties.

    Each may cost `burst_s` at once, and gets `refill` seconds a second back. A party that nothing
    was spent on for a while is not remembered.

    Threads: one at a time.

    Args:
        burst_s: What a party may cost at once.
        refill: What it may cost on average, as a part of one processor.
        clock: Tells seconds.

    Attributes:
        burst_s: As given.
    """

    def __init__(
        self, burst_s: float, refill: float, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.burst_s = burst_s
        self._refill = refill
        self._clock = clock
        # What was left, and when.
        self._left: dict[Hashable, tuple[float, float]] = {}

    def left_s(self, party: Hashable) -> float:
        """What may still be spent on a party; 0 or less: nothing."""
        left_s, at_s = self._left.get(party, (self.burst_s, 0.0))
        return min(self.burst_s, left_s + (self._clock() - at_s) * self._refill)

    def charge(self, party: Hashable, cost_s: float) -> None:
        """Take what was spent on a party from its share; it owes one `burst_s` at most."""
        left_s = max(-self.burst_s, self.left_s(party) - cost_s)
        self._left[party] = (left_s, self._clock())

    def forget_idle(self) -> None:
        """Forget the parties that have all of their share again."""
        for party in [each for each in self._left if self.left_s(each) >= self.burst_s]:
            del self._left[party]

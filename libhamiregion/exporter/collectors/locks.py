"""Which regions' locks have been held for a while."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import attrs

from libhamiregion.exporter.region_metrics import is_held
from libhamiregion.exporter.state import SNAPSHOT_BYTES, HeldLock

if TYPE_CHECKING:
    from libhamiregion.exporter.state import CollectedState
    from libhamiregion.node import Container, Node

# A lock is reported as held if it was in the same hands at every one of these looks.
_LOOKS = 10
_BETWEEN_LOOKS_S = 0.002


class LocksCollector:
    """Finds locks in the same hands at several looks in a row, and since when.

    A lock that is taken and given back a thousand times a second is found taken now and then; ten
    looks within 20 ms do not find it in the same hands each time.

    Args:
        node: The node.
    """

    name = "locks"

    def __init__(self, node: Node) -> None:
        self._node = node

    def collect(self, state: CollectedState) -> CollectedState:
        """Look several times, as long as any lock is held."""
        first_s = time.monotonic()
        found = self._held_now()
        for _ in range(_LOOKS - 1):
            if not found:
                break
            time.sleep(_BETWEEN_LOOKS_S)
            found = dict(found.items() & self._held_now().items())
        held = {}
        for container, owner in found.items():
            known = state.held.get(container)
            is_same = known is not None and known.owner_pid == owner
            held[container] = known if known is not None and is_same else HeldLock(owner, first_s)
        return attrs.evolve(state, held=held)

    def _held_now(self) -> dict[Container, int]:
        snapshot = self._node.snapshot(most_bytes=SNAPSHOT_BYTES)
        regions = snapshot.table.regions
        rows = zip(
            snapshot.containers, regions.code, regions.semaphore, regions.owner_pid, strict=True
        )
        return {
            container: owner
            for container, code, semaphore, owner in rows
            if code == 0 and is_held(semaphore)
        }

"""The repair loop: what crashes and mistaken host pids leave behind is put right as it appears."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import TYPE_CHECKING

from libhamiregion.host.doctor import diagnose, repair
from libhamiregion.host.findings import FindingKind

from .backoff import Backoff
from .events import Emit, Voice, container_place, silent

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from libhamiregion.host.findings import Finding
    from libhamiregion.host.node import Node

REPAIR_INTERVAL_S = 10.0

#: What is repaired without anybody being asked: each with proof, and nothing that may be meant.
SAFE_KINDS = frozenset(
    {
        FindingKind.HOST_PID_MISSING,
        FindingKind.HOST_PID_IS_CONTAINER_PID,
        FindingKind.HOST_PID_SWAPPED,
        FindingKind.HOST_PID_DEAD,
        FindingKind.HOST_PID_FOREIGN,
        FindingKind.DEAD_PROCESS_COUNTED,
        FindingKind.ORPHANED_SLOT,
        FindingKind.DOUBLED_SLOT,
        FindingKind.SLOT_WITHOUT_PID,
        FindingKind.SEQLOCK_STUCK,
        FindingKind.LOCK_HELD_BY_DEAD,
        FindingKind.LOCK_OWNERLESS,
        FindingKind.SEMAPHORE_IMPOSSIBLE,
        FindingKind.STARTUP_LOCK_HELD,
    }
)
# Proof takes 10 s of watching: whatever can be done at once is done first.
_SLOW_KINDS = frozenset({FindingKind.LOCK_OWNERLESS})


class RepairLoop:
    """Repairs what the doctor finds and can prove, again and again; a `Task`.

    Every repair proves what it rests on once more, under the region's lock; nothing is broken that
    a live process holds, and two loops on one node do no harm. A container where a repair fails is
    left alone for more and more passes, up to 64.

    Args:
        node: The node.
        interval_s: Seconds between two passes.
        dry_run: Change nothing, and say what would be done.
        timeout_s: How long to wait for a region's lock.
        settle_s: How long to wait before what may pass by itself is looked at again.
        kinds: What to repair, of `SAFE_KINDS`.
        emit: Gets the events.

    Threads: `counters` may be read from any; the rest one at a time.
    """

    name = "repair"

    def __init__(
        self,
        node: Node,
        *,
        interval_s: float = REPAIR_INTERVAL_S,
        dry_run: bool = False,
        timeout_s: float = 0.2,
        settle_s: float = 1.5,
        kinds: Iterable[FindingKind] = SAFE_KINDS,
        emit: Emit = silent,
    ) -> None:
        self.interval_s = interval_s
        self._node = node
        self._dry_run = dry_run
        self._timeout_s = timeout_s
        self._settle_s = settle_s
        self._kinds = frozenset(kinds) & SAFE_KINDS
        self._voice = Voice(self.name, emit)
        self._backoff = Backoff()
        self._counts = {
            "repair_runs": 0,
            "repair_errors": 0,
            **{f"repair_{kind.value}": 0 for kind in sorted(self._kinds, key=lambda k: k.value)},
        }
        self._counting = threading.Lock()

    def counters(self) -> Mapping[str, int]:
        """How often what has happened; ``repair_<kind>`` are repairs done."""
        with self._counting:
            return dict(self._counts)

    def _count(self, what: str) -> None:
        with self._counting:
            self._counts[f"repair_{what}"] += 1

    def run(self) -> None:
        """Diagnose once, and repair.

        Raises:
            OSError: /proc cannot be listed.
        """
        found = [
            each
            for each in diagnose(self._node, settle_s=self._settle_s)
            if each.repairable and each.kind in self._kinds
        ]
        self._count("runs")
        for slow in (False, True):
            by_container: dict[str, list[Finding]] = defaultdict(list)
            for each in found:
                if (each.kind in _SLOW_KINDS) == slow:
                    by_container[container_place(each.container)].append(each)
            for place, findings in by_container.items():
                if not self._backoff.waits((place, slow)):
                    self._repair((place, slow), findings)
        places = frozenset(container_place(container) for container in self._node.containers)
        self._backoff.keep(frozenset((place, slow) for place in places for slow in (False, True)))
        self._voice.keep(places)

    def stop(self) -> None:
        """Nothing has to be taken back."""

    def _repair(self, key: tuple[str, bool], findings: list[Finding]) -> None:
        container = findings[0].container
        failed = False
        try:
            repairs = repair(
                self._node,
                findings,
                dry_run=self._dry_run,
                timeout_s=self._timeout_s,
                kinds=self._kinds,
            )
        except (OSError, RuntimeError, ValueError) as error:
            self._count("errors")
            self._backoff.failed(key)
            self._voice.failed("nothing could be repaired", error, container)
            return
        for each in repairs:
            kind = each.finding.kind.value
            if each.error is not None:
                failed = True
                self._count("errors")
                self._voice.failed_because(f"{kind} was not repaired: {each.error}", container)
            elif each.actions:
                if not self._dry_run:
                    self._count(kind)
                self._voice.say(
                    "would_repair" if self._dry_run else "repaired",
                    f"{kind}: {'; '.join(each.actions)}",
                    container,
                    kind=kind,
                    pid=each.finding.pid,
                )
        if failed:
            self._backoff.failed(key)
        else:
            self._backoff.well(key)
            self._voice.well(container)

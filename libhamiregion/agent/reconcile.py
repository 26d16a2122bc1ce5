"""The repair loop: what crashes and mistaken host pids leave behind is put right as it appears."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from typing import TYPE_CHECKING

from libhamiregion.node.backoff import Backoff, owner_of
from libhamiregion.node.doctor import FindingKind, diagnose, repair
from libhamiregion.node.events import Emit, Voice, container_place, silent

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from libhamiregion.node.containers import Container
    from libhamiregion.node.doctor import Finding
    from libhamiregion.node.node import Node

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
# Proof takes 10 s of watching, in which nothing else is looked at: whatever can be done at once is
# done first, and after one that took so long the others wait for the next pass.
_SLOW_KINDS = frozenset({FindingKind.LOCK_OWNERLESS})
# Outside the roots a container can have many regions, and keep each repair waiting.
_LONG_S = 1.0


class RepairLoop:
    """Repairs what the doctor finds and can prove, again and again; a `Task`.

    Every repair proves what it rests on once more, under the region's lock; nothing is broken that
    a live process holds, and two loops on one node do no harm. A container where a repair fails is
    left alone for more and more passes, up to 64. So is one, for what takes 10 s of watching, also
    where that succeeds: who spoils its own lock again and again does not keep the others waiting.

    Events (task ``repair``): ``repaired`` or ``would_repair``, ``failed``, and ``sight_lost`` and
    ``sight_restored`` when processes of the node cannot be looked into, and can be again.

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
        self._slow_backoff = Backoff()
        self._sees_all = True
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
        self._say_sight()
        quick: defaultdict[str, defaultdict[str, list[Finding]]]
        quick = defaultdict(lambda: defaultdict(list))
        slow: dict[str, list[Finding]] = {}
        for each in found:
            if each.kind in _SLOW_KINDS:
                slow.setdefault(_pod_of(each.container), [each])
            else:
                regions = quick[owner_of(each.container)]
                regions[container_place(each.container)].append(each)
        for owner, regions in quick.items():
            if not self._backoff.waits(owner):
                if self._repair_regions(regions.values()):
                    self._backoff.well(owner)
                else:
                    self._backoff.failed(owner)
        due = [pod for pod in slow if not self._slow_backoff.waits(pod)]
        began_s = time.monotonic()
        # Who has had the fewest turns comes first.
        for pod in sorted(due, key=self._slow_backoff.failures):
            self._repair(slow[pod])
            self._slow_backoff.failed(pod)
            if time.monotonic() - began_s >= _LONG_S:
                break
        containers = self._node.containers
        self._backoff.keep(frozenset(map(owner_of, containers)))
        self._slow_backoff.keep(frozenset(map(_pod_of, containers)))
        self._voice.keep(frozenset(map(container_place, containers)))

    def _say_sight(self) -> None:
        sees_all = self._node.processes.is_complete
        if sees_all is not self._sees_all:
            self._sees_all = sees_all
            if sees_all:
                self._voice.say("sight_restored", "all of the node's processes can be seen again")
            else:
                self._voice.say(
                    "sight_lost",
                    "not all of the node's processes can be seen from here: what they may have to"
                    " do with is left alone; run as root in the host's pid namespace",
                )

    def stop(self) -> None:
        """Nothing has to be taken back."""

    def _repair_regions(self, regions: Iterable[list[Finding]]) -> bool:
        """Repair what one owner's regions need, until it takes long; whether all of it was."""
        began_s = time.monotonic()
        well = True
        for findings in regions:
            if not well and time.monotonic() - began_s >= _LONG_S:
                break
            well = self._repair(findings) and well
        return well

    def _repair(self, findings: list[Finding]) -> bool:
        """Repair what one region needs; whether all of it was."""
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
            self._voice.failed("nothing could be repaired", error, container)
            return False
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
        if not failed:
            self._voice.well(container)
        return not failed


def _pod_of(container: Container | None) -> str:
    """The pod of a container, if it has one: its containers take one turn together."""
    pod = None if container is None else container.pod_uid
    return pod or owner_of(container)

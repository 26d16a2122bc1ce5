"""The repair loop: what crashes and mistaken host pids leave behind is put right as it appears."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING

from libhamiregion.node.backoff import owner_of
from libhamiregion.node.doctor import FindingKind, diagnose, repair
from libhamiregion.node.events import silent
from libhamiregion.node.observation import SHARED_AGE_S, Observer

from .tasks import Task

if TYPE_CHECKING:
    from collections.abc import Iterable

    from libhamiregion.node.containers import Container
    from libhamiregion.node.doctor import Finding
    from libhamiregion.node.events import Emit
    from libhamiregion.node.node import Node

#: What is repaired without anybody being asked: each with proof, and nothing that may be meant.
SAFE_KINDS = frozenset(kind for kind in FindingKind if kind.explanation.repair is not None)
# Proof takes 10 s of watching, in which nothing else is looked at: whatever can be done at once is
# done first, and after one that took so long the others wait for the next pass.
_SLOW_CAUSE = "ownerless"
# Outside the roots a container can have many regions, and keep each repair waiting.
_LONG_S = 1.0


class RepairLoop(Task):
    """Repairs what the doctor finds and can prove, again and again.

    A pass is one diagnosis of the whole node.

    Every repair proves what it rests on once more, under the region's lock; nothing is broken that
    a live process holds, and two loops on one node do no harm. A container where a repair fails is
    left alone for more and more passes, up to 64. So is one that needs a repair which takes 10 s
    of watching, also where that succeeds: a container that spoils its own lock again and again does
    not keep the others waiting.

    Events (task ``repair``): ``repaired`` or ``would_repair``, ``failed``, ``recovered``, and
    ``hidden`` and ``visible`` when processes of the node cannot be read, and can be again.

    Args:
        node: The node.
        dry_run: Change nothing, and report what would be done.
        observer: Observes the node for other tasks as well; None makes one.
        emit: Gets the events.
    """

    name = "repair"
    interval_s = 60.0
    counted = ("runs", "errors", *sorted(kind.value for kind in SAFE_KINDS))
    #: How long to wait for a region's lock.
    timeout_s = 0.2
    #: How long to wait before what may pass by itself is looked at again.
    settle_s = 1.5

    def __init__(
        self,
        node: Node,
        *,
        dry_run: bool = False,
        observer: Observer | None = None,
        emit: Emit = silent,
    ) -> None:
        super().__init__(emit)
        self._node = node
        self._observer = observer or Observer(node)
        self._max_age_s = 0.0 if observer is None else min(SHARED_AGE_S, self.interval_s / 2)
        self._processes_max_age_s = 0.0 if observer is None else self.interval_s
        self._dry_run = dry_run
        self._sees_all = True

    def run(self) -> None:
        """Diagnose once, and repair.

        Raises:
            OSError: /proc cannot be listed.
        """
        observation = self._observer.observe(
            max_age_s=self._max_age_s, processes_max_age_s=self._processes_max_age_s
        )
        all_found = diagnose(
            self._node,
            observation=observation,
            observer=self._observer,
            kinds=SAFE_KINDS,
            settle_s=self.settle_s,
        )
        found = [each for each in all_found if each.repairable]
        self.count("runs")
        self._note_visibility()
        quick: defaultdict[str, defaultdict[str | None, list[Finding]]]
        quick = defaultdict(lambda: defaultdict(list))
        slow: dict[tuple[str, str], list[Finding]] = {}
        for each in found:
            container = each.container
            if each.cause == _SLOW_CAUSE:
                slow.setdefault(_pod_of(container), [each])
            else:
                path = None if container is None else container.region_path
                quick[owner_of(container)][path].append(each)
        for owner, regions in quick.items():
            if not self.backoff.should_skip(owner):
                if self._repair_regions(regions.values()):
                    self.backoff.recovered(owner)
                else:
                    self.backoff.failed(owner)
        watched = [pod for pod in slow if not self.backoff.should_skip(pod)]
        began_s = time.monotonic()
        # Fewest attempts first.
        for pod in sorted(watched, key=self.backoff.failures):
            self._repair(slow[pod])
            self.backoff.failed(pod)
            if time.monotonic() - began_s >= _LONG_S:
                break
        containers = self._node.containers
        self.backoff.retain([*map(owner_of, containers), *map(_pod_of, containers)])
        self.events.retain(containers)

    def _note_visibility(self) -> None:
        sees_all = self._node.processes.is_complete
        if sees_all is not self._sees_all:
            self._sees_all = sees_all
            if sees_all:
                self.events.emit("visible", "all of the node's processes can be seen again")
            else:
                self.events.emit(
                    "hidden",
                    "not all of the node's processes can be seen from here: what they may have to"
                    " do with is left alone; run as root in the host's pid namespace",
                )

    def _repair_regions(self, regions: Iterable[list[Finding]]) -> bool:
        """Repair what one owner's regions need, until it takes long; whether all of it was."""
        began_s = time.monotonic()
        all_well = True
        for findings in regions:
            if not all_well and time.monotonic() - began_s >= _LONG_S:
                break
            all_well = self._repair(findings) and all_well
        if all_well:
            self.events.recovered(findings[0].container)
        return all_well

    def _repair(self, findings: list[Finding]) -> bool:
        """Repair what one region needs; whether all of it was."""
        container = findings[0].container
        try:
            repairs = repair(
                self._node,
                findings,
                dry_run=self._dry_run,
                timeout_s=self.timeout_s,
            )
        except (OSError, RuntimeError, ValueError) as error:
            self.count("errors")
            self.events.failed("nothing could be repaired", error, container)
            return False
        all_well = True
        for each in repairs:
            kind = each.finding.kind.value
            if each.error is not None:
                all_well = False
                self.count("errors")
                self.events.failed(f"{kind} was not repaired", str(each.error), container)
            elif each.actions:
                if not self._dry_run:
                    self.count(kind)
                self.events.emit(
                    "would_repair" if self._dry_run else "repaired",
                    f"{kind}: {'; '.join(each.actions)}",
                    container,
                    distinct=kind,
                    kind=kind,
                    pid=each.finding.pid,
                )
        return all_well


def _pod_of(container: Container | None) -> tuple[str, str]:
    """The pod of a container, if it has one: its containers take one turn together."""
    pod = None if container is None else container.pod_uid
    return "pod", pod or owner_of(container)

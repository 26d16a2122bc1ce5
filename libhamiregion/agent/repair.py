"""Repairs, as they appear, what crashes and wrong host pids leave behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from libhamiregion.doctor import FindingKind, examine, repair
from libhamiregion.services.backoff import owner_of
from libhamiregion.services.events import silent

from .loop import Task

if TYPE_CHECKING:
    from libhamiregion.doctor import Finding, Repair
    from libhamiregion.node.reader import Observer
    from libhamiregion.observation.containers import Container
    from libhamiregion.observation.model import Observation
    from libhamiregion.services.events import Emit

#: What is repaired without being asked: each with proof, and nothing that may be on purpose.
SAFE_KINDS = frozenset(kind for kind in FindingKind if kind.explanation.is_repairable)
# The proof that such a lock has no owner takes 10 s: one a pass, of the pod with fewest attempts.
_SLOW_CAUSE = "ownerless"
# Outside the roots one container can have many regions, and delay each repair.
_BUDGET_S = 2.0


class RepairLoop(Task):
    """Repairs what the doctor finds and can prove.

    A pass is one diagnosis of the node. Every repair is proved once more under the region's lock;
    two agents on one node do no harm. A container where a repair fails is skipped for more and more
    passes, up to 64. So is a pod whose lock takes 10 s of watching, also after a success: a
    container that damages its own lock again and again does not delay the others.

    Regions of layouts without a lock are left alone.

    Events (task ``repair``): ``repaired`` or ``would_repair``, ``failed``, ``recovered``, and
    ``hidden`` and ``visible`` when processes of the node cannot be read, and can be again.

    Args:
        observer: The observer of all tasks; observes the node again for findings that may pass.
        dry_run: Change nothing, and report what would be done.
        emit: Gets the events.
    """

    name = "repair"
    counted = ("runs", "errors", *sorted(kind.value for kind in SAFE_KINDS))
    needs = "slots"
    #: How long to wait for a region's lock.
    timeout_s = 0.2
    #: How long to wait before findings that may pass are checked again.
    settle_s = 1.5

    def __init__(self, observer: Observer, *, dry_run: bool = False, emit: Emit = silent) -> None:
        super().__init__(emit)
        self._node = observer.node
        self._observer = observer
        self._dry_run = dry_run
        self._sees_all = True

    def run(self, observation: Observation) -> None:
        """Diagnose once, and repair.

        Raises:
            OSError: /proc cannot be listed.
        """
        found = examine(
            self._observer, observation=observation, kinds=SAFE_KINDS, settle_s=self.settle_s
        )
        self.count("runs")
        self._note_visibility()
        by_owner: dict[object, list[Finding]] = {}
        for each in found:
            if each.repairable and _has_lock(each.container):
                by_owner.setdefault(_turn_of(each), []).append(each)
        due = [owner for owner in by_owner if not self.backoff.should_skip(owner)]
        slow = [owner for owner in due if isinstance(owner, tuple)]
        slow.sort(key=self.backoff.failures)
        for owner in due:
            if owner not in slow and self._repair(by_owner[owner]):
                self.backoff.recovered(owner)
            elif owner not in slow:
                self.backoff.failed(owner)
        for owner in slow[:1]:
            self._repair(by_owner[owner][:1])
            self.backoff.failed(owner)
        containers = self._node.containers
        self.backoff.retain([*map(owner_of, containers), *map(_pod_of, containers)])
        self.events.retain(containers)

    def _note_visibility(self) -> None:
        sees_all = self._node.processes.view.is_complete
        if sees_all and not self._sees_all:
            self.events.emit("visible", "all of the node's processes can be seen again")
        if self._sees_all and not sees_all:
            self.events.emit(
                "hidden",
                "not all of the node's processes can be seen from here, and what they may use is"
                " left alone; run as root in the host's pid namespace",
            )
        self._sees_all = sees_all

    def _repair(self, findings: list[Finding]) -> bool:
        """Repair what one owner's regions need; return whether all of it was done."""
        container = findings[0].container
        try:
            repairs = repair(
                self._node,
                findings,
                dry_run=self._dry_run,
                timeout_s=self.timeout_s,
                budget_s=_BUDGET_S,
            )
        except (OSError, RuntimeError, ValueError) as error:
            self.count("errors")
            self.events.failed("nothing could be repaired", error, container)
            return False
        for each in repairs:
            self._report(each)
        is_done = all(each.error is None for each in repairs)
        if is_done:
            self.events.recovered(container)
        return is_done

    def _report(self, done: Repair) -> None:
        kind, container = done.finding.kind.value, done.finding.container
        if done.error is not None:
            self.count("errors")
            self.events.failed(f"{kind} was not repaired", str(done.error), container)
        elif done.actions:
            if not self._dry_run:
                self.count(kind)
            self.events.emit(
                "would_repair" if self._dry_run else "repaired",
                f"{kind}: {'; '.join(done.actions)}",
                container,
                distinct=kind,
                kind=kind,
                pid=done.finding.pid,
            )


def _has_lock(container: Container | None) -> bool:
    region = None if container is None else container.region
    return region is not None and region.layout.has_lock


def _turn_of(finding: Finding) -> object:
    """Return whose repairs are tried, and put off, together."""
    slow = finding.cause == _SLOW_CAUSE
    return _pod_of(finding.container) if slow else owner_of(finding.container)


def _pod_of(container: Container | None) -> tuple[str, str]:
    pod = None if container is None else container.pod_uid
    return "pod", pod or owner_of(container)

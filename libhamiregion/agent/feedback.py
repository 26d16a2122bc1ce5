"""HAMi's feedback: launches of less urgent containers wait, SM limits hold under contention.

HAMi's monitor does this on a node; `Feedback` replaces it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import attrs

from libhamiregion.errors import (
    LimitConflict,
    RegionError,
)
from libhamiregion.node.node_lock import LockUse, NodeLock, NodeLocked
from libhamiregion.observation.containers import MissingReason, missing_for
from libhamiregion.region import open_in_container
from libhamiregion.services.controllers import CompetingController, find_monitors
from libhamiregion.services.events import container_words, silent

from .acts import WritableRegions
from .loop import RegionKey, Task, region_key, run_each
from .priority_rule import BLOCKED, LaunchState, Verdict, decide

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from libhamiregion.node.node import Node
    from libhamiregion.observation.containers import Container
    from libhamiregion.observation.model import Observation
    from libhamiregion.region import Region
    from libhamiregion.services.events import Emit

# Without directories of containers, as with plain Docker, agents lock this one.
_WITHOUT_ROOTS = "/run"
# The file may be the same, and readable again later.
_MAY_PASS = frozenset(
    {MissingReason.UNKNOWN_LAYOUT, MissingReason.NO_PERMISSION, MissingReason.FAILED}
)


class OtherWriterRuns(RuntimeError):
    """Another process writes launch marks and SM switches on this node.

    Attributes:
        others: The processes, and how each is known.
    """

    def __init__(self, others: tuple[CompetingController, ...]) -> None:
        super().__init__("; ".join(other.message for other in others))
        self.others = others

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.others,)


@attrs.define(eq=False)
class _WrittenState:
    """Values that this process has written to a region and gives back when it ends.

    Attributes:
        container: The container, as of the last pass.
        blocked: Whether this process keeps its launches waiting.
        switch_found: The switch before the first change; None without a change.
        switch_set: The switch after the last change.
    """

    container: Container
    blocked: bool = False
    switch_found: int | None = None
    switch_set: int | None = None

    def phrase(self) -> str | None:
        """Name what is to be given back; None if nothing is."""
        label = container_words(self.container)
        if self.blocked:
            return f"launches of {label} are blocked"
        if self.switch_found is None or self.switch_set == int(bool(self.switch_found)):
            return None
        return f"the SM switch of {label} is not as it was found"


class Feedback(Task):
    """Applies the priority rule to all regions under a node's roots.

    Regions outside the roots take no part, as in HAMi: any process can map a file of its own there.

    Only changes are written. A launch mark is counted down by compare-and-set, so that a launch
    between reading and writing is not lost. While another process writes these fields, nothing is
    written.

    `stop` gives back, also while a pass hangs: blocked launches go on, and a switch that still has
    the value of this process becomes what it was before. After a kill, regions stay as they are
    until HAMi's monitor or the next agent applies the rule again.

    Args:
        node: The node.
        dry_run: Write nothing, and report what would be written.
        assume_alone: Assume that no other writer is hidden if not all processes of the node can be
            seen.
        waits: If another process writes at the start, begin paused instead of raising
            `OtherWriterRuns`.
        emit: Gets the events.

    Attributes:
        paused: The other writers that keep this task from writing; empty while it writes.
    """

    name = "feedback"
    counted = ("runs", "writes", "blocks", "unblocks", "launches_kept", "errors", "pauses")
    needs = "processes"
    interval_s = 5.0

    def __init__(
        self,
        node: Node,
        *,
        dry_run: bool = False,
        assume_alone: bool = False,
        waits: bool = False,
        emit: Emit = silent,
    ) -> None:
        super().__init__(emit)
        self._node = node
        self._writable = WritableRegions(node)
        self._dry_run = dry_run
        self._assume_alone = assume_alone
        self._waits = waits
        self._lock = NodeLock(LockUse.FEEDBACK)
        self._written: dict[RegionKey, _WrittenState] = {}
        self._searched: tuple[object, object] = (None, None)
        self._monitors: tuple[CompetingController, ...] = ()
        self.paused: tuple[CompetingController, ...] = ()
        # Held while something is written: nothing is written once giving back has begun.
        self._writing = threading.Lock()
        self._ended = False

    def counters(self) -> Mapping[str, int]:
        """Return the counters, and ``feedback_paused``."""
        return {**super().counters(), "feedback_paused": int(bool(self.paused))}

    # ---- one pass --------------------------------------------------------------------------------

    def start(self, observe: Callable[[], Observation]) -> None:
        """Check that no other process writes.

        Raises:
            OtherWriterRuns: Another process does, and the feedback does not wait.
            OSError: /proc cannot be listed, or the containers' directories cannot be locked.
        """
        others = self._find_others(observe())
        if others and not (self._waits or self._dry_run):
            self._lock.close()
            raise OtherWriterRuns(others)

    def run(self, observation: Observation) -> None:
        """Apply the rule once to every region under the node's roots.

        A region that fails is counted and reported; the others are written all the same.

        Raises:
            OSError: /proc cannot be listed, or the containers' directories cannot be locked.
        """
        self._writable.close_rested()
        others = self._find_others(observation)
        self._note(others)
        if others and not self._dry_run:
            return
        self.count("runs")
        self._forget_gone(observation)
        states = list(_states(observation))
        verdicts = decide([state for _, state in states])
        for (container, state), verdict in zip(states, verdicts, strict=True):
            if self._dry_run:
                for field in ("recent_kernel", "utilization_switch"):
                    before, after = getattr(state, field), getattr(verdict, field)
                    if before != after:
                        self._would_write(container, field, before, after)
                continue
            try:
                self._apply(container, state, verdict)
            except (RegionError, OSError) as error:
                self.count("errors")
                self.events.failed("the feedback could not be written", error, container)
            else:
                self.events.recovered(container)

    def _find_others(self, observation: Observation) -> tuple[CompetingController, ...]:
        """Find other writers, and take the node's lock if it is free."""
        if observation.processes_error is not None:
            raise observation.processes_error
        view, containers = self._node.processes.view, self._node.containers
        # They are replaced as a whole where something has changed.
        if view is not self._searched[0] or containers is not self._searched[1]:
            self._searched = view, containers
            self._monitors = find_monitors(view, containers)
        found = list(self._monitors)
        if not (self._assume_alone or self._node.processes.view.visibility.sees_all_pids):
            message = (
                f"{self._node.proc!r} does not show all processes of the node, so HAMi's monitor"
                " may run unseen; run in the host's pid namespace (hostPID: true)"
            )
            found.append(CompetingController("hidden", None, message))
        if not self._dry_run:
            try:
                self._lock.hold(self._node.directories or (_WITHOUT_ROOTS,))
            except NodeLocked as locked:
                message = f"another agent runs: a process has locked {locked.root!r}"
                found.append(CompetingController("lock", None, message))
        return tuple(found)

    def _note(self, others: tuple[CompetingController, ...]) -> None:
        """Report a pause, and its end."""
        for other in others:
            if other not in self.paused:
                message = f"nothing is written: {other.message}"
                self.events.emit("paused", message, evidence=other.evidence, pid=other.pid)
        if others and not self.paused:
            self.count("pauses")
            # From now on the values are those of the other writer.
            self._written.clear()
        elif self.paused and not others:
            before = "; ".join(other.message for other in self.paused)
            self.events.emit("resumed", f"no other writer is left; it had paused: {before}")
        self.paused = others

    def _forget_gone(self, observation: Observation) -> None:
        """Forget regions that are gone: a container can make a new one each second.

        One that cannot be read now may be readable when it is to be given back.
        """
        self.events.retain(self._node.containers)
        here = {
            region_key(each.region) for each in observation.containers if each.region is not None
        }
        unreadable = {
            each.directory
            for each in observation.missing
            if each.missing is not None and each.missing.reason in _MAY_PASS
        }
        for key in self._written.keys() - here:
            if self._written[key].container.directory not in unreadable:
                del self._written[key]

    # ---- writing ---------------------------------------------------------------------------------

    def _apply(self, container: Container, state: LaunchState, verdict: Verdict) -> None:
        assert container.region is not None  # noqa: S101 (only such have a state)
        written = self._written.setdefault(region_key(container.region), _WrittenState(container))
        written.container = container
        marked = verdict.recent_kernel != state.recent_kernel
        switched = verdict.utilization_switch != state.utilization_switch
        if not (marked or switched):
            # A region that was found blocked is from now on kept so by this process.
            written.blocked = verdict.blocked
            return
        with self._writable.open(container) as region, self._writing:
            if self._ended:
                return
            # Before the store: whatever may have been stored is given back.
            written.blocked = written.blocked or verdict.blocked
            if marked:
                self._set_launch_mark(container, region, state, verdict)
            written.blocked = verdict.blocked
            if switched:
                if written.switch_found is None:
                    written.switch_found = state.utilization_switch
                written.switch_set = verdict.utilization_switch
                region.set_utilization_switch(bool(verdict.utilization_switch))
                self.count("writes")
                on = "on" if verdict.utilization_switch else "off"
                self.events.emit(f"limiting_{on}", f"SM limiting is {on}", container)

    def _set_launch_mark(
        self, container: Container, region: Region, state: LaunchState, verdict: Verdict
    ) -> None:
        if verdict.recent_kernel == BLOCKED:
            # A launch since the observation does not matter: it has to wait from now on.
            region.set_recent_kernel(BLOCKED)
            self.count("blocks")
            self.events.emit("blocked", "launches wait for a more urgent container", container)
        else:
            try:
                region.set_recent_kernel(verdict.recent_kernel, expected=state.recent_kernel)
            except LimitConflict:
                # It has launched since the observation, and counts for two passes from now on.
                self.count("launches_kept")
                return
            if state.recent_kernel < 0:
                self.count("unblocks")
                self.events.emit("unblocked", "launches go on", container)
        self.count("writes")

    # ---- the end ---------------------------------------------------------------------------------

    def give_back(self) -> None:
        """Give back the values that this process has written: no pass would do so by itself.

        The next pass that succeeds writes them again.
        """
        written = [(key, each) for key, each in self._written.copy().items() if each.phrase()]
        run_each(self._give_back, written)

    def stop(self) -> None:
        """Give back the values that this process has written, and the lock."""
        with self._writing:
            self._ended = True
        self.give_back()
        self._writable.close_rested(0.0)
        self._lock.close()

    def pending_cleanup(self) -> tuple[str, ...]:
        """List containers that are still blocked, or whose switch is not as it was found."""
        phrases = (written.phrase() for written in self._written.copy().values())
        return tuple(phrase for phrase in phrases if phrase is not None)

    def _give_back(self, entry: tuple[RegionKey, _WrittenState]) -> None:
        (path, file_id), written = entry
        try:
            # Not through the node: its lock may be held by a pass that hangs.
            with open_in_container(path, writable=True) as region:
                if region.file_id == file_id:
                    self._give_back_to(region, written)
        except (RegionError, OSError) as error:
            # Else the region is gone, and with it the values.
            if missing_for(error).reason in _MAY_PASS:
                self.count("errors")
                self.events.failed("not given back", error, written.container)
                return
        self._written.pop((path, file_id), None)

    def _give_back_to(self, region: Region, written: _WrittenState) -> None:
        mark = region.recent_kernel
        if written.blocked and mark < 0:
            try:
                region.set_recent_kernel(0, expected=mark)
            except LimitConflict:
                pass  # another process has just unblocked it
            else:
                self.count("unblocks")
                message = "launches go on, the agent ends"
                self.events.emit("unblocked", message, written.container, distinct="end")
        found = written.switch_found
        if found is not None and int(region.utilization_switch) == written.switch_set:
            region.set_utilization_switch(bool(found))
            on = "on" if found else "off"
            message = f"SM limiting is {on}, as it was found"
            self.events.emit(f"limiting_{on}", message, written.container, distinct="end")


def _states(observation: Observation) -> Iterator[tuple[Container, LaunchState]]:
    """Yield the rule's input for each region under the roots."""
    regions, devices = observation.table.regions, observation.table.devices
    uuids: list[set[str]] = [set() for _ in observation.containers]
    for region, uuid in zip(devices.region, devices.uuids(), strict=True):
        if uuid is not None:
            uuids[region].add(uuid)
    rows = zip(
        observation.containers,
        regions.code.tolist(),
        regions.recent_kernel.tolist(),
        regions.utilization_switch.tolist(),
        regions.priority.tolist(),
        uuids,
        strict=True,
    )
    for container, code, recent_kernel, switch, priority, named in rows:
        if code == 0 and container.directory is not None:
            # A container can write its own priority: 0, HAMi's most urgent, is the limit.
            yield container, LaunchState(recent_kernel, switch, max(0, priority), named)

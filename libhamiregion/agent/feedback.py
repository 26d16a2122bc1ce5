"""HAMi's feedback: launches of less urgent containers wait, SM limits hold under contention.

HAMi's monitor does this on a node; `Feedback` replaces it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from libhamiregion.errors import RegionError
from libhamiregion.node.node_lock import LockUse, NodeLock, NodeLocked
from libhamiregion.services.controllers import CompetingController, find_monitors
from libhamiregion.services.events import silent

from .acts import MAY_PASS, Act, ActingTask, region_key
from .priority_rule import BLOCKED, LaunchState, decide

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from libhamiregion.node.node import Node
    from libhamiregion.observation.containers import Container
    from libhamiregion.observation.model import Observation
    from libhamiregion.services.events import Emit

    from .acts import RegionKey

# Without directories of containers, as with plain Docker, agents lock this one.
_WITHOUT_ROOTS = "/run"
# A container that launches is written to every 5 s.
_REST_S = 60.0
_MARK, _SWITCH = "recent_kernel", "utilization_switch"


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


class Feedback(ActingTask):
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
    not_taken_back = "not given back"

    def __init__(
        self,
        node: Node,
        *,
        dry_run: bool = False,
        assume_alone: bool = False,
        waits: bool = False,
        emit: Emit = silent,
    ) -> None:
        super().__init__(node, dry_run=dry_run, emit=emit, rest_s=_REST_S)
        self._assume_alone = assume_alone
        self._waits = waits
        self._lock = NodeLock(LockUse.FEEDBACK)
        self._searched: tuple[object, object] = (None, None)
        self._monitors: tuple[CompetingController, ...] = ()
        self.paused: tuple[CompetingController, ...] = ()

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
        self.executor.close_rested()
        others = self._find_others(observation)
        self._note(others)
        if others and not self._dry_run:
            return
        self.count("runs")
        self._forget_gone(observation)
        for container, acts in decide_acts(observation):
            if self._dry_run:
                self._would_write(acts)
                continue
            try:
                self._report(acts, self.executor.carry_out(acts))
                self.events.recovered(container)
            except (RegionError, OSError) as error:
                self.count("errors")
                self.events.failed("the feedback could not be written", error, container)

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
            self.executor.kept.clear()
        elif self.paused and not others:
            before = "; ".join(other.message for other in self.paused)
            self.events.emit("resumed", f"no other writer is left; it had paused: {before}")
        self.paused = others

    def _forget_gone(self, observation: Observation) -> None:
        """Forget regions that are gone: a container can make a new one each second.

        One that cannot be read now may be readable when it is to be given back.
        """
        self.events.retain(self._node.containers)
        here: set[RegionKey] = set()
        regions = observation.table.regions
        for row, container in enumerate(observation.containers):
            if container.region is None:
                continue
            key = region_key(container.region)
            here.add(key)
            kept = self.executor.kept.get(key)
            if kept is not None:
                kept.container = container
                if regions.code[row] == 0 and regions.recent_kernel[row] >= 0:
                    # Its launches go on already.
                    kept.acts.pop((_MARK, None, None), None)
        unreadable = {
            each.directory
            for each in observation.missing
            if each.missing is not None and each.missing.reason in MAY_PASS
        }
        for key in self.executor.kept.keys() - here:
            if self.executor.kept[key].container.directory not in unreadable:
                del self.executor.kept[key]

    def _report(self, acts: Sequence[Act], done: Sequence[Act]) -> None:
        """Count and report the acts on one container."""
        for act in done:
            self.count("writes")
            self._say(act)
        if any(act.is_change and act not in done for act in acts):
            # It has launched since the observation, and counts for two passes from now on.
            self.count("launches_kept")

    def _say(self, act: Act, how: str = "", distinct: str | None = None) -> None:
        """Report an act, unless it only counts a launch mark down."""
        kind = ""
        if act.field == _SWITCH:
            on = "on" if act.wanted else "off"
            kind, message = f"limiting_{on}", f"SM limiting is {on}"
        elif act.wanted < 0:
            kind, message = "blocked", "launches wait for a more urgent container"
            self.count("blocks")
        elif act.expected < 0:
            kind, message = "unblocked", "launches go on"
            self.count("unblocks")
        if kind:
            self.events.emit(kind, how + message, act.container, distinct=distinct)

    # ---- the end ---------------------------------------------------------------------------------

    def stop(self) -> None:
        """Give back the values that this process has written, and the lock."""
        super().stop()
        self.executor.close_rested(0.0)
        self._lock.close()

    def taken_back(self, act: Act) -> None:
        """Count and report an act at the end."""
        self._say(act, "given back: ", distinct="end")


def decide_acts(observation: Observation) -> Iterator[tuple[Container, list[Act]]]:
    """Yield what the rule wants of each region under the roots, from its values alone."""
    states = list(_states(observation))
    verdicts = decide([state for _, state in states])
    for (container, state), verdict in zip(states, verdicts, strict=True):
        acts = []
        mark, switch = state.recent_kernel, state.utilization_switch
        if verdict.recent_kernel != mark or verdict.blocked:
            # A region that was found blocked is from now on kept so by this process.
            back = 0 if verdict.blocked else None
            # A launch since the observation does not save from a block.
            compares = verdict.recent_kernel != BLOCKED
            acts.append(Act(container, _MARK, mark, verdict.recent_kernel, back, compares))
        if verdict.utilization_switch != switch:
            back = int(bool(switch))
            acts.append(Act(container, _SWITCH, switch, verdict.utilization_switch, back, False))
        yield container, acts


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

"""The feedback of a node: launches of less urgent containers wait, SM limits hold under contention.

HAMi's monitor does this on a node; `Feedback` does it in its place.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, TypeAlias

import attrs

from libhamiregion.errors import (
    LimitConflict,
    NotARegion,
    RegionClosed,
    RegionError,
    RegionNotFound,
    RegionStale,
)
from libhamiregion.node.bounded_call import BoundedCall
from libhamiregion.node.containers import MissingReason
from libhamiregion.node.events import container_words, silent
from libhamiregion.node.node import NodeBusy
from libhamiregion.node.observation import SHARED_AGE_S, Observer
from libhamiregion.node.writers import CompetingController
from libhamiregion.region import open_in_container

from . import tasks
from .other_writers import OtherWriterRuns, WriterWatch
from .priority_rule import BLOCKED, LaunchState, decide
from .tasks import Task, run_each

if TYPE_CHECKING:
    from collections.abc import Mapping

    from libhamiregion.node.containers import Container
    from libhamiregion.node.events import Emit
    from libhamiregion.node.node import Node
    from libhamiregion.node.node_snapshot import NodeSnapshot
    from libhamiregion.region import Region

    from .priority_rule import Verdict

#: For so many passes in a row another writer has to be gone before the feedback goes on.
RESUME_AFTER_PASSES = 3
# The agent gives its tasks 5 s to give back.
_GIVE_BACK_S = 4.0

# The file may be the same, and readable again later.
_MAY_PASS = frozenset(
    {MissingReason.UNKNOWN_LAYOUT, MissingReason.NO_PERMISSION, MissingReason.FAILED}
)

#: Stands for whoever may write unseen.
_LOOK_TIMED_OUT = (
    CompetingController("hidden", None, "a look at this node does not come to its end"),
)

# A region: its path, and the very file.
_Key: TypeAlias = "tuple[str, tuple[int, int]]"


@attrs.define(eq=False)
class _WrittenState:
    """What this process has done to a region and gives back when it ends.

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
        """What is to be given back; None if nothing is."""
        label = container_words(self.container)
        if self.blocked:
            return f"launches of {label} are blocked"
        if self.switch_found is None or self.switch_set == int(bool(self.switch_found)):
            return None
        return f"the SM switch of {label} is not as it was found"


class Feedback(Task):
    """Follows the priority rule on all regions under a node's roots.

    Regions outside the roots take no part, as they take none in HAMi's: a pod that HAMi has given
    no GPU could otherwise block those that have one, by a file that it has made itself.

    It writes only where something has to change. A launch mark is counted down by compare-and-set,
    so that a launch between reading and writing is not lost. While somebody else writes these
    fields it writes nothing; when the other has been gone for three passes, it goes on. Where a
    look at the node does not come to its end, nobody knows who else writes: it gives back what it
    has written, and goes on after three looks that do.

    Stopped, it gives back what it has written, also while a pass hangs: launches that it blocked go
    on, and a switch that still is as it was set becomes what it was before. After a kill, regions
    stay as they are until the rule is applied again, by HAMi's monitor or by the next agent: its
    first pass unblocks what need not wait.

    Args:
        node: The node.
        dry_run: Write nothing, and report what would be written.
        assume_alone: Take it for granted that no other writer is hidden where not all processes of
            the node can be seen.
        waits: Where somebody else writes at the start, begin paused instead of raising
            `OtherWriterRuns`.
        observer: Observes the node for other tasks as well; None makes one.
        emit: Gets the events.
    """

    name = "feedback"
    counted = ("runs", "writes", "blocks", "unblocks", "launches_kept", "errors", "pauses")
    interval_s = 5.0

    def __init__(
        self,
        node: Node,
        *,
        dry_run: bool = False,
        assume_alone: bool = False,
        waits: bool = False,
        observer: Observer | None = None,
        emit: Emit = silent,
    ) -> None:
        super().__init__(emit)
        self._waits = waits
        self._node = node
        self._observer = observer or Observer(node)
        self._max_age_s = 0.0 if observer is None else min(SHARED_AGE_S, self.interval_s / 2)
        # The regions are read in every pass; the driver and the processes need not be.
        self._observation_max_age_s = 0.0 if observer is None else 1.5 * self.interval_s
        # A monitor that starts is seen after two passes at most.
        self._processes_max_age_s = 0.0 if observer is None else 2 * self.interval_s
        self._dry_run = dry_run
        self._watch = WriterWatch(node, assume_alone=assume_alone)
        self._written: dict[_Key, _WrittenState] = {}
        # Of which containers it was last looked which are gone, how many were kept, and what they
        # go by.
        self._retained: tuple[tuple[Container, ...], int] | None = None
        self._keys: dict[Region, _Key] = {}
        # What names the devices of all regions, and the names by region.
        self._devices: tuple[bytes, bytes] | None = None
        self._uuids: list[frozenset[str]] = []
        # What the rule looked at in the last pass, and the columns that it was made of.
        self._looked: tuple[tuple[object, ...], list[tuple[Container, LaunchState]]] | None = None
        # The same, if all of it was as the rule wants it.
        self._settled: list[tuple[Container, LaunchState]] | None = None
        self._others: tuple[CompetingController, ...] = ()
        self._clear_looks = 0
        # Held while something is written, so that nothing is once giving back has begun.
        self._writing = threading.Lock()
        self._ended = False
        self._in_pass = False
        self._looking = BoundedCall(self._look, "hami-look", keeps_late=True)

    @property
    def paused(self) -> tuple[CompetingController, ...]:
        """The other writers that keep this task from writing; empty while it writes."""
        return self._others

    def counters(self) -> Mapping[str, int]:
        """How often what has happened, and ``feedback_paused``."""
        return {**super().counters(), "feedback_paused": int(bool(self._others))}

    # ---- one pass --------------------------------------------------------------------------------

    def start(self) -> None:
        """Make sure that nobody else writes.

        Raises:
            OtherWriterRuns: Somebody does, and the feedback does not wait.
            OSError: /proc cannot be listed, or the containers' directories cannot be locked.
        """
        self._ended = False
        self._observe()
        others = self._watch.look(lock=not self._dry_run)
        if others and self._waits:
            self._note(others)
        elif others and not self._dry_run:
            self._watch.close()
            raise OtherWriterRuns(others)

    def run(self) -> None:
        """Apply the rule once to every region under the node's roots.

        A container whose region fails is counted and reported, and does not keep the others from
        their turn.

        Raises:
            OSError: /proc cannot be listed, or the containers' directories cannot be locked.
        """
        self._in_pass = True
        try:
            self._pass()
        finally:
            self._in_pass = False

    def _observe(self) -> NodeSnapshot:
        observation = self._observer.observe(
            max_age_s=self._observation_max_age_s,
            slots=False,
            processes_max_age_s=self._processes_max_age_s,
        )
        if observation.processes_error is not None:
            raise observation.processes_error
        return self._observer.read_regions(max_age_s=self._max_age_s)

    def _look(self) -> tuple[NodeSnapshot | None, tuple[CompetingController, ...]]:
        snapshot = None
        with contextlib.suppress(NodeBusy):
            # Another task's look hangs: what is known of the regions still can be followed.
            snapshot = self._observe()
        return snapshot, self._watch.look(lock=not self._dry_run)

    def _pass(self) -> None:
        looked = self._looking(tasks.STUCK_AFTER_S / 3)
        snapshot, others = looked[0] if looked else (None, _LOOK_TIMED_OUT)
        self._note(others)
        if self._others and not self._dry_run:
            return
        self.count("runs")
        states = self._states(snapshot or self._node.snapshot())
        self._retain()
        if states is self._settled:
            return
        verdicts = decide([state for _, state in states])
        has_failed = False
        for (container, state), verdict in zip(states, verdicts, strict=True):
            if self._dry_run:
                self._report_dry_run(container, state, verdict)
                continue
            try:
                self._apply(container, state, verdict)
            except (RegionError, OSError) as error:
                has_failed = True
                self.count("errors")
                self.events.failed("the feedback could not be written", error, container)
            else:
                self.events.recovered(container)
        is_settled = not has_failed and all(
            verdict.recent_kernel == state.recent_kernel
            and verdict.utilization_switch == state.utilization_switch
            for (_, state), verdict in zip(states, verdicts, strict=True)
        )
        self._settled = states if is_settled else None

    def _states(self, snapshot: NodeSnapshot) -> list[tuple[Container, LaunchState]]:
        """What the rule looks at, of each region under the roots.

        The same object as in the last pass if nothing has changed.
        """
        regions, devices = snapshot.table.regions, snapshot.table.devices
        named = devices.region.tobytes(), devices.uuid_bytes.tobytes()
        if self._devices != named or len(self._uuids) != len(regions):
            self._devices, self._uuids = named, _uuids_of(snapshot)
        columns = (
            regions.code,
            regions.recent_kernel,
            regions.utilization_switch,
            # A container can write its own priority: nobody gets ahead of HAMi's most urgent.
            regions.priority,
        )
        key = (snapshot.containers, named, *(column.tobytes() for column in columns))
        if self._looked is not None and self._looked[0] == key:
            return self._looked[1]
        states = [
            (container, LaunchState(recent_kernel, switch, max(0, priority), uuids))
            for container, uuids, code, recent_kernel, switch, priority in zip(
                snapshot.containers,
                self._uuids,
                *(column.tolist() for column in columns),
                strict=True,
            )
            # Anybody can map a file of their own outside the roots; nobody waits for such a one.
            if code == 0 and container.directory is not None
        ]
        self._looked = key, states
        return states

    def _retain(self) -> None:
        """Keep nothing of regions that are gone; a container can make a new one each second.

        One that cannot be read now stays: it may be readable when it is to be given back.
        """
        containers = self._node.containers
        before = self._retained
        if before is not None and before[0] is containers and before[1] == len(self._written):
            return
        self.events.retain(containers)
        self._keys = {each.region: _key(each.region) for each in containers if each.region}
        here = set(self._keys.values())
        unreadable = {
            each.directory
            for each in containers
            if each.missing is not None and each.missing.reason in _MAY_PASS
        }
        for key in self._written.keys() - here:
            if self._written[key].container.directory not in unreadable:
                del self._written[key]
        self._retained = containers, len(self._written)

    def _note(self, others: tuple[CompetingController, ...]) -> None:
        """Pause, or go on."""
        if others:
            self._settled = None
            self._clear_looks = 0
            for other in others:
                if other not in self._others:
                    self.events.emit(
                        "paused",
                        f"nothing is written: {other.message}",
                        evidence=other.evidence,
                        pid=other.pid,
                    )
            if not self._others:
                self.count("pauses")
                if others is _LOOK_TIMED_OUT:
                    self._give_all_back()
                else:
                    # The other decides now; what was written before is no longer ours.
                    self._written.clear()
            self._others = others
        elif self._others:
            self._clear_looks += 1
            if self._clear_looks >= RESUME_AFTER_PASSES:
                before = "; ".join(other.message for other in self._others)
                self._others = ()
                self.events.emit("resumed", f"nobody else writes any more; it had paused: {before}")

    # ---- writing ---------------------------------------------------------------------------------

    def _apply(self, container: Container, state: LaunchState, verdict: Verdict) -> None:
        assert container.region is not None  # noqa: S101 (only such have a state)
        key = self._keys.get(container.region) or _key(container.region)
        written = self._written.get(key)
        if written is None:
            written = self._written[key] = _WrittenState(container)
        written.container = container
        marked = verdict.recent_kernel != state.recent_kernel
        switched = verdict.utilization_switch != state.utilization_switch
        if not (marked or switched):
            # A region that was found blocked is kept so by this process from now on.
            written.blocked = verdict.blocked
            return
        with self._node.open(container) as region, self._writing:
            if self._ended:
                return
            # Before the store: what may stand there has to be given back.
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
        to = verdict.recent_kernel
        if to == BLOCKED:
            # A launch since it was read does not change that it has to wait from now on.
            region.set_recent_kernel(to)
            self.count("blocks")
            self.events.emit("blocked", "launches wait for a more urgent container", container)
        else:
            try:
                region.set_recent_kernel(to, expected=state.recent_kernel)
            except LimitConflict:
                # It has launched since it was read, and counts for two passes from now on.
                self.count("launches_kept")
                return
            if state.recent_kernel < 0:
                self.count("unblocks")
                self.events.emit("unblocked", "launches go on", container)
        self.count("writes")

    def _report_dry_run(self, container: Container, state: LaunchState, verdict: Verdict) -> None:
        for field in ("recent_kernel", "utilization_switch"):
            before, after = getattr(state, field), getattr(verdict, field)
            if before != after:
                self.events.emit(
                    "would_write",
                    f"{field} would become {after}, from {before}",
                    container,
                    distinct=field,
                    field=field,
                    before=before,
                    after=after,
                )

    # ---- the end ---------------------------------------------------------------------------------

    def stop(self) -> None:
        """Give back what stands in the regions from this process, and the lock."""
        with self._writing:
            self._ended = True
        try:
            if self.pending_cleanup() and self._another_writes():
                # Another writer's values are its own.
                self._written.clear()
            self._give_all_back()
        finally:
            self._watch.close()

    def _another_writes(self) -> bool:
        if self._others is _LOOK_TIMED_OUT:
            return False
        # A pass that hangs may hang in what a look needs.
        if self._in_pass:
            return bool(self._others)
        try:
            return bool(self._watch.look(lock=False))
        except Exception as error:  # noqa: BLE001 (whatever it is, nobody may stay blocked for it)
            self.count("errors")
            self.events.failed("other writers could not be looked for", error)
            return False

    def _give_all_back(self) -> None:
        here = {_key(each.region): each for each in self._node.containers if each.region}
        self._written = {key: each for key, each in self._written.items() if each.phrase()}
        entries = [(key, each, here.get(key)) for key, each in self._written.items()]
        run_each(self._give_back, entries, _GIVE_BACK_S)

    def pending_cleanup(self) -> tuple[str, ...]:
        """The containers that are still blocked, or whose switch is not as it was found."""
        phrases = (written.phrase() for written in self._written.copy().values())
        return tuple(phrase for phrase in phrases if phrase is not None)

    def _give_back(self, entry: tuple[_Key, _WrittenState, Container | None]) -> None:
        key, written, container = entry
        try:
            if container is not None:
                with self._node.open(container) as region:
                    self._give_back_to(region, written)
            else:
                # Gone, or not to be read in the last pass.
                path, file_id = key
                with open_in_container(path, writable=True) as region:
                    if region.file_id == file_id:
                        self._give_back_to(region, written)
        except (RegionStale, RegionNotFound, NotARegion):
            pass  # the region is gone, and what was written into it with it
        except (RegionError, OSError) as error:
            self.count("errors")
            self.events.failed("what was written stands", error, written.container)
            return
        self._written.pop(key, None)

    def _give_back_to(self, region: Region, written: _WrittenState) -> None:
        mark = region.recent_kernel
        if written.blocked and mark < 0:
            try:
                region.set_recent_kernel(0, expected=mark)
            except LimitConflict:
                pass  # somebody has unblocked it meanwhile
            else:
                self.count("unblocks")
                self.events.emit(
                    "unblocked",
                    "launches go on, the agent steps back",
                    written.container,
                    distinct="end",
                )
        found = written.switch_found
        if found is not None and int(region.utilization_switch) == written.switch_set:
            region.set_utilization_switch(bool(found))
            on = "on" if found else "off"
            self.events.emit(
                f"limiting_{on}",
                f"SM limiting is {on}, as it was found",
                written.container,
                distinct="end",
            )


def _uuids_of(snapshot: NodeSnapshot) -> list[frozenset[str]]:
    """The uuids of each region's devices."""
    regions, devices = snapshot.table.regions, snapshot.table.devices
    uuids: list[set[str]] = [set() for _ in range(len(regions))]
    for row, region in enumerate(devices.region.tolist()):
        uuid = devices.uuid(row)
        if uuid is not None:
            uuids[region].add(uuid)
    return list(map(frozenset, uuids))


def _key(region: Region) -> _Key:
    """What a region is known by; a closed one is in no set."""
    try:
        return region.path, region.file_id
    except RegionClosed:
        return region.path, (-1, -1)

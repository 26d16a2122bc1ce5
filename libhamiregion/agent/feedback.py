"""The feedback of a node: launches of less urgent containers wait, SM limits hold under contention.

HAMi's monitor does this on a node; `Feedback` does it in its place.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeAlias

import attrs

from libhamiregion.errors import LimitConflict, RegionClosed, RegionError
from libhamiregion.node.events import Emit, Voice, silent

from .monitor_watch import OtherWriterRuns, WriterWatch
from .priority_rule import (
    BLOCKED,
    FEEDBACK_INTERVAL_S,
    LaunchState,
    believed,
    decide,
    uuids_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from libhamiregion.node.containers import Container
    from libhamiregion.node.node import Node, NodeSnapshot
    from libhamiregion.region import Region

    from .monitor_watch import OtherWriter
    from .priority_rule import Verdict

Believe: TypeAlias = "Callable[[Container, LaunchState], LaunchState]"

_COUNTERS = (
    "feedback_runs",
    "feedback_writes",
    "feedback_blocks",
    "feedback_unblocks",
    "feedback_launches_kept",
    "feedback_errors",
    "feedback_pauses",
)


@attrs.define
class _Written:
    """What this process has done to a region and will take back when it ends."""

    blocked: bool = False
    switch_found: int | None = None
    switch_set: int | None = None


class Feedback:
    """Follows the priority rule on all regions under a node's roots; a `Task`.

    Regions outside the roots take no part, as they take none in HAMi's: a pod that HAMi has given
    no GPU could otherwise block those that have one, by a file that it has made itself.

    It writes only where something has to change. A launch mark is counted down by compare-and-set,
    so that a launch between reading and writing is not lost. While somebody else writes these
    fields (`WriterWatch`) it writes nothing.

    Stopped in order, it takes back what it has written: launches that it blocked go on, and a
    switch that still is as it was set becomes what it was before. After a kill, regions stay as
    they are until the rule is applied again, by HAMi's monitor or by the next agent: its first pass
    unblocks what need not wait.

    Args:
        node: The node.
        interval_s: Seconds between two passes. A launch counts for two of them.
        dry_run: Write nothing, and say what would be written.
        watch: Looks for other writers; None makes one.
        resume_after: After how many passes in a row without another writer to go on; None means
            never.
        believe: What to take for a region's state, given its container and what stands in it; the
            default is `believed`.
        emit: Gets the events.

    Threads: `counters` and `paused` may be read from any; the rest one at a time.
    """

    name = "feedback"

    def __init__(
        self,
        node: Node,
        *,
        interval_s: float = FEEDBACK_INTERVAL_S,
        dry_run: bool = False,
        watch: WriterWatch | None = None,
        resume_after: int | None = 3,
        believe: Believe | None = None,
        emit: Emit = silent,
    ) -> None:
        self.interval_s = interval_s
        self._node = node
        self._dry_run = dry_run
        self._watch = WriterWatch(node) if watch is None else watch
        self._resume_after = resume_after
        self._believe: Believe = (lambda _, state: believed(state)) if believe is None else believe
        self._voice = Voice(self.name, emit)
        self._counts = dict.fromkeys(_COUNTERS, 0)
        self._counting = threading.Lock()
        self._written: dict[tuple[str, tuple[int, int]], _Written] = {}
        self._others: tuple[OtherWriter, ...] = ()
        self._clear_looks = 0

    @property
    def paused(self) -> tuple[OtherWriter, ...]:
        """Because of whom nothing is written; empty while there is nobody."""
        return self._others

    def counters(self) -> Mapping[str, int]:
        """How often what has happened; the names end in what is counted."""
        with self._counting:
            return {**self._counts, "feedback_paused": int(bool(self._others))}

    def _count(self, what: str) -> None:
        with self._counting:
            self._counts[f"feedback_{what}"] += 1

    # ---- one pass --------------------------------------------------------------------------------

    def start(self) -> None:
        """Make sure that nobody else writes.

        Raises:
            OtherWriterRuns: Somebody does.
            OSError: /proc cannot be listed, or the containers' directories cannot be locked.
        """
        self._node.refresh()
        others = self._watch.look(lock=not self._dry_run)
        if others and not self._dry_run:
            self._watch.close()
            raise OtherWriterRuns(others)

    def run(self) -> None:
        """Apply the rule once to every region under the node's roots.

        A container whose region fails is counted and said, and does not keep the others from their
        turn.

        Raises:
            OSError: /proc cannot be listed, or the containers' directories cannot be locked.
        """
        self._node.refresh()
        self._note(self._watch.look(lock=not self._dry_run))
        if self._others and not self._dry_run:
            return
        self._count("runs")
        snapshot = self._node.snapshot()
        states = self._states(snapshot)
        present = frozenset(
            container.region.path
            for container in snapshot.containers
            if container.region is not None
        )
        self._voice.keep(present)
        self._forget_what_is_gone(snapshot)
        believed_states = [self._believe(container, state) for container, state in states]
        for (container, state), verdict in zip(states, decide(believed_states), strict=True):
            changed = (
                verdict.recent_kernel != state.recent_kernel
                or verdict.utilization_switch != state.utilization_switch
            )
            if self._dry_run:
                self._tell(container, state, verdict)
                continue
            try:
                news = self._is_blocked_now(container, verdict)
                if changed:
                    self._apply(container, state, verdict, news=news)
            except (RegionError, OSError) as error:
                self._count("errors")
                self._voice.failed("the feedback could not be written", error, container)
            else:
                self._voice.well(container)

    def _forget_what_is_gone(self, snapshot: NodeSnapshot) -> None:
        """Keep nothing of regions that are no more; a container can make a new one each second."""
        if self._written:
            here = {_key(each.region) for each in snapshot.containers if each.region is not None}
            for key in self._written.keys() - here:
                del self._written[key]

    def _is_blocked_now(self, container: Container, verdict: Verdict) -> bool:
        """Note whether a region is blocked; True if that is news.

        Also where it was found blocked: from now on this process keeps it so.
        """
        if container.region is None:
            return False
        written = self._written.get(_key(container.region))
        if written is None and verdict.blocked:
            written = self._of(container.region)
        if written is None or written.blocked == verdict.blocked:
            return False
        written.blocked = verdict.blocked
        return True

    def _note(self, others: tuple[OtherWriter, ...]) -> None:
        """Pause, or go on."""
        if others:
            self._clear_looks = 0
            known = {(other.evidence, other.pid) for other in self._others}
            for other in others:
                if (other.evidence, other.pid) not in known:
                    self._voice.say(
                        "paused",
                        f"nothing is written any more: {other.message}",
                        evidence=other.evidence,
                        pid=other.pid,
                    )
            if not self._others:
                self._count("pauses")
                # Whoever writes now decides; what was written before is no longer ours.
                self._written.clear()
            self._others = others
        elif self._others and self._resume_after is not None:
            self._clear_looks += 1
            if self._clear_looks >= self._resume_after:
                self._others = ()
                self._voice.say("resumed", "nobody else writes any more; the feedback goes on")

    def _states(self, snapshot: NodeSnapshot) -> list[tuple[Container, LaunchState]]:
        regions, devices = snapshot.table.regions, snapshot.table.devices
        uuids: list[list[str | None]] = [[] for _ in range(len(regions))]
        for row, region in enumerate(devices.region.tolist()):
            uuids[region].append(devices.uuid(row))
        columns = (
            regions.code,
            regions.recent_kernel,
            regions.utilization_switch,
            regions.priority,
        )
        states = []
        for container, named, code, recent_kernel, switch, priority in zip(
            snapshot.containers, uuids, *(column.tolist() for column in columns), strict=True
        ):
            # Anybody can map a file of their own outside the roots; nobody waits for such a one.
            if code == 0 and container.directory is not None:
                state = LaunchState(recent_kernel, switch, priority, uuids_of(named))
                states.append((container, state))
        return states

    # ---- writing ---------------------------------------------------------------------------------

    def _apply(
        self, container: Container, state: LaunchState, verdict: Verdict, *, news: bool
    ) -> None:
        with self._node.open(container) as region:
            if verdict.recent_kernel != state.recent_kernel:
                self._set_launch_mark(container, region, state, verdict, news=news)
            if verdict.utilization_switch != state.utilization_switch:
                written = self._of(region)
                region.set_utilization_switch(bool(verdict.utilization_switch))
                if written.switch_found is None:
                    written.switch_found = state.utilization_switch
                written.switch_set = verdict.utilization_switch
                self._count("writes")
                on = "on" if verdict.utilization_switch else "off"
                self._voice.say(f"limiting_{on}", f"SM limiting is {on}", container)

    def _of(self, region: Region) -> _Written:
        return self._written.setdefault(_key(region), _Written())

    def _set_launch_mark(
        self,
        container: Container,
        region: Region,
        state: LaunchState,
        verdict: Verdict,
        *,
        news: bool,
    ) -> None:
        to = verdict.recent_kernel
        if to == BLOCKED:
            # A launch since it was read does not change that it has to wait from now on.
            region.set_recent_kernel(to)
            self._count("blocks")
            if news:
                # Not where a container writes its own mark, against the block, again and again.
                self._voice.say("blocked", "launches wait for a more urgent container", container)
        else:
            try:
                region.set_recent_kernel(to, expected=state.recent_kernel)
            except LimitConflict:
                # It has launched since it was read, and counts for two passes from now on.
                self._count("launches_kept")
                return
            if state.recent_kernel < 0:
                self._count("unblocks")
                self._voice.say("unblocked", "launches go on", container)
        self._count("writes")

    def _tell(self, container: Container, state: LaunchState, verdict: Verdict) -> None:
        for field in ("recent_kernel", "utilization_switch"):
            before, after = getattr(state, field), getattr(verdict, field)
            if before != after:
                self._voice.say(
                    "would_write",
                    f"{field} would become {after}, from {before}",
                    container,
                    field=field,
                    before=before,
                    after=after,
                )

    # ---- the end ---------------------------------------------------------------------------------

    def stop(self) -> None:
        """Take back what stands in the regions from this process, and give the lock back."""
        try:
            # Another writer's values are its own.
            if self._written and not self._dry_run and not self._watch.look():
                self._take_back()
        finally:
            self._written.clear()
            self._watch.close()

    def _take_back(self) -> None:
        for container in self._node.containers:
            if container.region is None:
                continue
            try:
                written = self._written.get(_key(container.region))
                if written is None:
                    continue
                with self._node.open(container) as region:
                    self._take_back_from(container, region, written)
            except (RegionError, OSError) as error:
                self._count("errors")
                self._voice.failed("what was written could not be taken back", error, container)

    def _take_back_from(self, container: Container, region: Region, written: _Written) -> None:
        mark = region.recent_kernel
        if written.blocked and mark < 0:
            try:
                region.set_recent_kernel(0, expected=mark)
            except LimitConflict:
                pass  # somebody has unblocked it meanwhile
            else:
                self._count("unblocks")
                self._voice.say("unblocked", "launches go on, the agent stops", container)
        found = written.switch_found
        if found is not None and int(region.utilization_switch) == written.switch_set != int(
            bool(found)
        ):
            region.set_utilization_switch(bool(found))
            on = "on" if found else "off"
            self._voice.say(f"limiting_{on}", f"SM limiting is {on}, as it was found", container)


def _key(region: Region) -> tuple[str, tuple[int, int]]:
    """What a region is known by: its path, and the very file; a closed one is in no set."""
    try:
        return region.path, region.file_id
    except RegionClosed:
        return region.path, (-1, -1)

"""A node kept on a plan: whatever changes, the plan, its containers or their limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from libhamiregion.node.backoff import Backoff
from libhamiregion.node.events import EventReporter, silent
from libhamiregion.node.node_lock import LockUse, NodeLock, NodeLocked
from libhamiregion.node.observation import SHARED_AGE_S, Observer
from libhamiregion.text import printable

from .apply import change_container
from .diff import diff_plan
from .equal_edits import equal_edits
from .originals import Originals
from .plan_file import plan_text
from .sources import PlanFile, SourceReading, join_readings
from .state import PlanState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from libhamiregion.errors import PathLike
    from libhamiregion.node.containers import Container
    from libhamiregion.node.events import Detail, Emit
    from libhamiregion.node.node import Node
    from libhamiregion.region import Region

    from .apply import ContainerOutcome
    from .diff import ContainerDiff, PlanDiff, PlannedEdit, Skip
    from .limit_plan import LimitPlan
    from .sources import PlanSource

_UNDO_NAME = "undo-watch.yaml"


class OtherKeeperRuns(RuntimeError):
    """Another process keeps these containers on a plan, or uses the same state directory."""


class PlanWatcher:
    """Keeps a node on a plan. Each `run` is one pass.

    A pass reads the plan and the node, and edits what differs: because the plan has changed, a
    container has come or come back with a new region, or somebody has changed a limit (drift). What
    the plan names no longer goes back to what it was before, if it still stands as it was set.

    A plan that cannot be used is reported, and the last good one stays in force; without one,
    nothing is changed. A container that refuses or fails is left alone for one pass, then for two,
    four and so on up to 64.

    Events (task ``plan``): ``plan_loaded``, ``problem``, ``solved``, ``changed`` (a container, with
    the cause: ``plan``, ``container``, ``drift`` or ``restore``, and the new values), ``conflict``,
    ``refused``, ``failed``, ``skipped``. What lasts is reported once, what repeats the 1st, 2nd,
    4th, 8th ... time.

    Threads: `start`, `run` and `stop` are for one at a time; `counters` may be called from others.

    Args:
        node: The node. Another task may refresh it as well.
        sources: Where the plan comes from; where they set the same value, the later one counts.
            `stop` closes them.
        state: The directory for what was there before; None means as `apply_diff`.
        force: Allow what `diff_plan` allows with it.
        observer: Observes the node for other tasks as well; None makes one.
        emit: Gets the events.

    Attributes:
        plan: The plan in force; None as long as there is none.
        diff: What differed in the last pass; None before the first.
    """

    def __init__(
        self,
        node: Node,
        sources: Iterable[PlanSource],
        state: PathLike | None = None,
        *,
        force: bool = False,
        observer: Observer | None = None,
        emit: Emit = silent,
    ) -> None:
        self._node = node
        self._observer = observer or Observer(node)
        self._max_age_s = 0.0 if observer is None else SHARED_AGE_S
        self._sources = tuple(sources)
        self._files = {each.path for each in self._sources if isinstance(each, PlanFile)}
        self._state = PlanState(state)
        self._force = force
        self._events = EventReporter("plan", emit)
        self._lock = NodeLock(LockUse.PLAN)
        self._originals: Originals | None = None
        self._backoff = Backoff()
        self._problems: Mapping[str, str] = {}
        self._reading = SourceReading(None)
        # Containers that the last pass left on this plan, with their regions.
        self._on_plan: dict[str, Region | None] = {}
        self._skips: set[object] = set()
        self._counts: dict[str, int] = dict.fromkeys(
            ("plan_passes", "plan_edits", "plan_drifts", "plan_refusals", "plan_conflicts"), 0
        )
        self.plan: LimitPlan | None = None
        self.diff: PlanDiff | None = None

    def counters(self) -> Mapping[str, int]:
        """Passes, edits (values), drifts found, and containers that refused or were contested."""
        return dict(self._counts)

    def when_changed(self, wake: Callable[[], None]) -> None:
        """Have `wake` called, from any thread, when a source has news: a pass is due then."""
        for source in self._sources:
            source.when_changed(wake)

    def start(self) -> None:
        """Become the one process that keeps this node on a plan. The plan is not looked at.

        Raises:
            OtherKeeperRuns: Another process keeps one of the node's roots on a plan.
            OSError: The state directory or a root cannot be used.
        """
        if self._originals is None:
            self._state.make()
            try:
                self._exclude_others()
            except BaseException:
                self._lock.close()
                raise
            originals = Originals(self._state)
            if originals.lost:
                self._report_lost()
            self._originals = originals

    def stop(self) -> None:
        """Close the sources and let others keep this node on a plan. Limits stay as they are."""
        for source in self._sources:
            source.close()
        self._originals = None
        self._lock.close()

    def run(self) -> None:
        """Do one pass.

        Raises:
            RuntimeError: There has been no plan yet that can be used, and a source says why.
            OtherKeeperRuns, OSError: As `start`.
        """
        self.start()
        originals = self._originals
        assert originals is not None  # noqa: S101 (start has made it)
        self._counts["plan_passes"] += 1
        readings = [source.read() for source in self._sources]
        reading = self._reading = join_readings(readings, self._reading)
        self._report_problems(reading.problems)
        if reading.plan is None:
            if reading.problems:
                raise RuntimeError("no plan can be used yet; the problems say why")
            return
        cause = "container"
        if reading.plan is not self.plan:
            cause = "plan"
            self._take(reading.plan)
        self._observer.read_regions(max_age_s=self._max_age_s)
        # A root may have come since.
        self._exclude_others()
        originals.refresh(self._node)
        diff = diff_plan(
            self._node,
            reading.plan,
            force=self._force,
            originals=originals.by_directory,
            held=reading.held,
        )
        originals.compared(diff.containers)
        originals.save()
        self._report_skips(diff.off_plan)
        changes = [
            each for each in diff.changes if not self._backoff.should_skip(_key(each.container))
        ]
        done = self._change(changes, originals, cause) if changes else []
        done += [each for each in diff.containers if not each.edits]
        self._on_plan = {_key(each.container): each.container.region for each in done}
        self._backoff.retain({_key(container) for container in self._node.containers})
        self.diff = diff

    def _exclude_others(self) -> None:
        try:
            self._lock.hold([*self._node.directories, self._state.directory])
        except NodeLocked as error:
            raise OtherKeeperRuns(
                f"{error.root}: another process keeps containers on a plan there"
            ) from None

    def _report_lost(self) -> None:
        text = "what stood here before plans cannot be read, so values that plans have set stay"
        undo = self._state.read(_UNDO_NAME)
        if undo is not None:
            # The next change writes a new one, which knows no earlier values than today's.
            kept = self._state.write_undo(undo.decode("utf-8", "surrogateescape"))
            text += f"; hamiregion limits apply {kept} puts them back"
        self._events.emit("problem", text)

    # ---- a pass ---------------------------------------------------------------------------------

    def _take(self, plan: LimitPlan) -> None:
        self.plan = plan
        self._backoff = Backoff()
        self._on_plan = {}
        self._skips.clear()
        named = "" if plan.name is None else f" {printable(plan.name, 100)}"
        rules = len(plan.rules)
        # Whoever edits a file waits for this; annotations may change all the time.
        edited = len(self._files) == len(self._sources)
        self._events.emit(
            "plan_loaded",
            f"the plan{named} has {rules} rules",
            distinct=self._counts["plan_passes"] if edited else 0,
            rules=rules,
        )

    def _change(
        self, changes: list[ContainerDiff], originals: Originals, cause: str
    ) -> list[ContainerDiff]:
        """Edit containers; returns those that are on the plan now."""
        causes = {_key(each.container): self._causes(each, originals, cause) for each in changes}
        # Before the change: the other way round, a kill in between would lose what was there.
        # What is then remembered and was not done stands beside what was done last.
        originals.note(changes)
        self._state.write(_UNDO_NAME, plan_text(originals.undo_plan(self._node)))
        outcomes = [change_container(self._node, each, force=self._force) for each in changes]
        for outcome in outcomes:
            key = _key(outcome.diff.container)
            if outcome.status == "applied":
                self._backoff.recovered(key)
                originals.applied(outcome.diff)
                self._count(outcome.diff, causes[key])
            else:
                self._backoff.failed(key)
                self._count_failure(outcome)
        originals.save()
        return [each.diff for each in outcomes if each.status == "applied"]

    def _causes(
        self, change: ContainerDiff, originals: Originals, cause: str
    ) -> dict[PlannedEdit, str]:
        """Why each value is not as the plan says."""
        causes = {}
        known = self._on_plan.get(_key(change.container)) is change.container.region
        for edit in change.edits:
            causes[edit] = cause
            if edit.rule is None:
                causes[edit] = "restore"
            elif known or originals.was_set_to(change.container, edit.key, edit.after):
                causes[edit] = "drift"
        return causes

    # ---- what is counted and reported -----------------------------------------------------------

    def _count(self, change: ContainerDiff, causes: Mapping[PlannedEdit, str]) -> None:
        self._counts["plan_edits"] += len(change.edits)
        self._counts["plan_drifts"] += sum(cause == "drift" for cause in causes.values())
        for cause in sorted(set(causes.values())):
            edits = [edit for edit in change.edits if causes[edit] == cause]
            words = "; ".join(each.words for each in equal_edits(edits))
            if cause == "drift":
                words += " (somebody else had set it)"
            detail: dict[str, Detail] = {"cause": cause}
            for edit in edits:
                suffix = "" if edit.device is None else f".{edit.device}"
                detail[f"{edit.field}{suffix}"] = edit.after
            # What the plan changes is news each time; what a container brings about may repeat.
            number = self._counts["plan_passes"] if cause in {"plan", "restore"} else 0
            self._events.emit(
                "changed", words, change.container, distinct=(cause, number), **detail
            )

    def _count_failure(self, outcome: ContainerOutcome) -> None:
        if outcome.status == "conflict":
            self._counts["plan_conflicts"] += 1
        if outcome.status == "refused":
            self._counts["plan_refusals"] += 1
        self._events.emit(outcome.status, outcome.message or "", outcome.diff.container)

    def _report_problems(self, problems: Mapping[str, str]) -> None:
        for about, message in problems.items():
            if self._problems.get(about) != message:
                # A file's problems are its author's; an annotation may change all the time.
                distinct = (about, message if about in self._files else "")
                text = message.replace("\n", " | ")
                self._events.emit("problem", text, distinct=distinct, about=about)
        for about, message in self._problems.items():
            if about not in problems:
                distinct = (about, message if about in self._files else "")
                text = f"{printable(about)}: all is well again"
                self._events.emit("solved", text, distinct=distinct, about=about)
        self._problems = problems

    def _report_skips(self, skips: Iterable[Skip]) -> None:
        now: set[object] = set()
        for skip in skips:
            key = (_key(skip.container), skip.reason, skip.rules, skip.device)
            now.add(key)
            if key not in self._skips:
                refused = skip.reason in {"below_usage", "stops_launches"}
                self._counts["plan_refusals"] += refused
                self._events.emit(
                    "refused" if refused else "skipped",
                    skip.message,
                    skip.container,
                    distinct=(skip.reason, skip.device),
                    reason=skip.reason,
                )
        self._skips = now


def _key(container: Container) -> str:
    return container.directory or ""

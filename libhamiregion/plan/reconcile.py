"""Keep a node on a plan: when the plan, the containers or their limits change."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, Protocol

import attrs

from libhamiregion.node.backoff import Backoff
from libhamiregion.node.events import EventReporter, silent
from libhamiregion.node.node_lock import LockUse, NodeLock, NodeLocked
from libhamiregion.text import printable

from .apply import change_container, exact_rules
from .diff import diff_plan, equal_edits
from .plan import LimitPlan
from .plan_file import PlanError, parse_plan, plan_text, read_plan_file
from .state import UNDO_NAME, BaselineStore, PlanState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from libhamiregion.errors import PathLike
    from libhamiregion.node.containers import Container
    from libhamiregion.node.events import Detail, Emit
    from libhamiregion.node.node import Node

    from .diff import ContainerDiff, PlanDiff, Unapplied

_COUNTED: Final = {"conflict": "plan_conflicts", "refused": "plan_refusals"}


@attrs.frozen
class SourceReading:
    """What a source says now.

    Attributes:
        plan: The plan; None as long as nothing is known, and then nothing is to be changed. The
            same object as before if nothing has changed.
        problems: The problems, by subject (a path, ``namespace/pod``, ``kubernetes``). What was
            known before stays in force.
        held: The UIDs of pods that are to be left as they are.
    """

    plan: LimitPlan | None
    problems: Mapping[str, str] = attrs.field(factory=dict)
    held: frozenset[str] = frozenset()


class PlanSource(Protocol):
    """A source of the plan that a node is to be kept on."""

    def read(self) -> SourceReading:
        """Read what it says now. Never waits, never raises for what others have written."""

    def when_changed(self, wake: Callable[[], None]) -> None:
        """Have `wake` called, from any thread, when `read` would say something new.

        A source that cannot notice this does nothing: it is read at an interval too.
        """

    def close(self) -> None:
        """Release what it holds."""


class PlanFile:
    """A plan in a file, which may be replaced or edited at any time.

    It is read again each time: the links of a ConfigMap are swapped, and an edit need not change a
    time stamp. A file that cannot be read or is no plan is a problem, and the last good plan stays.

    Threads: one at a time.

    Args:
        path: The file.

    Shell: ``hamiregion limits apply FILE --watch --root DIR``.
    """

    def __init__(self, path: PathLike) -> None:
        self.path = os.fspath(path)
        self._raw: bytes | None = None
        self._reading = SourceReading(None)

    def read(self) -> SourceReading:
        """Read the plan, or keep the last good one."""
        plan = self._reading.plan
        try:
            raw = read_plan_file(self.path, wait=False)
            if raw == self._raw:
                return self._reading
            self._raw = raw
            self._reading = SourceReading(parse_plan(raw, self.path))
        except PlanError as error:
            self._reading = SourceReading(plan, {self.path: str(error)})
        except OSError as error:
            # When it is back, it is read even if it is the same.
            self._raw = None
            problem = f"{self.path}: {error.strerror or error}"
            if isinstance(error, FileNotFoundError):
                problem += "; waiting for it"
            self._reading = SourceReading(plan, {self.path: problem})
        return self._reading

    def when_changed(self, wake: Callable[[], None]) -> None:
        """Do nothing: it is read at an interval."""

    def close(self) -> None:
        """Do nothing; it holds nothing."""


def join_readings(readings: Sequence[SourceReading]) -> SourceReading:
    """Join several sources; if they set the same value, the later one counts.

    Args:
        readings: One of each source. There is no plan until each of them has one.
    """
    plans = [reading.plan for reading in readings if reading.plan is not None]
    plan: LimitPlan | None = None
    if len(plans) == len(readings):
        rules = tuple(rule for each in plans for rule in each.rules)
        plan = plans[0] if len(plans) == 1 else LimitPlan(rules)
    return SourceReading(
        plan,
        {key: text for reading in readings for key, text in reading.problems.items()},
        frozenset().union(*(reading.held for reading in readings)),
    )


class PlanLocked(RuntimeError):
    """Another process keeps these containers on a plan, or uses the same state directory."""


class PlanReconciler:
    """Keeps a node on a plan. Each `run` is one pass.

    A pass reads the plan and the node, and edits what differs: because the plan has changed, a
    container has come or come back with a new region, or a limit was changed by others (drift).
    A value that no rule sets any more goes back to what it was before, if it is still as it was
    set.

    A plan that cannot be used is reported, and the last good one stays in force; without one,
    nothing is changed. A container that refuses or fails is left alone for one pass, then for two,
    four and so on up to 64.

    Events (task ``plan``): ``plan_loaded``, ``problem``, ``solved``, ``changed`` (a container, with
    the cause: ``plan``, ``container``, ``drift`` or ``restore``, and the new values), ``conflict``,
    ``refused``, ``failed``, ``skipped``. A lasting state is reported once, an event that repeats
    the 1st, 2nd, 4th, 8th ... time.

    Threads: `start`, `run` and `stop` are for one at a time; `counters` may be called from others.

    Args:
        node: The node. Each pass works on its last refresh.
        sources: The sources of the plan; if they set the same value, the later one counts. `stop`
            closes them.
        state: The state directory; None means as `apply_diff`.
        force: Allow what `diff_plan` allows with it.
        emit: Gets the events.

    Attributes:
        plan: The plan in force; None as long as there is none.
        diff: The differences of the last pass; None before the first.
    """

    def __init__(
        self,
        node: Node,
        sources: Iterable[PlanSource],
        state: PathLike | None = None,
        *,
        force: bool = False,
        emit: Emit = silent,
    ) -> None:
        self._node = node
        self._sources = tuple(sources)
        self._files = {each.path for each in self._sources if isinstance(each, PlanFile)}
        self._state = PlanState(state)
        self._force = force
        self._events = EventReporter("plan", emit)
        self._lock = NodeLock(LockUse.PLAN)
        self._baselines: BaselineStore | None = None
        self._backoff = Backoff()
        self._reading = SourceReading(None)
        # Containers that the last pass left on this plan, with their regions.
        self._on_plan: dict[str, tuple[int, int]] = {}
        self._unapplied: set[object] = set()
        self._counts: dict[str, int] = dict.fromkeys(
            ("plan_passes", "plan_edits", "plan_drifts", "plan_refusals", "plan_conflicts"), 0
        )
        self.plan: LimitPlan | None = None
        self.diff: PlanDiff | None = None

    def counters(self) -> Mapping[str, int]:
        """Count passes, edits (values), drifts, and containers that refused or had a conflict."""
        return dict(self._counts)

    def when_changed(self, wake: Callable[[], None]) -> None:
        """Have `wake` called, from any thread, when a source has news: a pass is due then."""
        for source in self._sources:
            source.when_changed(wake)

    def start(self) -> None:
        """Become the one process that keeps this node on a plan. The plan is not read.

        Raises:
            PlanLocked: Another process keeps one of the node's roots on a plan.
            OSError: The state directory or a root cannot be used.
        """
        if self._baselines is None:
            self._state.make()
            try:
                self._exclude_others()
                self._baselines = BaselineStore(self._state)
            except BaseException:
                self._lock.close()
                raise

    def stop(self) -> None:
        """Close the sources and let others keep this node on a plan. Limits stay as they are."""
        for source in self._sources:
            source.close()
        self._baselines = None
        self._lock.close()

    def run(self) -> None:
        """Do one pass.

        Raises:
            RuntimeError: There has been no plan yet that can be used; an event says why.
            PlanLocked, OSError: As `start`.
        """
        self.start()
        baselines = self._baselines
        assert baselines is not None  # noqa: S101 (it has started)
        self._counts["plan_passes"] += 1
        known = self._reading
        reading = self._reading = join_readings([each.read() for each in self._sources])
        self._report_problems(known.problems, reading.problems)
        if reading.plan is None:
            if reading.problems:
                raise RuntimeError("no plan can be used yet; the problems say why")
            return
        cause = "container"
        if reading.plan != self.plan:
            cause = "plan"
            self._take(reading.plan)
        # A root may have appeared since.
        self._exclude_others()
        baselines.refresh(self._node)
        diff = diff_plan(
            self._node,
            reading.plan,
            force=self._force,
            baselines=baselines.by_directory,
            held=reading.held,
        )
        baselines.compared(diff.containers)
        baselines.save()
        self._report_unapplied((*diff.unapplied, *diff.waiting))
        changes = [
            each for each in diff.changes if not self._backoff.should_skip(_key(each.container))
        ]
        done = self._change(changes, baselines, cause) if changes else []
        done += [each for each in diff.containers if not each.edits]
        self._on_plan = {_key(each.container): each.file_id for each in done}
        self._backoff.retain({_key(container) for container in self._node.containers})
        self.diff = diff

    def _exclude_others(self) -> None:
        try:
            self._lock.hold([*self._node.directories, self._state.directory])
        except NodeLocked as error:
            raise PlanLocked(
                f"{error.root}: another process keeps containers on a plan there"
            ) from None

    # ---- a pass ---------------------------------------------------------------------------------

    def _take(self, plan: LimitPlan) -> None:
        self.plan = plan
        self._backoff = Backoff()
        self._on_plan = {}
        self._unapplied.clear()
        named = "" if plan.name is None else f" {printable(plan.name, 100)}"
        rules = len(plan.rules)
        # The author of a file waits for this; annotations may change all the time.
        edited = len(self._files) == len(self._sources)
        self._events.emit(
            "plan_loaded",
            f"the plan{named} has {rules} rules",
            distinct=self._counts["plan_passes"] if edited else 0,
            rules=rules,
        )

    def _change(
        self, changes: list[ContainerDiff], baselines: BaselineStore, cause: str
    ) -> list[ContainerDiff]:
        """Edit containers; returns those that are on the plan now."""
        # Before the change: the other way round, a kill in between would lose the old values.
        baselines.note(changes)
        self._state.write(UNDO_NAME, plan_text(self._undo_plan(baselines)))
        done = []
        for change in changes:
            outcome = change_container(self._node, change, force=self._force)
            key = _key(change.container)
            if outcome.status == "applied":
                done.append(change)
                self._backoff.recovered(key)
                self._report_change(change, cause)
            else:
                self._backoff.failed(key)
                if outcome.status in _COUNTED:
                    self._counts[_COUNTED[outcome.status]] += 1
                self._events.emit(outcome.status, outcome.message or "", change.container)
        baselines.save()
        return done

    def _undo_plan(self, baselines: BaselineStore) -> LimitPlan:
        """The plan that puts back all that was changed and is remembered."""
        there = {each.directory: each for each in self._node.containers}
        rules = []
        for directory, kept in baselines.by_directory.items():
            if directory in there:
                values = sorted(kept.items(), key=lambda each: each[0][1] or 0)
                before = [(key, each.before) for key, each in values]
                rules += exact_rules(there[directory], before)
        return LimitPlan(tuple(rules), name="undo")

    # ---- counters and events --------------------------------------------------------------------

    def _report_change(self, change: ContainerDiff, cause: str) -> None:
        if all(edit.rule is None for edit in change.edits):
            cause = "restore"
        elif self._on_plan.get(_key(change.container)) == change.file_id:
            cause = "drift"
        self._counts["plan_edits"] += len(change.edits)
        self._counts["plan_drifts"] += len(change.edits) if cause == "drift" else 0
        words = "; ".join(
            edit.words if devices is None else f"device {devices}: {edit.words}"
            for devices, edit in equal_edits(change.edits)
        )
        detail: dict[str, Detail] = {"cause": cause}
        for edit in change.edits:
            suffix = "" if edit.device is None else f".{edit.device}"
            detail[f"{edit.field}{suffix}"] = edit.after
        # A change by the plan is news each time; one by a container may repeat.
        number = self._counts["plan_passes"] if cause in {"plan", "restore"} else 0
        words += " (changed by others)" if cause == "drift" else ""
        self._events.emit("changed", words, change.container, distinct=(cause, number), **detail)

    def _report_problems(self, known: Mapping[str, str], now: Mapping[str, str]) -> None:
        for about, message in {**known, **now}.items():
            if known.get(about) == now.get(about):
                continue
            # A file's problems are its author's; an annotation may change all the time.
            distinct = (about, message if about in self._files else "")
            event, text = "solved", f"{printable(about)}: recovered"
            if about in now:
                event, text = "problem", message.replace("\n", " | ")
            self._events.emit(event, text, distinct=distinct, about=about)

    def _report_unapplied(self, found: Iterable[Unapplied]) -> None:
        now: set[object] = set()
        for each in found:
            key = (_key(each.container), each.reason, each.rules, each.device)
            now.add(key)
            if key not in self._unapplied:
                refused = each.reason in {"below_usage", "stops_launches"}
                self._counts["plan_refusals"] += refused
                self._events.emit(
                    "refused" if refused else "skipped",
                    each.message,
                    each.container,
                    distinct=(each.reason, each.device),
                    reason=each.reason,
                )
        self._unapplied = now


def _key(container: Container) -> str:
    return container.directory or ""

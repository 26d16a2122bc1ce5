"""Keep a node on a plan: when the plan, the containers or their limits change."""

from __future__ import annotations

import itertools
import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import attrs

from libhamiregion.node.node_lock import LockUse, NodeLock, NodeLocked
from libhamiregion.services.backoff import Backoff, owner_of
from libhamiregion.services.events import EventReporter, silent
from libhamiregion.text import error_text, printable

from .apply import change_container, undo_plan
from .diff import diff_plan, equal_edits
from .plan import LimitPlan
from .plan_file import UNDO_NAME, PlanError, parse_plan, plan_text, read_plan_file
from .state import PlanState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from libhamiregion.errors import PathLike
    from libhamiregion.node.node import Node
    from libhamiregion.observation.model import Observation
    from libhamiregion.services.events import Detail, Emit

    from .diff import ContainerDiff, PlanDiff, Unapplied
    from .plan import Rule


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


class PlanSource(ABC):
    """A source of the plan that a node is to be kept on.

    Attributes:
        origin: Where it comes from, for people.
    """

    origin = "annotations"

    @abstractmethod
    def read(self) -> SourceReading:
        """Read what it says now. Never waits, never raises for what others have written."""

    def when_changed(self, wake: Callable[[], None]) -> None:  # noqa: B027 (optional)
        """Have `wake` called, from any thread, when `read` would say something new.

        A source that cannot notice this does nothing: it is read at an interval too.
        """

    def close(self) -> None:  # noqa: B027 (optional)
        """Release what it holds."""


class PlanFile(PlanSource):
    """A plan in a file, which may be replaced or edited at any time.

    It is read again each time: the links of a ConfigMap are swapped, and an edit need not change a
    time stamp. A file that cannot be read or is no plan is a problem, and the last good plan stays.

    Threads: one at a time.

    Args:
        path: The file.

    Shell: ``hamiregion agent --plan FILE``.
    """

    def __init__(self, path: PathLike) -> None:
        self.path = os.fspath(path)
        self.origin = os.path.abspath(self.path)  # noqa: PTH100 (a link is the file's name)
        self._raw: bytes | None = None
        self._reading = SourceReading(None)

    def read(self) -> SourceReading:
        """Read the plan, or keep the last good one."""
        try:
            raw = read_plan_file(self.path, wait=False)
            if raw != self._raw:
                self._raw = raw
                self._reading = SourceReading(parse_plan(raw, self.path))
        except (PlanError, OSError) as error:
            if isinstance(error, OSError):
                # When it is back, it is read even if it is the same.
                self._raw = None
            self._reading = SourceReading(self._reading.plan, {self.path: error_text(error)})
        return self._reading


def join_readings(readings: Sequence[SourceReading]) -> SourceReading:
    """Join several sources; if they set the same value, the later one counts.

    Args:
        readings: One of each source. There is no plan until each of them has one.
    """
    plans = [reading.plan for reading in readings if reading.plan is not None]
    plan = None
    if plans and len(plans) == len(readings):
        plan = LimitPlan(tuple(rule for each in plans for rule in each.rules), plans[0].name)
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
    The undo plan of all edits is kept in the state directory. Its rules come before those of the
    plan: a value that no rule sets any more goes back, if it is still as it was set, and a
    percentage is of the limit before the plan.

    A plan that cannot be used is reported, and the last good one stays in force; without one,
    nothing is changed. A container that refuses or fails is left alone for one pass, then for two,
    four and so on up to 64.

    Events (task ``plan``): ``plan_loaded``, ``problem``, ``solved``, ``changed`` (a container, with
    the cause: ``plan``, ``drift`` or ``restore``, and the new values), ``conflict``,
    ``refused``, ``failed``, ``skipped``. A lasting state is reported once, an event that repeats
    the 1st, 2nd, 4th, 8th ... time.

    Threads: `start`, `run` and `stop` are for one at a time; `counters` may be called from others.

    Args:
        node: The node. Each pass works on its last refresh.
        sources: The sources of the plan; if they set the same value, the later one counts. `stop`
            closes them.
        state: The state directory; None means as `apply_diff`.
        force: Allow what `diff_plan` allows with it.
        observe: As for `diff_plan`.
        emit: Gets the events.

    Attributes:
        plan: The plan in force; None as long as there is none.
    """

    def __init__(
        self,
        node: Node,
        sources: Iterable[PlanSource],
        state: PathLike | None = None,
        *,
        force: bool = False,
        observe: Callable[[], Observation] | None = None,
        emit: Emit = silent,
    ) -> None:
        self._observe = observe
        self._node = node
        self._sources = tuple(sources)
        self._files = {each.path for each in self._sources if isinstance(each, PlanFile)}
        self._state = PlanState(state)
        self._force = force
        self._events = EventReporter("plan", emit)
        self._lock = NodeLock(LockUse.PLAN)
        # The undo plan's file, and its rules; None until the file is read.
        self._saved: tuple[Rule, ...] | None = None
        self._undo: tuple[Rule, ...] = ()
        self._backoff = Backoff()
        self._reading = SourceReading(None)
        # How many plans there have been: the changes of each are news.
        self._plans = 0
        # Containers that the last pass left on this plan.
        self._on_plan: set[str] = set()
        self._unapplied: set[object] = set()
        self._counts: dict[str, int] = dict.fromkeys(
            ("plan_passes", "plan_edits", "plan_drifts", "plan_refusals", "plan_conflicts"), 0
        )
        self.plan: LimitPlan | None = None

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
        self._state.make()
        try:
            self._lock.hold([*self._node.directories, self._state.directory])
        except NodeLocked as error:
            message = f"{error.root}: another process keeps containers on a plan there"
            raise PlanLocked(message) from None

    def stop(self) -> None:
        """Close the sources and let others keep this node on a plan. Limits stay as they are."""
        for source in self._sources:
            source.close()
        self._saved = None
        self._lock.close()

    def run(self) -> None:
        """Do one pass.

        Raises:
            RuntimeError: There has been no plan yet that can be used; an event says why.
            PlanError: The undo plan of earlier passes is damaged.
            PlanLocked, OSError: As `start`.
        """
        # Each time: a root may have appeared.
        self.start()
        if self._saved is None:
            raw = self._state.read_watch_undo()
            path = self._state.watch_undo_path
            self._undo = self._saved = () if raw is None else parse_plan(raw, path).rules
        self._counts["plan_passes"] += 1
        known = self._reading
        readings = [each.read() for each in self._sources]
        reading = self._reading = join_readings(readings)
        self._report_problems(known.problems, reading.problems)
        if reading.plan is None:
            if reading.problems:
                raise RuntimeError("no plan can be used yet; the problems say why")
            return
        if reading.plan != self.plan:
            self._note(readings)
            self._take(reading.plan)
        known_rules = len(self._undo)
        plan = LimitPlan((*self._undo, *reading.plan.rules))
        diff = diff_plan(
            self._node,
            plan,
            force=self._force,
            held=reading.held,
            undo_rules=known_rules,
            observe=self._observe,
        )
        self._forget(diff)
        self._report_unapplied((*diff.unapplied, *diff.waiting))
        changes = [
            each for each in diff.changes if not self._backoff.should_skip(owner_of(each.container))
        ]
        done = self._change(changes, known_rules) if changes else []
        done += [each for each in diff.containers if not each.edits]
        self._on_plan = {owner_of(each.container) for each in done}
        self._backoff.retain({owner_of(container) for container in self._node.containers})

    # ---- a pass ---------------------------------------------------------------------------------

    def _take(self, plan: LimitPlan) -> None:
        self.plan = plan
        self._plans += 1
        self._backoff = Backoff()
        self._on_plan = set()
        self._unapplied.clear()
        named = "" if plan.name is None else f" {printable(plan.name, 100)}"
        # The author of a file waits for this; annotations may change all the time.
        edited = len(self._files) == len(self._sources)
        self._events.emit(
            "plan_loaded",
            f"the plan{named} has {len(plan.rules)} rules",
            distinct=self._counts["plan_passes"] if edited else 0,
            rules=len(plan.rules),
        )

    def _note(self, readings: Iterable[SourceReading]) -> None:
        """Write down which rules are kept, for those who change a limit by hand."""
        rules = [
            attrs.evolve(rule, name=f"{rule.name or f'rules[{number}]'} of {source.origin}")
            for source, reading in zip(self._sources, readings, strict=True)
            for number, rule in enumerate(reading.plan.rules if reading.plan else ())
        ]
        self._state.write_watch(self._state.watch_plan_path, plan_text(LimitPlan(tuple(rules))))

    def _change(self, changes: list[ContainerDiff], first: int) -> list[ContainerDiff]:
        """Edit containers; returns those that are on the plan now.

        Args:
            changes: The edits.
            first: Index of the first rule that is not of the undo plan.
        """
        known = {_value(rule): rule for rule in self._undo}
        noted = [_undo_rules(each, first, known) for each in changes]
        # Before the change: the other way round, a kill in between would lose the old values.
        self._save((*self._undo, *itertools.chain(*noted)))
        done, made = [], []
        for change, rules in zip(changes, noted, strict=True):
            outcome = change_container(self._node, change, force=self._force)
            key = owner_of(change.container)
            if outcome.status == "applied":
                done.append(change)
                made += rules
                self._backoff.recovered(key)
                self._report_change(change, first)
            else:
                self._backoff.failed(key)
                self._counts["plan_conflicts"] += outcome.status == "conflict"
                self._counts["plan_refusals"] += outcome.status == "refused"
                self._events.emit(outcome.status, outcome.message or "", change.container)
        self._undo = tuple({_value(rule): rule for rule in (*self._undo, *made)}.values())
        self._save(self._undo)
        return done

    def _forget(self, diff: PlanDiff) -> None:
        """Forget the undo rules of values that went back, and of containers and files gone."""
        done = {number for each in diff.containers for number in each.settled}
        done.update(number for each in diff.waiting for number in each.rules)
        # A root that cannot be listed now says nothing about its containers.
        if self._node.scanned_roots and not self._node.root_errors:
            done.update(diff.unused)
        self._undo = tuple(rule for number, rule in enumerate(self._undo) if number not in done)
        self._save(self._undo)

    def _save(self, rules: tuple[Rule, ...]) -> None:
        if rules != self._saved:
            undo = plan_text(LimitPlan(rules, name=UNDO_NAME))
            self._state.write_watch(self._state.watch_undo_path, undo)
            self._saved = rules

    # ---- counters and events --------------------------------------------------------------------

    def _report_change(self, change: ContainerDiff, first: int) -> None:
        cause = "drift" if owner_of(change.container) in self._on_plan else "plan"
        if all(edit.rule < first for edit in change.edits):
            cause = "restore"
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
        words += " (changed by others)" if cause == "drift" else ""
        self._events.emit(
            "changed", words, change.container, distinct=(cause, self._plans), **detail
        )

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
            key = (owner_of(each.container), each.reason, each.device)
            now.add(key)
            if key not in self._unapplied:
                refused = each.reason in {"below_usage", "stops_launches", "above_card"}
                self._counts["plan_refusals"] += refused
                self._events.emit(
                    "refused" if refused else "skipped",
                    each.message,
                    each.container,
                    distinct=(each.reason, each.device),
                    reason=each.reason,
                )
        self._unapplied = now


def _value(rule: Rule) -> object:
    """Identify the value that an undo rule sets."""
    return rule.select, rule.file_id, tuple(field for field, _ in rule.set)


def _undo_rules(change: ContainerDiff, first: int, known: Mapping[object, Rule]) -> list[Rule]:
    """Make the undo rules of a plan's edits, with the values of before the first edit."""
    edits = tuple(edit for edit in change.edits if edit.rule >= first)
    rules = []
    for each in undo_plan([attrs.evolve(change, edits=edits)]).rules:
        rule = attrs.evolve(each, file_id=change.file_id)
        any_device = attrs.evolve(rule, select=attrs.evolve(rule.select, device=None))
        older = known.get(_value(rule)) or known.get(_value(any_device)) or rule
        rules.append(attrs.evolve(rule, set=older.set))
    return rules

"""A node kept on a plan: whatever changes, the plan, its containers or their limits."""

from __future__ import annotations

import contextlib
import itertools
from collections import defaultdict
from typing import TYPE_CHECKING

from libhamiregion.node.backoff import Backoff
from libhamiregion.node.events import EventReporter, silent
from libhamiregion.text import printable
from libhamiregion.units import format_size

from .apply import ChangeStatus, PlanApplier
from .diff import SkipReason, diff_plan
from .journal import RecoveryOutcome
from .kept import KeptValues
from .limit_plan import LimitField, plan_text
from .state import PlanState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from libhamiregion.node.containers import Container
    from libhamiregion.node.events import Emit
    from libhamiregion.node.node import Node
    from libhamiregion.region import Region

    from .apply import ContainerOutcome
    from .diff import ContainerDiff, PlanDiff, PlannedEdit, Skip
    from .limit_plan import LimitPlan
    from .sources import PlanSource, SourceReading

_UNDO_NAME = "undo-watch.yaml"
# So many lines about one thing are read by nobody.
_LINES_PER_PASS = 50


class PlanWatcher:
    """Keeps a node on a plan. Each `run` is one pass; it fits `TaskRunner`.

    A pass reads the plan and the node, and edits what differs: because the plan has changed, a
    container has come or come back with a new region, or somebody has changed a limit (drift). What
    the plan names no longer goes back to what it was before, if it still stands as it was set.

    A plan that cannot be read is said, and the last good one stays in force. A container that
    refuses or fails is left alone for one pass, then for two, four and so on up to 64.

    Events (task ``plan``): ``plan_loaded``, ``problem``, ``solved``, ``changed`` (a container, with
    the cause: ``plan``, ``container``, ``drift`` or ``restore``, and the new values), ``conflict``,
    ``refused``, ``failed``, ``skipped``, ``recovered``, ``more``. What lasts is said once, and of
    one thing at most 50 lines in a pass.

    Threads: `run` and `stop` are for one at a time; `counters` may be called from others.

    Args:
        node: The node. Another task may refresh it as well.
        source: Where the plan comes from; `stop` closes it.
        state: Where the journal is, and what was there before; None means
            `default_state_directory`.
        interval_s: Seconds from the beginning of one pass to that of the next.
        force: Allow memory limits under what is in use.
        restore: Put back what the plan names no longer.
        emit: Gets the events.

    Attributes:
        name: ``plan``.
        interval_s: As given.
        plan: The plan in force; None as long as there is none.
        diff: What differed in the last pass; None before the first.
    """

    name = "plan"

    def __init__(
        self,
        node: Node,
        source: PlanSource,
        state: PlanState | None = None,
        *,
        interval_s: float = 5.0,
        force: bool = False,
        restore: bool = True,
        emit: Emit = silent,
    ) -> None:
        self._node = node
        self._source = source
        self._state = PlanState() if state is None else state
        self._force = force
        self._restore = restore
        self._voice = EventReporter(self.name, emit)
        self._held = contextlib.ExitStack()
        self._kept: KeptValues | None = None
        self._backoff = Backoff()
        self._problems: Mapping[str, str] = {}
        # Containers that the last pass left on this plan, with their regions.
        self._on_plan: dict[str, Region | None] = {}
        self._skips: set[tuple[str, SkipReason, tuple[int, ...], int | None]] = set()
        self._drifts: dict[str, int] = defaultdict(int)
        self._counts: dict[str, int] = dict.fromkeys(
            ("plan_passes", "plan_edits", "plan_drifts", "plan_refusals", "plan_conflicts"), 0
        )
        self.interval_s = interval_s
        self.plan: LimitPlan | None = None
        self.diff: PlanDiff | None = None

    def counters(self) -> Mapping[str, int]:
        """Passes, edits (values), drifts found, and containers that refused or were contested."""
        return dict(self._counts)

    def stop(self) -> None:
        """Close the source and let others keep this node on a plan. Limits stay as they are."""
        self._source.close()
        self._held.close()
        self._kept = None

    def start(self) -> None:
        """Make sure that no other process keeps this node on a plan; `run` does it as well.

        Raises:
            StateBusy: Another process does, or is applying one.
            OSError: The state's directory cannot be used.
        """
        self._begun()

    def run(self) -> None:
        """Do one pass.

        Raises:
            StateBusy: Another process keeps this node on a plan, or is applying one.
            OSError: The state's directory cannot be used.
        """
        kept = self._begun()
        self._counts["plan_passes"] += 1
        reading = self._source.read()
        self._say_problems(reading)
        if reading.plan is None:
            return
        cause = "container"
        if reading.plan is not self.plan:
            cause = "plan"
            self._take(reading.plan)
        self._node.refresh(processes=False)
        kept.refresh(self._node)
        diff = self._compare(reading, kept)
        kept.compared(diff.containers)
        kept.save()
        self._say_skips(diff.off_plan)
        changes = [each for each in diff.changes if not self._backoff.waits(_key(each.container))]
        done = self._change(changes, reading, kept, cause) if changes else []
        done += [each for each in diff.containers if not each.edits]
        self._on_plan = {_key(each.container): each.container.region for each in done}
        self._forget()
        self.diff = diff

    # ---- a pass ---------------------------------------------------------------------------------

    def _begun(self) -> KeptValues:
        if self._kept is None:
            with contextlib.ExitStack() as held:
                held.enter_context(self._state.watching())
                with PlanApplier(self._node, self._state) as applier:
                    self._say_recovered(applier)
                self._kept = KeptValues(self._state)
                self._held = held.pop_all()
        return self._kept

    def _take(self, plan: LimitPlan) -> None:
        self.plan = plan
        self._backoff = Backoff()
        self._on_plan = {}
        self._drifts.clear()
        self._skips.clear()
        named = "" if plan.name is None else f" {printable(plan.name, 100)}"
        rules = len(plan.rules)
        self._voice.emit(
            "plan_loaded",
            f"the plan{named} has {rules} rules",
            distinct=self._counts["plan_passes"],
            rules=rules,
        )

    def _compare(self, reading: SourceReading, kept: KeptValues) -> PlanDiff:
        assert reading.plan is not None  # noqa: S101 (it was looked at)
        return diff_plan(
            self._node,
            reading.plan,
            force=self._force,
            kept=kept.by_directory if self._restore else None,
            held=reading.held,
        )

    def _change(
        self,
        changes: list[ContainerDiff],
        reading: SourceReading,
        kept: KeptValues,
        cause: str,
    ) -> list[ContainerDiff]:
        with PlanApplier(self._node, self._state, force=self._force) as applier:
            self._say_recovered(applier)
            if applier.recovered:
                chosen = {_key(each.container) for each in changes}
                again = self._compare(reading, kept).changes
                changes = [each for each in again if _key(each.container) in chosen]
            causes = {_key(each.container): self._causes(each, kept, cause) for each in changes}
            # Before the change: the other way round, a kill in between would lose what was there.
            # What is then remembered and was not done stands beside what was done last.
            kept.note(changes)
            self._state.write(_UNDO_NAME, plan_text(kept.undo_plan(self._node)))
            lines = _Lines(self._voice, "changes")
            outcomes = applier.apply(changes, keep_undo=False).outcomes
            for outcome in outcomes:
                self._count(outcome, kept, causes[_key(outcome.diff.container)], lines)
            lines.end()
            kept.save()
        return [each.diff for each in outcomes if each.status is ChangeStatus.APPLIED]

    def _causes(
        self, change: ContainerDiff, kept: KeptValues, cause: str
    ) -> dict[PlannedEdit, str]:
        """Why each value is not as the plan says."""
        causes = {}
        known = self._on_plan.get(_key(change.container)) is change.container.region
        for edit in change.edits:
            causes[edit] = cause
            if edit.rule is None:
                causes[edit] = "restore"
            elif known or kept.was_set_to(change.container, edit.key, edit.after):
                causes[edit] = "drift"
        return causes

    def _count(
        self,
        outcome: ContainerOutcome,
        kept: KeptValues,
        causes: Mapping[PlannedEdit, str],
        lines: _Lines,
    ) -> None:
        container = outcome.diff.container
        if outcome.status is ChangeStatus.APPLIED:
            self._backoff.recovered(_key(container))
            kept.applied(outcome.diff)
            self._counts["plan_edits"] += len(outcome.diff.edits)
            drifted = sum(cause == "drift" for cause in causes.values())
            self._counts["plan_drifts"] += drifted
            if drifted:
                self._drifts[_key(container)] += 1
            for cause in sorted(set(causes.values())):
                edits = [edit for edit in outcome.diff.edits if causes[edit] == cause]
                self._say_changed(outcome.diff, edits, cause, lines)
            return
        self._backoff.failed(_key(container))
        if outcome.status is ChangeStatus.CONFLICT:
            self._counts["plan_conflicts"] += 1
        if outcome.status is ChangeStatus.REFUSED:
            self._counts["plan_refusals"] += 1
        lines.say(outcome.status.value, outcome.message or "", container)

    def _forget(self) -> None:
        """Remember nothing of containers that are gone."""
        there = {_key(container) for container in self._node.containers}
        self._backoff.retain(there)
        for key in self._drifts.keys() - there:
            del self._drifts[key]

    # ---- what is said ---------------------------------------------------------------------------

    def _say_problems(self, reading: SourceReading) -> None:
        lines = _Lines(self._voice, "problems")
        for about, message in reading.problems.items():
            if self._problems.get(about) != message:
                lines.say("problem", message.replace("\n", " | "), about=about)
        for about in self._problems:
            if about not in reading.problems:
                lines.say("solved", f"{printable(about)}: all is well again", about=about)
        lines.end()
        self._problems = dict(reading.problems)

    def _say_recovered(self, applier: PlanApplier) -> None:
        for recovered in applier.recovered:
            if recovered.outcome not in {RecoveryOutcome.OLD, RecoveryOutcome.NEW}:
                self._voice.emit("recovered", recovered.message, outcome=recovered.outcome.value)

    def _say_skips(self, skips: Iterable[Skip]) -> None:
        lines = _Lines(self._voice, "containers or devices that are left as they are")
        now = set()
        for skip in skips:
            key = (_key(skip.container), skip.reason, skip.rules, skip.device)
            now.add(key)
            if key not in self._skips:
                refused = skip.reason in {SkipReason.BELOW_USAGE, SkipReason.UNSETTLED}
                if refused:
                    self._counts["plan_refusals"] += 1
                lines.say(
                    "refused" if refused else "skipped",
                    skip.message,
                    skip.container,
                    reason=skip.reason.value,
                )
        lines.end()
        self._skips = now

    def _say_changed(
        self, change: ContainerDiff, edits: list[PlannedEdit], cause: str, lines: _Lines
    ) -> None:
        times = self._drifts[_key(change.container)]
        if cause == "drift" and times & (times - 1):
            # Somebody sets it again and again: said for the 1st, 2nd, 4th, 8th ... time.
            return
        words = "; ".join(change_words(each) for each in alike(edits))
        if cause == "drift":
            words += " (somebody else had set it" + (f", {times} times now)" if times > 1 else ")")
        values: dict[str, int | None] = {
            edit.field.value if edit.device is None else f"{edit.field}.{edit.device}": edit.after
            for edit in edits
        }
        pod = {}
        if change.name is not None and change.name.pod is not None:
            pod = {"pod": f"{change.name.namespace}/{change.name.pod}"}
        lines.say("changed", words, change.container, cause=cause, **pod, **values)


class _Lines:
    """Says some lines of one kind, and of the rest how many there are."""

    def __init__(self, voice: EventReporter, what: str) -> None:
        self._voice = voice
        self._what = what
        self._said = 0

    def say(
        self,
        event: str,
        message: str,
        container: Container | None = None,
        **detail: float | str | bool | None,
    ) -> None:
        self._said += 1
        if self._said <= _LINES_PER_PASS:
            self._voice.emit(
                event, message, container, distinct=tuple(sorted(detail.items())), **detail
            )

    def end(self) -> None:
        more = self._said - _LINES_PER_PASS
        if more > 0:
            self._voice.emit("more", f"and {more} more {self._what}", count=more)


def _key(container: Container) -> str:
    return container.directory or container.region_path or ""


def alike(edits: Iterable[PlannedEdit]) -> Iterator[tuple[PlannedEdit, ...]]:
    """Edits of neighbouring devices that are the same, together."""

    def same(edit: PlannedEdit) -> object:
        return edit.field, edit.before, edit.after, edit.effect, edit.rule

    for _, group in itertools.groupby(edits, key=same):
        run: list[PlannedEdit] = []
        for edit in group:
            if run and (edit.device is None or edit.device != (run[-1].device or 0) + 1):
                yield tuple(run)
                run = []
            run.append(edit)
        yield tuple(run)


def device_words(edits: tuple[PlannedEdit, ...]) -> str | None:
    """The devices of edits that are alike: ``0``, or ``0-15``; None for the whole container."""
    first, last = edits[0].device, edits[-1].device
    if first is None:
        return None
    return str(first) if first == last else f"{first}-{last}"


def value_words(field: LimitField, value: int | None) -> str:
    """A value for people.

    >>> value_words(LimitField.MEMORY_LIMIT, 6 * 2**30), value_words(LimitField.SM_LIMIT, None)
    ('6 GiB', 'unlimited')
    """
    if value is None:
        return "unlimited"
    if field is LimitField.MEMORY_LIMIT:
        return format_size(value)
    return f"{value} %" if field is LimitField.SM_LIMIT else str(value)


def change_words(edits: tuple[PlannedEdit, ...]) -> str:
    """Edits that are alike, as a sentence."""
    first = edits[0]
    names = {
        LimitField.MEMORY_LIMIT: "memory limit",
        LimitField.SM_LIMIT: "SM limit",
        LimitField.PRIORITY: "priority",
    }
    devices = device_words(edits)
    which = "" if devices is None else f"device{'s' * (len(edits) > 1)} {devices}: "
    before, after = (value_words(first.field, each) for each in (first.before, first.after))
    return f"{which}{names[first.field]} {before} -> {after}"

"""A plan put into effect: each container wholly or not at all."""

from __future__ import annotations

import contextlib
import enum
import time
from typing import TYPE_CHECKING

import attrs

from libhamiregion.errors import LimitBelowUsage, LimitConflict, RegionError
from libhamiregion.text import printable
from libhamiregion.units import format_size

from .diff import PlanDiff
from .journal import Change, Journal, JournalEntry, core_edit, guarded, recover
from .limit_plan import plan_text
from .state import write_new
from .undo import undo_plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from typing_extensions import Self

    from libhamiregion.errors import PathLike
    from libhamiregion.node.node import Node
    from libhamiregion.region import Region

    from .diff import ContainerDiff, PlannedEdit
    from .journal import Recovered
    from .limit_plan import LimitPlan
    from .state import PlanState

_UNDO_COMMENT = """\
# What stood here before a plan was applied on {now}, of what it changed.
# hamiregion limits apply FILE puts it back.
"""


class ChangeStatus(str, enum.Enum):
    """What has become of a container's edits. Equal to its value, a plain string."""

    #: All of them hold.
    APPLIED = "applied"
    #: None of them, as somebody else changed one of the values meanwhile.
    CONFLICT = "conflict"
    #: None of them, as what runs there could not bear one of the limits.
    REFUSED = "refused"
    #: None of them, for the reason that the message tells.
    FAILED = "failed"

    def __str__(self) -> str:
        return self.value


@attrs.frozen
class ContainerOutcome:
    """What has become of one container's edits.

    Attributes:
        diff: What was to be done.
        status: What has been done.
        message: Why not, as a sentence, escaped; None if it was.
    """

    diff: ContainerDiff
    status: ChangeStatus
    message: str | None = None


@attrs.frozen
class PlanResult:
    """What has become of a plan.

    Attributes:
        outcomes: One for each container that was to be edited, in the order of the diff.
        undo_path: The undo plan; None if none was written, as nothing was to be changed.
    """

    outcomes: tuple[ContainerOutcome, ...]
    undo_path: str | None = None

    @property
    def all_applied(self) -> bool:
        """Whether every container was edited that was to be."""
        return all(outcome.status is ChangeStatus.APPLIED for outcome in self.outcomes)


class PlanApplier:
    """Puts diffs into effect, one process at a time.

        with PlanApplier(node, state) as applier:
            result = applier.apply(diff_plan(node, plan))

    On entering it waits for its turn, and brings to an end what an apply that was killed has left
    half done. Each container's values are compared with those of the diff and changed together; if
    one is another by now, or is refused, that container is left as it was.

    Where this process is killed between two of a container's stores, a mixture stands in the
    region: `Region.edit_limits` needs some 100 ns for all of them. The next applier ends it; with
    `guard`, a child process does so at once.

    Threads: one at a time.

    Args:
        node: The node.
        state: Where the journal is, and the undo plans.
        force: Allow memory limits under what is in use.
        guard: Have a child process ready that finishes what this one leaves half done. It forks:
            for programs with one thread.
        timeout_s: How long to wait for others that apply plans.

    Attributes:
        recovered: What was found half done on entering.
    """

    def __init__(
        self,
        node: Node,
        state: PlanState,
        *,
        force: bool = False,
        guard: bool = False,
        timeout_s: float = 10.0,
    ) -> None:
        self._node = node
        self._state = state
        self._force = force
        self._guard = guard
        self._timeout_s = timeout_s
        self._held = contextlib.ExitStack()
        self.recovered: tuple[Recovered, ...] = ()

    def __enter__(self) -> Self:
        """Wait for the turn.

        Raises:
            StateBusy: It did not come.
            OSError: The state's directory cannot be used.
        """
        with contextlib.ExitStack() as held:
            held.enter_context(self._state.applying(self._timeout_s))
            self.recovered = recover(self._state)
            self._held = held.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def apply(
        self,
        diff: PlanDiff | Iterable[ContainerDiff],
        *,
        undo: PathLike | None = None,
        keep_undo: bool = True,
        told: Callable[[ContainerOutcome], None] | None = None,
    ) -> PlanResult:
        """Make a diff's edits.

        Args:
            diff: From `diff_plan`, or some of its containers; those that are refused are left out.
            undo: Where to write the undo plan, before the first edit: a file that is not there yet.
                None means one of its own in the state's directory.
            keep_undo: False writes no undo plan.
            told: Called after each container.

        Raises:
            FileExistsError: There is something at `undo`, which may be the way back from an earlier
                plan; nothing has been changed.
            OSError: The journal or the undo plan cannot be written; nothing has been changed.
        """
        containers = diff.changes if isinstance(diff, PlanDiff) else diff
        changes = tuple(each for each in containers if each.edits and not each.refused)
        if not changes:
            return PlanResult(())
        undo_path = None
        if keep_undo:
            undo_path = self._write_undo(undo_plan(changes), undo)
        outcomes = []
        with self._journalled(changes) as settled:
            for number, change in enumerate(changes):
                outcome = self._change(change)
                settled(number)
                outcomes.append(outcome)
                if told is not None:
                    told(outcome)
        return PlanResult(tuple(outcomes), undo_path)

    def _write_undo(self, plan: LimitPlan, path: PathLike | None) -> str:
        now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        text = _UNDO_COMMENT.format(now=now) + plan_text(plan)
        if path is None:
            return self._state.write_undo(text)
        write_new(path, text)
        return str(path)

    @contextlib.contextmanager
    def _journalled(self, changes: tuple[ContainerDiff, ...]) -> Iterator[Callable[[int], None]]:
        # One value is one store, and needs no journal.
        several = [number for number, change in enumerate(changes) if len(change.edits) > 1]
        if not several:
            yield lambda _: None
            return
        places = {number: place for place, number in enumerate(several)}
        journal = Journal(self._state)

        def settled(number: int) -> None:
            if number in places:
                journal.settled(places[number])

        with guarded(self._state) if self._guard else contextlib.nullcontext():
            journal.begin(_entry(changes[number]) for number in several)
            try:
                yield settled
            finally:
                # No exception comes between two stores; only a kill does.
                journal.end()

    def _change(self, change: ContainerDiff) -> ContainerOutcome:
        try:
            with self._node.open(change.container) as region:
                _edit(region, change.edits, force=self._force)
        except LimitConflict as error:
            status, message = ChangeStatus.CONFLICT, str(error)
        except LimitBelowUsage as error:
            status, message = ChangeStatus.REFUSED, str(error)
            if error.used_bytes is not None and error.requested_bytes is not None:
                used, wanted = format_size(error.used_bytes), format_size(error.requested_bytes)
                message = (
                    f"device {error.device} uses {used} by now, more than the {wanted} of the plan"
                )
        except (RegionError, OSError, ValueError) as error:
            status, message = ChangeStatus.FAILED, str(error)
        else:
            return ContainerOutcome(change, ChangeStatus.APPLIED)
        return ContainerOutcome(change, status, printable(message))


def _edit(region: Region, edits: tuple[PlannedEdit, ...], *, force: bool) -> None:
    region.edit_limits(
        [core_edit(edit.field, edit.device, edit.before, edit.after) for edit in edits],
        force=force,
    )


def _entry(change: ContainerDiff) -> JournalEntry:
    return JournalEntry(
        change.path,
        change.file_id,
        change.layout,
        tuple(Change(each.field, each.device, each.before, each.after) for each in change.edits),
    )

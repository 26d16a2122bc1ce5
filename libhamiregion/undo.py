"""Taking back what a job has changed, where nobody else has changed it since."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import attrs

from .edits import stored_edit
from .effects import LimitChange, ValueChange
from .errors import LimitBelowUsage, LimitConflict, RegionError, RegionNotFound
from .region import open_region
from .text import printable
from .units import memory_limit_value, sm_limit_or_none, sm_limit_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .effects import LimitKind
    from .region import Region

#: What has become of a change that was to be taken back. ``undone``: what stood there before stands
#: there again; ``not_needed``: it stood there already; ``conflict``: somebody else has set another
#: value since, which stays; ``gone``: the file is not there any more, or is another one;
#: ``refused``: what runs there could not bear it; ``failed``: as the message says.
UndoStatus: TypeAlias = Literal["undone", "not_needed", "conflict", "gone", "refused", "failed"]
Change: TypeAlias = LimitChange | ValueChange


@attrs.frozen
class UndoOutcome:
    """What has become of one change that was to be taken back. ``str()`` of it is a sentence.

    Attributes:
        change: The change.
        status: An `UndoStatus`.
        message: Why it was not taken back, as a sentence, escaped; None if it was, or need not be.
        replaced: The change of which `after` stood there and has gone, where this one was taken
            back: of several in a row the last. None where it was not.
        restored: The change of which `before` stands there again: of several in a row the first.
    """

    change: LimitChange | ValueChange
    status: UndoStatus
    message: str | None = None
    replaced: LimitChange | ValueChange | None = None
    restored: LimitChange | ValueChange | None = None

    def __str__(self) -> str:
        change = self.change
        shown: Any = change.value_words
        why = "" if self.message is None else f": {self.message}"
        if self.replaced is not None and self.restored is not None:
            what = f"back from {shown(self.replaced.after)} to {shown(self.restored.before)}"
        elif self.status == "not_needed":
            what = f"is {shown(change.before)} already"
        else:
            what = f"not put back from {shown(change.after)} to {shown(change.before)}"
        return f"{self.status}: {printable(change.path)}: {change.name} {what}{why}"


def undo(
    changes: Iterable[LimitChange | ValueChange], *, force: bool = False
) -> tuple[UndoOutcome, ...]:
    """Take back what edits have changed, each where nobody else has changed it since.

    What a job has changed several times goes back to what was there at the beginning at once, not
    by way of what was there in between; where that is refused, as far back as may be. Each value is
    compared and set in one step; one that cannot be taken back does not stop the others. Changes
    that a dry run has found are taken too: where they were made since, by whatever process, they
    are taken back.

    A file is the same if its device and inode are; one that has got the inode of a removed one is
    told apart by its values only.

    Args:
        changes: From `Region.set_memory_limit` and its like, `Region.edit_limits`, or a plan's
            `PlanResult.changes`; of any regions, in the order in which they were made.
        force: Allow what `Region.set_memory_limit` and `Region.set_sm_limit` allow with it.

    Returns:
        One outcome per change, in the same order.

    Raises:
        TypeError: Something else is among the changes.
    """
    wanted = tuple(changes)
    by_file: dict[tuple[str, tuple[int, int]], list[int]] = {}
    for number, change in enumerate(wanted):
        if not isinstance(change, LimitChange | ValueChange):
            raise TypeError(
                "undo() takes a list of LimitChange and ValueChange, as edits return them,"
                f" not {type(change).__name__}"
            )
        by_file.setdefault((change.path, change.file_id), []).append(number)
    outcomes: dict[int, UndoOutcome] = {}
    for (path, file_id), numbers in by_file.items():
        try:
            with open_region(path, writable=True) as region:
                is_same = region.file_id == file_id
                if not is_same:
                    gone = "another file is there by now"
                    outcomes |= {n: UndoOutcome(wanted[n], "gone", gone) for n in numbers}
                    continue
                for of_one in _by_value(numbers, wanted):
                    changes_of_one = [wanted[number] for number in of_one]
                    undone = _undo_value(region, changes_of_one, force=force)
                    outcomes |= dict(zip(of_one, undone, strict=True))
        except (RegionError, OSError) as error:
            for number in set(numbers) - set(outcomes):
                outcomes[number] = _not_undone(wanted[number], error)
    return tuple(outcomes[number] for number in range(len(wanted)))


def _by_value(numbers: list[int], changes: Sequence[Change]) -> list[list[int]]:
    """The numbers of a region's changes, those of one value together; what changed last first."""
    found: dict[object, list[int]] = {}
    for number in reversed(numbers):
        change = changes[number]
        value = (change.kind, change.device) if isinstance(change, LimitChange) else change.field
        found.setdefault(value, []).append(number)
    return [numbers[::-1] for numbers in found.values()]


def _undo_value(region: Region, changes: list[Change], *, force: bool) -> list[UndoOutcome]:
    """Take back the changes of one value, which come in the order in which they were made."""
    # Where each run begins of changes that follow one upon the other.
    starts: list[int] = []
    for at, change in enumerate(changes):
        follows = at > 0 and changes[at - 1].after == change.before
        starts.append(starts[-1] if follows else at)
    outcomes: dict[int, UndoOutcome] = {}
    last = len(changes) - 1
    while last >= 0:
        newest, first = changes[last], starts[last]
        # To what was there at the beginning; where that is refused, to what was there after that.
        for at in range(first, last + 1):
            try:
                _set_back(region, newest, changes[at], force=force)
            except LimitConflict as error:
                is_back = error.found == newest.before
                outcomes[last] = (
                    UndoOutcome(newest, "not_needed") if is_back else _not_undone(newest, error)
                )
                # One that was not made says nothing of those before it.
                first = last
                break
            except (RegionError, OSError, ValueError) as error:
                outcomes[at] = _not_undone(changes[at], error)
            else:
                outcomes |= {
                    n: UndoOutcome(changes[n], "undone", replaced=newest, restored=changes[at])
                    for n in range(at, last + 1)
                }
                break
        last = first - 1
    return [outcomes[number] for number in range(len(changes))]


def _set_back(region: Region, newest: Change, oldest: Change, *, force: bool) -> None:
    """Set a value to what it was before one change, where another one has left it.

    Raises:
        LimitConflict: Something else stands there.
        RegionError, OSError, ValueError: It cannot be set.
    """
    if isinstance(newest, ValueChange):
        if newest.field == "priority":
            region.set_priority(oldest.before or 0, expected=newest.after)
        elif newest.field == "burst":
            region.set_burst(bool(oldest.before))
        elif newest.field == "utilization_switch":
            region.set_utilization_switch(bool(oldest.before), expected=bool(newest.after))
        else:
            region.set_recent_kernel(oldest.before or 0, expected=newest.after)
        return
    assert isinstance(oldest, LimitChange)  # noqa: S101 (of the same value as the newest)
    # What goes back may be of a device that without it has neither limit nor use.
    force = force or newest.device not in region.device_indices
    expected = _stored(newest.kind, newest.after, None)
    stored = _stored(newest.kind, oldest.before, oldest.stored_before)
    edit = stored_edit(newest.kind, stored, newest.device, expected)
    region._make_edits((edit,), force=force)


def _stored(kind: LimitKind, limit: int | None, known: int | None) -> int:
    """A limit as it is stored; `known` says which of the unlimited values it was."""
    if kind == "memory":
        return memory_limit_value(limit)
    if limit is None and known is not None and sm_limit_or_none(known) is None:
        return known
    return sm_limit_value(limit)


def _not_undone(change: LimitChange | ValueChange, error: Exception) -> UndoOutcome:
    status: UndoStatus = "failed"
    if isinstance(error, LimitConflict):
        status = "conflict"
    elif isinstance(error, RegionNotFound):
        status = "gone"
    elif isinstance(error, LimitBelowUsage):
        status = "refused"
    return UndoOutcome(change, status, printable(str(error)))

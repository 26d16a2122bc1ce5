"""Taking back what a job has changed, where nobody else has changed it since."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import attrs

from .effects import LimitChange, ValueChange
from .errors import LimitBelowUsage, LimitConflict, RegionError, RegionNotFound
from .region import open_region
from .text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .region import Region

#: What has become of a change that was to be taken back. ``undone``: what stood there before stands
#: there again; ``not_needed``: it stood there already; ``conflict``: somebody else has set another
#: value since, which stays; ``gone``: the file is not there any more, or is another one;
#: ``refused``: what runs there could not bear it; ``failed``: as the message says.
UndoStatus: TypeAlias = Literal["undone", "not_needed", "conflict", "gone", "refused", "failed"]


@attrs.frozen
class UndoOutcome:
    """What has become of one change that was to be taken back. ``str()`` of it is a sentence.

    Attributes:
        change: The change.
        status: An `UndoStatus`.
        message: Why it was not taken back, as a sentence, escaped; None if it was, or need not be.
    """

    change: LimitChange | ValueChange
    status: UndoStatus
    message: str | None = None

    def __str__(self) -> str:
        why = "" if self.message is None else f": {self.message}"
        return f"{self.status}: {self.change}{why}"


def undo(
    changes: Iterable[LimitChange | ValueChange], *, force: bool = False
) -> tuple[UndoOutcome, ...]:
    """Take back what edits have changed, each where nobody else has changed it since.

    The last change goes first, so what a job has changed twice goes back to what was there at the
    beginning. Each value is compared and set in one step; one that cannot be taken back does not
    stop the others. Changes that a dry run has found are taken too: where they were made since, by
    whatever process, they are taken back.

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
                for number in reversed(numbers):
                    outcomes[number] = (
                        _undo_one(region, wanted[number], force=force)
                        if is_same
                        else UndoOutcome(wanted[number], "gone", "another file is there by now")
                    )
        except (RegionError, OSError) as error:
            for number in set(numbers) - set(outcomes):
                outcomes[number] = _not_undone(wanted[number], error)
    return tuple(outcomes[number] for number in range(len(wanted)))


def _undo_one(region: Region, change: LimitChange | ValueChange, *, force: bool) -> UndoOutcome:
    try:
        if isinstance(change, LimitChange):
            setter = region.set_memory_limit if change.kind == "memory" else region.set_sm_limit
            # What goes back may be of a device that without it has neither limit nor use.
            setter(
                change.before,
                device=change.device,
                expected=change.after,
                force=force or change.device not in region.device_indices,
            )
        elif change.field == "priority":
            region.set_priority(change.before, expected=change.after)
        elif change.field == "utilization_switch":
            region.set_utilization_switch(bool(change.before), expected=bool(change.after))
        else:
            region.set_recent_kernel(change.before, expected=change.after)
    except LimitConflict as error:
        if error.found == change.before:
            return UndoOutcome(change, "not_needed")
        return _not_undone(change, error)
    except (RegionError, OSError, ValueError) as error:
        return _not_undone(change, error)
    return UndoOutcome(change, "undone")


def _not_undone(change: LimitChange | ValueChange, error: Exception) -> UndoOutcome:
    status: UndoStatus = "failed"
    if isinstance(error, LimitConflict):
        status = "conflict"
    elif isinstance(error, RegionNotFound):
        status = "gone"
    elif isinstance(error, LimitBelowUsage):
        status = "refused"
    return UndoOutcome(change, status, printable(str(error)))

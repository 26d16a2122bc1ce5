"""Take back a job's changes if no one else has changed the values since."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar

import attrs

from ._core import lib
from .changes import Change, LimitChange, SlotChange, ValueChange
from .edits import field_edit
from .errors import (
    REGION_FIELDS,
    LaunchesWouldStop,
    LimitBelowUsage,
    LimitConflict,
    ProcessNotInRegion,
    RegionError,
    RegionNotFound,
)
from .region import Region, open_region
from .text import printable
from .units import sm_limit_value

if TYPE_CHECKING:
    from collections.abc import Iterable

#: The outcome of taking back a change. ``undone``: the former value is back; ``not_needed``: it was
#: there already; ``conflict``: someone else has set another value since, which stays; ``gone``: the
#: file or the process is not there any more, or is another one; ``refused``: running processes
#: could not bear it; ``failed``: as the message says.
UndoStatus: TypeAlias = Literal["undone", "not_needed", "conflict", "gone", "refused", "failed"]


C = TypeVar("C", bound=Change)
_FIELD_KINDS = {field: kind for kind, field in REGION_FIELDS.items()}


@attrs.frozen
class UndoOutcome(Generic[C]):
    """The outcome of taking back one change. ``str()`` of it is a sentence.

    Attributes:
        change: The change.
        status: An `UndoStatus`.
        message: Why it was not taken back, as a sentence, escaped; None if it was, or need not be.
    """

    change: C
    status: UndoStatus
    message: str | None = None

    def __str__(self) -> str:
        why = "" if self.message is None else f": {self.message}"
        return f"{self.status}: {self.change}{why}"


def undo(
    changes: Iterable[C], *, force: bool = False, dry_run: bool = False
) -> tuple[UndoOutcome[C], ...]:
    """Take back changes, each if no one else has changed the value since.

    A value that was changed several times goes back to the first change's `before` at once. Each
    limit is compared and set in one step. A change that cannot be taken back does not stop the
    others. Changes of a dry run are taken back if they were made since, by any process.

    A file is the same if its device and inode are. A new file with a removed one's inode differs
    by its values only.

    Args:
        changes: From `Region.set_memory_limit` and its like, `Region.edit_limits`, or a plan's
            `PlanResult.changes`; of any regions, in the order in which they were made.
        force: Allow all that `Region.set_memory_limit` and `Region.set_sm_limit` allow with it.
        dry_run: Check everything, change nothing; ``undone`` says what would be.

    Returns:
        One outcome per change, in the same order.

    Raises:
        TypeError: An entry is not a change; nothing was done.
        ValueError: A change has a value that no edit returns; nothing was done.
    """
    wanted = tuple(changes)
    # Changes of one value that follow one another, by number.
    runs: list[list[int]] = []
    latest: dict[object, list[int]] = {}
    for number, change in enumerate(wanted):
        if not isinstance(change, LimitChange | ValueChange | SlotChange):
            raise TypeError(
                "undo() takes changes as edits return them, such as LimitChange, not "
                f"{type(change).__name__}"
            )
        change.check()
        value = change.path, change.file_id, change.name
        run = latest.get(value)
        if run is None or wanted[run[-1]].after != change.before:
            run = latest[value] = []
            runs.append(run)
        run.append(number)
    outcomes: dict[int, UndoOutcome[C]] = {}
    for run in reversed(runs):
        first = wanted[run[0]]
        status, message = _take_back(first, wanted[run[-1]], force=force, dry_run=dry_run)
        outcomes |= {each: UndoOutcome(wanted[each], status, message) for each in run}
    return tuple(outcomes[number] for number in range(len(wanted)))


def _take_back(
    first: Change, last: Change, *, force: bool, dry_run: bool
) -> tuple[UndoStatus, str | None]:
    """Set a value back to the one before the first change, if the last one is still there."""
    status: UndoStatus = "failed"
    try:
        with open_region(last.path, writable=True) as region:
            if region.file_id != last.file_id:
                return "gone", "another file is there by now"
            _set_back(region, first, last, force=force, dry_run=dry_run)
            return "undone", None
    except LimitConflict as error:
        if error.found == first.before:
            return "not_needed", None
        status, why = "conflict", str(error)
    except (RegionNotFound, ProcessNotInRegion) as error:
        status, why = "gone", str(error)
    except (LimitBelowUsage, LaunchesWouldStop) as error:
        status, why = "refused", str(error)
    except (RegionError, OSError, ValueError) as error:
        why = str(error)
    return status, printable(why)


def _set_back(region: Region, first: Any, last: Change, *, force: bool, dry_run: bool) -> None:
    """Set a value back.

    Raises:
        LimitConflict: Another value is there.
        RegionError, OSError, ValueError: It cannot be set.
    """
    before: Any = first.before
    after: Any = last.after
    if isinstance(last, LimitChange):
        kind, stored, expected = lib.HR_MEMORY, before or 0, after or 0
        if last.kind == "sm":
            kind, stored, expected = lib.HR_SM, sm_limit_value(before), sm_limit_value(after)
        if before is None and first.stored_before is not None:
            stored = first.stored_before
        edit = kind, last.device, lib.HR_EXPECT, 0, stored, expected
        # What goes back may be of a device that without it has neither limit nor use.
        is_forced = force or last.device not in region.device_indices
        region._edit([edit], force=is_forced, dry_run=dry_run)
    elif last.field in _FIELD_KINDS:
        region._edit([field_edit(_FIELD_KINDS[last.field], before, after)], dry_run=dry_run)
    else:
        for is_check in (True,) if dry_run else (True, False):
            if isinstance(last, SlotChange):
                where = last.pid, {last.field: before}, last.device
                found = region._edit_slot(*where, is_check, 1.0)[0].before
            else:
                found = region.set_burst(bool(before), dry_run=is_check).before
            if is_check and found != after:
                message = f"{last.path}: {last.name} is {found}, not {after}"
                raise LimitConflict(message, path=last.path, found=found)

"""What makes an edit of several values whole, also where its process is killed in the middle.

A region has no store that changes several values at once. `Region.edit_limits` stores them within
some 100 ns, and a kill in between leaves a mixture. So what is to be done is written down before
it is begun; whoever comes next finds an unfinished entry and finishes it, or takes it back.

The region's lock would not help: libvgpu reads limits without it, and a process that is killed
while it holds the lock stops the container.
"""

from __future__ import annotations

import contextlib
import enum
import json
import os
from typing import TYPE_CHECKING, Any, Final, NoReturn

import attrs

from libhamiregion.effects import LimitEdit
from libhamiregion.errors import (
    LimitBelowUsage,
    LimitConflict,
    RegionError,
    RegionNotFound,
    RegionStale,
)
from libhamiregion.layouts import Layout
from libhamiregion.region import open_region
from libhamiregion.text import printable

from .limit_plan import LimitField

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from libhamiregion.effects import LimitKind
    from libhamiregion.region import Region

    from .state import PlanState

_NAME: Final = "journal.jsonl"
_VERSION: Final = 1
_KINDS: Final[dict[LimitField, LimitKind]] = {
    LimitField.MEMORY_LIMIT: "memory",
    LimitField.SM_LIMIT: "sm",
    LimitField.PRIORITY: "priority",
}


@attrs.frozen
class Change:
    """One value on its way from one number to another.

    Attributes:
        field: What is changed.
        device: Index of the device; None for a priority.
        before: Bytes, percent or a priority; None is unlimited.
        after: The same.
    """

    field: LimitField
    device: int | None
    before: int | None
    after: int | None


@attrs.frozen
class JournalEntry:
    """What is done to one region.

    Attributes:
        path: The region's file.
        file_id: Its device and inode.
        layout: Its layout.
        changes: What is changed, in order.
    """

    path: str
    file_id: tuple[int, int]
    layout: Layout
    changes: tuple[Change, ...]


class RecoveryOutcome(str, enum.Enum):
    """How an entry that was found unfinished has ended. Equal to its value, a plain string."""

    #: Nothing of it had been stored.
    OLD = "old"
    #: All of it had been stored.
    NEW = "new"
    #: Some of it had; the rest has been stored now.
    FINISHED = "finished"
    #: Some of it had, and has been taken back, as the rest was refused or somebody else had
    #: changed it.
    TAKEN_BACK = "taken_back"
    #: The region is gone, or its file is another one.
    GONE = "gone"
    #: It could be neither finished nor taken back now; it stays in the journal.
    FAILED = "failed"

    def __str__(self) -> str:
        return self.value


@attrs.frozen
class Recovered:
    """What was found of an apply that did not come to its end.

    Attributes:
        path: The region's file.
        outcome: What has become of it.
        message: The same as a sentence, escaped.
    """

    path: str
    outcome: RecoveryOutcome
    message: str


def core_edit(field: LimitField, device: int | None, now: int | None, to: int | None) -> LimitEdit:
    """The edit as `Region.edit_limits` takes it: only where the value is what it was."""
    return LimitEdit(_KINDS[field], to, device, now)


def value_now(region: Region, field: LimitField, device: int | None) -> int | None:
    """A value as it stands in a region.

    Raises:
        RegionStale, RegionClosed: As `Region.snapshot`.
    """
    if device is None:
        return region.priority
    if field is LimitField.MEMORY_LIMIT:
        return region.memory_limit(device)
    return region.sm_limit(device)


class Journal:
    """The journal of one apply, from `begin` to `end`.

    Threads: one at a time; the state's lock is held.
    """

    def __init__(self, state: PlanState) -> None:
        self._state = state
        self._left: tuple[JournalEntry, ...] = ()
        self._descriptor: int | None = None

    def begin(self, entries: Iterable[JournalEntry]) -> None:
        """Write down what is going to be done, for good.

        Raises:
            OSError: It cannot be written; nothing must be changed then.
        """
        wanted = tuple(entries)
        paths = {entry.path for entry in wanted}
        # What a recovery could not bring to an end waits for the next one.
        self._left = tuple(each for each in unfinished(self._state) if each.path not in paths)
        path = _write(self._state, self._left + wanted)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def settled(self, number: int) -> None:
        """Note that an entry has come to its end, whichever it was."""
        if self._descriptor is not None:
            # What the kernel has survives this process, and no region survives the kernel.
            with contextlib.suppress(OSError):
                os.write(self._descriptor, b"%d\n" % (number + len(self._left)))

    def end(self) -> None:
        """All entries have come to their ends."""
        if self._descriptor is None:
            return
        os.close(self._descriptor)
        self._descriptor = None
        if self._left:
            _write(self._state, self._left)
        else:
            self._state.remove(_NAME)


def unfinished(state: PlanState) -> tuple[JournalEntry, ...]:
    """The entries that have not come to their ends, if an apply was killed.

    Without the state's lock, those of an apply that is at work right now.

    Raises:
        OSError: The journal cannot be read.
    """
    raw = state.read(_NAME)
    if raw is None:
        return ()
    first, _, rest = raw.partition(b"\n")
    done = {int(line) for line in rest.split(b"\n") if line.isdigit()}
    try:
        document = json.loads(first)
        if document["version"] != _VERSION:
            return ()
        entries = [_entry(each) for each in document["entries"]]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ()
    return tuple(entry for number, entry in enumerate(entries) if number not in done)


def recover(state: PlanState) -> tuple[Recovered, ...]:
    """Bring what an apply that was killed has left half done to an end. Needs the state's lock.

    Returns:
        What was found of each unfinished entry; empty if the last apply came to its end.

    Raises:
        OSError: The journal cannot be read or written.
    """
    entries = unfinished(state)
    found = []
    left = []
    for entry in entries:
        recovered = _recover_one(entry)
        found.append(recovered)
        if recovered.outcome is RecoveryOutcome.FAILED:
            left.append(entry)
    if left:
        _write(state, tuple(left))
    else:
        state.remove(_NAME)
    return tuple(found)


def _recover_one(entry: JournalEntry) -> Recovered:
    where = printable(entry.path)

    def done(outcome: RecoveryOutcome, message: str) -> Recovered:
        return Recovered(entry.path, outcome, f"{where}: {message}")

    try:
        with open_region(entry.path, writable=True, layout=entry.layout) as region:
            if region.file_id != entry.file_id:
                return done(RecoveryOutcome.GONE, "the container has another region now")
            return done(*_bring_to_an_end(region, entry.changes))
    except (RegionNotFound, RegionStale) as error:
        return done(RecoveryOutcome.GONE, f"the region is gone ({type(error).__name__})")
    except (RegionError, OSError, ValueError) as error:
        return done(RecoveryOutcome.FAILED, printable(str(error)))


def _bring_to_an_end(region: Region, changes: tuple[Change, ...]) -> tuple[RecoveryOutcome, str]:
    now = [value_now(region, each.field, each.device) for each in changes]
    to_come = [each for each, value in zip(changes, now, strict=True) if value == each.before]
    come = [
        each
        for each, value in zip(changes, now, strict=True)
        if value == each.after and each.before != each.after
    ]
    if len(to_come) == len(changes):
        return RecoveryOutcome.OLD, "nothing had been changed"
    if len(come) == len(changes):
        return RecoveryOutcome.NEW, "everything had been changed"
    if not come:
        return RecoveryOutcome.OLD, "somebody else has changed it since"
    why = "somebody else has changed the rest"
    if len(come) + len(to_come) == len(changes):
        try:
            region.edit_limits(
                [core_edit(each.field, each.device, each.before, each.after) for each in to_come]
            )
        except (LimitBelowUsage, LimitConflict) as error:
            why = printable(str(error))
        else:
            return RecoveryOutcome.FINISHED, "half of it had been changed, and now all of it"
    # It had that limit before, so it may have it again, whatever is in use by now.
    region.edit_limits(
        [core_edit(each.field, each.device, each.after, each.before) for each in come], force=True
    )
    return RecoveryOutcome.TAKEN_BACK, f"half of it had been changed, and was taken back: {why}"


def _write(state: PlanState, entries: tuple[JournalEntry, ...]) -> str:
    document = {"version": _VERSION, "entries": [_plain(entry) for entry in entries]}
    return state.write(_NAME, json.dumps(document) + "\n")


def _plain(entry: JournalEntry) -> dict[str, Any]:
    return {
        "path": os.fsencode(entry.path).hex(),
        "file_id": list(entry.file_id),
        "layout": entry.layout.value,
        "changes": [
            [each.field.value, each.device, each.before, each.after] for each in entry.changes
        ],
    }


def _entry(plain: dict[str, Any]) -> JournalEntry:
    device, inode = plain["file_id"]
    return JournalEntry(
        os.fsdecode(bytes.fromhex(plain["path"])),
        (int(device), int(inode)),
        Layout(plain["layout"]),
        tuple(
            Change(LimitField(field), device, before, after)
            for field, device, before, after in plain["changes"]
        ),
    )


@contextlib.contextmanager
def guarded(state: PlanState) -> Iterator[None]:
    """Have another process finish what this one leaves half done if it is killed.

    A child waits for this process's end. If that comes too early, it brings the journal to an end
    within some milliseconds, and nobody has to call again. Only for a process with one thread, as
    it forks: the command line. Where both are killed at one stroke, the journal waits for whoever
    comes next.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _wait_and_recover(reading, state)
    os.close(reading)
    try:
        yield
    finally:
        # Whatever has happened, this process can say it itself.
        os.write(writing, b".")
        os.close(writing)
        os.waitpid(child, 0)


def _wait_and_recover(reading: int, state: PlanState) -> NoReturn:
    code = 1
    try:
        # Out of the terminal's reach, and with nothing open whose end somebody waits for.
        os.setsid()
        # One by one: the limit of descriptors can be a thousand million.
        for descriptor in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208
            if descriptor != reading:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        # Nothing to read, and the pipe at its end: the parent is dead.
        if not os.read(reading, 1):
            with state.applying():
                recover(state)
        code = 0
    finally:
        os._exit(code)

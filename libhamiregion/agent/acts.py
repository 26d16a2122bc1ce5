"""Acts: changes of a region's values, as values themselves; their executor, and tasks that act."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, TypeAlias

import attrs

from libhamiregion.changes import ANYTHING
from libhamiregion.errors import LimitConflict, LockTimeout, ProcessNotInRegion, RegionError
from libhamiregion.observation.containers import MissingReason, missing_for
from libhamiregion.region import open_in_container
from libhamiregion.services.events import container_words

from .loop import Task, run_each

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from libhamiregion.node.node import Node
    from libhamiregion.observation.containers import Container
    from libhamiregion.observation.processes import HostProcess
    from libhamiregion.region import Region
    from libhamiregion.services.events import Detail, Emit

#: A region's path, and device and inode of its file.
RegionKey: TypeAlias = "tuple[str, tuple[int, int]]"
#: One value of a region: its field, and the slot's pid and the device's index if it has them.
Place: TypeAlias = "tuple[str, int | None, int | None]"

#: The fields of a slot that an act can change, and their names in a snapshot.
SLOT_FIELDS: Final = {
    "monitor_used_bytes": "memory_monitor_bytes",
    "sm_util_percent": "sm_util_percent",
    "enc_util_percent": "enc_util_percent",
    "dec_util_percent": "dec_util_percent",
}
# Of an act that is not taken back; a slot's field has the last one.
_PHRASES: Final = {
    "recent_kernel": "launches of {} are blocked",
    "utilization_switch": "the SM switch of {} is not as it was found",
}
_SLOT_PHRASE: Final = "old figures of the driver are in {}"
# For the locks of one region: each may be held most of the time.
_LOCKS_BUDGET_S: Final = 1.0
# The file may be the same, and readable again later.
MAY_PASS: Final = frozenset(
    {MissingReason.UNKNOWN_LAYOUT, MissingReason.NO_PERMISSION, MissingReason.FAILED}
)


class Act(NamedTuple):
    """A change of one value of a container's region.

    Attributes:
        container: The container, as it was observed; its region's file is the one that is meant.
        field: ``recent_kernel``, ``utilization_switch``, or one of `SLOT_FIELDS`.
        expected: The observed value.
        wanted: The new value; the observed one if that is to stay.
        back: The value that goes in its place at the end; None if the new value may stay.
        compares: Whether nothing is changed where another value than the observed one is by now.
        process: The process that was proved to be the slot's.
        pid: The slot's pid.
        device: The device's index.
    """

    container: Container
    field: str
    expected: int
    wanted: int
    back: int | None = None
    compares: bool = True
    process: HostProcess | None = None
    pid: int | None = None
    device: int | None = None

    @property
    def place(self) -> Place:
        """Which value of the region it is."""
        return self.field, self.pid, self.device

    @property
    def is_change(self) -> bool:
        """Whether something is to be written."""
        return self.expected != self.wanted

    def takes_back(self) -> Act:
        """The act that puts `back` in the new value's place, if that is still there."""
        assert self.back is not None  # noqa: S101 (such an act is not kept)
        return self._replace(expected=self.wanted, wanted=self.back, compares=True, process=None)


@attrs.define(eq=False)
class Kept:
    """The acts on one region whose values do not outlive the task.

    Attributes:
        container: The container, as it was observed last.
        acts: The acts, by their places.
    """

    container: Container
    acts: dict[Place, Act] = attrs.field(factory=dict)

    @property
    def outstanding(self) -> list[Act]:
        """The acts whose value is not the one of before."""
        # Copied first: another thread may change them.
        return [act for act in list(self.acts.values()) if act.wanted != act.back]


class Executor:
    """Carries out acts, and takes back those that must not outlive the task.

    The file of a container's region is opened through the node, and its device and inode compared
    at each act. An act on a slot first proves anew that the slot's process has not ended. Values
    are compared before they are set: of the region in one step, of a slot right before.

    Threads: `carry_out` and `close_rested` are for one; the other methods may be called from any.

    Args:
        node: The node; stays the caller's.
        rest_s: How long a region stays open for writing after an act, since opening costs ten times
            an act. For the feedback only: a process that keeps regions of several pods mapped for
            writing is taken for a controller of launches (`find_monitors`).

    Attributes:
        kept: The acts to be taken back, by region.
        lock_timeout_s: How long to wait for a region's lock, each time.
    """

    def __init__(self, node: Node, *, rest_s: float = 0.0) -> None:
        self._node = node
        self._rest_s = rest_s
        # By directory: a container that makes one file after the other has one open.
        self._open: dict[str | None, tuple[Region, float]] = {}
        # Held while something is written: nothing is written once the end has begun.
        self._writing = threading.Lock()
        self._ended = threading.Event()
        self.kept: dict[RegionKey, Kept] = {}
        self.lock_timeout_s = 0.2

    def carry_out(self, acts: Sequence[Act]) -> list[Act]:
        """Carry out acts on one container's region.

        Returns:
            Those that were carried out; the values of the others have changed since the
            observation, or their processes have ended, or the task has.

        Raises:
            ValueError, RegionError, OSError: As `Node.open`. Some may have been carried out.
        """
        if self._ended.is_set():
            return []
        for act in acts:
            if not act.is_change:
                self._keep(act)
        due = [act for act in acts if act.is_change]
        if not due:
            return []
        with self._opened(due[0].container) as region, self._writing:
            if self._ended.is_set():
                return []
            processes = [act.process for act in due if act.process is not None]
            ended = self._node.processes.ended(processes) if processes else ()
            due = _still_expected(region, [act for act in due if act.process not in ended])
            # Before the stores: some may have been made when one fails.
            for act in due:
                if act.back is not None:
                    self._keep(act)
            done = self._store(region, due)
            for act in due:
                if act.back is None:
                    self._keep(act)
        return done

    def _keep(self, act: Act) -> None:
        """Have an act taken back at the end, or not any more."""
        key = _key(act.container)
        kept = self.kept.get(key)
        if act.back is None:
            if kept is not None:
                kept.acts.pop(act.place, None)
            return
        if kept is None:
            kept = self.kept[key] = Kept(act.container)
        kept.container = act.container
        first = kept.acts.get(act.place, act)
        kept.acts[act.place] = act._replace(back=first.back)

    def take_back(self, key: RegionKey, places: Collection[Place]) -> list[Act]:
        """Take back acts whose values are still there, and forget all that are named.

        Not through the node: its lock may be held by a pass that hangs.

        Raises:
            RegionError, OSError: The region cannot be opened or written; nothing is forgotten.
        """
        kept, done = self.kept.get(key), list[Act]()
        if kept is None:
            return done
        due = [act.takes_back() for act in kept.outstanding if act.place in places]
        if due:
            path, file_id = key
            with open_in_container(path, writable=True) as region:
                if region.file_id == file_id:
                    done = self._store(region, _still_expected(region, due))
        for place in list(places):
            kept.acts.pop(place, None)
        return done

    def end(self, timeout_s: float) -> None:
        """Write nothing more, once a write in progress is done or `timeout_s` is over."""
        self._ended.set()
        if self._writing.acquire(timeout=timeout_s):
            self._writing.release()

    def close_rested(self, rest_s: float | None = None) -> None:
        """Close the regions to which nothing was written for so long, by dropping them."""
        until_s = time.monotonic() - (self._rest_s if rest_s is None else rest_s)
        self._open = {key: kept for key, kept in self._open.items() if kept[1] > until_s}

    @contextlib.contextmanager
    def _opened(self, container: Container) -> Iterator[Region]:
        """Give a container's region; after an act that fails it does not stay open."""
        key, wanted = container.directory or container.region_path, container.region
        region, _ = self._open.pop(key, (None, 0.0))
        same = region is not None and wanted is not None and region.file_id == wanted.file_id
        if region is None or not same or region.is_stale():
            region = self._node.open(container)
        try:
            yield region
        except BaseException:
            region.close()
            raise
        if self._rest_s:
            self._open[key] = region, time.monotonic()
        else:
            region.close()

    def _store(self, region: Region, acts: list[Act]) -> list[Act]:
        """Store the values; return the acts that were carried out."""
        done = []
        slots: defaultdict[tuple[int, int], dict[str, Act]] = defaultdict(dict)
        for act in acts:
            if act.pid is not None and act.device is not None:
                slots[act.pid, act.device][act.field] = act
            elif _set_field(region, act):
                done.append(act)
        deadline_s = time.monotonic() + _LOCKS_BUDGET_S
        for (pid, device), values in slots.items():
            if time.monotonic() > deadline_s:
                message = f"the lock of {region.path!r} is held too often to write the figures"
                raise LockTimeout(message, path=region.path)
            how: dict[str, Any] = {"timeout_s": self.lock_timeout_s}
            with contextlib.suppress(ProcessNotInRegion):  # it has left
                memory = values.pop("monitor_used_bytes", None)
                if memory is not None:
                    region.set_monitor_used(pid, device, memory.wanted, **how)
                    done.append(memory)
                figures = {name.removesuffix("_util_percent"): act for name, act in values.items()}
                if figures:
                    how |= {name: act.wanted for name, act in figures.items()}
                    region.set_utilization(pid, device, **how)
                    done += figures.values()
        return done


class ActingTask(Task):
    """Base of tasks whose acts are taken back when they end.

    Args:
        node: The node.
        dry_run: Write nothing, and report the acts.
        emit: Gets the events.
        rest_s: As `Executor` takes it.
    """

    #: A failed taking back, as an event says it.
    not_taken_back: ClassVar[str]

    def __init__(self, node: Node, *, dry_run: bool, emit: Emit, rest_s: float = 0.0) -> None:
        super().__init__(emit)
        self._node = node
        self._dry_run = dry_run
        self.executor = Executor(node, rest_s=rest_s)

    def give_back(self) -> None:
        """Take back what this process has written: no pass would do so by itself.

        The next pass that succeeds writes it again.
        """
        for key, kept in self._kept():
            if not kept.outstanding:
                self.executor.kept.pop(key, None)
        run_each(self._take_back, self._kept())

    def stop(self) -> None:
        """Take back what this process has written, and write nothing more."""
        # A pass that waits for a region's lock writes no more after it.
        self.executor.end(_LOCKS_BUDGET_S)
        self.give_back()

    def pending_cleanup(self) -> tuple[str, ...]:
        """List containers in which something is not as it was found."""
        phrases = []
        for _, kept in self._kept():
            for act in kept.outstanding[:1]:
                phrase = _PHRASES.get(act.field, _SLOT_PHRASE)
                phrases.append(phrase.format(container_words(kept.container)))
        return tuple(phrases)

    def taken_back(self, act: Act) -> None:
        """Note an act that takes another one back."""

    def _kept(self) -> list[tuple[RegionKey, Kept]]:
        return list(self.executor.kept.copy().items())

    def _take_back(self, entry: tuple[RegionKey, Kept]) -> None:
        key, kept = entry
        try:
            for act in self.executor.take_back(key, list(kept.acts)):
                self.taken_back(act)
        except (RegionError, OSError) as error:
            # Else the region is gone, and with it the values.
            if missing_for(error).reason in MAY_PASS:
                self.count("errors")
                self.events.failed(self.not_taken_back, error, kept.container)
                return
        self.executor.kept.pop(key, None)

    def _would_write(self, acts: Iterable[Act]) -> None:
        """Report the acts that a dry run leaves out."""
        for act in acts:
            if not act.is_change:
                continue
            field = act.field
            detail: dict[str, Detail] = {"before": act.expected, "after": act.wanted}
            if act.pid is not None:
                detail |= {"pid": act.pid, "device": act.device}
            message = f"{field} would become {act.wanted}, from {act.expected}"
            self.events.emit(
                "would_write", message, act.container, distinct=field, field=field, **detail
            )


def region_key(region: Region) -> RegionKey:
    """Identify a region's file."""
    return region.path, region.file_id


def _key(container: Container) -> RegionKey:
    assert container.region is not None  # noqa: S101 (only such have acts)
    return region_key(container.region)


def _still_expected(region: Region, acts: list[Act]) -> list[Act]:
    """Leave out the acts on slots whose values have changed."""
    if all(act.pid is None for act in acts):
        return acts
    now: dict[Place, int] = {
        (field, process.pid, device.index): getattr(device, column)
        for process in region.snapshot().processes
        for device in process.devices
        for field, column in SLOT_FIELDS.items()
    }
    return [act for act in acts if act.pid is None or now.get(act.place) == act.expected]


def _set_field(region: Region, act: Act) -> bool:
    """Set a value of the whole region; return False if another one is there than expected."""
    try:
        if act.field == "recent_kernel":
            mark = act.expected if act.compares else ANYTHING
            region.set_recent_kernel(act.wanted, expected=mark)
        else:
            switch = bool(act.expected) if act.compares else ANYTHING
            region.set_utilization_switch(bool(act.wanted), expected=switch)
    except LimitConflict:
        return False
    return True

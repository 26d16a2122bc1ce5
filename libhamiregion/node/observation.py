"""One observation of a node serves everybody who asks: driver, regions and /proc, in that order."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Literal, TypeAlias

import attrs

from libhamiregion._core import lib
from libhamiregion.errors import RegionError
from libhamiregion.text import printable

from .node import NodeBusy
from .roots import RootsUnreadable
from .workers import BoundedCall

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from libhamiregion.models import RegionSnapshot
    from libhamiregion.region_set import RegionTable

    from .cgroups import ContainerId
    from .containers import Container
    from .node import Node, NodeSnapshot
    from .nvml.models import NvmlSample
    from .nvml.sampler import NvmlSampler
    from .processes import ProcessTable
    from .slots import RegionProcesses, SlotStates

#: What a gap is about.
GapKind: TypeAlias = Literal["driver", "root", "slots", "processes"]

#: How old an observation may be that one task takes over from another one, where they share an
#: observer: tasks begin their passes together.
SHARED_AGE_S = 1.0
# Taking an observation waits for the driver for some seconds, and for the file systems of roots.
_OBSERVER_TIMEOUT_S = 30.0
_DRIVER_TIMEOUT_S = 5.0
_CGROUP_LIMIT = 60
#: Where the snapshots of a read are too large, regions with more pairs of process and device than
#: this have none of their processes read.
MOST_PAIRS = 1024


@attrs.frozen
class Gap:
    """Something that could not be looked at. What it hides is unknown: neither dead nor absent.

    Attributes:
        kind: ``"driver"``: the driver does not answer; ``"root"``: a directory of containers could
            not be listed; ``"slots"``: a region has too many slots in use to read them with all
            others; ``"processes"``: processes whose mappings were not read, or all of /proc.
        reason: Why, as one sentence.
        container: The container that it is about; None if about none of the node's regions.
        container_id: What the cgroup of its processes says; None if that is not known.
        count: How many slots or processes were not looked at; 1 for a root and for the driver.
    """

    kind: GapKind
    reason: str
    container: Container | None = None
    container_id: ContainerId | None = None
    count: int = 1


@attrs.frozen
class ContainerDetails:
    """One container of an observation, with its region and the processes behind it.

    Attributes:
        container: The container.
        snapshot: Its region; None if there is none, or it could not be read. Without processes if
            the observation has left them out (see `Observation.snapshot`).
        processes: The processes of the slots, in the order of ``snapshot.processes``; None without
            a snapshot.
        error: Why the region could not be read; None if it was, or if there is none.
    """

    container: Container
    snapshot: RegionSnapshot | None = None
    processes: RegionProcesses | None = None
    error: RegionError | OSError | None = None


@attrs.frozen(eq=False)
class Observation:
    """What stands on a node at one moment. A value: later observations do not change it.

    Containers carry their names: ``container.namespace``, ``.pod`` and ``.name``.

    Attributes:
        snapshot: The containers and the columns of all their regions. Where these would take more
            than 8 MiB, regions with more than 1,024 pairs of process and device have no rows of
            processes, and a gap says so.
        states: State and process of every slot of ``snapshot``, and what else uses the regions;
            None where that was not asked for, or /proc could not be listed.
        sample: What the driver said, before the regions were read; None where it was not asked or
            does not answer.
        gaps: What could not be looked at, of which container, and why.
        processes: The processes of the node; refreshed by later observations.
        driver_error: What asking the driver has raised.
        processes_error: Why /proc could not be listed.
        began_s: When taking it began, on the clock that is never set (``time.monotonic()``).
        processes_read_s: When the processes were last read, on that clock.
        regions_read_at_ns: When the regions were read, Unix nanoseconds.
    """

    snapshot: NodeSnapshot
    states: SlotStates | None
    sample: NvmlSample | None
    gaps: tuple[Gap, ...]
    processes: ProcessTable
    driver_error: Exception | None
    processes_error: OSError | None
    began_s: float
    processes_read_s: float
    regions_read_at_ns: int

    @property
    def containers(self) -> tuple[Container, ...]:
        """The containers with a region, one per row of ``table.regions``."""
        return self.snapshot.containers

    @property
    def missing(self) -> tuple[Container, ...]:
        """The containers without a region that can be read."""
        return self.snapshot.missing

    @property
    def table(self) -> RegionTable:
        """The columns of all regions."""
        return self.snapshot.table

    def proved(self) -> SlotStates:
        """Return `states`.

        Raises:
            OSError: /proc could not be listed.
            ValueError: The observation was taken without the slots.
        """
        if self.processes_error is not None:
            raise self.processes_error
        if self.states is None:
            raise ValueError("this observation was taken without looking at slots")
        return self.states

    def details(self, chosen: Collection[Container] | None = None) -> Iterator[ContainerDetails]:
        """Yield the containers one by one, each with its snapshot and its processes.

        Args:
            chosen: Only these containers; None means all.

        Raises:
            OSError: /proc could not be listed.
        """
        proved = self.proved().proved
        for row, container in enumerate(self.containers):
            if chosen is not None and container not in chosen:
                continue
            error, processes = self.table.error(row), proved.get(row)
            if error is not None or container.region is None or processes is None:
                # One without a proof was closed meanwhile: the next observation opens it again.
                yield ContainerDetails(container, error=error)
            else:
                snapshot = self.table.snapshot(row, container.region)
                yield ContainerDetails(container, snapshot, processes)
        for container in self.missing:
            if chosen is None or container in chosen:
                yield ContainerDetails(container)


class Observer:
    """Takes observations of a node, and hands the last one to all who can do with its age.

        observer = Observer(node, sampler=sampler)
        observation = observer.observe(max_age_s=1.0)

    One order: the driver first, because what uses a GPU has its slot by the time the regions are
    read; then the directories and the regions; then /proc, because a slot that was read before
    /proc can be proved dead by it. What takes time is done once for all who ask meanwhile.

    Threads: may be shared, and is made for that; one observation is taken at a time. Fork: with the
    node, make new ones in the child.

    Args:
        node: The node; stays the caller's.
        sampler: Asks the driver; None leaves it out. Stays the caller's.
        slots: Whether every observation has the states of slots, also one that is taken for who
            does not need them: others will.
        processes_max_age_s: How old what is known of the processes is at most in any observation.
        driver_timeout_s: How long to wait for an answer of the driver; None means 5 s. While it
            does not answer, observations are without it and wait no more.
        anew: Whether every observation reads /proc and proves each slot anew, for those who look
            seldom. Else what has not changed is proved once a minute.

    Attributes:
        node: The node.
    """

    def __init__(
        self,
        node: Node,
        *,
        sampler: NvmlSampler | None = None,
        slots: bool = False,
        processes_max_age_s: float | None = None,
        driver_timeout_s: float | None = None,
        anew: bool = False,
    ) -> None:
        self.node = node
        self._anew = anew
        self._slots = slots
        self._processes_max_age_s = 0.0 if anew else processes_max_age_s
        timeout_s = _DRIVER_TIMEOUT_S if driver_timeout_s is None else driver_timeout_s
        self._driver_timeout_s = timeout_s
        # NVML has no timeouts: after some faults of a GPU a question is never answered.
        self._driver = None if sampler is None else BoundedCall(sampler.sample, "hamiregion-nvml")
        self._observing = threading.Lock()
        self._last: Observation | None = None
        # What was read of the regions last, and when that began.
        self._last_read: tuple[float, NodeSnapshot] | None = None
        self._read_at_ns = 0
        self._processes_read_s = float("-inf")

    @property
    def asks_driver(self) -> bool:
        """Whether observations have the driver's sample."""
        return self._driver is not None

    @property
    def driver_hangs(self) -> bool:
        """Whether the driver has not answered in time, and still does not."""
        return self._driver is not None and self._driver.hangs

    def observe(
        self,
        *,
        max_age_s: float = 0.0,
        slots: bool = True,
        processes_max_age_s: float | None = None,
    ) -> Observation:
        """Return an observation that is young enough: the last one, or a new one.

        Of several threads that ask at once one takes it, and all get the same.

        Args:
            max_age_s: How old it may be when it is asked for, seconds; 0 wants one that begins
                after this call.
            slots: Whether the states of the slots are wanted. They cost a look at /proc now and
                then: when processes or slots have changed, and once a minute.
            processes_max_age_s: How old what is known of the node's processes may be, for those who
                look for more than the processes behind slots; None for as old as the states need.
                What those with a slot have done may be a minute older: they live, that is certain.

        Raises:
            RegionClosed: The node has been closed.
            NodeBusy: Another thread's observation has not come back for 30 s.
        """
        asked_s = time.monotonic()

        def fits(last: Observation | None) -> bool:
            return (
                last is not None
                and last.began_s >= asked_s - max_age_s
                and (not slots or last.states is not None or last.processes_error is not None)
                and (
                    processes_max_age_s is None
                    or last.processes_read_s >= asked_s - processes_max_age_s
                    or last.processes_error is not None
                )
            )

        self.node.check_open()
        last = self._last
        if last is not None and fits(last):
            return last
        with self._one_at_a_time():
            last = self._last
            if last is None or not fits(last):
                ages = (processes_max_age_s, self._processes_max_age_s)
                age_s = min((each for each in ages if each is not None), default=None)
                last = self._last = self._take(slots or self._slots, age_s)
            return last

    def read_regions(self, *, max_age_s: float = 0.0) -> NodeSnapshot:
        """Return what stands in the regions, without asking the driver or looking at /proc.

        It is that of the last observation if that is young enough. Else the directories and the
        regions are read, for all who ask meanwhile.

        Args:
            max_age_s: How old it may be when it is asked for, seconds.

        Raises:
            RegionClosed: The node has been closed.
            NodeBusy: Another thread's observation has not come back for 30 s.
            OSError: The node looks outside the roots, and /proc cannot be listed.
        """
        asked_s = time.monotonic()
        self.node.check_open()
        with self._one_at_a_time():
            last = self._last_read
            if last is not None and last[0] >= asked_s - max_age_s:
                return last[1]
            return self._read_regions()[0]

    @contextlib.contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        # A forked child has another lock.
        lock = self._observing
        if not lock.acquire(timeout=_OBSERVER_TIMEOUT_S):
            raise NodeBusy(
                f"another observation of this node has not come back for {_OBSERVER_TIMEOUT_S:g} s"
            )
        try:
            yield
        finally:
            lock.release()

    def _read_regions(self) -> tuple[NodeSnapshot, int]:
        began_s = time.monotonic()
        # Daemons go on: directories can appear later, and each one is a gap.
        with contextlib.suppress(RootsUnreadable):
            self.node.refresh(processes=self.node.looks_outside)
        read_at_ns = time.time_ns()
        snapshot = self.node.snapshot()
        self._last_read = began_s, snapshot
        return snapshot, read_at_ns

    def _take(self, slots: bool, processes_max_age_s: float | None) -> Observation:
        node, began_s = self.node, time.monotonic()
        sample, driver_error = self._ask_driver()
        snapshot, regions_read_at_ns = self._read_regions()
        states, processes_error = None, None
        try:
            self._read_processes(slots, processes_max_age_s)
            if slots:
                states = node.slots(snapshot, anew=self._anew)
                snapshot = node.renamed(snapshot)
        except OSError as error:
            processes_error = error
        self._note_read()
        gaps = [
            *self._gaps_of_driver(sample, driver_error),
            *(Gap("root", f"{root}: {error}") for root, error in node.root_errors.items()),
            *_gaps_of_slots(snapshot),
            *_gaps_of_processes(node, snapshot, states, processes_error),
        ]
        return Observation(
            snapshot=snapshot,
            states=states,
            sample=sample,
            gaps=tuple(gaps),
            processes=node.processes,
            driver_error=driver_error,
            processes_error=processes_error,
            began_s=began_s,
            processes_read_s=self._processes_read_s,
            regions_read_at_ns=regions_read_at_ns,
        )

    def _ask_driver(self) -> tuple[NvmlSample | None, Exception | None]:
        if self._driver is None:
            return None, None
        try:
            answered = self._driver(self._driver_timeout_s)
        except Exception as error:  # noqa: BLE001 (raised again for those who need the driver)
            return None, error
        return (answered[0] if answered else None), None

    def _read_processes(self, slots: bool, max_age_s: float | None) -> None:
        """Read /proc now if the slot tracker might not, and somebody wants it."""
        processes = self.node.processes
        self._note_read()
        is_due = max_age_s is not None and time.monotonic() - self._processes_read_s > max_age_s
        if is_due or (slots and not processes.read_at_ns):
            processes.refresh()

    def _note_read(self) -> None:
        read_at_ns = self.node.processes.read_at_ns
        if read_at_ns != self._read_at_ns:
            self._read_at_ns, self._processes_read_s = read_at_ns, time.monotonic()

    def _gaps_of_driver(self, sample: NvmlSample | None, error: Exception | None) -> Iterator[Gap]:
        if error is not None:
            yield Gap("driver", f"asking the driver failed: {error}")
        elif sample is None and self._driver is not None:
            yield Gap("driver", "the driver does not answer")


def slots_in_use(container: Container) -> int:
    """How many slots a region has in use now; 0 where that cannot be read."""
    region = container.region
    try:
        return 0 if region is None else region._live(lib.HR_VALUE_PROC_NUM)
    except RegionError:
        return 0


def _gaps_of_slots(snapshot: NodeSnapshot) -> Iterator[Gap]:
    """Regions whose slots were left out of the read, because all together are too large."""
    regions = snapshot.table.regions
    rows = zip(
        snapshot.containers, regions.code, regions.process_count, regions.device_rows, strict=True
    )
    for container, code, process_count, device_rows in rows:
        if code == 0 and process_count == 0:
            unread = slots_in_use(container)
            # A process that has come since is none.
            if unread * device_rows > MOST_PAIRS:
                yield Gap(
                    "slots",
                    f"{unread:,} slots are too many to be read with those of all other containers",
                    container,
                    container.container_id,
                    unread,
                )


def _gaps_of_processes(
    node: Node,
    snapshot: NodeSnapshot,
    states: SlotStates | None,
    error: OSError | None,
) -> Iterator[Gap]:
    """Processes whose mappings are not known, by container."""
    if error is not None:
        yield Gap("processes", f"{node.proc} could not be read: {error}")
    processes = node.processes
    unread = processes.gaps
    refused: Counter[ContainerId | None] = Counter()
    for pid in processes.visibility.unreadable:
        process = processes.get(pid)
        refused[None if process is None else process.container] += 1
    if not (unread or refused):
        return
    by_id = {} if states is None else _containers_by_id(snapshot, states)
    by_pod: defaultdict[str | None, list[Container]] = defaultdict(list)
    for each in snapshot.containers:
        by_pod[each.pod_uid].append(each)

    def container_of(container_id: ContainerId | None) -> Container | None:
        if container_id is None:
            return None
        found = by_id.get(container_id.id)
        # None of its processes may be known; then it is the only one of its pod.
        of_pod = () if container_id.pod_uid is None else by_pod[container_id.pod_uid]
        return of_pod[0] if found is None and len(of_pod) == 1 else found

    for gap in unread:
        container = container_of(gap.container)
        reason = gap.explanation
        if gap.container is None:
            reason = f"{printable(gap.cgroup, _CGROUP_LIMIT)}: {reason}"
        yield Gap("processes", reason, container, gap.container, gap.count)
    for container_id, count in refused.items():
        number = "1 process" if count == 1 else f"{count:,} processes"
        reason = f"the mappings of {number} may not be read"
        yield Gap("processes", reason, container_of(container_id), container_id, count)


def _containers_by_id(snapshot: NodeSnapshot, states: SlotStates) -> dict[str, Container]:
    return {
        process.container.id: snapshot.containers[row]
        for row, proof in states.proved.items()
        for process in (*proof.alive.values(), *proof.unlisted)
        if process.container is not None
    }

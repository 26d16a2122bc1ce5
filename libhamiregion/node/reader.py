"""Takes observations of a node: driver, regions and /proc, in that order."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

import attrs

from libhamiregion.observation.driver import NvmlSample, NvmlState
from libhamiregion.observation.model import Gap, LeftDirectory, Observation
from libhamiregion.observation.pairing import driver_gap
from libhamiregion.observation.without_region import explained
from libhamiregion.text import count_text, printable

from .history import History
from .node import exclusively
from .roots import RootsUnreadable
from .slots import LISTING_S
from .suspects import SuspectReader
from .workers import Blocked, Workers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from typing_extensions import Self

    from libhamiregion.observation.containers import Container
    from libhamiregion.observation.model import NodeSnapshot
    from libhamiregion.observation.names import ContainerId, PodName
    from libhamiregion.observation.processes import ProcessView, SlotStates
    from libhamiregion.observation.share import Allocation

    from .node import Node
    from .nvml.sampler import NvmlSampler

#: How old an observation may be that one task takes over from another one, where they share an
#: observer: tasks begin their passes together.
SHARED_AGE_S = 1.0
_DRIVER_TIMEOUT_S = 5.0
_CGROUP_LIMIT = 60
# HAMi's device plugin makes it on the host before it changes the MIG layout, and removes it after.
_MIG_LOCK = "1/root/tmp/hami/hami-mig-apply.lock"


class Observer:
    """Takes observations of a node; the last one serves every caller that accepts its age.

        observer = Observer(node, sampler=sampler)
        observation = observer.observe(max_age_s=1.0)

    The order is fixed: the driver first, because a process that uses a GPU has its slot by the time
    the regions are read; then the directories and the regions; then /proc, because a slot that was
    read before /proc can be proved dead by it; last, evidence about what is suspicious in these.

    Threads: may be shared; one observation is taken at a time. Fork: a child makes its own.

    Args:
        node: The node; stays the caller's.
        sampler: Asks the driver; None leaves it out. Stays the caller's.
        driver_timeout_s: How long to wait for an answer of the driver; None means 5 s. While it
            does not answer, observations are without it and wait no more.

    Attributes:
        node: The node.
    """

    def __init__(
        self,
        node: Node,
        *,
        sampler: NvmlSampler | None = None,
        driver_timeout_s: float | None = None,
    ) -> None:
        self.node = node
        self._lists_always = False
        self._sampler = sampler
        # NVML has no timeouts: after some faults of a GPU a question is never answered.
        self._driver = Workers(driver_timeout_s or _DRIVER_TIMEOUT_S, "hami-nvml")
        # The last one with the driver's sample, and the last one without.
        self._last: dict[bool, Observation] = {}
        self._history = History()
        # Of what is done at this moment; each is done by one thread at a time.
        self._began_s: dict[str, float] = {}
        self._taking_slots = threading.Lock()
        self._suspects = SuspectReader(node)
        # The node's containers, when they were asked about, and when those left were changed.
        self._left: tuple[object, float, dict[str, float]] = (None, 0.0, {})

    @classmethod
    def for_command(cls, node: Node, *, sampler: NvmlSampler | None = None) -> Self:
        """Make an observer for a person: every observation lists /proc.

        Args:
            node: As above.
            sampler: As above.
        """
        made = cls(node, sampler=sampler)
        made._lists_always = True
        return made

    @property
    def asks_driver(self) -> bool:
        """Whether observations have the driver's sample, where it is wanted."""
        return self._sampler is not None

    @property
    def taking_s(self) -> float:
        """How long the observation takes that is being taken; 0 if none is."""
        now_s = time.monotonic()
        return max((now_s - each for each in self._began_s.copy().values()), default=0.0)

    def observe(
        self,
        *,
        max_age_s: float = 0.0,
        slots: bool = True,
        driver: bool = True,
        processes_max_age_s: float = math.inf,
    ) -> Observation:
        """Return an observation that is young enough: the last one, or a new one.

        If several threads ask at once, one takes it, and all get the same.

        Args:
            max_age_s: How old it may be when it is asked for, seconds; 0 wants one that begins
                after this call.
            slots: Whether the states of the slots are wanted. /proc is listed for them if processes
                or slots have changed, and every 20 s.
            driver: Whether the driver's sample is wanted.
            processes_max_age_s: How old the list of the node's processes may be, for processes
                without a slot; by default as old as the states allow.

        Raises:
            RegionClosed: The node has been closed.
            NodeBusy: Another thread's observation has not returned for 30 s.
        """
        asked_s = time.monotonic()
        driver = driver and self.asks_driver

        def fits(last: Observation) -> bool:
            return (
                last.began_s >= asked_s - max_age_s
                and (not slots or last.evidence is not None or last.processes_error is not None)
                and (
                    last.processes_read_s >= asked_s - processes_max_age_s
                    or last.processes_error is not None
                )
            )

        def newest() -> Observation | None:
            last = [each for asked, each in self._last.copy().items() if asked >= driver]
            return max(filter(fits, last), key=lambda each: each.began_s, default=None)

        self.node.check_open()
        if (found := newest()) is not None:
            return found
        # Those who want the regions alone do not wait for evidence.
        with exclusively(self._taking_slots) if slots else contextlib.nullcontext():
            if (found := newest()) is not None:
                return found
            with self.node._one_look():
                if (found := newest()) is not None:
                    return found
                age_s = 0.0 if self._lists_always else processes_max_age_s
                with self._timed("regions"):
                    found = self._take(slots, driver, age_s)
            if slots:
                with self._timed("evidence"):
                    found = self._with_evidence(found)
            self._last[driver] = found
            return found

    @contextlib.contextmanager
    def _timed(self, work: str) -> Iterator[None]:
        self._began_s[work] = time.monotonic()
        try:
            yield
        finally:
            del self._began_s[work]

    def _with_evidence(self, found: Observation) -> Observation:
        """Add evidence about suspects, if their processes are known."""
        if found.states is None:
            return found
        try:
            return attrs.evolve(found, evidence=self._suspects.read(found))
        except OSError as error:
            gap = Gap("processes", f"{self.node.proc} could not be read: {error}")
            return attrs.evolve(found, processes_error=error, gaps=(*found.gaps, gap))

    def _take(self, slots: bool, driver: bool, processes_max_age_s: float) -> Observation:
        node, began_s = self.node, time.monotonic()
        sample, driver_error = self._ask_driver() if driver else (None, None)
        unread = set() if sample is None else node.processes.note_listed(sample.pids)
        states, processes_error = None, None
        # Daemons go on: directories can appear later, and each one is a gap.
        with contextlib.suppress(RootsUnreadable):
            try:
                node.refresh()
            except RootsUnreadable:
                raise
            except OSError as error:
                processes_error = error
                node.refresh(processes=False)
        regions_read_at_ns = time.time_ns()
        snapshot = node.snapshot()
        try:
            # Reads /proc if `Node.slots` might not, and a task wants it.
            is_old = began_s - node.processes.view.ended_s > processes_max_age_s
            if is_old or (slots and unread):
                node.processes.refresh(unread)
            if slots and processes_error is None:
                states = node.slots(snapshot)
                snapshot = node.renamed(snapshot)
        except OSError as error:
            processes_error = error
        processes = node.processes.view
        allocations, problem = node.allocations, node.root_problem
        if not node.roots_given and sample is not None and sample.state is NvmlState.OK:
            problem = None  # a node without HAMi has the driver's figures
        observation = Observation(
            snapshot=snapshot,
            states=states,
            sample=sample,
            gaps=(),
            processes=processes,
            driver_error=driver_error,
            processes_error=processes_error,
            began_s=began_s,
            processes_read_s=processes.ended_s,
            regions_read_at_ns=regions_read_at_ns,
            ended=_ended(node, sample, states),
            gone=self._gone(sample),
            suspended_s=time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic(),
            ticks_per_s=os.sysconf("SC_CLK_TCK"),
            driver_asked=self.asks_driver,
            names=_names(node, sample, snapshot, states, allocations or ()),
            node_name=os.environ.get("NODE_NAME") or os.uname().nodename,
            roots={
                **dict.fromkeys(node.scanned_roots, True),
                **dict.fromkeys(node.roots if problem and not node.scanned_roots else (), False),
                **dict.fromkeys(node.root_errors, False),
            },
            root_errors={
                root: error.strerror or str(error) for root, error in node.root_errors.items()
            },
            root_problem=problem,
            allocations=allocations,
        )
        observation = attrs.evolve(observation, stale=self._history.stale(observation))
        observation = attrs.evolve(observation, snapshot=explained(observation))
        snapshot = observation.snapshot
        gaps = [
            *(Gap("root", f"{root}: {error}") for root, error in node.root_errors.items()),
            *_gaps_of_slots(snapshot),
            *_gaps_of_processes(processes, snapshot, states),
        ]
        if driver and sample is None:
            failed = f"asking the driver failed: {driver_error}"
            gaps.append(Gap("driver", failed if driver_error else "the driver does not answer"))
        if processes_error is not None:
            gaps.append(Gap("processes", f"{node.proc} could not be read: {processes_error}"))
        left, not_limited_s = self._find_left(snapshot), self._history.not_limited_s(observation)
        return attrs.evolve(
            observation,
            gaps=tuple(gaps),
            left=left,
            not_limited_s=None if self._lists_always else not_limited_s,
        )

    def _find_left(self, snapshot: NodeSnapshot) -> tuple[LeftDirectory, ...]:
        """Find directories of pods that are gone, every 20 s."""
        node, now_s = self.node, time.monotonic()
        known, looked_s, changed_at_s = self._left
        if known is not node.containers or now_s - looked_s >= LISTING_S:
            changed_at_s = {}
            gone = [
                (each, each.directory)
                for each in node.containers
                if each.pod_uid is not None
                and each.directory is not None
                and node.names.has_pod(each.pod_uid) is False
            ]
            try:
                if gone and now_s - node.processes.view.started_s >= LISTING_S:
                    node.processes.refresh()
            except OSError:
                gone = []
            for each, directory in gone:
                files = () if each.identity is None else (each.identity,)
                if node.processes.view.is_unused(each.pod_uid, files):
                    with contextlib.suppress(OSError):
                        changed_at_s[directory] = os.lstat(directory).st_mtime
            self._left = node.containers, now_s, changed_at_s
        return tuple(
            LeftDirectory(each, changed_at_s[each.directory])
            for each in snapshot.all_containers
            if changed_at_s and each.directory in changed_at_s
        )

    def _gone(self, sample: NvmlSample | None) -> frozenset[int]:
        """Pids on the driver's lists of no process: it is asked once more before they count."""
        view = self.node.processes.view
        if sample is None or driver_gap(view, sample) is not None or not view.is_complete:
            return frozenset()

        def missing(pids: frozenset[int]) -> frozenset[int]:
            unknown = pids - view.entries.keys()
            return frozenset(pid for pid in unknown if not os.path.exists(f"{view.proc}/{pid}"))  # noqa: PTH110

        found, last = missing(sample.pids), self._last.get(True)
        if found and not (last is not None and found <= last.gone):
            again, _ = self._ask_driver()
            found = missing(found & again.pids) if again is not None else frozenset()
        return found

    def _sample(self) -> NvmlSample:
        """Ask the driver; close it instead while HAMi changes the MIG layout."""
        assert self._sampler is not None  # noqa: S101 (else no driver is wanted)
        age_s = _mig_lock_age_s(self.node.proc)
        if age_s is None:
            return self._sampler.sample()
        self._sampler.close()
        state = NvmlState.MIG_APPLY
        return NvmlSample(time.time_ns(), state, state.explanation, mig_apply_s=age_s)

    def _ask_driver(self) -> tuple[NvmlSample | None, Exception | None]:
        assert self._sampler is not None  # noqa: S101 (else no driver is wanted)
        # An answer that comes late is dropped; the next question waits for it.
        self._driver.late(self._sampler)
        try:
            return self._driver.call("driver", self._sampler, self._sample), None
        except Blocked:
            return None, None
        except Exception as error:  # noqa: BLE001 (raised again for tasks that need the driver)
            return None, error


def _mig_lock_age_s(proc: str) -> float | None:
    """How long HAMi has held its lock for MIG; None if it does not, or that cannot be read."""
    try:
        status = os.lstat(f"{proc}/{_MIG_LOCK}")
    except OSError:
        return None
    # Others of the host may write into /tmp too.
    return time.time() - status.st_mtime if status.st_uid in {0, os.geteuid()} else None


def _gaps_of_slots(snapshot: NodeSnapshot) -> Iterator[Gap]:
    """Regions whose slots were left out of the read, because all together are too large."""
    regions = snapshot.table.regions
    rows = zip(snapshot.containers, regions.processes_truncated, regions.slot_count, strict=True)
    for container, is_truncated, slots in rows:
        if is_truncated:
            reason = f"{slots:,} slots are too many to be read with those of all other containers"
            yield Gap("slots", reason, container, container.container_id, slots)


def _gaps_of_processes(
    processes: ProcessView, snapshot: NodeSnapshot, states: SlotStates | None
) -> Iterator[Gap]:
    """Processes whose mappings are not known, by container."""
    refused: Counter[ContainerId | None] = Counter()
    for pid in processes.visibility.unreadable:
        process = processes.get(pid)
        refused[None if process is None else process.container] += 1
    known: dict[ContainerId | None, Container | None] = {None: None}
    if processes.gaps or refused:
        for row, proof in ({} if states is None else states.proved).items():
            for user in (*proof.alive.values(), *proof.unlisted):
                known.setdefault(user.container, snapshot.containers[row])

    def container_of(id_: ContainerId | None) -> Container | None:
        if id_ in known or id_ is None or id_.pod_uid is None:
            return known.get(id_)
        # None of its processes may be known; then it is the only one of its pod.
        same = [each for each in snapshot.containers if each.pod_uid == id_.pod_uid]
        return same[0] if len(same) == 1 else None

    for gap in processes.gaps:
        reason = gap.explanation
        if gap.container is None:
            reason = f"{printable(gap.cgroup, _CGROUP_LIMIT)}: {reason}"
        yield Gap("processes", reason, container_of(gap.container), gap.container, gap.count)
    for id_, count in refused.items():
        reason = f"the mappings of {count_text(count, 'process')} may not be read"
        yield Gap("processes", reason, container_of(id_), id_, count)


def _ended(node: Node, sample: NvmlSample | None, states: SlotStates | None) -> frozenset[int]:
    """Pids of processes without a slot that the driver lists and that have ended."""
    if sample is None or states is None:
        return frozenset()
    listed = sample.pids - {each.pid for each in states.processes.values()}
    known = [each for each in map(node.processes.view.get, listed) if each is not None]
    return frozenset(each.pid for each in node.processes.ended(known)) if known else frozenset()


def _names(
    node: Node,
    sample: NvmlSample | None,
    snapshot: NodeSnapshot,
    states: SlotStates | None,
    allocations: Iterable[Allocation],
) -> dict[str, PodName]:
    """Names by container id, where a container of the node does not give a process its name.

    That is of processes that the driver lists, of those that share a claim's region, and of those
    with libvgpu that use the region of another pod. Containers that kubelet's checkpoint names have
    their key there.
    """
    listed = () if sample is None else sample.pids
    processes = [each for pid in listed if (each := node.processes.view.get(pid)) is not None]
    for row, found in ({} if states is None else states.proved).items():
        if snapshot.containers[row].claim_uid is not None:
            processes += (*found.alive.values(), *found.unlisted)
        processes += filter(node.processes.view.has_libvgpu, found.onlookers)
    ids = {each.container for each in processes if each.container is not None}
    named = {each.id: node.names.resolve(each.pod_uid, None, each.id) for each in ids}
    for given in allocations:
        named[given.key] = node.names.resolve(given.pod_uid, given.container)
    return {id_: name for id_, name in named.items() if name is not None}

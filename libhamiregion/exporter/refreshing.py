"""The work behind the scrapes: what is too slow for one, done in turns by a thread of its own."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from typing import TYPE_CHECKING

import attrs

from libhamiregion.node import diagnose
from libhamiregion.node.nvml.timeout_sampler import TimeoutSampler
from libhamiregion.node.usage import node_processes
from libhamiregion.text import printable

from .background import (
    Background,
    Bounds,
    container_ids_of,
    container_series,
    finding_series,
    held_locks,
    process_series,
    shown_processes,
    unplaced_processes,
)
from .driver_series import (
    NO_ANSWER,
    host_series,
    mig_series,
    nvml_series,
    unaccounted_series,
)
from .gone import GoneContainers
from .naming import identities_of, shadowed
from .status import StageStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from libhamiregion.node import (
        Container,
        ContainerView,
        Finding,
        Node,
        NvmlSample,
        NvmlSampler,
    )
    from libhamiregion.node.usage import NodeProcess

    from .label_ledger import LabelLedger
    from .naming import Identity

_log = logging.getLogger(__name__)

_MESSAGE_LIMIT = 500
_STOP_PATIENCE_S = 10.0
_DRIVER_PATIENCE_S = 5.0
_FIRST_LOOK_PATIENCE_S = 8.0
# What has not succeeded for so many of its intervals, and so many seconds, has stopped.
_OVERDUE_INTERVALS = 10
_OVERDUE_S = 60.0
# Whose series they are, beside those of the stages.
_DRIVER = "driver"
# The thread's shortest nap, also where intervals are shorter than the work.
_NAP_S = 0.05


@attrs.define(eq=False)
class Stage:
    """One part of the work, and how it went."""

    name: str
    interval_s: float
    due_s: float = 0.0
    refreshed_at_s: float | None = None
    duration_s: float | None = None
    errors: int = 0
    last_error: str | None = None
    failing: bool = False
    #: Monotonic time of the last success.
    succeeded_s: float | None = None

    def succeeded(self) -> None:
        """Note that it went well, just now."""
        self.refreshed_at_s = time.time()
        self.succeeded_s = time.monotonic()
        if self.failing:
            self.failing = False
            _log.info("%s: all is well again", self.name)

    def overdue_s(self) -> float | None:
        """For how long it has not succeeded, if that is too long."""
        if self.succeeded_s is None:
            return None
        since_s = time.monotonic() - self.succeeded_s
        return since_s if since_s > self.patience_s else None

    @property
    def patience_s(self) -> float:
        """How old its results may be."""
        return max(_OVERDUE_INTERVALS * self.interval_s, _OVERDUE_S)

    def failed(self, error: Exception) -> None:
        """Count a failure and keep what it said."""
        self.errors += 1
        before = self.last_error if self.failing else None
        self.failing = True
        self.last_error = printable(f"{type(error).__name__}: {error}", _MESSAGE_LIMIT)
        if self.last_error != before:
            _log.warning("%s: %s", self.name, self.last_error)

    def status(self) -> StageStatus:
        """The same as a value."""
        return StageStatus(
            self.name, self.refreshed_at_s, self.duration_s, self.errors, self.last_error
        )


@attrs.frozen(eq=False)
class _Look:
    """What one refresh has seen, for the stages that come after."""

    views: tuple[ContainerView, ...]
    sample: NvmlSample | None
    rows: tuple[NodeProcess, ...]
    identities: dict[Container, Identity]


class Refresher:
    """Keeps a `Background` up to date.

    Threads: may be shared; refreshes take turns.

    Args:
        node: The node.
        sampler: Asks the driver; None does not.
        node_name: For the series of GPUs.
        legacy: Whether to make series under former names too.
        doctor: Whether to look for what is wrong.
        intervals_s: Between scans for containers, looks at processes, and diagnoses.
        gone_after_s: As `GoneContainers` has it.
        bounds: How many series there may be.
        ledger: Bounds what containers may write into labels.

    Attributes:
        background: What the last refresh found; replaced as a whole.
        nvml: The driver's last answer and its version.
        stages: The parts of the work.
    """

    def __init__(
        self,
        node: Node,
        *,
        sampler: NvmlSampler | None,
        node_name: str,
        legacy: bool,
        doctor: bool,
        intervals_s: tuple[float, float, float],
        gone_after_s: float | None,
        bounds: Bounds,
        ledger: LabelLedger,
    ) -> None:
        for interval_s in intervals_s:
            if not interval_s > 0:
                raise ValueError(f"an interval is longer than 0 s, not {interval_s!r}")
        self._node = node
        self._driver = None if sampler is None else TimeoutSampler(sampler, _DRIVER_PATIENCE_S)
        self._node_name = node_name
        self._legacy = legacy
        self._bounds = bounds
        self._ledger = ledger
        self._gone = GoneContainers(node, gone_after_s)
        self._scan, self._look, self._doctor = (
            Stage(name, interval_s)
            for name, interval_s in zip(
                ("containers", "processes", "doctor"), intervals_s, strict=True
            )
        )
        self.stages = [self._scan, self._look, *([self._doctor] if doctor else [])]
        self.background = Background()
        self._stopped: tuple[Background, Background] = (self.background, self.background)
        self.nvml: tuple[str | None, str | None] = (None, None)
        self._passing: set[tuple[object, ...]] = set()
        self._unreadable: dict[str, str] = {}
        self._turn = threading.Lock()
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()

    def current(self) -> Background:
        """`background`, without what has not been looked at for too long: nothing holds for ever.

        Names and container ids stay.
        """
        background = self.background
        now_s = time.monotonic()
        patience_s = {each.name: each.patience_s for each in self.stages}
        patience_s[_DRIVER] = self._look.patience_s
        series = {
            stage: (made_s, made)
            for stage, (made_s, made) in background.series.items()
            if now_s - made_s <= patience_s[stage]
        }
        if len(series) == len(background.series):
            return background
        if self._look.name in series:
            return attrs.evolve(background, series=series)
        before, stopped = self._stopped
        if before is not background or stopped.series.keys() != series.keys():
            # Pids may be others' by now. Made once: scrapes keep what has not changed.
            stopped = attrs.evolve(background, series=series, processes={}, held={})
            self._stopped = background, stopped
        return stopped

    @property
    def done_once(self) -> bool:
        """Whether everything has been looked at once, with success or without."""
        return self._done.is_set()

    @property
    def is_running(self) -> bool:
        """Whether the thread is at it."""
        return self._thread is not None

    def wait_for_first(self) -> None:
        """Wait until the thread has looked at everything once, for some seconds at most."""
        self._done.wait(_FIRST_LOOK_PATIENCE_S)

    def start(self) -> None:
        """Refresh in a thread from now on; nothing happens if one is at it."""
        if self._thread is not None:
            return
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=self._keep_on, args=(self._stopping,), name="hamiregion-refresh", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End that thread and wait for it."""
        self._stopping.set()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(_STOP_PATIENCE_S)

    def _keep_on(self, stopping: threading.Event) -> None:
        while not stopping.is_set():
            self.refresh(everything=False)
            left_s = min(stage.due_s for stage in self.stages) - time.monotonic()
            stopping.wait(max(_NAP_S, left_s))

    def refresh(self, *, everything: bool) -> None:
        """Do what is due, or all of it. What fails is counted and tried again at its next turn."""
        with self._turn:
            now = time.monotonic()
            due = [stage for stage in self.stages if everything or stage.due_s <= now]
            look = None
            if self._look in due or self._doctor in due:
                look = self._run(self._look, self._look_at_processes)
            if look is None and self._scan in due:
                self._run(self._scan, self._find_containers)
            if look is not None and self._doctor in due:
                seen = look
                self._run(self._doctor, lambda: self._diagnose(seen))
            if due:
                self._say_roots()
                self._done.set()

    def _run(self, stage: Stage, work: Callable[[], _Look | None]) -> _Look | None:
        started_s = time.monotonic()
        result = None
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 (whatever it is, scrapes go on with what is known)
            stage.failed(error)
        else:
            stage.succeeded()
        ended_s = time.monotonic()
        stage.duration_s = ended_s - started_s
        stage.due_s = ended_s + stage.interval_s
        return result

    def _say_roots(self) -> None:
        """Log which directories of containers cannot be listed, when that has changed."""
        unreadable = {
            root: printable(str(error), _MESSAGE_LIMIT)
            for root, error in self._node.root_errors.items()
        }
        for root, error in unreadable.items():
            if self._unreadable.get(root) != error:
                _log.warning("containers: %s; those there are not seen", error)
        for root in self._unreadable.keys() - unreadable.keys():
            _log.info("containers: %s can be listed again", printable(root, _MESSAGE_LIMIT))
        self._unreadable = unreadable

    # ---- the stages ------------------------------------------------------------------------------

    def _find_containers(self) -> None:
        self._node.refresh(processes=False)
        self._name(self._node.containers)

    def _name(self, containers: Sequence[Container]) -> dict[Container, Identity]:
        before = self.background.identities
        identities = identities_of(self._node, containers, before, self._ledger)
        if not _same(identities, before):
            self.background = attrs.evolve(self.background, identities=identities)
        return identities

    def _look_at_processes(self) -> _Look:
        node = self._node
        # The driver first: what uses a GPU has its slot by the time the regions are read.
        sample = None if self._driver is None else self._driver.sample()
        self._tell_of_driver(sample)
        views = node.view()
        self._scan.succeeded()
        self._scan.due_s = time.monotonic() + self._scan.interval_s
        rows = node_processes(views, node.processes, sample)
        identities = self._name([view.container for view in views])
        named = frozenset(each for each, identity in identities.items() if identity.is_named)
        gone = frozenset(self._gone.among(views, named))
        hidden = gone | shadowed(identities)
        by_container: defaultdict[Container, list[NodeProcess]] = defaultdict(list)
        for row in rows:
            if row.container is not None:
                by_container[row.container].append(row)
        ids = container_ids_of(rows)
        before = self.background
        shown = shown_processes(
            {each: found for each, found in by_container.items() if each not in hidden},
            identities,
            ids,
            before.processes,
            self._bounds,
            self._ledger,
        )
        told = [view for view in views if view.container not in hidden]
        unplaced = unplaced_processes(node, rows, sample)
        series = [
            *container_series(told, by_container, identities, shown, self._ledger, unplaced),
            *process_series(by_container, shown),
            *unaccounted_series(node, rows, identities, self._bounds, self._ledger),
        ]
        if sample is not None:
            series += mig_series(sample, told, identities, legacy=self._legacy)
        self._ledger.keep(
            identities.values(), (row.process for row in rows if row.process is not None)
        )
        background = attrs.evolve(
            before,
            container_ids=before.container_ids if _same(ids, before.container_ids) else ids,
            processes=before.processes if _same(shown, before.processes) else shown,
            gone=before.gone if gone == before.gone else gone,
            held=held_locks(node, before.held),
        )
        self.background = background.with_series("processes", series)
        return _Look(views, sample, rows, identities)

    def _tell_of_driver(self, sample: NvmlSample | None) -> None:
        """What the driver says holds whatever comes after it."""
        if self._driver is None:
            return
        series = nvml_series(sample, self.nvml[1])
        if sample is not None:
            series += host_series(sample, self._node_name, legacy=self._legacy)
            self.nvml = (sample.state.value, sample.driver_version)
        else:
            self.nvml = (NO_ANSWER, self.nvml[1])
        self.background = self.background.with_series(_DRIVER, series)

    def _diagnose(self, look: _Look) -> None:
        findings = diagnose(
            self._node, sample=look.sample, views=look.views, rows=look.rows, settle_s=0
        )
        hidden = self.background.gone | shadowed(look.identities)
        series = finding_series(
            self._believed(findings),
            [view for view in look.views if view.container not in hidden],
            look.identities,
            self._ledger,
        )
        self.background = self.background.with_series("doctor", series)

    def _believed(self, findings: Sequence[Finding]) -> list[Finding]:
        """Without what can be there for a moment on a healthy node and was not there last time."""
        before, self._passing = self._passing, set()
        believed = []
        for finding in findings:
            if finding.kind.explanation.passes:
                key = (finding.kind, finding.container, finding.device, finding.pid)
                self._passing.add(key)
                if key not in before:
                    continue
            believed.append(finding)
        return believed


def _same(one: Mapping[Container, object], other: Mapping[Container, object]) -> bool:
    """Whether two mappings hold the very same objects, or equal texts."""
    return one.keys() == other.keys() and all(
        value is other[key] or (isinstance(value, str) and value == other[key])
        for key, value in one.items()
    )

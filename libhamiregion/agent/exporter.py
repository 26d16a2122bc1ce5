"""The exporter: what is refreshed behind the scrapes, what a scrape reads, and the text of both."""

from __future__ import annotations

import contextlib
import os
import platform
import threading
import time
from collections import defaultdict
from typing import TYPE_CHECKING

import attrs

from libhamiregion import __version__
from libhamiregion.host.usage import node_processes
from libhamiregion.text import printable

from . import metrics
from .background import (
    Background,
    Bounds,
    container_ids_of,
    container_series,
    driver_is_known,
    finding_series,
    held_locks,
    process_series,
    shown_processes,
)
from .driver_series import host_series, mig_series, nvml_series, unaccounted_series
from .figures import Figures
from .labels import LabelMaker, safe_value
from .naming import identities_of, shadowed
from .rendering import Series, Sheet, steady

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from types import TracebackType

    from typing_extensions import Self

    from libhamiregion.host import Container, ContainerView, Node, NvmlSample, NvmlSampler
    from libhamiregion.host.usage import NodeProcess

    from .naming import Identity

_MESSAGE_LIMIT = 500
_ROOTS_LIMIT = 64
_STOP_PATIENCE_S = 10.0

_nothing = LabelMaker(metrics.SCRAPES)
_stage = LabelMaker(metrics.ERRORS)
_root = LabelMaker(metrics.ROOT_READABLE)
_containers = LabelMaker(metrics.CONTAINERS)
_build = LabelMaker(metrics.BUILD)
_hami_build = LabelMaker(metrics.HAMI_BUILD)


@attrs.frozen
class StageStatus:
    """One part of the work behind the scrapes.

    Attributes:
        name: ``containers``, ``processes``, ``doctor`` or ``scrape``.
        refreshed_at_s: When it last succeeded, Unix seconds; None if it never has.
        duration_s: How long it took the last time; None if it never ran.
        errors: How often it has failed.
        last_error: The message of the last failure, escaped; None if there was none.
    """

    name: str
    refreshed_at_s: float | None = None
    duration_s: float | None = None
    errors: int = 0
    last_error: str | None = None


@attrs.frozen
class ExporterStatus:
    """How an exporter is: for a page that people look at. Texts from outside are escaped.

    Attributes:
        version: Of this library.
        node_name: What the series call the node.
        ready: Whether the node has been looked at once, so that scrapes are complete.
        roots: The directories that it watches, as given.
        root_errors: Those that cannot be listed, with the reason.
        with_region: Containers whose figures are exported.
        missing: Reason to number of the containers whose figures are not.
        nvml: The driver's last answer, a `NvmlState`'s value; None where it is not asked.
        driver_version: The driver's version, None where it is not known.
        legacy: Whether the monitor's former names are exported too.
        scrapes: How many there have been.
        stages: The parts of the work.
    """

    version: str
    node_name: str
    ready: bool
    roots: tuple[str, ...]
    root_errors: tuple[tuple[str, str], ...]
    with_region: int
    missing: Mapping[str, int]
    nvml: str | None
    driver_version: str | None
    legacy: bool
    scrapes: int
    stages: tuple[StageStatus, ...]


@attrs.define(eq=False)
class _Stage:
    """One part of the work, and how it went."""

    name: str
    interval_s: float
    due_s: float = 0.0
    refreshed_at_s: float | None = None
    duration_s: float | None = None
    errors: int = 0
    last_error: str | None = None

    def status(self) -> StageStatus:
        return StageStatus(
            self.name, self.refreshed_at_s, self.duration_s, self.errors, self.last_error
        )


@attrs.define(eq=False)
class _Look:
    """What one refresh has seen, for the stages that come after."""

    views: tuple[ContainerView, ...]
    sample: NvmlSample | None
    rows: tuple[NodeProcess, ...]
    identities: dict[Container, Identity]


class NodeExporter:
    """All metrics of one node.

        with Node() as node, NvmlSampler(sensors=True) as sampler:
            with NodeExporter(node, sampler=sampler) as exporter:
                text = exporter.render()

    A scrape reads all regions in one native call and writes their figures into lines that are kept
    from one scrape to the next. What costs more is done behind it, in a thread of this object's own
    between `start` and `stop`: finding containers, /proc, NVML and the doctor's findings. Without
    that thread, a scrape does what is due itself.

    Threads: may be shared; scrapes take turns, and do not wait for a refresh but for the short time
    in which the node's regions change. The node may be refreshed by others as well. Node and
    sampler stay the caller's, who closes them after `stop`.

    Args:
        node: The node.
        sampler: Asks the driver; None leaves its figures out.
        node_name: The value of ``node`` in HAMi's metrics of GPUs; None means ``$NODE_NAME``, else
            the host's name.
        legacy: Whether to export the former names of HAMi's monitor as well.
        doctor: Whether to look for what is wrong with the regions.
        scan_interval_s: How often to look for containers that came or went.
        process_interval_s: How often to read /proc and to ask the driver.
        doctor_interval_s: How often to look for what is wrong.
        bounds: How many series there may be.
    """

    def __init__(
        self,
        node: Node,
        *,
        sampler: NvmlSampler | None = None,
        node_name: str | None = None,
        legacy: bool = False,
        doctor: bool = True,
        scan_interval_s: float = 5.0,
        process_interval_s: float = 10.0,
        doctor_interval_s: float = 30.0,
        bounds: Bounds | None = None,
    ) -> None:
        for interval_s in (scan_interval_s, process_interval_s, doctor_interval_s):
            if not interval_s > 0:
                raise ValueError(f"an interval is longer than 0 s, not {interval_s!r}")
        self.node = node
        self.node_name = node_name or os.environ.get("NODE_NAME") or os.uname().nodename
        self.legacy = legacy
        self._sampler = sampler
        self._bounds = bounds or Bounds()
        self._scan = _Stage("containers", scan_interval_s)
        self._look = _Stage("processes", process_interval_s)
        self._doctor = _Stage("doctor", doctor_interval_s)
        self._stages = [self._scan, self._look, *([self._doctor] if doctor else [])]
        self._scrape = _Stage("scrape", 0.0)

        # Held while something is refreshed; nobody waits for it but who refreshes too.
        self._refreshing = threading.RLock()
        self._background = Background()
        self._nvml: tuple[str | None, str | None] = (None, None)
        self._ready = threading.Event()

        # Held while a scrape is made.
        self._scraping = threading.Lock()
        self._figures = Figures(node, legacy=legacy)
        self._sheet = Sheet()
        self._scrapes = 0
        self._scrape_seconds = 0.0
        self._builds = self._build_series()

        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<NodeExporter of {self.node!r}>"

    # ---- the work behind the scrapes -------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether the node has been looked at once."""
        return self._ready.is_set()

    def start(self) -> None:
        """Refresh in a thread from now on; nothing happens if one is at it."""
        if self._thread is not None and self._thread.is_alive():
            return
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=self._keep_refreshing, args=(self._stopping,), name="hamiregion-refresh"
        )
        self._thread.daemon = True
        self._thread.start()

    def stop(self) -> None:
        """End that thread and wait for it; may be called again, and `start` after it."""
        self._stopping.set()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(_STOP_PATIENCE_S)

    def close(self) -> None:
        """The same as `stop`: node and sampler are the caller's."""
        self.stop()

    def _keep_refreshing(self, stopping: threading.Event) -> None:
        while not stopping.is_set():
            self._refresh(everything=False)
            wait_s = min(stage.due_s for stage in self._stages) - time.monotonic()
            stopping.wait(max(0.05, wait_s))

    def refresh(self) -> None:
        """Look at everything now: containers, processes, driver, what is wrong.

        What fails is counted, kept in `status`, and tried again at its next turn.
        """
        self._refresh(everything=True)

    def _refresh(self, *, everything: bool) -> None:
        with self._refreshing:
            now = time.monotonic()
            due = [stage for stage in self._stages if everything or stage.due_s <= now]
            look: _Look | None = None
            if self._look in due or self._doctor in due:
                look = self._run(self._look, self._look_at_processes)
            elif self._scan in due:
                self._run(self._scan, self._find_containers)
            if self._doctor in due and look is not None:
                seen = look
                self._run(self._doctor, lambda: self._diagnose(seen))
            if due:
                self._ready.set()

    def _run(self, stage: _Stage, work: Callable[[], _Look | None]) -> _Look | None:
        started = time.monotonic()
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 (whatever it is, scrapes go on with what is known)
            stage.errors += 1
            stage.last_error = printable(f"{type(error).__name__}: {error}", _MESSAGE_LIMIT)
            result = None
        else:
            stage.refreshed_at_s = time.time()
        ended = time.monotonic()
        stage.duration_s = ended - started
        stage.due_s = ended + stage.interval_s
        return result

    def _find_containers(self) -> None:
        self.node.refresh(processes=False)
        self._name(self.node.containers)

    def _name(self, containers: Sequence[Container]) -> dict[Container, Identity]:
        before = self._background.identities
        identities = identities_of(self.node, containers, before)
        if not _same(identities, before):
            self._background = attrs.evolve(self._background, identities=identities)
        return identities

    def _look_at_processes(self) -> _Look:
        # The driver first: what uses a GPU has its slot by the time the regions are read.
        sample = None if self._sampler is None else self._sampler.sample()
        views = self.node.view()
        self._scan.refreshed_at_s = time.time()
        self._scan.due_s = time.monotonic() + self._scan.interval_s
        rows = node_processes(views, self.node.processes, sample)
        identities = self._name([view.container for view in views])
        before = self._background
        by_container: defaultdict[Container, list[NodeProcess]] = defaultdict(list)
        hidden = shadowed(identities)
        for row in rows:
            if row.container is not None:
                by_container[row.container].append(row)
        ids = container_ids_of(rows)
        shown = shown_processes(
            {each: found for each, found in by_container.items() if each not in hidden},
            identities,
            ids,
            before.processes,
            self._bounds,
        )
        driver_known = driver_is_known(self.node, sample)
        series = [
            *nvml_series(sample),
            *container_series(views, by_container, identities, shown, driver_known=driver_known),
            *process_series(by_container, shown),
            *unaccounted_series(self.node, rows, identities, self._bounds),
        ]
        if sample is not None:
            series += host_series(sample, self.node_name, legacy=self.legacy)
            series += mig_series(sample, views, identities, legacy=self.legacy)
            self._nvml = (sample.state.value, sample.driver_version)
        background = attrs.evolve(
            before,
            identities=self._background.identities,
            container_ids=before.container_ids if _same(ids, before.container_ids) else ids,
            processes=before.processes if _same(shown, before.processes) else shown,
            held=held_locks(self.node, before.held),
        )
        self._background = background.with_series("processes", series)
        return _Look(views, sample, rows, identities)

    def _diagnose(self, look: _Look) -> None:
        from libhamiregion.host.doctor import diagnose

        findings = diagnose(self.node, sample=look.sample, views=look.views)
        series = finding_series(findings, look.views, look.identities)
        self._background = self._background.with_series("doctor", series)

    # ---- a scrape --------------------------------------------------------------------------------

    def render(self, *, openmetrics: bool = False, names: Collection[str] | None = None) -> bytes:
        """All metrics as text: Prometheus's format 0.0.4, or OpenMetrics 1.0.

        Regions that cannot be read have no figures and a series that says why.

        Args:
            openmetrics: Which of the two.
            names: Only the families of these names; None means all.

        Raises:
            RegionClosed: The node has been closed.
        """
        return b"".join(self.render_parts(openmetrics=openmetrics, names=names))

    def render_parts(
        self, *, openmetrics: bool = False, names: Collection[str] | None = None
    ) -> list[bytes]:
        """The same in parts, which make the text when put together.

        Most parts are kept for the next scrape: a server that sends them one by one spares the
        memory for a second copy.

        Args:
            openmetrics: As for `render`.
            names: As for `render`.

        Raises:
            RegionClosed: The node has been closed.
        """
        self._refresh_if_nobody_does()
        with self._scraping, self._timed():
            return self._sheet.render(self._gather(names), openmetrics=openmetrics)

    def gather(self, names: Collection[str] | None = None) -> list[Series]:
        """The same as values: the series of each family, in the catalogue's order.

        Args:
            names: As for `render`.

        Raises:
            RegionClosed: The node has been closed.
        """
        self._refresh_if_nobody_does()
        with self._scraping, self._timed():
            return self._gather(names)

    def _refresh_if_nobody_does(self) -> None:
        if self._thread is None or not self._ready.is_set():
            self._refresh(everything=False)

    @contextlib.contextmanager
    def _timed(self) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        except Exception as error:
            self._scrape.errors += 1
            self._scrape.last_error = printable(f"{type(error).__name__}: {error}", _MESSAGE_LIMIT)
            raise
        else:
            self._scrape.refreshed_at_s = time.time()
        finally:
            self._scrape.duration_s = time.perf_counter() - started
            self._scrapes += 1
            self._scrape_seconds += self._scrape.duration_s

    def _gather(self, names: Collection[str] | None) -> list[Series]:
        background = self._background
        snapshot = self.node.snapshot()
        wanted = [
            family for family in metrics.CATALOGUE if names is None or family.name in names
        ]
        fresh = self._figures.series(snapshot, background, int(time.time()), set(wanted))
        behind = [each for stage in background.series.values() for each in stage]
        found = {
            series.family: series
            for series in (*self._builds, *behind, *fresh, *self._own_series())
        }
        return [found[family] for family in wanted if family in found]

    def _build_series(self) -> list[Series]:
        machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, "")
        system = f"linux/{machine}" if machine else ""
        version = f"libhamiregion {__version__}"
        return [
            steady(metrics.HAMI_BUILD, [(_hami_build(version, "", "", "", "", system), 1)]),
            steady(metrics.BUILD, [(_build(__version__, platform.python_version()), 1)]),
        ]

    def _own_series(self) -> list[Series]:
        node = self.node
        roots = dict.fromkeys(node.scanned_roots, 1)
        roots.update(dict.fromkeys(node.root_errors, 0))
        stages = self._stages
        return [
            steady(
                metrics.CONTAINERS,
                [
                    (_containers("present"), self._figures.shown),
                    (_containers("missing"), sum(self._figures.missing.values())),
                ],
            ),
            steady(
                metrics.ROOT_READABLE,
                [(_root(safe_value(root)), up) for root, up in list(roots.items())[:_ROOTS_LIMIT]],
            ),
            steady(metrics.PROC_COMPLETE, [(_nothing(), int(node.processes.is_complete))]),
            steady(
                metrics.REFRESH_DURATION,
                [(_stage(each.name), each.duration_s) for each in stages if each.duration_s],
            ),
            steady(
                metrics.REFRESH_TIME,
                [
                    (_stage(each.name), each.refreshed_at_s)
                    for each in stages
                    if each.refreshed_at_s is not None
                ],
            ),
            steady(
                metrics.ERRORS,
                [(_stage(each.name), each.errors) for each in (*stages, self._scrape)],
            ),
            steady(metrics.SCRAPES, [(_nothing(), self._scrapes)]),
            steady(metrics.SCRAPE_SECONDS, [(_nothing(), self._scrape_seconds)]),
            steady(metrics.SCRAPE_DURATION, [(_nothing(), self._scrape.duration_s or 0.0)]),
        ]

    # ---- for people ------------------------------------------------------------------------------

    def status(self) -> ExporterStatus:
        """How the exporter is, for a page; figures of containers are the last scrape's."""
        nvml, driver_version = self._nvml
        return ExporterStatus(
            version=__version__,
            node_name=printable(self.node_name, _MESSAGE_LIMIT),
            ready=self.ready,
            roots=tuple(printable(root, _MESSAGE_LIMIT) for root in self.node.roots),
            root_errors=tuple(
                (printable(root, _MESSAGE_LIMIT), printable(str(error), _MESSAGE_LIMIT))
                for root, error in list(self.node.root_errors.items())[:_ROOTS_LIMIT]
            ),
            with_region=self._figures.shown,
            missing=self._figures.missing,
            nvml=nvml,
            driver_version=None if driver_version is None else printable(driver_version, 100),
            legacy=self.legacy,
            scrapes=self._scrapes,
            stages=tuple(stage.status() for stage in (*self._stages, self._scrape)),
        )


def _same(one: Mapping[Container, object], other: Mapping[Container, object]) -> bool:
    """Whether two mappings hold the very same objects, or equal texts."""
    return one.keys() == other.keys() and all(
        value is other[key] or (isinstance(value, str) and value == other[key])
        for key, value in one.items()
    )

"""The exporter: what a scrape reads, put together with what has been found out behind it."""

from __future__ import annotations

import contextlib
import os
import platform
import threading
import time
from typing import TYPE_CHECKING

from libhamiregion import __version__
from libhamiregion.text import printable

from . import metrics
from .background import Bounds
from .figures import Figures
from .label_ledger import LabelLedger
from .labels import LabelMaker, safe_value
from .refreshing import Refresher, Stage
from .rendering import Series, Sheet, steady
from .status import ExporterStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from types import TracebackType

    from typing_extensions import Self

    from libhamiregion.exporter.landing import LandingFacts
    from libhamiregion.node import Node, NvmlSampler

_TEXT_LIMIT = 500
_ROOTS_LIMIT = 64
_COUNTERS_LIMIT = 256
_PAUSED = "_paused"

_nothing = LabelMaker(metrics.SCRAPES)
_stage = LabelMaker(metrics.ERRORS)
_root = LabelMaker(metrics.ROOT_READABLE)
_containers = LabelMaker(metrics.CONTAINERS)
_build = LabelMaker(metrics.BUILD)
_hami_build = LabelMaker(metrics.HAMI_BUILD)
_event = LabelMaker(metrics.AGENT_EVENTS)
_task = LabelMaker(metrics.AGENT_PAUSED)


class NodeExporter:
    """All metrics of one node.

        with Node() as node, NvmlSampler(sensors=True) as sampler:
            with NodeExporter(node, sampler=sampler) as exporter:
                text = exporter.render()

    A scrape reads all regions in one native call and writes their figures into lines that are kept
    from one scrape to the next. What costs more is done behind it, in a thread of this object's own
    between `start` and `stop`: finding containers, /proc, NVML and the doctor's findings. Without
    that thread, a scrape does what is due itself.

    Threads: may be shared; scrapes take turns, and wait for a refresh only while the node's regions
    are listed and its processes are read. The node may be refreshed by others as well. Node and
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
        gone_after_s: A directory that has been left alone for so long, that no process uses and
            whose pod no resolver knows any more, has no figures: HAMi's monitor would delete it.
            None shows them all.
        counters: What an agent in this program counts, by name; asked at each scrape. Names that
            end in ``_paused`` are 0 or 1.
        bounds: How many series there may be.

    Raises:
        ValueError: An interval that is not above 0.
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
        gone_after_s: float | None = 300.0,
        counters: Callable[[], Mapping[str, int]] | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        self.node = node
        self.node_name = node_name or os.environ.get("NODE_NAME") or os.uname().nodename
        self.legacy = legacy
        self._counters = counters
        ledger = LabelLedger()
        self._refresher = Refresher(
            node,
            ledger=ledger,
            sampler=sampler,
            node_name=self.node_name,
            legacy=legacy,
            doctor=doctor,
            intervals_s=(scan_interval_s, process_interval_s, doctor_interval_s),
            gone_after_s=gone_after_s,
            bounds=bounds or Bounds(),
        )
        self._scrape = Stage("scrape", 0.0)
        # Held while a scrape is made.
        self._turn = threading.Lock()
        self._figures = Figures(node, legacy=legacy, ledger=ledger)
        self._sheet = Sheet()
        self._scrapes = 0
        self._scrape_seconds = 0.0
        self._builds = _build_series()

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

    def start(self) -> None:
        """Refresh in a thread from now on; nothing happens if one is at it."""
        self._refresher.start()

    def stop(self) -> None:
        """End that thread and wait for it; may be called again, and `start` after it."""
        self._refresher.stop()

    def refresh(self) -> None:
        """Look at everything now: containers, processes, driver, what is wrong.

        What fails is counted, kept in `status`, and tried again at its next turn.
        """
        self._refresher.refresh(everything=True)

    def not_ready(self) -> str | None:
        """Why scrapes are not complete yet, or not any more: a short reason; None if they are.

        Waits for nothing.
        """
        if not self._refresher.done_once:
            return "the node has not been looked at yet"
        never = [each for each in self._refresher.stages[:2] if each.refreshed_at_s is None]
        if never:
            return f"{never[0].name}: {never[0].last_error}"
        for stage in self._refresher.stages[:2] if self._refresher.is_running else ():
            overdue_s = stage.overdue_s()
            if overdue_s is not None:
                return f"{stage.name}: not looked at for {overdue_s:.0f} s; {stage.last_error}"
        if self.node.scanned_roots:
            return None
        for root, error in self.node.root_errors.items():
            return f"no directory of containers can be listed; {_short(root)}: {_short(error)}"
        if self.node.containers:
            return None
        return f"there is none of {_short(', '.join(self.node.roots))}, and no region elsewhere"

    # ---- a scrape --------------------------------------------------------------------------------

    def render(self, openmetrics: bool = False, *, names: Collection[str] | None = None) -> bytes:
        """All metrics as text: Prometheus's format 0.0.4, or OpenMetrics 1.0.

        Regions that cannot be read have no figures and a series that says why.

        Args:
            openmetrics: Which of the two.
            names: Only the families of these names; None means all.

        Raises:
            RegionClosed: The node has been closed.
        """
        return b"".join(self.render_parts(openmetrics, names=names))

    def render_parts(
        self, openmetrics: bool = False, *, names: Collection[str] | None = None
    ) -> list[bytes]:
        """The same in parts, which make the text when put together.

        Many parts are kept for the next scrape: a server that sends them one by one spares the
        memory for a second copy.

        Args:
            openmetrics: As for `render`.
            names: As for `render`.

        Raises:
            RegionClosed: The node has been closed.
        """
        self._refresh_if_nobody_does()
        with self._turn, self._timed():
            return self._sheet.render(self._gather(names), openmetrics=openmetrics)

    def gather(self, names: Collection[str] | None = None) -> list[Series]:
        """The same as values: the series of each family, in the catalogue's order.

        Args:
            names: As for `render`.

        Raises:
            RegionClosed: The node has been closed.
        """
        self._refresh_if_nobody_does()
        with self._turn, self._timed():
            return self._gather(names)

    def _refresh_if_nobody_does(self) -> None:
        if not self._refresher.is_running:
            self._refresher.refresh(everything=False)
        elif not self._refresher.done_once:
            self._refresher.wait_for_first()

    @contextlib.contextmanager
    def _timed(self) -> Iterator[None]:
        scrape = self._scrape
        started_s = time.perf_counter()
        try:
            yield
        except Exception as error:
            scrape.failed(error)
            raise
        else:
            scrape.succeeded()
        finally:
            scrape.duration_s = time.perf_counter() - started_s
            self._scrapes += 1
            self._scrape_seconds += scrape.duration_s

    def _gather(self, names: Collection[str] | None) -> list[Series]:
        background = self._refresher.current()
        snapshot = self.node.snapshot()
        wanted = [family for family in metrics.CATALOGUE if names is None or family.name in names]
        fresh = self._figures.series(snapshot, background, int(time.time()), set(wanted))
        behind = [each for _, stage in background.series.values() for each in stage]
        found = {
            series.family: series
            for series in (*self._builds, *behind, *fresh, *self._of_node(), *self._of_agent())
        }
        return [found[family] for family in wanted if family in found]

    def _of_node(self) -> list[Series]:
        node = self.node
        # Of the usual ones one is enough.
        roots = dict.fromkeys(node.scanned_roots, 1) or dict.fromkeys(node.roots, 0)
        roots.update(dict.fromkeys(dict(node.root_errors), 0))
        stages = self._refresher.stages
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
                [
                    (_stage(each.name), each.duration_s)
                    for each in stages
                    if each.duration_s is not None
                ],
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

    def _of_agent(self) -> list[Series]:
        counted = {} if self._counters is None else dict(self._counters())
        events, paused = [], []
        for name, count in sorted(counted.items())[:_COUNTERS_LIMIT]:
            if name.endswith(_PAUSED):
                paused.append((_task(safe_value(name.removesuffix(_PAUSED))), count))
            else:
                events.append((_event(safe_value(name)), count))
        return [steady(metrics.AGENT_EVENTS, events), steady(metrics.AGENT_PAUSED, paused)]

    # ---- for people ------------------------------------------------------------------------------

    def status(self) -> ExporterStatus:
        """How the exporter is; figures of containers are the last scrape's. Waits for nothing."""
        nvml, driver_version = self._refresher.nvml
        errors = list(dict(self.node.root_errors).items())[:_ROOTS_LIMIT]
        return ExporterStatus(
            version=__version__,
            node_name=_short(self.node_name),
            ready=self.not_ready() is None,
            roots=tuple(_short(root) for root in self.node.roots),
            root_errors=tuple((_short(root), _short(error)) for root, error in errors),
            with_region=self._figures.shown,
            missing=self._figures.missing,
            nvml=nvml,
            driver_version=None if driver_version is None else _short(driver_version),
            legacy=self.legacy,
            scrapes=self._scrapes,
            stages=tuple(stage.status() for stage in (*self._refresher.stages, self._scrape)),
        )

    def landing(self) -> LandingFacts:
        """The same as rows for a page."""
        return self.status().landing()


def _short(text: object) -> str:
    return printable(str(text), _TEXT_LIMIT)


def _build_series() -> list[Series]:
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, "")
    system = f"linux/{machine}" if machine else ""
    # No HAMi is here: its version cannot be told, and Go has not built this.
    version = f"libhamiregion {__version__}"
    return [
        steady(metrics.HAMI_BUILD, [(_hami_build(version, "", "", "", "", system), 1)]),
        steady(metrics.BUILD, [(_build(__version__, platform.python_version()), 1)]),
    ]

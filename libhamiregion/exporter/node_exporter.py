"""The exporter: what a scrape reads, put together with what has been found out behind it."""

from __future__ import annotations

import logging
import os
import platform
import threading
import time
from array import array
from functools import lru_cache
from typing import TYPE_CHECKING

from libhamiregion import __version__
from libhamiregion.node.observation import Observer
from libhamiregion.text import error_text, printable

from . import families
from .collectors import (
    COLLECTORS,
    ContainersCollector,
    DoctorCollector,
    LocksCollector,
    NvmlCollector,
    ProcessesCollector,
    UnaccountedCollector,
)
from .labels import NO_LABELS, CardinalityLimiter, label_text, safe_value
from .legacy import former_series, with_sources
from .log_lines import LINE_LIMIT, RepeatedEvents
from .overview import PAGE_INTERVAL_S, Overview, make_overview
from .region_metrics import RegionMetrics
from .schedule import Schedule, ScheduledCollector
from .text import Series, TextEncoder

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from typing_extensions import Self

    from libhamiregion.node import Node, NvmlSampler

    from .families import MetricFamily

_log = logging.getLogger(__name__)

#: Versions of HAMi whose labels of GPUs differ; the last is the default.
HAMI_VERSIONS = ("2.10", "2.11")

_ROOTS_LIMIT = 64
_COUNTERS_LIMIT = 256
_PAUSED = "_paused"
_DOCTOR_INTERVALS = 6


class NodeExporter:
    """All metrics of one node.

        with Node() as node, NvmlSampler(sensors=True) as sampler:
            with NodeExporter(node, sampler=sampler) as exporter:
                text = exporter.render()

    A scrape reads all regions in one native call and writes their figures beside label texts that
    are kept from one scrape to the next. What costs more is done behind it, in a thread of this
    object's own between `start` and `stop`: finding containers, /proc, NVML and the doctor's
    findings. Without that thread, a scrape does what is due itself. Where nobody has asked for
    metrics for two minutes the thread sleeps, and the next scrape waits for its look.

    Threads: may be shared. The node may be refreshed by others as well. Node and sampler
    stay the caller's, who closes them after `stop`.

    Args:
        node: The node.
        sampler: Asks the driver; None leaves its figures out.
        node_name: The value of ``node`` in HAMi's metrics of GPUs; None means ``$NODE_NAME``, else
            the host's name.
        legacy: Whether to export the former names of HAMi's monitor as well.
        hami_version: Whose labels the metrics of GPUs have, one of `HAMI_VERSIONS`.
        collectors: Of ``nvml``, ``processes``, ``unaccounted``, ``locks`` and ``doctor`` those that
            work; None means all. HAMi's own metrics need ``nvml`` alone.
        interval_s: How often to look for containers, at slots, locks and the driver; what is wrong
            is looked for at every third time.
        gone_after_s: A directory that has been left alone for so long, that no process uses and
            whose pod no resolver knows any more, has no figures: HAMi's monitor would delete it.
            None shows them all.
        counters: What an agent in this program counts, by name; asked at each scrape. Names that
            end in ``_paused`` are 0 or 1. Where that fails, a scrape is without them.
        observer: What others in this program observe the node with: their observations serve here
            too, if they are no older than `interval_s`, and the driver is asked if it asks it. None
            makes one of `node` and `sampler`.

    Raises:
        ValueError: An interval that is not above 0, or a collector that there is not.
    """

    def __init__(
        self,
        node: Node,
        *,
        sampler: NvmlSampler | None = None,
        node_name: str | None = None,
        legacy: bool = False,
        hami_version: str = HAMI_VERSIONS[-1],
        collectors: Collection[str] | None = None,
        interval_s: float = 10.0,
        gone_after_s: float | None = 300.0,
        counters: Callable[[], Mapping[str, int]] | None = None,
        observer: Observer | None = None,
    ) -> None:
        chosen = COLLECTORS if collectors is None else collectors
        for name in chosen:
            if name not in COLLECTORS:
                raise ValueError(f"no collector {name!r}; there are {', '.join(COLLECTORS)}")
        if hami_version not in HAMI_VERSIONS:
            raise ValueError(f"no labels of HAMi {hami_version!r}; {' or '.join(HAMI_VERSIONS)}")
        self.node = node
        self.node_name = node_name or os.environ.get("NODE_NAME") or os.uname().nodename
        self.legacy = legacy
        self._counters = counters
        limiter = CardinalityLimiter()
        # The first takes an observation, and those after it share that.
        own = Observer(node, sampler=sampler if "nvml" in chosen else None)
        observer = observer or own
        with_slots = not {"processes", "unaccounted", "doctor"}.isdisjoint(chosen)
        self._observer = observer
        self._interval_s = interval_s
        self._with_slots = with_slots
        self._containers = ContainersCollector(
            observer,
            limiter,
            gone_after_s,
            max_age_s=0.0 if observer is own else interval_s,
            slots=with_slots,
        )
        scheduled = [ScheduledCollector(self._containers, interval_s)]
        if observer.asks_driver and "nvml" in chosen:
            nvml = NvmlCollector(observer, self.node_name, interval_s, hami_version)
            scheduled.append(ScheduledCollector(nvml, interval_s))
        if with_slots:
            processes = ProcessesCollector(observer, limiter, interval_s)
            scheduled.append(ScheduledCollector(processes, interval_s))
        if "unaccounted" in chosen:
            scheduled.append(ScheduledCollector(UnaccountedCollector(node, limiter), interval_s))
        if "locks" in chosen:
            scheduled.append(ScheduledCollector(LocksCollector(observer, interval_s), interval_s))
        if "doctor" in chosen:
            doctor = DoctorCollector(observer, interval_s)
            scheduled.append(ScheduledCollector(doctor, _DOCTOR_INTERVALS * interval_s))
        self._schedule = Schedule(node, scheduled)
        # Held while the series of a scrape are made, and not while their text is read.
        self._scrape_lock = threading.Lock()
        self._regions = RegionMetrics(node, limiter)
        self._encoder = TextEncoder()
        self._failures = RepeatedEvents(_log)
        self._scrapes = 0
        self._scrape_seconds = 0.0
        self._scrape_errors = 0
        self._builds = _build_series()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<NodeExporter of {self.node!r}>"

    # ---- the work behind the scrapes -------------------------------------------------------------

    def start(self) -> None:
        """Collect in a thread from now on; nothing happens if one is at it."""
        self._schedule.start()

    def stop(self) -> None:
        """End that thread and wait for it; may be called again, and `start` after it."""
        self._schedule.stop()

    def close(self) -> None:
        """End that thread and wait for it, as `stop`: what `Node` and `NvmlSampler` call so.

        The node and the sampler stay open; they are the caller's.
        """
        self.stop()

    def refresh(self) -> None:
        """Look at everything now: containers, processes, driver, what is wrong.

        What fails is counted, logged, and tried again at its next run.
        """
        self._containers.ask_again()
        self._schedule.run(everything=True)

    def not_ready(self) -> str | None:
        """Why scrapes are not complete yet, or not any more: a short reason; None if they are.

        Waits for nothing.
        """
        if not self._schedule.done_once:
            return "the node has not been looked at yet"
        needed = [
            each for each in self._schedule.collectors if each.name in ("containers", "processes")
        ]
        for each in needed:
            if each.refreshed_at_s is None:
                return each.last_error
            overdue_s = each.overdue_s() if self._schedule.is_watching else None
            if overdue_s is not None:
                return f"{each.name}: not looked at for {overdue_s:.0f} s; {each.last_error}"
        if self.node.scanned_roots:
            return None
        for error in self.node.root_errors.values():
            return _short(f"no directory of containers can be listed: {error_text(error)}")
        if self.node.containers:
            return None
        return _short(f"there is none of {', '.join(self.node.roots)}, and no region elsewhere")

    def overview(self, first: int = 0, opened: str | None = None) -> Overview:
        """What the page at ``/`` shows: figures no older than a page is, or than the interval.

        Args:
            first: How many containers to leave out, the fullest first.
            opened: `ContainerFigures.key` of the one whose processes are wanted.

        Raises:
            RegionClosed: The node has been closed.
            NodeBusy: An observation does not come back.
        """
        self._schedule.before_scrape()
        observation = self._observer.observe(
            max_age_s=min(self._interval_s, PAGE_INTERVAL_S), slots=self._with_slots
        )
        looked_at_s = {each.name: each.refreshed_at_s for each in self._schedule.collectors}
        state = self._schedule.current()
        return make_overview(
            self.node_name,
            observation,
            state,
            looked_at_s,
            first=first,
            opened=opened,
        )

    # ---- a scrape --------------------------------------------------------------------------------

    def render(self, *, names: Collection[str] | None = None) -> bytes:
        """All metrics as text, in Prometheus' format 0.0.4.

        Regions that cannot be read have no figures and a series that says why.

        Args:
            names: Only the families of these names; None means all.

        Raises:
            RegionClosed: The node has been closed.
        """
        return b"".join(self.pieces(names=names))

    def pieces(self, *, names: Collection[str] | None = None) -> Iterator[bytes]:
        """The text of `render` in pieces, of which each is used before the next is asked for.

        For servers: the whole text never exists.

        Args:
            names: As for `render`.

        Raises:
            RegionClosed: The node has been closed.
        """
        self._schedule.before_scrape()
        began_s = time.perf_counter()
        spent_s = 0.0
        try:
            with self._scrape_lock:
                series, now_s = self._gather(names), int(time.time())
            for piece in self._encoder.pieces(series, now_s):
                spent_s += time.perf_counter() - began_s
                yield piece
                began_s = time.perf_counter()
        except Exception:
            self._scrape_errors += 1
            raise
        finally:
            self._scrapes += 1
            self._scrape_seconds += spent_s

    def gather(self, names: Collection[str] | None = None) -> list[Series]:
        """The series of each family, in the order of the table of families.

        Args:
            names: As for `render`.

        Raises:
            RegionClosed: The node has been closed.
        """
        self._schedule.before_scrape()
        with self._scrape_lock:
            return self._gather(names)

    def _gather(self, names: Collection[str] | None) -> list[Series]:
        state = self._schedule.current()
        snapshot = self.node.snapshot()
        wanted = frozenset(
            family for family in families.FAMILIES if names is None or family.name in names
        )
        found: dict[MetricFamily, list[Series]] = {
            family: [] for family in families.FAMILIES if family in wanted
        }
        collected = [each for series in state.series.values() for each in series]
        fresh = self._regions.series(snapshot, state, with_sources(wanted))
        made = [*self._builds, *collected, *fresh, *self._of_node(), *self._of_agent()]
        if self.legacy:
            made += former_series(made)
        for each in made:
            if each.family in found:
                found[each.family].append(each)
        return [each for series in found.values() for each in series]

    def _of_node(self) -> list[Series]:
        node, collectors = self.node, self._schedule.collectors
        # Of the usual ones one is enough.
        roots = dict.fromkeys(node.scanned_roots, 1) or dict.fromkeys(node.roots, 0)
        roots.update(dict.fromkeys(dict(node.root_errors), 0))
        shown, missing = self._regions.shown, self._regions.missing
        stages: dict[str, int] = {each.name: each.errors for each in collectors}

        def labelled(family: MetricFamily, values: Mapping[str, float | None]) -> Series:
            texts = {
                _own_text(family.labels, name): value
                for name, value in values.items()
                if value is not None
            }
            return Series.of(family, texts)

        durations = {each.name: each.duration_s for each in collectors}
        ran = [each for each in collectors if each.duration_s is not None]
        scrape = families.SCRAPE_DURATION
        return [
            labelled(families.CONTAINERS, {"present": shown, "missing": missing}),
            labelled(families.ROOT_READABLE, dict(list(roots.items())[:_ROOTS_LIMIT])),
            Series.of(families.PROC_COMPLETE, {b"": int(node.processes.is_complete)}),
            labelled(
                families.REFRESH_TIME, {each.name: each.refreshed_at_s for each in collectors}
            ),
            labelled(families.ERRORS, {**stages, "scrape": self._scrape_errors}),
            labelled(families.COLLECTOR_SUCCESS, {each.name: not each.failing for each in ran}),
            labelled(families.COLLECTOR_DURATION, durations),
            Series(scrape, NO_LABELS, array("d", [self._scrape_seconds]), suffix="_sum"),
            Series(scrape, NO_LABELS, array("d", [self._scrapes]), suffix="_count"),
        ]

    def _of_agent(self) -> list[Series]:
        if self._counters is None:
            return []
        try:
            found = self._agent_series(dict(self._counters()))
        except Exception as error:  # noqa: BLE001 (it is the caller's, and all else is well)
            self._scrape_errors += 1
            self._failures.failed("counters", f"{type(error).__name__}: {error_text(error)}", error)
            return []
        self._failures.recovered("counters")
        return found

    def _agent_series(self, counted: Mapping[str, int]) -> list[Series]:
        events: dict[bytes, float] = {}
        paused: dict[bytes, float] = {}
        for name, count in sorted(counted.items())[:_COUNTERS_LIMIT]:
            if name.endswith(_PAUSED):
                task = name.removesuffix(_PAUSED)
                paused[_own_text(families.AGENT_PAUSED.labels, task)] = count
            else:
                events[_own_text(families.AGENT_EVENTS.labels, name)] = count
        return [Series.of(families.AGENT_EVENTS, events), Series.of(families.AGENT_PAUSED, paused)]


# Of roots, collectors and counters there are few, and each scrape has all of them.
@lru_cache(maxsize=1024)
def _own_text(names: tuple[str, ...], value: str) -> bytes:
    return label_text(names, safe_value(value))


def _short(text: str) -> str:
    return printable(text, LINE_LIMIT)


def _build_series() -> list[Series]:
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, "")
    system = f"linux/{machine}" if machine else ""
    # No HAMi is here: its version cannot be told, and Go has not built this.
    hami = (f"libhamiregion {__version__}", "", "", "", "", system)
    own = (__version__, platform.python_version())
    return [
        Series.of(families.HAMI_BUILD, {label_text(families.HAMI_BUILD.labels, *hami): 1}),
        Series.of(families.BUILD, {label_text(families.BUILD.labels, *own): 1}),
    ]

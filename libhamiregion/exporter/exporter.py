"""The exporter: one observation of the node for each scrape, shown by collectors."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import threading
import time
from math import inf
from typing import TYPE_CHECKING, Protocol

import attrs

from libhamiregion import __version__
from libhamiregion.node import NodeBusy
from libhamiregion.node.reader import Observer
from libhamiregion.text import error_text, printable

from .collectors import COLLECTORS, ContainersCollector, DoctorCollector
from .families import BY_NAME, FAMILIES, check_names
from .labels import label_text, safe_value
from .legacy import former_series
from .overview import PAGE_INTERVAL_S, PageView, page_html
from .scrape import Observes, RowTexts, Scrape
from .text import Series, TextWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from libhamiregion.node import Node, NvmlSampler, Observation

_log = logging.getLogger(__name__)

#: Versions of HAMi whose labels of GPUs differ; the last is the default.
HAMI_VERSIONS = ("2.10", "2.11")

_PAUSED = "_paused"
_READY_AGE_S = 30.0
_LINE = 400
_TURN_S = 15.0
_PAGES_KEPT = 8


class Collector(Protocol):
    """One part of a scrape."""

    @property
    def name(self) -> str:
        """The value of the labels ``collector`` and ``stage``."""

    @property
    def needs_slots(self) -> bool:
        """Whether it shows slots and processes."""

    def collect(self, scrape: Scrape) -> Iterable[Series]:
        """Make the series of an observation."""


@attrs.define
class _Run:
    """How a collector went the last time, and how often it has failed."""

    succeeded_at_s: float | None = None
    duration_s: float = 0.0
    errors: int = 0
    is_failing: bool = False


#: An observation that takes longer will not return.
_STUCK_S = 60.0


class NodeExporter:
    """All metrics of one node.

        with Node() as node, NvmlSampler(sensors=True) as sampler:
            text = NodeExporter(node, sampler=sampler).render()

    A scrape takes one observation of the node, and every collector makes series of it. A collector
    that fails has no series; it is logged, and counted in ``hamiregion_errors_total``.

    Threads: may be shared; one scrape is made at a time. The node may be refreshed by others as
    well. Node and sampler stay the caller's.

    Args:
        node: The node; None with an `observer`.
        sampler: Asks the driver; None leaves its figures out.
        node_name: The value of ``node`` in HAMi's metrics of GPUs; None means the observation's.
        legacy: Whether to export the former names of HAMi's monitor as well.
        hami_version: Whose families and labels GPUs have, one of `HAMI_VERSIONS`.
        collectors: Of `COLLECTORS` those that work; None means all. HAMi's own metrics need
            ``nvml`` alone.
        max_age_s: How old an observation may be that a scrape shows.
        gone_after_s: A directory that has been left alone for so long, that no process uses and
            whose pod kubelet does not know any more, has no figures: HAMi's monitor would delete
            it. None shows them all.
        counters: Counters of an agent in this program, by name; asked at each scrape. Names that
            end in ``_paused`` are 0 or 1.
        observer: Observes the node for others in this program too, or has a document; None makes
            one of `node` and `sampler`.

    Raises:
        ValueError: A collector or a version that there is not.
    """

    def __init__(
        self,
        node: Node | None = None,
        *,
        sampler: NvmlSampler | None = None,
        node_name: str | None = None,
        legacy: bool = False,
        hami_version: str = HAMI_VERSIONS[-1],
        collectors: Collection[str] | None = None,
        max_age_s: float = 1.0,
        gone_after_s: float | None = 300.0,
        counters: Callable[[], Mapping[str, int]] | None = None,
        observer: Observes | None = None,
    ) -> None:
        chosen = COLLECTORS if collectors is None else collectors
        for name in chosen:
            if name not in COLLECTORS:
                raise ValueError(f"no collector {name!r}; there are {', '.join(COLLECTORS)}")
        if hami_version not in HAMI_VERSIONS:
            raise ValueError(f"no labels of HAMi {hami_version!r}; {' or '.join(HAMI_VERSIONS)}")
        self._node_name = node_name
        self.legacy = legacy
        if observer is None:
            if node is None:
                raise ValueError("an exporter needs a node, or an observer")
            observer = Observer(node, sampler=sampler if "nvml" in chosen else None)
        self._observer = observer
        self._max_age_s = max_age_s
        self._counters = counters
        self._gone_after_s = inf if gone_after_s is None else gone_after_s
        self._hami_version = hami_version
        left_out = set() if observer.asks_driver else {"nvml"}
        made = [COLLECTORS[name]() for name in COLLECTORS if name in set(chosen) - left_out]
        self._collectors: list[Collector] = [ContainersCollector(), *made]
        doctors = [each for each in self._collectors if isinstance(each, DoctorCollector)]
        self._doctor = doctors[0] if doctors else DoctorCollector()
        self._with_slots = any(each.needs_slots for each in self._collectors)
        self._runs = {each.name: _Run() for each in self._collectors}
        self._lock, self._page_lock = threading.Lock(), threading.Lock()
        # When the page was made last, and of what; by view what was written of it.
        self._page: tuple[float, Scrape | None] = (0.0, None)
        self._pages: dict[PageView, bytes] = {}
        self._texts: RowTexts | None = None
        self._writer = TextWriter()
        self._unreadable: set[str] = set()
        self._scrapes, self._scrape_s, self._scrape_errors = 0, 0.0, 0

    def not_ready(self) -> str | None:
        """Why scrapes are not complete: a short reason; None if they are.

        Observes the node if the last observation is older than 30 s.

        Raises:
            RegionClosed: The node has been closed.
            NodeBusy: Another observation does not come back.
        """
        seen = self._observer.observe(max_age_s=_READY_AGE_S, slots=False)
        if seen.root_problem is None:
            return None
        for root, reason in seen.root_errors.items():
            text = f"no directory of containers can be listed: {root}: {reason}"
            return printable(text, _LINE)
        if seen.containers or seen.missing:
            return None
        text = f"there is none of {', '.join(seen.roots)}, and no region elsewhere"
        return printable(text, _LINE)

    def stuck(self) -> str | None:
        """Why this program is to be restarted: an observation has not returned for 60 s; or None.

        A driver or a container that does not answer holds up no observation.
        """
        taking_s = self._observer.taking_s
        return (
            f"an observation has not returned for {taking_s:.0f} s" if taking_s > _STUCK_S else None
        )

    def page(self, query: str = "") -> bytes:
        """Write the page for people, in HTML; the node is observed for it every 5 s at most.

        Args:
            query: Of the page's address.

        Raises:
            RegionClosed: The node has been closed.
            NodeBusy: Another observation does not come back.
        """
        view = PageView.of(query)
        # One page is made at a time, however many clients ask: scrapes must not wait for pages.
        with self._turn(self._page_lock):
            made_s, scrape = self._page
            if scrape is None or time.monotonic() - made_s >= PAGE_INTERVAL_S:
                observation = self._observe(PAGE_INTERVAL_S)
                with self._turn(self._lock):
                    scrape = self._scrape(observation)
                    if self._doctor in self._collectors:
                        self._run(self._doctor, scrape)
                self._page, self._pages = (time.monotonic(), scrape), {}
            if view not in self._pages:
                if len(self._pages) >= _PAGES_KEPT:
                    self._pages.clear()
                self._pages[view] = page_html(scrape, self._doctor, view)
            return self._pages[view]

    # ---- a scrape --------------------------------------------------------------------------------

    def render(self, *, names: Collection[str] | None = None) -> bytes:
        """All metrics as text, in Prometheus' format 0.0.4.

        Regions that cannot be read have no figures and a series that says why.

        Args:
            names: Only the families of these names; None means all.

        Raises:
            ValueError: There is no family of such a name.
            RegionClosed: The node has been closed.
            NodeBusy: Another observation does not come back.
        """
        return b"".join(self.pieces(names=names))

    def pieces(self, *, names: Collection[str] | None = None) -> Iterator[bytes]:
        """The text of `render` in pieces; a piece that has not changed is the same object.

        Args:
            names: As for `render`.

        Raises:
            RegionClosed, NodeBusy: As `render`.
        """
        began_s = time.perf_counter()
        try:
            yield from self._writer.pieces(self.gather(names))
        except Exception:
            self._scrape_errors += 1
            raise
        finally:
            self._scrapes += 1
            self._scrape_s += time.perf_counter() - began_s

    def gather(self, names: Collection[str] | None = None) -> list[Series]:
        """The series of each family, in the order of the table of families.

        Args:
            names: As for `render`.

        Raises:
            RegionClosed, NodeBusy, ValueError: As `render`.
        """
        check_names(names)
        observation = self._observe(self._max_age_s)
        with self._turn(self._lock):
            scrape = self._scrape(observation)
            made = [each for one in self._collectors for each in self._run(one, scrape)]
            made += self._of_exporter(observation)
        if self.legacy:
            made += former_series(made)
        places = {family.name: place for place, family in enumerate(FAMILIES)}
        wanted = [each for each in made if names is None or each.name in names]
        return sorted(wanted, key=lambda each: places[each.name])

    @contextlib.contextmanager
    def _turn(self, lock: threading.Lock) -> Iterator[None]:
        if not lock.acquire(timeout=_TURN_S):
            raise NodeBusy(f"another scrape has not come back for {_TURN_S:g} s")
        try:
            yield
        finally:
            lock.release()

    def _observe(self, max_age_s: float) -> Observation:
        # Not under the lock: a file system that never answers holds up one scrape, not all.
        return self._observer.observe(max_age_s=max_age_s, slots=self._with_slots)

    def _scrape(self, observation: Observation) -> Scrape:
        errors = observation.root_errors
        for root in errors.keys() - self._unreadable:
            reason = printable(f"{root}: {errors[root]}", _LINE)
            _log.warning("%s; the containers there are not seen", reason)
        self._unreadable = set(errors)
        # HAMi's monitor deletes the directories of gone pods after a time; this deletes nothing.
        before_s = observation.regions_read_at_s - self._gone_after_s
        gone = [each.container for each in observation.left if each.changed_at_s < before_s]
        self._texts = RowTexts.of(observation, gone, self._texts)
        node_name = self._node_name or observation.node_name
        return Scrape(observation, self._texts, node_name, self._hami_version)

    def _run(self, collector: Collector, scrape: Scrape) -> Iterable[Series]:
        """Run a collector; one that fails has no series."""
        run = self._runs[collector.name]
        began_s = time.perf_counter()
        try:
            made = list(collector.collect(scrape))
        except Exception as error:  # noqa: BLE001 (the others go on)
            made = []
            run.errors += 1
            if not run.is_failing:
                reason = printable(f"{type(error).__name__}: {error_text(error)}", _LINE)
                _log.warning("%s: %s", collector.name, reason)
                _log.debug("its traceback", exc_info=error)
            run.is_failing = True
        else:
            if run.is_failing:
                _log.info("%s: recovered", collector.name)
            run.is_failing = False
            run.succeeded_at_s = time.time()
        run.duration_s = time.perf_counter() - began_s
        return made

    def _of_exporter(self, observation: Observation) -> Iterator[Series]:
        """Series of the node as a whole, the exporter itself, and an agent in this program."""
        runs, roots = self._runs, observation.roots
        shown = {safe_value(root): int(is_readable) for root, is_readable in roots.items()}
        yield Series.by_label("hamiregion_root_readable", shown)
        yield Series("hamiregion_proc_complete", [""], [int(observation.processes.is_complete)])
        for name, value_of in (
            ("refresh_timestamp_seconds", lambda run: run.succeeded_at_s),
            ("errors_total", lambda run: run.errors),
            ("collector_success", lambda run: int(not run.is_failing)),
            ("collector_duration_seconds", lambda run: run.duration_s),
        ):
            by_name = {each: value_of(run) for each, run in runs.items()}
            yield Series.by_label(f"hamiregion_{name}", by_name)
        yield Series.by_label("hamiregion_errors_total", {"scrape": self._scrape_errors})
        name = "hamiregion_scrape_duration_seconds"
        yield Series(name, [""], [self._scrape_s], "_sum")
        yield Series(name, [""], [self._scrapes], "_count")
        counted = {} if self._counters is None else self._counters()
        paused = {each: count for each, count in counted.items() if each.endswith(_PAUSED)}
        events = {each: count for each, count in counted.items() if each not in paused}
        tasks = {each.removesuffix(_PAUSED): count for each, count in paused.items()}
        yield Series.by_label("hamiregion_agent_events_total", events)
        yield Series.by_label("hamiregion_agent_paused", tasks)
        machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, "")
        # The labels that only a build of HAMi could fill are empty.
        hami = (f"libhamiregion {__version__}", "", "", "", "", machine and f"linux/{machine}")
        for name, values in (
            ("hami_build_info", hami),
            ("hamiregion_build_info", (__version__, platform.python_version())),
        ):
            yield Series(name, [label_text(BY_NAME[name].labels, *values)], [1])

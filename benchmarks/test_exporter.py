"""What a scrape costs, and what is done behind it.

Rendering alone; test_scrape.py has the same over HTTP. Each scrape writes every figure anew, so it
makes no difference that the regions here do not change. What the refresh found is written once.
"""

from __future__ import annotations

import time
from itertools import cycle
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from scene import DEVICES, PROCESSES

from libhamiregion.exporter import NodeExporter, RegionCollector, metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from exporter_scene import BusyNode
    from ledger import Ledger

EIGHT = frozenset(
    family.name
    for family in (
        metrics.MEMORY_USED,
        metrics.MEMORY_LIMIT,
        metrics.CONTAINER_MEMORY,
        metrics.MEMORY_CONTEXT,
        metrics.MEMORY_MODULE,
        metrics.MEMORY_BUFFER,
        metrics.UTILIZATION,
        metrics.LAST_KERNEL,
    )
)
# The budgets are of processor time.
pytestmark = pytest.mark.benchmark(timer=time.process_time)
SHAPE = f"x {DEVICES} devices x {PROCESSES} processes"
# Nothing is refreshed but by hand.
NEVER_S = 1e9


@pytest.fixture(scope="module")
def containers(busy: BusyNode) -> int:
    return len(list(busy.root.iterdir()))


@pytest.fixture(scope="module")
def exporter(busy: BusyNode) -> Iterator[NodeExporter]:
    with busy.open() as node, busy.sampler() as sampler:
        exporter = NodeExporter(
            node,
            sampler=sampler,
            scan_interval_s=NEVER_S,
            process_interval_s=NEVER_S,
            doctor_interval_s=NEVER_S,
        )
        exporter.refresh()
        yield exporter


def budget(containers: int, whole_us: float) -> float | None:
    return whole_us if containers == 256 else None


def test_the_eight_metrics_of_containers(
    exporter: NodeExporter, containers: int, timed: Callable[..., Any]
) -> None:
    text = timed(
        lambda: exporter.render(names=EIGHT),
        work=f"scrape, eight container metrics, {containers} {SHAPE}",
        budget_us=budget(containers, 3_000),
    )
    assert text.count(b"\n") == len(EIGHT) * (containers * DEVICES + 2)


def test_all_metrics(
    exporter: NodeExporter, containers: int, timed: Callable[..., Any], ledger: Ledger
) -> None:
    text = timed(
        exporter.render,
        work=f"  all metrics, with the driver's, {containers} {SHAPE}",
        budget_us=budget(containers, 12_000),
    )
    for family in (metrics.PROCESS_MEMORY, metrics.PROCESS_DRIVER_MEMORY):
        lines = text.count(b"\n" + family.name.encode() + b"{")
        assert lines == containers * DEVICES * PROCESSES
    ledger.add("    the text of that", "bytes", None, len(text))


def test_the_first_scrape_after_a_refresh(
    exporter: NodeExporter, containers: int, timed: Callable[..., Any]
) -> None:
    """Which most scrapes are: what was refreshed has its text, the rest is as it was."""
    refresher = exporter._refresher
    first = refresher.background
    exporter.refresh()
    found = cycle((first, refresher.background))

    def change_and_render() -> None:
        refresher.background = next(found)
        exporter.render()

    timed(change_and_render, work=f"    the first after a refresh, {containers} containers")


def test_after_a_container_came(
    exporter: NodeExporter, containers: int, timed: Callable[..., Any]
) -> None:
    """Every line of every region is made anew."""
    figures = exporter._figures

    def plan_and_render() -> None:
        plan = figures._devices.plan
        assert plan is not None
        plan.sources = ()
        exporter.render()

    timed(plan_and_render, work=f"    after a container came, {containers} containers")


def test_through_prometheus_client(
    exporter: NodeExporter, containers: int, timed: Callable[..., Any]
) -> None:
    if containers > 256:
        pytest.skip("one size tells enough")
    registry = CollectorRegistry()
    registry.register(RegionCollector(exporter))
    timed(
        lambda: generate_latest(registry),
        work=f"    the same through prometheus-client, {containers} containers",
    )


class Behind:
    """The stages of the refresh, one by one.

    Without the driver: the fake one reads its scene from a file at each question.
    """

    def __init__(self, busy: BusyNode) -> None:
        self.node = busy.open()
        exporter = NodeExporter(self.node)
        exporter.refresh()
        self.refresher = exporter._refresher
        self.look = self.refresher._look_at_processes()


@pytest.fixture(scope="module")
def behind(busy: BusyNode) -> Iterator[Behind]:
    stages = Behind(busy)
    yield stages
    stages.node.close()


def test_finding_containers(behind: Behind, containers: int, timed: Callable[..., Any]) -> None:
    timed(
        behind.refresher._find_containers, work=f"  behind it: {containers} containers, every 5 s"
    )


def test_looking_at_processes(behind: Behind, containers: int, timed: Callable[..., Any]) -> None:
    work = f"  behind it: {containers * PROCESSES} processes, every 10 s"
    timed(behind.refresher._look_at_processes, work=work)


def test_diagnosing(behind: Behind, containers: int, timed: Callable[..., Any]) -> None:
    work = f"  behind it: the doctor, {containers} containers, every 30 s"
    timed(lambda: behind.refresher._diagnose(behind.look), work=work)

"""What an exporter costs: a scrape, the work behind it, and the whole process in a minute.

On healthy regions of live processes that go on working. The budgets are of processor time.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from exporter_scene import MEMORY, busy_node
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from scene import DEVICES, PROCESSES
from served import MIB, Minute, measure, serving

from libhamiregion.exporter import NodeExporter, RegionCollector
from libhamiregion.exporter.http import CompressedBody

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from exporter_scene import BusyNode
    from ledger import Ledger

pytestmark = pytest.mark.benchmark(timer=time.process_time)

EIGHT = (
    "hami_vgpu_memory_used_bytes",
    "hami_container_device_memory_bytes",
    "hami_vgpu_memory_limit_bytes",
    "hami_vgpu_memory_context_bytes",
    "hami_vgpu_memory_module_bytes",
    "hami_vgpu_memory_buffer_bytes",
    "hami_container_device_utilization_ratio",
    "hami_container_last_kernel_elapsed_seconds",
)


# First, while no other scene's processes are there: the exporter looks at all of the machine's.


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("at_work", "only_hami", "passes"),
    [(True, False, 1.0), (False, False, 1.0), (True, True, 0.35)],
    ids=["busy", "idle", "hami-alone"],
)
def test_a_minute_of_the_whole_process(
    directory: Path,
    benchmark: Any,
    ledger: Ledger,
    quick: bool,
    at_work: bool,
    only_hami: bool,
    passes: float,
) -> None:
    """Scrape every 15 s with gzip, with 1,024 processes: HAMi's monitor takes about one pass."""
    arguments = ["--collector", "nvml"] if only_hami else []
    own = Path(tempfile.mkdtemp(dir=directory))

    def run() -> Minute:
        with busy_node(own, 256, at_work=at_work) as node, serving(node, *arguments) as served:
            served.scrape(with_processes=not only_hami)
            time.sleep(1)
            # What is done once a minute counts once.
            minutes = 1 if quick else 2
            return measure(node, served, minutes=minutes, with_processes=not only_hami)

    found = benchmark.pedantic(run, rounds=1)
    shutil.rmtree(own)
    beside = "HAMi's metrics alone" if only_hami else f"{'busy' if at_work else 'idle'} processes"
    ledger.add("  one plain pass over all maps, then", "us", None, found.plain_pass_us)
    budget_us = passes * found.plain_pass_us
    ledger.add(f"a minute of the exporter, {beside}", "us", budget_us, found.cpu_us)
    if not only_hami:
        resident = float(found.resident_bytes)
        ledger.add(f"  resident then, {beside}", "bytes", 80.0 * MIB, resident)


@pytest.fixture(scope="module")
def containers(busy: BusyNode) -> int:
    return len(busy.regions)


@pytest.fixture(scope="module")
def exporter(busy: BusyNode) -> Iterator[NodeExporter]:
    with busy.open() as node, busy.sampler() as sampler:
        yield NodeExporter(node, sampler=sampler, max_age_s=0)


def budget(containers: int, whole_us: float) -> float | None:
    """Of 256 containers; what larger nodes cost is shown beside it, to be linear."""
    return whole_us * containers / 256


def test_a_scrape(
    exporter: NodeExporter, busy: BusyNode, containers: int, timed: Callable[..., Any]
) -> None:
    """With its observation."""
    busy.work(containers)

    def scrape() -> int:
        return len(CompressedBody.of(exporter.pieces()).data)

    work = f"scrape, all metrics, gzip, {containers} x {DEVICES} x {PROCESSES}"
    assert timed(scrape, work=work, budget_us=budget(containers, 40_000)) > 0
    text = exporter.render()
    used, of_processes = (
        [float(each) for each in re.findall(rb"\n%s\{.*\} (\S+)" % name, text)]
        for name in (b"hami_vgpu_memory_used_bytes", b"hamiregion_process_memory_used_bytes")
    )
    assert used == [PROCESSES * MEMORY] * containers * DEVICES
    assert of_processes == [MEMORY] * containers * DEVICES * PROCESSES


class ByHand:
    """The eight metrics as somebody would write them with prometheus-client."""

    def __init__(self, exporter: NodeExporter) -> None:
        self._exporter = exporter

    def collect(self) -> Iterable[GaugeMetricFamily]:
        snapshot = self._exporter.node.snapshot()
        devices, regions = snapshot.table.devices, snapshot.table.regions
        columns = (
            devices.memory_used_bytes,
            devices.memory_used_bytes,
            devices.memory_limit_bytes,
            devices.memory_context_bytes,
            devices.memory_module_bytes,
            devices.memory_data_bytes,
            devices.sm_util_percent,
        )
        labels = ("namespace", "pod", "container", "vdevice_index", "device_uuid", "zone")
        metrics = [GaugeMetricFamily(name, "By hand.", labels=labels) for name in EIGHT]
        for row, region in enumerate(devices.region):
            container = snapshot.containers[region]
            name = container.pod_name
            assert name is not None
            values = (
                str(name.namespace),
                str(name.pod),
                str(container.name),
                str(devices.device[row]),
                str(devices.uuid(row)),
                "vGPU",
            )
            for metric, column in zip(metrics, columns, strict=False):
                metric.add_metric(values, column[row])
            metrics[-1].add_metric(values, time.time() - regions.last_kernel_time_s[region])
        return metrics


def test_through_prometheus_client(
    exporter: NodeExporter, containers: int, benchmark: Any, ledger: Ledger
) -> None:
    if containers > 256:
        pytest.skip("one size tells enough")

    def least_us(collector: Any) -> float:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(collector)
        text = generate_latest(registry)
        for name in EIGHT:
            assert text.count(f"\n{name}{{".encode()) >= containers, name
        return min(cpu_us(lambda: generate_latest(registry)) for _ in range(7))

    found = benchmark.pedantic(
        lambda: {
            "RegionCollector, eight metrics": least_us(RegionCollector(exporter, EIGHT)),
            "a collector by hand, eight metrics": least_us(ByHand(exporter)),
            "RegionCollector, all metrics": least_us(RegionCollector(exporter)),
        },
        rounds=1,
    )
    for words, cost_us in found.items():
        ledger.add(f"  generate_latest of {words}", "us", None, cost_us)


def cpu_us(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return (time.thread_time() - began) * 1e6


def test_the_collectors(
    exporter: NodeExporter, containers: int, benchmark: Any, ledger: Ledger
) -> None:
    scrape = exporter._scrape(exporter._observe(0))

    def least_us(collector: Any) -> float:
        return min(cpu_us(lambda: list(collector.collect(scrape))) for _ in range(7))

    found = benchmark.pedantic(
        lambda: {each.name: least_us(each) for each in exporter._collectors}, rounds=1
    )
    for name, cost_us in found.items():
        ledger.add(f"  of it: {name}, {containers} containers", "us", None, cost_us)

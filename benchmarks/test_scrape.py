"""A scrape as Prometheus makes it: a whole exporter behind HTTP, and what it spends.

The exporter is a process of its own; what counts is the time on the processor of its threads that
serve. What refreshes behind them is test_exporter.py's. Between two scrapes every figure of every
process changes, as on a node at work; for comparison, none.
"""

from __future__ import annotations

import contextlib
import gzip
import http.client
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from exporter_scene import RegionFile
from scene import DEVICES, PROCESSES

from libhamiregion import Layout

if TYPE_CHECKING:
    from collections.abc import Iterator

    from exporter_scene import BusyNode
    from ledger import Ledger

MIB = 1 << 20
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
ACCEPT = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
PATIENCE_S = 60.0
SHAPE = f"x {DEVICES} x {PROCESSES}"


@attrs.frozen
class Served:
    """An exporter at work, and the node that it exports.

    Attributes:
        process: The exporter.
        connection: Kept from one scrape to the next, as Prometheus does.
        regions: Of the node's containers.
        scraping: Its threads that scrapes keep busy; what refreshes behind them is another.
    """

    process: subprocess.Popen[str]
    connection: http.client.HTTPConnection
    regions: tuple[RegionFile, ...]
    scraping: frozenset[str]

    def cpu_us(self) -> float:
        """What those threads have spent so far."""
        tasks = Path(f"/proc/{self.process.pid}/task")
        stats = [(tasks / task / "schedstat").read_text() for task in self.scraping]
        return sum(int(stat.split()[0]) for stat in stats) / 1e3

    def resident_bytes(self) -> int:
        rollup = Path(f"/proc/{self.process.pid}/smaps_rollup").read_text()
        found = re.search(r"^Rss:\s+(\d+) kB", rollup, re.MULTILINE)
        assert found is not None
        return int(found[1]) * 1024

    def work(self, step: int) -> None:
        """Let every process use other figures than before."""
        for number, region in enumerate(self.regions):
            for slot in range(PROCESSES):
                for device in range(DEVICES):
                    used = (64 + (number * 31 + slot * 7 + device * 3 + step) % 999) * MIB
                    region.put("slot_used.data", used, device=device, slot=slot)
                    region.put("slot_used.total", used + 300 * MIB, device=device, slot=slot)
                    busy = (number + slot * 13 + device + step) % 25
                    region.put("slot_util.sm", busy, device=device, slot=slot)


def scrape(connection: http.client.HTTPConnection, path: str, *, compressed: bool) -> int:
    """Scrape once; the size of the answer on the wire."""
    headers = {"Accept": ACCEPT}
    if compressed:
        headers["Accept-Encoding"] = "gzip"
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    assert answer.status == 200
    assert (gzip.decompress(body) if compressed else body).endswith(b"# EOF\n")
    return len(body)


@contextlib.contextmanager
def serving(node: BusyNode) -> Iterator[Served]:
    """`hamiregion exporter` of a node, with everything that it does by itself."""
    command = [sys.executable, "-m", "libhamiregion", "exporter", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(
        [*command, "--root", str(node.root), "--pod-logs", str(node.logs)],
        env=node.driver.environment(),
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stderr is not None
            port = None
            while port is None:
                port = re.search(r"listening on http://127.0.0.1:(\d+)", process.stderr.readline())
            connection = http.client.HTTPConnection("127.0.0.1", int(port[1]), PATIENCE_S)
            _wait_until_ready(connection)
            tasks = Path(f"/proc/{process.pid}/task")
            before = {task.name for task in tasks.iterdir()}
            scrape(connection, "/metrics", compressed=False)
            new = {task.name for task in tasks.iterdir()} - before
            regions = tuple(
                RegionFile(path, Layout.V1_2) for path in node.root.glob("*/usage.cache")
            )
            yield Served(process, connection, regions, frozenset({str(process.pid), *new}))
            connection.close()
        finally:
            process.terminate()
            process.communicate()


def _wait_until_ready(connection: http.client.HTTPConnection) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        answer.read()
        if answer.status == 200:
            return
        time.sleep(0.05)
    raise AssertionError("the exporter does not become ready")


@pytest.fixture(scope="module")
def served(busy: BusyNode) -> Iterator[Served]:
    with serving(busy) as found:
        yield found


@pytest.mark.parametrize("at_work", [True, False], ids=["at-work", "idle"])
@pytest.mark.parametrize("compressed", [True, False], ids=["gzip", "plain"])
@pytest.mark.parametrize("what", ["eight", "all"])
def test_scrape(
    served: Served,
    benchmark: Any,
    ledger: Ledger,
    quick: bool,
    what: str,
    compressed: bool,
    at_work: bool,
) -> None:
    containers = len(served.regions)
    path = "/metrics"
    if what == "eight":
        path += "?" + "&".join(f"name[]={name}" for name in EIGHT)
    rounds = 10 if quick else 40

    def measure() -> tuple[list[float], int]:
        costs = []
        size = 0
        for step in range(-3, rounds):
            if at_work:
                served.work(step)
            before = served.cpu_us()
            size = scrape(served.connection, path, compressed=compressed)
            if step >= 0:
                costs.append(served.cpu_us() - before)
        return costs, size

    costs, size = benchmark.pedantic(measure, rounds=1)
    budget_us = {"eight": 3_000.0, "all": 12_000.0}[what]
    words = [
        f"HTTP scrape, {'eight metrics' if what == 'eight' else 'all metrics'}",
        "gzip" if compressed else "not compressed",
        "all figures new" if at_work else "figures as before",
        f"{containers} {SHAPE}",
    ]
    median_us = statistics.median(costs)
    ledger.add(
        ", ".join(words), "us", budget_us if containers == 256 else None, median_us, min(costs)
    )
    benchmark.extra_info.update(cpu_us=median_us, wire_bytes=size)


def test_resident_memory(served: Served, benchmark: Any, ledger: Ledger) -> None:
    """After the scrapes above, which were of every kind."""
    found = benchmark.pedantic(served.resident_bytes, rounds=1)
    containers = len(served.regions)
    budget = 60.0 * MIB if containers == 256 else None
    work = f"HTTP exporter, resident memory, {containers} {SHAPE}"
    ledger.add(work, "bytes", budget, float(found))

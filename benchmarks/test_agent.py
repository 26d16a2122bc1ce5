"""What an agent costs in a minute: all of its tasks, alone and with the exporter's metrics.

The budgets are of the whole process's processor time, beside 1,024 busy processes.
"""

from __future__ import annotations

import contextlib
import gzip
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from exporter_scene import busy_node
from scene import DEVICES
from test_exporter import INTERVAL_S, MIB, PATIENCE_S, Served

if TYPE_CHECKING:
    from collections.abc import Iterator

    from exporter_scene import BusyNode
    from ledger import Ledger

pytestmark = pytest.mark.benchmark(timer=time.process_time)

CONTAINERS = 256
TASKS = ("--feedback", "--assume-alone", "--repair", "--remove-gone")


@contextlib.contextmanager
def steering(node: BusyNode, directory: Path) -> Iterator[Served]:
    """`hamiregion agent` with every task, listening; its metrics are complete."""
    plan = directory / "plan.yaml"
    plan.write_text("apiVersion: hamiregion.io/v1\nkind: LimitPlan\nrules: []\n")
    keeps = ("--plan", str(plan), "--state", str(directory / "state"))
    served = Served(node, *TASKS, *keeps, verb="agent")
    try:
        deadline = time.monotonic() + PATIENCE_S
        while served.ask("/readyz")[0] != 200:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield served
    finally:
        served.connection.close()
        served.process.terminate()
        served.process.communicate()


@pytest.mark.timeout(500)
@pytest.mark.parametrize(
    ("scraped", "budget_ms", "budget_mib"),
    [(False, 150, 50), (True, 200, 70)],
    ids=["alone", "with-metrics"],
)
def test_a_minute_of_all_tasks(
    directory: Path,
    benchmark: Any,
    ledger: Ledger,
    quick: bool,
    scraped: bool,
    budget_ms: int,
    budget_mib: int,
) -> None:
    """Alone nobody asks for metrics; else they are scraped every 15 s with gzip."""
    minutes = 0.5 if quick else 2
    own = Path(tempfile.mkdtemp(dir=directory))

    def measure() -> tuple[float, int]:
        with busy_node(own, CONTAINERS, at_work=True) as node, steering(node, own) as served:
            served.ask()
            # The metrics of an agent that nobody asks for sleep after two minutes.
            time.sleep(1 if scraped or quick else 125)
            began, before = time.monotonic(), served.cpu_s()
            for step in range(int(minutes * 60 / INTERVAL_S)):
                node.work(step)
                time.sleep(INTERVAL_S)
                if scraped:
                    status, body = served.ask()
                    text = gzip.decompress(body)
                    assert status == 200
                    assert text.count(b"\nhami_vgpu_memory_used_bytes{") == CONTAINERS * DEVICES
            spent_s = served.cpu_s() - before
            return spent_s * 60 / (time.monotonic() - began), served.resident_bytes()

    cost_s, resident = benchmark.pedantic(measure, rounds=1)
    shutil.rmtree(own)
    what = "the agent with metrics" if scraped else "the agent, all tasks"
    ledger.add(f"a minute of {what}", "us", budget_ms * 1e3, cost_s * 1e6)
    ledger.add(f"  resident then, {what}", "bytes", budget_mib * MIB, float(resident))

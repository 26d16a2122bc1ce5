"""What an agent costs in a minute: all of its tasks, alone and with the exporter's metrics.

The budgets are of the whole process's processor time, beside 1,024 busy processes.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from exporter_scene import busy_node
from served import MIB, Listings, Minute, measure, serving

if TYPE_CHECKING:
    from ledger import Ledger

pytestmark = pytest.mark.benchmark(timer=time.process_time)

CONTAINERS = 256
LISTINGS_IN_30_S = 6
TASKS = ("--feedback", "--assume-alone", "--repair", "--remove-gone")


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
    own = Path(tempfile.mkdtemp(dir=directory))
    plan = own / "plan.yaml"
    plan.write_text("apiVersion: hamiregion.io/v1\nkind: LimitPlan\nrules: []\n")
    arguments = (*TASKS, "--plan", str(plan), "--state", str(own / "state"))
    listings = Listings(own)

    def run() -> Minute:
        with (
            busy_node(own, CONTAINERS, at_work=True) as node,
            serving(node, *arguments, verb="agent", listings=listings) as served,
        ):
            served.scrape(with_processes=True)
            # At its second look the agent writes the driver's figures of all processes, once; and
            # the metrics of an agent that nobody asks for sleep after two minutes.
            time.sleep(15 if scraped or quick else 125)
            minutes = 0.5 if quick else 2
            return measure(node, served, minutes=minutes, scraped=scraped, utilization=False)

    found = benchmark.pedantic(run, rounds=1)
    shutil.rmtree(own)
    what = "the agent with metrics" if scraped else "the agent, all tasks"
    ledger.add(f"a minute of {what}", "us", budget_ms * 1e3, found.cpu_us)
    ledger.add(f"  resident then, {what}", "bytes", budget_mib * MIB, float(found.resident_bytes))
    ledger.add("  one plain pass over all maps, then", "us", None, found.plain_pass_us)
    assert found.listings is not None
    in_30_s = found.listings / 2
    ledger.add(f"  /proc listed in 30 s, {what}", "times", LISTINGS_IN_30_S, in_30_s)

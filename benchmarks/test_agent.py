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
from served import MIB, PATIENCE_S, Listings, Minute, measure, running, serving

if TYPE_CHECKING:
    from ledger import Ledger

pytestmark = pytest.mark.benchmark(timer=time.process_time)

CONTAINERS = 256
LISTINGS_IN_30_S = 6
TASKS = ("--feedback", "--assume-alone", "--repair", "--remove-gone")


@pytest.mark.timeout(500)
@pytest.mark.parametrize(
    ("serves", "budget_ms", "budget_mib"),
    [(False, 200, 80), (True, 300, 80)],
    ids=["alone", "with-metrics"],
)
def test_a_minute_of_all_tasks(
    directory: Path,
    benchmark: Any,
    ledger: Ledger,
    quick: bool,
    serves: bool,
    budget_ms: int,
    budget_mib: int,
) -> None:
    """Alone it serves no metrics; else they are scraped every 15 s with gzip."""
    own = Path(tempfile.mkdtemp(dir=directory))
    plan = own / "plan.yaml"
    plan.write_text("apiVersion: hamiregion.io/v1\nkind: LimitPlan\nrules: []\n")
    arguments = (*TASKS, "--plan", str(plan), "--state", str(own / "state"))
    listings = Listings(own)

    def run() -> Minute:
        begun = serving if serves else running
        with (
            busy_node(own, CONTAINERS, at_work=True) as node,
            begun(node, *arguments, verb="agent", listings=listings) as program,
        ):
            # At its second look the agent writes the driver's figures of all processes, once.
            deadline = time.monotonic() + PATIENCE_S
            while not program.has_written_figures():
                assert time.monotonic() < deadline
                time.sleep(1)
            time.sleep(15)
            # What is done once a minute counts once.
            found = measure(node, program, minutes=1 if quick else 2, utilization=False)
            assert program.has_written_figures()
            return found

    found = benchmark.pedantic(run, rounds=1)
    shutil.rmtree(own)
    what = "the agent with metrics" if serves else "the agent, all tasks"
    ledger.add(f"a minute of {what}", "us", budget_ms * 1e3, found.cpu_us)
    ledger.add(f"  resident then, {what}", "bytes", budget_mib * MIB, float(found.resident_bytes))
    ledger.add("  one plain pass over all maps, then", "us", None, found.plain_pass_us)
    assert found.listings, "an agent that no longer looks costs nothing"
    in_30_s = found.listings / 2
    ledger.add(f"  /proc listed in 30 s, {what}", "times", LISTINGS_IN_30_S, in_30_s)

"""What an agent costs in a minute: all of its tasks, alone and with the exporter's metrics.

The budgets are of the whole process's processor time, with 1,024 busy processes in 256 containers
that launch, in plain passes over their maps: 200 and 300 ms where one pass takes 175 ms.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from exporter_scene import MEMORY, BusyNode, busy_node
from scene import DEVICES, PROCESSES
from served import PATIENCE_S, measure, running, serving

from libhamiregion.node.slots import LISTING_S
from libhamiregion.units import MIB

if TYPE_CHECKING:
    from ledger import Ledger

FIGURE = "slot_monitorused"
TASKS = ("--feedback", "--assume-alone", "--repair", "--remove-gone")


def wait_for_figures(node: BusyNode) -> None:
    """Wait until each slot has what the driver says of its process."""
    deadline = time.monotonic() + PATIENCE_S
    slots = [(device, slot) for device in range(DEVICES) for slot in range(PROCESSES)]
    for region in node.regions:
        for device, slot in slots:
            while region.get(FIGURE, device=device, slot=slot) != MEMORY:
                assert time.monotonic() < deadline
                time.sleep(1)


@pytest.mark.timeout(800)
@pytest.mark.parametrize(
    ("serves", "passes"), [(False, 1.15), (True, 1.7)], ids=["alone", "with-metrics"]
)
def test_a_minute_of_all_tasks(
    directory: Path, ledger: Ledger, quick: bool, serves: bool, passes: float
) -> None:
    """Alone it serves no metrics; else they are scraped every 15 s with gzip."""
    own = Path(tempfile.mkdtemp(dir=directory))
    plan = own / "plan.yaml"
    plan.write_text("apiVersion: hamiregion.io/v1\nkind: LimitPlan\nrules: []\n")
    arguments = (*TASKS, "--plan", str(plan), "--state", str(own / "state"))
    begun = serving if serves else running
    with (
        busy_node(own, 256, at_work=True) as node,
        begun(node, *arguments, verb="agent") as program,
    ):
        # In its second observation the agent writes the driver's figures of all processes, once.
        wait_for_figures(node)
        # New processes are read a second time, once, at the listing of /proc that follows.
        time.sleep(2 * LISTING_S)
        # What is done once in five minutes, reading all maps, counts once.
        minutes = 1 if quick else 5
        found = measure(node, program, minutes=minutes, utilization=False, launches=True)
        node.regions[-1].put(FIGURE, 0)
        wait_for_figures(node)  # an agent that has stopped costs nothing
    shutil.rmtree(own)
    what = "the agent with metrics" if serves else "the agent, all tasks"
    ledger.add("  one plain pass over all maps, then", "us", None, found.plain_pass_us)
    ledger.add(f"a minute of {what}", "us", passes * found.plain_pass_us, found.cpu_us)
    anonymous = float(found.anonymous_bytes)
    ledger.add(f"  anonymous memory then, {what}", "bytes", 60.0 * MIB, anonymous)

"""What an exporter costs: the whole process in a minute, and how that grows with a node.

On healthy regions of live processes. The budgets are of processor time.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from exporter_scene import busy_node
from served import measure, serving

from libhamiregion.units import MIB

if TYPE_CHECKING:
    from ledger import Ledger


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("only_hami", "passes"), [(False, 1.0), (True, 0.2)], ids=["all", "hami-alone"]
)
def test_a_minute_of_the_whole_process(
    directory: Path, ledger: Ledger, quick: bool, only_hami: bool, passes: float
) -> None:
    """Scrape every 15 s with gzip, with 1,024 processes: HAMi's monitor takes about one pass."""
    arguments = ["--collector", "nvml"] if only_hami else []
    own = Path(tempfile.mkdtemp(dir=directory))
    with busy_node(own, 256, at_work=True) as node, serving(node, *arguments) as served:
        if not only_hami:
            ledger.add("  new processes read again, once", "us", None, served.settle())
        # What is done once in five minutes, reading all maps, counts once.
        minutes = 1 if quick else 5
        found = measure(node, served, minutes=minutes, with_processes=not only_hami)
    shutil.rmtree(own)
    beside = "HAMi's metrics alone" if only_hami else "all metrics"
    ledger.add("  one plain pass over all maps, then", "us", None, found.plain_pass_us)
    budget_us = passes * found.plain_pass_us
    ledger.add(f"a minute of the exporter, {beside}", "us", budget_us, found.cpu_us)
    if not only_hami:
        anonymous = float(found.anonymous_bytes)
        ledger.add(f"  anonymous memory then, {beside}", "bytes", 60.0 * MIB, anonymous)


@pytest.mark.timeout(400)
def test_growth_to_1024_containers(directory: Path, ledger: Ledger) -> None:
    cost_us = {}
    for containers in (256, 1024):
        own = Path(tempfile.mkdtemp(dir=directory))
        with busy_node(own, containers) as node, serving(node) as served:
            served.settle()
            cost_us[containers] = measure(node, served, minutes=1).cpu_us / containers
        shutil.rmtree(own)
    work = "a container's part of that, 1,024 against 256 containers"
    ledger.add(work, "x", 1.1, cost_us[1024] / cost_us[256])

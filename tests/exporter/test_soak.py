"""An exporter over a long time: containers that come, go and break; a day's worth of scrapes."""

import contextlib
from collections.abc import Callable, Iterator

import pytest
from support.exporter_process import ExporterProcess
from support.exposition import parsed
from support.node_scene import NodeScene
from support.scrapers import Scraper, ask, descriptors, resident_bytes
from support.stress import scaled
from support.wait import eventually

from libhamiregion.units import GIB, MIB

UUID = "GPU-00000000-0000-0000-0000-000000000000"
USED = "hami_vgpu_memory_used_bytes"
QUICKLY = ("--resync-interval", "never")


@contextlib.contextmanager
def exporting(files: NodeScene) -> Iterator[ExporterProcess]:
    """An exporter of these files that looks again soon, and must end well."""
    with ExporterProcess("--root", files.root, "--pod-logs", files.pod_logs, *QUICKLY) as process:
        process.wait_until_ready()
        yield process
        assert process.stop() == 0
        assert "Traceback" not in process.log


def shows(process: ExporterProcess, used: int, **labels: str) -> Callable[[], bool]:
    """Whether a scrape has that figure: it may be a second old."""
    return lambda: parsed(ask(process.url).body).value(USED, **labels) == used


def scrape_for_long(
    files: NodeScene, containers: int, scrapes: int, warm_up: int
) -> tuple[int, int]:
    """Scrape as Prometheus does, with figures that change; growth of memory and descriptors."""
    regions = []
    for number in range(containers):
        region = files.container(
            pod=f"train-{number}", uuids=[UUID] * 2, memory_limits=["8GiB"] * 2
        )
        region.add_process(1_000_000 + number, {0: GIB, 1: GIB})
        regions.append(region)
    with exporting(files) as process:
        kept = Scraper(process.url)
        for number in range(warm_up + scrapes):
            if number == warm_up:
                before = resident_bytes(process.pid), descriptors(process.pid)
            changed = regions[number % containers]
            changed.put("slot_used.total", number * MIB, slot=0, device=number % 2)
            reply = kept.scrape()
            assert reply.status == 200
            if number % 97 == 0:
                pod = f"train-{number % containers}"
                eventually(shows(process, number * MIB, pod=pod, vdevice_index=str(number % 2)))
                # Other clients come and go, and one restarts now and then.
                assert ask(process.url, accept_encoding="gzip").status == 200
                assert ask(process.url, "/").status == 200
                kept.close()
        kept.close()
        eventually(lambda: descriptors(process.pid) <= before[1] + 1)
        after = resident_bytes(process.pid), descriptors(process.pid)
        return after[0] - before[0], after[1] - before[1]


def test_hundreds_of_scrapes_leave_nothing_behind(files):
    memory, growth = scrape_for_long(files, 8, 200, 100)
    assert memory < 3 * MIB
    assert growth <= 1


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_day_s_worth_of_scrapes_leaves_nothing_behind(files):
    """Every 15 s, that is 5,760 a day; here as fast as they come."""
    memory, growth = scrape_for_long(files, 128, scaled(5_760), 300)
    assert memory < 4 * MIB
    assert growth <= 1

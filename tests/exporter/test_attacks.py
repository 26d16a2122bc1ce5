"""What a container can do to the exporter: nothing but to fill its own few series."""

import os
import re
import shutil
import threading
from pathlib import Path

import pytest
from support.exporter_process import ExporterProcess
from support.exposition import exported, parsed
from support.node_scene import NodeScene
from support.region_file import DEVICES, SLOTS, RegionFile
from support.scrapers import Scraper

from libhamiregion import Layout, create_region
from libhamiregion.units import MIB

UUIDS = [f"GPU-{device:08}-0000-0000-0000-000000000000" for device in range(DEVICES)]
USED = "hami_vgpu_memory_used_bytes"


@pytest.fixture(scope="module")
def full_region(tmp_path_factory) -> Path:
    """A region with every slot and every device in use."""
    path = tmp_path_factory.mktemp("full") / "usage.cache"
    create_region(path, uuids=UUIDS, memory_limits=["64GiB"] * DEVICES)
    file = RegionFile(path, Layout.V1_2)
    for slot in range(SLOTS):
        file.add_process(1_000_000 + slot, dict.fromkeys(range(DEVICES), MIB))
    return path


def anonymous_bytes(pid: int) -> int:
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    found = re.search(r"^Anonymous:\s+(\d+) kB", rollup, re.MULTILINE)
    return int(found[1]) * 1024


def highest_while_scraped(files: NodeScene, *arguments: str) -> tuple[int, bytes]:
    """The most anonymous memory that an exporter takes in some turns, and its last text."""
    where = ("--root", files.root, "--pod-logs", files.pod_logs)
    highest = 0
    with ExporterProcess(*where, *arguments) as process:
        process.wait_until_ready()
        with Scraper(process.url) as scraper:
            for _ in range(20):
                text = scraper.scrape().body
                highest = max(highest, anonymous_bytes(process.pid))
                threading.Event().wait(1.1)
        assert process.stop() == 0
        assert all(len(line) <= 500 for line in process.log.splitlines())
        assert len(process.log) < 4096
    return highest, text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("containers", "most_mib"), [(15, 45), pytest.param(60, 100, marks=pytest.mark.slow)]
)
def test_containers_with_full_tables_take_no_memory_for_each_slot(
    files, full_region, containers, most_mib
):
    for number in range(containers):
        shutil.copy(
            full_region,
            files.container(pod=f"full-{number}", region=False).directory / "usage.cache",
        )
    highest, text = highest_while_scraped(files)
    assert highest < most_mib * MIB
    found = parsed(text)
    assert len(found.series(USED)) == containers * DEVICES
    assert set(found.series(USED).values()) == {SLOTS * MIB}
    assert not [name for name in found.names if name.startswith("hamiregion_process_")]
    unread = found.series("hamiregion_container_processes", state="unread")
    assert list(unread.values()) == [SLOTS] * containers
    gaps = found.series("hamiregion_observation_gaps", kind="slots")
    assert list(gaps.values()) == [SLOTS] * containers


MAPS_ALL = """
import mmap, os
scene.kept = [mmap.mmap(os.open(path, os.O_RDWR), 0) for path in paths]
"""


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to look into map_files")
def test_one_process_that_maps_sixteen_full_regions_takes_less_than_100_mib(
    tmp_path, files, full_region, actor
):
    own = [tmp_path / f"own-{number}.cache" for number in range(16)]
    for path in own:
        shutil.copy(full_region, path)
    actor()("evaluate", MAPS_ALL, paths=own)
    highest, _ = highest_while_scraped(files, "--outside")
    assert highest < 100 * MIB


def test_utilisation_above_100_is_the_sum_of_the_processes(files, actor):
    path = files.container(uuids=UUIDS[:1]).path
    for sm in (80, 90):
        one = actor(path, attach=True)
        one("region.set_utilization", one.pid, 0, sm=sm)
    found = exported(files)
    assert found.value("hami_container_device_utilization_ratio") == 170
    ratios = found.series("hamiregion_process_sm_utilization_ratio").values()
    assert sorted(ratios) == [0.8, 0.9]

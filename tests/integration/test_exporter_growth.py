"""An exporter that runs for long takes no more than one that has just started."""

import gc
import os
import shutil
from pathlib import Path

import pytest
from exposition import WITHOUT_DOCTOR, NodeFiles
from golden_regions import NAMES

from libhamiregion.exporter import NodeExporter


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def objects() -> int:
    """What the exporter's own modules have made and not given back."""
    gc.collect()
    return sum(
        # Some types have a descriptor there instead of a name.
        str(type(each).__module__).startswith(
            ("libhamiregion.agent", "libhamiregion.node.containers")
        )
        for each in gc.get_objects()
    )


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def scrape_for(files: NodeFiles, exporter: NodeExporter, scrapes: int, every: int) -> None:
    """Scrapes in both formats; containers come and go, and all is refreshed, every so often."""
    for number in range(scrapes):
        if number % every == 0:
            path = files.region(pod=f"pod-{number}", uuids=["GPU-a"], memory_limits=["1GiB"])
            exporter.refresh()
            assert exporter.render().count(f'"pod-{number}"'.encode()) > 8
            shutil.rmtree(path.parent)
            exporter.refresh()
        exporter.render(openmetrics=bool(number % 2))


def test_hundreds_of_scrapes_leave_nothing_behind(tmp_path: Path) -> None:
    files = NodeFiles(tmp_path)
    for name in NAMES[:3]:
        files.golden(name)
    with files.open() as node:
        exporter = NodeExporter(
            node, legacy=True, collectors=WITHOUT_DOCTOR, process_interval_s=3600
        )
        scrape_for(files, exporter, 40, 10)
        open_before, objects_before = descriptors(), objects()
        assert objects_before > 10
        scrape_for(files, exporter, 200, 20)
        assert descriptors() <= open_before
        assert objects() == objects_before


@pytest.mark.stress
def test_a_days_scrapes_leave_nothing_behind(tmp_path: Path) -> None:
    """One each 15 s."""
    files = NodeFiles(tmp_path)
    for name in NAMES:
        files.golden(name)
    with files.open() as node:
        exporter = NodeExporter(node, legacy=True, process_interval_s=3600)
        scrape_for(files, exporter, 500, 50)
        gc.collect()
        open_before, resident_before = descriptors(), resident_bytes()
        scrape_for(files, exporter, 24 * 3600 // 15, 50)
        gc.collect()
        assert descriptors() <= open_before
        assert resident_bytes() - resident_before < 4 << 20

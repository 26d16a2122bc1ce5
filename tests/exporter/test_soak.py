"""An exporter over a long time: containers that come, go and break; a day's worth of scrapes."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import threading
import time
from typing import TYPE_CHECKING

import pytest
from support.exporter_process import ExporterProcess, exporter_process
from support.exposition import parsed
from support.node_scene import NodeScene
from support.region_file import patch, truncate
from support.scrapers import Crowd, Scraper, ask, descriptors, in_threads, resident_bytes
from support.stress import scaled
from support.wait import eventually, goes_on

from libhamiregion import create_region

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

UUID = "GPU-00000000-0000-0000-0000-000000000000"
LIMIT = "hami_vgpu_memory_limit_bytes"
USED = "hami_vgpu_memory_used_bytes"
MISSING = "hamiregion_container_missing_info"
GIB = 1 << 30
MIB = 1 << 20
QUICKLY = ("--resync-interval", "never")
ELSEWHERE = b"somebody else's\n" * 100
STABLE = 6
VICTIMS = 6


@contextlib.contextmanager
def exporting(files: NodeScene) -> Iterator[ExporterProcess]:
    """An exporter of these files that looks again soon, and must end well."""
    with exporter_process("--root", files.root, "--pod-logs", files.pod_logs, *QUICKLY) as process:
        process.wait_until_ready()
        yield process
        assert process.stop() == 0
        assert "Traceback" not in process.log


class Trouble:
    """Containers that come, go, restart, and truncate and corrupt their files, at random."""

    def __init__(self, files: NodeScene, seed: int) -> None:
        self.files = files
        self.random = random.Random(seed)
        # What the containers' links lead to: a file of somebody else, which nobody may touch.
        self.elsewhere = files.root.parent / "elsewhere"
        self.elsewhere.write_bytes(ELSEWHERE)
        self.paths = [self._made(number) for number in range(VICTIMS)]
        self.deeds = 0

    def _made(self, number: int) -> Path:
        return self.files.container(
            pod=f"victim-{number}", uuids=[UUID], memory_limits=["1GiB"]
        ).path

    def do(self) -> None:
        """One deed; whatever stands there already may make it impossible."""
        self.deeds += 1
        number = self.random.randrange(VICTIMS)
        deed = self.random.choice(
            (self._truncate, self._corrupt, self._restart, self._go, self._obstruct, self._empty)
        )
        with contextlib.suppress(OSError, ValueError):
            deed(number)

    def _truncate(self, number: int) -> None:
        size = self.paths[number].lstat().st_size
        truncate(self.paths[number], self.random.randrange(size + 10_000))

    def _corrupt(self, number: int) -> None:
        for _ in range(self.random.randrange(1, 50)):
            # Most of what decides anything is at the beginning.
            offset = self.random.randrange(self.random.choice((64, 4096, 1 << 20)))
            patch(self.paths[number], offset, self.random.randbytes(self.random.randrange(1, 64)))

    def _restart(self, number: int) -> None:
        path = self.paths[number]
        self._remove(path)
        create_region(path, uuids=[UUID], memory_limits=["1GiB"])

    def _go(self, number: int) -> None:
        shutil.rmtree(self.paths[number].parent)
        self.paths[number] = self._made(number)

    def _obstruct(self, number: int) -> None:
        path = self.paths[number]
        self._remove(path)
        kind = self.random.randrange(3)
        if kind == 0:
            path.mkdir()
        elif kind == 1:
            path.symlink_to(self.elsewhere)
        else:
            os.mkfifo(path)

    def _empty(self, number: int) -> None:
        self._remove(self.paths[number])

    @staticmethod
    def _remove(path: Path) -> None:
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)


def check_stable(scraper: Scraper) -> None:
    reply = scraper.scrape()
    assert reply.status == 200
    found = parsed(reply.body)
    limits = {
        dict(labels)["pod"]: value
        for labels, value in found.series(LIMIT).items()
        if dict(labels)["pod"].startswith("stable-")
    }
    assert limits == {f"stable-{number}": (number + 1) * GIB for number in range(STABLE)}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_trouble_in_some_containers_does_not_show_in_others(tmp_path: Path) -> None:
    files = NodeScene(tmp_path)
    for number in range(STABLE):
        files.container(pod=f"stable-{number}", uuids=[UUID], memory_limits=[(number + 1) * GIB])
    trouble = Trouble(files, seed=7)
    with exporting(files) as process, Scraper(process.url) as scraper:
        check_stable(scraper)
        before = descriptors(process.pid)
        stop = threading.Event()

        def make_trouble(_: int) -> None:
            while not stop.wait(0.02):
                trouble.do()

        with in_threads(1, make_trouble) as threads:
            try:
                began_s = time.monotonic()
                while goes_on(began_s, scaled(180.0, 4.0), is_enough=trouble.deeds > 5):
                    check_stable(scraper)
            finally:
                stop.set()
        assert threads.failures == []
        assert trouble.deeds > 5
        assert trouble.elsewhere.read_bytes() == ELSEWHERE
        for number in range(VICTIMS):
            trouble._restart(number)
        broken = trouble.paths[0]
        truncate(broken, 1000)

        def settled() -> bool:
            found = parsed(ask(process.url).body)
            shown = {dict(labels)["pod"] for labels in found.series(LIMIT)}
            reasons = {dict(labels)["pod"] for labels in found.series(MISSING)}
            healthy = {f"victim-{number}" for number in range(1, VICTIMS)}
            return healthy <= shown and "victim-0" in reasons and "victim-0" not in shown

        eventually(settled)
        eventually(lambda: descriptors(process.pid) <= before + 2)


def shows(process: ExporterProcess, used: int, **labels: str) -> Callable[[], bool]:
    """Whether a scrape has that figure: it may be a second old."""
    return lambda: parsed(ask(process.url).body).value(USED, **labels) == used


def scrape_for_long(tmp_path: Path, containers: int, scrapes: int, warm_up: int) -> tuple[int, int]:
    """Scrape as Prometheus does, with figures that change; growth of memory and descriptors."""
    files = NodeScene(tmp_path)
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


def test_hundreds_of_scrapes_leave_nothing_behind(tmp_path: Path) -> None:
    memory, files = scrape_for_long(tmp_path, 8, 200, 100)
    assert memory < 3 * MIB
    assert files <= 1


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_day_s_worth_of_scrapes_leaves_nothing_behind(tmp_path: Path) -> None:
    """Every 15 s, that is 5,760 a day; here as fast as they come."""
    memory, files = scrape_for_long(tmp_path, 128, scaled(5_760), 300)
    assert memory < 4 * MIB
    assert files <= 1


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_minutes_of_bad_clients_leave_nothing_behind(tmp_path: Path) -> None:
    files = NodeScene(tmp_path)
    for number in range(64):
        files.container(pod=f"train-{number}", uuids=[UUID] * 4, memory_limits=["8GiB"] * 4)
    with exporting(files) as process:
        with Scraper(process.url) as scraper:
            for _ in range(50):
                assert scraper.scrape().status == 200
        before = resident_bytes(process.pid), descriptors(process.pid)
        ends = time.monotonic() + scaled(120.0)

        def scrape(_: int) -> None:
            with Scraper(process.url) as scraper:
                while time.monotonic() < ends:
                    assert scraper.scrape().status == 200

        with Crowd(process.url, each=3), in_threads(10, scrape, 300.0) as threads:
            pass
        assert threads.failures == []
        eventually(lambda: descriptors(process.pid) <= before[1] + 1)
        assert resident_bytes(process.pid) - before[0] < 16 * MIB

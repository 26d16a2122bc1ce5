"""Evidence about regions: a container that answers slowly hides no one's region but its own."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.fake_proc import FakeProc, line_of
from support.region_file import RegionFile

from libhamiregion import Evidence, ProcessAnswer, Region, SearchCutShort, open_region
from libhamiregion.node import Container, ProcessTable, evidence
from libhamiregion.node.evidence import gather
from libhamiregion.node.procfs import file_identity

# No pod has pids of the other one: else each has to be asked about both.
ALIVE, DEAD = {1: (11, 12, 13, 14), 2: (21, 22)}, 9
SLOW_S = 0.2
BUDGET_S = 2.5 * SLOW_S


class Pods:
    """Pods with a region each, and processes in a /proc of files."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.proc = FakeProc(directory)
        self._add_facts(1, "/init.scope")
        # This process, as that /proc shows it.
        self.proc.add(2, self.proc.elsewhere)
        self._add_facts(2, "/init.scope")
        (directory / "self").symlink_to("2")
        self.asked: list[int] = []

    def process(self, number: int, region: Region, pid: int) -> None:
        """Add a process of a pod's container, which has a pid there."""
        host_pid = 100 * number + pid
        maps = self.proc.directory.parent / f"maps-{host_pid}"
        maps.write_text(line_of(region))
        self.proc.add(host_pid, maps, pid)
        self._add_facts(host_pid, f"/kubepods/pod{uid(number)}/{number:064x}", pid)

    def _add_facts(self, host_pid: int, cgroup: str, *pids: int) -> None:
        own = self.proc.directory / str(host_pid)
        fields = " ".join(["S", *["0"] * 18, "7", *["0"] * 30])
        (own / "stat").write_text(f"{host_pid} (x) {fields}\n")
        (own / "cgroup").write_text(f"0::{cgroup}\n")
        names = "\t".join(map(str, (host_pid, *pids)))
        (own / "status").write_text(f"Name:\tx\nState:\tS\nUid:\t0\t0\t0\t0\nNSpid:\t{names}\n")
        for name in ("cmdline", "environ"):
            (own / name).touch()


def uid(number: int) -> str:
    return f"00000000-0000-0000-0000-{number:012}"


@pytest.fixture
def pods(tmp_path, monkeypatch) -> Pods:
    """Those of pod 1 answer slowly; there is time for two such answers."""
    found, ask = Pods(tmp_path / "proc"), evidence.ask_process

    def asking(proc: int, pid: int, *arguments: object) -> tuple[ProcessAnswer, ...]:
        found.asked.append(pid)
        time.sleep(SLOW_S * (pid // 100 == 1))
        return ask(proc, pid, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(evidence, "ask_process", asking)
    monkeypatch.setattr(evidence, "EVIDENCE_S", BUDGET_S)
    return found


@pytest.fixture
def regions(region_file) -> Iterator[list[Region]]:
    """One of each pod, with slots of live processes and one of a dead process."""
    files: list[RegionFile] = [region_file(name=f"{number}.cache") for number in ALIVE]
    for file, alive in zip(files, ALIVE.values(), strict=True):
        for pid in (*alive, DEAD):
            file.add_process(pid, {0: 640})
    with contextlib.ExitStack() as opened:
        yield [opened.enter_context(open_region(file, writable=True)) for file in files]


def can_judge(region: Region, found: dict[Region, Evidence]) -> bool:
    try:
        region.reap(dry_run=True, evidence=found[region])
    except SearchCutShort:
        return False
    return True


def test_a_container_that_answers_slowly_is_asked_last_from_then_on(pods, regions):
    for number, region in enumerate(regions, 1):
        for pid in ALIVE[number]:
            pods.process(number, region, pid)
    table = ProcessTable(pods.proc.directory)
    table.refresh()
    suspects: dict[Region, Container | None] = dict.fromkeys(regions)
    found = gather(table, suspects)
    assert not can_judge(regions[1], found)
    for _ in range(2):
        pods.asked.clear()
        found = gather(table, suspects)
        assert pods.asked[0] // 100 == 2
        assert can_judge(regions[1], found)


def test_a_slot_without_a_pid_does_not_have_other_pods_asked(pods, regions):
    """Each process could be its own, but for those that are proved to be of another pod."""
    suspects: dict[Region, Container | None] = {}
    for number, region in enumerate(regions, 1):
        RegionFile(Path(region.path), region.layout).add_process(0, {0: 640})
        identity = file_identity(region)
        suspects[region] = Container(uid(number), directory=region.path, identity=identity)
        for pid in ALIVE[number]:
            pods.process(number, region, pid)
    table = ProcessTable(pods.proc.directory)
    table.refresh()
    other = regions[1]
    found = gather(table, {other: suspects[other]})
    assert {each // 100 for each in pods.asked} == {0, 2}
    freed = {each.pid for each in other.reap(dry_run=True, evidence=found[other])}
    assert DEAD in freed
    assert freed.isdisjoint(ALIVE[2])

"""Readers beside real writers: what is reported as settled is never mixed.

The writers are processes of `tests/c/torn_writer.c`. Each keeps one number in all figures of its
slot and stores the next one by libvgpu's protocol of that layout, so two different numbers in one
process are a torn read. Millions of reads are judged by `tests/c/torn_reader.c`, which calls the
same core as Python does; thousands through the Python API itself.
"""

import json
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support import c_tools
from support.every_layout import every_layout  # noqa: F401 (the fixture layout)
from support.stress import scaled

from libhamiregion import Layout, ProcessUsage, RegionSet, create_region, open_region

DEVICES = 16
# As in torn_protocol.h: the pids of made-up processes start here.
MADE_UP_PIDS = 1 << 22
WITH_SEQLOCK = (Layout.V1_1_POSTINIT, Layout.V1_2)
# Turns of an empty loop between two writes at most. 0 is a storm in which little settles.
PAUSES = (0, 4_000, 20_000)


Writer = Callable[..., "tuple[subprocess.Popen[str], list[str]]"]


@pytest.fixture(scope="session")
def tools() -> Path:
    """Where `torn_writer` and `torn_reader` are, built here and now."""
    writer, reader = (c_tools.build(tool) for tool in ("torn_writer", "torn_reader"))
    assert writer.parent == reader.parent
    return reader.parent


@pytest.fixture
def path(layout, tmp_path) -> Path:
    """A region of each layout in turn."""
    region = tmp_path / "region.cache"
    uuids = [f"GPU-{device}" for device in range(DEVICES)]
    create_region(region, layout=layout, memory_limits=("8GiB",), uuids=uuids)
    return region


@pytest.fixture
def writer(tools, path, layout) -> Iterator[Writer]:
    """Starts a writer; gives it and the pids that stay in the region as long as it runs."""
    running: list[subprocess.Popen[str]] = []

    def start(*mode: object) -> tuple[subprocess.Popen[str], list[str]]:
        process = subprocess.Popen(
            [tools / "torn_writer", path, layout.value, *map(str, mode)],
            stdout=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        ready, *pids = process.stdout.readline().split()
        assert ready == "ready"
        return process, pids

    yield start
    for process in running:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def read(
    tools: Path, path: Path, how: str, count: int, patience_s: int, staying: list[str]
) -> dict[str, float]:
    """What `torn_reader` counted in so many snapshots, and more until something has settled."""
    answer = subprocess.run(
        [tools / "torn_reader", path, how, str(count), str(patience_s), *staying],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return json.loads(answer.stdout)


def numbers_of(process: ProcessUsage, layout: Layout) -> set[int]:
    """The different numbers in the figures of a process: one, unless it is torn.

    Each kind of memory is that number, and the total is their sum.
    """
    numbers = set()
    for device in process.devices:
        numbers |= {
            device.memory_used_bytes - device.memory_context_bytes - device.memory_module_bytes,
            device.memory_context_bytes,
            device.memory_module_bytes,
            device.memory_data_bytes,
            device.memory_monitor_bytes,
        }
        if layout is not Layout.UNVERSIONED_NO_UTIL:
            numbers |= {device.sm_util_percent, device.enc_util_percent, device.dec_util_percent}
    return numbers


# ---- Writers that stay where they are, and slots that move -------------------------------------


def write(writer: Writer, pause: int) -> list[str]:
    return [pid for _ in range(3) for pid in writer("write", pause)[1]]


def move(writer: Writer, pause: int) -> list[str]:
    # Writers first: those of the newer layouts keep the address of their slot, so theirs must be
    # below the movers'. In the older layouts they are moved like all others.
    staying = [pid for _ in range(2) for pid in writer("write", pause)[1]]
    return staying + [pid for index in range(2) for pid in writer("move", index, pause)[1]]


@pytest.mark.slow(keep=4)
@pytest.mark.parametrize("pause", PAUSES)
@pytest.mark.parametrize("start", [write, move])
def test_no_settled_process_is_mixed_or_seen_twice_or_never(start, pause, tools, path, writer):
    """Two million snapshots of each kind in the long run: five layouts, three paces."""
    count = scaled(140_000, 8_000)
    staying = start(writer, pause)
    # A writer that never rests may leave no moment for two reads.
    patience_s = 60 if pause else 0
    for how, share in (("snapshots", count * 3 // 4), ("sets", count // 4)):
        counted = read(tools, path, how, share, patience_s, staying)
        assert counted["snapshots"] >= share
        lies = ("errors", "mixed_settled", "went_back", "twice_settled", "lost_settled")
        assert {lie: counted[lie] for lie in lies} == dict.fromkeys(lies, 0)
        assert counted["settled"] > 0 or pause == 0


# ---- Writers that are killed ------------------------------------------------------------------


def times_of(take: Callable[[], object], count: int = 300) -> list[float]:
    times = []
    for _ in range(count):
        before = time.perf_counter()
        take()
        times.append(time.perf_counter() - before)
    return sorted(times)


def assert_within_budget(times: list[float]) -> None:
    # A busy machine takes the processor away now and then; the budget is 0.1 ms.
    assert statistics.median(times) < 0.001
    assert times[len(times) * 9 // 10] < 0.05


@pytest.mark.parametrize("layout", WITH_SEQLOCK)
def test_writer_killed_inside_its_seqlock(path, layout, writer):
    """The reader says which process is not settled, and does not wait for it."""
    before, _ = writer("still")
    killed, _ = writer("odd")
    after, _ = writer("still")
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    with open_region(path) as region, RegionSet([path]) as regions:
        assert_within_budget(times_of(region.snapshot))
        snapshot = region.snapshot()
        assert not snapshot.settled
        settled = {process.pid: process.settled for process in snapshot.processes}
        assert settled == {before.pid: True, killed.pid: False, after.pid: True}
        # What stands there is shown all the same: half of it is new.
        assert numbers_of(snapshot.processes[1], layout) == {1, 2}

        assert_within_budget(times_of(regions.read))
        table = regions.read()
        assert list(table.regions.settled) == [0]
        assert list(table.processes.settled) == [1, 0, 1]


@pytest.mark.slow(keep=2)
def test_writer_killed_holding_the_semaphore(path, writer):
    """Nothing in the region is settled, and reading goes on at its usual speed."""
    still, _ = writer("still")
    killed, _ = writer("hold")
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    with open_region(path) as region:
        assert_within_budget(times_of(region.snapshot))
        snapshot = region.snapshot()
        assert not snapshot.settled
        assert snapshot.owner_pid == killed.pid
        assert [process.pid for process in snapshot.processes] == [still.pid, killed.pid]
        assert [process.settled for process in snapshot.processes] == [False, False]


def test_settled_again_after_the_storm(path, layout, writer):
    """When writers stop in good order, the next snapshot is settled and whole."""
    writers = [writer("write", 0)[0] for _ in range(3)]
    mover, _ = writer("move", 0, 0)
    with open_region(path) as region:
        for _ in range(100):
            region.snapshot()
        for process in [*writers, mover]:
            process.terminate()
        assert [process.wait() for process in [*writers, mover]] == [0, 0, 0, 0]
        snapshot = region.snapshot()
        assert snapshot.settled
        assert {process.pid for process in writers} <= {one.pid for one in snapshot.processes}
        for process in snapshot.processes:
            (number,) = numbers_of(process, layout)
            if process.pid >= MADE_UP_PIDS:
                assert number == process.pid * 1_000_003

"""A search of /proc that was cut short goes on at the next call, where it stopped.

Here in a /proc of the test's own, which answers no queries: as before Linux 6.11 all of the text of
maps has to be read. A call that is cut short costs 2 s of the processor, so most of these are
stress runs.
"""

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.region_file import RegionFile, RegionFileFactory
from support.stress import scaled
from support.wait import eventually

from libhamiregion import Layout, ReapedSlot, SearchCutShort, open_region

GIB = 1 << 30
LINE = "7f0000000000-7f0000001000 rw-s 00000000 00:01 1 /dev/nvidia0\n"
ENDLESS, COUNTED, OTHER = 500, 501, 502


class OwnProc:
    """A /proc of the first namespace, with processes that are told what their maps are."""

    def __init__(self, directory: Path) -> None:
        self.path = directory
        directory.mkdir()
        init = self.add(1, "")
        (init / "ns").mkdir()
        (init / "ns" / "pid").symlink_to("pid:[4026531836]")

    def add(self, pid: int, maps: str | None) -> Path:
        """A process; None leaves its maps to the caller."""
        process = self.path / str(pid)
        process.mkdir()
        (process / "status").write_text(f"Name:\tx\nState:\tS\nNSpid:\t{pid}\n")
        self.starts(pid, 100)
        if maps is not None:
            (process / "maps").write_text(maps)
        return process

    def starts(self, pid: int, ticks: int) -> None:
        """When it has started: another number is another process with the same pid."""
        before, after = " ".join(["0"] * 18), " ".join(["0"] * 6)
        (self.path / str(pid) / "stat").write_text(f"{pid} (a) 1 b) S {before} {ticks} {after}\n")


class ToldMaps:
    """The maps of a process, written anew for each reader: so many lines, or without an end."""

    def __init__(self, process: Path) -> None:
        self.readers = 0
        self.is_endless = False
        self._maps = process / "maps"
        os.mkfifo(self._maps)
        self._over = False
        self._thread = threading.Thread(target=self._answer, daemon=True)
        self._thread.start()

    def _answer(self) -> None:
        text = (LINE * 1000).encode()
        while not self._over:
            with contextlib.suppress(BrokenPipeError), self._maps.open("wb", 0) as stream:
                if self._over:
                    return
                # The next reader has another pipe: this one shall see the end of its own.
                self._maps.unlink()
                os.mkfifo(self._maps)
                self.readers += 1
                stream.write(text)
                while self.is_endless:
                    stream.write(text)

    def end(self) -> None:
        self._over, self.is_endless = True, False
        eventually(self._has_ended)

    def _has_ended(self) -> bool:
        # It waits for somebody who reads.
        reader = os.open(self._maps, os.O_RDONLY | os.O_NONBLOCK)
        self._thread.join(0.1)
        os.close(reader)
        return not self._thread.is_alive()


class Begun:
    """A search that has seen all processes but one, whose maps took what was left each time."""

    def __init__(self, region: RegionFile, directory: Path) -> None:
        self.region = region
        self.proc = OwnProc(directory)
        self.endless = ToldMaps(self.proc.add(ENDLESS, None))
        self.counted = ToldMaps(self.proc.add(COUNTED, None))
        self.proc.add(OTHER, LINE)
        self.endless.is_endless = True
        calls = 0
        # It comes last at the second call at the latest, whatever the order of the directory.
        while not self.counted.readers:
            assert self.reap() is None
            calls += 1
        assert calls <= 2
        self.endless.is_endless = False

    def reap(self) -> tuple[ReapedSlot, ...] | None:
        """One call, by a handle of its own as a node's agent makes it; None if it was cut short."""
        return reap(self.region, self.proc)

    def end(self) -> None:
        self.endless.end()
        self.counted.end()


def reap(region: RegionFile, proc: OwnProc) -> tuple[ReapedSlot, ...] | None:
    with open_region(region, writable=True) as opened, contextlib.suppress(SearchCutShort):
        return opened.reap(proc=proc.path)
    return None


@pytest.fixture
def region(region_file: RegionFileFactory) -> RegionFile:
    file = region_file(Layout.V1_2)
    file.add_process(0, {0: GIB})
    return file


@pytest.fixture
def begun(region: RegionFile, tmp_path: Path) -> Iterator[Begun]:
    found = Begun(region, tmp_path / "proc")
    try:
        yield found
    finally:
        found.end()


def maps_of(region: RegionFile) -> str:
    """A mapping of the region, by a process of libvgpu."""
    status = region.path.stat()
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    end = 0x7F0000000000 + status.st_size
    return (
        f"7f0000000000-{end:x} rw-s 00000000 {device} {status.st_ino} {region.path}\n"
        "7f1000000000-7f1000001000 r-xp 00000000 00:01 2 /usr/local/vgpu/libvgpu.so\n"
    )


@pytest.mark.slow
def test_a_dead_slot_is_freed_at_last_and_nothing_is_read_twice(begun: Begun) -> None:
    assert begun.reap() == (ReapedSlot(0, GIB, removed=True),)
    assert begun.counted.readers == 1
    # That search is over: the next one begins anew.
    begun.region.add_process(0, {0: GIB})
    assert begun.reap() == (ReapedSlot(0, GIB, removed=True),)
    assert begun.counted.readers == 2


@pytest.mark.slow
def test_a_process_with_the_pid_of_one_that_was_ruled_out_is_looked_at(begun: Begun) -> None:
    (begun.proc.path / str(OTHER) / "maps").write_text(maps_of(begun.region))
    begun.proc.starts(OTHER, 200)
    assert begun.reap() == (), "it may be about to end"
    with open_region(begun.region) as region:
        assert region.memory_used(0) == GIB


@pytest.mark.slow
def test_one_with_the_pid_of_a_slot_is_looked_at_each_time(begun: Begun) -> None:
    """It may have taken that slot since it was looked at."""
    begun.region.add_process(OTHER, {0: GIB})
    (begun.proc.path / str(OTHER) / "maps").write_text(maps_of(begun.region))
    assert begun.reap() == (ReapedSlot(0, GIB, removed=False),)
    with open_region(begun.region) as region:
        assert region.memory_used(0) == GIB


def test_a_slot_that_has_come_since_waits_for_the_next_search(begun: Begun) -> None:
    """Processes were ruled out before it was there: one of them may be its own."""
    begun.region.add_process(0, {0: GIB // 2})
    with open_region(begun.region, writable=True) as opened:
        with pytest.raises(SearchCutShort) as caught:
            opened.reap(proc=begun.proc.path)
        assert caught.value.done == (ReapedSlot(0, GIB, removed=False),)
        assert caught.value.pids == (0,)
    # Nothing is read twice, and then that search is over: the next one begins anew.
    assert begun.counted.readers == 1
    assert ReapedSlot(0, GIB // 2, removed=True) in (begun.reap() or ())
    assert begun.counted.readers == 2


@pytest.mark.slow
def test_a_slot_that_has_changed_since_begins_another_search(begun: Begun) -> None:
    begun.region.put("slot_used.total", GIB // 2)
    assert begun.reap() == (ReapedSlot(0, GIB // 2, removed=True),)
    assert begun.counted.readers == 2


@pytest.mark.slow
def test_another_proc_is_another_search(begun: Begun, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = OwnProc(tmp_path / "other" / "proc")
    other.add(COUNTED, maps_of(begun.region))
    assert reap(begun.region, other) == ()
    assert begun.reap() == (ReapedSlot(0, GIB, removed=True),)
    assert begun.counted.readers == 1


@pytest.mark.slow
def test_the_verb_goes_on_until_all_are_judged(begun: Begun) -> None:
    """In a process of its own, which has to begin anew."""
    begun.endless.is_endless = True
    readers = begun.endless.readers
    command = [sys.executable, "-m", "libhamiregion", "reap", str(begun.region.path)]
    with subprocess.Popen(
        [*command, "--proc", str(begun.proc.path)], stdout=subprocess.PIPE, text=True
    ) as verb:
        eventually(lambda: begun.endless.readers == readers + 2)
        begun.endless.is_endless = False
        assert verb.stdout is not None
        assert verb.stdout.read() == "process 0: slot removed, 1 GiB no longer counted\n"
    assert verb.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("layout", [Layout.V1_1, Layout.V1_2])
def test_a_dead_slot_is_freed_beside_thirteen_hundred_busy_processes(
    layout: Layout, region_file: RegionFileFactory, tmp_path: Path
) -> None:
    region = region_file(layout)
    region.add_process(0, {0: GIB})
    proc = OwnProc(tmp_path / "proc")
    maps = tmp_path / "maps"
    maps.write_text(LINE * 20_000)
    for pid in range(1000, 1000 + scaled(1300)):
        (proc.add(pid, None) / "maps").hardlink_to(maps)
    began_s, calls = time.thread_time(), 1
    while (found := reap(region, proc)) is None:
        calls += 1
        assert calls < 100
    print(f"freed after {calls} calls, {time.thread_time() - began_s:.1f} s of the processor")
    assert found == (ReapedSlot(0, GIB, removed=True),)

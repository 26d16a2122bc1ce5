"""The search through /proc that judges dead slots, before the lock is taken.

Here in a /proc of the test's own, where one process has the number of a dead one and decides how
long its maps take to read.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TextIO

import pytest
from lock_bytes import is_free
from slot_bytes import pids
from support.region_file import RegionFile, RegionFileFactory
from support.wait import eventually

from libhamiregion import (
    Layout,
    ReapedSlot,
    Region,
    SearchCutShort,
    SlotRepair,
    open_region,
)

DEAD = 5
LINE = "7f0000000000-7f0000001000 rw-s 00000000 00:01 1 /somewhere/else\n"
FIRST = 0


@pytest.fixture(params=[Layout.V1_1, Layout.V1_2])
def region(request: pytest.FixtureRequest, region_file: RegionFileFactory) -> RegionFile:
    file = region_file(request.param)
    file.add_process(DEAD, {0: 640})
    return file


class Neighbour:
    """What its maps do each time they are read; by default they are short and of another file."""

    def __init__(self, proc: Path) -> None:
        self.proc = proc
        self.searches = 0
        self.at: dict[int, Callable[[TextIO], object]] = {}
        self._maps = proc / "123" / "maps"
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._answer, daemon=True)
        self._thread.start()

    def _answer(self) -> None:
        while not self._over.is_set():
            with suppress(BrokenPipeError), self._maps.open("w", encoding="ascii") as stream:
                if self._over.is_set():
                    return
                # The next reader has another pipe: this one shall see the end of its own.
                self._maps.unlink()
                os.mkfifo(self._maps)
                number, self.searches = self.searches, self.searches + 1
                self.at.get(number, lambda _: None)(stream)
                stream.write(LINE)

    def end(self) -> None:
        self._over.set()
        eventually(self._has_ended)

    def _has_ended(self) -> bool:
        # It waits for somebody who reads.
        reader = os.open(self._maps, os.O_RDONLY | os.O_NONBLOCK)
        self._thread.join(0.1)
        os.close(reader)
        return not self._thread.is_alive()


@pytest.fixture
def neighbour(tmp_path: Path) -> Iterator[Neighbour]:
    proc = tmp_path / "proc"
    for name, namespace_pids in (("1", "1"), ("123", f"123\t{DEAD}")):
        (proc / name).mkdir(parents=True)
        (proc / name / "status").write_text(f"Name:\tx\nState:\tS\nNSpid:\t{namespace_pids}\n")
    # The first namespace, where everybody can be seen.
    (proc / "1" / "ns").mkdir()
    (proc / "1" / "ns" / "pid").symlink_to("pid:[4026531836]")
    (proc / "1" / "maps").write_text(LINE)
    os.mkfifo(proc / "123" / "maps")
    found = Neighbour(proc)
    yield found
    found.end()


@pytest.fixture
def opened(region: RegionFile) -> Iterator[Region]:
    with open_region(region, writable=True) as found:
        yield found


def test_a_dead_one_is_reaped_where_the_search_is_short(
    opened: Region, neighbour: Neighbour
) -> None:
    assert opened.reap(proc=neighbour.proc) == (ReapedSlot(DEAD, 640),)
    assert neighbour.searches == 1
    assert opened.memory_used(0) == 0


def lines_after(seconds: float) -> Callable[[TextIO], object]:
    """Maps that come late, and are long enough for the reader to look at the clock meanwhile."""

    def write(stream: TextIO) -> None:
        time.sleep(seconds)
        stream.write(LINE * 200)

    return write


def test_before_the_lock_a_search_may_take_long(opened: Region, neighbour: Neighbour) -> None:
    """Nobody waits for it: what counts there is the processor's time."""
    neighbour.at[FIRST] = lines_after(0.7)
    assert opened.reap(proc=neighbour.proc) == (ReapedSlot(DEAD, 640),)
    assert opened.memory_used(0) == 0


@pytest.mark.parametrize(("field", "value"), [("slot_used.total", 641), ("slot_hostpid", 77)])
def test_a_slot_that_has_changed_since_the_search_began_is_left(
    field: str, value: int, opened: Region, region: RegionFile, neighbour: Neighbour
) -> None:
    """As by a process that has got the dead one's pid and slot meanwhile."""
    neighbour.at[FIRST] = lambda _: region.put(field, value)
    assert opened.reap(proc=neighbour.proc) == ()
    assert opened.memory_used(0) in {640, 641}


def test_nobody_waits_for_the_lock_while_proc_is_searched(
    opened: Region, region: RegionFile, neighbour: Neighbour
) -> None:
    neighbour.at[FIRST] = lambda _: free.append(is_free(region))
    free: list[bool] = []
    assert opened.reap(proc=neighbour.proc) == (ReapedSlot(DEAD, 640),)
    assert free == [True]


# What is read of /proc knows no layout, and costs all the time that a search may take.
@pytest.mark.slow
@pytest.mark.parametrize("region", [Layout.V1_2], indirect=True)
def test_of_maps_without_end_a_part_is_read(
    opened: Region, region: RegionFile, neighbour: Neighbour
) -> None:
    def write_on(stream: TextIO) -> None:
        while True:
            stream.write(LINE * 1000)

    neighbour.at[FIRST] = write_on
    before_s = time.thread_time()
    with pytest.raises(SearchCutShort):
        opened.reap(proc=neighbour.proc)
    assert time.thread_time() - before_s < 3
    assert (neighbour.searches, pids(region)) == (1, [DEAD])


@pytest.mark.slow
@pytest.mark.parametrize("region", [Layout.V1_2], indirect=True)
def test_a_repair_of_slots_that_could_not_look_at_all_says_of_whom(
    opened: Region, region: RegionFile, neighbour: Neighbour
) -> None:
    def write_on(stream: TextIO) -> None:
        while True:
            stream.write(LINE * 1000)

    region.put("proc_num", 0)
    neighbour.at[FIRST] = write_on
    with pytest.raises(SearchCutShort, match=r"pids 5.* cut short") as caught:
        opened.repair_slots(proc=neighbour.proc)
    assert (caught.value.pids, caught.value.done) == ((DEAD,), SlotRepair((), ()))
    assert (region.get("proc_num"), is_free(region)) == (0, True)


def test_maps_of_up_to_8_mib_are_read_to_their_end(opened: Region, neighbour: Neighbour) -> None:
    """Long paths of another process with that pid do not keep a dead slot counted."""
    path = "/somewhere/" + "x" * 3500
    lines = LINE.replace("rw-s", "rw-p").replace("/somewhere/else", path) * 950

    def write_long(stream: TextIO) -> None:
        stream.writelines(lines for _ in range(2))

    neighbour.at.update({FIRST: write_long})
    assert 7 << 20 > len(lines) * 2 > 6 << 20
    assert opened.reap(proc=neighbour.proc) == (ReapedSlot(DEAD, 640),)
    assert opened.memory_used(0) == 0


# ---- who maps the region, by other tellings of /proc ----


def mapping_of(region: Region) -> str:
    """The line of this process's maps that is the region's."""
    path = f" {region.path}\n"
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines(keepends=True)
    return next(line for line in lines if line.endswith(path) and " rw-s " in line)


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    proc = tmp_path / "proc"
    for name in ("1", "123"):
        (proc / name).mkdir(parents=True)
        (proc / name / "status").write_text(f"Name:\tx\nState:\tS\nNSpid:\t{name}\n")
        (proc / name / "maps").write_text(LINE)
    (proc / "1" / "ns").mkdir()
    (proc / "1" / "ns" / "pid").symlink_to("pid:[4026531836]")
    return proc


def test_a_process_as_deep_as_namespaces_go_is_seen(opened: Region, proc: Path) -> None:
    """The kernel makes 32 below the first one."""
    levels = [123, *range(1000, 1031), DEAD]
    assert len(levels) == 33
    own = proc / "123"
    (own / "status").write_text("State:\tS\nNSpid:\t" + "\t".join(map(str, levels)) + "\n")
    (own / "maps").write_text(mapping_of(opened))
    assert opened.reap(proc=proc) == ()
    assert opened.memory_used(0) == 640


def test_one_whose_first_thread_is_ending_is_seen_by_the_others(opened: Region, proc: Path) -> None:
    """It has let go of its memory, and is no zombie yet."""
    own = proc / "123"
    (own / "status").write_text(f"State:\tR\nNSpid:\t123\t{DEAD}\n")
    (own / "maps").write_text("")
    (own / "task" / "124").mkdir(parents=True)
    (own / "task" / "124" / "maps").write_text(mapping_of(opened))
    assert opened.reap(proc=proc) == ()
    (own / "task" / "124" / "maps").write_text("")
    assert opened.reap(proc=proc) == (ReapedSlot(DEAD, 640),)

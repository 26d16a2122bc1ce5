"""Searches of /proc: what they cost, and what they prove."""

import contextlib
import functools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO, TypeVar

import pytest
from support.actors import Actor
from support.fake_proc import LINE, FakeProc, line_of
from support.lock_bytes import NOBODY, hold, is_free
from support.region_file import RegionFile
from support.slot_bytes import pids
from support.wait import PATIENCE_S, eventually, on_this_machine_s

from libhamiregion import LockNotRecoverable, ReapedSlot, Region, RegionError, SearchCutShort


@pytest.fixture
def fake_proc(tmp_path) -> FakeProc:
    (tmp_path / "proc").mkdir()
    return FakeProc(tmp_path / "proc")


@pytest.fixture
def long_maps(tmp_path) -> Path:
    """Maps that take a while to read."""
    maps = tmp_path / "maps"
    maps.write_text(LINE * ((31 << 20) // len(LINE)))
    return maps


@pytest.fixture
def ours(tmp_path, region) -> Path:
    """Maps with the region."""
    maps = tmp_path / "ours"
    maps.write_text(line_of(region))
    return maps


@pytest.fixture
def file(region_file) -> RegionFile:
    return region_file()


# ---- the number first ----


def test_maps_are_read_only_of_processes_that_have_the_owners_number(region, file, fake_proc):
    for pid in range(100, 110):
        maps = fake_proc.add(pid, None, pid - 90) / "maps"
        maps.unlink()
        # It would be waited for without end.
        os.mkfifo(maps)
    hold(file, NOBODY)
    assert region.lock_state(proc=fake_proc.directory).owner_life == "dead"
    assert region.recover_lock(proc=fake_proc.directory).dead_owner
    assert is_free(file)


def test_a_process_with_as_many_groups_as_there_can_be_is_seen(region, file, fake_proc, ours):
    """Their line comes before that of its pids, and has most of a megabyte."""
    status = fake_proc.add(100, ours, NOBODY) / "status"
    groups = " ".join(map(str, range(4_000_000_000, 4_000_065_536)))
    hold(file, NOBODY)
    for filler in range(0, 4096, 97):
        text = f"Name:\t{'x' * filler}\nGroups:\t{groups}\nNSpid:\t100\t{NOBODY}\nSeccomp:\t0\n"
        status.write_text(text)
        assert region.lock_state(proc=fake_proc.directory).owner_life == "alive"


def test_hostile_maps_cost_a_look_at_the_lock_its_budget_and_no_more(
    region, file, fake_proc, long_maps
):
    """Read to their ends they would take many seconds."""
    for pid in range(1000, 1100):
        fake_proc.add(pid, long_maps, NOBODY)
    hold(file, NOBODY)
    begun_s = time.thread_time()
    assert region.lock_state(proc=fake_proc.directory).owner_life == "unknown"
    with pytest.raises(LockNotRecoverable, match="not known"):
        region.recover_lock(proc=fake_proc.directory)
    # Three looks for the owner, and one under the host lock, of a second each.
    assert time.thread_time() - begun_s < 8


Error = TypeVar("Error", bound=RegionError)


def refusal(kind: type[Error], call: Callable[[], object]) -> Error:
    """The error of a call whose search had time enough, which a busy machine may not give."""
    found: list[Error] = []

    def is_searched() -> bool:
        with pytest.raises(kind) as caught:
            call()
        found.append(caught.value)
        return not str(caught.value).endswith("cut short; try again")

    eventually(is_searched)
    return found[-1]


def test_a_process_with_too_many_maps_is_unknown_and_all_others_are_judged(
    region, file, fake_proc, long_maps
):
    """It has the pid of one slot; that of another is not its."""
    proc = fake_proc.directory
    fake_proc.add(1000, long_maps, 5)
    file.add_process(5, {0: 640})
    file.add_process(6, {0: 320})
    again = "8 MiB of memory maps in process 1000"
    first = refusal(SearchCutShort, lambda: region.reap(proc=proc))
    assert "pids 5" in str(first)
    assert again in str(first)
    assert "trying again does not help" in str(first)
    assert region.memory_used(0) == 640
    assert (first.pids, first.processes) == ((5,), (1000,))
    assert again in str(refusal(SearchCutShort, lambda: region.reap([5], proc=proc)))
    # Any process may have been the one that has taken its pid out of its slot.
    file.add_process(0, {0: 160})
    assert set(refusal(SearchCutShort, lambda: region.reap(proc=proc)).pids) == {0, 5}
    hold(file, 6)

    def is_recovered() -> bool:
        with contextlib.suppress(LockNotRecoverable):
            return region.recover_lock(proc=proc).dead_owner
        return False

    eventually(is_recovered)
    hold(file, 5)
    said = str(refusal(LockNotRecoverable, lambda: region.recover_lock(proc=proc)))
    assert "process 1000 " in said
    assert "does not help" in said


# ---- a process that decides how long its maps take to read ----

DEAD = 5


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
            with (
                contextlib.suppress(BrokenPipeError),
                self._maps.open("w", encoding="ascii") as stream,
            ):
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
def neighbour(fake_proc, file) -> Iterator[Neighbour]:
    """It has the number of a process that has left a slot."""
    file.add_process(DEAD, {0: 640})
    maps = fake_proc.add(123, None, DEAD) / "maps"
    maps.unlink()
    os.mkfifo(maps)
    found = Neighbour(fake_proc.directory)
    yield found
    found.end()


def late(_: RegionFile, stream: TextIO) -> None:
    """Maps that come late, but within the 2 s of a search, are read."""
    time.sleep(0.7)
    stream.write(LINE * 200)


def long(_: RegionFile, stream: TextIO) -> None:
    """Up to 8 MiB are read: long paths do not keep a dead slot counted."""
    path = "/somewhere/" + "x" * 3500
    lines = LINE.replace("rw-s", "rw-p").replace("/somewhere/else", path) * 950
    assert 7 << 20 > len(lines) * 2 > 6 << 20
    stream.writelines(lines for _ in range(2))


def free(file: RegionFile, _: TextIO) -> None:
    """Others can take the lock while /proc is searched."""
    assert is_free(file)


@pytest.mark.parametrize("maps", [late, long, free])
def test_a_search_reads_all_maps_before_it_takes_the_lock(maps, region, file, neighbour):
    neighbour.at[0] = functools.partial(maps, file)
    assert region.reap(proc=neighbour.proc) == (ReapedSlot(DEAD, 640),)
    assert neighbour.searches == 1
    assert region.memory_used(0) == 0


def test_a_death_that_a_byte_proves_is_not_searched_for(region, file, neighbour):
    no_writers_number = 0x40000000 + 256
    hold(file, no_writers_number)
    assert region.recover_lock(proc=neighbour.proc).dead_owner
    assert neighbour.searches == 0


@pytest.fixture
def signals() -> Iterator[Callable[[float, float], None]]:
    """Signals from now on: every so many seconds, with a handler that takes so long."""

    def start(every_s: float, handler_s: float) -> None:
        signal.signal(signal.SIGALRM, lambda *_: time.sleep(handler_s))
        signal.setitimer(signal.ITIMER_REAL, every_s, every_s)

    before = signal.getsignal(signal.SIGALRM)
    yield start
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("neighbour")
@pytest.mark.parametrize("handler_s", [0.0, 0.15])
def test_a_recovery_ends_in_time_while_signals_come(
    handler_s, region, file, fake_proc, ours, neighbour, signals
):
    """One that watches goes on after each; it searches again only if it has to begin anew."""
    fake_proc.add(100, ours, 6)
    neighbour.at = dict.fromkeys(range(1000), functools.partial(late, file))
    hold(file, 0)
    began_s = time.monotonic()
    signals(0.5, handler_s)
    with pytest.raises(LockNotRecoverable, match="watch it for 10 s"):
        region.recover_lock(proc=neighbour.proc, watch_s=2.5)
    took_s = time.monotonic() - began_s
    # One that began anew after each would go on as long as signals come.
    assert took_s < on_this_machine_s(4 if handler_s == 0 else 16)
    if handler_s == 0:
        assert neighbour.searches == 1


# ---- who maps the region ----


def dead(region: Region, file: RegionFile, proc: FakeProc, asked: list[int]) -> set[int]:
    """Those of some pids in slots that are proved dead."""
    for pid in set(asked).difference(pids(file)):
        file.add_process(pid, {0: 640})
    found = region.reap(proc=proc.directory, dry_run=True, timeout_s=PATIENCE_S)
    return {each.pid for each in found}


def test_what_may_be_a_mapping_of_the_region_is_not_forgotten_over_those_after_it(
    region, file, fake_proc
):
    """Through an overlay its inode shows another device."""
    maps = fake_proc.directory.parent / "through_an_overlay"
    fields = line_of(region).split(maxsplit=5)
    other = " ".join([*fields[:3], "fe:fe", "1", "/elsewhere\n"])
    maps.write_text(" ".join([*fields[:3], "fe:fe", *fields[4:]]) + other)
    fake_proc.add(100, maps, 5)
    fake_proc.add(101, fake_proc.elsewhere, 6)
    assert dead(region, file, fake_proc, [5, 6]) == {6}


def file_system_of(path: Path) -> str:
    """The type of the file system that a file lies on; "" where the mounts do not show it."""
    device = path.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        mount, _, source = line.partition(" - ")
        if mount.split()[2] == number:
            return source.split()[0]
    return ""


@pytest.mark.parametrize(
    ("kind", "is_another"),
    [
        ("ext4", True),
        ("xfs", True),
        ("btrfs", True),
        ("tmpfs", True),
        ("overlay", False),
        ("fuse", False),
        ("nfs4", False),
        ("zfs", False),
        ("ext", False),
        ("ext4x", False),
    ],
)
def test_its_inode_number_on_a_device_is_another_file_if_that_keeps_its_pages_itself(
    region, file, fake_proc, kind, is_another
):
    if file_system_of(Path(region.path)) not in {"ext4", "xfs", "tmpfs"}:
        pytest.skip("needs a region on ext4, xfs or tmpfs")
    maps = fake_proc.directory.parent / "elsewhere"
    fields = line_of(region).split(maxsplit=5)
    maps.write_text(" ".join([*fields[:3], "fe:fd", *fields[4:]]))
    fake_proc.add(100, maps, 5)
    mounts = (f"30 1 254:25 / / rw - {kind}2 d rw", f"36 1 254:253 / /x rw - {kind} d rw")
    text = "".join(f"{line}\n" for line in (*mounts, "37 1 254:2 / /y rw - overlay d rw"))
    (fake_proc.directory / "100" / "mountinfo").write_text(text)
    found = dead(region, file, fake_proc, [5])
    assert found == ({5} if is_another else set())


def test_a_process_whose_pids_are_not_told_is_looked_at(region, file, fake_proc, ours):
    fake_proc.add(100, ours, 5)
    (fake_proc.directory / "100" / "status").write_text("Name:\tx\n")
    assert dead(region, file, fake_proc, [5, 6]) == set()


@pytest.mark.parametrize("first", ["of libvgpu, with a slot", "of libvgpu", "with a slot"])
def test_a_containers_own_proc_is_told_by_its_first_process_alone(first, region, file, fake_proc):
    """Its pid stands in a slot, and it is libvgpu's: so the pids there are those of the slots."""
    (fake_proc.directory / "1" / "ns" / "pid").unlink()
    libvgpu = line_of(region).replace(" rw-s ", " r-xp ").replace(region.path, "/opt/libvgpu.so")
    maps = line_of(region) + (libvgpu if first.startswith("of libvgpu") else "")
    fake_proc.elsewhere.write_text(maps)
    file.add_process(5, {0: 1})
    if first.endswith("with a slot"):
        file.add_process(1)
    is_proved = first == "of libvgpu, with a slot"
    found = dead(region, file, fake_proc, [5])
    assert found == ({5} if is_proved else set())


def test_a_private_copy_of_the_file_makes_nobody_a_process_of_the_region(region, file, fake_proc):
    maps = fake_proc.directory.parent / "private"
    maps.write_text(line_of(region).replace(" rw-s ", " rw-p "))
    fake_proc.add(100, maps, 5)
    assert dead(region, file, fake_proc, [5]) == {5}


def test_a_process_as_deep_as_namespaces_go_is_seen(region, file, fake_proc, ours):
    """The kernel makes 32 below the first one."""
    fake_proc.add(100, ours, *range(1000, 1031), 5)
    assert dead(region, file, fake_proc, [5]) == set()


def test_a_process_whose_first_thread_is_ending_is_seen_by_the_others(
    region, file, fake_proc, ours
):
    """It has let go of its memory, and is no zombie yet."""
    own = fake_proc.add(100, None, 5)
    other = own / "task" / "124" / "maps"
    other.parent.mkdir(parents=True)
    other.write_text(ours.read_text())
    assert dead(region, file, fake_proc, [5]) == set()
    other.write_text("")
    assert dead(region, file, fake_proc, [5]) == {5}


# ---- libvgpu in this very process ----

AS_LIBVGPU = """
import mmap, os
descriptor = os.open(path, os.O_RDWR)
scene.mapping = mmap.mmap(descriptor, 0)
os.close(descriptor)
"""


@pytest.fixture
def with_libvgpu(actor, file) -> Actor:
    """A process that has the region mapped beside this library, and a slot in it."""
    process = actor(file)
    process("evaluate", AS_LIBVGPU, path=os.fspath(file))
    file.add_process(process.pid, {0: 640})
    return process


def test_a_process_with_libvgpu_calls_itself_alive(with_libvgpu, file):
    assert with_libvgpu("region.reap") == ()
    assert pids(file) == [with_libvgpu.pid]
    hold(file, with_libvgpu.pid)
    assert with_libvgpu("region.lock_state").owner_life == "alive"
    with pytest.raises(LockNotRecoverable, match="held by a live process"):
        with_libvgpu("region.recover_lock")


def test_a_process_with_libvgpu_is_not_attached_beside_it(with_libvgpu, file):
    with pytest.raises(RuntimeError, match="another library in this process"):
        with_libvgpu("attach")
    assert file.get("slot_used.total") == 640
    with_libvgpu("evaluate", "scene.mapping.close()")
    with_libvgpu("attach")

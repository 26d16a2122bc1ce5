"""What a search of /proc costs and proves: pids before maps, deadlines, libvgpu in this process,
and files that have two inodes.
"""

import contextlib
import functools
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lock_bytes import NOBODY, hold, is_free
from namespaces import needs_first_namespace
from slot_bytes import pids
from support.actors import Actor, MakeActor, ProcessFactory
from support.region_file import RegionFile, RegionFileFactory
from support.wait import PATIENCE_S

from libhamiregion import (
    Layout,
    LockNotRecoverable,
    LockTimeout,
    Region,
    SearchCutShort,
    open_region,
)

LINE = "7f0000000000-7f0000001000 rw-s 00000000 00:01 1 /somewhere/else\n"


class FakeProc:
    """A /proc of the first pid namespace, with processes of the test's choice."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "1" / "ns").mkdir(parents=True)
        (directory / "1" / "ns" / "pid").symlink_to("pid:[4026531836]")
        self._describe("1", "1")
        (directory / "1" / "maps").write_text(LINE)

    def _describe(self, name: str, ns_pids: str) -> Path:
        own = self.directory / name
        own.mkdir(exist_ok=True)
        (own / "status").write_text(f"Name:\tx\nState:\tS\nNSpid:\t{ns_pids}\n")
        return own

    def add_blocking(self, pid: int, inner_pid: int) -> None:
        """A process whose maps can be opened by nobody who wants to come back."""
        os.mkfifo(self._describe(str(pid), f"{pid}\t{inner_pid}") / "maps")

    def add_long(self, pid: int, inner_pid: int, maps: Path) -> None:
        (self._describe(str(pid), f"{pid}\t{inner_pid}") / "maps").hardlink_to(maps)


def line_of(region: Region) -> str:
    """The region's line of this process's maps, as of one that may write."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines(keepends=True)
    line = next(line for line in maps if line.endswith(f" {region.path}\n"))
    return line.replace(" r--s ", " rw-s ")


@pytest.fixture
def fake_proc(tmp_path: Path) -> FakeProc:
    (tmp_path / "proc").mkdir()
    return FakeProc(tmp_path / "proc")


@pytest.fixture
def long_maps(tmp_path: Path) -> Path:
    """Maps that take a while to read."""
    maps = tmp_path / "maps"
    maps.write_text(LINE * ((31 << 20) // len(LINE)))
    return maps


@pytest.fixture
def file(region_file: RegionFileFactory) -> RegionFile:
    return region_file()


@pytest.fixture
def region(file: RegionFile) -> Iterator[Region]:
    with open_region(file, writable=True) as found:
        yield found


# ---- the number first ----


def test_maps_are_read_only_of_processes_that_have_the_owners_number(
    region: Region, file: RegionFile, fake_proc: FakeProc
) -> None:
    for pid in range(100, 110):
        fake_proc.add_blocking(pid, inner_pid=pid - 90)
    hold(file, NOBODY)
    assert region.lock_state(proc=fake_proc.directory).owner_life == "dead"
    assert region.recover_lock(proc=fake_proc.directory).dead_owner
    assert is_free(file)


def test_a_process_with_as_many_groups_as_there_can_be_is_seen(
    region: Region, file: RegionFile, fake_proc: FakeProc
) -> None:
    """Their line comes before that of its pids, and has most of a megabyte."""
    ours = fake_proc.directory.parent / "ours"
    ours.write_text(line_of(region))
    fake_proc.add_long(100, NOBODY, ours)
    groups = " ".join(map(str, range(4_000_000_000, 4_000_065_536)))
    hold(file, NOBODY)
    for filler in range(0, 4096, 97):
        text = f"Name:\t{'x' * filler}\nGroups:\t{groups}\nNSpid:\t100\t{NOBODY}\nSeccomp:\t0\n"
        (fake_proc.directory / "100" / "status").write_text(text)
        assert region.lock_state(proc=fake_proc.directory).owner_life == "alive"


def test_hostile_maps_cost_a_look_at_the_lock_its_budget_and_no_more(
    region: Region, file: RegionFile, fake_proc: FakeProc, long_maps: Path
) -> None:
    """Read to their ends they would take many seconds."""
    for pid in range(1000, 1100):
        fake_proc.add_long(pid, NOBODY, long_maps)
    hold(file, NOBODY)
    begun_s = time.thread_time()
    assert region.lock_state(proc=fake_proc.directory).owner_life == "unknown"
    with pytest.raises(LockNotRecoverable, match="not known"):
        region.recover_lock(proc=fake_proc.directory)
    # Three looks for the owner, and one under the host lock, of a second each.
    assert time.thread_time() - begun_s < 8


@pytest.mark.slow
def test_reaping_beside_hostile_maps_ends_in_time_and_frees_nothing(
    region: Region, file: RegionFile, fake_proc: FakeProc, long_maps: Path
) -> None:
    for pid in range(1000, 1100):
        fake_proc.add_long(pid, NOBODY, long_maps)
    file.add_process(NOBODY, {0: 640})
    begun_s = time.thread_time()
    with pytest.raises(SearchCutShort):
        region.reap(proc=fake_proc.directory, timeout_s=1)
    assert time.thread_time() - begun_s < 5
    assert pids(file) == [NOBODY]


# ---- who maps the region ----


def dead(
    region: Region, file: RegionFile, proc: FakeProc, asked: list[int], **options: Any
) -> set[int]:
    """Those of some pids in slots that are proved dead."""
    for pid in set(asked).difference(pids(file)):
        file.add_process(pid, {0: 640})
    found = region.reap(proc=proc.directory, dry_run=True, timeout_s=PATIENCE_S, **options)
    return {each.pid for each in found}


def test_what_may_be_a_mapping_of_the_region_is_not_forgotten_over_those_after_it(
    region: Region, file: RegionFile, fake_proc: FakeProc
) -> None:
    """Through an overlay its inode shows another device."""
    maps = fake_proc.directory.parent / "through_an_overlay"
    fields = line_of(region).split(maxsplit=5)
    other = " ".join([*fields[:3], "fe:fe", "1", "/elsewhere\n"])
    maps.write_text(" ".join([*fields[:3], "fe:fe", *fields[4:]]) + other)
    fake_proc.add_long(100, 5, maps)
    fake_proc.add_long(101, 6, fake_proc.directory / "1" / "maps")
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
    region: Region, file: RegionFile, fake_proc: FakeProc, kind: str, is_another: bool
) -> None:
    if file_system_of(Path(region.path)) not in {"ext4", "xfs", "tmpfs"}:
        pytest.skip("needs a region on ext4, xfs or tmpfs")
    maps = fake_proc.directory.parent / "elsewhere"
    fields = line_of(region).split(maxsplit=5)
    maps.write_text(" ".join([*fields[:3], "fe:fd", *fields[4:]]))
    fake_proc.add_long(100, 5, maps)
    mounts = (f"30 1 254:25 / / rw - {kind}2 d rw", f"36 1 254:253 / /x rw - {kind} d rw")
    text = "".join(f"{line}\n" for line in (*mounts, "37 1 254:2 / /y rw - overlay d rw"))
    (fake_proc.directory / "100" / "mountinfo").write_text(text)
    found = dead(region, file, fake_proc, [5])
    assert found == ({5} if is_another else set())


def test_a_stranger_is_not_asked_what_it_maps_but_its_successor_is(
    region: Region, file: RegionFile, fake_proc: FakeProc
) -> None:
    """Its pid may be another's by now, and where nobody knows since when it runs, it may be too."""
    maps = fake_proc.directory.parent / "ours"
    maps.write_text(line_of(region))
    fake_proc.add_long(100, 5, maps)
    fake_proc.add_long(101, 6, maps)
    strangers = [(99, 1), (100, 4321), (101, 4321), (102, 0)]

    def found() -> set[int]:
        return dead(region, file, fake_proc, [5, 6], excluded=strangers)

    assert found() == set()
    fields = " ".join(["S", *["0"] * 18, "{}", *["0"] * 30])
    stat = fake_proc.directory / "100" / "stat"
    stat.write_text(f"100 (x) {fields.format(4321)}\n")
    assert found() == {5}
    stat.write_text(f"100 (x) {fields.format(4322)}\n")
    assert found() == set()


def test_a_process_whose_pids_are_not_told_is_looked_at(
    region: Region, file: RegionFile, fake_proc: FakeProc
) -> None:
    maps = fake_proc.directory.parent / "ours"
    maps.write_text(line_of(region))
    fake_proc.add_long(100, 5, maps)
    (fake_proc.directory / "100" / "status").write_text("Name:\tx\n")
    assert dead(region, file, fake_proc, [5, 6]) == set()


@pytest.mark.parametrize("first", ["of libvgpu, with a slot", "of libvgpu", "with a slot"])
def test_a_containers_own_proc_is_told_by_its_first_process_alone(
    first: str, region: Region, file: RegionFile, fake_proc: FakeProc
) -> None:
    """Its pid stands in a slot, and it is libvgpu's: so the pids there are those of the slots."""
    (fake_proc.directory / "1" / "ns" / "pid").unlink()
    libvgpu = line_of(region).replace(" rw-s ", " r-xp ").replace(region.path, "/opt/libvgpu.so")
    maps = line_of(region) + (libvgpu if first.startswith("of libvgpu") else "")
    (fake_proc.directory / "1" / "maps").write_text(maps)
    file.add_process(5, {0: 1})
    if first.endswith("with a slot"):
        file.add_process(1)
    is_proved = first == "of libvgpu, with a slot"
    found = dead(region, file, fake_proc, [5])
    assert found == ({5} if is_proved else set())


def test_a_private_copy_of_the_file_makes_nobody_a_process_of_the_region(
    region: Region, file: RegionFile, fake_proc: FakeProc
) -> None:
    maps = fake_proc.directory.parent / "private"
    maps.write_text(line_of(region).replace(" rw-s ", " rw-p "))
    fake_proc.add_long(100, 5, maps)
    assert dead(region, file, fake_proc, [5]) == {5}


# ---- libvgpu in this very process ----

AS_LIBVGPU = """
import mmap, os
descriptor = os.open(path, os.O_RDWR)
scene.mapping = mmap.mmap(descriptor, 0)
os.close(descriptor)
"""


@pytest.fixture
def with_libvgpu(actor: MakeActor, file: RegionFile) -> Actor:
    """A process that has the region mapped beside this library, and a slot in it."""
    process = actor(file)
    process("evaluate", AS_LIBVGPU, path=os.fspath(file))
    file.add_process(process.pid, {0: 640})
    return process


@needs_first_namespace
def test_a_process_with_libvgpu_does_not_reap_its_own_slot(
    with_libvgpu: Actor, file: RegionFile
) -> None:
    assert with_libvgpu("region.reap") == ()
    assert pids(file) == [with_libvgpu.pid]


@needs_first_namespace
def test_a_process_with_libvgpu_calls_itself_alive(with_libvgpu: Actor, file: RegionFile) -> None:
    hold(file, with_libvgpu.pid)
    assert with_libvgpu("region.lock_state").owner_life == "alive"
    with pytest.raises(LockNotRecoverable, match="held by a live process"):
        with_libvgpu("region.recover_lock")


def test_a_process_with_libvgpu_is_not_attached_beside_it(
    with_libvgpu: Actor, file: RegionFile
) -> None:
    with pytest.raises(RuntimeError, match="another library in this process"):
        with_libvgpu("attach")
    assert file.get("slot_used.total") == 640
    with_libvgpu("evaluate", "scene.mapping.close()")
    with_libvgpu("attach")


# ---- one file with two inodes ----


@pytest.fixture
def overlay(tmp_path: Path) -> Iterator[tuple[ProcessFactory, Path, Path]]:
    """Where processes see an overlay, its directory, and what is below it."""
    upper, merged = tmp_path / "upper", tmp_path / "merged"
    for directory in (upper, merged, tmp_path / "lower", tmp_path / "work"):
        directory.mkdir()
    options = f"lowerdir={tmp_path}/lower,upperdir={upper},workdir={tmp_path}/work"
    mount = f'mount -t overlay overlay -o {options} {merged} && exec "$@"'
    inside = ("unshare", "--mount", "--propagation", "private", "sh", "-c", mount, "sh")
    tried = subprocess.run([*inside, "true"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        pytest.skip(f"cannot mount an overlay here: {tried.stderr.strip()}")
    with contextlib.closing(ProcessFactory(*inside)) as process_factory:
        yield process_factory, merged, upper


@needs_first_namespace
@pytest.mark.root
@pytest.mark.parametrize("through_it", ["the process", "who looks for it"])
def test_a_process_that_maps_the_file_beside_an_overlay_is_not_taken_for_dead(
    through_it: str,
    overlay: tuple[ProcessFactory, Path, Path],
    region_file: RegionFileFactory,
    actor: MakeActor,
) -> None:
    process_factory, merged, upper = overlay
    file = region_file()
    file.path.rename(upper / "usage.cache")
    inside = functools.partial(process_factory.actor, merged / "usage.cache")
    below = functools.partial(actor, upper / "usage.cache")
    start, look = (inside, below) if through_it == "the process" else (below, inside)
    container = start()
    container("attach")
    container("slot.charge", 0, 640)
    reaper = look()
    assert reaper("region.reap") == ()
    with pytest.raises(ValueError, match="not known"):
        reaper("region.reap", [container.pid])
    assert container("region.memory_used", 0) == 640
    container.kill()
    assert len(reaper("region.reap")) == 1


@pytest.mark.slow(keep=4)
@needs_first_namespace
@pytest.mark.root
@pytest.mark.parametrize("by", ["another mount namespace", "a bind mount"])
def test_a_holder_that_came_through_an_overlay_is_not_robbed_from_below(
    by: str,
    layout: Layout,
    overlay: tuple[ProcessFactory, Path, Path],
    region_file: RegionFileFactory,
    actor: MakeActor,
) -> None:
    """A lock on a byte of the one inode says nothing about who has locked that of the other."""
    process_factory, merged, upper = overlay
    file = region_file(layout)
    file.path.rename(upper / "usage.cache")
    holder = process_factory.actor(merged / "usage.cache")
    holder("lock")
    with contextlib.ExitStack() as ended:
        if by == "a bind mount":
            bound = upper.parent / "bound"
            bound.mkdir()
            mount = f'mount --bind {upper} {bound} && exec "$@"'
            inside = ("nsenter", "--mount", "--target", str(holder.pid), "sh", "-c", mount, "sh")
            writers = ended.enter_context(contextlib.closing(ProcessFactory(*inside)))
            writer = writers.actor(bound / "usage.cache")
        else:
            writer = actor(upper / "usage.cache")
        assert_not_robbed(holder, writer)


OWNER_LIFE = "answer = region.lock_state().owner_life"


def assert_not_robbed(holder: Actor, writer: Actor) -> None:
    """While it lives; once it is dead, nobody else maps the file by another way."""
    with pytest.raises(LockTimeout):
        writer("lock", 0.3)
    assert writer("evaluate", OWNER_LIFE) == "unknown"
    holder("unlock")
    writer("lock")
    writer("unlock")
    holder("lock")
    holder.kill()
    recover = "answer = region.recover_lock(watch_s=0).dead_owner"
    assert writer("evaluate", recover)
    writer("lock")
    writer("unlock")


CREATE = """
import os
from libhamiregion import create_region
create_region(path)
answer = os.stat(path).st_ino
"""
FORGE = """
import mmap, os
flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
number = 0
# Those of a new file system count upwards.
while number < inode:
    at = os.open(f"{path}.{number}", flags)
    number = os.fstat(at).st_ino
os.ftruncate(at, 4 << 20)
scene.mapping = mmap.mmap(at, 0)
answer = number
"""


@pytest.fixture
def two_file_systems(tmp_path: Path) -> Iterator[tuple[ProcessFactory, Path, Path]]:
    """Where processes see two new file systems, and their directories."""
    ours, forged = tmp_path / "ours", tmp_path / "forged"
    mounts = []
    for directory in (ours, forged):
        directory.mkdir()
        mounts.append(f"mount -t tmpfs tmpfs {directory} &&")
    script = f'{" ".join(mounts)} exec "$@"'
    inside = ("unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh")
    with contextlib.closing(ProcessFactory(*inside)) as process_factory:
        yield process_factory, ours, forged


@needs_first_namespace
@pytest.mark.root
@pytest.mark.parametrize("attached", [False, True], ids=["with a number", "with its pid"])
def test_a_neighbour_that_forges_the_inode_keeps_no_dead_holders_lock(
    attached: bool, two_file_systems: tuple[ProcessFactory, Path, Path]
) -> None:
    """It maps a file with the same inode number on a file system of its own."""
    process_factory, ours, forged = two_file_systems
    path = ours / "usage.cache"
    inode = process_factory.actor()("evaluate", CREATE, path=str(path))
    neighbour = process_factory.actor()
    assert neighbour("evaluate", FORGE, path=str(forged / "file"), inode=inode) == inode
    holder, writer = process_factory.actor(path), process_factory.actor(path)
    if attached:
        holder("attach")
    holder("lock")
    with pytest.raises(LockTimeout):
        writer("lock", 0.3)
    holder.kill()
    writer("lock")
    writer("unlock")


@needs_first_namespace
@pytest.mark.root
def test_beside_an_overlay_a_byte_is_a_proof(
    overlay: tuple[ProcessFactory, Path, Path], region_file: RegionFileFactory
) -> None:
    """Also where a name begins as that of its upper directory does."""
    process_factory, _, upper = overlay
    beside = upper.parent / f"{upper.name}-not" / "usage.cache"
    beside.parent.mkdir()
    region_file().path.rename(beside)
    holder, writer = process_factory.actor(beside), process_factory.actor(beside)
    holder("lock")
    assert writer("evaluate", OWNER_LIFE) == "alive"
    holder.kill()
    assert writer("evaluate", OWNER_LIFE) == "dead"

"""Attacks on those who look at a node, and accidents of theirs, that once succeeded."""

import collections
import contextlib
import ctypes
import os
import resource
import time
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest
from support.containers import look, match, needs_namespaces, states
from support.hostile_processes import MAP_DELETED
from support.node_root import Root
from support.observing import details
from support.region_file import RegionFile
from support.wait import PATIENCE_S, eventually

from libhamiregion import NotARegion, RegionStale, open_region
from libhamiregion.node import Node, ProcessTable, processes, procfs
from libhamiregion.raw_slots import slots_beyond


@pytest.fixture
def region(region_file) -> RegionFile:
    return region_file(memory_limits=("1GiB",))


@contextlib.contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """Leave this process so many descriptors and no more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(each.name) for each in Path("/proc/self/fd").iterdir())
    taken = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 20, hard))
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))
        for _ in range(count):
            os.close(taken.pop())
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# ---- Who lives must not be called dead ----------------------------------------------------------


def without_first_thread(inside: int) -> bool:
    try:
        return not Path(f"/proc/{inside}/maps").read_text()
    except ProcessLookupError:
        return True


@needs_namespaces
def test_a_lack_of_descriptors_proves_nobody_dead(start, region):
    """A process whose first thread has ended takes one descriptor more to look at than others."""
    inside = start()
    pid = inside.tell("attach", region.path)
    inside.tell("charge", 1000)
    inside.tell("leave_first_thread")
    eventually(lambda: without_first_thread(inside.host_pid))
    table = ProcessTable()
    with open_region(region, writable=True) as opened:
        for count in range(8):
            with descriptors_left(count), contextlib.suppress(OSError):
                assert opened.reap() == ()
            snapshot = opened.snapshot()
            with descriptors_left(count), contextlib.suppress(OSError):
                table.refresh()
                assert match(table, opened, snapshot).state(pid) in {"alive", "unknown"}
        assert opened.memory_used(0) == 1000
    assert states(look(region)) == {pid: "alive"}


@needs_namespaces
def test_where_a_zombies_maps_cannot_be_opened_the_other_threads_tell(start, region, monkeypatch):
    """Linux 6.16 answers ESRCH, others give an empty list."""
    inside = start()
    pid = inside.tell("attach", region.path)
    inside.tell("leave_first_thread")
    eventually(lambda: without_first_thread(inside.host_pid))
    original = procfs._open

    def as_linux_6_16(directory: int | None, name: str, flags: int) -> int:
        descriptor = original(directory, name, flags)
        if name.endswith("maps") and not os.pread(descriptor, 1, 0):
            os.close(descriptor)
            raise procfs.Gone
        return descriptor

    monkeypatch.setattr(procfs, "_open", as_linux_6_16)
    assert states(look(region)) == {pid: "alive"}


# ---- What is not a region must not even be opened -----------------------------------------------

TAKE_TURNS = """
import os
while True:
    for name in (pipe_name, region_name):
        os.link(name, path + ".new")
        os.rename(path + ".new", path)
"""


class Tripwire:
    """Tells whether anybody has opened a file, by whatever name."""

    _OPENED = 0x20

    def __init__(self, path: Path) -> None:
        self.path = path
        libc = ctypes.CDLL(None)
        self._events = libc.inotify_init1(os.O_NONBLOCK)
        assert libc.inotify_add_watch(self._events, os.fsencode(path), self._OPENED) > 0

    @property
    def was_opened(self) -> bool:
        with contextlib.suppress(BlockingIOError):
            return bool(os.read(self._events, 4096))
        return False

    def end(self) -> None:
        os.close(self._events)


@pytest.fixture
def tripwire(tmp_path) -> Iterator[Tripwire]:
    os.mkfifo(tmp_path / "pipe")
    made = Tripwire(tmp_path / "pipe")
    os.close(os.open(made.path, os.O_RDONLY | os.O_NONBLOCK))
    assert made.was_opened
    yield made
    made.end()


def test_what_takes_turns_with_a_region_is_never_opened(actor, region, tripwire, tmp_path):
    """A container can make device nodes, which do something when they are opened."""
    path = tmp_path / "turns.cache"
    os.link(region, path)
    actor().start(
        "evaluate",
        TAKE_TURNS,
        path=str(path),
        region_name=str(region.path),
        pipe_name=str(tripwire.path),
    )
    seen = collections.Counter[str]()
    deadline = time.monotonic() + PATIENCE_S
    while min(seen["pipe"], seen["region"]) < 2_000:
        assert time.monotonic() < deadline, "they do not take turns"
        try:
            open_region(path).close()
        except NotARegion:
            seen["pipe"] += 1
        else:
            seen["region"] += 1
    assert not tripwire.was_opened


def test_what_has_replaced_an_open_region_is_not_opened_to_read_its_slots(region, tripwire):
    with open_region(region) as opened:
        replacement = region.path.with_name("new")
        replacement.hardlink_to(tripwire.path)
        replacement.rename(region.path)
        with pytest.raises(RegionStale):
            slots_beyond(opened, 1)
        opened.lock_state()
    assert not tripwire.was_opened


# ---- What a container can make many of ----------------------------------------------------------


@pytest.mark.parametrize("limit", ["of each", "of all"])
def test_who_maps_more_files_than_are_kept_is_a_gap(limit, actor, region, tmp_path, monkeypatch):
    # Above what other tests map meanwhile, in the same cgroup.
    if limit == "of each":
        monkeypatch.setattr(processes, "_FILES_LIMIT", 600)
    else:
        monkeypatch.setattr(processes, "_KEPT_BYTES_LIMIT", 600 * 512)
    hostile, honest = actor(region), actor(region)
    hostile("attach")
    honest("attach")
    hostile("evaluate", MAP_DELETED, directory=str(tmp_path), count=700)
    table = ProcessTable()
    found = look(region, table)
    assert states(found) == {hostile.pid: "unknown", honest.pid: "alive"}
    assert "too_large" in [gap.reason for gap in table.view.gaps]
    assert table.view.hides_users_of(None)
    assert hostile.pid_here not in table.view.visibility.unreadable


def test_reaping_reads_the_maps_of_those_only_whose_pid_stands_in_a_slot(region, tmp_path):
    """It is done with the lock held, and other containers decide how long their maps are."""
    region.add_process(5, {0: 1})
    maps = {}
    for host_pid, pid in ((123, 7), (124, 5)):
        directory = tmp_path / "proc" / str(host_pid)
        directory.mkdir(parents=True)
        (directory / "status").write_text(f"Name:\tx\nState:\tS\nNSpid:\t{host_pid}\t{pid}\n")
        (directory / "maps").touch()
        maps[pid] = Tripwire(directory / "maps")
    with open_region(region, writable=True) as opened:
        # Whether all are shown there is not known.
        assert opened.reap(proc=tmp_path / "proc") == ()
    assert {pid: each.was_opened for pid, each in maps.items()} == {7: False, 5: True}
    for each in maps.values():
        each.end()


def test_a_region_that_somebody_closes_during_a_view_costs_that_one_only(tmp_path, monkeypatch):
    root = Root(tmp_path / "containers")
    root.region("closed")
    root.region("kept")
    with Node(root) as node:
        refresh = node.processes.refresh

        def closing(wanted: Collection[int] = ()) -> None:
            refresh(wanted)
            for each in node.containers:
                if each.name == "closed" and each.region is not None:
                    each.region.close()

        with monkeypatch.context() as patch:
            patch.setattr(node.processes, "refresh", closing)
            views = {view.container.name: view for view in details(node)}
        assert views["closed"].processes is None
        assert views["kept"].processes is not None
        assert all(view.processes is not None for view in details(node))

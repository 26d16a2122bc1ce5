"""Attacks on those who look at a node, and accidents of theirs, that once succeeded."""

import collections
import contextlib
import ctypes
import os
import random
import resource
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from actors import Actor
from containers import Starter, containers, look, needs_namespaces, states, wait_for
from doctor_scenes import Hospital
from forked import in_child, unprivileged
from namespaces import needs_first_namespace
from node_root import Root
from patience import PATIENCE_S, eventually
from poke import RegionFile, RegionFileFactory, locate

from libhamiregion import Layout, NotARegion, RegionClosed, RegionError, RegionStale, open_region
from libhamiregion.host import (
    ContainerView,
    FindingKind,
    Node,
    NodeProcess,
    ProcessTable,
    diagnose,
    directories,
    doctor_repair,
    processes,
    procfs,
    repair,
)
from libhamiregion.host.doctor_scene import memory_of
from libhamiregion.host.mapped import MappedFile, MappedRegion
from libhamiregion.host.process_facts import ProcessFacts
from libhamiregion.host.raw_slots import RawSlots

MakeActor = Callable[..., Actor]


@pytest.fixture
def container() -> Iterator[Starter]:
    with containers() as start:
        yield start


@pytest.fixture
def region(region_file: RegionFileFactory) -> RegionFile:
    return region_file(memory_limits=("1GiB",))


@pytest.fixture
def hospital(tmp_path: Path) -> Iterator[Hospital]:
    made = Hospital(tmp_path / "containers")
    try:
        yield made
    finally:
        made.close()


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
def test_a_lack_of_descriptors_proves_nobody_dead(container: Starter, region: RegionFile) -> None:
    """A process whose first thread has ended takes one descriptor more to look at than others."""
    inside = container()
    pid = inside.tell("attach", region.path)
    inside.tell("charge", 1000)
    inside.tell("leave_first_thread")
    wait_for(lambda: without_first_thread(inside.host_pid))
    table = ProcessTable()
    with open_region(region, writable=True) as opened:
        for count in range(8):
            with descriptors_left(count), contextlib.suppress(OSError):
                assert opened.reap() == ()
            snapshot = opened.snapshot()
            with descriptors_left(count), contextlib.suppress(OSError):
                table.refresh()
                assert [slot.state for slot in table.match(opened, snapshot).slots] == ["alive"]
        assert opened.memory_used(0) == 1000
    assert states(look(region)) == {pid: "alive"}


@needs_namespaces
def test_where_a_zombies_maps_cannot_be_opened_the_other_threads_tell(
    container: Starter, region: RegionFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux 6.16 answers ESRCH, others give an empty list."""
    inside = container()
    pid = inside.tell("attach", region.path)
    inside.tell("leave_first_thread")
    wait_for(lambda: without_first_thread(inside.host_pid))
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
    """A FIFO that tells whether anybody has opened it, by whatever name."""

    _OPENED = 0x20

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)
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
def tripwire(tmp_path: Path) -> Iterator[Tripwire]:
    made = Tripwire(tmp_path / "pipe")
    os.close(os.open(made.path, os.O_RDONLY | os.O_NONBLOCK))
    assert made.was_opened
    yield made
    made.end()


def test_what_takes_turns_with_a_region_is_never_opened(
    actor: MakeActor, region: RegionFile, tripwire: Tripwire, tmp_path: Path
) -> None:
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


def test_what_has_replaced_an_open_region_is_not_opened_to_read_its_slots(
    region: RegionFile, tripwire: Tripwire
) -> None:
    with open_region(region) as opened:
        replacement = region.path.with_name("new")
        replacement.hardlink_to(tripwire.path)
        replacement.rename(region.path)
        with pytest.raises(RegionStale):
            RawSlots(opened)
        opened.lock_state()
    assert not tripwire.was_opened


# ---- What a container can make many of ----------------------------------------------------------

MAP_DELETED = """
import mmap, os
scene.maps = []
for number in range(count):
    with open(f"{directory}/{number}.cache", "w+b") as file:
        file.truncate(1 << 21)
        scene.maps.append(mmap.mmap(file.fileno(), 1 << 21))
    os.unlink(file.name)
"""


def test_deleted_files_cost_the_doctor_a_bounded_number_of_looks(
    actor: MakeActor, hospital: Hospital, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hospital.place()
    hostile = actor()
    hostile("evaluate", MAP_DELETED, directory=str(tmp_path), count=200)
    looked: list[int] = []
    resolve = ProcessTable.resolve

    def counted(table: ProcessTable, file: MappedFile) -> MappedRegion:
        looked.append(file.process.pid)
        return resolve(table, file)

    monkeypatch.setattr(ProcessTable, "resolve", counted)
    assert hospital.findings(settle_s=0) == ()
    assert 0 < looked.count(hostile.pid_here) <= 16


@pytest.mark.parametrize("limit", ["of each", "of all"])
def test_who_maps_more_files_than_can_be_kept_in_mind_counts_as_unreadable(
    limit: str,
    actor: MakeActor,
    region: RegionFile,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if limit == "of each":
        monkeypatch.setattr(processes, "_FILES_LIMIT", 50)
    else:
        monkeypatch.setattr(processes, "_FILES_LIMIT_IF_MANY", 50)
        monkeypatch.setattr(processes, "_MANY_FILES", 0)
    hostile, honest = actor(region), actor(region)
    hostile("attach")
    honest("attach")
    hostile("evaluate", MAP_DELETED, directory=str(tmp_path), count=60)
    table = ProcessTable()
    found = look(region, table)
    assert states(found) == {hostile.pid: "unknown", honest.pid: "alive"}
    assert hostile.pid_here in table.unreadable
    assert not table.is_complete


def test_looks_at_processes_of_many_mappings_are_rationed_and_who_waits_is_unknown(
    actor: MakeActor, region: RegionFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if every look took long, and there were time for one in each refresh."""
    monkeypatch.setattr(processes, "_DEAR_LOOK_S", 0.0)
    monkeypatch.setattr(processes, "_DEAR_LOOKS_S", 1e-9)
    users = [actor() for _ in range(3)]
    table = ProcessTable()
    table.refresh()
    looked: list[str] = []
    look_at = table._look_at

    def counted(directory: int, name: str) -> Any:
        looked.append(name)
        return look_at(directory, name)

    monkeypatch.setattr(table, "_look_at", counted)
    # From now on they are others than the table has in mind.
    for user in users:
        user("open", str(region.path), writable=True)
        user("attach")
    names = {str(user.pid_here) for user in users}
    first = look(region, table)
    assert sum(name in names for name in looked) <= 1
    assert set(states(first).values()) <= {"alive", "unknown"}
    assert "unknown" in states(first).values()
    alive = {user.pid: "alive" for user in users}
    deadline = time.monotonic() + PATIENCE_S
    while states(look(region, table)) != alive:
        assert time.monotonic() < deadline
    users[0].kill()
    assert states(look(region, table)) == {**alive, users[0].pid: "dead"}


def test_of_an_environment_only_what_a_limit_can_be_is_kept(actor: MakeActor) -> None:
    """A process can have megabytes of it, and there can be thousands of processes."""
    user = actor()
    user(
        "evaluate",
        "import os, subprocess\n"
        "scene.child = subprocess.Popen(['sleep', '1000'], env={"
        "'CUDA_DEVICE_MEMORY_LIMIT': '7' * 100_000, 'CUDA_DEVICE_SM_LIMIT': '30'})\n",
    )
    pid = user("evaluate", "answer = scene.child.pid")
    try:
        table = ProcessTable()
        table.refresh()
        process = table.get(pid)
        assert process is not None
        environment = ProcessFacts("/proc").environment(process)
        assert environment is not None
        assert environment.variables == {
            "CUDA_DEVICE_MEMORY_LIMIT": "7" * 256,
            "CUDA_DEVICE_SM_LIMIT": "30",
        }
    finally:
        user("evaluate", "scene.child.kill(); scene.child.wait()")


@needs_namespaces
def test_a_repair_of_many_regions_holds_few_of_them_open(
    hospital: Hospital, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_repair, "_OPEN_LIMIT", 2)
    first = hospital.place()
    inside = first.start(host_pid=False)
    others = [hospital.place() for _ in range(4)]
    for place in others:
        inside.tell("attach", place.path)
    held: list[int] = []
    original = Node.open

    def counted(node: Node, each: object) -> object:
        region = original(node, each)  # type: ignore[arg-type]
        links = [link.readlink() for link in Path("/proc/self/fd").iterdir() if link.exists()]
        held.append(sum(link.suffix == ".cache" for link in links))
        return region

    monkeypatch.setattr(Node, "open", counted)
    done = hospital.repair()
    assert len(done) == 5
    assert all(each.done for each in done), done
    assert len(held) == 5
    assert max(held) <= 2
    assert all(place.host_pids() == {1: inside.host_pid} for place in hospital.places)


def test_a_view_reads_proc_once_and_an_idle_process_only_once(
    actor: MakeActor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Root(tmp_path / "containers")
    idle = actor(root.region())
    idle("attach")
    with Node(root, outside=False) as node:
        passes: list[int] = []
        looked: list[str] = []
        read, look_at = node.processes._read, node.processes._look_at

        def counted_read(directory: int, started_ns: int) -> Any:
            passes.append(started_ns)
            return read(directory, started_ns)

        def counted_look(directory: int, name: str) -> Any:
            looked.append(name)
            return look_at(directory, name)

        monkeypatch.setattr(node.processes, "_read", counted_read)
        monkeypatch.setattr(node.processes, "_look_at", counted_look)
        for number in range(1, 6):
            (view,) = node.view()
            assert view.processes is not None
            assert view.processes.host_pids == {idle.pid: idle.pid_here}
            assert len(passes) == number
        # A second time if it was still on its way to sleep at the first.
        assert 1 <= looked.count(str(idle.pid_here)) <= 2
        # It touches memory, and is looked at again.
        looked.clear()
        idle("evaluate", "scene.kept = bytearray(1 << 20)")
        node.view()
        assert looked.count(str(idle.pid_here)) == 1


# ---- What changes while it is diagnosed and repaired --------------------------------------------


@needs_namespaces
def test_a_region_cut_short_since_it_was_diagnosed_does_not_stop_the_repair_of_others(
    hospital: Hospital,
) -> None:
    hostile, honest = hospital.place(), hospital.place()
    for place in (hostile, honest):
        place.start(host_pid=False)
    found = hospital.findings()
    assert len(found) == 2
    hostile.file.resize(0)
    done = {each.finding.container: each for each in repair(hospital.node, found)}
    by_uid = {each.pod_uid: done[each] for each in done if each is not None}
    assert by_uid[honest.pod_uid].done
    assert not by_uid[hostile.pod_uid].done
    assert "cannot be read any more" in (by_uid[hostile.pod_uid].error or "")


SCRIBBLE = """
import os, random, struct
chance = random.Random(seed)
descriptor = os.open(path, os.O_RDWR)
content = os.pread(descriptor, size, 0)
while True:
    for _ in range(chance.randint(1, 6)):
        at = chance.choice(offsets) if chance.random() < 0.9 else chance.randrange(size - 8)
        random_bytes = chance.randbytes(8)
        value = struct.pack("<q", chance.choice((0, 1, -1, 17, 1024, 1 << 31, -1 << 31, -1 << 63)))
        os.pwrite(descriptor, chance.choice((value, random_bytes)), at)
    if chance.random() < 0.4:
        os.pwrite(descriptor, content, 0)
    if chance.random() < 0.02:
        os.truncate(path, chance.choice((0, 100, size // 2, size + 4096)))
        os.pwrite(descriptor, content, 0)
"""


def scribbled_at(layout: Layout, rounds: int, seed: int, hospital: Hospital, actor: Actor) -> None:
    hostile, honest = hospital.place(layout), hospital.place(layout)
    inside = honest.start(host_pid=False)
    hostile.start()
    fields = [
        locate(layout, field, slot=slot)[0]
        for field, at in layout.offsets.items()
        if at is not None and field.startswith(("slot_pid", "slot_hostpid", "slot_status"))
        for slot in range(4)
    ]
    fields += [
        at
        for field, at in layout.offsets.items()
        if at is not None and not field.startswith(("slot_", "procs"))
    ]
    actor.start(
        "evaluate",
        SCRIBBLE,
        path=str(hostile.path),
        offsets=[0, 4, 8, *fields],
        size=layout.size_bytes,
        seed=seed,
    )
    seen: set[FindingKind] = set()
    for _ in range(rounds):
        found = hospital.findings(settle_s=0)
        seen.update(each.kind for each in found)
        assert all(each.paragraph.isprintable() for each in found)
        done = repair(hospital.node, found, timeout_s=0.05, lock_watch_s=0)
        assert all(each.error is None or each.error.isprintable() for each in done)
    assert not actor.is_done()
    assert len(seen) > 1
    assert honest.host_pids() == {1: inside.host_pid}


@needs_namespaces
def test_a_container_that_scribbles_on_its_region_stops_no_diagnosis_and_no_repair(
    hospital: Hospital, actor: MakeActor
) -> None:
    scribbled_at(Layout.V1_2, 60, 1, hospital, actor())


@needs_namespaces
@pytest.mark.stress
@pytest.mark.parametrize("seed", range(3))
def test_a_container_that_scribbles_for_long_stops_no_diagnosis_and_no_repair(
    seed: int, layout: Layout, hospital: Hospital, actor: MakeActor
) -> None:
    scribbled_at(layout, 1_000, seed, hospital, actor())


def lives_and_deaths(layout: Layout, rounds: int, seed: int, hospital: Hospital) -> None:
    """Processes come and go under the same few pids, while somebody repairs without end."""
    chance = random.Random(seed)
    places = [hospital.place(layout) for _ in range(2)]
    insides = [place.enter(depth) for place, depth in zip(places, (1, 2), strict=True)]
    # By container: pid inside -> pid on the host and what it uses.
    alive: list[dict[int, tuple[int, int]]] = [{}, {}]
    failures: list[BaseException] = []
    stop = threading.Event()

    def repairing() -> None:
        try:
            while not stop.is_set():
                found = hospital.findings(settle_s=0)
                repair(hospital.node, found, lock_watch_s=0)
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    def holds(number: int) -> bool:
        with open_region(places[number].path) as region:
            used = {each.pid: each.devices[0] for each in region.snapshot().processes}
        return all(
            pid in used and used[pid].memory_used_bytes == nbytes
            for pid, (_, nbytes) in alive[number].items()
        )

    thread = threading.Thread(target=repairing)
    thread.start()
    try:
        for _ in range(rounds):
            number = chance.randrange(2)
            if len(alive[number]) < 4 and chance.random() < 0.6:
                nbytes = chance.randint(1, 1000)
                pid, host_pid = places[number].spawn(
                    insides[number],
                    used=nbytes,
                    last_pid=str(chance.randint(100, 102)),
                    host_pid=False,
                )
                alive[number][pid] = host_pid, nbytes
            elif alive[number]:
                pid = chance.choice(list(alive[number]))
                insides[number].tell("kill", pid)
                del alive[number][pid]
            assert failures == []
            eventually(lambda number=number: holds(number))
    finally:
        stop.set()
        thread.join()
    assert failures == []
    hospital.repair(lock_watch_s=0)
    assert hospital.findings() == ()
    for place, processes_there in zip(places, alive, strict=True):
        expected = {pid: host_pid for pid, (host_pid, _) in processes_there.items()}
        found = {pid: each for pid, each in place.host_pids().items() if pid in expected}
        assert found == expected
        assert place.used() == sum(nbytes for _, nbytes in processes_there.values())


@needs_namespaces
@needs_first_namespace
def test_pids_that_are_used_again_during_repairs_are_not_mistaken(hospital: Hospital) -> None:
    lives_and_deaths(Layout.V1_2, 60, 1, hospital)


@needs_namespaces
@needs_first_namespace
@pytest.mark.stress
@pytest.mark.parametrize("seed", range(3))
def test_pids_that_are_used_again_for_long_during_repairs_are_not_mistaken(
    seed: int, layout: Layout, hospital: Hospital
) -> None:
    lives_and_deaths(layout, 2_000, seed, hospital)


# ---- Forks --------------------------------------------------------------------------------------


def test_a_child_forked_during_a_diagnosis_is_told_that_the_node_is_not_its_own(
    tmp_path: Path,
) -> None:
    inside, done = threading.Event(), threading.Event()
    with Node(Root(tmp_path / "containers"), outside=False) as node:

        def diagnosing() -> None:
            with memory_of(node).turn:
                inside.set()
                done.wait()

        thread = threading.Thread(target=diagnosing)
        thread.start()
        inside.wait()
        try:
            assert in_child(lambda: told(node)) == "belongs to another"
        finally:
            done.set()
            thread.join()


def told(node: Node) -> str:
    try:
        diagnose(node)
    except RegionClosed:
        return "belongs to another"
    return "nothing"


# ---- Findings that no scene of the other files has ----------------------------------------------


def test_a_directory_flooded_with_other_files_is_a_finding(
    hospital: Hospital, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directories, "_ENTRIES_LIMIT", 10)
    place = hospital.place()
    place.path.unlink()
    for number in range(11):
        (place.directory / str(number)).touch()
    (found,) = hospital.findings()
    assert found.kind is FindingKind.REGION_FAILED
    assert "files, and no .cache file" in found.evidence


def test_a_region_that_the_doctor_may_not_open_is_a_finding(public_directory: Path) -> None:
    root = public_directory / "containers"
    hospital = Hospital(root)
    hospital.place().path.chmod(0)
    hospital.close()

    def told() -> list[tuple[FindingKind, str]]:
        with Node(root, outside=False) as node:
            return [(each.kind, each.evidence) for each in diagnose(node, settle_s=0)]

    ((kind, evidence),) = unprivileged(told)
    assert kind is FindingKind.REGION_NO_PERMISSION
    assert "Permission denied" in evidence


def test_a_region_that_went_while_it_was_looked_at_is_a_finding(hospital: Hospital) -> None:
    hospital.place()
    (view,) = hospital.node.view()
    error: RegionError = RegionStale("'usage.cache' was truncated", path=view.container.region_path)
    rows: tuple[NodeProcess, ...] = ()
    (found,) = diagnose(
        hospital.node, views=[ContainerView(view.container, error=error)], rows=rows, settle_s=0
    )
    assert (found.kind, found.repairable) == (FindingKind.REGION_STALE, False)
    assert repair(hospital.node, [found]) == ()
    # It passes: the next look has it again.
    assert hospital.findings() == ()

"""What once made the doctor slow, or stopped it, and what might have misled it."""

import contextlib
import fcntl
import os
import random
import shutil
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.agent_tasks import MONITOR
from support.containers import Container, needs_namespaces
from support.doctor_node import DoctorNode
from support.hostile_processes import MAP_DELETED
from support.node_scene import SceneContainer
from support.stress import scaled
from support.wait import eventually, on_this_machine_s

from libhamiregion import Layout, LockTimeout, Region, open_region
from libhamiregion.doctor import FindingKind, Repair, diagnose, repair
from libhamiregion.node import Node, Observer, ProcessTable, suspects
from libhamiregion.node.outside import MappedRegion, resolve
from libhamiregion.observation import containers as node_containers

# ---- What a container can make many of ----------------------------------------------------------


def test_deleted_files_cost_the_doctor_a_bounded_number_of_looks(
    actor, doctor_node, tmp_path, monkeypatch
):
    doctor_node.container()
    hostile = actor()
    hostile("evaluate", MAP_DELETED, directory=str(tmp_path), count=200)
    looked: list[int] = []

    def counted(table: ProcessTable, mapped: MappedRegion) -> MappedRegion:
        looked.append(mapped.pids[0])
        return resolve(table, mapped)

    monkeypatch.setattr(suspects, "resolve", counted)
    assert doctor_node.findings(settle_s=0) == ()
    assert looked.count(hostile.pid_here) == 16


@needs_namespaces
def test_a_repair_of_many_regions_has_one_open_for_writing(doctor_node, monkeypatch):
    first = doctor_node.container()
    inside = first.start(host_pid=False)
    others = [doctor_node.container() for _ in range(4)]
    for place in others:
        inside.tell("attach", place.path)
    opened: list[Region] = []
    original = Node.open

    def counted(node: Node, each: node_containers.Container) -> Region:
        assert all(region.closed for region in opened)
        opened.append(original(node, each))
        return opened[-1]

    monkeypatch.setattr(Node, "open", counted)
    done = doctor_node.repair()
    assert all(each.done for each in done), done
    assert len(done) == len(opened) == 5
    assert all(place.host_pids() == {1: inside.host_pid} for place in doctor_node.containers)


@contextlib.contextmanager
def locked_bytes(path: Path) -> Iterator[None]:
    """The bytes of the host lock and behind, as a container can lock those of its own file."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0x50000000, 0, 0)
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, asked)
        yield
    finally:
        os.close(descriptor)


def missing_host_pids(doctor_node: DoctorNode, count: int) -> tuple[SceneContainer, Container]:
    """A container with so many processes that have no host pid, and its first process."""
    place, inside = doctor_node.started(host_pid=False)
    for _ in range(count - 1):
        place.spawn(inside, host_pid=False)
    return place, inside


@needs_namespaces
def test_a_lock_that_is_not_given_costs_a_repair_one_timeout_per_region(doctor_node, monkeypatch):
    place, inside = missing_host_pids(doctor_node, 4)
    dead, _ = place.spawn(inside)
    inside.tell("kill", dead)
    honest, other = missing_host_pids(doctor_node, 1)
    inside.tell("lock")
    found = [each for each in doctor_node.findings() if each.repairable]
    assert len(found) == 3
    timeouts: list[str] = []

    def counted(name: str) -> Callable[..., object]:
        call = getattr(Region, name)

        def called(region: Region, *args: object, **options: object) -> object:
            try:
                return call(region, *args, **options)
            except LockTimeout:
                timeouts.append(region.path)
                raise

        return called

    for name in ("set_host_pid", "reap"):
        monkeypatch.setattr(Region, name, counted(name))
    done = repair(doctor_node.node, found, timeout_s=0.01)
    assert timeouts == [str(place.path)]
    assert honest.host_pids() == {1: other.host_pid}
    errors = [each.error for each in done if each.error is not None]
    assert len(errors) == 2
    (error,) = set(errors)
    assert "was not free in time (signed by pid 1)" in error
    inside.tell("unlock")
    assert all(each.done for each in doctor_node.repair())
    assert doctor_node.findings() == ()


@needs_namespaces
def test_containers_that_keep_their_locks_share_the_time_of_a_repair(doctor_node):
    """By the bytes by which programs of this library exclude each other; no process is blocked."""
    hostile = [missing_host_pids(doctor_node, 1)[0] for _ in range(6)]
    honest, inside = missing_host_pids(doctor_node, 1)
    found = [each for each in doctor_node.findings() if each.repairable]
    assert len(found) == 7
    with contextlib.ExitStack() as stack:
        for place in hostile:
            stack.enter_context(locked_bytes(place.path))
        done: tuple[Repair, ...] = ()

        def has_served_the_honest() -> bool:
            nonlocal done
            began = time.monotonic()
            done = repair(doctor_node.node, found, timeout_s=60.0, budget_s=3.0)
            # The rest is other work; each alone would have taken a minute.
            assert time.monotonic() - began < on_this_machine_s(50)
            return [each.done for each in done].count(True) == 1

        # A busy machine may take a seventh of the time to begin.
        eventually(has_served_the_honest)
        assert honest.host_pids() == {1: inside.host_pid}
        errors = [str(each.error) for each in done if not each.done]
        assert all("was not free in time" in each for each in errors), errors
        # Without time for anybody that is said, and the file is not waited for.
        nothing = repair(doctor_node.node, found[:1], budget_s=0.0)
        assert "has had its share of time" in str(nothing[0].error)
    assert all(each.done for each in doctor_node.repair())


# ---- What changes while it is diagnosed and repaired --------------------------------------------


def lives_and_deaths(layout: Layout, rounds: int, seed: int, doctor_node: DoctorNode) -> None:
    """Processes come and go under the same few pids, while somebody repairs without end."""
    chance = random.Random(seed)
    places = [doctor_node.container(layout=layout) for _ in range(2)]
    insides = [place.enter(depth) for place, depth in zip(places, (1, 2), strict=True)]
    # By container: pid inside -> pid on the host and what it uses.
    alive: list[dict[int, tuple[int, int]]] = [{}, {}]
    failures: list[BaseException] = []
    stop = threading.Event()

    def repairing() -> None:
        try:
            while not stop.is_set():
                found = doctor_node.findings(settle_s=0)
                repair(doctor_node.node, found, lock_watch_s=0)
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    def holds(number: int) -> bool:
        with open_region(places[number].path) as region:
            used = {each.pid: each.devices[0] for each in region.snapshot().processes}
        return all(
            pid in used and used[pid].memory_used_bytes == nbytes
            for pid, (_, nbytes) in alive[number].items()
        )

    thread = threading.Thread(target=repairing, daemon=True)
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
    doctor_node.repair(lock_watch_s=0)
    assert doctor_node.findings() == ()
    for place, processes_there in zip(places, alive, strict=True):
        expected = {pid: host_pid for pid, (host_pid, _) in processes_there.items()}
        found = {pid: each for pid, each in place.host_pids().items() if pid in expected}
        assert found == expected
        assert place.used() == sum(nbytes for _, nbytes in processes_there.values())


@needs_namespaces
def test_pids_that_are_used_again_during_repairs_are_not_mistaken(doctor_node):
    lives_and_deaths(Layout.V1_2, 60, 1, doctor_node)


@needs_namespaces
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_pids_that_are_used_again_for_long_during_repairs_are_not_mistaken(
    seed, layout, doctor_node
):
    lives_and_deaths(layout, scaled(2_000), seed, doctor_node)


# ---- Findings that no scene of the other files has ----------------------------------------------


@needs_namespaces
def test_a_process_that_calls_itself_a_monitor_hides_no_blocked_launches(doctor_node):
    place = doctor_node.container(sm_limits=[50])
    place.start()
    place.put("recent_kernel", -1)
    named = subprocess.Popen([MONITOR, "1000"], executable=shutil.which("sleep"))

    def found() -> list[FindingKind]:
        with Node(doctor_node.root) as node:
            return [each.kind for each in diagnose(Observer.for_command(node).observe())]

    try:
        # Of another test's process that cannot be read, it is not known what it is.
        eventually(lambda: found() == [FindingKind.LAUNCHES_BLOCKED])
    finally:
        named.kill()
        named.wait()

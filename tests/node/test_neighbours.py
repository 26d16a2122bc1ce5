"""Two containers have processes with the same pid: neither pays for what the other one maps."""

import contextlib
import random
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from support.actors import Actor, ProcessFactory
from support.namespaces import NEW_NAMESPACE, why_no_new_namespace
from support.own_cgroups import cgroup_of_pod, needs_cgroups
from support.region_file import RegionFile
from support.wait import eventually

from libhamiregion import open_region
from libhamiregion.doctor import examine, repair
from libhamiregion.node import (
    Container,
    Node,
    Observer,
    ProcessTable,
    RegionProcesses,
    evidence,
    match_slots,
)
from libhamiregion.node.procfs import file_identity

pytestmark = [needs_cgroups, pytest.mark.root]

OURS, OTHER = str(uuid.uuid4()), str(uuid.uuid4())
CONTAINER_ID = "cafe" * 16

# A file that is mapped over and over: no two mappings can be merged, and each may be written.
MAP_MUCH = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
descriptor = os.memfd_create("much")
os.ftruncate(descriptor, 4096)
answer = 0
while answer < 60_000 and libc.mmap(None, 4096, 3, 1, descriptor, 0) not in (None, 2**64 - 1):
    answer += 1
"""
NEXT_PID = "open('/proc/sys/kernel/ns_last_pid', 'w').write(str(pid - 1))"


@pytest.fixture
def neighbour() -> Iterator[Actor]:
    """A process of another pod, in a pid namespace of its own, with a pid that is not common."""
    if why := why_no_new_namespace():
        pytest.skip(why)
    with (
        cgroup_of_pod(OTHER, CONTAINER_ID) as cgroup,
        contextlib.closing(ProcessFactory(*NEW_NAMESPACE)) as container,
    ):
        container.actor()("evaluate", NEXT_PID, pid=random.randrange(20_000, 30_000))
        process = container.actor()
        (cgroup / "cgroup.procs").write_text(str(process.pid_here))
        yield process
        container.kill_all()


@pytest.fixture
def expensive(neighbour) -> Actor:
    """The neighbour, when it is expensive to look at."""
    assert neighbour("evaluate", MAP_MUCH) == 60_000
    return neighbour


@pytest.fixture
def file(region_file) -> RegionFile:
    return region_file()


def looked(
    file: RegionFile, pid: int, *, pod_uid: str | None = OURS, exclusive: bool = True
) -> tuple[RegionProcesses, ProcessTable]:
    """What is found out of a region by a table."""
    table = ProcessTable()
    with open_region(file) as region:
        read_s = time.monotonic()
        table.refresh()
        container = Container(
            pod_uid,
            directory="/" if exclusive else None,
            region=region,
            identity=file_identity(region),
        )
        found = match_slots(table.view, container, [pid], read_s)
    return found, table


def test_a_dead_process_is_told_beside_a_neighbour_with_its_pid_that_is_expensive_to_look_at(
    expensive, file
):
    file.add_process(expensive.pid, {0: 640})
    # A busy machine may leave it no time at all, now and then.
    eventually(lambda: looked(file, expensive.pid)[0].dead == {expensive.pid})


def test_a_repair_frees_the_slot_of_the_dead_without_reading_a_neighbours_maps(
    neighbour, scene, monkeypatch
):
    """A container decides how long that takes."""
    file = scene.container("victim", pod_uid=OURS)
    file.add_process(neighbour.pid, {0: 640})
    asked: list[int] = []
    ask = evidence.ask_process

    def noted(proc: int, pid: int, files: Any) -> Any:
        asked.append(pid)
        return ask(proc, pid, files)

    monkeypatch.setattr(evidence, "ask_process", noted)
    with Node(scene.root) as node:

        def is_repaired() -> bool:
            return any(each.done for each in repair(node, examine(Observer.for_command(node))))

        eventually(is_repaired)
        assert neighbour.pid_here not in asked
    assert file.get("slot_used.total") == 0


def test_a_process_of_another_pod_that_maps_the_region_is_never_taken_for_dead(neighbour, file):
    """Such as one that an administrator has given another pod's directory."""
    neighbour("open", str(file.path), writable=True)
    file.add_process(neighbour.pid, {0: 640})
    seen: list[RegionProcesses] = []

    def is_seen() -> bool:
        """A busy machine may leave no time to read it."""
        seen.append(looked(file, neighbour.pid)[0])
        return neighbour.pid_here in [each.pid for each in seen[-1].onlookers]

    eventually(is_seen)
    assert (seen[-1].alive, seen[-1].dead) == ({}, frozenset())

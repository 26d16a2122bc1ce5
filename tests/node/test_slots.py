"""`Node.slots`: which slots are of live processes, told often and at little cost."""

import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.actors import Actor, MakeActor
from support.region_file import RegionFile
from support.wait import eventually

from libhamiregion import Layout, create_region
from libhamiregion.node import SLOT_STATES, Node, SlotStates, processes, procfs, slots


def told(node: Node) -> SlotStates:
    node.refresh(processes=False)
    return node.slots(node.snapshot())


def states(node: Node) -> dict[int, str]:
    """Pid in a slot to what is said of its process; all regions together."""
    node.refresh(processes=False)
    snapshot = node.snapshot()
    found = node.slots(snapshot)
    pids = snapshot.table.processes.pid
    alive = {pids[row]: process for row, process in found.processes.items()}
    assert all(process.ns_pids[-1] == pid for pid, process in alive.items())
    return {pid: SLOT_STATES[found.states[row]] for row, pid in enumerate(pids)}


def attached(actor: MakeActor, *paths: Path) -> list[Actor]:
    found = []
    for path in paths:
        user = actor(path, attach=True)
        found.append(user)
    return found


@pytest.fixture
def listed_25_s_ago(monkeypatch) -> None:
    """Each question comes 25 s after the last listing of /proc: a figure may be 30 s old."""
    later = SimpleNamespace(monotonic=lambda: time.monotonic() + 25)
    monkeypatch.setattr(slots, "time", later)


@pytest.mark.usefixtures("listed_25_s_ago")
def test_what_starts_and_ends_is_told_at_the_next_listing(actor, node, root):
    path = root.region()
    first, second = attached(actor, path, path)
    assert states(node) == {first.pid: "alive", second.pid: "alive"}
    first.kill()
    # The slot stands as it stood.
    assert states(node) == {first.pid: "dead", second.pid: "alive"}
    (third,) = attached(actor, path)
    assert states(node)[third.pid] == "alive"
    second.kill()
    assert states(node)[second.pid] == "dead"


def test_while_nothing_changes_proc_is_not_read_however_busy_the_processes_are(
    actor, node, root, monkeypatch
):
    users = attached(actor, root.region("a"), root.region("b"))
    first = told(node)
    read: list[str] = []
    for name in ("opened_process", "read_maps"):
        monkeypatch.setattr(procfs, name, lambda *_, name=name: read.append(name))
    for number in range(3):
        for user in users:
            user("evaluate", f"scene.kept{number} = bytearray(1 << 22)")
        assert told(node) is first
    assert read == []


@pytest.fixture
def maps_not_kept(monkeypatch) -> None:
    """Maps are read at each listing."""
    monkeypatch.setattr(processes, "_KEPT_S", 0.0)


MAP_MORE = "import mmap; scene.more = mmap.mmap(-1, 1 << 22); scene.more[0] = 1"


@pytest.mark.usefixtures("listed_25_s_ago", "maps_not_kept")
def test_a_process_with_a_slot_that_becomes_another_program_is_dead(actor, node, root):
    """Its pid stays, it has not ended, and nothing in the region changes."""
    (user,) = attached(actor, root.region())
    assert states(node) == {user.pid: "alive"}
    user.start("evaluate", "import os; os.execlp('sleep', 'sleep', '1000')")
    eventually(lambda: states(node) == {user.pid: "dead"})


@pytest.mark.parametrize("at_work", [False, True])
def test_a_process_with_a_slot_that_takes_one_in_another_region_is_found(
    actor, node, root, at_work
):
    first, second = root.region(), root.region("second")
    (user,) = attached(actor, first)
    assert states(node) == {user.pid: "alive"}
    user("open", str(second), writable=True)
    if at_work:
        user("evaluate", MAP_MORE)
    RegionFile(second, Layout.V1_2).add_process(user.pid)
    node.refresh(processes=False)
    snapshot = node.snapshot()
    found = node.slots(snapshot)
    assert [SLOT_STATES[each] for each in found.states] == ["alive", "alive"]


def test_the_processes_of_a_region_that_is_replaced_are_found_in_the_new_one(actor, node, root):
    path = root.region()
    user = actor(path)
    RegionFile(path, Layout.V1_2).add_process(user.pid)
    assert states(node) == {user.pid: "alive"}
    user("evaluate", "scene.region.close()")
    path.unlink()
    create_region(path)
    # Mapped where the old one was, so that nothing but its maps tells.
    user("open", str(path), writable=True)
    RegionFile(path, Layout.V1_2).add_process(user.pid)
    assert states(node) == {user.pid: "alive"}


def test_one_region_that_changes_does_not_have_the_others_proved(actor, node, root, monkeypatch):
    paths = [root.region(name) for name in "abc"]
    attached(actor, *paths)
    told(node)
    proved: list[str | None] = []
    match = slots.match_slots

    def counted(table, container, pids, read_s):  # type: ignore[no-untyped-def]
        proved.append(container.name)
        return match(table, container, pids, read_s)

    monkeypatch.setattr(slots, "match_slots", counted)
    (more,) = attached(actor, paths[1])
    assert states(node)[more.pid] == "alive"
    assert proved == ["b"]


def test_processes_without_a_slot_are_told_with_the_proof(actor, node, root):
    bystander = actor(root.region())
    found = told(node)
    ((row, unlisted),) = found.unlisted.items()
    assert [process.pid for process in unlisted] == [bystander.pid_here]
    assert found.proved[row].state(4321) == "unknown"


@pytest.mark.usefixtures("listed_25_s_ago")
def test_a_process_that_gets_the_pid_of_a_dead_one_is_alive_at_the_next_listing(actor, node, root):
    """As in a container that is started again; nothing in the region changes at first."""
    path = root.region()
    user = actor()
    RegionFile(path, Layout.V1_2).add_process(user.pid, {0: 1 << 20})
    assert states(node) == {user.pid: "dead"}
    user("open", str(path), writable=True)
    assert states(node) == {user.pid: "alive"}


def test_a_process_that_uses_the_slot_of_a_dead_one_is_alive_at_once(actor, node, root):
    """Its pids are those of the dead one."""
    path = root.region()
    user = actor()
    region = RegionFile(path, Layout.V1_2)
    region.add_process(user.pid, {0: 1 << 20})
    assert states(node) == {user.pid: "dead"}
    user("open", str(path), writable=True)
    region.put("slot_used.total", 1 << 21, slot=0)
    assert states(node) == {user.pid: "alive"}

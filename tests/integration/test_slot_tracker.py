"""`Node.slots`: which slots are of live processes, told often and at little cost."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from actors import Actor, MakeActor
from forked import in_child
from namespaces import needs_first_namespace
from node_root import Root
from region_bytes import RegionFile

from libhamiregion import Layout
from libhamiregion.node import SLOT_STATES, Node, SlotStates, procfs, slot_tracker

pytestmark = needs_first_namespace


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path / "containers")


@pytest.fixture
def node(root: Root) -> Iterator[Node]:
    with Node(root) as node:
        yield node


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
        user = actor(path)
        user("attach")
        found.append(user)
    return found


@pytest.mark.parametrize("by", ["pidfd", "stat"])
def test_what_starts_and_ends_is_told_at_the_next_look(
    by: str, actor: MakeActor, node: Node, root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by == "stat":
        monkeypatch.setattr(slot_tracker, "_WATCHED_LIMIT", 0)
    path = root.region()
    first, second = attached(actor, path, path)
    assert states(node) == {first.pid: "alive", second.pid: "alive"}
    first.kill()
    # The slot stands as it stood.
    assert states(node) == {first.pid: "dead", second.pid: "alive"}
    (third,) = attached(actor, path)
    assert states(node)[third.pid] == "alive"
    second.leave()
    assert states(node)[second.pid] == "dead"


def test_while_nothing_changes_proc_is_not_read_however_busy_the_processes_are(
    actor: MakeActor, node: Node, root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = attached(actor, root.region("a"), root.region("b"))
    first = told(node)
    read: list[str] = []
    for name in ("stat_line", "open_process"):
        monkeypatch.setattr(procfs, name, lambda *_, name=name: read.append(name))
    for number in range(3):
        for user in users:
            user("evaluate", f"scene.kept{number} = bytearray(1 << 22)")
        assert told(node) is first
    assert read == []


def test_a_proof_does_not_hold_for_ever(
    actor: MakeActor, node: Node, root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that unmaps its region and lives on shows in nothing but its maps."""
    path = root.region()
    (user,) = attached(actor, path)
    monkeypatch.setattr(node._slots, "_proof_s", 0.0)
    assert states(node) == {user.pid: "alive"}
    RegionFile(path, Layout.V1_2).add_process(3_999_999)
    assert states(node) == {user.pid: "alive", 3_999_999: "dead"}


def test_one_region_that_changes_does_not_have_the_others_proved(
    actor: MakeActor, node: Node, root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [root.region(name) for name in "abc"]
    attached(actor, *paths)
    told(node)
    proved: list[str | None] = []
    match = node.match

    def counted(container, pids, taken_at_ns):  # type: ignore[no-untyped-def]
        proved.append(container.name)
        return match(container, pids, taken_at_ns)

    monkeypatch.setattr(node, "match", counted)
    (more,) = attached(actor, paths[1])
    assert states(node)[more.pid] == "alive"
    assert proved == ["b"]


def test_processes_without_a_slot_are_told_with_the_proof(
    actor: MakeActor, node: Node, root: Root
) -> None:
    bystander = actor(root.region())
    found = told(node)
    ((row, unlisted),) = found.unlisted.items()
    assert [process.pid for process in unlisted] == [bystander.pid_here]
    assert found.proved[row].state(4321) == "unknown"


def test_a_closed_node_keeps_no_descriptor(actor: MakeActor, root: Root) -> None:
    attached(actor, *(root.region(str(number)) for number in range(4)))
    before = len(watching())
    with Node(root) as node:
        told(node)
        assert len(watching()) == before + 4 + 1
    assert len(watching()) == before
    # Nor does one that nobody has closed.
    forgotten = Node(root)
    told(forgotten)
    del forgotten
    gc.collect()
    assert len(watching()) == before


def watching() -> list[str]:
    links = [os.readlink(each) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]  # noqa: PTH115
    return [link for link in links if "pidfd" in link or "eventpoll" in link]


def test_a_process_that_gets_the_pid_of_a_dead_one_is_alive(
    actor: MakeActor, node: Node, root: Root
) -> None:
    """As in a container that is started again: the slot's pid stays, and its host pid does not."""
    path = root.region()
    user = actor()
    RegionFile(path, Layout.V1_2).add_process(user.pid, host_pid=3_999_999)
    assert states(node) == {user.pid: "dead"}
    user("open", str(path), writable=True)
    RegionFile(path, Layout.V1_2).put("slot_hostpid", user.pid_here)
    assert states(node) == {user.pid: "alive"}


def test_a_process_that_gets_the_pid_of_a_dead_one_is_alive_without_any_host_pid(
    actor: MakeActor, node: Node, root: Root
) -> None:
    """What the dead one counted is cleared by then."""
    path = root.region()
    user = actor()
    file = RegionFile(path, Layout.V1_2)
    file.add_process(user.pid, {0: 1 << 20})
    assert states(node) == {user.pid: "dead"}
    user("open", str(path), writable=True)
    assert states(node) == {user.pid: "dead"}, "nothing in the region has changed"
    file.put("slot_used.total", 0)
    assert states(node) == {user.pid: "alive"}


def test_a_forked_child_takes_nothing_from_its_parents_watch(
    actor: MakeActor, node: Node, root: Root
) -> None:
    (user,) = attached(actor, root.region())
    assert states(node) == {user.pid: "alive"}
    in_child(node.close)
    user.kill()
    assert states(node) == {user.pid: "dead"}

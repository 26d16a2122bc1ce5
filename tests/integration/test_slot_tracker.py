"""`Node.slots`: which slots are of live processes, told often and at little cost."""

import contextlib
import gc
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from forked import in_child
from namespaces import needs_first_namespace
from node_root import Root
from support.actors import Actor, MakeActor
from support.region_file import RegionFile
from support.wait import eventually

from libhamiregion import Layout, create_region
from libhamiregion.node import (
    SLOT_STATES,
    Container,
    Node,
    ProcessTable,
    RegionProcesses,
    SlotStates,
    exit_watch,
    process_reader,
    procfs,
)
from libhamiregion.node.backoff import owner_of

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
        monkeypatch.setattr(exit_watch, "_WATCHED_LIMIT", 0)
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
    for name in ("stat_line", "open_process", "read_activities"):
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


def test_those_are_proved_first_whose_proofs_have_cost_least(node: Node, root: Root) -> None:
    """What is left for the last ones may be too little."""
    for name in "abc":
        root.region(name)
    told(node)
    snapshot = node.snapshot()
    first, *others = snapshot.containers
    node.processes._proof_shares.charge(owner_of(first), 0.5)
    order: list[Container] = []

    def match(container: Container, pids: Sequence[int], taken_at_ns: int) -> RegionProcesses:
        order.append(container)
        return node.match(container, pids, taken_at_ns)

    node._slots.update(snapshot.containers, snapshot.table, match, anew=True)
    assert order == [*others, first]


@pytest.fixture
def no_waiting(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """/proc is looked at whole each time, as it is else once a minute."""
    monkeypatch.setattr(node._slots, "_proof_s", 0.0)
    monkeypatch.setattr(process_reader, "_FULL_AFTER_S", 0.0)


MAP_MORE = "import mmap; scene.more = mmap.mmap(-1, 1 << 22); scene.more[0] = 1"


@pytest.mark.usefixtures("no_waiting")
def test_a_process_with_a_slot_is_not_read_again_for_a_mapping_more(
    actor: MakeActor, node: Node, root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = root.region()
    (user,) = attached(actor, path)
    bystander = actor(path)
    first = told(node)
    read: list[str] = []
    open_process = procfs.open_process

    def noted(directory: int, pid: str) -> int:
        read.append(pid)
        return open_process(directory, pid)

    monkeypatch.setattr(procfs, "open_process", noted)
    for each in (user, bystander):
        each("evaluate", MAP_MORE)
    assert told(node) is first, "equal proofs are the same object"
    # The other one may be about to use the region.
    assert str(bystander.pid_here) in read
    assert str(user.pid_here) not in read


@pytest.mark.usefixtures("no_waiting")
def test_a_process_that_unmaps_its_region_and_lives_on_is_told_at_the_next_whole_look(
    actor: MakeActor, node: Node, root: Root
) -> None:
    path = root.region()
    (user,) = attached(actor, path)
    leaves = actor(path)
    RegionFile(path, Layout.V1_2).add_process(leaves.pid)
    assert states(node) == {user.pid: "alive", leaves.pid: "alive"}
    for each in (user, leaves):
        each("evaluate", MAP_MORE)
    assert states(node) == {user.pid: "alive", leaves.pid: "alive"}
    leaves("evaluate", "scene.region.close()")
    assert states(node) == {user.pid: "alive", leaves.pid: "dead"}


IN_ITS_PLACE = """
import mmap, os
size = {size}
if path:
    with open(path, "w+b") as file:
        file.truncate(size)
        # As large as it is in memory, and where it was: nothing but the link's text tells.
        scene.more = mmap.mmap(file.fileno(), size)
else:
    scene.more = mmap.mmap(-1, size)
"""


@pytest.mark.usefixtures("no_waiting")
@pytest.mark.parametrize("what", ["memory", "another file"])
def test_what_a_process_with_a_slot_puts_in_its_regions_place_is_told_after_ten_minutes(
    what: str,
    actor: MakeActor,
    node: Node,
    root: Root,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its address space is as large as it was."""
    path = root.region()
    user = actor(path)
    RegionFile(path, Layout.V1_2).add_process(user.pid)
    assert states(node) == {user.pid: "alive"}
    user("evaluate", "scene.region.close()")
    other = str(tmp_path / "other") if what == "another file" else ""
    user("evaluate", IN_ITS_PLACE.format(size=Layout.V1_2.size_bytes), path=other)
    monkeypatch.setattr(process_reader, "_UNCHANGED_FOR_S", 0.0)
    assert states(node)[user.pid] != "alive"


@pytest.mark.usefixtures("no_waiting")
def test_the_maps_of_a_process_with_a_slot_are_read_again_after_an_hour(
    actor: MakeActor, node: Node, root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then the links to what it has mapped do."""
    first, second = root.region(), root.region("second")
    (user,) = attached(actor, first)
    assert states(node) == {user.pid: "alive"}
    user("open", str(second), writable=True)
    monkeypatch.setattr(process_reader, "_UNCHANGED_FOR_S", 0.0)
    assert told(node).unlisted == {}
    monkeypatch.setattr(process_reader, "_HOLDER_UNCHANGED_FOR_S", 0.0)
    ((_, unlisted),) = told(node).unlisted.items()
    assert [process.pid for process in unlisted] == [user.pid_here]


@pytest.mark.usefixtures("no_waiting")
def test_a_process_with_a_slot_that_becomes_another_program_is_dead(
    actor: MakeActor, node: Node, root: Root
) -> None:
    """Its pid stays, it has not ended, and nothing in the region changes."""
    (user,) = attached(actor, root.region())
    assert states(node) == {user.pid: "alive"}
    user.start("evaluate", "import os; os.execlp('sleep', 'sleep', '1000')")
    eventually(lambda: states(node) == {user.pid: "dead"})


def test_between_two_whole_looks_only_who_lives_by_a_pidfd_is_left_out(
    actor: MakeActor, node: Node, root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    user, dying = attached(actor, root.region(), root.region("other"))
    bystander = actor()
    told(node)
    looked_at: list[int] = []
    read_activities = procfs.read_activities

    def noted(directory: int, pids: Sequence[int]) -> Any:
        looked_at[:] = pids
        return read_activities(directory, pids)

    monkeypatch.setattr(procfs, "read_activities", noted)
    node.processes.refresh(full=False)
    assert bystander.pid_here in looked_at
    # This process maps all regions, and is read in its turn.
    assert not {user.pid_here, dying.pid_here, os.getpid()} & set(looked_at)
    # Whoever has its pid from now on is another process.
    dying.kill()
    node.processes.refresh(full=False)
    assert node.processes.get(dying.pid_here) is None
    assert user.pid_here not in looked_at
    node.processes.refresh()
    assert {user.pid_here, os.getpid()} <= set(looked_at)


def test_who_has_been_as_it_is_for_long_has_its_turn_in_one_of_three_looks(
    actor: MakeActor, node: Node, root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = root.region()
    quiet = [actor() for _ in range(4)]
    told(node)
    looked_at: list[int] = []
    read_activities = procfs.read_activities

    def noted(directory: int, pids: Sequence[int]) -> Any:
        looked_at.extend(pids)
        return read_activities(directory, pids)

    monkeypatch.setattr(procfs, "read_activities", noted)
    node.processes.refresh(full=False)
    assert {each.pid_here for each in quiet} <= set(looked_at), "they are new"
    monkeypatch.setattr(process_reader, "_QUIET_AFTER_S", 0.0)
    monkeypatch.setattr(process_reader, "_FULL_AFTER_S", float("inf"))
    looked_at.clear()
    for _ in range(3):
        node.processes.refresh(full=False)
    assert [looked_at.count(each.pid_here) for each in quiet] == [1] * len(quiet)
    # One that ends is gone at once, and one that maps a region is found in its turn.
    ending, mapping, *_ = quiet
    ending.kill()
    mapping("open", str(path), writable=True)
    node.processes.refresh(full=False)
    assert node.processes.get(ending.pid_here) is None
    for _ in range(2):
        node.processes.refresh(full=False)
    (container,) = node.containers
    assert container.region is not None
    mappers = node.processes.mappers(*node.processes.identity(container.region))
    assert mapping.pid_here in {each.pid for each in mappers}


@pytest.mark.parametrize("at_work", [False, True])
def test_a_process_with_a_slot_that_takes_one_in_another_region_is_found(
    actor: MakeActor, node: Node, root: Root, at_work: bool
) -> None:
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


def test_the_processes_of_a_region_that_is_replaced_are_found_in_the_new_one(
    actor: MakeActor, node: Node, root: Root
) -> None:
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
    # What earlier tests have left goes now and not later.
    gc.collect()
    before = watching()
    with Node(root) as node:
        told(node)
        assert len(watching() - before) == 4 + 1
    assert watching() <= before
    # Nor does one that nobody has closed.
    forgotten = Node(root)
    told(forgotten)
    del forgotten
    gc.collect()
    assert watching() <= before


def watching() -> set[str]:
    """The descriptors of processes and of what waits for them."""
    links = {
        each.name: os.readlink(each)  # noqa: PTH115
        for each in Path("/proc/self/fd").iterdir()
        if each.is_symlink()
    }
    return {name for name, link in links.items() if "pidfd" in link or "eventpoll" in link}


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


def test_processes_that_are_watched_no_more_take_no_descriptors() -> None:
    table = ProcessTable()
    with contextlib.ExitStack() as stack:
        pids = []
        for _ in range(4):
            child = stack.enter_context(subprocess.Popen(["sleep", "600"]))
            stack.callback(child.kill)
            pids.append(child.pid)
        table.refresh()
        processes = [found for pid in pids if (found := table.get(pid)) is not None]
        watch = exit_watch.ExitWatch(table)
        watch.watch(processes)
        assert set(watch.living()) == set(pids)
        before = len(list(Path("/proc/self/fd").iterdir()))
        watch.keep_only(processes[:1])
        assert set(watch.living()) == {pids[0]}
        assert len(list(Path("/proc/self/fd").iterdir())) == before - 3
        # Each that is not watched ends unseen, and the one that is does not.
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: watch.ended() == {processes[0]})

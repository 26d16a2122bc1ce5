"""A node as an object: its snapshot, its regions to write, its life."""

import copy
import itertools
import os
import pickle
import resource
import threading
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.forked import in_child
from support.node_root import Root, only, refresh, remove, settle
from support.observing import details
from support.process import descriptors
from support.region_file import RegionFile, truncate
from support.wait import PATIENCE_S, eventually

from libhamiregion import Layout, RegionClosed, RegionSnapshot, RegionStale, create_region
from libhamiregion.node import (
    ContainerDetails,
    MissingReason,
    Node,
    NodeBusy,
    NodeSnapshot,
    PodName,
    ProcessTable,
    directories,
    match_slots,
)
from libhamiregion.node import node as node_module


def test_a_snapshot_has_a_row_per_container_with_a_region(root, node):
    for number in (3, 1, 2):
        root.region(f"c{number}", memory_limits=(number,))
    root.container("empty")
    refresh(node)
    snapshot = node.snapshot()
    assert isinstance(snapshot, NodeSnapshot)
    assert len(snapshot.containers) == len(snapshot.table.regions) == 3
    for row, container in enumerate(snapshot.containers):
        assert snapshot.table.paths[row] == container.region_path
        first = snapshot.table.regions.first_device[row]
        assert container.name == f"c{snapshot.table.devices.memory_limit_bytes[first]}"
    assert [each.name for each in snapshot.missing] == ["empty"]
    assert set(snapshot.containers + snapshot.missing) == set(node.containers)


def test_a_refresh_reads_no_processes_unless_it_is_asked_to(root, tmp_path):
    root.region()
    proc = tmp_path / "proc"
    proc.symlink_to("/proc")
    with Node(root, proc=proc) as node:
        proc.unlink()
        assert node.refresh()
        assert node.processes.view.started_s == ProcessTable().view.started_s
        with pytest.raises(OSError, match="proc"):
            node.refresh(processes=True)


def test_regions_of_a_snapshot_outlive_a_refresh_that_closes_them(root, node):
    paths = [root.region(f"c{number}", memory_limits=(number + 1,)) for number in range(3)]
    node.refresh()
    truncate(paths[1], 4096)
    snapshot = node.snapshot()
    for path in paths:
        remove(path.parent)
    node.refresh()
    assert node.containers == ()
    found = {container.name: region for container, region in snapshot.regions()}
    assert isinstance(found.pop("c1"), RegionStale)
    for number in (0, 2):
        region = found[f"c{number}"]
        assert isinstance(region, RegionSnapshot)
        assert region.devices[0].memory_limit_bytes == number + 1


def test_a_row_that_cannot_be_read_says_why_and_the_next_refresh_too(root, node):
    paths = [root.region(f"c{number}") for number in range(3)]
    settle(*(path.parent for path in paths), root.path)
    refresh(node)
    assert not refresh(node)
    (broken,) = (each for each in node.containers if each.name == "c1")
    truncate(str(broken.region_path), 4096)
    snapshot = node.snapshot()
    row = snapshot.containers.index(broken)
    assert isinstance(snapshot.table.error(row), RegionStale)
    assert [snapshot.table.error(each) for each in range(3) if each != row] == [None, None]
    refresh(node)
    (container,) = node.snapshot().missing
    assert container.name == "c1"
    assert container.missing.reason is MissingReason.TRUNCATED


def test_a_view_shows_each_container_with_its_slots(root, node):
    path = root.region("with")
    RegionFile(path, Layout.V1_2).add_process(2**21 + 5, {0: 77})
    root.container("without")
    views = {view.container.name: view for view in details(node)}
    with_region, without = views["with"], views["without"]
    assert isinstance(with_region, ContainerDetails)
    assert with_region.snapshot is not None
    assert with_region.error is None
    assert [slot.pid for slot in with_region.processes.slots] == [2**21 + 5]
    assert with_region.processes.slots[0].state in {"dead", "unknown"}
    assert (without.snapshot, without.processes, without.error) == (None, None, None)


# ---- writing ----


def test_a_region_that_was_replaced_is_not_written(root, node):
    path = root.region()
    refresh(node)
    container = only(node)
    path.unlink()
    create_region(path)
    with pytest.raises(RegionStale, match="replaced"):
        node.open(container)
    refresh(node)
    with pytest.raises(RegionClosed):
        node.open(container)
    node.open(only(node)).close()


def test_what_has_no_region_cannot_be_opened(root, node):
    root.container()
    refresh(node)
    with pytest.raises(ValueError, match="no region"):
        node.open(only(node))


# ---- names ----


class Names:
    def resolve(
        self,
        pod_uid: str | None,
        container_name: str | None = None,
        container_id: str | None = None,
    ) -> PodName | None:
        assert container_id is None
        return PodName("default", f"pod-{pod_uid}", container_name)


def test_a_container_is_named_by_the_resolver(root):
    root.container("train", "u1")
    with Node(root, names=Names()) as node:
        refresh(node)
        assert only(node).pod_name == PodName("default", "pod-u1", "train")


def test_a_directory_of_no_real_pod_is_matched_all_the_same(root, node):
    root.region("x")
    (view,) = details(node)
    assert view.snapshot is not None
    assert match_slots(node.processes.view, view.container, (), time.monotonic()).slots == ()


def test_a_look_that_hangs_hangs_no_other_for_long_and_reading_not_at_all(root, monkeypatch):
    monkeypatch.setattr(node_module, "_LOOK_TIMEOUT_S", 0.01)
    root.region()
    node = Node(root)
    refresh(node)
    inside, done = threading.Event(), threading.Event()

    def hang() -> None:
        with node._one_look():
            inside.set()
            done.wait()

    thread = threading.Thread(target=hang, daemon=True)
    thread.start()
    inside.wait()
    try:
        for look in (node.refresh, lambda: node.slots(node.snapshot())):
            with pytest.raises(NodeBusy, match="has not returned"):
                look()
        node.close()
        assert only(node).region is not None, "what hangs may use it"
        assert len(node.snapshot().table) == 1
    finally:
        done.set()
        thread.join()
    node.close()
    assert node.containers == ()


# ---- life ----


def test_a_closed_node_says_so_and_has_nothing_open(root):
    root.region()
    node = Node(root)
    refresh(node)
    region = only(node).region
    assert "1 containers" in repr(node)
    node.close()
    node.close()
    assert region.closed
    assert node.containers == ()
    assert "closed" in repr(node)
    for use in (node.refresh, node.snapshot):
        with pytest.raises(RegionClosed, match="Node has been closed"):
            use()


def test_in_a_forked_child_a_node_is_closed(root, node):
    root.region()
    refresh(node)

    def use() -> list[str]:
        said = []
        for use in (node.refresh, node.snapshot):
            try:
                use()
            except RegionClosed as error:
                said.append(str(error))
        node.close()
        with Node(root) as own:
            own.refresh()
            said.append(str(len(own.snapshot().containers)))
        return said

    message = "the Node belongs to the process that made it; make a new one"
    assert in_child(use) == [message] * 2 + ["1"]
    assert len(node.snapshot().containers) == 1


def test_threads_may_share_a_node(root, node):
    paths = [root.region(f"c{number}") for number in range(8)]

    def read() -> None:
        for _ in range(150):
            snapshot = node.snapshot()
            assert len(snapshot.containers) == len(snapshot.table)
            assert {each.name for each in snapshot.containers} <= {f"c{n}" for n in range(8)}

    def change() -> None:
        for number in range(60):
            path = paths[number % 8]
            if path.exists():
                remove(path.parent)
            else:
                path.parent.mkdir()
                create_region(path)
            node.refresh(processes=False)

    with ThreadPoolExecutor(4) as pool:
        for work in [pool.submit(read), pool.submit(read), pool.submit(change)]:
            work.result()


def test_a_container_and_a_node_stay_in_their_process(root, node):
    root.region()
    refresh(node)
    for each in (node, only(node)):
        with pytest.raises(TypeError):
            pickle.dumps(each)
        with pytest.raises(TypeError):
            copy.deepcopy(each)


def test_an_interrupted_refresh_leaves_a_node_that_can_be_used(root, node, monkeypatch):
    for number in range(3):
        root.region(f"c{number}")
    looks = itertools.count()
    scan = directories.scan_directory

    def interrupted(*arguments: Any) -> Any:
        if next(looks) == 2:
            raise KeyboardInterrupt
        return scan(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(directories, "scan_directory", interrupted)
        with pytest.raises(KeyboardInterrupt):
            node.refresh(processes=False)
        assert len(node.containers) == len(node.snapshot().containers) == 2
        looks = itertools.count(2)
        with pytest.raises(KeyboardInterrupt):
            details(node)
    assert len(node.snapshot().containers) == 2
    refresh(node)
    assert len(node.containers) == len(details(node)) == 3


# ---- descriptors ----


def mapped_files(root: Root) -> int:
    with open("/proc/self/maps", encoding="utf-8") as maps:  # noqa: PTH123
        return sum(str(root.path) in line for line in maps)


def test_no_descriptor_and_no_mapping_is_left_over(root, node):
    for number in range(4):
        root.region(f"c{number}")
    os.mkfifo(root.container("fifo") / "a.cache")
    elsewhere = root.path.with_name("elsewhere.cache")
    create_region(elsewhere)
    (root.container("link") / "a.cache").symlink_to(elsewhere)
    (root.container("short") / "a.cache").touch()
    node.refresh()
    before = descriptors()
    assert mapped_files(root) == 4
    for number in range(30):
        path = root.region(f"new-{number}")
        node.refresh()
        details(node)
        remove(path.parent)
        node.refresh()
    # Descriptors of an earlier test, or of a reader on a busy machine, are closed a moment later.
    eventually(lambda: descriptors() <= before)
    assert mapped_files(root) == 4
    node.close()
    assert mapped_files(root) == 0


def use_up_descriptors(spare: int) -> list[int]:
    """Take all that this process may have but so many."""
    taken = []
    while True:
        try:
            taken.append(os.dup(0))
        except OSError:
            break
    for _ in range(spare):
        os.close(taken.pop())
    return taken


def test_running_out_of_descriptors_is_told_and_passes(root):
    def starve() -> list[object]:
        seen: list[object] = []
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(descriptors()) + 20, hard))
        with Node(root) as node:
            path = root.region("old")
            refresh(node)
            old = only(node)
            settle(root.path, path.parent)
            root.region("new")
            for spare in (0, 1, 6):
                # What is there already has changed as well, and is looked into.
                (path.parent / "sign").touch()
                taken = use_up_descriptors(spare)
                try:
                    refresh(node)
                    kept = old in node.containers
                    found = [each for each in node.containers if each.name == "new"]
                    reasons = [each.missing and each.missing.reason for each in found]
                    seen.append((spare, kept, reasons, list(node.root_errors)))
                    if spare == 0:
                        with pytest.raises(OSError, match="Too many open files"):
                            node.refresh(processes=True)
                finally:
                    for descriptor in taken:
                        os.close(descriptor)
            refresh(node)
            seen.append({each.name: each.region is not None for each in node.containers})
            seen.append(old in node.containers)
        return seen

    # With none not even the root can be listed, with one the root but no more.
    assert in_child(starve) == [
        (0, True, [], [str(root.path)]),
        (1, True, [MissingReason.FAILED], []),
        (6, True, [None], []),
        {"new": True, "old": True},
        True,
    ]


def test_a_snapshot_does_not_wait_while_proc_is_read(tmp_path):
    root = Root(tmp_path / "containers")
    root.region("train")
    with Node(root) as node:
        node.refresh(processes=False)
        reading, go_on = threading.Event(), threading.Event()

        class SlowTable(ProcessTable):
            def refresh(self, wanted: Collection[int] = ()) -> None:
                reading.set()
                assert go_on.wait(PATIENCE_S)
                super().refresh(wanted)

        node.processes = SlowTable()
        root.region("late")
        seen: list[int] = []
        other = threading.Thread(target=lambda: seen.append(len(details(node))), daemon=True)
        other.start()
        assert reading.wait(PATIENCE_S)
        # What the view has found in the directories is there already; nothing is half there.
        snapshot = node.snapshot()
        assert len(snapshot.containers) == len(snapshot.table) == 2
        go_on.set()
        other.join(PATIENCE_S)
        assert seen == [2]

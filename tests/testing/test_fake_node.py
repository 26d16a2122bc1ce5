"""Fake nodes are what they say: HAMi's directories, real regions, and processes that can die."""

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from support.wait import eventually

from libhamiregion.testing import FakeContainer, FakeNode, FakeProcess
from libhamiregion.units import GIB

CONTEXT = 300 * 2**20


def used(container: FakeContainer, device: int = 0) -> int:
    with container.open() as region:
        return region.memory_used(device)


def held(container: FakeContainer, process: FakeProcess) -> int:
    """What stands in the slot of a process, without its context."""
    with container.open() as region:
        slots = {each.pid: each for each in region.snapshot().processes}
    return slots[process.pid].devices[process.device].memory_used_bytes - CONTEXT


def test_the_library_finds_its_containers_by_their_names(tmp_path):
    with FakeNode(tmp_path / "node", containers=2, processes=0) as fake:
        fake.add("train", pod="bert-0", namespace="research", region=False)
        with fake.node() as node:
            node.refresh()
            found = {each.pod_uid: each for each in node.containers}
            assert found.keys() == {each.pod_uid for each in fake.containers}
            for made in fake.containers:
                container = found[made.pod_uid]
                name = container.pod_name
                assert (name.namespace, name.pod, name.container) == (
                    *(made.namespace, made.pod),
                    made.name,
                )
                assert (container.region is None) is (made.region is None)
            fake.remove(fake.containers[0])
            node.refresh()
            assert len(node.containers) == 2
    assert len(list(fake.root.iterdir())) == 2
    assert len(list(fake.pod_logs.iterdir())) == 2


@pytest.mark.slow
def test_figures_change_at_each_step_and_at_no_other_time(tmp_path):
    with FakeNode(tmp_path) as node:
        container = node.add(memory_limits=("8GiB", "4GiB"), processes=3)
        first, other, _ = container.processes
        assert (first.device, other.device) == (0, 1)
        assert held(container, first) == 0
        figures = []
        for _ in range(12):
            node.step()
            figures.append(held(container, first))
            assert held(container, first) == figures[-1]
        step = 128 * 2**20
        up = [step * (number + 1) for number in range(8)]
        assert figures == [*up, *(up[7] - step * (number + 1) for number in range(4))]
        assert (first.granted, first.refused) == (8, 0)
        assert used(container, 1) == CONTEXT + held(container, other)


def test_a_limit_holds_for_its_processes(tmp_path):
    with FakeNode(tmp_path) as node:
        container = node.add(memory_limits=("1GiB",))
        (process,) = container.processes
        for _ in range(8):
            node.step()
        assert (process.granted, process.refused) == (5, 3)
        with container.open(writable=True) as region:
            region.set_memory_limit("2GiB", device=0)
        node.step()
        assert (process.granted, process.refused) == (6, 3)


def test_a_limit_may_leave_no_room_for_a_context(tmp_path):
    with FakeNode(tmp_path) as node:
        container = node.add(memory_limits=["200MiB"], processes=2)
        for _ in range(2):
            node.step()
        assert [(each.granted, each.refused) for each in container.processes] == [(1, 1), (0, 2)]


def test_a_killed_process_leaves_its_slot_and_the_others_go_on(tmp_path):
    with FakeNode(tmp_path) as node:
        container = node.add(processes=2)
        victim, other = container.processes
        node.step()
        victim.kill()
        before = held(container, victim), held(container, other)
        node.step()
        assert held(container, victim) == before[0]
        assert held(container, other) > before[1]
        with container.open(writable=True) as region:
            assert [each.pid for each in region.reap()] == [victim.pid]


def test_the_end_gives_back_slots_and_its_own_directory():
    with FakeNode(containers=1) as node:
        (container,) = node.containers
        (process,) = container.processes
        assert repr(container) == "<FakeContainer default/pod-0/main>"
        region = container.open()
    assert region.snapshot().processes == ()
    region.close()
    assert not node.directory.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
    node.close()


def test_a_process_that_ended_by_itself_is_an_error(tmp_path):
    with FakeNode(tmp_path, containers=1) as node:
        process = node.containers[0].processes[0]
        process._process.kill()
        with pytest.raises(ChildProcessError, match=f"process {process.pid} of .* ended with -9"):
            node.step()


def test_exact_uses_stay_as_they_are_and_the_last_launch_is_as_old_as_asked(tmp_path):
    with FakeNode(tmp_path) as node:
        container = node.add(uses=[("3GiB", 41), ("100MiB", 0)], idle_s=3600)
        node.step()
        with container.open() as region:
            snapshot = region.snapshot()
        with node.add(idle_s=None).open() as region:
            assert region.snapshot().idle_s is None
        with pytest.raises(ValueError, match="no region"):
            node.add(region=False).open()
    figures = [
        (each.devices[0].memory_used_bytes, each.devices[0].sm_util_percent)
        for each in snapshot.processes
    ]
    assert figures == [(3 * GIB, 41), (100 * 2**20, 0)]
    assert snapshot.idle_s is not None
    assert 3600 <= snapshot.idle_s < 3600 + 60


# Also longer than an attached process waits by default.
@pytest.mark.parametrize("held_s", [0.5, pytest.param(11, marks=pytest.mark.slow)])
def test_processes_wait_for_a_lock_that_is_held_and_go_on(tmp_path, held_s):
    with FakeNode(tmp_path, containers=1) as node:
        (container,) = node.containers
        (process,) = container.processes
        held = threading.Event()

        def hold() -> None:
            with node.hold_lock(container):
                held.set()
                time.sleep(held_s)

        holder = threading.Thread(target=hold)
        holder.start()
        held.wait()
        node.step()
        holder.join()
        assert (process.granted, process.refused) == (1, 0)
        empty = node.add(region=False)
        with pytest.raises(ValueError, match="no region"), node.hold_lock(empty):
            pass


def files_below(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*"))


def test_no_two_containers_have_the_same_figures(tmp_path):
    with FakeNode(tmp_path, containers=3) as node:
        made = [*node.containers, *(node.add() for _ in range(3))]
        node.step()
        assert len({used(container) for container in made}) == 6
        # A made up name is not given twice either.
        node.remove(made[0])
        names = [each.pod for each in (*node.containers, node.add())]
        assert len(set(names)) == 6


def test_a_process_killed_with_the_lock_leaves_it_to_a_recovery(tmp_path):
    with FakeNode(tmp_path) as node:
        container = node.add(processes=2)
        victim, other = container.processes
        victim.kill(holding_lock=True)
        with container.open(writable=True) as region:
            # Whoever reads /proc/PID/maps just then keeps its memory for a moment.
            eventually(lambda: region.lock_state().owner_life == "dead")
            state = region.lock_state()
            assert (state.held, state.owner_pid) == (True, victim.pid)
            assert region.recover_lock().dead_owner
        container.step()
        assert other.granted == 1


def test_a_process_killed_in_an_update_leaves_an_odd_seqlock_to_a_reap(tmp_path):
    with FakeNode(tmp_path) as node:
        container = node.add(processes=2)
        victim = container.processes[1]
        before = held(container, victim)
        victim.kill(in_update=True)
        assert held(container, victim) == before
        with container.open(writable=True) as region:
            settled = {each.pid: each.settled for each in region.snapshot().processes}
            assert settled == {container.processes[0].pid: True, victim.pid: False}
            assert [each.pid for each in region.reap()] == [victim.pid]


def test_two_hundred_containers_need_a_process_for_all_and_not_one_each(tmp_path):
    before = os.times()
    with FakeNode(tmp_path / "node", containers=200, processes=2, shared_processes=True) as node:
        after = os.times()
        assert sum(after[:4]) - sum(before[:4]) < 2
        first, second = node.containers[0].processes
        assert all(each.processes == (first, second) for each in node.containers)
        with node.node() as opened:
            opened.refresh(processes=True)
            assert len(opened.containers) == 200
        used_before = [used(container) for container in node.containers]
        node.step()
        used_after = [used(container) for container in node.containers]
        assert all(was < now for was, now in zip(used_before, used_after, strict=True))
        assert first.granted == 200
        # Those of the other containers run on.
        node.remove(node.containers[7])
        node.step()
        first.kill(holding_lock=True)
        second.kill()
        for container in node.containers:
            with container.open() as region:
                eventually(lambda: region.lock_state().owner_life == "dead")
                assert {each.pid for each in region.snapshot().processes} == {
                    first.pid,
                    second.pid,
                }


@pytest.mark.parametrize(
    "wrong",
    [
        {"memory_limits": ("lots",)},
        {"uses": [("1GiB", 10), ("lots", 10)]},
        {"uses": [("1GiB", 10), ("1GiB", 1000)]},
        {"idle_s": float("nan")},
        {"pod": "a/b"},
        {"name": "a/b"},
        {"namespace": "a/b"},
    ],
)
def test_an_add_that_raises_leaves_nothing_behind(tmp_path, wrong, monkeypatch):
    started: list[FakeProcess] = []
    start = FakeProcess.__init__

    def note(self: FakeProcess, *arguments: Any) -> None:
        start(self, *arguments)
        started.append(self)

    monkeypatch.setattr(FakeProcess, "__init__", note)
    with FakeNode(tmp_path) as node:
        node.add(processes=0)
        before = node.containers, files_below(tmp_path)
        with pytest.raises((ValueError, ChildProcessError)):
            node.add(**wrong)
        assert (node.containers, files_below(tmp_path)) == before
        for process in started:
            with pytest.raises(ProcessLookupError):
                os.kill(process.pid, 0)


def test_a_node_that_cannot_be_made_leaves_nothing_behind(tmp_path):
    (tmp_path / "pod-logs").mkdir()
    with pytest.raises(FileExistsError):
        FakeNode(tmp_path)
    assert files_below(tmp_path) == [tmp_path / "pod-logs"]

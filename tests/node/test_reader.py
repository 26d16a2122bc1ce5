"""One observation of the node: what it holds, how old it is, and what it could not look at."""

import os
import threading
import time
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

import attrs
import pytest
from fake_nvml.scenes import initialisations
from support.fake_proc import FakeProc
from support.forked import in_child
from support.region_file import RegionFile, truncate
from support.wait import PATIENCE_S, eventually

from libhamiregion import Layout, RegionClosed, RegionStale
from libhamiregion.agent import (
    Feedback,
    PlanKeeper,
    RepairLoop,
    RootWatch,
    StaleDirectoryCleaner,
    TaskRunner,
    UsageSync,
    loop,
)
from libhamiregion.exporter import NodeExporter
from libhamiregion.node import (
    SLOT_STATES,
    Gap,
    Node,
    NvmlSample,
    NvmlSampler,
    Observation,
    Observer,
    processes,
)
from libhamiregion.observation.driver import FIGURES, NvmlState, ProcessColumns
from libhamiregion.plan import PlanFile, PlanReconciler


def states(observation: Observation) -> dict[int, str]:
    pids = observation.table.processes.pid
    return {pid: SLOT_STATES[observation.proved().states[row]] for row, pid in enumerate(pids)}


def gaps(observation: Observation) -> list[Gap]:
    """Without those of the machine's other processes, of which there can be some."""
    return [gap for gap in observation.gaps if gap.kind != "processes"]


def sample_of(observer: Observer) -> NvmlSample:
    sample = observer.observe().sample
    assert sample is not None
    return sample


class HeldSampler(NvmlSampler):
    """Answers when it is let."""

    def __init__(self) -> None:
        super().__init__("/nonexistent/libnvidia-ml.so.1")
        self.asked = 0
        self.may_answer = threading.Event()

    def sample(self) -> NvmlSample:
        self.asked += 1
        assert self.may_answer.wait(PATIENCE_S)
        return super().sample()


def test_the_driver_comes_first_then_the_regions_then_proc(actor, node, root, fake_driver):
    fake_driver.play()
    path = root.region()
    user = actor(path, attach=True)
    RegionFile(path, Layout.V1_2).add_process(3_999_999)
    with NvmlSampler(fake_driver.library, host_namespace=True) as sampler:
        seen = Observer(node, sampler=sampler).observe(processes_max_age_s=0)
    assert states(seen) == {user.pid: "alive", 3_999_999: "dead"}
    assert [each.name for each in seen.containers] == ["train"]
    (taken_at_ns,) = seen.table.regions.taken_at_ns
    assert seen.sample.taken_at_ns <= seen.regions_read_at_ns <= taken_at_ns
    assert seen.sample.taken_s <= seen.snapshot.read_s <= seen.processes.started_s


def test_one_that_is_young_enough_serves_everybody(node, root):
    observer = Observer(node)
    first = observer.observe()
    root.region()
    assert observer.observe(max_age_s=PATIENCE_S) is first
    second = observer.observe()
    assert second is not first
    assert len(first.containers) == 0
    assert len(second.containers) == 1


def test_one_without_slots_does_not_serve_those_who_want_them(node, root):
    root.region()
    observer = Observer(node)
    bare = observer.observe(slots=False)
    assert bare.states is None
    assert list(node.processes.view) == []
    with pytest.raises(ValueError, match="without looking at slots"):
        bare.proved()
    whole = observer.observe(max_age_s=PATIENCE_S)
    assert whole is not bare
    assert whole.proved().states == b""
    assert observer.observe(max_age_s=PATIENCE_S, slots=False) is whole


def test_one_without_the_driver_does_not_serve_those_who_want_it(node):
    sampler = HeldSampler()
    sampler.may_answer.set()
    observer = Observer(node, sampler=sampler)
    bare = observer.observe(driver=False)
    assert bare.sample is None
    assert gaps(bare) == []
    assert sampler.asked == 0
    whole = observer.observe(max_age_s=PATIENCE_S)
    assert whole.sample is not None
    assert observer.observe(max_age_s=PATIENCE_S, driver=False) is whole


def test_proc_is_read_as_often_as_somebody_wants_it_and_once_an_observation(actor, node, root):
    user = actor(root.region(), attach=True)
    observer = Observer(node)
    first = observer.observe()
    started_s = node.processes.view.started_s
    assert started_s > 0
    # While nothing has changed the proofs hold.
    observer.observe()
    observer.observe(processes_max_age_s=PATIENCE_S)
    assert node.processes.view.started_s == started_s
    reads = []
    refresh = node.processes.refresh

    def counted(wanted: Collection[int] = ()) -> None:
        reads.append(time.monotonic())
        refresh(wanted)

    node.processes.refresh = counted  # type: ignore[method-assign]
    user.kill()
    seen = observer.observe(max_age_s=PATIENCE_S, processes_max_age_s=0)
    assert seen is not first
    assert states(seen) == {user.pid: "dead"}
    assert len(reads) == 1


def test_all_who_ask_while_one_is_taken_share_it(node, root):
    root.region()
    sampler = HeldSampler()
    observer = Observer(node, sampler=sampler, driver_timeout_s=PATIENCE_S)
    found: list[Observation] = []

    def ask(max_age_s: float) -> None:
        found.append(observer.observe(max_age_s=max_age_s))

    first = threading.Thread(target=ask, args=(0.0,), daemon=True)
    first.start()
    eventually(lambda: sampler.asked == 1)
    others = [threading.Thread(target=ask, args=(PATIENCE_S,), daemon=True) for _ in range(8)]
    for thread in others:
        thread.start()
    sampler.may_answer.set()
    for thread in (first, *others):
        thread.join(PATIENCE_S)
    assert len(found) == 9
    assert len(set(map(id, found))) == sampler.asked == 1


def test_one_that_began_before_the_question_does_not_answer_it(node, root):
    sampler = HeldSampler()
    observer = Observer(node, sampler=sampler, driver_timeout_s=PATIENCE_S)
    first = threading.Thread(target=observer.observe, daemon=True)
    first.start()
    eventually(lambda: sampler.asked == 1)
    root.region()
    found: list[Observation] = []
    second = threading.Thread(target=lambda: found.append(observer.observe()), daemon=True)
    second.start()
    sampler.may_answer.set()
    for thread in (first, second):
        thread.join(PATIENCE_S)
    assert sampler.asked == 2
    assert len(found[0].containers) == 1


def test_a_driver_that_hangs_is_a_gap_and_holds_up_one_observation(node, root):
    root.region()
    sampler = HeldSampler()
    observer = Observer(node, sampler=sampler, driver_timeout_s=0.01)
    assert observer.asks_driver
    for _ in range(3):
        seen = observer.observe()
        assert seen.sample is None
        assert gaps(seen) == [Gap("driver", "the driver does not answer")]
        assert len(seen.containers) == 1
    assert sampler.asked == 1
    sampler.may_answer.set()
    eventually(lambda: not gaps(observer.observe()))


def test_a_process_without_a_slot_is_seen_at_once_by_one_that_proves_all_anew(actor, node, root):
    path = root.region()
    actor(path)("attach")
    once_a_minute, anew = Observer(node), Observer.for_command(node)
    assert once_a_minute.observe().proved().unlisted == {}
    user = actor(path)
    assert once_a_minute.observe().proved().unlisted == {}
    (found,) = anew.observe().proved().unlisted[0]
    assert found.pid == user.pid


def test_a_driver_that_fails_is_a_gap_with_its_error(node):
    class Failing(NvmlSampler):
        def sample(self) -> NvmlSample:
            raise RuntimeError("out of memory")

    seen = Observer(node, sampler=Failing()).observe()
    assert isinstance(seen.driver_error, RuntimeError)
    assert [gap.reason for gap in gaps(seen)] == ["asking the driver failed: out of memory"]


def test_nvml_is_closed_while_hami_changes_the_mig_layout(root, fake_driver, tmp_path):
    fake_driver.play()
    proc = FakeProc(tmp_path / "proc").directory
    lock = proc / "1" / "root" / "tmp" / "hami" / "hami-mig-apply.lock"
    lock.parent.mkdir(parents=True)
    with Node(root, proc=proc) as node, NvmlSampler(fake_driver.library) as sampler:
        observer = Observer(node, sampler=sampler)
        assert (sample_of(observer).state, initialisations()) == (NvmlState.OK, 1)
        lock.touch()
        sample = sample_of(observer)
        assert (sample.state, initialisations()) == (NvmlState.MIG_APPLY, 0)
        assert sample.message.startswith("HAMi is changing the GPUs' MIG layout")
        lock.unlink()
        assert (sample_of(observer).state, initialisations()) == (NvmlState.OK, 1)


@pytest.mark.root
def test_a_mig_lock_of_another_user_closes_nothing(root, fake_driver, tmp_path):
    fake_driver.play()
    proc = FakeProc(tmp_path / "proc").directory
    lock = proc / "1" / "root" / "tmp" / "hami" / "hami-mig-apply.lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    os.chown(lock, 1000, -1)
    with Node(root, proc=proc) as node, NvmlSampler(fake_driver.library) as sampler:
        assert sample_of(Observer(node, sampler=sampler)).state is NvmlState.OK


@pytest.mark.parametrize("outside", [False, True])
def test_without_proc_the_regions_are_shown_and_no_process_is_dead(actor, root, tmp_path, outside):
    user = actor(root.region(), attach=True)
    with Node(root, proc=tmp_path / "no-proc", outside=outside) as node:
        seen = Observer(node).observe()
        assert list(seen.table.processes.pid) == [user.pid]
        assert isinstance(seen.processes_error, FileNotFoundError)
        assert [gap.kind for gap in seen.gaps] == ["processes"]
        with pytest.raises(FileNotFoundError):
            seen.proved()


def test_a_root_that_cannot_be_listed_is_a_gap(tmp_path):
    with Node(tmp_path / "none") as node:
        (gap,) = Observer(node).observe(slots=False).gaps
        assert gap.kind == "root"
        assert str(tmp_path / "none") in gap.reason


def test_slots_that_are_too_many_are_a_gap_of_their_container_and_the_others_are_read(
    node, root, monkeypatch
):
    uuids = [f"GPU-{number:08}-0000-0000-0000-000000000000" for number in range(16)]
    crowd = RegionFile(root.region("crowd", uuids=uuids), Layout.V1_2)
    for number in range(100):
        crowd.add_process(3_900_000 + number)
    RegionFile(root.region("few"), Layout.V1_2).add_process(3_800_000)
    monkeypatch.setattr("libhamiregion.region_set.MAX_READ_BYTES", 1 << 16)
    observer = Observer(node)
    observer.observe()
    seen = observer.observe()
    assert list(seen.table.processes.pid) == [3_800_000]
    (gap,) = gaps(seen)
    assert (gap.kind, gap.container.name, gap.count) == ("slots", "crowd", 100)


def test_a_closed_node_is_told_also_by_an_observation_that_is_young(node):
    observer = Observer(node)
    observer.observe()
    node.check_open()
    node.close()
    with pytest.raises(RegionClosed):
        node.check_open()
    with pytest.raises(RegionClosed):
        observer.observe(max_age_s=PATIENCE_S)


def test_a_forked_child_is_not_locked_out(node):
    sampler = HeldSampler()
    observer = Observer(node, sampler=sampler, driver_timeout_s=PATIENCE_S)
    thread = threading.Thread(target=observer.observe, daemon=True)
    thread.start()
    eventually(lambda: sampler.asked == 1)

    def ask() -> str:
        try:
            observer.observe()
        except RegionClosed:
            return "closed"
        return "observed"

    assert in_child(ask) == "closed"
    sampler.may_answer.set()
    thread.join(PATIENCE_S)


def test_what_an_observation_shows_of_a_region_is_of_that_moment(actor, node, root):
    path = root.region(memory_limits=["8GiB"])
    user = actor(path, attach=True)
    file = RegionFile(path, Layout.V1_2)
    file.add_process(3_999_999, {0: 5 << 20})
    seen = Observer(node).observe()
    (region,) = (each.region for each in seen.containers)
    taken = seen.table.snapshot(0)
    assert taken == attrs.evolve(region.snapshot(), taken_at_ns=taken.taken_at_ns)
    file.add_process(3_999_998, {0: 7 << 20})
    (view,) = seen.details()
    assert view.snapshot == taken
    assert [(slot.pid, slot.state) for slot in view.processes.slots] == [
        (user.pid, "alive"),
        (3_999_999, "dead"),
    ]
    with pytest.raises(IndexError):
        seen.table.snapshot(1)


def test_what_of_proc_could_not_be_read_is_a_gap_of_its_container(node, actor, root, monkeypatch):
    """Here of this program's own cgroup, which is all that a test can be sure of."""
    actor(root.region(), attach=True)
    # More mappings than are read at all.
    monkeypatch.setattr(processes, "_FILES_LIMIT", 0)
    found = [gap for gap in Observer(node).observe().gaps if gap.kind == "processes"]
    assert found
    assert all(gap.count > 0 and "mappings of" in gap.reason for gap in found)


def test_a_region_that_could_not_be_read_has_its_error_in_its_view(node, root):
    path = root.region()
    observer = Observer(node)
    observer.observe()
    # Between the look at directories and the read it is cut.
    refresh = node.refresh

    def cut(*, processes: bool = True) -> bool:
        found = refresh(processes=processes)
        truncate(path, 4096)
        return found

    node.refresh = cut  # type: ignore[method-assign]
    seen = observer.observe()
    (container,) = seen.containers
    assert container.region is not None
    with pytest.raises(RegionStale):
        seen.table.snapshot(0)
    (view,) = seen.details()
    assert isinstance(view.error, RegionStale)


def test_an_agents_tasks_and_its_exporter_look_at_the_node_once(
    root, node, actor, fake_driver, tmp_path, monkeypatch
):
    pytest.importorskip("jinja2")
    # However slow the machine is, they share an observation.
    monkeypatch.setattr(loop, "SHARED_AGE_S", 2 * PATIENCE_S)
    fake_driver.play()
    path = root.region()
    actor(path)("attach")
    looks: Counter[str] = Counter()

    def counting(owner: object, name: str) -> None:
        work = getattr(owner, name)

        def counted(*args: Any, **options: Any) -> Any:
            looks[name] += 1
            return work(*args, **options)

        setattr(owner, name, counted)

    with NvmlSampler(fake_driver.library, host_namespace=True) as sampler:
        counting(sampler, "sample")
        counting(node.processes, "refresh")
        counting(node._roots, "scan")
        counting(node, "snapshot")
        observer = Observer(node, sampler=sampler)
        tasks = [
            Feedback(node, assume_alone=True),
            RepairLoop(observer),
            UsageSync(node),
            StaleDirectoryCleaner(node),
            PlanKeeper(PlanReconciler(node, [PlanFile(plan(tmp_path))], tmp_path / "state")),
            RootWatch(node),
        ]
        for task in tasks:
            # However slow the machine is, they run together.
            task.interval_s = 2 * PATIENCE_S
        # The doctor observes again what may pass.
        tasks[1].settle_s = 0.0  # type: ignore[attr-defined]
        exporter = NodeExporter(node, observer=observer, max_age_s=2 * PATIENCE_S)
        looks.clear()
        runner, done = TaskRunner(observer, tasks), threading.Event()
        runner.start(once=True, finished=done.set)
        assert done.wait(PATIENCE_S)
        exporter.render()
        assert runner.failures == 0
        runner.stop()
    assert looks == {"sample": 1, "scan": 1, "snapshot": 1, "refresh": looks["refresh"]}
    assert looks["refresh"] <= 2


def plan(directory: Path) -> Path:
    path = directory / "plan.yaml"
    path.write_text("apiVersion: hamiregion.io/v1\nkind: LimitPlan\nrules: []\n")
    return path


def test_an_observation_that_is_being_taken_has_an_age(node, root, monkeypatch):
    root.region()
    observer, ages = Observer(node), list[float]()
    snapshot = node.snapshot
    monkeypatch.setattr(node, "snapshot", lambda: ages.append(observer.taking_s) or snapshot())
    assert observer.taking_s == 0
    observer.observe()
    assert ages[0] > 0
    assert observer.taking_s == 0


class ListingSampler(NvmlSampler):
    """Lists a pid of no process, for a number of samples."""

    def __init__(self, times: int) -> None:
        super().__init__("/nonexistent/libnvidia-ml.so.1")
        self.times = times

    def sample(self) -> NvmlSample:
        self.times -= 1
        pids = (4_194_303,) if self.times >= 0 else ()
        columns = ProcessColumns(0, "GPU-1", pids, *([-1] * len(pids) for _ in FIGURES))
        return NvmlSample(1, NvmlState.OK, columns=(columns,), sees_all_processes=True)


@pytest.mark.parametrize(("times", "gone"), [(1, set()), (2, {4_194_303})])
def test_a_pid_of_no_process_is_gone_only_if_the_driver_lists_it_again(node, times, gone):
    observer = Observer(node, sampler=ListingSampler(times))
    first = observer.observe()
    if not first.processes.is_complete:
        pytest.skip("needs to see every process")
    assert first.gone == gone
    # Once it is known, it is not asked for again.
    observer._sampler = sampler = ListingSampler(1)
    assert observer.observe().gone == gone
    assert sampler.times == (0 if gone else -1)

"""Containers that come, go, break and are replaced between scrapes."""

import gc
import os
import shutil
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from exposition import NodeFiles, exporter_of, look, parsed
from lock_bytes import hold
from support.actors import Actor
from support.region_file import RegionFile, truncate
from support.stress import scaled
from support.wait import PATIENCE_S, eventually

from libhamiregion import Layout, create_region, open_region
from libhamiregion.exporter import NodeExporter
from libhamiregion.exporter.collectors import ContainersCollector, LocksCollector
from libhamiregion.exporter.labels import CardinalityLimiter
from libhamiregion.exporter.state import CollectedState
from libhamiregion.node import Node, NodeNames, NodeSnapshot, Observer, PodName

UUID = "GPU-00000000-0000-0000-0000-000000000000"
USED = "hami_vgpu_memory_used_bytes"
LIMIT = "hami_vgpu_memory_limit_bytes"
MISSING = "hamiregion_container_missing_info"


def pods(exporter: NodeExporter, name: str = LIMIT) -> set[str]:
    return {dict(labels)["pod"] for labels in parsed(exporter.render()).series(name)}


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda path: truncate(path, 100), "stale"),
        (lambda path: truncate(path, 0), "stale"),
        (lambda path: RegionFile(path, Layout.V1_2).put("proc_num", 5000), "unknown_layout"),
    ],
)
def test_a_region_that_breaks_between_refresh_and_scrape_is_absent_with_a_reason(
    files: NodeFiles, exporter: NodeExporter, damage: Callable[[Path], None], reason: str
) -> None:
    bad = files.region(pod="bad", uuids=[UUID], memory_limits=["1GiB"])
    files.region(pod="good", uuids=[UUID], memory_limits=["2GiB"])
    assert pods(exporter) == {"bad", "good"}
    before = parsed(exporter.render())
    damage(bad)
    found = parsed(exporter.render())
    assert not [key for key in found.samples if ("pod", "bad") in key[1] and key[0] == LIMIT]
    assert found.labels(MISSING) == {
        **before.labels("hamiregion_container_blocked", pod="bad"),
        "reason": reason,
    }
    assert found.value(LIMIT, pod="good") == 2 << 30
    assert found.value("hamiregion_containers", region="missing") == 1
    exporter.refresh()
    assert pods(exporter) == {"good"}


def test_a_container_without_a_file_has_its_reason_and_then_its_figures(
    files: NodeFiles, exporter: NodeExporter
) -> None:
    directory = files.container(pod="late")
    assert parsed(exporter.render()).labels(MISSING)["reason"] == "no_file"
    create_region(directory / "usage.cache", uuids=[UUID])
    found = look(exporter)
    assert found.series(MISSING) == {}
    assert found.labels(USED)["pod"] == "late"


def test_a_container_that_is_replaced_under_the_same_names_has_the_new_ones_figures(
    files: NodeFiles, exporter: NodeExporter, actor: Callable[..., Actor]
) -> None:
    """A pod of a stateful set that was made again: new directory, same names."""
    old = files.region(uuids=[UUID], memory_limits=["1GiB"])
    first = actor(old)
    first("attach")
    first("slot.charge", 0, 1 << 20)
    before = look(exporter)
    assert before.value(USED) == 1 << 20
    assert before.value("hamiregion_process_memory_used_bytes") == 1 << 20
    first.kill()
    shutil.rmtree(old.parent)
    new = files.region(uuids=[UUID], memory_limits=["2GiB"])
    second = actor(new)
    second("attach")
    second("slot.charge", 0, 3 << 20)
    found = look(exporter)
    assert found.value(LIMIT) == 2 << 30
    assert found.value(USED) == 3 << 20
    process = "hamiregion_process_memory_used_bytes"
    assert found.labels(process)["host_pid"] == str(second.pid_here)
    assert found.value(process) == 3 << 20


def test_a_container_that_restarts_in_its_directory_has_the_new_files_figures(
    files: NodeFiles,
    exporter: NodeExporter,
) -> None:
    path = files.region(uuids=[UUID], memory_limits=["1GiB"])
    assert parsed(exporter.render()).value(LIMIT) == 1 << 30
    path.unlink()
    create_region(path, uuids=["GPU-other"], memory_limits=["2GiB"], layout=Layout.V1_1)
    found = look(exporter)
    assert found.labels(LIMIT)["device_uuid"] == "GPU-other"
    assert found.value(LIMIT) == 2 << 30
    assert found.labels("hamiregion_container_info")["layout"] == "1.1"


def test_of_two_containers_with_the_same_names_the_newer_is_shown(
    files: NodeFiles, exporter: NodeExporter
) -> None:
    old = files.region(uuids=[UUID], memory_limits=["1GiB"])
    new = files.region(uuids=[UUID], memory_limits=["2GiB"])
    os.utime(old.parent, (1_700_000_000, 1_700_000_000))
    found = parsed(exporter.render())
    assert found.value(LIMIT) == 2 << 30
    missing = found.labels(MISSING)
    assert missing["reason"] == "same_names"
    assert missing["pod_uid"] == old.parent.name.partition("_")[0]
    shutil.rmtree(new.parent)
    assert look(exporter).value(LIMIT) == 1 << 30


def test_a_newer_directory_without_a_region_stands_before_no_figures(
    files: NodeFiles, exporter: NodeExporter
) -> None:
    old = files.region(uuids=[UUID], memory_limits=["1GiB"])
    os.utime(old.parent, (1_700_000_000, 1_700_000_000))
    files.container()
    found = parsed(exporter.render())
    assert found.value(LIMIT) == 1 << 30


@pytest.mark.parametrize(("mark", "blocked"), [(-(2**31), 1), (-1, 1), (0, 0), (2, 0)])
def test_a_container_is_blocked_where_its_launch_mark_is_below_0(
    files: NodeFiles, exporter: NodeExporter, mark: int, blocked: int
) -> None:
    RegionFile(files.region(uuids=[UUID]), Layout.V1_2).put("recent_kernel", mark)
    found = parsed(exporter.render())
    assert found.value("hamiregion_container_blocked") == blocked


def test_a_lock_that_goes_from_hand_to_hand_is_not_held(tmp_path: Path) -> None:
    files = NodeFiles(tmp_path)
    file = RegionFile(files.region(uuids=[UUID]), Layout.V1_2)
    hold(file, 1)

    class Watched(Node):
        """Between two looks the lock is another's."""

        def snapshot(self) -> NodeSnapshot:
            file.put("owner_pid", file.get("owner_pid") + moves)
            return super().snapshot()

    with Watched(files.root) as node:
        node.refresh()
        moves = 1
        observer = Observer(node)
        state = ContainersCollector(observer, CardinalityLimiter(), None).collect(CollectedState())
        (held,) = LocksCollector(observer).collect(state).series["locks"]
        assert len(held.labels) == 0
        moves = 0
        (held,) = LocksCollector(observer).collect(state).series["locks"]
        assert len(held.labels) == 1


def test_names_that_are_learned_later_take_the_place_of_the_uid(
    files: NodeFiles, exporter: NodeExporter
) -> None:
    path = files.region(pod=None, uuids=[UUID])
    uid = path.parent.name.partition("_")[0]
    labels = parsed(exporter.render()).labels(USED)
    assert (labels["namespace"], labels["pod"], labels["container"]) == ("", uid, "main")
    (files.logs / f"team-b_late-0_{uid}" / "main").mkdir(parents=True)
    exporter.refresh()
    labels = parsed(exporter.render()).labels(USED)
    assert (labels["namespace"], labels["pod"]) == ("team-b", "late-0")


def test_nothing_is_kept_of_containers_that_are_gone(tmp_path: Path) -> None:
    files = NodeFiles(tmp_path)
    path = files.region(uuids=[UUID])
    files.region(pod="stays", uuids=[UUID])
    with files.open() as node:
        exporter = exporter_of(node, legacy=True)
        exporter.render()
        (container,) = (each for each in node.containers if each.directory == str(path.parent))
        kept = weakref.ref(container)
        del container
        shutil.rmtree(path.parent)
        exporter.refresh()
        exporter.render()
        gc.collect()
        assert kept() is None


def test_the_figures_of_a_process_are_those_of_the_last_look(
    files: NodeFiles, exporter: NodeExporter, actor: Callable[..., Actor]
) -> None:
    path = files.region(uuids=[UUID])
    stays, leaves = actor(path), actor(path)
    for each, size in ((stays, 1), (leaves, 2)):
        each("attach")
        each("slot.charge", 0, size << 20)
    name = "hamiregion_process_memory_used_bytes"
    assert sorted(parsed(exporter.render()).series(name).values()) == [1 << 20, 2 << 20]
    stays("slot.charge", 0, 4 << 20)
    stays("region.set_utilization", stays.pid, 0, sm=37)
    leaves("slot.detach")
    late = actor(path)
    late("attach")
    assert len(parsed(exporter.render()).series(name)) == 2
    found = look(exporter)
    assert len(found.series(name)) == 2
    assert found.value(name, pid=str(stays.pid)) == 5 << 20
    assert found.value(name, pid=str(late.pid)) == 0
    sm = found.value("hamiregion_process_sm_utilization_ratio", pid=str(stays.pid))
    assert sm == 0.37


def test_the_dead_are_told_by_what_they_still_count(
    files: NodeFiles, exporter: NodeExporter, actor: Callable[..., Actor]
) -> None:
    path = files.region(uuids=[UUID])
    victim = actor(path)
    victim("attach")
    victim("slot.charge", 0, 7 << 20)
    found = parsed(exporter.render())
    assert found.value("hamiregion_device_memory_dead_bytes") == 0
    assert found.value("hamiregion_container_processes", state="alive") == 1
    victim.kill()
    found = look(exporter)
    if found.value("hamiregion_proc_complete") == 0:
        pytest.skip("/proc does not show everything here")
    assert found.value("hamiregion_device_memory_dead_bytes") == 7 << 20
    assert found.value("hamiregion_container_processes", state="dead") == 1
    assert found.value("hamiregion_container_processes", state="alive") == 0
    assert "hamiregion_process_memory_used_bytes" not in found.names
    with open_region(path, writable=True) as region:
        region.reap()
    assert look(exporter).value("hamiregion_device_memory_dead_bytes") == 0


def test_a_lock_that_stays_held_is_told_with_its_age(
    files: NodeFiles, exporter: NodeExporter, actor: Callable[..., Actor]
) -> None:
    path = files.region(pod="held", uuids=[UUID])
    files.region(pod="free", uuids=[UUID])
    held = "hamiregion_lock_same_owner_seconds"
    holder = actor(path)
    assert not parsed(exporter.render()).series(held)
    holder("lock")
    ages = []
    for _ in range(3):
        found = look(exporter)
        assert found.labels(held)["pod"] == "held"
        ages.append(found.value(held))
    assert 0 < ages[0] < ages[1] < ages[2], "it is the same hold as before"
    holder("unlock")
    assert not look(exporter).series(held)


def test_a_left_over_of_a_deleted_pod_has_no_figures(
    tmp_path: Path, actor: Callable[..., Actor]
) -> None:
    files = NodeFiles(tmp_path)
    gone = files.region(pod="gone", uuids=[UUID])
    idle = files.region(pod="idle", uuids=[UUID])
    used = files.region(pod="used", uuids=[UUID])
    young = files.region(pod="young", uuids=[UUID])
    actor(used)("attach")
    for path in (gone, idle, used):
        os.utime(path.parent, (1_700_000_000, 1_700_000_000))
    with files.open() as node:
        exporter = exporter_of(node)
        assert pods(exporter) == {"gone", "idle", "used", "young"}
        if parsed(exporter.render()).value("hamiregion_proc_complete") == 0:
            pytest.skip("/proc does not show everything here")
        for path, pod in ((gone, "gone"), (used, "used"), (young, "young")):
            uid = path.parent.name.partition("_")[0]
            shutil.rmtree(files.logs / f"team-a_{pod}_{uid}")
    with files.open() as node:
        exporter = exporter_of(node)
        found = parsed(exporter.render())
        shown = {
            labels["pod_uid"] for labels in map(dict, found.series("hamiregion_container_info"))
        }
        assert shown == {path.parent.name.partition("_")[0] for path in (idle, used, young)}
        assert found.labels(MISSING)["reason"] == "pod_gone"
        assert len(pods(exporter_of(node, gone_after_s=None))) == 4


def test_nothing_is_taken_for_gone_while_no_name_at_all_is_known_any_more(
    files: NodeFiles, exporter: NodeExporter
) -> None:
    """As when the source of names cannot be reached."""
    for pod in ("one", "two"):
        path = files.region(pod=pod, uuids=[UUID])
        os.utime(path.parent, (1_700_000_000, 1_700_000_000))
    exporter.node.refresh(processes=False)
    assert all(exporter.node.pod_name(each) is not None for each in exporter.node.containers)
    shutil.rmtree(files.logs)
    assert pods(exporter) == {"one", "two"}


def test_without_any_known_name_nothing_is_taken_for_gone(tmp_path: Path) -> None:
    files = NodeFiles(tmp_path)
    for _ in range(2):
        path = files.region(pod=None, uuids=[UUID])
        os.utime(path.parent, (1_700_000_000, 1_700_000_000))
    with files.open() as node:
        assert len(pods(exporter_of(node))) == 2


# ---- the thread ----------------------------------------------------------------------------------


def collecting() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name == "hamiregion-collect"}


def test_a_started_exporter_finds_new_containers_by_itself(tmp_path: Path) -> None:
    files = NodeFiles(tmp_path)
    # What another test has left may hang in a call.
    before = collecting()
    with (
        files.open() as node,
        exporter_of(node, interval_s=0.05) as exporter,
    ):
        assert pods(exporter) == set(), "a scrape before the first look waits for it"
        assert exporter.not_ready() is None
        files.region(pod="new", uuids=[UUID])
        eventually(lambda: pods(exporter) == {"new"})
        exporter.start()
        assert len(collecting() - before) == 1
        exporter.stop()
        exporter.stop()
        assert not collecting() - before
        exporter.start()
        exporter.close()
        assert not collecting() - before


def test_nothing_is_looked_at_while_nobody_asks_and_the_next_scrape_has_it_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("libhamiregion.exporter.schedule._IDLE_S", 0.2)
    monkeypatch.setattr("libhamiregion.exporter.schedule._OVERDUE_S", 0.1)
    files = NodeFiles(tmp_path)
    files.region(pod="old", uuids=[UUID])
    with files.open() as node, exporter_of(node, interval_s=0.02) as exporter:
        for number in range(2):
            assert len(pods(exporter)) == 1 + number
            eventually(lambda: not exporter._schedule.is_watching)
            files.region(pod=f"new-{number}", uuids=[UUID])
            before = node.containers
            assert exporter.not_ready() is None, "it is only asleep"
            assert node.containers is before
        assert pods(exporter) == {"old", "new-0", "new-1"}


def test_a_client_that_reads_half_of_a_scrape_keeps_no_other_from_its_own(
    files: NodeFiles, exporter: NodeExporter
) -> None:
    for number in range(100):
        files.region(pod=f"pod-{number}", uuids=[UUID])
    whole = exporter.render(names=[USED])
    half = exporter.pieces()
    text = bytes(next(half))
    assert text.count(b"\n") < exporter.render().count(b"\n")
    other = threading.Thread(target=exporter.render, daemon=True)
    other.start()
    other.join(PATIENCE_S)
    assert not other.is_alive()
    assert exporter.render(names=[USED]) == whole
    files.region(pod="new", uuids=[UUID])
    exporter.refresh()
    exporter.render()
    text += b"".join(map(bytes, half))
    assert len(parsed(text).series(USED)) == 100
    assert parsed(exporter.render()).value("hamiregion_scrape_duration_seconds_count") == 6


def test_readiness_comes_with_the_first_look_and_goes_with_the_roots(
    tmp_path: Path, files: NodeFiles, exporter: NodeExporter
) -> None:
    assert exporter.not_ready() == "the node has not been looked at yet"
    exporter.refresh()
    assert exporter.not_ready() is None
    shutil.rmtree(files.root)
    exporter.refresh()
    assert str(files.root) in str(exporter.not_ready())
    found = parsed(exporter.render())
    assert found.value("hamiregion_root_readable", root=str(files.root)) == 0
    with Node([str(tmp_path / "none*")]) as node:
        exporter = exporter_of(node)
        exporter.refresh()
        assert str(tmp_path / "none*") in str(exporter.not_ready())


def test_a_failure_is_counted_and_told_at_its_1st_2nd_and_4th_time_and_when_it_is_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = NodeFiles(tmp_path)
    files.region(uuids=[UUID])
    proc = tmp_path / "proc"
    with caplog.at_level("INFO"), Node(files.root, proc=proc) as node:
        exporter = exporter_of(node)
        for _ in range(5):
            found = look(exporter)
        assert found.value("hamiregion_errors_total", stage="processes") == 5
        assert found.value("hamiregion_collector_success", collector="processes") == 0
        assert found.value("hamiregion_collector_success", collector="containers") == 1
        proc.symlink_to("/proc")
        shutil.rmtree(files.root)
        exporter.refresh()
        files.root.mkdir()
        found = look(exporter)
        assert found.value("hamiregion_collector_success", collector="processes") == 1
    told = [each.getMessage() for each in caplog.records]
    assert all(len(line) <= 500 for line in told)
    assert [each.levelname for each in caplog.records] == ["WARNING"] * 3 + [
        "INFO",
        "WARNING",
        "INFO",
    ]
    assert told[0].startswith("processes: FileNotFoundError")
    assert [line[-9:] for line in told[1:3]] == ["(2 times)", "(4 times)"]
    assert told[3] == "processes: all is well again"
    assert str(files.root) in told[4]
    assert told[5] == f"containers: {files.root} can be listed again"


def test_readiness_goes_when_a_collector_has_not_succeeded_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("libhamiregion.exporter.schedule._OVERDUE_S", 1.0)
    files = NodeFiles(tmp_path)
    region = RegionFile(files.region(uuids=[UUID]), Layout.V1_2)
    proc = tmp_path / "proc"
    proc.symlink_to("/proc")
    with (
        Node(files.root, proc=proc) as node,
        exporter_of(node, interval_s=0.05) as exporter,
    ):
        exporter.render()
        eventually(lambda: exporter.not_ready() is None)
        proc.unlink()
        # A process that is not proved yet makes /proc necessary.
        region.add_process(os.getpid())
        eventually(lambda: exporter.not_ready() is not None)
        reason = str(exporter.not_ready())
        assert reason.startswith("processes: not looked at for ")
        assert "FileNotFoundError" in reason
        proc.symlink_to("/proc")
        eventually(lambda: exporter.not_ready() is None)


def test_collectors_that_are_off_do_nothing_and_unknown_ones_are_refused(tmp_path: Path) -> None:
    files = NodeFiles(tmp_path)
    files.region(uuids=[UUID])
    with files.open() as node:
        found = parsed(exporter_of(node, collectors=()).render())
        assert found.value(USED) == 0
        collectors = found.series("hamiregion_collector_success")
        assert {dict(labels)["collector"] for labels in collectors} == {"containers"}
        assert not [name for name in found.names if "process" in name or "finding" in name]
        with pytest.raises(ValueError, match="no collector 'gpus'; there are nvml, processes"):
            exporter_of(node, collectors=("gpus",))
        with pytest.raises(ValueError, match="an interval is longer than 0 s, not 0"):
            exporter_of(node, interval_s=0)


def test_what_an_agent_counts_is_exported_beside_it(tmp_path: Path) -> None:
    counted = {"feedback_writes": 3, "feedback_paused": 1, 'a"b\n': 1}
    with NodeFiles(tmp_path).open() as node:
        exporter = exporter_of(node, counters=lambda: counted)
        found = parsed(exporter.render())
        assert found.value("hamiregion_agent_events_total", event="feedback_writes") == 3
        assert found.value("hamiregion_agent_paused", task="feedback") == 1
        assert found.value("hamiregion_agent_events_total", event='a"b\\n') == 1
        counted["feedback_writes"] = 5
        now = parsed(exporter.render())
        assert now.value("hamiregion_agent_events_total", event="feedback_writes") == 5


@pytest.mark.parametrize("bad", [-1, 1 << 64, 0.5, None, "1", KeyError("agent")])
def test_where_an_agent_cannot_count_all_else_is_exported(tmp_path: Path, bad: Any) -> None:
    def counters() -> dict[str, Any]:
        if isinstance(bad, Exception):
            raise bad
        return {"reap_runs": bad}

    files = NodeFiles(tmp_path)
    files.region(uuids=[UUID])
    with files.open() as node:
        exporter = exporter_of(node, counters=counters)
        exporter.render()
        found = parsed(exporter.render())
        assert found.value(USED) == 0
        assert "hamiregion_agent_events_total" not in found.names
        assert found.value("hamiregion_errors_total", stage="scrape") == 1


def test_the_node_has_the_name_of_the_environment_or_the_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with NodeFiles(tmp_path).open() as node:
        monkeypatch.delenv("NODE_NAME", raising=False)
        assert NodeExporter(node).node_name == os.uname().nodename
        monkeypatch.setenv("NODE_NAME", "worker-3")
        assert NodeExporter(node).node_name == "worker-3"
        assert NodeExporter(node, node_name="mine").node_name == "mine"


def disturb(files: NodeFiles, number: int) -> None:
    """A container comes, and its file is emptied, cut, replaced or scribbled over; then it goes."""
    path = files.region(pod=f"pod-{number}", uuids=[UUID])
    what = number % 5
    if what == 0:
        truncate(path, 0)
    elif what == 1:
        truncate(path, 1000)
    elif what == 2:
        path.unlink()
        create_region(path, uuids=[UUID], layout=Layout.UNVERSIONED)
    elif what == 3:
        RegionFile(path, Layout.V1_2).put("proc_num", 1 << 20)
    time.sleep(0.002 * (number % 7))
    shutil.rmtree(path.parent)


@pytest.mark.parametrize(
    "for_s", [1.0, pytest.param(scaled(120.0), marks=pytest.mark.slow)], ids=["short", "minutes"]
)
def test_scrapes_from_many_threads_while_containers_come_and_go_are_all_whole(
    tmp_path: Path, for_s: float
) -> None:
    files = NodeFiles(tmp_path)
    files.region(pod="stays", uuids=[UUID], memory_limits=["1GiB"])
    failures: list[BaseException] = []
    done = threading.Event()

    def scrape(exporter: NodeExporter) -> None:
        try:
            while not done.is_set():
                assert parsed(exporter.render()).value(LIMIT, pod="stays") == 1 << 30
        except BaseException as failure:  # noqa: BLE001
            failures.append(failure)

    with (
        files.open() as node,
        exporter_of(
            node,
            interval_s=0.03,
            collectors=None,
        ) as exporter,
    ):
        threads = [threading.Thread(target=scrape, args=(exporter,), daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        deadline_s = time.monotonic() + for_s
        number = 0
        while time.monotonic() < deadline_s and not failures:
            number += 1
            disturb(files, number)
        done.set()
        for thread in threads:
            thread.join()
        errors = parsed(exporter.render()).series("hamiregion_errors_total")
    assert failures == []
    assert set(errors.values()) == {0}


class FailingNames(NodeNames):
    """Knows every pod, unless it is told to fail."""

    error: Exception | None = None

    def resolve(
        self,
        pod_uid: str | None,
        container_name: str | None = None,
        container_id: str | None = None,  # noqa: ARG002
    ) -> PodName | None:
        if self.error is not None:
            raise self.error
        return PodName("team-a", f"pod-{pod_uid}", container_name)


def test_where_a_resolver_fails_containers_are_shown_without_names_until_it_works(
    tmp_path: Path,
) -> None:
    files = NodeFiles(tmp_path)
    files.region(pod=None, uuids=[UUID], memory_limits=["1GiB"])
    names = FailingNames()
    names.error = RuntimeError("the server is away")
    with Node(files.root, names=names) as node:
        exporter = exporter_of(node, interval_s=1e-6)
        for _ in range(2):
            found = parsed(exporter.render())
            assert found.labels(LIMIT)["namespace"] == ""
            assert found.value("hamiregion_collector_success", collector="containers") == 0
            assert found.value("hamiregion_collector_success", collector="locks") == 1
        names.error = None
        found = parsed(exporter.render())
        assert found.labels(LIMIT)["namespace"] == "team-a"
        assert found.value("hamiregion_collector_success", collector="containers") == 1
        # What has been named stays so.
        names.error = RuntimeError("the server is away again")
        assert parsed(exporter.render()).labels(LIMIT)["namespace"] == "team-a"

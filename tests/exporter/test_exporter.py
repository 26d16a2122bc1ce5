"""Containers that come, go, break and are replaced between scrapes."""

import gc
import os
import shutil
import threading
import weakref

import pytest
from support.exposition import Exposition, exporter_of, parsed, scrape
from support.node_scene import NodeScene
from support.region_file import RegionFile, truncate
from support.slot_bytes import attached
from support.wait import PATIENCE_S, eventually

from libhamiregion import Layout, create_region, open_region
from libhamiregion.exporter import NodeExporter
from libhamiregion.node import Node, Observer, slots

UUID = "GPU-00000000-0000-0000-0000-000000000000"
USED = "hami_vgpu_memory_used_bytes"
LIMIT = "hami_vgpu_memory_limit_bytes"
MISSING = "hamiregion_container_missing_info"


def pods(exporter: NodeExporter, name: str = LIMIT) -> set[str]:
    return {dict(labels)["pod"] for labels in parsed(exporter.render()).series(name)}


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda path: truncate(path, 100), "truncated"),
        (lambda path: truncate(path, 0), "not_ready"),
        (lambda path: RegionFile(path, Layout.V1_2).put("proc_num", 5000), "unknown_layout"),
    ],
)
def test_a_region_that_breaks_between_scrapes_is_absent_with_a_reason(
    files, exporter, damage, reason
):
    bad = files.container(pod="bad", uuids=[UUID], memory_limits=["1GiB"]).path
    files.container(pod="good", uuids=[UUID], memory_limits=["2GiB"])
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
    assert pods(exporter) == {"good"}


def test_a_container_without_a_file_has_its_reason_and_then_its_figures(files, exporter):
    directory = files.container(pod="late", region=False).directory
    assert parsed(exporter.render()).labels(MISSING)["reason"] == "no_file"
    create_region(directory / "usage.cache", uuids=[UUID])
    found = scrape(exporter)
    assert found.series(MISSING) == {}
    assert found.labels(USED)["pod"] == "late"


def test_a_container_that_is_replaced_under_the_same_names_has_the_new_ones_figures(
    files, exporter, actor
):
    """A pod of a stateful set that was made again: new directory, same names."""
    old = files.container(uuids=[UUID], memory_limits=["1GiB"]).path
    first = attached(actor(old), 1 << 20)
    before = scrape(exporter)
    assert before.value(USED) == 1 << 20
    assert before.value("hamiregion_process_memory_used_bytes") == 1 << 20
    first.kill()
    shutil.rmtree(old.parent)
    new = files.container(uuids=[UUID], memory_limits=["2GiB"]).path
    second = attached(actor(new), 3 << 20)
    process = "hamiregion_process_memory_used_bytes"
    # On a busy machine its maps may be read by a later scrape.
    eventually(lambda: scrape(exporter).series(process))
    found = scrape(exporter)
    assert found.value(LIMIT) == 2 << 30
    assert found.value(USED) == 3 << 20
    assert found.labels(process)["host_pid"] == str(second.pid_here)
    assert found.value(process) == 3 << 20


def test_a_container_that_restarts_in_its_directory_has_the_new_files_figures(files, exporter):
    path = files.container(uuids=[UUID], memory_limits=["1GiB"]).path
    assert parsed(exporter.render()).value(LIMIT) == 1 << 30
    path.unlink()
    create_region(path, uuids=["GPU-other"], memory_limits=["2GiB"], layout=Layout.V1_1)
    found = scrape(exporter)
    assert found.labels(LIMIT)["device_uuid"] == "GPU-other"
    assert found.value(LIMIT) == 2 << 30
    assert found.labels("hamiregion_container_info")["layout"] == "1.1"


def test_of_two_containers_with_the_same_names_the_newer_is_shown(files, exporter):
    old = files.container(uuids=[UUID], memory_limits=["1GiB"]).path
    new = files.container(uuids=[UUID], memory_limits=["2GiB"]).path
    os.utime(old.parent, (1_700_000_000, 1_700_000_000))
    found = parsed(exporter.render())
    assert found.value(LIMIT) == 2 << 30
    missing = found.labels(MISSING)
    assert missing["reason"] == "same_names"
    assert missing["pod_uid"] == old.parent.name.partition("_")[0]
    shutil.rmtree(new.parent)
    assert scrape(exporter).value(LIMIT) == 1 << 30


def test_a_newer_directory_without_a_region_stands_before_no_figures(files, exporter):
    old = files.container(uuids=[UUID], memory_limits=["1GiB"]).path
    os.utime(old.parent, (1_700_000_000, 1_700_000_000))
    files.container(region=False)
    found = parsed(exporter.render())
    assert found.value(LIMIT) == 1 << 30


@pytest.mark.parametrize(("mark", "blocked"), [(-(2**31), 1), (-1, 1), (0, 0), (2, 0)])
def test_a_container_is_blocked_where_its_launch_mark_is_below_0(files, exporter, mark, blocked):
    files.container(uuids=[UUID]).put("recent_kernel", mark)
    found = parsed(exporter.render())
    assert found.value("hamiregion_container_blocked") == blocked


def test_names_that_are_learned_later_take_the_place_of_the_uid(files, exporter):
    path = files.container(pod=None, uuids=[UUID]).path
    uid = path.parent.name.partition("_")[0]
    labels = parsed(exporter.render()).labels(USED)
    assert (labels["namespace"], labels["pod"], labels["container"]) == ("", uid, "train")
    files.name_pod(uid, "train", pod="late-0", namespace="team-b")
    labels = parsed(exporter.render()).labels(USED)
    assert (labels["namespace"], labels["pod"]) == ("team-b", "late-0")


def test_nothing_is_kept_of_containers_that_are_gone(files):
    path = files.container(uuids=[UUID]).path
    files.container(pod="stays", uuids=[UUID])
    with files.open() as node:
        exporter = exporter_of(node, legacy=True)
        exporter.render()
        (container,) = (each for each in node.containers if each.directory == str(path.parent))
        kept = weakref.ref(container)
        del container
        shutil.rmtree(path.parent)
        exporter.render()
        gc.collect()
        assert kept() is None


def test_the_dead_are_told_by_what_they_still_count(files, exporter, actor, monkeypatch):
    monkeypatch.setattr(slots, "LISTING_S", 0.0)
    path = files.container(uuids=[UUID]).path
    victim = attached(actor(path), 7 << 20)
    found = parsed(exporter.render())
    assert found.value("hamiregion_device_memory_dead_bytes") == 0
    assert found.value("hamiregion_container_processes", state="alive") == 1
    victim.kill()
    found = scrape(exporter)
    if found.value("hamiregion_proc_complete") == 0:
        pytest.skip("/proc does not show everything here")
    assert found.value("hamiregion_device_memory_dead_bytes") == 7 << 20
    assert found.value("hamiregion_container_processes", state="dead") == 1
    assert found.value("hamiregion_container_processes", state="alive") == 0
    assert "hamiregion_process_memory_used_bytes" not in found.names
    with open_region(path, writable=True) as region:
        region.reap()
    assert scrape(exporter).value("hamiregion_device_memory_dead_bytes") == 0


def test_a_left_over_of_a_deleted_pod_has_no_figures(files, actor):
    gone = files.container(pod="gone", uuids=[UUID]).path
    idle = files.container(pod="idle", uuids=[UUID]).path
    used = files.container(pod="used", uuids=[UUID]).path
    young = files.container(pod="young", uuids=[UUID]).path
    actor(used)("attach")
    for path in (gone, idle):
        RegionFile(path, Layout.V1_2).put("sem", 0)
    for path in (gone, idle, used):
        os.utime(path.parent, (1_700_000_000, 1_700_000_000))
    with files.open() as node:
        exporter = exporter_of(node)
        assert pods(exporter) == {"gone", "idle", "used", "young"}
        if parsed(exporter.render()).value("hamiregion_proc_complete") == 0:
            pytest.skip("/proc does not show everything here")
        for path, pod in ((gone, "gone"), (used, "used"), (young, "young")):
            uid = path.parent.name.partition("_")[0]
            shutil.rmtree(files.pod_logs / f"research_{pod}_{uid}")
    shown = {path.parent.name.partition("_")[0] for path in (idle, used, young)}
    with files.open() as node:
        found: Exposition

        def is_gone() -> bool:
            """No region is called gone while another test's process cannot be read."""
            nonlocal found
            found = parsed(exporter_of(node).render())
            infos = map(dict, found.series("hamiregion_container_info"))
            return {labels["pod_uid"] for labels in infos} == shown

        eventually(is_gone)
        assert found.labels(MISSING)["reason"] == "pod_gone"
        held = map(dict, found.series("hamiregion_lock_same_owner_seconds"))
        assert [labels["pod_uid"] for labels in held] == [idle.parent.name.partition("_")[0]]
        assert len(pods(exporter_of(node, gone_after_s=None))) == 4


def test_nothing_is_taken_for_gone_while_no_name_at_all_is_known_any_more(files, exporter):
    """As when the source of names cannot be reached."""
    for pod in ("one", "two"):
        path = files.container(pod=pod, uuids=[UUID]).path
        os.utime(path.parent, (1_700_000_000, 1_700_000_000))
    assert pods(exporter) == {"one", "two"}
    shutil.rmtree(files.pod_logs)
    assert pods(exporter) == {"one", "two"}


def test_a_client_that_reads_half_of_a_scrape_keeps_no_other_from_its_own(files, exporter):
    for number in range(100):
        files.container(pod=f"pod-{number}", uuids=[UUID])
    whole = exporter.render(names=[USED])
    half = exporter.pieces()
    text = bytes(next(half))
    assert text.count(b"\n") < exporter.render().count(b"\n")
    other = threading.Thread(target=exporter.render, daemon=True)
    other.start()
    other.join(PATIENCE_S)
    assert not other.is_alive()
    assert exporter.render(names=[USED]) == whole
    files.container(pod="new", uuids=[UUID])
    exporter.render()
    text += b"".join(map(bytes, half))
    assert len(parsed(text).series(USED)) == 100
    assert parsed(exporter.render()).value("hamiregion_scrape_duration_seconds_count") == 6


def test_readiness_goes_with_the_roots(tmp_path, files, exporter):
    assert exporter.not_ready() is None
    shutil.rmtree(files.root)
    exporter.render()
    assert str(files.root) in str(exporter.not_ready())
    found = parsed(exporter.render())
    assert found.value("hamiregion_root_readable", root=str(files.root)) == 0
    with Node([str(tmp_path / "none*")]) as node:
        exporter = exporter_of(node)
        assert str(tmp_path / "none*") in str(exporter.not_ready())


def test_a_failure_is_counted_each_time_and_logged_when_it_begins_and_ends(tmp_path, files, caplog):
    files.container(uuids=[UUID])
    proc = tmp_path / "proc"
    with caplog.at_level("INFO"), Node(files.root, proc=proc) as node:
        exporter = exporter_of(node)
        for _ in range(5):
            found = scrape(exporter)
        assert found.value("hamiregion_errors_total", stage="processes") == 5
        assert found.value("hamiregion_collector_success", collector="processes") == 0
        assert found.value("hamiregion_collector_success", collector="containers") == 1
        proc.symlink_to("/proc")
        shutil.rmtree(files.root)
        exporter.render()
        files.root.mkdir()
        found = scrape(exporter)
        assert found.value("hamiregion_collector_success", collector="processes") == 1
    told = [each.getMessage() for each in caplog.records]
    assert len(told) == 5
    assert told[0].startswith("processes: FileNotFoundError")
    assert told[1].startswith("unaccounted: FileNotFoundError")
    assert str(files.root) in told[2]
    assert sum("recovered" in each for each in told) == 2


def test_collectors_that_are_off_do_nothing_and_unknown_ones_are_refused(files):
    files.container(uuids=[UUID])
    with files.open() as node:
        found = parsed(exporter_of(node, collectors=()).render())
        assert found.value(USED) == 0
        collectors = found.series("hamiregion_collector_success")
        assert {dict(labels)["collector"] for labels in collectors} == {"containers"}
        assert not [name for name in found.names if "process" in name or "finding" in name]
        with pytest.raises(ValueError, match="no collector 'gpus'; there are nvml, processes"):
            exporter_of(node, collectors=("gpus",))


def test_what_an_agent_counts_is_exported_beside_it(tmp_path):
    counted = {"feedback_writes": 3, "feedback_paused": 1}
    with NodeScene(tmp_path).open() as node:
        exporter = exporter_of(node, counters=lambda: counted)
        found = parsed(exporter.render())
        assert found.value("hamiregion_agent_events_total", event="feedback_writes") == 3
        assert found.value("hamiregion_agent_paused", task="feedback") == 1
        counted["feedback_writes"] = 5
        now = parsed(exporter.render())
        assert now.value("hamiregion_agent_events_total", event="feedback_writes") == 5


def test_the_node_has_the_name_of_the_environment_or_the_hosts(tmp_path, monkeypatch):
    with NodeScene(tmp_path).open() as node:
        monkeypatch.delenv("NODE_NAME", raising=False)
        assert Observer(node).observe().node_name == os.uname().nodename
        monkeypatch.setenv("NODE_NAME", "worker-3")
        seen = Observer(node).observe()
        assert seen.node_name == "worker-3"
        assert "worker-3" in NodeExporter(node).page().decode()
        assert "mine" in NodeExporter(node, node_name="mine").page().decode()


def test_health_is_bad_if_an_observation_does_not_return(files, monkeypatch):
    with files.open() as node:
        observer = Observer(node)
        exporter = NodeExporter(node, observer=observer)
        assert exporter.stuck() is None
        monkeypatch.setattr(Observer, "taking_s", 61.0)
        assert exporter.stuck() == "an observation has not returned for 61 s"

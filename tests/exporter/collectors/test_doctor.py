"""What the doctor finds, as series: by kind, by container, and what orphaned slots hold."""

import contextlib
import time

import pytest
from support.exposition import parsed
from support.lock_bytes import NOBODY
from support.region_file import RegionFile
from support.slot_bytes import at_work, move_last_into
from support.wait import PATIENCE_S, eventually

from libhamiregion import Layout
from libhamiregion.doctor.findings import FindingKind
from libhamiregion.exporter import NodeExporter
from libhamiregion.node.node_lock import LockUse, NodeLock

UUIDS = ["GPU-00000000-0000-0000-0000-000000000000", "GPU-11111111-1111-1111-1111-111111111111"]


def test_every_kind_has_a_series_on_a_healthy_node_and_no_container_has_one(files):
    files.container(uuids=UUIDS, sm_limits=[50, 50])
    with files.open() as node:
        found = parsed(NodeExporter(node).render())
    kinds = {dict(labels)["kind"]: n for labels, n in found.series("hamiregion_findings").items()}
    assert kinds.keys() == {kind.value for kind in FindingKind}
    assert found.value("hamiregion_device_memory_orphaned_bytes", vdevice_index="0") == 0
    # Whether /proc shows everybody is a matter of the machine that runs this.
    kinds.pop(FindingKind.PROCESSES_UNKNOWN.value)
    assert set(kinds.values()) == {0}
    diagnosed_s = found.value("hamiregion_findings_timestamp_seconds")
    assert time.time() - 60 < diagnosed_s <= time.time()


def test_a_dead_process_that_counts_is_a_finding_of_its_container(files):
    files.container(pod="ill", uuids=UUIDS).add_process(NOBODY, {0: 1 << 20})
    files.container(pod="well", uuids=UUIDS)
    with files.open() as node:
        exporter = NodeExporter(node)
        found = parsed(exporter.render())
        if found.value("hamiregion_proc_complete") == 0:
            pytest.skip("/proc does not show everything here")
        kind = FindingKind.DEAD_PROCESS_COUNTED
        assert found.value("hamiregion_findings", kind=kind.value) == 1
        assert found.value("hamiregion_container_findings", kind=kind.value) == 1
        labels = found.labels("hamiregion_container_findings", kind=kind.value)
    assert labels["pod"] == "ill"
    assert labels["severity"] == kind.explanation.severity.value


def test_what_can_pass_is_believed_when_it_is_seen_twice(files, actor):
    path = files.container(uuids=UUIDS).path
    kind = FindingKind.HOST_PID_WRONG
    assert kind.explanation.is_transient
    actor(path, attach=True)
    RegionFile(path, Layout.V1_2).put("slot_hostpid", 0)
    with files.open() as node:
        exporter = NodeExporter(node, max_age_s=0)
        found = parsed(exporter.render())
        assert found.value("hamiregion_findings", kind=kind.value) == 0
        assert parsed(exporter.render()).value("hamiregion_findings", kind=kind.value) == 1


def test_an_observation_that_is_shown_twice_confirms_nothing(files, actor):
    """As by a scrape and by the page."""
    path = files.container(uuids=UUIDS).path
    actor(path, attach=True)
    RegionFile(path, Layout.V1_2).put("slot_hostpid", 0)
    kind = FindingKind.HOST_PID_WRONG.value
    with files.open() as node:
        exporter = NodeExporter(node, max_age_s=PATIENCE_S)
        for _ in range(3):
            found = parsed(exporter.render())
            assert found.value("hamiregion_findings", kind=kind) == 0
            exporter.page()


def test_an_orphaned_slot_is_told_with_what_it_froze(files, actor):
    path = files.container(uuids=UUIDS).path
    file = RegionFile(path, Layout.V1_2)
    orphan = actor(path)
    file.add_process(NOBODY, {0: 10_000})
    file.add_process(NOBODY + 1, {0: 20_000})
    file.add_process(orphan.pid, {0: 100, 1: 7}, host_pid=orphan.pid_here)
    # Two dead ones removed at once: the second move takes what the first has left at the end.
    move_last_into(file, 0)
    file.put("proc_num", 1)
    with files.open() as node, at_work(file, 2):
        exporter = NodeExporter(node, max_age_s=0)
        exporter.render()
        found = parsed(exporter.render())
    name = "hamiregion_device_memory_orphaned_bytes"
    assert found.value("hamiregion_findings", kind="slot_moved") == 1
    assert found.value(name, vdevice_index="0") == 100
    assert found.value(name, vdevice_index="1") == 7


def test_limits_that_an_agent_has_switched_off_are_a_finding_once_it_has_gone(files, actor):
    paths = [
        files.container(pod=pod, uuids=UUIDS, sm_limits=[50, 50]).path for pod in ("a", "b", "c")
    ]
    actors = [actor(path) for path in paths]
    for each, path in zip(actors, paths, strict=True):
        each("attach")
        RegionFile(path, Layout.V1_2).put("slot_hostpid", each.pid_here)
        RegionFile(path, Layout.V1_2).put("utilization_switch", 0)
    lock = NodeLock(LockUse.FEEDBACK)
    with files.open() as node, contextlib.closing(lock):
        lock.hold([str(files.root)])
        exporter = NodeExporter(node, max_age_s=0)

        def off_after_a_turn(severity: str) -> float:
            found = parsed(exporter.render())
            return len(found.series("hamiregion_container_findings", severity=severity))

        assert off_after_a_turn("warning") == 0
        assert off_after_a_turn("warning") == 0
        RegionFile(paths[0], Layout.V1_2).put("utilization_switch", 1)
        # Nobody will switch them on now; a process that cannot be read may be a monitor.
        lock.close()
        eventually(lambda: off_after_a_turn("warning") == 2)

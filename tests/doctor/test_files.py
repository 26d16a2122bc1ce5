"""Files, directories and mappings that are not as they should be."""

import os
import uuid
from collections.abc import Iterator

import pytest
from fake_nvml.scenes import CARD, GPU
from support.containers import libvgpu, needs_namespaces
from support.doctor_node import DoctorNode
from support.node_scene import GIB, SceneContainer
from support.own_cgroups import cgroup_of_pod, needs_cgroups

from libhamiregion import create_region
from libhamiregion.doctor import Finding, FindingKind, Severity
from libhamiregion.node import MissingReason, Observer, node_processes
from libhamiregion.node import node as node_module

pytestmark = needs_namespaces


@pytest.fixture
def outside(tmp_path) -> Iterator[DoctorNode]:
    """One that looks outside the roots too, and sees what other tests do there."""
    made = DoctorNode(tmp_path, outside=True)
    try:
        yield made
    finally:
        made.close()


def about(doctor_node: DoctorNode, place: SceneContainer) -> list[Finding]:
    """The findings that are of a place, or name one of its processes."""
    host_pids = {each.host_pid for each in place.running}
    return [
        each
        for each in doctor_node.findings()
        if each.container is not None
        and (each.container.pod_uid == place.pod_uid or host_pids.intersection(each.container.pids))
    ]


# ---- Truncated, deleted, replaced ---------------------------------------------------------------


def test_the_same_seen_outside_the_roots_too_is_one_finding(outside):
    place = outside.container()
    place.start()
    place.resize(100)
    assert [each.kind for each in about(outside, place)] == [FindingKind.REGION_LOST]


@pytest.mark.parametrize("replaced", [False, True])
def test_a_region_that_was_deleted_under_its_processes(outside, replaced):
    place = outside.container()
    inside = place.start()
    assert about(outside, place) == []
    place.path.unlink()
    if replaced:
        create_region(place.path, memory_limits=[8 * GIB])
    (found,) = about(outside, place)
    assert (found.kind, found.cause, found.pid) == (FindingKind.REGION_LOST, "deleted", 1)
    assert f"pid {inside.host_pid} of the host" in found.evidence
    assert place.path.name in found.evidence
    host_pid = inside.host_pid
    inside.end()
    place.running.clear()
    assert not [each for each in outside.findings() if f"pid {host_pid} " in each.evidence]


@needs_cgroups
def test_a_container_whose_used_file_was_removed_is_not_one_without_a_file(
    doctor_node, monkeypatch
):
    monkeypatch.setattr(node_module, "_NAME_AGAIN_S", 0.0)
    place, idle = doctor_node.container(), doctor_node.container()
    idle.path.unlink()
    inside = place.start()

    def reasons() -> dict[str | None, MissingReason]:
        missing = Observer.for_command(doctor_node.node).observe().missing
        return {each.pod_uid: each.missing.reason for each in missing if each.missing}

    with cgroup_of_pod(place.pod_uid, "ab" * 32, inside.host_pid):
        assert reasons() == {idle.pod_uid: MissingReason.NO_FILE}
        place.path.unlink()
        expected = {idle.pod_uid: MissingReason.NO_FILE, place.pod_uid: MissingReason.STALE}
        assert reasons() == expected
        assert reasons() == expected
        inside.end()
        place.running.clear()
        assert reasons() == dict.fromkeys(expected, MissingReason.NO_FILE)


def test_a_monitor_that_still_maps_what_was_deleted_is_no_finding(outside):
    places = [outside.container(), outside.container()]
    monitor = places[0].enter(0)
    for place in places:
        monitor.tell("map", place.path)
    places[1].start()
    places[0].path.unlink()
    assert about(outside, places[0]) == []


# ---- Another pod --------------------------------------------------------------------------------


@needs_cgroups
def test_a_directory_that_another_pod_uses(doctor_node, tmp_path):
    """Two pods that start at once, of which the device plugin mounts one's directory into both."""
    place = doctor_node.container()
    inside, beside, other = place.start(), place.enter(), place.enter()
    another = str(uuid.uuid4())
    with (
        cgroup_of_pod(place.pod_uid, "ab" * 32) as own,
        cgroup_of_pod(place.pod_uid, "ef" * 32) as second,
        cgroup_of_pod(another, "cd" * 32) as cgroup,
    ):
        for process, home in ((inside, own), (beside, second), (other, cgroup)):
            (home / "cgroup.procs").write_text(str(process.host_pid))
        pid, _ = beside.child("spawn")
        beside.tell(f"@{pid}", "load", libvgpu(tmp_path))
        beside.tell(f"@{pid}", "map", place.path)
        other.tell("map", place.path)
        # Another container of the same pod is no stranger, and a monitor has no libvgpu.
        assert doctor_node.findings() == ()
        other.tell("load", libvgpu(tmp_path))
        (found,) = doctor_node.findings()
        assert (found.kind, found.severity) == (FindingKind.DIRECTORY_BORROWED, Severity.ERROR)
        assert found.container.pod_uid == place.pod_uid
        assert f"1 process of pod {another}" in found.summary
        assert f"pid {other.host_pid} of the host" in found.evidence
        assert not found.repairable


# ---- No region ----------------------------------------------------------------------------------


def test_a_region_that_is_being_made_is_no_finding(doctor_node):
    place = doctor_node.container()
    content = place.path.read_bytes()
    place.path.write_bytes(b"")
    observation = Observer.for_command(doctor_node.node).observe()
    place.path.write_bytes(content)
    assert doctor_node.findings(observation=observation) == ()


# ---- Two regions in one directory ---------------------------------------------------------------


def test_processes_in_a_second_region_of_the_directory_are_found_and_have_not_escaped(
    doctor_node, fake_driver, nvml_sampler
):
    place, first = doctor_node.started()
    other = place.enter()
    second = place.directory / "second.cache"
    create_region(second, memory_limits=[8 * GIB], uuids=[GPU])
    os.utime(second, (1, 1))
    assert doctor_node.findings() == ()
    other.tell("attach", second)
    os.utime(second, (1, 1))
    host_pids = first.host_pid, other.host_pid
    fake_driver.play(CARD, *(f"process 0 compute {pid} {GIB}" for pid in host_pids))
    (found,) = doctor_node.findings(sampler=nvml_sampler)
    assert found.kind is FindingKind.REGIONS_DOUBLED
    assert f"pid {other.host_pid} of the host map 'second.cache'" in found.evidence
    assert found.evidence.endswith("is 'usage.cache'")
    observation = Observer(doctor_node.node, sampler=nvml_sampler).observe()
    states = {each.host_pid: each.state for each in node_processes(observation)}
    assert (states[first.host_pid], states[other.host_pid]) == ("alive", "unknown")

"""Files, directories and mappings that are not as they should be."""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from containers import libvgpu, needs_namespaces
from doctor_node_scenes import GIB, DoctorNode, Place
from namespaces import needs_first_namespace
from own_cgroups import cgroup_of_pod, needs_cgroups

from libhamiregion import Layout, create_region
from libhamiregion.node import Finding, FindingKind, Severity, diagnose, repair

pytestmark = [needs_namespaces, needs_first_namespace]


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[DoctorNode]:
    """One that looks outside the roots too, and sees what other tests do there."""
    made = DoctorNode(tmp_path / "containers", outside=True)
    try:
        yield made
    finally:
        made.close()


def about(doctor_node: DoctorNode, place: Place) -> list[Finding]:
    """The findings that are of a place, or name one of its processes."""
    host_pids = {each.host_pid for each in place.running}
    return [
        each
        for each in doctor_node.findings()
        if each.container is not None
        and (each.container.pod_uid == place.pod_uid or host_pids.intersection(each.container.pids))
    ]


# ---- Truncated, deleted, replaced ---------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 100, 1_900_000])
def test_a_region_that_was_cut_short_under_its_processes(
    doctor_node: DoctorNode, size: int
) -> None:
    place = doctor_node.place()
    inside = place.start()
    assert doctor_node.findings() == ()
    place.file.resize(size)
    (found,) = doctor_node.findings()
    assert (found.kind, found.cause, found.pid) == (FindingKind.REGION_LOST, "cut_short", 1)
    assert found.container is not None
    assert found.container.pod_uid == place.pod_uid
    assert f"{size} bytes long" in found.evidence
    assert str(inside.host_pid) in found.evidence
    assert not found.repairable


def test_the_same_seen_outside_the_roots_too_is_one_finding(outside: DoctorNode) -> None:
    place = outside.place()
    place.start()
    place.file.resize(100)
    assert [each.kind for each in about(outside, place)] == [FindingKind.REGION_LOST]


@pytest.mark.parametrize("replaced", [False, True])
def test_a_region_that_was_deleted_under_its_processes(outside: DoctorNode, replaced: bool) -> None:
    place = outside.place()
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


def test_a_monitor_that_still_maps_what_was_deleted_is_no_finding(outside: DoctorNode) -> None:
    places = [outside.place(), outside.place()]
    monitor = places[0].enter(0)
    for place in places:
        monitor.tell("map", place.path)
    places[1].start()
    places[0].path.unlink()
    assert about(outside, places[0]) == []


# ---- Two generations of libvgpu -----------------------------------------------------------------


def test_processes_that_map_the_region_as_another_layout(doctor_node: DoctorNode) -> None:
    place = doctor_node.place()
    place.start()
    # Not a child of the first: a fork keeps what its parent maps.
    other = place.enter()
    pid, _ = other.child("spawn")
    other.tell(f"@{pid}", "map_bytes", place.path, Layout.UNVERSIONED.size_bytes)
    (found,) = doctor_node.findings()
    assert (found.kind, found.cause) == (FindingKind.LAYOUT_MIXED, "mapped_length")
    assert found.pid == pid
    assert "layout unversioned" in found.evidence


def test_a_region_of_1_1_that_2_8_1_has_made_longer(doctor_node: DoctorNode) -> None:
    place = doctor_node.place(Layout.V1_1)
    place.start()
    place.file.resize(Layout.V1_1_POSTINIT.size_bytes + 1)
    (found,) = doctor_node.findings()
    assert (found.kind, found.cause) == (FindingKind.LAYOUT_MIXED, "file_size")


def test_a_region_of_a_version_to_come(doctor_node: DoctorNode) -> None:
    place = doctor_node.place()
    place.start()
    place.file.put("minor_version", 3)
    before = place.path.read_bytes()
    (found,) = doctor_node.findings()
    assert (found.kind, found.severity) == (FindingKind.LAYOUT_NEWER, Severity.WARNING)
    assert "version 1.3" in found.summary
    assert not found.repairable
    assert doctor_node.repair() == ()
    assert place.path.read_bytes() == before


# ---- Another pod --------------------------------------------------------------------------------


@needs_cgroups
def test_a_directory_that_another_pod_uses(doctor_node: DoctorNode, tmp_path: Path) -> None:
    """Two pods that start at once, of which the device plugin mounts one's directory into both."""
    place = doctor_node.place()
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
        assert found.container is not None
        assert found.container.pod_uid == place.pod_uid
        assert f"1 process of pod {another}" in found.summary
        assert f"pid {other.host_pid} of the host" in found.evidence
        assert not found.repairable


# ---- No region ----------------------------------------------------------------------------------


def test_why_there_is_no_region(doctor_node: DoctorNode, tmp_path: Path) -> None:
    places = [doctor_node.place() for _ in range(5)]
    places[0].path.unlink()
    places[1].file.resize(0)
    places[2].path.unlink()
    (tmp_path / "elsewhere").write_text("somebody else's")
    places[2].path.symlink_to(tmp_path / "elsewhere")
    places[3].path.unlink()
    os.mkfifo(places[3].path)
    places[4].file.put("major_version", 77)
    found = doctor_node.findings()
    assert {each.kind for each in found} == {FindingKind.REGION_MISSING}
    assert {each.severity for each in found} == {Severity.INFO}
    assert [each.cause for each in found] == [
        "not_ready",
        "not_a_region",
        "not_a_region",
        "unknown_layout",
    ]


def test_a_region_that_is_being_made_is_no_finding(doctor_node: DoctorNode) -> None:
    place = doctor_node.place()
    content = place.path.read_bytes()
    place.path.write_bytes(b"")
    views = doctor_node.node.view()
    place.path.write_bytes(content)
    assert doctor_node.findings(views=views) == ()


def test_a_root_that_cannot_be_listed(tmp_path: Path) -> None:
    doctor_node = DoctorNode(tmp_path / "containers")
    doctor_node.root.rmdir()
    (found,) = doctor_node.findings()
    assert found.kind is FindingKind.ROOT_UNREADABLE
    assert found.container is None
    assert "containers" in found.summary
    assert found.evidence == "No such file or directory"
    doctor_node.close()


# ---- Healthy ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "layout",
    [Layout.UNVERSIONED_NO_UTIL, Layout.V1_1_POSTINIT, Layout.V1_2],
    ids=lambda layout: layout.value,
)
def test_a_healthy_node_has_no_finding(doctor_node: DoctorNode, layout: Layout) -> None:
    """Several containers, nested and not, forks, a monitor, a reader, and an empty directory."""
    first, second = doctor_node.place(layout), doctor_node.place(layout, name="serve")
    inside = first.start(2)
    first.spawn(inside)
    inside.child("fork")
    second.start(0)
    monitor, reader = second.enter(0), second.enter(0)
    for place in (first, second):
        monitor.tell("map", place.path)
        reader.tell("map", place.path, "r")
    doctor_node.place().path.unlink()
    assert doctor_node.findings() == ()
    assert diagnose(doctor_node.node, settle_s=0) == ()
    assert diagnose(doctor_node.node, views=doctor_node.node.view(), settle_s=0) == ()
    assert repair(doctor_node.node, doctor_node.findings()) == ()

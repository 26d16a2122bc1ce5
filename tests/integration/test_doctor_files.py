"""Files, directories and mappings that are not as they should be."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from containers import needs_namespaces, wait_for
from doctor_scenes import GIB, Hospital, OddContainer, Place
from namespaces import needs_first_namespace
from own_cgroups import cgroup_of_pod

from libhamiregion import Layout, create_region
from libhamiregion.node import Finding, FindingKind, Severity, diagnose, repair

pytestmark = [needs_namespaces, needs_first_namespace]

HOSTILE = "\x1b[2J\n'\"../\u202e" + "x" * 60 + ".cache"


@pytest.fixture
def hospital(tmp_path: Path) -> Iterator[Hospital]:
    made = Hospital(tmp_path / "containers")
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Hospital]:
    """One that looks outside the roots too, and sees what other tests do there."""
    made = Hospital(tmp_path / "containers", outside=True)
    try:
        yield made
    finally:
        made.close()


def about(hospital: Hospital, place: Place) -> list[Finding]:
    """The findings that are of a place, or name one of its processes."""
    host_pids = {each.host_pid for each in place.running}
    return [
        each
        for each in hospital.findings()
        if each.container is not None
        and (each.container.pod_uid == place.pod_uid or host_pids.intersection(each.container.pids))
    ]


# ---- Truncated, deleted, replaced ---------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 100, 1_900_000])
def test_a_region_that_was_cut_short_under_its_processes(hospital: Hospital, size: int) -> None:
    place = hospital.place()
    inside = place.start()
    assert hospital.findings() == ()
    place.file.resize(size)
    (found,) = hospital.findings()
    assert (found.kind, found.pid) == (FindingKind.REGION_TRUNCATED, 1)
    assert found.container is not None
    assert found.container.pod_uid == place.pod_uid
    assert f"{size} bytes long" in found.evidence
    assert str(inside.host_pid) in found.evidence
    assert not found.repairable


def test_the_same_seen_outside_the_roots_too_is_one_finding(outside: Hospital) -> None:
    place = outside.place()
    place.start()
    place.file.resize(100)
    assert [each.kind for each in about(outside, place)] == [FindingKind.REGION_TRUNCATED]


@pytest.mark.parametrize("replaced", [False, True])
def test_a_region_that_was_deleted_under_its_processes(outside: Hospital, replaced: bool) -> None:
    place = outside.place()
    inside = place.start()
    assert about(outside, place) == []
    place.path.unlink()
    if replaced:
        create_region(place.path, memory_limits=[8 * GIB])
    (found,) = about(outside, place)
    assert (found.kind, found.pid) == (FindingKind.REGION_UNLINKED, 1)
    assert f"pid {inside.host_pid} of the host" in found.evidence
    assert place.path.name in found.evidence
    host_pid = inside.host_pid
    inside.end()
    place.running.clear()
    assert not [each for each in outside.findings() if f"pid {host_pid} " in each.evidence]


def test_a_monitor_that_still_maps_what_was_deleted_is_no_finding(outside: Hospital) -> None:
    places = [outside.place(), outside.place()]
    monitor = places[0].enter(0)
    for place in places:
        monitor.tell("map", place.path)
    places[1].start()
    places[0].path.unlink()
    assert about(outside, places[0]) == []


# ---- Several files ------------------------------------------------------------------------------


def test_several_regions_in_one_directory(hospital: Hospital) -> None:
    place = hospital.place()
    place.start()
    old = place.directory / HOSTILE.replace("/", "")
    create_region(old)
    os.utime(old, (0, 0))
    (found,) = hospital.findings()
    assert found.kind is FindingKind.SEVERAL_CACHE_FILES
    assert (found.severity, found.cause) == (Severity.INFO, "unused")
    assert found.paragraph.isprintable()
    assert r"\x1b[2J\n" in found.evidence


def test_a_second_region_that_processes_use(hospital: Hospital) -> None:
    place = hospital.place()
    old = place.directory / "old.cache"
    create_region(old)
    os.utime(old, (0, 0))
    inside = place.enter()
    inside.tell("map", old)
    (found,) = hospital.findings()
    assert (found.severity, found.cause) == (Severity.WARNING, "in_use")
    assert str(inside.host_pid) in found.evidence


# ---- Permissions --------------------------------------------------------------------------------


def test_a_file_that_others_cannot_open(hospital: Hospital) -> None:
    place = hospital.place()
    inside = place.start()
    place.path.chmod(0o600)
    (found,) = hospital.findings()
    assert (found.kind, found.cause) == (FindingKind.PERMISSIONS, "file")
    assert found.severity is Severity.WARNING
    assert "mode 0600" in found.summary
    inside.tell("become", 65534)
    # A change of user shows once the process touches memory.
    inside.tell("load", "/bin/sh")
    (found,) = hospital.findings()
    assert found.severity is Severity.ERROR
    assert "65534" in found.evidence
    before = place.path.stat().st_mode
    assert repair(hospital.node, [found]) == ()
    assert place.path.stat().st_mode == before
    # The users' own file is theirs to open.
    os.chown(place.path, 65534, 0)
    assert [each.severity for each in hospital.findings()] == [Severity.WARNING]
    place.path.chmod(0o666)
    assert hospital.findings() == ()


@contextlib.contextmanager
def in_container(place: Place, id_: str, uid: int) -> Iterator[OddContainer]:
    """A process of a user in a container of the place's pod, which maps no region."""
    with cgroup_of_pod(place.pod_uid, id_) as cgroup:
        inside = OddContainer()
        try:
            (cgroup / "cgroup.procs").write_text(str(inside.host_pid))
            inside.tell("become", uid)
            yield inside
        finally:
            process = Path(f"/proc/{inside.host_pid}")
            inside.end()
            # Until somebody has taken its status, /proc shows it.
            wait_for(lambda: not process.exists())


def test_who_is_kept_out_is_known_by_the_pod_of_its_cgroup(hospital: Hospital) -> None:
    place = hospital.place()
    place.path.chmod(0o600)
    with in_container(place, "c" * 64, 1000):
        (found,) = hospital.findings()
        assert (found.kind, found.severity) == (FindingKind.PERMISSIONS, Severity.ERROR)
        assert "keeps 1 user out" in found.summary
        assert "processes of the container run as" in found.evidence
        assert "(1000)" in found.evidence
        # What the owner may not, its group's rights do not give it.
        os.chown(place.path, 1000, 0)
        place.path.chmod(0o060)
        assert [each.severity for each in hospital.findings()] == [Severity.ERROR]
    (found,) = hospital.findings()
    assert found.severity is Severity.WARNING
    assert "no process of the container is seen now" in found.evidence


@pytest.mark.parametrize("second_directory", [False, True])
def test_of_several_containers_of_a_pod_it_is_not_known_whose_it_is(
    hospital: Hospital, second_directory: bool
) -> None:
    place = hospital.place()
    place.path.chmod(0o600)
    with contextlib.ExitStack() as stack:
        stack.enter_context(in_container(place, "c" * 64, 1000))
        if second_directory:
            (hospital.root / f"{place.pod_uid}_other").mkdir()
            (hospital.root / f"{place.pod_uid}_other").chmod(0o777)
        else:
            stack.enter_context(in_container(place, "d" * 64, 0))
        (found,) = hospital.findings()
        assert found.severity is Severity.WARNING
        assert "may keep 1 user out" in found.summary
        assert "processes of the pod run as" in found.evidence
        assert "(1000)" in found.evidence


def test_whether_the_group_lets_a_user_in_is_said_to_be_unknown(hospital: Hospital) -> None:
    place = hospital.place()
    place.path.chmod(0o660)
    with in_container(place, "c" * 64, 1000):
        (found,) = hospital.findings()
    assert found.severity is Severity.WARNING
    assert "may keep 1 user out" in found.summary
    assert "(1000), and whether they are in its group" in found.evidence


def test_a_directory_in_which_the_pods_user_cannot_create_a_region(hospital: Hospital) -> None:
    place = hospital.place()
    place.path.unlink()
    place.directory.chmod(0o755)
    with in_container(place, "c" * 64, 1000):
        (found,) = hospital.findings()
    assert (found.severity, found.cause) == (Severity.ERROR, "directory")
    assert "(1000)" in found.evidence


def test_a_directory_that_others_cannot_enter_or_create_a_region_in(hospital: Hospital) -> None:
    place = hospital.place()
    place.start()
    place.directory.chmod(0o700)
    (found,) = hospital.findings()
    assert (found.kind, found.cause) == (FindingKind.PERMISSIONS, "directory")
    place.directory.chmod(0o755)
    assert hospital.findings() == (), "the region is there already"
    empty = hospital.place()
    empty.path.unlink()
    assert hospital.findings() == ()
    empty.directory.chmod(0o755)
    assert hospital.kinds() == [FindingKind.PERMISSIONS]


# ---- Two generations of libvgpu -----------------------------------------------------------------


def test_processes_that_map_the_region_as_another_layout(hospital: Hospital) -> None:
    place = hospital.place()
    place.start()
    # Not a child of the first: a fork keeps what its parent maps.
    other = place.enter()
    pid, _ = other.child("spawn")
    other.tell(f"@{pid}", "map_bytes", place.path, Layout.UNVERSIONED.size_bytes)
    (found,) = hospital.findings()
    assert (found.kind, found.cause) == (FindingKind.LAYOUT_MIXED, "mapped_length")
    assert found.pid == pid
    assert "layout unversioned" in found.evidence


def test_a_region_of_1_1_that_2_8_1_has_made_longer(hospital: Hospital) -> None:
    place = hospital.place(Layout.V1_1)
    place.start()
    place.file.resize(Layout.V1_1_POSTINIT.size_bytes + 1)
    (found,) = hospital.findings()
    assert (found.kind, found.cause) == (FindingKind.LAYOUT_MIXED, "file_size")


def test_two_files_libvgpu_on_one_region(hospital: Hospital, tmp_path: Path) -> None:
    place = hospital.place()
    inside = place.start()
    pid, _ = place.spawn(inside)
    library = tmp_path / "libvgpu.so"
    library.write_bytes(b"old" * 4096)
    inside.tell("load", library)
    inside.tell(f"@{pid}", "load", library)
    assert hospital.findings() == ()
    # Its successor, as an upgrade installs it.
    again, _ = place.spawn(place.enter(), last_pid="499")
    library.unlink()
    library.write_bytes(b"new" * 4096)
    place.running[-1].tell(f"@{again}", "load", library)
    late = Hospital(hospital.root)
    try:
        (found,) = late.findings()
        assert (found.kind, found.cause) == (FindingKind.LAYOUT_MIXED, "library")
        assert found.severity is Severity.WARNING
        assert late.findings(settle_s=0) == (), "it costs too much for a look at each interval"
    finally:
        late.close()


# ---- No region ----------------------------------------------------------------------------------


def test_why_there_is_no_region(hospital: Hospital, tmp_path: Path) -> None:
    places = [hospital.place() for _ in range(5)]
    places[0].path.unlink()
    places[1].file.resize(0)
    places[2].path.unlink()
    (tmp_path / "elsewhere").write_text("somebody else's")
    places[2].path.symlink_to(tmp_path / "elsewhere")
    places[3].path.unlink()
    os.mkfifo(places[3].path)
    places[4].file.put("minor_version", 77)
    found = hospital.findings()
    assert [each.kind for each in found] == [
        FindingKind.REGION_NOT_READY,
        FindingKind.NOT_A_REGION,
        FindingKind.NOT_A_REGION,
        FindingKind.UNKNOWN_LAYOUT,
    ]
    assert {each.severity for each in found} == {Severity.INFO}
    assert [each.cause for each in found] == [
        "not_ready",
        "not_a_region",
        "not_a_region",
        "unknown_layout",
    ]


def test_a_region_that_is_being_made_is_no_finding(hospital: Hospital) -> None:
    place = hospital.place()
    content = place.path.read_bytes()
    place.path.write_bytes(b"")
    views = hospital.node.view()
    place.path.write_bytes(content)
    assert hospital.findings(views=views) == ()


def test_a_root_that_cannot_be_listed(tmp_path: Path) -> None:
    hospital = Hospital(tmp_path / "containers")
    hospital.root.rmdir()
    (found,) = hospital.findings()
    assert found.kind is FindingKind.ROOT_UNREADABLE
    assert found.container is None
    assert "containers" in found.summary
    hospital.close()


# ---- Healthy ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "layout",
    [Layout.UNVERSIONED_NO_UTIL, Layout.V1_1_POSTINIT, Layout.V1_2],
    ids=lambda layout: layout.value,
)
def test_a_healthy_node_has_no_finding(hospital: Hospital, layout: Layout) -> None:
    """Several containers, nested and not, forks, a monitor, a reader, and an empty directory."""
    first, second = hospital.place(layout), hospital.place(layout, name="serve")
    inside = first.start(2)
    first.spawn(inside)
    inside.child("fork")
    second.start(0)
    monitor, reader = second.enter(0), second.enter(0)
    for place in (first, second):
        monitor.tell("map", place.path)
        reader.tell("map", place.path, "r")
    hospital.place().path.unlink()
    assert hospital.findings() == ()
    assert diagnose(hospital.node, settle_s=0) == ()
    assert diagnose(hospital.node, views=hospital.node.view(), settle_s=0) == ()
    assert repair(hospital.node, hospital.findings()) == ()

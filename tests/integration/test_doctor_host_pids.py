"""Host pids that are wrong in every way that is seen in the field: found, repaired, gone."""

import os

import pytest
from containers import needs_namespaces
from doctor_node_scenes import GIB, DoctorNode, Place
from namespaces import needs_first_namespace

from libhamiregion import Layout
from libhamiregion.node import FindingKind, Severity, diagnose, repair

pytestmark = [needs_namespaces, needs_first_namespace]


def heals(doctor_node: DoctorNode, place: Place, expected: dict[int, int]) -> None:
    """What was found is repaired, the host pids are right then, and nothing is found any more."""
    done = doctor_node.repair()
    assert done
    assert all(each.done and each.error is None for each in done), done
    assert place.host_pids() == expected
    assert doctor_node.findings() == ()


def causes(doctor_node: DoctorNode) -> list[str | None]:
    return [each.cause for each in doctor_node.findings()]


@pytest.mark.parametrize(("depth", "layout"), [(1, Layout.UNVERSIONED_NO_UTIL), (2, Layout.V1_2)])
def test_a_missing_host_pid(depth: int, doctor_node: DoctorNode, layout: Layout) -> None:
    place = doctor_node.place(layout)
    inside = place.start(depth)
    pid, host_pid = place.spawn(inside, host_pid=False)
    (found,) = doctor_node.findings()
    assert (found.kind, found.cause, found.pid) == (FindingKind.HOST_PID_WRONG, "missing", pid)
    assert found.container is not None
    assert found.container.pod_uid == place.pod_uid
    assert found.repairable
    assert str(host_pid) in found.summary
    heals(doctor_node, place, {1: inside.host_pid, pid: host_pid})


@pytest.mark.parametrize("depth", [1, 2])
def test_the_containers_own_pid_as_host_pid(depth: int, doctor_node: DoctorNode) -> None:
    place = doctor_node.place()
    inside = place.start(depth)
    place.set_host_pid(1, 1)
    (found,) = doctor_node.findings()
    assert (found.cause, found.pid) == ("container_pid", 1)
    heals(doctor_node, place, {1: inside.host_pid})


def test_without_a_pid_namespace_of_its_own_both_pids_are_the_same_and_right(
    doctor_node: DoctorNode,
) -> None:
    place = doctor_node.place()
    inside = place.start(0)
    assert place.host_pids() == {inside.process.pid: inside.process.pid}
    assert doctor_node.findings() == ()


def test_host_pids_swapped_between_two_containers(doctor_node: DoctorNode) -> None:
    places = [doctor_node.place(), doctor_node.place(name="serve")]
    first, second = (place.start() for place in places)
    places[0].set_host_pid(1, second.host_pid)
    places[1].set_host_pid(1, first.host_pid)
    found = doctor_node.findings()
    assert [(each.cause, each.severity) for each in found] == [("swapped", Severity.ERROR)] * 2
    assert "'serve'" in found[0].summary
    assert places[1].pod_uid in found[0].summary
    done = doctor_node.repair()
    assert all(each.done for each in done)
    assert places[0].host_pids() == {1: first.host_pid}
    assert places[1].host_pids() == {1: second.host_pid}
    assert doctor_node.findings() == ()


def test_a_look_at_one_container_knows_the_processes_of_the_others(
    doctor_node: DoctorNode,
) -> None:
    """As an exporter looks, at what has changed."""
    first, second = doctor_node.place(), doctor_node.place()
    other = second.start()
    first.start()
    first.set_host_pid(1, other.host_pid)
    node = doctor_node.node
    views = [each for each in node.view() if each.container.pod_uid == first.pod_uid]
    (found,) = diagnose(node, views=views, settle_s=0)
    assert found.cause == "foreign", "nothing is known of the others yet"
    node.slots(node.snapshot())
    assert set(node.proved_processes()) == {other.host_pid, first.running[0].host_pid}
    (found,) = diagnose(node, views=views, settle_s=0)
    assert found.cause == "swapped"


def test_host_pids_swapped_inside_one_container(doctor_node: DoctorNode) -> None:
    place = doctor_node.place()
    inside = place.start()
    pid, host_pid = place.spawn(inside)
    place.set_host_pid(1, host_pid)
    place.set_host_pid(pid, inside.host_pid)
    (found,) = doctor_node.findings()
    assert (found.cause, found.pid) == ("swapped", None)
    assert "2 processes have the host pid" in found.summary
    heals(doctor_node, place, {1: inside.host_pid, pid: host_pid})


def test_a_host_pid_that_nobody_has(doctor_node: DoctorNode) -> None:
    place = doctor_node.place()
    inside = place.start()
    for nobody in (4_194_303, 2**31 - 1):
        place.set_host_pid(1, nobody)
        assert causes(doctor_node) == ["dead"]
    place.file.put("slot_hostpid", -7)
    assert causes(doctor_node) == ["dead"]
    heals(doctor_node, place, {1: inside.host_pid})


def test_the_host_pid_of_a_process_that_has_died(doctor_node: DoctorNode) -> None:
    place = doctor_node.place()
    inside = place.start()
    pid, host_pid = inside.child("spawn")
    place.set_host_pid(1, host_pid)
    assert causes(doctor_node) == ["foreign"]
    inside.tell("kill", pid)
    assert causes(doctor_node) == ["dead"]
    heals(doctor_node, place, {1: inside.host_pid})


def test_the_host_pid_of_a_stranger(doctor_node: DoctorNode) -> None:
    place = doctor_node.place()
    inside = place.start()
    # This process, a kernel thread.
    for stranger in (os.getpid(), 2):
        place.set_host_pid(1, stranger)
        (found,) = doctor_node.findings()
        assert (found.cause, found.severity) == ("foreign", Severity.ERROR)
        assert str(stranger) in found.evidence
    heals(doctor_node, place, {1: inside.host_pid})


def test_the_namespaces_own_proc_tells_no_host_pids(doctor_node: DoctorNode) -> None:
    place = doctor_node.place()
    inside = place.start(host_pid=False)
    elsewhere = DoctorNode(doctor_node.root, proc=f"/proc/{inside.host_pid}/root/proc")
    try:
        assert FindingKind.HOST_PID_WRONG not in elsewhere.kinds()
        found = doctor_node.findings()
        (done,) = repair(elsewhere.node, found)
        assert not done.done
    finally:
        elsewhere.close()
    assert place.host_pids() == {1: None}


# ---- Pids that are used again -------------------------------------------------------------------


@pytest.mark.parametrize("layout", [Layout.V1_1, Layout.V1_2])
def test_a_pid_that_is_used_again_is_not_mistaken(doctor_node: DoctorNode, layout: Layout) -> None:
    place = doctor_node.place(layout)
    inside = place.enter()
    other, other_host_pid = place.spawn(inside)
    pid, _ = place.spawn(inside, last_pid="499", host_pid=False)
    assert pid == 500
    found = doctor_node.findings()
    assert [each.kind for each in found] == [FindingKind.HOST_PID_WRONG]

    # Another process has the pid now, and does not use the region: nothing is stored for it.
    inside.tell("kill", 500)
    assert inside.tell("spawn", 499) == 500
    (done,) = repair(doctor_node.node, found)
    assert not done.done
    assert done.actions == ()
    assert place.host_pids() == {other: other_host_pid, 500: None}
    assert doctor_node.kinds() == [FindingKind.DEAD_PROCESS_COUNTED]
    assert place.used() == 2 * GIB
    assert [each.done for each in doctor_node.repair()] == [True]
    assert place.used() == GIB
    assert doctor_node.findings() == ()


def test_a_successor_with_the_same_pid_gets_its_own_host_pid(doctor_node: DoctorNode) -> None:
    place = doctor_node.place()
    inside = place.enter()
    place.spawn(inside, last_pid="499", host_pid=False)
    found = doctor_node.findings()
    inside.tell("kill", 500)
    _, second = place.spawn(inside, last_pid="499", host_pid=False)
    (done,) = repair(doctor_node.node, found)
    assert done.done
    assert place.host_pids() == {500: second}
    assert doctor_node.findings() == ()


def test_a_finding_that_has_passed_is_mended_without_an_action(doctor_node: DoctorNode) -> None:
    place = doctor_node.place()
    inside = place.start(host_pid=False)
    found = doctor_node.findings()
    place.set_host_pid(1, inside.host_pid)
    (done,) = repair(doctor_node.node, found)
    assert (done.done, done.actions, done.error) == (True, (), None)


def test_a_container_that_has_gone_is_not_repaired(doctor_node: DoctorNode) -> None:
    place = doctor_node.place()
    place.start(host_pid=False)
    found = doctor_node.findings()
    place.path.unlink()
    doctor_node.node.refresh()
    (done,) = repair(doctor_node.node, found)
    assert not done.done
    assert done.error is not None
    assert "diagnose again" in done.error

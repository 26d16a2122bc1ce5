"""Host pids that are wrong in every way that is seen in the field: found, repaired, gone."""

import pytest
from support.containers import needs_namespaces
from support.doctor_node import DoctorNode
from support.node_scene import GIB

from libhamiregion import Layout
from libhamiregion.doctor import FindingKind, repair

pytestmark = needs_namespaces


def test_the_namespaces_own_proc_tells_no_host_pids(doctor_node: DoctorNode) -> None:
    place = doctor_node.container()
    inside = place.start(host_pid=False)
    elsewhere = DoctorNode(doctor_node.directory, proc=f"/proc/{inside.host_pid}/root/proc")
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
    place = doctor_node.container(layout=layout)
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
    place = doctor_node.container()
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
    place = doctor_node.container()
    inside = place.start(host_pid=False)
    found = doctor_node.findings()
    place.set_host_pid(1, inside.host_pid)
    (done,) = repair(doctor_node.node, found)
    assert (done.done, done.actions, done.error) == (True, (), None)


def test_a_container_that_has_gone_is_not_repaired(doctor_node: DoctorNode) -> None:
    place = doctor_node.container()
    place.start(host_pid=False)
    found = doctor_node.findings()
    place.path.unlink()
    doctor_node.node.refresh()
    (done,) = repair(doctor_node.node, found)
    assert not done.done
    assert done.error is not None
    assert "diagnose again" in done.error

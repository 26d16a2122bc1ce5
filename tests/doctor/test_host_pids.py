"""Host pids that are wrong in every way that is seen in the field: found, repaired, gone."""

from support.containers import needs_namespaces
from support.doctor_node import DoctorNode

from libhamiregion.doctor import FindingKind, repair

pytestmark = needs_namespaces


def test_the_namespaces_own_proc_tells_no_host_pids(doctor_node):
    place, inside = doctor_node.started(host_pid=False)
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


def test_a_successor_with_the_same_pid_gets_its_own_host_pid(doctor_node):
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


def test_a_finding_that_has_passed_is_mended_without_an_action(doctor_node):
    place, inside = doctor_node.started(host_pid=False)
    found = doctor_node.findings()
    place.set_host_pid(1, inside.host_pid)
    (done,) = repair(doctor_node.node, found)
    assert (done.done, done.actions, done.error) == (True, (), None)


def test_a_container_that_has_gone_is_not_repaired(doctor_node):
    place, _ = doctor_node.started(host_pid=False)
    found = doctor_node.findings()
    place.path.unlink()
    doctor_node.node.refresh()
    (done,) = repair(doctor_node.node, found)
    assert not done.done
    assert done.error is not None
    assert "diagnose again" in done.error

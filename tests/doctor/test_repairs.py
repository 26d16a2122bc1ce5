"""Repairs of several regions at once: what goes wrong with one is none of the others' business."""

import shutil

from support.containers import needs_namespaces
from support.doctor_node import DoctorNode
from support.node_scene import SceneContainer
from support.region_file import truncate

from libhamiregion.doctor import FindingKind, repair

pytestmark = needs_namespaces


def with_a_wrong_host_pid(doctor_node: DoctorNode) -> tuple[SceneContainer, int]:
    """A container, and the host pid that its process's slot lacks."""
    place, inside = doctor_node.started()
    place.set_host_pid(1, 0)
    return place, inside.host_pid


def test_a_region_that_is_gone_and_one_that_is_cut_do_not_end_the_repair_of_others(doctor_node):
    places = [with_a_wrong_host_pid(doctor_node) for _ in range(4)]
    findings = doctor_node.findings()
    assert [each.kind for each in findings] == [FindingKind.HOST_PID_WRONG] * 4
    # In the order of the findings, so that a region comes after each that fails.
    by_uid = {place.pod_uid: (place, host_pid) for place, host_pid in places}
    gone, first, cut, second = (
        by_uid[each.container.pod_uid] for each in findings if each.container is not None
    )
    shutil.rmtree(gone[0].path.parent)
    doctor_node.node.refresh()
    truncate(cut[0].path, 4096)
    done = {each.finding.container: each for each in repair(doctor_node.node, findings)}
    assert len(done) == 4
    outcomes = [done[each.container] for each in findings]
    assert [each.done for each in outcomes] == [False, True, False, True]
    assert outcomes[0].error is not None
    assert "is gone" in outcomes[0].error
    assert outcomes[2].error is not None
    assert "truncated" in outcomes[2].error
    for place, host_pid in (first, second):
        assert place.host_pids() == {1: host_pid}


def test_a_dry_run_proves_a_death_beside_a_known_process_with_the_same_pid(doctor_node, bystander):
    """What that process maps is kept for minutes: it may have mapped the region since."""
    place = doctor_node.container()
    place.add_process(bystander, {0: 1 << 30})
    for _ in range(3):
        doctor_node.node.processes.refresh()
    (found,) = doctor_node.findings()
    assert found.kind is FindingKind.DEAD_PROCESS_COUNTED
    for _ in range(3):
        (done,) = repair(doctor_node.node, [found], dry_run=True)
        assert done.actions == (f"would free the slot of dead process {bystander}, 1 GiB",)

"""Processes that were suspended and go on all the same are told of, by all who look at a node."""

import json

import pytest
from called import call
from containers import needs_namespaces
from doctor_node_scenes import DoctorNode, OddContainer, Place
from namespaces import needs_first_namespace
from node_scene import Events

from libhamiregion import Layout, open_region
from libhamiregion.agent import RepairLoop
from libhamiregion.node import FindingKind
from libhamiregion.node.doctor.memory import memory_of

pytestmark = [needs_namespaces, needs_first_namespace]

GOES_ON = ("allocating", "launching")


def suspend(place: Place, pid: int = 1) -> None:
    with open_region(place.path, writable=True) as region:
        region.suspend(pid)


def suspended(node: DoctorNode, what: str | None, **spec: object) -> tuple[Place, OddContainer]:
    """A container whose first process is suspended, and does that all the same."""
    place = node.place(**spec)  # type: ignore[arg-type]
    inside = place.start()
    suspend(place)
    if what is not None:
        inside.tell("go_on", what, place.path)
    return place, inside


@pytest.mark.representatives(1)
@pytest.mark.parametrize("what", GOES_ON)
def test_the_doctor_tells_what_goes_on_and_for_how_long_it_is_suspended(
    what: str, doctor_node: DoctorNode
) -> None:
    place, inside = suspended(doctor_node, what)
    (found,) = doctor_node.findings()
    assert (found.kind, found.cause) == (FindingKind.SUSPENSION_IGNORED, what)
    assert (found.pid, found.repairable) == (1, False)
    assert found.summary == f"process 1 is suspended and goes on {what}"
    assert f"process {inside.host_pid}" in found.evidence
    assert "SM limit" in found.advice
    # Whoever only counts findings, and never waits, tells it too.
    assert doctor_node.kinds(settle_s=0) == [FindingKind.SUSPENSION_IGNORED]
    with open_region(place.path, writable=True) as region:
        region.resume(1)
    assert doctor_node.findings() == ()


@pytest.mark.representatives(1)
@pytest.mark.parametrize("limit", [None, 30])
def test_what_has_stopped_is_no_finding_and_is_waited_for_once(
    limit: int | None, doctor_node: DoctorNode
) -> None:
    """With an SM limit it obeys in any case, and nobody waits for it."""
    suspended(doctor_node, None, sm_limits=[limit])
    known = memory_of(doctor_node.node).suspended
    assert doctor_node.findings() == ()
    assert known.watch() is False, "within a minute it was done"
    known._watched_s = float("-inf")
    assert known.watch() is (limit is None)


def test_launches_of_another_process_are_not_taken_for_its_own(doctor_node: DoctorNode) -> None:
    place, inside = suspended(doctor_node, None)
    pid, _ = place.spawn(inside)
    inside.tell(f"@{pid}", "go_on", "launching", place.path)
    assert doctor_node.findings() == ()


def test_who_looks_seldom_sees_what_has_grown_between(doctor_node: DoctorNode) -> None:
    """Without a wait, as an exporter looks; also where an SM limit says that it obeys."""
    place, inside = suspended(doctor_node, None, sm_limits=[30])
    known = memory_of(doctor_node.node).suspended
    assert doctor_node.findings(settle_s=0) == ()
    (each,) = known._known.values()
    # The first second has passed.
    assert each.watch._since_s is not None
    each.watch._since_s -= 2
    assert doctor_node.findings(settle_s=0) == ()
    inside.tell("charge", 1 << 20)
    (found,) = doctor_node.findings(settle_s=0)
    assert (found.cause, found.advice) == (
        "allocating",
        "end the process: it does not look at its slot",
    )
    assert place.used() > 1 << 20


@pytest.mark.representatives(1)
@pytest.mark.parametrize("what", [*GOES_ON, None])
def test_ps_tells_it_apart_from_one_that_has_stopped(
    what: str | None, doctor_node: DoctorNode
) -> None:
    _, inside = suspended(doctor_node, what)
    where = ("ps", "--root", str(doctor_node.root), "--no-driver")
    answer = call(*where, "--json")
    assert answer.returncode == 0, answer.stderr
    (told,) = json.loads(answer.stdout)["processes"]
    assert (told["host_pid"], told["state"], told["status"]) == (inside.host_pid, "alive", 2)
    assert told["goes_on"] == what
    states = call(*where).stdout.split()
    assert ("goes-on" in states, "suspended" in states) == (what is not None, what is None)


def test_the_agent_reports_it(doctor_node: DoctorNode) -> None:
    _, quiet = suspended(doctor_node, None)
    place, _ = suspended(doctor_node, "allocating", layout=Layout.V1_2)
    events = Events()
    RepairLoop(doctor_node.node, emit=events.append).run()
    (told,) = events
    assert told.event == "suspension_ignored"
    assert (told.container or "").startswith(place.pod_uid)
    assert told.detail["pid"] == 1
    assert quiet.host_pid

"""Slots: the dead, the orphaned, the doubled, the torn; each found, repaired where it can be."""

import pytest
from support.containers import needs_namespaces
from support.doctor_node import DoctorNode
from support.lock_bytes import NOBODY
from support.node_scene import GIB, SceneContainer
from support.region_file import SLOTS
from support.slot_bytes import account, at_work, move_last_into, put_seqlock, seqlock_of
from support.wait import eventually

from libhamiregion import Layout
from libhamiregion.doctor import FindingKind, Severity, confirmed, repair
from libhamiregion.node import Observer

pytestmark = needs_namespaces

DEAD = NOBODY


def heals(doctor_node: DoctorNode) -> None:
    """What was found is repaired, and nothing is found any more.

    A process that is to be seen at work may have had no turn on a busy machine: then once more.
    """

    def is_healed() -> bool:
        done = doctor_node.repair()
        return all(each.done for each in done) and doctor_node.findings() == ()

    eventually(is_healed)


# ---- Slots that were moved ----------------------------------------------------------------------


def orphan(place: SceneContainer, *, host_pid: bool) -> int:
    """A process of 3 GiB of which 1 GiB counts: libvgpu has moved its slot. Returns the slot."""
    file = place
    for number in range(2):
        file.add_process(DEAD + number, {0: GIB})
    place.spawn(place.enter(), used=0, host_pid=host_pid)
    slot: int = file.get("proc_num") - 1
    account(place, slot, GIB)
    # Two dead ones at once: the second move takes what the first has left at the end.
    move_last_into(file, 0)
    file.put("proc_num", 1)
    account(place, slot, 2 * GIB)
    assert place.used() == GIB
    return slot


@pytest.mark.parametrize(
    ("layout", "host_pid"),
    [(Layout.V1_1_POSTINIT, True), (Layout.V1_2, False), (Layout.V1_1, False)],
    ids=lambda value: value.value if isinstance(value, Layout) else None,
)
def test_an_orphaned_slot(doctor_node, layout, host_pid):
    place = doctor_node.container(layout=layout)
    slot = orphan(place, host_pid=host_pid)
    others = [] if host_pid else [FindingKind.HOST_PID_WRONG]
    # It may be what an earlier process with that pid has left, until it is seen writing.
    (idle,) = (each for each in doctor_node.findings() if each.kind is FindingKind.SLOT_MOVED)
    assert (idle.severity, idle.cause, idle.repairable) == (Severity.INFO, "idle", False)
    assert f"has slot {slot}," in idle.evidence
    with at_work(place, slot):
        eventually(lambda: doctor_node.kinds() == [*others, FindingKind.SLOT_MOVED])
        heals(doctor_node)
    assert place.used() == 3 * GIB
    account(place, slot, GIB)
    assert place.used() == 4 * GIB


def test_an_orphan_that_is_idle_when_it_is_to_be_repaired_is_left(doctor_node):
    place = doctor_node.container()
    slot = orphan(place, host_pid=True)
    with at_work(place, slot):
        found = doctor_node.findings()
    (refused,) = repair(doctor_node.node, found)
    assert not refused.done
    assert "is idle, or behind an idle one" in (refused.error or "")
    assert place.used() == GIB


def test_a_process_that_stands_twice(doctor_node):
    """A repair that was killed has taken its slot in and has not emptied the copy."""
    place = doctor_node.container()
    slot = orphan(place, host_pid=True)
    place.put("proc_num", slot + 1)
    place.put("slot_pid", 2**31 - 1, slot=1)
    place.put("slot_used.total", 0, slot=1)
    assert place.used() == 4 * GIB
    (idle,) = doctor_node.findings()
    assert (idle.kind, idle.cause) == (FindingKind.SLOT_MOVED, "idle")
    assert doctor_node.repair() == ()
    with at_work(place, slot):
        eventually(
            lambda: (
                [(each.cause, each.severity) for each in doctor_node.findings()]
                == [("doubled", Severity.WARNING)]
            )
        )
        heals(doctor_node)
    assert place.used() == 3 * GIB


# ---- Seqlocks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [Layout.V1_1, Layout.V1_2], ids=lambda layout: layout.value)
def test_a_seqlock_that_a_death_left_odd(doctor_node, layout):
    """In a file that says 1.1 too, where processes of 2.8.1 and later keep it at 1.2's place."""
    place = doctor_node.container(layout=layout)
    slot = place.add_process(DEAD, {0: GIB})
    put_seqlock(place, slot, 7)
    eventually(lambda: FindingKind.SEQLOCK_STUCK in doctor_node.kinds())
    heals(doctor_node)
    assert seqlock_of(place, slot) % 2 == 0


def test_a_seqlock_that_moves_is_no_finding(doctor_node):
    """A writer is inside at both checks, and has been in and out in between."""
    place, _ = doctor_node.started()
    place.put("slot_seqlock", 7)
    (found,) = doctor_node.findings(settle_s=0)
    assert (found.kind, found.cause) == (FindingKind.SEQLOCK_STUCK, "live_writer")
    assert confirmed(doctor_node.findings(settle_s=0), {found.key}) != []
    with at_work(place, 0):
        assert doctor_node.findings(settle_s=0) == ()


# ---- The table ----------------------------------------------------------------------------------


def test_where_proc_shows_too_little_that_is_said_once(doctor_node):
    places = [doctor_node.container(), doctor_node.container()]
    insides = [place.start() for place in places]
    elsewhere = DoctorNode(doctor_node.directory, proc=f"/proc/{insides[0].host_pid}/root/proc")
    try:
        (found,) = elsewhere.findings()
        assert (found.kind, found.cause) == (FindingKind.PROCESSES_UNKNOWN, "sight")
        assert found.container is None
        assert "1 slot in 1 region" in found.summary
        assert "hostPID" in found.advice
    finally:
        elsewhere.close()


def test_a_thousand_invented_processes_are_one_finding_and_nobody_is_mistaken(doctor_node):
    place, other = doctor_node.container(), doctor_node.container()
    victim = other.start()
    inside = place.start()
    for slot in range(1, SLOTS):
        place.put("slot_pid", slot + 1, slot=slot)
        place.put("slot_hostpid", victim.host_pid, slot=slot)
        place.put("slot_status", slot % 5, slot=slot)
        place.put("slot_used.total", 1 << 62, slot=slot)
    place.put("proc_num", SLOTS)
    found = doctor_node.findings()
    assert {each.kind for each in found} == {
        FindingKind.DEAD_PROCESS_COUNTED,
        FindingKind.SLOT_TABLE_FULL,
    }
    assert all(len(each.paragraph) < 2000 for each in found)
    done = doctor_node.repair()
    assert all(each.done for each in done)
    assert other.host_pids() == {1: victim.host_pid}
    assert {pid: host for pid, host in place.host_pids().items() if host} == {1: inside.host_pid}
    # While somebody lives the slots stay, empty, and newcomers of libvgpu find none.
    assert doctor_node.kinds() == [FindingKind.SLOT_TABLE_FULL]
    assert place.used() == GIB


# ---- One diagnosis at a time --------------------------------------------------------------------


def test_a_negative_time_is_refused(doctor_node):
    with pytest.raises(ValueError, match="0 or more seconds"):
        doctor_node.findings(settle_s=-1)


def test_a_process_that_leaves_during_the_second_look_is_no_finding(doctor_node):
    place, inside = doctor_node.started()
    pid, _ = place.spawn(inside, host_pid=False)
    observation = Observer.for_command(doctor_node.node).observe()
    inside.tell(f"@{pid}", "close")
    eventually(lambda: pid not in place.host_pids())
    assert doctor_node.findings(observation=observation) == ()

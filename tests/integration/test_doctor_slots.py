"""Slots: the dead, the orphaned, the doubled, the torn; each found, repaired where it can be."""

import os
import signal

import pytest
from containers import needs_namespaces
from doctor_node_scenes import GIB, DoctorNode, Place
from lock_bytes import NOBODY
from namespaces import needs_first_namespace
from region_bytes import SLOTS
from slot_bytes import WITH_SEQLOCK, account, at_work, move_last_into
from wait import eventually

from libhamiregion import Layout
from libhamiregion.node import FindingKind, Severity, diagnose, repair

pytestmark = [needs_namespaces, needs_first_namespace]

DEAD = NOBODY
# One of the generations that lock for everything, one of those that do not.
BOTH = pytest.mark.parametrize(
    "layout", [Layout.V1_1, Layout.V1_2], ids=lambda layout: layout.value
)


def heals(doctor_node: DoctorNode) -> None:
    """What was found is repaired, and nothing is found any more.

    A process that is to be seen at work may have had no turn on a busy machine: then once more.
    """

    def is_healed() -> bool:
        done = doctor_node.repair()
        return all(each.done for each in done) and doctor_node.findings() == ()

    eventually(is_healed)


# ---- The dead -----------------------------------------------------------------------------------


@BOTH
def test_killed_processes_that_count_are_one_finding(
    doctor_node: DoctorNode, layout: Layout
) -> None:
    place = doctor_node.place(layout)
    inside = place.start(2)
    killed = [place.spawn(inside, used=2 * GIB)[0] for _ in range(2)]
    living, _ = place.spawn(inside)
    for pid in killed:
        inside.tell("kill", pid)
    (found,) = doctor_node.findings()
    assert (found.kind, found.severity) == (FindingKind.DEAD_PROCESS_COUNTED, Severity.WARNING)
    assert found.summary == "4 GiB of 2 dead processes still counted"
    assert f"pids {killed[0]} and {killed[1]}" in found.evidence
    (done,) = doctor_node.repair()
    assert len(done.actions) == 2
    assert place.used() == 2 * GIB
    assert doctor_node.findings() == ()
    inside.tell(f"@{living}", "charge", GIB)
    assert place.used() == 3 * GIB


def test_a_process_that_became_another_program_is_dead(doctor_node: DoctorNode) -> None:
    place = doctor_node.place()
    inside = place.enter()
    pid, _ = place.spawn(inside)
    assert doctor_node.findings() == ()
    inside.tell(f"@{pid}", "execute")
    assert doctor_node.kinds() == [FindingKind.DEAD_PROCESS_COUNTED]
    heals(doctor_node)
    assert place.used() == 0


def test_dead_processes_that_hold_nothing_are_no_finding(doctor_node: DoctorNode) -> None:
    place = doctor_node.place()
    inside = place.start()
    pid, _ = place.spawn(inside, used=0)
    inside.tell("kill", pid)
    assert doctor_node.findings() == ()


# ---- Slots that were moved ----------------------------------------------------------------------


def orphan(place: Place, *, host_pid: bool) -> int:
    """A process of 3 GiB of which 1 GiB counts: libvgpu has moved its slot. Returns the slot."""
    file = place.file
    for number in range(2):
        file.add_process(DEAD + number, {0: GIB})
    place.spawn(place.enter(), used=0, host_pid=host_pid)
    slot: int = file.get("proc_num") - 1
    account(place.file, slot, GIB)
    # Two dead ones at once: the second move takes what the first has left at the end.
    move_last_into(file, 0)
    file.put("proc_num", 1)
    account(place.file, slot, 2 * GIB)
    assert place.used() == GIB
    return slot


@pytest.mark.parametrize(
    ("layout", "host_pid"),
    [(Layout.V1_1_POSTINIT, True), (Layout.V1_2, False), (Layout.V1_1, False)],
    ids=lambda value: value.value if isinstance(value, Layout) else None,
)
def test_an_orphaned_slot(doctor_node: DoctorNode, layout: Layout, host_pid: bool) -> None:
    place = doctor_node.place(layout)
    slot = orphan(place, host_pid=host_pid)
    others = [] if host_pid else [FindingKind.HOST_PID_WRONG]
    # It may be what an earlier process with that pid has left, until it is seen writing.
    (idle,) = (each for each in doctor_node.findings() if each.kind is FindingKind.SLOT_MOVED)
    assert (idle.severity, idle.cause, idle.repairable) == (Severity.INFO, "idle", False)
    assert f"stands in slot {slot}" in idle.evidence
    with at_work(place.file, slot):
        eventually(lambda: doctor_node.kinds() == [*others, FindingKind.SLOT_MOVED])
        heals(doctor_node)
    assert place.used() == 3 * GIB
    account(place.file, slot, GIB)
    assert place.used() == 4 * GIB


def test_an_orphan_that_is_idle_when_it_is_to_be_repaired_is_left(doctor_node: DoctorNode) -> None:
    place = doctor_node.place()
    slot = orphan(place, host_pid=True)
    with at_work(place.file, slot):
        found = doctor_node.findings()
    (refused,) = repair(doctor_node.node, found)
    assert not refused.done
    assert "is idle, or behind an idle one" in (refused.error or "")
    assert place.used() == GIB


def test_what_earlier_processes_left_behind_the_last_slot_is_no_finding(
    doctor_node: DoctorNode,
) -> None:
    place = doctor_node.place()
    inside = place.start()
    # The same pid in slots long given up, near and far.
    for slot in (5, 900):
        place.file.put("slot_pid", 1, slot=slot)
        place.file.put("slot_hostpid", 77, slot=slot)
    place.file.put("slot_pid", DEAD, slot=1)
    inside.tell("charge", GIB)
    assert doctor_node.findings() == ()


def test_a_process_that_stands_twice(doctor_node: DoctorNode) -> None:
    """A repair that was killed has taken its slot in and has not emptied the copy."""
    place = doctor_node.place()
    slot = orphan(place, host_pid=True)
    place.file.put("proc_num", slot + 1)
    place.file.put("slot_pid", 2**31 - 1, slot=1)
    place.file.put("slot_used.total", 0, slot=1)
    assert place.used() == 4 * GIB
    (idle,) = doctor_node.findings()
    assert (idle.kind, idle.cause) == (FindingKind.SLOT_MOVED, "idle")
    assert doctor_node.repair() == ()
    with at_work(place.file, slot):
        eventually(
            lambda: (
                [(each.cause, each.severity) for each in doctor_node.findings()]
                == [("doubled", Severity.WARNING)]
            )
        )
        heals(doctor_node)
    assert place.used() == 3 * GIB


def test_a_process_of_2_8_0_that_stands_twice_is_left(doctor_node: DoctorNode) -> None:
    """It accounts in both."""
    place = doctor_node.place(Layout.V1_1)
    place.file.add_process(DEAD, {0: GIB})
    place.start()
    move_last_into(place.file, 0)
    place.file.put("proc_num", 2)
    (found,) = doctor_node.findings()
    assert (found.kind, found.repairable) == (FindingKind.SLOT_MOVED, False)
    assert doctor_node.repair() == ()
    assert place.used() == 2 * GIB


# ---- Pid 0 --------------------------------------------------------------------------------------


@BOTH
def test_a_slot_without_a_pid(doctor_node: DoctorNode, layout: Layout) -> None:
    place = doctor_node.place(layout)
    place.file.add_process(0, {0: GIB})
    place.start()
    (found,) = doctor_node.findings()
    assert found.kind is FindingKind.SLOT_WITHOUT_PID
    assert (found.severity is Severity.ERROR) == (not layout.has_seqlock)
    heals(doctor_node)
    assert place.used() == GIB


@BOTH
def test_an_empty_slot_without_a_pid_wedges_early_generations_only(
    doctor_node: DoctorNode, layout: Layout
) -> None:
    place = doctor_node.place(layout)
    place.file.add_process(0)
    place.start()
    if layout.has_seqlock:
        assert doctor_node.findings() == ()
    else:
        assert doctor_node.kinds() == [FindingKind.SLOT_WITHOUT_PID]
        heals(doctor_node)


# ---- Seqlocks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", WITH_SEQLOCK)
def test_a_seqlock_that_a_killed_writer_left_odd(doctor_node: DoctorNode, layout: Layout) -> None:
    place = doctor_node.place(layout)
    inside = place.start()
    pid, _ = place.spawn(inside, used=0)
    place.file.put("slot_seqlock", 7, slot=1)
    inside.tell("kill", pid)
    (found,) = doctor_node.findings()
    assert (found.kind, found.pid, found.cause) == (FindingKind.SEQLOCK_STUCK, pid, "dead_writer")
    heals(doctor_node)


def test_a_seqlock_that_a_live_writer_keeps_odd_is_found_and_left_alone(
    doctor_node: DoctorNode,
) -> None:
    place = doctor_node.place()
    inside = place.start()
    place.file.put("slot_seqlock", 7)
    os.kill(inside.host_pid, signal.SIGSTOP)
    before = doctor_node.content()
    (found,) = doctor_node.findings()
    assert (found.kind, found.cause) == (FindingKind.SEQLOCK_STUCK, "live_writer")
    assert not found.repairable
    assert "kill -CONT" in found.advice
    assert doctor_node.repair() == ()
    assert doctor_node.content() == before


def test_a_seqlock_that_moves_is_no_finding(doctor_node: DoctorNode) -> None:
    """A writer is inside at the first look, and has been in and out by the second."""
    place = doctor_node.place()
    place.start()
    place.file.put("slot_seqlock", 7)
    views = doctor_node.node.view()
    place.file.put("slot_seqlock", 9)
    assert doctor_node.findings(views=views, settle_s=0) == ()
    place.file.put("slot_seqlock", 11)
    assert doctor_node.findings(settle_s=0) == ()


# ---- The table ----------------------------------------------------------------------------------


def test_a_full_table_and_one_that_is_nearly_full(doctor_node: DoctorNode) -> None:
    place = doctor_node.place()
    place.start()
    place.file.put("proc_num", SLOTS * 9 // 10)
    for slot in range(1, SLOTS):
        place.file.put("slot_pid", DEAD + slot, slot=slot)
    (found,) = doctor_node.findings()
    assert (found.kind, found.severity) == (FindingKind.SLOT_TABLE_FULL, Severity.WARNING)
    place.file.put("proc_num", SLOTS)
    (found,) = doctor_node.findings()
    assert (found.kind, found.severity) == (FindingKind.SLOT_TABLE_FULL, Severity.ERROR)
    assert found.summary == "1024 of 1024 slots taken"
    assert "1023 of them by dead processes" in found.evidence


def test_two_processes_that_one_slot_can_mean(doctor_node: DoctorNode) -> None:
    place = doctor_node.place()
    inside, stranger = place.start(), place.enter()
    stranger.tell("map", place.path)
    assert inside.init_pid == stranger.init_pid == 1
    (found,) = doctor_node.findings()
    assert (found.kind, found.cause) == (FindingKind.PROCESSES_UNKNOWN, "ambiguous")
    assert found.container is not None
    assert not found.repairable


def test_where_proc_shows_too_little_that_is_said_once(doctor_node: DoctorNode) -> None:
    places = [doctor_node.place(), doctor_node.place()]
    insides = [place.start() for place in places]
    elsewhere = DoctorNode(doctor_node.root, proc=f"/proc/{insides[0].host_pid}/root/proc")
    try:
        (found,) = elsewhere.findings()
        assert (found.kind, found.cause) == (FindingKind.PROCESSES_UNKNOWN, "sight")
        assert found.container is None
        assert "1 slot in 1 region" in found.summary
        assert "hostPID" in found.advice
    finally:
        elsewhere.close()


def test_a_thousand_invented_processes_are_one_finding_and_nobody_is_mistaken(
    doctor_node: DoctorNode,
) -> None:
    place, other = doctor_node.place(), doctor_node.place()
    victim = other.start()
    inside = place.start()
    for slot in range(1, SLOTS):
        place.file.put("slot_pid", slot + 1, slot=slot)
        place.file.put("slot_hostpid", victim.host_pid, slot=slot)
        place.file.put("slot_status", slot % 5, slot=slot)
        place.file.put("slot_used.total", 1 << 62, slot=slot)
    place.file.put("proc_num", SLOTS)
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


def test_a_negative_time_is_refused(doctor_node: DoctorNode) -> None:
    with pytest.raises(ValueError, match="0 or more seconds"):
        diagnose(doctor_node.node, settle_s=-1)


def test_a_process_that_leaves_during_the_second_look_is_no_finding(
    doctor_node: DoctorNode,
) -> None:
    place = doctor_node.place()
    inside = place.start()
    pid, _ = place.spawn(inside, host_pid=False)
    views = doctor_node.node.view()
    inside.tell(f"@{pid}", "close")
    eventually(lambda: pid not in place.host_pids())
    assert doctor_node.findings(views=views) == ()

"""Locks: of the dead, of nobody, held too long, broken; and those that are just in use."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from containers import needs_namespaces
from doctor_scenes import Hospital
from lock_bytes import NOBODY, hold, is_free, set_value, value_of
from namespaces import needs_first_namespace
from patience import eventually

from libhamiregion import Layout
from libhamiregion.node import FindingKind, diagnose, repair

pytestmark = [needs_namespaces, needs_first_namespace]


@pytest.fixture
def hospital(tmp_path: Path) -> Iterator[Hospital]:
    made = Hospital(tmp_path / "containers")
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("layout", [Layout.V1_1, Layout.V1_2], ids=lambda layout: layout.value)
def test_a_lock_whose_owner_was_killed(hospital: Hospital, layout: Layout) -> None:
    place = hospital.place(layout)
    place.start()
    hold(place.file, NOBODY)
    (found,) = hospital.findings()
    assert (found.kind, found.pid) == (FindingKind.LOCK_HELD_BY_DEAD, NOBODY)
    (done,) = hospital.repair()
    assert done.actions == ("the dead owner's lock was given back",)
    assert is_free(place.file)
    assert hospital.findings() == ()


def test_a_real_process_killed_with_the_lock_in_its_hands(hospital: Hospital) -> None:
    place = hospital.place()
    inside = place.start()
    pid, _ = place.spawn(inside, used=0)
    inside.tell(f"@{pid}", "lock")
    inside.tell("kill", pid)
    assert hospital.kinds() == [FindingKind.LOCK_HELD_BY_DEAD]
    assert all(each.done for each in hospital.repair())
    assert hospital.findings() == ()


def test_a_lock_that_nobody_has_signed_for(hospital: Hospital) -> None:
    """With nobody there it is proved at once; with a process there only if it stands still."""
    place = hospital.place()
    hold(place.file, 0)
    (found,) = hospital.findings()
    assert found.kind is FindingKind.LOCK_OWNERLESS
    assert "no process maps the file" in found.evidence
    (done,) = hospital.repair()
    assert done.actions == ("the lock that nobody had signed for was given back",)
    assert hospital.findings() == ()
    place.start()
    hold(place.file, 0)
    found = hospital.findings()[0]
    assert found.kind is FindingKind.LOCK_OWNERLESS
    assert "nothing has moved" in found.evidence
    # Watched for too short a time nothing is proved, and nothing done.
    (done,) = repair(hospital.node, [found], lock_watch_s=0.01)
    assert not done.done
    assert done.error is not None
    assert value_of(place.file) == 0


@pytest.mark.stress
def test_a_lock_that_nobody_has_signed_for_is_given_back_after_10_s(hospital: Hospital) -> None:
    place = hospital.place()
    place.start()
    hold(place.file, 0)
    (done,) = hospital.repair()
    assert done.done
    assert is_free(place.file)
    assert hospital.findings() == ()


def test_a_lock_that_a_live_process_does_not_give_back_is_left_alone(hospital: Hospital) -> None:
    place = hospital.place()
    inside = place.start()
    inside.tell("lock")
    os.kill(inside.host_pid, signal.SIGSTOP)
    before = hospital.content()
    (found,) = hospital.findings()
    assert (found.kind, found.pid) == (FindingKind.LOCK_HELD_TOO_LONG, 1)
    assert str(inside.host_pid) in found.summary
    assert not found.repairable
    assert hospital.repair() == ()
    assert hospital.content() == before
    os.kill(inside.host_pid, signal.SIGCONT)
    inside.tell("unlock")
    assert hospital.findings() == ()


def test_a_lock_that_is_taken_and_given_back_is_no_finding(hospital: Hospital) -> None:
    """However often it is held when somebody looks."""
    place = hospital.place()
    place.start().tell("lock_again_and_again")
    seen_held = 0

    def has_been_seen_held() -> bool:
        nonlocal seen_held
        assert hospital.findings(settle_s=0.02) == ()
        assert hospital.findings(settle_s=0) == ()
        seen_held += value_of(place.file) == 0
        return seen_held > 3

    eventually(has_been_seen_held)


def test_without_waiting_a_held_lock_is_compared_with_earlier_diagnoses(
    hospital: Hospital,
) -> None:
    """A single look at a lock that is held says nothing, and neither do two at short distance."""
    place = hospital.place()
    inside = place.start()
    inside.tell("lock")
    for _ in range(3):
        assert hospital.findings(settle_s=0) == ()
    inside.tell("unlock")


@pytest.mark.parametrize("attached", [True, False])
def test_a_semaphore_that_was_given_back_twice(hospital: Hospital, attached: bool) -> None:
    place = hospital.place()
    if attached:
        place.start()
    set_value(place.file, 2)
    (found,) = hospital.findings()
    assert (found.kind, found.cause) == (FindingKind.SEMAPHORE_IMPOSSIBLE, "lock")
    assert "stands at 2" in found.summary
    (done,) = hospital.repair()
    assert done.actions == ("the semaphore was set right",)
    assert hospital.findings() == ()


def test_the_start_up_semaphore(hospital: Hospital) -> None:
    place = hospital.place(Layout.V1_1_POSTINIT)
    set_value(place.file, 3, "sem_postinit")
    (found,) = hospital.findings()
    assert (found.kind, found.cause) == (FindingKind.SEMAPHORE_IMPOSSIBLE, "startup")
    assert all(each.done for each in hospital.repair())
    assert hospital.findings() == ()
    set_value(place.file, 0, "sem_postinit")
    assert hospital.kinds() == [FindingKind.STARTUP_LOCK_HELD]
    assert all(each.done for each in hospital.repair())
    assert hospital.findings() == ()
    # While processes use the region it may be in use, for as long as anybody can tell.
    place.start()
    set_value(place.file, 0, "sem_postinit")
    assert hospital.findings() == ()


def test_what_the_lock_hides_is_repaired_after_it(hospital: Hospital) -> None:
    place = hospital.place()
    inside = place.start(host_pid=False)
    pid, _ = place.spawn(inside)
    inside.tell("kill", pid)
    hold(place.file, NOBODY)
    assert hospital.kinds() == [
        FindingKind.DEAD_PROCESS_COUNTED,
        FindingKind.HOST_PID_MISSING,
        FindingKind.LOCK_HELD_BY_DEAD,
    ]
    done = hospital.repair()
    assert [each.finding.kind for each in done] == [
        FindingKind.LOCK_HELD_BY_DEAD,
        FindingKind.HOST_PID_MISSING,
        FindingKind.DEAD_PROCESS_COUNTED,
    ]
    assert all(each.done for each in done)
    assert hospital.findings() == ()


def test_a_lock_in_the_way_is_an_error_of_each_repair_and_no_more(hospital: Hospital) -> None:
    place = hospital.place()
    inside = place.start(host_pid=False)
    inside.tell("lock")
    before = hospital.content()
    found = [each for each in diagnose(hospital.node, settle_s=0) if each.repairable]
    (done,) = repair(hospital.node, found, timeout_s=0.02)
    assert not done.done
    assert done.error is not None
    assert "lock" in done.error
    assert hospital.content() == before
    inside.tell("unlock")
    (done,) = repair(hospital.node, found)
    assert done.done


def test_a_dry_run_writes_nothing_and_takes_no_lock(hospital: Hospital) -> None:
    place = hospital.place(Layout.V1_1)
    place.file.add_process(NOBODY + 1, {0: 1})
    place.start(host_pid=False)
    set_value(place.file, 2)
    # Whoever took this lock would wait for ever.
    locked = hospital.place()
    locked.file.add_process(NOBODY + 1, {0: 1})
    hold(locked.file, NOBODY)
    found = hospital.findings()
    before = hospital.content()
    done = repair(hospital.node, found, dry_run=True, timeout_s=60)
    assert len(done) == len(found) == 5
    assert all(each.done and each.actions for each in done), done
    assert all("would" in action for each in done for action in each.actions)
    assert hospital.content() == before


def test_only_the_kinds_that_are_asked_for_are_repaired(hospital: Hospital) -> None:
    place = hospital.place()
    place.file.add_process(NOBODY + 1, {0: 1})
    place.start(host_pid=False)
    found = hospital.findings()
    done = repair(hospital.node, found, kinds={FindingKind.HOST_PID_MISSING})
    assert [each.finding.kind for each in done] == [FindingKind.HOST_PID_MISSING]
    assert repair(hospital.node, found, kinds=()) == ()
    assert hospital.kinds() == [FindingKind.DEAD_PROCESS_COUNTED]

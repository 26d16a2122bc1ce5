"""Locks: of the dead, of nobody, held too long, broken; and those that are just in use."""

import os

import pytest
from support.containers import needs_namespaces
from support.lock_bytes import NOBODY, hold, is_free, set_value, value_of
from support.region_file import unchanged
from support.wait import eventually

from libhamiregion import Layout, open_region
from libhamiregion.doctor import FindingKind, confirmed, repair

pytestmark = needs_namespaces


def test_a_lock_that_nobody_has_signed_for(doctor_node):
    """Watched for too short a time nothing is proved, and nothing done."""
    place, _ = doctor_node.started()
    hold(place, 0)
    found = doctor_node.findings()[0]
    assert (found.kind, found.cause) == (FindingKind.LOCK_STUCK, "ownerless")
    (done,) = repair(doctor_node.node, [found], lock_watch_s=0.01)
    assert not done.done
    assert done.error is not None
    assert value_of(place) == 0


@pytest.mark.slow
def test_a_lock_that_nobody_has_signed_for_is_given_back_after_10_s(doctor_node):
    place, _ = doctor_node.started()
    hold(place, 0)
    (done,) = doctor_node.repair()
    assert done.done
    assert is_free(place)
    assert doctor_node.findings() == ()


def test_a_lock_that_is_taken_and_given_back_is_no_finding(doctor_node):
    """However often it is held when somebody looks."""
    place, inside = doctor_node.started()
    inside.tell("lock_again_and_again")
    seen_held = 0

    def has_been_seen_held() -> bool:
        nonlocal seen_held
        # It ends when the lock has moved; a machine that is busy may take its time.
        assert doctor_node.findings(settle_s=1.5) == ()
        assert doctor_node.findings(settle_s=0) == ()
        seen_held += value_of(place) == 0
        return seen_held > 3

    eventually(has_been_seen_held)


def test_a_held_lock_counts_if_two_diagnoses_see_the_same_owner(doctor_node):
    place, first = doctor_node.started()
    second, _ = place.spawn(first)
    first.tell("lock")
    (found,) = doctor_node.findings(settle_s=0)
    assert (found.kind, found.cause) == (FindingKind.LOCK_STUCK, "live_owner")
    again = doctor_node.findings(settle_s=0)
    assert confirmed(again, ()) == []
    assert confirmed(again, {found.key}) == [*again]
    first.tell("unlock")
    first.tell(f"@{second}", "lock")
    assert confirmed(doctor_node.findings(settle_s=0), {found.key}) == []


def test_a_tool_that_holds_the_lock_is_named(doctor_node):
    place, _ = doctor_node.started()
    with open_region(place.path, writable=True) as region, region.lock():
        (found,) = doctor_node.findings(settle_s=0)
    assert (found.kind, found.cause) == (FindingKind.LOCK_STUCK, "live_owner")
    assert f"the lock was held by process {os.getpid()} (" in found.summary


def test_a_lock_in_the_way_is_an_error_of_each_repair_and_no_more(doctor_node):
    _, inside = doctor_node.started(host_pid=False)
    inside.tell("lock")
    with unchanged(doctor_node):
        found = [each for each in doctor_node.findings(settle_s=0) if each.repairable]
        (done,) = repair(doctor_node.node, found, timeout_s=0.02)
        assert not done.done
        assert done.error is not None
        assert "lock" in done.error
    inside.tell("unlock")
    (done,) = repair(doctor_node.node, found)
    assert done.done


def test_a_dry_run_writes_nothing_and_takes_no_lock(doctor_node):
    place = doctor_node.container(layout=Layout.V1_1)
    place.add_process(NOBODY + 1, {0: 1})
    place.start(host_pid=False)
    set_value(place, 2)
    # Whoever took this lock would wait for ever.
    locked = doctor_node.container()
    locked.add_process(NOBODY + 1, {0: 1})
    hold(locked, NOBODY)
    found = doctor_node.findings()
    with unchanged(doctor_node):
        done = repair(doctor_node.node, found, dry_run=True, timeout_s=60)
        assert len(done) == len(found) == 5
        assert all(each.done and each.actions for each in done), done
        assert all("would" in action for each in done for action in each.actions)

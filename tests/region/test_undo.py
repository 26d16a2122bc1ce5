"""`undo` takes back what a job has changed, and nothing that anybody else has changed since."""

import json
import os
import pickle

import pytest
from support.node_scene import GIB
from support.region_file import RegionFile, unchanged

from libhamiregion import (
    Effect,
    LimitChange,
    LimitEdit,
    Region,
    SlotChange,
    UndoOutcome,
    ValueChange,
    create_region,
    open_region,
    undo,
)

UUIDS = ("GPU-9f1c2a60-0d5e-4c3b-8a77-1b2f6e5d4c30", "GPU-4b7d8e12-6a9f-4f01-b3c5-7e8d9a0b1c2d")
Changes = list[LimitChange | ValueChange]


@pytest.fixture
def file(region_file, layout) -> RegionFile:
    return region_file(layout, memory_limits=["8GiB", "4GiB"], sm_limits=[50], uuids=UUIDS)


def every_edit(region: Region) -> Changes:
    """One of each kind."""
    return [
        *region.set_memory_limit("80%"),
        *region.set_sm_limit(30),
        *region.edit_limits([LimitEdit(memory_limit="1GiB", device=1), LimitEdit(priority=0)]),
        region.set_utilization_switch(True),
        region.set_recent_kernel(2),
    ]


def statuses(outcomes: tuple[UndoOutcome, ...]) -> list[str]:
    return [outcome.status for outcome in outcomes]


def test_all_that_a_job_has_changed_goes_back_also_what_it_changed_twice(file):
    before = file.path.read_bytes()
    with open_region(file.path, writable=True) as region:
        changes = every_edit(region)
    assert file.path.read_bytes() != before
    assert statuses(undo(changes)) == ["undone"] * len(changes)
    assert file.path.read_bytes() == before
    undo(changes)
    assert file.path.read_bytes() == before


def test_a_value_that_somebody_else_has_set_since_stays(file):
    with open_region(file.path, writable=True) as region:
        changes = region.set_memory_limit("80%")
        region.set_memory_limit("5GiB", device=1)
        first, second = undo(changes)
        assert (region.memory_limit(0), region.memory_limit(1)) == (8 * GIB, 5 * GIB)
    assert (first.status, first.message) == ("undone", None)
    assert second.status == "conflict"
    assert "device 1 is 5 GiB" in str(second)
    assert str(first) == f"undone: {file.path}: device 0: memory limit 8 GiB -> 6.4 GiB"
    start = f"conflict: {file.path}: device 1: memory limit 4 GiB -> 3.2 GiB: "
    assert str(second).startswith(start)


@pytest.mark.parametrize("stored", [0, 100, 150, 2**64 - 1])
@pytest.mark.parametrize("travels", [False, True])
def test_an_unlimited_sm_limit_goes_back_to_the_very_value(region_file, stored, travels):
    file = region_file(uuids=UUIDS[:1])
    file.put("sm_limit", stored)
    before = file.path.read_bytes()
    with open_region(file.path, writable=True) as region:
        changes: Changes = [*region.set_sm_limit(30), *region.set_sm_limit(20)]
        if travels:
            texts = [json.dumps(change.to_dict()) for change in changes]
            changes = [LimitChange.from_dict(json.loads(text)) for text in texts]
        assert statuses(undo(changes)) == ["undone", "undone"]
        assert file.path.read_bytes() == before
        # Not known: as a plan has it.
        fields = region.set_sm_limit(30)[0].to_dict()
        fields["stored_before"] = None
        assert statuses(undo([LimitChange.from_dict(fields)])) == ["undone"]
        # As it was kept by a version that did not know it.
        kept = region.set_sm_limit(30)[0].to_dict()
        del kept["stored_before"]
        assert statuses(undo([LimitChange.from_dict(kept)])) == ["undone"]
        assert region.sm_limit(0) is None


@pytest.mark.parametrize("travel", [pickle.dumps, None], ids=["pickle", "json"])
def test_changes_of_a_dry_run_can_be_kept_on_disk_before_they_are_made(file, travel):
    with open_region(file.path, writable=True) as region:
        planned = region.set_memory_limit("80%", dry_run=True)
        if travel is None:
            text = json.dumps([change.to_dict() for change in planned])
            again = [LimitChange.from_dict(each) for each in json.loads(text)]
        else:
            again = list(pickle.loads(travel(planned)))
        assert (again, again[0].path) == (list(planned), str(file.path))
        assert (again[0].effect, again[0].file_id) == (Effect.IMMEDIATE, region.file_id)
        assert statuses(undo(again)) == ["not_needed", "not_needed"]
        region.set_memory_limit("80%", expected=8 * GIB, device=0)
        assert statuses(undo(again)) == ["undone", "not_needed"]
        assert region.memory_limit(0) == 8 * GIB


def test_a_value_travels_as_json_and_nothing_else_is_taken_for_one(file):
    with open_region(file.path, writable=True) as region:
        change = region.set_priority(1)
    fields = json.loads(json.dumps(change.to_dict()))
    again = ValueChange.from_dict(fields)
    assert (again, again.path, again.file_id) == (change, change.path, change.file_id)
    with pytest.raises(ValueError, match=r"a LimitChange has the fields .*'device'.*, not .*field"):
        LimitChange.from_dict(fields)
    del fields["before"]
    with pytest.raises(ValueError, match="a ValueChange has the fields"):
        ValueChange.from_dict(fields)
    with pytest.raises(ValueError, match="not list"):
        ValueChange.from_dict([])  # type: ignore[arg-type]


def test_a_file_that_was_removed_or_replaced_is_not_written(file):
    other = file.path.with_name("other.cache")
    create_region(other, memory_limits=["6GiB"], uuids=UUIDS[:1])
    with open_region(file.path, writable=True) as region:
        changes = [region.set_memory_limit("6GiB", device=0)]
    other.replace(file.path)
    (outcome,) = undo(changes)
    assert (outcome.status, outcome.message) == ("gone", "another file is there by now")
    with open_region(file.path) as region:
        assert region.memory_limit(0) == 6 * GIB
    file.path.unlink()
    assert statuses(undo(changes)) == ["gone"]


def test_a_value_goes_back_at_once_not_by_way_of_the_values_in_between(region_file):
    file = region_file(memory_limits=["8GiB"], uuids=UUIDS[:1])
    with open_region(file.path, writable=True) as region:
        changes = [
            region.set_memory_limit("2GiB", device=0),
            region.set_priority(0),
            region.set_memory_limit("7GiB", device=0),
        ]
        file.add_process(os.getpid(), {0: 3 * GIB})
        assert statuses(undo(changes)) == ["undone"] * 3
        assert region.memory_limit(0) == 8 * GIB
        lower = region.set_memory_limit("9GiB", device=0)
        file.add_process(os.getpid(), {0: 6 * GIB})
        assert statuses(undo([lower])) == ["refused"]
        assert statuses(undo([lower], force=True)) == ["undone"]


def test_a_suspension_goes_back_unless_someone_else_has_ended_it(file):
    file.add_process(7)
    with open_region(file.path, writable=True) as region:
        change = SlotChange.from_dict(json.loads(json.dumps(region.suspend(7).to_dict())))
        assert str(change) == f"{file.path}: process 7: status 1 -> 2"
        assert statuses(undo([change])) == ["undone"]
        assert statuses(undo([change])) == ["not_needed"]
        file.put("slot_status", 0)
        assert statuses(undo([change])) == ["conflict"]
        file.put("slot_pid", 8)
        assert statuses(undo([change])) == ["gone"]


def test_a_value_that_someone_else_has_set_to_one_in_between_stays(file):
    with open_region(file.path, writable=True) as region:
        changes = [region.set_memory_limit(size, device=0) for size in ("7GiB", "6GiB", "5GiB")]
        region.set_memory_limit("6GiB", device=0)
        assert statuses(undo(changes)) == ["conflict"] * 3
        region.set_memory_limit("8GiB", device=0)
        assert statuses(undo(changes)) == ["not_needed"] * 3


def test_a_value_that_someone_else_has_set_between_two_of_ours_comes_back(file):
    with open_region(file.path, writable=True) as region:
        first = region.set_memory_limit("7GiB", device=0)
        region.set_memory_limit("9GiB", device=0)
        second = region.set_memory_limit("6GiB", device=0)
        assert statuses(undo([first, second])) == ["conflict", "undone"]
        assert region.memory_limit(0) == 9 * GIB


def test_one_that_cannot_be_undone_does_not_stop_the_others(region_file):
    used, free = (region_file(memory_limits=["2GiB"], uuids=UUIDS[:1]) for _ in range(2))
    changes: Changes = []
    for file in (used, free):
        with open_region(file.path, writable=True) as region:
            changes += region.set_memory_limit("8GiB")
    used.add_process(os.getpid(), {0: 5 * GIB})
    refused, undone = undo(changes)
    assert (refused.status, undone.status) == ("refused", "undone")
    assert "device 0 uses 5 GiB" in str(refused.message)
    assert statuses(undo(changes, force=True)) == ["undone", "not_needed"]


def test_a_device_that_only_its_limit_told_of_gets_it_back(region_file):
    file = region_file(memory_limits=["2GiB", "1GiB"])
    with open_region(file.path, writable=True) as region:
        changes = region.set_memory_limit(None)
        assert statuses(undo(changes)) == ["undone", "undone"]
        assert (region.memory_limit(0), region.memory_limit(1)) == (2 * GIB, GIB)


def test_what_a_damaged_region_held_goes_back_as_it_was(region_file):
    file = region_file(memory_limits=["2GiB"], priority=-7)
    with unchanged(file.path), open_region(file.path, writable=True) as region:
        assert statuses(undo([region.set_priority(0)])) == ["undone"]


def test_only_changes_of_limits_can_be_undone(file):
    with open_region(file.path, writable=True) as region:
        change = region.set_priority(0)
        for wrong in (None, 7, "changes", LimitEdit(priority=0)):
            with pytest.raises(TypeError, match="takes changes"):
                undo([change, wrong])  # type: ignore[list-item]
        assert region.priority == 0


# ---- values that no edit returns, and dry runs ---------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"before": "6GiB"},
        {"before": -1},
        {"before": True},
        {"before": 2**64},
        {"after": 1.5},
        {"device": 16},
        {"device": None},
        {"kind": "disk"},
        {"path": None},
        {"file_id": [1]},
        {"file_id": "no"},
        {"effect": None},
        {"effect": "sometimes"},
        {"stored_before": -5},
    ],
)
def test_a_value_of_a_file_that_no_edit_returns_is_refused_before_anything_is_done(wrong, file):
    with open_region(file, writable=True) as region:
        good = region.set_memory_limit("1GiB", device=1)
        bad = region.set_memory_limit("2GiB", device=0)
    with unchanged(file):
        with pytest.raises(ValueError, match=r"no LimitChange has|is not a valid Effect"):
            LimitChange.from_dict(bad.to_dict() | wrong)
        for name, value in wrong.items():
            setattr(bad, name, value)
        with pytest.raises(ValueError, match="no LimitChange has"):
            undo([good, bad])


def test_a_field_that_no_edit_changes_is_refused(file):
    with open_region(file, writable=True) as region:
        value = region.set_recent_kernel(2).to_dict()
    slot = SlotChange(5, "status", None, 1, 2, None, str(file.path), (1, 2)).to_dict()
    for kind, fields in (
        (ValueChange, value),
        (SlotChange, slot),
        (SlotChange, slot | {"device": 0}),
    ):
        assert kind.from_dict(json.loads(json.dumps(fields))).to_dict() == fields
        assert len({kind.from_dict(fields), kind.from_dict(fields)}) == 1
        with pytest.raises(ValueError, match=f"no {kind.__name__} has field='pid'"):
            kind.from_dict(fields | {"field": "pid"})


def test_a_dry_run_says_what_would_be_undone_and_changes_nothing(file):
    with open_region(file.path, writable=True) as region:
        changes = every_edit(region)
        if file.layout.has_limit_per_device:
            changes.append(region.set_burst(True))
    changed = file.content()
    dry = undo(changes, dry_run=True)
    assert file.content() == changed
    assert undo(changes) == dry
    assert file.content() != changed
    assert set(statuses(undo(changes, dry_run=True))) <= {"not_needed", "undone"}

"""A plan put into effect, and taken back; the state directory."""

import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.node_scene import GIB
from support.plan_scene import PlanScene, plan, plan_nodes, plan_scene
from support.region_file import unchanged

from libhamiregion import Layout, create_region, open_region
from libhamiregion.node import Node
from libhamiregion.plan import (
    LimitPlan,
    Limits,
    PlanResult,
    apply_diff,
    diff_plan,
    load_plan,
    parse_plan,
    plan_text,
    undo_plan,
)
from libhamiregion.plan.state import PlanState

SIX = "{select: {}, set: {memory_limit: 6GiB, sm_limit: 20, priority: 0}}"


scene = pytest.fixture(plan_scene)
node = pytest.fixture(plan_nodes)


def apply(scene: PlanScene, node: Node, wanted: LimitPlan, *, force: bool = False) -> PlanResult:
    node.refresh(processes=False)
    found = diff_plan(node, wanted, force=force)
    return apply_diff(node, found, state=scene.state, force=force)


def statuses(result: PlanResult) -> dict[str, str]:
    return {each.diff.container.name or "": each.status for each in result.outcomes}


def undo(scene: PlanScene, node: Node, result: PlanResult) -> PlanResult:
    assert result.undo_path is not None
    return apply(scene, node, load_plan(result.undo_path))


def test_a_plan_is_applied_in_every_layout_and_undone_byte_for_byte(scene, node):
    regions = [scene.container(layout=layout) for layout in Layout]
    before = [region.content() for region in regions]
    result = apply(scene, node, plan(SIX))
    assert (result.all_applied, len(result.outcomes)) == (True, len(regions))
    for region in regions:
        found = region.limits()
        assert found["memory"][:3] == [6 * GIB, 6 * GIB, 0]
        assert found["sm"][:3] == [20, 20, 100]
        assert found["priority"] == 0
    assert apply(scene, node, plan(SIX)) == PlanResult(())
    assert undo(scene, node, result).all_applied
    assert [region.content() for region in regions] == before


LIMITS = st.one_of(st.none(), st.integers(1, 2**64 - 1))
PERCENTS = st.one_of(st.none(), st.integers(1, 99))


# The last limit of the last device of a container that has not reported its devices.
@example(
    memory=[],
    sm=[None, None, None, 1, 1],
    has_reported=False,
    device=4,
    limit=None,
    percent=None,
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(
    memory=st.lists(LIMITS, max_size=16),
    sm=st.lists(PERCENTS, max_size=16),
    has_reported=st.booleans(),
    device=st.none() | st.integers(0, 15),
    # The most that a plan can set.
    limit=st.none() | st.integers(1, 2**63 - 1),
    percent=PERCENTS,
)
def test_whatever_stood_there_is_restored(
    tmp_path_factory, memory, sm, has_reported, device, limit, percent
):
    scene = PlanScene(tmp_path_factory.mktemp("node"))
    spec = {} if has_reported else {"uuids": ()}
    region = scene.container(memory_limits=memory, sm_limits=sm, **spec)
    select = "" if device is None else f"device: {device}"
    shown = "unlimited" if limit is None else f"{limit}B"
    wanted = f"select: {{{select}}}, set: {{memory_limit: {shown}, sm_limit: {percent or 100}}}"
    wanted = f"{{{wanted}, force: true}}"
    before = region.limits()
    with scene.node() as node:
        result = apply(scene, node, plan(wanted))
        assert result.all_applied
        if result.undo_path is not None:
            assert undo(scene, node, result).all_applied
    assert region.limits() == before


def test_the_undo_plan_names_one_container_of_one_pod(scene, node):
    """Also where a name looks like a pattern, or is no Unicode."""
    odd, other = scene.container("a[bc]*"), scene.container("ab", pod_uid="u")
    node.refresh(processes=False)
    chosen = diff_plan(node, plan('{select: {container: "a[[]*"}, set: {sm_limit: 7}}')).changes
    found = parse_plan(plan_text(undo_plan(chosen)))
    assert {rule.select.pod_uid for rule in found.rules} == {odd.pod_uid}
    assert [rule.select.device for rule in found.rules] == ["0", "1"]
    # What `limits diff` calls them where they no longer hold.
    names = [f"{odd.pod_uid}/a[bc]* device {device}" for device in range(2)]
    assert (found.name, [rule.name for rule in found.rules]) == ("undo", names)
    assert {each.container.name for each in diff_plan(node, found).containers} == {"a[bc]*"}
    assert other.limits()["sm"][0] == 50
    raw = scene.container(os.fsdecode(b"tr\xffin"), pod=None)
    result = apply(scene, node, plan(SIX))
    assert raw.limits()["priority"] == 0
    assert undo(scene, node, result).all_applied
    assert raw.limits()["priority"] == 1


def test_a_claims_undo_rule_does_not_reach_a_container_of_that_name(scene, tmp_path):
    uid = "6f1c0d8e-9f2b-4f0a-8a51-0c5f6d1e2a3b"
    (tmp_path / "claims" / uid).mkdir(parents=True)
    create_region(tmp_path / "claims" / uid / "a.cache", memory_limits=["4GiB"])
    scene.container(uid)
    with Node([tmp_path / "claims", scene.root]) as node:
        node.refresh(processes=False)
        rules = undo_plan(diff_plan(node, plan("{select: {}, set: {sm_limit: 7}}")).changes).rules
        assert {each.claim_uid or each.name for each in node.containers} == {uid}
        for container in node.containers:
            reached = [rule.select.matches(container) for rule in rules]
            assert reached.count(True) == (1 if container.claim_uid else 2)


@pytest.mark.parametrize("limit", [2**64 - 1, 2**63, 2**64 - 2**40])
def test_what_only_a_damaged_region_holds_is_changed_as_well(scene, node, limit):
    """A container cannot escape a plan by a limit that nobody could set, nor spoil its undo."""
    region = scene.container()
    region.put("limit", limit)
    region.put("priority", -5)
    result = apply(scene, node, plan(SIX))
    assert statuses(result) == {"train": "applied"}
    assert region.limits()["memory"][0] == 6 * GIB
    assert result.undo_path is not None
    # No plan can hold that priority.
    limits = [rule.set for rule in load_plan(result.undo_path).rules]
    assert limits == [
        *(Limits(limit), Limits(4 * GIB)),
        *(Limits(sm_limit=50), Limits(sm_limit=None)),
    ]
    assert undo(scene, node, result).all_applied
    assert region.limits()["memory"][0] == limit


def test_a_container_that_reports_its_devices_later_is_restored_all_the_same(scene, node):
    region = scene.container(memory_limits=("8GiB",) * 16, sm_limits=(30,) * 16, uuids=())
    node.refresh(processes=False)
    result = apply(scene, node, plan(SIX))
    assert result.undo_path is not None
    rules = load_plan(result.undo_path).rules
    assert [(rule.select.device, rule.set) for rule in rules] == [
        (None, Limits(8 * GIB)),
        (None, Limits(sm_limit=30)),
        (None, Limits(priority=1)),
    ]
    with open_region(region, writable=True):
        region.put("device_num", 1)
        region.put("uuids", b"GPU-9f1c2a60-0d5e-4c3b-8a77-1b2f6e5d4c30".ljust(96, b"\0"))
    assert undo(scene, node, result).all_applied
    assert region.limits()["memory"][0] == 8 * GIB
    assert region.limits()["priority"] == 1


# ---- each container wholly, or not at all ---------------------------------------------


def test_the_undo_plan_is_on_disk_before_the_first_change_or_nothing_is_changed(
    scene, node, tmp_path, monkeypatch
):
    region = scene.container()
    with unchanged(region):
        node.refresh(processes=False)
        diff = diff_plan(node, plan(SIX))
        (tmp_path / "undo").write_text("an earlier one")
        for path, error in ((tmp_path / "no" / "a", FileNotFoundError), ("undo", FileExistsError)):
            with pytest.raises(error):
                apply_diff(node, diff, undo=tmp_path / path)
    assert (tmp_path / "undo").read_text() == "an earlier one"
    seen = []
    opened = Node.open

    def looking(node: Node, container: Any) -> Any:
        seen.append(load_plan(tmp_path / "undo.yaml"))
        return opened(node, container)

    monkeypatch.setattr(Node, "open", looking)
    result = apply_diff(node, diff, undo=tmp_path / "undo.yaml")
    assert (result.all_applied, result.undo_path) == (True, str(tmp_path / "undo.yaml"))
    assert len(seen[0].rules) == 5


def test_the_undo_plan_leaves_what_somebody_else_has_set_since(scene, node):
    ours, theirs = scene.container(), scene.container("theirs")
    before = theirs.limits()
    result = apply(
        scene, node, plan("{select: {}, set: {memory_limit: 80%, sm_limit: 30, priority: 0}}")
    )
    theirs.put("limit", 5 * GIB, device=1)
    theirs.put("sm_limit", 77)
    assert result.undo_path is not None
    found = diff_plan(node, load_plan(result.undo_path))
    assert {(skip.reason, skip.message) for skip in found.unapplied} == {
        ("changed", "memory limit of device 1 is 5 GiB by now, not 3.2 GiB"),
        ("changed", "SM limit of device 0 is 77 % by now, not 30 %"),
    }
    assert undo(scene, node, result).all_applied
    assert ours.limits() == before
    before["memory"][1], before["sm"][0] = 5 * GIB, 77
    assert theirs.limits() == before


def test_a_container_that_has_changed_since_the_diff_is_left_as_it_is(scene, node):
    """By another writer, by more use, by another region; the others are changed."""
    names = ("limit", "sm_limit", "priority", "use", "replaced", "free")
    regions = {name: scene.container(name) for name in names}
    node.refresh(processes=False)
    diff = diff_plan(node, plan(SIX))
    regions["limit"].put("limit", 7 * GIB, device=1)
    regions["sm_limit"].put("sm_limit", 77, device=1)
    regions["priority"].put("priority", 3)
    regions["use"].add_process(1, {0: 7 * GIB})
    path = regions["replaced"].path
    path.with_suffix(".new").write_bytes(regions["replaced"].content())
    path.with_suffix(".new").replace(path)
    before = {name: region.content() for name, region in regions.items()}
    result = apply_diff(node, diff, state=scene.state)
    assert statuses(result) == {
        **dict.fromkeys(("limit", "sm_limit", "priority"), "conflict"),
        "use": "refused",
        "replaced": "failed",
        "free": "applied",
    }
    assert not result.all_applied
    messages = {each.diff.container.name: each.message or "" for each in result.outcomes}
    assert "as expected; nothing was changed" in messages["limit"]
    assert "device 0 uses 7 GiB" in messages["use"]
    assert "has been replaced" in messages["replaced"]
    changed = {name for name, region in regions.items() if region.content() != before[name]}
    assert changed == {"free"}


def test_what_is_refused_in_the_diff_is_applied_only_by_force(scene, node):
    region = scene.container()
    region.add_process(1, {1: 7 * GIB})
    node.refresh(processes=False)
    with unchanged(region):
        refused = diff_plan(node, plan(SIX))
        assert refused.containers[0].edits
        assert apply_diff(node, refused, state=scene.state) == PlanResult(())
    assert apply(scene, node, plan(SIX), force=True).all_applied
    assert region.limits()["memory"][1] == 6 * GIB


# ---- the state directory -----------------------------------------------------------------


def test_what_plans_remember_is_for_their_owner_only(scene, node, tmp_path):
    region = scene.container()
    result = apply(scene, node, plan(SIX))
    assert stat.S_IMODE(scene.state.stat().st_mode) == 0o700
    assert result.undo_path is not None
    assert stat.S_IMODE(Path(result.undo_path).stat().st_mode) == 0o600
    scene.state.chmod(0o777)
    with unchanged(region), pytest.raises(PermissionError, match="others can write"):
        undo(scene, node, result)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="link"):
        PlanState(tmp_path / "link").make()

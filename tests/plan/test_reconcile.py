"""A node kept on a plan: real files, real regions, one pass after the other."""

import errno
from typing import Any

import pytest
from support.node_scene import GIB, SceneContainer
from support.plan_scene import GPUS, plan_nodes, plan_scene
from support.plan_watching import FIVE, SIX, kept_on, memory, memory_after, set_plan, watches

from libhamiregion import create_region
from libhamiregion.node import Node
from libhamiregion.plan import (
    LimitPlan,
    PlanError,
    PlanLocked,
    PlanReconciler,
    apply_diff,
    diff_plan,
    load_plan,
)

scene = pytest.fixture(plan_scene)
node = pytest.fixture(plan_nodes)
watch = pytest.fixture(watches)


# ---- what a pass does -----------------------------------------------------------------


def test_the_first_pass_sets_what_the_plan_says_and_the_next_has_nothing_to_do(
    scene, watch, events
):
    region = scene.container()
    watcher = kept_on(scene, watch, SIX)
    assert memory_after(watcher, region) == [6 * GIB, 6 * GIB]
    assert events.kinds() == ["plan_loaded", "changed"]
    changed = events.of("changed")[0]
    assert changed.message.endswith(
        "/train: device 0: memory limit 8 GiB -> 6 GiB; device 1: memory limit 4 GiB -> 6 GiB"
    )
    assert changed.detail == {
        "cause": "plan",
        "pod": "research/bert-0",
        "memory_limit.0": 6 * GIB,
        "memory_limit.1": 6 * GIB,
    }
    counters = watcher.counters()
    assert (counters["plan_passes"], counters["plan_edits"]) == (2, 2)


def test_an_edit_of_somebody_else_is_undone_and_reported_less_and_less_often(scene, watch, events):
    region = scene.container()
    watcher = kept_on(scene, watch, SIX)
    for _ in range(20):
        region.put("limit", 7 * GIB, device=1)
        assert memory_after(watcher, region) == [6 * GIB, 6 * GIB]
    drifts = [each for each in events.of("changed") if each.detail["cause"] == "drift"]
    assert len(drifts) == 5  # the 1st, 2nd, 4th, 8th and 16th
    assert "device 1: memory limit 7 GiB -> 6 GiB (changed by others)" in drifts[0].message
    assert watcher.counters()["plan_drifts"] == 20


def test_containers_come_restart_and_go(scene, watch, events, node):
    watcher = kept_on(scene, watch, SIX)
    region = scene.container()
    assert memory_after(watcher, region) == [6 * GIB, 6 * GIB]
    region.path.unlink()
    watcher.run()
    assert events.of("skipped")[0].detail["reason"] == "no_region"
    create_region(region.path, memory_limits=("3GiB",))
    assert memory_after(watcher, region) == [6 * GIB, 0]
    assert {each.detail["cause"] for each in events.of("changed")} == {"plan"}
    # What was there before is what the new region had.
    set_plan(scene)
    assert memory_after(watcher, region) == [3 * GIB, 0]
    set_plan(scene, SIX)
    watcher.run()
    region.path.unlink()
    region.path.parent.rmdir()
    watcher.run()
    assert node.containers == ()
    assert load_plan(scene.state / "undo-watch.yaml").rules == ()


def test_a_file_that_replaces_a_region_between_two_passes_has_values_of_its_own(scene, watch):
    region = scene.container()
    watcher = kept_on(scene, watch, "{select: {}, set: {memory_limit: 50%}}")
    assert memory(region) == [4 * GIB, 2 * GIB]
    region.path.unlink()
    create_region(region.path, memory_limits=("4GiB", "6GiB"))
    watcher.run()
    assert memory_after(watcher, region) == [2 * GIB, 3 * GIB]
    set_plan(scene)
    assert memory_after(watcher, region) == [4 * GIB, 6 * GIB]


def test_a_file_that_replaces_a_region_between_two_watches_keeps_its_values(scene, watch):
    """Also if it has just the values that the plan gave the old one."""
    region = scene.container()
    watcher = kept_on(scene, watch, SIX)
    watcher.stop()
    # While the old file is there, so that the new one has another inode.
    new = region.path.with_name("new")
    create_region(new, memory_limits=("6GiB", "6GiB"), uuids=GPUS)
    new.rename(region.path)
    set_plan(scene)
    assert memory_after(watch(), region) == [6 * GIB, 6 * GIB]


# ---- what was there before --------------------------------------------------------------


def test_what_the_plan_names_no_longer_goes_back_to_what_it_was(scene, watch, events, node):
    """Also where the watcher has been another process meanwhile."""
    region = scene.container()
    before = region.content()
    first = kept_on(scene, watch, SIX, "{select: {}, set: {sm_limit: 20, priority: 0}}")
    set_plan(scene, FIVE)
    assert memory_after(first, region) == [5 * GIB, 5 * GIB]
    assert (region.limits()["sm"][:2], region.limits()["priority"]) == ([50, 100], 1)
    first.stop()
    set_plan(scene)
    watch().run()
    assert [each.detail["cause"] for each in events.of("changed")] == ["plan", "plan", "restore"]
    assert region.content() == before
    assert diff_plan(node, LimitPlan()).changes == ()


def test_what_was_there_before_a_container_reported_its_devices_goes_back(scene, watch):
    region = scene.container(memory_limits=("8GiB",) * 16, sm_limits=(), uuids=())
    watcher = watch()
    set_plan(scene, SIX)
    watcher.run()
    region.put("device_num", 1)
    region.put("uuids", GPUS[0].encode().ljust(96, b"\0"))
    set_plan(scene, FIVE)
    assert memory_after(watcher, region) == [5 * GIB, 6 * GIB]
    set_plan(scene)
    for _ in range(3):
        watcher.run()
    assert memory(region)[0] == 8 * GIB
    assert load_plan(scene.state / "undo-watch.yaml").rules == ()


def test_what_somebody_else_has_set_since_is_not_taken_back(scene, watch):
    region = scene.container()
    watcher = kept_on(scene, watch, SIX)
    region.put("limit", 7 * GIB, device=1)
    set_plan(scene)
    assert memory_after(watcher, region) == [8 * GIB, 7 * GIB]


def test_a_percentage_is_of_what_stood_there_before_and_does_not_shrink(scene, watch, events):
    region = scene.container()
    set_plan(scene, "{select: {}, set: {memory_limit: 50%}}")
    for _ in range(2):
        watcher = watch()
        watcher.run()
        assert memory_after(watcher, region) == [4 * GIB, 2 * GIB]
        watcher.stop()
    region.put("limit", 7 * GIB)
    assert memory_after(watch(), region) == [4 * GIB, 2 * GIB]
    assert events.of("changed")[-1].detail["cause"] == "plan"


def test_a_percentage_of_what_a_rule_expects_stays_once_it_is_set(scene, watch, events):
    region = scene.container()
    set_plan(scene, "{select: {}, set: {memory_limit: 50%}, only_if: {memory_limit: 8GiB}}")
    watcher = watch()
    for _ in range(3):
        assert memory_after(watcher, region) == [4 * GIB, 4 * GIB]
    assert (len(events.of("changed")), len(events.of("skipped"))) == (1, 1)
    region.put("limit", 7 * GIB)
    assert memory_after(watcher, region) == [7 * GIB, 4 * GIB]


def test_a_percentage_of_a_rule_with_a_condition_stays_once_it_is_set(scene, watch):
    region = scene.container()
    set_plan(
        scene,
        "{select: {}, set: {memory_limit: 6GiB}, only_if: {memory_limit: 8GiB}}",
        "{select: {}, set: {memory_limit: 50%}}",
    )
    watcher = watch()
    for _ in range(3):
        assert memory_after(watcher, region) == [3 * GIB, 2 * GIB]


def test_the_undo_plan_of_a_watch_restores_everything(scene, watch, node):
    regions = [scene.container(pod=f"bert-{number}") for number in range(3)]
    before = [region.content() for region in regions]
    watcher = kept_on(scene, watch, SIX, "{select: {pod: bert-1}, set: {sm_limit: 3, priority: 7}}")
    set_plan(scene, FIVE)
    watcher.run()
    watcher.stop()
    undo = load_plan(scene.state / "undo-watch.yaml")
    assert apply_diff(node, diff_plan(node, undo), state=scene.state).all_applied
    assert [region.content() for region in regions] == before


def test_a_damaged_file_of_earlier_values_stops_the_watch_and_changes_nothing(scene, watch):
    region = scene.container()
    before = memory(region)
    set_plan(scene, SIX)
    scene.state.mkdir(mode=0o700)
    for content in (b"{", b"[1]", b"\xff"):
        (scene.state / "undo-watch.yaml").write_bytes(content)
        watcher = watch()
        with pytest.raises(PlanError, match=r"undo-watch\.yaml"):
            watcher.run()
        watcher.stop()
    assert memory(region) == before


# ---- refusals and failures ------------------------------------------------------------


def put_used(region: SceneContainer, slot: int, nbytes: int) -> None:
    """As libvgpu leaves it: a total that is no sum of its kinds has a writer inside."""
    region.put("slot_used.data", nbytes, slot=slot)
    region.put("slot_used.total", nbytes, slot=slot)


def test_a_refusal_is_reported_once_and_ends_when_its_reason_does(scene, watch, events):
    region = scene.container()
    slot = region.add_process(1, {0: 7 * GIB})
    set_plan(scene, SIX)
    watcher = watch()
    for used in (7, 7.1, 7.2, 7.3):
        put_used(region, slot, int(used * GIB))
        assert memory_after(watcher, region) == [8 * GIB, 4 * GIB]
    (refused,) = events.of("refused")
    assert "device 0 uses 7 GiB" in refused.message
    assert watcher.counters()["plan_refusals"] == 1
    put_used(region, slot, GIB)
    assert memory_after(watcher, region) == [6 * GIB, 6 * GIB]
    assert events.of("changed")[0].detail["cause"] == "plan"


def test_a_container_that_fails_is_tried_less_and_less_often(scene, watch, events, monkeypatch):
    region, good = scene.container("bad"), scene.container("good")
    tried = []
    opened = Node.open

    def refuse(self: Node, container: Any) -> Any:
        if container.name == "bad":
            tried.append(container)
            raise PermissionError(1, "not you")
        return opened(self, container)

    monkeypatch.setattr(Node, "open", refuse)
    set_plan(scene, SIX)
    watcher = watch()
    for _ in range(40):
        watcher.run()
    assert memory(good) == [6 * GIB, 6 * GIB]
    assert memory(region) == [8 * GIB, 4 * GIB]
    assert len(tried) <= 6
    assert len(events.of("failed")) == len(tried).bit_length()
    monkeypatch.undo()
    set_plan(scene, FIVE)
    watcher.run()  # a new plan is worth a new try
    assert memory(region) == [5 * GIB, 5 * GIB]


@pytest.mark.parametrize("how", ["failed", "conflict"])
def test_what_was_there_goes_back_also_after_an_edit_that_was_not_made(
    scene, watch, events, monkeypatch, how
):
    region = scene.container()
    opened = Node.open

    def spoilt(node: Node, container: Any) -> Any:
        if how == "failed":
            raise OSError(errno.EMFILE, "Too many open files")
        region.put("sm_limit", 77)  # the container can do that at any moment
        return opened(node, container)

    watcher = kept_on(scene, watch, SIX, "{select: {}, set: {sm_limit: 20}}")
    set_plan(scene, FIVE, "{select: {}, set: {sm_limit: 30}}")
    with monkeypatch.context() as patch:
        patch.setattr(Node, "open", spoilt)
        watcher.run()
    assert events.kinds()[-1] == how
    assert memory(region) == [6 * GIB, 6 * GIB]
    set_plan(scene)
    assert memory_after(watcher, region) == [8 * GIB, 4 * GIB]
    # What somebody else has set meanwhile is theirs.
    assert region.limits()["sm"][:2] == [50 if how == "failed" else 77, 100]


def test_an_edit_that_is_tried_again_is_not_taken_for_somebody_elses_doing(
    scene, watch, events, monkeypatch
):
    region = scene.container()

    def refuse(_: Node, container: Any) -> Any:
        raise PermissionError(errno.EPERM, f"not {container.name}")

    set_plan(scene, SIX)
    watcher = watch()
    with monkeypatch.context() as patch:
        patch.setattr(Node, "open", refuse)
        watcher.run()
    watcher.run()
    assert memory_after(watcher, region) == [6 * GIB, 6 * GIB]
    assert [each.detail["cause"] for each in events.of("changed")] == ["plan"]
    assert watcher.counters()["plan_drifts"] == 0


def test_one_process_keeps_a_node_on_a_plan_whatever_its_state_directory(scene, watch):
    """Nor do two nodes share a state directory."""
    first = kept_on(scene, watch, SIX)
    for start in (PlanReconciler.start, PlanReconciler.run):
        with pytest.raises(PlanLocked, match="another process keeps"):
            start(watch(state=scene.directory / "another"))
    with (
        Node(scene.directory / "elsewhere") as other,
        pytest.raises(PlanLocked, match=str(scene.state)),
    ):
        PlanReconciler(other, [], scene.state).start()
    first.stop()
    watch(state=scene.directory / "another").run()

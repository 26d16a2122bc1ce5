"""Where the plan of a watched node comes from, and what happens when it changes."""

import pytest
from support.node_scene import GIB
from support.plan_scene import plan, plan_nodes, plan_scene, plan_yaml
from support.plan_watching import FIVE, SIX, Changing, aged, memory, memory_after, set_plan, watches

from libhamiregion.plan import LimitPlan, PlanFile
from libhamiregion.plan.reconcile import SourceReading
from libhamiregion.text import printable

scene = pytest.fixture(plan_scene)
node = pytest.fixture(plan_nodes)
watch = pytest.fixture(watches)


def test_a_plan_that_is_wrong_is_reported_and_the_last_good_one_stays(scene, watch, events):
    """At the start nothing is changed, until somebody has corrected it."""
    region = scene.container()
    path = scene.directory / "plan.yaml"
    watcher = watch()
    for text, said in ((None, "No such file"), ("kind: [", "neither YAML nor JSON")):
        if text is not None:
            aged(path, text)
        watcher.start()
        with pytest.raises(RuntimeError, match="no plan can be used yet"):
            watcher.run()
        assert said in events.of("problem")[-1].message
    assert memory(region) == [8 * GIB, 4 * GIB]
    set_plan(scene, SIX)
    assert memory_after(watcher, region) == [6 * GIB, 6 * GIB]
    aged(path, "kind: {")
    for _ in range(3):
        watcher.run()
    assert len(events.of("problem")) == 3
    assert events.of("problem")[-1].detail["about"] == printable(str(path), 100)
    region.put("limit", GIB)
    assert memory_after(watcher, region) == [6 * GIB, 6 * GIB]
    set_plan(scene, FIVE)
    watcher.run()
    assert len(events.of("solved")) == 2
    assert memory(region) == [5 * GIB, 5 * GIB]


def test_annotations_that_change_all_the_time_do_not_fill_the_log(watch, events):
    source = Changing(LimitPlan())
    watcher = watch(source)
    for number in range(64):
        source.reading = SourceReading(LimitPlan(), {"research/bert-0": f"wrong {number}"})
        watcher.run()
    assert len(events.of("problem")) == 7


def test_the_swap_of_a_config_map_is_a_new_plan(scene, watch):
    """As kubelet does it: a link to a link to a directory, and the middle one is renamed over."""
    region = scene.container()
    volume = scene.directory / "volume"

    def publish(name: str, text: str) -> None:
        (volume / name).mkdir(parents=True)
        aged(volume / name / "plan.yaml", text)
        (volume / "..data_tmp").symlink_to(name)
        (volume / "..data_tmp").replace(volume / "..data")

    publish("..2026_1", plan_yaml(SIX))
    (volume / "plan.yaml").symlink_to("..data/plan.yaml")
    watcher = watch(PlanFile(volume / "plan.yaml"))
    assert memory_after(watcher, region) == [6 * GIB, 6 * GIB]
    publish("..2026_2", plan_yaml(FIVE))
    assert memory_after(watcher, region) == [5 * GIB, 5 * GIB]


def test_several_sources_are_one_plan_in_their_order(scene, watch):
    region = scene.container()
    waiting = Changing(None)
    watcher = watch(Changing(plan(SIX)), waiting)
    assert memory_after(watcher, region) == [8 * GIB, 4 * GIB], (
        "nothing is known of one of them yet"
    )
    waiting.reading = SourceReading(plan("{select: {device: 1}, set: {memory_limit: 1GiB}}"))
    assert memory_after(watcher, region) == [6 * GIB, GIB]
    in_force = watcher.plan
    watcher.run()
    assert watcher.plan is in_force


def test_a_held_pod_is_neither_set_nor_given_back(scene, watch):
    region = scene.container()
    source = Changing(plan(SIX))
    watcher = watch(source)
    watcher.run()
    region.put("limit", 7 * GIB)
    source.reading = SourceReading(LimitPlan(), held=frozenset({region.pod_uid}))
    assert memory_after(watcher, region) == [7 * GIB, 6 * GIB]
    source.reading = SourceReading(LimitPlan())
    assert memory_after(watcher, region) == [7 * GIB, 4 * GIB]
    watcher.stop()
    assert source.closed

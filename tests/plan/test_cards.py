"""A plan raises no limit beyond the card, with the limits of the GPU's other containers."""

from collections.abc import Iterator
from typing import Any

import pytest
from support.node_scene import GIB, SceneContainer
from support.plan_scene import GPUS, PlanScene, plan, plan_scene

from libhamiregion.node import Node, NvmlSampler, Observation, Observer
from libhamiregion.plan import LimitPlan, PlanDiff, PlanReconciler, diff_plan
from libhamiregion.plan.reconcile import PlanSource, SourceReading

scene = pytest.fixture(plan_scene)


@pytest.fixture
def cards(fake_driver, nvml_sampler) -> NvmlSampler:
    """Two GPUs of 24 GiB."""
    fake_driver.play(*(f"device {at} {gpu} {24 * GIB} 0 0 0 A30" for at, gpu in enumerate(GPUS)))
    return nvml_sampler


@pytest.fixture
def pods(scene) -> tuple[SceneContainer, SceneContainer]:
    limits: dict[str, Any] = {"memory_limits": [8 * GIB, 8 * GIB], "uuids": GPUS}
    return scene.container(pod="a", **limits), scene.container(pod="b", **limits)


def rule(pod: str, limit: str, device: int = 0) -> str:
    return f'{{select: {{pod: {pod}, device: "{device}"}}, set: {{memory_limit: {limit}}}}}'


def compared(
    scene: PlanScene, sampler: NvmlSampler | None, *rules: str, **options: Any
) -> PlanDiff:
    with scene.node() as node:
        observe = Observer(node, sampler=sampler).observe
        return diff_plan(node, plan(*rules), observe=observe, **options)


def refused(diff: PlanDiff) -> dict[str | None, str]:
    return {each.container.pod: each.reason for each in diff.unapplied}


@pytest.mark.usefixtures("pods")
def test_a_raise_beyond_the_card_is_refused_and_a_forced_one_is_not(scene, cards):
    diff = compared(scene, cards, rule("a", "17GiB"))
    assert refused(diff) == {"a": "above_card"}
    assert diff.unapplied[0].device == 0
    assert "25 GiB, and it has 24 GiB" in diff.unapplied[0].message
    assert diff.changes == ()
    for harmless in (
        compared(scene, cards, rule("a", "16GiB")),
        compared(scene, cards, rule("a", "17GiB"), rule("b", "7GiB")),
        compared(scene, cards, rule("a", "17GiB"), force=True),
    ):
        assert refused(harmless) == {}
        assert harmless.changes


@pytest.mark.usefixtures("pods")
def test_a_container_that_is_refused_frees_nothing_for_others(scene, cards):
    """Its lower limit on the other GPU would make room, and is not set either."""
    rules = (rule("a", "17GiB"), rule("a", "4GiB", 1), rule("b", "20GiB", 1))
    assert refused(compared(scene, cards, *rules)) == {"a": "above_card", "b": "above_card"}
    assert refused(compared(scene, cards, *rules[1:])) == {}


@pytest.mark.usefixtures("pods")
def test_the_driver_is_asked_only_if_a_limit_is_raised(scene):
    def asked() -> Observation:
        raise AssertionError("asked")

    with scene.node() as node:
        for limit in ("8GiB", "7GiB"):
            diff_plan(node, plan(rule("a", limit)), observe=asked)
        with pytest.raises(AssertionError, match="asked"):
            diff_plan(node, plan(rule("a", "9GiB")), observe=asked)


class Fixed(PlanSource):
    def __init__(self, plan: LimitPlan) -> None:
        self.plan = plan

    def read(self) -> SourceReading:
        return SourceReading(self.plan)


@pytest.fixture
def node(scene) -> Iterator[Node]:
    with scene.node() as opened:
        yield opened


def test_a_plan_that_is_kept_reports_what_it_refuses(scene, pods, node, events, cards):
    keeper = PlanReconciler(
        node,
        [Fixed(plan(rule("a", "17GiB"), rule("b", "9GiB", 1)))],
        scene.state,
        observe=Observer(node, sampler=cards).observe,
        emit=events.append,
    )
    keeper.run()
    keeper.stop()
    assert [each.get("limit") for each in pods] == [8 * GIB, 8 * GIB]
    assert pods[1].get("limit", device=1) == 9 * GIB
    assert "refused" in events.kinds()
    assert keeper.counters()["plan_refusals"] == 1

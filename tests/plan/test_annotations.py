"""Annotations of pods as rules of a plan."""

from typing import Any

import pytest
from support.device_checkpoint import answer, checkpoint, entry
from support.plan_scene import PlanScene, plan

from libhamiregion.plan import (
    LimitPlan,
    Limits,
    PlanDiff,
    PlanReconciler,
    Rule,
    diff_plan,
    parse_plan,
    plan_text,
)
from libhamiregion.plan.annotations import plan_of_pods
from libhamiregion.plan.node_pods import _node_pod
from libhamiregion.plan.reconcile import PlanSource, SourceReading
from libhamiregion.units import GIB

UID = "0b5c1e64-27a1-4a1c-8a3c-7ab0d3ad3b0f"
OTHER_UID = "7f3a0f6e-9c8b-4a53-93c5-2f1f2c3d4e5f"


def pod(annotations: dict[str, str], *containers: str, **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "namespace": "research",
            "name": "bert-0",
            "uid": UID,
            "annotations": {f"hamiregion.io/{key}": text for key, text in annotations.items()},
            **metadata,
        },
        "spec": {"containers": [{"name": name} for name in containers or ("train",)]},
    }


def plan_of(*items: dict[str, Any], maximum_percent: int | None = None) -> SourceReading:
    found = [each for each in map(_node_pod, items) if each]
    return plan_of_pods(found, maximum_percent)


def rules_of(found: SourceReading) -> tuple[Rule, ...]:
    return found.plan.rules


def rules(found: SourceReading) -> list[tuple[str | None, str | None, Limits]]:
    return [(rule.select.container, rule.select.device, rule.set) for rule in rules_of(found)]


def test_what_says_more_exactly_what_it_means_overrides_what_does_not():
    found = plan_of(
        pod(
            {
                "train.memory-limit.1": "1GiB",
                "memory-limit.1": "3GiB",
                "train.memory-limit": "2GiB",
                "memory-limit": "4GiB",
                "sm-limit": "50%",
                "priority": "0",
            },
            "train",
            "side",
        )
    )
    assert rules(found) == [
        (None, None, Limits(4 * GIB)),
        (None, None, Limits(priority=0)),
        (None, None, Limits(sm_limit=50)),
        (None, "1", Limits(3 * GIB)),
        ("train", None, Limits(2 * GIB)),
        ("train", "1", Limits(GIB)),
    ]
    assert {rule.select.pod_uid for rule in rules_of(found)} == {UID}
    assert {rule.name for rule in rules_of(found)} == {"annotations of research/bert-0"}
    assert (found.problems, found.held) == ({}, frozenset())
    assert parse_plan(plan_text(found.plan)) == found.plan


KNOWN = "unknown; known are [CONTAINER.]{memory-limit,sm-limit,priority}[.DEVICE]"
SM = "an SM limit is 1 to 100 percent"
BAD = [
    ("memory-limt", "6GiB", KNOWN),
    ("memory-limit", "8000", "'8000' is no memory limit: give a unit"),
    ("memory-limit", "8KiB", "'8KiB' is below 16 MiB"),
    ("train.sm_limit", "6", KNOWN),
    ("", "x", KNOWN),
    ("memory-limit.01", "6GiB", KNOWN),
    ("memory-limit", "6GB", '"6GB"'),
    ("memory-limit", "", '"" is not a size'),
    ("memory-limit", "0", "a memory limit of 0 would mean unlimited"),
    ("sm-limit", "0", SM),
    ("sm-limit", "half", SM),
    ("priority", "-1", "a priority is a number"),
    ("priority", "9" * 20, "a priority is 0 to 2147483647"),
    ("priority", "9" * 100_000, "a priority is a number"),
    ("priority.0", "1", "a priority is of the whole container; leave out the device"),
    ("memory-limit.16", "6GiB", "a device is 0 to 15, not 16"),
]


def test_a_bad_annotation_concerns_its_pod_only():
    for key, text, said in BAD:
        bad = pod({key: text, "sm-limit.1": "5"}, "train", "side")
        good = pod({"sm-limit": "7"}, uid="8" * 32, name="good")
        found = plan_of(bad, good)
        ((about, message),) = found.problems.items()
        assert about == "research/bert-0"
        assert message.startswith(f"hamiregion.io/{key}: {said}"), message
        assert found.held == {UID}
        assert [rule.select.pod_uid for rule in rules_of(found)] == ["8" * 32]


def test_what_is_wrong_with_a_pod_is_reported_in_bounded_length():
    (message,) = plan_of(pod({"sm-limit": "0", "priority": "x"})).problems.values()
    assert message.count("hamiregion.io/") == 2
    (message,) = plan_of(pod({f"x{number}": "" for number in range(1000)})).problems.values()
    assert (len(message), message[-3:]) == (800, "...")


@pytest.mark.parametrize(
    "item",
    [
        None,
        [],
        {},
        {"metadata": None},
        {"metadata": {"namespace": "a", "name": "b", "uid": UID}},
        {"metadata": {"namespace": "a", "name": "b", "uid": UID, "annotations": {"other/x": "1"}}},
        {"metadata": {"namespace": 1, "name": "b", "annotations": {"hamiregion.io/x": "1"}}},
        {
            "metadata": {
                "namespace": "a",
                "name": "b",
                "uid": "../../etc",
                "annotations": {"hamiregion.io/sm-limit": "1"},
            }
        },
    ],
)
def test_what_is_no_pod_or_asks_for_nothing_is_passed_over(item):
    found = _node_pod(item)
    assert found is None or rules_of(plan_of_pods([found])) == ()


def test_what_an_annotation_holds_cannot_steer_a_terminal():
    found = plan_of(
        pod(
            {"\x1b[2J": "1", "memory-limit": "\x1b[2J" * 100, "\x1b.sm-limit": "\u202e"}, "\x1b[31m"
        )
    )
    for about, message in found.problems.items():
        assert about.isprintable()
        assert message.isprintable()
        assert len(message) < 1000


@pytest.fixture
def scene(tmp_path) -> PlanScene:
    return PlanScene(tmp_path)


def asked(scene: PlanScene, percent: int | None, *rules: str, **annotations: str) -> PlanDiff:
    """What annotations of bert-0 change after these rules."""
    reading = plan_of(
        pod({key.replace("_", "-"): text for key, text in annotations.items()}),
        maximum_percent=percent,
    )
    with scene.node() as node:
        return diff_plan(node, LimitPlan((*plan(*rules).rules, *rules_of(reading))))


def after(found: PlanDiff) -> dict[tuple[str, int | None], int | None]:
    return {(edit.field, edit.device): edit.after for each in found.changes for edit in each.edits}


LOWER = {"memory_limit": "2GiB", "sm_limit": "20", "priority": "3"}
HIGHER = {"memory_limit": "9GiB", "sm_limit": "60", "priority": "0"}
UNLIMITED = {"memory_limit": "unlimited", "sm_limit": "unlimited"}


@pytest.mark.parametrize("percent", [100, None])
def test_an_annotation_may_always_ask_for_less(scene, percent):
    scene.container(pod_uid=UID)
    found = asked(scene, percent, **LOWER)
    assert found.unapplied == ()
    assert after(found) == {
        ("memory_limit", 0): 2 * GIB,
        ("memory_limit", 1): 2 * GIB,
        ("sm_limit", 0): 20,
        # Device 1 had no SM limit.
        ("sm_limit", 1): 20,
        ("priority", None): 3,
    }


@pytest.mark.parametrize("annotations", [HIGHER, UNLIMITED], ids=["higher", "unlimited"])
def test_an_annotation_above_the_maximum_does_not_count_and_is_reported(scene, annotations):
    scene.container(pod_uid=UID)
    found = asked(scene, 100, **annotations)
    # Where there was no limit there is no maximum.
    more = {("sm_limit", 1): 60} if annotations is HIGHER else {}
    assert after(found) == more
    assert {each.reason for each in found.unapplied} == {"above_maximum"}
    messages = [each.message for each in found.unapplied]
    assert len(messages) == (4 if annotations is HIGHER else 3)
    wanted = annotations["memory_limit"].replace("G", " G")
    assert f"memory limit of device 0 would be {wanted}, above 100 % of 8 GiB" in messages
    allowed = after(asked(scene, None, **annotations))
    assert len(allowed) == (5 if annotations is HIGHER else 3)


def test_the_maximum_is_of_what_the_plan_says_and_keeps_no_plan_from_counting(scene):
    scene.container(pod_uid=UID)
    rule = "{select: {device: 0}, set: {memory_limit: 3GiB}}"
    found = asked(scene, 100, rule, memory_limit="5GiB")
    assert after(found) == {("memory_limit", 0): 3 * GIB}
    generous = asked(scene, 100, rule.replace("3", "12"), memory_limit="4GiB")
    assert after(generous) == {("memory_limit", 0): 4 * GIB}
    assert after(asked(scene, 150, rule, memory_limit="4608MiB")) == {
        ("memory_limit", 0): 4608 << 20,
        ("memory_limit", 1): 4608 << 20,
    }


class Annotated(PlanSource):
    """A pod that asks for a memory limit of device 0, and may have what it had."""

    def __init__(self, text: str) -> None:
        self.text = text

    def read(self) -> SourceReading:
        return plan_of(pod({"memory-limit.0": self.text}), maximum_percent=100)


def apply_annotation(scene: PlanScene, text: str) -> None:
    """Apply it by an agent that starts and ends."""
    with scene.node() as node:
        watcher = PlanReconciler(node, [Annotated(text)], scene.state)
        watcher.run()
        watcher.stop()


def test_what_a_pod_lowered_it_may_raise_again_up_to_what_was_there_first(scene):
    """The state directory keeps the limit first seen, over restarts of the agent."""
    region = scene.container(pod_uid=UID)

    for text, limit in (("2GiB", 2), ("8GiB", 8), ("6GiB", 6), ("9GiB", 8), ("unlimited", 8)):
        apply_annotation(scene, text)
        assert region.get("limit", device=0) == limit * GIB, text


# ---- kubelet's checkpoint ------------------------------------------------------------------------

GIVEN = {
    "CUDA_DEVICE_MEMORY_LIMIT_0": "8192m",
    "CUDA_DEVICE_MEMORY_LIMIT_1": "4096m",
    "CUDA_DEVICE_SM_LIMIT": "50",
}


def given(directory: str = "train", pod_uid: str = UID, **more: str) -> dict[str, Any]:
    """What HAMi's device plugin gave to `train`, with the directory of a region."""
    mounts = {"/usr/local/vgpu": f"/usr/local/vgpu/containers/{pod_uid}_{directory}"}
    response = answer(GIVEN | more, mounts=mounts)
    return entry(pod_uid, "train", "nvidia.com/gpu", {"0": ["GPU-0::1"]}, response)


RAISED = {"memory_limits": ("12GiB", "12GiB"), "sm_limits": (80, 80)}
LOWERED = {"memory_limits": ("2GiB", "1GiB"), "sm_limits": (20, 20)}


@pytest.mark.parametrize("now", [RAISED, LOWERED], ids=["raised", "lowered"])
def test_the_maximum_is_of_what_kubelet_noted_whatever_the_limit_first_seen(scene, now):
    scene.allocations.write_text(checkpoint(given()))
    scene.container(pod_uid=UID, **now)
    found = asked(scene, 100, memory_limit="8GiB", sm_limit="50")
    # Each device has its own.
    sm = {("sm_limit", 0): 50, ("sm_limit", 1): 50}
    assert after(found) == {("memory_limit", 0): 8 * GIB, **sm}
    (refused,) = found.unapplied
    assert (refused.reason, refused.device) == ("above_maximum", 1)
    assert refused.message.endswith("8 GiB, above 100 % of 4 GiB")
    for annotations in ({"memory_limit": "9GiB", "sm_limit": "51"}, UNLIMITED):
        found = asked(scene, 100, **annotations)
        assert after(found) == {}
        assert len(found.unapplied) == 4
    half = asked(scene, 50, memory_limit="4GiB", sm_limit="25")
    assert after(half) == {
        ("memory_limit", 0): 4 * GIB,
        ("sm_limit", 0): 25,
        ("sm_limit", 1): 25,
    }


def test_what_an_administrator_added_is_no_maximum_after_an_annotation_either(scene):
    scene.allocations.write_text(checkpoint(given()))
    region = scene.container(pod_uid=UID, **RAISED)

    # An annotation that does not count leaves the limit first seen.
    for text, limit in (("2GiB", 2), ("8GiB", 8), ("10GiB", 12), ("6GiB", 6), ("100%", 12)):
        apply_annotation(scene, text)
        assert region.get("limit", device=0) == limit * GIB, text


def test_a_plan_still_sets_the_maximum_of_what_it_sets(scene):
    scene.allocations.write_text(checkpoint(given()))
    scene.container(pod_uid=UID, **RAISED)
    rule = "{select: {device: 0}, set: {memory_limit: 3GiB}}"
    assert after(asked(scene, 100, rule, memory_limit="4GiB")) == {
        ("memory_limit", 0): 3 * GIB,
        ("memory_limit", 1): 4 * GIB,
    }


@pytest.mark.parametrize(
    "entries",
    [
        pytest.param([], id="no entry"),
        pytest.param([given("other")], id="another container's region"),
        pytest.param([given(pod_uid=OTHER_UID)], id="another pod"),
        pytest.param([given(**dict.fromkeys(GIVEN, "0"))], id="no limits"),
    ],
)
def test_without_limits_in_the_checkpoint_the_maximum_is_of_the_limit_first_seen(scene, entries):
    scene.allocations.write_text(checkpoint(*entries))
    scene.container(pod_uid=UID, **RAISED)
    both = {("memory_limit", 0): 10 * GIB, ("memory_limit", 1): 10 * GIB}
    assert after(asked(scene, 100, memory_limit="10GiB")) == both
    assert after(asked(scene, 100, memory_limit="13GiB")) == {}


def test_of_several_allocations_with_one_region_the_smallest_limit_counts(scene):
    small = given(CUDA_DEVICE_MEMORY_LIMIT_0="1024m")
    scene.allocations.write_text(checkpoint(given(), {**small, "ContainerName": "fetch"}))
    scene.container(pod_uid=UID)
    assert after(asked(scene, 100, memory_limit="2GiB")) == {("memory_limit", 1): 2 * GIB}

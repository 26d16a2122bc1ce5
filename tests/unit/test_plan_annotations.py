"""Annotations of pods as rules of a plan."""

from typing import Any

import pytest

from libhamiregion.node.node_pod import NodePod, node_pod
from libhamiregion.plan import Limits, Rule, parse_plan, plan_text
from libhamiregion.plan.annotations import plan_of_pods
from libhamiregion.plan.sources import SourceReading

GIB = 1 << 30
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


def plan_of(*items: dict[str, Any]) -> SourceReading:
    return plan_of_pods(found for found in map(node_pod, items) if found)


def rules_of(found: SourceReading) -> tuple[Rule, ...]:
    assert found.plan is not None
    return found.plan.rules


def rules(found: SourceReading) -> list[tuple[str | None, str | None, Limits]]:
    return [(rule.select.container, rule.select.device, rule.set) for rule in rules_of(found)]


def test_what_says_more_exactly_what_it_means_overrides_what_does_not() -> None:
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
    ("train.sm_limit", "6", KNOWN),
    ("", "x", KNOWN),
    ("memory-limit.01", "6GiB", KNOWN),
    ("memory-limit", "6GB", '"6GB" may mean powers of 1000'),
    ("memory-limit", "", '"" is not a size'),
    ("memory-limit", "0", "a memory limit of 0 would mean unlimited"),
    ("sm-limit", "0", SM),
    ("sm-limit", "half", SM),
    ("priority", "-1", "a priority is a number"),
    ("priority", "9" * 20, "a priority is 0 to 2147483647"),
    ("priority", "9" * 100_000, "a priority is a number"),
    ("priority.0", "1", "a priority is of the whole container; leave out the device"),
    ("memory-limit.16", "6GiB", "a device is 0 to 15, not 16"),
    ("other.memory-limit", "6GiB", "the pod has no container other (it has train, side)"),
    ("memory-limit.memory-limit", "6GiB", "the pod has no container memory-limit"),
]


def test_a_bad_annotation_concerns_its_pod_only() -> None:
    for key, text, said in BAD:
        bad = pod({key: text, "sm-limit.1": "5"}, "train", "side")
        good = pod({"sm-limit": "7"}, uid="8" * 32, name="good")
        found = plan_of(bad, good)
        ((about, message),) = found.problems.items()
        assert about == "research/bert-0"
        assert message.startswith(f"hamiregion.io/{key}: {said}"), message
        assert found.held == {UID}
        assert [rule.select.pod_uid for rule in rules_of(found)] == ["8" * 32]


def test_what_is_wrong_with_a_pod_is_told_up_to_five() -> None:
    (message,) = plan_of(pod({"sm-limit": "0", "priority": "x"})).problems.values()
    assert message.count("hamiregion.io/") == 2
    (message,) = plan_of(pod({f"x{number}": "" for number in range(1000)})).problems.values()
    assert message.endswith("; and 995 more")


def test_containers_of_all_kinds_can_be_named() -> None:
    item = pod({"first.sm-limit": "1", "late.sm-limit": "2"})
    item["spec"]["initContainers"] = [{"name": "first"}]
    item["spec"]["ephemeralContainers"] = [{"name": "late"}]
    assert [container for container, _, _ in rules(plan_of(item))] == ["first", "late"]


def mirror(**others: str) -> dict[str, Any]:
    """A static pod's mirror, as kubelet makes it; further annotations of Kubernetes' own."""
    item = pod({"sm-limit": "5"})
    item["spec"]["nodeName"] = "node-1"
    item["metadata"]["ownerReferences"] = [{"apiVersion": "v1", "kind": "Node", "name": "node-1"}]
    for name, text in {"mirror": "9" * 32, **others}.items():
        item["metadata"]["annotations"][f"kubernetes.io/config.{name}"] = text
    return item


def test_a_static_pod_is_known_by_the_uid_that_kubelet_uses() -> None:
    found = node_pod(mirror())
    assert found == NodePod(
        *("research", "bert-0", UID, (UID, "9" * 32)),
        containers=("train",),
        annotations={"sm-limit": "5"},
    )
    assert [rule.select.pod_uid for rule in rules_of(plan_of(mirror()))] == [UID, "9" * 32]


def test_no_pod_steers_another_by_calling_itself_its_mirror() -> None:
    for uid in ("7f3a0f6e-9c8b-4a53-93c5-2f1f2c3d4e5f", "9" * 31 + "-", "../x"):
        item = mirror(mirror=uid, hash=uid)
        assert [rule.select.pod_uid for rule in rules_of(plan_of(item))] == [UID]


@pytest.mark.parametrize(
    "owners",
    [
        [],
        None,
        "x",
        [7],
        [{"kind": "Node", "name": "node-2"}],
        [{"kind": "ReplicaSet", "name": "node-1"}],
        [{"kind": "Node", "name": "node-1"}, {"kind": "ReplicaSet", "name": "bert"}],
    ],
)
def test_a_mirror_belongs_to_the_node_that_it_is_on_and_to_nobody_else(owners: Any) -> None:
    item = mirror()
    item["metadata"]["ownerReferences"] = owners
    found = node_pod(item)
    assert found is not None
    assert found.uids == (UID,)


def test_of_two_mirrors_of_one_static_pod_the_one_that_was_made_first_is_believed() -> None:
    """Kubelet's own stands before anybody can know its hash."""
    own, later = mirror(), mirror()
    own["metadata"] |= {"creationTimestamp": "2026-01-01T00:00:00Z", "name": "own"}
    later["metadata"] |= {"creationTimestamp": "2026-01-01T00:00:01Z", "uid": OTHER_UID}
    for items in ((own, later), (later, own)):
        chosen = {rule.select.pod_uid: rule.name for rule in rules_of(plan_of(*items))}
        assert chosen == {
            UID: "annotations of research/own",
            "9" * 32: "annotations of research/own",
            OTHER_UID: "annotations of research/bert-0",
        }


def test_a_pod_that_is_on_no_node_is_no_mirror() -> None:
    item = mirror()
    del item["spec"]["nodeName"]
    item["metadata"]["ownerReferences"] = [{"kind": "Node"}]
    found = node_pod(item)
    assert found is not None
    assert found.uids == (UID,)


def test_a_static_pod_says_its_uid_twice() -> None:
    found = node_pod(mirror(hash="8" * 32))
    assert found is not None
    assert found.uids == (UID,)


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
def test_what_is_no_pod_or_asks_for_nothing_is_passed_over(item: Any) -> None:
    found = node_pod(item)
    assert found is None or rules_of(plan_of_pods([found])) == ()


def test_what_an_annotation_holds_cannot_steer_a_terminal() -> None:
    found = plan_of(
        pod(
            {"\x1b[2J": "1", "memory-limit": "\x1b[2J" * 100, "\x1b.sm-limit": "\u202e"}, "\x1b[31m"
        )
    )
    for about, message in found.problems.items():
        assert about.isprintable()
        assert message.isprintable()
        assert len(message) < 1000

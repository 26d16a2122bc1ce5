"""Which containers and devices are chosen by which words."""

import uuid

import attrs
import pytest
from support.node_root import Root

from libhamiregion.models import DeviceUsage
from libhamiregion.node import Container, Node, PodName, PodNamesUnknown, Selector
from libhamiregion.observation.names import ContainerId

UID = "0b5c1e64-27a1-4a1c-8a3c-7ab0d3ad3b0f"
ID = "ab" * 32
NAME = PodName("research", "bert-0", "train")
INSIDE = Container(UID, "train", f"/root/{UID}_train")
OUTSIDE = Container(None, None, None, container_id=ContainerId(ID))


class Named:
    """A resolver that knows one name."""

    def resolve(self, *_: object) -> PodName:
        return NAME


def device(index: int, uuid: str | None) -> DeviceUsage:
    return DeviceUsage(index, uuid, None, 0, 0, 0, 0, 0, None, 0, 0, 0)


def test_a_container_is_chosen_where_every_pattern_matches():
    for selector, chosen in [
        (Selector(), True),
        (Selector(pod_uid=UID), True),
        (Selector(pod_uid="0b5c*"), True),
        (Selector(pod_uid="0b5c"), False),
        (Selector(namespace="research"), True),
        (Selector(namespace="res?arch"), True),
        (Selector(namespace="Research"), False),
        (Selector(pod="bert-*"), True),
        (Selector(pod="bert-[1-9]"), False),
        (Selector(pod=UID), True),
        (Selector(container="train"), True),
        (Selector(container="trai"), False),
        (Selector(namespace="research", pod="bert-0", container="train"), True),
        (Selector(namespace="other", pod="bert-0"), False),
        (Selector(device="GPU-*"), True),
    ]:
        assert selector.matches_container(INSIDE, NAME) is chosen
        assert selector.matches(attrs.evolve(INSIDE, pod_name=NAME)) is chosen


def test_a_container_without_a_name_is_found_by_what_is_known_of_it():
    assert Selector(pod=UID, container="train").matches_container(INSIDE, None)
    assert not Selector(namespace="*").matches_container(INSIDE, None)
    assert Selector(container=f"{ID[:12]}*").matches_container(OUTSIDE, None)
    assert Selector(container="web").matches_container(OUTSIDE, PodName(None, None, "web"))
    assert not Selector(pod="*").matches_container(OUTSIDE, None)
    assert Selector().matches_container(OUTSIDE, None)


def test_a_device_is_chosen_by_its_index_or_uuid():
    for pattern, chosen in [
        (None, [0, 1, 11]),
        ("1", [1]),
        ("11", [11]),
        ("GPU-a*", [0]),
        ("*", [0, 1]),
        ("GPU-a", []),
    ]:
        devices = [device(0, "GPU-ab"), device(1, "MIG-1"), device(11, None)]
        selector = Selector(device=pattern)
        assert [each.index for each in devices if selector.matches_device(each)] == chosen


def test_only_digits_that_people_type_are_an_index():
    """Others are digits too, by some definitions, and no pattern that any uuid matches."""
    assert not Selector(device="1" * 5000).matches_device(device(1, "GPU-a"))
    assert Selector(device="0" * 5000).matches_device(device(0, None))
    assert not Selector(device="0").matches_device(device(10, None))
    assert not Selector(device="\u00b2").matches_device(device(2, "GPU-a"))
    assert not Selector(device="\u0662").matches_device(device(2, "GPU-a"))


def test_a_node_finds_its_containers_by_their_names(tmp_path):
    root = Root(tmp_path / "containers")
    root.region("train")
    root.region("serve")
    with Node(root, names=Named()) as node:
        node.refresh(processes=False)
        serve, _ = sorted(node.containers, key=lambda each: str(each.name))
        assert node.select() == node.containers
        assert node.select(container="train") == node.containers, "the resolver says so"
        assert node.select(namespace="research", pod="bert-*", container="s*") == (serve,)
        assert node.select(container="nobody") == ()
        assert (serve.namespace, serve.pod, serve.name) == ("research", "bert-0", "serve")


class Nameless:
    """A resolver that knows nobody."""

    def resolve(self, *_: object) -> None:
        return None


def test_a_pattern_for_names_that_nobody_knows_is_refused_unless_that_is_allowed(tmp_path):
    root = Root(tmp_path / "containers")
    root.region("train")
    root.region("serve")
    run = root.path / "run_4711"
    run.mkdir()
    with Node(root, names=Nameless()) as node:
        node.refresh(processes=False)
        by_name = {each.name: each for each in node.containers}
        refused: list[dict[str, str]] = [
            {"namespace": "research"},
            {"pod": "bert-*"},
            {"namespace": "*", "container": "serve"},
        ]
        for patterns in refused:
            with pytest.raises(PodNamesUnknown, match=r"the name of the pod of /.*_") as raised:
                node.select(**patterns)  # type: ignore[arg-type]
            assert by_name["serve"] in raised.value.containers
            assert by_name["4711"] not in raised.value.containers, "a run has no pod"
            assert node.select(**patterns, allow_unnamed=True) == ()  # type: ignore[arg-type]
        assert len(raised.value.containers) == 1
        uid = by_name["train"].pod_uid
        assert Selector(namespace="research").might_match(by_name["train"])
        assert not Selector(pod=uid).might_match(by_name["train"]), "it is meant"
        assert node.select(pod=uid), "a UID is known without any name"
        assert node.select(pod=str(uuid.uuid4())) == ()
        assert node.select(container="nobody") == ()
        assert node.select(namespace="research", container="nobody") == ()


def test_a_device_is_an_index_or_a_pattern_and_nothing_else():
    device = DeviceUsage(0, "GPU-a", None, 0, 0, 0, 0, 0, None, 0, 0, 0)
    assert Selector(device=0) == Selector(device="0")
    assert Selector(device=0).matches_device(device)
    assert not Selector(device=1).matches_device(device)
    for wrong in (True, 0.0, b"0"):
        with pytest.raises(TypeError, match="a device is an integer"):
            Selector(device=wrong)  # type: ignore[arg-type]

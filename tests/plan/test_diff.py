"""What a plan would change on a node of real regions, and what it leaves alone, and why."""

import contextlib
from collections.abc import Callable, Iterator

import attrs
import pytest
from support.golden_regions import NAMES, unpack
from support.node_scene import GIB
from support.plan_scene import plan, plan_scene

from libhamiregion import Effect, Layout, open_region
from libhamiregion.node import MissingReason, Node
from libhamiregion.plan import PlanDiff, diff_plan
from libhamiregion.plan.diff import ContainerDiff, PlannedEdit

NOW, LATER = Effect.IMMEDIATE, Effect.NEW_PROCESSES
OLD_LAYOUTS = {Layout.UNVERSIONED_NO_UTIL, Layout.UNVERSIONED, Layout.V1_1}
UID = "0b5c1e64-27a1-4a1c-8a3c-7ab0d3ad3b0f"

Compare = Callable[..., PlanDiff]


scene = pytest.fixture(plan_scene)


@pytest.fixture
def compare(scene) -> Iterator[Compare]:
    """Compares the scene as it is with rules."""
    with contextlib.ExitStack() as nodes:

        def compare(*rules: str, **options: bool) -> PlanDiff:
            return diff_plan(nodes.enter_context(scene.node()), plan(*rules), **options)

        yield compare


def edits(diff: ContainerDiff) -> list[tuple[str, int | None, int | None, int | None]]:
    return [(edit.field, edit.device, edit.before, edit.after) for edit in diff.edits]


def chosen(diff: PlanDiff) -> set[str]:
    return {each.container.name or "" for each in diff.containers}


# ---- what is changed ------------------------------------------------------------------


def test_each_value_that_differs_is_an_edit_in_the_order_of_fields_and_devices(scene, compare):
    scene.container()
    diff = compare("{select: {}, set: {priority: 0, sm_limit: 50, memory_limit: 6GiB}}")
    (found,) = diff.changes
    assert found.edits == (
        PlannedEdit("memory_limit", 0, 8 * GIB, 6 * GIB, 0, NOW),
        PlannedEdit("memory_limit", 1, 4 * GIB, 6 * GIB, 0, NOW),
        PlannedEdit("sm_limit", 1, None, 50, 0, LATER),
        PlannedEdit("priority", None, 1, 0, 0, NOW),
    )
    assert (found.container.pod, diff.unapplied) == ("bert-0", ())
    on_plan = compare(
        "{select: {device: 0}, set: {memory_limit: 8GiB, sm_limit: 50}}",
        "{select: {device: 1}, set: {memory_limit: 4GiB, sm_limit: unlimited}}",
        "{select: {}, set: {priority: 1}}",
    )
    assert [(each.edits, each.settled) for each in on_plan.containers] == [((), {0, 1, 2})]
    assert on_plan.changes == ()


def test_the_last_rule_that_sets_a_value_counts_also_among_rules_for_one_pod_each(scene, compare):
    regions = [scene.container(pod=f"bert-{number}") for number in range(3)]
    exact = [
        f"{{select: {{pod_uid: {region.pod_uid}}}, set: {{memory_limit: {number}GiB}}}}"
        for number in (2, 3)
        for region in regions[:2]
    ]
    diff = compare(
        "{select: {}, set: {memory_limit: 6GiB, sm_limit: 20}}",
        *exact,
        "{select: {pod: bert-1, device: 1}, set: {memory_limit: 1GiB}}",
        "{select: {pod: bert-2}, set: {sm_limit: 30}}",
    )
    values = {each.container.pod: [edit[3] for edit in edits(each)] for each in diff.containers}
    assert values == {
        "bert-0": [3 * GIB, 3 * GIB, 20, 20],
        "bert-1": [3 * GIB, GIB, 20, 20],
        "bert-2": [6 * GIB, 6 * GIB, 30, 30],
    }


@pytest.mark.parametrize("name", [name for name in NAMES if "many" not in name])
def test_real_regions_of_every_generation_are_compared(scene, compare, name):
    """Values and effects are those of the golden file and of its layout."""
    directory = scene.root / f"{UID}_train"
    directory.mkdir()
    golden = unpack(name, directory)
    (found,) = compare("{select: {device: 0}, set: {memory_limit: 999GiB, sm_limit: 7}}").containers
    limit, percent = golden.expected["memory_limit"][0], golden.expected["sm_limit"][0]
    limited = 0 < percent < 100
    assert edits(found) == [
        ("memory_limit", 0, limit or None, 999 * GIB),
        ("sm_limit", 0, percent if limited else None, 7),
    ]
    # Up to 2.4.0 a limit that comes to running processes stops them for good.
    stops = not limited and golden.layout in OLD_LAYOUTS - {Layout.V1_1}
    effect = LATER if limited or golden.layout not in OLD_LAYOUTS else NOW
    assert [edit.effect for edit in found.edits] == [
        NOW,
        Effect.STOPS_LAUNCHES if stops else effect,
    ]


def test_a_percentage_is_of_the_present_limit_or_of_that_of_an_earlier_rule(scene, compare):
    region = scene.container(memory_limits=(12345, "4GiB"))
    half = "{select: {}, set: {memory_limit: 50%}}"
    (found,) = compare(half).containers
    assert [edit[3] for edit in edits(found)] == [6172, 2 * GIB]
    with open_region(region.path, writable=True) as opened:
        # The core rounds alike.
        assert opened.set_memory_limit("50%", device=0, dry_run=True).after == 6172
    (found,) = compare("{select: {device: 1}, set: {memory_limit: 8GiB}}", half, half).containers
    assert [edit[1] for edit in edits(found)] == [0]


def test_a_percentage_is_not_of_a_rule_whose_condition_does_not_hold(scene, compare):
    scene.container(memory_limits=("10GiB", "8GiB"))
    (found,) = compare(
        "{select: {}, set: {memory_limit: 4GiB}, only_if: {memory_limit: 8GiB}}",
        "{select: {}, set: {memory_limit: 50%}}",
    ).containers
    assert [edit[2:] for edit in edits(found)] == [(10 * GIB, 5 * GIB), (8 * GIB, 2 * GIB)]


def test_a_rule_counts_only_if_its_condition_holds(scene, compare):
    scene.container()
    diff = compare(
        "{select: {device: 0}, set: {memory_limit: 16GiB}, only_if: {memory_limit: 8GiB}}",
        "{select: {}, set: {memory_limit: 9GiB}, only_if: {memory_limit: 6GiB}}",
    )
    (found,) = diff.containers
    assert found.edits == (PlannedEdit("memory_limit", 0, 8 * GIB, 16 * GIB, 0, NOW),)
    (skip,) = diff.unapplied
    assert (skip.reason, skip.device, skip.rules) == ("changed", 1, (1,))
    assert skip.message == "memory limit of device 1 is 4 GiB by now, not 6 GiB"


def test_a_rule_is_settled_if_nothing_is_left_to_be_done_by_it(scene, compare):
    scene.container()
    (found,) = compare(
        "{select: {}, set: {sm_limit: 20}}",  # overruled on one device
        "{select: {device: 0}, set: {sm_limit: 50}}",
        "{select: {}, set: {memory_limit: 4GiB}}",  # an edit on one device
        "{select: {}, set: {priority: 0}, only_if: {priority: 7}}",
    ).containers
    assert found.settled == {1, 3}


# ---- devices --------------------------------------------------------------------------


def test_a_container_that_has_reported_nothing_has_all_devices_that_it_may_have(scene, compare):
    scene.container("full", memory_limits=("8GiB",) * 16, sm_limits=(30,) * 16, uuids=())
    scene.container("empty", memory_limits=(), sm_limits=(), uuids=())
    scene.container("two", memory_limits=("4GiB", "4GiB"), uuids=())
    diff = compare("{select: {container: full}, set: {memory_limit: 6GiB, sm_limit: 20}}")
    assert edits(diff.containers[0]) == [
        ("memory_limit", device, 8 * GIB, 6 * GIB) for device in range(16)
    ] + [("sm_limit", device, 30, 20) for device in range(16)]
    diff = compare("{select: {device: 5}, set: {memory_limit: 6GiB}}")
    assert {each.container.name: edits(each) for each in diff.changes} == {
        "full": [("memory_limit", 5, 8 * GIB, 6 * GIB)],
        "empty": [("memory_limit", 5, None, 6 * GIB)],
    }
    (skip,) = diff.unapplied
    assert (skip.container.name, skip.reason) == ("two", "no_device")
    assert {
        each.message for each in compare('{select: {device: "GPU-*"}, set: {sm_limit: 1}}').skipped
    } == {"it has not reported its devices yet, so no uuid chooses one of them"}


def test_a_device_that_does_not_exist_is_skipped(scene, compare):
    scene.container()
    diff = compare(
        "{select: {device: 2}, set: {sm_limit: 1}}",
        '{select: {device: "MIG-*"}, set: {sm_limit: 1}}',
    )
    (skip,) = diff.skipped
    assert (skip.reason, skip.rules) == ("no_device", (0, 1))
    assert skip.message == "it has no device that a rule chooses; it has 2"
    assert not diff.changes


# ---- what is left alone, and why ------------------------------------------------------


def test_a_container_without_a_region_is_skipped_with_its_reason(scene, compare):
    """And no message can steer a terminal."""
    for name in ("empty", "foreign"):
        (scene.root / f"{UID}_{name}").mkdir()
    (scene.root / f"{UID}_foreign" / "\x1b[2J.cache").write_bytes(b"\x1b[2J" * 500_000)
    region = scene.container("two", layout=Layout.V1_1, memory_limits=(), sm_limits=(), uuids=())
    region.resize(Layout.V1_1_POSTINIT.size_bytes + 1)
    diff = compare("{select: {}, set: {sm_limit: 1}}")
    assert {skip.reason for skip in diff.skipped} == {"no_region"}
    assert all(skip.message.isprintable() for skip in diff.skipped)
    assert [skip.container.name for skip in diff.waiting] == ["empty"]
    reasons = {
        skip.container.name: skip.container.missing and skip.container.missing.reason
        for skip in diff.unapplied
    }
    assert reasons == {
        "foreign": MissingReason.NOT_A_REGION,
        "two": MissingReason.UNKNOWN_LAYOUT,
    }


def test_a_rule_that_asks_for_names_skips_a_pod_that_nobody_can_name(scene, compare):
    scene.container("train", pod=None)
    scene.container("serve")
    diff = compare(
        "{select: {namespace: research}, set: {sm_limit: 1}}",
        '{select: {pod: "bert-*"}, set: {sm_limit: 2}}',
        "{select: {pod: bert-0, container: serve}, set: {sm_limit: 3}}",
    )
    (skip,) = diff.skipped
    assert (skip.container.name, skip.reason, skip.rules) == ("train", "unknown_name", (0, 1))
    assert chosen(diff) == {"serve"}


def test_what_runs_there_refuses_for_the_whole_container_unless_forced(scene, compare):
    scene.container("used").add_process(1, {1: 3 * GIB})
    old = scene.container("old", layout=Layout.UNVERSIONED, sm_limits=())
    old.add_process(1, {0: GIB})
    rules = (
        "{select: {container: used}, set: {memory_limit: 2GiB, priority: 0}}",
        "{select: {container: old}, set: {sm_limit: 50, priority: 0}}",
    )
    diff = compare(*rules)
    assert {skip.reason: (skip.device, skip.rules) for skip in diff.unapplied} == {
        "below_usage": (1, (0,)),
        "stops_launches": (0, (1,)),
    }
    assert "device 1 uses 3 GiB, more than the plan's 2 GiB" in {
        skip.message for skip in diff.unapplied
    }
    assert [len(each.edits) for each in diff.containers] == [3, 3]
    assert diff.changes == ()
    forced = compare(*rules, force=True)
    assert (forced.changes, forced.unapplied) == (forced.containers, ())


def test_a_percentage_of_no_limit_refuses_the_whole_container(scene, compare):
    scene.container(memory_limits=("4GiB",))
    for limits in ("{memory_limit: 50%, sm_limit: 5}", "{memory_limit: 50%}"):
        for force in (False, True):
            diff = compare(f"{{select: {{}}, set: {limits}}}", force=force)
            (skip,) = diff.unapplied
            assert (skip.reason, skip.device, skip.rules) == ("no_limit", 1, (0,))
            assert "device 1 has no memory limit to take 50% of" in skip.message
            assert diff.changes == ()


def test_a_region_that_cannot_be_read_just_now_is_skipped(scene):
    region = scene.container()
    with scene.node() as node:
        region.resize(100)
        (skip,) = diff_plan(node, plan("{select: {}, set: {sm_limit: 1}}")).skipped
    assert skip.reason == "unreadable"
    assert "truncated" in skip.message


def test_pods_that_are_held_are_left_alone_without_a_word(scene):
    region = scene.container("held")
    scene.container("free")
    with scene.node() as node:
        wanted = plan("{select: {}, set: {sm_limit: 1}}")
        diff = diff_plan(node, wanted, held=frozenset({region.pod_uid}))
    assert (chosen(diff), diff.unapplied) == ({"free"}, ())


def test_containers_outside_the_roots_are_left_alone(scene, monkeypatch):
    """Such a container has a region and no directory whose name says which one it is."""
    scene.container("inside")
    with scene.node() as node:
        (inside,) = node.containers
        outside = attrs.evolve(inside, directory=None, directory_name=None, pod_uid=None)
        monkeypatch.setattr(Node, "containers", property(lambda _: (outside, inside)))
        diff = diff_plan(node, plan("{select: {}, set: {sm_limit: 1}}"))
        assert [each.container for each in diff.containers] == [inside]
        assert diff.unapplied == ()

"""What a plan would change on a node of real regions, and what it leaves alone, and why."""

from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest
from golden_regions import NAMES, unpack
from plan_scene import GIB, GPUS, PlanScene, plan

from libhamiregion import Effect, Layout, open_region
from libhamiregion.node import MissingReason, Node
from libhamiregion.plan import PlanDiff, diff_plan, export_plan
from libhamiregion.plan.diff import ContainerDiff, Original, PlannedEdit, Skip

NOW, LATER = Effect.IMMEDIATE, Effect.NEW_PROCESSES

Compare = Callable[..., PlanDiff]


@pytest.fixture
def scene(tmp_path: Path) -> PlanScene:
    return PlanScene(tmp_path)


@pytest.fixture
def compare(scene: PlanScene) -> Iterator[Compare]:
    """Compares the scene as it is with rules."""
    nodes: list[Node] = []

    def compare(*rules: str, **options: bool) -> PlanDiff:
        nodes.append(scene.node())
        return diff_plan(nodes[-1], plan(*rules), **options)

    yield compare
    for node in nodes:
        node.close()


def edits(diff: ContainerDiff) -> list[tuple[str, int | None, int | None, int | None]]:
    return [(edit.field, edit.device, edit.before, edit.after) for edit in diff.edits]


def chosen(diff: PlanDiff) -> set[str]:
    return {each.container.name or "" for each in diff.containers}


# ---- what is changed ------------------------------------------------------------------


def test_each_value_that_differs_is_an_edit_in_the_order_of_fields_and_devices(
    scene: PlanScene, compare: Compare
) -> None:
    scene.container()
    diff = compare("{select: {}, set: {priority: 0, sm_limit: 50, memory_limit: 6GiB}}")
    (found,) = diff.containers
    assert found.edits == (
        PlannedEdit("memory_limit", 0, 8 * GIB, 6 * GIB, NOW, 0),
        PlannedEdit("memory_limit", 1, 4 * GIB, 6 * GIB, NOW, 0),
        PlannedEdit("sm_limit", 1, None, 50, LATER, 0),
        PlannedEdit("priority", None, 1, 0, NOW, 0),
    )
    assert found.name is not None
    assert found.name.pod == "bert-0"
    assert diff.changes == diff.containers
    assert not diff.off_plan


def test_what_is_as_the_plan_says_needs_no_edit(scene: PlanScene, compare: Compare) -> None:
    scene.container()
    diff = compare(
        "{select: {device: 0}, set: {memory_limit: 8GiB, sm_limit: 50}}",
        "{select: {device: 1}, set: {memory_limit: 4GiB, sm_limit: unlimited}}",
        "{select: {}, set: {priority: 1}}",
    )
    assert [(each.edits, len(each.governed)) for each in diff.containers] == [((), 5)]
    assert diff.changes == ()


@pytest.mark.parametrize(
    ("select", "names"),
    [
        ("{}", {"train", "serve", "batch"}),
        ("{namespace: research}", {"train", "serve"}),
        ('{namespace: "r*"}', {"train", "serve"}),
        ('{pod: "bert-[0]"}', {"train"}),
        ("{container: serve}", {"serve"}),
        ('{container: "?????"}', {"train", "serve", "batch"}),
        ("{pod: Bert-0}", set()),
        ("{pod: bert}", set()),
        ("{namespace: research, container: batch}", set()),
        (f"{{device: {GPUS[1]}}}", {"train", "serve", "batch"}),
    ],
)
def test_containers_are_chosen_by_the_patterns_of_the_shell(
    scene: PlanScene, compare: Compare, select: str, names: set[str]
) -> None:
    scene.container("train", pod="bert-0")
    scene.container("serve", pod="bert-1")
    scene.container("batch", namespace="sales", pod="gpt-0")
    diff = compare(f"{{select: {select}, set: {{memory_limit: 1GiB}}}}")
    assert chosen(diff) == names
    assert diff.unused == (() if names else (0,))


def test_a_pod_is_chosen_by_its_uid_with_and_without_a_name(
    scene: PlanScene, compare: Compare
) -> None:
    named, nameless = scene.container("a"), scene.container("b", namespace=None)
    for key in ("pod_uid", "pod"):
        for region, name in ((named, "a"), (nameless, "b")):
            diff = compare(f"{{select: {{{key}: {region.pod_uid}}}, set: {{memory_limit: 1}}}}")
            assert chosen(diff) == {name}


def test_the_last_rule_that_sets_a_value_counts(scene: PlanScene, compare: Compare) -> None:
    for number in range(3):
        scene.container(pod=f"bert-{number}")
    diff = compare(
        "{select: {}, set: {memory_limit: 6GiB, sm_limit: 20}}",
        '{select: {pod: "bert-[01]"}, set: {memory_limit: 5GiB}}',
        "{select: {pod: bert-1, device: 1}, set: {memory_limit: 3GiB}}",
        "{select: {pod: bert-2}, set: {sm_limit: 20}}",
    )
    by_pod = {each.name.pod: edits(each) for each in diff.containers if each.name}
    assert [edit[3] for edit in by_pod["bert-0"]] == [5 * GIB, 5 * GIB, 20, 20]
    assert [edit[3] for edit in by_pod["bert-1"]] == [5 * GIB, 3 * GIB, 20, 20]
    assert [edit[3] for edit in by_pod["bert-2"]] == [6 * GIB, 6 * GIB, 20, 20]


def test_plans_of_thousands_of_exact_rules_keep_their_order(
    scene: PlanScene, compare: Compare
) -> None:
    regions = [scene.container(pod=f"p-{number}") for number in range(4)]
    rules = ["{select: {}, set: {memory_limit: 1GiB}}"]
    rules += [
        f"{{select: {{pod_uid: {region.pod_uid}}}, set: {{memory_limit: {number}GiB}}}}"
        for number in (2, 3)
        for region in regions[:2]
    ]
    rules.append("{select: {pod: p-1}, set: {memory_limit: 9GiB}}")
    diff = compare(*rules)
    by_pod = {each.name.pod: edits(each)[0][3] for each in diff.containers if each.name}
    assert by_pod == {"p-0": 3 * GIB, "p-1": 9 * GIB, "p-2": GIB, "p-3": GIB}


@pytest.mark.parametrize("name", NAMES)
def test_real_regions_of_every_generation_are_compared(
    scene: PlanScene, compare: Compare, name: str
) -> None:
    """Values and effects are those of the golden file and of its layout."""
    directory = scene.root / "0b5c1e64-27a1-4a1c-8a3c-7ab0d3ad3b0f_train"
    directory.mkdir()
    golden = unpack(name, directory)
    diff = compare("{select: {device: 0}, set: {memory_limit: 999GiB, sm_limit: 7}}")
    (found,) = diff.containers
    limit, percent = golden.expected["memory_limit"][0], golden.expected["sm_limit"][0]
    assert edits(found) == [
        ("memory_limit", 0, limit or None, 999 * GIB),
        ("sm_limit", 0, percent if 0 < percent < 100 else None, 7),
    ]
    old = golden.layout in {Layout.UNVERSIONED_NO_UTIL, Layout.UNVERSIONED, Layout.V1_1}
    crosses = not 0 < percent < 100
    # Up to 2.4.0 a limit that comes to running processes stops them for good.
    stops = crosses and golden.layout in {Layout.UNVERSIONED_NO_UTIL, Layout.UNVERSIONED}
    effect = Effect.STOPS_LAUNCHES if stops else NOW if old and crosses else LATER
    assert [edit.effect for edit in found.edits] == [NOW, effect]


def test_when_an_sm_limit_takes_effect_depends_on_the_layout(
    scene: PlanScene, compare: Compare, layout: Layout
) -> None:
    scene.container(layout=layout, sm_limits=())
    (found,) = compare("{select: {}, set: {sm_limit: 50}}").containers
    old = layout in {Layout.UNVERSIONED_NO_UTIL, Layout.UNVERSIONED, Layout.V1_1}
    assert {edit.effect for edit in found.edits} == {NOW if old else LATER}


# ---- devices --------------------------------------------------------------------------


def test_a_container_that_has_told_nothing_is_changed_on_all_devices_that_it_may_have(
    scene: PlanScene, compare: Compare
) -> None:
    scene.container(memory_limits=("8GiB",) * 16, sm_limits=(30,) * 16, uuids=())
    (found,) = compare("{select: {}, set: {memory_limit: 6GiB, sm_limit: 20}}").containers
    assert edits(found) == [("memory_limit", device, 8 * GIB, 6 * GIB) for device in range(16)] + [
        ("sm_limit", device, 30, 20) for device in range(16)
    ]
    (one,) = compare("{select: {device: 11}, set: {memory_limit: 6GiB}}").containers
    assert edits(one) == [("memory_limit", 11, 8 * GIB, 6 * GIB)]


def test_a_device_that_may_exist_can_be_chosen_by_its_index(
    scene: PlanScene, compare: Compare
) -> None:
    scene.container(uuids=(), memory_limits=(), sm_limits=())
    (found,) = compare("{select: {device: 5}, set: {memory_limit: 6GiB, sm_limit: 3}}").containers
    assert edits(found) == [("memory_limit", 5, None, 6 * GIB), ("sm_limit", 5, None, 3)]


def test_a_device_after_the_last_limit_does_not_exist(scene: PlanScene, compare: Compare) -> None:
    scene.container(uuids=(), memory_limits=("4GiB", "4GiB"))
    diff = compare("{select: {device: 5}, set: {memory_limit: 6GiB}}")
    assert [skip.reason for skip in diff.skipped] == ["no_device"]


def test_a_device_that_does_not_exist_is_skipped(scene: PlanScene, compare: Compare) -> None:
    scene.container()
    diff = compare(
        "{select: {device: 2}, set: {sm_limit: 1}}",
        '{select: {device: "MIG-*"}, set: {sm_limit: 1}}',
    )
    (skip,) = diff.skipped
    assert (skip.reason, skip.rules) == ("no_device", (0, 1))
    assert skip.message == "it has no device that a rule chooses; it has 2"
    assert not diff.changes


def test_uuids_choose_nothing_until_the_container_has_told_of_them(
    scene: PlanScene, compare: Compare
) -> None:
    scene.container(uuids=())
    (skip,) = compare('{select: {device: "GPU-*"}, set: {sm_limit: 1}}').skipped
    assert skip.reason == "no_device"
    assert "not reported its devices yet" in skip.message


# ---- what is left alone, and why ------------------------------------------------------


def test_a_container_without_a_region_is_skipped_with_its_reason(
    scene: PlanScene, compare: Compare
) -> None:
    uid = "0b5c1e64-27a1-4a1c-8a3c-7ab0d3ad3b0f"
    empty = scene.root / f"{uid}_empty"
    foreign = scene.root / f"{uid}_foreign"
    for directory in (empty, foreign):
        directory.mkdir()
    (foreign / "x.cache").write_bytes(b"nothing of the kind" * 100_000)
    diff = compare("{select: {}, set: {sm_limit: 1}}")
    found: dict[str | None, Skip] = {skip.container.name: skip for skip in diff.skipped}
    assert {skip.reason for skip in diff.skipped} == {"no_region"}
    assert found["empty"].container.missing.reason is MissingReason.NO_FILE
    assert found["foreign"].container.missing.reason is MissingReason.NOT_A_REGION
    assert "not a HAMi region" in found["foreign"].message
    assert diff.off_plan == diff.skipped


def test_a_file_that_two_layouts_fit_is_skipped(scene: PlanScene, compare: Compare) -> None:
    region = scene.container(layout=Layout.V1_1, memory_limits=(), sm_limits=(), uuids=())
    region.resize(Layout.V1_1_POSTINIT.size_bytes + 1)
    diff = compare("{select: {}, set: {sm_limit: 1}}")
    (skip,) = diff.skipped
    assert skip.container.missing.reason is MissingReason.UNKNOWN_LAYOUT
    assert "can be read as layout" in skip.message


def test_a_rule_that_asks_for_names_skips_a_pod_that_nobody_can_name(
    scene: PlanScene, compare: Compare
) -> None:
    scene.container("train", namespace=None)
    scene.container("serve")
    diff = compare(
        "{select: {namespace: research}, set: {sm_limit: 1}}",
        '{select: {pod: "bert-*"}, set: {sm_limit: 2}}',
        "{select: {pod: bert-0, container: serve}, set: {sm_limit: 3}}",
    )
    (skip,) = diff.skipped
    assert (skip.container.name, skip.reason, skip.rules) == (
        "train",
        "unknown_name",
        (0, 1),
    )
    assert chosen(diff) == {"serve"}


def test_a_memory_limit_below_what_is_used_refuses_the_whole_container_unless_forced(
    scene: PlanScene, compare: Compare
) -> None:
    region = scene.container()
    region.add_process(1, {1: 3 * GIB})
    rule = "{select: {}, set: {memory_limit: 2GiB, priority: 0}}"
    diff = compare(rule)
    (found,) = diff.containers
    assert [(skip.reason, skip.device, skip.rules) for skip in found.refused] == [
        ("below_usage", 1, (0,))
    ]
    assert found.refused[0].message == "device 1 uses 3 GiB, more than the 2 GiB that the plan says"
    assert len(found.edits) == 3
    assert diff.changes == ()
    assert diff.off_plan == found.refused
    forced = compare(rule, force=True)
    assert forced.changes == forced.containers
    assert forced.off_plan == ()


def test_a_region_that_cannot_be_read_just_now_is_skipped(scene: PlanScene) -> None:
    region = scene.container()
    with scene.node() as node:
        region.resize(100)
        (skip,) = diff_plan(node, plan("{select: {}, set: {sm_limit: 1}}")).skipped
    assert skip.reason == "unreadable"
    assert "truncated" in skip.message


def test_pods_that_are_held_are_left_alone_without_a_word(scene: PlanScene) -> None:
    region = scene.container("held")
    scene.container("free")
    with scene.node() as node:
        diff = diff_plan(
            node, plan("{select: {}, set: {sm_limit: 1}}"), held=frozenset({region.pod_uid})
        )
    assert chosen(diff) == {"free"}
    assert diff.off_plan == ()


def test_what_an_earlier_plan_set_goes_back_where_no_rule_sets_it(scene: PlanScene) -> None:
    region = scene.container()
    originals = {
        str(region.path.parent): {
            # As we may have set it: goes back.
            ("memory_limit", 0): Original(16 * GIB, (6 * GIB, 8 * GIB)),
            # Somebody else's now.
            ("memory_limit", 1): Original(16 * GIB, (5 * GIB,)),
            # A rule sets it.
            ("sm_limit", 0): Original(None, (50,)),
            # As it was.
            ("sm_limit", 1): Original(None, (None, 50)),
        }
    }
    wanted = plan("{select: {device: 0}, set: {sm_limit: 50}}")
    with scene.node() as node:
        (found,) = diff_plan(node, wanted, originals=originals).containers
    assert found.edits == (PlannedEdit("memory_limit", 0, 8 * GIB, 16 * GIB, NOW, None),)


def test_a_percentage_is_of_what_stands_there_or_stood_there_before_the_plan(
    scene: PlanScene, compare: Compare
) -> None:
    region = scene.container(memory_limits=(12345, "4GiB"))
    half = "{select: {}, set: {memory_limit: 50%}}"
    (found,) = compare(half).containers
    assert [edit[3] for edit in edits(found)] == [6172, 2 * GIB]
    with open_region(region.path, writable=True) as opened:
        # The core rounds alike.
        assert opened.set_memory_limit("50%", device=0, dry_run=True)[0].after == 6172
    originals = {str(region.path.parent): {("memory_limit", 1): Original(8 * GIB, (4 * GIB,))}}
    with scene.node() as node:
        (found,) = diff_plan(node, plan(half), originals=originals).containers
    assert [edit[1] for edit in edits(found)] == [0]


def test_a_percentage_of_no_limit_refuses_the_whole_container(
    scene: PlanScene, compare: Compare
) -> None:
    scene.container(memory_limits=("4GiB",))
    for rule in ("{memory_limit: 50%, sm_limit: 5}", "{memory_limit: 50%}"):
        for force in (False, True):
            diff = compare(f"{{select: {{}}, set: {rule}}}", force=force)
            (skip,) = diff.off_plan
            assert (skip.reason, skip.device, skip.rules) == ("no_limit", 1, (0,))
            assert "device 1 is unlimited, and 50% of it is no limit" in skip.message
            assert diff.changes == ()


def test_a_limit_that_would_stop_what_runs_is_refused_unless_forced(
    scene: PlanScene, compare: Compare
) -> None:
    region = scene.container(layout=Layout.UNVERSIONED, sm_limits=())
    region.add_process(1, {0: GIB})
    rule = "{select: {}, set: {sm_limit: 50}}"
    (skip,) = compare(rule).off_plan
    assert (skip.reason, skip.device) == ("stops_launches", 0)
    assert len(compare(rule, force=True).changes) == 1


def test_containers_outside_the_roots_are_left_alone(
    scene: PlanScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a container has a region and no directory whose name says which one it is."""
    region = scene.container("inside")
    with scene.node() as node:
        (inside,) = node.containers
        outside = attrs.evolve(inside, directory=None, pod_uid=None, name=None)
        monkeypatch.setattr(Node, "containers", property(lambda _: (outside, inside)))
        diff = diff_plan(node, plan("{select: {}, set: {sm_limit: 1}}"))
        assert [each.container for each in diff.containers] == [inside]
        assert diff.off_plan == ()
        exported = {rule.select.pod_uid for rule in export_plan(node).rules}
        assert exported == {region.pod_uid}


def test_messages_cannot_steer_a_terminal(scene: PlanScene, compare: Compare) -> None:
    directory = scene.root / "0b5c1e64-27a1-4a1c-8a3c-7ab0d3ad3b0f_train"
    directory.mkdir()
    (directory / "\x1b[2J.cache").write_bytes(b"\x1b[2J" * 500_000)
    (skip,) = compare("{select: {}, set: {sm_limit: 1}}").skipped
    assert skip.message.isprintable()

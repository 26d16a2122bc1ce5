"""What stands in several places stands in all of them: CONTRIBUTING's "Where to change what"."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from pathlib import Path
from typing import Any

import attrs
import click
import pytest
from support.cli_verbs import commands
from support.plan_scene import plan, plan_nodes, plan_scene

import libhamiregion
import libhamiregion.cli
from libhamiregion import Region
from libhamiregion.exporter import COLLECTORS, NodeExporter, collectors
from libhamiregion.node import Node, NvmlSampler
from libhamiregion.node.roots import DEFAULT_ROOTS
from libhamiregion.plan import Limits, apply_diff, diff_plan, load_plan
from libhamiregion.plan.annotations import plan_of_pods
from libhamiregion.plan.node_pods import NodePod
from libhamiregion.plan.plan import DEVICE_FIELDS, LIMIT_FIELDS, LimitField

ROOT = Path(__file__).parents[2]
needs_tree = pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="needs the whole tree")

scene = pytest.fixture(plan_scene)
node = pytest.fixture(plan_nodes)


def page(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


# ---- verbs and their options ----


def test_each_command_that_a_file_defines_is_a_verb():
    reached = {id(command) for _, command in commands()}
    for module in pkgutil.iter_modules(libhamiregion.cli.__path__):
        found = vars(import_module(f"libhamiregion.cli.{module.name}"))
        for name, command in found.items():
            if isinstance(command, click.Command) and not isinstance(command, click.Group):
                assert id(command) in reached, f"{module.name}.{name} is no verb"


# ---- collectors ----


def test_each_collector_is_declared_and_made(tmp_path):
    declared = {collectors.ContainersCollector, *COLLECTORS.values()}
    for module in pkgutil.iter_modules(collectors.__path__):
        found = vars(import_module(f"{collectors.__name__}.{module.name}"))
        own = {
            each
            for name, each in found.items()
            if name.endswith("Collector") and getattr(each, "__module__", "") == found["__name__"]
        }
        assert own <= declared
    names = {each.name for each in declared}
    with Node(tmp_path) as node, NvmlSampler() as sampler:
        made = NodeExporter(node, sampler=sampler)._collectors
    assert {each.name for each in made} == names


# ---- roots ----


@needs_tree
@pytest.mark.parametrize("root", DEFAULT_ROOTS)
def test_a_default_root_is_on_the_page_and_mounted_by_a_manifest(root):
    assert f"`{root}`" in page("node")
    manifests = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "deploy").rglob("*.yaml")
    )
    mounted = {root, *map(str, Path(root).parents)} - {"/"}
    assert any(f": {each}\n" in manifests for each in mounted)


# ---- fields of a plan ----

#: Of each field the text of a value, and the value as a region gives it.
VALUES: dict[LimitField, tuple[str, int]] = {
    "memory_limit": ("3GiB", 3 << 30),
    "sm_limit": ("35", 35),
    "priority": ("0", 0),
}


def test_the_fields_of_a_plan_are_those_of_limits_and_of_a_region():
    assert tuple(each.name for each in attrs.fields(Limits)) == LIMIT_FIELDS == tuple(VALUES)
    assert set(DEVICE_FIELDS) < set(LIMIT_FIELDS)
    assert all(hasattr(Region, field) for field in LIMIT_FIELDS)


@pytest.mark.parametrize("field", LIMIT_FIELDS)
def test_a_field_of_a_plan_goes_all_the_way_and_back(scene, node, field):
    file = scene.container()
    before = file.content()
    text, value = VALUES[field]
    node.refresh(processes=False)
    (container,) = node.containers
    region = container.region
    assert region is not None

    def value_now() -> Any:
        found = getattr(region, field)
        return found(0) if field in DEVICE_FIELDS else found

    assert value_now() != value
    found = diff_plan(node, plan(f"{{select: {{}}, set: {{{field}: {text}}}}}"))
    assert {edit.field for each in found.changes for edit in each.edits} == {field}
    done = apply_diff(node, found, state=scene.state)
    assert value_now() == value
    assert done.undo_path is not None
    apply_diff(node, diff_plan(node, load_plan(done.undo_path)), state=scene.state)
    assert file.content() == before


@pytest.mark.parametrize("field", LIMIT_FIELDS)
def test_a_field_of_a_plan_is_an_annotation_too(field):
    text, value = VALUES[field]
    asked = {field.replace("_", "-"): text}
    pod = NodePod("research", "bert-0", "uid", annotations=asked)
    reading = plan_of_pods([pod])
    assert reading.problems == {}
    assert [dict(rule.set) for rule in reading.plan.rules] == [{field: value}]

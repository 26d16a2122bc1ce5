"""Figures that cannot be are unknown on every floor; HAMi's families keep them."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from support.command_line import call
from support.exposition import parsed
from support.region_file import RegionFile

from libhamiregion import Layout, open_region
from libhamiregion.doctor import FindingKind, examine
from libhamiregion.exporter import NodeExporter
from libhamiregion.node import Node, Observer
from libhamiregion.observation.figures import without_impossible
from libhamiregion.observation.rows import Join
from libhamiregion.report.recorder import read_samples
from libhamiregion.testing import FakeNode
from libhamiregion.units import GIB

NEGATIVE = (1 << 64) - 4 * GIB
GARBAGE = 3019901152

# Field of the file, its name, and numbers that cannot be.
FIGURES = [
    *(("slot_util.sm", "sm_util_percent", each) for each in (101, GARBAGE, (1 << 64) - 1)),
    ("slot_util.enc", "enc_util_percent", 101),
    ("slot_util.dec", "dec_util_percent", GARBAGE),
    *(("slot_used.total", "memory_used_bytes", each) for each in (1 << 50, NEGATIVE)),
    ("slot_used.data", "memory_data_bytes", NEGATIVE),
    ("slot_monitorused", "memory_monitor_bytes", 1 << 60),
]
SERIES = {
    "hamiregion_process_sm_utilization_ratio": "sm_util_percent",
    "hamiregion_process_memory_used_bytes": "memory_used_bytes",
    "hamiregion_device_memory_counted_bytes": "memory_used_bytes",
}


class Scene:
    """A node with a container of one live process."""

    def __init__(self, node: FakeNode) -> None:
        self.fake = node
        self.pod = node.add(
            "train", pod="job-0", namespace="rag", memory_limits=("8GiB",), uses=[("1GiB", 5)]
        )
        self.file = RegionFile(self.pod.region, Layout.V1_2)

    def json(self, *words: object) -> dict[str, Any]:
        answer = call(*map(str, words), "--json")
        assert answer.returncode == 0, answer.stderr
        return json.loads(answer.stdout)


@pytest.fixture
def scene(tmp_path) -> Iterator[Scene]:
    with FakeNode(tmp_path / "node") as node:
        yield Scene(node)


def test_a_limit_that_no_gpu_has_is_none_everywhere_and_found(scene):
    """Only `limits get`, whose answer can be set again, has the number of the file."""
    value = 1 << 60
    scene.file.put("limit", value)
    root = ("--root", scene.fake.root)
    (shown,) = scene.json("show", scene.pod.region)["devices"]
    (container,) = scene.json("containers", "--no-driver", *root)["containers"]
    assert shown["memory_limit_bytes"] is container["devices"][0]["memory_limit_bytes"] is None
    assert "unlimited" in call("show", str(scene.pod.region)).stdout
    with Node(scene.fake.root) as node:
        observer = Observer.for_command(node)
        (found,) = examine(observer, settle_s=0.03)
        (sample,) = read_samples(observer.observe()).values()
        series = parsed(NodeExporter(node, max_age_s=0.0).render())
    assert (found.kind, found.device) == (FindingKind.FIGURE_IMPOSSIBLE, 0)
    assert found.evidence == f"memory_limit_bytes on device 0 is {value}"
    assert sample.memory_limit_bytes is None
    assert series.value("hami_vgpu_memory_limit_bytes") == value
    assert series.series("hamiregion_gpu_memory_limits_bytes") == {}


@pytest.mark.parametrize(("field", "name", "value"), FIGURES)
def test_a_figure_that_cannot_be_is_null_everywhere_and_found(scene, field, name, value):
    scene.file.put(field, value)
    root = ("--root", scene.fake.root)
    (device,) = scene.json("show", scene.pod.region)["devices"]
    (process,) = scene.json("show", scene.pod.region)["processes"]
    assert device[name] is process["devices"][0][name] is None
    (container,) = scene.json("containers", "--no-driver", *root)["containers"]
    assert container["devices"][0][name] is None
    processes = scene.json("ps", "--no-driver", *root)["processes"]
    assert processes[0]["devices"][0].get(name) is None
    for verb in ("show", "limits", "containers", "ps"):
        words = (scene.pod.region,) if verb in {"show", "limits"} else ("--no-driver", *root)
        said = call(verb, *(["get"] if verb == "limits" else []), *map(str, words)).stdout
        # Ids of pods have such digits too, and a pid can be 101.
        unit = "%" if value < 1000 else r"\b"
        assert re.search(rf"\b{value}{unit}", said) is None
        assert "PiB" not in said
        assert "EiB" not in said
    with Node(scene.fake.root) as node:
        kinds = [each.kind for each in examine(Observer.for_command(node), settle_s=0.03)]
        page = NodeExporter(node, max_age_s=0.0)
        series = parsed(page.render())
        assert f"{value} %" not in page.page("").decode()
        (sample,) = read_samples(Observer(node).observe()).values() or [None]
    wanted = {"slot_used.total": FindingKind.USAGE_IMPOSSIBLE}
    assert kinds == [wanted.get(field, FindingKind.FIGURE_IMPOSSIBLE)]
    for each, of in SERIES.items():
        assert bool(series.series(each)) == (of != name)
    if name == "sm_util_percent":
        assert series.value("hami_container_device_utilization_ratio") == value
        assert sample.sm_percent is None
    elif name == "memory_used_bytes":
        assert series.value("hami_vgpu_memory_used_bytes") == value
        assert sample is None


def test_figures_that_can_be_stay_as_they_are(scene):
    with open_region(scene.pod.region) as region:
        before = region.snapshot()
        assert without_impossible(before) == before
    scene.file.put("slot_util.sm", 100)
    (device,) = scene.json("show", scene.pod.region)["devices"]
    assert device["sm_util_percent"] == 100


def test_a_sum_is_unknown_if_one_of_its_parts_cannot_be(scene):
    slot = scene.file.add_process(4_000_000, {0: GIB}, status=1)
    scene.file.put("slot_util.sm", 90, slot=slot)
    with Node(scene.fake.root) as node:
        observer = Observer(node)
        assert Join(observer.observe()).device_percents == [95]
        scene.file.put("slot_util.sm", 101, slot=slot)
        assert Join(observer.observe()).device_percents == [None]
    with open_region(scene.pod.region) as region:
        shown = without_impossible(region.snapshot())
    assert shown.devices[0].sm_util_percent is None
    assert [each.devices[0].sm_util_percent for each in shown.processes] == [5, None]

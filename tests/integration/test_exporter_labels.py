"""Labels that somebody asks for: on all series, of pods, and the node; and on no other series."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from called import call
from exposition import Exposition, NodeFiles, exporter_of, look, parsed, pod_of
from prometheus_client import CollectorRegistry, generate_latest
from wait import eventually

from libhamiregion.exporter import FAMILIES, RegionCollector
from libhamiregion.exporter.labels import pod_label_name
from libhamiregion.node import ChainedNames, KubernetesNames, Node, PodLogNames
from libhamiregion.node.names import labels_of_pod

if TYPE_CHECKING:
    from pathlib import Path

    from fake_kubernetes.server import FakeApi

GOLDEN = "1.2-many-processes"
LABELS = {"app.kubernetes.io/partOf": "vision", "team": "a", "secret": "x"}


def node_of(files: NodeFiles, kubeconfig: Path, *labels: str, **options: Any) -> Node:
    by_api = KubernetesNames("node-1", kubeconfig=kubeconfig, pod_labels=labels, **options)
    assert labels_of_pod(by_api, None) == {}
    return Node(files.root, names=ChainedNames([PodLogNames(files.logs), by_api]))


def uid_of(path: Path) -> str:
    return path.parent.name.partition("_")[0]


def others(found: Exposition, names: set[str]) -> set[str]:
    """Names of metrics that have a sample without one of these labels."""
    return {name for name, labels in found.samples if names - dict(labels).keys()}


def test_labels_of_the_pod_stand_on_all_metrics_of_its_containers(
    files: NodeFiles, api: FakeApi, tmp_path: Path
) -> None:
    path = files.golden(GOLDEN).path
    files.region("plain", pod="plain", memory_limits=["1GiB"], uuids=["GPU-1"])
    api.put(pod_of(GOLDEN), uid_of(path), {}, namespace="team-a", labels=LABELS)
    with node_of(files, api.kubeconfig(tmp_path), "team", "app.kubernetes.io/partOf") as node:
        exporter = exporter_of(node, legacy=True)
        found = look(exporter)
    about = [dict(labels) for _, labels in found.samples if ("pod", pod_of(GOLDEN)) in labels]
    assert len({frozenset(each) for each in about}) > 4
    for labels in about:
        assert (labels["label_team"], labels["label_app_kubernetes_io_part_of"]) == ("a", "vision")
    named = {"label_team", "label_app_kubernetes_io_part_of", "label_secret"}
    for _, labels in found.samples:
        if ("pod", pod_of(GOLDEN)) not in labels:
            assert not named & dict(labels).keys()


def test_a_value_that_kubernetes_cannot_have_is_no_label(
    files: NodeFiles, api: FakeApi, tmp_path: Path
) -> None:
    uid = uid_of(files.region(memory_limits=["1GiB"], uuids=["GPU-1"]))
    api.put("train-0", uid, {}, labels={"team": "a\nb"})
    with node_of(files, api.kubeconfig(tmp_path), "team") as node:
        exporter = exporter_of(node)
        family = "hami_vgpu_memory_limit_bytes"
        assert "label_team" not in look(exporter).labels(family)


def test_a_pod_gets_its_labels_as_soon_as_the_api_knows_it_and_by_no_other_list(
    files: NodeFiles, api: FakeApi, tmp_path: Path
) -> None:
    uid = uid_of(files.region(memory_limits=["1GiB"], uuids=["GPU-1"]))
    with node_of(files, api.kubeconfig(tmp_path), "team") as node:
        exporter = exporter_of(node)
        family = "hami_vgpu_memory_limit_bytes"
        assert "label_team" not in look(exporter).labels(family)
        api.put("train-0", uid, {}, labels={"team": "a"})
        eventually(lambda: look(exporter).labels(family).get("label_team") == "a")
        assert node.names.pod_labels(uid) == {"team": "a"}
        assert look(exporter).labels(family)["label_team"] == "a"
        assert len(api.lists) == 1


def test_constant_labels_stand_on_everything_and_the_node_on_containers(files: NodeFiles) -> None:
    files.golden(GOLDEN)
    with files.open() as node:
        plain = look(exporter_of(node, node_name="n1"))
        options = {"labels": {"team": 'a"b', "cluster": "blue"}, "node_label": True}
        exporter = exporter_of(node, node_name="n1", legacy=True, **options)
        assert exporter.labels_of(FAMILIES[0]).keys() == {"team", "cluster"}
        found = look(exporter)
        also_openmetrics = parsed(exporter.render(openmetrics=True), openmetrics=True)
        registry = CollectorRegistry()
        registry.register(RegionCollector(exporter, labels={"rack": "7"}))
        collected = parsed(generate_latest(registry))
    assert others(found, {"team", "cluster"}) == set()
    assert others(also_openmetrics, {"team", "cluster"}) == set()
    assert others(collected, {"team", "cluster", "rack"}) == set()
    assert found.value("hamiregion_proc_complete", team='a"b', cluster="blue") in (0, 1)
    of_containers = {each.name for each in FAMILIES if "pod" in each.labels}
    for name, labels in found.samples:
        assert (dict(labels).get("node") == "n1") is (
            name in of_containers or name.startswith("hami_host_")
        )
    # Without being asked for more, a series has its family's labels and no other.
    known = {each.name: {*each.labels, *dict(each.constant)} for each in FAMILIES}
    for name, labels in plain.samples:
        family = name.removesuffix("_sum").removesuffix("_count")
        assert dict(labels).keys() <= known[name if name in known else family]


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ({"a-b": "c"}, "'a-b' is no name for a label"),
        ({"__a": "c"}, "'__a' is no name"),
        ({"label_a": "c"}, "'label_a' is no name"),
        ({"1a": "c"}, "'1a' is no name"),
        ({"pod": "c"}, "metrics have a label 'pod' of their own"),
        ({"zone": "c"}, "metrics have a label 'zone' of their own"),
        ({f"a{number}": "" for number in range(17)}, "17 labels; 16 at most"),
    ],
)
def test_labels_that_cannot_be_are_refused(
    files: NodeFiles, labels: dict[str, str], said: str
) -> None:
    with files.open() as node:
        with pytest.raises(ValueError, match=said):
            exporter_of(node, labels=labels)
        with pytest.raises(ValueError, match=said):
            RegionCollector(exporter_of(node), labels=labels)


def test_labels_of_pods_are_bounded_in_name_and_number(tmp_path: Path) -> None:
    for wrong in ("", "a b", "-a", "a/b/c", "a" * 64, 'a"b'):
        with pytest.raises(ValueError, match="no name of a label"):
            KubernetesNames(kubeconfig=tmp_path / "none", pod_labels=[wrong])
    with pytest.raises(ValueError, match="17 labels of pods; 16 at most"):
        KubernetesNames(kubeconfig=tmp_path / "none", pod_labels=[f"a{n}" for n in range(17)])
    assert pod_label_name("nvidia.com/gpu.productName") == "label_nvidia_com_gpu_product_name"


def test_the_command_asks_the_api_for_the_labels(
    files: NodeFiles, api: FakeApi, tmp_path: Path
) -> None:
    uid = uid_of(files.region(memory_limits=["1GiB"], uuids=["GPU-1"]))
    api.put("train-0", uid, {}, labels={"team": "a"})
    place = ("--root", str(files.root), "--pod-logs", str(files.logs), "--node", "node-1")
    where = ("--kubeconfig", str(api.kubeconfig(tmp_path)), "--no-collector.nvml")
    asked = ("--pod-label", "team", "--label", "cluster=blue", "--node-label", "--json")
    answer = call("exporter", "--once", *place, *where, *asked)
    assert answer.returncode == 0, answer.stderr
    metrics = {each["name"]: each["samples"] for each in json.loads(answer.stdout)["metrics"]}
    (sample,) = metrics["hami_vgpu_memory_limit_bytes"]
    assert (
        sample["labels"].items()
        >= {
            "pod": "train-0",
            "label_team": "a",
            "cluster": "blue",
            "node": "node-1",
        }.items()
    )

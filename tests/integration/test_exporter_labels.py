"""Labels that somebody asks for: on all series, of pods, and the node; and on no other series."""

from __future__ import annotations

import pytest
from exposition import Exposition, NodeFiles, exporter_of, look, parsed
from prometheus_client import CollectorRegistry, generate_latest

from libhamiregion.exporter import FAMILIES, RegionCollector

GOLDEN = "1.2-many-processes"


def others(found: Exposition, names: set[str]) -> set[str]:
    """Names of metrics that have a sample without one of these labels."""
    return {name for name, labels in found.samples if names - dict(labels).keys()}


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

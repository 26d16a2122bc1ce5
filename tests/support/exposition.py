"""What an exporter says, taken apart by prometheus-client's own parsers."""

from collections.abc import Mapping
from typing import Any

import attrs
from prometheus_client import parser

from libhamiregion.exporter import NodeExporter
from libhamiregion.node import Node
from support.node_scene import NodeScene

Key = tuple[str, frozenset[tuple[str, str]]]


@attrs.frozen
class Exposition:
    """All samples of a text, by name and labels; a text with a series twice is refused."""

    samples: Mapping[Key, float]
    types: Mapping[str, str]
    helps: Mapping[str, str]

    def series(self, name: str, **labels: str) -> dict[frozenset[tuple[str, str]], float]:
        """The series of a name that have these labels, by all their labels."""
        wanted = set(labels.items())
        return {
            found: value
            for (each, found), value in self.samples.items()
            if each == name and wanted <= found
        }

    def value(self, name: str, **labels: str) -> float:
        """The one series of a name that has these labels, and perhaps others."""
        (value,) = self.series(name, **labels).values()
        return value

    def labels(self, name: str, **labels: str) -> dict[str, str]:
        """All labels of that one series."""
        (found,) = self.series(name, **labels)
        return dict(found)

    @property
    def names(self) -> set[str]:
        return {name for name, _ in self.samples}


def parsed(text: bytes) -> Exposition:
    samples: dict[Key, float] = {}
    types, helps = {}, {}
    for family in parser.text_string_to_metric_families(text.decode()):
        types[family.name], helps[family.name] = family.type, family.documentation
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in samples, f"twice: {key}"
            samples[key] = sample.value
    return Exposition(samples, types, helps)


def pod_of(golden: str) -> str:
    """A pod's name made of a golden region's."""
    return golden.replace(".", "-")


#: Collectors for tests that have other regions than healthy ones.
WITHOUT_DOCTOR = ("nvml", "processes", "unaccounted", "locks")


def exporter_of(node: Node, **options: Any) -> NodeExporter:
    """An exporter without the doctor, whose scrapes all observe the node."""
    return NodeExporter(node, **{"max_age_s": 0.0, "collectors": WITHOUT_DOCTOR, **options})


def scrape(exporter: NodeExporter) -> Exposition:
    """All samples of a scrape."""
    return parsed(exporter.render())


def exported(what: Node | NodeScene, **options: Any) -> Exposition:
    """All samples of the first scrape of a node or a scene, without the doctor's."""
    if isinstance(what, NodeScene):
        with what.open() as node:
            return exported(node, **options)
    return scrape(exporter_of(what, **options))

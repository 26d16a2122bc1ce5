"""The same metrics for prometheus-client: a collector for anybody's registry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from .metrics import CATALOGUE, MetricFamily

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .node_exporter import NodeExporter


class RegionCollector(Collector):
    """A collector of prometheus-client: register it where an exporter of your own has its metrics.

        REGISTRY.register(RegionCollector(exporter))

    It gives what `NodeExporter.render` gives, sample by sample. prometheus-client wants an object
    per sample and writes each line anew: some 20 us per sample, where `render` needs 0.1 us. Needs
    the extra ``exporter``.

    Threads: as the exporter.

    Args:
        exporter: Where the figures come from; start it, or let scrapes do its work.
    """

    def __init__(self, exporter: NodeExporter) -> None:
        self._exporter = exporter

    def collect(self) -> Iterator[Metric]:
        """The families that have series now, with their samples.

        Raises:
            RegionClosed: The exporter's node has been closed.
        """
        for series in self._exporter.gather():
            if series.labels:
                metric = _family(series.family)
                name = series.family.name
                metric.samples = [Sample(name, *sample) for sample in series.samples()]
                yield metric

    def describe(self) -> Iterator[Metric]:
        """All families that there can be, without samples; asks nothing."""
        for family in CATALOGUE:
            if family.origin != "legacy" or self._exporter.legacy:
                yield _family(family)


def _family(family: MetricFamily) -> Metric:
    if family.kind == "counter":
        return CounterMetricFamily(family.base_name, family.help)
    return GaugeMetricFamily(family.name, family.help)

"""Metrics of a node: collection, text, HTTP."""

from typing import TYPE_CHECKING, Any

from libhamiregion.errors import needs_extra

with needs_extra(__name__, "exporter"):
    from .collectors import COLLECTORS
    from .exporter import HAMI_VERSIONS, NodeExporter
    from .families import FAMILIES, MetricFamily
    from .http import MetricsServer
    from .listening import ListenError
    from .text import CONTENT_TYPE
    from .web_config import WebConfigError

if TYPE_CHECKING:
    from .region_collector import RegionCollector

__all__ = [
    "COLLECTORS",
    "CONTENT_TYPE",
    "FAMILIES",
    "HAMI_VERSIONS",
    "ListenError",
    "MetricFamily",
    "MetricsServer",
    "NodeExporter",
    "RegionCollector",
    "WebConfigError",
]


def __getattr__(name: str) -> Any:
    # prometheus-client takes 2 MiB, which a server does without.
    if name == "RegionCollector":
        with needs_extra(name, "exporter"):
            from .region_collector import RegionCollector

        return RegionCollector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

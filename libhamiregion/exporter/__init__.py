"""Metrics of a node: collection, text, HTTP."""

from .app import metrics_app
from .collector import RegionCollector
from .collectors import COLLECTORS, SeriesLimits
from .connections import ServerLimits
from .families import FAMILIES, MetricFamily
from .listening import ListenError
from .node_exporter import NodeExporter
from .server import MetricsServer, exporter_server
from .text import CONTENT_TYPE, OPENMETRICS_CONTENT_TYPE
from .web_config import WebConfigError

__all__ = [
    "COLLECTORS",
    "CONTENT_TYPE",
    "FAMILIES",
    "OPENMETRICS_CONTENT_TYPE",
    "ListenError",
    "MetricFamily",
    "MetricsServer",
    "NodeExporter",
    "RegionCollector",
    "SeriesLimits",
    "ServerLimits",
    "WebConfigError",
    "exporter_server",
    "metrics_app",
]

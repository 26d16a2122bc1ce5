"""Metrics of a node: collection, text, HTTP."""

from .background import Bounds
from .collector import RegionCollector
from .connections import ServerLimits
from .landing import LandingFacts
from .listening import ListenError
from .metrics import CATALOGUE, MetricFamily, Unit
from .node_exporter import NodeExporter
from .node_server import exporter_server
from .rendering import CONTENT_TYPE, OPENMETRICS_CONTENT_TYPE, Series
from .server import MetricsServer
from .status import ExporterStatus, StageStatus
from .web_config import WebConfigError

__all__ = [
    "CATALOGUE",
    "CONTENT_TYPE",
    "OPENMETRICS_CONTENT_TYPE",
    "Bounds",
    "ExporterStatus",
    "LandingFacts",
    "ListenError",
    "MetricFamily",
    "MetricsServer",
    "NodeExporter",
    "RegionCollector",
    "Series",
    "ServerLimits",
    "StageStatus",
    "Unit",
    "WebConfigError",
    "exporter_server",
]

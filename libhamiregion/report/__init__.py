"""What was used when: a recorder, and reports over what it kept."""

from .history import Allocation, AllocationState, History, HistoryFacts, Look
from .making import make_report
from .models import Coverage, Gap, Report, Suggestion, SuggestionPolicy, Timeline, Usage
from .node_reader import NodeReader
from .page import CHART_POINTS, report_html
from .periods import parse_moment, parse_period
from .prometheus_api import Credentials, PrometheusAnswer, PrometheusApi, PrometheusError
from .prometheus_history import PrometheusHistory
from .reader import Recording
from .recorder import Recorder
from .recording import (
    NotARecording,
    Reading,
    RecordedContainer,
    RecordingDamaged,
    RecordingError,
    RecordingInUse,
    RecordingUnavailable,
    Written,
)
from .tables import report_csv, report_json
from .writer import RecordingWriter

__all__ = [
    "CHART_POINTS",
    "Allocation",
    "AllocationState",
    "Coverage",
    "Credentials",
    "Gap",
    "History",
    "HistoryFacts",
    "Look",
    "NodeReader",
    "NotARecording",
    "PrometheusAnswer",
    "PrometheusApi",
    "PrometheusError",
    "PrometheusHistory",
    "Reading",
    "RecordedContainer",
    "Recorder",
    "Recording",
    "RecordingDamaged",
    "RecordingError",
    "RecordingInUse",
    "RecordingUnavailable",
    "RecordingWriter",
    "Report",
    "Suggestion",
    "SuggestionPolicy",
    "Timeline",
    "Usage",
    "Written",
    "make_report",
    "parse_moment",
    "parse_period",
    "report_csv",
    "report_html",
    "report_json",
]

"""Usage over time: a recorder, and reports from its recordings or from a Prometheus."""

from .aggregate import make_report
from .history import Allocation, Gpu, Sample
from .models import Report, Timeline, Usage
from .page import report_html
from .prometheus import PrometheusError, PrometheusHistory
from .recorder import Recorder
from .recording import Recording, RecordingError, RecordingUnavailable
from .tables import report_csv, report_json
from .writer import RecordingWriter

__all__ = [
    "Allocation",
    "Gpu",
    "PrometheusError",
    "PrometheusHistory",
    "Recorder",
    "Recording",
    "RecordingError",
    "RecordingUnavailable",
    "RecordingWriter",
    "Report",
    "Sample",
    "Timeline",
    "Usage",
    "make_report",
    "report_csv",
    "report_html",
    "report_json",
]

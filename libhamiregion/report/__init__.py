"""What was used when: a recorder, and reports over what it kept or what a Prometheus scraped."""

from .history import Allocation, Sample
from .making import make_report
from .models import Report, Timeline, Usage
from .page import report_html
from .prometheus import PrometheusHistory
from .prometheus_http import PrometheusError
from .recorder import Recorder
from .recording import Recording, RecordingError, RecordingUnavailable
from .tables import report_csv, report_json
from .writer import RecordingWriter

__all__ = [
    "Allocation",
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

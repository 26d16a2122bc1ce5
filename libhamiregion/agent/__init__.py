"""Long-running work on a node: export, steer, repair, record, report.

A name is imported from its module when it is first asked for: an exporter has no use for SQLite,
and a report none for a web server.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .durations import parse_duration
    from .events import Event
    from .export.background import Bounds
    from .export.collector import RegionCollector
    from .export.metrics import CATALOGUE, MetricFamily, Unit
    from .export.node_exporter import NodeExporter
    from .export.rendering import CONTENT_TYPE, OPENMETRICS_CONTENT_TYPE, Series
    from .export.status import ExporterStatus, StageStatus
    from .plan.annotations import AnnotatedPod, AnnotationPlan, plan_of_pods
    from .plan.apply import ChangeStatus, ContainerOutcome, PlanApplier, PlanResult
    from .plan.diff import (
        ContainerDiff,
        Override,
        PlanDiff,
        PlannedEdit,
        Skip,
        SkipReason,
        diff_plan,
    )
    from .plan.document import Place, PlanError, PlanProblem
    from .plan.journal import Recovered, RecoveryOutcome
    from .plan.limit_plan import (
        LimitField,
        LimitPlan,
        Rule,
        Setting,
        load_plan,
        parse_plan,
        plan_text,
    )
    from .plan.pods import PodApiError, PodWatch
    from .plan.schema import PLAN_SCHEMA
    from .plan.sources import (
        FixedPlan,
        PlanFile,
        PlanSource,
        PodAnnotations,
        SeveralSources,
        SourceReading,
    )
    from .plan.state import PlanState, StateBusy, default_state_directory
    from .plan.undo import export_plan, undo_plan
    from .plan.watch import PlanWatcher
    from .record.node_reader import NodeReader
    from .record.reader import Recording
    from .record.recorder import Recorder
    from .record.recording import (
        NotARecording,
        Reading,
        RecordedContainer,
        RecordingDamaged,
        RecordingError,
        RecordingInUse,
        RecordingUnavailable,
        Written,
    )
    from .record.writer import RecordingWriter
    from .report.history import Allocation, AllocationState, History, HistoryFacts, Look
    from .report.making import make_report
    from .report.models import Coverage, Gap, Report, Suggestion, SuggestionPolicy, Timeline, Usage
    from .report.page import CHART_POINTS, report_html
    from .report.periods import parse_moment, parse_period
    from .report.prometheus_api import Credentials, PrometheusAnswer, PrometheusApi, PrometheusError
    from .report.prometheus_history import PrometheusHistory
    from .report.tables import report_csv, report_json
    from .serving.connections import ServerLimits
    from .serving.landing import LandingFacts
    from .serving.listening import ListenError
    from .serving.node_server import exporter_server
    from .serving.server import MetricsServer
    from .serving.web_config import WebConfigError
    from .steering.driver_figures import DriverFigures
    from .steering.feedback import Feedback
    from .steering.gone_remover import GoneRemover
    from .steering.monitor_watch import OtherWriter, OtherWriterRuns, WriterWatch
    from .steering.pod_presence import ApiPods, KubeletPods, PodSource, PodsUnknown
    from .steering.priority_rule import LaunchState, Verdict, believed, decide
    from .steering.reconcile import RepairLoop
    from .tasks import Task, TaskRunner

__all__ = [
    "CATALOGUE",
    "CHART_POINTS",
    "CONTENT_TYPE",
    "OPENMETRICS_CONTENT_TYPE",
    "PLAN_SCHEMA",
    "Allocation",
    "AllocationState",
    "AnnotatedPod",
    "AnnotationPlan",
    "ApiPods",
    "Bounds",
    "ChangeStatus",
    "ContainerDiff",
    "ContainerOutcome",
    "Coverage",
    "Credentials",
    "DriverFigures",
    "Event",
    "ExporterStatus",
    "Feedback",
    "FixedPlan",
    "Gap",
    "GoneRemover",
    "History",
    "HistoryFacts",
    "KubeletPods",
    "LandingFacts",
    "LaunchState",
    "LimitField",
    "LimitPlan",
    "ListenError",
    "Look",
    "MetricFamily",
    "MetricsServer",
    "NodeExporter",
    "NodeReader",
    "NotARecording",
    "OtherWriter",
    "OtherWriterRuns",
    "Override",
    "Place",
    "PlanApplier",
    "PlanDiff",
    "PlanError",
    "PlanFile",
    "PlanProblem",
    "PlanResult",
    "PlanSource",
    "PlanState",
    "PlanWatcher",
    "PlannedEdit",
    "PodAnnotations",
    "PodApiError",
    "PodSource",
    "PodWatch",
    "PodsUnknown",
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
    "Recovered",
    "RecoveryOutcome",
    "RegionCollector",
    "RepairLoop",
    "Report",
    "Rule",
    "Series",
    "ServerLimits",
    "Setting",
    "SeveralSources",
    "Skip",
    "SkipReason",
    "SourceReading",
    "StageStatus",
    "StateBusy",
    "Suggestion",
    "SuggestionPolicy",
    "Task",
    "TaskRunner",
    "Timeline",
    "Unit",
    "Usage",
    "Verdict",
    "WebConfigError",
    "WriterWatch",
    "Written",
    "believed",
    "decide",
    "default_state_directory",
    "diff_plan",
    "export_plan",
    "exporter_server",
    "load_plan",
    "make_report",
    "parse_duration",
    "parse_moment",
    "parse_period",
    "parse_plan",
    "plan_of_pods",
    "plan_text",
    "report_csv",
    "report_html",
    "report_json",
    "undo_plan",
]

# Public name to the module that has it.
_MODULES = {
    "Allocation": "report.history",
    "AllocationState": "report.history",
    "AnnotatedPod": "plan.annotations",
    "AnnotationPlan": "plan.annotations",
    "ApiPods": "steering.pod_presence",
    "Bounds": "export.background",
    "CATALOGUE": "export.metrics",
    "CHART_POINTS": "report.page",
    "CONTENT_TYPE": "export.rendering",
    "ChangeStatus": "plan.apply",
    "ContainerDiff": "plan.diff",
    "ContainerOutcome": "plan.apply",
    "Coverage": "report.models",
    "Credentials": "report.prometheus_api",
    "DriverFigures": "steering.driver_figures",
    "Event": "events",
    "ExporterStatus": "export.status",
    "Feedback": "steering.feedback",
    "FixedPlan": "plan.sources",
    "Gap": "report.models",
    "GoneRemover": "steering.gone_remover",
    "History": "report.history",
    "HistoryFacts": "report.history",
    "KubeletPods": "steering.pod_presence",
    "LandingFacts": "serving.landing",
    "LaunchState": "steering.priority_rule",
    "LimitField": "plan.limit_plan",
    "LimitPlan": "plan.limit_plan",
    "ListenError": "serving.listening",
    "Look": "report.history",
    "MetricFamily": "export.metrics",
    "MetricsServer": "serving.server",
    "NodeExporter": "export.node_exporter",
    "NodeReader": "record.node_reader",
    "NotARecording": "record.recording",
    "OPENMETRICS_CONTENT_TYPE": "export.rendering",
    "OtherWriter": "steering.monitor_watch",
    "OtherWriterRuns": "steering.monitor_watch",
    "Override": "plan.diff",
    "PLAN_SCHEMA": "plan.schema",
    "Place": "plan.document",
    "PlanApplier": "plan.apply",
    "PlanDiff": "plan.diff",
    "PlanError": "plan.document",
    "PlanFile": "plan.sources",
    "PlanProblem": "plan.document",
    "PlanResult": "plan.apply",
    "PlanSource": "plan.sources",
    "PlanState": "plan.state",
    "PlanWatcher": "plan.watch",
    "PlannedEdit": "plan.diff",
    "PodAnnotations": "plan.sources",
    "PodApiError": "plan.pods",
    "PodSource": "steering.pod_presence",
    "PodWatch": "plan.pods",
    "PodsUnknown": "steering.pod_presence",
    "PrometheusAnswer": "report.prometheus_api",
    "PrometheusApi": "report.prometheus_api",
    "PrometheusError": "report.prometheus_api",
    "PrometheusHistory": "report.prometheus_history",
    "Reading": "record.recording",
    "RecordedContainer": "record.recording",
    "Recorder": "record.recorder",
    "Recording": "record.reader",
    "RecordingDamaged": "record.recording",
    "RecordingError": "record.recording",
    "RecordingInUse": "record.recording",
    "RecordingUnavailable": "record.recording",
    "RecordingWriter": "record.writer",
    "Recovered": "plan.journal",
    "RecoveryOutcome": "plan.journal",
    "RegionCollector": "export.collector",
    "RepairLoop": "steering.reconcile",
    "Report": "report.models",
    "Rule": "plan.limit_plan",
    "Series": "export.rendering",
    "ServerLimits": "serving.connections",
    "Setting": "plan.limit_plan",
    "SeveralSources": "plan.sources",
    "Skip": "plan.diff",
    "SkipReason": "plan.diff",
    "SourceReading": "plan.sources",
    "StageStatus": "export.status",
    "StateBusy": "plan.state",
    "Suggestion": "report.models",
    "SuggestionPolicy": "report.models",
    "Task": "tasks",
    "TaskRunner": "tasks",
    "Timeline": "report.models",
    "Unit": "export.metrics",
    "Usage": "report.models",
    "Verdict": "steering.priority_rule",
    "WebConfigError": "serving.web_config",
    "WriterWatch": "steering.monitor_watch",
    "Written": "record.recording",
    "believed": "steering.priority_rule",
    "decide": "steering.priority_rule",
    "default_state_directory": "plan.state",
    "diff_plan": "plan.diff",
    "exporter_server": "serving.node_server",
    "export_plan": "plan.undo",
    "load_plan": "plan.limit_plan",
    "make_report": "report.making",
    "parse_duration": "durations",
    "parse_moment": "report.periods",
    "parse_period": "report.periods",
    "parse_plan": "plan.limit_plan",
    "plan_of_pods": "plan.annotations",
    "plan_text": "plan.limit_plan",
    "report_csv": "report.tables",
    "report_html": "report.page",
    "report_json": "report.tables",
    "undo_plan": "plan.undo",
}


def __getattr__(name: str) -> object:
    try:
        module = _MODULES[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    value = getattr(import_module(f".{module}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

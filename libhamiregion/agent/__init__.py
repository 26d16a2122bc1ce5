"""Long-running work on a node: export, steer, repair, record, report.

A name is imported from its module when it is first asked for: an exporter has no use for SQLite,
and a report none for a web server.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .background import Bounds
    from .collector import RegionCollector
    from .connections import ServerLimits
    from .driver_figures import DriverFigures
    from .durations import parse_duration
    from .events import Event
    from .exporter import NodeExporter
    from .exporter_status import ExporterStatus, StageStatus
    from .feedback import Feedback
    from .gone_remover import GoneRemover
    from .history import Allocation, AllocationState, History, HistoryFacts, Look
    from .landing import LandingFacts
    from .listening import ListenError
    from .metrics import CATALOGUE, MetricFamily, Unit
    from .monitor_watch import OtherWriter, OtherWriterRuns, WriterWatch
    from .node_reader import NodeReader
    from .node_server import exporter_server
    from .periods import parse_moment, parse_period
    from .plan import LimitField, LimitPlan, Rule, Setting, load_plan, parse_plan, plan_text
    from .plan_annotations import AnnotatedPod, AnnotationPlan, plan_of_pods
    from .plan_apply import ChangeStatus, ContainerOutcome, PlanApplier, PlanResult
    from .plan_diff import (
        ContainerDiff,
        Override,
        PlanDiff,
        PlannedEdit,
        Skip,
        SkipReason,
        diff_plan,
    )
    from .plan_document import Place, PlanError, PlanProblem
    from .plan_journal import Recovered, RecoveryOutcome
    from .plan_pods import PodApiError, PodWatch
    from .plan_schema import PLAN_SCHEMA
    from .plan_sources import (
        FixedPlan,
        PlanFile,
        PlanSource,
        PodAnnotations,
        SeveralSources,
        SourceReading,
    )
    from .plan_state import PlanState, StateBusy, default_state_directory
    from .plan_undo import export_plan, undo_plan
    from .plan_watch import PlanWatcher
    from .pod_presence import ApiPods, KubeletPods, PodSource, PodsUnknown
    from .priority_rule import LaunchState, Verdict, believed, decide
    from .prometheus_api import Credentials, PrometheusAnswer, PrometheusApi, PrometheusError
    from .prometheus_history import PrometheusHistory
    from .reconcile import RepairLoop
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
    from .recording_reader import Recording
    from .recording_writer import RecordingWriter
    from .rendering import CONTENT_TYPE, OPENMETRICS_CONTENT_TYPE, Series
    from .report import make_report
    from .report_models import Coverage, Gap, Report, Suggestion, SuggestionPolicy, Timeline, Usage
    from .report_page import CHART_POINTS, report_html
    from .report_tables import report_csv, report_json
    from .serving import MetricsServer
    from .tasks import Task, TaskRunner
    from .web_config import WebConfigError

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
    "Allocation": "history",
    "AllocationState": "history",
    "AnnotatedPod": "plan_annotations",
    "AnnotationPlan": "plan_annotations",
    "ApiPods": "pod_presence",
    "Bounds": "background",
    "CATALOGUE": "metrics",
    "CHART_POINTS": "report_page",
    "CONTENT_TYPE": "rendering",
    "ChangeStatus": "plan_apply",
    "ContainerDiff": "plan_diff",
    "ContainerOutcome": "plan_apply",
    "Coverage": "report_models",
    "Credentials": "prometheus_api",
    "DriverFigures": "driver_figures",
    "Event": "events",
    "ExporterStatus": "exporter_status",
    "Feedback": "feedback",
    "FixedPlan": "plan_sources",
    "Gap": "report_models",
    "GoneRemover": "gone_remover",
    "History": "history",
    "HistoryFacts": "history",
    "KubeletPods": "pod_presence",
    "LandingFacts": "landing",
    "LaunchState": "priority_rule",
    "LimitField": "plan",
    "LimitPlan": "plan",
    "ListenError": "listening",
    "Look": "history",
    "MetricFamily": "metrics",
    "MetricsServer": "serving",
    "NodeExporter": "exporter",
    "NodeReader": "node_reader",
    "NotARecording": "recording",
    "OPENMETRICS_CONTENT_TYPE": "rendering",
    "OtherWriter": "monitor_watch",
    "OtherWriterRuns": "monitor_watch",
    "Override": "plan_diff",
    "PLAN_SCHEMA": "plan_schema",
    "Place": "plan_document",
    "PlanApplier": "plan_apply",
    "PlanDiff": "plan_diff",
    "PlanError": "plan_document",
    "PlanFile": "plan_sources",
    "PlanProblem": "plan_document",
    "PlanResult": "plan_apply",
    "PlanSource": "plan_sources",
    "PlanState": "plan_state",
    "PlanWatcher": "plan_watch",
    "PlannedEdit": "plan_diff",
    "PodAnnotations": "plan_sources",
    "PodApiError": "plan_pods",
    "PodSource": "pod_presence",
    "PodWatch": "plan_pods",
    "PodsUnknown": "pod_presence",
    "PrometheusAnswer": "prometheus_api",
    "PrometheusApi": "prometheus_api",
    "PrometheusError": "prometheus_api",
    "PrometheusHistory": "prometheus_history",
    "Reading": "recording",
    "RecordedContainer": "recording",
    "Recorder": "recorder",
    "Recording": "recording_reader",
    "RecordingDamaged": "recording",
    "RecordingError": "recording",
    "RecordingInUse": "recording",
    "RecordingUnavailable": "recording",
    "RecordingWriter": "recording_writer",
    "Recovered": "plan_journal",
    "RecoveryOutcome": "plan_journal",
    "RegionCollector": "collector",
    "RepairLoop": "reconcile",
    "Report": "report_models",
    "Rule": "plan",
    "Series": "rendering",
    "ServerLimits": "connections",
    "Setting": "plan",
    "SeveralSources": "plan_sources",
    "Skip": "plan_diff",
    "SkipReason": "plan_diff",
    "SourceReading": "plan_sources",
    "StageStatus": "exporter_status",
    "StateBusy": "plan_state",
    "Suggestion": "report_models",
    "SuggestionPolicy": "report_models",
    "Task": "tasks",
    "TaskRunner": "tasks",
    "Timeline": "report_models",
    "Unit": "metrics",
    "Usage": "report_models",
    "Verdict": "priority_rule",
    "WebConfigError": "web_config",
    "WriterWatch": "monitor_watch",
    "Written": "recording",
    "believed": "priority_rule",
    "decide": "priority_rule",
    "default_state_directory": "plan_state",
    "diff_plan": "plan_diff",
    "exporter_server": "node_server",
    "export_plan": "plan_undo",
    "load_plan": "plan",
    "make_report": "report",
    "parse_duration": "durations",
    "parse_moment": "periods",
    "parse_period": "periods",
    "parse_plan": "plan",
    "plan_of_pods": "plan_annotations",
    "plan_text": "plan",
    "report_csv": "report_tables",
    "report_html": "report_page",
    "report_json": "report_tables",
    "undo_plan": "plan_undo",
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

"""Long-running work on a node: export, steer, repair, record, report.

A name is imported from its module when it is first asked for: an exporter has no use for SQLite,
and a report none for a web server.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
        ContainerDiff,
        FixedPlan,
        Override,
        PlanDiff,
        PlanFile,
        PlanSource,
        PlannedEdit,
        PodAnnotations,
        SeveralSources,
        Skip,
        SkipReason,
        SourceReading,
        diff_plan,
    )
    )
    from .background import Bounds
    from .collector import RegionCollector
    from .connections import ServerLimits
    from .driver_figures import DriverFigures
    from .durations import parse_duration
    from .events import Event
    from .exporter import NodeExporter
    from .exporter_status import ExporterStatus, StageStatus
    from .feedback import Feedback
    from .labels import Labels
    from .landing import LandingFacts
    from .listening import ListenError
    from .metrics import CATALOGUE, MetricFamily, Unit
    from .monitor_watch import OtherWriter, OtherWriterRuns, WriterWatch
    from .plan import LimitField, LimitPlan, Rule, Setting, load_plan, parse_plan, plan_text
    from .plan_annotations import AnnotatedPod, AnnotationPlan, plan_of_pods
    from .plan_apply import ChangeStatus, ContainerOutcome, PlanApplier, PlanResult
    from .plan_diff import (
    from .plan_document import Place, PlanError, PlanProblem
    from .plan_journal import Recovered, RecoveryOutcome
    from .plan_pods import PodApiError, PodWatch
    from .plan_schema import PLAN_SCHEMA
    from .plan_sources import (
    from .plan_state import PlanState, StateBusy, default_state_directory
    from .plan_undo import export_plan, undo_plan
    from .plan_watch import PlanWatcher
    from .priority_rule import LaunchState, Verdict, believed, decide
    from .reconcile import RepairLoop
    from .recorder import Recorder
    from .rendering import CONTENT_TYPE, OPENMETRICS_CONTENT_TYPE, Series
    from .serving import MetricsServer
    from .tasks import Task, TaskRunner
    from .web_config import WebConfigError

__all__ = [
    "AnnotatedPod",
    "AnnotationPlan",
    "Bounds",
    "CATALOGUE",
    "CONTENT_TYPE",
    "ChangeStatus",
    "ContainerDiff",
    "ContainerOutcome",
    "DriverFigures",
    "Event",
    "ExporterStatus",
    "Feedback",
    "FixedPlan",
    "Labels",
    "LandingFacts",
    "LaunchState",
    "LimitField",
    "LimitPlan",
    "ListenError",
    "MetricFamily",
    "MetricsServer",
    "NodeExporter",
    "OPENMETRICS_CONTENT_TYPE",
    "OtherWriter",
    "OtherWriterRuns",
    "Override",
    "PLAN_SCHEMA",
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
    "PodWatch",
    "Recorder",
    "Recovered",
    "RecoveryOutcome",
    "RegionCollector",
    "RepairLoop",
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
    "Task",
    "TaskRunner",
    "Unit",
    "Verdict",
    "WebConfigError",
    "WriterWatch",
    "believed",
    "decide",
    "default_state_directory",
    "diff_plan",
    "export_plan",
    "load_plan",
    "parse_duration",
    "parse_plan",
    "plan_of_pods",
    "plan_text",
    "undo_plan",
]

# Public name to the module that has it.
_MODULES = {
    "AnnotatedPod": "plan_annotations",
    "AnnotationPlan": "plan_annotations",
    "Bounds": "background",
    "CATALOGUE": "metrics",
    "CONTENT_TYPE": "rendering",
    "ChangeStatus": "plan_apply",
    "ContainerDiff": "plan_diff",
    "ContainerOutcome": "plan_apply",
    "DriverFigures": "driver_figures",
    "Event": "events",
    "ExporterStatus": "exporter_status",
    "Feedback": "feedback",
    "FixedPlan": "plan_sources",
    "Labels": "labels",
    "LandingFacts": "landing",
    "LaunchState": "priority_rule",
    "LimitField": "plan",
    "LimitPlan": "plan",
    "ListenError": "listening",
    "MetricFamily": "metrics",
    "MetricsServer": "serving",
    "NodeExporter": "exporter",
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
    "PodWatch": "plan_pods",
    "Recorder": "recorder",
    "Recovered": "plan_journal",
    "RecoveryOutcome": "plan_journal",
    "RegionCollector": "collector",
    "RepairLoop": "reconcile",
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
    "Task": "tasks",
    "TaskRunner": "tasks",
    "Unit": "metrics",
    "Verdict": "priority_rule",
    "WebConfigError": "web_config",
    "WriterWatch": "monitor_watch",
    "believed": "priority_rule",
    "decide": "priority_rule",
    "default_state_directory": "plan_state",
    "diff_plan": "plan_diff",
    "export_plan": "plan_undo",
    "load_plan": "plan",
    "parse_duration": "durations",
    "parse_plan": "plan",
    "plan_of_pods": "plan_annotations",
    "plan_text": "plan",
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

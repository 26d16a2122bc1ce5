"""Limits of many containers, by pattern."""

from libhamiregion.node import KubernetesError as PodApiError

from .apply import PlanResult, apply_diff
from .diff import PlanDiff, diff_plan
from .document import PlanError
from .limit_plan import LimitPlan, Limits, Rule
from .plan_file import load_plan, parse_plan, plan_text
from .pods import PodAnnotations
from .sources import PlanFile, PlanSource, SourceReading
from .undo import export_plan, undo_plan
from .watch import OtherKeeperRuns, PlanWatcher

__all__ = [
    "LimitPlan",
    "Limits",
    "OtherKeeperRuns",
    "PlanDiff",
    "PlanError",
    "PlanFile",
    "PlanResult",
    "PlanSource",
    "PlanWatcher",
    "PodAnnotations",
    "PodApiError",
    "Rule",
    "SourceReading",
    "apply_diff",
    "diff_plan",
    "export_plan",
    "load_plan",
    "parse_plan",
    "plan_text",
    "undo_plan",
]

"""Limits of many containers, by pattern."""

from .annotations import PodAnnotations
from .apply import PlanResult, apply_diff, undo_plan
from .diff import PlanDiff, diff_plan
from .kubernetes import KubernetesError
from .node_pods import NodePod, NodePods
from .plan import LimitPlan, Limits, Rule
from .plan_file import PlanError, load_plan, parse_plan, plan_text
from .reconcile import PlanFile, PlanLocked, PlanReconciler, PlanSource, SourceReading

__all__ = [
    "KubernetesError",
    "LimitPlan",
    "Limits",
    "NodePod",
    "NodePods",
    "PlanDiff",
    "PlanError",
    "PlanFile",
    "PlanLocked",
    "PlanReconciler",
    "PlanResult",
    "PlanSource",
    "PodAnnotations",
    "Rule",
    "SourceReading",
    "apply_diff",
    "diff_plan",
    "load_plan",
    "parse_plan",
    "plan_text",
    "undo_plan",
]

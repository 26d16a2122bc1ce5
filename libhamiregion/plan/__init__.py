"""Limits of many containers, by pattern."""

from .annotations import AnnotatedPod, AnnotationPlan, plan_of_pods
from .apply import ChangeStatus, ContainerOutcome, PlanApplier, PlanResult
from .diff import ContainerDiff, Override, PlanDiff, PlannedEdit, Skip, SkipReason, diff_plan
from .document import Place, PlanError, PlanProblem
from .journal import Recovered, RecoveryOutcome
from .limit_plan import LimitField, LimitPlan, Rule, Setting, load_plan, parse_plan, plan_text
from .pods import PodApiError, PodWatch
from .schema import PLAN_SCHEMA
from .sources import FixedPlan, PlanFile, PlanSource, PodAnnotations, SeveralSources, SourceReading
from .state import PlanState, StateBusy, default_state_directory
from .undo import export_plan, undo_plan
from .watch import PlanWatcher

__all__ = [
    "PLAN_SCHEMA",
    "AnnotatedPod",
    "AnnotationPlan",
    "ChangeStatus",
    "ContainerDiff",
    "ContainerOutcome",
    "FixedPlan",
    "LimitField",
    "LimitPlan",
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
    "PodWatch",
    "Recovered",
    "RecoveryOutcome",
    "Rule",
    "Setting",
    "SeveralSources",
    "Skip",
    "SkipReason",
    "SourceReading",
    "StateBusy",
    "default_state_directory",
    "diff_plan",
    "export_plan",
    "load_plan",
    "parse_plan",
    "plan_of_pods",
    "plan_text",
    "undo_plan",
]

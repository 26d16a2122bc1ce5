"""The node agent: feedback, repair, driver figures, plans, stale directories."""

from .driver_figures import UsageSync
from .feedback import Feedback, OtherWriterRuns
from .loop import PlanKeeper, RootWatch, Task, TaskRunner
from .priority_rule import LaunchState, Verdict, decide
from .repair import RepairLoop
from .stale_directories import StaleDirectoryCleaner

__all__ = [
    "Feedback",
    "LaunchState",
    "OtherWriterRuns",
    "PlanKeeper",
    "RepairLoop",
    "RootWatch",
    "StaleDirectoryCleaner",
    "Task",
    "TaskRunner",
    "UsageSync",
    "Verdict",
    "decide",
]

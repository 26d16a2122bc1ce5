"""What runs for long on a node: feedback, repair, driver figures, plans, stale directories."""

from .driver_figures import DriverFigures
from .feedback import Feedback
from .other_writers import OtherWriterRuns
from .plans import PlanKeeper
from .priority_rule import LaunchState, Verdict, decide
from .repair import RepairLoop
from .stale_directories import StaleDirectoryCollector
from .tasks import Task, TaskRunner

__all__ = [
    "DriverFigures",
    "Feedback",
    "LaunchState",
    "OtherWriterRuns",
    "PlanKeeper",
    "RepairLoop",
    "StaleDirectoryCollector",
    "Task",
    "TaskRunner",
    "Verdict",
    "decide",
]

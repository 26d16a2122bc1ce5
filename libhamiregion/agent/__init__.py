"""What runs for long on a node: feedback, repair, driver figures, stale directories."""

from .driver_figures import DriverFigures
from .feedback import Feedback
from .gone_remover import GoneRemover
from .monitor_watch import OtherWriter, OtherWriterRuns, WriterWatch
from .pod_presence import ApiPods, KubeletPods, PodSource, PodsUnknown
from .priority_rule import LaunchState, Verdict, believed, decide
from .reconcile import RepairLoop
from .tasks import Task, TaskRunner

__all__ = [
    "ApiPods",
    "DriverFigures",
    "Feedback",
    "GoneRemover",
    "KubeletPods",
    "LaunchState",
    "OtherWriter",
    "OtherWriterRuns",
    "PodSource",
    "PodsUnknown",
    "RepairLoop",
    "Task",
    "TaskRunner",
    "Verdict",
    "WriterWatch",
    "believed",
    "decide",
]

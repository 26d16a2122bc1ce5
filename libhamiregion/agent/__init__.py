"""Long-running work on a node: export, steer, repair, record, report.

A name is imported from its module when it is first asked for: an exporter has no use for SQLite,
and a report none for a web server.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .connections import ServerLimits
    from .driver_figures import DriverFigures
    from .durations import parse_duration
    from .events import Event
    from .feedback import Feedback
    from .landing import LandingFacts
    from .listening import ListenError
    from .monitor_watch import OtherWriter, OtherWriterRuns, WriterWatch
    from .priority_rule import LaunchState, Verdict, believed, decide
    from .reconcile import RepairLoop
    from .recorder import Recorder
    from .serving import MetricsServer
    from .tasks import Task, TaskRunner
    from .web_config import WebConfigError

__all__ = [
    "DriverFigures",
    "Event",
    "Feedback",
    "LandingFacts",
    "LaunchState",
    "ListenError",
    "MetricsServer",
    "OtherWriter",
    "OtherWriterRuns",
    "Recorder",
    "RepairLoop",
    "ServerLimits",
    "Task",
    "TaskRunner",
    "Verdict",
    "WebConfigError",
    "WriterWatch",
    "believed",
    "decide",
    "parse_duration",
]

# Public name to the module that has it.
_MODULES = {
    "DriverFigures": "driver_figures",
    "Event": "events",
    "Feedback": "feedback",
    "LandingFacts": "landing",
    "LaunchState": "priority_rule",
    "ListenError": "listening",
    "MetricsServer": "serving",
    "OtherWriter": "monitor_watch",
    "OtherWriterRuns": "monitor_watch",
    "Recorder": "recorder",
    "RepairLoop": "reconcile",
    "ServerLimits": "connections",
    "Task": "tasks",
    "TaskRunner": "tasks",
    "Verdict": "priority_rule",
    "WebConfigError": "web_config",
    "WriterWatch": "monitor_watch",
    "believed": "priority_rule",
    "decide": "priority_rule",
    "parse_duration": "durations",
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

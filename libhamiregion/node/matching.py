"""Names of `slots` for their callers until they are converted."""

from .process_reader import MONITOR_NAMES, HostProcess, is_monitor
from .slots import RegionProcesses, SlotMatch, SlotState

__all__ = [
    "MONITOR_NAMES",
    "HostProcess",
    "RegionProcesses",
    "SlotMatch",
    "SlotState",
    "is_monitor",
]

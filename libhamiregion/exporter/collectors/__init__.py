"""The parts of a scrape, one file each; `NodeExporter` makes them."""

from .containers import ContainersCollector
from .doctor import DoctorCollector
from .locks import LocksCollector
from .nvml import NvmlCollector
from .processes import ProcessesCollector
from .unaccounted import UnaccountedCollector

#: Collectors that can be left out; containers are always shown.
COLLECTORS = ("nvml", "processes", "unaccounted", "locks", "doctor")

__all__ = [
    "COLLECTORS",
    "ContainersCollector",
    "DoctorCollector",
    "LocksCollector",
    "NvmlCollector",
    "ProcessesCollector",
    "UnaccountedCollector",
]

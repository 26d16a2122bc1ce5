"""The work behind the scrapes: one collector each module, switched by ``--collector.NAME``."""

from .containers import ContainersCollector
from .doctor import DoctorCollector
from .locks import LocksCollector
from .nvml import NvmlCollector
from .processes import ProcessesCollector
from .unaccounted import UnaccountedCollector

#: What can be switched; containers are always looked for.
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

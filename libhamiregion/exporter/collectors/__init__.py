"""The parts of a scrape, one file each; `NodeExporter` makes them."""

from types import MappingProxyType

from .containers import ContainersCollector
from .doctor import DoctorCollector
from .locks import LocksCollector
from .nvml import NvmlCollector
from .processes import ProcessesCollector
from .unaccounted import UnaccountedCollector

_OPTIONAL = (
    NvmlCollector,
    ProcessesCollector,
    UnaccountedCollector,
    LocksCollector,
    DoctorCollector,
)
#: Collectors that can be left out, by name; containers are always shown.
COLLECTORS = MappingProxyType({each.name: each for each in _OPTIONAL})

__all__ = ["COLLECTORS", "ContainersCollector", "DoctorCollector"]

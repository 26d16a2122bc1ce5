"""HAMi's shared regions: read them, edit them, repair them.

>>> import libhamiregion as hami
>>> hami.parse_size("6GiB")
6442450944
"""

from . import frames as frames  # gives tables and snapshots methods
from ._version import __version__
from .edits import LimitEdit
from .effects import Effect, LimitChange, ValueChange
from .errors import (
    AmbiguousLayout,
    LimitBelowUsage,
    LimitConflict,
    LockNotRecoverable,
    LockTimeout,
    MemoryLimitExceeded,
    NotARegion,
    ProcessNotInRegion,
    RegionClosed,
    RegionCorrupt,
    RegionError,
    RegionNotFound,
    RegionNotReady,
    RegionPermissionDenied,
    RegionReadOnly,
    RegionStale,
    SearchCutShort,
    SlotTableFull,
)
from .layouts import Layout
from .limiter import CoreLimiter
from .lock import LockRecovery, LockState
from .models import (
    DeviceUsage,
    ProcessDeviceUsage,
    ProcessStatus,
    ProcessUsage,
    RegionSnapshot,
)
from .region import Region, create_region, identify, open_region, own_region
from .region_set import RegionSet, RegionTable
from .slot import ReapedSlot, Slot, SlotChange, SlotRepair
from .undo import UndoOutcome, undo
from .units import EnvironmentLimits, format_size, limits_from_environment, parse_size

__all__ = [
    "AmbiguousLayout",
    "CoreLimiter",
    "DeviceUsage",
    "Effect",
    "EnvironmentLimits",
    "Layout",
    "LimitBelowUsage",
    "LimitChange",
    "LimitConflict",
    "LimitEdit",
    "LockNotRecoverable",
    "LockRecovery",
    "LockState",
    "LockTimeout",
    "MemoryLimitExceeded",
    "NotARegion",
    "ProcessDeviceUsage",
    "ProcessNotInRegion",
    "ProcessStatus",
    "ProcessUsage",
    "ReapedSlot",
    "Region",
    "RegionClosed",
    "RegionCorrupt",
    "RegionError",
    "RegionNotFound",
    "RegionNotReady",
    "RegionPermissionDenied",
    "RegionReadOnly",
    "RegionSet",
    "RegionSnapshot",
    "RegionStale",
    "RegionTable",
    "SearchCutShort",
    "Slot",
    "SlotChange",
    "SlotRepair",
    "SlotTableFull",
    "UndoOutcome",
    "ValueChange",
    "__version__",
    "create_region",
    "format_size",
    "identify",
    "limits_from_environment",
    "open_region",
    "own_region",
    "parse_size",
    "undo",
]

"""HAMi's shared regions: read them, edit them, repair them.

>>> import libhamiregion as hami
>>> hami.parse_size("6GiB")
6442450944
"""

from ._version import __version__
from .changes import (
    ANYTHING,
    Anything,
    Change,
    Effect,
    LimitChange,
    LimitKind,
    SlotChange,
    ValueChange,
)
from .edits import Device, Limit, LimitEdit
from .errors import (
    AmbiguousLayout,
    LaunchesWouldStop,
    LimitBelowUsage,
    LimitConflict,
    LockLost,
    LockNotRecoverable,
    LockTimeout,
    MemoryLimitExceeded,
    NoSuchDevice,
    NotARegion,
    PathLike,
    ProcessNotInRegion,
    ReapRefused,
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
from .evidence import Evidence, ProcessAnswer, ask_process
from .layouts import Layout
from .lock import LockRecovery, LockState, OwnerLife, RegionLock
from .models import DeviceUsage, ProcessDeviceUsage, ProcessStatus, ProcessUsage, RegionSnapshot
from .region import Region, create_region, identify, open_region, own_region
from .region_set import RegionSet
from .slots import MemoryKind, ReapedSlot, Slot, SlotRepair
from .tables import (
    Columns,
    DeviceColumns,
    DeviceRow,
    ProcessColumns,
    RegionColumns,
    RegionTable,
    UsageColumns,
)
from .undo import UndoOutcome, UndoStatus, undo
from .units import EnvironmentLimits, format_size, limits_from_environment, parse_size

# For help(), which shows what is listed.
__all__ = [
    "ANYTHING", "AmbiguousLayout", "Anything", "Change", "Columns", "Device", "DeviceColumns",
    "DeviceRow", "DeviceUsage", "Effect", "EnvironmentLimits", "Evidence", "LaunchesWouldStop",
    "Layout", "Limit", "LimitBelowUsage", "LimitChange", "LimitConflict", "LimitEdit", "LimitKind",
    "LockLost", "LockNotRecoverable", "LockRecovery", "LockState", "LockTimeout", "MemoryKind",
    "MemoryLimitExceeded", "NoSuchDevice", "NotARegion", "OwnerLife", "PathLike", "ProcessAnswer",
    "ProcessColumns", "ProcessDeviceUsage", "ProcessNotInRegion", "ProcessStatus", "ProcessUsage",
    "ReapRefused", "ReapedSlot", "Region", "RegionClosed", "RegionColumns", "RegionCorrupt",
    "RegionError", "RegionLock", "RegionNotFound", "RegionNotReady", "RegionPermissionDenied",
    "RegionReadOnly", "RegionSet", "RegionSnapshot", "RegionStale", "RegionTable", "SearchCutShort",
    "Slot", "SlotChange", "SlotRepair", "SlotTableFull", "UndoOutcome", "UndoStatus",
    "UsageColumns", "ValueChange", "__version__", "ask_process", "create_region", "format_size",
    "identify", "limits_from_environment", "open_region", "own_region", "parse_size", "undo",
]  # fmt: skip

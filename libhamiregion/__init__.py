"""HAMi's shared regions: read them, edit them, repair them.

>>> import libhamiregion as hami
>>> hami.parse_size("6GiB")
6442450944
"""

from . import frames as frames  # gives tables and snapshots methods
from ._version import __version__ as __version__
from .changes import ANYTHING as ANYTHING
from .changes import Anything as Anything
from .changes import Change as Change
from .changes import Effect as Effect
from .changes import LimitChange as LimitChange
from .changes import LimitKind as LimitKind
from .changes import SlotChange as SlotChange
from .changes import ValueChange as ValueChange
from .edits import Device as Device
from .edits import Limit as Limit
from .edits import LimitEdit as LimitEdit
from .errors import AmbiguousLayout as AmbiguousLayout
from .errors import LaunchesWouldStop as LaunchesWouldStop
from .errors import LimitBelowUsage as LimitBelowUsage
from .errors import LimitConflict as LimitConflict
from .errors import LockLost as LockLost
from .errors import LockNotRecoverable as LockNotRecoverable
from .errors import LockTimeout as LockTimeout
from .errors import MemoryLimitExceeded as MemoryLimitExceeded
from .errors import NoSuchDevice as NoSuchDevice
from .errors import NotARegion as NotARegion
from .errors import PathLike as PathLike
from .errors import ProcessNotInRegion as ProcessNotInRegion
from .errors import ReapRefused as ReapRefused
from .errors import RegionClosed as RegionClosed
from .errors import RegionCorrupt as RegionCorrupt
from .errors import RegionError as RegionError
from .errors import RegionNotFound as RegionNotFound
from .errors import RegionNotReady as RegionNotReady
from .errors import RegionPermissionDenied as RegionPermissionDenied
from .errors import RegionReadOnly as RegionReadOnly
from .errors import RegionStale as RegionStale
from .errors import SearchCutShort as SearchCutShort
from .errors import SlotTableFull as SlotTableFull
from .evidence import Evidence as Evidence
from .evidence import Mapped as Mapped
from .evidence import ProcessAnswer as ProcessAnswer
from .evidence import WantedFile as WantedFile
from .evidence import ask_process as ask_process
from .layouts import Layout as Layout
from .lock import LockRecovery as LockRecovery
from .lock import LockState as LockState
from .lock import OwnerLife as OwnerLife
from .lock import RegionLock as RegionLock
from .models import DeviceUsage as DeviceUsage
from .models import ProcessDeviceUsage as ProcessDeviceUsage
from .models import ProcessStatus as ProcessStatus
from .models import ProcessUsage as ProcessUsage
from .models import RegionSnapshot as RegionSnapshot
from .region import Region as Region
from .region import create_region as create_region
from .region import identify as identify
from .region import open_region as open_region
from .region import own_region as own_region
from .region_set import Columns as Columns
from .region_set import DeviceColumns as DeviceColumns
from .region_set import DeviceRow as DeviceRow
from .region_set import ProcessColumns as ProcessColumns
from .region_set import RegionColumns as RegionColumns
from .region_set import RegionSet as RegionSet
from .region_set import RegionTable as RegionTable
from .region_set import UsageColumns as UsageColumns
from .slots import MemoryKind as MemoryKind
from .slots import ReapedSlot as ReapedSlot
from .slots import Slot as Slot
from .slots import SlotRepair as SlotRepair
from .undo import UndoOutcome as UndoOutcome
from .undo import UndoStatus as UndoStatus
from .undo import undo as undo
from .units import EnvironmentLimits as EnvironmentLimits
from .units import format_size as format_size
from .units import limits_from_environment as limits_from_environment
from .units import parse_size as parse_size

# For help(), which shows what is listed.
__all__ = [
    "ANYTHING", "AmbiguousLayout", "Anything", "Change", "Columns", "Device", "DeviceColumns",
    "DeviceRow", "DeviceUsage", "Effect", "EnvironmentLimits", "Evidence", "LaunchesWouldStop",
    "Layout", "Limit", "LimitBelowUsage", "LimitChange", "LimitConflict", "LimitEdit", "LimitKind",
    "LockLost", "LockNotRecoverable", "LockRecovery", "LockState", "LockTimeout", "Mapped",
    "MemoryKind", "MemoryLimitExceeded", "NoSuchDevice", "NotARegion", "OwnerLife", "PathLike",
    "ProcessAnswer", "ProcessColumns", "ProcessDeviceUsage", "ProcessNotInRegion", "ProcessStatus",
    "ProcessUsage", "ReapRefused", "ReapedSlot", "Region", "RegionClosed", "RegionColumns",
    "RegionCorrupt", "RegionError", "RegionLock", "RegionNotFound", "RegionNotReady",
    "RegionPermissionDenied", "RegionReadOnly", "RegionSet", "RegionSnapshot", "RegionStale",
    "RegionTable", "SearchCutShort", "Slot", "SlotChange", "SlotRepair", "SlotTableFull",
    "UndoOutcome", "UndoStatus", "UsageColumns", "ValueChange", "WantedFile", "__version__",
    "ask_process", "create_region", "format_size", "identify", "limits_from_environment",
    "open_region", "own_region", "parse_size", "undo",
]  # fmt: skip

"""Calls of an open region, by name: those that read it, and those that edit it."""

from collections.abc import Callable

from libhamiregion import Region

GIB = 2**30
Call = Callable[[Region], object]

READS: dict[str, Call] = {
    "snapshot": Region.snapshot,
    "memory_limit": lambda region: region.memory_limit(0),
    "sm_limit": lambda region: region.sm_limit(0),
    "memory_used": lambda region: region.memory_used(0),
    "priority": lambda region: region.priority,
    "utilization_switch": lambda region: region.utilization_switch,
    "recent_kernel": lambda region: region.recent_kernel,
    "device_count": lambda region: region.device_count,
    "uuids": lambda region: region.uuids,
}
EDITS: dict[str, Call] = {
    "set_memory_limit": lambda region: region.set_memory_limit(2 * GIB),
    "set_memory_limit of one": lambda region: region.set_memory_limit(2 * GIB, device=0),
    "set_memory_limit by force": lambda region: region.set_memory_limit(1, device=0, force=True),
    "set_sm_limit": lambda region: region.set_sm_limit(40),
    "set_utilization_switch": lambda region: region.set_utilization_switch(on=False),
    "set_priority": lambda region: region.set_priority(0),
    "set_recent_kernel": lambda region: region.set_recent_kernel(1),
}

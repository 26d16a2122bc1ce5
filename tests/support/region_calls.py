"""Calls of an open region, by name: those that read it, edit it, or take its lock."""

import os
from collections.abc import Callable

from libhamiregion import Region
from libhamiregion.units import GIB

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
TAKES_THE_LOCK_ITSELF: dict[str, Call] = {
    "attach": Region.attach,
    "recover_lock": Region.recover_lock,
    "reap": Region.reap,
    "repair_slots": Region.repair_slots,
    "set_host_pid": lambda region: region.set_host_pid(os.getpid(), 1),
    "set_utilization": lambda region: region.set_utilization(os.getpid(), 0, sm=1),
    "set_monitor_used": lambda region: region.set_monitor_used(os.getpid(), 0, 1),
    "suspend": lambda region: region.suspend(os.getpid()),
    "resume": lambda region: region.resume(os.getpid()),
}
LOCKING: dict[str, Call] = {
    "lock": lambda region: region.lock().__enter__(),
    **TAKES_THE_LOCK_ITSELF,
}
ALL: dict[str, Call] = {
    "is_stale": Region.is_stale,
    "lock_state": Region.lock_state,
    **READS,
    **EDITS,
    **LOCKING,
}

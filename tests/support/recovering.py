"""Recovering a region's lock, and using the region afterwards."""

import os
import time

import attrs

from libhamiregion import LockNotRecoverable, LockRecovery, Region, open_region
from support.lock_bytes import is_free
from support.region_file import RegionFile
from support.slot_bytes import pids
from support.wait import PATIENCE_S

NOTHING = LockRecovery(
    dead_owner=False,
    ownerless=False,
    impossible_value=False,
    postinit=False,
)

# Up to 2.8.0 libvgpu recovers a lock under a record lock over the struct: an actor takes that.
HOLD_STRUCT = """
import fcntl, os
descriptor = os.open(path, os.O_RDWR)
fcntl.lockf(descriptor, fcntl.LOCK_EX, length, 0)
scene.descriptor = descriptor
"""


def did(**what: bool) -> LockRecovery:
    """This and nothing else."""
    return attrs.evolve(NOTHING, **what)


def recover(file: RegionFile, watch_s: float = 0.0) -> LockRecovery:
    with open_region(file, writable=True) as region:
        return region.recover_lock(watch_s=watch_s)


def recover_in_time(what: RegionFile | Region, watch_s: float = 0.0) -> LockRecovery:
    """Recover as often as it takes: beside many processes there may be no proof the first time."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            if isinstance(what, Region):
                return what.recover_lock(watch_s=watch_s)
            return recover(what, watch_s)
        except LockNotRecoverable:
            if time.monotonic() > deadline_s:
                raise


def assert_usable(file: RegionFile) -> None:
    """One can lock it, edit it, come, account and go."""
    assert is_free(file)
    with open_region(file, writable=True) as region:
        with region.lock(0.5):
            pass
        with region.attach(timeout_s=0.5) as slot:
            region.set_memory_limit("unlimited", device=0, force=True)
            slot.charge(0, 1)
            assert os.getpid() in pids(file)
    assert is_free(file)

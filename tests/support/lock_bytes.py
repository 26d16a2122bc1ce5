"""The lock's bytes in a region file: what libvgpu and its C library would store there."""

import struct

from support.region_file import RegionFile, locate

# Above every pid_max (2^22): no process can have it.
NOBODY = (1 << 22) + 1
LOW_HALF = 0xFFFFFFFF

# The 32 bytes of a free sem_t with three waiters, by the glibc that wrote it.
SEMAPHORES = {
    "glibc 2.21 and later": struct.pack("<IIii16x", 1, 3, 128, 0),
    "older glibc": struct.pack("<IiQ16x", 1, 0, 3),
}


def value_of(file: RegionFile, semaphore: str = "sem") -> int:
    return file.get(semaphore) & LOW_HALF


def set_value(file: RegionFile, value: int, semaphore: str = "sem") -> None:
    """Store the value, and leave what glibc keeps beside it."""
    file.put(semaphore, file.get(semaphore) & ~LOW_HALF | value)


def owner_of(file: RegionFile) -> int:
    """owner_pid as libvgpu reads it, which keeps owners in an int."""
    return file.get("owner_pid") & LOW_HALF


def semaphore_bytes(file: RegionFile) -> bytes:
    offset, _ = locate(file.layout, "sem")
    return file.content()[offset : offset + 32]


def hold(file: RegionFile, owner: int) -> None:
    """Make the lock one that `owner` holds, by whatever library; 0 has not signed."""
    set_value(file, 0)
    file.put("owner_pid", owner)


def let_go(file: RegionFile) -> None:
    file.put("owner_pid", 0)
    set_value(file, 1)


def is_free(file: RegionFile) -> bool:
    return value_of(file) == 1 and file.get("owner_pid") == 0

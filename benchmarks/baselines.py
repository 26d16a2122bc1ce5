"""The reader that one writes in an afternoon in Python, to compare a snapshot with.

It decodes the very fields of a snapshot into plain dicts, from offsets computed beforehand, and
does nothing that a snapshot does besides: no plausibility check, no consistency, no survival of a
file that is truncated under it.
"""

from __future__ import annotations

import mmap
import os
import struct
from typing import TYPE_CHECKING, Any

from scene import DEVICES

from libhamiregion import Layout

if TYPE_CHECKING:
    from pathlib import Path

_AT = Layout.V1_2.offsets
_HEAD = struct.Struct("<Q")
_LIMITS = struct.Struct(f"<{DEVICES}Q")
_UUID_BYTES = 96
# proc_num, utilization_switch, recent_kernel, priority, last_kernel_time.
_TAIL = struct.Struct("<4iQ")
_SLOT = struct.Struct("<2i")
_STATUS = struct.Struct("<i")
_USED = struct.Struct("<5Q")
_UTIL = struct.Struct("<3Q")


def decode(buffer: Any) -> dict[str, Any]:
    """All fields of a region of layout 1.2 in a buffer, under the names of the models."""
    (device_count,) = _HEAD.unpack_from(buffer, _AT["device_num"])
    (owner_pid,) = _HEAD.unpack_from(buffer, _AT["owner_pid"])
    limits = _LIMITS.unpack_from(buffer, _AT["limit"])
    sm_limits = _LIMITS.unpack_from(buffer, _AT["sm_limit"])
    proc_num, switch, recent_kernel, priority, last_kernel_time = _TAIL.unpack_from(
        buffer, _AT["proc_num"]
    )
    devices = []
    for index in range(device_count):
        start = _AT["uuids"] + index * _UUID_BYTES
        uuid = bytes(buffer[start : start + _UUID_BYTES]).rstrip(b"\0").decode("ascii")
        sm_limit = sm_limits[index]
        devices.append(
            {
                "index": index,
                "uuid": uuid or None,
                "memory_limit_bytes": limits[index] or None,
                "memory_used_bytes": 0,
                "memory_context_bytes": 0,
                "memory_module_bytes": 0,
                "memory_data_bytes": 0,
                "memory_monitor_bytes": 0,
                "sm_limit_percent": sm_limit if 0 < sm_limit < 100 else None,
                "sm_util_percent": 0,
                "enc_util_percent": 0,
                "dec_util_percent": 0,
            }
        )
    processes = []
    for number in range(proc_num):
        slot = _AT["procs"] + number * _AT["slot_stride"]
        pid, host_pid = _SLOT.unpack_from(buffer, slot)
        usages = []
        for device in devices:
            index = device["index"]
            context, module, data, _, total = _USED.unpack_from(
                buffer, slot + _AT["slot_used"] + index * _AT["slot_used_stride"]
            )
            (monitor,) = _HEAD.unpack_from(buffer, slot + _AT["slot_monitorused"] + 8 * index)
            dec, enc, sm = _UTIL.unpack_from(
                buffer, slot + _AT["slot_util"] + index * _AT["slot_util_stride"]
            )
            usages.append(
                {
                    "index": index,
                    "memory_used_bytes": total,
                    "memory_context_bytes": context,
                    "memory_module_bytes": module,
                    "memory_data_bytes": data,
                    "memory_monitor_bytes": monitor,
                    "sm_util_percent": sm,
                    "enc_util_percent": enc,
                    "dec_util_percent": dec,
                }
            )
            device["memory_used_bytes"] += total
            device["memory_context_bytes"] += context
            device["memory_module_bytes"] += module
            device["memory_data_bytes"] += data
            device["memory_monitor_bytes"] += monitor
            device["sm_util_percent"] += sm
            device["enc_util_percent"] += enc
            device["dec_util_percent"] += dec
        (status,) = _STATUS.unpack_from(buffer, slot + _AT["slot_status"])
        processes.append(
            {"pid": pid, "host_pid": host_pid or None, "status": status, "devices": tuple(usages)}
        )
    return {
        "device_count": device_count,
        "devices": tuple(devices),
        "processes": tuple(processes),
        "priority": priority,
        "utilization_switch": bool(switch),
        "recent_kernel": recent_kernel,
        "last_kernel_time_s": last_kernel_time,
        "owner_pid": owner_pid,
    }


def memory_used(buffer: Any, device: int) -> int:
    """The sum that libvgpu enforces, and nothing else."""
    proc_num = _TAIL.unpack_from(buffer, _AT["proc_num"])[0]
    first = _AT["procs"] + _AT["slot_used"] + device * _AT["slot_used_stride"]
    stride = _AT["slot_stride"]
    return sum(_USED.unpack_from(buffer, first + i * stride)[4] for i in range(proc_num))


class MappedReader:
    """The file mapped once, decoded with struct."""

    name = "mmap + struct"

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            self._map = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
        finally:
            os.close(descriptor)

    def read(self) -> dict[str, Any]:
        return decode(self._map)

    def memory_used(self, device: int) -> int:
        return memory_used(self._map, device)

    def close(self) -> None:
        self._map.close()

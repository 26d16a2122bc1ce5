"""A second reader of regions, of plain Python: what the C core's answers are held against.

It knows nothing of the core but the offset table, takes a file as bytes, and is right about files
that nobody writes to.
"""

import struct
from typing import Any

from libhamiregion import Layout
from support.region_file import DEVICES, SLOTS, USED_PARTS, UTIL_PARTS, locate

LARGEST = 2**64 - 1

# An attached process signs the lock with this flag above its pid, and its time of attaching.
ATTACHED = 0x80000000
PID_MAX = 0x400000


class Content:
    """The bytes of a region, by the names of their fields."""

    def __init__(self, raw: bytes, layout: Layout) -> None:
        self.raw = raw
        self.layout = layout

    def get(self, field: str, *, device: int = 0, slot: int = 0) -> Any:
        offset, form = locate(self.layout, field, device=device, slot=slot)
        return struct.unpack_from(form, self.raw, offset)[0]

    def has(self, field: str) -> bool:
        return self.layout.offsets[field.partition(".")[0]] is not None

    def used(self, slot: int, device: int) -> dict[str, int]:
        """One process's figures for one device, under the names that snapshots have."""
        record = {
            part: self.get(f"slot_used.{part}", slot=slot, device=device) for part in USED_PARTS
        }
        util = {
            part: self.get(f"slot_util.{part}", slot=slot, device=device)
            if self.layout.has_utilization
            else 0
            for part in UTIL_PARTS
        }
        return {
            "memory_used_bytes": record["total"],
            "memory_context_bytes": record["context"],
            "memory_module_bytes": record["module"],
            "memory_data_bytes": record["data"],
            "memory_monitor_bytes": self.get("slot_monitorused", slot=slot, device=device),
            "sm_util_percent": util["sm"],
            "enc_util_percent": util["enc"],
            "dec_util_percent": util["dec"],
        }


def refusals(raw: bytes, layout: Layout) -> int | None:
    """Two words behind the structure's end, which is the file's but for one byte."""
    at = (layout.size_bytes + 15) // 8 * 8 + 8
    count, word = struct.unpack("<qi", raw[at : at + 12].ljust(12, b"\0"))
    return count if word == 0x64736672 and count >= 0 and "1.1" <= layout.value < "2" else None


def is_plausible_uuid(raw: bytes) -> bool:
    text, _, rest = raw.partition(b"\0")
    if len(text) == len(raw) or any(rest):
        return False
    printable = all(0x20 <= byte <= 0x7E for byte in text)
    return text == b"" or (printable and text.startswith((b"GPU-", b"MIG-")))


def is_plausible(raw: bytes, layout: Layout) -> bool:
    """Whether all that identification looks at is in range."""
    content = Content(raw, layout)
    return (
        len(raw) >= layout.size_bytes
        and content.get("device_num") <= DEVICES
        and 0 <= content.get("proc_num") <= SLOTS
        and all(is_plausible_uuid(content.get("uuids", device=d)) for d in range(DEVICES))
    )


def shown_devices(raw: bytes, layout: Layout) -> list[int]:
    """Which devices a snapshot lists."""
    content = Content(raw, layout)
    count: int = content.get("device_num")
    if count != 0:
        return list(range(count))
    limits = [content.get("limit", device=device) for device in range(DEVICES)]
    # All equal says nothing: the container was given one limit for any number of devices.
    given = [] if len(set(limits)) == 1 else [d for d in range(DEVICES) if limits[d]]
    shown = set(range(max(given, default=0) + 1))
    for device in range(DEVICES):
        usage = any(
            content.get(f"slot_used.{part}", slot=slot, device=device)
            for slot in range(content.get("proc_num"))
            for part in USED_PARTS
        )
        if usage or any(content.get("uuids", device=device)):
            shown.add(device)
    return sorted(shown)


def slots_in_use(raw: bytes, layout: Layout) -> list[int]:
    """The slots that are processes: not those that hold their pids and an even seqlock alone."""
    start, stride = layout.offsets["procs"], layout.offsets["slot_stride"]
    assert start is not None
    assert stride is not None
    content = Content(raw, layout)
    found = []
    for slot in range(content.get("proc_num")):
        held = bytearray(raw[start + slot * stride : start + (slot + 1) * stride])
        seqlock = content.get("slot_seqlock", slot=slot) if layout.has_seqlock else 0
        for field, length in (("slot_pid", 4), ("slot_hostpid", 4), ("slot_seqlock", 8)):
            if (at := layout.offsets[field]) is not None:
                held[at : at + length] = bytes(length)
        if any(held) or seqlock % 2:
            found.append(slot)
    return found


def settled(raw: bytes, layout: Layout) -> tuple[bool, ...]:
    """Of a snapshot as a whole, then of each of its processes."""
    content = Content(raw, layout)
    is_free = content.get("sem") & 0xFFFFFFFF == 1 and content.get("owner_pid") == 0
    shown = shown_devices(raw, layout)
    slots = [is_free] * content.get("proc_num")
    used = slots_in_use(raw, layout)
    if layout.has_seqlock:
        for slot in range(len(slots)):
            even = content.get("slot_seqlock", slot=slot) % 2 == 0
            for device in shown:
                kinds = [
                    content.get(f"slot_used.{part}", slot=slot, device=device)
                    for part in ("context", "module", "data", "total")
                ]
                even = even and sum(kinds[:3]) % 2**64 == kinds[3]
            slots[slot] = slots[slot] and even
    return (is_free and all(slots), *(slots[slot] for slot in used))


def wrapped(number: int) -> int:
    """Sums in the core are modulo 2^64, as libvgpu adds."""
    return number % 2**64


def owner_pid(signature: int) -> int:
    """Return the pid of an attached process's signature; any other signature unchanged."""
    pid = signature & 0xFFFFFFFF
    return pid if signature >> 32 & ATTACHED and 0 < pid <= PID_MAX else signature


def snapshot(raw: bytes, layout: Layout) -> dict[str, Any]:
    """What `attrs.asdict(snapshot)` holds, but for path, time and settled."""
    content = Content(raw, layout)
    shown = shown_devices(raw, layout)
    processes = [
        {
            "pid": content.get("slot_pid", slot=slot),
            "host_pid": content.get("slot_hostpid", slot=slot) or None,
            "status": content.get("slot_status", slot=slot),
            "devices": tuple({"index": d} | content.used(slot, d) for d in shown),
            "slot": slot,
        }
        for slot in slots_in_use(raw, layout)
    ]
    devices = []
    for at, index in enumerate(shown):
        usages = [process["devices"][at] for process in processes]
        sm_limit = content.get("sm_limit", device=index)
        devices.append(
            {
                "index": index,
                "uuid": content.get("uuids", device=index).rstrip(b"\0").decode("ascii") or None,
                "memory_limit_bytes": content.get("limit", device=index) or None,
                "sm_limit_percent": sm_limit if 0 < sm_limit < 100 else None,
            }
            | {name: wrapped(sum(usage[name] for usage in usages)) for name in content.used(0, 0)}
        )
    version = struct.unpack_from("<II", raw, 4)
    return {
        "layout": layout,
        "layout_newer": version if layout is Layout.V1_2 and version > (1, 2) else None,
        "device_count": content.get("device_num"),
        "devices": tuple(devices),
        "processes": tuple(processes),
        "priority": content.get("priority"),
        "utilization_switch": content.get("utilization_switch") != 0,
        "recent_kernel": content.get("recent_kernel"),
        "last_kernel_time_s": content.get("last_kernel_time")
        if content.has("last_kernel_time")
        else None,
        "refusals": refusals(raw, layout),
        "owner_pid": owner_pid(content.get("owner_pid")),
        "slot_count": content.get("proc_num"),
        "processes_truncated": False,
    }

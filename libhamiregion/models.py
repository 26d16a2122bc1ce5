"""Snapshots: frozen attrs classes, decoded when they are first used."""

from __future__ import annotations

import enum
import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Any, SupportsIndex

import attrs

from ._core import ffi, lib
from .errors import NoSuchDevice, new_error
from .layouts import DEVICE_CAPACITY
from .units import integer, sm_limit_or_none

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ._handle import Handle
    from .layouts import Layout

# Not cleared: the core overwrites all that is read.
_new_buffer = ffi.new_allocator(should_clear_after_alloc=False)


class ProcessStatus(enum.IntEnum):
    """The status of a process; a damaged region may hold any other number."""

    EXITED = 0
    RUNNING = 1
    #: libvgpu blocks the process's CUDA calls until it is running again.
    SUSPENDED = 2


@attrs.frozen(weakref_slot=False)
class ProcessDeviceUsage:
    """The usage of one device by one process.

    Attributes:
        index: Index of the device.
        memory_used_bytes: The total that libvgpu counts against the limit.
        memory_context_bytes: Of it, CUDA contexts.
        memory_module_bytes: Of it, modules (code).
        memory_data_bytes: Of it, buffers.
        memory_monitor_bytes: The driver's own figure for the process, as libvgpu last wrote it.
        sm_util_percent: SM utilisation of the last second, NVML's sample; 0 where the layout has
            none.
        enc_util_percent: Encoder utilisation; libvgpu itself never writes it.
        dec_util_percent: Decoder utilisation; libvgpu itself never writes it.
    """

    index: int
    memory_used_bytes: int
    memory_context_bytes: int
    memory_module_bytes: int
    memory_data_bytes: int
    memory_monitor_bytes: int
    sm_util_percent: int
    enc_util_percent: int
    dec_util_percent: int


@attrs.frozen(weakref_slot=False)
class ProcessUsage:
    """One process of a region: a slot that is in use.

    Attributes:
        pid: The pid in the container's pid namespace.
        host_pid: libvgpu's guess of the host's pid; None if it found none. Often wrong: do not
            rely on it.
        status: A `ProcessStatus`, or any other number in the file.
        devices: One entry per device of the snapshot, in the same order.
        settled: Whether the figures belong together; see `RegionSnapshot.settled`.
        slot: Index of the slot in the region's table. Slots move: it does not identify a process.
    """

    pid: int
    host_pid: int | None
    status: int
    devices: tuple[ProcessDeviceUsage, ...]
    settled: bool
    slot: int


@attrs.frozen(weakref_slot=False)
class DeviceUsage:
    """One device of a region, over all of its processes.

    Memory figures are sums over all slots of any status, as libvgpu compares them with the limit.

    Attributes:
        index: Index of the device.
        uuid: ``GPU-…`` or ``MIG-…``; None until something in the container initialises NVML.
        memory_limit_bytes: None if unlimited.
        memory_used_bytes: The memory that counts against the limit.
        memory_context_bytes: Of it, CUDA contexts.
        memory_module_bytes: Of it, modules (code).
        memory_data_bytes: Of it, buffers.
        memory_monitor_bytes: The driver's own figures, summed.
        sm_limit_percent: 1 to 99, or None if unlimited.
        sm_util_percent: Sum over the processes, so it can pass 100; 0 where the layout has none.
        enc_util_percent: Sum over the processes.
        dec_util_percent: Sum over the processes.
    """

    index: int
    uuid: str | None
    memory_limit_bytes: int | None
    memory_used_bytes: int
    memory_context_bytes: int
    memory_module_bytes: int
    memory_data_bytes: int
    memory_monitor_bytes: int
    sm_limit_percent: int | None
    sm_util_percent: int
    enc_util_percent: int
    dec_util_percent: int

    @property
    def memory_free_bytes(self) -> int | None:
        """Limit minus usage, never below 0; None if unlimited."""
        if self.memory_limit_bytes is None:
            return None
        return max(0, self.memory_limit_bytes - self.memory_used_bytes)


class _Lazy:
    """The hidden slot of a snapshot that has not been taken apart yet."""

    __slots__ = ("_source",)
    _source: Any


@attrs.frozen(weakref_slot=False)
class RegionSnapshot(_Lazy):
    """One consistent picture of a region.

    Taking it costs one call into the core; the objects below it are made when an attribute is
    first read. A snapshot is a value: it pickles, compares and works with `attrs.asdict`, and
    several threads may read it.

    Attributes:
        path: The region's file.
        layout: Its layout.
        layout_newer: The version in the file, such as ``(1, 3)``, where it is newer than the layout
            that it is read in; else None. Its new fields are not shown.
        taken_at_ns: When it was taken, Unix nanoseconds.
        device_count: Devices that the container has reported; 0 until something in it initialises
            NVML.
        devices: One entry per device: the first `device_count`; while that is 0, those up to the
            last with a memory limit and those with usage or a uuid.
        processes: One entry per slot in use, in the table's order. An emptied slot (status 0,
            nothing counted) is no process, whatever its pid.
        priority: 0 is high, 1 is low.
        utilization_switch: Whether SM limiting is on.
        recent_kernel: 2 after a launch, counted down by HAMi's monitor; -1 blocks launches.
        last_kernel_time_s: Unix seconds of the last launch; None where the layout has none.
        refusals: Allocations and contexts that programs of ``hamiregion run`` were refused by a
            memory limit; None if no such program has used the region. libvgpu's are not counted.
        owner_pid: The holder of the region's semaphore, 0 if it is not signed.
        settled: Whether all of it belongs to one moment: no writer was inside and nothing moved
            while it was read.
        slot_count: Slots of the table that are taken, emptied ones included; at 1,024 no further
            process of libvgpu can start.
        processes_truncated: Whether `RegionSet.read` has left out all processes, because there are
            too many; `processes` is empty then.
    """

    path: str
    layout: Layout
    layout_newer: tuple[int, int] | None
    taken_at_ns: int
    device_count: int
    devices: tuple[DeviceUsage, ...]
    processes: tuple[ProcessUsage, ...]
    priority: int
    utilization_switch: bool
    recent_kernel: int
    last_kernel_time_s: int | None
    refusals: int | None
    owner_pid: int
    settled: bool
    slot_count: int
    processes_truncated: bool

    @property
    def idle_s(self) -> float | None:
        """Seconds from the last launch to this snapshot.

        None if that is not known: the layout has no time of the last launch, nothing was launched
        yet, or launches are held back (`recent_kernel` is negative). The start of a process counts
        as a launch.
        """
        if not self.last_kernel_time_s or self.recent_kernel < 0:
            return None
        return max(0.0, self.taken_at_ns / 1e9 - self.last_kernel_time_s)

    def device(self, device: SupportsIndex | str) -> DeviceUsage:
        """Return the device with that index or uuid.

        Raises:
            NoSuchDevice: The snapshot has no such device.
            TypeError: Neither an index nor text.
        """
        if not isinstance(device, str):
            device = integer("a device", device)
        for each in self.devices:
            if device in (each.index, each.uuid):
                return each
        raise self._no_such_device(device, [each.index for each in self.devices])

    def _no_such_device(
        self, device: object, there: Iterable[int], advice: str = ""
    ) -> NoSuchDevice:
        """Make the error for a device that is not among those `there`."""
        uuids = {each.index: each.uuid for each in self.devices}
        listed = ", ".join(
            f"{index} ({uuids[index]})" if uuids.get(index) else str(index) for index in there
        )
        why = "" if self.device_count else ": its container has not reported its devices"
        message = f"{self.path!r} has no device {device!r}, only {listed or 'none'}{why}{advice}"
        return NoSuchDevice(message, path=self.path, device=device)

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as dicts, tuples, numbers, text and None, for `json.dumps`.

        The keys are the names of the attributes, also those of devices and processes; the layout
        is its name.
        """
        return {**attrs.asdict(self), "layout": self.layout.value}

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            # Reached only while a slot is empty, which all of them are until the first use.
            if name not in _FIELDS:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            _decode(self, name)
            return getattr(self, name)


_FIELDS = tuple(attrs.fields_dict(RegionSnapshot))
# A snapshot that has been handed out stays what it is, so its slots are filled past attrs.
_set = object.__setattr__

_HEAD = ffi.typeof("struct hr_snapshot *")
_HEAD_BYTES = ffi.sizeof("struct hr_snapshot")
# struct hr_device, hr_process and hr_usage of csrc/api.h; x skips hidden fields.
_DEVICE = struct.Struct("<6Q8x4Q96s")
_PROCESS = struct.Struct("<3i2H")
_USAGE = struct.Struct("<4Q8x4Q")


def take_snapshot(region: Handle) -> RegionSnapshot:
    """Read a region in one call of the core; nothing is decoded yet."""
    error = new_error()
    while True:
        size = region._buffer_bytes
        raw = _new_buffer("char[]", size)
        code = lib.hr_snapshot(region._handle, raw, size, error)
        if code != lib.HR_ENOSPACE:
            region._check(code, error)
            return lazy_snapshot(raw, region.path, region.layout, region.layout_newer)
        # More processes may attach between two tries; the largest snapshot always fits.
        region._buffer_bytes = min(2 * error.wanted, lib.HR_SNAPSHOT_MAX_BYTES)


def lazy_snapshot(
    raw: Any, path: str, layout: Layout, layout_newer: tuple[int, int] | None
) -> RegionSnapshot:
    """Wrap a snapshot of the core; nothing is decoded yet."""
    snapshot = RegionSnapshot.__new__(RegionSnapshot)
    _set(snapshot, "_source", raw)
    _set(snapshot, "path", path)
    _set(snapshot, "layout", layout)
    _set(snapshot, "layout_newer", layout_newer)
    return snapshot


@lru_cache(maxsize=1024)
def device_indices(bits: int) -> tuple[int, ...]:
    """Return the devices of a set of bits."""
    return tuple(device for device in range(DEVICE_CAPACITY) if bits & 1 << device)


@lru_cache(maxsize=1024)
def uuid_text(raw: bytes) -> str | None:
    """Return the uuid of 96 bytes that the core has found plausible; None if unset."""
    return raw.rstrip(b"\0").decode("ascii") or None


def _decode(snapshot: RegionSnapshot, name: str) -> None:
    """Decode one attribute: the devices, the processes, or all that is neither."""
    # Two threads may both come here; they store equal values.
    buffer = ffi.buffer(snapshot._source)
    head = ffi.cast(_HEAD, snapshot._source)
    if name == "devices":
        _set(snapshot, name, _devices(buffer, head.shown))
    elif name == "processes":
        _set(snapshot, name, _processes(buffer, head.process_count, head.span, head.shown))
    else:
        has_time = snapshot.layout.offsets["last_kernel_time"] is not None
        _set(snapshot, "taken_at_ns", head.taken_at_ns)
        _set(snapshot, "device_count", head.device_num)
        _set(snapshot, "priority", head.priority)
        _set(snapshot, "utilization_switch", head.utilization_switch != 0)
        _set(snapshot, "recent_kernel", head.recent_kernel)
        _set(snapshot, "last_kernel_time_s", head.last_kernel_time if has_time else None)
        _set(snapshot, "refusals", None if head.refusals < 0 else head.refusals)
        _set(snapshot, "owner_pid", head.owner_pid)
        _set(snapshot, "settled", head.settled != 0)
        _set(snapshot, "slot_count", head.slot_count)
        _set(snapshot, "processes_truncated", head.truncated != 0)


def _devices(buffer: Any, shown: int) -> tuple[DeviceUsage, ...]:
    devices = []
    for index in device_indices(shown):
        values = _DEVICE.unpack_from(buffer, _HEAD_BYTES + index * _DEVICE.size)
        limit, sm_limit, used, context, module, data, monitor, *utilization, uuid = values
        memory = limit or None, used, context, module, data, monitor
        sm_percent = sm_limit_or_none(sm_limit)
        devices.append(DeviceUsage(index, uuid_text(uuid), *memory, sm_percent, *utilization))
    return tuple(devices)


def _processes(buffer: Any, count: int, span: int, shown: int) -> tuple[ProcessUsage, ...]:
    at = _HEAD_BYTES + span * _DEVICE.size
    indices = device_indices(shown)
    processes = []
    for _ in range(count):
        pid, host_pid, status, settled, slot = _PROCESS.unpack_from(buffer, at)
        at += _PROCESS.size
        usages = tuple(
            ProcessDeviceUsage(index, *_USAGE.unpack_from(buffer, at + index * _USAGE.size))
            for index in indices
        )
        at += span * _USAGE.size
        processes.append(ProcessUsage(pid, host_pid or None, status, usages, settled == 1, slot))
    return tuple(processes)

"""What a snapshot is made of: frozen attrs classes, units in their names."""

from __future__ import annotations

import enum
import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import attrs

from ._core import ffi
from .layouts import Layout


def unfrozen(cls: type) -> Any:
    """Make a class with the same slots as a frozen attrs class, and nothing else.

    The generated ``__init__`` of a frozen class stores through ``object.__setattr__``: 1,000 ns
    for nine fields. An empty instance of this one, nine plain stores and an assignment to
    ``__class__``, which is allowed between classes of the same slots, come to 130 ns.
    """
    slots = tuple(field.name for field in attrs.fields(cls))
    return type(f"_{cls.__name__}", cls.__bases__, {"__slots__": slots})


class ProcessStatus(enum.IntEnum):
    """What `ProcessUsage.status` can be; a damaged region may hold any other number."""

    EXITED = 0
    RUNNING = 1
    #: libvgpu blocks the process's CUDA calls until it is running again.
    SUSPENDED = 2


@attrs.frozen(weakref_slot=False)
class ProcessDeviceUsage:
    """What one process uses of one device.

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
    """One process slot.

    Attributes:
        pid: The pid in the container's pid namespace.
        host_pid: What libvgpu believes the host's pid to be; None where it found none. Often
            wrong, never to be trusted.
        status: A `ProcessStatus`, or whatever other number stands there.
        devices: One entry per device of the snapshot, in the same order.
        settled: Whether the figures belong together; see `RegionSnapshot.settled`.
    """

    pid: int
    host_pid: int | None
    status: int
    devices: tuple[ProcessDeviceUsage, ...]
    settled: bool


@attrs.frozen(weakref_slot=False)
class DeviceUsage:
    """One device of a region, over all of its processes.

    Memory figures are sums over all slots of the table whatever their status, because that is what
    libvgpu compares with the limit.

    Attributes:
        index: Index of the device.
        uuid: ``GPU-…`` or ``MIG-…``; None until something in the container initialises NVML.
        memory_limit_bytes: None if unlimited.
        memory_used_bytes: What counts against the limit.
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
        processes: One entry per slot in use.
        priority: 0 is high, 1 is low.
        utilization_switch: Whether SM limiting is on.
        recent_kernel: 2 after a launch, counted down by HAMi's monitor; -1 blocks launches.
        last_kernel_time_s: Unix seconds of the last launch; None where the layout has none.
        owner_pid: The holder of the region's semaphore, 0 if nobody has signed for it.
        settled: Whether all of it belongs to one moment: no writer was inside and nothing moved
            while it was read.
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
    owner_pid: int
    settled: bool

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

    def device(self, index: int) -> DeviceUsage:
        """The device with that index.

        Raises:
            IndexError: The snapshot has no such device.
        """
        for device in self.devices:
            if device.index == index:
                return device
        there = ", ".join(str(device.index) for device in self.devices) or "none"
        raise IndexError(f"{self.path!r} has no device {index!r}; there are {there}")

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as dicts, tuples, numbers, text and None: what `json.dumps` takes.

        The keys are the names of the attributes, also those of devices and processes; the layout
        is its name.
        """
        return attrs.asdict(
            self,
            value_serializer=lambda _, __, value: (
                value.value if isinstance(value, Layout) else value
            ),
        )

    if TYPE_CHECKING:
        # Given by `frames`.
        def _repr_html_(self) -> str: ...

    else:

        def __getattr__(self, name: str) -> Any:
            # Reached only while a slot is empty, which all of them are until the first use.
            if name not in _FIELDS:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            _take_apart(self)
            return getattr(self, name)


# To be filled, then turned into the frozen class by an assignment to `__class__`.
_ProcessDevice = unfrozen(ProcessDeviceUsage)
_Process = unfrozen(ProcessUsage)
_Device = unfrozen(DeviceUsage)
_Snapshot = unfrozen(RegionSnapshot)

_FIELDS = tuple(attrs.fields_dict(RegionSnapshot))
# What `lazy_snapshot` leaves empty. A snapshot that has been handed out stays what it is, so its
# slots are filled through their descriptors.
(
    _set_taken_at_ns,
    _set_device_count,
    _set_devices,
    _set_processes,
    _set_priority,
    _set_utilization_switch,
    _set_recent_kernel,
    _set_last_kernel_time_s,
    _set_owner_pid,
    _set_settled,
) = (getattr(RegionSnapshot, name).__set__ for name in _FIELDS[3:])

# struct hr_snapshot, hr_device, hr_process and hr_usage of csrc/region.h; x skips
# what is not shown.
_HEAD = struct.Struct("<4Q4I4i8x")
_DEVICE = struct.Struct("<6Q8x4Q96s")
_PROCESS = struct.Struct("<3iI")
_USAGE = struct.Struct("<4Q8x4Q")

# The layouts without `last_kernel_time`. Looking a member up costs more than comparing with it.
_NO_UTIL, _UNVERSIONED = Layout.UNVERSIONED_NO_UTIL, Layout.UNVERSIONED


@lru_cache(maxsize=256)
def _indexes(shown: int) -> tuple[int, ...]:
    return tuple(index for index in range(shown.bit_length()) if shown & 1 << index)


def lazy_snapshot(
    raw: Any, path: str, layout: Layout, layout_newer: tuple[int, int] | None
) -> RegionSnapshot:
    """Wrap what `hr_snapshot` wrote into `raw`; nothing is decoded yet."""
    snapshot = _Snapshot()
    snapshot._source = raw
    snapshot.path = path
    snapshot.layout = layout
    snapshot.layout_newer = layout_newer
    snapshot.__class__ = RegionSnapshot
    return snapshot  # type: ignore[no-any-return]


@lru_cache(maxsize=1024)
def uuid_text(raw: bytes) -> str | None:
    """The uuid of 96 bytes that the core has found plausible; None if unset."""
    text = raw.rstrip(b"\0").decode("ascii")
    return text or None


def _take_apart(snapshot: RegionSnapshot) -> None:
    # Two threads may both come here; they store equal values.
    buffer = ffi.buffer(snapshot._source)
    (
        taken_at_ns,
        owner_pid,
        last_kernel_time_s,
        _semaphore,
        settled,
        span,
        shown,
        device_count,
        process_count,
        priority,
        utilization_switch,
        recent_kernel,
    ) = _HEAD.unpack_from(buffer)
    layout = snapshot.layout
    if layout is _NO_UTIL or layout is _UNVERSIONED:
        last_kernel_time_s = None
    indexes = _indexes(shown)
    _set_devices(snapshot, _devices(buffer, indexes))
    _set_processes(snapshot, _processes(buffer, process_count, span, indexes))
    _set_taken_at_ns(snapshot, taken_at_ns)
    _set_device_count(snapshot, device_count)
    _set_priority(snapshot, priority)
    _set_utilization_switch(snapshot, utilization_switch != 0)
    _set_recent_kernel(snapshot, recent_kernel)
    _set_last_kernel_time_s(snapshot, last_kernel_time_s)
    _set_owner_pid(snapshot, owner_pid)
    _set_settled(snapshot, settled != 0)


def _devices(buffer: Any, indexes: tuple[int, ...]) -> tuple[DeviceUsage, ...]:
    devices = []
    for index in indexes:
        device = _Device()
        device.index = index
        (
            limit,
            sm_limit,
            device.memory_used_bytes,
            device.memory_context_bytes,
            device.memory_module_bytes,
            device.memory_data_bytes,
            device.memory_monitor_bytes,
            device.sm_util_percent,
            device.enc_util_percent,
            device.dec_util_percent,
            uuid,
        ) = _DEVICE.unpack_from(buffer, _HEAD.size + index * _DEVICE.size)
        device.uuid = uuid_text(uuid)
        device.memory_limit_bytes = limit or None
        device.sm_limit_percent = sm_limit if 0 < sm_limit < 100 else None
        device.__class__ = DeviceUsage
        devices.append(device)
    return tuple(devices)


def _processes(
    buffer: Any, count: int, span: int, indexes: tuple[int, ...]
) -> tuple[ProcessUsage, ...]:
    at = _HEAD.size + span * _DEVICE.size
    process_bytes, usage_bytes = _PROCESS.size, _USAGE.size
    unpack_usage = _USAGE.unpack_from
    processes = []
    for _ in range(count):
        process = _Process()
        process.pid, host_pid, process.status, settled = _PROCESS.unpack_from(buffer, at)
        at += process_bytes
        usages = []
        for index in indexes:
            usage = _ProcessDevice()
            usage.index = index
            (
                usage.memory_used_bytes,
                usage.memory_context_bytes,
                usage.memory_module_bytes,
                usage.memory_data_bytes,
                usage.memory_monitor_bytes,
                usage.sm_util_percent,
                usage.enc_util_percent,
                usage.dec_util_percent,
            ) = unpack_usage(buffer, at + index * usage_bytes)
            usage.__class__ = ProcessDeviceUsage
            usages.append(usage)
        at += span * usage_bytes
        process.host_pid = host_pid or None
        process.devices = tuple(usages)
        process.settled = settled == 1
        process.__class__ = ProcessUsage
        processes.append(process)
    return tuple(processes)

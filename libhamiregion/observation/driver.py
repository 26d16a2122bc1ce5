"""What the driver reports: frozen attrs classes, units in their names, None if not known."""

from __future__ import annotations

import enum
import time
from functools import cached_property
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Collection


class NvmlState(str, enum.Enum):
    """Why there is, or is not, an answer of the driver."""

    OK = "ok"
    UNINITIALIZED = "uninitialized"
    NOT_SUPPORTED = "not_supported"
    NO_PERMISSION = "no_permission"
    NOT_FOUND = "not_found"
    INSUFFICIENT_SIZE = "insufficient_size"
    DRIVER_NOT_LOADED = "driver_not_loaded"
    TIMEOUT = "timeout"
    LIBRARY_NOT_FOUND = "library_not_found"
    FUNCTION_NOT_FOUND = "function_not_found"
    GPU_IS_LOST = "gpu_is_lost"
    RESET_REQUIRED = "reset_required"
    LIB_RM_VERSION_MISMATCH = "lib_rm_version_mismatch"
    UNKNOWN_ERROR = "unknown_error"

    #: Any other error of the driver.
    FAILED = "failed"
    #: The sampler has not been opened, or has been closed.
    CLOSED = "closed"
    #: The sampler does not ask for it.
    NOT_ASKED = "not_asked"
    #: nvidia-ml-py cannot be imported.
    PACKAGE_MISSING = "package_missing"
    #: The driver gave a number that cannot be right, such as a utilisation above 100 percent.
    OUT_OF_RANGE = "out_of_range"
    #: HAMi changes the GPUs' MIG layout, for which no program may use NVML.
    MIG_APPLY = "mig_apply"

    @property
    def explanation(self) -> str:
        """What it means, and what to do about it."""
        return _EXPLANATIONS.get(self) or f"the driver says: {self.value.replace('_', ' ')}"

    @property
    def is_failure(self) -> bool:
        """Whether a GPU in this state does not work; a figure that it does not have is no fault."""
        return self not in _NO_FAILURES


# If there is more to say than the state's own name.
_EXPLANATIONS = {
    NvmlState.NOT_SUPPORTED: "this device, or its present mode, does not have the figure",
    NvmlState.NOT_FOUND: "the driver does not list it, or not any more",
    NvmlState.NO_PERMISSION: "the driver refuses this user; run as root",
    NvmlState.DRIVER_NOT_LOADED: "the NVIDIA kernel driver is not loaded; load it: modprobe nvidia",
    NvmlState.LIBRARY_NOT_FOUND: "libnvidia-ml.so.1 cannot be loaded: there is no NVIDIA driver, or"
    " it is not mounted into this container",
    NvmlState.FUNCTION_NOT_FOUND: "this driver, or this release of nvidia-ml-py, is too old",
    NvmlState.GPU_IS_LOST: "the GPU cannot be reached; see dmesg for its Xid, and reset it or"
    " restart the node",
    NvmlState.RESET_REQUIRED: "the GPU has to be reset: `nvidia-smi --gpu-reset`, or restart the"
    " node",
    NvmlState.UNKNOWN_ERROR: "the driver gives error 999, unknown; see dmesg for an Xid of the GPU",
    NvmlState.LIB_RM_VERSION_MISMATCH: "the NVML library and the kernel driver have different"
    " versions, as after an update; restart the node, or this program",
    NvmlState.PACKAGE_MISSING: "nvidia-ml-py is not installed: pip install nvidia-ml-py",
    NvmlState.OUT_OF_RANGE: "the driver gave a number that cannot be right",
    NvmlState.MIG_APPLY: "HAMi is changing the GPUs' MIG layout; NVML stays closed until it has"
    " finished",
}
_NO_FAILURES = {
    *(NvmlState.OK, NvmlState.NOT_ASKED, NvmlState.NOT_SUPPORTED, NvmlState.FUNCTION_NOT_FOUND),
    *(NvmlState.NO_PERMISSION, NvmlState.INSUFFICIENT_SIZE),
}


@attrs.frozen
class NvmlDevice:
    """One GPU, or one MIG device: a compute instance of a GPU instance.

    Attributes:
        index: NVML index of the GPU, as in ``nvidia-smi``.
        uuid: ``GPU-…`` or ``MIG-…``; None if not known. That of a lost GPU is remembered.
        name: The driver's name of it.
        state: ``OK``, or how it fails, such as ``GPU_IS_LOST``; ``NOT_FOUND`` for a GPU that the
            driver has listed before and does not list any more.
        memory_total_bytes: Its memory.
        memory_used_bytes: Memory in use, with the driver's own.
        gpu_util_percent: Share of the last sample period in which a kernel ran.
        memory_util_percent: Share in which its memory was read or written.
        mig_enabled: Whether MIG is on; False if the GPU has none.
        mig_devices: Its MIG devices.
        processes_state: ``OK`` if its list of processes is complete.
        utilization_state: ``OK`` if its processes' utilisation could be read; ``NOT_SUPPORTED``
            under MIG, with every driver so far.
        temperature_celsius: Of its core. This and the next three are None unless the sampler asks
            for them (``sensors=True``).
        power_usage_watts: Its power draw.
        ecc_corrected_errors: Memory errors of its lifetime that ECC has corrected.
        ecc_uncorrected_errors: Those that ECC could not correct.
        profile: Of a MIG device, such as ``1g.5gb`` or ``1c.3g.20gb``.
        gpu_instance_id: Of a MIG device, the number of its GPU instance.
        compute_instance_id: Of a MIG device, the number of its compute instance.
        out_of_range: Figures that the driver gave and that cannot be, of it or of a process, by
            name. They are None, or -1 in columns.
    """

    index: int
    uuid: str | None
    name: str | None
    state: NvmlState
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    gpu_util_percent: int | None = None
    memory_util_percent: int | None = None
    mig_enabled: bool | None = None
    mig_devices: tuple[NvmlDevice, ...] = ()
    processes_state: NvmlState = NvmlState.OK
    utilization_state: NvmlState = NvmlState.OK
    temperature_celsius: int | None = None
    power_usage_watts: float | None = None
    ecc_corrected_errors: int | None = None
    ecc_uncorrected_errors: int | None = None
    profile: str | None = None
    gpu_instance_id: int | None = None
    compute_instance_id: int | None = None
    out_of_range: tuple[tuple[str, int], ...] = ()

    @property
    def uuids(self) -> frozenset[str | None]:
        """Its own uuid, and those of its MIG devices."""
        return frozenset(each.uuid for each in (self, *self.mig_devices))


@attrs.frozen
class NvmlProcess:
    """Usage of one GPU or MIG device by one process.

    Attributes:
        pid: Its pid by the driver: the host's, if asked in the host's pid namespace.
        device_index: NVML index of the GPU.
        device_uuid: Uuid of the GPU, or of the MIG device; None if not known.
        memory_used_bytes: All of the device's memory that it uses.
        sm_util_percent: Share of the last second's sample in which its kernels ran.
        memory_util_percent: Share in which it read or wrote device memory.
        enc_util_percent: Of the video encoder.
        dec_util_percent: Of the video decoder.
    """

    pid: int
    device_index: int
    device_uuid: str | None
    memory_used_bytes: int | None
    sm_util_percent: int | None
    memory_util_percent: int | None
    enc_util_percent: int | None
    dec_util_percent: int | None


# No process has this pid.
_NO_PID = -1
#: Names of the columns that hold figures.
FIGURES = (
    *("memory_used_bytes", "sm_util_percent", "memory_util_percent"),
    *("enc_util_percent", "dec_util_percent"),
)


@attrs.frozen(slots=False)
class ProcessColumns:
    """The processes of one GPU or MIG device as columns, one row per process; -1 is not known.

    Attributes:
        device_index: NVML index of the GPU.
        device_uuid: Uuid of the GPU, or of the MIG device; None if not known.
        pids: The processes, sorted.
        memory_used_bytes: As in `NvmlProcess`.
        sm_util_percent: As above.
        memory_util_percent: As above.
        enc_util_percent: As above.
        dec_util_percent: As above.
        sampled: Pids that were busy in the last second, also those not in the list.
    """

    device_index: int
    device_uuid: str | None
    pids: tuple[int, ...] = ()
    memory_used_bytes: tuple[int, ...] = ()
    sm_util_percent: tuple[int, ...] = ()
    memory_util_percent: tuple[int, ...] = ()
    enc_util_percent: tuple[int, ...] = ()
    dec_util_percent: tuple[int, ...] = ()
    sampled: frozenset[int] = frozenset()

    @cached_property
    def rows(self) -> dict[int, int]:
        """The row of each pid."""
        return {pid: row for row, pid in enumerate(self.pids)}

    def process(self, row: int) -> NvmlProcess:
        """Return one row as an object."""
        columns = (getattr(self, name) for name in FIGURES)
        known = (None if column[row] < 0 else column[row] for column in columns)
        return NvmlProcess(self.pids[row], self.device_index, self.device_uuid, *known)


@attrs.frozen(slots=False)
class NvmlSample:
    """All answers of the driver at one time. A value: it compares, and may be shared.

    Attributes:
        taken_at_ns: When, Unix nanoseconds.
        state: ``OK``, or why there is nothing.
        message: What failed, how, and what to do, as one sentence; None if nothing did.
        driver_version: Such as ``570.124.06``; None if not known.
        devices: The GPUs, by index.
        columns: The processes on them, one entry per GPU and MIG device. On a GPU with MIG a
            process is under the MIG device alone.
        sees_all_processes: Whether the pids are those of the host's namespace and the lists hold
            every process, so that a process that is not listed uses nothing.
        taken_s: When, on the monotonic clock.
        mig_apply_s: With the state ``MIG_APPLY``, the age of HAMi's lock.
    """

    taken_at_ns: int
    state: NvmlState
    message: str | None = None
    driver_version: str | None = None
    devices: tuple[NvmlDevice, ...] = ()
    columns: tuple[ProcessColumns, ...] = ()
    sees_all_processes: bool = False
    taken_s: float = attrs.field(factory=time.monotonic)
    mig_apply_s: float | None = None

    @cached_property
    def processes(self) -> tuple[NvmlProcess, ...]:
        """The processes on the GPUs, by GPU and pid; one entry for each device of a process."""
        return tuple(each.process(row) for each in self.columns for row in range(len(each.pids)))

    @cached_property
    def pids(self) -> frozenset[int]:
        """The processes on the driver's lists."""
        return frozenset(pid for each in self.columns for pid in each.pids)

    @cached_property
    def _by_uuid(self) -> dict[str | None, ProcessColumns]:
        return {each.device_uuid: each for each in self.columns}

    @cached_property
    def by_uuid(self) -> dict[str | None, NvmlDevice]:
        """The GPUs, each with its MIG devices behind it, whose uuid is known."""
        every = (each for device in self.devices for each in (device, *device.mig_devices))
        return {each.uuid: each for each in every if each.uuid}

    @cached_property
    def gpu_indexes(self) -> dict[str | None, int]:
        """Uuid of a GPU or MIG device to the NVML index of the GPU."""
        return {uuid: each.index for uuid, each in self.by_uuid.items()}

    @property
    def failed(self) -> tuple[NvmlDevice, ...]:
        """The GPUs that do not work."""
        return tuple(each for each in self.devices if each.state.is_failure)

    def memory_of(self, device_uuid: str | None) -> int | None:
        """Return the memory of a GPU or MIG device; None if that is not known."""
        device = self.by_uuid.get(device_uuid)
        return None if device is None else device.memory_total_bytes

    def of_pid(self, pid: int, *, without: Collection[str | None] = ()) -> tuple[NvmlProcess, ...]:
        """Return the entries of one process, one per device.

        Args:
            pid: Pid in the host's namespace.
            without: Uuids of devices that are left out.
        """
        return tuple(
            each.process(each.rows[pid])
            for each in self.columns
            if each.device_uuid not in without and pid in each.rows
        )

    def unlisted(self, device_uuid: str) -> NvmlProcess | None:
        """Return the usage by any process that is not on a device's list; None if not known."""
        return self.process(device_uuid, _NO_PID)

    def is_idle(self, device_uuid: str, pid: int) -> bool:
        """Return whether a process ran no kernel in the last second; False if it is not known."""
        columns = self._by_uuid.get(device_uuid)
        row = None if columns is None else columns.rows.get(pid)
        if columns is not None and row is not None:
            return columns.sm_util_percent[row] == 0
        absent = self.process(device_uuid, pid)
        return absent is not None and absent.sm_util_percent == 0

    def process(self, device_uuid: str, pid: int) -> NvmlProcess | None:
        """Return a process's usage of a GPU or MIG device; None if nothing is known.

        A process that is not listed uses nothing if the driver's lists are complete: its figures
        are 0 then.

        Args:
            device_uuid: ``GPU-…`` or ``MIG-…``.
            pid: Pid in the host's namespace.
        """
        columns = self._by_uuid.get(device_uuid)
        if columns is not None and pid in columns.rows:
            return columns.process(columns.rows[pid])
        device = self.by_uuid.get(device_uuid)
        if (
            device is None
            or not self.sees_all_processes
            or device.processes_state is not NvmlState.OK
            # With MIG on, the GPU's own entry holds only what no MIG device accounts for.
            or device.mig_devices
            # It came or went while the driver was asked.
            or (columns is not None and pid in columns.sampled)
        ):
            return None
        util = 0 if device.utilization_state is NvmlState.OK else None
        return NvmlProcess(pid, device.index, device_uuid, 0, util, util, util, util)

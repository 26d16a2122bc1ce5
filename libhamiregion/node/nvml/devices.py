"""Reading one GPU: its figures, its MIG devices, its processes and their utilisation."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import attrs

from libhamiregion.observation.driver import FIGURES, NvmlDevice, NvmlState, ProcessColumns
from libhamiregion.observation.figures import IMPOSSIBLE_BYTES

from .driver import PID_MAX
from .states import NvmlCallFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from .driver import Driver

T = TypeVar("T")
#: Memory in bytes, -1 if not known, by pid, GPU instance and compute instance.
_List: TypeAlias = "dict[tuple[int, int, int], int]"

_LISTS = (
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses",
)
# Questions that every GPU answers, or says that it does not support: others fail on working ones.
_VITAL = re.compile("nvmlDeviceGet(UUID|Name|MemoryInfo|UtilizationRates|ComputeRunning.*)")
_BROKEN = (NvmlState.GPU_IS_LOST, NvmlState.RESET_REQUIRED)
_ABSENT = (NvmlState.NOT_SUPPORTED, NvmlState.FUNCTION_NOT_FOUND)
_MAX_BYTES = IMPOSSIBLE_BYTES - 1
# The driver's word for a size that it does not have.
_NOT_AVAILABLE = (1 << 64) - 1
_UNKNOWN = (-1,) * 4
_IDLE = (0,) * 4

# Far above real hardware: a number out of range must not become a long loop.
_MAX_MIG_DEVICES = 64
# The instance of a process that runs in none.
_NO_INSTANCE = 0xFFFFFFFF
# The oldest sample of utilisation that counts. The driver samples about once a second: a process
# with a sample in the second before may be as busy as ever.
_WINDOW_US = 1_000_000
# The driver's clock and ours are the same; a sample from further ahead is rubbish.
_AHEAD_US = 1_000_000
_PROFILE = re.compile(r"\bMIG ((?:\d+c\.)?\d+g\.\d+gb\S*)")

# Field, call, maximum (above all hardware), arguments: of nvmlTemperatureSensors_t the GPU; of
# nvmlMemoryErrorType_t each, of nvmlEccCounterType_t lifetime.
_SENSORS: tuple[tuple[Any, ...], ...] = (
    ("temperature_celsius", "nvmlDeviceGetTemperature", 300, 0),
    ("power_usage_watts", "nvmlDeviceGetPowerUsage", 100_000_000),
    ("ecc_corrected_errors", "nvmlDeviceGetTotalEccErrors", (1 << 63) - 1, 0, 1),
    ("ecc_uncorrected_errors", "nvmlDeviceGetTotalEccErrors", (1 << 63) - 1, 1, 1),
)


@attrs.define
class _Usage:
    """Samples of one device: the newest of each pid in the last second, and who was busy before."""

    state: NvmlState
    newest: dict[int, tuple[int, ...]] = attrs.Factory(dict)
    before: frozenset[int] = frozenset()


class _Device:
    """Asks one device, and stops asking once it is lost: each further call may take seconds."""

    def __init__(self, driver: Driver, handle: Any) -> None:
        self.driver = driver
        self.handle = handle
        self._lost: NvmlCallFailed | None = None
        self.out_of_range: dict[str, int] = {}
        self.state = NvmlState.OK

    def run(self, read: Callable[..., T], *args: Any, **options: Any) -> T:
        """Ask a question.

        Raises:
            NvmlCallFailed: It failed, or the device is lost.
        """
        if self._lost is not None:
            raise self._lost
        try:
            return read(*args, **options)
        except NvmlCallFailed as failure:
            if failure.state is NvmlState.GPU_IS_LOST:
                self._lost = failure
            is_vital = failure.state.is_failure and _VITAL.match(failure.call)
            if failure.state in _BROKEN or (is_vital and self.state is NvmlState.OK):
                self.state = failure.state
            raise

    def call(self, name: str, *args: Any) -> Any:
        """Return the answer of one call about the device; None if it failed."""
        try:
            return self.run(self.driver.call, name, self.handle, *args)
        except NvmlCallFailed:
            return None

    def numbers(self, name: str, most: int, **fields: str) -> dict[str, int | None]:
        """Return numbers of a structure that one call returns, by figure and field."""
        answer = self.call(name)
        return {
            figure: answer and self.checked(figure, getattr(answer, field), most)
            for figure, field in fields.items()
        }

    def checked(self, figure: str, value: int | None, most: int | None) -> int | None:
        """Return a number that can be right: drivers are known to return ones of ten digits."""
        if value is None or 0 <= value <= (_MAX_BYTES if most is None else most):
            return value
        self.out_of_range[figure] = value
        return None


class DeviceReader:
    """Reads GPUs, one at a time; not thread-safe by itself.

    Args:
        driver: NVML, open.
        sees_all: Whether the driver's lists hold every process, under its pid of the host.
        sensors: Whether to ask for temperature, power and memory errors.
        processes: Whether to ask for processes and their utilisation.

    Attributes:
        driver_version: The driver's version.
    """

    def __init__(self, driver: Driver, *, sees_all: bool, sensors: bool, processes: bool) -> None:
        self._driver = driver
        self._sees_all = sees_all
        self._sensors = _SENSORS if sensors else ()
        self._processes = processes
        # A lost GPU does not answer any more; its index keeps its meaning while NVML is open.
        self._identities: dict[int, tuple[str | None, str | None]] = {}
        self._listed: dict[str, NvmlDevice] = {}
        self.driver_version: str | None = None

    def forget(self) -> None:
        """Forget the GPUs: NVML was closed, and an index may mean another one."""
        self._identities.clear()
        self._listed.clear()
        self.driver_version = None

    def read(self, index: int) -> tuple[NvmlDevice, list[ProcessColumns]]:
        """Read one GPU, with the processes on it and on its MIG devices."""
        uuid, name = self._identities.get(index, (None, None))
        try:
            handle = self._driver.call("nvmlDeviceGetHandleByIndex", index)
        except NvmlCallFailed as failure:
            return _without_figures(index, uuid, name, failure.state), []
        gpu = _Device(self._driver, handle)
        fields = self._basics(gpu)
        uuid, name = fields.pop("uuid") or uuid, fields.pop("name") or name
        self._identities[index] = uuid, name
        rates = {"gpu_util_percent": "gpu", "memory_util_percent": "memory"}
        fields |= gpu.numbers("nvmlDeviceGetUtilizationRates", 100, **rates)
        for figure, call, most, *args in self._sensors:
            fields[figure] = gpu.checked(figure, gpu.call(call, *args), most)
        if fields.get("power_usage_watts") is not None:
            fields["power_usage_watts"] /= 1000
        mig_enabled = self._mig_enabled(gpu)
        listed, state = self._list(gpu, fields["memory_total_bytes"])
        on_gpu = listed if state is NvmlState.OK else None
        handles = self._mig_handles(gpu) if mig_enabled else []
        migs = [self._read_mig(index, mig, on_gpu) for mig in handles]
        usage = self._usage(gpu, mig_enabled, is_busy=fields["gpu_util_percent"] != 0)
        device = NvmlDevice(
            *(index, uuid, name, gpu.state),
            mig_enabled=mig_enabled,
            mig_devices=tuple(mig for mig, _ in migs),
            processes_state=state,
            utilization_state=usage.state,
            out_of_range=tuple(gpu.out_of_range.items()),
            **fields,
        )
        on_migs = [columns for _, columns in migs]
        if migs:
            listed = _without(listed, device.mig_devices, on_migs)
        return device, [self._columns(device, listed, usage), *on_migs]

    def no_longer_listed(self, devices: list[NvmlDevice]) -> tuple[NvmlDevice, ...]:
        """Return the GPUs that earlier samples had and that are not among these."""
        known = {each.uuid: each for each in devices if each.uuid is not None}
        gone = [each for uuid, each in self._listed.items() if uuid not in known]
        self._listed |= known
        return tuple(
            _without_figures(each.index, each.uuid, each.name, NvmlState.NOT_FOUND) for each in gone
        )

    def _basics(self, device: _Device) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "uuid": device.call("nvmlDeviceGetUUID") or None,
            "name": device.call("nvmlDeviceGetName") or None,
        }
        memory = {"memory_total_bytes": "total", "memory_used_bytes": "used"}
        fields |= device.numbers("nvmlDeviceGetMemoryInfo", _MAX_BYTES, **memory)
        used, total = fields["memory_used_bytes"], fields["memory_total_bytes"]
        fields["memory_used_bytes"] = device.checked("memory_used_bytes", used, total)
        return fields

    # ---- MIG ------------------------------------------------------------------------------------

    def _mig_enabled(self, gpu: _Device) -> bool | None:
        try:
            current, _ = gpu.run(self._driver.call, "nvmlDeviceGetMigMode", gpu.handle)
        except NvmlCallFailed as failure:
            # The GPU, or a driver from before MIG, has none.
            return False if failure.state in _ABSENT else None
        return bool(current)

    def _mig_handles(self, gpu: _Device) -> list[Any]:
        count = gpu.call("nvmlDeviceGetMaxMigDeviceCount") or 0
        slots = range(min(count, _MAX_MIG_DEVICES))
        handles = [gpu.call("nvmlDeviceGetMigDeviceHandleByIndex", slot) for slot in slots]
        # The numbers may have holes.
        return [each for each in handles if each is not None]

    def _read_mig(
        self, index: int, handle: Any, on_gpu: _List | None
    ) -> tuple[NvmlDevice, ProcessColumns]:
        mig = _Device(self._driver, handle)
        fields = self._basics(mig)
        gpu_instance = mig.call("nvmlDeviceGetGpuInstanceId")
        compute_instance = mig.call("nvmlDeviceGetComputeInstanceId")
        own = gpu_instance, compute_instance
        listed, state = self._list(mig, fields["memory_total_bytes"])
        if state is not NvmlState.OK and on_gpu is not None and None not in own:
            listed = {key: used for key, used in on_gpu.items() if key[1:] == own}
            state = NvmlState.OK
        usage = self._usage(mig, True)
        profile = _PROFILE.search(fields["name"] or "")
        device = NvmlDevice(
            index,
            state=mig.state,
            processes_state=state,
            utilization_state=usage.state,
            profile=profile and profile[1],
            gpu_instance_id=gpu_instance,
            compute_instance_id=compute_instance,
            out_of_range=tuple(mig.out_of_range.items()),
            **fields,
        )
        return device, self._columns(device, listed, usage)

    # ---- processes ------------------------------------------------------------------------------

    def _list(self, device: _Device, total_bytes: int | None) -> tuple[_List, NvmlState]:
        """Return the processes of a device with that much memory, and whether they are all."""
        found: _List = {}
        if not self._processes:
            return found, NvmlState.NOT_ASKED
        state = NvmlState.OK
        for name in _LISTS:
            try:
                rows = device.run(self._driver.listed, name, device.handle)
            except NvmlCallFailed as failure:
                # Only the first kind of process is on every device.
                if name == _LISTS[0] or failure.state not in _ABSENT:
                    state = failure.state if state is NvmlState.OK else state
                continue
            for pid, used, gpu_instance, compute_instance in rows:
                key = pid, gpu_instance, compute_instance
                # A process in two lists has the same memory in both: it is all that it uses.
                known = None
                if used != _NOT_AVAILABLE:
                    known = device.checked("process memory_used_bytes", used, total_bytes)
                found[key] = max(-1 if known is None else known, found.get(key, -1))
        return {key: used for key, used in found.items() if 0 < key[0] <= PID_MAX}, state

    def _usage(self, device: _Device, mig_enabled: bool | None, *, is_busy: bool = True) -> _Usage:
        if not self._processes:
            return _Usage(NvmlState.NOT_ASKED)
        now_us = time.time_ns() // 1000
        since_us = now_us - _WINDOW_US
        try:
            begin_us = since_us - _WINDOW_US
            rows = device.run(self._driver.sampled, device.handle, begin_us, is_busy=is_busy)
        except NvmlCallFailed as failure:
            if failure.state is not NvmlState.NOT_FOUND:
                return _Usage(failure.state)
            rows = []  # no process was busy
        usage = _Usage(NvmlState.OK)
        # Some drivers return older samples as well, and entries that they have not filled in.
        rows = [row for row in rows if 0 < row[0] <= PID_MAX and row[1] <= now_us + _AHEAD_US]
        for pid, at_us, *percents in sorted(rows, key=lambda row: row[1]):
            if at_us > since_us:
                known = [
                    device.checked(f"process {name}", percent, 100)
                    for name, percent in zip(FIGURES[1:], percents, strict=True)
                ]
                usage.newest[pid] = tuple(-1 if each is None else each for each in known)
        usage.before = frozenset(row[0] for row in rows if row[1] > since_us - _WINDOW_US)
        if mig_enabled is not False:
            # With MIG on, the driver samples no processes, and silence means nothing.
            usage.state = NvmlState.NOT_SUPPORTED
        return usage

    def _columns(self, device: NvmlDevice, listed: _List, usage: _Usage) -> ProcessColumns:
        totals: dict[int, int] = {}
        for (pid, _, _), used in listed.items():
            before = totals.get(pid, 0)
            totals[pid] = -1 if used < 0 or before < 0 else before + used
        if device.processes_state is not NvmlState.OK:
            totals.update((pid, -1) for pid in usage.newest.keys() - totals.keys())
        knows_idle = self._sees_all and usage.state is NvmlState.OK
        unknown = usage.before if knows_idle else totals
        rows = [
            (pid, used, *(usage.newest.get(pid) or (_UNKNOWN if pid in unknown else _IDLE)))
            for pid, used in sorted(totals.items())
        ]
        columns = dict(zip(("pids", *FIGURES), zip(*rows, strict=True), strict=False))
        return ProcessColumns(device.index, device.uuid, sampled=frozenset(usage.newest), **columns)


def _without_figures(
    index: int, uuid: str | None, name: str | None, state: NvmlState
) -> NvmlDevice:
    """A GPU that cannot be asked."""
    return NvmlDevice(*(index, uuid, name, state), processes_state=state, utilization_state=state)


def _without(listed: _List, migs: tuple[NvmlDevice, ...], on_migs: list[ProcessColumns]) -> _List:
    """Return what of a GPU's list none of its MIG devices accounts for."""
    instances = {(mig.gpu_instance_id, mig.compute_instance_id) for mig in migs}
    pids = {pid for columns in on_migs for pid in columns.pids}
    return {
        key: used
        for key, used in listed.items()
        if key[1:] not in instances and not (key[0] in pids and _NO_INSTANCE in key[1:])
    }

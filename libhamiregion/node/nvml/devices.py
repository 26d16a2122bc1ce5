"""Reading one GPU: its figures, its MIG devices, its processes and their utilisation."""

from __future__ import annotations

import re
import time
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from .driver import (
    MAX_BYTES,
    NOT_AVAILABLE,
    UTILIZATION,
    Driver,
    plausible_bytes,
    plausible_figure,
)
from .models import KINDS, NvmlDevice, NvmlMigDevice, ProcessColumns
from .states import NvmlFault, NvmlState, Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .driver import SampledProcess

T = TypeVar("T")

_LISTS = (
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses",
)
_UTIL_FIGURES = (
    "sm_util_percent",
    "memory_util_percent",
    "enc_util_percent",
    "dec_util_percent",
)
_ABSENT = (NvmlState.NOT_SUPPORTED, NvmlState.FUNCTION_NOT_FOUND)

# Far above real hardware: a number out of range must not become a long loop.
_MAX_MIG_DEVICES = 64
# What the driver gives as the instances of a process that runs in none.
_NO_INSTANCE = 0xFFFFFFFF
# How old a sample of utilisation may be.
_WINDOW_US = 1_000_000
# The driver's clock and ours are the same; a sample from further ahead is rubbish.
_AHEAD_US = 1_000_000
_PROFILE = re.compile(r"\bMIG ((?:\d+c\.)?\d+g\.\d+gb\S*)")

# nvmlTemperatureSensors_t, nvmlMemoryErrorType_t, nvmlEccCounterType_t; ranges wider than hardware.
_GPU = 0
_CORRECTED, _UNCORRECTED = 0, 1
_LIFETIME = 1
_CELSIUS = (0, 300)
_MILLIWATTS = (0, 100_000_000)
_ERRORS = (0, (1 << 63) - 1)


@attrs.define
class _Lists:
    """The processes of one handle, and what could not be read of them.

    Attributes:
        kinds: Pid to the lists that it stands in, as `ProcessColumns.kinds` has them.
        memory: Pid and (GPU, compute) instance to bytes; -1 where not known.
        odd: Pid to why its memory is not known.
    """

    kinds: dict[int, int] = attrs.Factory(dict)
    memory: dict[tuple[int, int, int], int] = attrs.Factory(dict)
    odd: dict[int, NvmlFault] = attrs.Factory(dict)
    state: NvmlState = NvmlState.OK
    faults: list[NvmlFault] = attrs.Factory(list)

    def add(self, kind: int, call: str, rows: Iterable[tuple[int, int, int, int]]) -> None:
        for pid, used, gpu_instance, compute_instance in rows:
            if not pid:
                continue
            self.kinds[pid] = self.kinds.get(pid, 0) | 1 << kind
            key = (pid, gpu_instance, compute_instance)
            if used <= MAX_BYTES:
                # A process in two lists has the same memory in both: it is all that it uses.
                self.memory[key] = max(used, self.memory.get(key, 0))
            else:
                self.memory.setdefault(key, -1)
                none = used == NOT_AVAILABLE
                state = NvmlState.NO_FIGURE if none else NvmlState.OUT_OF_RANGE
                self.odd[pid] = NvmlFault("memory_used_bytes", call, state)

    def totals(self) -> dict[int, int]:
        """Pid to bytes over all instances; -1 where one of them is not known."""
        found: dict[int, int] = {}
        for (pid, _, _), used in self.memory.items():
            before = found.get(pid, 0)
            found[pid] = -1 if used < 0 or before < 0 else before + used
        return found

    def only(self, keys: Iterable[tuple[int, int, int]]) -> _Lists:
        """Those of certain processes and instances."""
        memory = {key: self.memory[key] for key in keys}
        pids = {pid for pid, _, _ in memory}
        return _Lists(
            {pid: self.kinds[pid] for pid in pids},
            memory,
            {pid: fault for pid, fault in self.odd.items() if pid in pids},
            self.state,
            self.faults,
        )


@attrs.define
class _Usage:
    """The utilisation of one handle's processes.

    Attributes:
        samples: Those of the window.
        newest: The newest of them, by pid.
        stirring: Pids that were busy shortly before the window; None if that is not known.
    """

    samples: tuple[SampledProcess, ...] = ()
    newest: dict[int, SampledProcess] = attrs.Factory(dict)
    stirring: set[int] | None = None
    state: NvmlState = NvmlState.OK
    fault: NvmlFault | None = None


class _Questions:
    """Asks one device, and stops asking once it is lost: each further call may take seconds."""

    def __init__(self) -> None:
        self.faults: list[NvmlFault] = []
        self.lost: Refusal | None = None

    def ask(self, figure: str, read: Callable[[], T]) -> T | None:
        try:
            if self.lost is not None:
                raise self.lost
            return read()
        except Refusal as refusal:
            self.faults.append(self.note(figure, refusal))
            return None

    def note(self, figure: str, refusal: Refusal) -> NvmlFault:
        if refusal.state is NvmlState.GPU_IS_LOST:
            self.lost = refusal
        return refusal.fault(figure)

    @property
    def state(self) -> NvmlState:
        return NvmlState.OK if self.lost is None else self.lost.state


@attrs.frozen
class DeviceReading:
    """One GPU with the processes on it and on its MIG devices."""

    device: NvmlDevice
    columns: tuple[ProcessColumns, ...]


class DeviceReader:
    """Reads GPUs, one at a time; not thread-safe by itself.

    Args:
        driver: NVML, open.
        sees_all: Whether the driver's lists hold every process, under its pid of the host.
        sensors: Whether to ask for temperature, power and memory errors.

    Attributes:
        driver_version: The driver's version; the shape of its lists depends on it.
    """

    def __init__(self, driver: Driver, *, sees_all: bool, sensors: bool = False) -> None:
        self._driver = driver
        self._sees_all = sees_all
        self._sensors = sensors
        self.driver_version: str | None = None
        # A lost GPU tells nothing any more; its index keeps its meaning while NVML is open.
        self._identities: dict[int, tuple[str | None, str | None]] = {}

    def forget(self) -> None:
        """NVML was initialised anew: an index may mean another GPU."""
        self._identities.clear()

    def read(self, index: int) -> DeviceReading:
        """All of one GPU; what fails becomes a fault."""
        questions = _Questions()
        known_uuid, known_name = self._identities.get(index, (None, None))
        try:
            handle = self._driver.call("nvmlDeviceGetHandleByIndex", index)
        except Refusal as refusal:
            return _unreachable(index, known_uuid, known_name, refusal)
        uuid = self._text(questions, "uuid", "nvmlDeviceGetUUID", handle) or known_uuid
        name = self._text(questions, "name", "nvmlDeviceGetName", handle) or known_name
        self._identities[index] = (uuid, name)
        memory = self._memory(questions, handle)
        util = self._device_util(questions, handle)
        sensors = self._read_sensors(questions, handle) if self._sensors else {}
        mig_enabled = questions.ask("mig_enabled", lambda: self._mig_enabled(handle))
        lists = self._lists(questions, handle)
        migs = self._mig_handles(questions, handle) if mig_enabled else []
        usage = self._usage(questions, handle, mig_enabled, lists)
        readings = [self._read_mig(index, slot, mig, lists) for slot, mig in migs]
        device = NvmlDevice(
            index,
            uuid,
            name,
            questions.state,
            *memory,
            *util,
            mig_enabled,
            tuple(mig for mig, _ in readings),
            lists.state,
            usage.state,
            tuple(questions.faults),
            **sensors,
        )
        own = _without(lists, readings) if readings else lists
        columns = _columns(index, uuid, own, usage)
        return DeviceReading(device, (columns, *(each for _, each in readings)))

    # ---- figures of a device --------------------------------------------------------------------

    def _text(self, questions: _Questions, figure: str, call: str, handle: Any) -> str | None:
        text: str | None = questions.ask(figure, lambda: self._driver.call(call, handle))
        return text or None

    def _memory(self, questions: _Questions, handle: Any) -> tuple[int | None, int | None]:
        call = "nvmlDeviceGetMemoryInfo"
        info = questions.ask("memory_total_bytes", lambda: self._driver.call(call, handle))
        if info is None:
            questions.faults.append(attrs.evolve(questions.faults[-1], figure="memory_used_bytes"))
            return None, None
        return (
            questions.ask("memory_total_bytes", lambda: plausible_bytes(call, info.total)),
            questions.ask("memory_used_bytes", lambda: plausible_bytes(call, info.used)),
        )

    def _device_util(self, questions: _Questions, handle: Any) -> tuple[int | None, int | None]:
        call, second = "nvmlDeviceGetUtilizationRates", "memory_util_percent"
        rates = questions.ask("gpu_util_percent", lambda: self._driver.call(call, handle))
        if rates is None:
            questions.faults.append(attrs.evolve(questions.faults[-1], figure=second))
            return None, None
        return (
            questions.ask("gpu_util_percent", lambda: plausible_figure(call, rates.gpu, 0, 100)),
            questions.ask(second, lambda: plausible_figure(call, rates.memory, 0, 100)),
        )

    def _read_sensors(self, questions: _Questions, handle: Any) -> dict[str, Any]:
        def ask(figure: str, call: str, limits: tuple[int, int], *args: int) -> int | None:
            return questions.ask(
                figure,
                lambda: plausible_figure(call, self._driver.call(call, handle, *args), *limits),
            )

        milliwatts = ask("power_usage_watts", "nvmlDeviceGetPowerUsage", _MILLIWATTS)
        errors = "nvmlDeviceGetTotalEccErrors"
        return {
            "temperature_celsius": ask(
                "temperature_celsius", "nvmlDeviceGetTemperature", _CELSIUS, _GPU
            ),
            "power_usage_watts": None if milliwatts is None else milliwatts / 1000,
            "ecc_corrected_errors": ask(
                "ecc_corrected_errors", errors, _ERRORS, _CORRECTED, _LIFETIME
            ),
            "ecc_uncorrected_errors": ask(
                "ecc_uncorrected_errors", errors, _ERRORS, _UNCORRECTED, _LIFETIME
            ),
        }

    def _mig_enabled(self, handle: Any) -> bool:
        try:
            current, _ = self._driver.call("nvmlDeviceGetMigMode", handle)
        except Refusal as refusal:
            # The GPU, or a driver from before MIG, has none.
            if refusal.state in _ABSENT:
                return False
            raise
        return bool(current)

    # ---- MIG ------------------------------------------------------------------------------------

    def _mig_handles(self, questions: _Questions, handle: Any) -> list[tuple[int, Any]]:
        driver = self._driver
        count = questions.ask(
            "mig_devices", lambda: driver.call("nvmlDeviceGetMaxMigDeviceCount", handle)
        )
        handles = []
        for slot in range(min(count or 0, _MAX_MIG_DEVICES)):
            mig = questions.ask("mig_devices", partial(self._mig_handle, handle, slot))
            if mig is not None:
                handles.append((slot, mig))
        return handles

    def _mig_handle(self, handle: Any, slot: int) -> Any:
        try:
            return self._driver.call("nvmlDeviceGetMigDeviceHandleByIndex", handle, slot)
        except Refusal as refusal:
            if refusal.state is NvmlState.NOT_FOUND:
                return None  # the numbers may have holes
            raise

    def _read_mig(
        self, index: int, slot: int, handle: Any, parent: _Lists
    ) -> tuple[NvmlMigDevice, ProcessColumns]:
        driver, questions = self._driver, _Questions()
        uuid = self._text(questions, "uuid", "nvmlDeviceGetUUID", handle)
        name = self._text(questions, "name", "nvmlDeviceGetName", handle)
        gpu_instance: int | None = questions.ask(
            "gpu_instance_id", lambda: driver.call("nvmlDeviceGetGpuInstanceId", handle)
        )
        compute_instance: int | None = questions.ask(
            "compute_instance_id", lambda: driver.call("nvmlDeviceGetComputeInstanceId", handle)
        )
        memory = self._memory(questions, handle)
        lists = self._lists(questions, handle)
        own = (gpu_instance, compute_instance)
        if lists.state is not NvmlState.OK and parent.state is NvmlState.OK and None not in own:
            faults = lists.faults
            lists = parent.only(key for key in parent.memory if key[1:] == own)
            lists.faults = faults
        usage = self._usage(questions, handle, True, lists)
        profile = _PROFILE.search(name or "")
        mig = NvmlMigDevice(
            slot,
            uuid,
            name,
            profile and profile[1],
            gpu_instance,
            compute_instance,
            questions.state,
            *memory,
            lists.state,
            usage.state,
            tuple(questions.faults),
        )
        return mig, _columns(index, uuid, lists, usage)

    # ---- processes ------------------------------------------------------------------------------

    def _lists(self, questions: _Questions, handle: Any) -> _Lists:
        lists = _Lists()
        for kind, name in enumerate(_LISTS):
            try:
                if questions.lost is not None:
                    raise questions.lost
                lists.add(kind, name, self._driver.listed(name, self.driver_version, handle))
            except Refusal as refusal:
                if KINDS[kind] != "compute" and refusal.state in _ABSENT:
                    continue  # there is no such kind of process on this device
                if lists.state is NvmlState.OK:
                    lists.state = refusal.state
                lists.faults.append(questions.note("processes", refusal))
        questions.faults += lists.faults
        return lists

    def _usage(
        self, questions: _Questions, handle: Any, mig_enabled: bool | None, lists: _Lists
    ) -> _Usage:
        usage = _Usage()
        try:
            if questions.lost is not None:
                raise questions.lost
            usage.samples = self._samples(handle, _WINDOW_US)
        except Refusal as refusal:
            usage.state, usage.fault = refusal.state, questions.note("utilization", refusal)
            questions.faults.append(usage.fault)
            return usage
        usage.newest = {row[0]: row for row in sorted(usage.samples, key=lambda row: row[1])}
        if mig_enabled is not False:
            # Where MIG is on, the driver samples no processes, and silence means nothing.
            usage.state = NvmlState.NOT_SUPPORTED
            usage.fault = NvmlFault("utilization", UTILIZATION, usage.state)
            questions.faults.append(usage.fault)
        elif self._sees_all and lists.kinds.keys() - usage.newest.keys():
            # The driver samples about once a second: a process without a sample in the last
            # window, but with one in the window before, may be as busy as ever.
            try:
                usage.stirring = {row[0] for row in self._samples(handle, 2 * _WINDOW_US)}
            except Refusal:
                usage.stirring = None
        return usage

    def _samples(self, handle: Any, window_us: int) -> tuple[SampledProcess, ...]:
        since = time.time_ns() // 1000 - window_us
        try:
            rows = self._driver.sampled(handle, since)
        except Refusal as refusal:
            if refusal.state is NvmlState.NOT_FOUND:
                return ()  # nobody was busy
            raise
        # Some drivers return older samples as well, and entries that they have not filled in.
        until = time.time_ns() // 1000 + _AHEAD_US
        return tuple(row for row in rows if row[0] and since < row[1] <= until)


def _columns(index: int, uuid: str | None, lists: _Lists, usage: _Usage) -> ProcessColumns:
    found = ProcessColumns(
        index,
        uuid,
        samples=usage.samples,
        utilization_fault=usage.fault or NvmlFault("utilization", UTILIZATION, NvmlState.NO_SAMPLE),
    )
    totals = lists.totals()
    pids = set(lists.kinds)
    if lists.state is not NvmlState.OK:
        pids.update(usage.newest)
    found.pids.extend(sorted(pids))
    kinds = bytearray()
    columns = [getattr(found, figure) for figure in _UTIL_FIGURES]
    for row, pid in enumerate(found.pids):
        kinds.append(lists.kinds.get(pid, 0))
        used = totals.get(pid, -1)
        found.memory_used_bytes.append(used)
        faults = []
        if used < 0:
            faults = [lists.odd[pid]] if pid in lists.odd else lists.faults[:1]
        sample = usage.newest.get(pid)
        if sample is not None:
            found.sampled_at_us.append(sample[1])
            for figure, column, percent in zip(_UTIL_FIGURES, columns, sample[2:], strict=True):
                column.append(percent if percent <= 100 else -1)
                if percent > 100:
                    faults.append(NvmlFault(figure, UTILIZATION, NvmlState.OUT_OF_RANGE))
        else:
            is_known = usage.fault is None and usage.stirring is not None
            idle = is_known and pid not in (usage.stirring or ())
            found.sampled_at_us.append(0)
            for column in columns:
                column.append(0 if idle else -1)
        if faults:
            found.faults[row] = tuple(faults)
    return attrs.evolve(found, kinds=bytes(kinds))


def _unreachable(index: int, uuid: str | None, name: str | None, refusal: Refusal) -> DeviceReading:
    nothing = (None,) * 4
    device = NvmlDevice(
        index,
        uuid,
        name,
        refusal.state,
        *nothing,
        mig_enabled=None,
        mig_devices=(),
        processes_state=refusal.state,
        utilization_state=refusal.state,
        faults=(refusal.fault("device"),),
    )
    return DeviceReading(device, ())


def _without(lists: _Lists, readings: list[tuple[NvmlMigDevice, ProcessColumns]]) -> _Lists:
    """What of a GPU's list none of its MIG devices accounts for."""
    instances = {(mig.gpu_instance_id, mig.compute_instance_id) for mig, _ in readings}
    listed = {pid for _, columns in readings for pid in columns.pids}
    return lists.only(
        key
        for key in lists.memory
        if key[1:] not in instances and not (key[0] in listed and _NO_INSTANCE in key[1:])
    )

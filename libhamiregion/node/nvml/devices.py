"""Reading one GPU: its figures, its MIG devices, its processes and their utilisation."""

from __future__ import annotations

import re
import time
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from .driver import Driver, plausible_bytes, plausible_percent
from .models import NvmlDevice, NvmlMigDevice, NvmlProcess, NvmlUtilization
from .sensors import NOT_ASKED, read_sensors
from .states import NvmlFault, NvmlState, Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

T = TypeVar("T")

_LISTS = (
    ("compute", "nvmlDeviceGetComputeRunningProcesses"),
    ("graphics", "nvmlDeviceGetGraphicsRunningProcesses"),
    ("mps", "nvmlDeviceGetMPSComputeRunningProcesses"),
)
_UTILIZATION = "nvmlDeviceGetProcessUtilization"
_UTIL_FIELDS = (
    ("sm_util_percent", "smUtil"),
    ("memory_util_percent", "memUtil"),
    ("enc_util_percent", "encUtil"),
    ("dec_util_percent", "decUtil"),
)

# Far above real hardware: a number out of range must not become a long loop.
_MAX_MIG_DEVICES = 64

# What the driver gives as the instances of a process that runs in none.
_NO_INSTANCE = 0xFFFFFFFF

# The driver's clock and ours are the same; a sample from further ahead is rubbish.
_AHEAD_US = 1_000_000

_PROFILE = re.compile(r"\bMIG ((?:\d+c\.)?\d+g\.\d+gb\S*)")


@attrs.define
class _Entry:
    """A process in the driver's lists; memory by the (GPU, compute) instance it is used in."""

    kinds: list[str] = attrs.Factory(list)
    memory: dict[tuple[int, int], int | None] = attrs.Factory(dict)
    fault: NvmlFault | None = None

    def add(self, kind: str, call: str, row: Any) -> None:
        if kind not in self.kinds:
            self.kinds.append(kind)
        key = (row.gpuInstanceId, row.computeInstanceId)
        try:
            used = plausible_bytes(call, row.usedGpuMemory)
        except Refusal as refusal:
            self.memory.setdefault(key, None)
            self.fault = refusal.fault("memory_used_bytes")
            return
        # A process in two lists has the same memory in both: the figure is all that it uses.
        self.memory[key] = max(used, self.memory.get(key) or 0)

    def total(self, keys: Iterable[tuple[int, int]]) -> int | None:
        figures = [self.memory[key] for key in keys]
        return None if None in figures else sum(figure or 0 for figure in figures)


@attrs.define
class _Lists:
    """The processes of one handle, and what could not be read of them."""

    entries: dict[int, _Entry] = attrs.Factory(dict)
    state: NvmlState = NvmlState.OK
    faults: list[NvmlFault] = attrs.Factory(list)


@attrs.define
class _Usage:
    """The utilisation of one handle's processes.

    Attributes:
        newest: The newest sample of the window, by pid.
        stirring: Pids that were busy shortly before the window; None if that is not known.
    """

    rows: list[NvmlUtilization] = attrs.Factory(list)
    newest: dict[int, Any] = attrs.Factory(dict)
    stirring: set[int] | None = None
    state: NvmlState = NvmlState.OK
    fault: NvmlFault | None = None


@attrs.define
class _ProcessUtil:
    sm_util_percent: int | None = None
    memory_util_percent: int | None = None
    enc_util_percent: int | None = None
    dec_util_percent: int | None = None
    at_us: int | None = None
    faults: list[NvmlFault] = attrs.Factory(list)


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
            self.faults.append(refusal.fault(figure))
            if refusal.state is NvmlState.GPU_IS_LOST:
                self.lost = refusal
            return None

    @property
    def state(self) -> NvmlState:
        return NvmlState.OK if self.lost is None else self.lost.state


@attrs.frozen
class DeviceReading:
    """One GPU with its processes."""

    device: NvmlDevice
    processes: list[NvmlProcess]
    utilization: list[NvmlUtilization]


class DeviceReader:
    """Reads GPUs, one at a time; not thread-safe by itself.

    Args:
        driver: NVML, open.
        window_us: How old a sample may be.
        sees_all: Whether the driver's lists hold every process, under its pid of the host.
        sensors: Whether to ask for temperature, power and memory errors.

    Attributes:
        driver_version: The driver's version; the shape of its lists depends on it.
    """

    def __init__(
        self, driver: Driver, *, window_us: int, sees_all: bool, sensors: bool = False
    ) -> None:
        self._driver = driver
        self._window_us = window_us
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
        driver, questions = self._driver, _Questions()
        known_uuid, known_name = self._identities.get(index, (None, None))
        try:
            handle = driver.call("nvmlDeviceGetHandleByIndex", index)
        except Refusal as refusal:
            return _unreachable(index, known_uuid, known_name, refusal)
        uuid = questions.ask("uuid", lambda: _text(driver.call("nvmlDeviceGetUUID", handle)))
        name = questions.ask("name", lambda: _text(driver.call("nvmlDeviceGetName", handle)))
        uuid, name = uuid or known_uuid, name or known_name
        self._identities[index] = (uuid, name)
        memory = self._memory(questions, handle)
        util = self._device_util(questions, handle)
        sensors = read_sensors(driver, questions.ask, handle) if self._sensors else NOT_ASKED
        mig_enabled = questions.ask("mig_enabled", lambda: self._mig_enabled(handle))
        lists = self._lists(questions, handle)
        migs = self._mig_handles(questions, handle) if mig_enabled else []
        usage = self._usage(questions, handle, mig_enabled, lists, (index, uuid))
        readings = [self._read_mig(index, slot, mig, lists) for slot, mig in migs]
        device = NvmlDevice(
            index,
            uuid,
            name,
            questions.state,
            *memory,
            *util,
            mig_enabled,
            tuple(mig for mig, _, _ in readings),
            lists.state,
            usage.state,
            tuple(questions.faults),
            **sensors,
        )
        own = _without(lists, readings) if readings else lists
        processes = self._processes((index, uuid), own, usage)
        utilization = usage.rows
        for _, more_processes, more_rows in readings:
            processes += more_processes
            utilization = utilization + more_rows
        return DeviceReading(device, processes, utilization)

    # ---- figures of a device --------------------------------------------------------------------

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
        call = "nvmlDeviceGetUtilizationRates"
        rates = questions.ask("gpu_util_percent", lambda: self._driver.call(call, handle))
        if rates is None:
            questions.faults.append(
                attrs.evolve(questions.faults[-1], figure="memory_util_percent")
            )
            return None, None
        return (
            questions.ask("gpu_util_percent", lambda: plausible_percent(call, rates.gpu)),
            questions.ask("memory_util_percent", lambda: plausible_percent(call, rates.memory)),
        )

    def _mig_enabled(self, handle: Any) -> bool:
        try:
            current, _ = self._driver.call("nvmlDeviceGetMigMode", handle)
        except Refusal as refusal:
            # The GPU, or a driver from before MIG, has none.
            if refusal.state in (NvmlState.NOT_SUPPORTED, NvmlState.FUNCTION_NOT_FOUND):
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
    ) -> tuple[NvmlMigDevice, list[NvmlProcess], list[NvmlUtilization]]:
        driver, questions = self._driver, _Questions()
        uuid = questions.ask("uuid", lambda: _text(driver.call("nvmlDeviceGetUUID", handle)))
        name = questions.ask("name", lambda: _text(driver.call("nvmlDeviceGetName", handle)))
        gpu_instance: int | None = questions.ask(
            "gpu_instance_id", lambda: driver.call("nvmlDeviceGetGpuInstanceId", handle)
        )
        compute_instance: int | None = questions.ask(
            "compute_instance_id", lambda: driver.call("nvmlDeviceGetComputeInstanceId", handle)
        )
        memory = self._memory(questions, handle)
        lists = self._lists(questions, handle)
        if lists.state is not NvmlState.OK and parent.state is NvmlState.OK:
            own = (gpu_instance, compute_instance)
            lists = _instance(parent, own, lists.faults) if None not in own else lists
        usage = self._usage(questions, handle, True, lists, (index, uuid))
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
        return mig, self._processes((index, uuid), lists, usage), usage.rows

    # ---- processes ------------------------------------------------------------------------------

    def _lists(self, questions: _Questions, handle: Any) -> _Lists:
        lists = _Lists()
        for kind, name in _LISTS:
            try:
                if questions.lost is not None:
                    raise questions.lost
                rows = self._driver.listed(name, self.driver_version, handle)
            except Refusal as refusal:
                absent = (NvmlState.NOT_SUPPORTED, NvmlState.FUNCTION_NOT_FOUND)
                if kind != "compute" and refusal.state in absent:
                    continue  # there is no such kind of process on this device
                if lists.state is NvmlState.OK:
                    lists.state = refusal.state
                lists.faults.append(refusal.fault("processes"))
                if refusal.state is NvmlState.GPU_IS_LOST:
                    questions.lost = refusal
                continue
            for row in rows:
                if row.pid:
                    lists.entries.setdefault(row.pid, _Entry()).add(kind, name, row)
        questions.faults += lists.faults
        return lists

    def _usage(
        self,
        questions: _Questions,
        handle: Any,
        mig_enabled: bool | None,
        lists: _Lists,
        place: tuple[int, str | None],
    ) -> _Usage:
        usage = _Usage()
        try:
            if questions.lost is not None:
                raise questions.lost
            rows = self._samples(handle, self._window_us)
        except Refusal as refusal:
            usage.state, usage.fault = refusal.state, refusal.fault("utilization")
            questions.faults.append(usage.fault)
            if refusal.state is NvmlState.GPU_IS_LOST:
                questions.lost = refusal
            return usage
        usage.rows = [_utilization(row, *place) for row in rows]
        for row in sorted(rows, key=lambda row: row.timeStamp):
            usage.newest[row.pid] = row
        if mig_enabled is not False:
            # Where MIG is on, the driver samples no processes, and silence means nothing.
            usage.state = NvmlState.NOT_SUPPORTED
            usage.fault = NvmlFault("utilization", _UTILIZATION, usage.state)
            questions.faults.append(usage.fault)
        elif self._sees_all and lists.entries.keys() - usage.newest.keys():
            usage.stirring = self._stirring(handle)
        return usage

    def _stirring(self, handle: Any) -> set[int] | None:
        # The driver samples about once a second: who has no sample in the last window, but one in
        # the window before, may be as busy as ever.
        try:
            return {row.pid for row in self._samples(handle, 2 * self._window_us)}
        except Refusal:
            return None

    def _samples(self, handle: Any, window_us: int) -> list[Any]:
        since = time.time_ns() // 1000 - window_us
        try:
            rows = self._driver.entries(_UTILIZATION, handle, since)
        except Refusal as refusal:
            if refusal.state is NvmlState.NOT_FOUND:
                return []  # nobody was busy
            raise
        # Some drivers return older samples as well, and entries that they have not filled in.
        until = time.time_ns() // 1000 + _AHEAD_US
        return [row for row in rows if row.pid and since < row.timeStamp <= until]

    def _processes(
        self, place: tuple[int, str | None], lists: _Lists, usage: _Usage
    ) -> list[NvmlProcess]:
        entries = dict(lists.entries)
        if lists.state is not NvmlState.OK:
            for pid in usage.newest:
                entries.setdefault(pid, _Entry(fault=lists.faults[0]))
        processes = []
        for pid, entry in sorted(entries.items()):
            memory = entry.total(entry.memory) if entry.memory else None
            faults = [entry.fault] if memory is None and entry.fault is not None else []
            util = self._process_util(pid, usage)
            processes.append(
                NvmlProcess(
                    pid,
                    *place,
                    tuple(entry.kinds),
                    memory,
                    util.sm_util_percent,
                    util.memory_util_percent,
                    util.enc_util_percent,
                    util.dec_util_percent,
                    util.at_us,
                    faults=(*faults, *util.faults),
                )
            )
        return processes

    def _process_util(self, pid: int, usage: _Usage) -> _ProcessUtil:
        row = usage.newest.get(pid)
        if row is not None:
            questions = _Questions()
            figures = {
                figure: questions.ask(
                    figure, partial(plausible_percent, _UTILIZATION, getattr(row, name))
                )
                for figure, name in _UTIL_FIELDS
            }
            return _ProcessUtil(**figures, at_us=row.timeStamp, faults=questions.faults)
        if usage.fault is not None:
            return _ProcessUtil(faults=[usage.fault])
        if usage.stirring is None or pid in usage.stirring:
            fault = NvmlFault("utilization", _UTILIZATION, NvmlState.NO_SAMPLE)
            return _ProcessUtil(faults=[fault])
        return _ProcessUtil(0, 0, 0, 0)


def _text(text: str) -> str | None:
    return text or None


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
    return DeviceReading(device, [], [])


def _utilization(row: Any, index: int, uuid: str | None) -> NvmlUtilization:
    figures = (getattr(row, name) for _, name in _UTIL_FIELDS)
    percents = (figure if 0 <= figure <= 100 else None for figure in figures)
    return NvmlUtilization(row.pid, index, uuid, row.timeStamp, *percents)


def _instance(
    parent: _Lists, own: tuple[int | None, int | None], faults: list[NvmlFault]
) -> _Lists:
    """The processes of one MIG device, from its GPU's list."""
    lists = _Lists(faults=faults)
    for pid, entry in parent.entries.items():
        for key, used in entry.memory.items():
            if key == own:
                lists.entries[pid] = _Entry(list(entry.kinds), {key: used}, entry.fault)
    return lists


def _without(
    lists: _Lists,
    readings: list[tuple[NvmlMigDevice, list[NvmlProcess], list[NvmlUtilization]]],
) -> _Lists:
    """What of a GPU's list none of its MIG devices accounts for."""
    instances = {(mig.gpu_instance_id, mig.compute_instance_id) for mig, _, _ in readings}
    listed = {process.pid for _, processes, _ in readings for process in processes}
    rest = _Lists(state=lists.state, faults=lists.faults)
    for pid, entry in lists.entries.items():
        memory = {
            key: used
            for key, used in entry.memory.items()
            if key not in instances and not (pid in listed and _NO_INSTANCE in key)
        }
        if memory:
            rest.entries[pid] = _Entry(list(entry.kinds), memory, entry.fault)
    return rest

"""Reading one GPU: its figures, its MIG devices, its processes and their utilisation."""

from __future__ import annotations

import contextlib
import re
import time
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import attrs

from .driver import MAX_BYTES, NOT_AVAILABLE, UTILIZATION, listed_processes
from .models import KINDS, NvmlDevice, ProcessColumns
from .states import NvmlCallFailed, NvmlFault, NvmlState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from .driver import Driver, SampledProcess

T = TypeVar("T")
# The index of a GPU, and the number of a MIG device on it.
_Place: TypeAlias = "tuple[int, int | None]"

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
_NOT_SAMPLED = (-1,) * len(_UTIL_FIGURES)
_IDLE = (0,) * len(_UTIL_FIGURES)
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

# Field, call, what it is at most (more than any hardware has), arguments: of
# nvmlTemperatureSensors_t the GPU; of nvmlMemoryErrorType_t each, of nvmlEccCounterType_t lifetime.
_SENSORS: tuple[tuple[Any, ...], ...] = (
    ("temperature_celsius", "nvmlDeviceGetTemperature", 300, 0),
    ("power_usage_watts", "nvmlDeviceGetPowerUsage", 100_000_000),
    ("ecc_corrected_errors", "nvmlDeviceGetTotalEccErrors", (1 << 63) - 1, 0, 1),
    ("ecc_uncorrected_errors", "nvmlDeviceGetTotalEccErrors", (1 << 63) - 1, 1, 1),
)


@attrs.define
class _Lists:
    """The processes of one handle, and what could not be read of them.

    Attributes:
        kinds: Pid to the lists that it stands in, as `ProcessColumns.kinds` has them.
        memory: Pid and (GPU, compute) instance to bytes; -1 where not known.
    """

    kinds: dict[int, int] = attrs.Factory(dict)
    memory: dict[tuple[int, int, int], int] = attrs.Factory(dict)
    state: NvmlState = NvmlState.OK

    def add(self, kind: int, rows: Sequence[tuple[int, int, int, int]]) -> None:
        pids, used, *instances = zip(*rows, strict=True) if rows else ((),) * 4
        if not self.kinds and 0 not in pids and len(set(pids)) == len(pids):
            # Nearly always so: nothing has to be brought together.
            self.kinds = dict.fromkeys(pids, 1 << kind)
            known = [each if each <= MAX_BYTES else -1 for each in used]
            self.memory = dict(zip(zip(pids, *instances, strict=True), known, strict=True))
            return
        for pid, nbytes, gpu_instance, compute_instance in rows:
            if not pid:
                continue
            self.kinds[pid] = self.kinds.get(pid, 0) | 1 << kind
            key = (pid, gpu_instance, compute_instance)
            if nbytes <= MAX_BYTES:
                # A process in two lists has the same memory in both: it is all that it uses.
                self.memory[key] = max(nbytes, self.memory.get(key, 0))
            else:
                self.memory.setdefault(key, -1)

    def totals(self) -> dict[int, int]:
        """Pid to bytes over all instances; -1 where one of them is not known."""
        if len(self.memory) == len(self.kinds):
            return {pid: used for (pid, _, _), used in self.memory.items()}
        found: dict[int, int] = {}
        for (pid, _, _), used in self.memory.items():
            before = found.get(pid, 0)
            found[pid] = -1 if used < 0 or before < 0 else before + used
        return found

    def only(self, keys: Iterable[tuple[int, int, int]]) -> _Lists:
        """The part of the lists that is about certain processes and instances."""
        memory = {key: self.memory[key] for key in keys}
        pids = {pid for pid, _, _ in memory}
        return _Lists(
            {pid: self.kinds[pid] for pid in pids},
            memory,
            self.state,
        )


@attrs.define
class _Usage:
    """The utilisation of one handle's processes.

    Attributes:
        samples: Those of the window.
        newest: The newest of them, by pid.
        recently_busy: Pids that were busy shortly before the window; None if that is not known.
    """

    samples: tuple[SampledProcess, ...] = ()
    newest: dict[int, SampledProcess] = attrs.Factory(dict)
    recently_busy: set[int] | None = None
    state: NvmlState = NvmlState.OK


@attrs.define
class _Known:
    """What was made of the lists of one device.

    Attributes:
        filled: The lists as the driver wrote them; None for those that it has not.
        lists: The same, taken apart.
        key: What else `columns` were made of.
        columns: Made of the lists alone, where no process has a sample.
    """

    filled: list[bytes | None]
    lists: _Lists
    key: tuple[object, ...] = ()
    columns: ProcessColumns | None = None


class _DeviceQueries:
    """Asks one device, and stops asking once it is lost: each further call may take seconds."""

    def __init__(self, driver: Driver, handle: Any) -> None:
        self.driver = driver
        self.handle = handle
        self.faults: list[NvmlFault] = []
        self.lost: NvmlCallFailed | None = None

    def ask(self, figure: str, read: Callable[[], T]) -> T | None:
        """What the driver answers; None, with a fault, where it refuses."""
        try:
            if self.lost is not None:
                raise self.lost
            return read()
        except NvmlCallFailed as failure:
            self.note(figure, failure)
            return None

    def call(self, figure: str, call: str, *args: Any) -> Any:
        """The answer of one call about the device; None, with a fault, where it refuses."""
        return self.ask(figure, lambda: self.driver.call(call, self.handle, *args))

    def number(self, figure: str, call: str, most: int, value: int | None) -> int | None:
        """A number that can be right; drivers are known to return utilisations of ten digits."""
        if value is None or 0 <= value <= most:
            return value
        none = value == NOT_AVAILABLE
        state = NvmlState.NO_FIGURE if none else NvmlState.OUT_OF_RANGE
        self.faults.append(NvmlFault(figure, call, state))
        return None

    def note(self, figure: str, failure: NvmlCallFailed) -> None:
        """Take note of a failure."""
        if failure.state is NvmlState.GPU_IS_LOST:
            self.lost = failure
        self.faults.append(failure.fault(figure))

    @property
    def state(self) -> NvmlState:
        """``OK`` until the device is lost."""
        return NvmlState.OK if self.lost is None else self.lost.state


class DeviceReader:
    """Reads GPUs, one at a time; not thread-safe by itself.

    Args:
        driver: NVML, open.
        sees_all: Whether the driver's lists hold every process, under its pid of the host.
        sensors: Whether to ask for temperature, power and memory errors.
        processes: Whether to ask for processes and their utilisation.

    Attributes:
        driver_version: The driver's version; the shape of its lists depends on it.
    """

    def __init__(
        self, driver: Driver, *, sees_all: bool, sensors: bool = False, processes: bool = True
    ) -> None:
        self._driver = driver
        self._sees_all = sees_all
        self._sensors = _SENSORS if sensors else ()
        self._processes = processes
        self.driver_version: str | None = None
        # What was made of the lists of each device when they were last asked for.
        self._known: dict[_Place, _Known] = {}
        # A lost GPU tells nothing any more; its index keeps its meaning while NVML is open.
        self._identities: dict[int, tuple[str | None, str | None]] = {}

    def forget(self) -> None:
        """NVML was initialised anew: an index may mean another GPU."""
        self._identities.clear()
        self._known.clear()

    def read(self, index: int) -> tuple[NvmlDevice, list[ProcessColumns]]:
        """One GPU, with the processes on it and on its MIG devices; what fails becomes a fault."""
        known = self._identities.get(index, (None, None))
        try:
            handle = self._driver.call("nvmlDeviceGetHandleByIndex", index)
        except NvmlCallFailed as failure:
            state = failure.state
            faults = (failure.fault("device"),)
            lost = NvmlDevice(
                index,
                *known,
                state,
                processes_state=state,
                utilization_state=state,
                faults=faults,
            )
            return lost, []
        asked = _DeviceQueries(self._driver, handle)
        uuid, name = (now or then for now, then in zip(self._identity(asked), known, strict=True))
        self._identities[index] = uuid, name
        memory = self._memory(asked)
        call = "nvmlDeviceGetUtilizationRates"
        rates = asked.call("gpu_util_percent", call)
        gpu_util = rates and asked.number("gpu_util_percent", call, 100, rates.gpu)
        memory_util = rates and asked.number("memory_util_percent", call, 100, rates.memory)
        sensors: dict[str, Any] = {
            figure: asked.number(figure, call, most, asked.call(figure, call, *args))
            for figure, call, most, *args in self._sensors
        }
        milliwatts = sensors.pop("power_usage_watts", None)
        mig_enabled = asked.ask("mig_enabled", lambda: self._mig_enabled(handle))
        lists = self._lists(asked, (index, None))
        migs = self._migs(asked) if mig_enabled else []
        usage = self._usage(asked, mig_enabled, lists, is_busy=gpu_util != 0)
        readings = [self._read_mig(index, slot, mig, lists) for slot, mig in migs]
        device = NvmlDevice(
            index,
            uuid,
            name,
            asked.state,
            *memory,
            gpu_util,
            memory_util,
            mig_enabled,
            tuple(mig for mig, _ in readings),
            lists.state,
            usage.state,
            (),
            power_usage_watts=None if milliwatts is None else milliwatts / 1000,
            **sensors,
        )
        # Of all that was asked above.
        device = attrs.evolve(device, faults=tuple(asked.faults))
        own = _without(lists, readings) if readings else lists
        columns = self._columns((index, None), uuid, own, usage)
        return device, [columns, *(columns for _, columns in readings)]

    def _identity(self, asked: _DeviceQueries) -> tuple[str | None, str | None]:
        uuid = asked.call("uuid", "nvmlDeviceGetUUID")
        return uuid or None, asked.call("name", "nvmlDeviceGetName") or None

    def _memory(self, asked: _DeviceQueries) -> tuple[int | None, int | None]:
        call = "nvmlDeviceGetMemoryInfo"
        info = asked.call("memory_total_bytes", call)
        if info is None:
            return None, None
        return (
            asked.number("memory_total_bytes", call, MAX_BYTES, info.total),
            asked.number("memory_used_bytes", call, MAX_BYTES, info.used),
        )

    # ---- MIG ------------------------------------------------------------------------------------

    def _mig_enabled(self, handle: Any) -> bool:
        try:
            current, _ = self._driver.call("nvmlDeviceGetMigMode", handle)
        except NvmlCallFailed as failure:
            # The GPU, or a driver from before MIG, has none.
            if failure.state in _ABSENT:
                return False
            raise
        return bool(current)

    def _migs(self, asked: _DeviceQueries) -> list[tuple[int, Any]]:
        """The handles of a GPU's MIG devices, by number."""
        count = asked.call("mig_devices", "nvmlDeviceGetMaxMigDeviceCount") or 0
        handles = {
            slot: asked.ask("mig_devices", partial(self._mig_handle, asked.handle, slot))
            for slot in range(min(count, _MAX_MIG_DEVICES))
        }
        return [(slot, mig) for slot, mig in handles.items() if mig is not None]

    def _mig_handle(self, handle: Any, slot: int) -> Any:
        try:
            return self._driver.call("nvmlDeviceGetMigDeviceHandleByIndex", handle, slot)
        except NvmlCallFailed as failure:
            if failure.state is NvmlState.NOT_FOUND:
                return None  # the numbers may have holes
            raise

    def _read_mig(
        self, index: int, slot: int, handle: Any, parent: _Lists
    ) -> tuple[NvmlDevice, ProcessColumns]:
        asked = _DeviceQueries(self._driver, handle)
        uuid, name = self._identity(asked)
        gpu_instance = asked.call("gpu_instance_id", "nvmlDeviceGetGpuInstanceId")
        compute_instance = asked.call("compute_instance_id", "nvmlDeviceGetComputeInstanceId")
        memory = self._memory(asked)
        lists = self._lists(asked, (index, slot))
        own = (gpu_instance, compute_instance)
        if lists.state is not NvmlState.OK and parent.state is NvmlState.OK and None not in own:
            lists = parent.only(key for key in parent.memory if key[1:] == own)
        usage = self._usage(asked, True, lists)
        profile = _PROFILE.search(name or "")
        mig = NvmlDevice(
            index,
            uuid,
            name,
            asked.state,
            *memory,
            processes_state=lists.state,
            utilization_state=usage.state,
            faults=tuple(asked.faults),
            slot=slot,
            profile=profile and profile[1],
            gpu_instance_id=gpu_instance,
            compute_instance_id=compute_instance,
        )
        return mig, self._columns((index, slot), uuid, lists, usage)

    # ---- processes ------------------------------------------------------------------------------

    def _lists(self, asked: _DeviceQueries, place: _Place) -> _Lists:
        state = NvmlState.OK
        if not self._processes:
            return _Lists(state=NvmlState.NOT_ASKED)
        filled: list[bytes | None] = []
        for kind, name in enumerate(_LISTS):
            filled.append(None)
            try:
                if asked.lost is not None:
                    raise asked.lost
                filled[kind] = self._driver.listed(name, self.driver_version, asked.handle)
            except NvmlCallFailed as failure:
                if KINDS[kind] != "compute" and failure.state in _ABSENT:
                    continue  # there is no such kind of process on this device
                if state is NvmlState.OK:
                    state = failure.state
                asked.note("processes", failure)
        known = self._known.get(place)
        if known is None or known.filled != filled:
            # Most of what a sample costs, and most lists are what they were five seconds ago.
            known = self._known[place] = _Known(filled, _Lists())
            for kind, rows in enumerate(filled):
                if rows is not None:
                    known.lists.add(kind, listed_processes(rows))
        return attrs.evolve(known.lists, state=state)

    def _columns(
        self, place: _Place, uuid: str | None, lists: _Lists, usage: _Usage
    ) -> ProcessColumns:
        known = self._known.get(place)
        if (
            known is None
            or known.lists.kinds is not lists.kinds
            or usage.newest
            or usage.recently_busy
        ):
            return _columns(place[0], uuid, lists, usage)
        key = (uuid, lists.state, usage.recently_busy is None, usage.samples)
        if known.columns is None or known.key != key:
            known.key, known.columns = key, _columns(place[0], uuid, lists, usage)
        return known.columns

    def _usage(
        self,
        asked: _DeviceQueries,
        mig_enabled: bool | None,
        lists: _Lists,
        *,
        is_busy: bool = True,
    ) -> _Usage:
        usage = _Usage()
        if not self._processes:
            usage.state = NvmlState.NOT_ASKED
            return usage
        try:
            if asked.lost is not None:
                raise asked.lost
            usage.samples = self._samples(asked.handle, _WINDOW_US, is_busy)
        except NvmlCallFailed as failure:
            usage.state = failure.state
            asked.note("utilization", failure)
            return usage
        usage.newest = {row[0]: row for row in sorted(usage.samples, key=lambda row: row[1])}
        if mig_enabled is not False:
            # Where MIG is on, the driver samples no processes, and silence means nothing.
            usage.state = NvmlState.NOT_SUPPORTED
            asked.faults.append(NvmlFault("utilization", UTILIZATION, usage.state))
        elif self._sees_all and lists.kinds.keys() - usage.newest.keys():
            # The driver samples about once a second: a process without a sample in the last
            # window, but with one in the window before, may be as busy as ever.
            with contextlib.suppress(NvmlCallFailed):
                before = self._samples(asked.handle, 2 * _WINDOW_US, is_busy)
                usage.recently_busy = {row[0] for row in before}
        return usage

    def _samples(self, handle: Any, window_us: int, is_busy: bool) -> tuple[SampledProcess, ...]:
        since = time.time_ns() // 1000 - window_us
        try:
            rows = self._driver.sampled(handle, since, is_busy=is_busy)
        except NvmlCallFailed as failure:
            if failure.state is NvmlState.NOT_FOUND:
                return ()  # nobody was busy
            raise
        # Some drivers return older samples as well, and entries that they have not filled in.
        until = time.time_ns() // 1000 + _AHEAD_US
        return tuple(row for row in rows if row[0] and since < row[1] <= until)


def _columns(index: int, uuid: str | None, lists: _Lists, usage: _Usage) -> ProcessColumns:
    found = ProcessColumns(index, uuid, samples=usage.samples)
    totals = lists.totals()
    pids = set(lists.kinds)
    if lists.state is not NvmlState.OK:
        pids.update(usage.newest)
    found.pids.extend(sorted(pids))
    found.memory_used_bytes.extend(map(totals.get, found.pids, repeat(-1)))
    newest, recently_busy = usage.newest, usage.recently_busy
    silent = _NOT_SAMPLED if recently_busy is None else _IDLE
    if newest or recently_busy:
        rows = [
            newest.get(pid) or (pid, 0, *(_NOT_SAMPLED if pid in (recently_busy or ()) else silent))
            for pid in found.pids
        ]
        _, sampled_at_us, *percents = zip(*rows, strict=True) if rows else ((),) * 6
    else:
        sampled_at_us = (0,) * len(found.pids)
        percents = [(percent,) * len(found.pids) for percent in silent]
    found.sampled_at_us.extend(sampled_at_us)
    for figure, column in zip(_UTIL_FIGURES, percents, strict=True):
        getattr(found, figure).extend([each if each <= 100 else -1 for each in column])
    return attrs.evolve(found, kinds=bytes(map(lists.kinds.get, found.pids, repeat(0))))


def _without(lists: _Lists, readings: list[tuple[NvmlDevice, ProcessColumns]]) -> _Lists:
    """What of a GPU's list none of its MIG devices accounts for."""
    instances = {(mig.gpu_instance_id, mig.compute_instance_id) for mig, _ in readings}
    listed = {pid for _, columns in readings for pid in columns.pids}
    return lists.only(
        key
        for key in lists.memory
        if key[1:] not in instances and not (key[0] in listed and _NO_INSTANCE in key[1:])
    )

"""Sampling the driver: devices and their processes.

A figure that NVML does not have is None; no call raises for it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from libhamiregion.node.procfs import initial_pid_namespace
from libhamiregion.observation.driver import NvmlSample, NvmlState

from .devices import DeviceReader
from .driver import Driver
from .states import NvmlCallFailed

if TYPE_CHECKING:
    from typing_extensions import Self

    from libhamiregion.errors import PathLike

# A count out of range must not become a long loop.
_MAX_DEVICES = 256
# A driver that hangs must not keep the program from ending.
_CLOSE_TIMEOUT_S = 1.0


class NvmlSampler:
    """Asks NVML, through nvidia-ml-py, which is imported on first use only.

    A context manager; the first sample opens it too. Opening never raises: without a driver every
    sample has the reason as its state, and the next one tries again.

        with NvmlSampler() as sampler:
            for device in sampler.sample().devices:
                print(device.uuid, device.memory_used_bytes)

    Threads: may be shared; one question is asked at a time. NVML counts its initialisations, so
    that several samplers and other users of NVML in one program do not disturb each other. Fork:
    make a new sampler in the child.

    Args:
        library: Path of the driver's library, if it is not on the loader's path, for example under
            the root of a driver container. The library that a program loads first stays.
        host_namespace: Whether the driver has the host's pids and all processes; None means to find
            out. In another pid namespace drivers hide processes, and translate the pids of some
            lists and not of others: a process that is not listed is unknown there, not idle.
        sensors: Whether samples have each GPU's temperature, power and memory errors as well, as
            HAMi's metrics have them. Some GPUs answer these questions only after milliseconds.
        processes: Whether samples have processes and their utilisation, which is most of the cost
            of a sample. Without them every figure of a process is unknown.

    Attributes:
        state: ``OK``, ``CLOSED``, or why NVML could not be asked last time.
    """

    def __init__(
        self,
        library: PathLike | None = None,
        *,
        host_namespace: bool | None = None,
        sensors: bool = False,
        processes: bool = True,
    ) -> None:
        if host_namespace is None:
            host_namespace = _in_host_namespace()
        self._sees_all = host_namespace and processes
        self._driver = Driver(None if library is None else os.fspath(library))
        self._reader = DeviceReader(
            self._driver, sees_all=self._sees_all, sensors=sensors, processes=processes
        )
        self._lock = threading.Lock()
        self.state = NvmlState.CLOSED

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> NvmlState:
        """Initialise NVML, and return the state; never raises for an answer of NVML or the loader.

        Calls ``nvmlInitWithFlags``.
        """
        with self._lock:
            try:
                self._start()
            except NvmlCallFailed as failure:
                self.state = failure.state
            return self.state

    def close(self) -> None:
        """Undo the initialisation; may be called again, and waits 1 s at most for a sample.

        Calls ``nvmlShutdown``.
        """
        if self._lock.acquire(timeout=_CLOSE_TIMEOUT_S):
            try:
                self._driver.close()
                self.state = NvmlState.CLOSED
            finally:
                self._lock.release()

    def _start(self) -> None:
        if not self._driver.is_open:
            self._reader.forget()
            self._driver.open()
        self.state = NvmlState.OK

    def sample(self) -> NvmlSample:
        """Ask for everything at once: devices, processes, utilisation.

        Calls ``nvmlDeviceGetCount_v2``, ``nvmlSystemGetDriverVersion``, and for each device
        ``nvmlDeviceGetHandleByIndex_v2``, ``nvmlDeviceGetUUID``, ``nvmlDeviceGetName``,
        ``nvmlDeviceGetMemoryInfo``, ``nvmlDeviceGetUtilizationRates``, ``nvmlDeviceGetMigMode``,
        ``nvmlDeviceGetMaxMigDeviceCount``, ``nvmlDeviceGetMigDeviceHandleByIndex``,
        ``nvmlDeviceGetGpuInstanceId``, ``nvmlDeviceGetComputeInstanceId``,
        ``nvmlDeviceGetComputeRunningProcesses_v3`` (``_v2`` with drivers that do not have it), the
        same of graphics and MPS processes, ``nvmlDeviceGetProcessUtilization``.
        With `sensors` also ``nvmlDeviceGetTemperature``, ``nvmlDeviceGetPowerUsage`` and
        ``nvmlDeviceGetTotalEccErrors``.

        Shell: ``nvidia-smi -q``.
        """
        with self._lock:
            taken_at_ns, taken_s = time.time_ns(), time.monotonic()
            try:
                self._start()
                count = self._driver.call("nvmlDeviceGetCount")
                if not 0 <= count <= _MAX_DEVICES:
                    raise NvmlCallFailed("nvmlDeviceGetCount", NvmlState.OUT_OF_RANGE)
            except NvmlCallFailed as failure:
                # A driver that was unloaded, replaced, or shut down by another user of NVML in this
                # program, wants a new initialisation.
                self._driver.close()
                self.state = failure.state
                return NvmlSample(taken_at_ns, failure.state, failure.message)
            with contextlib.suppress(NvmlCallFailed):
                self._reader.driver_version = self._driver.call("nvmlSystemGetDriverVersion")
            readings = [self._reader.read(index) for index in range(count)]
            devices = [device for device, _ in readings]
            return NvmlSample(
                taken_at_ns,
                NvmlState.OK,
                None,
                self._reader.driver_version,
                (*devices, *self._reader.no_longer_listed(devices)),
                tuple(each for _, columns in readings for each in columns),
                self._sees_all,
                taken_s,
            )


def _in_host_namespace() -> bool:
    try:
        return str(Path("/proc/self/ns/pid").readlink()) == initial_pid_namespace()
    except OSError:
        return False

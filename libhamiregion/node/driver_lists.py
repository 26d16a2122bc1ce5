"""What the driver lists of processes whose pids are certain."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from .nvml.states import NvmlState

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from .matching import HostProcess
    from .nvml.models import NvmlProcess, NvmlSample, ProcessColumns
    from .processes import ProcessTable

# No process has it, so what the driver says of it is what it says of one that it does not list.
_NO_PID = -1


def driver_gap(processes: ProcessTable, sample: NvmlSample | None) -> str | None:
    """Why there are no figures of the driver: one sentence; None if there are.

    Args:
        processes: The node's processes, refreshed.
        sample: What the driver said, None if it was not asked.
    """
    if sample is None:
        return "the driver was not asked"
    if sample.state is not NvmlState.OK:
        return sample.state.explanation if sample.fault is None else sample.fault.message
    if not sample.sees_all_processes:
        return (
            "the driver does not tell this program the host's pids, because it runs in another pid"
            " namespace; in Kubernetes, set hostPID: true"
        )
    if not processes.visibility.is_own_namespace:
        return f"the pids in {processes.proc!r} are not the host's, which the driver tells"
    return None


class DriverLists:
    """What the driver lists of processes whose pids are certain.

    Args:
        processes: The node's processes.
        sample: What the driver said; None leaves its figures out.
    """

    def __init__(self, processes: ProcessTable, sample: NvmlSample | None) -> None:
        usable = sample is not None and driver_gap(processes, sample) is None
        self._sample = sample if usable else None
        self._boot_ns = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        self._tick_ns = 10**9 // os.sysconf("SC_CLK_TCK")
        self._indexes: dict[str | None, int] = {}
        #: Whether it lists the processes of every device.
        self.lists_all = self._sample is not None
        for device in () if self._sample is None else self._sample.devices:
            for part in (device, *device.mig_devices):
                self.lists_all = self.lists_all and part.processes_state is NvmlState.OK
                if part.uuid:
                    self._indexes[part.uuid] = device.index

    @property
    def columns(self) -> dict[str, ProcessColumns]:
        """The lists by the uuid of their device."""
        found = () if self._sample is None else self._sample.columns
        return {each.device_uuid: each for each in found if each.device_uuid}

    def is_newer(self, process: HostProcess) -> bool:
        """Whether a process began after the sample: then the sample is of another one."""
        started_ns = self._boot_ns + process.start_time_ticks * self._tick_ns
        return self._sample is None or started_ns > self._sample.taken_at_ns

    def entries(
        self, process: HostProcess, *, without: Collection[str | None] = ()
    ) -> Sequence[NvmlProcess]:
        """The devices on which the driver lists a process, but for those with certain uuids."""
        if self._sample is None or self.is_newer(process):
            return ()
        return self._sample.of_pid(process.pid, without=without)

    def of_pid(self, pid: int) -> Sequence[NvmlProcess]:
        """The devices on which the driver lists a pid, whatever process has it now."""
        return () if self._sample is None else self._sample.of_pid(pid)

    def index(self, uuid: str | None) -> int | None:
        """NVML index of a GPU, or of the one that a MIG device is part of."""
        return self._indexes.get(uuid)

    def figures(self, uuid: str, process: HostProcess) -> NvmlProcess | None:
        """What a process uses of one device; None where that is not known."""
        if self._sample is None or self.is_newer(process):
            return None
        return self._sample.process(uuid, process.pid)

    def unlisted(self, uuid: str) -> NvmlProcess | None:
        """What a process uses that is not in the list of a device; None where that is not known."""
        return None if self._sample is None else self._sample.process(uuid, _NO_PID)

"""GPUs of a fake node: what a driver would report of its processes."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING

from libhamiregion.node import NvmlSample, NvmlSampler, NvmlState
from libhamiregion.observation.driver import NvmlDevice, ProcessColumns
from libhamiregion.units import MIB

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .fake_node import FakeNode

_TOTAL_BYTES = 80 << 30
# What a driver counts of a process in addition to its region.
_DRIVER_BYTES = 200 * MIB


class FakeGpus(NvmlSampler):
    """Gives the figures of a fake node's processes in place of a driver, for an `Observer`.

    Args:
        fake: The node. GPU N is device N of each container.
        others: Other processes on its GPUs: pid to the GPU and the memory in use.
    """

    def __init__(self, fake: FakeNode, others: Mapping[int, tuple[int, int]]) -> None:
        super().__init__()
        self._fake = fake
        self._others = others

    def sample(self) -> NvmlSample:
        """Return the figures of now."""
        uuids: dict[int, str | None] = {}
        used: defaultdict[int, dict[int, tuple[int, int]]] = defaultdict(dict)
        for container in self._fake.containers:
            if container.region is None:
                continue
            alive = {each.pid for each in container.processes if not each.killed}
            with container.open() as region:
                snapshot = region.snapshot()
            uuids |= {each.index: each.uuid for each in snapshot.devices}
            for process in snapshot.processes:
                for each in process.devices if process.pid in alive else ():
                    if each.memory_used_bytes:
                        figures = each.memory_used_bytes + _DRIVER_BYTES, each.sm_util_percent
                        used[each.index][process.pid] = figures
        for pid, (gpu, memory) in self._others.items():
            used[gpu][pid] = memory, 0
        columns = tuple(_columns(gpu, uuids[gpu], used[gpu]) for gpu in sorted(uuids))
        return NvmlSample(
            time.time_ns(),
            NvmlState.OK,
            driver_version="fake",
            devices=tuple(map(_device, columns)),
            columns=columns,
            sees_all_processes=True,
        )


def _columns(gpu: int, uuid: str | None, used: Mapping[int, tuple[int, int]]) -> ProcessColumns:
    pids = tuple(sorted(used))
    memory, sm = (tuple(used[pid][at] for pid in pids) for at in range(2))
    none = (0,) * len(pids)
    return ProcessColumns(gpu, uuid, pids, memory, sm, none, none, none)


def _device(columns: ProcessColumns) -> NvmlDevice:
    return NvmlDevice(
        columns.device_index,
        columns.device_uuid,
        "Fake GPU",
        NvmlState.OK,
        memory_total_bytes=_TOTAL_BYTES,
        memory_used_bytes=sum(columns.memory_used_bytes),
        gpu_util_percent=min(100, sum(columns.sm_util_percent)),
        memory_util_percent=0,
        mig_enabled=False,
    )

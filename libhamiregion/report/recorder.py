"""Records what a node's containers hold and use: looks at its regions and writes them down."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeAlias

from libhamiregion.layouts import LAYOUTS
from libhamiregion.node.driver_lists import driver_gap
from libhamiregion.node.join import NO_ROW, Join
from libhamiregion.node.observation import Observer
from libhamiregion.node.slot_tracker import SLOT_STATES
from libhamiregion.units import MAX_SIZE_BYTES

from .history import Allocation, Sample
from .recording import RecordingUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from libhamiregion.node.containers import Container
    from libhamiregion.node.node import Node
    from libhamiregion.node.nvml import NvmlSampler
    from libhamiregion.node.observation import Observation

    from .writer import RecordingWriter, Written

_DRIVER_TIMEOUT_S = 5.0
_SHORT_ID = 12
# namespace, pod, container, pod UID
_ContainerNames: TypeAlias = "tuple[str | None, str | None, str | None, str | None]"
# Memory in bytes and SM utilisation in percent, None where not known.
_DriverValues: TypeAlias = "tuple[int | None, int | None]"
_HAS_UTILIZATION = tuple(layout.has_utilization for layout in LAYOUTS)


def read_samples(observation: Observation) -> dict[Allocation, Sample]:
    """What all containers of a node hold and use.

    Args:
        observation: Taken with the slots.

    Returns:
        One sample per container and device, if the region can be read and its sum is below 2**63. A
        container can make any number of regions beside its own: the one in its directory counts, as
        libvgpu enforces its limits there, and without one the one with most memory in use.

    Raises:
        OSError: /proc could not be listed.
    """
    processes = _processes_of_regions(observation)
    names = [_names_of(container) for container in observation.containers]
    counts = _regions_that_count(observation, names)
    layouts = observation.table.regions.layout.tolist()
    devices = observation.table.devices
    driver = _driver_figures(observation)
    found = {}
    for row, (region, index, used, limit, sm_limit, sm) in enumerate(
        zip(
            devices.region.tolist(),
            devices.device.tolist(),
            devices.memory_used_bytes.tolist(),
            devices.memory_limit_bytes.tolist(),
            devices.sm_limit_percent.tolist(),
            devices.sm_util_percent.tolist(),
            strict=True,
        )
    ):
        # A sum of 2**63 and more is no size: what is used is not known.
        if region not in counts or used > MAX_SIZE_BYTES:
            continue
        layout = layouts[region]
        has_utilization = 0 <= layout < len(_HAS_UTILIZATION) and _HAS_UTILIZATION[layout]
        namespace, pod, name, pod_uid = names[region]
        of = Allocation(namespace, pod, name, pod_uid, index, devices.uuid(row))
        found[of] = Sample(
            used,
            limit or None,
            sm_limit if 0 < sm_limit < 100 else 100,
            sm if has_utilization else None,
            processes[region],
            *driver[row],
        )
    return found


def _names_of(container: Container) -> _ContainerNames:
    name = container.name
    if name is None and container.container_id is not None:
        name = container.container_id.id[:_SHORT_ID]
    # Two claims may be held by containers of one name.
    return container.namespace, container.pod, name, container.pod_uid or container.claim_uid


def _regions_that_count(observation: Observation, names: Sequence[_ContainerNames]) -> set[int]:
    """Choose one region of each container, by its row."""
    used = [0] * len(names)
    devices = observation.table.devices
    for region, nbytes in zip(
        devices.region.tolist(), devices.memory_used_bytes.tolist(), strict=True
    ):
        used[region] += nbytes
    chosen: dict[tuple[object, ...], tuple[bool, int, int]] = {}
    for row, container in enumerate(observation.containers):
        # Without a name nothing says that two regions are of one container.
        _, _, name, pod_uid = names[row]
        key = (pod_uid, row if name is None else name)
        rank = (container.directory is not None, used[row], row)
        chosen[key] = max(rank, chosen.get(key, rank))
    return {row for _, _, row in chosen.values()}


def _processes_of_regions(observation: Observation) -> list[int]:
    """Count the slots of each region whose processes are not proved dead."""
    found = [0] * len(observation.containers)
    states = observation.proved().states
    for region, state in zip(observation.table.processes.region.tolist(), states, strict=True):
        found[region] += SLOT_STATES[state] != "dead"
    return found


def _driver_figures(observation: Observation) -> list[_DriverValues]:
    """Memory and utilisation of each device; None where no process uses it, or one is not known."""
    if driver_gap(observation.processes, observation.sample) is not None:
        return [(None, None)] * len(observation.table.devices)
    join = Join(observation)
    columns = []
    for name in ("memory_used_bytes", "sm_util_percent"):
        found = join.device_sums(name)
        columns.append(
            [
                None if row == NO_ROW or not users else total
                for total, row, users in zip(found.sums, found.rows, found.users, strict=True)
            ]
        )
    return list(zip(*columns, strict=True))


class Recorder:
    """Looks at a node every so many seconds and writes down what it sees.

        with Node() as node, RecordingWriter("node.db") as writer:
            Recorder(node, writer).run(stop.wait)

    Threads: one at a time.

    Args:
        node: What to look at; refreshed with every look.
        writer: Where to write; not closed.
        sampler: Asks the driver as well; None records none of its figures. A driver that does not
            answer costs a look a part of its interval, and its figures.
    """

    def __init__(
        self, node: Node, writer: RecordingWriter, *, sampler: NvmlSampler | None = None
    ) -> None:
        timeout_s = min(_DRIVER_TIMEOUT_S, writer.interval_s / 4)
        self._observer = Observer(node, sampler=sampler, driver_timeout_s=timeout_s)
        self._writer = writer

    def look(self) -> Written:
        """Look at the node and write it down.

        Raises:
            RecordingUnavailable: It could not be written; the next look tries again.
            RecordingError: The file cannot be written to as it is.
            OSError: /proc cannot be listed.
        """
        samples = read_samples(self._observer.observe())
        return self._writer.write(samples, at_ms=time.time_ns() // 1_000_000)

    def run(
        self,
        wait: Callable[[float], object],
        *,
        looked: Callable[[Written], None] = lambda _: None,
        failed: Callable[[RecordingUnavailable | OSError], None] = lambda _: None,
    ) -> None:
        """Look once in each of the writer's intervals until told to stop.

        A look that took longer than the interval makes the next one late; none is caught up on.
        What can pass (a full disk, no descriptors left) is reported and tried again at the next
        look; what could not be recorded meanwhile is a gap.

        Args:
            wait: Called with the seconds until the next look; returns true to stop.
                ``threading.Event().wait`` is one.
            looked: Called after each look.
            failed: Called for each look that could not be taken or written.

        Raises:
            RecordingError: The file cannot be written to, and trying again would not help.
        """
        due = time.monotonic()
        while True:
            try:
                written = self.look()
            except (RecordingUnavailable, OSError) as error:
                failed(error)
            else:
                looked(written)
            due = max(due + self._writer.interval_s, time.monotonic())
            if wait(max(0.0, due - time.monotonic())):
                return

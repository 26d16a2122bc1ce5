"""Records usage and limits of a node's containers, from observations."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, TypeAlias

from libhamiregion.layouts import LAYOUTS
from libhamiregion.observation.figures import IMPOSSIBLE_BYTES, memory_limit_or_none
from libhamiregion.observation.pairing import NO_ROW, driver_gap
from libhamiregion.observation.processes import SLOT_STATES
from libhamiregion.observation.rows import Join
from libhamiregion.observation.without_region import allocation_key, figures_without_region
from libhamiregion.text import printable

from .history import Allocation, Gpu, Sample
from .recording import RecordingUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from libhamiregion.node.reader import Observer
    from libhamiregion.observation.containers import Container
    from libhamiregion.observation.model import Observation

    from .writer import RecordingWriter, Written

_MODEL_LIMIT: Final = 100
# namespace, pod, container, pod UID
_Names: TypeAlias = "tuple[str | None, str | None, str | None, str | None]"


def read_samples(observation: Observation) -> dict[Allocation, Sample]:
    """Read usage and limits of all containers of a node.

    Args:
        observation: Taken with the slots.

    Returns:
        One sample per container and device, if the region can be read and its use is below
        64 TiB; such a limit is none. A container can make any number of regions: the one with most
        memory in use counts.
        Of a container without a region the driver's figures, by GPU, if its pids mean something.

    Raises:
        OSError: /proc could not be listed.
    """
    table, devices = observation.table, observation.table.devices
    processes = [0] * len(observation.containers)
    states = observation.proved().states
    for region, state in zip(table.processes.region.tolist(), states, strict=True):
        processes[region] += SLOT_STATES[state] != "dead"
    names = [_names_of(container) for container in observation.containers]
    has_utilization = dict(enumerate(layout.has_utilization for layout in LAYOUTS))
    layouts = table.regions.layout.tolist()
    join = Join(observation)
    driver_bytes = _driver_figures(join, "memory_used_bytes")
    driver_sm = _driver_figures(join, "sm_util_percent")
    found: dict[Allocation, Sample] = {}
    for row, (region, index, used, limit, sm_limit, sm) in enumerate(
        zip(
            devices.region.tolist(),
            devices.device.tolist(),
            devices.memory_used_bytes.tolist(),
            devices.memory_limit_bytes.tolist(),
            devices.sm_limit_percent.tolist(),
            join.device_percents,
            strict=True,
        )
    ):
        namespace, pod, name, pod_uid = names[region]
        of = Allocation(namespace, pod, name, pod_uid, index, devices.uuid(row))
        # A container that writes impossible sizes into its region must not decide how everybody's
        # sums and charts look.
        if used < IMPOSSIBLE_BYTES and (of not in found or used > found[of].memory_used_bytes):
            found[of] = Sample(
                used,
                memory_limit_or_none(limit),
                sm_limit if 0 < sm_limit < 100 else 100,
                sm if has_utilization.get(layouts[region]) else None,
                processes[region],
                driver_bytes[row],
                driver_sm[row],
            )
    found.update(_without_region(join))
    return found


def _without_region(join: Join) -> Iterator[tuple[Allocation, Sample]]:
    """Samples of containers without a region: the driver's figures, and the limits given."""
    given = join.observation.allocations or ()
    for container, devices in figures_without_region(join).items():
        of_it = [each for each in given if each.key == allocation_key(container)]
        for device in devices:
            index, limit, sm_limit = 0, None, None
            for each in of_it:
                if device.uuid in each.uuids:
                    index = each.uuids.index(device.uuid)
                    limit, sm_limit = each.limits_of(index)
            used, busy = device.memory_driver_bytes, device.driver_sm_percent
            if used is not None and used < IMPOSSIBLE_BYTES:
                of = Allocation(*_names_of(container), index, device.uuid)
                yield of, Sample(used, limit, sm_limit or 100, busy, None, used, busy)


def _names_of(container: Container) -> _Names:
    name = container.name
    if name is None and container.container_id is not None:
        name = container.container_id.id[:12]
    # Two claims may be held by containers of one name.
    return container.namespace, container.pod, name, container.pod_uid or container.claim_uid


def _driver_figures(join: Join, name: str) -> list[int | None]:
    """Sum a figure by device; None if no process uses the device, or one is not known."""
    observation = join.observation
    if driver_gap(observation.processes, observation.sample) is not None:
        return [None] * len(observation.table.devices)
    found = join.device_sums(name)
    return [
        None if row == NO_ROW or not users else total
        for total, row, users in zip(found.sums, found.rows, found.users, strict=True)
    ]


class Recorder:
    """Records an observation at each interval.

        with Node() as node, RecordingWriter("node.db") as writer:
            Recorder(Observer(node), writer).run(stop.wait)

    Threads: one at a time.

    Args:
        observer: Observes the node, and its driver if the recording shall have its figures.
        writer: Writes the recording; not closed.
    """

    def __init__(self, observer: Observer, writer: RecordingWriter) -> None:
        self._observer = observer
        self._writer = writer

    def look(self) -> Written:
        """Observe the node and write the samples.

        Raises:
            RecordingUnavailable: It could not be written; the next look tries again.
            RecordingError: The file cannot be written to as it is.
            OSError: /proc cannot be listed.
        """
        observation = self._observer.observe()
        at_ms = observation.regions_read_at_ns // 1_000_000
        gpus = sum(len(device.mig_devices) or 1 for device in observation.gpus)
        by_uuid = {} if observation.sample is None else observation.sample.by_uuid
        known = {
            # The name of a MIG device has its profile.
            uuid: Gpu(each.name and printable(each.name, _MODEL_LIMIT), each.memory_total_bytes)
            for uuid, each in by_uuid.items()
            if uuid is not None
        }
        return self._writer.write(
            read_samples(observation), at_ms=at_ms, gpus=gpus or None, devices=known
        )

    def run(
        self,
        wait: Callable[[float], object],
        *,
        looked: Callable[[Written], None] = lambda _: None,
        failed: Callable[[RecordingUnavailable | OSError], None] = lambda _: None,
    ) -> None:
        """Record at each of the writer's intervals until stopped.

        A look that takes longer than the interval delays the next one; none is made up for. An
        error that can pass (a full disk, no descriptors left) is reported, and the next look tries
        again; the time between is a gap.

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

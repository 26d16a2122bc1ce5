"""Reads what a node's containers hold and use, as the recorder writes it down."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeAlias

from libhamiregion.layouts import LAYOUTS
from libhamiregion.node.nvml.timeout_sampler import TimeoutSampler
from libhamiregion.node.usage import node_processes

from .recording import Reading, RecordedContainer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from libhamiregion.node.containers import Container
    from libhamiregion.node.node import Node
    from libhamiregion.node.nvml import NvmlSampler
    from libhamiregion.node.usage import NodeProcess
    from libhamiregion.node.views import ContainerView

# A pod's directories of logs can come after its region.
_ASK_AGAIN_S = 60.0
# Memory in bytes and SM utilisation in percent, None where not known.
_DriverFigures: TypeAlias = "tuple[int | None, int | None]"
_HAS_UTILIZATION = tuple(layout.has_utilization for layout in LAYOUTS)


class NodeReader:
    """Reads all regions of a node, with the names of their containers.

    A reading costs one native read of all regions, and /proc for who is alive; about 25 ms of CPU
    for 256 containers with two devices and four processes each.

    Threads: one at a time.

    Args:
        node: What to look at; refreshed with every reading.
        sampler: Asks the driver as well; None leaves its figures out.
        patience_s: How long to wait for a driver that does not answer; its figures are left out
            until it does.
    """

    def __init__(
        self, node: Node, *, sampler: NvmlSampler | None = None, patience_s: float = 5.0
    ) -> None:
        self._node = node
        self._driver = None if sampler is None else TimeoutSampler(sampler, patience_s)
        self._named: dict[Container, tuple[RecordedContainer, float | None]] = {}

    def readings(self) -> list[Reading]:
        """Look at the node.

        Returns:
            One reading per container and device with a region that can be read.

        Raises:
            OSError: /proc cannot be listed.
            RegionClosed: The node has been closed.
        """
        sample = None if self._driver is None else self._driver.sample()
        views = self._node.view()
        processes = _alive(views)
        driver: dict[tuple[Container, int], _DriverFigures] = {}
        if sample is not None:
            driver = _driver_figures(node_processes(views, self._node.processes, sample))
        snapshot = self._node.snapshot()
        regions, devices = snapshot.table.regions, snapshot.table.devices
        has_utilization = [
            0 <= layout < len(_HAS_UTILIZATION) and _HAS_UTILIZATION[layout]
            for layout in regions.layout.tolist()
        ]
        named = [self._name(container) for container in snapshot.containers]
        self._forget(snapshot.containers)
        found = []
        for row, (region, index, memory, limit, sm_limit, sm) in enumerate(
            zip(
                devices.region.tolist(),
                devices.index.tolist(),
                devices.memory_used_bytes.tolist(),
                devices.memory_limit_bytes.tolist(),
                devices.sm_limit_percent.tolist(),
                devices.sm_util_percent.tolist(),
                strict=True,
            )
        ):
            container = snapshot.containers[region]
            driver_memory, driver_sm = driver.get((container, index), (None, None))
            found.append(
                Reading(
                    named[region],
                    index,
                    devices.uuid(row),
                    memory,
                    limit or None,
                    sm_limit if 0 < sm_limit < 100 else None,
                    sm if has_utilization[region] else None,
                    processes.get(container),
                    driver_memory,
                    driver_sm,
                )
            )
        return found

    # ---- names -----------------------------------------------------------------------------------

    def _name(self, container: Container) -> RecordedContainer:
        known = self._named.get(container)
        now = time.monotonic()
        if known is not None and (known[1] is None or now < known[1]):
            return known[0]
        name = self._node.pod_name(container)
        id_ = None if container.container_id is None else container.container_id.id
        recorded = RecordedContainer(
            container.pod_uid,
            container.name or (None if name is None else name.container),
            id_,
            container.path_in_namespace,
            None if name is None else name.namespace,
            None if name is None else name.pod,
        )
        if known is not None and known[0] == recorded:
            recorded = known[0]
        again = now + _ASK_AGAIN_S if recorded.pod is None else None
        self._named[container] = (recorded, again)
        return recorded

    def _forget(self, present: Iterable[Container]) -> None:
        for gone in self._named.keys() - set(present):
            del self._named[gone]


def _alive(views: Iterable[ContainerView]) -> dict[Container, int]:
    return {
        view.container: sum(slot.state != "dead" for slot in view.processes.slots)
        for view in views
        if view.processes is not None
    }


def _driver_figures(rows: Iterable[NodeProcess]) -> dict[tuple[Container, int], _DriverFigures]:
    """Sums over the processes of a container, None where one of them is not known."""
    found: dict[tuple[Container, int], _DriverFigures] = {}
    for row in rows:
        if row.container is None or row.state == "dead":
            continue
        for used in row.devices:
            if used.index is None:
                continue
            memory, sm = found.get((row.container, used.index), (0, 0))
            found[row.container, used.index] = (
                _added(memory, used.memory_driver_bytes),
                _added(sm, used.driver_sm_percent),
            )
    return found


def _added(total: int | None, more: int | None) -> int | None:
    return None if total is None or more is None else total + more

"""Processes that use a GPU and that no region accounts for."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from libhamiregion.exporter import families
from libhamiregion.exporter.identity import identity_of_unknown
from libhamiregion.exporter.labels import OTHER, label_text, safe_value
from libhamiregion.exporter.text import Series

if TYPE_CHECKING:
    from libhamiregion.exporter.families import MetricFamily
    from libhamiregion.exporter.identity import Identity
    from libhamiregion.exporter.labels import CardinalityLimiter
    from libhamiregion.exporter.state import CollectedState
    from libhamiregion.node import Node

_FIGURES = (
    (families.UNACCOUNTED_MEMORY, "memory_driver_bytes"),
    (families.UNACCOUNTED_SM, "driver_sm_percent"),
    (families.UNACCOUNTED_ENC, "driver_enc_percent"),
    (families.UNACCOUNTED_DEC, "driver_dec_percent"),
)
# Processes and devices with series of their own: of all, and of one container.
_ROWS = 512
_ROWS_PER_CONTAINER = 64


class UnaccountedCollector:
    """Tells what nvidia-smi shows and no region does, with the container that it is in.

    The rest of too many is summed up per GPU, without a name.

    Args:
        node: The node.
        limiter: Bounds what processes may call themselves.
    """

    name = "unaccounted"

    def __init__(self, node: Node, limiter: CardinalityLimiter) -> None:
        self._node = node
        self._limiter = limiter

    def collect(self, state: CollectedState) -> CollectedState:
        """Make series of what the look at processes has left over."""
        rows = state.uncounted
        found: dict[MetricFamily, dict[bytes, float]] = {family: {} for family, _ in _FIGURES}
        sums: defaultdict[tuple[MetricFamily, str, str], int] = defaultdict(int)
        names: dict[str, Identity] = {}
        per_container: Counter[str] = Counter()
        total = 0
        for row in rows:
            container_id = "" if row.container_id is None else row.container_id.id
            identity = None if row.container is None else state.identities.get(row.container)
            for device in row.devices:
                index = "" if device.driver_index is None else str(device.driver_index)
                uuid = safe_value(device.uuid or "")
                labels = None
                # The host's own processes have no container.
                crowded = container_id != "" and (
                    per_container[container_id] >= _ROWS_PER_CONTAINER
                )
                if total < _ROWS and not crowded:
                    total += 1
                    per_container[container_id] += 1
                    shown = identity or identity_of_unknown(self._node, row.container_id, names)
                    program = self._limiter.program(row.process)
                    # A slot of another device does not account for this one.
                    kind = row.state if row.pid is None else "other_device"
                    values = (container_id, index, uuid, str(row.host_pid), program, kind)
                    labels = shown.text(families.UNACCOUNTED, *values)
                for family, figure in _FIGURES:
                    value: int | None = getattr(device, figure)
                    if value is None:
                        continue
                    if labels is None:
                        sums[family, index, uuid] += value
                    else:
                        found[family].setdefault(labels, value)
        for (family, index, uuid), value in sums.items():
            rest = label_text(families.UNACCOUNTED, "", "", "", "", index, uuid, OTHER, "", "")
            found[family][rest] = value
        self._limiter.keep_programs(row.process for row in rows if row.process is not None)
        series = [Series.of(family, rows) for family, rows in found.items()]
        return state.with_series(self.name, series)

"""Names of `observation` and `rows` for their callers until they are converted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from .observation import ContainerDetails

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from .containers import Container
    from .node import Node
    from .observation import Observation
    from .slots import SlotState


@attrs.frozen
class OmittedSlots:
    """Slots that are summed; an observation has none."""

    state: SlotState
    slots: int
    memory_used_bytes: Mapping[int, int]


@attrs.frozen
class ContainerView(ContainerDetails):
    """`ContainerDetails` with nothing omitted."""

    omitted: tuple[OmittedSlots, ...] = ()


def observed_views(
    _: Node, observation: Observation, chosen: Collection[Container] | None = None
) -> tuple[ContainerView, ...]:
    """Return `Observation.details`."""
    return tuple(
        ContainerView(each.container, each.snapshot, each.processes, each.error)
        for each in observation.details()
        if chosen is None or each.container in chosen
    )

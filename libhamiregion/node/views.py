"""A container with one picture of its region and the processes behind it, of bounded size."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import attrs

from libhamiregion.errors import RegionError
from libhamiregion.models import ProcessStatus

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from libhamiregion.models import ProcessUsage, RegionSnapshot

    from .containers import Container
    from .matching import RegionProcesses, SlotState
    from .node import Node
    from .observation import Observation

# A container can fill all 1,024 slots of its region, name 16 devices, and map more such files.
_SLOTS_LIMIT = 16
_LIVE_USAGES_LIMIT = 4_096


@attrs.frozen
class OmittedSlots:
    """Slots that a `ContainerView` leaves out, summed.

    Attributes:
        state: What all of them are.
        slots: How many.
        memory_used_bytes: Index of a device to what they count there.
    """

    state: SlotState
    slots: int
    memory_used_bytes: Mapping[int, int]


@attrs.frozen
class ContainerView:
    """A container with one picture of its region and the processes behind it.

    Attributes:
        container: The container.
        snapshot: Its region; None if there is none, or it could not be read. Of slots whose
            process is not alive it has 16 at most, and of live ones as many as use 4,096 devices
            in all. The sums over all slots are in its ``devices``.
        processes: What stands behind the slots, in the order of ``snapshot.processes``; None
            without a snapshot.
        omitted: The slots that ``snapshot.processes`` leaves out, one entry per state.
        error: Why the region could not be read now; None if it was, or if there is none.
    """

    container: Container
    snapshot: RegionSnapshot | None = None
    processes: RegionProcesses | None = None
    omitted: tuple[OmittedSlots, ...] = ()
    error: RegionError | None = None


def observed_views(
    node: Node, observation: Observation, chosen: Collection[Container] | None = None
) -> tuple[ContainerView, ...]:
    """What an observation found, container by container: of exactly that moment.

    A region whose slots it has left out is looked at now.

    Args:
        node: The node that was observed.
        observation: Taken with the slots.
        chosen: Only these containers; None means all.

    Raises:
        OSError: /proc could not be listed.
    """
    states, table = observation.proved(), observation.table
    unread = {gap.container for gap in observation.gaps if gap.kind == "slots"}
    views: list[ContainerView] = []
    for row, container in enumerate(observation.containers):
        if chosen is not None and container not in chosen:
            continue
        proved = states.proved.get(row)
        error = table.error(row)
        if container in unread:
            views += node.view([container])
        elif error is not None or container.region is None or proved is None:
            # One without a proof was closed meanwhile: the next observation sees to it.
            views.append(
                ContainerView(container, error=error if isinstance(error, RegionError) else None)
            )
        else:
            views.append(bounded_view(container, table.snapshot(row, container.region), proved))
    views += [
        ContainerView(each) for each in observation.missing if chosen is None or each in chosen
    ]
    return tuple(views)


def bounded_view(
    container: Container, snapshot: RegionSnapshot, processes: RegionProcesses
) -> ContainerView:
    """Put a view together, with so many slots and no more."""
    if len(snapshot.processes) <= _SLOTS_LIMIT:
        return ContainerView(container, snapshot, processes)
    live_limit = _LIVE_USAGES_LIMIT // max(1, len(snapshot.devices))
    live: dict[int, int] = {}
    others = []
    # Of several slots with one pid the last is the original, the others are copies of it.
    for slot in range(len(snapshot.processes) - 1, -1, -1):
        pid = snapshot.processes[slot].pid
        if pid in processes.alive and pid not in live and len(live) < live_limit:
            live[pid] = slot
        else:
            others.append(slot)
    # Those first of which something is wrong by themselves.
    others.sort(key=lambda slot: (not _is_odd(snapshot.processes[slot]), slot))
    shown = sorted([*live.values(), *others[:_SLOTS_LIMIT]])
    kept = tuple(snapshot.processes[slot] for slot in shown)
    return ContainerView(
        container,
        attrs.evolve(snapshot, processes=kept),
        attrs.evolve(processes, pids=[process.pid for process in kept]),
        _summed((snapshot.processes[slot] for slot in others[_SLOTS_LIMIT:]), processes),
    )


def _is_odd(process: ProcessUsage) -> bool:
    return process.pid == 0 or not process.settled or process.status == ProcessStatus.EXITED


def _summed(
    omitted: Iterable[ProcessUsage], processes: RegionProcesses
) -> tuple[OmittedSlots, ...]:
    counts: defaultdict[SlotState, int] = defaultdict(int)
    sums: defaultdict[SlotState, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
    for process in omitted:
        state = processes.state(process.pid)
        counts[state] += 1
        for device in process.devices:
            sums[state][device.index] += device.memory_used_bytes
    return tuple(OmittedSlots(state, slots, dict(sums[state])) for state, slots in counts.items())

"""Why containers have no region: what the driver and their processes say of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from libhamiregion.layouts import LAYOUTS, mapped_length

from .containers import (
    ELSEWHERE,
    MIG_DEVICE,
    MPS_CLIENT,
    NO_FILE,
    NOT_LIMITED,
    NOT_USED,
    SHARED_GPU,
    SWITCHED_OFF,
    UNREADABLE,
    WHOLE_GPU,
    Container,
    KnownNames,
)
from .driver import NvmlState
from .pairing import driver_gap

if TYPE_CHECKING:
    from collections.abc import Collection

    from .containers import MissingRegion
    from .driver import NvmlSample
    from .model import NodeSnapshot, Observation
    from .names import ContainerId
    from .processes import Entry, Mapping, SlotStates

_MAPPED_LENGTHS = frozenset(mapped_length(layout.size_bytes) for layout in LAYOUTS)


def looks_like_a_region(mapping: Mapping) -> bool:
    """Whether a process maps a file as libvgpu maps a region, wherever the file is."""
    return mapping.writable and (
        mapping.path.endswith(".cache") or mapping.length_bytes in _MAPPED_LENGTHS
    )


@attrs.frozen
class _Users:
    """The processes of a container without a region that the driver lists."""

    id: ContainerId
    entries: list[Entry] = attrs.field(factory=list)
    uuids: set[str | None] = attrs.field(factory=set)


def explained(observation: Observation) -> NodeSnapshot:
    """Say why containers have no region, and add those that have no directory either.

    Only where the driver's lists prove it: they were read before the processes were.
    """
    snapshot, sample = observation.snapshot, observation.sample
    is_blind = driver_gap(observation.processes, sample) is not None
    if sample is None or observation.states is None or is_blind:
        return snapshot
    ids = _ids_of_regions(observation.states, snapshot)
    with_region, known = set(snapshot.containers), {row for row, _ in ids}
    used, is_complete = _users(observation, sample, {each.id for _, each in ids})
    found = {each: each for each in snapshot.missing}
    ambiguous: set[Container] = set()
    for users in used.values():
        candidates = _candidates(observation, users.id, known)
        if len(candidates) > 1 or not with_region.isdisjoint(candidates):
            ambiguous.update(candidates)
            continue
        is_shared = any(users.uuids & other.uuids for other in used.values() if other != users)
        missing = _reason(users, observation, is_shared=is_shared)
        if not candidates:
            names = KnownNames(observation.names.get(users.id.id))
            pod_uid = users.id.pod_uid
            made = Container(pod_uid, container_id=users.id, missing=missing, names=names)
            found[made] = made
        elif candidates[0].missing == NO_FILE:
            container = candidates[0]
            found[container] = attrs.evolve(container, container_id=users.id, missing=missing)
    for container, now in found.items():
        if now.missing == NO_FILE and container not in ambiguous and is_complete:
            found[container] = attrs.evolve(container, missing=NOT_USED)
    return attrs.evolve(snapshot, missing=tuple(found.values()))


def _ids_of_regions(
    states: SlotStates, snapshot: NodeSnapshot
) -> set[tuple[Container, ContainerId]]:
    """The containers whose regions are in use, with their ids, by their processes' cgroups."""
    return {
        (snapshot.containers[row], process.container)
        for row, proof in states.proved.items()
        for process in (*proof.alive.values(), *proof.unlisted)
        if process.container is not None
    }


def _users(
    observation: Observation, sample: NvmlSample, with_region: set[str]
) -> tuple[dict[str, _Users], bool]:
    """The containers that use GPUs without a region, by id, and whether these are all."""
    used: dict[str, _Users] = {}
    taken_ticks = (sample.taken_s + observation.suspended_s) * observation.ticks_per_s
    is_complete = all(each.state is NvmlState.OK is each.processes_state for each in sample.devices)
    for columns in sample.columns:
        for pid in columns.pids:
            entry = observation.processes.entries.get(pid)
            if entry is None or entry.start_time_ticks > taken_ticks:
                is_complete = is_complete and pid in observation.ended
                continue
            id_ = None if entry.process is None else entry.process.container
            if id_ is not None and id_.id not in with_region:
                users = used.setdefault(id_.id, _Users(id_))
                users.entries.append(entry)
                users.uuids.add(columns.device_uuid)
    return used, is_complete


def _candidates(
    observation: Observation, id_: ContainerId, known: Collection[Container]
) -> list[Container]:
    """The containers of a pod that an id may mean: those whose own id is not known."""
    containers = (*observation.containers, *observation.missing)
    found = [
        each
        for each in containers
        if each.pod_uid is not None
        and each.pod_uid == id_.pod_uid
        and each.directory is not None
        and each not in known
    ]
    name = observation.names.get(id_.id)
    if name is None or name.container is None:
        return found
    same = [each for each in found if name.container in (each.directory_name, each.used_by)]
    return same or [each for each in found if each in observation.containers]


def _reason(users: _Users, observation: Observation, *, is_shared: bool) -> MissingRegion:
    inside = [
        each
        for each in observation.processes.entries.values()
        if each.process is not None
        and each.process.container is not None
        and each.process.container.id == users.id.id
    ]
    if any(looks_like_a_region(each.mapping) for entry in inside for each in entry.uses):
        return ELSEWHERE
    shares = [each.share for each in users.entries if each.share is not None]
    assert observation.sample is not None  # noqa: S101 (the driver lists the processes)
    card_bytes = max(filter(None, map(observation.sample.memory_of, users.uuids)), default=None)
    if any(each.is_part_of(card_bytes) for each in shares):
        if any(each.is_switched_off for each in shares):
            return SWITCHED_OFF
        is_read = all(each.is_readable and each.unread is None for each in inside)
        return NOT_LIMITED if is_read else UNREADABLE
    if not any(each.is_known for each in shares):
        return UNREADABLE
    if any((uuid or "").startswith("MIG-") for uuid in users.uuids):
        return MIG_DEVICE
    if any(each.uses_mps for each in shares):
        return MPS_CLIENT
    return SHARED_GPU if is_shared else WHOLE_GPU

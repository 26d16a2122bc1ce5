"""Why containers have no region: what the driver and their processes say of them."""

from __future__ import annotations

from collections import defaultdict
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
)
from .driver import NvmlState
from .pairing import driver_gap
from .rows import ProcessDeviceRow

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from .containers import MissingRegion
    from .driver import NvmlSample
    from .model import NodeSnapshot, Observation
    from .names import ContainerId
    from .processes import Entry, Mapping, SlotStates
    from .rows import Join
    from .share import Allocation

_MAPPED_LENGTHS = frozenset(mapped_length(layout.size_bytes) for layout in LAYOUTS)


def looks_like_a_region(mapping: Mapping) -> bool:
    """Whether a process maps a file as libvgpu maps a region, wherever the file is."""
    return mapping.writable and (
        mapping.path.endswith(".cache") or mapping.length_bytes in _MAPPED_LENGTHS
    )


@attrs.frozen
class _Users:
    """The processes of a container without a region: those that the driver lists, and all."""

    id: ContainerId
    entries: list[Entry] = attrs.field(factory=list)
    inside: list[Entry] = attrs.field(factory=list)
    uuids: set[str | None] = attrs.field(factory=set)


def explained(observation: Observation) -> NodeSnapshot:
    """Say why containers have no region, and add those that have no directory either.

    By kubelet's checkpoint, and by the driver's lists: these were read before the processes were.
    """
    snapshot, sample, states = observation.snapshot, observation.sample, observation.states
    if states is None:
        return snapshot
    given: defaultdict[str, list[Allocation]] = defaultdict(list)
    for each in observation.allocations or ():
        given[each.key].append(each)
    ids = _ids_of_regions(states, snapshot)
    known = {container for container, _ in ids}
    used: dict[str, _Users] = {}
    is_complete = False
    if sample is not None and driver_gap(observation.processes, sample) is None:
        used, is_complete = _users(observation, sample, {each.id for _, each in ids})
    found = {each: each for each in snapshot.missing}
    ambiguous: set[Container] = set()
    for users in used.values():
        candidates = _candidates(observation, users.id, known)
        if len(candidates) > 1 or not set(snapshot.containers).isdisjoint(candidates):
            ambiguous.update(candidates)
            continue
        container = candidates[0] if candidates else _made(observation, users.id)
        of_it = given[allocation_key(container)]
        is_shared = any(users.uuids & other.uuids for other in used.values() if other != users)
        missing = _reason(users, observation, container, of_it, is_shared=is_shared)
        if container.missing == NO_FILE:
            name = observation.names.get(users.id.id, container.pod_name)
            found[container] = attrs.evolve(
                container, container_id=users.id, missing=missing, pod_name=name
            )
    named = {allocation_key(each) for each in (*snapshot.containers, *found.values())}
    pods = {each.pod_uid for each in observation.processes}
    for key, of_it in given.items():
        # Entries of ended pods stay in the checkpoint for a while.
        if key not in named and of_it[0].pod_uid in pods:
            uid, own, name = of_it[0].pod_uid, of_it[0].container, observation.names.get(key)
            made = Container(uid, own, missing=NO_FILE, pod_name=name)
            found[made] = made
    for container, now in found.items():
        if now.missing == NO_FILE and container not in ambiguous:
            missing = _given_without_share(given[allocation_key(now)], now) or NOT_USED
            if is_complete or missing != NOT_USED:
                found[container] = attrs.evolve(now, missing=missing)
    return attrs.evolve(snapshot, missing=tuple(found.values()))


def figures_without_region(join: Join) -> dict[Container, list[ProcessDeviceRow]]:
    """Sum the driver's figures of containers without a region, by GPU.

    0 on GPUs that were given to them and lie idle; none if the driver's pids mean nothing.
    """
    observation, sample = join.observation, join.observation.sample
    if sample is None or driver_gap(observation.processes, sample) is not None:
        return {}
    missing = set(observation.missing)
    # Memory and SM by container and uuid.
    found: defaultdict[tuple[Container, str], list[tuple[int | None, int | None]]]
    found = defaultdict(list)
    for row in join.uncounted:
        if row.container in missing:
            for device in row.devices:
                figures = device.memory_driver_bytes, device.driver_sm_percent
                found[row.container, device.uuid or ""].append(figures)
    by_key = {allocation_key(each): each for each in missing}
    for given in observation.allocations or ():
        for uuid in given.uuids if given.key in by_key else ():
            absent = sample.unlisted(uuid)
            if absent is not None:
                idle = absent.memory_used_bytes, absent.sm_util_percent
                found[by_key[given.key], uuid].append(idle)
    sums: defaultdict[Container, list[ProcessDeviceRow]] = defaultdict(list)
    indexes = sample.gpu_indexes
    for (container, uuid), pairs in sorted(
        found.items(), key=lambda each: (indexes.get(each[0][1], 0), each[0][1])
    ):
        busy = _sum(each for _, each in pairs)
        sums[container].append(
            ProcessDeviceRow(
                None,
                uuid or None,
                memory_driver_bytes=_sum(each for each, _ in pairs),
                # The driver counts the kernels of all clients as the MPS server's.
                driver_sm_percent=None if container.missing == MPS_CLIENT else busy,
                driver_index=indexes.get(uuid),
            )
        )
    return sums


def _sum(figures: Iterable[int | None]) -> int | None:
    known = list(figures)
    return None if None in known else sum(filter(None, known))


def _made(observation: Observation, id_: ContainerId) -> Container:
    """A container that has no directory."""
    name = observation.names.get(id_.id)
    own = None if name is None else name.container
    return Container(id_.pod_uid, own, container_id=id_, missing=NO_FILE, pod_name=name)


def allocation_key(container: Container) -> str:
    """The key of a container in kubelet's checkpoint."""
    return f"{container.pod_uid}/{container.used_by or container.directory_name}"


def _given_without_share(
    allocations: Sequence[Allocation], container: Container
) -> MissingRegion | None:
    """What a container was given, if no limits; None if there are, or nothing is known."""
    if not allocations or any(each.share.is_limited for each in allocations):
        return None
    if any(uuid.startswith("MIG-") for each in allocations for uuid in each.uuids):
        return MIG_DEVICE
    if any(each.share.uses_mps for each in allocations):
        return MPS_CLIENT
    # HAMi's devices have replicas too, and only HAMi makes directories.
    is_replica = container.directory is None and any(each.is_replica for each in allocations)
    return SHARED_GPU if is_replica else WHOLE_GPU


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
    for entry in observation.processes.entries.values() if used else ():
        id_ = None if entry.process is None else entry.process.container
        if id_ is not None and id_.id in used:
            used[id_.id].inside.append(entry)
    return used, is_complete


def _candidates(
    observation: Observation, id_: ContainerId, known: Collection[Container]
) -> list[Container]:
    """The containers of a pod that an id may mean: those whose own id is not known."""
    found = [
        each
        for each in observation.all_containers
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


def _reason(
    users: _Users,
    observation: Observation,
    container: Container,
    given: Sequence[Allocation],
    *,
    is_shared: bool,
) -> MissingRegion:
    """Why a container that uses GPUs has no region."""
    if any(looks_like_a_region(each.mapping) for entry in users.inside for each in entry.uses):
        return ELSEWHERE
    own = [each.share for each in users.entries if each.share is not None]
    shares = [each.share for each in given] or own
    assert observation.sample is not None  # noqa: S101 (the driver lists the processes)
    card_bytes = max(filter(None, map(observation.sample.memory_of, users.uuids)), default=None)
    if any(each.is_part_of(card_bytes) for each in shares):
        if any(each.is_switched_off for each in own):
            return SWITCHED_OFF
        is_read = all(each.is_readable and each.unread is None for each in users.inside)
        return NOT_LIMITED if is_read else UNREADABLE
    if not any(each.is_known for each in shares):
        return UNREADABLE
    if any((uuid or "").startswith("MIG-") for uuid in users.uuids):
        return MIG_DEVICE
    if any(each.uses_mps for each in (*shares, *own)):
        return MPS_CLIENT
    return _given_without_share(given, container) or (SHARED_GPU if is_shared else WHOLE_GPU)

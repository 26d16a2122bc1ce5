"""Whose a process is that uses a GPU and has no slot."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import attrs

from .containers import MissingReason
from .node_process import NodeProcess, ProcessDeviceRow

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from typing_extensions import Self

    from .cgroups import ContainerId
    from .containers import Container
    from .driver_lists import DriverLists
    from .matching import HostProcess, RegionProcesses
    from .node_process import ProcessState
    from .observation import Observation
    from .processes import ProcessTable


@attrs.frozen(eq=False)
class ContainerFacts:
    """One container, and what is known of it when its other processes are to be found.

    Attributes:
        container: The container.
        container_id: Its id, as the cgroups of its processes show; None where several share it.
        sharers: Of a claim, the containers that use its region.
        unlisted: The processes that use its region without a slot.
        has_region: Whether its region was read.
        unreadable: Whether it has one that could not be read.
        in_doubt: Pids in slots of which it is not known whose they are.
        indexes: Uuid of a device to its index in the region.
    """

    container: Container
    container_id: ContainerId | None
    has_region: bool
    unreadable: bool
    in_doubt: frozenset[int]
    indexes: Mapping[str, int]
    sharers: tuple[ContainerId, ...] = ()
    unlisted: tuple[HostProcess, ...] = ()

    @classmethod
    def of(
        cls,
        container: Container,
        processes: RegionProcesses | None,
        uuids: Iterable[tuple[int, str | None]] | None,
    ) -> Self:
        """The facts of a container.

        Args:
            container: The container.
            processes: Those of its region, where they are known.
            uuids: The devices of its region, index and uuid; None where it could not be read.
        """
        seen = None
        sharers: tuple[ContainerId, ...] = ()
        doubtful: frozenset[int] = frozenset()
        if processes is not None and container.claim_uid is not None:
            users = (*processes.alive.values(), *processes.unlisted)
            sharers = tuple({each.container for each in users if each.container is not None})
            seen = sharers[0] if len(sharers) == 1 else None
        elif processes is not None:
            seen = _seen_id(processes.alive.values()) or _seen_id(processes.unlisted)
        if processes is not None:
            doubtful = frozenset(p for p in processes.pids if processes.state(p) == "unknown")
        missing = container.missing
        absent = missing is not None and missing.reason is MissingReason.NO_FILE
        return cls(
            container,
            container.container_id or seen,
            uuids is not None,
            uuids is None and not absent,
            doubtful,
            # Of two devices with one uuid the first counts.
            {uuid: index for index, uuid in reversed([*(uuids or ())]) if uuid is not None},
            sharers,
            () if processes is None else processes.unlisted,
        )


def _seen_id(processes: Iterable[HostProcess]) -> ContainerId | None:
    """The container id that most of these processes have in their cgroup."""
    seen = Counter(process.container for process in processes if process.container is not None)
    return seen.most_common(1)[0][0] if seen else None


def container_facts(
    observation: Observation, proved: Mapping[Container, RegionProcesses] | None = None
) -> list[ContainerFacts]:
    """What an observation knows of each container, also of those without a region.

    Args:
        observation: Taken with the slots.
        proved: What stands in place of the observation's proofs.
    """
    regions, devices = observation.table.regions, observation.table.devices
    states, proved = observation.proved(), proved or {}
    found = []
    for row, container in enumerate(observation.containers):
        uuids = None
        if regions.code[row] == 0:
            first = regions.first_device[row]
            rows = range(first, first + regions.device_rows[row])
            uuids = [(devices.index[each], devices.uuid(each)) for each in rows]
        known = proved.get(container) or states.proved.get(row)
        found.append(ContainerFacts.of(container, known, uuids))
    return [*found, *(ContainerFacts.of(each, None, None) for each in observation.missing)]


class ProcessLocator:
    """Finds the container of a process that uses a GPU and has no slot.

    Args:
        containers: The node's containers.
        processes: Its processes.
        driver: What the driver lists.
    """

    def __init__(
        self, containers: Sequence[ContainerFacts], processes: ProcessTable, driver: DriverLists
    ) -> None:
        self._containers = containers
        self._processes = processes
        self._driver = driver
        self._by_id: dict[str, ContainerFacts] = {}
        self._by_pod: defaultdict[str, list[ContainerFacts]] = defaultdict(list)
        for facts in containers:
            for each in facts.sharers or (facts.container_id,):
                # Regions outside the roots come last: a container can map any number of those.
                if each is not None:
                    self._by_id.setdefault(each.id, facts)
            if facts.container.pod_uid is not None and facts.container.directory is not None:
                self._by_pod[facts.container.pod_uid].append(facts)

    def rows(self, pids: Iterable[int]) -> Iterator[NodeProcess]:
        """The rows of processes that the driver lists and that have no slot.

        Args:
            pids: Theirs. One that is another process's by now has no row.
        """
        # Of several containers whose region it maps, the first.
        mapped = {
            each.pid: facts for facts in reversed(self._containers) for each in facts.unlisted
        }
        for pid in pids:
            process = self._processes.look_up(pid)
            if process is not None and pid in mapped and not self._driver.is_newer(process):
                yield self.uncounted(mapped[pid], process, "escaped")
            else:
                row = self._row(pid, process)
                if row is not None:
                    yield row

    def _row(self, pid: int, process: HostProcess | None) -> NodeProcess | None:
        """The row of a process that the driver lists; None if the pid is another's by now."""
        if process is None:
            devices = tuple(
                ProcessDeviceRow.of(None, entry.device_uuid, None, None, entry)
                for entry in self._driver.of_pid(pid)
            )
            return NodeProcess(None, None, None, pid, "unknown", None, None, devices)
        if self._driver.is_newer(process):
            return None
        facts, state = self._judge(process)
        return self.uncounted(facts, process, state)

    def uncounted(
        self, facts: ContainerFacts | None, process: HostProcess, state: ProcessState
    ) -> NodeProcess:
        """The row of a process without a slot."""
        indexes = {} if facts is None else facts.indexes
        return NodeProcess(
            None if facts is None else facts.container,
            process.container or (None if facts is None else facts.container_id),
            None,
            process.pid,
            state,
            process,
            None,
            tuple(
                ProcessDeviceRow.of(
                    indexes.get(entry.device_uuid or ""), entry.device_uuid, None, None, entry
                )
                for entry in self._driver.entries(process)
            ),
        )

    def is_extra_region(self, facts: ContainerFacts) -> bool:
        """Whether a region outside the roots is of a container that has one inside.

        A container can make any number of these; being counted there limits nothing.
        """
        container_id = facts.container_id
        if facts.container.directory is not None or container_id is None:
            return False
        known = self._by_id[container_id.id]
        inside = [known] if known.container.directory is not None else self._unnamed(container_id)
        return any(each.has_region for each in inside)

    def _judge(self, process: HostProcess) -> tuple[ContainerFacts | None, ProcessState]:
        candidates = self._candidates(process)
        inside = process.ns_pids[-1]
        if any(inside in facts.in_doubt or facts.unreadable for facts in candidates):
            state: ProcessState = "unknown"
        elif not any(facts.has_region for facts in candidates):
            state = "unmanaged"
        elif all(facts.has_region for facts in candidates):
            state = "escaped"
        else:
            state = "unknown"
        return candidates[0] if len(candidates) == 1 else None, state

    def _candidates(self, process: HostProcess) -> list[ContainerFacts]:
        container_id = process.container
        if container_id is None:
            # It may be one of several that a slot can mean.
            inside = process.ns_pids[-1]
            doubtful = [facts for facts in self._containers if inside in facts.in_doubt]
            return [facts for facts in doubtful if self._maps(process, facts)]
        facts = self._by_id.get(container_id.id)
        return [facts] if facts is not None else self._unnamed(container_id)

    def _unnamed(self, container_id: ContainerId) -> list[ContainerFacts]:
        """The containers of a pod that a container id may mean."""
        if container_id.pod_uid is None:
            return []
        # One whose id is known is another container of the pod.
        return [each for each in self._by_pod[container_id.pod_uid] if each.container_id is None]

    def _maps(self, process: HostProcess, facts: ContainerFacts) -> bool:
        region = facts.container.region
        if region is None or region.closed:
            return False
        return process in self._processes.mappers(*self._processes.identity(region))

"""The state of a node at one moment, as a value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from libhamiregion.errors import RegionError
    from libhamiregion.models import RegionSnapshot
    from libhamiregion.tables import RegionTable

    from .containers import Container
    from .driver import NvmlDevice, NvmlSample
    from .evidence import NodeEvidence
    from .names import ContainerId, PodName
    from .processes import ProcessView, RegionProcesses, SlotStates
    from .share import Allocation

#: What a gap is about.
GapKind: TypeAlias = Literal["driver", "root", "slots", "processes"]


@attrs.frozen
class Gap:
    """Something that could not be looked at. What it hides is unknown: neither dead nor absent.

    Attributes:
        kind: ``"driver"``: the driver does not answer; ``"root"``: a directory of containers could
            not be listed; ``"slots"``: a region has too many slots in use to read them with all
            others; ``"processes"``: processes whose mappings were not read, or all of /proc.
        reason: Why, as one sentence.
        container: The container that it is about; None if about none of the node's regions.
        container_id: What the cgroup of its processes says; None if that is not known.
        count: How many slots or processes were not looked at; 1 for a root and for the driver.
    """

    kind: GapKind
    reason: str
    container: Container | None = None
    container_id: ContainerId | None = None
    count: int = 1


@attrs.frozen
class NodeSnapshot:
    """All regions of a node, read in one native call.

    Attributes:
        containers: The containers with a region, one per row of ``table.regions``.
        missing: The containers without.
        table: The figures, as `RegionSet.read` gives them.
        read_s: When they had been read, on the monotonic clock.
    """

    containers: tuple[Container, ...]
    missing: tuple[Container, ...]
    table: RegionTable
    read_s: float

    @property
    def all_containers(self) -> tuple[Container, ...]:
        """All containers, those without a region last."""
        return (*self.containers, *self.missing)

    def named_table(self) -> RegionTable:
        """Return the table with the columns namespace, pod and container too, in its frames.

        ``snapshot.named_table().devices.to_pandas()`` names the container of each row. A name that
        is not known is null; the pod's UID is part of the path.
        """
        return self.table.with_identity(
            namespace=[each.namespace for each in self.containers],
            pod=[each.pod for each in self.containers],
            container=[each.name for each in self.containers],
        )

    def regions(self) -> Iterator[tuple[Container, RegionSnapshot | RegionError | OSError]]:
        """Yield each container that has a region, with its snapshot or why it could not be read.

        Nothing is read again, so another thread may refresh the node meanwhile.
        """
        for row, container in enumerate(self.containers):
            yield container, self.table.error(row) or self.table.snapshot(row)


@attrs.frozen
class ContainerDetails:
    """One container of an observation, with its region and the processes behind it.

    Attributes:
        container: The container.
        snapshot: Its region; None if there is none, or it could not be read. Without processes if
            the observation has left them out (see `Observation.snapshot`).
        processes: The processes of the slots, in the order of ``snapshot.processes``; None without
            a snapshot.
        error: Why the region could not be read; None if it was, or if there is none.
    """

    container: Container
    snapshot: RegionSnapshot | None = None
    processes: RegionProcesses | None = None
    error: RegionError | OSError | None = None


@attrs.frozen
class LeftDirectory:
    """The directory of a container whose pod is gone.

    Kubelet does not know the pod, though it knows others, and no process uses the region.

    Attributes:
        container: The container.
        changed_at_s: When it was last changed, Unix seconds.
    """

    container: Container
    changed_at_s: float


@attrs.frozen(eq=False)
class Observation:
    """The state of a node at one moment. A value: later observations do not change it.

    Containers carry their names: ``container.namespace``, ``.pod`` and ``.name``.

    Attributes:
        snapshot: The containers and the columns of all their regions. Where these would take more
            than 8 MiB, regions with more than 1,024 pairs of process and device have no rows of
            processes, and a gap says so.
        states: State and process of every slot of ``snapshot``, and what else uses the regions;
            None where that was not asked for, or /proc could not be listed.
        sample: What the driver said, before the regions were read; None where it was not asked or
            does not answer.
        gaps: What could not be looked at, of which container, and why.
        processes: The processes of the node.
        driver_error: What asking the driver has raised.
        processes_error: Why /proc could not be listed.
        began_s: When taking it began, on the clock that is never set (``time.monotonic()``).
        processes_read_s: When the processes were last read, on that clock.
        regions_read_at_ns: When the regions were read, Unix nanoseconds.
        ended: Pids on the driver's lists, without a slot, of processes that have ended since /proc
            was read.
        gone: Pids on the driver's lists of no process, also when it was asked once more: their
            memory stays taken.
        stale: Rows of ``table.usages`` whose utilisation has not changed for several observations
            while the driver says 0: up to HAMi 2.9 libvgpu clears and writes that of device 0 only.
        not_limited_s: How long containers have used GPUs in spite of their share, by container id;
            None if the reader has no history, as a command's.
        suspended_s: How long the machine has been suspended: start times of processes count that.
        ticks_per_s: Clock ticks a second, of start times of processes.
        driver_asked: Whether the driver was to be asked.
        names: Names by container id, of processes that the driver lists.
        node_name: ``$NODE_NAME`` where it was taken, else the host's name.
        roots: Directories of containers, to whether they could be listed.
        root_errors: Root to reason, of directories of containers that could not be listed.
        root_problem: Why no directory of containers could be listed; None if one could.
        left: Directories of pods that are gone; found out every 20 s.
        evidence: What the columns do not have about suspects; None without the slots.
        allocations: What kubelet has noted of GPUs given to containers; None if not available.
    """

    snapshot: NodeSnapshot
    states: SlotStates | None
    sample: NvmlSample | None
    gaps: tuple[Gap, ...]
    processes: ProcessView
    driver_error: Exception | None
    processes_error: OSError | None
    began_s: float
    processes_read_s: float
    regions_read_at_ns: int
    ended: frozenset[int] = frozenset()
    gone: frozenset[int] = frozenset()
    stale: frozenset[int] = frozenset()
    not_limited_s: Mapping[str, float] | None = None
    suspended_s: float = 0.0
    ticks_per_s: int = 100
    driver_asked: bool = False
    names: Mapping[str, PodName] = attrs.field(factory=dict)
    node_name: str = ""
    roots: Mapping[str, bool] = attrs.field(factory=dict)
    root_errors: Mapping[str, str] = attrs.field(factory=dict)
    root_problem: str | None = None
    left: tuple[LeftDirectory, ...] = ()
    evidence: NodeEvidence | None = None
    allocations: tuple[Allocation, ...] | None = None

    @property
    def regions_read_at_s(self) -> float:
        """When the regions were read, Unix seconds."""
        return self.regions_read_at_ns / 1e9

    @property
    def containers(self) -> tuple[Container, ...]:
        """The containers with a region, one per row of ``table.regions``."""
        return self.snapshot.containers

    @property
    def gpus(self) -> tuple[NvmlDevice, ...]:
        """The GPUs in the driver's sample; none without one."""
        return () if self.sample is None else self.sample.devices

    @property
    def gpu_indexes(self) -> Mapping[str | None, int]:
        """Uuid of a GPU or MIG device to the NVML index of the GPU; empty without a sample."""
        return {} if self.sample is None else self.sample.gpu_indexes

    @property
    def missing(self) -> tuple[Container, ...]:
        """The containers without a region that can be read."""
        return self.snapshot.missing

    @property
    def all_containers(self) -> tuple[Container, ...]:
        """All containers, those without a region last."""
        return self.snapshot.all_containers

    @property
    def table(self) -> RegionTable:
        """The columns of all regions."""
        return self.snapshot.table

    def proved(self) -> SlotStates:
        """Return `states`.

        Raises:
            OSError: /proc could not be listed.
            ValueError: The observation was taken without the slots.
        """
        if self.processes_error is not None:
            raise self.processes_error
        if self.states is None:
            raise ValueError("this observation was taken without looking at slots")
        return self.states

    def details(self) -> Iterator[ContainerDetails]:
        """Yield the containers one by one, each with its snapshot and its processes.

        Raises:
            OSError: /proc could not be listed.
        """
        proved = self.proved().proved
        for row, container in enumerate(self.containers):
            error, processes = self.table.error(row), proved.get(row)
            if error is not None or processes is None:
                # One without a proof was closed meanwhile: the next observation opens it again.
                yield ContainerDetails(container, error=error)
            else:
                snapshot = self.table.snapshot(row)
                yield ContainerDetails(container, snapshot, processes)
        yield from map(ContainerDetails, self.missing)

"""One process that has to do with a GPU: what the region counts, and what the driver says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import attrs

from .containers import Container

if TYPE_CHECKING:
    from typing_extensions import Self

    from .cgroups import ContainerId
    from .matching import HostProcess
    from .nvml.models import NvmlProcess

ProcessState: TypeAlias = Literal["alive", "dead", "unknown", "unlisted", "escaped", "unmanaged"]


@attrs.frozen
class ProcessDeviceRow:
    """What one process uses of one device: as the region counts it, and as the driver does.

    Attributes:
        index: Index of the device in the container's region; None if it is none of the region's.
        uuid: ``GPU-…`` or ``MIG-…``; None if neither the region nor the driver tells.
        memory_used_bytes: What the region counts against the limit; None without a slot.
        memory_driver_bytes: What the driver says.
        sm_util_percent: As the region has it; None without a slot, and where the layout has none.
        driver_sm_percent: The driver's, of the last second.
        driver_memory_percent: Share of the last second in which it read or wrote device memory.
        driver_enc_percent: Of the video encoder.
        driver_dec_percent: Of the video decoder.
        driver_index: NVML index of the GPU that it is, or is part of; None if the driver does not
            tell.
    """

    index: int | None
    uuid: str | None
    memory_used_bytes: int | None = None
    memory_driver_bytes: int | None = None
    sm_util_percent: int | None = None
    driver_sm_percent: int | None = None
    driver_memory_percent: int | None = None
    driver_enc_percent: int | None = None
    driver_dec_percent: int | None = None
    driver_index: int | None = None

    @classmethod
    def of(
        cls,
        index: int | None,
        uuid: str | None,
        used: int | None,
        sm: int | None,
        said: NvmlProcess,
    ) -> Self:
        """A device with what the driver says of the process there.

        Args:
            index: As `index`.
            uuid: As `uuid`.
            used: As `memory_used_bytes`.
            sm: As `sm_util_percent`.
            said: What the driver says.
        """
        return cls(
            index,
            uuid,
            used,
            said.memory_used_bytes,
            sm,
            said.sm_util_percent,
            said.memory_util_percent,
            said.enc_util_percent,
            said.dec_util_percent,
            said.device_index,
        )


@attrs.frozen
class NodeProcess:
    """One process of the node that has a slot, maps a region, or uses a GPU.

    Attributes:
        container: The container that it belongs to, as the node knows it; None if to none of them,
            or if it is not known to which.
        container_id: What its cgroup, or those of the container's other processes, say.
        pid: The pid in its slot, of the container's namespace; None without a slot.
        host_pid: Its pid in /proc, proved; for a process that only the driver knows, the driver's.
            None if it is dead or unknown.
        state: ``"alive"``, ``"dead"`` and ``"unknown"`` as `SlotMatch` has them, of a process with
            a slot. Without one: ``"unlisted"`` maps the region as its users do, and does not use a
            GPU; ``"escaped"`` uses a GPU in a container that has a region, uncounted and
            unlimited, or with a slot in another region only, which the container has made itself
            outside the roots; ``"unmanaged"`` uses a GPU outside all containers that have one;
            ``"unknown"`` uses a GPU, and nothing proves which of these it is.
        process: The process in /proc; None if it is dead, unknown or not shown there.
        status: Of the slot; a `ProcessStatus`, or whatever number stands there.
        devices: One entry per device of the region, in its order, then those that only the driver
            tells of.
        slots: How many slots it stands for: 1, or as many as `ContainerView` has summed, in a row
            without a pid.
    """

    container: Container | None
    container_id: ContainerId | None
    pid: int | None
    host_pid: int | None
    state: ProcessState
    process: HostProcess | None
    status: int | None
    devices: tuple[ProcessDeviceRow, ...]
    slots: int = 1

    @property
    def owner(self) -> Container:
        """`container`; without it one made of `container_id`, for `Node.pod_name` and `Selector`.

        Of several that share a claim's region, too, the one that its cgroup names. Outside all
        containers it has neither name nor pod.
        """
        own = None if self.process is None else self.process.container
        shares = self.container is not None and self.container.claim_uid is not None
        if self.container is not None and not (shares and own is not None):
            return self.container
        known = own if shares else self.container_id
        return Container(None if known is None else known.pod_uid, container_id=known)

"""Containers, and what their directories hold: a region, or a reason why there is none."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import attrs

from libhamiregion.errors import (
    AmbiguousLayout,
    NotARegion,
    RegionCorrupt,
    RegionError,
    RegionNotFound,
    RegionNotReady,
    RegionStale,
)

if TYPE_CHECKING:
    from libhamiregion.region import Region

    from .names import ClaimName, ContainerId, PodName
    from .processes import FileIdentity


#: The region's name where the container makes its own directory: on nodes of the KAI scheduler.
MADE_BY_CONTAINER = "/usage.cache"


class MissingReason(enum.Enum):
    """Why a container has no region that can be read."""

    #: The directory holds no ``.cache`` file; the message says what is known of the cause.
    NO_FILE = "no_file"
    #: It uses a GPU, and no share was given: HAMi or another plugin gave it whole GPUs.
    WHOLE_GPU = "whole_gpu"
    #: The same with a GPU that others use too, by time slicing or MPS.
    SHARED_GPU = "shared_gpu"
    #: It uses a MIG device.
    MIG_DEVICE = "mig_device"
    #: It was given a share, and uses a GPU without libvgpu's limits.
    NOT_LIMITED = "not_limited"
    #: The same, because CUDA_DISABLE_CONTROL is set.
    SWITCHED_OFF = "switched_off"
    #: The file is being created; it is empty, or without its magic.
    NOT_READY = "not_ready"
    #: The file has its magic, but is too short: it was cut.
    TRUNCATED = "truncated"
    #: A link, FIFO, socket, directory or foreign file is in its place.
    NOT_A_REGION = "not_a_region"
    #: A region of no layout that this version knows, or of several; or a damaged one.
    UNKNOWN_LAYOUT = "unknown_layout"
    #: The system refuses to open the file or its directory.
    NO_PERMISSION = "no_permission"
    #: The file was removed or replaced, while it was opened or while processes map it.
    STALE = "stale"
    #: Any other failure of the system, such as no descriptors left.
    FAILED = "failed"


@attrs.frozen
class MissingRegion:
    """Why a container has no region.

    Attributes:
        reason: The kind of reason.
        message: The reason as a sentence; it can hold the file's name, escaped.
    """

    reason: MissingReason
    message: str


@attrs.frozen(cache_hash=True)
class Container:
    """A container of the node. Compares by its place and its region's file.

    Or the containers, of one pod or several, that hold a resource claim: they share its region.

    Attributes:
        pod_uid: UID of its pod; None if neither its directory nor its cgroup names it, and for
            a claim.
        claim_uid: UID of the claim whose region it is; None for a container's own.
        directory: Its directory on the host; None for a region outside the roots.
        region_path: The region's file; None if there is none. For a region outside the roots a
            link of ``/proc/<pid>/map_files``.
        path_in_namespace: For a region outside the roots the file as its processes see it, raw and
            hostile: to be shown, never to be opened. Else None.
        region: The region, read-only, kept open by the `Node`, which also closes it; None if
            there is none that can be read.
        missing: Why there is none; None if there is.
        other_files: Further ``.cache`` files of the directory, newest first, raw names.
        other_inodes: Their inode numbers, in that order.
        container_id: What the cgroup of its processes says; known for regions outside the roots
            only.
        pids: For a region outside the roots, the processes that mapped it when it was found, pids
            of the /proc that was read; else empty.
        directory_name: The container's name by its directory, raw.
        identity: Device and inode of the region's file as maps prints them; None without a region.
        used_by: The name of the container whose processes use the region, where that has been
            proved to be another one of the pod than the directory says; else None.
        pod_name: The names of its pod; None if no file of the node has them. A claim's name is in
            the container's place, and ``pod`` is the only pod that holds the claim.
        claim: The claim's names and its pods; None if they are not known, or there is no claim.
    """

    pod_uid: str | None = None
    directory_name: str | None = None
    directory: str | None = None
    region_path: str | None = None
    path_in_namespace: str | None = None
    region: Region | None = attrs.field(default=None, eq=False, repr=False)
    missing: MissingRegion | None = None
    other_files: tuple[str, ...] = ()
    other_inodes: tuple[int, ...] = ()
    container_id: ContainerId | None = None
    pids: tuple[int, ...] = ()
    claim_uid: str | None = None
    used_by: str | None = None
    identity: FileIdentity | None = None
    pod_name: PodName | None = attrs.field(default=None, eq=False)
    claim: ClaimName | None = attrs.field(default=None, eq=False)

    @property
    def namespace(self) -> str | None:
        """The namespace of its pod; None if that is not known."""
        return None if self.pod_name is None else self.pod_name.namespace

    @property
    def pod(self) -> str | None:
        """The name of its pod; None if that is not known."""
        return None if self.pod_name is None else self.pod_name.pod

    @property
    def name(self) -> str | None:
        """The container's name by `used_by`, raw text of its directory, or what resolvers say.

        Of a claim that they do not know, its UID.
        """
        if self.directory_name is not None:
            return self.used_by or self.directory_name
        return self.claim_uid if self.pod_name is None else self.pod_name.container


_REASONS = {
    PermissionError: MissingReason.NO_PERMISSION,
    RegionNotReady: MissingReason.NOT_READY,
    NotARegion: MissingReason.NOT_A_REGION,
    AmbiguousLayout: MissingReason.UNKNOWN_LAYOUT,
    RegionCorrupt: MissingReason.UNKNOWN_LAYOUT,
    RegionStale: MissingReason.STALE,
    RegionNotFound: MissingReason.STALE,
}


def missing_for(error: RegionError | OSError) -> MissingRegion:
    """The reason of an error."""
    if isinstance(error, RegionCorrupt) and error.reason == MissingReason.TRUNCATED.value:
        return MissingRegion(MissingReason.TRUNCATED, str(error))
    found = (reason for kind, reason in _REASONS.items() if isinstance(error, kind))
    return MissingRegion(next(found, MissingReason.FAILED), str(error))


NO_FILE = MissingRegion(
    MissingReason.NO_FILE,
    "no .cache file; it is not known whether the container uses a GPU",
)
REMOVED = MissingRegion(
    MissingReason.STALE,
    "no .cache file, but processes of the pod map one that was removed: restart the container",
)
NOT_USED = MissingRegion(MissingReason.NO_FILE, "CUDA not used yet: no process of it uses a GPU")
WHOLE_GPU = MissingRegion(
    MissingReason.WHOLE_GPU, "whole GPU: no share was given; the figures are the driver's"
)
SHARED_GPU = MissingRegion(
    MissingReason.SHARED_GPU, "GPU shared by time slicing: the figures are the driver's"
)
MPS_CLIENT = MissingRegion(
    MissingReason.SHARED_GPU, "GPU shared by MPS: memory is the driver's, SM all clients' together"
)
MIG_DEVICE = MissingRegion(MissingReason.MIG_DEVICE, "MIG device: the figures are the driver's")
NOT_LIMITED = MissingRegion(
    MissingReason.NOT_LIMITED, "a share was given, but libvgpu does not limit this container"
)
SWITCHED_OFF = MissingRegion(
    MissingReason.SWITCHED_OFF, "a share was given, and CUDA_DISABLE_CONTROL switches libvgpu off"
)
ELSEWHERE = MissingRegion(
    MissingReason.NO_FILE, "its region is outside these directories: --outside looks for it"
)
UNREADABLE = MissingRegion(
    MissingReason.NO_FILE,
    "it uses a GPU; whether libvgpu limits it is not known: its processes cannot be read",
)
#: Reasons of containers that have no file to be read.
WITHOUT_FILE = {
    MissingReason.NO_FILE,
    MissingReason.WHOLE_GPU,
    MissingReason.SHARED_GPU,
    MissingReason.MIG_DEVICE,
    MissingReason.NOT_LIMITED,
    MissingReason.SWITCHED_OFF,
}

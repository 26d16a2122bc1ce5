"""Which containers and devices are meant: by name, with shell patterns."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Protocol, SupportsIndex

import attrs

from libhamiregion.run.run_directory import RUN_POD
from libhamiregion.text import printable
from libhamiregion.units import integer

from .names import is_pod_uid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .containers import Container
    from .names import PodName


class PodNamesUnknown(LookupError):
    """A pattern asks for pods' names, and those of some containers are not known.

    Attributes:
        containers: Those that the pattern may mean, or not.
    """

    def __init__(self, containers: Sequence[Container]) -> None:
        self.containers = tuple(containers)
        directories = [printable(str(each.directory or each.name)) for each in self.containers]
        more = f" and {len(directories) - 1} more" if len(directories) > 1 else ""
        super().__init__(
            f"the name of the pod of {directories[0]}{more} is not known: give kubelet's"
            " /var/log/pods (Node(names=...)), or leave such containers out (allow_unnamed=True)"
        )


class HasDevice(Protocol):
    """Anything that is about one device: of a region, or of a process."""

    @property
    def index(self) -> int | None:
        """The device's index in the region; None where it is in none."""

    @property
    def uuid(self) -> str | None:
        """``GPU-…`` or ``MIG-…``; None if unknown."""


def _device_pattern(device: SupportsIndex | str | None) -> str | None:
    return device if device is None or isinstance(device, str) else str(integer("a device", device))


@attrs.frozen
class Selector:
    """Chooses containers and devices. Every pattern that is given must match.

    Patterns are those of the shell (``*``, ``?``, ``[abc]``), of the whole name, with case.

    Attributes:
        pod_uid: Pattern of the pod's UID; empty for what belongs to no pod, as a claim.
        namespace: Pattern of the pod's namespace; a pod that no resolver can name does not match.
        pod: Pattern of the pod's name, or of its UID.
        container: Pattern of the container's name, by its directory or by who uses its region, or
            of its id; of a claim's name, or its UID, where several containers share its region.
        device: An index, also as a number, or a pattern of the uuid.

    Raises:
        TypeError: A device that is neither text nor an integer.
    """

    pod_uid: str | None = None
    namespace: str | None = None
    pod: str | None = None
    container: str | None = None
    device: str | None = attrs.field(default=None, converter=_device_pattern)

    def matches(self, container: Container) -> bool:
        """Whether a container is meant."""
        return self.matches_container(container, container.pod_name)

    def matches_container(self, container: Container, name: PodName | None) -> bool:
        """Whether a container is meant whose pod has this name."""
        id_ = None if container.container_id is None else container.container_id.id
        names = container.directory_name, container.used_by, id_, container.claim_uid
        return self.matches_names(container.pod_uid, name, *names)

    def matches_names(self, pod_uid: str | None, name: PodName | None, *names: str | None) -> bool:
        """Whether a container with these names is meant; of several, one has to match."""
        return (
            (pod_uid is None if self.pod_uid == "" else _matches(self.pod_uid, pod_uid))
            and _matches(self.namespace, None if name is None else name.namespace)
            and _matches(self.pod, None if name is None else name.pod, pod_uid)
            and _matches(self.container, None if name is None else name.container, *names)
        )

    def might_match(self, container: Container) -> bool:
        """Whether it depends on names that no resolver knows whether a container is meant.

        Not of a run of ``hamiregion run``, which has no pod, and not where the pod's UID is given.
        """
        if container.pod_name is not None or container.pod_uid == RUN_POD:
            return False
        if self.pod is not None and is_pod_uid(self.pod) and container.pod_uid != self.pod:
            return False
        nameless = attrs.evolve(self, namespace=None, pod=None)
        return not self.matches_container(container, None) and nameless.matches_container(
            container, None
        )

    def matches_device(self, device: HasDevice) -> bool:
        """Whether a device is meant: a `DeviceUsage`, or anything with its index and uuid."""
        if self.device is not None and self.device.isdecimal() and self.device.isascii():
            # As text: Python takes no number of any length.
            return str(device.index) == (self.device.lstrip("0") or "0")
        return _matches(self.device, device.uuid)


def _matches(pattern: str | None, *names: str | None) -> bool:
    return pattern is None or any(name is not None and fnmatchcase(name, pattern) for name in names)

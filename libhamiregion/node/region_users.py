"""Which container uses a region that lies under the name of another one of its pod.

HAMi 2.10 can put a pod's region under its init container's name although another one uses it.
The directory's name is what the device plugin has written; whose processes map the file is proved.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Collection

    from libhamiregion.region import Region

    from .cgroups import ContainerId
    from .containers import Container
    from .matching import HostProcess, RegionProcesses
    from .names import NodeNames

# A container's id that nobody can name yet is asked for again.
_ASK_AGAIN_S = 30.0


@attrs.define(eq=False)
class _Judged:
    """What was found out of one region.

    Attributes:
        found: The proof that it rests on.
        user: The one container whose processes use it; None without one.
        name: What that container is called; None as long as nobody knows.
        asked_s: When that was last asked.
    """

    found: RegionProcesses
    user: ContainerId | None
    name: str | None = None
    asked_s: float = float("-inf")


class RegionUsers:
    """Names containers by those whose processes use their regions, where these are others.

    The container has to be of the same pod, by the cgroup that the kernel shows, and the only one
    that uses the region. Resolvers name it by its id: the Kubernetes API, or Docker's files.

    Threads: one at a time.

    Args:
        names: Names containers by their ids.
    """

    def __init__(self, names: NodeNames) -> None:
        self._names = names
        self._judged: dict[Region, _Judged] = {}

    def named(self, container: Container, found: RegionProcesses) -> Container:
        """The container with the name of its user; the same object where nothing changes.

        What was found out stays while the region has no processes.

        Args:
            container: One with a region.
            found: The proved processes of that region.
        """
        region = container.region
        if region is None or container.pod_uid is None or container.directory_name is None:
            return container
        judged = self._judged.get(region)
        if judged is None or judged.found is not found:
            judged = self._judged[region] = _judge(container, found, judged)
        if judged.user is not None and judged.name is None:
            self._ask(judged, judged.user)
        name = None if judged.name == container.directory_name else judged.name
        return container if name == container.used_by else attrs.evolve(container, used_by=name)

    def retain(self, regions: Collection[Region]) -> None:
        """Forget all other regions."""
        if len(self._judged) > len(regions):
            for gone in self._judged.keys() - set(regions):
                del self._judged[gone]

    def _ask(self, judged: _Judged, user: ContainerId) -> None:
        now_s = time.monotonic()
        if now_s - judged.asked_s >= _ASK_AGAIN_S:
            judged.asked_s = now_s
            answer = self._names.resolve(None, None, user.id)
            judged.name = None if answer is None else answer.container


def _is_of_pod(process: HostProcess, container: Container) -> bool:
    return process.container is not None and process.container.pod_uid == container.pod_uid


def _judge(container: Container, found: RegionProcesses, before: _Judged | None) -> _Judged:
    users = {each.container for each in (*found.alive.values(), *found.unlisted)}
    if not users and before is not None:
        # Those of two containers that use it in equal shares are nobody's.
        of_pod = {each.container for each in found.onlookers if _is_of_pod(each, container)}
        return (
            attrs.evolve(before, found=found) if of_pod <= {before.user} else _Judged(found, None)
        )
    (user,) = users if len(users) == 1 else (None,)
    if user is None or user.pod_uid != container.pod_uid:
        return _Judged(found, None)
    if before is not None and before.user == user:
        return attrs.evolve(before, found=found)
    return _Judged(found, user)

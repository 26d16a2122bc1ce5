"""What containers are called in labels, and which of two that are called the same is shown.

Names come from the node's resolvers. Where they do not know a pod, ``namespace`` is empty and
``pod`` is the pod's UID: that cannot be taken for a name, and nothing is hidden. HAMi's monitor
leaves such containers out.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import attrs

from .families import CONTAINER
from .labels import label_text, safe_value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from libhamiregion.node import ClaimName, Container, Node, PodName
    from libhamiregion.node.cgroups import ContainerId

    from .labels import CardinalityLimiter


@attrs.frozen
class Identity:
    """A container in labels; every text has been through `safe_value`.

    Attributes:
        namespace: Of the pod; empty outside Kubernetes and where it is not known.
        pod: Its name; its UID where the name is not known; empty outside Kubernetes.
        container: Its name, or its claim's UID; failing that its id, failing that the path of its
            region.
        pod_uid: Empty outside Kubernetes, and of a claim.
        is_named: Whether a resolver knows it.
        claim: Of a claim the label values of its holders, as `families.CLAIM_INFO` has them.
    """

    namespace: str
    pod: str
    container: str
    pod_uid: str
    is_named: bool
    claim: tuple[tuple[str, str, str, str], ...] = ()

    @property
    def shown(self) -> tuple[str, str, str]:
        """What HAMi's labels tell of it."""
        return self.namespace, self.pod, self.container

    @property
    def labels(self) -> tuple[str, str, str, str]:
        """What our labels tell of it."""
        return self.namespace, self.pod, self.container, self.pod_uid

    def text(self, names: Sequence[str], *values: str) -> bytes:
        """The label text of a series about this container.

        Args:
            names: Of the family's labels: HAMi's or our own of a container, then those of `values`.
            values: What follows the container.
        """
        own = self.labels if names[: len(CONTAINER)] == CONTAINER else self.shown
        return label_text(names, *own, *values)


def identity_of(node: Node, container: Container, limiter: CardinalityLimiter) -> Identity:
    """Name a container; asks the node's resolvers, which keep what they know.

    Raises:
        Exception: Whatever a resolver raised.
    """
    return identity_from(container, node.pod_name(container), limiter, container.claim)


def _holders(uid: str, claim: ClaimName | None) -> tuple[tuple[str, str, str, str], ...]:
    """A claim's names with each pod that holds it; once without a pod if none does."""
    if claim is None:
        return ((safe_value(uid), "", "", ""),)
    about = safe_value(claim.claim), safe_value(claim.namespace)
    return tuple((*about, safe_value(pod or ""), "") for pod in claim.pods or (None,))


def identity_from(
    container: Container,
    name: PodName | None,
    limiter: CardinalityLimiter,
    claim: ClaimName | None = None,
) -> Identity:
    """Name a container by what the resolvers have said; None if they know nothing."""
    namespace = pod = ""
    own = container.used_by or container.directory_name
    if name is not None:
        namespace, pod = name.namespace or "", name.pod or ""
        own = own or name.container
    own = own or container.claim_uid
    if not own and container.container_id is not None:
        own = container.container_id.id
    if not own:
        own = container.directory or limiter.path(container.region_path or "")
    return Identity(
        namespace=safe_value(namespace),
        pod=safe_value(pod or container.pod_uid or ""),
        container=safe_value(own),
        pod_uid=safe_value(container.pod_uid or ""),
        is_named=name is not None,
        claim=() if container.claim_uid is None else _holders(container.claim_uid, claim),
    )


def identity_of_unknown(
    node: Node, container_id: ContainerId | None, cache: dict[str, Identity]
) -> Identity:
    """What a process is shown with that belongs to no container of the node's roots.

    Args:
        node: Whose resolvers to ask.
        container_id: What the process's cgroup says.
        cache: Container id to names, filled here.
    """
    if container_id is None:
        return Identity("", "", "", "", is_named=False)
    known = cache.get(container_id.id)
    if known is None:
        found = node.names.resolve(container_id.pod_uid, None, container_id.id)
        pod_uid = safe_value(container_id.pod_uid or "")
        known = Identity("", pod_uid, "", pod_uid, is_named=found is not None)
        if found is not None:
            known = attrs.evolve(
                known,
                namespace=safe_value(found.namespace or ""),
                pod=safe_value(found.pod or "") or pod_uid,
                container=safe_value(found.container or ""),
            )
        cache[container_id.id] = known
    return known


def duplicates_hidden(identities: Mapping[Container, Identity]) -> frozenset[Container]:
    """Containers that another one with the same names stands before, the newest of them.

    A pod that was made again under its name is one: for some minutes its old directory is there
    too. Two series with the same labels cannot be told apart and are refused by Prometheus.
    """
    if len({identity.shown for identity in identities.values()}) == len(identities):
        return frozenset()
    newest: dict[tuple[str, str, str], Container] = {}
    hidden: set[Container] = set()
    for container, identity in identities.items():
        other = newest.setdefault(identity.shown, container)
        if other is container:
            continue
        if _rank(container) > _rank(other):
            newest[identity.shown] = container
            hidden.add(other)
        else:
            hidden.add(container)
    return frozenset(hidden)


def _rank(container: Container) -> tuple[bool, int, str]:
    """Of two containers with the same names, the one with the larger rank is shown."""
    changed_ns = 0
    if container.directory is not None:
        try:
            changed_ns = os.lstat(container.directory).st_mtime_ns
        except OSError:
            changed_ns = 0
    # One without a region shows nothing anyway.
    return (
        container.region is not None,
        changed_ns,
        container.directory or container.region_path or "",
    )

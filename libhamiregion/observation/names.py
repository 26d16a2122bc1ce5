"""Names of containers, pods and resource claims."""

from __future__ import annotations

import re

import attrs

_GROUPS = [f"[0-9a-f]{{{digits}}}" for digits in (8, 4, 4, 4, 12)]
# Static pods from a file have a hash without dashes.
_POD_UID = re.compile(rf"(?:{'-'.join(_GROUPS)}|[0-9a-f]{{32}})\Z")


@attrs.frozen
class ContainerId:
    """A container as a cgroup path names it.

    Attributes:
        id: 64 hexadecimal digits.
        pod_uid: As Kubernetes writes it: with dashes, or 32 hexadecimal digits for a static pod.
            None outside Kubernetes.
    """

    id: str
    pod_uid: str | None = None


@attrs.frozen
class PodName:
    """A container's names, each plain ASCII of at most 253 characters.

    Attributes:
        namespace: Of the pod; None outside Kubernetes.
        pod: None outside Kubernetes.
        container: None if the source does not name it.
    """

    namespace: str | None
    pod: str | None
    container: str | None


@attrs.frozen
class ClaimName:
    """A resource claim's names, each plain ASCII of at most 253 characters.

    Attributes:
        namespace: Namespace of the claim, and of all pods that hold it.
        claim: The claim's name.
        pods: The pods of this node that hold it; None for a pod whose name is not known.
        pod_uids: The UIDs of these pods.
    """

    namespace: str
    claim: str
    pods: tuple[str | None, ...] = ()
    pod_uids: tuple[str, ...] = ()

    @property
    def pod_name(self) -> PodName:
        """The claim's name in place of a container's, with the pod if a single one holds it."""
        return PodName(self.namespace, self.pods[0] if len(self.pods) == 1 else None, self.claim)


def is_pod_uid(text: str) -> bool:
    """Whether a text is a pod's UID as Kubernetes writes it."""
    return _POD_UID.match(text) is not None

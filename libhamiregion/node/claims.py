"""Resource claims: what they are called, and which containers hold them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from .names import PodName, pod_name

if TYPE_CHECKING:
    from collections.abc import Iterator


@attrs.frozen
class ClaimName:
    """A resource claim's names, each plain ASCII of at most 253 characters.

    Attributes:
        namespace: Of the claim, and of all that hold it.
        claim: The claim's name.
        holders: The containers that hold it, by pod and name; ``container`` is None where the pod
            does not tell which of its containers does.
        has_others: Whether it is reserved for something beside pods, such as a PodGroup, whose
            pods hold it and are not among `holders`.
    """

    namespace: str
    claim: str
    holders: tuple[PodName, ...]
    has_others: bool = False

    @property
    def pod_name(self) -> PodName:
        """The names of its only pod and container, if it has one, else its own."""
        if self.has_others:
            return PodName(self.namespace, None, self.claim)
        pods = {each.pod for each in self.holders}
        own = self.holders[0].container if len(self.holders) == 1 else None
        return PodName(self.namespace, pods.pop() if len(pods) == 1 else None, own or self.claim)


def claims_of(pod: Any) -> Iterator[tuple[str, PodName]]:
    """The claims that a pod refers to, each with a container that uses it.

    Args:
        pod: As the API shows it.

    Yields:
        The claim's name, in the pod's namespace, and the container. Only the claim tells whether it
        is reserved for the pod.
    """
    metadata, spec = _dict(_dict(pod).get("metadata")), _dict(_dict(pod).get("spec"))
    namespace, name = metadata.get("namespace"), metadata.get("name")
    if not (isinstance(namespace, str) and isinstance(name, str)):
        return
    # What was made from a template, or for an extended resource, stands in the status alone.
    status = _dict(_dict(pod).get("status"))
    claims = {
        each["name"]: each["resourceClaimName"]
        for each in (*_dicts(spec, "resourceClaims"), *_dicts(status, "resourceClaimStatuses"))
        if isinstance(each.get("name"), str) and isinstance(each.get("resourceClaimName"), str)
    }
    users: dict[str, list[Any]] = {claim: [] for claim in claims.values()}
    for kind in ("initContainers", "containers"):
        for container in _dicts(spec, kind):
            for use in _dicts(_dict(container.get("resources")), "claims"):
                if isinstance(use.get("name"), str) and use["name"] in claims:
                    users[claims[use["name"]]].append(container.get("name"))
    extended = _dict(status.get("extendedResourceClaimStatus"))
    if isinstance(extended.get("resourceClaimName"), str):
        requests = _dicts(extended, "requestMappings")
        users[extended["resourceClaimName"]] = [each.get("containerName") for each in requests]
    for claim, containers in users.items():
        # Several requests of one claim are several entries.
        own = dict.fromkeys(each for each in containers if isinstance(each, str))
        named = [pod_name(namespace, name, each) for each in own]
        holders = [each for each in named if each is not None]
        unnamed = pod_name(namespace, name, None)
        if unnamed is not None:
            yield from ((claim, holder) for holder in holders or [unnamed])


def reserved_for(claim: Any) -> frozenset[str]:
    """The UIDs of the pods that a claim, as the API shows it, is reserved for."""
    return frozenset(
        each["uid"]
        for each in _consumers(claim)
        if _is_a_pod(each) and isinstance(each.get("uid"), str)
    )


def is_reserved_for_others(claim: Any) -> bool:
    """Whether a claim, as the API shows it, is reserved for something that is no pod."""
    return any(not _is_a_pod(each) for each in _consumers(claim))


def _consumers(claim: Any) -> list[dict[str, Any]]:
    return _dicts(_dict(_dict(claim).get("status")), "reservedFor")


def _is_a_pod(consumer: dict[str, Any]) -> bool:
    return consumer.get("resource") == "pods" and not consumer.get("apiGroup")


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _dicts(parent: dict[str, Any], key: str) -> list[dict[str, Any]]:
    value = parent.get(key)
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []

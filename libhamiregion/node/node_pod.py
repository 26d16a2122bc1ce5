"""A pod of the node, reduced to what names, annotations and claims need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs

from .cgroups import is_pod_uid
from .pod_stream import pod_shape

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: Annotations that are ours begin so.
ANNOTATION_PREFIX: Final = "hamiregion.io/"
# Under both a static pod's mirror carries the UID that kubelet itself uses.
_MIRROR: Final = "kubernetes.io/config.mirror"
_HASH: Final = "kubernetes.io/config.hash"


@attrs.frozen
class NodePod:
    """What is kept of a pod. All texts are as the API tells them: check them before use.

    Attributes:
        namespace: Its namespace.
        name: Its name.
        uid: The UID that the API gave it.
        uids: The UIDs under which its node knows it; see `pod_uids`.
        created: When the API made it, as a text that sorts by time.
        containers: The names of its containers, of all kinds.
        annotations: Those of this library, without the prefix.
    """

    namespace: str
    name: str
    uid: str
    uids: tuple[str, ...]
    created: str = ""
    containers: tuple[str, ...] = ()
    annotations: Mapping[str, str] = attrs.field(factory=dict)

    def kept_bytes(self) -> int:
        """About how much memory it takes."""
        texts = [*self.uids, *self.containers]
        texts += [*self.annotations.keys(), *self.annotations.values()]
        return 1_000 + sum(map(len, texts)) + 100 * len(texts)


def shape_of_pods() -> Any:
    """What to keep of pods while they are read, for `pod_stream`."""
    return pod_shape(_is_wanted_annotation)


def _is_wanted_annotation(key: str) -> bool:
    return key.startswith(ANNOTATION_PREFIX) or key in {_MIRROR, _HASH}


def node_pod(item: Any) -> NodePod | None:
    """A pod as the API shows it, reduced; None if it is no pod.

    Args:
        item: A pod's JSON object, or what is left of it.
    """
    metadata = _dict(_dict(item).get("metadata"))
    namespace, name, uid = (metadata.get(key) for key in ("namespace", "name", "uid"))
    if not (isinstance(namespace, str) and isinstance(name, str) and isinstance(uid, str)):
        return None
    spec = _dict(item.get("spec"))
    containers = (
        container.get("name")
        for kind in ("initContainers", "containers", "ephemeralContainers")
        for container in map(_dict, _list(spec.get(kind)))
    )
    return NodePod(
        namespace,
        name,
        uid,
        pod_uids(item),
        str(metadata.get("creationTimestamp") or ""),
        tuple(each for each in containers if isinstance(each, str)),
        {
            key.removeprefix(ANNOTATION_PREFIX): text
            for key, text in _texts(metadata.get("annotations")).items()
            if key.startswith(ANNOTATION_PREFIX)
        },
    )


def pod_uids(item: Any) -> tuple[str, ...]:
    """The UIDs under which a pod's node knows it: its own, and a static pod's mirror the pod's.

    A mirror is what kubelet makes: a pod that names in its annotation the hash that the static pod
    goes by, and whose owner is the Node it is on. A UID with dashes, as pods from the API have it,
    counts in no annotation: nobody passes for a pod from the API.

    Nothing of this proves that kubelet made the mirror. Whoever may create pods writes their
    annotations, owner and node; one who also knows the hash passes for that static pod until
    kubelet deletes the mirror that is not its own. Whoever may only change pods does not: the API
    refuses to add that annotation to a pod that is there.

    Args:
        item: A pod, from JSON, as the API lists it for its node.
    """
    pod = _dict(item)
    metadata = _dict(pod.get("metadata"))
    found = [metadata.get("uid")]
    annotations = _dict(metadata.get("annotations"))
    mirrored = annotations.get(_MIRROR)
    if isinstance(mirrored, str) and "-" not in mirrored and _is_owned_by_its_node(pod):
        # Kubelet writes the same under both.
        found.append(mirrored if annotations.get(_HASH, mirrored) == mirrored else None)
    return tuple(dict.fromkeys(uid for uid in found if isinstance(uid, str) and is_pod_uid(uid)))


def _is_owned_by_its_node(pod: dict[str, Any]) -> bool:
    node = _dict(pod.get("spec")).get("nodeName")
    owners = [_dict(each) for each in _list(_dict(pod.get("metadata")).get("ownerReferences"))]
    return isinstance(node, str) and [(each.get("kind"), each.get("name")) for each in owners] == [
        ("Node", node)
    ]


def _texts(value: Any) -> dict[str, str]:
    return {key: text for key, text in _dict(value).items() if isinstance(text, str)}


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def pods_by_uid(pods: Iterable[NodePod]) -> dict[str, NodePod]:
    """Which pod each UID stands for; of several that claim one, the one that was made first.

    A pod's own UID is the API's and unique. That of a static pod is an annotation, and a pod that
    was made later may only pretend.
    """
    found: dict[str, NodePod] = {}
    for pod in sorted(pods, key=lambda each: (each.created, each.uid)):
        for uid in pod.uids:
            found.setdefault(uid, pod)
    return found

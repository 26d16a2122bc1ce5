"""Names of pods, containers and resource claims, from the Kubernetes API."""

from __future__ import annotations

import logging
import re
import threading
import time
from typing import TYPE_CHECKING

import attrs

from .claim_reader import ClaimReader
from .names import PodName, is_container_id, pod_name
from .node_pod import pods_by_uid
from .node_pods import NodePods

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from libhamiregion.errors import PathLike

    from .claims import ClaimName
    from .kubernetes_error import KubernetesError
    from .node_pod import NodePod

_log = logging.getLogger(__name__)
_LABEL_KEY = re.compile(
    r"(?:[a-z0-9][-.a-z0-9]{0,252}/)?[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?\Z"
)
_LABEL_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?\Z")
_LABELS_LIMIT = 16


class KubernetesNames:
    """Names from the Kubernetes API: the pods of one node, listed once and watched from then on.

    Nothing is asked before the first question. An answer is what is known at that moment: None
    until the pods have been listed, and as it was last known while the API cannot be reached.
    Needs the extra ``kubernetes`` and the rights to list and to watch pods; for `resolve_claim` the
    right to get resource claims as well.

    Threads: may be shared.

    Args:
        node: Only pods of this node, as the API selects them.
        kubeconfig: A kubeconfig file; without one the service account in a pod, else the default
            kubeconfig.
        pod_labels: Which labels of the pods to keep, 16 at most, such as
            ``app.kubernetes.io/name``: a `NodeExporter` puts them on the metrics of containers.
        wait_s: How long questions may wait for the very first answers of the API, all of them
            together. For what runs once; 0 means that nobody ever waits.
        pods: A watch that exists, in place of `node`, `kubeconfig` and `pod_labels`; it was made
            with these labels.

    Raises:
        ImportError: The extra ``kubernetes`` is not installed.
        ValueError: A label that Kubernetes cannot have, or too many.

    Shell: ``kubectl get pods -A --field-selector spec.nodeName=NODE``.
    """

    def __init__(
        self,
        node: str | None = None,
        *,
        kubeconfig: PathLike | None = None,
        pod_labels: Iterable[str] = (),
        wait_s: float = 5.0,
        pods: NodePods | None = None,
    ) -> None:
        self._label_keys = checked_labels(pod_labels)
        if pods is None:
            pods = NodePods(node, kubeconfig=kubeconfig, labels=self._label_keys)
        self._pods = pods
        self._claims = ClaimReader(pods)
        self._wait_s = wait_s
        self._lock = threading.Lock()
        self._waiting = threading.Lock()
        self._index = _Index()
        self._is_failing = False
        pods.when_changed(self._log_change)

    @property
    def last_error(self) -> KubernetesError | None:
        """Why the API could not be used the last time; None if it could, or was not asked."""
        return self._pods.error or self._claims.error

    def resolve(
        self,
        pod_uid: str | None,
        container_name: str | None = None,
        container_id: str | None = None,
    ) -> PodName | None:
        """Name a container by its id, or its pod by the UID."""
        if pod_uid is None and container_id is None:
            return None
        index = self._known()
        by_id = None if container_id is None else index.containers.get(container_id)
        if by_id is not None:
            return by_id
        pod = None if pod_uid is None else index.pods.get(pod_uid)
        return None if pod is None else pod_name(pod.namespace, pod.name, container_name)

    def pod_labels(self, pod_uid: str) -> Mapping[str, str] | None:
        """The chosen labels that a pod has; None where the API does not know the pod.

        Shell: ``kubectl get pods -A --show-labels``.
        """
        if not self._label_keys:
            return {}
        pod = self._known().pods.get(pod_uid)
        if pod is None:
            return None
        return {
            key: pod.labels[key]
            for key in self._label_keys
            if key in pod.labels and _LABEL_VALUE.match(pod.labels[key])
        }

    def resolve_claim(self, claim_uid: str) -> ClaimName | None:
        """Name a resource claim that pods of the node refer to, and the containers that hold it.

        Each claim is asked for by its name, as the pods have it: no list of the cluster's claims.

        Shell: ``kubectl get resourceclaims -A -o json``, ``.status.reservedFor``.
        """
        self._known()
        self._claims.start()
        self._wait_once(self._claims.wait)
        return self._claims.resolve(claim_uid)

    def close(self) -> None:
        """End the watch; may be called again."""
        self._claims.close()
        self._pods.close()

    def _known(self) -> _Index:
        self._pods.start()
        generation, pods = self._pods.known()
        if pods is None:
            self._wait_once(self._pods.wait)
            generation, pods = self._pods.known()
        with self._lock:
            if generation != self._index.generation and pods is not None:
                self._index = _indexed(generation, pods)
            return self._index

    def _wait_once(self, wait: object) -> None:
        """Wait, for as long as all waits together may still take."""
        with self._waiting:
            if self._wait_s > 0:
                began_s = time.monotonic()
                wait(self._wait_s)  # type: ignore[operator]
                self._wait_s -= time.monotonic() - began_s

    def _log_change(self) -> None:
        error = self._pods.error
        if error is not None and not self._is_failing:
            _log.warning("no news from the Kubernetes API: %s", error)
        elif error is None and self._is_failing:
            _log.info("the Kubernetes API answers again")
        self._is_failing = error is not None


@attrs.frozen
class _Index:
    """What the pods of one generation answer."""

    generation: int = 0
    pods: Mapping[str, NodePod] = attrs.field(factory=dict)
    containers: Mapping[str, PodName] = attrs.field(factory=dict)


def _indexed(generation: int, pods: Mapping[str, NodePod]) -> _Index:
    containers = {}
    for pod in pods.values():
        for identifier, name in pod.container_ids.items():
            answer = pod_name(pod.namespace, pod.name, name)
            if answer is not None and is_container_id(identifier):
                containers[identifier] = answer
    return _Index(generation, pods_by_uid(pods.values()), containers)


def checked_labels(keys: Iterable[str]) -> tuple[str, ...]:
    """Names of labels, each once.

    Raises:
        ValueError: A label that Kubernetes cannot have, or more than 16.
    """
    found = tuple(dict.fromkeys(keys))
    for key in found:
        if not _LABEL_KEY.match(key):
            raise ValueError(f"{key!r} is no name of a label, such as app.kubernetes.io/name")
    if len(found) > _LABELS_LIMIT:
        raise ValueError(f"{len(found)} labels of pods; {_LABELS_LIMIT} at most")
    return found

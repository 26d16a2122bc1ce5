"""Names from daemons, used only where a program asks for them: Kubernetes' and Docker's APIs."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import threading
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from libhamiregion.errors import needs_extra

from .cgroups import is_pod_uid
from .claims import ClaimName, claims_of, reserved_for
from .names import DockerNames, is_container_id, pod_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from libhamiregion.errors import PathLike

    from .names import PodName

_log = logging.getLogger(__name__)
_ANSWER_LIMIT = 4 << 20
# Of a cluster's pods, and of one node's, which are some hundred: whoever may make pods must not
# fill our memory.
_LIST_LIMIT = 256 << 20
NODE_LIST_LIMIT = 32 << 20
_PAGE = 500
# Claims of one node's pods; each is a question of its own.
_CLAIMS_LIMIT = 1_024
# For a listing and its claims together: whoever asks for a name waits for them.
_ANSWERS_S = 30.0
_PIECE = 1 << 16
_NOT_FOUND = 404
_LABEL_KEY = re.compile(
    r"(?:[a-z0-9][-.a-z0-9]{0,252}/)?[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?\Z"
)
_LABEL_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?\Z")
_LABELS_LIMIT = 16
# The kernel notices after 25 s that a server's machine is gone, also while a watch only listens.
_SOCKET_OPTIONS = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)
# Under both a static pod's mirror carries the UID that kubelet itself uses.
_MIRROR, _HASH = "kubernetes.io/config.mirror", "kubernetes.io/config.hash"


class DockerApiNames(DockerNames):
    """Names from the Docker API, one short question per container.

    Threads: may be shared.

    Args:
        path: Docker's unix socket.
        timeout_s: How long to wait each time that the daemon says nothing.

    Attributes:
        last_error: Why the last question had no answer, None if it had, or no such container.

    Shell: ``docker inspect --format '{{.Name}}' ID``.
    """

    def __init__(self, path: PathLike = "/var/run/docker.sock", *, timeout_s: float = 2.0) -> None:
        super().__init__(path)
        self._timeout_s = timeout_s

    def _read(self, container_id: str) -> bytes | None:
        # Here, so that whoever asks no daemon loads no HTTP.
        import http.client

        connection = http.client.HTTPConnection("localhost", timeout=self._timeout_s)
        try:
            connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.sock.settimeout(self._timeout_s)
            connection.sock.connect(self._path)
            connection.request(
                "GET", f"/containers/{container_id}/json", headers={"Host": "docker"}
            )
            with connection.getresponse() as response:
                raw = response.read(_ANSWER_LIMIT)
        except http.client.HTTPException as error:
            raise OSError(f"{self._path!r} answered no HTTP: {error}") from error
        finally:
            connection.close()
        if response.status == http.client.NOT_FOUND:
            return None
        if response.status != http.client.OK:
            raise OSError(f"{self._path!r} answered {response.status}")
        return raw


def kubernetes_client(kubernetes: Any, kubeconfig: Any = None) -> Any:
    """A client of the API: a pod's own where we run in one and nothing else is named.

    Args:
        kubernetes: The package.
        kubeconfig: Path of a configuration; None means where kubectl looks for it.

    Raises:
        kubernetes.config.ConfigException: There is none that can be used; the message names the
            file, if one was given.
    """
    config = kubernetes.config
    settings = kubernetes.client.Configuration()
    # The HTTP client would ask four times, and a watch each time from a version that may be gone.
    settings.retries = False
    settings.socket_options = _SOCKET_OPTIONS
    if kubeconfig is None and "KUBERNETES_SERVICE_HOST" in os.environ:
        config.load_incluster_config(client_configuration=settings)
        return kubernetes.client.ApiClient(settings)
    try:
        config.load_kube_config(config_file=kubeconfig, client_configuration=settings)
        return kubernetes.client.ApiClient(settings)
    except Exception as error:
        # The client lets through whatever its YAML reader, or a value of another kind, leads to.
        words = getattr(error, "strerror", None) or str(error) or type(error).__name__
        said = " ".join(words.split())
        about = "" if kubeconfig is None or str(kubeconfig) in said else f"{kubeconfig}: "
        raise config.ConfigException(about + said) from error


def api_error_text(error: Exception) -> str:
    """Why the API could not be used, in one line: an error of the client's, or another."""
    status = getattr(error, "status", None)
    if status:
        return answer_text(status, getattr(error, "body", None))
    words = str(getattr(error, "reason", None) or error) or type(error).__name__
    return " ".join(words.split())


def answer_text(status: int, raw: Any) -> str:
    """What the API has answered with an HTTP status that is an error."""
    try:
        message = _dict(json.loads(raw)).get("message")
    except (ValueError, TypeError, RecursionError):
        message = None
    return f"the API answered {status}" + (f": {message}" if isinstance(message, str) else "")


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


class KubernetesNames:
    """Names from the Kubernetes API: the pods of one node, listed at most every `max_age_s`.

    Nothing is asked before the first `resolve`, nor where the last listing has the answer.
    Needs the extra ``kubernetes`` and the right to list pods; for `resolve_claim` the right to get
    resource claims as well.

    Threads: may be shared; they wait for a listing in progress.

    Args:
        node: Only pods of this node, as the API selects them.
        kubeconfig: A kubeconfig file; without one the service account in a pod, else the default
            kubeconfig.
        api_client: A `kubernetes.client.ApiClient` of the caller's own instead.
        pod_labels: Which labels of the pods to keep, 16 at most, such as
            ``app.kubernetes.io/name``: a `NodeExporter` puts them on the metrics of containers.
        max_age_s: How long a listing holds for pods that it does not have, and for claims, whose
            holders change.
        timeout_s: For each answer; all that one question needs have 30 s.

    Attributes:
        last_error: Why the last listing failed, None if it did not. The one before it goes on
            being used.

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
        api_client: Any = None,
        pod_labels: Iterable[str] = (),
        max_age_s: float = 30.0,
        timeout_s: float = 5.0,
    ) -> None:
        with needs_extra("KubernetesNames", "kubernetes"):
            import kubernetes
        self._kubernetes: Any = kubernetes
        self._selectors: dict[str, Any] = {"limit": _PAGE, "_request_timeout": timeout_s}
        self._list_limit = _LIST_LIMIT if node is None else NODE_LIST_LIMIT
        if node is not None:
            self._selectors["field_selector"] = f"spec.nodeName={node}"
        self._kubeconfig = None if kubeconfig is None else os.fspath(kubeconfig)
        self._client = api_client
        self._max_age_s = max_age_s
        self._lock = threading.Lock()
        self._listed_at_s = float("-inf")
        self._label_keys = tuple(dict.fromkeys(pod_labels))
        for key in self._label_keys:
            if not _LABEL_KEY.match(key):
                raise ValueError(f"{key!r} is no name of a label, such as app.kubernetes.io/name")
        if len(self._label_keys) > _LABELS_LIMIT:
            raise ValueError(f"{len(self._label_keys)} labels of pods; {_LABELS_LIMIT} at most")
        self._pods: dict[str, tuple[str, str]] = {}
        self._labels: dict[str, dict[str, str]] = {}
        self._containers: dict[str, PodName] = {}
        # Namespace and name of each claim that pods refer to: their UIDs, and the containers.
        self._claims_used: defaultdict[tuple[str, str], list[tuple[str, PodName]]]
        self._claims_used = defaultdict(list)
        self._claims: dict[str, ClaimName] = {}
        self._claims_at_s = float("-inf")
        self.last_error: Exception | None = None

    def pod_labels(self, pod_uid: str) -> Mapping[str, str] | None:
        """Those of the chosen labels that a pod has; None where the API does not know the pod.

        Shell: ``kubectl get pods -A --show-labels``.
        """
        if not self._label_keys:
            return {}
        with self._lock:
            is_old = time.monotonic() - self._listed_at_s >= self._max_age_s
            if pod_uid not in self._labels and is_old:
                self._list()
            return self._labels.get(pod_uid)

    def resolve_claim(self, claim_uid: str) -> ClaimName | None:
        """Name a resource claim that pods of the node refer to, and the containers that hold it.

        Each claim is asked for by its name, as the pods have it: no list of the cluster's claims.

        Shell: ``kubectl get resourceclaims -A -o json``, ``.status.reservedFor``.
        """
        with self._lock:
            if time.monotonic() - self._claims_at_s >= self._max_age_s:
                self._list(claims=True)
            return self._claims.get(claim_uid)

    def resolve(
        self,
        pod_uid: str | None,
        container_name: str | None = None,
        container_id: str | None = None,
    ) -> PodName | None:
        """Name a container by its id, or its pod by the UID."""
        if pod_uid is None and container_id is None:
            return None
        with self._lock:
            answer = self._look_up(pod_uid, container_name, container_id)
            is_old = time.monotonic() - self._listed_at_s >= self._max_age_s
            if (answer is None or answer.container is None) and is_old:
                self._list()
                answer = self._look_up(pod_uid, container_name, container_id)
        return answer

    def _look_up(
        self, pod_uid: str | None, container_name: str | None, container_id: str | None
    ) -> PodName | None:
        by_id = None if container_id is None else self._containers.get(container_id)
        if by_id is not None:
            return by_id
        pod = None if pod_uid is None else self._pods.get(pod_uid)
        return None if pod is None else pod_name(*pod, container_name)

    def _list(self, *, claims: bool = False) -> None:
        # A server that fails is left alone for as long as one that answers.
        self._listed_at_s = time.monotonic()
        if claims:
            self._claims_at_s = self._listed_at_s
        import urllib3.exceptions

        until_s = self._listed_at_s + _ANSWERS_S
        try:
            self._keep(self._fetch(until_s))
            if claims:
                self._claims = self._fetch_claims(until_s)
        except (
            self._kubernetes.client.ApiException,
            self._kubernetes.config.ConfigException,
            urllib3.exceptions.HTTPError,
            OSError,
            RecursionError,
            ValueError,
        ) as error:
            if self.last_error is None:
                _log.warning("no names from the Kubernetes API: %s", api_error_text(error))
            self.last_error = error
            return
        self.last_error = None

    def _keep(self, items: list[Any]) -> None:
        self._pods, self._containers, self._labels = {}, {}, {}
        self._claims_used.clear()
        for item in items:
            self._add(item)

    def _fetch_claims(self, until_s: float) -> dict[str, ClaimName]:
        api = self._kubernetes.client.CustomObjectsApi(self._client)
        found = {}
        for (namespace, name), users in list(self._claims_used.items())[:_CLAIMS_LIMIT]:
            try:
                response = api.get_namespaced_custom_object(
                    *("resource.k8s.io", "v1", namespace, "resourceclaims", name),
                    _request_timeout=self._selectors["_request_timeout"],
                    _preload_content=False,
                )
            except self._kubernetes.client.ApiException as error:
                # Deleted since the pods were listed; or a server without claims.
                if error.status == _NOT_FOUND:
                    continue
                raise
            claim = json.loads(read_answer(response, _ANSWER_LIMIT, until_s))
            uid = _dict(_dict(claim).get("metadata")).get("uid")
            if isinstance(uid, str):
                pods = reserved_for(claim)
                holders = dict.fromkeys(holder for pod, holder in users if pod in pods)
                found[uid] = ClaimName(namespace, name, tuple(holders))
        return found

    def _fetch(self, until_s: float) -> list[Any]:
        if self._client is None:
            self._client = kubernetes_client(self._kubernetes, self._kubeconfig)
        api = self._kubernetes.client.CoreV1Api(self._client)
        items: list[Any] = []
        total = 0
        token = None
        while True:
            # Raw: the client's models refuse what a newer server may send.
            response = api.list_pod_for_all_namespaces(
                **self._selectors, _continue=token, _preload_content=False
            )
            raw = read_answer(response, self._list_limit - total, until_s)
            total += len(raw)
            page = json.loads(raw)
            if not isinstance(page, dict) or not isinstance(page.get("items"), list):
                raise ValueError("the answer is no list of pods")
            items += page["items"]
            token = _dict(page.get("metadata")).get("continue")
            if not token:
                return items

    def _add(self, item: Any) -> None:
        metadata = _dict(_dict(item).get("metadata"))
        namespace, name = metadata.get("namespace"), metadata.get("name")
        if not (isinstance(namespace, str) and isinstance(name, str)):
            return
        for uid in pod_uids(item):
            self._pods[uid] = (namespace, name)
            self._labels[uid] = self._chosen_labels(_dict(metadata.get("labels")))
        for claim, holder in claims_of(item):
            if pod_name(namespace, claim, None) is not None:
                self._claims_used[namespace, claim].append((str(metadata.get("uid")), holder))
        status = _dict(_dict(item).get("status"))
        for kind in ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"):
            for container in _list(status.get(kind)):
                self._add_container(namespace, name, _dict(container))

    def _chosen_labels(self, labels: dict[str, Any]) -> dict[str, str]:
        return {
            key: value
            for key in self._label_keys
            if isinstance(value := labels.get(key), str) and _LABEL_VALUE.match(value)
        }

    def _add_container(self, namespace: str, pod: str, container: dict[str, Any]) -> None:
        name, identifier = container.get("name"), container.get("containerID")
        if not (isinstance(name, str) and isinstance(identifier, str)):
            return
        # It reads containerd, two slashes and the id.
        identifier = identifier.rpartition("/")[2]
        answer = pod_name(namespace, pod, name)
        if answer is not None and is_container_id(identifier):
            self._containers[identifier] = answer


def read_answer(response: Any, limit: int, until_s: float) -> bytes:
    """An answer of the API, of which no more is read than may be, nor later.

    Raises:
        ValueError: It is longer.
        TimeoutError: It takes longer.
    """
    pieces = []
    try:
        for piece in response.stream(_PIECE):
            pieces.append(piece)
            limit -= len(piece)
            if limit < 0:
                raise ValueError("the API's answer is too long")
            if time.monotonic() > until_s:
                raise TimeoutError("the API's answers took too long")
    except BaseException:
        response.close()
        raise
    response.release_conn()
    return b"".join(pieces)


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []

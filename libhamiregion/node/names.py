"""Names of containers, pods and resource claims, from the node's own files.

kubelet's log directories name pods and containers, Docker's files name Docker's containers, and
kubelet's checkpoint names resource claims. Each source is optional: one that cannot be read is a
miss, never an exception. No link is followed and no daemon is asked. Names are checked against the
rules of Kubernetes and Docker, so they are short, plain ASCII, and safe in a terminal or a label.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections import defaultdict
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import attrs

from libhamiregion.bounded_file import read_bounded
from libhamiregion.observation.names import ClaimName, PodName, is_pod_uid

from .checkpoint import Checkpoint, json_object
from .roots import settled_stamp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from libhamiregion.errors import PathLike
    from libhamiregion.observation.containers import Container

    from .roots import Stamp

T = TypeVar("T")

#: The name of a container or a namespace.
LABEL = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?\Z")
_SUBDOMAIN = re.compile(r"[a-z0-9](?:[-.a-z0-9]{0,251}[a-z0-9])?\Z")
_DOCKER_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,252}\Z")
_CONTAINER_ID = re.compile(r"[0-9a-f]{64}\Z")
# A name longer than 255 bytes is cut before `.log`: its id is then incomplete, and no answer.
_CONTAINER_LOG = re.compile(
    r"(?P<pod>[^_]+)_(?P<namespace>[^_]+)_(?P<container>[^_]+)-(?P<id>[0-9a-f]{64})\.log\Z"
)

# A container's configuration holds its environment and labels, some 10 KiB.
_CONFIG_LIMIT = 4 << 20
_ENTRIES_LIMIT = 100_000
# Containers come and go for as long as a daemon runs; those of now are asked for again.
_DOCKER_NAMES_LIMIT = 4_096
# How long a name that is known holds before the files are checked; a miss checks at once.
_RECHECK_S = 1.0


class NodeNames:
    """Names from the files of kubelet and Docker on this node.

    ``<pod_logs>/<namespace>_<pod>_<uid>/<container>/`` and
    ``<container_logs>/<pod>_<namespace>_<container>-<id>.log`` are kubelet's, with every container
    runtime; ``<docker>/<id>/config.v2.json`` is Docker's. They are read again when they change.

    Threads: may be shared.

    Args:
        pod_logs: kubelet's directory of pods' logs.
        container_logs: kubelet's directory of links to containers' logs; only their names count.
        docker: Docker's directory of containers.
        claims: kubelet's checkpoint of resource claims; None means that of the host.

    Shell: ``ls /var/log/pods /var/log/containers``.
    """

    def __init__(
        self,
        pod_logs: PathLike = "/var/log/pods",
        container_logs: PathLike = "/var/log/containers",
        *,
        docker: PathLike = "/var/lib/docker/containers",
        claims: PathLike | None = None,
    ) -> None:
        self._lock = threading.Lock()
        self._pods = _Listing(os.fspath(pod_logs), _pod_directory)
        self._containers = _Listing(os.fspath(container_logs), _container_log)
        self._docker = os.fspath(docker)
        self._docker_names: dict[str, PodName] = {}
        path = os.fspath(claims or kubelet_claims())
        self._claims = Checkpoint(path, _parse_claims, "resource claims have no names")

    def resolve(
        self,
        pod_uid: str | None,
        container_name: str | None = None,
        container_id: str | None = None,
    ) -> PodName | None:
        """Name a container by its id, else by its pod's UID and its own name."""
        with self._lock:
            return (
                (None if container_id is None else self._containers.get(container_id))
                or self._by_pod(pod_uid, container_name)
                or self._by_docker(container_id)
            )

    def resolve_claim(self, claim_uid: str) -> ClaimName | None:
        """Name a resource claim and the pods that hold it; None if it is not known."""
        with self._lock:
            found = (self._claims.read() or {}).get(claim_uid)
            if found is None:
                return None
            names = (self._by_pod(uid, None) for uid in found.pod_uids)
            pods = tuple(None if name is None else name.pod for name in names)
            return ClaimName(found.namespace, found.claim, pods, found.pod_uids)

    def has_pod(self, pod_uid: str) -> bool | None:
        """Whether kubelet has the pod's log directory now; None if unknown.

        False only if kubelet's directory can be listed and has other pods.
        """
        with self._lock:
            self._pods.update(max_age_s=0.0)
            return pod_uid in self._pods.known if self._pods.known else None

    def _by_pod(self, pod_uid: str | None, container_name: str | None) -> PodName | None:
        directory = None if pod_uid is None else self._pods.get(pod_uid)
        if directory is None:
            return None
        namespace, pod, _ = directory.split("_")
        return pod_name(namespace, pod, container_name)

    def _by_docker(self, container_id: str | None) -> PodName | None:
        if container_id is None or not _CONTAINER_ID.match(container_id):
            return None
        if container_id not in self._docker_names:
            path = f"{self._docker}/{container_id}/config.v2.json"
            try:
                name = json_object(read_bounded(path, _CONFIG_LIMIT, follow=False)).get("Name")
            except (OSError, ValueError):
                return None
            known = docker_name(name) if isinstance(name, str) else None
            if known is None:
                return None
            if len(self._docker_names) >= _DOCKER_NAMES_LIMIT:
                self._docker_names.clear()
            self._docker_names[container_id] = known
        return self._docker_names[container_id]


def with_names(names: NodeNames, container: Container) -> Container:
    """Return a container with its names, the same object if they are as before.

    A pod keeps its name, also when kubelet forgets the pod before its directory goes.
    """
    name, claim = container.pod_name, None
    if container.claim_uid is not None:
        claim = names.resolve_claim(container.claim_uid)
        name = None if claim is None else claim.pod_name
    elif name is None:
        id_ = None if container.container_id is None else container.container_id.id
        own = container.used_by or container.directory_name
        name = names.resolve(container.pod_uid, own, id_)
    if (name, claim) == (container.pod_name, container.claim):
        return container
    return attrs.evolve(container, pod_name=name, claim=claim)


def kubelet_claims(proc: PathLike = "/proc") -> str:
    """The path of kubelet's checkpoint of resource claims, through the host's own root.

    Without a mount: kubelet replaces the file, and a mount of the file alone would go stale.
    """
    return f"{os.fspath(proc)}/1/root/var/lib/kubelet/dra_manager_state"


def pod_name(namespace: str, pod: str, container: str | None) -> PodName | None:
    """The name, if all parts of it follow the rules of Kubernetes."""
    if not (LABEL.match(namespace) and _SUBDOMAIN.match(pod)):
        return None
    if container is not None and not LABEL.match(container):
        return None
    return PodName(namespace, pod, container)


def docker_name(name: str) -> PodName | None:
    """A Docker container's name; one that kubelet gave (``k8s_…``) is taken apart.

    >>> docker_name("/k8s_train_bert-0_research_0b5c1e64-27a1-4a1c-8a3c-7ab0d3ad3b0f_0")
    PodName(namespace='research', pod='bert-0', container='train')
    """
    name = name.removeprefix("/")
    if not _DOCKER_NAME.match(name):
        return None
    parts = name.split("_")
    if len(parts) == 6 and parts[0] == "k8s" and is_pod_uid(parts[4]):
        return pod_name(parts[3], parts[2], parts[1])
    return PodName(None, None, name)


def _pod_directory(entry: str) -> tuple[str, str] | None:
    """The pod's UID and the directory's name; None for another entry."""
    parts = entry.split("_")
    return (parts[2], entry) if len(parts) == 3 and is_pod_uid(parts[2]) else None


def _container_log(entry: str) -> tuple[str, PodName] | None:
    """The container's id and its name; None for another entry."""
    match = _CONTAINER_LOG.match(entry)
    name = match and pod_name(match["namespace"], match["pod"], match["container"])
    return (match["id"], name) if match and name else None


class _Listing(Generic[T]):
    """The entries of a directory by key, listed again when it has changed.

    Args:
        path: The directory.
        parse: Makes key and value of an entry's name; None leaves it out.
    """

    def __init__(self, path: str, parse: Callable[[str], tuple[str, T] | None]) -> None:
        self.path = path
        self.known: dict[str, T | None] = {}
        self._parse = parse
        self._checked_s = float("-inf")
        self._stamp: Stamp | None = None

    def get(self, key: str) -> T | None:
        """The value of a key; a miss checks the directory at once."""
        self.update(_RECHECK_S)
        if key not in self.known:
            self.update(0.0)
        return self.known.get(key)

    def update(self, max_age_s: float) -> None:
        """List the directory if it may have changed; without it, there is no entry.

        Args:
            max_age_s: How old the last check may be.
        """
        now_s = time.monotonic()
        if now_s - self._checked_s <= max_age_s:
            return
        self._checked_s = now_s
        try:
            now_ns = time.time_ns()
            stamp = settled_stamp(os.stat(self.path), now_ns)  # noqa: PTH116
            if stamp is not None and stamp == self._stamp:
                return
            with os.scandir(self.path) as entries:
                names = [entry.name for entry in islice(entries, _ENTRIES_LIMIT)]
        except OSError:
            stamp, names = None, []
        self._stamp = stamp
        self.known = {}
        for found in map(self._parse, names):
            if found is not None:
                # A UID names one pod: of two entries with the same key none counts.
                self.known[found[0]] = None if found[0] in self.known else found[1]


@attrs.frozen
class _Claim:
    namespace: str
    claim: str
    pod_uids: tuple[str, ...]


def _parse_claims(raw: bytes) -> dict[str, _Claim]:
    """The claims in a checkpoint, by UID; see `_claims_in`."""
    return dict(_claims_in(raw))


def _claims_in(raw: bytes) -> Iterator[tuple[str, _Claim]]:
    """The claims in a checkpoint, by UID.

    From Kubernetes 1.32 on: ``{"Data": "<JSON as text>", "Checksum": n}``, and the text has
    ``Entries``. Before: ``{"version": "v1", "entries": […], "checksum": n}``.

    Raises:
        ValueError: The file is no checkpoint.
    """
    document = json_object(raw)
    if "Data" in document:
        data = document["Data"]
        if not isinstance(data, str):
            raise ValueError("Data is no text")
        entries = json_object(data).get("Entries")
    else:
        entries = document.get("entries")
    for entry in entries if isinstance(entries, list) else ():
        fields: defaultdict[str, Any] = defaultdict(str, entry if isinstance(entry, dict) else {})
        uid, namespace, claim = fields["ClaimUID"], fields["Namespace"], fields["ClaimName"]
        # The pods are a list, or the keys of an object.
        pods = fields["PodUIDs"] or []
        texts = isinstance(pods, (list, dict)) and all(
            isinstance(each, str) for each in (uid, namespace, claim, *pods)
        )
        if texts and all(map(is_pod_uid, (uid, *pods))) and pod_name(namespace, claim, None):
            yield uid, _Claim(namespace, claim, tuple(pods))

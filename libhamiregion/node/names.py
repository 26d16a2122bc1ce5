"""What containers are called: pods and namespaces, from files or by asking a daemon.

Each resolver answers what it can and None otherwise; a source that fails is a miss, never an
exception. Names from outside are checked against the rules of Kubernetes and
Docker, so that what comes out is short, plain ASCII, and safe in a terminal, a path or a label.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections import OrderedDict
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from libhamiregion.bounded_file import read_bounded

from .cgroups import is_pod_uid

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from libhamiregion.errors import PathLike

    from .claims import ClaimName

_LABEL = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?\Z")
_SUBDOMAIN = re.compile(r"[a-z0-9](?:[-.a-z0-9]{0,251}[a-z0-9])?\Z")
_DOCKER_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,252}\Z")
_CONTAINER_ID = re.compile(r"[0-9a-f]{64}\Z")

# A container's configuration holds its environment and labels; real ones have some 10 KiB.
_CONFIG_LIMIT = 4 << 20
_ENTRIES_LIMIT = 100_000
# A directory's time can stand still while it changes: the kernel's clock ticks every 1 to 10 ms.
_TIME_GRAIN_NS = 100_000_000
# Answers that are kept; the one unused for longest goes first.
_KEPT_LIMIT = 4096


@attrs.frozen
class PodName:
    """A container's names, each plain ASCII of at most 253 characters.

    Attributes:
        namespace: Of the pod; None outside Kubernetes.
        pod: None outside Kubernetes.
        container: None where the source does not tell.
    """

    namespace: str | None
    pod: str | None
    container: str | None


class NameResolver(Protocol):
    """Anything that can name a container.

    One that knows resource claims too has a second method, ``resolve_claim(claim_uid)``, which
    gives a `ClaimName`, or None for a claim that it does not know. One that knows labels has
    ``pod_labels(pod_uid)``, which gives those to be shown, or None for a pod that it does not know.
    """

    def resolve(
        self,
        pod_uid: str | None,
        container_name: str | None = None,
        container_id: str | None = None,
    ) -> PodName | None:
        """Name a container by its pod's UID and its own name, or by its id; None if unknown."""


def claim_name(names: NameResolver, claim_uid: str) -> ClaimName | None:
    """What a resolver knows of a claim; None where it knows none, as those of files do not."""
    ask = getattr(names, "resolve_claim", None)
    found: ClaimName | None = None if ask is None else ask(claim_uid)
    return found


def labels_of_pod(names: NameResolver, pod_uid: str | None) -> Mapping[str, str] | None:
    """The labels of a pod that a resolver was asked to keep; None where it does not know the pod.

    Those of files, and one that was asked for none, have none of any pod.
    """
    ask = getattr(names, "pod_labels", None)
    if ask is None or pod_uid is None:
        return {}
    found: Mapping[str, str] | None = ask(pod_uid)
    return found


def pod_name(namespace: str, pod: str, container: str | None) -> PodName | None:
    """The name, if all parts of it follow the rules of Kubernetes."""
    if not (_LABEL.match(namespace) and _SUBDOMAIN.match(pod)):
        return None
    if container is not None and not _LABEL.match(container):
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


class PodLogNames:
    """Names from the directories that kubelet makes for logs; no daemon is asked.

    ``<root>/<namespace>_<pod>_<uid>/<container>/``, on every node. The listing is read again only
    when the directory has changed: a miss costs one `stat`.

    Threads: may be shared.
    """

    def __init__(self, root: PathLike = "/var/log/pods") -> None:
        self._root = os.fspath(root)
        self._lock = threading.Lock()
        self._stamp: tuple[int, int] | None = None
        self._pods: dict[str, str | None] = {}

    def resolve(
        self,
        pod_uid: str | None,
        container_name: str | None = None,
        container_id: str | None = None,  # noqa: ARG002
    ) -> PodName | None:
        """Name the pod; the container as given, or the only one that has logs."""
        if pod_uid is None or not is_pod_uid(pod_uid):
            return None
        with self._lock:
            self._update()
            directory = self._pods.get(pod_uid)
        if directory is None:
            return None
        namespace, pod, _ = directory.split("_")
        return pod_name(namespace, pod, container_name or self._only_container(directory))

    def _update(self) -> None:
        try:
            status = os.stat(self._root)  # noqa: PTH116
            stamp = (status.st_mtime_ns, status.st_ino)
            if stamp == self._stamp:
                return
            listed_at_ns = time.time_ns()
            self._pods = self._list()
        except OSError:
            self._stamp, self._pods = None, {}
            return
        # Changed a moment ago, it may change again within the same tick.
        settled = listed_at_ns - status.st_mtime_ns > _TIME_GRAIN_NS
        self._stamp = stamp if settled else None

    def _list(self) -> dict[str, str | None]:
        pods: dict[str, str | None] = {}
        with os.scandir(self._root) as entries:
            for entry in islice(entries, _ENTRIES_LIMIT):
                parts = entry.name.split("_")
                if len(parts) == 3 and is_pod_uid(parts[2]):
                    # Two pods of one UID cannot be: then neither is to be believed.
                    pods[parts[2]] = None if parts[2] in pods else entry.name
        return pods

    def _only_container(self, directory: str) -> str | None:
        try:
            with os.scandir(f"{self._root}/{directory}") as entries:
                names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError:
            return None
        return names[0] if len(names) == 1 and _LABEL.match(names[0]) else None


class DockerNames:
    """Names from Docker's own files; the daemon is not asked.

    ``<root>/<id>/config.v2.json``, key ``Name``.

    Threads: may be shared.

    Attributes:
        last_error: Why the last question had no answer, None if it had.
    """

    def __init__(self, root: PathLike = "/var/lib/docker/containers") -> None:
        self._path = os.fspath(root)
        self.last_error: Exception | None = None

    def resolve(
        self,
        pod_uid: str | None,  # noqa: ARG002
        container_name: str | None = None,  # noqa: ARG002
        container_id: str | None = None,
    ) -> PodName | None:
        """Name a container by its id."""
        if container_id is None or not _CONTAINER_ID.match(container_id):
            return None
        try:
            raw = self._read(container_id)
            name = None if raw is None else _named(raw)
        except (OSError, ValueError) as error:
            self.last_error = error
            return None
        self.last_error = None
        return None if name is None else docker_name(name)

    def _read(self, container_id: str) -> bytes | None:
        """What Docker says of a container; None where it says that there is none.

        Raises:
            OSError, ValueError: It says nothing.
        """
        path = f"{self._path}/{container_id}/config.v2.json"
        return read_bounded(path, _CONFIG_LIMIT, follow=False)


class ChainedNames:
    """Several resolvers, tried in order, with one cache.

    The first complete answer counts; one without a container's name is kept for the case that no
    later resolver knows it. Answers are kept, 4,096 of them, because a pod's name never changes;
    misses and incomplete answers are asked for again after a while.

    Threads: may be shared; two that ask for the same container at the same moment may both ask the
    resolvers.

    Args:
        resolvers: In the order in which to try them, cheap ones first.
        retry_s: How long a miss, or an incomplete answer, holds.
    """

    def __init__(self, resolvers: Iterable[NameResolver], *, retry_s: float = 5.0) -> None:
        self.resolvers = tuple(resolvers)
        self._retry_s = retry_s
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str | None, ...], tuple[PodName | None, float]] = (
            OrderedDict()
        )

    def resolve(
        self,
        pod_uid: str | None,
        container_name: str | None = None,
        container_id: str | None = None,
    ) -> PodName | None:
        """Name a container, from the cache if it is there."""
        key = (pod_uid, container_name, container_id)
        now = time.monotonic()
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None and now < kept[1]:
                self._kept.move_to_end(key)
                return kept[0]
        best: PodName | None = None
        until = now + self._retry_s
        for resolver in self.resolvers:
            answer = resolver.resolve(*key)
            if answer is not None and answer.container is not None:
                best, until = answer, float("inf")
                break
            best = best or answer
        with self._lock:
            self._kept[key] = (best, until)
            self._kept.move_to_end(key)
            while len(self._kept) > _KEPT_LIMIT:
                self._kept.popitem(last=False)
        return best

    def resolve_claim(self, claim_uid: str) -> ClaimName | None:
        """Name a claim by the first resolver that knows it; not kept, for its holders change."""
        found = (claim_name(resolver, claim_uid) for resolver in self.resolvers)
        return next((each for each in found if each is not None), None)

    def pod_labels(self, pod_uid: str) -> Mapping[str, str] | None:
        """The labels by the first resolver that has some of this pod; not kept."""
        found = [labels_of_pod(resolver, pod_uid) for resolver in self.resolvers]
        return next(filter(None, found), None if None in found else {})


def is_container_id(text: str) -> bool:
    """Whether a text is a container's id: 64 hexadecimal digits."""
    return _CONTAINER_ID.match(text) is not None


def _named(raw: bytes) -> str:
    """The text under the key ``Name`` of a JSON object.

    Raises:
        ValueError: It is no such object.
    """
    try:
        document: Any = json.loads(raw)
    except RecursionError:
        raise ValueError("JSON nested too deep") from None
    name = document.get("Name") if isinstance(document, dict) else None
    if not isinstance(name, str):
        raise ValueError("no text under the key Name")
    return name

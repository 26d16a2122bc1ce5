"""The pods of one node and their annotations, from the Kubernetes API: listed once, then watched.

A list asks for any version, which servers answer from their cache by node. A watch that ends
continues from the last version that it reported, bookmarks included. Only a server that has
forgotten that version (410) is asked for another list. Answers have metadata alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import attrs

from libhamiregion.observation.names import is_pod_uid

from .kubernetes import KubernetesApi, KubernetesError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import urllib3

    from libhamiregion.errors import PathLike

#: Prefix of our annotations.
ANNOTATION_PREFIX: Final = "hamiregion.io/"
_PODS: Final = "/api/v1/pods"
_METADATA: Final = "application/json;as=PartialObjectMetadata{};g=meta.k8s.io;v=v1"
_LIST_S: Final = 60.0
_SILENCE_S: Final = 10.0
_LONGEST_PAUSE_S: Final = 30.0
_LONGEST_OUTAGE_PAUSE_S: Final = 2.0
_STARTING_FAILURES: Final = 10
_LONGEST_RETRY_AFTER_S: Final = 120.0
# An object in etcd has 1.5 MiB.
_LINE_LIMIT: Final = 4 << 20
# What is kept of a pod: the keys of annotations have 63 characters, our values some twenty.
_ANNOTATIONS_LIMIT: Final = 256
_TEXT_LIMIT: Final = 128
_PODS_LIMIT: Final = 10_000
_GONE: Final = 410
_TOO_MANY_REQUESTS: Final = 429
# A program's own sequence, which it may have seeded, is left alone.
_RANDOM: Final = random.Random()  # noqa: S311


@attrs.frozen
class NodePod:
    """A pod. All texts are as the API reports them: check them before use.

    Attributes:
        namespace: Its namespace.
        name: Its name.
        uid: Its UID.
        annotations: The annotations of this library, without the prefix.
    """

    namespace: str
    name: str
    uid: str
    annotations: Mapping[str, str] = attrs.field(factory=dict)


class NodePods:
    """The pods of a node, listed once, then watched by a thread.

    While the API cannot be reached, the last known pods stay. A server that does not answer is
    asked again every 2 s at most, one that refuses less and less often, up to 30 s, and one that
    says how long to wait (429) after that time.

    Threads: may be shared. Only `load` and, for a moment, `close` wait for the API.

    Args:
        node: Only pods of this node; None means all nodes.
        kubeconfig: As for `KubernetesApi`.
        watch_s: How long the server keeps one watch open; up to twice as long, by chance.
        first_pause_s: Pause after a failure; each further one doubles it.

    Attributes:
        error: Why the API could not be used the last time; None if it could.

    Raises:
        ModuleNotFoundError: The extra ``kubernetes`` is not installed.

    Shell: ``kubectl get pods -A --watch --field-selector spec.nodeName=NODE``.
    """

    def __init__(
        self,
        node: str | None = None,
        *,
        kubeconfig: PathLike | None = None,
        watch_s: float = 300.0,
        first_pause_s: float = 0.5,
    ) -> None:
        self._api = KubernetesApi(None if kubeconfig is None else os.fspath(kubeconfig))
        self._selector = {} if node is None else {"fieldSelector": f"spec.nodeName={node}"}
        self._watch_s = watch_s
        self._first_pause_s = first_pause_s
        self._lock = threading.Lock()
        self._pods: Mapping[str, NodePod] | None = None
        self._generation = 0
        self._listeners: tuple[Callable[[], None], ...] = ()
        self._version = ""
        # Answers with an error since the last watch.
        self._refusals = 0
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._watching: urllib3.BaseHTTPResponse | None = None
        self.error: KubernetesError | None = None

    def known(self) -> tuple[int, Mapping[str, NodePod] | None]:
        """A number that grows with each change, and the pods by UID; None before the first list."""
        with self._lock:
            return self._generation, self._pods

    def when_changed(self, wake: Callable[[], None]) -> None:
        """Have `wake` called, from the thread that watches, after each change."""
        self._listeners += (wake,)

    def start(self) -> None:
        """Begin to list and to watch, in a thread; may be called again."""
        with self._lock:
            if self._thread is None and not self._stopping.is_set():
                # A daemon: a server that never answers must not keep the program from ending.
                self._thread = threading.Thread(target=self._run, name="hami-pods", daemon=True)
                self._thread.start()

    def load(self) -> None:
        """List the pods now, once, in place of `start`.

        Raises:
            KubernetesError: The API cannot be used.
        """
        self._list()

    def close(self) -> None:
        """End the watch; may be called again."""
        self._stopping.set()
        if (watching := self._watching) is not None:
            # It may be ending by itself.
            with contextlib.suppress(OSError, RuntimeError, ValueError):
                watching.shutdown()
        if self._thread is not None:
            self._thread.join(_SILENCE_S)

    def _run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            began_s = time.monotonic()
            failure: KubernetesError | None = None
            try:
                self._version = self._version or self._list()
                self._follow()
            except KubernetesError as error:
                failure = error
            except Exception as error:  # noqa: BLE001 (the thread must go on)
                failure = KubernetesError(f"{type(error).__name__}: {error}")
            if failure is not None and failure.status == _GONE:
                self._version = ""
            elif failure is not None and not self._stopping.is_set():
                self._news(failure)
            if failure is not None and failure.status is not None:
                self._refusals += 1
            # A watch that has lasted is no failure, whatever ended it.
            is_long = time.monotonic() - began_s >= min(_LONGEST_PAUSE_S, self._watch_s)
            failures = 0 if is_long else failures + 1
            self._stopping.wait(self._pause_s(failure, failures))

    def _pause_s(self, failure: KubernetesError | None, failures: int) -> float:
        status = None if failure is None else failure.status
        # By chance: many nodes lose one server at the same moment.
        share = _RANDOM.uniform(0.5, 1.0)
        if failure is not None and status == _TOO_MANY_REQUESTS:
            asked_s = max(failure.retry_after_s or 1.0, 1.0)
            return min(asked_s, _LONGEST_RETRY_AFTER_S) * (0.5 + share)
        # A server that has just started refuses everyone (403) until it has loaded its rights.
        is_outage = status is None or status >= 500 or self._refusals <= _STARTING_FAILURES
        longest_s = _LONGEST_OUTAGE_PAUSE_S if is_outage and failure else _LONGEST_PAUSE_S
        return min(self._first_pause_s * 2.0 ** min(failures - 1, 16), longest_s) * share

    def _list(self) -> str:
        """List all pods; return the version from which to watch."""
        query = {"resourceVersion": "0", **self._selector}
        accept = _METADATA.format("List")
        with self._api.get(_PODS, query, accept=accept, silence_s=_SILENCE_S) as response:
            version, pods = _read_list(response, time.monotonic() + _LIST_S)
        self._put(pods)
        return version

    def _follow(self) -> None:
        """Take the changes after the last version, until the server ends the watch."""
        lasting_s = self._watch_s * _RANDOM.uniform(1.0, 2.0)
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(max(1, int(lasting_s))),
            **self._selector,
        }
        # A server that no longer answers is noticed by its silence after its own time.
        accept, silence_s = _METADATA.format(""), lasting_s + _SILENCE_S
        with self._api.get(_PODS, query, accept=accept, silence_s=silence_s) as response:
            self._watching = response
            self._refusals = 0
            try:
                self._news(None)
                if self._stopping.is_set():
                    return  # close() may have found no watch to end
                for line in _lines(response):
                    if self._stopping.is_set():
                        return
                    self._take(json.loads(line))
            finally:
                self._watching = None

    def _take(self, event: Any) -> None:
        kind, item = event["type"], event["object"]
        if kind == "ERROR":
            code = item.get("code")
            message = str(item.get("message") or item.get("reason") or "an error")
            raise KubernetesError(message, code if isinstance(code, int) else None)
        metadata = item.get("metadata")
        uid = metadata.get("uid") if isinstance(metadata, dict) else None
        if kind in ("ADDED", "MODIFIED", "DELETED") and isinstance(uid, str):
            pod = None if kind == "DELETED" else _node_pod(item)
            others = {key: each for key, each in (self._pods or {}).items() if key != uid}
            self._put(others if pod is None else {**others, uid: pod})
        # A bookmark has the version alone.
        version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
        if isinstance(version, str) and version:
            self._version = version

    def _put(self, pods: Mapping[str, NodePod]) -> None:
        with self._lock:
            is_news = pods != self._pods
            if is_news:
                # Others read the mapping that they were given without a lock.
                self._pods = pods
                self._generation += 1
        if is_news:
            self._wake()

    def _news(self, error: KubernetesError | None) -> None:
        is_news = error is not None or self.error is not None
        self.error = error
        if is_news:
            self._wake()

    def _wake(self) -> None:
        for wake in self._listeners:
            wake()


def _read_list(
    response: urllib3.BaseHTTPResponse, until_s: float
) -> tuple[str, dict[str, NodePod]]:
    """Read a list's version and its pods, one by one: the list is never in memory as a whole."""
    import ijson

    versions: list[str] = []
    pods: dict[str, NodePod] = {}

    def noted(events: Any) -> Iterator[Any]:
        for each in events:
            if each[0] == "metadata.resourceVersion":
                versions.append(each[2])
            yield each

    for item in ijson.items(noted(ijson.parse(response)), "items.item"):
        pod = _node_pod(item)
        if pod is not None and len(pods) < _PODS_LIMIT:
            pods[pod.uid] = pod
        if time.monotonic() > until_s:
            raise KubernetesError("the API's answer took too long")
    return versions[0], pods


def _lines(response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    """The lines of a watch, each as soon as it is complete."""
    line = bytearray()
    for piece in response.stream(1 << 16):
        *ended, rest = piece.split(b"\n")
        for each in ended:
            yield bytes(line + each)
            line.clear()
        line += rest
        if len(line) > _LINE_LIMIT:
            raise KubernetesError("an event of the watch is too long")


def _node_pod(item: Any) -> NodePod | None:
    """What is kept of a pod; None for anything else."""
    metadata = item.get("metadata") if isinstance(item, dict) else None
    if not isinstance(metadata, dict):
        return None
    texts: list[Any] = [metadata.get(key) for key in ("namespace", "name", "uid")]
    # Plans compare UIDs as patterns.
    if not (all(isinstance(each, str) for each in texts) and is_pod_uid(texts[2])):
        return None
    namespace, name, uid = texts
    annotations = metadata.get("annotations")
    ours = {
        key.removeprefix(ANNOTATION_PREFIX): text[:_TEXT_LIMIT]
        for key, text in (annotations if isinstance(annotations, dict) else {}).items()
        if key.startswith(ANNOTATION_PREFIX) and isinstance(text, str)
    }
    return NodePod(namespace, name, uid, dict(list(ours.items())[:_ANNOTATIONS_LIMIT]))

"""The pods of one node by the Kubernetes API: listed once, then watched.

Names, annotations and resource claims all read this one watch. A list asks for any version, which
servers answer from their cache by node; a watch that ends goes on from the last version that it
told, and only where the server has forgotten that version is there another list.
"""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from .kubernetes_error import KubernetesError
from .node_pod import node_pod, shape_of_pods
from .pod_stream import load_parser, read_events, read_list

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from libhamiregion.errors import PathLike

    from .node_pod import NodePod

_PODS: Final = "/api/v1/pods"
_PAGE: Final = 500
_LIST_S: Final = 60.0
# Of a list; it is never in memory, but reading it takes CPU time.
_LIST_LIMIT: Final = 512 << 20
# What is kept of all pods: of one node's, and of a cluster's. Whoever may create pods must not
# fill our memory.
_NODE_KEPT_LIMIT: Final = 16 << 20
_CLUSTER_KEPT_LIMIT: Final = 256 << 20
_POD_KEPT_LIMIT: Final = 64 << 10
_SILENCE_S: Final = 10.0
_LONGEST_PAUSE_S: Final = 30.0
# A server that is not there costs little to ask, and when it is back its news is due.
_LONGEST_OUTAGE_PAUSE_S: Final = 2.0
# A server that has just started refuses everybody until it has loaded who may what.
_REFUSING_S: Final = 60.0
_LONGEST_RETRY_AFTER_S: Final = 120.0
_FORBIDDEN: Final = 403
_GONE: Final = 410
_TOO_MANY_REQUESTS: Final = 429
# A program's own sequence, which it may have seeded, is left alone.
_CHANCE: Final = random.Random()  # noqa: S311


class NodePods:
    """The pods of a node, listed once, then watched by a thread.

    What was known stays while the API cannot be reached. A server that does not answer, is not
    ready or has just started is asked again every 2 s at most; one that refuses, ever more seldom
    up to 30 s; one that says for how long it wants to be left alone is left alone for that long.

    Threads: everything may be called from any; nothing here waits for the API but `load`, `wait`
    and, for a moment, `close`.

    Args:
        node: Only pods of this node, as the API selects them; None means those of all nodes.
        kubeconfig: A kubeconfig file; without one the service account in a pod, else the default
            kubeconfig.
        watch_s: How long the server shall keep one watch open; up to twice as long by chance.
        first_pause_s: How long to wait after a failure; each further one doubles it.

    Attributes:
        error: Why the API could not be used the last time, or why pods are left out; None if
            neither is so.
        kubeconfig: As given.
        counters: Lists, watches, events of watches, bytes read, and failures, since the start.

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
        load_parser()
        # Here, so that whoever asks no API loads no HTTP.
        from .kubernetes import KubernetesApi

        self.kubeconfig = kubeconfig
        self._api = KubernetesApi(kubeconfig)
        self._selector = {} if node is None else {"fieldSelector": f"spec.nodeName={node}"}
        self._kept_limit = _CLUSTER_KEPT_LIMIT if node is None else _NODE_KEPT_LIMIT
        self._shape = shape_of_pods()
        self._watch_s = watch_s
        self._first_pause_s = first_pause_s
        self._changed = threading.Condition()
        self._pods: dict[str, NodePod] | None = None
        self._kept_bytes = 0
        self._left_out: Mapping[str, str] = {}
        self._generation = 0
        self._failure: KubernetesError | None = None
        # How often the API has been asked for a list, whatever came of it.
        self._attempts = 0
        self._listeners: tuple[Callable[[], None], ...] = ()
        self._version: str | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self.counters = {"lists": 0, "watches": 0, "events": 0, "bytes": 0, "failures": 0}

    @property
    def error(self) -> KubernetesError | None:
        """Why the API could not be used the last time, or why pods are left out."""
        failure, left_out = self._failure, self._left_out
        if failure is None and left_out:
            shown = ", ".join(sorted(left_out.values())[:3])
            return KubernetesError(
                f"pods left out, of which more would have to be kept than may be:"
                f" {len(left_out)}, such as {shown}"
            )
        return failure

    def known(self) -> tuple[int, Mapping[str, NodePod] | None]:
        """The pods by the UIDs that the API gave them; None before the first list.

        Returns:
            A number that grows with each change, and the pods. They are not to be changed.
        """
        with self._changed:
            return self._generation, self._pods

    def when_changed(self, wake: Callable[[], None]) -> None:
        """Have `wake` called, from the thread that watches, when there is news."""
        self._listeners += (wake,)

    def start(self) -> None:
        """Begin to list and to watch, in a thread; may be called again."""
        with self._changed:
            if self._thread is None and not self._stopping.is_set():
                # A daemon: a server that never answers must not keep the program from ending.
                self._thread = threading.Thread(target=self._run, name="hami-pods", daemon=True)
                self._thread.start()

    def wait(self, timeout_s: float) -> bool:
        """Wait until the pods are known, or one attempt to list them has failed.

        Returns:
            Whether they are known.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._pods is not None or self._attempts, timeout_s)
            return self._pods is not None

    def load(self) -> None:
        """List the pods here and now, once; where a thread watches them, wait for its list.

        Raises:
            KubernetesError: The API has not answered as it should; the message says how.
        """
        if self._thread is None:
            try:
                self._version = self._list()
            finally:
                self._api.close()
        elif not self.wait(_LIST_S):
            raise self.error or KubernetesError("the API did not answer in time")

    def close(self) -> None:
        """End the watch; may be called again."""
        self._stopping.set()
        self._api.abort()
        if self._thread is not None:
            self._thread.join(_SILENCE_S)

    # ---- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        pauses = _Pauses(self._first_pause_s)
        while not self._stopping.is_set():
            begun_s = time.monotonic()
            failure: KubernetesError | None = None
            try:
                if self._version is None:
                    self._version = self._list()
                self._follow()
            except KubernetesError as error:
                failure = error
            except Exception as error:  # noqa: BLE001 (else it would end, and nobody would know)
                failure = KubernetesError(f"{type(error).__name__}: {error}")
            if failure is not None and failure.status == _GONE:
                self._version = None
            elif failure is not None and not self._stopping.is_set():
                self._fail(failure)
            is_long = time.monotonic() - begun_s >= min(_LONGEST_PAUSE_S, self._watch_s)
            self._stopping.wait(pauses.after(failure, is_long=is_long))
        self._api.close()

    def _list(self) -> str:
        """List all pods; returns the version from which to watch."""
        pods: dict[str, NodePod] = {}
        kept_bytes = 0
        left_out = {}

        def take(item: Any) -> None:
            nonlocal kept_bytes
            pod = node_pod(item)
            if pod is None:
                return
            size = pod.kept_bytes()
            if size > _POD_KEPT_LIMIT or kept_bytes + size > self._kept_limit:
                left_out[pod.uid] = f"{pod.namespace}/{pod.name}"
                return
            kept_bytes += size
            pods[pod.uid] = pod

        # Any version will do, which spares the server going through all pods of the cluster; what
        # has changed since comes by the watch. Such a list is one page whatever the limit; servers
        # that keep no cache heed it.
        query = {"resourceVersion": "0", "limit": str(_PAGE), **self._selector}
        until_s = time.monotonic() + _LIST_S
        left = _LIST_LIMIT
        try:
            while True:
                self.counters["lists"] += 1
                with self._api.get(_PODS, query, silence_s=_SILENCE_S) as answer:
                    before = self.counters["bytes"]
                    pieces = self._counted(answer.pieces(left, until_s))
                    version, token = read_list(pieces, self._shape, take)
                    left -= self.counters["bytes"] - before
                if token is None:
                    break
                # The token has the version within it.
                query = {"limit": str(_PAGE), "continue": token, **self._selector}
        except KubernetesError as error:
            with self._changed:
                self._failure = error
                self._attempts += 1
                self._changed.notify_all()
            raise
        with self._changed:
            is_news = pods != self._pods or left_out != self._left_out
            if is_news:
                self._pods, self._kept_bytes = pods, kept_bytes
                self._generation += 1
            self._left_out = left_out
            self._attempts += 1
            self._changed.notify_all()
        self._recovered(is_news=is_news)
        return version

    def _follow(self) -> None:
        """Take in the changes after the last version, until the server ends the watch."""
        # All nodes have begun when the server did, and must not come back at one moment.
        lasting_s = self._watch_s * _CHANCE.uniform(1.0, 2.0)
        self.counters["watches"] += 1
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version or "",
            "timeoutSeconds": str(max(1, int(lasting_s))),
            **self._selector,
        }
        # Where the machine of the server still answers and the server does not, that is noticed by
        # its silence past its own time.
        with self._api.get(_PODS, query, silence_s=lasting_s + _SILENCE_S) as answer:
            self._recovered(is_news=False)
            for kind, item in read_events(self._counted(answer.pieces()), self._shape):
                self.counters["events"] += 1
                self._take(kind, item)

    def _take(self, kind: str, item: dict[str, Any]) -> None:
        """Take one event of the watch."""
        metadata = _dict(item.get("metadata"))
        uid = metadata.get("uid")
        if kind in {"ADDED", "MODIFIED", "DELETED"} and isinstance(uid, str):
            self._put(uid, None if kind == "DELETED" else node_pod(item))
        # Also a bookmark's, which is told about no pod.
        version = metadata.get("resourceVersion")
        if isinstance(version, str) and version:
            self._version = version

    def _put(self, uid: str, pod: NodePod | None) -> None:
        with self._changed:
            before = self._pods or {}
            old = before.get(uid)
            if pod == old and uid not in self._left_out:
                return
            # Others read the pods that they were given without a lock.
            pods = {key: each for key, each in before.items() if key != uid}
            kept_bytes = self._kept_bytes - (0 if old is None else old.kept_bytes())
            left_out = {key: name for key, name in self._left_out.items() if key != uid}
            if pod is not None:
                size = pod.kept_bytes()
                if size > _POD_KEPT_LIMIT or kept_bytes + size > self._kept_limit:
                    left_out[uid] = f"{pod.namespace}/{pod.name}"
                else:
                    kept_bytes += size
                    pods[uid] = pod
            self._pods, self._kept_bytes, self._left_out = pods, kept_bytes, left_out
            self._generation += 1
        self._wake()

    def _counted(self, pieces: Iterable[bytes]) -> Iterable[bytes]:
        for piece in pieces:
            self.counters["bytes"] += len(piece)
            yield piece

    def _fail(self, failure: KubernetesError) -> None:
        self.counters["failures"] += 1
        self._failure = failure
        self._wake()

    def _recovered(self, *, is_news: bool) -> None:
        is_news = is_news or self._failure is not None
        self._failure = None
        if is_news:
            self._wake()

    def _wake(self) -> None:
        for wake in self._listeners:
            wake()


class _Pauses:
    """How long to leave the server alone, by what has come of the last requests."""

    def __init__(self, first_s: float) -> None:
        self._first_s = first_s
        self._unanswered = 0
        self._ended_early = 0
        self._refused_at_s: float | None = None

    def after(self, failure: KubernetesError | None, *, is_long: bool) -> float:
        """The pause after a failure, or after a watch that ended in order.

        Args:
            failure: What has failed; None if nothing.
            is_long: Whether the watch before had lasted.
        """
        status = None if failure is None else failure.status
        # By chance, for many nodes lose one server at the same moment.
        share = _CHANCE.uniform(0.5, 1.0)
        if status != _FORBIDDEN:
            self._refused_at_s = None
        if failure is not None and status == _TOO_MANY_REQUESTS:
            asked_s = max(failure.retry_after_s or 1.0, 1.0)
            return min(asked_s, _LONGEST_RETRY_AFTER_S) * (0.5 + share)
        if failure is not None and (status is None or status >= 500 or self._is_starting(status)):
            self._ended_early = 0
            pause_s = min(self._first_s * 2.0**self._unanswered, _LONGEST_OUTAGE_PAUSE_S)
            self._unanswered = min(self._unanswered + 1, 16)
            return pause_s * share
        # What an outage has added up says nothing about a server that is back.
        self._unanswered = 0
        if is_long:
            self._ended_early = 0
        if failure is None and is_long:
            return self._first_s * share
        if status == _GONE and self._ended_early == 0:
            self._ended_early = 1
            return 0.0
        pause_s = min(self._first_s * 2.0**self._ended_early, _LONGEST_PAUSE_S)
        self._ended_early = min(self._ended_early + 1, 16)
        return pause_s * share

    def _is_starting(self, status: int) -> bool:
        """Whether a refusal may be that of a server which does not know yet who may what."""
        if status != _FORBIDDEN:
            return False
        now_s = time.monotonic()
        if self._refused_at_s is None:
            self._refused_at_s = now_s
        return now_s - self._refused_at_s < _REFUSING_S


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}

"""The annotations of a node's pods as a plan: listed once, then watched."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from libhamiregion.node.daemon_names import kubernetes_client

from .annotations import annotated_pod, plan_of_pods
from .sources import SourceReading

if TYPE_CHECKING:
    from collections.abc import Iterator

    from libhamiregion.errors import PathLike

    from .annotations import AnnotatedPod

_PAGE: Final = 500
_LIST_LIMIT: Final = 256 << 20
# A pod has 1.5 MiB at most: what etcd takes.
_LINE_LIMIT: Final = 8 << 20
_GONE: Final = 410
_LONGEST_PAUSE_S: Final = 30.0
_CONNECT_TIMEOUT_S: Final = 10.0


class PodApiError(Exception):
    """The Kubernetes API has answered with an error, or with what is no answer.

    Attributes:
        status: The HTTP status; None where there was none.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class PodAnnotations:
    """The ``hamiregion.io/…`` annotations of a node's pods as a source of a plan.

    A thread lists the pods, then watches for changes from there on. A watch that ends, by itself or
    because the connection broke, is resumed where it was; one that the server has forgotten (410)
    begins with a new list. What was known stays in force while the API cannot be reached.

    Threads: `read` is for one at a time; the others may be called from any.

    Args:
        node: Only pods of this node, as the API selects them.
        kubeconfig: A kubeconfig file; without one the service account in a pod, else the default
            kubeconfig.
        watch_s: How long the server shall keep one watch open.
        first_pause_s: How long to wait after a first failure; each further one doubles it, up to
            30 s.

    Attributes:
        error: Why the API could not be used the last time; None if it could.

    Raises:
        ModuleNotFoundError: The extra ``kubernetes`` is not installed.

    Shell: ``kubectl get pods -A --watch --field-selector spec.nodeName=NODE``.
    """

    def __init__(
        self,
        node: str,
        *,
        kubeconfig: PathLike | None = None,
        watch_s: float = 240.0,
        first_pause_s: float = 0.5,
    ) -> None:
        import kubernetes
        import urllib3.exceptions

        self._kubernetes: Any = kubernetes
        self._errors: tuple[type[Exception], ...] = (
            kubernetes.client.ApiException,
            kubernetes.config.ConfigException,
            urllib3.exceptions.HTTPError,
            OSError,
            ValueError,
            PodApiError,
        )
        self._selector = f"spec.nodeName={node}"
        self._kubeconfig = None if kubeconfig is None else os.fspath(kubeconfig)
        self._client: Any = None
        self._watch_s = watch_s
        self._first_pause_s = first_pause_s
        self._lock = threading.Lock()
        self._pods: dict[str, AnnotatedPod] | None = None
        self._reading: SourceReading | None = None
        self._stopping = threading.Event()
        self._response: Any = None
        self._thread: threading.Thread | None = None
        self.error: str | None = None

    def read(self) -> SourceReading:
        """The rules of all pods whose annotations are right; no plan before the first list."""
        problems = {} if self.error is None else {"kubernetes": self.error}
        with self._lock:
            if self._reading is None and self._pods is not None:
                self._reading = plan_of_pods(self._pods.values())
            found = self._reading
        if found is None:
            return SourceReading(None, problems)
        return SourceReading(found.plan, {**problems, **found.problems}, found.held)

    def load(self) -> None:
        """List the pods here and now, once.

        Raises:
            PodApiError: The API has not answered as it should; the message says how.
        """
        try:
            self._list()
        except self._errors as error:
            raise PodApiError(self._error_text(error), getattr(error, "status", None)) from error

    def start(self) -> None:
        """Begin to list and to watch, in a thread."""
        if self._thread is None:
            # A daemon: a server that never answers must not keep the program from ending.
            self._thread = threading.Thread(target=self._run, name="hami-pods", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the watch; may be called again."""
        self._stopping.set()
        opened = getattr(getattr(self._response, "connection", None), "sock", None)
        if opened is not None:
            # This wakes the thread that reads from it.
            with contextlib.suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)
        if self._thread is not None:
            self._thread.join(_CONNECT_TIMEOUT_S)

    # ---- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        version: str | None = None
        failures = 0
        while not self._stopping.is_set():
            begun_s = time.monotonic()
            try:
                if version is None:
                    version = self._list()
                    begun_s = time.monotonic()
                for number, reached in enumerate(self._watch(version)):
                    # That the watch was accepted may be all that comes of it, again and again.
                    failures = 0 if number else failures
                    version, self.error = reached, None
                # The server ends a watch after its time. One that is ended at once is no watch.
                if time.monotonic() - begun_s >= self._first_pause_s:
                    failures = 0
                    continue
            except self._errors as error:
                if self._stopping.is_set():
                    return
                if time.monotonic() - begun_s >= _LONGEST_PAUSE_S:
                    failures = 0
                if getattr(error, "status", None) == _GONE:
                    version = None
                else:
                    self.error = self._error_text(error)
            pause_s = min(self._first_pause_s * 2 ** min(failures, 16), _LONGEST_PAUSE_S)
            failures += 1
            # Many nodes lose one server at the same moment, and must not come back at one.
            self._stopping.wait(pause_s * random.uniform(0.5, 1.0))  # noqa: S311

    def _list(self) -> str:
        """List all pods; returns the version from which to watch."""
        pods: dict[str, AnnotatedPod] = {}
        total = 0
        query: dict[str, Any] = {"limit": _PAGE}
        while True:
            raw = self._ask(**query).data
            total += len(raw)
            if total > _LIST_LIMIT:
                raise PodApiError(f"a listing of more than {_LIST_LIMIT} bytes")
            page = _object(raw)
            items, metadata = page.get("items"), page.get("metadata")
            if not isinstance(items, list) or not isinstance(metadata, dict):
                raise PodApiError("the answer is no list of pods")
            for item in items:
                pod = annotated_pod(item)
                if pod is not None:
                    pods[_uid(item)] = pod
            query["_continue"] = metadata.get("continue")
            if not query["_continue"]:
                break
        with self._lock:
            self._pods, self._reading = pods, None
        self.error = None
        return str(metadata.get("resourceVersion") or "")

    def _watch(self, version: str) -> Iterator[str]:
        """Follow the changes after a version; yields each version that has been reached."""
        # A server that has gone without a word is noticed by its silence past its own time.
        response = self._ask(
            watch=True,
            resource_version=version,
            allow_watch_bookmarks=True,
            timeout_seconds=max(1, int(self._watch_s)),
            _request_timeout=(_CONNECT_TIMEOUT_S, self._watch_s + _CONNECT_TIMEOUT_S),
        )
        self._response = response
        try:
            if self._stopping.is_set():
                return
            # That the server accepts the version is an answer already.
            yield version
            for line in _lines(response):
                reached = self._take(_object(line))
                if reached:
                    yield reached
        finally:
            self._response = None
            response.close()
            response.release_conn()

    def _take(self, event: dict[str, Any]) -> str | None:
        """Take one event of the watch; returns the version that it brings."""
        kind, item = event.get("type"), event.get("object")
        if not isinstance(item, dict):
            raise PodApiError("an event of the watch has no object")
        if kind == "ERROR":
            status = item.get("code")
            message = item.get("message") or item.get("reason") or "an error"
            raise PodApiError(str(message), status if isinstance(status, int) else None)
        uid = _uid(item)
        if kind in {"ADDED", "MODIFIED", "DELETED"} and uid:
            pod = None if kind == "DELETED" else annotated_pod(item)
            with self._lock:
                assert self._pods is not None  # noqa: S101 (a watch follows a list)
                if pod != self._pods.get(uid):
                    self._reading = None
                if pod is None:
                    self._pods.pop(uid, None)
                else:
                    self._pods[uid] = pod
        version = _metadata(item).get("resourceVersion")
        return version if isinstance(version, str) else None

    # ---- the connection -------------------------------------------------------------------------

    def _ask(self, **query: Any) -> Any:
        if self._client is None:
            self._client = kubernetes_client(self._kubernetes, self._kubeconfig)
        api = self._kubernetes.client.CoreV1Api(self._client)
        query.setdefault("_request_timeout", (_CONNECT_TIMEOUT_S, 60.0))
        # Raw: the client's models refuse what a newer server may send.
        response = api.list_pod_for_all_namespaces(
            field_selector=self._selector, _preload_content=False, **query
        )
        if not 200 <= response.status <= 299:
            raw = response.data
            response.release_conn()
            raise PodApiError(_reason(response.status, raw), response.status)
        return response

    def _error_text(self, error: Exception) -> str:
        if isinstance(error, self._kubernetes.client.ApiException):
            return _reason(error.status, error.body) if error.status else str(error.reason)
        return str(error) or type(error).__name__


def _object(raw: bytes) -> dict[str, Any]:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise PodApiError("the answer is no JSON object")
    return value


def _metadata(item: Any) -> dict[str, Any]:
    metadata = item.get("metadata") if isinstance(item, dict) else None
    return metadata if isinstance(metadata, dict) else {}


def _uid(item: Any) -> str:
    uid = _metadata(item).get("uid")
    return uid if isinstance(uid, str) else ""


def _reason(status: int, raw: Any) -> str:
    try:
        message = _object(raw or b"").get("message")
    except (PodApiError, TypeError):
        message = None
    return f"the API answered {status}" + (f": {message}" if isinstance(message, str) else "")


def _lines(response: Any) -> Iterator[bytes]:
    waiting = bytearray()
    for chunk in response.stream(amt=None, decode_content=False):
        waiting += chunk
        *lines, rest = waiting.split(b"\n")
        waiting = rest
        yield from (bytes(line) for line in lines if line.strip())
        if len(waiting) > _LINE_LIMIT:
            raise PodApiError(f"an event of more than {_LINE_LIMIT} bytes")

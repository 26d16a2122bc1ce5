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

from libhamiregion.errors import needs_extra
from libhamiregion.node.daemon_names import (
    NODE_LIST_LIMIT,
    answer_text,
    api_error_text,
    kubernetes_client,
    read_answer,
)

from .annotations import annotated_pod, plan_of_pods
from .sources import SourceReading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from libhamiregion.errors import PathLike

    from .annotations import AnnotatedPod

_PAGE: Final = 500
_LIST_S: Final = 60.0
_LONGEST_PAUSE_S: Final = 30.0
# A server that is not there costs little to ask, and when it is back its news is due.
_LONGEST_OUTAGE_PAUSE_S: Final = 2.5
_CONNECT_TIMEOUT_S: Final = 10.0
_UNAUTHORIZED: Final = 401


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

    A thread lists the pods, then watches for changes from there on; a watch that ends, by itself or
    because the connection broke, begins with a new list. What was known stays in force while the
    API cannot be reached.

    Threads: `read` is for one at a time; the others may be called from any.

    Args:
        node: Only pods of this node, as the API selects them.
        kubeconfig: A kubeconfig file; without one the service account in a pod, else the default
            kubeconfig.
        watch_s: How long the server shall keep one watch open.
        first_pause_s: How long to wait after a watch that has ended early, or was refused; each
            further one doubles it, up to 30 s. While the server does not answer, or is not ready,
            2.5 s at most.

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
        with needs_extra("PodAnnotations", "kubernetes"):
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
        self._wake: Callable[[], None] = _nothing
        self.error: str | None = None

    def when_changed(self, wake: Callable[[], None]) -> None:
        """Have `wake` called, from the thread that watches, when `read` would say something new."""
        self._wake = wake

    def read(self) -> SourceReading:
        """The rules of all pods whose annotations are right; no plan before the first list."""
        # Once: the thread that watches may clear it at any moment.
        error = self.error
        problems = {} if error is None else {"kubernetes": error}
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
            raise PodApiError(_error_text(error), getattr(error, "status", None)) from error

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
        ended_early = unanswered = 0
        while not self._stopping.is_set():
            begun_s = time.monotonic()
            has_answered = False
            try:
                version = self._list()
                has_answered = True
                self._follow(version)
            except Exception as error:  # noqa: BLE001 (else it would end, and nobody would know)
                if not self._stopping.is_set():
                    self.error = _error_text(error)
                    self._wake()
                status = getattr(error, "status", None) or 0
                has_answered = has_answered or 0 < status < 500
                if status == _UNAUTHORIZED:
                    # Whoever has revoked a token may have written another.
                    self._client = None
            if has_answered:
                # What an outage has added up says nothing about a server that is back.
                unanswered = 0
                if time.monotonic() - begun_s >= min(_LONGEST_PAUSE_S, self._watch_s):
                    ended_early = 0
                pause_s = min(self._first_pause_s * 2**ended_early, _LONGEST_PAUSE_S)
                ended_early = min(ended_early + 1, 16)
            else:
                pause_s = min(self._first_pause_s * 2**unanswered, _LONGEST_OUTAGE_PAUSE_S)
                unanswered = min(unanswered + 1, 16)
            # Many nodes lose one server at the same moment, and must not come back at one.
            self._stopping.wait(pause_s * random.uniform(0.5, 1.0))  # noqa: S311

    def _list(self) -> str:
        """List all pods; returns the version from which to watch."""
        pods: dict[str, AnnotatedPod] = {}
        query: dict[str, Any] = {"limit": _PAGE}
        left, until_s = NODE_LIST_LIMIT, time.monotonic() + _LIST_S
        while True:
            raw = read_answer(self._ask(**query), left, until_s)
            left -= len(raw)
            page = _object(raw)
            items, metadata = page.get("items"), page.get("metadata")
            if not isinstance(items, list) or not isinstance(metadata, dict):
                raise PodApiError("the answer is no list of pods")
            pods.update((_uid(item), pod) for item in items if (pod := annotated_pod(item)))
            query["_continue"] = metadata.get("continue")
            if not query["_continue"]:
                break
        with self._lock:
            # The plan of pods that are the same is the same object.
            if pods != self._pods:
                self._pods, self._reading = pods, None
        self.error = None
        self._wake()
        return str(metadata.get("resourceVersion") or "")

    def _follow(self, version: str) -> None:
        """Take in the changes after a version, until the server ends the watch."""
        # Where the machine of the server still answers and the server does not, that is noticed by
        # its silence past its own time.
        response = self._ask(
            watch=True,
            resource_version=version,
            timeout_seconds=max(1, int(self._watch_s)),
            _request_timeout=(_CONNECT_TIMEOUT_S, self._watch_s + _CONNECT_TIMEOUT_S),
        )
        self._response = response
        try:
            if self._stopping.is_set():
                return
            for line in _lines(response):
                self._take(_object(line))
        finally:
            self._response = None
            response.close()
            response.release_conn()

    def _take(self, event: dict[str, Any]) -> None:
        """Take one event of the watch."""
        kind, item = event.get("type"), event.get("object")
        if not isinstance(item, dict):
            raise PodApiError("an event of the watch has no object")
        if kind == "ERROR":
            status = item.get("code")
            raise PodApiError(
                str(item.get("message") or item.get("reason") or "an error"),
                status if isinstance(status, int) else None,
            )
        if kind not in ("ADDED", "MODIFIED", "DELETED"):
            return
        uid, pod = _uid(item), None if kind == "DELETED" else annotated_pod(item)
        with self._lock:
            assert self._pods is not None  # noqa: S101 (a watch follows a list)
            if pod != self._pods.get(uid):
                self._reading = None
            if pod is None:
                self._pods.pop(uid, None)
            else:
                self._pods[uid] = pod
            is_news = self._reading is None
        if is_news:
            self._wake()

    # ---- the connection -------------------------------------------------------------------------

    def _ask(self, **query: Any) -> Any:
        if self._client is None:
            self._client = kubernetes_client(self._kubernetes, self._kubeconfig)
        api = self._kubernetes.client.CoreV1Api(self._client)
        query.setdefault("_request_timeout", (_CONNECT_TIMEOUT_S, _LIST_S))
        # Raw: the client's models refuse what a newer server may send.
        response = api.list_pod_for_all_namespaces(
            field_selector=self._selector, _preload_content=False, **query
        )
        if not 200 <= response.status <= 299:
            raw = response.data
            response.release_conn()
            raise PodApiError(answer_text(response.status, raw), response.status)
        return response


def _error_text(error: Exception) -> str:
    # Ours has its own sentence.
    return str(error) if isinstance(error, PodApiError) else api_error_text(error)


def _nothing() -> None:
    """Nobody waits for news."""


def _object(raw: bytes) -> dict[str, Any]:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise PodApiError("the answer is no JSON object")
    return value


def _uid(item: dict[str, Any]) -> str:
    metadata = item.get("metadata")
    return str(metadata.get("uid")) if isinstance(metadata, dict) else ""


def _lines(response: Any) -> Iterator[bytes]:
    rest = b""
    for chunk in response.stream(amt=None, decode_content=False):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from filter(None, map(bytes.strip, lines))

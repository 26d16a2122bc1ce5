"""The one client of the Kubernetes API: requests that read, and answers taken as they come."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import threading
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from .kube_config import ConfigError, ServerAccess, find_access
from .kubernetes_error import KubernetesError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator, Mapping

    from typing_extensions import Self

    from libhamiregion.errors import PathLike

_CONNECT_TIMEOUT_S = 10.0
_PIECE = 1 << 16
# The text of an error; what is longer is none that anybody reads.
_ERROR_LIMIT = 64 << 10
_UNAUTHORIZED = 401
# The kernel notices after 25 s that a server's machine is gone, also while a watch only listens.
_SOCKET_OPTIONS = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)


class KubernetesApi:
    """GET requests to the API server, one at a time, over one connection that is kept.

    Threads: `get`, `close` and the answer are for one thread at a time; `abort` may be called from
    others.

    Args:
        kubeconfig: A kubeconfig file; None means the service account in a pod, else the file that
            kubectl would use. It is read at the first request, and again after a 401.
    """

    def __init__(self, kubeconfig: PathLike | None = None) -> None:
        self._kubeconfig = None if kubeconfig is None else os.fspath(kubeconfig)
        self._access: ServerAccess | None = None
        self._connection: _Connection | None = None
        # That of the connection, also when http.client has handed it to an answer.
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()
        self._is_aborted = False

    def get(self, path: str, query: Mapping[str, str], *, silence_s: float = 10.0) -> Answer:
        """Ask for one path.

        Args:
            path: Below the server's address, such as ``/api/v1/pods``.
            query: The parameters.
            silence_s: How long the server may say nothing, before and within its answer.

        Returns:
            The answer, of which nothing has been read; the caller closes it.

        Raises:
            KubernetesError: The API cannot be reached, or has answered with an error.
        """
        try:
            if self._access is None:
                self._access = find_access(self._kubeconfig)
            target = self._access.prefix + path + (f"?{urlencode(query)}" if query else "")
            response = self._ask(self._access, target, silence_s)
            if response.status == http.client.OK:
                return Answer(self, response)
            with response:
                raw = response.read(_ERROR_LIMIT)
        except (ConfigError, OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            raise KubernetesError(_in_words(error)) from error
        self.close()
        if response.status == _UNAUTHORIZED:
            # Whoever has revoked a token may have written another.
            self._access = None
        raise KubernetesError(
            _status_text(response.status, raw),
            response.status,
            _seconds(response.headers.get("Retry-After")),
        )

    def abort(self) -> None:
        """End the request that another thread waits for, and refuse all later ones."""
        with self._lock:
            self._is_aborted = True
            if self._socket is not None:
                # This wakes the thread that reads from it.
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection; the next request makes another."""
        with self._lock:
            connection, self._connection, self._socket = self._connection, None, None
        if connection is not None:
            connection.close()

    def _ask(self, access: ServerAccess, target: str, silence_s: float) -> http.client.HTTPResponse:
        headers = {"Accept": "application/json", "User-Agent": "hamiregion", **access.headers()}
        while True:
            if getattr(self._connection, "sock", None) is None:
                self.close()
            is_fresh = self._connection is None
            connection = self._connection or self._connect(access)
            try:
                connection.sock.settimeout(silence_s)
                connection.request("GET", target, headers=headers)
                return connection.getresponse()
            except (ConnectionError, http.client.RemoteDisconnected):
                # A server may close a connection that has rested.
                self.close()
                if is_fresh:
                    raise

    def _connect(self, access: ServerAccess) -> _Connection:
        connection = self._connection = _Connection(access)
        connection.connect()
        with self._lock:
            self._socket = connection.sock
            if self._is_aborted:
                raise ConnectionAbortedError("the client is closed")
        return connection


class Answer:
    """What the API sends with status 200; a context manager."""

    def __init__(self, api: KubernetesApi, response: http.client.HTTPResponse) -> None:
        self._api = api
        self._response = response
        self._is_whole = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._response.close()
        if not self._is_whole:
            self._api.close()

    def pieces(self, limit: int | None = None, until_s: float | None = None) -> Iterator[bytes]:
        """The body in pieces, each as soon as it is there.

        Args:
            limit: How many bytes it may have.
            until_s: When it must have ended, by `time.monotonic`.

        Raises:
            KubernetesError: It is longer, takes longer, or has ended before its end.
        """
        left = limit
        try:
            while piece := self._response.read1(_PIECE):
                if left is not None and (left := left - len(piece)) < 0:
                    raise KubernetesError("the API's answer is too long")
                yield piece
                if until_s is not None and time.monotonic() > until_s:
                    raise KubernetesError("the API's answer took too long")
            if self._response.length:
                raise http.client.IncompleteRead(b"", self._response.length)
        except http.client.IncompleteRead:
            raise KubernetesError("the API's answer ended too early") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise KubernetesError(_in_words(error)) from error
        self._is_whole = True


class _Connection(http.client.HTTPConnection):
    """A connection to the API server, encrypted where its address says so."""

    sock: socket.socket

    def __init__(self, access: ServerAccess) -> None:
        super().__init__(access.host, access.port, timeout=_CONNECT_TIMEOUT_S)
        self._context: ssl.SSLContext | None = access.context
        self._server_name = access.server_name

    def connect(self) -> None:
        """Connect, and shake hands within the timeout."""
        super().connect()
        for option in _SOCKET_OPTIONS:
            self.sock.setsockopt(*option)
        if self._context is not None:
            self.sock = self._context.wrap_socket(self.sock, server_hostname=self._server_name)


def _in_words(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "the API did not answer in time"
    return " ".join(str(error).split()) or type(error).__name__


def _status_text(status: int, raw: bytes) -> str:
    try:
        document: Any = json.loads(raw)
    except (ValueError, RecursionError):
        document = None
    message = document.get("message") if isinstance(document, dict) else None
    return f"the API answered {status}" + (f": {message}" if isinstance(message, str) else "")


def _seconds(text: str | None) -> float | None:
    return float(text) if text is not None and text.isascii() and text.isdigit() else None

"""Requests to the Kubernetes API: where the server is, which account asks, and its answers."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from libhamiregion.bounded_file import read_bounded
from libhamiregion.errors import needs_extra

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator, Mapping

    import urllib3

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TOKEN_LIMIT = 64 << 10
_FILE_LIMIT = 8 << 20
_ERROR_LIMIT = 64 << 10
_CONNECT_TIMEOUT_S = 10.0
# For a pipe, such as the shell's <(...), which may decrypt something first.
_SILENCE_S = 10.0
# The kernel notices after 25 s that the server's machine is gone, also while a watch only listens.
_SOCKET_OPTIONS = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
]


class KubernetesError(Exception):
    """The Kubernetes API cannot be reached, refuses, or gives no valid answer.

    Attributes:
        status: The HTTP status; None without one.
        retry_after_s: How long the server asks clients to wait; None if it does not say.
    """

    def __init__(
        self, message: str, status: int | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s


@attrs.frozen
class _Access:
    """How to reach the API server, and which headers authenticate each request."""

    url: str
    pool: urllib3.PoolManager
    headers: Callable[[], Mapping[str, str]]


class KubernetesApi:
    """GET requests to the API server.

    Threads: one request at a time.

    Args:
        kubeconfig: A kubeconfig file with a token or a client certificate; None means the service
            account in a pod, else ``$KUBECONFIG`` or ``~/.kube/config``. It is read at the first
            request, and again after a 401.

    Raises:
        ModuleNotFoundError: The extra ``kubernetes`` is not installed.
    """

    def __init__(self, kubeconfig: str | None = None) -> None:
        with needs_extra("The Kubernetes API", "kubernetes"):
            import ijson  # noqa: F401
            import urllib3  # noqa: F401
            import yaml  # noqa: F401
        self._kubeconfig = kubeconfig
        self._access: _Access | None = None

    @contextlib.contextmanager
    def get(
        self, path: str, query: Mapping[str, str], *, accept: str, silence_s: float
    ) -> Iterator[urllib3.BaseHTTPResponse]:
        """Ask for one path; the body of the response is read within the context.

        Args:
            path: Path below the server's address, such as ``/api/v1/pods``.
            query: The parameters.
            accept: Media type of the answer.
            silence_s: How long the server may send nothing.

        Raises:
            KubernetesError: The API cannot be reached, or has answered with an error; also while
                the body is read.
        """
        import ijson
        import urllib3

        try:
            access = self._access = self._access or _find_access(self._kubeconfig)
            response = access.pool.request(
                "GET",
                access.url + path,
                fields=dict(query),
                headers={"Accept": accept, "User-Agent": "hamiregion", **access.headers()},
                timeout=urllib3.Timeout(connect=_CONNECT_TIMEOUT_S, read=silence_s),
                preload_content=False,
                retries=False,
            )
            try:
                if response.status != 200:
                    raise self._refusal(response)
                yield response
            finally:
                response.close()
        except KubernetesError:
            raise
        except (
            *(urllib3.exceptions.HTTPError, ijson.JSONError, OSError),
            *(ValueError, TypeError, KeyError, AttributeError, RecursionError),
        ) as error:
            # An answer of another shape leads to any of these.
            words = " ".join(str(error).split()) or type(error).__name__
            raise KubernetesError(words[:400]) from error

    def _refusal(self, response: urllib3.BaseHTTPResponse) -> KubernetesError:
        if response.status == 401:
            # The token may have been replaced.
            self._access = None
        message = f"the API answered {response.status}"
        with contextlib.suppress(ValueError, AttributeError):
            message += f": {json.loads(response.read(_ERROR_LIMIT)).get('message')}"
        after = response.headers.get("Retry-After") or ""
        return KubernetesError(
            message, response.status, float(after) if after.isdecimal() else None
        )


def _find_access(kubeconfig: str | None) -> _Access:
    if kubeconfig is None and "KUBERNETES_SERVICE_HOST" in os.environ:
        host = os.environ["KUBERNETES_SERVICE_HOST"]
        port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        url = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
        import ssl

        context = ssl.create_default_context(cafile=_ACCOUNT / "ca.crt")
        return _Access(url, _pool(context), _token_in(_ACCOUNT / "token"))
    path = Path(kubeconfig or os.environ.get("KUBECONFIG") or Path.home() / ".kube/config")
    try:
        return _of_file(path)
    except Exception as error:
        words = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise KubernetesError(f"{path}: {' '.join(str(words).split())[:400]}") from error


def _of_file(path: Path) -> _Access:
    import yaml

    config = yaml.safe_load(read_bounded(path, _FILE_LIMIT, silence_s=_SILENCE_S))
    chosen = _named(config, "context", config["current-context"])
    cluster = _named(config, "cluster", chosen["cluster"])
    user = _named(config, "user", chosen["user"]) if chosen.get("user") else {}
    if user.keys() & {"exec", "auth-provider", "username"}:
        raise ValueError("the user has neither a token nor a client certificate")
    is_encrypted = cluster["server"].startswith("https://")
    context = _tls(path.parent, cluster, user) if is_encrypted else None
    token = {"Authorization": f"Bearer {user['token']}"} if user.get("token") else {}
    headers: Callable[[], Mapping[str, str]] = lambda: token  # noqa: E731 (one of two)
    if user.get("tokenFile"):
        headers = _token_in(path.parent / user["tokenFile"])
    return _Access(cluster["server"].rstrip("/"), _pool(context), headers)


def _named(config: Any, kind: str, name: str) -> dict[str, Any]:
    found: dict[str, dict[str, Any]] = {each["name"]: each[kind] for each in config[f"{kind}s"]}
    return found[name]


def _tls(folder: Path, cluster: Mapping[str, Any], user: Mapping[str, Any]) -> ssl.SSLContext:
    import ssl

    authority = _data(folder, cluster, "certificate-authority")
    # Comments around the certificates may have any characters.
    text = None if authority is None else authority.decode("ascii", "ignore")
    context = ssl.create_default_context(cadata=text)
    certificate, key = (_data(folder, user, f"client-{each}") for each in ("certificate", "key"))
    if certificate is not None:
        # OpenSSL reads certificates and keys from files only.
        memory = os.memfd_create("client-certificate", os.MFD_CLOEXEC)
        with os.fdopen(memory, "wb") as file:
            file.write(certificate + b"\n" + (key or b""))
            file.flush()
            context.load_cert_chain(f"/proc/self/fd/{memory}")
    return context


def _data(folder: Path, entry: Mapping[str, Any], key: str) -> bytes | None:
    """The content of an entry's field, or of the file that the entry names."""
    if entry.get(f"{key}-data"):
        return base64.b64decode(entry[f"{key}-data"], validate=True)
    if not entry.get(key):
        return None
    content = read_bounded(folder / entry[key], _FILE_LIMIT, silence_s=_SILENCE_S)
    if not content:
        # An empty text would mean the system's authorities.
        raise ValueError(f"{folder / entry[key]} is empty")
    return content


def _token_in(path: Path) -> Callable[[], Mapping[str, str]]:
    """Headers with the token of a file, read for each request: kubelet replaces it."""

    def headers() -> Mapping[str, str]:
        token = read_bounded(path, _TOKEN_LIMIT).decode("ascii").strip()
        if not token:
            raise ValueError(f"{path} is empty")
        return {"Authorization": f"Bearer {token}"}

    return headers


def _pool(context: ssl.SSLContext | None) -> urllib3.PoolManager:
    import urllib3

    return urllib3.PoolManager(socket_options=_SOCKET_OPTIONS, ssl_context=context)

"""Where the API server is, and by which account it is asked: a pod's own, or a kubeconfig's."""

from __future__ import annotations

import base64
import binascii
import errno
import json
import os
import ssl
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import attrs

from libhamiregion.bounded_file import read_bounded
from libhamiregion.errors import needs_extra

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TOKEN_LIMIT = 64 << 10
_KUBECONFIG_LIMIT = 8 << 20
_CERTIFICATE_LIMIT = 1 << 20
# For a pipe, such as the shell's <(...), which may decrypt something first.
_SILENCE_S = 10.0
# A pipe gives its content once, and several clients of a process read the configuration.
_FROM_PIPES: Final = dict[str, bytes]()
_PLUGIN_S = 60.0


class _TlsSocket(ssl.SSLSocket):
    """A socket that is closed where the server has gone before the handshake.

    The ssl module asks each new one for its peer. It goes on with one that has none, or raises and
    leaves it open.
    """

    def getpeername(self) -> Any:
        try:
            return super().getpeername()
        except OSError:
            self.close()
            raise ConnectionResetError(
                errno.ECONNRESET, "the server has closed the connection before the handshake"
            ) from None


class ConfigError(Exception):
    """There is no configuration for the API that can be used; the message says why."""


@attrs.frozen
class ServerAccess:
    """How to reach the API server.

    Attributes:
        host: Name or address.
        port: TCP port.
        prefix: Of every path there; empty for most servers.
        context: For TLS; None for plain HTTP.
        server_name: Whom the certificate is to be for.
        headers: Gives those that say who asks; called for each request, for a token is replaced
            while it is used.
    """

    host: str
    port: int
    prefix: str
    context: ssl.SSLContext | None
    server_name: str
    headers: Callable[[], Mapping[str, str]]


def find_access(kubeconfig: str | None) -> ServerAccess:
    """A pod's own account where we run in one and no file is named; else what kubectl would use.

    Raises:
        ConfigError: There is no configuration, or it cannot be used.
    """
    if kubeconfig is None and "KUBERNETES_SERVICE_HOST" in os.environ:
        return _of_the_pod()
    if kubeconfig is not None:
        paths = [kubeconfig]
    else:
        named = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
        paths = [path for path in named.split(os.pathsep) if path]
    about = kubeconfig or ", ".join(paths)
    try:
        return _of_files(paths)
    except ConfigError as error:
        raise ConfigError(f"{about}: {error}") from error
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        # A file of another shape leads to any of these.
        words = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise ConfigError(f"{about}: {' '.join(str(words).split())}") from error


def _of_the_pod() -> ServerAccess:
    try:
        context = ssl.create_default_context(cafile=_ACCOUNT / "ca.crt")
        context.sslsocket_class = _TlsSocket
        token = _ACCOUNT / "token"
        host = os.environ["KUBERNETES_SERVICE_HOST"]
        port = int(os.environ.get("KUBERNETES_SERVICE_PORT", "443"))
        _bearer_of(token)()
    except (OSError, ValueError) as error:
        words = getattr(error, "strerror", None) or error
        raise ConfigError(f"the pod's service account in {_ACCOUNT}: {words}") from error
    return ServerAccess(host, port, "", context, host, _bearer_of(token))


def _of_files(paths: list[str]) -> ServerAccess:
    files = [(Path(path).parent, _document(path)) for path in paths]
    name = next((each["current-context"] for _, each in files if each.get("current-context")), None)
    if name is None:
        raise ConfigError("no current-context")
    _, chosen = _named(files, "context", name)
    folder, cluster = _named(files, "cluster", chosen["cluster"])
    address = urlsplit(cluster["server"])
    if address.scheme not in {"http", "https"} or address.hostname is None:
        raise ConfigError(f"{cluster['server']!r} is no address of a server")
    if cluster.get("proxy-url"):
        raise ConfigError("proxy-url is not supported")
    user_folder, user = folder, dict[str, Any]()
    if chosen.get("user"):
        user_folder, user = _named(files, "user", chosen["user"])
    if "auth-provider" in user:
        raise ConfigError("auth-provider is not supported; use exec, a token or a certificate")
    context = None
    found = _credentials(user_folder, user)
    if address.scheme == "https":
        context = _tls(folder, cluster, found)
    return ServerAccess(
        address.hostname,
        address.port or (443 if context else 80),
        address.path.rstrip("/"),
        context,
        str(cluster.get("tls-server-name") or address.hostname),
        found.headers,
    )


@attrs.frozen
class _Credentials:
    """What proves who asks: headers, and a certificate with its key as PEM."""

    headers: Callable[[], Mapping[str, str]] = dict
    certificate: bytes | None = None


def _credentials(folder: Path, user: Mapping[str, Any]) -> _Credentials:
    if "exec" in user:
        made = _by_plugin(folder, user["exec"])
        user = {**user, "token": made.get("token"), "tokenFile": None}
        if "clientCertificateData" in made:
            pem = f"{made['clientCertificateData']}\n{made['clientKeyData']}"
            return _Credentials(_bearer(user["token"]), pem.encode())
    certificate = _data(folder, user, "client-certificate")
    if certificate is not None:
        certificate += b"\n" + (_data(folder, user, "client-key") or b"")
    headers: Callable[[], Mapping[str, str]] = _bearer(user.get("token"))
    if user.get("tokenFile"):
        headers = _bearer_of(folder / user["tokenFile"])
    elif user.get("username"):
        pair = f"{user['username']}:{user.get('password', '')}".encode()
        basic = f"Basic {base64.b64encode(pair).decode()}"
        headers = lambda: {"Authorization": basic}  # noqa: E731 (one of several)
    return _Credentials(headers, certificate)


def _bearer(token: object) -> Callable[[], Mapping[str, str]]:
    found = {"Authorization": f"Bearer {token}"} if token else {}
    return lambda: found


def _bearer_of(path: Path) -> Callable[[], Mapping[str, str]]:
    def headers() -> Mapping[str, str]:
        token = read_bounded(path, _TOKEN_LIMIT).decode("ascii").strip()
        if not token:
            raise ValueError(f"{path} is empty")
        return {"Authorization": f"Bearer {token}"}

    return headers


def _tls(folder: Path, cluster: Mapping[str, Any], found: _Credentials) -> ssl.SSLContext:
    authority = _data(folder, cluster, "certificate-authority")
    context = ssl.create_default_context(
        # Around the certificates there may be words in any language.
        cadata=None if authority is None else authority.decode("ascii", "ignore")
    )
    context.sslsocket_class = _TlsSocket
    # In quotes it would be a text, of which "false" is as true as any.
    if cluster.get("insecure-skip-tls-verify") is True:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if found.certificate is not None:
        # OpenSSL reads certificates and keys from files only.
        memory = os.memfd_create("client-certificate", os.MFD_CLOEXEC)
        with os.fdopen(memory, "wb") as file:
            file.write(found.certificate)
            file.flush()
            context.load_cert_chain(f"/proc/self/fd/{memory}")
    return context


def _data(folder: Path, entry: Mapping[str, Any], key: str) -> bytes | None:
    """What stands in an entry itself, or in the file that it names."""
    if entry.get(f"{key}-data"):
        try:
            return base64.b64decode(entry[f"{key}-data"], validate=True)
        except binascii.Error as error:
            raise ConfigError(f"{key}-data: {error}") from error
    if not entry.get(key):
        return None
    content = read_bounded(folder / entry[key], _CERTIFICATE_LIMIT, silence_s=_SILENCE_S)
    if not content:
        # An empty text would stand for the system's authorities.
        raise ConfigError(f"{folder / entry[key]} is empty")
    return content


def _content(path: str) -> bytes:
    """What a kubeconfig file holds, which may be a pipe, as it may be for kubectl."""
    content = _FROM_PIPES.get(path)
    if content is None:
        content = read_bounded(path, _KUBECONFIG_LIMIT, silence_s=_SILENCE_S)
        if not Path(path).is_file():
            _FROM_PIPES[path] = content
    return content


def _document(path: str) -> dict[str, Any]:
    with needs_extra("A kubeconfig file", "kubernetes"):
        import yaml

    try:
        document = yaml.safe_load(_content(path))
    except yaml.YAMLError as error:
        raise ConfigError(" ".join(str(error).split())) from error
    if not isinstance(document, dict):
        raise ConfigError("this is no kubeconfig")
    return document


def _named(
    files: list[tuple[Path, dict[str, Any]]], kind: str, name: object
) -> tuple[Path, dict[str, Any]]:
    """The first entry of that name, and the directory of its file."""

    def entries() -> Iterator[tuple[Path, dict[str, Any]]]:
        for folder, document in files:
            for each in document.get(f"{kind}s") or ():
                if each["name"] == name:
                    yield folder, each[kind]

    found = next(entries(), None)
    if found is None:
        raise ConfigError(f"there is no {kind} {name}")
    return found


def _by_plugin(folder: Path, plugin: Mapping[str, Any]) -> Mapping[str, Any]:
    """Have a program say who asks, as kubectl does."""
    command = str(plugin["command"])
    if "/" in command:
        command = str(folder / command)
    version = str(plugin["apiVersion"])
    asked = {"apiVersion": version, "kind": "ExecCredential", "spec": {"interactive": False}}
    own = {each["name"]: each["value"] for each in plugin.get("env") or ()}
    try:
        done = subprocess.run(
            [command, *map(str, plugin.get("args") or ())],
            env={**os.environ, **own, "KUBERNETES_EXEC_INFO": json.dumps(asked)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=_PLUGIN_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"the program {command} gave no credentials: {error}") from error
    status: Mapping[str, Any] = json.loads(done.stdout)["status"]
    return status

"""The web configuration file of Prometheus' exporters: certificate, key, client CA and users.

The format is that of the exporter-toolkit (``web.yml``). What this server does not do is refused,
never ignored: a file that asks for protection gets it, or an error that names the field.
"""

from __future__ import annotations

import re
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from libhamiregion.bounded_file import read_bounded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from libhamiregion.errors import PathLike

_SIZE_LIMIT: Final = 1 << 20
_TLS_FIELDS: Final = ("cert_file", "key_file", "client_auth_type", "client_ca_file")
_CLIENT_AUTH: Final[Mapping[str, ssl.VerifyMode]] = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
# With a cost of 17 a check takes several seconds. The salt's last character holds two bits of it;
# with others in it, bcrypt raises when somebody logs in.
_BCRYPT: Final = re.compile(
    r"\$2[abxy]\$(?:0[4-9]|1[0-6])\$[./A-Za-z0-9]{21}[.Oeu][./A-Za-z0-9]{31}\Z"
)


class WebConfigError(ValueError):
    """A web configuration that cannot be used; the message names the file and the field."""


@attrs.frozen
class WebConfig:
    """A web configuration that has been checked.

    Attributes:
        users: User to bcrypt hash; empty asks for no password.
        tls: What connections are made with; None is plain HTTP.
    """

    users: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    tls: ssl.SSLContext | None = None


def load_web_config(path: PathLike) -> WebConfig:
    """Read a web configuration, and the certificates that it names.

    Args:
        path: The YAML file. File names in it are relative to its directory.

    Raises:
        WebConfigError: It cannot be read, is no YAML, or asks for something unknown or impossible.
        ModuleNotFoundError: It wants passwords, and bcrypt is not installed.
    """
    name = str(Path(path).absolute())
    root = _mapping(name, "the file", _parse(name))
    _only(name, root, ("tls_server_config", "basic_auth_users"))
    users = _mapping(name, "basic_auth_users", root.get("basic_auth_users"))
    for user, hashed in users.items():
        if not user or ":" in user:
            raise WebConfigError(f"{name}: basic_auth_users: {user!r} can be no user's name")
        # The message does not repeat the value: it might be a password.
        if not isinstance(hashed, str) or not _BCRYPT.match(hashed):
            raise WebConfigError(
                f"{name}: basic_auth_users.{user}: no bcrypt hash of cost 4 to 16, such as"
                " `htpasswd -nBC 10 USER` prints after the colon"
            )
    if users:
        # Missing, it is missed when the program starts and not when somebody logs in.
        import bcrypt  # noqa: F401
    tls = _mapping(name, "tls_server_config", root.get("tls_server_config"))
    _only(name, tls, _TLS_FIELDS)
    for field, value in tls.items():
        # NUL and halves of characters can be written in YAML, and can be in no file's name.
        if not isinstance(value, str) or not value or not value.isprintable():
            raise WebConfigError(f"{name}: tls_server_config.{field}: text is wanted")
    files = {
        field: str(Path(name).parent / value)
        for field, value in tls.items()
        if field.endswith("_file")
    }
    context = _server_context(name, tls, files) if tls else None
    return WebConfig(users, context)


def _parse(name: str) -> Any:
    import yaml

    class UniqueKeys(yaml.SafeLoader):
        """A loader that takes no key twice."""

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            found = super().construct_mapping(node, deep)
            if len(found) != len(node.value):
                raise yaml.constructor.ConstructorError(
                    None, None, "a key is there twice", node.start_mark
                )
            return found

    content = _content(name)
    try:
        return yaml.load(content, UniqueKeys)  # noqa: S506 (a SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = "" if mark is None else f":{mark.line + 1}"
        raise WebConfigError(f"{name}{where}: no YAML: {error.problem}") from error
    except Exception as error:  # a bad !!bool is a KeyError, a bad !!timestamp an AttributeError
        raise WebConfigError(f"{name}: no YAML: {error}") from error


def _content(name: str) -> bytes:
    """What a regular file holds; one that is no file, such as a FIFO, would be waited for."""
    try:
        return read_bounded(name, _SIZE_LIMIT)
    except OSError as error:
        raise WebConfigError(f"{name}: {error.strerror}") from error


def _mapping(name: str, field: str, value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise WebConfigError(f"{name}: {field}: a mapping of names is wanted")
    return {key: inner for key, inner in value.items() if inner is not None}


def _only(name: str, fields: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for field in fields:
        if field not in known:
            raise WebConfigError(
                f"{name}: {field!r} is not supported; there are {', '.join(known)}"
            )


def _server_context(name: str, tls: Mapping[str, str], files: Mapping[str, str]) -> ssl.SSLContext:
    where = f"{name}: tls_server_config"
    for field in ("cert_file", "key_file"):
        if field not in files:
            raise WebConfigError(f"{where}: {field} is missing")
    asked = tls.get("client_auth_type", "NoClientCert")
    if asked not in _CLIENT_AUTH:
        raise WebConfigError(
            f"{where}.client_auth_type: {asked!r} is none of {', '.join(_CLIENT_AUTH)}"
        )
    if (asked != "NoClientCert") != ("client_ca_file" in files):
        raise WebConfigError(
            f"{where}: client_ca_file and a client_auth_type that verifies need each other"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A client can ask for renegotiations without end, each of which costs the server more.
    context.options |= ssl.OP_NO_RENEGOTIATION
    for file in files.values():
        _content(file)
    try:
        # Without a password of ours, OpenSSL would ask for one on the terminal.
        context.load_cert_chain(files["cert_file"], files["key_file"], password="")
    except (OSError, ValueError) as error:
        shown = f"certificate {files['cert_file']} with key {files['key_file']}"
        raise WebConfigError(f"{shown}: {_reason(error)}") from error
    if "client_ca_file" in files:
        context.verify_mode = _CLIENT_AUTH[asked]
        try:
            context.load_verify_locations(cafile=files["client_ca_file"])
        except (OSError, ValueError) as error:
            raise WebConfigError(
                f"{files['client_ca_file']}: no certificates in it: {_reason(error)}"
            ) from error
    return context


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return reason.lower().replace("_", " ") if reason else str(error)

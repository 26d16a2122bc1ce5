"""The web configuration file of Prometheus' exporters: certificate, key, client CA and users.

The format is that of the exporter-toolkit (``web.yml``). An unknown field is refused, never
ignored: a file that asks for protection gets it, or an error that names the field.
"""

from __future__ import annotations

import re
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from libhamiregion.bounded_file import read_bounded

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from libhamiregion.errors import PathLike

_SIZE_LIMIT: Final = 1 << 20
_FIELDS: Final = ("tls_server_config", "basic_auth_users")
_TLS_FIELDS: Final = ("cert_file", "key_file", "client_auth_type", "client_ca_file")
_CLIENT_AUTH: Final[Mapping[str, ssl.VerifyMode]] = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
# With a cost of 17 a check takes several seconds. The salt's last character holds two bits of it;
# with others in it, bcrypt raises at a login.
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
        tls: Encrypts connections; None is plain HTTP.
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
    import yaml

    name = str(Path(path).absolute())
    content = _content(name)
    try:
        document = yaml.safe_load(content)
    except Exception as error:  # a bad !!bool is a KeyError, a bad !!timestamp an AttributeError
        raise WebConfigError(f"{name}: no YAML: {' '.join(str(error).split())}") from error
    root = _mapping(name, "the file", document, _FIELDS)
    users = _mapping(name, "basic_auth_users", root.get("basic_auth_users"))
    for user, hashed in users.items():
        # The message does not repeat the value: it might be a password.
        if not user or ":" in user or not isinstance(hashed, str) or not _BCRYPT.match(hashed):
            raise WebConfigError(
                f"{name}: basic_auth_users: {user!r} takes a name without a colon and a bcrypt hash"
                " of cost 4 to 16, such as `htpasswd -nBC 10 USER` prints after the colon"
            )
    if users:
        # If it is missing, the program does not start.
        import bcrypt  # noqa: F401
    tls = _mapping(name, "tls_server_config", root.get("tls_server_config"), _TLS_FIELDS)
    return WebConfig(users, _server_context(name, tls) if tls else None)


def _content(name: str) -> bytes:
    """The content of a regular file; a FIFO would be waited for."""
    try:
        return read_bounded(name, _SIZE_LIMIT)
    except (OSError, ValueError) as error:
        raise WebConfigError(f"{name}: {getattr(error, 'strerror', None) or error}") from error


def _mapping(
    name: str, field: str, value: Any, known: Collection[str] | None = None
) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise WebConfigError(f"{name}: {field}: a mapping of names is wanted")
    for key in value if known is not None else ():
        if key not in (known or ()):
            there_are = ", ".join(known or ())
            raise WebConfigError(f"{name}: {key!r} is not supported; there are {there_are}")
    return {key: inner for key, inner in value.items() if inner is not None}


def _server_context(name: str, tls: Mapping[str, Any]) -> ssl.SSLContext:
    where = f"{name}: tls_server_config"
    for field, value in tls.items():
        # NUL and halves of characters can be written in YAML, and can be in no file's name.
        if not isinstance(value, str) or not value.isprintable():
            raise WebConfigError(f"{where}.{field}: text is wanted")
    files = {
        field: str(Path(name).parent / value)
        for field, value in tls.items()
        if field.endswith("_file")
    }
    asked = tls.get("client_auth_type", "NoClientCert")
    if "cert_file" not in files or "key_file" not in files:
        raise WebConfigError(f"{where}: cert_file and key_file need each other")
    if asked not in _CLIENT_AUTH:
        there_are = ", ".join(_CLIENT_AUTH)
        raise WebConfigError(f"{where}.client_auth_type: {asked!r} is none of {there_are}")
    if (asked != "NoClientCert") != ("client_ca_file" in files):
        raise WebConfigError(
            f"{where}: client_ca_file and a client_auth_type that verifies need each other"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A client can ask for renegotiations without end, each of which costs the server more.
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.verify_mode = _CLIENT_AUTH[asked]
    for file in files.values():
        _content(file)
    try:
        # Without a password of ours, OpenSSL would ask for one on the terminal.
        context.load_cert_chain(files["cert_file"], files["key_file"], password="")
        if "client_ca_file" in files:
            context.load_verify_locations(cafile=files["client_ca_file"])
    except (OSError, ValueError) as error:
        reason = str(getattr(error, "reason", None) or error).lower().replace("_", " ")
        raise WebConfigError(f"{where}: {', '.join(files.values())}: {reason}") from error
    return context

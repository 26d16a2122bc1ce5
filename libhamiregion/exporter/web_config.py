"""The web configuration file: TLS, passwords and headers, as exporters of Prometheus read them.

The format is that of Prometheus' exporter-toolkit (``web.yml``). What this server cannot do is
refused, never ignored: a file that asks for protection gets it, or an error that names the line.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from libhamiregion.units import parse_duration

if TYPE_CHECKING:
    from collections.abc import Mapping

    from libhamiregion.errors import PathLike

_SIZE_LIMIT: Final = 1 << 20

# Go's name to OpenSSL's; those without one are always on in TLS 1.3, and only there.
CIPHER_SUITES: Final[Mapping[str, str | None]] = {
    "TLS_AES_128_GCM_SHA256": None,
    "TLS_AES_256_GCM_SHA384": None,
    "TLS_CHACHA20_POLY1305_SHA256": None,
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
}
# Go's name to OpenSSL's.
CURVES: Final[Mapping[str, str]] = {
    "CurveP256": "prime256v1",
    "CurveP384": "secp384r1",
    "CurveP521": "secp521r1",
    "X25519": "X25519",
}
_VERSIONS: Final = ("TLS12", "TLS13")
_OLD_VERSIONS: Final = ("TLS10", "TLS11")
NO_CLIENT_CERT: Final = "NoClientCert"
VERIFY_IF_GIVEN: Final = "VerifyClientCertIfGiven"
REQUIRE_AND_VERIFY: Final = "RequireAndVerifyClientCert"
_CLIENT_AUTH: Final = (NO_CLIENT_CERT, VERIFY_IF_GIVEN, REQUIRE_AND_VERIFY)
_UNVERIFIED_CLIENT_AUTH: Final = ("RequestClientCert", "RequireAnyClientCert", "RequireClientCert")
# Header to the values that it may have; any where there are none.
_HEADERS: Final[Mapping[str, tuple[str, ...]]] = {
    "Content-Security-Policy": (),
    "Strict-Transport-Security": (),
    "X-Content-Type-Options": ("nosniff",),
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-XSS-Protection": (),
}
_BCRYPT: Final = re.compile(r"\$2[abxy]\$(?:0[4-9]|[12][0-9]|3[01])\$[./A-Za-z0-9]{53}\Z")
_HEADER_VALUE: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?\Z")


class WebConfigError(ValueError):
    """A web configuration that cannot be used; the message names the file, line and field."""


@attrs.frozen
class TlsSettings:
    """How to speak TLS.

    Attributes:
        cert_file: The server's certificate and those between it and the root, PEM.
        key_file: Its key, PEM.
        cert: The same in place of a file.
        key: The same in place of a file.
        client_auth_type: One of three.
        client_ca_file: Who may sign clients' certificates, PEM.
        client_ca: The same in place of a file.
        client_allowed_sans: A client's certificate has one of these names; empty asks for none.
        min_version: ``TLS12`` or ``TLS13``.
        max_version: The same.
        cipher_suites: Of `CIPHER_SUITES`; empty leaves it to OpenSSL.
        prefer_server_cipher_suites: Whether this server's order of ciphers counts.
        curve: Of `CURVES`; None leaves it to OpenSSL.
    """

    cert_file: str | None = None
    key_file: str | None = None
    cert: str | None = None
    key: str | None = attrs.field(default=None, repr=False)
    client_auth_type: str = NO_CLIENT_CERT
    client_ca_file: str | None = None
    client_ca: str | None = None
    client_allowed_sans: tuple[str, ...] = ()
    min_version: str = "TLS12"
    max_version: str = "TLS13"
    cipher_suites: tuple[str, ...] = ()
    prefer_server_cipher_suites: bool = True
    curve: str | None = None


@attrs.frozen
class RateLimit:
    """A token bucket: `burst` requests at once, then one per `interval_s`."""

    interval_s: float
    burst: int


@attrs.frozen
class WebConfig:
    """A web configuration that has been checked.

    Attributes:
        path: The file.
        tls: None is plain HTTP.
        users: User to bcrypt hash; empty asks for no password.
        headers: Added to every answer.
        rate_limit: None is no limit.
    """

    path: str
    tls: TlsSettings | None = None
    users: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    headers: Mapping[str, str] = attrs.field(factory=dict)
    rate_limit: RateLimit | None = None

    @property
    def files(self) -> tuple[str, ...]:
        """This file and those that it names: where any of them changes, so does the whole."""
        if self.tls is None:
            return (self.path,)
        named = (self.tls.cert_file, self.tls.key_file, self.tls.client_ca_file)
        return (self.path, *(file for file in named if file is not None))


def load_web_config(path: PathLike) -> WebConfig:
    """Read and check a web configuration; the files that it names are not opened.

    Args:
        path: The YAML file. File names in it are relative to its directory.

    Raises:
        WebConfigError: It cannot be read, is no YAML, or asks for something unknown or impossible.
    """
    import yaml

    name = str(Path(path).absolute())
    try:
        with open(name, "rb") as file:  # noqa: PTH123
            content = file.read(_SIZE_LIMIT + 1)
    except OSError as error:
        raise WebConfigError(f"{name}: {error.strerror}") from error
    if len(content) > _SIZE_LIMIT:
        raise WebConfigError(f"{name}: longer than {_SIZE_LIMIT} bytes")
    try:
        root = yaml.compose(content, yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = "" if mark is None else f":{mark.line + 1}"
        raise WebConfigError(f"{name}{where}: no YAML: {error.problem}") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise WebConfigError(f"{name}: no YAML: {error}") from error
    return _Reader(name).read(root)


class _Field:
    """A value in the file, and where it stands."""

    def __init__(self, file: str, name: str, node: Any) -> None:
        self.file = file
        self.name = name
        self.node = node

    @property
    def is_null(self) -> bool:
        return self.node is None or bool(self.node.tag == "tag:yaml.org,2002:null")

    def wrong(self, why: str, node: Any = None) -> WebConfigError:
        """An error at this field, or at a node inside it."""
        line = (self.node if node is None else node).start_mark.line + 1
        return WebConfigError(f"{self.file}:{line}: {self.name + ': ' if self.name else ''}{why}")

    def mapping(self) -> dict[str, _Field]:
        """The fields of a mapping; no key twice."""
        if self.is_null:
            return {}
        if self.node.id != "mapping":
            raise self.wrong(f"a mapping is wanted, not a {self.node.id}")
        fields: dict[str, _Field] = {}
        for key, value in self.node.value:
            if key.tag != "tag:yaml.org,2002:str":
                raise self.wrong(f"the name {key.value!r} is no text; quote it", key)
            if key.value in fields:
                raise self.wrong(f"{key.value!r} is there twice", key)
            inner = f"{self.name}.{key.value}" if self.name else key.value
            fields[key.value] = _Field(self.file, inner, value)
        return fields

    def text(self) -> str:
        if self.node.tag != "tag:yaml.org,2002:str":
            raise self.wrong("text is wanted; quote it if it is")
        if not self.node.value:
            raise self.wrong("is empty")
        return str(self.node.value)

    def flag(self) -> bool:
        if self.node.tag != "tag:yaml.org,2002:bool":
            raise self.wrong("true or false is wanted")
        return str(self.node.value).lower() in ("true", "yes", "on")

    def number(self) -> int:
        if self.node.tag != "tag:yaml.org,2002:int" or not re.fullmatch(
            "[0-9]{1,9}", self.node.value
        ):
            raise self.wrong("a whole number is wanted")
        return int(self.node.value)

    def texts(self) -> tuple[str, ...]:
        if self.node.id != "sequence":
            raise self.wrong("a list is wanted")
        return tuple(_Field(self.file, self.name, item).text() for item in self.node.value)

    def one_of(self, choices: tuple[str, ...]) -> str:
        chosen = self.text()
        if chosen not in choices:
            raise self.wrong(f"{chosen!r} is none of {', '.join(choices)}")
        return chosen


class _Reader:
    def __init__(self, path: str) -> None:
        self.path = path

    def read(self, root: Any) -> WebConfig:
        fields = self._known(
            _Field(self.path, "", root),
            ("tls_server_config", "http_server_config", "basic_auth_users", "rate_limit"),
        )
        tls, headers, users, rate_limit = None, {}, {}, None
        if (field := fields.get("tls_server_config")) is not None:
            tls = self._tls(field)
        if (field := fields.get("http_server_config")) is not None:
            headers = self._http(field)
        if (field := fields.get("basic_auth_users")) is not None:
            users = self._users(field)
        if (field := fields.get("rate_limit")) is not None:
            rate_limit = self._rate_limit(field)
        return WebConfig(self.path, tls, users, headers, rate_limit)

    @staticmethod
    def _known(field: _Field, names: tuple[str, ...]) -> dict[str, _Field]:
        """The fields that say something; one without a value is as good as not there."""
        fields = field.mapping()
        for name, inner in fields.items():
            if name not in names:
                near = get_close_matches(name, names, 1)
                hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(names)}"
                raise inner.wrong(f"no such field; {hint}")
        return {name: inner for name, inner in fields.items() if not inner.is_null}

    def _tls(self, field: _Field) -> TlsSettings | None:
        names = [attribute.name for attribute in attrs.fields(TlsSettings)]
        names[names.index("curve")] = "curve_preferences"
        fields = self._known(field, tuple(names))
        if not fields:
            return None
        given: dict[str, Any] = {}
        for name in ("cert", "key", "client_ca"):
            if name in fields and f"{name}_file" in fields:
                raise fields[name].wrong(f"{name} and {name}_file exclude each other")
            if name in fields:
                given[name] = fields[name].text()
            elif f"{name}_file" in fields:
                file = fields[f"{name}_file"].text()
                given[f"{name}_file"] = str(Path(self.path).parent / file)
        for name in ("cert", "key"):
            if name not in given and f"{name}_file" not in given:
                raise field.wrong(f"neither {name}_file nor {name} is given")
        if "client_auth_type" in fields:
            given["client_auth_type"] = self._client_auth(fields["client_auth_type"])
        for name in ("min_version", "max_version"):
            if name in fields:
                given[name] = self._version(fields[name])
        if "client_allowed_sans" in fields:
            given["client_allowed_sans"] = fields["client_allowed_sans"].texts()
        if "cipher_suites" in fields:
            suites = fields["cipher_suites"]
            for suite in suites.texts():
                if suite not in CIPHER_SUITES:
                    raise suites.wrong(f"{suite!r} is none of {', '.join(CIPHER_SUITES)}")
            given["cipher_suites"] = suites.texts()
        if "prefer_server_cipher_suites" in fields:
            prefer = fields["prefer_server_cipher_suites"].flag()
            given["prefer_server_cipher_suites"] = prefer
        if "curve_preferences" in fields:
            given["curve"] = self._curve(fields["curve_preferences"])
        settings = TlsSettings(**given)
        self._check_together(field, settings)
        return settings

    @staticmethod
    def _client_auth(field: _Field) -> str:
        if field.text() in _UNVERIFIED_CLIENT_AUTH:
            raise field.wrong(
                f"{field.text()} takes any certificate, which protects nothing, and is not"
                f" supported; use {REQUIRE_AND_VERIFY} or {VERIFY_IF_GIVEN}"
            )
        return field.one_of(_CLIENT_AUTH)

    @staticmethod
    def _version(field: _Field) -> str:
        if field.text() in _OLD_VERSIONS:
            raise field.wrong(f"{field.text()} is broken and not supported; use TLS12 or TLS13")
        return field.one_of(_VERSIONS)

    @staticmethod
    def _curve(field: _Field) -> str | None:
        curves = field.texts()
        for curve in curves:
            if curve not in CURVES:
                raise field.wrong(f"{curve!r} is none of {', '.join(CURVES)}")
        if len(curves) > 1:
            raise field.wrong("more than one curve is not supported; name one, or none")
        return curves[0] if curves else None

    @staticmethod
    def _check_together(field: _Field, settings: TlsSettings) -> None:
        has_ca = settings.client_ca is not None or settings.client_ca_file is not None
        asks = settings.client_auth_type != NO_CLIENT_CERT
        if has_ca and not asks:
            raise field.wrong(
                f"a client_ca is given, but client_auth_type asks for no certificate;"
                f" set it to {REQUIRE_AND_VERIFY}"
            )
        if asks and not has_ca:
            raise field.wrong(f"{settings.client_auth_type} needs client_ca_file or client_ca")
        if settings.client_allowed_sans and settings.client_auth_type != REQUIRE_AND_VERIFY:
            raise field.wrong(f"client_allowed_sans needs client_auth_type {REQUIRE_AND_VERIFY}")
        if settings.min_version > settings.max_version:
            raise field.wrong(
                f"min_version {settings.min_version} is above max_version {settings.max_version}"
            )
        usable = any(CIPHER_SUITES[suite] for suite in settings.cipher_suites)
        if settings.cipher_suites and not usable and settings.max_version == "TLS12":
            raise field.wrong("none of cipher_suites works with TLS12")

    def _http(self, field: _Field) -> dict[str, str]:
        fields = self._known(field, ("http2", "headers"))
        if "http2" in fields and fields["http2"].flag():
            raise fields["http2"].wrong(
                "HTTP/2 is not supported; leave the field out, or set it to false"
            )
        if "headers" not in fields:
            return {}
        headers = {}
        for name, inner in self._known(fields["headers"], tuple(_HEADERS)).items():
            # A blank value unsets the header.
            if inner.node.value == "":
                continue
            choices = _HEADERS[name]
            value = inner.one_of(choices) if choices else self._header_value(inner)
            headers[name] = value
        return headers

    @staticmethod
    def _header_value(field: _Field) -> str:
        # 0 is what some want of X-XSS-Protection, and no text for YAML.
        if field.node.id == "scalar" and _HEADER_VALUE.match(field.node.value):
            return str(field.node.value)
        raise field.wrong("a header is one line of plain ASCII")

    @staticmethod
    def _users(field: _Field) -> dict[str, str]:
        users = {}
        for name, inner in field.mapping().items():
            if not name or ":" in name:
                raise inner.wrong("no user can have this name: basic authentication ends it at ':'")
            # The message does not repeat the value: it might be a password.
            if inner.is_null or not _BCRYPT.match(inner.text()):
                raise inner.wrong(
                    "no bcrypt hash such as `htpasswd -nBC 10 USER` prints after the colon"
                )
            users[name] = inner.text()
        return users

    def _rate_limit(self, field: _Field) -> RateLimit | None:
        fields = self._known(field, ("interval", "burst"))
        interval_s = 0.0
        if "interval" in fields:
            inner = fields["interval"]
            # 0 is a number for YAML and a length of time for whoever writes it.
            text = "0" if inner.node.value == "0" else inner.text()
            try:
                interval_s = parse_duration(text)
            except ValueError as error:
                raise inner.wrong(str(error)) from None
        burst = fields["burst"].number() if "burst" in fields else 0
        if interval_s == 0.0:
            return None
        if burst < 1:
            raise field.wrong("a burst under 1 would refuse every request")
        return RateLimit(interval_s, burst)

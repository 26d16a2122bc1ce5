"""The web configuration file: what is taken, what is refused, and in which words."""

from collections.abc import Callable
from pathlib import Path

import pytest

from libhamiregion.exporter import WebConfigError
from libhamiregion.exporter.web_config import (
    RateLimit,
    TlsSettings,
    WebConfig,
    load_web_config,
)

Loader = Callable[[str], WebConfig]

HASH = "$2y$10$X0h1gDsPszWURQaxFh.zoubFi6DXncSjhoQNJgRrnGs7EsimhC7zG"


@pytest.fixture
def written(tmp_path: Path) -> Loader:
    """Write a file and load it."""

    def load(text: str) -> WebConfig:
        (tmp_path / "web.yml").write_text(text)
        return load_web_config(tmp_path / "web.yml")

    return load


def test_an_empty_file_is_plain_http_for_everybody(written: Loader) -> None:
    for text in ("", "# nothing\n", "{}", "tls_server_config:\nbasic_auth_users: {}\n"):
        config = written(text)
        assert config.tls is None
        assert not config.users
        assert not config.headers
        assert config.rate_limit is None


def test_everything_that_is_supported_is_read(written: Loader, tmp_path: Path) -> None:
    config = written(
        f"""
        tls_server_config:
          cert_file: server.crt
          key_file: /keys/server.key
          client_auth_type: RequireAndVerifyClientCert
          client_ca_file: ca/clients.crt
          client_allowed_sans: [prometheus.monitoring, 10.0.0.7]
          min_version: TLS12
          max_version: TLS13
          cipher_suites:
          - TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256
          prefer_server_cipher_suites: false
          curve_preferences: [X25519]
        http_server_config:
          http2: false
          headers:
            Strict-Transport-Security: max-age=31536000
            X-Frame-Options: deny
            X-Content-Type-Options: nosniff
            X-XSS-Protection: 0
            Content-Security-Policy: ""
        basic_auth_users:
          alice: {HASH}
        rate_limit:
          interval: 1s
          burst: 20
        """
    )
    assert config.tls == TlsSettings(
        cert_file=str(tmp_path / "server.crt"),
        key_file="/keys/server.key",
        client_auth_type="RequireAndVerifyClientCert",
        client_ca_file=str(tmp_path / "ca/clients.crt"),
        client_allowed_sans=("prometheus.monitoring", "10.0.0.7"),
        cipher_suites=("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",),
        prefer_server_cipher_suites=False,
        curve="X25519",
    )
    assert config.headers == {
        "Strict-Transport-Security": "max-age=31536000",
        "X-Frame-Options": "deny",
        "X-Content-Type-Options": "nosniff",
        "X-XSS-Protection": "0",
    }
    assert config.users == {"alice": HASH}
    assert config.rate_limit == RateLimit(1.0, 20)
    assert config.files == (
        str(tmp_path / "web.yml"),
        str(tmp_path / "server.crt"),
        "/keys/server.key",
        str(tmp_path / "ca/clients.crt"),
    )


@pytest.mark.parametrize("prefix", ["$2a$", "$2b$", "$2x$", "$2y$"])
def test_every_kind_of_bcrypt_hash_is_taken(written: Loader, prefix: str) -> None:
    assert written(f"basic_auth_users: {{a: '{prefix}{HASH[4:]}'}}").users


REFUSED = [
    ("tls_config: {}", "web.yml:1: tls_config: no such field; did you mean tls_server_config?"),
    ("xyz: {}", "xyz: no such field; known are tls_server_config, http_server_config, basic"),
    (
        "tls_server_config:\n  cert_file: a\n  key_fil: b",
        "web.yml:3: tls_server_config.key_fil: no such field; did you mean key_file?",
    ),
    ("tls_server_config: {cert_file: a}", "neither key_file nor key is given"),
    ("tls_server_config: {client_auth_type: NoClientCert}", "neither cert_file nor cert is given"),
    ("tls_server_config: {cert: a, cert_file: a}", "cert and cert_file exclude each other"),
    ("tls_server_config: [a]", "tls_server_config: a mapping is wanted, not a sequence"),
    ("- a", "web.yml:1: a mapping is wanted, not a sequence"),
    ("basic_auth_users: {}\nbasic_auth_users: {}", "'basic_auth_users' is there twice"),
    ("basic_auth_users: {a: secret}", "no bcrypt hash such as"),
    ("basic_auth_users: {a: }", "no bcrypt hash such as"),
    (f"basic_auth_users: {{a: '{HASH}x'}}", "no bcrypt hash such as"),
    (f"basic_auth_users: {{a: '$2b$03{HASH[6:]}'}}", "no bcrypt hash such as"),
    (f"basic_auth_users: {{7: '{HASH}'}}", "the name '7' is no text; quote it"),
    (f"basic_auth_users: {{'a:b': '{HASH}'}}", "no user can have this name"),
    ("http_server_config: {http2: true}", "HTTP/2 is not supported"),
    ("http_server_config: {http2: 1}", "true or false is wanted"),
    ("http_server_config: {headers: {Server: x}}", "headers.Server: no such field"),
    ("http_server_config: {headers: {X-Frame-Options: no}}", "text is wanted; quote it"),
    ("http_server_config: {headers: {X-Frame-Options: 'no'}}", "'no' is none of deny, sameorigin"),
    (
        'http_server_config: {headers: {Content-Security-Policy: "a\\nb"}}',
        "a header is one line of plain ASCII",
    ),
    ("rate_limit: {interval: 1s}", "a burst under 1 would refuse every request"),
    ("rate_limit: {interval: 5, burst: 1}", "text is wanted"),
    ("rate_limit: {interval: '5', burst: 1}", "it has no unit"),
    ("rate_limit: {interval: 1s, burst: many}", "a whole number is wanted"),
    ("a: [", "web.yml:1: no YAML: "),
    ("a: \tb: c", "no YAML"),
    ("\x00", "no YAML"),
    ("[" * 100_000, "no YAML"),
]
TLS_REFUSED = [
    ("client_auth_type: RequireAnyClientCert", "takes any certificate, which protects nothing"),
    ("client_auth_type: RequestClientCert", "takes any certificate, which protects nothing"),
    ("client_auth_type: Something", "'Something' is none of NoClientCert, Verify"),
    ("client_auth_type: RequireAndVerifyClientCert", "needs client_ca_file or client_ca"),
    ("client_ca_file: x", "client_auth_type asks for no certificate"),
    ("client_allowed_sans: [a]", "client_allowed_sans needs client_auth_type Require"),
    ("min_version: TLS10", "TLS10 is broken and not supported"),
    ("min_version: 1.2", "text is wanted"),
    ("min_version: SSL30", "'SSL30' is none of TLS12, TLS13"),
    ("{min_version: TLS13, max_version: TLS12}", "min_version TLS13 is above max_version TLS12"),
    ("cipher_suites: [RC4]", "'RC4' is none of TLS_AES_128_GCM_SHA256"),
    (
        "{cipher_suites: [TLS_AES_128_GCM_SHA256], max_version: TLS12}",
        "none of cipher_suites works with TLS12",
    ),
    ("curve_preferences: [P256]", "'P256' is none of CurveP256"),
    ("curve_preferences: [CurveP256, X25519]", "more than one curve is not supported"),
    ("prefer_server_cipher_suites: perhaps", "true or false is wanted"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_what_is_not_understood_is_refused_with_its_place(
    written: Loader, text: str, message: str
) -> None:
    with pytest.raises(WebConfigError) as caught:
        written(text)
    assert message in str(caught.value)
    assert "web.yml" in str(caught.value)


@pytest.mark.parametrize(("text", "message"), TLS_REFUSED)
def test_tls_that_would_not_protect_is_refused(written: Loader, text: str, message: str) -> None:
    fields = text.strip("{}")
    with pytest.raises(WebConfigError) as caught:
        written(f"tls_server_config: {{cert_file: a, key_file: b, {fields}}}")
    assert message in str(caught.value)


def test_messages_never_repeat_a_password_or_key(written: Loader) -> None:
    with pytest.raises(WebConfigError) as caught:
        written("basic_auth_users: {alice: hunter2}")
    assert "hunter2" not in str(caught.value)
    config = written(
        f"tls_server_config: {{cert: c, key: topsecret}}\nbasic_auth_users: {{alice: '{HASH}'}}"
    )
    assert "topsecret" not in repr(config)
    assert HASH not in repr(config)


def test_a_file_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(WebConfigError, match=r"nothing\.yml: No such file or directory"):
        load_web_config(tmp_path / "nothing.yml")
    with pytest.raises(WebConfigError, match="Is a directory"):
        load_web_config(tmp_path)
    (tmp_path / "huge.yml").write_bytes(b"#" * (2 << 20))
    with pytest.raises(WebConfigError, match="longer than"):
        load_web_config(tmp_path / "huge.yml")

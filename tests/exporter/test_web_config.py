"""The web configuration file: what is taken, what is refused, and in which words."""

from collections.abc import Callable

import pytest

from libhamiregion.exporter import WebConfigError
from libhamiregion.exporter.web_config import WebConfig, load_web_config

Loader = Callable[[str], WebConfig]

CERTIFICATE = "cert_file: a, key_file: b"
HASH = "$2y$10$X0h1gDsPszWURQaxFh.zoubFi6DXncSjhoQNJgRrnGs7EsimhC7zG"


@pytest.fixture
def written(tmp_path) -> Loader:
    """Write a file and load it."""

    def load(text: str) -> WebConfig:
        (tmp_path / "web.yml").write_text(text)
        return load_web_config(tmp_path / "web.yml")

    return load


def test_an_empty_file_is_plain_http_for_everybody(written):
    for text in ("", "# nothing\n", "{}", "tls_server_config:\nbasic_auth_users: {}\n"):
        config = written(text)
        assert config.tls is None
        assert not config.users


@pytest.mark.parametrize("kind", ["$2a$04", "$2b$10", "$2x$12", "$2y$16"])
def test_every_kind_of_bcrypt_hash_is_taken(written, kind):
    assert written(f"basic_auth_users: {{a: '{kind}{HASH[6:]}'}}").users


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tls_config: {}", "'tls_config' is not supported; there are tls_server_config, basic"),
        ("http_server_config: {headers: {}}", "'http_server_config' is not supported"),
        ("rate_limit: {burst: 1}", "'rate_limit' is not supported"),
        ("tls_server_config: {cert_file: a, key_fil: b}", "'key_fil' is not supported"),
        ("tls_server_config: {min_version: TLS10}", "'min_version' is not supported"),
        ("tls_server_config: {cert_file: a}", "cert_file and key_file need each other"),
        ("tls_server_config: {key_file: a}", "cert_file and key_file need each other"),
        ("tls_server_config: {cert_file: 7}", "tls_server_config.cert_file: text is wanted"),
        (r'tls_server_config: {cert_file: "a\0b", key_file: b}', "cert_file: text is wanted"),
        ("!!bool x", "no YAML"),
        ("!!timestamp x", "no YAML"),
        ("tls_server_config: [a]", "tls_server_config: a mapping of names is wanted"),
        ("- a", "the file: a mapping of names is wanted"),
        (
            f"tls_server_config: {{{CERTIFICATE}, client_auth_type: RequestClientCert}}",
            "'RequestClientCert' is none of NoClientCert, VerifyClientCertIfGiven, Require",
        ),
        (
            f"tls_server_config: {{{CERTIFICATE}, client_ca_file: c}}",
            "client_ca_file and a client_auth_type that verifies need each other",
        ),
        (
            f"tls_server_config: {{{CERTIFICATE}, client_auth_type: VerifyClientCertIfGiven}}",
            "need each other",
        ),
        ("basic_auth_users: {a: secret}", "'a' takes a name without a colon and a bcrypt hash of"),
        (f"basic_auth_users: {{a: '{HASH}x'}}", "a bcrypt hash of cost 4 to 16"),
        (f"basic_auth_users: {{a: '$2b$03{HASH[6:]}'}}", "a bcrypt hash of cost 4 to 16"),
        (f"basic_auth_users: {{a: '$2b$17{HASH[6:]}'}}", "a bcrypt hash of cost 4 to 16"),
        (f"basic_auth_users: {{a: '{HASH[:28]}a{HASH[29:]}'}}", "a bcrypt hash of cost 4 to 16"),
        (f"basic_auth_users: {{7: '{HASH}'}}", "basic_auth_users: a mapping of names is wanted"),
        (f"basic_auth_users: {{'a:b': '{HASH}'}}", "'a:b' takes a name without a colon"),
        ("a: [", "no YAML"),
        ("a: \x00", "no YAML"),
        ("[" * 100_000, "no YAML"),
        ("#" * (1 << 20) + "#", "longer than 1048576 bytes"),
    ],
)
def test_what_is_not_supported_is_refused_with_the_file_and_the_field(written, text, message):
    with pytest.raises(WebConfigError) as refused:
        written(text)
    assert message in str(refused.value)
    assert "web.yml" in str(refused.value)
    assert "secret" not in str(refused.value)

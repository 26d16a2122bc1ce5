"""Where the API server is and who asks it, by a pod's account and by kubeconfig files."""

import base64
import json
import os
import ssl
import stat
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml
from certificates import Authority, needs_openssl
from fake_kubernetes.server import TOKEN, FakeApi
from wait import PATIENCE_S

from libhamiregion.node import kube_config
from libhamiregion.node.kube_config import ConfigError, find_access
from libhamiregion.node.kubernetes import KubernetesApi

SERVER = "https://[fd00::1]:6443/k8s/"


def config(path: Path, user: dict[str, Any], **cluster: Any) -> str:
    document = {
        "current-context": "a",
        "contexts": [{"name": "a", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": SERVER, **cluster}}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(yaml.safe_dump(document))
    return str(path)


def authorization(path: str) -> str | None:
    return find_access(path).headers().get("Authorization")


def test_an_address_has_a_host_a_port_and_perhaps_a_prefix(tmp_path: Path) -> None:
    path = config(tmp_path / "c", {"token": "t"}, **{"tls-server-name": "api.example"})
    found = find_access(path)
    assert (found.host, found.port, found.prefix) == ("fd00::1", 6443, "/k8s")
    assert found.server_name == "api.example"
    assert found.context is not None
    assert found.context.verify_mode is ssl.CERT_REQUIRED
    path = config(tmp_path / "c", {}, server="https://api.example")
    assert (find_access(path).port, find_access(path).prefix) == (443, "")
    path = config(tmp_path / "c", {}, server="http://127.0.0.1")
    assert (find_access(path).port, find_access(path).context) == (80, None)


def test_tokens_stand_in_the_file_or_in_one_that_is_read_each_time(tmp_path: Path) -> None:
    assert authorization(config(tmp_path / "c", {"token": "t"})) == "Bearer t"
    assert authorization(config(tmp_path / "c", {})) is None
    (tmp_path / "token").write_text("first\n")
    access = find_access(config(tmp_path / "c", {"tokenFile": "token", "token": "old"}))
    assert access.headers() == {"Authorization": "Bearer first"}
    (tmp_path / "token").write_text("second\n")
    assert access.headers() == {"Authorization": "Bearer second"}
    (tmp_path / "token").write_text("\n")
    with pytest.raises(ValueError, match="token is empty"):
        access.headers()


def test_a_name_and_a_password_are_basic_authentication(tmp_path: Path) -> None:
    said = authorization(config(tmp_path / "c", {"username": "a", "password": "b"}))
    assert said == f"Basic {base64.b64encode(b'a:b').decode()}"


def test_a_program_gives_credentials(tmp_path: Path) -> None:
    program = tmp_path / "plugin"
    program.write_text(
        f"#!{sys.executable}\n"
        "import json, os, sys\n"
        "asked = json.loads(os.environ['KUBERNETES_EXEC_INFO'])\n"
        "assert asked['kind'] == 'ExecCredential' and not asked['spec']['interactive']\n"
        "token = '-'.join([os.environ['WHO'], *sys.argv[1:]])\n"
        "print(json.dumps({'apiVersion': asked['apiVersion'], 'status': {'token': token}}))\n"
    )
    program.chmod(stat.S_IRWXU)
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "./plugin",
        "args": ["b"],
        "env": [{"name": "WHO", "value": "a"}],
    }
    assert authorization(config(tmp_path / "c", {"exec": plugin})) == "Bearer a-b"
    plugin["args"] = None
    program.write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(ConfigError, match=r"plugin gave no credentials: .* exit status 3"):
        find_access(config(tmp_path / "c", {"exec": plugin}))


@needs_openssl
def test_a_program_gives_a_certificate_and_its_key(tmp_path: Path) -> None:
    certificate, key = Authority.in_directory(tmp_path / "authority").issue("client")
    status = {
        "clientCertificateData": certificate.read_text(),
        "clientKeyData": key.read_text(),
        "token": "t",
    }
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "cat",
        "args": [str(tmp_path / "said")],
    }
    (tmp_path / "said").write_text(json.dumps({"status": status}))
    assert authorization(config(tmp_path / "c", {"exec": plugin})) == "Bearer t"
    status["clientKeyData"] = "no key"
    (tmp_path / "said").write_text(json.dumps({"status": status}))
    with pytest.raises(ConfigError, match=str(tmp_path)):
        find_access(config(tmp_path / "c", {"exec": plugin}))


@pytest.mark.parametrize(
    ("said", "mode"),
    [(True, ssl.CERT_NONE), (False, ssl.CERT_REQUIRED), ("false", ssl.CERT_REQUIRED)],
)
def test_the_server_is_verified_unless_the_file_says_that_it_is_not(
    tmp_path: Path, said: object, mode: ssl.VerifyMode
) -> None:
    path = config(tmp_path / "c", {}, **{"insecure-skip-tls-verify": said})
    context = find_access(path).context
    assert context is not None
    assert (context.verify_mode, context.check_hostname) == (mode, mode is ssl.CERT_REQUIRED)


@needs_openssl
@pytest.mark.parametrize("is_data", [True, False])
def test_certificates_stand_in_the_file_or_beside_it(tmp_path: Path, is_data: bool) -> None:
    authority = Authority.in_directory(tmp_path / "authority")
    certificate, key = authority.issue("client")
    entries: dict[str, Path] = {"client-certificate": certificate, "client-key": key}
    cluster: dict[str, Path] = {"certificate-authority": authority.certificate}

    def stored(files: dict[str, Path]) -> dict[str, str]:
        if not is_data:
            return {name: str(path.relative_to(tmp_path)) for name, path in files.items()}
        return {
            f"{name}-data": base64.b64encode(path.read_bytes()).decode()
            for name, path in files.items()
        }

    path = config(tmp_path / "c", stored(entries), **stored(cluster))
    context = find_access(path).context
    assert context is not None
    assert len(context.get_ca_certs()) == 1
    certificate.write_text("no certificate")
    path = config(tmp_path / "c", stored(entries), **stored(cluster))
    with pytest.raises(ConfigError, match=str(tmp_path)):
        find_access(path)


@needs_openssl
def test_around_certificates_there_may_be_words_and_no_file_of_them_is_empty(
    tmp_path: Path,
) -> None:
    authority = Authority.in_directory(tmp_path / "authority")
    words = "# Zertifizierungsstelle für Prüfungen\n".encode()
    (tmp_path / "ca").write_bytes(words + authority.certificate.read_bytes())
    path = config(tmp_path / "c", {}, **{"certificate-authority": "ca"})
    context = find_access(path).context
    assert context is not None
    assert len(context.get_ca_certs()) == 1
    (tmp_path / "ca").write_bytes(b"")
    with pytest.raises(ConfigError, match="ca is empty"):
        find_access(path)


def test_a_pipe_gives_its_content_once_and_to_all_who_ask(tmp_path: Path) -> None:
    """As kubectl --kubeconfig <(...) takes it."""
    content = Path(config(tmp_path / "c", {"token": "t"})).read_bytes()
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    writer = threading.Thread(target=fifo.write_bytes, args=(content,), daemon=True)
    writer.start()
    assert [authorization(str(fifo)) for _ in range(2)] == ["Bearer t"] * 2
    writer.join(PATIENCE_S)


def test_entries_of_several_files_are_one_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    config(tmp_path / "first", {"token": "first"})
    whole = yaml.safe_load((tmp_path / "first").read_text())
    (tmp_path / "second").write_text(yaml.safe_dump({"users": whole.pop("users")}))
    (tmp_path / "first").write_text(yaml.safe_dump(whole))
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/first:{tmp_path}/second")
    assert find_access(None).headers() == {"Authorization": "Bearer first"}


@pytest.mark.parametrize(
    ("user", "cluster", "said"),
    [
        ({"auth-provider": {}}, {}, "auth-provider is not supported"),
        ({}, {"proxy-url": "http://p"}, "proxy-url is not supported"),
        ({}, {"server": "api.example"}, "is no address of a server"),
        ({}, {"server": 7}, "c: "),
        ({"client-certificate-data": "%"}, {}, "client-certificate-data"),
        ({"tokenFile": 7}, {}, "c: "),
        ({"exec": []}, {}, "c: "),
    ],
)
def test_what_cannot_be_used_is_an_error_that_names_the_file(
    tmp_path: Path, user: dict[str, Any], cluster: dict[str, Any], said: str
) -> None:
    path = config(tmp_path / "c", user, **cluster)
    with pytest.raises(ConfigError, match=said) as caught:
        find_access(path)
    assert path in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "content",
    ["", "[", "7", "current-context: x", "{current-context: a, contexts: 7}"],
)
def test_what_is_no_kubeconfig_is_an_error_that_names_it(tmp_path: Path, content: str) -> None:
    (tmp_path / "c").write_text(content)
    with pytest.raises(ConfigError, match=str(tmp_path / "c")):
        find_access(str(tmp_path / "c"))


@needs_openssl
def test_a_pod_asks_by_its_own_account_whose_token_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority.in_directory(tmp_path)
    monkeypatch.setattr(kube_config, "_ACCOUNT", tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    with pytest.raises(ConfigError, match="the pod's service account in"):
        find_access(None)
    (tmp_path / "token").write_text("another")
    with FakeApi(authority.issue("api", "IP:127.0.0.1")) as api:
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", api.url.rpartition(":")[2])
        client = KubernetesApi()
        with pytest.raises(Exception, match="401"):
            client.get("/api/v1/pods", {})
        (tmp_path / "token").write_text(TOKEN)
        with client.get("/api/v1/pods", {}) as answer:
            assert json.loads(b"".join(answer.pieces()))["kind"] == "PodList"
        client.close()
